"""AddPartitionsToTxn: what is to be in a transaction."""

from __future__ import annotations

from semel.broker.services import Services
from semel.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
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
    wrong = {
        tp: error
        async for tp in in_turns(request.partitions)
        if (error := refusal_to_add(node, tp, allowed)) is not ErrorCode.NONE
    }
    if wrong:
        return AddPartitionsToTxnResponse(dict.fromkeys(request.partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | wrong)
    return await node.transactions.add_partitions(request)


def refusal_to_add(node: Services, tp: TopicPartition, allowed: frozenset[str] = frozenset()) -> ErrorCode:
    """Return why a partition can't be in a transaction; NONE where it can. `allowed`: internal topics that may be."""
    if tp.topic in INTERNAL_TOPICS and tp.topic not in allowed:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if node.metadata.image.partition(tp) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE
