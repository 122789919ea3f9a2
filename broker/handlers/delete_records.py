"""DeleteRecords: move a partition's start forward (KIP-107)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from semel.broker.handlers.newest import know_partitions
from semel.broker.handlers.partitions.lookup import partition_of
from semel.broker.handlers.topics.rules import topic_log_config
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, FatalError, SemelError, UsageError
from semel.protocol.ids import INTERNAL_TOPICS, TopicPartition
from semel.runtime.turns import in_turns


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """The partition's new start, -1 with an error."""

    log_start_offset: int
    error: ErrorCode = ErrorCode.NONE
    message: str = ""


async def delete_records(node: Services, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, DeletedRecords]:
    """Make everything before the given offsets unreadable, -1 for the high watermark; answer for each partition.

    The answer comes once the disk has the new starts, so that nothing of it comes back after a crash (D1, D3).
    """
    await know_partitions(node, before)
    found = {tp: _delete(node, tp, offset) async for tp, offset in in_turns(before.items())}
    if any(one.error is ErrorCode.NONE for one in found.values()):
        try:
            await node.logs.maintenance.log_starts_noted()
        except OSError as error:
            why = f"the new start of the log could not be written to the disk: {error}"
            lost = DeletedRecords(-1, ErrorCode.KAFKA_STORAGE_ERROR, why)
            return {tp: one if one.error is not ErrorCode.NONE else lost for tp, one in found.items()}
    return found


def _delete(node: Services, tp: TopicPartition, offset: int) -> DeletedRecords:
    try:
        if tp.topic in INTERNAL_TOPICS:
            raise UsageError(f"records of {tp.topic} belong to the coordinators", ErrorCode.INVALID_TOPIC_EXCEPTION)
        partition = partition_of(node, tp)
        topic = node.metadata.topic(tp.topic)
        if topic is not None and not topic_log_config(node.config, topic.configs).is_deleted:
            raise FatalError(
                f"records of {tp.topic} can't be deleted: its cleanup.policy has no delete; add it first",
                ErrorCode.POLICY_VIOLATION,
            )
        return DeletedRecords(partition.delete_records(offset))
    except SemelError as error:
        return DeletedRecords(-1, error.code, error.message)
