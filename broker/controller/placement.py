"""On which nodes the replicas of new partitions are.

Each partition's replicas are in as many racks as they can be. Within that rule a topic's replicas are spread evenly
over the nodes, and so are their leaders: a partition's first replica is its preferred leader. Nodes without a rack are
in one rack together, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Final

from semel.broker.controller.membership import alive_nodes, changed, cordoned_nodes, follows, full_nodes
from semel.broker.metadata.changes import PartitionChanged, PartitionState
from semel.broker.metadata.image import MetadataImage, TopicImage
from semel.protocol.errors import ErrorCode, UsageError
from semel.protocol.wording import counted

_PATTERN_MAX: Final = 256
"""Partitions after which the choices of nodes repeat: placing a wide topic must not hold the event loop (S3)."""


def place_replicas(
    image: MetadataImage,
    topic: str,
    count: int,
    factor: int,
    *,
    nodes: Collection[int],
    start: int,
    existing: Sequence[PartitionState] = (),
    stopping: Collection[int] = (),
) -> tuple[PartitionState, ...]:
    """Return the states of `count` new partitions with `factor` replicas each.

    nodes: those that may have replicas, of the registered ones. Nodes that are fenced, shut down or have a full disk
        get some only where the others are too few, and lead nothing, but for full ones where there are no others
    start: a random number from which the rounds begin, so that the first partitions of all topics are not on one node
    existing: the partitions that the topic has

    Raises `UsageError` (INVALID_REPLICATION_FACTOR).
    """
    able = sorted(image.brokers.keys() & set(nodes))
    if not 1 <= factor <= len(able):
        raise _refusal(topic, factor, able, cordoned_nodes(image))
    ready = alive_nodes(image).difference(stopping).intersection(able)
    if not ready:
        raise UsageError(
            f"topic {topic} can't be placed now: of the nodes {_listed(able)} none is alive and stays. Start one",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    roomy = ready - full_nodes(image) or ready
    rounds = _Rounds(_by_turns_of_racks(image, able), image, roomy, start % len(able))
    length = len(able) * max(1, min(len(able) - 1, _PATTERN_MAX // len(able)))
    placed = rounds.place(count % length, factor, existing)
    if count >= length:
        placed += rounds.place(length, factor) * (count // length)
    # The same replicas are the same object: a topic may have thousands of partitions.
    known = {replicas: new_partition(replicas, ready) for replicas in set(placed)}
    return tuple(known[replicas] for replicas in placed)


def with_more_replicas(
    image: MetadataImage, topic: TopicImage, factor: int, nodes: Collection[int]
) -> list[PartitionChanged]:
    """Return the changes that give each partition of a topic `factor` replicas, of `nodes`; the new ones join later.

    Those that it has stay where they are, and so does its leader.
    """
    loads = Counter(node_id for state in topic.partitions for node_id in state.replicas)
    changes: list[PartitionChanged] = []
    for number, state in enumerate(topic.partitions):
        replicas = list(state.replicas)
        while len(replicas) < factor:
            racks = Counter(image.brokers[each].rack for each in replicas if each in image.brokers)
            left = [each for each in sorted(nodes) if each not in replicas]
            if not left:
                break
            chosen = min(left, key=lambda each: (racks[image.brokers[each].rack], loads[each]))
            loads[chosen] += 1
            replicas.append(chosen)
        changes += changed(topic, number, follows(state, replace(state, replicas=tuple(replicas))))
    return changes


def new_partition(replicas: tuple[int, ...], ready: Collection[int]) -> PartitionState:
    """Return the state of a partition that nothing was written to. Those that are not ready join when they are."""
    isr = tuple(each for each in replicas if each in ready)
    return PartitionState(leader=isr[0], leader_epoch=0, replicas=replicas, isr=isr)


def _by_turns_of_racks(image: MetadataImage, nodes: Iterable[int]) -> list[int]:
    """Return nodes in an order in which neighbours are in different racks as far as possible."""
    racks: dict[str, list[int]] = {}
    for node_id in nodes:
        racks.setdefault(image.brokers[node_id].rack, []).append(node_id)
    turns = zip_longest(*(racks[rack] for rack in sorted(racks)))
    return [node_id for turn in turns for node_id in turn if node_id is not None]


class _Rounds:
    """Chooses nodes one partition after the other. Of equal ones it takes the next, round by round another next."""

    def __init__(self, order: list[int], image: MetadataImage, ready: Collection[int], start: int) -> None:
        self._order = order
        self._racks = {node_id: image.brokers[node_id].rack for node_id in order}
        self._ready = ready
        self._start = start

    def place(self, count: int, factor: int, existing: Sequence[PartitionState] = ()) -> list[tuple[int, ...]]:
        """Return the replicas of `count` partitions, the preferred leader first."""
        loads = Counter(node_id for state in existing for node_id in state.replicas)
        leads = Counter({node_id: 0 for node_id in self._order if node_id in self._ready})
        leads.update(state.replicas[0] for state in existing if state.replicas[0] in leads)
        placed: list[tuple[int, ...]] = []
        for number in range(count):
            replicas = self._replicas(number, factor, loads)
            loads.update(replicas)
            leader = min((each for each in replicas if each in leads), key=lambda each: leads[each])
            leads[leader] += 1
            placed.append(_led_by(leader, replicas))
        while _pass_on_a_lead(placed, leads):
            pass
        return placed

    def _replicas(self, number: int, factor: int, loads: Counter[int]) -> list[int]:
        order, size = self._order, len(self._order)
        place, shift = (self._start + number) % size, number // size % max(size - 1, 1)
        behind = [*order[place + 1 :], *order[:place]]
        left = [order[place], *behind[shift:], *behind[:shift]]
        replicas: list[int] = []
        racks: Counter[str] = Counter()
        for _ in range(factor):
            chosen = min(left, key=lambda each: (each not in self._ready, racks[self._racks[each]], loads[each]))
            left.remove(chosen)
            replicas.append(chosen)
            racks[self._racks[chosen]] += 1
        return replicas


def _led_by(leader: int, replicas: Iterable[int]) -> tuple[int, ...]:
    return (leader, *(each for each in replicas if each != leader))


def _pass_on_a_lead(placed: list[tuple[int, ...]], leads: Counter[int]) -> bool:
    """Let a node lead one partition less that leads most, and one lead one more that leads two less; False if none can.

    The two need not share a partition: others between them pass one on and get one.
    """
    most = max(leads, key=lambda each: leads[each])
    came_by: dict[int, int] = {}
    reached = [most]
    for node_id in reached:
        if leads[node_id] <= leads[most] - 2:
            leads[most] -= 1
            leads[node_id] += 1
            while node_id != most:
                number = came_by[node_id]
                former = placed[number][0]
                placed[number] = _led_by(node_id, placed[number])
                node_id = former
            return True
        for number, replicas in enumerate(placed):
            if replicas[0] == node_id:
                for other in replicas[1:]:
                    if other in leads and other != most and other not in came_by:
                        came_by[other] = number
                        reached.append(other)
    return False


def _refusal(topic: str, factor: int, able: Collection[int], cordoned: Collection[int]) -> UsageError:
    if factor < 1:
        message = f"topic {topic} can't have {factor} replicas: ask for 1 or more, or -1 for the node's default"
    else:
        nodes = f"only {counted(len(able), 'node')} may get replicas ({_listed(able) or 'none'})"
        fewer = f"ask for {len(able)}, or " if able else ""
        message = f"topic {topic} asks for replication factor {factor}, but {nodes}: {fewer}start more nodes"
        if cordoned:
            message += f"; node {min(cordoned)} is cordoned (`semel node uncordon {min(cordoned)}`)"
    return UsageError(message, ErrorCode.INVALID_REPLICATION_FACTOR)


def _listed(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes))
