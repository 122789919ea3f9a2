"""AddPartitionsToTxn: versions 0 to 3 from clients of the older protocol, 4 and 5 from nodes (KIP-98, KIP-890).

A client adds partitions to its own transaction before it writes to them. A node asks for several transactions at once:
with `verify_only` whether their partitions are in them (T8), without it to add them on behalf of a client whose
transactions have an epoch each. Before version 2 a fenced producer gets INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from semel.broker.handlers.add_partitions import add_partitions
from semel.broker.listeners.kafka.apis.bounded_concurrency import bounded_concurrency
from semel.broker.listeners.kafka.apis.transaction_codes import TransactionCodes
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.transactions import add_to_transaction
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, TransactionVersion
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns

_CODES = TransactionCodes(fenced_from=2, abortable_from=4)
_BATCHED_MIN_VERSION = 4

_Errors = Mapping[TopicPartition, ErrorCode]


async def handle_add_partitions_to_txn(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    if version < _BATCHED_MIN_VERSION:
        topics = request.v3_and_below_topics
        errors = await _outcome(
            context,
            AddPartitionsToTxnRequest(
                request.v3_and_below_transactional_id,
                ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
                await _partitions(topics),
                version=TransactionVersion.V1,
            ),
        )
        return await write_response(context, results_by_topic_v3_and_below=await _results(topics, errors, version))
    if not context.rights.may_with_cluster():
        return await write_response(context, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    outcomes = await bounded_concurrency(request.transactions, lambda item: _outcome_of_node(context, item))
    return await write_response(
        context,
        results_by_transaction=[
            {"transactional_id": item.transactional_id, "topic_results": await _results(item.topics, errors, version)}
            for item, errors in zip(request.transactions, outcomes, strict=True)
        ],
    )


async def _outcome_of_node(context: RequestContext, item: Any) -> _Errors:
    return await _outcome(context, await _of_node(item))


async def _of_node(item: Any) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        item.transactional_id,
        ProducerIdAndEpoch(item.producer_id, item.producer_epoch),
        await _partitions(item.topics),
        verify_only=item.verify_only,
        version=TransactionVersion.V1 if item.verify_only else TransactionVersion.V2,
    )


async def _outcome(context: RequestContext, request: AddPartitionsToTxnRequest) -> _Errors:
    """What became of each partition; a refusal of the whole request is one of all its partitions."""
    try:
        if request.verify_only:
            return (await context.node.transactions.verify(request)).errors
        if request.version >= TransactionVersion.V2:
            return (await add_partitions(context.node, request, offsets_allowed=True)).errors
        return (await add_to_transaction(context.node, context.rights, request)).errors
    except SemelError as error:
        return dict.fromkeys(request.partitions, error.code)


async def _partitions(topics: Iterable[Any]) -> tuple[TopicPartition, ...]:
    return tuple(
        dict.fromkeys(
            [
                TopicPartition(topic.name, number)
                async for topic in in_turns(topics)
                async for number in in_turns(topic.partitions)
            ]
        )
    )


async def _results(topics: Iterable[Any], errors: _Errors, version: int) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": number,
                    "partition_error_code": _CODES.known(errors[TopicPartition(topic.name, number)], version),
                }
                async for number in in_turns(topic.partitions)
            ],
        }
        async for topic in in_turns(topics)
    ]


ADD_PARTITIONS_TO_TXN = Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, handle_add_partitions_to_txn)
