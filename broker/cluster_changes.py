"""Counts what the metadata's changes mean for the cluster: elections, fencings, in-sync sets, missing leaders.

What concerns the whole cluster is counted by the controller alone, so that the sum over all nodes is right.
"""

from __future__ import annotations

from typing import Final

from semel.broker.metadata.changes import (
    BrokerFenced,
    Change,
    PartitionChanged,
    PartitionsAdded,
    PartitionState,
    TopicCreated,
    TopicDeleted,
)
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.protocol.ids import NO_LEADER, TopicId
from semel.runtime.clock import Clock
from semel.runtime.telemetry.buckets import Buckets

FAILOVER_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 300.0)
"""Upper bounds: around what broker.session.timeout.ms is by default."""


class ClusterChanges:
    """The counts of one node, from its start on. `heard` is a listener of `Metadata`."""

    def __init__(self, metadata: Metadata, clock: Clock, node_id: int) -> None:
        """`metadata` has been read by now."""
        self.elections = 0
        """Leaders elected in place of others, that had all committed records; counted by the controller."""
        self.unclean_elections = 0
        """Leaders that an operator had elected though they may lack committed records; counted by the controller."""
        self.fencings = 0
        """Nodes taken for dead; counted by the controller."""
        self.isr_shrinks = 0
        """In-sync sets of what is led here that lost replicas."""
        self.isr_expansions = 0
        """In-sync sets of what is led here that replicas joined."""
        self.failovers = Buckets(FAILOVER_SECONDS)
        """From the last sign of life of a dead node until others were elected; measured by the controller."""
        self._metadata = metadata
        self._clock = clock
        self._node_id = node_id
        self._before = self._image = metadata.image
        self._since: dict[tuple[TopicId, int], PartitionState] = {}
        self._without_leader: dict[tuple[TopicId, int], float] = {}
        for topic in self._image.topics.values():
            self._note(topic.topic_id, 0, topic.partitions)

    @property
    def partitions_without_leader(self) -> int:
        return len(self._without_leader)

    @property
    def without_leader_s(self) -> float:
        """How long the partition has none that has been without for the longest, as far as this node has seen it."""
        now_s = self._clock.monotonic()
        return now_s - min(self._without_leader.values(), default=now_s)

    def heard(self, change: Change, image: MetadataImage) -> None:
        """Count a change. The image is the one after all that were written together, so states are kept beside it."""
        if image is not self._image:
            self._before, self._image = self._image, image
            self._since.clear()
        match change:
            case PartitionChanged():
                self._partition_changed(change)
            case BrokerFenced() if self._metadata.controller_epoch >= 0:
                self.fencings += 1
            case TopicCreated():
                self._note(change.topic_id, 0, change.partitions)
            case PartitionsAdded():
                self._note(change.topic_id, change.first, change.partitions)
            case TopicDeleted():
                for key in [key for key in self._without_leader if key[0] == change.topic_id]:
                    del self._without_leader[key]
            case _:
                pass

    def _note(self, topic_id: TopicId, first: int, states: tuple[PartitionState, ...]) -> None:
        for number, state in enumerate(states, start=first):
            if state.leader == NO_LEADER:
                self._without_leader.setdefault((topic_id, number), self._clock.monotonic())
            else:
                self._without_leader.pop((topic_id, number), None)

    def _partition_changed(self, change: PartitionChanged) -> None:
        key, after = (change.topic_id, change.partition), change.state
        before = self._since.get(key) or self._state_before(change)
        self._since[key] = after
        self._note(change.topic_id, change.partition, (after,))
        if before is None:
            return
        is_switched = before.is_switching and not after.is_switching
        if after.leader == self._node_id and not is_switched:
            self.isr_shrinks += not set(before.isr) <= set(after.isr)
            self.isr_expansions += not set(after.isr) <= set(before.isr)
        if after.leader not in (before.leader, NO_LEADER) and self._metadata.controller_epoch >= 0:
            topic = self._image.topic_by_id(change.topic_id)
            has_all = topic is not None and topic.has_diskless(after)
            if has_all or after.leader in before.isr or after.leader in before.elr:
                self.elections += 1
            else:
                self.unclean_elections += 1

    def _state_before(self, change: PartitionChanged) -> PartitionState | None:
        """None where it was created by the same write: a topic's partitions are not changed in it."""
        topic = self._before.topic_by_id(change.topic_id)
        return (
            None if topic is None or change.partition >= len(topic.partitions) else topic.partitions[change.partition]
        )
