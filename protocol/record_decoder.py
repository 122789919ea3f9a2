# cython: annotation_typing=False
"""Decodes the records of Kafka's record batches, version 2.

A record is a varint length, attributes, and varint-coded deltas, sizes and headers (KIP-98, "Message Format").
Compiled with the C types of record_decoder.pxd, or interpreted with `bytes` in the place of pointers. Nothing that
bytes claim is believed before it is checked against the bytes that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

try:
    import cython
except ModuleNotFoundError:
    from semel.protocol import uncompiled as cython

from semel.protocol.batch_header import (
    APPEND_TIME,
    BATCH_OVERHEAD,
    COMPRESSION_MASK,
    RECORD_BYTES_MIN,
    BatchHeader,
    check_crc32c,
    check_room,
    read_header,
    unknown_codec,
)
from semel.protocol.compression import DEFAULT_MAX_UNCOMPRESSED_BYTES, Compression, decompress
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import ErrorCode, UsageError
from semel.protocol.int_bounds import INT32_MAX, INT64_MAX

Buffer: TypeAlias = bytes | bytearray | memoryview
ColumnBuffers: TypeAlias = Sequence[Buffer]
"""Offsets and microseconds (int64), timestamp types, key and value offsets (int32), validity of keys and values."""
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

_TIMESTAMP_LIMIT: Final = 2**62
"""Far beyond any real time, and low enough that a base and a delta can be added without overflow."""
_LET_IN: Final = 8191
"""After how many records the GIL is given up for a moment, less one."""
_COLUMN_BYTES_MAX: Final = INT32_MAX
_MICROS_LIMIT: Final = INT64_MAX // 1000


class Record:
    # The docstring's first lines are how a compiled class tells `inspect.signature` its arguments.
    """Record(offset, timestamp_ms, key, value, headers=(), topic='', partition=-1)\n--\n
    One record. `headers` may repeat a name; a header's value may be None.

    `key` and `value` are bytes or None, or what a consumer's `key_deserializer` and `value_deserializer` made of them.
    `topic` and `partition` say where it was read; "" and -1 where only a batch is known.

    A header name that is not UTF-8 (some clients allow that) is read with Python's `surrogateescape`, and written back
    to the same bytes.
    """

    __slots__ = ("headers", "key", "offset", "partition", "timestamp_ms", "topic", "value")

    def __init__(
        self,
        offset: int,
        timestamp_ms: int,
        key: Any,
        value: Any,
        headers: Headers = (),
        topic: str = "",
        partition: int = -1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.value = value
        self.headers = headers

    def __repr__(self) -> str:
        place = f"topic={self.topic!r}, partition={self.partition}, " if self.topic else ""
        return (
            f"Record({place}offset={self.offset}, timestamp_ms={self.timestamp_ms}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (
            self.offset == other.offset
            and self.timestamp_ms == other.timestamp_ms
            and self.key == other.key
            and self.value == other.value
            and self.headers == other.headers
            and self.topic == other.topic
            and self.partition == other.partition
        )

    def __hash__(self) -> int:
        return hash(self.__reduce__()[1])

    def __reduce__(self) -> tuple[type[Record], tuple[int, int, Any, Any, Headers, str, int]]:
        return Record, (
            self.offset,
            self.timestamp_ms,
            self.key,
            self.value,
            self.headers,
            self.topic,
            self.partition,
        )


# Decoding records

_LENGTH_MIN: Final = RECORD_BYTES_MIN - 1
_OK: Final = 0
_BAD_VARINT: Final = 1
_BAD_SIZE: Final = 2
_BAD_LENGTH: Final = 3
_BAD_HEADERS: Final = 4

_COMPLAINTS: Final = {
    _BAD_VARINT: "has a number that is too long or ends early",
    _BAD_SIZE: "has a field whose size does not fit the record",
    _BAD_LENGTH: "is longer or shorter than it says",
    _BAD_HEADERS: "has an impossible number of headers",
}


if not cython.compiled:

    def address_of(view: memoryview) -> bytes:
        return bytes(view)

    def part_source(view: memoryview) -> memoryview:
        return view

    def put_part(data: memoryview, position: int, source: memoryview, start: int, size: int) -> None:
        data[position : position + size] = source[start : start + size]

    def bytes_of(view: memoryview) -> memoryview:
        return view.cast("B")

    def int64s_of(view: memoryview) -> memoryview:
        return view.cast("B").cast("q")

    def int32s_of(view: memoryview) -> memoryview:
        return view.cast("B").cast("i")

    def untrack(thing: Record) -> None:
        assert isinstance(thing, Record)

    def take_bytes(data: bytes, start: int, size: int) -> bytes:
        return data[start : start + size]


class _Cursor:
    """Walks over the records of one batch. A fault is remembered in `broken` and stops every further step, so the
    loop over a record's fields asks once a record, and nothing is read or allocated beyond the bytes that exist."""

    __slots__ = ("_view", "broken", "data", "end", "limit", "position")
    _view: memoryview
    data: bytes
    position: int
    end: int
    """Where the current record ends."""
    limit: int
    """Where the records end."""
    broken: int

    def open(self, data: Buffer, start: int, limit: int) -> None:
        self._view = memoryview(data)
        self.data = address_of(self._view)
        self.position = start
        self.end = limit
        self.limit = limit
        self.broken = _OK

    def fail(self, fault: int) -> None:
        """Remember the first fault, and end the record here, so that nothing more of it is read."""
        if self.broken == _OK:
            self.broken = fault
            self.end = self.position

    def begin(self) -> None:
        """Step into the next record: its length, and its attributes, which nothing uses."""
        self.end = self.limit
        length = self.varint()
        if self.broken:
            return
        if length < _LENGTH_MIN or length > self.limit - self.position:
            self.fail(_BAD_LENGTH)
            return
        self.end = self.position + length
        self.position += 1

    def finish(self) -> None:
        if self.position != self.end:
            self.fail(_BAD_LENGTH)

    def varint(self) -> int:
        """Read a zigzag-coded number of at most 5 bytes and 32 bits."""
        position = self.position
        if self.end - position >= 2:
            byte = self.data[position]
            if byte < 0x80:
                self.position = position + 1
                return (byte >> 1) ^ -(byte & 1)
            high = self.data[position + 1]
            if high < 0x80:
                self.position = position + 2
                return ((byte & 0x7F | high << 7) >> 1) ^ -(byte & 1)
        return self.long_varint(32)

    def varlong(self) -> int:
        """Read a zigzag-coded number of at most 10 bytes and 64 bits."""
        position = self.position
        if self.end - position >= 1:
            byte = self.data[position]
            if byte < 0x80:
                self.position = position + 1
                return (byte >> 1) ^ -(byte & 1)
        return self.long_varint(64)

    def long_varint(self, bits: int) -> int:
        """Read a zigzag-coded number of up to `bits` bits, which is 5 bytes for 32 and 10 for 64."""
        raw = 0
        shift = 0
        position = self.position
        while position < self.end and shift < bits:
            byte = self.data[position]
            position += 1
            high = byte & 0x7F
            if shift + 7 > bits and high >> (bits - shift):
                break
            raw |= high << shift
            if byte < 0x80:
                self.position = position
                return (raw >> 1) ^ -(raw & 1)
            shift += 7
        self.fail(_BAD_VARINT)
        return 0

    def size(self) -> int:
        """Read the size of a field that may be null (-1), and make sure the field is within the record."""
        size = self.varint()
        if size < -1 or size > self.end - self.position:
            self.fail(_BAD_SIZE)
        if self.broken:
            return -1
        return size

    def skip(self) -> None:
        size = self.size()
        if size > 0:
            self.position += size

    def take(self) -> bytes | None:
        size = self.size()
        if size < 0:
            return None
        start = self.position
        self.position = start + size
        return take_bytes(self.data, start, size)

    def headers(self) -> Headers:
        count = self.varint()
        if count == 0:
            return ()
        # A header has two sizes, of a byte each at least.
        if count < 0 or 2 * count > self.end - self.position:
            self.fail(_BAD_HEADERS)
            return ()
        headers = []
        for _ in range(count):
            name = self.take()
            if name is None:
                self.fail(_BAD_HEADERS)
            if self.broken:
                return ()
            value = self.take()
            headers.append((name.decode("utf-8", "surrogateescape"), value))  # type: ignore[union-attr]
        return tuple(headers)

    def skip_headers(self) -> None:
        count = self.varint()
        if count == 0:
            return
        if count < 0 or 2 * count > self.end - self.position:
            self.fail(_BAD_HEADERS)
            return
        for _ in range(count):
            size = self.size()
            if size < 0:
                self.fail(_BAD_HEADERS)
            if self.broken:
                return
            self.position += size
            self.skip()

    def complaint(self, header: BatchHeader, index: int) -> CorruptBatchError:
        return CorruptBatchError(
            f"record {index} of the batch at position {header.position} (base offset {header.base_offset}) "
            f"{_COMPLAINTS[self.broken]}"
        )


def record_bytes(
    buffer: Buffer,
    header: BatchHeader,
    *,
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
    check_crc: bool = True,
) -> tuple[Buffer, int, int]:
    """Return where the uncompressed records of a batch are: a buffer, their beginning and their end in it.

    Raises `CorruptBatchError` if the batch is not whole, its checksum is wrong, or its codec finds the bytes broken.
    """
    position = header.position
    end = position + header.size_bytes
    if end > len(buffer):
        raise CorruptBatchError(
            f"the batch at position {position} has {header.size_bytes} bytes, and {len(buffer) - position} are left"
        )
    if check_crc:
        check_crc32c(buffer, header)
    codec = header.attributes & COMPRESSION_MASK
    if codec == 0:
        check_room(header, header.size_bytes - BATCH_OVERHEAD)
        return buffer, position + BATCH_OVERHEAD, end
    if codec > 4:
        raise unknown_codec(header)
    if header.record_count == 0:
        return b"", 0, 0
    records = decompress(
        Compression(codec),
        memoryview(buffer)[position + BATCH_OVERHEAD : end],
        max_size_bytes=max_uncompressed_bytes,
    )
    check_room(header, len(records))
    return records, 0, len(records)


def _check_timestamps(header: BatchHeader) -> None:
    if not (
        -_TIMESTAMP_LIMIT < header.base_timestamp_ms < _TIMESTAMP_LIMIT
        and -_TIMESTAMP_LIMIT < header.max_timestamp_ms < _TIMESTAMP_LIMIT
    ):
        raise CorruptBatchError(
            f"the batch at position {header.position} has impossible timestamps: base {header.base_timestamp_ms}, "
            f"maximum {header.max_timestamp_ms}"
        )


def decode_records(
    buffer: Buffer,
    position: int = 0,
    *,
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
    check_crc: bool = True,
    topic: str = "",
    partition: int = -1,
) -> list[Record]:
    """Return the records of the batch at `position`, decompressed, as objects that know they are from `topic`.

    Where the log stamps records, they all have the batch's maximum timestamp. Records of a control batch are returned
    like any others. Raises `CorruptBatchError`; memory stays within `max_uncompressed_bytes` and its objects.
    """
    header = read_header(buffer, position)
    data, start, limit = record_bytes(
        buffer, header, max_uncompressed_bytes=max_uncompressed_bytes, check_crc=check_crc
    )
    return _decode_records(header, data, start, limit, topic, partition)


def _decode_records(
    header: BatchHeader, data: Buffer, start: int, limit: int, topic: str, partition: int
) -> list[Record]:
    _check_timestamps(header)
    records: list[Record] = []
    count = header.record_count
    if count == 0:
        _check_end(header, start, limit)
        return records
    cursor = _Cursor.__new__(_Cursor)
    cursor.open(data, start, limit)
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp_ms
    append_time = header.attributes & APPEND_TIME != 0
    max_timestamp = header.max_timestamp_ms
    last_delta = header.last_offset_delta
    previous = -1
    for index in range(count):
        cursor.begin()
        timestamp = cursor.varlong()
        delta = cursor.varint()
        record = Record.__new__(Record)
        record.topic = topic
        record.partition = partition
        record.key = cursor.take()
        record.value = cursor.take()
        record.headers = cursor.headers()
        # Bytes and text form no cycles, so the garbage collector need not visit millions of records.
        untrack(record)
        cursor.finish()
        if cursor.broken:
            raise cursor.complaint(header, index)
        if delta <= previous or delta > last_delta:
            raise _bad_delta(header, index, delta)
        if timestamp >= _TIMESTAMP_LIMIT or timestamp <= -_TIMESTAMP_LIMIT:
            raise _bad_timestamp(header, index, timestamp)
        previous = delta
        if index & _LET_IN == _LET_IN:
            with cython.nogil:
                pass  # so that a batch of many records, decoded in a thread, does not stop the others
        record.offset = base_offset + delta
        record.timestamp_ms = max_timestamp if append_time else base_timestamp + timestamp
        records.append(record)
    _check_end(header, cursor.position, limit)
    return records


def decode_values(
    buffer: Buffer,
    position: int = 0,
    *,
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
    check_crc: bool = True,
) -> list[bytes | None]:
    """Return the values alone of the batch at `position`, several times faster than whole records."""
    header = read_header(buffer, position)
    data, start, limit = record_bytes(
        buffer, header, max_uncompressed_bytes=max_uncompressed_bytes, check_crc=check_crc
    )
    return _decode_values(header, data, start, limit)


def _decode_values(header: BatchHeader, data: Buffer, start: int, limit: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    count = header.record_count
    if count == 0:
        _check_end(header, start, limit)
        return values
    cursor = _Cursor.__new__(_Cursor)
    cursor.open(data, start, limit)
    for index in range(count):
        cursor.begin()
        cursor.varlong()
        cursor.varint()
        cursor.skip()
        value = cursor.take()
        cursor.skip_headers()
        cursor.finish()
        if cursor.broken:
            raise cursor.complaint(header, index)
        values.append(value)
    _check_end(header, cursor.position, limit)
    return values


class ColumnDecoder:
    """Decodes batches into the buffers of Arrow columns, without an object per record.

    `add` walks over a batch once, and notes offsets, timestamps, sizes and where each field is; `fill` then copies the
    keys and values into buffers that are exactly as large as they must be. The validity buffers must come with all bits
    set. Rows outside `first_offset` and `end_offset`
    (exclusive) are left out. `rows_max` bounds what `add` may note.
    """

    __slots__ = (
        "_end_offset",
        "_first_offset",
        "_key_at",
        "_key_at_view",
        "_key_offsets",
        "_key_valid",
        "_offsets",
        "_parts",
        "_timestamps",
        "_types",
        "_value_at",
        "_value_at_view",
        "_value_offsets",
        "_value_valid",
        "_views",
        "headers",
        "key_bytes",
        "key_nulls",
        "rows",
        "rows_max",
        "value_bytes",
        "value_nulls",
        "with_headers",
    )

    def __init__(
        self, columns: ColumnBuffers, rows_max: int, first_offset: int, end_offset: int, with_headers: bool
    ) -> None:
        views = [memoryview(buffer) for buffer in columns]
        sizes = (8, 8, 4, 4, 4, 1, 1)
        rows = (rows_max, rows_max, rows_max, rows_max + 1, rows_max + 1, (rows_max + 7) // 8, (rows_max + 7) // 8)
        for view, size, count in zip(views, sizes, rows, strict=True):
            if view.nbytes < size * count:
                raise UsageError(f"a column buffer of {view.nbytes} bytes is too small for {rows_max} rows")
        self._views = views
        self._offsets = int64s_of(views[0])
        self._timestamps = int64s_of(views[1])
        self._types = int32s_of(views[2])
        self._key_offsets = int32s_of(views[3])
        self._value_offsets = int32s_of(views[4])
        self._key_valid = bytes_of(views[5])
        self._value_valid = bytes_of(views[6])
        self._key_at_view = memoryview(bytearray(4 * rows_max + 4))
        self._value_at_view = memoryview(bytearray(4 * rows_max + 4))
        self._key_at = int32s_of(self._key_at_view)
        self._value_at = int32s_of(self._value_at_view)
        self._key_offsets[0] = 0
        self._value_offsets[0] = 0
        self._first_offset = first_offset
        self._end_offset = end_offset
        self.with_headers = with_headers
        self.headers: list[Headers | None] = []
        self.rows_max = rows_max
        self.rows = 0
        self.key_bytes = 0
        self.value_bytes = 0
        self.key_nulls = 0
        self.value_nulls = 0
        self._parts: list[tuple[Buffer, int, int]] = []

    def add(self, header: BatchHeader, data: Buffer, start: int, limit: int) -> None:
        """Note the records of one batch. All batches together may have at most 2 GiB of keys, and of values."""
        count = header.record_count
        if count == 0:
            _check_end(header, start, limit)
            return
        if self.rows + count > self.rows_max:
            raise UsageError(f"{self.rows + count} rows are more than the {self.rows_max} that there is room for")
        _check_timestamps(header)
        cursor = _Cursor.__new__(_Cursor)
        cursor.open(data, start, limit)
        base_offset = header.base_offset
        base_timestamp = header.base_timestamp_ms
        timestamp_type = 1 if header.attributes & APPEND_TIME else 0
        max_timestamp = header.max_timestamp_ms
        last_delta = header.last_offset_delta
        previous = -1
        row = self.rows
        first_row = row
        key_bytes = self.key_bytes
        value_bytes = self.value_bytes
        offsets = self._offsets
        timestamps = self._timestamps
        types = self._types
        key_places = self._key_at
        value_places = self._value_at
        key_offsets = self._key_offsets
        value_offsets = self._value_offsets
        first_offset = self._first_offset
        end_offset = self._end_offset
        with_headers = self.with_headers
        for index in range(count):
            cursor.begin()
            timestamp = cursor.varlong()
            delta = cursor.varint()
            key_size = cursor.size()
            key_at = cursor.position
            if key_size > 0:
                cursor.position += key_size
            value_size = cursor.size()
            value_at = cursor.position
            if value_size > 0:
                cursor.position += value_size
            if with_headers:
                headers = cursor.headers()
            else:
                cursor.skip_headers()
                headers = ()
            cursor.finish()
            if cursor.broken:
                raise cursor.complaint(header, index)
            if delta <= previous or delta > last_delta:
                raise _bad_delta(header, index, delta)
            if timestamp >= _TIMESTAMP_LIMIT or timestamp <= -_TIMESTAMP_LIMIT:
                raise _bad_timestamp(header, index, timestamp)
            previous = delta
            if base_offset + delta < first_offset or base_offset + delta >= end_offset:
                continue
            offsets[row] = base_offset + delta
            stamp = max_timestamp if timestamp_type else base_timestamp + timestamp
            if stamp > _MICROS_LIMIT or stamp < -_MICROS_LIMIT:
                raise _bad_timestamp(header, index, timestamp)
            timestamps[row] = stamp * 1000
            types[row] = timestamp_type
            key_places[row] = key_at
            value_places[row] = value_at
            if key_size < 0:
                self.key_nulls += 1
                self._key_valid[row >> 3] &= ~(1 << (row & 7)) & 0xFF
            else:
                key_bytes += key_size
            if value_size < 0:
                self.value_nulls += 1
                self._value_valid[row >> 3] &= ~(1 << (row & 7)) & 0xFF
            else:
                value_bytes += value_size
            if key_bytes > _COLUMN_BYTES_MAX or value_bytes > _COLUMN_BYTES_MAX:
                raise _column_too_large()
            row += 1
            key_offsets[row] = key_bytes
            value_offsets[row] = value_bytes
            if with_headers:
                self.headers.append(headers or None)
        _check_end(header, cursor.position, limit)
        self.rows = row
        self.key_bytes = key_bytes
        self.value_bytes = value_bytes
        self._parts.append((data, first_row, row))

    def fill(self, keys: Buffer, values: Buffer) -> None:
        """Copy the fields noted so far into buffers of `key_bytes` and `value_bytes` bytes."""
        key_view = memoryview(keys)
        value_view = memoryview(values)
        if key_view.nbytes < self.key_bytes or value_view.nbytes < self.value_bytes:
            raise UsageError("the buffers for keys and values are too small")
        key_target = bytes_of(key_view)
        value_target = bytes_of(value_view)
        key_places = self._key_at
        value_places = self._value_at
        key_offsets = self._key_offsets
        value_offsets = self._value_offsets
        for data, first_row, end_row in self._parts:
            view = memoryview(data)
            source = part_source(view)
            for row in range(first_row, end_row):
                at = key_offsets[row]
                put_part(key_target, at, source, key_places[row], key_offsets[row + 1] - at)
                at = value_offsets[row]
                put_part(value_target, at, source, value_places[row], value_offsets[row + 1] - at)


def _column_too_large() -> UsageError:
    return UsageError(
        f"an Arrow column holds at most {_COLUMN_BYTES_MAX} bytes; decode fewer batches at once",
        ErrorCode.MESSAGE_TOO_LARGE,
    )


def _bad_delta(header: BatchHeader, index: int, delta: int) -> CorruptBatchError:
    return CorruptBatchError(
        f"record {index} of the batch at position {header.position} has the offset delta {delta}: deltas must "
        f"ascend up to {header.last_offset_delta}"
    )


def _bad_timestamp(header: BatchHeader, index: int, delta: int) -> CorruptBatchError:
    return CorruptBatchError(
        f"record {index} of the batch at position {header.position} has the impossible timestamp delta {delta}"
    )


def _check_end(header: BatchHeader, position: int, limit: int) -> None:
    if position != limit:
        raise CorruptBatchError(
            f"the batch at position {header.position} has {limit - position} bytes after its "
            f"{header.record_count} records"
        )
