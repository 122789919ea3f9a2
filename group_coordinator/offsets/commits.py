"""Commits of offsets: who may commit what, and transactional ones that must be verified first (T8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.effects import PendingResult
from semel.group_coordinator.group import Group
from semel.group_coordinator.group_context import GroupContext
from semel.group_coordinator.offsets.table import OffsetTable
from semel.group_coordinator.records.schemas import OffsetCommitValue, offset_record, record_size_bytes
from semel.group_coordinator.requests import BeginVerification, VerificationGuard, VerifiedCommit
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import OffsetCommitRequest, OffsetCommitResponse
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import TopicPartition
from semel.runtime.machine import Result

TOPIC_NAME_CHARACTERS_MAX: Final = 249
GUARDS_MAX: Final = 10_000
"""Verifications under way at once; beyond that the oldest is void, and its commit is to be tried again."""


class OffsetCommits:
    """Decides about commits. Of its own it keeps guards alone, which may die with the coordinator."""

    def __init__(
        self,
        shared: GroupContext,
        groups: Mapping[str, Group],
        offsets: OffsetTable,
    ) -> None:
        self._room = shared.room
        self._config = shared.config
        self._groups = groups
        self._offsets = offsets
        self._guards: dict[int, VerificationGuard] = {}

    def commit(self, request: OffsetCommitRequest, pending: PendingResult) -> Result[Any]:
        group = self._groups.get(request.group_id)
        refusal = _refuse_without_group(request) if group is None else group.check_commit(request)
        refusal = refusal or self._refuse_unexpected(request)
        if refusal is not None:
            return Result(refusal)
        errors: dict[TopicPartition, ErrorCode] = {}
        size_bytes = more_bytes = 0
        for partition, offset in request.offsets.items():
            errors[partition] = self._check_offset(partition, offset)
            if errors[partition] is not ErrorCode.NONE:
                continue
            timestamp_ms = pending.now_ms if offset.commit_timestamp_ms == -1 else offset.commit_timestamp_ms
            expiry_ms = -1 if request.retention_ms is None else pending.now_ms + request.retention_ms
            value = OffsetCommitValue(offset.offset, offset.leader_epoch, offset.metadata, timestamp_ms, expiry_ms)
            record = offset_record(request.group_id, partition, value)
            pending.records.append(record)
            size_bytes += record_size_bytes(record)
            if size_bytes > self._config.group_records_max_bytes:
                return Result(too_large(request, self._config))
            more_bytes += self._offsets.more_bytes(request.group_id, partition, value, request.producer)
        refusal = self._room.refuse_offsets(request.group_id, more_bytes)
        if refusal is not None:
            return Result(refusal)
        if group is not None and request.producer is None:
            group.committed(request.member_id, pending)
        pending.reply(OffsetCommitResponse(errors))
        return pending.result(request.producer if pending.records else None)

    def _refuse_unexpected(self, request: OffsetCommitRequest) -> SemelError | None:
        """O5: the group must stand where the commit expects it, and no other transaction may be about to move it.

        What this lets pass is pending from the same turn on, so of two that expect the same place the second waits for
        the first, and is refused when that commits. A group that has committed nothing stands wherever it is expected.
        Where it stands already where this commit would put it, by the same metadata, the same work has committed it.
        """
        producer = request.producer
        if producer is None or not request.expected:
            return None
        for partition, offset in request.offsets.items():
            expected = request.expected.get(partition)
            if expected is None:
                continue
            if self._offsets.is_pending_by_another(request.group_id, partition, producer.producer_id):
                return error_for(
                    ErrorCode.UNSTABLE_OFFSET_COMMIT,
                    f"another transaction has an offset of {partition} pending for group {request.group_id}, so where "
                    "the group will stand is not known: try again when it has ended",
                )
            known = self._offsets.get(request.group_id, partition)
            if known is None or known.offset == expected:
                continue
            if offset.metadata and (known.offset, known.metadata) == (offset.offset, offset.metadata):
                continue
            wanted = f"at {expected}" if expected >= 0 else "nowhere"
            return error_for(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"group {request.group_id} stands at {known.offset} in {partition}, and this commit to {offset.offset} "
                f"expects it {wanted}: somebody else has moved the group",
            )
        return None

    def _check_offset(self, partition: TopicPartition, offset: OffsetAndMetadata) -> ErrorCode:
        if not 0 < len(partition.topic) <= TOPIC_NAME_CHARACTERS_MAX:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if partition.partition < 0:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if offset.offset < 0:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if len(offset.metadata.encode("utf-8", "surrogatepass")) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def begin_verification(self, request: BeginVerification, pending: PendingResult) -> None:
        producer_id = request.producer.producer_id
        if self._offsets.is_in_transaction(request.producer):
            pending.reply(None)
            return
        guard = self._guards.get(producer_id)
        if guard is None:
            guard = self._guards[producer_id] = VerificationGuard()
            if len(self._guards) > GUARDS_MAX:
                del self._guards[next(iter(self._guards))]
        pending.reply(guard)

    def commit_verified(self, verified: VerifiedCommit, pending: PendingResult) -> Result[Any]:
        producer = verified.request.producer
        assert producer is not None, "only transactional commits are verified"
        holds = self._offsets.is_in_transaction(producer) or (
            verified.guard is not None and self._guards.get(producer.producer_id) is verified.guard
        )
        if not holds:
            return Result(
                error_for(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    f"a transaction of producer id {producer.producer_id} ended while a commit was verified; try again",
                )
            )
        return self.commit(verified.request, pending)

    def void_guard(self, producer_id: int) -> None:
        """Forget what was verified of this producer: its transaction has ended, or is known from its offsets."""
        self._guards.pop(producer_id, None)


def too_large(request: OffsetCommitRequest, config: GroupConfig) -> SemelError:
    return error_for(
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        f"a commit of {len(request.offsets)} offsets takes more than the {config.group_records_max_bytes} bytes that "
        "one may have; commit fewer at a time",
    )


def _refuse_without_group(request: OffsetCommitRequest) -> SemelError | None:
    """A commit that names no generation makes the group."""
    if request.generation_id < 0:
        return None
    return error_for(
        ErrorCode.ILLEGAL_GENERATION,
        f"there is no group {request.group_id}, so member {request.member_id!r} of generation "
        f"{request.generation_id} is not in it; join again",
    )
