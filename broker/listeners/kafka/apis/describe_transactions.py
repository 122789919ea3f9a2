"""DescribeTransactions, version 0 (KIP-664): state, producer and partitions of transactional ids coordinated here."""

from __future__ import annotations

from typing import Any

from semel.broker.listeners.kafka.apis.bounded_concurrency import bounded_concurrency
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.transactions import describe_transaction
from semel.protocol.api.transactions import DescribeTransactionRequest
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from semel.protocol.kafka.api import ApiKey


async def handle_describe_transactions(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    return await write_response(
        context,
        transaction_states=await bounded_concurrency(
            list(dict.fromkeys(request.transactional_ids)), lambda name: _state(context, name)
        ),
    )


async def _state(context: RequestContext, transactional_id: str) -> dict[str, Any]:
    try:
        asked = DescribeTransactionRequest(transactional_id)
        found = await describe_transaction(context.node, context.rights, asked)
    except SemelError as error:
        return _refusal(transactional_id, error.code)
    topics: dict[str, list[int]] = {}
    for tp in found.partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return {
        "transactional_id": transactional_id,
        "transaction_state": found.state,
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.start_time_ms,
        "producer_id": found.producer.producer_id,
        "producer_epoch": found.producer.producer_epoch,
        "topics": [{"topic": name, "partitions": numbers} for name, numbers in topics.items()],
    }


def _refusal(transactional_id: str, code: ErrorCode) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "error_code": code,
        "transaction_start_time": NO_TIMESTAMP,
        "producer_id": NO_PRODUCER_ID,
        "producer_epoch": NO_PRODUCER_EPOCH,
    }


DESCRIBE_TRANSACTIONS = Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, handle_describe_transactions)
