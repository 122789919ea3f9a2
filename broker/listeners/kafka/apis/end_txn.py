"""EndTxn, versions 0 to 5 (KIP-98, KIP-890): commits or aborts; answered once the decision is durable (T3).

From version 5 on the transaction ends with its epoch, and the answer names the producer id and epoch of the next one
(T6). Before version 2 a fenced producer gets INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.apis.transaction_codes import TransactionCodes
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.transactions import end_transaction
from semel.protocol.api.transactions import EndTxnRequest, TransactionVersion
from semel.protocol.errors import SemelError
from semel.protocol.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request

_CODES = TransactionCodes(fenced_from=2, abortable_from=4)
_EPOCH_BUMP_MIN_VERSION = 5


async def handle_end_txn(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = parse_request(ApiKey.END_TXN, version, body)
    try:
        answer = await end_transaction(
            context.node,
            context.rights,
            EndTxnRequest(
                request.transactional_id,
                ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
                request.committed,
                TransactionVersion.V2 if version >= _EPOCH_BUMP_MIN_VERSION else TransactionVersion.V1,
            ),
        )
    except SemelError as error:
        return build_response(
            ApiKey.END_TXN,
            version,
            throttle_time=context.throttle_ms(),
            error_code=_CODES.known(coordinator_code(error), version),
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
        )
    return build_response(
        ApiKey.END_TXN,
        version,
        throttle_time=context.throttle_ms(),
        producer_id=answer.producer.producer_id,
        producer_epoch=answer.producer.producer_epoch,
    )


END_TXN = Api(ApiKey.END_TXN, 0, 5, handle_end_txn)
