"""What the sync and the asyncio `Consumer` share below their surface: subscription, fetcher and membership.

Methods that begin with `async` run on the IO thread; the others may be called from the user's thread. The subscription
is shared between the two under one lock, held for moments only.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.errors import AbortTransactionError, ErrorCode, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.int_bounds import INT64_MAX
from semel.protocol.record_decoder import Record
from semel.sdk.consumer.fetched import UnreadableBatchError
from semel.sdk.consumer.fetcher import Fetcher, FetchOptions
from semel.sdk.consumer.group_member import AssignmentChange, GroupMember, GroupOptions
from semel.sdk.consumer.group_offsets import GroupOffsets
from semel.sdk.consumer.meter import consumer_meter
from semel.sdk.consumer.subscription import OffsetReset, PartitionState, Subscription
from semel.sdk.consumer.topic_watch import TopicWatch
from semel.sdk.telemetry import metrics
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.offset_lookup import list_offsets
from semel.sdk.transport.unreachable import UnreachableError

TURN_RECORDS_MAX = 2_000
"""How many records of one partition are returned before it is another one's turn."""


_log = logging.getLogger("semel.consumer")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PolledRecords:
    """Records of one poll, and where the reader of each of their partitions stood before and after them.

    redelivered: the partitions in which others were rewound to before this one's records.
    """

    records: list[Record]
    first_offsets: dict[TopicPartition, int]
    next_offsets: dict[TopicPartition, OffsetAndMetadata]
    states: tuple[PartitionState, ...]
    redelivered: set[PartitionState] = field(default_factory=set)

    def begins_at(self, tp: TopicPartition) -> int:
        """Return the offset of its first record of a partition, -1 where it has none any more."""
        return self.first_offsets.get(tp, -1)

    def end_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Leave out the records from `offsets` on. Raises `UsageError` for an offset outside of what was polled."""
        for tp, offset in offsets.items():
            first, end = self.first_offsets.get(tp), self.next_offsets.get(tp)
            if first is None or end is None or not first <= offset <= end.offset:
                has = "no records of it" if first is None or end is None else f"offsets {first} to {end.offset - 1}"
                raise UsageError(f"a batch can't end at {tp}@{offset}: it has {has}")
        self.records[:] = [
            record
            for record in self.records
            if record.offset < offsets.get(TopicPartition(record.topic, record.partition), INT64_MAX)
        ]
        for tp, offset in offsets.items():
            if offset == self.first_offsets[tp]:
                del self.first_offsets[tp], self.next_offsets[tp]
            else:
                self.next_offsets[tp] = OffsetAndMetadata(offset)


class ConsumerCore:
    """The one core. `on_ready` is called from any thread when a poll that waits should look again."""

    def __init__(self, client: ClientCore, fetch: FetchOptions, group: GroupOptions | None) -> None:
        self.client = client
        self._now = client.clock.monotonic
        self.group = group
        self.subscription = Subscription()
        self.on_ready: Callable[[], None] = lambda: None
        self.meter = consumer_meter(self.group_name, client.clock)
        if self.meter is not None:
            metrics.consumers.add(self)
        self._fetch_options = fetch
        self.skipped_batches = 0
        """Batches that could not be read and were passed over."""
        self._lock = threading.Lock()
        self._all_polled: weakref.WeakSet[PolledRecords] = weakref.WeakSet()
        self._fetcher: Fetcher | None = None
        self._member: GroupMember | None = None
        self._watch = TopicWatch(client, self.subscription, self._lock, self._topics_changed, lambda: self.on_ready())
        self.offsets = GroupOffsets(client, self.group_name)

    @property
    def group_name(self) -> str:
        """The group's name; empty without a group."""
        return "" if self.group is None else self.group.group

    # --- What is read -------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str] | None, pattern: str | None) -> None:
        """Read topics, or all that match a pattern, as a member of the group. Raises `UsageError`."""
        if self.group is None:
            raise UsageError("subscribing needs a group: Consumer(..., group='name'); without one, use assign()")
        with self._lock:
            if pattern is not None:
                self.subscription.subscribe_pattern(pattern)
            else:
                self.subscription.subscribe(topics or ())
            self._watch.restart()
        member = self._member
        if member is not None:
            self.client.io.call_soon(member.request_rejoin)

    def assign(self, partitions: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, from `offsets` where they say so. Raises `UsageError` after `subscribe`."""
        with self._lock:
            self.subscription.assign(partitions)
            for tp, offset in offsets.items():
                state = self.subscription.require(tp)
                state.move_to(offset)
                state.handed_out = offset
            self._watch.restart()
        self._moved()

    def unsubscribe(self) -> None:
        """Read nothing."""
        with self._lock:
            self.subscription.unsubscribe()

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue at `offset`. Raises `UsageError` for a partition that is not assigned."""
        with self._lock:
            state = self.subscription.require(tp)
            state.move_to(offset)
            state.handed_out = offset
        self._moved()

    def seek_to(self, strategy: OffsetReset, tps: Iterable[TopicPartition]) -> None:
        """Go to the start or the end. Raises `UsageError` for partitions that are not assigned."""
        with self._lock:
            for state in [self.subscription.require(tp) for tp in tps]:
                state.ask_reset(strategy)
        self._moved()

    def pause(self, tps: Iterable[TopicPartition], *, paused: bool) -> None:
        """Return nothing more of partitions, or again. Raises `UsageError` for those that are not assigned."""
        with self._lock:
            for state in [self.subscription.require(tp) for tp in tps]:
                state.paused = paused
                self.subscription.note_ready(state)
        self._moved()
        self.on_ready()

    def paused(self) -> frozenset[TopicPartition]:
        with self._lock:
            return frozenset(state.tp for state in self.subscription.partitions() if state.paused)

    def assignment(self) -> frozenset[TopicPartition]:
        with self._lock:
            return self.subscription.assignment

    def position(self, tp: TopicPartition) -> int | None:
        """Return the offset of the next record to return; None where it is not known."""
        with self._lock:
            state = self.subscription.get(tp)
            return None if state is None else state.position

    def lags(self) -> dict[TopicPartition, int]:
        """Return how many offsets each partition is behind the end that this reader may see, where it is known."""
        read_committed = self._fetch_options.isolation is IsolationLevel.READ_COMMITTED
        with self._lock:
            found = {}
            for state in self.subscription.partitions():
                end = state.last_stable_offset if read_committed else state.high_watermark
                if state.position is not None and end >= 0:
                    found[state.tp] = max(0, end - state.position)
            return found

    def statistics(self) -> dict[str, int]:
        """Return counts of what is read now. See `Consumer.statistics`."""
        lag = sum(self.lags().values())
        with self._lock:
            states = list(self.subscription.partitions())
            return {
                "partitions": len(states),
                "paused": sum(state.paused for state in states),
                "buffered_bytes": sum(state.buffered_bytes for state in states),
                "lag": lag,
                "skipped_batches": self.skipped_batches,
            }

    # --- Records ------------------------------------------------------------------------------------------------------

    def _skip(self, batch: UnreadableBatchError) -> None:
        """Take note of a batch that is passed over: what was in it is lost to this reader."""
        self.skipped_batches += 1
        _log.warning(
            "passed over a batch that can't be read: partition=%s offsets=%d to %d: %s",
            batch.tp, batch.first_offset, batch.last_offset, batch.message,
        )  # fmt: skip
        if self.meter is not None:
            self.meter.skipped(batch.tp)

    def collect(self, max_records: int) -> PolledRecords | None:
        """Return up to `max_records` from the buffers, of the partitions in turn; None where there are none.

        Raises `SemelError` for bytes that can't be read, where nothing good is before them.
        """
        records: list[Record] = []
        first: dict[PartitionState, int] = {}
        taken: list[tuple[TopicPartition, int]] = []
        has_room = False
        if self.meter is not None:
            self.meter.asked()
        with self._lock:
            while len(records) < max_records:
                state = self.subscription.next_ready()
                if state is None:
                    break
                assert state.position is not None
                before, buffered = state.position, state.buffered_bytes
                try:
                    some = _take_from(state, min(max_records - len(records), TURN_RECORDS_MAX))
                except SemelError:
                    if records:
                        break  # the next poll meets it again
                    raise
                finally:
                    self.subscription.note_ready(state)
                    has_room |= state.buffered_bytes < buffered
                if some:
                    taken.append((state.tp, len(some)))
                    first.setdefault(state, before)
                    if records:
                        records += some
                    else:
                        records = some
            polled = _polled_records(records, first)
            if polled is not None:
                self._all_polled.add(polled)
            is_waited_for = has_room and self._fetcher is not None and self._fetcher.waits_for_room
        if is_waited_for:
            self.wake_fetcher()
        if self.meter is not None and taken:
            self.meter.returned(taken)
        return polled

    def rewind(self, polled: PolledRecords, offsets: Mapping[TopicPartition, int]) -> None:
        """Go back to `offsets` in each partition that is still ours and whose records are not returned again anyway.

        A partition that is no longer ours has a new owner with a place of its own.
        """
        with self._lock:
            for state in polled.states:
                offset = offsets.get(state.tp)
                if offset is None or state in polled.redelivered or not self.subscription.is_current(state):
                    continue
                state.rewind_to(offset)
                for other in self._all_polled:
                    if (
                        other is not polled
                        and state in other.states
                        and other.first_offsets.get(state.tp, -1) >= offset
                    ):
                        other.redelivered.add(state)
        self._moved()

    def look_up_again(self, polled: PolledRecords) -> None:
        """Forget where these partitions stand, as far as they are ours: the fetcher asks where the group does."""
        with self._lock:
            for state in polled.states:
                if not self.subscription.is_current(state):
                    continue
                state.forget_position()
                for other in self._all_polled:
                    if state in other.states:
                        other.redelivered.add(state)
        self._moved()

    def continue_after(self, polled: PolledRecords) -> bool:
        """Move on past what was rewound, where nothing of it was returned since; return whether that was so."""
        with self._lock:
            ours = [
                state
                for state in polled.states
                if state.tp in polled.first_offsets and self.subscription.is_current(state)
            ]
            for state in ours:
                if state in polled.redelivered or state.position != polled.first_offsets[state.tp]:
                    return False
            for state in ours:
                state.move_to(polled.next_offsets[state.tp].offset)
                state.handed_out = state.position
        self._moved()
        return True

    def is_superseded(self, polled: PolledRecords) -> bool:
        """Whether any of the partitions was rewound since, so that its records are returned again."""
        with self._lock:
            return any(
                state.tp in polled.first_offsets and self.subscription.is_current(state) for state in polled.redelivered
            )

    def handed_out(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offset after what was returned, of each partition that is ours."""
        with self._lock:
            return {
                state.tp: OffsetAndMetadata(state.handed_out)
                for state in self.subscription.partitions()
                if state.handed_out is not None
            }

    @property
    def has_records(self) -> bool:
        with self._lock:
            return self.subscription.has_ready

    def next_error(self) -> SemelError | None:
        """Return the next error that a poll is to raise."""
        errors = self._fetcher.errors if self._fetcher is not None else None
        return errors.popleft() if errors else None

    def check_findable(self) -> None:
        """Raise why the topics were not found, as each poll does until they are. From any thread."""
        error = self._watch.error
        if error is not None:
            raise error.with_traceback(None)

    def check_found(self) -> None:
        """Raise `UnreachableError` where no node has said yet what there is to read. From any thread."""
        trouble = self.client.control.outage.in_short
        if not self._watch.is_checked and trouble:
            raise UnreachableError(
                f"no node has answered yet: {trouble}; whether there is anything to read is not known",
                ErrorCode.NETWORK_EXCEPTION,
            )

    def wake_fetcher(self) -> None:
        """Let the fetcher look again. From any thread."""
        if self._fetcher is not None:
            self.client.io.call_soon(self._fetcher.wake)

    def _moved(self) -> None:
        """Let the fetcher look again at once, past a fetch that waits. From any thread."""
        if self._fetcher is not None:
            self.client.io.call_soon(self._fetcher.moved)

    # --- The group ----------------------------------------------------------------------------------------------------

    @property
    def needs_step(self) -> bool:
        """Whether the next poll should call `step` first."""
        if self._fetcher is None or not self._watch.is_checked:
            return True
        if not self.subscription.uses_group_assignment:
            return False
        return self._member is None or self._member.needs_step

    def note_poll(self) -> None:
        """Say that the user is alive."""
        if self._member is not None:
            self._member.polled_at = self._now()

    async def step(self) -> AssignmentChange | None:
        """Start what is not started, and go one step on in a rebalance, without waiting. See `GroupMember.step`."""
        self._start()
        if not self._watch.check() or self._member is None:
            return None
        return self._member.step()

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that the group gave this member."""
        return frozenset() if self._member is None else self._member.owned

    @property
    def is_lost(self) -> bool:
        """Whether the group has given up this member, which has not been told yet."""
        return self._member is not None and self._member.is_lost

    def group_metadata(self) -> GroupMetadata | None:
        """Return who commits now, for a commit in a transaction (KIP-447).

        For a member that the group has given up, that is who it was: the coordinator refuses that. As nobody it would
        pass for an older client that cannot say who it is, and could commit what others have processed since (O4).
        """
        member = self._member
        if member is not None:
            return member.last_joined
        return None if self.group is None else GroupMetadata(self.group.group)

    def metadata_for(self, states: Iterable[PartitionState], then: GroupMetadata) -> GroupMetadata:
        """Return who may commit what was read from `states` when this member was `then`.

        That is the current member where it has had these partitions all the time and still has them, so that a
        cooperative rebalance does not abort what it leaves alone. Else it is the member of then, and the coordinator
        judges (O4).
        """
        member = self._member
        if member is None or member.is_lost:
            return then
        now = member.membership
        if now.assigned is None or now.metadata.member_id != then.member_id:
            return then
        with self._lock:
            is_owner = all(self.subscription.is_current(state) and state.tp in now.assigned for state in states)
        return now.metadata if is_owner else then

    def _start(self) -> None:
        if self._fetcher is None:
            self._fetcher = Fetcher(
                self.client,
                self.subscription,
                self._lock,
                self._fetch_options,
                committed_offsets=self.offsets.read if self.group is not None else None,
                on_ready=lambda: self.on_ready(),
                on_fetched=None if self.meter is None else self.meter.fetched,
                on_unreadable=self._skip if self._fetch_options.skips_unreadable else None,
            )
            self._watch.start()
        if self._member is None and self.group is not None and self.subscription.uses_group_assignment:
            self._member = GroupMember(
                self.client,
                self.group,
                topics=self._watch.topics_to_join,
                on_assigned=self._take_assignment,
                on_attention=lambda: self.on_ready(),
            )

    def _take_assignment(self, partitions: frozenset[TopicPartition]) -> None:
        with self._lock:
            if self.subscription.uses_group_assignment:
                self.subscription.set_assignment(partitions)
        if self.meter is not None:
            self.meter.assigned()
        assert self._fetcher is not None
        self._fetcher.moved()

    def _topics_changed(self) -> None:
        if self._member is not None:
            self._member.request_rejoin()

    # --- Offsets ------------------------------------------------------------------------------------------------------

    def committer(self) -> GroupMetadata:
        """Return who commits without a transaction. Raises where nobody can."""
        if self.group is None:
            raise UsageError("committing needs a group: Consumer(..., group='name')")
        if not self.subscription.uses_group_assignment:
            return GroupMetadata(self.group.group)
        metadata = None if self._member is None else self._member.membership.metadata
        if metadata is None or metadata.generation_id < 0:
            if self._member is not None and self._member.fenced is not None:
                raise self._member.fenced
            # As no member it could overwrite what others have committed since (O4).
            raise AbortTransactionError(
                f"nothing was committed: this consumer is no member of group {self.group.group!r} (any more); poll to "
                "join it and get the partitions that are its own now",
                ErrorCode.UNKNOWN_MEMBER_ID,
            )
        return metadata

    async def offsets_for_times(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after each timestamp, None where there is none."""
        found = await list_offsets(self.client, timestamps, self._fetch_options.isolation)
        return {tp: place.offset if place.offset >= 0 else None for tp, place in found.items()}

    async def end_offsets(self, tps: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """Return the offset at a special timestamp: of the earliest record, or after the latest one."""
        asked = dict.fromkeys(tps, timestamp_ms)
        found = await list_offsets(self.client, asked, self._fetch_options.isolation)
        return {tp: place.offset for tp, place in found.items()}

    # --- The end ------------------------------------------------------------------------------------------------------

    @property
    def is_started(self) -> bool:
        """Whether there is anything to close."""
        return self._fetcher is not None

    async def close(self) -> None:
        """Stop fetching, leave the group. The client is closed by its owner."""
        if self.meter is not None:
            metrics.consumers.discard(self)
            self.meter.publish()
        await self._watch.close()
        if self._fetcher is not None:
            await self._fetcher.close()
        await self.leave()

    async def leave(self) -> None:
        """Leave the group; a later subscribe joins it again."""
        member, self._member = self._member, None
        if member is not None:
            await member.close()


def _take_from(state: PartitionState, max_records: int) -> list[Record]:
    """Take records off a partition's chunks, and move its position past them and past what is not for readers."""
    records: list[Record] = []
    assert state.position is not None
    before = state.position
    while state.chunks and not records:
        chunk = state.chunks[0]
        records = chunk.take(max_records)
        state.position = max(state.position, chunk.next_offset)
        if not records or chunk.is_used_up:
            state.chunks.popleft()
            state.buffered_bytes -= chunk.size_bytes
    if records or state.handed_out == before:
        state.handed_out = state.position  # markers, too, need not be read again
    return records


def _polled_records(records: list[Record], first: dict[PartitionState, int]) -> PolledRecords | None:
    if not records:
        return None
    next_offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for state in first:
        assert state.position is not None
        next_offsets[state.tp] = OffsetAndMetadata(state.position)
    return PolledRecords(records, {state.tp: offset for state, offset in first.items()}, next_offsets, tuple(first))
