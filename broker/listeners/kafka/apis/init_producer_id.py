"""InitProducerId, versions 0 to 6 (KIP-98, KIP-360, KIP-890, KIP-939): a producer id and its epoch.

Version 3 names the producer id and epoch that the caller holds already. Before version 4 a fenced producer gets
INVALID_PRODUCER_EPOCH. Version 6 keeps a prepared transaction for the caller that has to end it.
"""

from __future__ import annotations

from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.apis.transaction_codes import TransactionCodes
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.transactions import init_producer_id
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.errors import SemelError
from semel.protocol.ids import NO_PRODUCER, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request, to_ms

_CODES = TransactionCodes(fenced_from=4, abortable_from=5)
_HELD_MIN_VERSION = 3
_TWO_PHASE_MIN_VERSION = 6


async def handle_init_producer_id(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = parse_request(ApiKey.INIT_PRODUCER_ID, version, body)
    held = NO_PRODUCER
    if version >= _HELD_MIN_VERSION:
        held = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    try:
        answer = await init_producer_id(
            context.node,
            context.rights,
            InitProducerIdRequest(
                request.transactional_id,
                to_ms(request.transaction_timeout),
                held,
                two_phase=version >= _TWO_PHASE_MIN_VERSION and request.enable2_pc,
                keep_prepared=version >= _TWO_PHASE_MIN_VERSION and request.keep_prepared_txn,
            ),
        )
    except SemelError as error:
        return build_response(
            ApiKey.INIT_PRODUCER_ID,
            version,
            throttle_time=context.throttle_ms(),
            error_code=_CODES.known(coordinator_code(error), version),
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            ongoing_txn_producer_id=NO_PRODUCER_ID,
            ongoing_txn_producer_epoch=NO_PRODUCER_EPOCH,
        )
    ongoing = NO_PRODUCER if answer.ongoing is None else answer.ongoing
    return build_response(
        ApiKey.INIT_PRODUCER_ID,
        version,
        throttle_time=context.throttle_ms(),
        producer_id=answer.producer.producer_id,
        producer_epoch=answer.producer.producer_epoch,
        ongoing_txn_producer_id=ongoing.producer_id,
        ongoing_txn_producer_epoch=ongoing.producer_epoch,
    )


INIT_PRODUCER_ID = Api(ApiKey.INIT_PRODUCER_ID, 0, 6, handle_init_producer_id)
