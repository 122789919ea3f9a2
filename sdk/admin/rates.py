"""How fast partitions and disks fill, and how fast consumers read: from one look at the nodes' replicas to the next."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from semel.protocol.ids import TopicPartition
from semel.sdk.admin.cluster_calls import ReplicasOfNodes


@dataclass(frozen=True, slots=True)
class Flow:
    """Bytes per second: `written`, and `sent` to consumers."""

    written: float = 0.0
    sent: float = 0.0


def topic_flows(before: ReplicasOfNodes, after: ReplicasOfNodes, seconds: float) -> dict[str, Flow]:
    """Return what producers wrote to each topic, each record once, and what consumers were sent of it.

    A partition whose old records went meanwhile counts for what it has grown all the same, or for nothing.
    """
    written, sent = Counter[str](), Counter[str]()
    sizes_before = sizes_of(before)
    for tp, size_bytes in sizes_of(after).items():
        if tp in sizes_before:
            written[tp.topic] += max(0, size_bytes - sizes_before[tp])
    for tp, count in fetched_between(before, after).items():
        sent[tp.topic] += count
    return {topic: Flow(written[topic] / seconds, sent[topic] / seconds) for topic in written | sent}


def node_flows(before: ReplicasOfNodes, after: ReplicasOfNodes, seconds: float) -> dict[int, Flow]:
    """Return what each node wrote to its disk, replicas of others among it, and what it sent to consumers."""
    found: dict[int, Flow] = {}
    for node_id, here in after.nodes.items():
        was_here = before.nodes.get(node_id)
        if was_here is None:
            continue
        grown = sum(max(0, size - was_here.sizes[tp]) for tp, size in here.sizes.items() if tp in was_here.sizes)
        sent = sum(_more(was_here.fetched_bytes.get(tp, 0), count) for tp, count in here.fetched_bytes.items())
        found[node_id] = Flow(grown / seconds, sent / seconds)
    return found


def topic_sizes(replicas: ReplicasOfNodes) -> dict[str, int]:
    """Return the bytes of each topic, of one replica of each partition."""
    found: defaultdict[str, int] = defaultdict(int)
    for tp, size_bytes in sizes_of(replicas).items():
        found[tp.topic] += size_bytes
    return dict(found)


def sizes_of(replicas: ReplicasOfNodes) -> dict[TopicPartition, int]:
    """Return the size of each partition: that of its largest replica, because one that is still copied has less."""
    found: dict[TopicPartition, int] = {}
    for here in replicas.nodes.values():
        for tp, size_bytes in here.sizes.items():
            found[tp] = max(size_bytes, found.get(tp, 0))
    return found


def fetched_between(before: ReplicasOfNodes, after: ReplicasOfNodes) -> Mapping[TopicPartition, int]:
    """Return how many bytes consumers were sent of each partition from one look at the nodes to the next, by all nodes.

    A node's count that went back began again, because the node did or the replica was moved to it: what it has now was
    sent since. So was that of a replica which the node did not have before. Of a node that could not be asked before
    nothing is known: what it counts may be of days.
    """
    found = Counter[TopicPartition]()
    for node_id, here in after.nodes.items():
        was_here = before.nodes.get(node_id)
        if was_here is None:
            continue
        for tp, count in here.fetched_bytes.items():
            found[tp] += _more(was_here.fetched_bytes.get(tp, 0), count)
    return found


def _more(before: int, after: int) -> int:
    return after - before if after >= before else after
