"""EndTxn as a producer writes and reads it, beside kio's reading of the protocol."""

from __future__ import annotations

import pytest
from kafka_calls import request_body

from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch
from semel.protocol.kafka.api import ApiKey, join_parts
from semel.protocol.kafka.end_txn import END_TXN_VERSION, EndTxnAnswer, end_txn_request, read_end_txn
from semel.protocol.kafka.messages import build_response
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
