# cython: annotation_typing=False
"""Checks that the records of a client's batch are records, without making an object of any (S4).

What Kafka's brokers find by iterating over a batch: every length, size and number fits, and no bytes are left over.
Beyond that, each record has the offset of its place, and timestamps are such that every reader can add them up.

Compiled with the C types of record_check.pxd, without the GIL for large batches; interpreted it is the same code.
"""

from __future__ import annotations

from typing import Final, TypeAlias

try:
    import cython
except ModuleNotFoundError:
    from semel.protocol import uncompiled as cython

from semel.protocol.batch_header import BATCH_OVERHEAD, COMPRESSION_MASK, BatchHeader, check_crc32c, read_header
from semel.protocol.int_bounds import INT64_MAX

Buffer: TypeAlias = bytes | bytearray | memoryview

TIMESTAMP_MS_MAX: Final = INT64_MAX // 1000
"""Readers that count in microseconds, as Arrow and Spark do, can have no later time (nor an earlier one below zero)."""

_DELTA_LIMIT: Final = 2**62
_TIME_LIMIT: Final = TIMESTAMP_MS_MAX
_LENGTH_MIN: Final = 6
"""Attributes, timestamp, offset, key, value and header count take a byte each at least."""
_PLAIN_BYTES_MIN: Final = 12
"""More than the numbers at the beginning of a plain record take, so that they can be read without a look at the end."""
_SMALL_BYTES: Final = 64 * 1024
"""Up to this size the GIL is kept: giving it back and taking it costs more than others gain."""

_OK: Final = 0
_BAD_NUMBER: Final = 1
_BAD_LENGTH: Final = 2
_BAD_OFFSET: Final = 3
_BAD_SIZE: Final = 4
_BAD_HEADERS: Final = 5
_LEFT_OVER: Final = 6
_BAD_END: Final = 7
_BAD_TIMESTAMP: Final = 8

_COMPLAINTS: Final = {
    _BAD_NUMBER: "has a number that is too long or ends early",
    _BAD_LENGTH: "has a length that does not fit into the batch",
    _BAD_OFFSET: "has another offset delta than its place in the batch",
    _BAD_SIZE: "has a key, value or header whose size does not fit into the record",
    _BAD_HEADERS: "has an impossible number of headers",
    _BAD_END: "is longer or shorter than it says",
    _BAD_TIMESTAMP: "has an impossible timestamp",
}


class RecordsSummary:
    """What `summarize_records` found. Timestamps are those of the records, -1 where there is none."""

    __slots__ = ("delta", "fault", "keyless", "max_timestamp_ms", "min_timestamp_ms", "offset_delta", "place")
    fault: int
    """0 where all is well."""
    place: int
    """The place of the record that the fault is in; the number of records where bytes follow the last one."""
    keyless: int
    """How many records have no key."""
    min_timestamp_ms: int
    max_timestamp_ms: int
    delta: int
    """The timestamp of the record that was walked over last, as it is in its bytes."""
    offset_delta: int

    @property
    def has_bad_timestamp(self) -> bool:
        return self.fault == _BAD_TIMESTAMP

    @property
    def complaint(self) -> str:
        """What is wrong, as the end of a sentence about the record at `place`."""
        if self.fault == _LEFT_OVER:
            return "is the first that the batch does not count: bytes are left after its records"
        return _COMPLAINTS.get(self.fault, "")


if not cython.compiled:

    def address_of(view: memoryview) -> bytes:
        return bytes(view)

    def number_end(data: bytes, position: int, end: int, bits: int) -> int:
        """Return where the number at `position` ends, or 0 where it does not end in time or has too many bits."""
        shift = 0
        while position < end and shift < bits:
            byte = data[position]
            position += 1
            if shift + 7 > bits and (byte & 0x7F) >> (bits - shift):
                return 0
            if byte < 0x80:
                return position
            shift += 7
        return 0

    def number_at(data: bytes, position: int, after: int) -> int:
        """Return the zigzag-coded number that is `data[position:after]`."""
        raw = 0
        for place, byte in enumerate(data[position:after]):
            raw |= (byte & 0x7F) << (7 * place)
        return (raw >> 1) ^ -(raw & 1)


def summarize_records(header: BatchHeader, data: Buffer, start: int, limit: int) -> RecordsSummary:
    """Walk over the uncompressed records of a batch, which are `data[start:limit]`, and say what is in them.

    The number of records is the header's. Never raises for what the bytes say; `fault` is for the caller to judge.
    """
    view = memoryview(data)
    if not 0 <= start <= limit <= len(view):
        raise ValueError(f"{start}:{limit} is not within {len(view)} bytes")
    summary = RecordsSummary.__new__(RecordsSummary)
    address = address_of(view)
    count = header.record_count
    base = header.base_timestamp_ms
    if limit - start <= _SMALL_BYTES:
        _walk(summary, address, start, limit, count, base)
    else:
        with cython.nogil:
            _walk(summary, address, start, limit, count, base)
    return summary


def read_plain_batch(buffer: Buffer, max_batch_bytes: int) -> BatchHeader | None:
    """Return the header of the one batch in `buffer`, if all is well with it: what nearly all batches are.

    None says nothing but that a closer look is needed: the batch is compressed, too large, not alone, or its counts,
    records or maximum timestamp are not as they must be. Raises `CorruptBatchError` for a header or a checksum that is
    wrong.
    """
    header = read_header(buffer, 0)
    size = header.size_bytes
    if (
        size != len(buffer)
        or size > max_batch_bytes
        or header.attributes & COMPRESSION_MASK
        or header.record_count != header.last_offset_delta + 1
        or header.record_count > size
    ):
        return None
    check_crc32c(buffer, header)
    summary = summarize_records(header, buffer, BATCH_OVERHEAD, size)
    if summary.fault or summary.max_timestamp_ms != header.max_timestamp_ms:
        return None
    return header


def keyless_records(header: BatchHeader, data: Buffer, start: int, limit: int, most: int) -> list[int]:
    """Return the places of up to `most` records without a key, of records that were found to be whole."""
    view = memoryview(data)
    address = address_of(view)
    found: list[int] = []
    position = start
    place = 0
    while place < header.record_count and len(found) < most:
        after = number_end(address, position, limit, 32)
        end = after + number_at(address, position, after)
        position = number_end(address, after + 1, end, 64)
        position = number_end(address, position, end, 32)
        after = number_end(address, position, end, 32)
        if number_at(address, position, after) < 0:
            found.append(place)
        position = end
        place += 1
    return found


def find_time(
    header: BatchHeader, data: Buffer, start: int, limit: int, timestamp_ms: int, offset: int
) -> tuple[int, int] | None:
    """Return timestamp and offset of the first record at or after both, or None.

    For batches of a log, which compaction may have left gaps in. One whose records can't be read is found itself: so a
    reader meets it, and is told what to do about it.
    """
    view = memoryview(data)
    if not 0 <= start <= limit <= len(view):
        raise ValueError(f"{start}:{limit} is not within {len(view)} bytes")
    summary = RecordsSummary.__new__(RecordsSummary)
    address = address_of(view)
    count = header.record_count
    base = header.base_timestamp_ms
    wanted = max(offset - header.base_offset, 0)
    time = timestamp_ms
    with cython.nogil:
        _seek(summary, address, start, limit, count, base, time, wanted)
    if summary.fault:
        return header.max_timestamp_ms, max(header.base_offset, offset)
    if summary.place == count:
        return None
    return summary.max_timestamp_ms, header.base_offset + summary.offset_delta


def _seek(
    summary: RecordsSummary,
    data: bytes,
    start: int,
    limit: int,
    count: int,
    base: int,
    timestamp_ms: int,
    offset_delta: int,
) -> None:
    """Walk up to the first record at or after a time and an offset; `place` is `count` where there is none."""
    position = start
    place = 0
    summary.fault = _OK
    summary.keyless = 0
    while place < count:
        position = _any_record(summary, data, position, limit, -1)
        if position == 0:
            break
        if not _is_time(base, summary.delta):
            summary.fault = _BAD_TIMESTAMP
            break
        if base + summary.delta >= timestamp_ms and summary.offset_delta >= offset_delta:
            summary.max_timestamp_ms = base + summary.delta
            break
        place += 1
    summary.place = place


def oldest_time(header: BatchHeader, data: Buffer, start: int, limit: int) -> int:
    """Return the smallest timestamp that is not -1, of records that were found to be whole; -1 where there is none."""
    view = memoryview(data)
    address = address_of(view)
    oldest = -1
    position = start
    place = 0
    while place < header.record_count:
        after = number_end(address, position, limit, 32)
        end = after + number_at(address, position, after)
        position = number_end(address, after + 1, end, 64)
        time = header.base_timestamp_ms + number_at(address, after + 1, position)
        if time != -1 and (oldest == -1 or time < oldest):
            oldest = time
        position = end
        place += 1
    return oldest


def _walk(summary: RecordsSummary, data: bytes, start: int, limit: int, count: int, base: int) -> None:
    """Fill in the summary. Nothing outside of `data[start:limit]` is read, whatever it says."""
    position = start
    low = 0
    high = 0
    low_place = 0
    high_place = 0
    summary.fault = _OK
    summary.keyless = 0
    place = 0
    while place < count:
        end = _plain_record(summary, data, position, limit, place)
        if end == 0:
            end = _any_record(summary, data, position, limit, place)
            if end == 0:
                break
        delta = summary.delta
        if place == 0:
            low = delta
            high = delta
        elif delta > high:
            high = delta
            high_place = place
        elif delta < low:
            low = delta
            low_place = place
        position = end
        place += 1
    if summary.fault == _OK and position != limit:
        summary.fault = _LEFT_OVER
    if summary.fault == _OK and place > 0:
        if not _is_time(base, high):
            summary.fault = _BAD_TIMESTAMP
            place = high_place
        elif not _is_time(base, low):
            summary.fault = _BAD_TIMESTAMP
            place = low_place
    summary.place = place
    summary.min_timestamp_ms = -1
    summary.max_timestamp_ms = -1
    if summary.fault == _OK and place > 0:
        summary.min_timestamp_ms = base + low
        summary.max_timestamp_ms = base + high


def _plain_record(summary: RecordsSummary, data: bytes, position: int, limit: int, place: int) -> int:
    """Walk over a record as nearly all are: numbers of one or two bytes, no headers. Returns where it ends.

    0 says nothing but that `_any_record` must look: this is what makes the check cheap, and no more.
    """
    if limit - position < _PLAIN_BYTES_MIN:
        return 0
    raw = data[position]
    position += 1
    if raw >= 0x80:
        high = data[position]
        position += 1
        if high >= 0x80:
            return 0
        raw = raw & 0x7F | high << 7
    if raw & 1 or raw < 2 * _PLAIN_BYTES_MIN or raw >> 1 > limit - position:
        return 0
    end = position + (raw >> 1)
    position += 1
    raw = data[position]
    position += 1
    if raw >= 0x80:
        high = data[position]
        position += 1
        if high >= 0x80:
            return 0
        raw = raw & 0x7F | high << 7
    delta = (raw >> 1) ^ -(raw & 1)
    raw = data[position]
    position += 1
    if raw >= 0x80:
        high = data[position]
        position += 1
        if high >= 0x80:
            return 0
        raw = raw & 0x7F | high << 7
    if raw != 2 * place:
        return 0
    raw = data[position]
    position += 1
    if raw != 1:
        if raw >= 0x80:
            high = data[position]
            position += 1
            if high >= 0x80:
                return 0
            raw = raw & 0x7F | high << 7
        if raw & 1:
            return 0
        position += raw >> 1
        keyless = 0
    else:
        keyless = 1
    if end - position < 3:
        return 0
    raw = data[position]
    position += 1
    if raw >= 0x80:
        high = data[position]
        position += 1
        if high >= 0x80:
            return 0
        raw = raw & 0x7F | high << 7
    if raw & 1 or position + (raw >> 1) + 1 != end or data[end - 1] != 0:
        return 0
    summary.keyless += keyless
    summary.delta = delta
    return end


def _any_record(summary: RecordsSummary, data: bytes, position: int, limit: int, place: int) -> int:
    """Walk over one record of any shape, and return where it ends; 0 where it is none, which `fault` then says.

    `place` is what its offset delta must be; -1 allows any.
    """
    after = number_end(data, position, limit, 32)
    if after == 0:
        summary.fault = _BAD_NUMBER
        return 0
    length = number_at(data, position, after)
    if length < _LENGTH_MIN or length > limit - after:
        summary.fault = _BAD_LENGTH
        return 0
    end = after + length
    position = after + 1
    after = number_end(data, position, end, 64)
    if after == 0:
        summary.fault = _BAD_NUMBER
        return 0
    summary.delta = number_at(data, position, after)
    position = after
    after = number_end(data, position, end, 32)
    if after == 0:
        summary.fault = _BAD_NUMBER
        return 0
    summary.offset_delta = number_at(data, position, after)
    if place >= 0 and summary.offset_delta != place:
        summary.fault = _BAD_OFFSET
        return 0
    # The key, and then the value.
    field = 0
    while field < 2:
        position = after
        after = number_end(data, position, end, 32)
        if after == 0:
            summary.fault = _BAD_NUMBER
            return 0
        size = number_at(data, position, after)
        if size == -1:
            size = 0
            if field == 0:
                summary.keyless += 1
        if size < 0 or size > end - after:
            summary.fault = _BAD_SIZE
            return 0
        after += size
        field += 1
    summary.fault = _walk_headers(data, after, end)
    return end if summary.fault == _OK else 0


def _walk_headers(data: bytes, position: int, end: int) -> int:
    """Walk over the headers of one record, which must end where the record does."""
    after = number_end(data, position, end, 32)
    if after == 0:
        return _BAD_NUMBER
    count = number_at(data, position, after)
    # A header has two sizes, of a byte each at least.
    if count < 0 or 2 * count > end - after:
        return _BAD_HEADERS
    position = after
    # Names and values in turn; a name can't be null.
    index = 0
    while index < 2 * count:
        after = number_end(data, position, end, 32)
        if after == 0:
            return _BAD_NUMBER
        size = number_at(data, position, after)
        if size == -1 and index & 1:
            size = 0
        if size < 0 or size > end - after:
            return _BAD_SIZE
        position = after + size
        index += 1
    return _OK if position == end else _BAD_END


def _is_time(base: int, delta: int) -> bool:
    """Whether both can be added up to a time that there is."""
    return (
        -_TIME_LIMIT <= base <= _TIME_LIMIT
        and -_DELTA_LIMIT < delta < _DELTA_LIMIT
        and (-_TIME_LIMIT <= base + delta <= _TIME_LIMIT)
    )
