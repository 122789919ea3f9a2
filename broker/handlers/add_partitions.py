"""AddPartitionsToTxn: all partitions of a request join the transaction, or none does."""

from __future__ import annotations

from semel.broker.services import Services
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import INTERNAL_TOPICS, TRANSACTIONS_TOPIC, TopicPartition


async def add_partitions(node: Services, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    """Add partitions; where one can't be, the others get OPERATION_NOT_ATTEMPTED, as in Kafka."""
    wrong = {tp: error for tp in request.partitions if (error := _check(node, tp)) is not ErrorCode.NONE}
    if wrong:
        return AddPartitionsToTxnResponse(
            {tp: wrong.get(tp, ErrorCode.OPERATION_NOT_ATTEMPTED) for tp in request.partitions}
        )
    await node.internal_topic_ready(TRANSACTIONS_TOPIC)
    return await node.transactions.add_partitions(request)


def _check(node: Services, tp: TopicPartition) -> ErrorCode:
    if tp.topic in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if node.metadata.image.partition(tp) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE
