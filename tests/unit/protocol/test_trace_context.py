"""Trace contexts in headers of requests and records: what is read back, and that nothing unreadable does harm."""

from __future__ import annotations

import random

import pytest

from semel.protocol.batch_builder import BatchBuilder
from semel.protocol.compression import Compression
from semel.protocol.kafka import wire
from semel.protocol.kafka.wire import WireFormatError, parse_request_header
from semel.protocol.trace_context import (
    CONTEXT_BYTES,
    HEADER_TAG,
    DecisionIds,
    TraceContext,
    TransactionTrace,
    context_of_first_record,
    decode_contexts,
    encode_contexts,
    tagged_header,
)

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CONTEXT = TraceContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
UNSAMPLED = TraceContext(1, 2, 0)


def test_w3c_traceparents_are_read_and_written() -> None:
    assert TraceContext.parse(PARENT) == CONTEXT
    assert CONTEXT.traceparent.encode() == PARENT
    assert TraceContext.parse(PARENT[:-1] + b"0") == TraceContext(CONTEXT.trace_id, CONTEXT.span_id, 0)
    assert TraceContext.parse(b"cc" + PARENT[2:] + b"-of-a-later-version") == CONTEXT


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"",
        b"00-",
        PARENT + b"-more",
        b"ff" + PARENT[2:],
        PARENT.upper(),
        b"00-" + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + b"-01",
        b"cc" + PARENT[2:] + b"-" + b"x" * 1000,
    ],
)
def test_what_is_no_traceparent_is_none(text: bytes | None) -> None:
    assert TraceContext.parse(text) is None


def test_contexts_of_a_requests_batches_go_there_and_back() -> None:
    contexts = [CONTEXT, None, UNSAMPLED]
    assert decode_contexts(encode_contexts(contexts), 3) == contexts
    assert decode_contexts(encode_contexts(contexts), 2) == [None, None]
    assert decode_contexts(None, 1) == [None]
    assert decode_contexts(b"x" * CONTEXT_BYTES * 20_000, 20_000) == [None] * 20_000


def test_a_request_header_carries_contexts_in_a_tagged_field_and_others_are_stepped_over() -> None:
    assert wire._TRACE_TAG == HEADER_TAG
    start = b"\x00\x00\x00\x0c\x00\x00\x00\x07\x00\x01a"
    value = encode_contexts([CONTEXT])
    header = parse_request_header(start + tagged_header(value) + b"body")
    assert header.trace is not None
    assert bytes(header.trace) == value
    assert header.body == len(start + tagged_header(value))
    assert parse_request_header(start + b"\x00").trace is None
    others = b"\x02\x05\x01x" + tagged_header(value)[1:]
    found = parse_request_header(start + others)
    assert found.trace is not None
    assert bytes(found.trace) == value
    with pytest.raises(WireFormatError):
        parse_request_header(start + tagged_header(value)[:-1])


def test_a_transactions_trace_goes_there_and_back() -> None:
    for trace in (TransactionTrace(CONTEXT), TransactionTrace(UNSAMPLED, 77)):
        assert TransactionTrace.decode(trace.encode()) == trace
    assert TransactionTrace.decode(b"") is None
    assert TransactionTrace.decode(TransactionTrace(CONTEXT).encode() + b"x") is None
    assert TransactionTrace(CONTEXT).parent is None
    assert TransactionTrace(UNSAMPLED, 77).parent == TraceContext(1, 77, 0)


def test_E4_a_decision_is_below_its_caller_else_where_the_transaction_began() -> None:
    known = TransactionTrace(UNSAMPLED)
    assert DecisionIds(8, 9, CONTEXT).below(known) == TransactionTrace(
        TraceContext(CONTEXT.trace_id, 9), CONTEXT.span_id
    )
    assert DecisionIds(8, 9).below(known) == TransactionTrace(TraceContext(1, 9, 0), 2)
    assert DecisionIds(8, 9).below(None) == TransactionTrace(TraceContext(8, 9))


def batch_of(
    *headers: tuple[str, bytes | None], compression: Compression = Compression.NONE, key: bytes = b"k"
) -> bytes:
    builder = BatchBuilder(compression)
    builder.append(1, key, b"value", headers)
    builder.append(2, None, b"value", (("traceparent", PARENT[:-1] + b"0"),))
    return bytes(builder.build(0))


def test_the_first_records_context_is_found_in_what_any_client_wrote() -> None:
    assert context_of_first_record(batch_of(("a", None), ("traceparent", PARENT))) == CONTEXT
    assert context_of_first_record(batch_of(("Traceparent", PARENT))) == CONTEXT
    assert context_of_first_record(batch_of()) is None
    assert context_of_first_record(batch_of(("traceparent", None))) is None
    assert context_of_first_record(batch_of(("traceparent", b"nonsense"))) is None


def test_what_would_cost_too_much_is_not_searched() -> None:
    assert context_of_first_record(batch_of(("traceparent", PARENT), compression=Compression.GZIP)) is None
    assert context_of_first_record(batch_of(("traceparent", PARENT), key=b"x" * 20_000)) is None
    assert context_of_first_record(batch_of(*((str(n), None) for n in range(100)), ("traceparent", PARENT))) is None


def test_bytes_that_are_broken_do_no_harm() -> None:
    whole = batch_of(("a", b"b"), ("traceparent", PARENT))
    seeded = random.Random(7)
    for _ in range(3000):
        broken = bytearray(whole)
        for _ in range(seeded.randrange(1, 4)):
            broken[seeded.randrange(61, len(broken))] = seeded.randrange(256)
        context_of_first_record(broken)
    for end in range(62, len(whole)):
        context_of_first_record(whole[:end])
