"""Record batches: headers, checks, patches, building, decoding. Everything runs compiled and interpreted."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import pytest
from codec_twins import codec as codec_twin

from semel.protocol.compression import Compression, compress
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import ErrorCode, RetriableError, SemelError, UsageError

NOW = 1_700_000_000_000
LIMIT = 10_000_000


@pytest.fixture(params=["built", "interpreted"])
def codec(request: pytest.FixtureRequest) -> Any:
    return codec_twin(request.param)


RECORDS: list[tuple[int, bytes | None, bytes | None, Any]] = [
    (NOW, b"key", b"value", ()),
    (NOW + 5, None, b"value", (("trace", b"1-2"), ("empty", b""), ("none", None), ("trace", b"again"))),
    (NOW - 9, b"", b"", ()),
    (NOW + 1, b"deleted", None, (("ключ", b"\x00\xff"),)),
    (NOW + 2, None, None, ()),
    (NOW + 100_000, b"k" * 64, b"v" * 9000, ()),
]


def expected(codec: Any, base_offset: int = 0) -> list[Any]:
    return [codec.Record(base_offset + index, *record) for index, record in enumerate(RECORDS)]


def with_crc(batch: bytes | bytearray) -> bytearray:
    patched = bytearray(batch)
    struct.pack_into(">I", patched, 17, crc32c(patched, 21))
    return patched


def patched(batch: bytes, position: int, kind: str, value: int) -> bytearray:
    data = bytearray(batch)
    struct.pack_into(kind, data, position, value)
    return with_crc(data)


def raw_batch(records: bytes, count: int, attributes: int = 0, last_delta: int | None = None) -> bytes:
    delta = count - 1 if last_delta is None else last_delta
    head = struct.pack(">qiibIhiqqqhii", 0, 49 + len(records), -1, 2, 0, attributes, delta, NOW, NOW, -1, -1, -1, count)
    return bytes(with_crc(head + records))


@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch_reads_back_as_it_was_written(codec: Any, compression: Compression) -> None:
    builder = codec.BatchBuilder(compression)
    assert [builder.append(*record) for record in RECORDS] == list(range(len(RECORDS)))
    assert builder.record_count == len(RECORDS)
    batch = builder.build(
        base_offset=77, producer_id=9, producer_epoch=3, base_sequence=2**31 - 2, transactional=True, leader_epoch=4
    )
    (header,) = codec.validate_batches(batch, max_batch_bytes=LIMIT)
    assert (header.base_offset, header.last_offset, header.next_offset) == (77, 82, 83)
    assert header.size_bytes == len(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, 2**31 - 2)
    assert header.last_sequence == 3
    assert (header.leader_epoch, header.magic, header.record_count) == (4, 2, 6)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (NOW, NOW + 100_000)
    assert header.compression is compression
    assert header.timestamp_type == codec.TimestampType.CREATE_TIME
    assert header.is_transactional
    assert not header.is_control
    assert not header.has_delete_horizon
    assert codec.decode_records(batch) == expected(codec, 77)
    assert codec.decode_values(memoryview(batch)) == [record[2] for record in RECORDS]


def test_twins_write_the_same_bytes() -> None:
    batches = [codec_twin(kind).encode_batch(RECORDS, base_offset=5) for kind in ("built", "interpreted")]
    assert batches[0] == batches[1]


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))])
def test_any_buffer_can_be_read_at_any_position(codec: Any, wrap: Any) -> None:
    one, two = codec.encode_batch(RECORDS), codec.encode_batch(RECORDS[:2], base_offset=6)
    buffer = wrap(one + two)
    assert [header.position for header in codec.validate_batches(buffer, max_batch_bytes=LIMIT)] == [0, len(one)]
    assert codec.decode_records(buffer, len(one)) == expected(codec, 6)[:2]
    shifted = memoryview(b"\x00\x00" + one)[2:]
    assert codec.decode_records(shifted) == expected(codec)


def test_a_cut_tail_ends_the_iteration_quietly_and_fails_validation(codec: Any) -> None:
    one = codec.encode_batch(RECORDS)
    for cut in (1, 60, 61, len(one) - 1):
        assert [header.base_offset for header in codec.iter_batches(one + one[:cut])] == [0]
        with pytest.raises(CorruptBatchError, match="left"):
            codec.validate_batches(one + one[:cut], max_batch_bytes=LIMIT)


def test_empty_and_tiny_buffers_are_corrupt(codec: Any) -> None:
    for buffer in (b"", b"\x00" * 60):
        with pytest.raises(CorruptBatchError):
            codec.read_header(buffer)
        with pytest.raises(CorruptBatchError):
            codec.validate_batches(buffer, max_batch_bytes=LIMIT)
        with pytest.raises(CorruptBatchError):
            codec.decode_records(buffer)
        assert list(codec.iter_batches(buffer)) == []
    for position in (-1, 1, 10_000):
        with pytest.raises(CorruptBatchError, match="needs 61 bytes"):
            codec.read_header(codec.encode_batch([(NOW, None, None, ())])[:61], position)


def test_the_error_is_a_retriable_one_with_kafkas_code(codec: Any) -> None:
    with pytest.raises(RetriableError) as caught:
        codec.read_header(b"")
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is CorruptBatchError
    assert again.message == caught.value.message


@pytest.mark.parametrize(
    ("position", "kind", "value", "message"),
    [
        (8, ">i", 48, "impossible size"),
        (8, ">i", -1, "impossible size"),
        (8, ">i", 2**31 - 1, "impossible size"),
        (16, ">b", 1, "format version 1"),
        (16, ">b", -1, "format version -1"),
        (57, ">i", -1, "record count -1"),
        (23, ">i", -1, "last offset delta -1"),
        (23, ">i", 6, "6 records for 7 offsets"),
        (57, ">i", 7, "7 records for 6 offsets"),
        (21, ">h", 5, "unknown compression 5"),
        (0, ">q", 2**63 - 1, "base offset"),
    ],
)
def test_headers_that_lie_are_refused(codec: Any, position: int, kind: str, value: int, message: str) -> None:
    batch = patched(codec.encode_batch(RECORDS), position, kind, value)
    with pytest.raises(CorruptBatchError, match=message):
        codec.validate_batches(batch, max_batch_bytes=LIMIT)


def test_every_flipped_bit_after_the_checksum_is_noticed(codec: Any) -> None:
    batch = bytearray(codec.encode_batch(RECORDS[:4]))
    for position in range(17, len(batch)):
        batch[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptBatchError):
            codec.validate_batches(batch, max_batch_bytes=LIMIT)
        with pytest.raises(CorruptBatchError):
            codec.decode_records(batch)
        batch[position] ^= 1 << (position % 8)
    codec.validate_batches(batch, max_batch_bytes=LIMIT)


def test_a_batch_over_the_limit_says_which_setting(codec: Any) -> None:
    batch = codec.encode_batch(RECORDS)
    codec.validate_batches(batch, max_batch_bytes=len(batch))
    with pytest.raises(SemelError, match=r"max\.message\.bytes") as caught:
        codec.validate_batches(batch, max_batch_bytes=len(batch) - 1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_offsets_without_records_are_allowed_where_compaction_made_them(codec: Any) -> None:
    batch = patched(codec.encode_batch(RECORDS), 23, ">i", 99)
    (header,) = codec.validate_batches(batch, max_batch_bytes=LIMIT, strict_count=False)
    assert header.last_offset == 99
    too_many = patched(codec.encode_batch(RECORDS), 23, ">i", 3)
    with pytest.raises(CorruptBatchError, match="more than its 4 offsets"):
        codec.validate_batches(too_many, max_batch_bytes=LIMIT, strict_count=False)


def test_offset_and_epoch_are_patched_without_a_new_checksum(codec: Any) -> None:
    one = codec.encode_batch(RECORDS)
    buffer = bytearray(one + one)
    codec.set_base_offset(buffer, len(one), 2**40, 17)
    first, second = codec.validate_batches(buffer, max_batch_bytes=LIMIT)
    assert (first.base_offset, first.leader_epoch) == (0, -1)
    assert (second.base_offset, second.leader_epoch, second.crc) == (2**40, 17, first.crc)
    assert codec.decode_records(buffer, len(one))[3].offset == 2**40 + 3


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_append_time_replaces_every_timestamp(codec: Any, compression: Compression) -> None:
    buffer = memoryview(bytearray(codec.encode_batch(RECORDS, compression=compression)))
    codec.set_append_time(buffer, 0, 123_456)
    (header,) = codec.validate_batches(buffer, max_batch_bytes=LIMIT)
    assert header.timestamp_type == codec.TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp_ms == 123_456
    assert {record.timestamp_ms for record in codec.decode_records(buffer)} == {123_456}


def test_a_bumped_epoch_renumbers_a_batch_in_place(codec: Any) -> None:
    buffer = bytearray(codec.encode_batch(RECORDS, producer_id=4, producer_epoch=0, base_sequence=70))
    codec.set_producer(buffer, 0, producer_id=4, producer_epoch=1, base_sequence=0)
    (header,) = codec.validate_batches(buffer, max_batch_bytes=LIMIT)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 1, 0)
    with pytest.raises(CorruptBatchError, match="left"):
        codec.set_producer(buffer[:-1], 0, producer_id=4, producer_epoch=1, base_sequence=0)


def test_the_last_sequence_wraps(codec: Any) -> None:
    """P2: 0 follows 2^31-1, within a batch too."""

    def last(base: int, count: int) -> int:
        batch = codec.encode_batch([(NOW, None, None, ())] * count, base_sequence=base)
        return int(codec.read_header(batch).last_sequence)

    assert last(-1, 3) == -1
    assert last(0, 1) == 0
    assert last(2**31 - 1, 1) == 2**31 - 1
    assert last(2**31 - 1, 2) == 0


@pytest.mark.parametrize("marker", [0, 1])
def test_markers_read_back(codec: Any, marker: int) -> None:
    batch = codec.encode_control_batch(
        codec.ControlType(marker), producer_id=5, producer_epoch=6, coordinator_epoch=7, timestamp_ms=NOW, base_offset=8
    )
    (header,) = codec.validate_batches(batch, max_batch_bytes=LIMIT)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.base_offset) == (5, 6, -1, 8)
    (record,) = codec.decode_records(batch)
    assert codec.decode_control(record) == (marker, 7)
    # The layout of Kafka's ControlRecordType and EndTransactionMarker.
    assert (record.key, record.value) == (bytes([0, 0, 0, marker]), b"\x00\x00\x00\x00\x00\x07")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\x00" * 6),
        (b"\x00\x00\x00", b"\x00" * 6),
        (b"\x00\x00\x00\x01", None),
        (b"\x00\x00\x00\x01", b"\x00" * 5),
        (b"\x00\x00\x00\x02", b"\x00" * 6),
        (b"\xff\xff\x00\x01", b"\x00" * 6),
        (b"\x00\x00\x00\x01", b"\xff" * 6),
    ],
)
def test_other_control_records_are_not_taken_for_markers(codec: Any, key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptBatchError, match="control record at offset 3"):
        codec.decode_control(codec.Record(3, NOW, key, value))


def test_longer_control_records_of_later_versions_are_read(codec: Any) -> None:
    record = codec.Record(3, NOW, b"\x00\x01\x00\x01more", b"\x00\x01\x00\x00\x00\x09more")
    assert codec.decode_control(record) == (codec.ControlType.COMMIT, 9)


# Records whose bytes lie, in batches with a right checksum.

RECORD = b"\x0c\x00\x00\x00\x01\x01\x00"  # length 6, attributes, deltas 0, null key, null value, no headers


def test_the_smallest_record(codec: Any) -> None:
    assert codec.decode_records(raw_batch(RECORD, 1)) == [codec.Record(0, NOW, None, None)]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (b"\x0c\x00\x00\x00\x01\x01", "claims 1 records in 6 bytes"),
        (b"\x0a\x00\x00\x00\x01\x01\x00", "longer or shorter"),  # five bytes: too short for any record
        (b"\x0e\x00\x00\x00\x01\x01\x00", "longer or shorter"),  # one byte more than there is
        (b"\x0b\x00\x00\x00\x01\x01\x00", "longer or shorter"),  # a negative length
        (b"\x0c\x00\x00\x00\x03\x01\x00", "size does not fit"),  # a key of -2 bytes
        (b"\x0c\x00\x00\x00\x06\x01\x00", "size does not fit"),  # a key of 3 bytes where 2 are left
        (b"\x0c\x00\x00\x00\x01\x04\x00", "size does not fit"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", "number of headers"),  # -1 headers
        (b"\x0c\x00\x00\x00\x01\x01\x02", "number of headers"),  # a header in 0 bytes
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x00", "number of headers"),  # a header with a null name
        (b"\x10\x00\x00\x00\x01\x01\x02\x00\x02", "size does not fit"),
        (b"\x10\x00\x00\x00\x01\x01\x00\x00\x00", "longer or shorter"),  # bytes after the headers
        (b"\x18\x00\x00\x00" + b"\x80" * 5 + b"\x00\x01\x01\x00", "too long or ends early"),  # a size of six bytes
        (b"\x18\x00\x00\x00" + b"\xff\xff\xff\xff\x1f" + b"\x01\x01\x00\x00", "too long or ends early"),  # 33 bits
        (b"\x22\x00" + b"\x80" * 10 + b"\x00" + b"\x00\x01\x01\x00\x00", "too long or ends early"),  # 11 bytes
        (b"\x20\x00" + b"\xff" * 9 + b"\x02" + b"\x00\x01\x01\x00\x00", "too long or ends early"),  # 65 bits
        (b"\x0c\x00\x00\x00\x01\x80\x80", "too long or ends early"),
        (b"\xff\xff\xff\xff\xff\xff\xff", "too long or ends early"),
        (RECORD + b"\x00", "1 bytes after its 1 records"),
        (RECORD + RECORD, "7 bytes after its 1 records"),
    ],
)
def test_records_that_lie_are_refused(codec: Any, records: bytes, message: str) -> None:
    batch = raw_batch(records, 1)
    for decode in (codec.decode_records, codec.decode_values, lambda data: codec.decode_to_arrow([data])):
        with pytest.raises(CorruptBatchError, match=message):
            decode(batch)


def test_a_count_beyond_the_bytes_allocates_nothing(codec: Any) -> None:
    batch = raw_batch(RECORD, 2**31 - 1)
    with pytest.raises(CorruptBatchError, match="claims 2147483647 records in 7 bytes"):
        codec.validate_batches(batch, max_batch_bytes=LIMIT)
    with pytest.raises(CorruptBatchError, match="claims"):
        codec.decode_records(batch)
    zipped = raw_batch(bytes(compress(Compression.ZSTD, RECORD)), 2**31 - 1, Compression.ZSTD)
    with pytest.raises(CorruptBatchError, match="claims"):
        codec.decode_records(zipped)


def test_offset_deltas_must_ascend_within_the_batch(codec: Any) -> None:
    second = b"\x0c\x00\x00\x02\x01\x01\x00"
    assert [record.offset for record in codec.decode_records(raw_batch(RECORD + second, 2))] == [0, 1]
    for records in (
        RECORD + RECORD,
        second + RECORD,
        RECORD + b"\x0c\x00\x00\x04\x01\x01\x00",
        b"\x0c\x00\x00\x01\x01\x01\x00" * 2,
    ):
        with pytest.raises(CorruptBatchError, match="offset delta"):
            codec.decode_records(raw_batch(records, 2))
        with pytest.raises(CorruptBatchError, match="offset delta"):
            codec.decode_to_arrow([raw_batch(records, 2)])


def test_impossible_timestamps_do_not_overflow(codec: Any) -> None:
    for position in (27, 35):
        with pytest.raises(CorruptBatchError, match="impossible timestamps"):
            codec.decode_records(patched(raw_batch(RECORD, 1), position, ">q", 2**63 - 1))
    delta = b"\x1e\x00" + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\x00\x01\x01\x00"
    with pytest.raises(CorruptBatchError, match="impossible timestamp delta"):
        codec.decode_records(raw_batch(delta, 1))


def test_a_header_name_that_is_not_utf8_survives(codec: Any) -> None:
    record = b"\x16\x00\x00\x00\x01\x01\x02\x04\xff\xfe\x02v"
    batch = raw_batch(record, 1)
    (read,) = codec.decode_records(batch)
    assert read.headers == (("\udcff\udcfe", b"v"),)
    again = codec.encode_batch([(read.timestamp_ms, read.key, read.value, read.headers)])
    assert again[61:] == record


def test_a_corrupt_checksum_can_be_overlooked_on_request(codec: Any) -> None:
    batch = bytearray(codec.encode_batch(RECORDS))
    batch[17] ^= 1
    assert codec.decode_records(batch, check_crc=False) == expected(codec)


def test_the_uncompressed_size_is_bounded(codec: Any) -> None:
    for compression in list(Compression)[1:]:
        batch = codec.encode_batch([(NOW, None, bytes(1_000_000), ())], compression=compression)
        assert len(codec.decode_records(batch, max_uncompressed_bytes=1_000_100)) == 1
        for decode in (codec.decode_records, codec.decode_values):
            with pytest.raises(CorruptBatchError, match="allowed here"):
                decode(batch, max_uncompressed_bytes=999_000)


# --- Building ---------------------------------------------------------------------------------------------------------


def test_a_builder_refuses_what_cannot_be_written_and_stays_whole(codec: Any) -> None:
    builder = codec.BatchBuilder()
    builder.append(NOW, b"first", None)
    for bad in ("text", 5, 1.5, object(), [b"x"]):
        with pytest.raises(UsageError, match="value must be bytes or None"):
            builder.append(NOW, None, bad)
        with pytest.raises(UsageError, match="key must be bytes or None"):
            builder.append(NOW, bad, None)
    for timestamp in (-2, 2**62):
        with pytest.raises(UsageError, match="not a timestamp"):
            builder.append(timestamp, None, None)
    with pytest.raises(UsageError, match="header's name must be a string"):
        builder.append(NOW, None, None, [(b"name", b"")])
    with pytest.raises(UsageError, match="header 'name' must be bytes"):
        builder.append(NOW, None, None, [("name", "text")])
    with pytest.raises(UsageError, match="UTF-8"):
        builder.append(NOW, None, None, [("\ud800", b"")])
    assert builder.append(NOW, b"second", None) == 1
    assert [record.key for record in codec.decode_records(builder.build())] == [b"first", b"second"]


def test_a_refused_first_record_leaves_no_base_timestamp(codec: Any) -> None:
    builder = codec.BatchBuilder()
    with pytest.raises(UsageError):
        builder.append(5, None, "text")
    builder.append(NOW, None, None)
    assert codec.read_header(builder.build()).base_timestamp_ms == NOW


def test_keys_and_values_may_be_any_bytes_like(codec: Any) -> None:
    batch = codec.encode_batch([(NOW, bytearray(b"key"), memoryview(b"value"), [("h", bytearray(b"x"))])])
    assert codec.decode_records(batch) == [codec.Record(0, NOW, b"key", b"value", (("h", b"x"),))]


def test_headers_may_be_any_pairs(codec: Any) -> None:
    class Name(str):
        __slots__ = ()

    for headers in ([("a", b"1")], (pair for pair in [("a", b"1")]), {"a": b"1"}.items(), [["a", bytearray(b"1")]]):
        batch = codec.encode_batch([(NOW, None, None, headers)])
        assert codec.decode_records(batch)[0].headers == (("a", b"1"),)
    batch = codec.encode_batch([(NOW, None, None, ((Name("b"), None), ("c" * 200, b"")))])
    assert codec.decode_records(batch)[0].headers == (("b", None), ("c" * 200, b""))
    many = tuple((f"name-{n}", b"x" * (n % 3)) for n in range(1500))
    assert codec.decode_records(codec.encode_batch([(NOW, None, None, many)]))[0].headers == many


def test_a_builder_builds_once_and_never_nothing(codec: Any) -> None:
    builder = codec.BatchBuilder()
    with pytest.raises(UsageError, match="at least one record"):
        builder.build()
    builder.append(NOW, None, None)
    builder.build()
    with pytest.raises(UsageError, match="already built"):
        builder.build()
    with pytest.raises(UsageError, match="already built"):
        builder.append(NOW, None, None)


def test_the_size_is_known_before_building(codec: Any) -> None:
    builder = codec.BatchBuilder(capacity_bytes=0)
    assert builder.size_estimate == 61
    for record in RECORDS:
        builder.append(*record)
    estimate = builder.size_estimate
    assert len(builder.build()) == estimate


def test_records_without_a_timestamp(codec: Any) -> None:
    batch = codec.encode_batch([(-1, None, b"x", ())])
    assert codec.read_header(batch).max_timestamp_ms == -1
    assert codec.decode_records(batch)[0].timestamp_ms == -1


def test_levels_reach_the_codec(codec: Any) -> None:
    values = [(NOW, None, b"%d" % (n * n), ()) for n in range(3000)]
    for compression in (Compression.GZIP, Compression.LZ4, Compression.ZSTD):
        sizes = [len(codec.encode_batch(values, compression=compression, level=level)) for level in (1, 9)]
        assert sizes[1] < sizes[0]
    with pytest.raises(UsageError, match="GZIP takes from 1 to 9, not level 10"):
        codec.encode_batch(values, compression=Compression.GZIP, level=10)
    with pytest.raises(UsageError, match="SNAPPY takes no level at all"):
        codec.encode_batch(values, compression=Compression.SNAPPY, level=1)


# --- Rewriting, for compaction ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, *Compression])
def test_a_rewritten_batch_keeps_offsets_and_producer(codec: Any, compression: Compression | None) -> None:
    """P7: what compaction leaves behind still says what the producer's state is rebuilt from."""
    batch = codec.encode_batch(
        RECORDS,
        base_offset=40,
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
        transactional=True,
        leader_epoch=5,
        compression=Compression.ZSTD,
    )
    old = codec.read_header(batch)
    kept = [record for record in codec.decode_records(batch) if record.offset in (41, 44)]
    rewritten = codec.rewrite_batch(old, kept, compression=compression)
    (new,) = codec.validate_batches(rewritten, max_batch_bytes=LIMIT, strict_count=False)
    for field in ("base_offset", "last_offset", "producer_id", "producer_epoch", "last_sequence", "leader_epoch"):
        assert getattr(new, field) == getattr(old, field)
    assert new.is_transactional
    assert new.compression is (Compression.ZSTD if compression is None else compression)
    assert new.max_timestamp_ms == NOW + 5
    assert codec.decode_records(rewritten) == kept


def test_an_emptied_batch_keeps_its_range_and_maximum_timestamp(codec: Any) -> None:
    batch = codec.encode_batch(RECORDS, base_offset=40, producer_id=1, producer_epoch=2, base_sequence=3)
    emptied = codec.rewrite_batch(codec.read_header(batch), [])
    (header,) = codec.validate_batches(emptied, max_batch_bytes=LIMIT, strict_count=False)
    assert (header.last_offset, header.record_count, header.last_sequence) == (45, 0, 8)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (-1, NOW + 100_000)
    assert codec.decode_records(emptied) == codec.decode_values(emptied) == []
    assert codec.decode_to_arrow([emptied]).num_rows == 0
    with pytest.raises(CorruptBatchError):
        codec.validate_batches(emptied, max_batch_bytes=LIMIT)


def test_a_delete_horizon_takes_the_base_timestamp_and_stays(codec: Any) -> None:
    batch = codec.encode_batch(RECORDS)
    marked = codec.rewrite_batch(codec.read_header(batch), codec.decode_records(batch), delete_horizon_ms=NOW + 7)
    header = codec.read_header(marked)
    assert header.has_delete_horizon
    assert header.base_timestamp_ms == NOW + 7
    assert codec.decode_records(marked) == expected(codec)
    again = codec.rewrite_batch(header, codec.decode_records(marked)[:1])
    assert codec.read_header(again).base_timestamp_ms == NOW + 7
    assert codec.decode_records(again) == expected(codec)[:1]


def test_append_time_survives_a_rewrite(codec: Any) -> None:
    batch = bytearray(codec.encode_batch(RECORDS))
    codec.set_append_time(batch, 0, 99)
    rewritten = codec.rewrite_batch(codec.read_header(batch), codec.decode_records(batch)[2:4])
    assert codec.read_header(rewritten).max_timestamp_ms == 99
    assert [record.timestamp_ms for record in codec.decode_records(rewritten)] == [99, 99]


def test_a_rewrite_refuses_foreign_records(codec: Any) -> None:
    batch = codec.encode_batch(RECORDS)
    records = codec.decode_records(batch)
    for wrong in ([records[1], records[0]], [codec.Record(6, NOW, None, None)]):
        with pytest.raises(UsageError, match="does not belong"):
            codec.rewrite_batch(codec.read_header(batch), wrong)


def test_records_are_values(codec: Any) -> None:
    record = codec.Record(1, NOW, b"k", b"v", (("h", None),))
    assert record == codec.Record(1, NOW, b"k", b"v", (("h", None),))
    assert hash(record) == hash(codec.Record(1, NOW, b"k", b"v", (("h", None),)))
    assert record != codec.Record(2, NOW, b"k", b"v", (("h", None),))
    assert record != "record"
    assert "offset=1" in repr(record)
    kind, arguments = record.__reduce__()
    assert kind(*arguments) == record
    assert "base_offset=0" in repr(codec.read_header(codec.encode_batch(RECORDS)))


def test_the_crc_is_castagnolis(codec: Any) -> None:
    """The check value of CRC-32C in RFC 3720."""
    assert codec.crc32c(b"123456789") == 0xE3069283
    assert codec.crc32c(memoryview(b"x123456789y"), 1, 10) == 0xE3069283
    assert codec.crc32c(bytearray(b"123456789")) == 0xE3069283
    assert codec.crc32c(b"") == codec.crc32c(b"abc", 3) == 0
    for start, end in ((4, 2), (0, 4), (-1, 2), (4, -1)):
        with pytest.raises(ValueError, match="not within"):
            codec.crc32c(b"abc", start, end)
