"""DeleteRecords: move a partition's start forward (KIP-107)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from semel.broker.handlers.newest import know_partitions
from semel.broker.handlers.partitions.lookup import partition_of
from semel.broker.handlers.topics.rules import topic_log_config
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, FatalError, SemelError, UsageError
from semel.protocol.ids import INTERNAL_TOPICS, TopicPartition
from semel.runtime.turns import in_turns

if TYPE_CHECKING:
    from semel.broker.logs.leader_state import LeaderState
    from semel.broker.logs.partition import Partition

TIMEOUT_MS: Final = 30_000
"""How long the replicas are waited for at most, whatever a request says (S3), and where it says nothing."""
_LOOK_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """The partition's new start, -1 with an error."""

    log_start_offset: int
    error: ErrorCode = ErrorCode.NONE
    message: str = ""


async def begin_deletion(node: Services, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, DeletedRecords]:
    """Make everything before the given offsets unreadable on this node, -1 for the high watermark.

    Returns what is answered for each partition, once `confirm_deletion` says so.
    """
    await know_partitions(node, before)
    found = {tp: _delete(node, tp, offset) async for tp, offset in in_turns(before.items())}
    if node.config.peer_listen:
        found |= await _really_beyond(node, found)
    return found


async def confirm_deletion(
    node: Services, found: dict[TopicPartition, DeletedRecords], *, timeout_ms: float = TIMEOUT_MS
) -> dict[TopicPartition, DeletedRecords]:
    """Wait until the disk has the new starts, and all replicas that may be elected have them: so nothing comes back
    after a crash, or under another leader (D1, D3). REQUEST_TIMED_OUT where some have not within `timeout_ms`.
    """
    deleted = {
        tp: (here, here.leader)  # who leads now has deleted them, and nobody else may say that it is done
        for tp, one in found.items()
        if one.error is ErrorCode.NONE and (here := node.partition(tp)) is not None
    }
    if deleted:
        try:
            await node.logs.maintenance.log_starts_noted(here for here, _ in deleted.values())
            for here, _ in deleted.values():
                if here.tier is not None:
                    await here.tier.note_start(here.log_start_offset)
        except (OSError, SemelError) as error:
            why = f"the new start of the log could not be written: {error}"
            lost = DeletedRecords(-1, ErrorCode.KAFKA_STORAGE_ERROR, why)
            return {tp: one if one.error is not ErrorCode.NONE else lost for tp, one in found.items()}
        found |= await _replicated(node, found, deleted, timeout_ms)
    return found


async def _really_beyond(
    node: Services, found: Mapping[TopicPartition, DeletedRecords]
) -> dict[TopicPartition, DeletedRecords]:
    """Return the answers in place of OFFSET_OUT_OF_RANGE where this node does not lead, or can't tell, by the database.

    A node that is cut off knows neither later records nor the next leader: its refusal would be final for a client.
    """
    beyond = [tp async for tp in in_turns(found) if found[tp].error is ErrorCode.OFFSET_OUT_OF_RANGE]
    if not beyond:
        return {}
    try:
        image = await node.metadata.refresh()
    except MetadataUnavailableError as error:
        why = f"it can't be told whether this node still leads it: {error.message}; try again"
        return {tp: DeletedRecords(-1, ErrorCode.LEADER_NOT_AVAILABLE, f"{tp}: {why}") async for tp in in_turns(beyond)}
    moved: dict[TopicPartition, DeletedRecords] = {}
    async for tp in in_turns(beyond):
        state, partition = image.partition(tp), node.partition(tp)
        if state is None or partition is None or state.leader != node.config.node_id:
            moved[tp] = DeletedRecords(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{tp} is not led here any more")
    return moved


async def _replicated(
    node: Services,
    found: Mapping[TopicPartition, DeletedRecords],
    deleted: Mapping[TopicPartition, tuple[Partition, LeaderState | None]],
    timeout_ms: float,
) -> dict[TopicPartition, DeletedRecords]:
    """Wait until all replicas that may be elected start where they should. Returns what is answered in its place."""
    waiting = dict(deleted)
    refused: dict[TopicPartition, DeletedRecords] = {}
    timeout_ms = min(timeout_ms, TIMEOUT_MS)
    ends_at = node.clock.monotonic() + timeout_ms / 1000
    while waiting:
        async for tp, (partition, leader) in in_turns(list(waiting.items())):
            if leader is None or partition.leader is not leader or partition.offline_error is not None:
                why = f"{tp} is not led here any more, and who leads may not know of it: delete again"
                refused[tp] = DeletedRecords(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER, why)
            elif leader.deleted_below(partition.log_start_offset) < found[tp].log_start_offset:
                continue
            del waiting[tp]
        if not waiting:
            break
        if node.clock.monotonic() >= ends_at:
            why = f"not all replicas deleted them within {timeout_ms:.0f} ms: delete again, or look at the nodes"
            return refused | {tp: DeletedRecords(-1, ErrorCode.REQUEST_TIMED_OUT, f"{tp}: {why}") for tp in waiting}
        await asyncio.sleep(_LOOK_EVERY_S)
    return refused


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
