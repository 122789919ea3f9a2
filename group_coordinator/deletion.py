"""What goes: groups and offsets deleted on request, with their topics, or because they have expired (KIP-211, O3).

A deletion may take more batches of records than one; a timer carries on with it until nothing is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from semel.group_coordinator.effects import GroupEventKind, PendingResult, TimerKey, TimerKind
from semel.group_coordinator.group import Group
from semel.group_coordinator.group_context import GroupContext
from semel.group_coordinator.offsets.table import OffsetTable
from semel.group_coordinator.records.schemas import offset_record, record_size_bytes
from semel.group_coordinator.requests import TopicsDeleted, TopicsLeft
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

GROUP_AT_ONCE_MAX: Final = 1000
"""Offsets with which a group is deleted in one batch: all or nothing, also through a crash. 10 to 15 ms (S3)."""


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
        shared: GroupContext,
        groups: Mapping[str, Group],
        offsets: OffsetTable,
    ) -> None:
        self._config = shared.config
        self._timers = shared.timers
        self._groups = groups
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

    # --- On request ---------------------------------------------------------------------------------------------------

    def delete_offsets(self, request: OffsetDeleteRequest, pending: PendingResult) -> None:
        group = self._groups.get(request.group_id)
        refusal = _no_group(request.group_id) if group is None else group.check_offset_delete()
        if group is None or refusal is not None:
            pending.reply(refusal)
        else:
            is_subscribed_to = group.subscription()
            errors = dict.fromkeys(request.partitions, ErrorCode.NONE)
            records: list[CoordinatorRecord] = []
            for partition in errors:
                if is_subscribed_to(partition.topic):
                    errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif self._has_offset(request.group_id, partition):
                    records.append(offset_record(request.group_id, partition, None))
            if sum(map(record_size_bytes, records)) > self._config.group_records_max_bytes:
                pending.reply(
                    UsageError(f"{len(records)} offsets are too many to delete at once; delete fewer at a time")
                )
                return
            pending.records += records
            pending.reply(OffsetDeleteResponse(errors))

    def _has_offset(self, group_id: str, partition: TopicPartition) -> bool:
        return self._offsets.get(group_id, partition) is not None or self._offsets.is_pending(group_id, partition)

    def delete_group(self, request: DeleteGroupRequest, pending: PendingResult) -> None:
        self._begin(_Cleanup(pending.ticket, request.group_id, iter(())), pending)

    def topics_deleted(self, request: TopicsDeleted, pending: PendingResult) -> None:
        self._begin(_Cleanup(pending.ticket, None, self._offsets.of_topics(request.topics)), pending)

    def topics_left(self, request: TopicsLeft, pending: PendingResult) -> None:
        self.topics_deleted(TopicsDeleted(frozenset(self._offsets.topics() - request.topics)), pending)

    def _begin(self, cleanup: _Cleanup, pending: PendingResult) -> None:
        """Begin a deletion, unless others are under way: then it waits for them."""
        self._cleanups.append(cleanup)
        if len(self._cleanups) == 1:
            self._clean_up(pending)
        self._go_on_cleaning(pending)

    def carry_on(self, pending: PendingResult) -> None:
        """Take the deletions under way one batch further: their timer is due."""
        self._clean_up(pending)
        self._go_on_cleaning(pending)

    def _clean_up(self, pending: PendingResult) -> None:
        """Take the first cleanup one batch further, and answer its caller if that was the last."""
        cleanup = self._cleanups[0]
        cleanup.is_begun = True
        if cleanup.group_id is None:
            answer = self._clean_up_list(cleanup, pending)
        else:
            answer = self._clean_up_group(cleanup.group_id, pending)
        if answer is not DEFERRED:
            self._cleanups.popleft()
            pending.answer(cleanup.ticket, answer)

    def _clean_up_list(self, cleanup: _Cleanup, pending: PendingResult) -> object:
        deleted: set[tuple[str, TopicPartition]] = set()
        first = () if cleanup.left_over is None else (cleanup.left_over,)
        for one in chain(first, cleanup.partitions):
            if one in deleted or not self._has_offset(*one):
                continue
            if not self._room_for_deletion(*one, pending):
                cleanup.left_over = one
                return DEFERRED
            deleted.add(one)
            pending.records.append(offset_record(*one, None))
        return None

    def _clean_up_group(self, group_id: str, pending: PendingResult) -> object:
        """Delete a part of a group's offsets, or with the last of them the group."""
        group = self._groups.get(group_id)
        if group is None:
            return _no_group(group_id)
        if not group.is_empty:
            return _not_empty(group_id)
        for partition in self._offsets.some_partitions(group_id, GROUP_AT_ONCE_MAX + 1):
            if not self._room_for_deletion(group_id, partition, pending, GROUP_AT_ONCE_MAX):
                return DEFERRED
            pending.records.append(offset_record(group_id, partition, None))
        pending.records += group.tombstones()
        pending.note(GroupEventKind.DELETED, group_id, group.generation_id, "deleted on request")
        return DeleteGroupResponse()

    def _go_on_cleaning(self, pending: PendingResult) -> None:
        if self._cleanups:
            self._timers.schedule(TimerKey(TimerKind.CLEANUP), pending.now_ms)

    def _room_for_deletion(
        self, group_id: str, partition: TopicPartition, pending: PendingResult, at_once_max: int = DELETED_AT_ONCE_MAX
    ) -> bool:
        """Return whether one batch takes another deletion, and the group's own after it."""
        size_bytes = 4 * (len(group_id) + len(partition.topic)) + 64
        used_bytes = len(pending.records) * size_bytes
        return not pending.records or (
            len(pending.records) < at_once_max
            and used_bytes + size_bytes + 4 * len(group_id) <= self._config.group_records_max_bytes
        )

    # --- By age -------------------------------------------------------------------------------------------------------

    def expire(self, group: Group, pending: PendingResult) -> None:
        """Delete what has expired of a group's offsets, and an empty group with its last one (KIP-211, O3)."""
        expiry = group.expiry()
        if expiry is None or not self._expire_offsets(group, expiry.base_timestamp_ms, pending):
            return
        if expiry.ends_group and not self._offsets.has_open_transaction(group.group_id):
            pending.records += group.tombstones()
            pending.note(GroupEventKind.DELETED, group.group_id, group.generation_id, "empty, and no offsets are left")
        elif expiry.is_repeated:
            self.check_expiry_at(group.group_id, pending.now_ms + self._config.offsets_retention_check_interval_ms)

    def expires_ms(self, group_id: str, now_ms: int) -> int | None:
        """Return when the first offset of an empty group may be forgotten; None where none ever will (O3)."""
        group = self._groups.get(group_id)
        expiry = group.expiry() if group is not None and group.is_empty else None
        if expiry is None:
            return None
        base_timestamp_ms = expiry.base_timestamp_ms
        expired, next_ms = self._offsets.expired(
            group_id, lambda _: False, base_timestamp_ms, self._config.offsets_retention_ms, now_ms, 1
        )
        return now_ms if expired else next_ms

    def _expire_offsets(self, group: Group, base_timestamp_ms: int | None, pending: PendingResult) -> bool:
        """Delete expired offsets; return whether there are none left that will, otherwise see to the next check."""
        group_id, retention_ms = group.group_id, self._config.offsets_retention_ms
        expired, next_ms = self._offsets.expired(
            *(group_id, group.subscription(), base_timestamp_ms, retention_ms, pending.now_ms),
            at_most=DELETED_AT_ONCE_MAX + 1,
        )
        count = 0
        for partition in expired:
            if not self._room_for_deletion(group_id, partition, pending):
                break
            pending.records.append(offset_record(group_id, partition, None))
            count += 1
        if count:
            pending.note(GroupEventKind.OFFSETS_EXPIRED, group_id, group.generation_id, f"{count} offsets")
        if count < len(expired):
            self.check_expiry_at(group_id, pending.now_ms)
            return False
        if next_ms is not None:
            interval_ms = self._config.offsets_retention_check_interval_ms
            self.check_expiry_at(group_id, max(next_ms, pending.now_ms + interval_ms))
        return next_ms is None

    def check_expiry_at(self, group_id: str, deadline_ms: int) -> None:
        self._timers.schedule(TimerKey(TimerKind.EXPIRY, group_id), deadline_ms)


def _no_group(group_id: str) -> SemelError:
    return error_for(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")


def _not_empty(group_id: str) -> SemelError:
    return error_for(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members; stop its consumers first")
