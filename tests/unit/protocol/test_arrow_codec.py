"""Record batches from and to Arrow columns. Everything runs compiled and interpreted."""

from __future__ import annotations

import datetime
import itertools
from typing import Any

import pyarrow as pa
import pytest
from codec_twins import codec as codec_twin

from semel.protocol.compression import Compression
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import UsageError

NOW = 1_700_000_000_123
ROWS: list[tuple[int, bytes | None, bytes | None, Any]] = [
    (
        NOW + n * (-1) ** n,
        None if n % 5 == 0 else b"key %d" % n,
        None if n % 7 == 3 else b"v" * (n % 130),
        () if n % 3 else (("trace", b"%d" % n), ("none", None)),
    )
    for n in range(500)
]


@pytest.fixture(params=["built", "interpreted"])
def codec(request: pytest.FixtureRequest) -> Any:
    return codec_twin(request.param)


@pytest.mark.parametrize("compression", list(Compression))
def test_columns_hold_what_the_records_hold(codec: Any, compression: Compression) -> None:
    batches = [
        codec.encode_batch(ROWS[:200], base_offset=1000, compression=compression),
        codec.encode_control_batch(
            codec.ControlType.COMMIT,
            producer_id=1,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=1,
            base_offset=1200,
        ),
        codec.encode_batch(ROWS[200:], base_offset=1201, compression=compression),
    ]
    for buffers in (batches, [b"".join(batches)], [b"".join(batches) + batches[2][:-1]]):
        table = codec.decode_to_arrow(buffers, topic="orders", partition=3, columns=codec.ALL_COLUMNS)
        table.validate(full=True)
        assert table.schema == codec.arrow_schema(codec.ALL_COLUMNS)
        assert table["key"].to_pylist() == [row[1] for row in ROWS]
        assert table["value"].to_pylist() == [row[2] for row in ROWS]
        assert table["offset"].to_pylist() == [*range(1000, 1200), *range(1201, 1501)]
        assert table["timestamp"].cast(pa.int64()).to_pylist() == [row[0] * 1000 for row in ROWS]
        assert set(table["topic"].to_pylist()) == {"orders"}
        assert set(table["partition"].to_pylist()) == {3}
        assert set(table["timestampType"].to_pylist()) == {0}
        headers = [
            None if row is None else tuple((h["key"], h["value"]) for h in row) for row in table["headers"].to_pylist()
        ]
        assert headers == [row[3] or None for row in ROWS]


def test_the_schema_is_that_of_sparks_kafka_source(codec: Any) -> None:
    assert str(codec.arrow_schema()).splitlines() == [
        "key: binary",
        "value: binary",
        "topic: string",
        "partition: int32",
        "offset: int64",
        "timestamp: timestamp[us, tz=UTC]",
        "timestampType: int32",
    ]


def test_columns_and_rows_are_chosen(codec: Any) -> None:
    batch = codec.encode_batch(ROWS, base_offset=10)
    table = codec.decode_to_arrow([batch], columns=["offset", "value"], first_offset=12, end_offset=15)
    assert table.schema.names == ["offset", "value"]
    assert table["offset"].to_pylist() == [12, 13, 14]
    assert table["value"].to_pylist() == [row[2] for row in ROWS[2:5]]
    assert codec.decode_to_arrow([batch], first_offset=510).num_rows == 0
    assert codec.decode_to_arrow([batch], end_offset=10).num_rows == 0
    assert codec.decode_to_arrow([]).num_rows == 0
    with pytest.raises(UsageError, match="no column 'values'; the columns are key, value"):
        codec.decode_to_arrow([batch], columns=["values"])


def test_append_time_is_in_the_columns(codec: Any) -> None:
    batch = bytearray(codec.encode_batch(ROWS[:3]))
    codec.set_append_time(batch, 0, NOW + 7)
    table = codec.decode_to_arrow([batch])
    assert set(table["timestampType"].to_pylist()) == {1}
    expected = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=NOW + 7)
    assert set(table["timestamp"].to_pylist()) == {expected}


def test_rows_without_nulls_have_no_bitmap(codec: Any) -> None:
    table = codec.decode_to_arrow([codec.encode_batch([(NOW, b"k", b"v", ())] * 9)])
    assert table["key"].null_count == table["value"].null_count == 0
    assert table["key"].buffers()[0] is None


def test_all_batches_together_are_bounded(codec: Any) -> None:
    one = codec.encode_batch([(NOW, None, bytes(100_000), ())], compression=Compression.ZSTD)
    assert codec.decode_to_arrow([one] * 3, max_uncompressed_bytes=301_000).num_rows == 3
    with pytest.raises(CorruptBatchError, match=r"uncompressed bytes|allowed here"):
        codec.decode_to_arrow([one] * 3, max_uncompressed_bytes=250_000)


def test_header_names_that_are_not_utf8_become_replacement_characters(codec: Any) -> None:
    batch = codec.encode_batch([(NOW, None, b"v", (("\udcff", b"x"),))])
    (headers,) = codec.decode_to_arrow([batch], columns=["headers"])["headers"].to_pylist()
    assert headers == [{"key": "\ufffd", "value": b"x"}]


def test_corrupt_bytes_are_noticed(codec: Any) -> None:
    batch = bytearray(codec.encode_batch(ROWS))
    batch[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC"):
        codec.decode_to_arrow([batch])


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("start", [0, 1, 7, 64])
def test_columns_become_the_same_records(codec: Any, compression: Compression, start: int) -> None:
    table = codec.decode_to_arrow([codec.encode_batch(ROWS)], columns=codec.ALL_COLUMNS)
    batch = codec.encode_from_arrow(
        table.slice(start),
        compression=compression,
        base_offset=5,
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
        transactional=True,
        leader_epoch=4,
    )
    (header,) = codec.validate_batches(batch, max_batch_bytes=10**9)
    assert (header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 2, 3)
    assert header.is_transactional
    assert bytes(batch) == codec.encode_batch(
        ROWS[start:],
        compression=compression,
        base_offset=5,
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
        transactional=True,
        leader_epoch=4,
    )


def records(codec: Any, table: pa.RecordBatch, **options: Any) -> list[Any]:
    return [
        (record.timestamp_ms, record.key, record.value, record.headers)
        for record in codec.decode_records(codec.encode_from_arrow(table, **options))
    ]


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
)
def test_text_and_large_columns_are_taken_too(codec: Any, kind: pa.DataType) -> None:
    values = (
        pa.array(["a", None, "", "ключ", "a"]).cast(kind)
        if kind != pa.binary()
        else pa.array([b"a", None, b"", "ключ".encode(), b"a"])
    )
    table = pa.RecordBatch.from_arrays([values], ["value"])
    expected = [b"a", None, b"", "ключ".encode(), b"a"]
    assert records(codec, table) == [(-1, None, value, ()) for value in expected]
    assert records(codec, table.slice(1, 2), default_timestamp_ms=7) == [(7, None, v, ()) for v in expected[1:3]]


@pytest.mark.parametrize(
    "stamps",
    [
        pa.array([NOW, NOW + 1, None]),
        pa.array([NOW, NOW + 1, None], pa.timestamp("ms")),
        pa.array([NOW * 1000 + 999, (NOW + 1) * 1000, None], pa.timestamp("us", tz="UTC")),
        pa.array([NOW * 10**6, (NOW + 1) * 10**6 + 5, None], pa.timestamp("ns", tz="UTC")),
    ],
)
def test_timestamps_of_any_unit(codec: Any, stamps: pa.Array) -> None:
    table = pa.RecordBatch.from_arrays([pa.array([b"x", b"y", b"z"]), stamps], ["value", "when"])
    assert [row[0] for row in records(codec, table, timestamp="when")] == [NOW, NOW + 1, -1]
    assert [row[0] for row in records(codec, table.slice(1), timestamp="when")] == [NOW + 1, -1]


def test_seconds(codec: Any) -> None:
    table = pa.RecordBatch.from_arrays(
        [pa.array([b"x"]), pa.array([NOW // 1000], pa.timestamp("s"))], ["value", "timestamp"]
    )
    assert records(codec, table)[0][0] == NOW // 1000 * 1000


def test_columns_that_cannot_be_written(codec: Any) -> None:
    good = pa.array([b"x"])
    for arrays, names, message in (
        ([good], ["payload"], "no column 'value'; the columns are payload"),
        ([pa.array([[1]])], ["value"], "not bytes or text"),
        ([good, pa.array(["soon"])], ["value", "timestamp"], "not a timestamp"),
        ([good, pa.array([-2])], ["value", "timestamp"], "-2 is not a timestamp"),
        ([good, pa.array(["x"])], ["value", "headers"], "not a list of structs"),
        ([good, pa.array([[{"key": "x"}]])], ["value", "headers"], "not a list of structs of key and value"),
    ):
        with pytest.raises(UsageError, match=message):
            codec.encode_from_arrow(pa.RecordBatch.from_arrays(arrays, names))
    with pytest.raises(UsageError, match="no rows"):
        codec.encode_from_arrow(pa.RecordBatch.from_arrays([good], ["value"]).slice(1))


def test_a_large_batch_is_split_with_offsets_and_sequences_that_continue(codec: Any) -> None:
    table = codec.decode_to_arrow([codec.encode_batch(ROWS)], columns=codec.ALL_COLUMNS)
    batches = list(
        codec.encode_batches_from_arrow(
            table, max_batch_bytes=2000, base_offset=100, producer_id=1, producer_epoch=0, base_sequence=2**31 - 100
        )
    )
    headers = [codec.read_header(batch) for batch in batches]
    assert len(headers) > 5
    assert all(len(batch) < 2000 + 250 for batch in batches)
    assert headers[0].base_offset == 100
    for before, after in itertools.pairwise(headers):
        assert after.base_offset == before.next_offset
        assert after.base_sequence == (before.last_sequence + 1) % 2**31
    read = [record for batch in batches for record in codec.decode_records(batch)]
    assert [(r.timestamp_ms, r.key, r.value, r.headers) for r in read] == ROWS
    assert list(codec.encode_batches_from_arrow(table.slice(0, 0), max_batch_bytes=10)) == []


@pytest.mark.parametrize("max_batch_bytes", [1, 700, 2000, 1 << 30])
def test_the_chunks_of_a_table_make_the_batches_that_the_whole_makes(codec: Any, max_batch_bytes: int) -> None:
    whole = codec.decode_to_arrow([codec.encode_batch(ROWS)], columns=codec.ALL_COLUMNS)
    edges = [0, 0, 1, 7, 7, 30, whole.num_rows]
    table = pa.Table.from_batches([whole.slice(first, last - first) for first, last in itertools.pairwise(edges)])
    options = {"max_batch_bytes": max_batch_bytes, "producer_id": 1, "producer_epoch": 0, "base_sequence": 5}
    expected = list(codec.encode_batches_from_arrow(whole, **options))
    assert list(codec.encode_batches_from_arrow(table, **options)) == expected
    assert sum(codec.read_header(batch).record_count for batch in expected) == whole.num_rows == len(ROWS)
    assert (len(expected) == 1) == (max_batch_bytes == 1 << 30)


def test_arrow_offsets_that_lie_are_refused(codec: Any) -> None:
    data, offsets = b"abcdef", memoryview(bytearray(16)).cast("i")

    def build(offsets: memoryview) -> None:
        column = codec.BinaryColumn(offsets, data, None, 0, 3)
        codec.BatchBuilder().append_columns(column, column, None, NOW, None, 0, 3, 10_000, codec.encoded_headers(()))

    for lie in ([0, 3, 7, 6], [0, 4, 3, 6], [0, -1, 3, 6], [0, 2, 4, 9]):
        offsets[:] = memoryview(bytearray(16)).cast("i")
        for index, value in enumerate(lie):
            offsets[index] = value
        with pytest.raises(UsageError, match="offsets"):
            build(offsets)
    with pytest.raises(UsageError, match="bytes of offsets"):
        codec.BinaryColumn(offsets, data, None, 2, 3)
    with pytest.raises(UsageError, match="bytes of validity"):
        codec.BinaryColumn(memoryview(bytearray(80)).cast("i"), data, b"\xff", 0, 9)


def test_a_column_decoder_checks_its_buffers(codec: Any) -> None:
    with pytest.raises(UsageError, match="too small for 2 rows"):
        codec.ColumnDecoder([bytearray(16)] * 6 + [bytearray(0)], 2, 0, 1, False)
    decoder = codec.ColumnDecoder([bytearray(96)] * 7, 2, 0, 100, False)
    batch = codec.encode_batch(ROWS[:3])
    with pytest.raises(UsageError, match="3 rows are more than the 2"):
        decoder.add(codec.read_header(batch), batch, 61, len(batch))
    batch = codec.encode_batch(ROWS[1:3])
    decoder.add(codec.read_header(batch), batch, 61, len(batch))
    with pytest.raises(UsageError, match="too small"):
        decoder.fill(bytearray(1), bytearray(1))


TRACE = (("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("tracestate", b"a=b"))


@pytest.mark.parametrize("wrong", [None, {"key": None, "value": b"1"}])
def test_a_header_that_is_null_or_has_no_name_is_refused_and_a_null_value_is_taken(codec: Any, wrong: Any) -> None:
    kind = codec.arrow_schema(["headers"]).field("headers").type
    values = pa.array([b"x", b"y", b"z"])
    good = {"key": "a", "value": None}
    table = pa.RecordBatch.from_arrays([values, pa.array([None, [good, wrong], [good]], kind)], ["value", "headers"])
    with pytest.raises(UsageError, match="'headers' has 1 headers that are null or have a null key: give each a name"):
        codec.encode_from_arrow(table)
    assert [row[3] for row in records(codec, table.slice(2))] == [(("a", None),)]
    assert [row[3] for row in records(codec, table.slice(0, 1))] == [()]


def test_rows_get_default_headers_unless_they_have_one_of_their_names(codec: Any) -> None:
    own = {"key": "traceparent", "value": b"00-1-2-00"}
    other = {"key": "mine", "value": b"1"}
    rows = [None, [], [other], [own], [other, {"key": "tracestate", "value": None}]]
    kind = codec.arrow_schema(["headers"]).field("headers").type
    values = pa.array([b"v"] * len(rows))
    table = pa.RecordBatch.from_arrays([values, pa.array(rows, kind)], ["value", "headers"])
    assert [row[3] for row in records(codec, table, default_headers=TRACE)] == [
        TRACE,
        TRACE,
        (("mine", b"1"), *TRACE),
        (("traceparent", b"00-1-2-00"),),
        (("mine", b"1"), ("tracestate", None)),
    ]
    for without in (table.select(["value"]), table.slice(0, 1)):
        assert {row[3] for row in records(codec, without, default_headers=TRACE)} == {TRACE}
        assert {row[3] for row in records(codec, without)} == {()}
    limit = codec.encode_from_arrow(table.select(["value"]).slice(0, 2), default_headers=TRACE)
    parts = list(
        codec.encode_batches_from_arrow(table.select(["value"]), max_batch_bytes=len(limit), default_headers=TRACE)
    )
    assert [codec.read_header(part).record_count for part in parts] == [2, 2, 1]
