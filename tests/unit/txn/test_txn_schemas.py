"""Keys and values of `__transaction_state` against Kafka's schemas, byte by byte."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protocol.api.clients import ClientOrigin
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.corruption import CorruptDataError
from semel.protocol.errors import ErrorCode, FatalError, SemelError, UsageError
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.trace_context import TraceContext, TransactionTrace
from semel.runtime.keys import java_string_hash, partition_for_key
from semel.txn_coordinator.schemas import decode_key, decode_value, encode_key, encode_value
from semel.txn_coordinator.state import DecisionCause, Ending, TransactionMetadata, TransactionState

STORED = [state for state in TransactionState if state.label not in ("Dead", "PrepareEpochFence")]

ONGOING = TransactionMetadata(
    transactional_id="enrich-0",
    producer_id=0x0102030405060708,
    producer_epoch=0x1112,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    last_update_ms=0x2122232425262728,
    partitions=frozenset({TopicPartition("b", 1), TopicPartition("a", 2), TopicPartition("a", 0)}),
    start_ms=0x3132333435363738,
    version=TransactionVersion.V2,
)

# What Kafka's TransactionLogValue.json says, field by field in its order:
# (name, type, versions it is a plain field in, tag from version 1 on, default of the tag).
SCHEMA: list[tuple[str, str, bool, int | None, int | None]] = [
    ("ProducerId", "q", True, None, None),
    ("PreviousProducerId", "q", False, 0, -1),
    ("NextProducerId", "q", False, 1, -1),
    ("ProducerEpoch", "h", True, None, None),
    ("TransactionTimeoutMs", "i", True, None, None),
    ("TransactionStatus", "b", True, None, None),
    ("TransactionPartitions", "[]PartitionsSchema", True, None, None),
    ("TransactionLastUpdateTimestampMs", "q", True, None, None),
    ("TransactionStartTimestampMs", "q", True, None, None),
    ("ClientTransactionVersion", "h", False, 2, 0),
]


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def by_kafkas_schema(fields: dict[str, Any], version: int) -> bytes:
    """Write the struct as Kafka's generator would, from the table above: another way than the code under test takes."""
    out = struct.pack(">h", version)
    tags: dict[int, bytes] = {}
    for name, kind, plain, tag, default in SCHEMA:
        value = fields[name]
        if plain and kind == "[]PartitionsSchema":
            out += partitions_by_schema(value, version)
        elif plain:
            out += struct.pack(">" + kind, value)
        elif version >= 1 and value != default:
            assert tag is not None
            tags[tag] = struct.pack(">" + kind, value)
    if version >= 1:
        out += varint(len(tags)) + b"".join(varint(tag) + varint(len(data)) + data for tag, data in tags.items())
    return out


def partitions_by_schema(topics: list[tuple[str, list[int]]] | None, version: int) -> bytes:
    if topics is None:
        return struct.pack(">i", -1) if version == 0 else b"\x00"
    out = struct.pack(">i", len(topics)) if version == 0 else varint(len(topics) + 1)
    for name, partitions in topics:
        text = name.encode()
        if version == 0:
            out += struct.pack(">h", len(text)) + text + struct.pack(">i", len(partitions))
        else:
            out += varint(len(text) + 1) + text + varint(len(partitions) + 1)
        out += b"".join(struct.pack(">i", partition) for partition in partitions)
        out += b"" if version == 0 else b"\x00"
    return out


def kafka_fields(txn: TransactionMetadata) -> dict[str, Any]:
    topics = sorted({tp.topic for tp in txn.partitions})
    return {
        "ProducerId": txn.producer_id,
        "PreviousProducerId": txn.previous_producer_id,
        "NextProducerId": txn.next_producer_id,
        "ProducerEpoch": txn.producer_epoch,
        "TransactionTimeoutMs": txn.timeout_ms,
        "TransactionStatus": int(txn.state),
        "TransactionPartitions": None
        if txn.state is TransactionState.EMPTY
        else [(topic, sorted(tp.partition for tp in txn.partitions if tp.topic == topic)) for topic in topics],
        "TransactionLastUpdateTimestampMs": txn.last_update_ms,
        "TransactionStartTimestampMs": txn.start_ms,
        "ClientTransactionVersion": int(txn.version),
    }


def transactions(*, last_epochs: st.SearchStrategy[int]) -> st.SearchStrategy[TransactionMetadata]:
    int64 = st.integers(-1, 2**63 - 1)
    names = st.text(min_size=1, max_size=40)
    partitions = st.frozensets(st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), max_size=8)

    def build(state: TransactionState, partitions: frozenset[TopicPartition], **fields: Any) -> TransactionMetadata:
        kept = frozenset() if state is TransactionState.EMPTY else partitions
        return TransactionMetadata(transactional_id="t", state=state, partitions=kept, **fields)

    return st.builds(
        build,
        state=st.sampled_from(STORED),
        partitions=partitions,
        producer_id=st.integers(0, 2**63 - 1),
        producer_epoch=st.integers(-1, 2**15 - 1),
        timeout_ms=st.integers(1, 2**31 - 1),
        last_update_ms=int64,
        start_ms=int64,
        version=st.sampled_from(TransactionVersion),
        previous_producer_id=int64,
        next_producer_id=int64,
        last_producer_epoch=last_epochs,
    )


def test_key_golden() -> None:
    key = bytes.fromhex("00000008656e726963682d30")
    assert encode_key("enrich-0") == key
    assert decode_key(key) == "enrich-0"


def test_key_of_another_kind_is_none_and_a_torn_one_is_an_error() -> None:
    assert decode_key(bytes.fromhex("0001000161")) is None
    for torn in (b"", b"\x00", b"\x00\x00\x00\x05abc", b"\x00\x00\x00\x01ab", b"\x00\x00\xff\xff"):
        with pytest.raises(CorruptDataError):
            decode_key(torn)
    with pytest.raises(UsageError):
        encode_key("x" * 2**15)


def test_value_version_0_golden() -> None:
    golden = bytes.fromhex(
        "0000"
        "0102030405060708"  # ProducerId
        "1112"  # ProducerEpoch
        "0000ea60"  # TransactionTimeoutMs
        "01"  # TransactionStatus: Ongoing
        "00000002"
        "0001" "61" "00000002" "00000000" "00000002"
        "0001" "62" "00000001" "00000001"
        "2122232425262728"  # TransactionLastUpdateTimestampMs
        "3132333435363738"  # TransactionStartTimestampMs
    )  # fmt: skip
    assert encode_value(ONGOING, version=0) == golden
    decoded = decode_value("enrich-0", golden)
    assert decoded.partitions == ONGOING.partitions
    assert decoded.version is TransactionVersion.V0, "version 0 has no room for it"


def test_value_version_1_golden() -> None:
    golden = bytes.fromhex(
        "0001"
        "0102030405060708"
        "1112"
        "0000ea60"
        "01"
        "03"
        "02" "61" "03" "00000000" "00000002" "00"
        "02" "62" "02" "00000001" "00"
        "2122232425262728"
        "3132333435363738"
        "01" "02" "02" "0002"  # one tagged field: ClientTransactionVersion
    )  # fmt: skip
    assert encode_value(ONGOING) == golden
    assert decode_value("enrich-0", golden) == ONGOING


def test_R8_a_topics_id_is_a_tagged_field_that_older_readers_step_over() -> None:
    topic_id = TopicId(UUID(bytes=bytes(range(16))))
    txn = ONGOING._replace(topic_ids={"a": topic_id})
    golden = bytes.fromhex(
        "0001"
        "0102030405060708"
        "1112"
        "0000ea60"
        "01"
        "03"
        "02" "61" "03" "00000000" "00000002" "01" "904e" "10" "000102030405060708090a0b0c0d0e0f"
        "02" "62" "02" "00000001" "00"
        "2122232425262728"
        "3132333435363738"
        "01" "02" "02" "0002"
    )  # fmt: skip
    assert encode_value(txn) == golden
    assert decode_value("enrich-0", golden) == txn
    assert decode_value("enrich-0", encode_value(ONGOING)).topic_ids == {}, "what is on disks has none"
    assert encode_value(txn, version=0) == encode_value(ONGOING, version=0)
    with pytest.raises(FatalError, match="has 15 bytes"):
        decode_value("enrich-0", golden.replace(b"\x10\x00\x01", b"\x0f\x01"))


def test_value_of_an_empty_state_has_null_partitions() -> None:
    txn = TransactionMetadata("t", 1, 0, 1000, TransactionState.EMPTY, 7)
    assert encode_value(txn, version=0)[17:21] == b"\xff\xff\xff\xff"
    golden = "000100000000000000010000000003e800000000000000000007ffffffffffffffff00"
    assert encode_value(txn) == bytes.fromhex(golden)
    assert decode_value("t", encode_value(txn)) == txn


def test_value_with_all_tagged_fields_golden() -> None:
    txn = TransactionMetadata(
        "t", 1, 0x7FFF, 1000, TransactionState.PREPARE_ABORT, 7, start_ms=6, version=TransactionVersion.V1,
        previous_producer_id=3, next_producer_id=4, last_producer_epoch=0x7FFE,
    )  # fmt: skip
    tags = "04000800000000000000030108000000000000000402020001904e027ffe"
    assert encode_value(txn).endswith(bytes.fromhex(tags))
    assert decode_value("t", encode_value(txn)) == txn


ELDER = ClientOrigin("enricher", "10.0.0.7")


@pytest.mark.parametrize(
    ("client", "ending"),
    [
        (ELDER, None),
        (ClientOrigin("", ""), Ending(DecisionCause.TIMEOUT)),
        (None, Ending(DecisionCause.OPERATOR, ELDER)),
        (ELDER, Ending(DecisionCause.FENCE, ClientOrigin("\N{GREEK SMALL LETTER ALPHA}", "::1"))),
    ],
)
def test_values_keep_who_holds_a_transaction_and_why_it_ended(
    client: ClientOrigin | None, ending: Ending | None
) -> None:
    txn = ONGOING._replace(client=client, ending=ending)
    assert decode_value("enrich-0", encode_value(txn)) == txn


def test_what_is_only_told_keeps_no_log_from_being_read() -> None:
    """A later version may write more, or other causes."""
    whole = encode_value(ONGOING._replace(client=ELDER, ending=Ending(DecisionCause.FENCE)))
    assert decode_value("enrich-0", whole.replace(b"\x06fence", b"\x06fancy")).ending is None
    torn = whole.replace(b"\x06fence", b"\x09fence").replace(b"\x0910.0.0.7", b"\x5910.0.0.7")
    assert decode_value("enrich-0", torn) == ONGOING
    assert ClientOrigin.decode(ELDER.encode() + b"more") == ELDER


def test_a_clients_names_are_bounded() -> None:
    made = ClientOrigin.of("\N{SNOWMAN}" * 1_000, "/10.0.0.7")
    assert (len(made.client_id.encode()), made.host) == (255, "10.0.0.7")
    assert str(ClientOrigin.of(None, "")) == "a client at an unknown address"
    assert ClientOrigin.of("\ud800", "h").client_id == "?"


@pytest.mark.parametrize("parent_span_id", [0, 77])
def test_E4_values_keep_where_a_transaction_belongs_in_traces(parent_span_id: int) -> None:
    trace = TransactionTrace(TraceContext(2**127 + 1, 2**63 + 1), parent_span_id)
    traced = ONGOING._replace(trace=trace)
    tag = bytes.fromhex("924e21") + trace.encode()  # 10,002, of 33 bytes
    assert encode_value(traced) == encode_value(ONGOING).replace(b"\x01\x02\x02\x00\x02", b"\x02\x02\x02\x00\x02") + tag
    assert decode_value("enrich-0", encode_value(traced)) == traced
    assert decode_value("enrich-0", encode_value(ONGOING)[:-5] + b"\x01\x92\x4e\x01x").trace is None


@given(transactions(last_epochs=st.just(-1)), st.sampled_from([0, 1]))
def test_values_are_what_kafkas_schema_says(txn: TransactionMetadata, version: int) -> None:
    assert encode_value(txn, version) == by_kafkas_schema(kafka_fields(txn), version)


@given(transactions(last_epochs=st.integers(-1, 2**15 - 1)))
def test_values_come_back_as_they_were(txn: TransactionMetadata) -> None:
    assert decode_value("t", encode_value(txn)) == txn


@given(transactions(last_epochs=st.just(5)), st.data())
def test_hostile_values_give_an_error_and_nothing_else(txn: TransactionMetadata, data: st.DataObject) -> None:
    value = bytearray(encode_value(txn))
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    torn = bytes(value[: data.draw(st.integers(0, len(value)))])
    for hostile in (bytes(value), torn):
        with suppress(SemelError):
            decode_value("t", hostile)


def test_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(FatalError, match="version 2") as caught:
        decode_value("enrich-0", b"\x00\x02" + bytes(60))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_state_or_tag_that_makes_no_sense_is_refused() -> None:
    value = bytearray(encode_value(ONGOING))
    value[16] = 9
    with pytest.raises(FatalError, match="9 is no state"):
        decode_value("t", value)
    with pytest.raises(FatalError, match="instead of 2"):
        decode_value("t", encode_value(ONGOING)[:-5] + b"\x01\x02\x01\x02")


def test_T1_the_fence_is_never_stored() -> None:
    for state in (TransactionState.PREPARE_EPOCH_FENCE, TransactionState.DEAD):
        with pytest.raises(AssertionError, match="never stored"):
            encode_value(ONGOING._replace(state=state))


def test_tagged_fields_of_others_do_no_harm() -> None:
    txn = TransactionMetadata("enrich-0", 5, 4, 60_000, TransactionState.EMPTY, 0, version=TransactionVersion.V2)
    value = encode_value(txn)
    assert value.endswith(b"\x01\x02\x02\x00\x02"), "one tagged field: the client's version"
    extended = value[:-5] + b"\x03\x02\x02\x00\x02\x04\x02\x00\x09" + b"\xa0\x9c\x01\x04abcd"
    assert decode_value("enrich-0", extended) == txn


def test_a_client_version_of_the_future_bumps_epochs() -> None:
    value = encode_value(ONGOING)[:-2] + b"\x00\x09"
    assert decode_value("t", value).version is TransactionVersion.V2


@pytest.mark.parametrize(
    ("key", "code"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(2**31)), ("\N{GRINNING FACE}", 1772899)],
)
def test_hash_of_a_key_is_javas(key: str, code: int) -> None:
    assert java_string_hash(key) == code


def test_partition_of_a_key() -> None:
    assert partition_for_key("polygenelubricants", 50) == 0, "the one number whose absolute value Java can't hold"
    assert partition_for_key("hello", 50) == 99162322 % 50
    with pytest.raises(ValueError, match="at least one"):
        partition_for_key("a", 0)


@given(st.text(), st.integers(1, 1000))
def test_every_key_has_a_partition(key: str, count: int) -> None:
    assert 0 <= partition_for_key(key, count) < count
