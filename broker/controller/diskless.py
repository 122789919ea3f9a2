"""Who leads partitions of diskless topics: any node, because none has them on its disk (KIP-1163).

Such a partition has one replica, on the node that leads it. When that node fails or stops, the partition moves to the
node that leads the fewest, which reads what was committed from the remote storage and the database. Nothing is copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from semel.broker.controller.membership import (
    alive_nodes,
    changed,
    cordoned_nodes,
    follows,
    full_nodes,
    partitions_of,
)
from semel.broker.metadata.changes import Change, PartitionChanged, PartitionState
from semel.broker.metadata.image import MetadataImage, TopicImage
from semel.protocol.ids import NO_LEADER, TopicId

_MOVES_MAX: Final = 100
"""So many leaders one look spreads at most: each is away for the moment in which its log is read."""


class AnyLeader:
    """Elects leaders of diskless partitions, of one image, so that all nodes lead about as many."""

    def __init__(self, image: MetadataImage, alive: Collection[int], *, out: Collection[int] = ()) -> None:
        """out: nodes that get nothing to lead: they stop"""
        able = set(alive).difference(out)
        able = able - cordoned_nodes(image) or able
        self._able = able - full_nodes(image) or able
        self.loads: Counter[int] = Counter(dict.fromkeys(self._able, 0))
        for topic, _, state in partitions_of(image):
            if topic.has_diskless(state) and state.leader in self._able:
                self.loads[state.leader] += 1

    def elected(self, state: PartitionState) -> PartitionState:
        """Return a partition's state with another leader; without one where no node can lead. Its epochs are new."""
        if not self._able:
            return without_leader(state)
        leader = min(self._able, key=lambda each: (self.loads[each], each))
        return self._led_by(leader, state)

    def _led_by(self, leader: int, state: PartitionState) -> PartitionState:
        if state.leader in self._able:
            self.loads[state.leader] -= 1
        self.loads[leader] += 1
        return follows(state, led_by(leader, state), is_new_reign=True)

    def spread(self, state: PartitionState) -> PartitionState | None:
        """Return a state with a leader that leads two less; None where its leader has no more to do than others."""
        if state.leader not in self._able:
            return None
        leader = min(self._able, key=lambda each: (self.loads[each], each))
        return self._led_by(leader, state) if self.loads[leader] + 2 <= self.loads[state.leader] else None


def led_by(leader: int, state: PartitionState) -> PartitionState:
    """Return the state in the making in which a node has a diskless partition, alone. Its epochs are as before."""
    alone = (leader,)
    return PartitionState(leader, state.leader_epoch, alone, alone, state.partition_epoch)


def without_leader(state: PartitionState) -> PartitionState:
    """Return the state of a partition that no node can lead now."""
    return state if state.leader == NO_LEADER else follows(state, replace(state, leader=NO_LEADER))


def with_switches_begun(topic: TopicImage, changes: Sequence[Change]) -> list[Change]:
    """Return the changes of a topic's settings by which it becomes diskless, and before them those by which each of its
    partitions says that it is not so yet.
    """
    states = list(topic.partitions)
    others = [one for one in changes if not isinstance(one, PartitionChanged)]
    for one in changes:
        if isinstance(one, PartitionChanged):
            states[one.partition] = one.state
    begun: list[Change] = []
    for number, state in enumerate(topic.partitions):
        begun += changed(topic, number, follows(state, replace(states[number], is_switching=True)))
    return [*begun, *others]


def switched(
    image: MetadataImage, topic_id: TopicId, number: int, node_id: int, broker_epoch: int, leader_epoch: int
) -> list[PartitionChanged]:
    """Return the change after which a partition is diskless: its leader has copied all of it, and takes no more.

    node_id, broker_epoch, leader_epoch: of the leader that says so. Nothing changes where it leads no more, or has
        started again since: the next leader copies what that one has, and says so itself
    """
    found, broker = image.partition_by_id(topic_id, number), image.brokers.get(node_id)
    if found is None or broker is None or broker.epoch != broker_epoch:
        return []
    topic, state = found
    if not state.is_switching or (state.leader, state.leader_epoch) != (node_id, leader_epoch):
        return []
    return changed(topic, number, follows(state, led_by(node_id, state), is_new_reign=True))


def leaders_spread(image: MetadataImage, *, stopping: Collection[int] = ()) -> list[Change]:
    """Return the moves after which all nodes lead about as many diskless partitions: a node was added, or is back."""
    leaders = AnyLeader(image, alive_nodes(image), out=stopping)
    changes: list[Change] = []
    for topic, number, state in partitions_of(image):
        if len(changes) >= _MOVES_MAX:
            break
        if topic.has_diskless(state) and (after := leaders.spread(state)) is not None:
            changes += changed(topic, number, after)
    return changes
