"""TxnOffsetCommit, versions 0 to 5 (KIP-98, KIP-447, KIP-890): offsets that count when the transaction commits (O1).

Version 3 names the group's member and generation, so that zombies are fenced (O4); older versions cannot, and are let
through as from outside the group. Up to version 4 the offsets' partition must have been added with AddOffsetsToTxn,
which is verified (T8); version 5 adds it. A fenced producer gets INVALID_PRODUCER_EPOCH in every version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.apis.transaction_codes import TransactionCodes
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.transactions import commit_offsets_in_transaction
from semel.protocol.api.group_offsets import NO_GENERATION, NO_MEMBER_ID, OffsetAndMetadata
from semel.protocol.api.groups import OffsetCommitRequest
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import NO_LEADER_EPOCH, ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns

_MAX_VERSION = 5
_CODES = TransactionCodes(fenced_from=_MAX_VERSION + 1, abortable_from=4)
_LOADING_MIN_VERSION = 2
_LEADER_EPOCH_MIN_VERSION = 2
_MEMBER_MIN_VERSION = 3
_ADDS_MIN_VERSION = 5


async def handle_txn_offset_commit(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    commit = await _commit(request, version)
    errors: Mapping[TopicPartition, ErrorCode]
    try:
        protocol = TransactionVersion.V2 if version >= _ADDS_MIN_VERSION else TransactionVersion.V1
        errors = (await commit_offsets_in_transaction(context.node, context.rights, commit, protocol)).errors
    except SemelError as error:
        errors = dict.fromkeys(commit.offsets, coordinator_code(error))
    return await write_response(
        context,
        topics=[
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": item.partition_index,
                        "error_code": _code(errors[TopicPartition(topic.name, item.partition_index)], version),
                    }
                    async for item in in_turns(topic.partitions)
                ],
            }
            async for topic in in_turns(request.topics)
        ],
    )


async def _commit(request: Any, version: int) -> OffsetCommitRequest:
    named = version >= _MEMBER_MIN_VERSION
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id=request.generation_id if named else NO_GENERATION,
        member_id=request.member_id if named else NO_MEMBER_ID,
        group_instance_id=request.group_instance_id if named else None,
        offsets={
            TopicPartition(topic.name, item.partition_index): OffsetAndMetadata(
                item.committed_offset,
                item.committed_leader_epoch if version >= _LEADER_EPOCH_MIN_VERSION else NO_LEADER_EPOCH,
                item.committed_metadata or "",
            )
            async for topic in in_turns(request.topics)
            async for item in in_turns(topic.partitions)
        },
        transactional_id=request.transactional_id,
        producer=ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
    )


def _code(code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.NETWORK_EXCEPTION or (
        code is ErrorCode.CONCURRENT_TRANSACTIONS and version < _ADDS_MIN_VERSION
    ):
        # To these clients it is fatal, and yet all they need is to retry: to hear that they were fenced, or until the
        # node that coordinates the transaction can be asked, which is another than this one. As in Kafka.
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < _LOADING_MIN_VERSION:
        # Clients of these versions stop at it (KAFKA-7296).
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return _CODES.known(code, version)


TXN_OFFSET_COMMIT = Api(ApiKey.TXN_OFFSET_COMMIT, 0, _MAX_VERSION, handle_txn_offset_commit)
