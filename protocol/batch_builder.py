# cython: annotation_typing=False
"""Builds record batches: the hot path of every producer.

Compiled with the C types of batch_builder.pxd, or interpreted with a `bytearray` in the place of a pointer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

try:
    import cython
except ModuleNotFoundError:
    from semel.protocol import uncompiled as cython

from semel.protocol.batch_header import (
    APPEND_TIME,
    ATTRIBUTES_AT,
    BATCH_OVERHEAD,
    COMPRESSION_MASK,
    CONTROL,
    CRC_AT,
    DELETE_HORIZON,
    HEADER,
    LENGTH_END,
    TRANSACTIONAL,
    UINT32,
    BatchHeader,
)
from semel.protocol.compression import Compression, compress
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import ErrorCode, UsageError
from semel.protocol.ids import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from semel.protocol.int_bounds import INT32_MAX

if TYPE_CHECKING:
    from semel.protocol.record_decoder import Headers, Record

Buffer: TypeAlias = bytes | bytearray | memoryview
Source: TypeAlias = "bytes | bytearray | memoryview | None"
"""Compiled, a pointer."""

NO_HEADERS: Final = bytearray(b"\x00")

_TIMESTAMP_LIMIT: Final = 2**62
"""As in decoding: what is written must be readable."""


if not cython.compiled:

    def writable_address_of(buffer: bytearray) -> bytearray:
        return buffer

    def source_of(field: bytes | None) -> Source:
        return field

    def part_source(view: memoryview) -> Source:
        return view

    def put_part(data: bytearray, position: int, source: Source, start: int, size: int) -> None:
        assert source is not None
        data[position : position + size] = source[start : start + size]

    def int64_at(view: memoryview | None) -> Sequence[int]:
        return () if view is None else view.cast("B").cast("q")

    def int32_at(view: memoryview) -> Sequence[int]:
        return view.cast("B").cast("i")


class BinaryColumn:
    """The buffers of an Arrow binary array: where its values end and begin, their bytes, and which are not null.

    `offset` is the array's first row within them. Offsets that lead outside the bytes set `broken`.
    """

    __slots__ = ("_offsets", "_offsets_view", "_size", "_valid", "_valid_view", "at", "broken", "data", "offset")

    def __init__(self, offsets: Buffer, data: Buffer, valid: Buffer | None, offset: int, count: int) -> None:
        self._offsets_view = memoryview(offsets)
        if self._offsets_view.nbytes < 4 * (offset + count + 1):
            raise UsageError(
                f"an Arrow column of {offset + count} rows has {self._offsets_view.nbytes} bytes of offsets"
            )
        self._offsets = int32_at(self._offsets_view)
        self._valid_view = memoryview(valid if valid is not None else b"")
        if valid is not None and 8 * self._valid_view.nbytes < offset + count:
            raise UsageError(
                f"an Arrow column of {offset + count} rows has {self._valid_view.nbytes} bytes of validity"
            )
        self._valid = part_source(self._valid_view) if valid is not None else source_of(None)
        self.data = data
        self.offset = offset
        self.at = 0
        self.broken = False
        self._size = len(data)
        if count:
            first, last = self._offsets[offset], self._offsets[offset + count]
            if not 0 <= first <= last <= len(data):
                raise UsageError(f"an Arrow column has {len(data)} bytes of data and offsets from {first} to {last}")

    def locate(self, row: int) -> int:
        """Set `at` to where the row's bytes begin, and return their size, or -1 for null."""
        place = row + self.offset
        if self._valid and not self._valid[place >> 3] >> (place & 7) & 1:
            return -1
        self.at = self._offsets[place]
        end = self._offsets[place + 1]
        if self.at < 0 or end < self.at or end > self._size:
            self.broken = True
            return -1
        return end - self.at


def _varint_size(value: int) -> int:
    raw = (value << 1) ^ (value >> 63)
    size = 1
    if raw < 0x80:
        return 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


def _write_varint(data: bytearray, position: int, value: int) -> int:
    raw = (value << 1) ^ (value >> 63)
    if raw < 0x80:
        data[position] = raw
        return position + 1
    while raw >= 0x80:
        data[position] = raw & 0x7F | 0x80
        position += 1
        raw >>= 7
    data[position] = raw
    return position + 1


def _as_bytes(field: object, what: str) -> bytes | None:
    """Return a key or value as bytes. Raises `UsageError` for what is not bytes-like."""
    if field is None or type(field) is bytes:
        return field
    if isinstance(field, (bytes, bytearray, memoryview)):
        return bytes(field)
    raise UsageError(f"a record's {what} must be bytes or None, not {type(field).__name__}; serialise it first")


_NAMES: Final[dict[str, bytes]] = {}
"""Header names as bytes: a producer uses the same few over and over."""
_NAMES_MAX: Final = 1024


def _encode_name(name: object) -> bytes:
    if not isinstance(name, str):
        raise UsageError(f"a header's name must be a string, not {type(name).__name__}")
    try:
        encoded = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(f"the header name {name!r} cannot be written as UTF-8: {error.reason}") from None
    if len(_NAMES) < _NAMES_MAX and len(encoded) <= 128:
        _NAMES[name] = encoded
    return encoded


def _plain_headers(headers: Iterable[tuple[str, bytes | None]]) -> tuple[tuple[str, bytes | None], ...]:
    """Return the headers with values of bytes. Raises `UsageError` for names and values that cannot be written."""
    plain = []
    for name, value in headers:
        exact = _encode_name(name).decode("utf-8", "surrogateescape")  # of a subclass of str, too
        plain.append((exact, _as_bytes(value, f"header {name!r}")))
    return tuple(plain)


def _encode_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytearray:
    """Return the headers as they are in a record, with their count."""
    pairs = headers if type(headers) is tuple else tuple(headers)
    for name, content in pairs:
        if type(name) is not str or name not in _NAMES or (content is not None and type(content) is not bytes):
            pairs = _plain_headers(pairs)
            break
    size = _varint_size(len(pairs))
    for name, content in pairs:
        length = len(_name_bytes(name))
        size += _varint_size(length) + length
        length = 0 if content is None else len(content)
        size += _varint_size(length) + length
    scratch = bytearray(size)
    data = writable_address_of(scratch)
    position = _write_varint(data, 0, len(pairs))
    for name, content in pairs:
        encoded = _name_bytes(name)
        length = len(encoded)
        position = _write_varint(data, position, length)
        put_part(data, position, source_of(encoded), 0, length)
        position += length
        length = -1 if content is None else len(content)
        position = _write_varint(data, position, length)
        if length > 0:
            put_part(data, position, source_of(content), 0, length)
            position += length
    assert position == size
    return scratch


def encoded_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytearray:
    """Return headers as they are in a record, for `append_columns`."""
    return _encode_headers(headers)


def _name_bytes(name: str) -> bytes:
    encoded = _NAMES.get(name)
    return _encode_name(name) if encoded is None else encoded


def _bad_timestamp(timestamp_ms: int) -> UsageError:
    return UsageError(f"{timestamp_ms} is not a timestamp in milliseconds since 1970", ErrorCode.INVALID_TIMESTAMP)


class BatchBuilder:
    """Collects records and makes a batch of them.

        builder = BatchBuilder(Compression.LZ4)
        builder.append(now_ms, b"key", b"value")
        batch = builder.build(producer_id=7, producer_epoch=0, base_sequence=0)

    `capacity_bytes` is allocated at once; a producer that knows its batch size saves the growing. After `build` the
    builder is used up.
    """

    __slots__ = (
        "_buffer",
        "_capacity",
        "_data",
        "_position",
        "base_timestamp_ms",
        "compression",
        "last_offset_delta",
        "level",
        "max_timestamp_ms",
        "record_count",
    )

    def __init__(
        self,
        compression: Compression = Compression.NONE,
        level: int | None = None,
        *,
        capacity_bytes: int = 512,
    ) -> None:
        self.compression = compression
        self.level = level
        self.record_count = 0
        self.base_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_ms = NO_TIMESTAMP
        self.last_offset_delta = -1
        self._buffer: bytearray | None = bytearray(max(capacity_bytes, BATCH_OVERHEAD))
        self._data = writable_address_of(self._buffer)
        self._position = BATCH_OVERHEAD
        self._capacity = len(self._buffer)

    @property
    def size_estimate(self) -> int:
        """Bytes of the batch if it were built now, before compression."""
        return self._position

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> int:
        """Add a record and return its place in the batch, counted from 0. `timestamp_ms` of -1 means none.

        Raises `UsageError` for keys and values that are not bytes, for impossible timestamps, and when the batch would
        pass 2 GiB; the batch is unchanged then.
        """
        delta = self.last_offset_delta + 1
        if timestamp_ms < -1 or timestamp_ms >= _TIMESTAMP_LIMIT:
            raise _bad_timestamp(timestamp_ms)
        if self.record_count == 0:
            self.base_timestamp_ms = timestamp_ms
        key_bytes = _as_bytes(key, "key")
        value_bytes = _as_bytes(value, "value")
        self._put(
            delta,
            timestamp_ms - self.base_timestamp_ms,
            source_of(key_bytes),
            0,
            -1 if key_bytes is None else len(key_bytes),
            source_of(value_bytes),
            0,
            -1 if value_bytes is None else len(value_bytes),
            _encode_headers(headers) if headers else NO_HEADERS,
        )
        if timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
        return delta

    def _put(
        self,
        offset_delta: int,
        timestamp_delta: int,
        key: Source,
        key_at: int,
        key_size: int,
        value: Source,
        value_at: int,
        value_size: int,
        headers: bytearray,
    ) -> int:
        """Write one record. Key and value are parts of `key` and `value`; a size of -1 means null."""
        headers_size = len(headers)
        body = (
            1
            + _varint_size(timestamp_delta)
            + _varint_size(offset_delta)
            + _varint_size(key_size)
            + _varint_size(value_size)
            + headers_size
        )
        if key_size > 0:
            body += key_size
        if value_size > 0:
            body += value_size
        position = self._position
        if position + body + 5 > self._capacity:
            self._grow(position + body + 5)
        data = self._data
        position = _write_varint(data, position, body)
        data[position] = 0
        position = _write_varint(data, position + 1, timestamp_delta)
        position = _write_varint(data, position, offset_delta)
        position = _write_varint(data, position, key_size)
        if key_size > 0:
            put_part(data, position, key, key_at, key_size)
            position += key_size
        position = _write_varint(data, position, value_size)
        if value_size > 0:
            put_part(data, position, value, value_at, value_size)
            position += value_size
        if headers_size == 1:
            data[position] = 0
        else:
            put_part(data, position, writable_address_of(headers), 0, headers_size)
        self._position = position + headers_size
        self.last_offset_delta = offset_delta
        self.record_count += 1
        return 0

    def append_columns(
        self,
        keys: BinaryColumn,
        values: BinaryColumn,
        timestamps_ms: Buffer | None,
        timestamp_ms: int,
        headers: Sequence[Headers | None] | None,
        start: int,
        stop: int,
        size_limit: int,
        default_headers: bytearray,
    ) -> int:
        """Append the rows from `start` of Arrow columns, and return the row after the last one that was appended.

        Stops at `stop`, or once the batch has reached `size_limit` bytes before compression; a first row always fits.
        `timestamps_ms` is a buffer of int64, and `timestamp_ms` stands in where there is none.
        Rows that have no headers get `default_headers`, encoded once for all of them by `encoded_headers`.
        """
        key_view = memoryview(keys.data)
        value_view = memoryview(values.data)
        key_data = part_source(key_view)
        value_data = part_source(value_view)
        key_size = value_size = -1
        stamps_view = None if timestamps_ms is None else memoryview(timestamps_ms)
        stamps = int64_at(stamps_view)
        row = start
        while row < stop and (self._position < size_limit or row == start):
            key_size = keys.locate(row)
            value_size = values.locate(row)
            if keys.broken or values.broken:
                raise UsageError(f"the offsets of row {row} of an Arrow column lead outside its bytes")
            stamp = timestamp_ms if stamps_view is None else stamps[row]
            if stamp < -1 or stamp >= _TIMESTAMP_LIMIT:
                raise _bad_timestamp(stamp)
            if self.record_count == 0:
                self.base_timestamp_ms = stamp
            row_headers = default_headers
            if headers is not None and headers[row]:
                row_headers = _encode_headers(headers[row] or ())
            self._put(
                self.last_offset_delta + 1,
                stamp - self.base_timestamp_ms,
                key_data,
                keys.at,
                key_size,
                value_data,
                values.at,
                value_size,
                row_headers,
            )
            if stamp > self.max_timestamp_ms:
                self.max_timestamp_ms = stamp
            row += 1
        return row

    def _grow(self, needed: int) -> None:
        if self._buffer is None:
            raise UsageError("this batch was already built; start a new one")
        if needed > INT32_MAX:
            raise UsageError(
                f"a batch of {needed} bytes passes the format's 2 GiB; send smaller ones", ErrorCode.MESSAGE_TOO_LARGE
            )
        size = min(max(2 * self._capacity, needed), INT32_MAX)
        self._buffer.extend(bytes(size - self._capacity))
        self._data = writable_address_of(self._buffer)
        self._capacity = size

    def build(
        self,
        base_offset: int = 0,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        leader_epoch: int = NO_LEADER_EPOCH,
        control: bool = False,
    ) -> bytearray:
        """Return the batch. Raises `UsageError` if it has no records or was built before."""
        if self.record_count == 0:
            raise UsageError("a batch needs at least one record")
        attributes = (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
        return self._build(
            base_offset,
            leader_epoch,
            attributes,
            self.last_offset_delta,
            self.base_timestamp_ms,
            self.max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
        )

    def _build(
        self,
        base_offset: int,
        leader_epoch: int,
        attributes: int,
        last_offset_delta: int,
        base_timestamp_ms: int,
        max_timestamp_ms: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
    ) -> bytearray:
        buffer = self._buffer
        if buffer is None:
            raise UsageError("this batch was already built; start a new one")
        self._buffer = None
        self._capacity = 0
        del buffer[self._position :]
        if self.compression is not Compression.NONE and self.record_count > 0:
            records = memoryview(buffer)[BATCH_OVERHEAD:]
            compressed = compress(self.compression, records, self.level)
            attributes |= self.compression
            buffer = bytearray(BATCH_OVERHEAD)
            buffer += compressed
        HEADER.pack_into(
            buffer,
            0,
            base_offset,
            len(buffer) - LENGTH_END,
            leader_epoch,
            2,
            0,
            attributes,
            last_offset_delta,
            base_timestamp_ms,
            max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            self.record_count,
        )
        UINT32.pack_into(buffer, CRC_AT, crc32c(buffer, ATTRIBUTES_AT))
        return buffer


def encode_batch(
    records: Iterable[tuple[int, bytes | None, bytes | None, Iterable[tuple[str, bytes | None]]]],
    *,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    leader_epoch: int = NO_LEADER_EPOCH,
    control: bool = False,
) -> bytes:
    """Return a batch of `(timestamp_ms, key, value, headers)` records. See `BatchBuilder` for the rest."""
    builder = BatchBuilder(compression, level)
    for timestamp_ms, key, value, headers in records:
        builder.append(timestamp_ms, key, value, headers)
    return bytes(
        builder.build(base_offset, producer_id, producer_epoch, base_sequence, transactional, leader_epoch, control)
    )


def rewrite_batch(
    header: BatchHeader,
    records: Sequence[Record],
    *,
    compression: Compression | None = None,
    level: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """Return a batch with `header`'s offsets, producer and flags and only `records`, which are some of its own.

    For compaction, and for topics that set a codec. The offset range and sequences are kept, also when no record is
    left, because the producer's state is rebuilt from them (P7). `compression` None keeps the codec.
    `delete_horizon_ms` is put where the base timestamp was, and its flag set (KAFKA-8522).
    """
    codec = header.compression if compression is None else compression
    builder = BatchBuilder(codec, level)
    attributes: int = header.attributes & ~COMPRESSION_MASK
    base_timestamp_ms: int = records[0].timestamp_ms if records else NO_TIMESTAMP
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON
        base_timestamp_ms = delete_horizon_ms
    elif header.has_delete_horizon:
        base_timestamp_ms = header.base_timestamp_ms
    max_timestamp_ms = header.max_timestamp_ms
    if records and not attributes & APPEND_TIME:
        max_timestamp_ms = max(record.timestamp_ms for record in records)
    for record in records:
        delta = record.offset - header.base_offset
        if not builder.last_offset_delta < delta <= header.last_offset_delta:
            raise UsageError(
                f"the record at offset {record.offset} does not belong in order into the batch of offsets "
                f"{header.base_offset} to {header.last_offset}"
            )
        builder._put(
            delta,
            record.timestamp_ms - base_timestamp_ms,
            source_of(record.key),
            0,
            -1 if record.key is None else len(record.key),
            source_of(record.value),
            0,
            -1 if record.value is None else len(record.value),
            _encode_headers(record.headers) if record.headers else NO_HEADERS,
        )
    return builder._build(
        header.base_offset,
        header.leader_epoch,
        attributes,
        header.last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )
