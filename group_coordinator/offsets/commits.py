"""Commits of offsets: who may commit what, and transactional ones that must be verified first (T8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from semel.group_coordinator.classic.group import ClassicGroup
from semel.group_coordinator.classic.membership import Membership
from semel.group_coordinator.classic.state import GroupState
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.consumer.groups import ConsumerGroups
from semel.group_coordinator.effects import Turn
from semel.group_coordinator.held_bytes import Room
from semel.group_coordinator.offsets.table import OffsetTable
from semel.group_coordinator.records.schemas import OffsetCommitValue, offset_record, record_size_bytes
from semel.group_coordinator.requests import BeginVerification, VerifiedCommit
from semel.protocol.api.groups import OffsetAndMetadata, OffsetCommitRequest, OffsetCommitResponse
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
        config: GroupConfig,
        groups: Mapping[str, ClassicGroup],
        membership: Membership,
        consumers: ConsumerGroups,
        offsets: OffsetTable,
        room: Room,
    ) -> None:
        self._room = room
        self._config = config
        self._groups = groups
        self._membership = membership
        self._consumers = consumers
        self._offsets = offsets
        self._guards: dict[int, int] = {}
        self._last_guard = 0

    def commit(self, request: OffsetCommitRequest, turn: Turn) -> Result[Any]:
        refusal = self._refuse(request)
        if refusal is not None:
            return Result(refusal)
        errors: dict[TopicPartition, ErrorCode] = {}
        size_bytes = more_bytes = 0
        for partition, offset in request.offsets.items():
            errors[partition] = self._check_offset(partition, offset)
            if errors[partition] is not ErrorCode.NONE:
                continue
            timestamp_ms = turn.now_ms if offset.commit_timestamp_ms == -1 else offset.commit_timestamp_ms
            expiry_ms = -1 if request.retention_ms is None else turn.now_ms + request.retention_ms
            value = OffsetCommitValue(offset.offset, offset.leader_epoch, offset.metadata, timestamp_ms, expiry_ms)
            record = offset_record(request.group_id, partition, value)
            turn.records.append(record)
            size_bytes += record_size_bytes(record)
            if size_bytes > self._config.group_records_max_bytes:
                return Result(too_large(request, self._config))
            more_bytes += self._offsets.more_bytes(request.group_id, partition, value, request.producer)
        refusal = self._room.refuse_offsets(request.group_id, more_bytes)
        if refusal is not None:
            return Result(refusal)
        group = self._groups.get(request.group_id)
        if group is not None and request.producer is None:
            self._membership.keep_alive(group, request.member_id, turn)
        self._consumers.committed(request, turn)
        turn.reply(OffsetCommitResponse(errors))
        return turn.result(request.producer if turn.records else None)

    def _refuse(self, request: OffsetCommitRequest) -> SemelError | None:
        """Fence zombies by member, instance and generation (O4, KIP-447), as strictly as Kafka's clients allow.

        Without generation and member a plain commit needs an empty group: it comes from an admin or a consumer that
        assigned itself. A transactional one is let through, since older versions of that API cannot say who they are.
        """
        consumers = self._consumers.groups.get(request.group_id)
        if consumers is not None:
            return consumers.check_commit(
                request.member_id,
                request.group_instance_id,
                request.generation_id,
                transactional=request.producer is not None,
            )
        group = self._groups.get(request.group_id)
        generation_id, member_id = request.generation_id, request.member_id
        if group is None:
            return None if generation_id < 0 else _no_generation(request.group_id, member_id, generation_id)
        if generation_id < 0 and group.state is GroupState.EMPTY:
            return None
        if generation_id >= 0 or member_id or request.group_instance_id is not None:
            refusal = group.check_member(member_id, request.group_instance_id) or group.check_generation(
                member_id, generation_id
            )
            if refusal is not None:
                return refusal
        elif request.producer is None:
            return error_for(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {request.group_id} has members, so only they may commit: stop them, or commit as one of them",
            )
        if request.producer is None and group.state is GroupState.COMPLETING_REBALANCE:
            return group.rebalance_in_progress()
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

    def begin_verification(self, request: BeginVerification, turn: Turn) -> None:
        producer_id = request.producer.producer_id
        if self._offsets.is_in_transaction(request.producer):
            turn.reply(None)
            return
        guard = self._guards.get(producer_id)
        if guard is None:
            self._last_guard += 1
            guard = self._guards[producer_id] = self._last_guard
            if len(self._guards) > GUARDS_MAX:
                del self._guards[next(iter(self._guards))]
        turn.reply(guard)

    def commit_verified(self, verified: VerifiedCommit, turn: Turn) -> Result[Any]:
        producer = verified.request.producer
        assert producer is not None, "only transactional commits are verified"
        holds = self._offsets.is_in_transaction(producer) or (
            verified.guard is not None and self._guards.get(producer.producer_id) == verified.guard
        )
        if not holds:
            return Result(
                error_for(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    f"a transaction of producer id {producer.producer_id} ended while a commit was verified; try again",
                )
            )
        return self.commit(verified.request, turn)

    def void_guard(self, producer_id: int) -> None:
        """Forget what was verified of this producer: its transaction has ended, or is known from its offsets."""
        self._guards.pop(producer_id, None)


def too_large(request: OffsetCommitRequest, config: GroupConfig) -> SemelError:
    return error_for(
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        f"a commit of {len(request.offsets)} offsets takes more than the {config.group_records_max_bytes} bytes that "
        "one may have; commit fewer at a time",
    )


def _no_generation(group_id: str, member_id: str, generation_id: int) -> SemelError:
    return error_for(
        ErrorCode.ILLEGAL_GENERATION,
        f"there is no group {group_id}, so member {member_id!r} of generation {generation_id} is not in it; join again",
    )
