"""WriteTxnMarkers, versions 1 and 2 (KIP-98, KIP-664, KIP-890): a coordinator's decisions, written to partitions here.

Besides coordinators on other nodes, an operator's tool writes such a marker to end a transaction that hangs. Version 2
says under which protocol the transaction ended; without it a marker is judged as one of the older protocol (P9).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semel.broker.handlers.write_txn_markers import LocalMarkerWriter
from semel.broker.listeners.kafka.apis.in_slices import in_slices
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.services import Services
from semel.protocol.api.transactions import TransactionVersion, TxnMarker
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import build_response, parse_request

_PROTOCOL_MIN_VERSION = 2
_NOT_THE_COORDINATOR = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)


async def handle_write_txn_markers(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = parse_request(ApiKey.WRITE_TXN_MARKERS, version, body)
    outcomes = await in_slices(request.markers, lambda marker: _write(context.node, marker, version))
    return build_response(
        ApiKey.WRITE_TXN_MARKERS,
        version,
        markers=[
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": number, "error_code": errors[TopicPartition(topic.name, number)]}
                            for number in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker, errors in zip(request.markers, outcomes, strict=True)
        ],
    )


async def _write(node: Services, marker: Any, version: int) -> Mapping[TopicPartition, ErrorCode]:
    named = dict.fromkeys(
        (TopicPartition(topic.name, number) for topic in marker.topics for number in topic.partition_indexes),
        ErrorCode.NONE,
    )
    try:
        protocol = TransactionVersion(
            marker.transaction_version if version >= _PROTOCOL_MIN_VERSION else TransactionVersion.V1
        )
    except ValueError:
        return dict.fromkeys(named, ErrorCode.UNSUPPORTED_VERSION)
    # No transaction ever includes the coordinator's own log, whose batches nobody else may write.
    writable = tuple(tp for tp in named if tp.topic != TRANSACTIONS_TOPIC)
    written = await LocalMarkerWriter(node).write_markers(
        TxnMarker(
            ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch),
            marker.coordinator_epoch,
            marker.transaction_result,
            writable,
            protocol,
        )
    )
    return {tp: _code(tp, written.get(tp, ErrorCode.INVALID_TOPIC_EXCEPTION)) for tp in named}


def _code(tp: TopicPartition, code: ErrorCode) -> ErrorCode:
    # A transaction coordinator knows leaders, not coordinators of groups: it is to look for the leader and come again.
    if tp.topic == OFFSETS_TOPIC and code in _NOT_THE_COORDINATOR:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return code


WRITE_TXN_MARKERS = Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, handle_write_txn_markers)
