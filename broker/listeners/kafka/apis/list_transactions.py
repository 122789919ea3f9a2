"""ListTransactions, versions 0 to 2 (KIP-664, KIP-994, KIP-1152): the transactional ids coordinated here, filtered.

By states and producer ids; from version 1 on by how long they are open, from version 2 on by a pattern of the whole id.
"""

from __future__ import annotations

from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.transactions import list_transactions
from semel.protocol.api.transactions import ListTransactionsRequest
from semel.protocol.errors import SemelError
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns

_DURATION_MIN_VERSION = 1
_PATTERN_MIN_VERSION = 2


async def handle_list_transactions(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    asked = ListTransactionsRequest(
        frozenset(request.state_filters),
        frozenset(request.producer_id_filters),
        request.duration_filter if version >= _DURATION_MIN_VERSION else -1,
        (request.transactional_id_pattern or "") if version >= _PATTERN_MIN_VERSION else "",
    )
    try:
        found = await list_transactions(context.node, context.rights, asked)
    except SemelError as error:
        return await write_response(context, error_code=error.code)
    return await write_response(
        context,
        unknown_state_filters=found.unknown_states,
        transaction_states=[
            {
                "transactional_id": item.transactional_id,
                "producer_id": item.producer_id,
                "transaction_state": item.state,
            }
            async for item in in_turns(found.transactions)
        ],
    )


LIST_TRANSACTIONS = Api(ApiKey.LIST_TRANSACTIONS, 0, 2, handle_list_transactions)
