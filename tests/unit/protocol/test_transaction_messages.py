"""EndTxn and TxnOffsetCommit as a producer writes and reads them, beside kio's reading of the protocol."""

from __future__ import annotations

import pytest
from kafka_calls import request_body

from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.api import ApiKey, join_parts
from semel.protocol.kafka.end_txn import END_TXN_VERSION, EndTxnAnswer, end_txn_request, read_end_txn
from semel.protocol.kafka.messages import build_response
from semel.protocol.kafka.txn_offset_commit import (
    TXN_OFFSET_COMMIT_VERSION,
    read_txn_offset_commit,
    txn_offset_commit_request,
)
from semel.protocol.kafka.wire import WireFormatError

PRODUCER = ProducerIdAndEpoch(1 << 40, 7)


@pytest.mark.parametrize("commit", [True, False])
def test_a_request_to_end_a_transaction_is_kafkas(commit: bool) -> None:
    expected = request_body(
        ApiKey.END_TXN, END_TXN_VERSION,
        transactional_id="bücher-1", producer_id=1 << 40, producer_epoch=7, committed=commit,
    )  # fmt: skip
    assert join_parts(end_txn_request("bücher-1", PRODUCER, commit=commit)) == expected


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.PRODUCER_FENCED])
def test_the_answer_to_it_is_read(error: ErrorCode) -> None:
    body = build_response(
        ApiKey.END_TXN, END_TXN_VERSION,
        throttle_time=3, error_code=error, producer_id=1 << 40, producer_epoch=8,
    )  # fmt: skip
    assert read_end_txn(body) == EndTxnAnswer(error, ProducerIdAndEpoch(1 << 40, 8))
    for end in range(len(body)):
        with pytest.raises(WireFormatError):
            read_end_txn(bytes(body)[:end])
    with pytest.raises(WireFormatError):
        read_end_txn(bytes(body) + b"\x00")


@pytest.mark.parametrize("instance", [None, "host-1"])
def test_a_request_to_commit_offsets_in_a_transaction_is_kafkas(instance: str | None) -> None:
    offsets = {
        TopicPartition("a", 0): OffsetAndMetadata(5, 2, "x"),
        TopicPartition("b", 1): OffsetAndMetadata(1 << 40),
        TopicPartition("a", 3): OffsetAndMetadata(0, -1, ""),
    }

    def position(partition: int, offset: int, epoch: int, metadata: str) -> dict[str, object]:
        return {
            "partition_index": partition, "committed_offset": offset,
            "committed_leader_epoch": epoch, "committed_metadata": metadata,
        }  # fmt: skip

    expected = request_body(
        ApiKey.TXN_OFFSET_COMMIT, TXN_OFFSET_COMMIT_VERSION,
        transactional_id="t", group_id="g", producer_id=1 << 40, producer_epoch=7,
        generation_id=4, member_id="m-1", group_instance_id=instance,
        topics=[
            {"name": "a", "partitions": [position(0, 5, 2, "x"), position(3, 0, -1, "")]},
            {"name": "b", "partitions": [position(1, 1 << 40, -1, "")]},
        ],
    )  # fmt: skip
    group = GroupMetadata("g", 4, "m-1", instance)
    assert join_parts(txn_offset_commit_request("t", PRODUCER, offsets, group)) == expected


def test_the_answer_to_that_is_read_too() -> None:
    body = build_response(
        ApiKey.TXN_OFFSET_COMMIT, TXN_OFFSET_COMMIT_VERSION,
        throttle_time=0,
        topics=[
            {"name": "a", "partitions": [
                {"partition_index": 0, "error_code": ErrorCode.NONE},
                {"partition_index": 3, "error_code": ErrorCode.ILLEGAL_GENERATION},
            ]},
            {"name": "b", "partitions": [{"partition_index": 1, "error_code": ErrorCode.NONE}]},
        ],
    )  # fmt: skip
    assert read_txn_offset_commit(body) == {
        TopicPartition("a", 0): ErrorCode.NONE,
        TopicPartition("a", 3): ErrorCode.ILLEGAL_GENERATION,
        TopicPartition("b", 1): ErrorCode.NONE,
    }
    for end in range(len(body)):
        with pytest.raises(WireFormatError):
            read_txn_offset_commit(bytes(body)[:end])
