"""AddPartitionsToTxn and AddOffsetsToTxn: what is to be in a transaction, and what is in it."""

from __future__ import annotations

from semel.broker.services import Services
from semel.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TransactionVersion,
)
from semel.protocol.errors import ErrorCode, UsageError, error_for
from semel.protocol.ids import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    ProducerIdAndEpoch,
    TopicPartition,
)
from semel.runtime.turns import in_turns


async def add_partitions(
    node: Services, request: AddPartitionsToTxnRequest, *, offsets_allowed: bool = False
) -> AddPartitionsToTxnResponse:
    """Add partitions, all or none; where one can't be, the others get OPERATION_NOT_ATTEMPTED, as in Kafka.

    `offsets_allowed`: the caller is a coordinator of groups, which may add partitions of `__consumer_offsets`.
    """
    allowed = frozenset({OFFSETS_TOPIC}) if offsets_allowed else frozenset()
    checked = {tp: _check(node, tp, allowed) async for tp in in_turns(request.partitions)}
    wrong = {tp: error async for tp, error in in_turns(checked.items()) if error is not ErrorCode.NONE}
    if wrong:
        return AddPartitionsToTxnResponse(dict.fromkeys(request.partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | wrong)
    await node.internal_topic_ready(TRANSACTIONS_TOPIC)
    return await node.transactions.add_partitions(request)


async def verify_partitions(node: Services, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    """Say for each partition whether it is in the transaction (T8). Raises as `TransactionService.verify` does."""
    await node.internal_topic_ready(TRANSACTIONS_TOPIC)
    return await node.transactions.verify(request)


async def add_offsets(node: Services, transactional_id: str, producer: ProducerIdAndEpoch, group_id: str) -> None:
    """Add the partition where a group's offsets live, for a client of the older protocol. Raises `SemelError`."""
    if not group_id:
        raise UsageError("offsets are committed for a group: give its id", ErrorCode.INVALID_GROUP_ID)
    await node.internal_topic_ready(OFFSETS_TOPIC)
    await node.internal_topic_ready(TRANSACTIONS_TOPIC)
    partition = node.groups.offsets_partition(group_id)
    answer = await node.transactions.add_partitions(
        AddPartitionsToTxnRequest(transactional_id, producer, (partition,), version=TransactionVersion.V1)
    )
    code = answer.errors[partition]
    if code is not ErrorCode.NONE:
        raise error_for(code, f"{partition} could not be added to the transaction of {transactional_id!r}")


def _check(node: Services, tp: TopicPartition, allowed: frozenset[str]) -> ErrorCode:
    if tp.topic in INTERNAL_TOPICS and tp.topic not in allowed:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if node.metadata.image.partition(tp) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE
