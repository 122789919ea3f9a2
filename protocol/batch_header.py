# cython: annotation_typing=False
"""The header of a record batch: read, checked, and patched in place, without looking into the records.

    base offset int64 | length int32 | leader epoch int32 | magic int8 | CRC-32C uint32 | attributes int16 |
    last offset delta int32 | base timestamp int64 | max timestamp int64 | producer id int64 | producer epoch int16 |
    base sequence int32 | record count int32 | records, compressed together where the attributes say so

The checksum covers everything from the attributes on, so a broker sets the base offset and the leader epoch in place.
Compiled with the C types of batch_header.pxd, or interpreted with `bytes` in the place of pointers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, TypeAlias

try:
    import cython
except ModuleNotFoundError:
    from semel.protocol import uncompiled as cython

from semel.protocol.compression import Compression
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import NO_LEADER_EPOCH, NO_SEQUENCE
from semel.protocol.int_bounds import INT32_MAX

Buffer: TypeAlias = bytes | bytearray | memoryview

BATCH_OVERHEAD: Final = 61
"""Bytes of a batch before its records."""
RECORD_BYTES_MIN: Final = 7
"""Length, attributes, timestamp, offset, key, value and header count take a byte each at least."""

COMPRESSION_MASK: Final = 0x07
APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LENGTH_END: Final = 12
"""Where the bytes begin that the length field counts."""
_LEADER_EPOCH_AT: Final = 12
_MAX_TIMESTAMP_AT: Final = 35
_PRODUCER_AT: Final = 43

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_put_int32: Final = _INT32.pack_into
_INT64: Final = struct.Struct(">q")
_put_int64: Final = _INT64.pack_into
UINT32: Final = struct.Struct(">I")
_PRODUCER: Final = struct.Struct(">qhi")

_SEQUENCES: Final = 2**31
_OVERHEAD: Final = BATCH_OVERHEAD
_LENGTH_END: Final = LENGTH_END
_SIZE_LIMIT: Final = INT32_MAX
_OFFSET_LIMIT: Final = 2**63 - 2**32


class TimestampType(IntEnum):
    """What the timestamps of a batch mean, numbered as in its attributes."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader:
    """The fields of a batch before its records, and `position`, where it begins in the buffer it was read from."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp_ms",
        "crc",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp_ms",
        "position",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
    )
    position: int
    base_offset: int
    size_bytes: int
    """Of the whole batch: the length field and the 12 bytes up to it."""
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; 0 follows 2^31-1 (P2). -1 without a sequence."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCES

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & COMPRESSION_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & APPEND_TIME else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the base timestamp is the time from which compaction may drop tombstones and markers."""
        return self.attributes & DELETE_HORIZON != 0

    @property
    def has_producer(self) -> bool:
        return self.producer_id >= 0

    def __repr__(self) -> str:
        return (
            f"BatchHeader(base_offset={self.base_offset}, last_offset={self.last_offset}, "
            f"size_bytes={self.size_bytes}, record_count={self.record_count}, producer_id={self.producer_id}, "
            f"producer_epoch={self.producer_epoch}, base_sequence={self.base_sequence}, "
            f"attributes={self.attributes:#x}, leader_epoch={self.leader_epoch})"
        )


# Reading headers

if not cython.compiled:

    def address_of(view: memoryview) -> memoryview:
        return view


# Without a number of more than 31 bits in them: Cython makes a Python object of each that is written out.
def _int64(data: memoryview, position: int) -> int:
    return (_int32(data, position) << 32) + _uint32(data, position + 4)


def _int32(data: memoryview, position: int) -> int:
    return _int16(data, position) * 0x10000 + (data[position + 2] << 8 | data[position + 3])


def _uint32(data: memoryview, position: int) -> int:
    high = data[position]
    return high * 0x1000000 + (data[position + 1] << 16 | data[position + 2] << 8 | data[position + 3])


def _int16(data: memoryview, position: int) -> int:
    value = data[position] << 8 | data[position + 1]
    return value - 0x10000 if value >= 0x8000 else value


def _parse_header(data: memoryview, position: int, size: int) -> BatchHeader:
    """Read the header at `position` of `size` bytes, and check all that it can say without its records."""
    if position < 0 or size - position < _OVERHEAD:
        raise CorruptBatchError(
            f"a batch at position {position} needs {BATCH_OVERHEAD} bytes for its header; {size - position} are left"
        )
    header = BatchHeader.__new__(BatchHeader)
    header.position = position
    if cython.compiled:
        header.base_offset = _int64(data, position)
        header.size_bytes = _int32(data, position + 8)
        header.leader_epoch = _int32(data, position + 12)
        header.magic = _int16(data, position + 15) << 56 >> 56
        header.crc = _uint32(data, position + 17)
        header.attributes = _int16(data, position + 21)
        header.last_offset_delta = _int32(data, position + 23)
        header.base_timestamp_ms = _int64(data, position + 27)
        header.max_timestamp_ms = _int64(data, position + 35)
        header.producer_id = _int64(data, position + 43)
        header.producer_epoch = _int16(data, position + 51)
        header.base_sequence = _int32(data, position + 53)
        header.record_count = _int32(data, position + 57)
    else:
        (
            header.base_offset,
            header.size_bytes,
            header.leader_epoch,
            header.magic,
            header.crc,
            header.attributes,
            header.last_offset_delta,
            header.base_timestamp_ms,
            header.max_timestamp_ms,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
        ) = HEADER.unpack_from(data, position)
    header.size_bytes += _LENGTH_END
    if header.magic != 2:
        raise CorruptBatchError(
            f"the batch at position {position} has the format version {header.magic}; only version 2 is supported "
            "(clients from Kafka 0.11 on write it)"
        )
    if header.size_bytes < _OVERHEAD or header.size_bytes > _SIZE_LIMIT:
        raise CorruptBatchError(
            f"the batch at position {position} has the impossible size of {header.size_bytes} bytes"
        )
    if header.record_count < 0 or header.last_offset_delta < 0 or header.base_offset > _OFFSET_LIMIT:
        raise CorruptBatchError(
            f"the batch at position {position} has the impossible record count {header.record_count}, "
            f"last offset delta {header.last_offset_delta} or base offset {header.base_offset}",
            ErrorCode.INVALID_RECORD,
        )
    return header


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch at `position`. Its records need not be in the buffer.

    Raises `CorruptBatchError` for too few bytes, another format version, and sizes and counts that cannot be.
    """
    size = len(buffer)
    if size == 0:
        raise CorruptBatchError("an empty buffer has no batch")
    view = memoryview(buffer)
    return _parse_header(address_of(view), position, size)


def check_crc32c(buffer: Buffer, header: BatchHeader) -> None:
    actual = crc32c(buffer, header.position + ATTRIBUTES_AT, header.position + header.size_bytes)
    if actual != header.crc:
        raise CorruptBatchError(
            f"the batch at position {header.position} (base offset {header.base_offset}, {header.size_bytes} bytes) "
            f"has the CRC-32C {actual:#010x}, but says {header.crc:#010x}"
        )


def validate_batches(buffer: Buffer, *, max_batch_bytes: int, strict_count: bool = True) -> list[BatchHeader]:
    """Return the headers of the whole batches that `buffer` is made of, without looking into their records.

    Checks format version, sizes, CRC-32C, codec and counts. With `strict_count`, as for clients, a batch must have a
    record for each of its offsets; replicated and compacted batches may have fewer.
    Raises `CorruptBatchError`, or a `SemelError` with MESSAGE_TOO_LARGE for a batch of more than `max_batch_bytes`.
    """
    return _split(buffer, max_batch_bytes, strict_count)


def _split(buffer: Buffer, max_batch_bytes: int, strict_count: bool) -> list[BatchHeader]:
    headers = []
    position = 0
    size = len(buffer)
    if size == 0:
        raise CorruptBatchError("an empty buffer has no batch")
    while position < size:
        header = _whole_batch(buffer, position, size, max_batch_bytes, strict_count)
        headers.append(header)
        position += header.size_bytes
    return headers


def _whole_batch(buffer: Buffer, position: int, size: int, max_batch_bytes: int, strict_count: bool) -> BatchHeader:
    header = read_header(buffer, position)
    if header.size_bytes > max_batch_bytes:
        raise _too_large(header.size_bytes, max_batch_bytes)
    if header.size_bytes > size - position:
        raise CorruptBatchError(
            f"the batch at position {position} has {header.size_bytes} bytes, and {size - position} are left"
        )
    check_crc32c(buffer, header)
    if header.attributes & COMPRESSION_MASK > 4:
        raise unknown_codec(header)
    _check_count(header, strict_count)
    return header


def leading_batches(buffer: Buffer, position: int = 0) -> list[BatchHeader]:
    """Return the headers of the batches from `position` on, up to the first that is not whole, or not right as
    `validate_batches` has it, without `strict_count`.
    """
    headers: list[BatchHeader] = []
    size = len(buffer)
    try:
        while position < size:
            header = _whole_batch(buffer, position, size, _SIZE_LIMIT, False)
            headers.append(header)
            position += header.size_bytes
    except CorruptBatchError:
        return headers
    return headers


def _check_count(header: BatchHeader, strict_count: bool) -> None:
    if strict_count and (header.record_count != header.last_offset_delta + 1):
        raise CorruptBatchError(
            f"the batch at position {header.position} has {header.record_count} records for "
            f"{header.last_offset_delta + 1} offsets",
            ErrorCode.INVALID_RECORD,
        )
    if header.record_count > header.last_offset_delta + 1:
        raise CorruptBatchError(
            f"the batch at position {header.position} has {header.record_count} records, more than its "
            f"{header.last_offset_delta + 1} offsets",
            ErrorCode.INVALID_RECORD,
        )
    if header.attributes & COMPRESSION_MASK == 0:
        check_room(header, header.size_bytes - BATCH_OVERHEAD)


def check_room(header: BatchHeader, size_bytes: int) -> None:
    if header.record_count * RECORD_BYTES_MIN > size_bytes:
        raise CorruptBatchError(
            f"the batch at position {header.position} claims {header.record_count} records in {size_bytes} bytes",
            ErrorCode.INVALID_RECORD,
        )


def _too_large(size_bytes: int, max_batch_bytes: int) -> SemelError:
    return error_for(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a batch of {size_bytes} bytes is larger than the {max_batch_bytes} allowed; "
        "send smaller batches, or raise max.message.bytes of the topic",
    )


def unknown_codec(header: BatchHeader) -> CorruptBatchError:
    return CorruptBatchError(
        f"the batch at position {header.position} has the unknown compression {header.attributes & COMPRESSION_MASK}"
    )


def iter_batches(buffer: Buffer) -> Iterator[BatchHeader]:
    """Yield the headers of the batches in `buffer`, stopping quietly at a tail that is not whole.

    Fetch answers end so, where the size limit cut the log. The checksum is looked at when records are decoded.
    """
    position = 0
    size = len(buffer)
    while size - position >= BATCH_OVERHEAD:
        header = read_header(buffer, position)
        if header.size_bytes > size - position:
            return
        yield header
        position += header.size_bytes


# Patching in place


def set_base_offset(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int = NO_LEADER_EPOCH
) -> None:
    """Give the batch at `position` its offset and leader epoch, in place. The checksum does not cover them."""
    _put_int64(buffer, position, base_offset)
    _put_int32(buffer, position + _LEADER_EPOCH_AT, leader_epoch)


def set_append_time(buffer: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Mark the batch at `position` as timestamped by the log at `timestamp_ms`, in place, with a new checksum.

    The records keep their own timestamps in their bytes; every reader takes the batch's maximum instead.
    """
    header = read_header(buffer, position)
    _INT16.pack_into(buffer, position + ATTRIBUTES_AT, header.attributes | APPEND_TIME)
    _INT64.pack_into(buffer, position + _MAX_TIMESTAMP_AT, timestamp_ms)
    _set_crc(buffer, position, header.size_bytes)


def set_max_timestamp(buffer: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Give the batch at `position` the maximum timestamp that its records have, in place, with a new checksum."""
    header = read_header(buffer, position)
    _INT64.pack_into(buffer, position + _MAX_TIMESTAMP_AT, timestamp_ms)
    _set_crc(buffer, position, header.size_bytes)


def with_records(header: BatchHeader, buffer: Buffer, codec: Compression, records: Buffer) -> bytearray:
    """Return the batch with its records as `records` has them: the same ones, compressed by `codec`."""
    batch = bytearray(BATCH_OVERHEAD + len(records))
    batch[:BATCH_OVERHEAD] = memoryview(buffer)[header.position : header.position + BATCH_OVERHEAD]
    batch[BATCH_OVERHEAD:] = records
    _INT32.pack_into(batch, LENGTH_END - 4, len(batch) - LENGTH_END)
    _INT16.pack_into(batch, ATTRIBUTES_AT, header.attributes & ~COMPRESSION_MASK | codec)
    _set_crc(batch, 0, len(batch))
    return batch


def set_producer(
    buffer: bytearray | memoryview, position: int, *, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Give the batch at `position` another producer state, in place, with a new checksum.

    A producer whose epoch was bumped numbers what it has not sent successfully again (KIP-360).
    """
    header = read_header(buffer, position)
    _PRODUCER.pack_into(buffer, position + _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    _set_crc(buffer, position, header.size_bytes)


def _set_crc(buffer: bytearray | memoryview, position: int, size_bytes: int) -> None:
    if position + size_bytes > len(buffer):
        raise CorruptBatchError(
            f"the batch at position {position} has {size_bytes} bytes, and {len(buffer) - position} are left"
        )
    UINT32.pack_into(buffer, position + CRC_AT, crc32c(buffer, position + ATTRIBUTES_AT, position + size_bytes))
