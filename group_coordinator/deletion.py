"""What goes: groups and offsets deleted on request, with their topics, or because they have expired (KIP-211, O3).

A deletion may take more batches of records than one; a timer carries on with it until nothing is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from semel.group_coordinator.classic.group import ClassicGroup
from semel.group_coordinator.classic.state import GroupState
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.consumer.group import ConsumerGroup
from semel.group_coordinator.consumer.groups import ConsumerGroups
from semel.group_coordinator.consumer.membership import deletion_records
from semel.group_coordinator.effects import GroupEventKind, TimerKey, TimerKind, Turn
from semel.group_coordinator.offsets.table import OffsetTable
from semel.group_coordinator.records.schemas import group_record, offset_record, record_size_bytes
from semel.group_coordinator.requests import TopicsDeleted, TopicsLeft
from semel.group_coordinator.timers import Timers
from semel.protocol.api.groups import (
    DeleteGroupRequest,
    DeleteGroupResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from semel.protocol.errors import ErrorCode, SemelError, UsageError, error_for
from semel.protocol.ids import TopicPartition
from semel.runtime.machine import DEFERRED, CoordinatorRecord, Ticket

DELETED_AT_ONCE_MAX: Final = 500
"""Offsets that are deleted in one turn of the event loop (S3)."""


@dataclass(slots=True)
class _Cleanup:
    """Deletions that take more than one batch: of a whole group, or of what is left of a list."""

    ticket: Ticket
    group_id: str | None
    partitions: Iterator[tuple[str, TopicPartition]]
    is_begun: bool = False
    left_over: tuple[str, TopicPartition] | None = None
    """The last of `partitions`, which did not fit into the batch any more."""


class Deletions:
    """Decides what is deleted. Of its own it keeps the deletions under way, which their callers ask for again."""

    def __init__(
        self,
        config: GroupConfig,
        timers: Timers[TimerKey],
        groups: Mapping[str, ClassicGroup],
        consumers: ConsumerGroups,
        offsets: OffsetTable,
    ) -> None:
        self._config = config
        self._timers = timers
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._cleanups: deque[_Cleanup] = deque()

    def waiting(self) -> Sequence[Ticket]:
        """Return the callers of deletions under way."""
        return [cleanup.ticket for cleanup in self._cleanups]

    def refuse_for(self, group_id: str) -> SemelError | None:
        """Return why nobody may use a group now: part of it is deleted, and the rest is about to be.

        Who joined now would read from where half of its offsets say, and keep the other half from being deleted.
        """
        if self._cleanups and self._cleanups[0].is_begun and self._cleanups[0].group_id == group_id:
            return error_for(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group_id} is being deleted; try again shortly"
            )
        return None

    # On request

    def delete_offsets(self, request: OffsetDeleteRequest, turn: Turn) -> None:
        group = self._groups.get(request.group_id)
        is_subscribed_to = self._consumers.subscription_of(request.group_id)
        if is_subscribed_to is None and group is not None:
            is_subscribed_to = group.is_subscribed_to
        if is_subscribed_to is None:
            turn.reply(_no_group(request.group_id))
        elif group is not None and group.state is not GroupState.EMPTY and not group.is_consumer_group:
            turn.reply(_not_empty(request.group_id))
        else:
            errors = dict.fromkeys(request.partitions, ErrorCode.NONE)
            records: list[CoordinatorRecord] = []
            for partition in errors:
                if is_subscribed_to(partition.topic):
                    errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif self._has_offset(request.group_id, partition):
                    records.append(offset_record(request.group_id, partition, None))
            if sum(map(record_size_bytes, records)) > self._config.group_records_max_bytes:
                turn.reply(UsageError(f"{len(records)} offsets are too many to delete at once; delete fewer at a time"))
                return
            turn.records += records
            turn.reply(OffsetDeleteResponse(errors))

    def _has_offset(self, group_id: str, partition: TopicPartition) -> bool:
        return self._offsets.get(group_id, partition) is not None or self._offsets.is_pending(group_id, partition)

    def delete_group(self, request: DeleteGroupRequest, turn: Turn) -> None:
        self._begin(_Cleanup(turn.ticket, request.group_id, iter(())), turn)

    def topics_deleted(self, request: TopicsDeleted, turn: Turn) -> None:
        self._begin(_Cleanup(turn.ticket, None, self._offsets.of_topics(request.topics)), turn)

    def topics_left(self, request: TopicsLeft, turn: Turn) -> None:
        self.topics_deleted(TopicsDeleted(frozenset(self._offsets.topics() - request.topics)), turn)

    def _begin(self, cleanup: _Cleanup, turn: Turn) -> None:
        """Begin a deletion, unless others are under way: then it waits for them."""
        self._cleanups.append(cleanup)
        if len(self._cleanups) == 1:
            self._clean_up(turn)
        self._go_on_cleaning(turn)

    def carry_on(self, turn: Turn) -> None:
        """Take the deletions under way one batch further: their timer is due."""
        self._clean_up(turn)
        self._go_on_cleaning(turn)

    def _clean_up(self, turn: Turn) -> None:
        """Take the first cleanup one batch further, and answer its caller if that was the last."""
        cleanup = self._cleanups[0]
        cleanup.is_begun = True
        if cleanup.group_id is None:
            answer = self._clean_up_list(cleanup, turn)
        else:
            answer = self._clean_up_group(cleanup.group_id, turn)
        if answer is not DEFERRED:
            self._cleanups.popleft()
            turn.answer(cleanup.ticket, answer)

    def _clean_up_list(self, cleanup: _Cleanup, turn: Turn) -> object:
        deleted: set[tuple[str, TopicPartition]] = set()
        first = () if cleanup.left_over is None else (cleanup.left_over,)
        for one in chain(first, cleanup.partitions):
            if one in deleted or not self._has_offset(*one):
                continue
            if not self._room_for_deletion(*one, turn):
                cleanup.left_over = one
                return DEFERRED
            deleted.add(one)
            turn.records.append(offset_record(*one, None))
        return None

    def _clean_up_group(self, group_id: str, turn: Turn) -> object:
        """Delete a part of a group's offsets, or with the last of them the group."""
        group = self._groups.get(group_id)
        consumers = self._consumers.groups.get(group_id)
        if group is None and consumers is None:
            return _no_group(group_id)
        if (group is not None and group.state is not GroupState.EMPTY) or (consumers is not None and consumers.details):
            return _not_empty(group_id)
        for partition in self._offsets.some_partitions(group_id, DELETED_AT_ONCE_MAX + 1):
            if not self._room_for_deletion(group_id, partition, turn):
                return DEFERRED
            turn.records.append(offset_record(group_id, partition, None))
        if consumers is not None:
            turn.records += deletion_records(consumers)
        if group is not None:
            turn.records.append(group_record(group_id, None))
        turn.note(GroupEventKind.DELETED, group_id, -1 if group is None else group.generation_id, "deleted on request")
        return DeleteGroupResponse()

    def _go_on_cleaning(self, turn: Turn) -> None:
        if self._cleanups:
            self._timers.schedule(TimerKey(TimerKind.CLEANUP), turn.now_ms)

    def _room_for_deletion(self, group_id: str, partition: TopicPartition, turn: Turn) -> bool:
        """Return whether one batch takes another deletion, and the group's own after it."""
        size_bytes = 4 * (len(group_id) + len(partition.topic)) + 64
        used_bytes = len(turn.records) * size_bytes
        return not turn.records or (
            len(turn.records) < DELETED_AT_ONCE_MAX
            and used_bytes + size_bytes + 4 * len(group_id) <= self._config.group_records_max_bytes
        )

    # By age

    def expire(self, group: ClassicGroup, turn: Turn) -> None:
        """Delete what has expired of a group's offsets, and an empty group with its last one (KIP-211, O3)."""
        is_empty = group.state is GroupState.EMPTY
        if group.protocol_type is None:
            base_timestamp_ms = None
        elif is_empty:
            base_timestamp_ms = group.state_timestamp_ms if group.state_timestamp_ms >= 0 else None
        elif group.state is GroupState.STABLE and group.is_consumer_group and group.subscribed_topics is not None:
            base_timestamp_ms = None
        else:
            # The end of the rebalance makes this check again.
            return
        nothing_left = self._expire_offsets(
            group.group_id, group.is_subscribed_to, base_timestamp_ms, group.generation_id, turn
        )
        if not nothing_left or not is_empty:
            return
        if group.pending_joins or self._offsets.has_open_transaction(group.group_id):
            self.check_expiry_at(group.group_id, turn.now_ms + self._config.offsets_retention_check_interval_ms)
        elif group.is_stored:
            turn.records.append(group_record(group.group_id, None))
            turn.note(GroupEventKind.DELETED, group.group_id, group.generation_id, "empty, and no offsets are left")

    def expire_consumers(self, group: ConsumerGroup, turn: Turn) -> None:
        """The same for a consumer group, whose last epoch began when it became empty."""
        is_empty = not group.details
        is_subscribed_to = self._consumers.subscription_of(group.group_id)
        assert is_subscribed_to is not None, "the group was found just now"
        base_timestamp_ms = group.epoch_timestamp_ms if is_empty else None
        if not self._expire_offsets(group.group_id, is_subscribed_to, base_timestamp_ms, group.epoch, turn):
            return
        if not is_empty or self._offsets.has_open_transaction(group.group_id):
            self.check_expiry_at(group.group_id, turn.now_ms + self._config.offsets_retention_check_interval_ms)
        else:
            turn.records += deletion_records(group)
            turn.note(GroupEventKind.DELETED, group.group_id, group.epoch, "empty, and no offsets are left")

    def expires_ms(self, group_id: str, now_ms: int) -> int | None:
        """Return when the first offset of an empty group may be forgotten; None where none ever will (O3)."""
        consumers, group = self._consumers.groups.get(group_id), self._groups.get(group_id)
        if consumers is not None:
            if consumers.details:
                return None
            base_timestamp_ms: int | None = consumers.epoch_timestamp_ms
        elif group is None or group.state is not GroupState.EMPTY:
            return None
        else:
            has_joined = group.protocol_type is not None and group.state_timestamp_ms >= 0
            base_timestamp_ms = group.state_timestamp_ms if has_joined else None
        expired, next_ms = self._offsets.expired(
            group_id, lambda _: False, base_timestamp_ms, self._config.offsets_retention_ms, now_ms, 1
        )
        return now_ms if expired else next_ms

    def _expire_offsets(
        self,
        group_id: str,
        is_subscribed_to: Callable[[str], bool],
        base_timestamp_ms: int | None,
        generation_id: int,
        turn: Turn,
    ) -> bool:
        """Delete expired offsets; return whether there are none left that will, otherwise see to the next check."""
        expired, next_ms = self._offsets.expired(
            *(group_id, is_subscribed_to, base_timestamp_ms, self._config.offsets_retention_ms, turn.now_ms),
            at_most=DELETED_AT_ONCE_MAX + 1,
        )
        count = 0
        for partition in expired:
            if not self._room_for_deletion(group_id, partition, turn):
                break
            turn.records.append(offset_record(group_id, partition, None))
            count += 1
        if count:
            turn.note(GroupEventKind.OFFSETS_EXPIRED, group_id, generation_id, f"{count} offsets")
        if count < len(expired):
            self.check_expiry_at(group_id, turn.now_ms)
            return False
        if next_ms is not None:
            interval_ms = self._config.offsets_retention_check_interval_ms
            self.check_expiry_at(group_id, max(next_ms, turn.now_ms + interval_ms))
        return next_ms is None

    def check_expiry_at(self, group_id: str, deadline_ms: int) -> None:
        self._timers.schedule(TimerKey(TimerKind.EXPIRY, group_id), deadline_ms)


def _no_group(group_id: str) -> SemelError:
    return error_for(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")


def _not_empty(group_id: str) -> SemelError:
    return error_for(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members; stop its consumers first")
