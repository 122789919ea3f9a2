"""What a start after a clean stop looks at before it trusts a segment: some index entries, and the last batches.

Nobody writes to a log between two runs of a node, or should. Files that were copied half, cut or overwritten are found
here, without reading the log: a tail that is not where the last stop noted it, and indexes that cannot be true.
"""

from __future__ import annotations

import struct
from typing import Final

from semel.broker.log.batch_scan import FAR_BYTES, WALK_BYTES, scan_batches, scan_headers
from semel.broker.log.segment import LOG_SUFFIX, Segment
from semel.protocol.batch_builder import encode_batch, rewrite_batch
from semel.protocol.batch_header import BatchHeader, check_crc32c, read_header, set_base_offset
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.crc32c import crc32c
from semel.protocol.ids import NO_TIMESTAMP
from semel.protocol.int_bounds import INT32_MAX
from semel.runtime.storage import Storage

CUT_SUFFIX: Final = ".cut"
TORN_SUFFIX: Final = ".torn.cut"
"""Of what a crash tore: only the last such tail is kept, or every kill would leave a file for good."""
_CHECKSUMS_BYTES_MAX: Final = 64 << 10
"""A tail up to this is read for its checksums."""
_CHECKSUM: Final = struct.Struct(">I")
_CRC: Final = 17
_OFFSETS_AND_TIMES: Final = struct.Struct(">iqq")
_LAST_OFFSET_DELTA: Final = 23


def tail_fault(segment: Segment, end_offset: int | None) -> str | None:
    """Say what is wrong with the batches behind the segment's last index entry by their headers, or None.

    `end_offset` is where the segment is to end; None where that is not known.
    """
    end, position = segment.offsets.last()
    newest_ms = NO_TIMESTAMP
    if position > segment.size:
        return f"it has {segment.size} bytes, and its index names position {position}"
    try:
        for at, header in scan_headers(segment.file, position, segment.size):
            end, newest_ms = header.next_offset, max(newest_ms, header.max_timestamp_ms)
            position = at + header.size_bytes
        # Retention and look-ups by time believe the last entry, which closing the segment wrote.
        known_ms = segment.times.last()[0]
        if newest_ms > known_ms or (known_ms < 0 and segment.first_timestamp_ms >= 0):
            return "its time index lacks the largest timestamp"
    except CorruptBatchError as error:
        return f"it has {segment.size} bytes, and no whole batch at position {position} (offset {end}): {error.message}"
    return _misses(segment, end, end_offset)


def broken_tail_batch(segment: Segment) -> tuple[int, BatchHeader] | None:
    """Return the first batch behind the segment's last index entry whose checksum is wrong, and its position, or None.

    A tail that ends in a large batch is not read for this.
    """
    position = segment.offsets.last()[1]
    if segment.size - position <= _CHECKSUMS_BYTES_MAX:
        for at, header, batch in scan_batches(segment.file, position, segment.size):
            if not is_intact(batch):
                return at, header
    return None


def is_intact(batch: memoryview) -> bool:
    """Say whether a batch has its checksum."""
    try:
        check_crc32c(batch, read_header(batch))
    except CorruptBatchError:
        return False
    return True


def walk_fault(segment: Segment, end_offset: int | None = None) -> str | None:
    """Say what is wrong with the segment by the headers of all its batches, without its indexes, or None."""
    end = segment.base_offset
    position = 0
    try:
        for position, header in scan_headers(segment.file, 0, segment.size, chunk_bytes=WALK_BYTES):
            if header.base_offset < end:
                return f"offset {header.base_offset} follows offset {end - 1} at position {position}"
            end = header.next_offset
            position += header.size_bytes
    except CorruptBatchError as error:
        return f"no whole batch at position {position} (offset {end}): {error.message}"
    return _misses(segment, end, end_offset)


def _misses(segment: Segment, end: int, expected: int | None) -> str | None:
    if expected is None or end == expected or expected - end > INT32_MAX:
        return None  # a gap wider than a segment can span is one that the log's writer left
    return f"with {segment.size} bytes it ends at offset {end}, and the last stop left it ending at offset {expected}"


def indexes_are_sane(segment: Segment, end_offset: int | None) -> bool:
    """Say whether the offset and time indexes can be true."""
    return segment.offsets.is_sane(segment.size, end_offset) and segment.times.is_sane(end_offset)


def transactions_are_sane(segment: Segment, end_offset: int | None) -> bool:
    """Say whether the list of aborted transactions can be true."""
    return not segment.transactions.exists or segment.transactions.is_sane(segment.base_offset, end_offset)


def put_aside(storage: Storage, segment: Segment, position: int, suffix: str = CUT_SUFFIX) -> str:
    """Copy what is about to be cut from `position` on, and return the copy's path. Raises `OSError`.

    It had been whole once, or may have been, and an expert may save records out of it.
    """
    path = f"{segment.path(LOG_SUFFIX)}.{position}{suffix}"
    copy = storage.open(path, create=True)
    try:
        copy.truncate(0)
        for at in range(position, segment.size, FAR_BYTES):
            copy.append([segment.file.read_at(FAR_BYTES, at)])
        copy.sync()
    except OSError:
        storage.remove(path)
        raise
    finally:
        copy.close()
    return path


def stand_in(first_offset: int, end_offset: int, leader_epoch: int) -> bytearray:
    """Return a batch without records, as compaction leaves them, that stands for the offsets of lost ones.

    So no offset is given to another record (D3), and a reader that was past the damage misses nothing that comes.
    """
    batch = rewrite_batch(read_header(encode_batch([(0, None, None, ())])), ())
    _OFFSETS_AND_TIMES.pack_into(batch, _LAST_OFFSET_DELTA, end_offset - first_offset - 1, NO_TIMESTAMP, NO_TIMESTAMP)
    _CHECKSUM.pack_into(batch, _CRC, crc32c(memoryview(batch)[_CRC + _CHECKSUM.size :]))
    set_base_offset(batch, 0, first_offset, leader_epoch)
    return batch
