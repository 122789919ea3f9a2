"""AddOffsetsToTxn, versions 0 to 4 (KIP-98): the older protocol's way to commit a group's offsets in a transaction.

It adds the partition of `__consumer_offsets` where the group lives; TxnOffsetCommit then writes to it. Before version 2
a fenced producer gets INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.apis.transaction_codes import TransactionCodes
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.transactions import add_group_to_transaction
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request

_CODES = TransactionCodes(fenced_from=2, abortable_from=4)


async def handle_add_offsets_to_txn(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = parse_request(ApiKey.ADD_OFFSETS_TO_TXN, version, body)
    code = ErrorCode.NONE
    try:
        await add_group_to_transaction(
            context.node,
            context.rights,
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            request.group_id,
        )
    except SemelError as error:
        code = _CODES.known(coordinator_code(error), version)
    return build_response(ApiKey.ADD_OFFSETS_TO_TXN, version, throttle_time=context.throttle_ms(), error_code=code)


ADD_OFFSETS_TO_TXN = Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, handle_add_offsets_to_txn)
