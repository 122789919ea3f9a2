"""What a consumer reads: its assigned partitions, where it stands in each, and what it has fetched but not returned.

A machine without IO: the fetcher and the group member tell it what happened and ask it what to do next.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from semel.protocol.errors import UsageError
from semel.protocol.ids import NO_LEADER, NO_LEADER_EPOCH, TopicId, TopicPartition
from semel.sdk.consumer.fetched import FetchedChunk


class OffsetReset(Enum):
    """Where to start where nothing is committed, or what was committed is gone."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ERROR = "error"


class SubscriptionKind(Enum):
    NONE = "none"
    TOPICS = "topics"
    PATTERN = "pattern"
    ASSIGNED = "assigned"


_HOW = {
    SubscriptionKind.NONE: "nothing",
    SubscriptionKind.TOPICS: "the topics that it subscribed to",
    SubscriptionKind.PATTERN: "the topics that match its pattern",
    SubscriptionKind.ASSIGNED: "the partitions that it was assigned",
}


@dataclass(slots=True, eq=False)
class PartitionState:
    """One assigned partition, from its assignment until it goes. One that comes back is another `PartitionState`.

    position:     the offset of the next record to return, or None until it is known.
    fetch_offset: the offset to ask for next: the position, plus what is buffered.
    handed_out:   what `commit` commits: the offset after what was returned, or that the user went to. None: nothing.
    epoch:        grows with each seek, so that an answer to an older fetch is recognised and dropped.
    topic_id:     the topic that the position is in: one made again under the same name has another.
    failures:     how often in a row it could not be read or located.
    is_ready:     whether it waits in the subscription's queue for its turn to be returned.
    nearest:      the follower that the leader has sent this reader to, until `nearest_until`; -1: none (KIP-392).
    leader_until: until then only the leader is asked: the follower could not be read from.
    """

    tp: TopicPartition
    epoch: int
    position: int | None = None
    fetch_offset: int | None = None
    handed_out: int | None = None
    leader_epoch: int = NO_LEADER_EPOCH
    topic_id: TopicId | None = None
    reset: OffsetReset | None = None
    paused: bool = False
    in_flight: bool = False
    is_ready: bool = False
    chunks: deque[FetchedChunk] = field(default_factory=deque)
    buffered_bytes: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    retry_at: float = 0.0
    failures: int = 0
    nearest: int = NO_LEADER
    nearest_until: float = 0.0
    leader_until: float = 0.0

    def ask_leader(self, until: float) -> None:
        """Read from the leader until then: the follower was no good."""
        self.nearest = NO_LEADER
        self.leader_until = until

    def move_to(self, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Continue at `offset`; whatever was fetched for another place is dropped."""
        self.epoch += 1
        self.position = self.fetch_offset = offset
        self.leader_epoch = leader_epoch
        self.reset = None
        self.in_flight = False
        self.chunks.clear()
        self.buffered_bytes = 0
        self.retry_at = 0.0

    def ask_reset(self, strategy: OffsetReset) -> None:
        """Forget the position; the fetcher looks it up by `strategy`."""
        self.move_to(-1)
        self.position = self.fetch_offset = self.handed_out = None
        self.reset = strategy

    def forget_position(self) -> None:
        """Begin as after the assignment: at what the group has committed."""
        self.move_to(-1)
        self.position = self.fetch_offset = self.handed_out = None

    def rewind_to(self, offset: int) -> None:
        """Go back to `offset`, so that all that was returned from there on is returned again."""
        self.move_to(offset)
        self.handed_out = offset


class Subscription:
    """The partitions of one consumer. Partitions come by `assign`, or from the group through `set_assignment`."""

    def __init__(self) -> None:
        self.kind = SubscriptionKind.NONE
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self._partitions: dict[TopicPartition, PartitionState] = {}
        self._ready: deque[PartitionState] = deque()
        self._epoch = 0

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read `topics` as a member of the group. Raises `UsageError` after `assign`."""
        names = frozenset(topics)
        self._become(SubscriptionKind.TOPICS)
        self.topics, self.pattern = names, None

    def subscribe_pattern(self, pattern: str) -> None:
        """Read every topic whose whole name matches the regular expression, also those that come later."""
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{pattern!r} is not a regular expression: {error}") from error
        self._become(SubscriptionKind.PATTERN)
        self.pattern = compiled

    def match(self, topics: Iterable[str]) -> bool:
        """Narrow the pattern's topics to those that exist now; return whether that changed anything."""
        assert self.pattern is not None
        matched = frozenset(topic for topic in topics if self.pattern.fullmatch(topic))
        changed = matched != self.topics
        self.topics = matched
        return changed

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, outside of any group's assignment. Raises `UsageError` after `subscribe`."""
        self._become(SubscriptionKind.ASSIGNED)
        self.set_assignment(partitions)

    def unsubscribe(self) -> None:
        """Read nothing."""
        self.kind = SubscriptionKind.NONE
        self.topics, self.pattern = frozenset(), None
        self._partitions.clear()

    def set_assignment(self, partitions: Iterable[TopicPartition]) -> None:
        """Keep the state of partitions that stay, drop the others, add new ones without a position."""
        kept = self._partitions
        self._partitions = {tp: kept.get(tp) or self._new_partition(tp) for tp in sorted(partitions)}

    def _new_partition(self, tp: TopicPartition) -> PartitionState:
        self._epoch += 1 << 32
        return PartitionState(tp, self._epoch)

    def note_ready(self, state: PartitionState) -> None:
        """Queue a partition that has something buffered, unless it is queued already."""
        if not state.is_ready and state.chunks:
            state.is_ready = True
            self._ready.append(state)

    def next_ready(self) -> PartitionState | None:
        """Take the next partition whose records may be returned off the queue; None where there is none."""
        while self._ready:
            state = self._ready.popleft()
            state.is_ready = False
            if state.chunks and not state.paused and self._partitions.get(state.tp) is state:
                return state
        return None

    @property
    def has_ready(self) -> bool:
        """Whether `next_ready` has one."""
        state = self.next_ready()
        if state is None:
            return False
        state.is_ready = True
        self._ready.appendleft(state)
        return True

    def _become(self, kind: SubscriptionKind) -> None:
        if self.kind not in (SubscriptionKind.NONE, kind):
            raise UsageError(
                f"this consumer reads {_HOW[self.kind]}; call unsubscribe() before it can read {_HOW[kind]}"
            )
        self.kind = kind

    @property
    def uses_group_assignment(self) -> bool:
        return self.kind in (SubscriptionKind.TOPICS, SubscriptionKind.PATTERN)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._partitions)

    def partitions(self) -> list[PartitionState]:
        return list(self._partitions.values())

    def get(self, tp: TopicPartition) -> PartitionState | None:
        return self._partitions.get(tp)

    def require(self, tp: TopicPartition) -> PartitionState:
        """Return the state of an assigned partition. Raises `UsageError` where it is not assigned."""
        state = self._partitions.get(tp)
        if state is None:
            assigned = ", ".join(sorted(map(str, self._partitions))) or "nothing"
            raise UsageError(f"{tp} is not assigned to this consumer, which has {assigned}; assign it or poll first")
        return state

    def need_position(self) -> list[PartitionState]:
        """Return the partitions of which it is not known where to read."""
        return [state for state in self._partitions.values() if state.position is None]

    def is_current(self, state: PartitionState) -> bool:
        """Whether the partition has been assigned all the time since `state` was made."""
        return self._partitions.get(state.tp) is state
