"""How uneven a cluster is, as one number, and what it costs to change that.

The number is a sum over nodes: how far each is from the mean, relative to the mean, squared. So a node that has 10%
more than the mean counts for 0.01, whether that is of 10 replicas or of 10 TB. Only nodes that may get more count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final

from semel.sdk.balancing.model import ClusterModel, NodeModel

BYTES_MEAN_MIN: Final = 64 << 20
"""A mean that is smaller counts as this many bytes: nobody needs megabytes spread evenly."""
BYTES_IN_MEAN_MIN: Final = 64 << 10
"""The same for bytes a second that are written."""
BYTES_OUT_MEAN_MIN: Final = 64 << 10
"""The same for those that are sent."""
ROUNDING: Final = 1e-11
"""A step that gains less gains nothing: what is left of sums of floats."""
_GAIN_SHARE_MIN: Final = 0.01
"""So much of what one replica is on an average node has a step to gain: without it searches end in thousands of steps
that make nodes even to the last byte."""
_EXCHANGE_SHARE_MIN: Final = 0.1
"""So much of what one leader is on an average node has an exchange of two leaders to gain. It is meant for nodes that
lead few partitions. Where they lead many, single changes make them more even than that, and exchanges take time."""


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each goal counts against the others. From 0, which switches a goal off, to 1000; else `ValueError`.

    replicas, leaders, size_bytes, bytes_in, bytes_out: that nodes have equally much of it; leaders are the preferred
                   ones, and bytes out are those of the partitions that a node leads
    topic_replicas, topic_leaders: that the same holds within each topic. A topic counts for its share of all
    copy:          of copying a replica, relative to what a node has. With 0.1, nodes stay as they are where one has a
                   few percent more than another: that is not worth the copies
    leader_change: of another preferred leader, which copies nothing
    """

    replicas: float = 1.0
    leaders: float = 1.0
    size_bytes: float = 1.0
    bytes_in: float = 1.0
    bytes_out: float = 1.0
    topic_replicas: float = 1.0
    topic_leaders: float = 1.0
    copy: float = 0.1
    leader_change: float = 0.01

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0 <= value <= 1000:
                raise ValueError(f"the weight {one.name} can't be {value}: give 0 to 1000")


DEFAULT_WEIGHTS: Final = Weights()


def receivers(cluster: ClusterModel, empty: Collection[int]) -> tuple[NodeModel, ...]:
    """Return the nodes that may get replicas, by node id. Those of all others stay, but for nodes that are emptied."""
    able = (each for each in cluster.nodes if each.is_alive and each.may_get_more and each.node_id not in empty)
    return tuple(sorted(able, key=lambda each: each.node_id))


def imbalance(cluster: ClusterModel, *, empty: Collection[int] = (), weights: Weights = DEFAULT_WEIGHTS) -> float:
    """Return how uneven a cluster is: 0.0 where all nodes that may get replicas have equally much of everything.

    empty: nodes that do not count, because they are to have nothing
    """
    nodes = [each.node_id for each in receivers(cluster, empty)]
    if not nodes:
        return 0.0
    replicas, leaders, sizes, rates_in, rates_out = (Counter[int]() for _ in range(5))
    topics: dict[str, tuple[Counter[int], Counter[int]]] = {}
    for one in cluster.partitions:
        of_topic = topics.setdefault(one.partition.topic, (Counter(), Counter()))
        leaders[one.replicas[0]] += 1
        rates_out[one.replicas[0]] += round(one.led_bytes_out_per_s)
        of_topic[1][one.replicas[0]] += 1
        for node_id in one.replicas:
            replicas[node_id] += 1
            of_topic[0][node_id] += 1
            sizes[node_id] += one.size_bytes
            rates_in[node_id] += round(one.bytes_in_per_s)

    def uneven(counts: Counter[int], mean_min: int = 0) -> float:
        return relative_squares([counts[each] for each in nodes], mean_min)

    def share(counts: Counter[int], total: Counter[int]) -> float:
        return sum(counts[each] for each in nodes) / max(1, sum(total[each] for each in nodes))

    return (
        weights.replicas * uneven(replicas)
        + weights.leaders * uneven(leaders)
        + weights.size_bytes * uneven(sizes, BYTES_MEAN_MIN)
        + weights.bytes_in * uneven(rates_in, BYTES_IN_MEAN_MIN)
        + weights.bytes_out * uneven(rates_out, BYTES_OUT_MEAN_MIN)
        + weights.topic_replicas * sum(share(each, replicas) * uneven(each) for each, _ in topics.values())
        + weights.topic_leaders * sum(share(each, leaders) * uneven(each) for _, each in topics.values())
    )


def relative_squares(loads: Sequence[int], mean_min: int = 0) -> float:
    """Return the sum of the squared deviations from the mean, relative to it, or to `mean_min` where that is more."""
    mean = sum(loads) / len(loads)
    scale = max(mean, mean_min)
    return sum((load - mean) ** 2 for load in loads) / scale**2 if scale else 0.0


@dataclass(frozen=True, slots=True)
class Factors:
    """What squares of loads are multiplied with, so that their sum is the imbalance plus a constant.

    topic_replicas, topic_leaders: by the topic's number
    per_byte, per_replica:         a copy costs both: per byte of it, and for each
    """

    replicas: float
    leaders: float
    size_bytes: float
    bytes_in: float
    bytes_out: float
    topic_replicas: tuple[float, ...]
    topic_leaders: tuple[float, ...]
    per_byte: float
    per_replica: float
    leader_change: float
    gain_min: float
    exchange_gain_min: float

    @classmethod
    def of(
        cls,
        weights: Weights,
        node_count: int,
        *,
        replicas: int,
        leaders: int,
        size_bytes: int,
        bytes_in: int,
        bytes_out: int,
        topic_replicas: Iterable[int],
        topic_leaders: Iterable[int],
    ) -> Factors:
        """Return the factors for what all nodes that may get replicas have together."""
        size_mean = max(size_bytes / node_count, BYTES_MEAN_MIN)
        in_mean = max(bytes_in / node_count, BYTES_IN_MEAN_MIN)
        out_mean = max(bytes_out / node_count, BYTES_OUT_MEAN_MIN)
        per_node = node_count / replicas if replicas else 0.0
        leader_per_node = node_count / leaders if leaders else 0.0
        return cls(
            replicas=weights.replicas * per_node**2,
            leaders=weights.leaders * leader_per_node**2,
            size_bytes=weights.size_bytes / size_mean**2,
            bytes_in=weights.bytes_in / in_mean**2,
            bytes_out=weights.bytes_out / out_mean**2,
            # Of the topic's squares relative to its own mean, the topic's share of all.
            topic_replicas=tuple(
                weights.topic_replicas * per_node * node_count / each if each else 0.0 for each in topic_replicas
            ),
            topic_leaders=tuple(
                weights.topic_leaders * leader_per_node * node_count / each if each else 0.0 for each in topic_leaders
            ),
            per_byte=weights.copy / 2 / size_mean,
            per_replica=weights.copy / 2 * per_node,
            leader_change=weights.leader_change * leader_per_node,
            gain_min=max(ROUNDING, _GAIN_SHARE_MIN * per_node),
            exchange_gain_min=max(ROUNDING, _EXCHANGE_SHARE_MIN * leader_per_node),
        )
