# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""One segment: `<base offset>.log` and its indexes, all of one stretch of offsets. Files open when needed, not
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

from semel.broker.log.batch_runs import largest_timestamp, stretch
from semel.broker.log.batch_scan import WALK_BYTES, scan_headers, whole_batches
from semel.broker.log.config import LogConfig
from semel.broker.log.disk_errors import is_full
from semel.broker.log.log_types import AbortedTransaction
from semel.broker.log.offset_index import OffsetIndex
from semel.broker.log.open_files import OpenFiles, SharedFile
from semel.broker.log.time_index import TimeIndex
from semel.broker.log.transaction_index import TransactionIndex
from semel.protocol.batch_header import BATCH_OVERHEAD, BatchHeader, read_header
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.ids import NO_TIMESTAMP
from semel.protocol.int_bounds import INT32_MAX
from semel.runtime.invariants import BrokenInvariantError
from semel.runtime.storage import Buffer, Storage

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

_UNKNOWN: Final = -1
_RELATIVE_MAX: Final = INT32_MAX
_AGAIN_BYTES: Final = 1 << 20


def segment_path(folder: str, offset: int, suffix: str) -> str:
    """Return the path of a segment's file: 20 digits of its base offset, as Kafka names it."""
    return f"{folder}/{offset:020d}{suffix}"


class Segment:
    """Appends go to the last segment of a log alone; the others are only read, deleted or replaced whole."""

    __slots__ = (
        "_file",
        "_files",
        "_first_timestamp_ms",
        "_max_timestamp",
        "_size",
        "_storage",
        "_unindexed_bytes",
        "base_offset",
        "created_ms",
        "end_offset",
        "folder",
        "offsets",
        "suffix",
        "times",
        "transactions",
    )

    def __init__(
        self,
        storage: Storage,
        folder: str,
        base_offset: int,
        files: OpenFiles,
        *,
        created_ms: int,
        new: bool = False,
        has_transactions: bool = False,
        suffix: str = "",
    ) -> None:
        self._storage = storage
        self._files = files
        self._file: SharedFile | None = None
        self._size = 0 if new else _UNKNOWN
        self._max_timestamp: tuple[int, int] | None = (NO_TIMESTAMP, base_offset) if new else None
        """The largest timestamp, and the last offset of the batch that has it. None: ask the time index."""
        self._first_timestamp_ms: int | None = None
        self._unindexed_bytes = 0
        self.folder = folder
        self.base_offset = base_offset
        self.end_offset = base_offset if new else _UNKNOWN
        """Behind the last record. Kept for the active segment; of the others `Segments.end_of` says it."""
        self.suffix = suffix
        self.created_ms = created_ms
        self.offsets = OffsetIndex(storage, self.path(INDEX_SUFFIX), base_offset, files, empty=new)
        self.times = TimeIndex(storage, self.path(TIME_INDEX_SUFFIX), base_offset, files, empty=new)
        self.transactions = TransactionIndex(
            storage, self.path(TXN_INDEX_SUFFIX), files, exists=has_transactions and not new
        )
        if new:
            self._open(create=True)

    def path(self, suffix: str) -> str:
        return segment_path(self.folder, self.base_offset, suffix) + self.suffix

    # --- The file -----------------------------------------------------------------------------------------------------

    def _open(self, *, create: bool = False) -> SharedFile:
        file = self._file = SharedFile(self._storage.open(self.path(LOG_SUFFIX), create=create))
        self._files.opened(self)
        if self._size < 0:
            self._size = file.size()
        return file

    @property
    def file(self) -> SharedFile:
        """The open file. As long as it is kept, it stays open."""
        return self._file or self._open()

    @property
    def size(self) -> int:
        """Bytes of batches."""
        if self._size < 0:
            self._open()
        return self._size

    def release_file(self) -> None:
        if self._file is not None:
            self._file = None
            self._files.closed(self)

    def release_files(self) -> None:
        """Close everything until it is needed again. Index entries that are pending stay in memory."""
        self.release_file()
        self.offsets.release_file()
        self.times.release_file()
        self.transactions.release_file()

    # --- Appending ----------------------------------------------------------------------------------------------------

    def append_run(self, run: memoryview, headers: list[BatchHeader], index_interval_bytes: int) -> None:
        """Append several batches with one write. Raises `OSError`, as `append`."""
        if headers[0].base_offset < self.end_offset:
            self._offsets_overlap(headers[0].base_offset)
        file = self._file or self._open()
        position = self._size
        file.append([run])
        self._size = position + run.nbytes
        self.end_offset = headers[-1].next_offset
        self.note_run(position, headers, index_interval_bytes)

    def append(
        self,
        buffers: Sequence[Buffer],
        size: int,
        last_offset: int,
        max_timestamp_ms: int,
        index_interval_bytes: int,
    ) -> int:
        """Write whole batches at the end; return their position. Raises `OSError`; then nothing was taken in, but the
        file may hold a part of the batches until `cut` removes it."""
        if last_offset < self.end_offset:
            self._offsets_overlap(last_offset)
        file = self._file or self._open()
        position = self._size
        file.append(buffers)
        self._size = position + size
        self.end_offset = last_offset + 1
        self.note_batches(position, size, last_offset, max_timestamp_ms, index_interval_bytes)
        return position

    def _offsets_overlap(self, offset: int) -> NoReturn:
        """Before anything is written: from this follows that the indexes grow."""
        raise BrokenInvariantError(
            self.path(LOG_SUFFIX), "offsets only grow in a segment", appended=offset, segment_end_offset=self.end_offset
        )

    def note_run(self, position: int, headers: list[BatchHeader], index_interval_bytes: int) -> None:
        """Take batches that lie in the file from `position` on into the indexes, as `note_batches` does each."""
        number = 0
        while number < len(headers):
            # The first batch of a segment tells its age, and is noted alone.
            room = index_interval_bytes - self._unindexed_bytes if position else -1
            count, size, max_timestamp_ms, last_offset = stretch(headers, number, room)
            self.note_batches(position, size, last_offset, max_timestamp_ms, index_interval_bytes)
            number += count
            position += size

    def note_batches(
        self, position: int, size: int, last_offset: int, max_timestamp_ms: int, index_interval_bytes: int
    ) -> None:
        """Take batches that are in the file into the indexes: one entry about every `index_interval_bytes`.

        last_offset: of the first batch that has the largest timestamp
        """
        largest = self._max_timestamp
        if largest is None:
            largest = self.max_timestamp
        if max_timestamp_ms > largest[0]:
            self._max_timestamp = largest = (max_timestamp_ms, last_offset)
        if position == 0:
            self._first_timestamp_ms = max_timestamp_ms
        if self._unindexed_bytes > index_interval_bytes:
            self.offsets.add(last_offset, position)
            self.times.add(*largest)
            self._unindexed_bytes = 0
        self._unindexed_bytes += size

    def cut(self, size: int, end_offset: int) -> None:
        """Remove what is behind `size`, where the segment ends at `end_offset`. Raises `OSError`."""
        file = self._file or self._open()
        file.truncate(size)
        self._size = size
        self.end_offset = end_offset

    def should_roll(self, size: int, last_offset: int, max_timestamp_ms: int, now_ms: int, config: LogConfig) -> bool:
        """Say whether batches of `size` bytes belong into a new segment: size, relative offset, age, full indexes."""
        mine = self._size if self._size >= 0 else self.size
        if mine == 0:
            return last_offset - self.base_offset > _RELATIVE_MAX
        if mine + size > config.segment_bytes or last_offset - self.base_offset > _RELATIVE_MAX:
            return True
        # The records' own measure of the segment's age, or the clock's where they have no timestamps.
        first = self._first_timestamp_ms
        if first is None:
            first = self._first_timestamp_ms = self._read_first_timestamp()
        if (max_timestamp_ms - first if first >= 0 else now_ms - self.created_ms) > config.roll_ms:
            return True
        if self._unindexed_bytes > config.index_interval_bytes:
            # The time index keeps a place for the entry that closing the segment writes.
            most = config.segment_index_bytes
            return (
                self.offsets.size_bytes + self.offsets.ENTRY.size > most
                or self.times.size_bytes + 2 * self.times.ENTRY.size > most
            )
        return False

    def has_room_for(self, run: list[BatchHeader], now_ms: int, config: LogConfig) -> bool:
        """Say whether none of several batches belongs into a new segment. False says nothing."""
        size = run[-1].position + run[-1].size_bytes - run[0].position
        most = config.segment_index_bytes
        # The first batch of a segment tells its age, and each may have an entry.
        return (
            self.size > 0
            and self.offsets.size_bytes + (len(run) + 1) * self.offsets.ENTRY.size <= most
            and self.times.size_bytes + (len(run) + 2) * self.times.ENTRY.size <= most
            and not self.should_roll(size, run[-1].last_offset, largest_timestamp(run), now_ms, config)
        )

    def _read_first_timestamp(self) -> int:
        if self.size < BATCH_OVERHEAD:
            return NO_TIMESTAMP
        return read_header(self.file.read_at(BATCH_OVERHEAD, 0)).max_timestamp_ms

    @property
    def first_timestamp_ms(self) -> int:
        """The largest timestamp of the first batch, or -1."""
        if self._first_timestamp_ms is None:
            self._first_timestamp_ms = self._read_first_timestamp()
        return self._first_timestamp_ms

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """The largest timestamp with the last offset of its batch, or (-1, base offset)."""
        if self._max_timestamp is None:
            self._max_timestamp = self.times.last()
        return self._max_timestamp

    def restart_indexes(self, position: int, offset: int) -> None:
        """Drop the index entries that are to be built again: by position from `position` on, transactions from `offset`
        on.

        `position` is where `offset` begins, or 0 where that is not to be found. What a power cut tore behind them is
        dropped too: the last entries left are compared with their batches.
        """
        self.transactions.truncate_entries(self.transactions.growing_prefix(offset))
        if position == 0:
            self.restart_offsets()
        else:
            self._restart_offsets_at(position)
        while len(self.transactions) and not self._is_true_abort(self.transactions.entry(len(self.transactions) - 1)):
            self.transactions.truncate_entries(len(self.transactions) - 1)

    def _restart_offsets_at(self, position: int) -> None:
        self.offsets.truncate_entries(self.offsets.growing_prefix(1, position))
        while len(self.offsets) and not self._is_true_offset(*self.offsets.last()):
            self.offsets.truncate_entries(len(self.offsets) - 1)
        last_offset, last_position = self.offsets.last()
        self.times.truncate_entries(self.times.growing_prefix(1, last_offset + 1 - self.base_offset))
        while len(self.times) and not self._is_true_time(*self.times.last()):
            self.times.truncate_entries(len(self.times) - 1)
        self._max_timestamp = self.times.last()
        # What follows the last entry is not looked at again, so only its headers tell of a larger timestamp.
        with suppress(CorruptBatchError):
            for _, header in scan_headers(self.file, last_position, position):
                if header.max_timestamp_ms > self._max_timestamp[0]:
                    self._max_timestamp = (header.max_timestamp_ms, header.last_offset)
        self._unindexed_bytes = position - last_position

    def restart_offsets(self) -> None:
        """Drop all entries of the offset and time indexes."""
        self.offsets.truncate_entries(0)
        self.times.truncate_entries(0)
        self._max_timestamp = (NO_TIMESTAMP, self.base_offset)
        self._first_timestamp_ms = None
        self._unindexed_bytes = 0

    def rebuild_indexes(self, interval_bytes: int) -> None:
        """Build the offset and time indexes again from the headers of all batches, and bring them into their files.

        Raises `OSError`, and `CorruptBatchError` where the batches themselves are broken.
        """
        self.restart_offsets()
        for position, header in scan_headers(self.file, 0, self.size, chunk_bytes=WALK_BYTES):
            self.note_batches(position, header.size_bytes, header.last_offset, header.max_timestamp_ms, interval_bytes)
        self.close_indexes()

    def _is_true_offset(self, offset: int, position: int) -> bool:
        try:
            return read_header(self.file.read_at(BATCH_OVERHEAD, position)).last_offset == offset
        except CorruptBatchError:
            return False

    def _is_true_time(self, timestamp_ms: int, offset: int) -> bool:
        found = self.locate(offset)
        return found is not None and (found[1].last_offset, found[1].max_timestamp_ms) == (offset, timestamp_ms)

    def _is_true_abort(self, transaction: AbortedTransaction) -> bool:
        try:
            found = self.locate(transaction.last_offset)
        except CorruptBatchError:
            return False
        return (
            found is not None
            and found[1].is_control
            and (found[1].base_offset, found[1].producer_id) == (transaction.last_offset, transaction.producer_id)
        )

    def close_indexes(self) -> None:
        """Bring the indexes into their files, the largest timestamp included: the segment is rolled, or the log
        closes.
        """
        self.times.add(*self.max_timestamp)
        self.offsets.trim()
        self.times.trim()
        self.transactions.write_waiting()

    def write_indexes(self) -> None:
        """Bring all entries of the indexes into their files. Raises `OSError`; it can be repeated then."""
        self.offsets.write_pending()
        self.times.write_pending()
        self.transactions.write_waiting()

    def files_to_sync(self) -> list[SharedFile]:
        """Return all files, written as far as the segment goes: once each is synced, it survives a power cut.

        Raises `OSError`.
        """
        self.write_indexes()
        files = [self.file]
        for index in (self.offsets, self.times, self.transactions):
            if index.unsynced:
                index.unsynced = False
                files.append(index.file)
        return files

    def complete_indexes(self, end: int) -> None:
        """Complete the indexes of a rolled segment, which ends at offset `end`: its largest timestamp has an entry.

        An entry behind the last one of the offset index is always written again: it may be in the file and not on the
        disk. The sync, and what a full disk has no room for, is left to the next flush. Raises `OSError`, and
        `CorruptBatchError` where the batches themselves are broken.
        """
        self.restart_indexes(self.size, end)
        try:
            self.close_indexes()
        except OSError as error:
            if not is_full(error):
                raise

    @property
    def has_unsynced_indexes(self) -> bool:
        """Whether an index was written since it was last synced."""
        return self.offsets.unsynced or self.times.unsynced or self.transactions.unsynced

    def take_new_names(self) -> bool:
        """Say whether files were created since this was last asked: then the folder is to be synced with them."""
        indexes = (self.offsets, self.times, self.transactions)
        found = any(index.created for index in indexes)
        for index in indexes:
            index.created = False
        return found

    def write_again(self, offset: int) -> None:
        """Write the batches from `offset` on over themselves, so that the next sync brings them to the disk.

        Raises `OSError`, and `CorruptBatchError` where they are broken.
        """
        found = self.locate(offset) if offset > self.base_offset else (0, None)
        if found is None:
            return
        file, position = self.file, found[0]
        while position < self.size:
            data = file.read_at(min(_AGAIN_BYTES, self.size - position), position)
            file.write_at(data, position)
            position += len(data)

    # --- Looking up ---------------------------------------------------------------------------------------------------

    def locate(self, offset: int, *, from_position: int = 0) -> tuple[int, BatchHeader] | None:
        """Return position and header of the first batch that ends at or after `offset`, or None if there is none.

        Raises `CorruptBatchError` where the batches are broken, or the index misleads.
        """
        indexed, position = self.offsets.place_for(offset)
        if from_position > position:
            position = from_position
        elif position > self.size:
            raise CorruptBatchError(f"{self.offsets.path} names position {position} of {self.size} bytes")
        for found in scan_headers(self.file, position, self.size):
            header = found[1]
            if header.base_offset + header.last_offset_delta >= offset:
                if header.base_offset > indexed and found[0] == position > from_position:
                    raise CorruptBatchError(
                        f"{self.offsets.path} says that offset {indexed} is at position {position}, where offset "
                        f"{header.base_offset} is"
                    )
                return found
        return None

    def end_before(self, start: int, limit: int) -> tuple[int, int, int]:
        """Return (position after, next offset, size of the first batch) of the whole batches that fit in [start,
        limit).

        Without any: (start, -1, size of the first batch).
        """
        indexed = self.offsets.position_before(limit)
        if indexed <= start:
            return whole_batches(self.file, start, self.size, start, limit)
        end, next_offset, _ = whole_batches(self.file, indexed, self.size, start, limit)
        return end, next_offset, limit - start  # smaller than the range, so it fits: its size is of no interest

    def next_offset(self) -> int:
        """Return the offset after the last batch, found from the last index entry on."""
        end = self.base_offset
        for _, header in scan_headers(self.file, self.offsets.last()[1], self.size):
            end = header.next_offset
        return end

    def has_nothing_from(self, offset: int) -> bool:
        """Say whether the segment ends at `offset` or before, by its batches and by what its indexes say."""
        if len(self.offsets):
            indexed, position = self.offsets.last()
            if indexed >= offset or position >= self.size:
                return False
        if len(self.times) and self.times.last()[1] >= offset:
            return False
        return self.next_offset() <= offset

    # --- Cutting and renaming -----------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> int:
        """Remove the batch that holds `offset` and all behind it. Returns where the segment ends now. Raises
        `OSError`.
        """
        found = self.locate(offset)
        self.offsets.truncate_to(offset)
        self.times.truncate_to(offset)
        self.transactions.truncate_to(offset)
        end = offset
        if found is not None:
            end = min(offset, found[1].base_offset)
            self.offsets.truncate_positions(found[0])
            self.cut(found[0], end)
        self.end_offset = end
        last_position = self.offsets.last()[1]
        self._unindexed_bytes = self._size - last_position
        self._max_timestamp = largest = self.times.last()
        for _, header in scan_headers(self.file, last_position, self._size):
            if header.max_timestamp_ms > largest[0]:
                self._max_timestamp = largest = (header.max_timestamp_ms, header.last_offset)
        if self._size == 0:
            self._first_timestamp_ms = None
        return end

    def rename(self, suffix: str) -> None:
        """Give all files another last suffix, the log's own file last: where it has the new name, all have.

        Raises `OSError`.
        """
        names = [self.path(kind) for kind in SEGMENT_SUFFIXES]
        self.release_files()
        self.suffix = suffix
        renamed = [(old, self.path(kind)) for old, kind in zip(names, SEGMENT_SUFFIXES, strict=True)]
        for old, new in [*renamed[1:], renamed[0]]:
            if self._storage.exists(old):
                self._storage.rename(old, new)
        self.offsets.path, self.times.path, self.transactions.path = (new for _, new in renamed[1:])

    def paths(self) -> list[str]:
        """Return the paths that the segment's files may have."""
        return [self.path(kind) for kind in SEGMENT_SUFFIXES]

    def __repr__(self) -> str:
        return f"Segment({self.path(LOG_SUFFIX)}, {self._size} bytes)"
