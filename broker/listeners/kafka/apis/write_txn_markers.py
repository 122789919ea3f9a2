"""WriteTxnMarkers, versions 1 and 2 (KIP-98, KIP-664, KIP-890), as an operator's tool sends it to abort what hangs.

In Kafka, coordinators on other nodes send it, too, and may commit by it. This node's coordinators write their markers
by plain calls, so whatever comes here is a client's: an abort is put to the coordinator, all else is refused, and the
coordinator epoch is not read at all (S1). What a code has no words for goes to the node's log, with the next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from semel.broker.listeners.kafka.apis.bounded_concurrency import bounded_concurrency
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.cluster import abort_by_marker
from semel.protocol.acls import AclOperation
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.errors import ErrorCode, SemelError, UsageError
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import Values
from semel.runtime.turns import in_turns

_PROTOCOL_MIN_VERSION: Final = 2
_NOT_THE_COORDINATOR: Final = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)


async def handle_write_txn_markers(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    rights = context.rights
    may = rights.may_with_cluster(AclOperation.ALTER, told=False) or rights.may_with_cluster(
        AclOperation.CLUSTER_ACTION
    )
    outcomes = await bounded_concurrency(request.markers, lambda marker: _outcome(context, marker, version, may))
    pairs = zip(request.markers, outcomes, strict=True)
    return await write_response(context, markers=[await _values(*pair) async for pair in in_turns(pairs)])


async def _values(marker: Any, errors: Mapping[TopicPartition, ErrorCode]) -> Values:
    return {
        "producer_id": marker.producer_id,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": number, "error_code": errors[TopicPartition(topic.name, number)]}
                    async for number in in_turns(topic.partition_indexes)
                ],
            }
            async for topic in in_turns(marker.topics)
        ],
    }


async def _outcome(context: RequestContext, marker: Any, version: int, may: bool) -> Mapping[TopicPartition, ErrorCode]:
    if may:
        return await _abort(context, marker, version)
    return {
        TopicPartition(topic.name, number): ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        async for topic in in_turns(marker.topics)
        async for number in in_turns(topic.partition_indexes)
    }


async def _abort(context: RequestContext, marker: Any, version: int) -> Mapping[TopicPartition, ErrorCode]:
    """Return for each partition that a marker names how its abort went."""
    named = {
        TopicPartition(topic.name, number): ErrorCode.NONE
        async for topic in in_turns(marker.topics)
        async for number in in_turns(topic.partition_indexes)
    }
    producer = ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch)
    try:
        TransactionVersion(marker.transaction_version if version >= _PROTOCOL_MIN_VERSION else TransactionVersion.V1)
    except ValueError:
        return dict.fromkeys(named, ErrorCode.UNSUPPORTED_VERSION)
    if marker.transaction_result:
        context.warn(
            "refused: peer=%s client_id=%r asked to commit the transaction of producer_id=%d epoch=%d: only its "
            "coordinator commits. Where a partition lacks the marker of a commit that was decided, `semel doctor` "
            "finds it, and `semel txn finish` writes it",
            *(context.peer, context.client_id, *producer),
        )
        return dict.fromkeys(named, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    for tp in named:
        try:
            # One after the other, for the first may end it in all of them, and letting others continue between.
            await asyncio.sleep(0)
            await _abort_on(context, tp, producer)
        except SemelError as error:
            named[tp] = _code(tp, error.code)
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                context.warn(
                    "refused: peer=%s client_id=%r error=%s %s",
                    *(context.peer, context.client_id, error.code.name, error.message),
                )
    return named


async def _abort_on(context: RequestContext, tp: TopicPartition, producer: ProducerIdAndEpoch) -> None:
    # No transaction ever includes the coordinator's own log, whose batches nobody else may write.
    if tp.topic == TRANSACTIONS_TOPIC:
        raise UsageError(f"no transaction includes {tp}", ErrorCode.INVALID_TOPIC_EXCEPTION)
    await abort_by_marker(context.node, context.rights, tp, producer)


def _code(tp: TopicPartition, code: ErrorCode) -> ErrorCode:
    # Kafka's tool knows leaders, not coordinators of groups: it is to look for the leader and retry.
    if tp.topic == OFFSETS_TOPIC and code in _NOT_THE_COORDINATOR:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return code


WRITE_TXN_MARKERS = Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, handle_write_txn_markers)
