"""Compaction: of all committed records with the same key, the last one stays (D4).

A round maps the last offset of each key in the dirty part, then writes all segments below its end again, a group of
them into one, as `.cleaned` files. Each group takes the place of its segments in four steps, each durable before the
next: all `.cleaned` files are renamed to `.swap`; the old segments are renamed to `.deleted`; the `.swap` files get
their names, the log's own last. `recovery` finishes or undoes what a crash interrupts.

`Compaction.prepare` and `clean_next` may run on another thread: they read files by path and write new ones.
`plan_compaction` and `swap` belong on the log's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from semel.broker.log.batch_scan import scan_batches
from semel.broker.log.cleaner_filter import BatchFilter, KeyMap, TransactionsOnTheWay
from semel.broker.log.config import LogConfig
from semel.broker.log.open_files import OpenFiles, SharedFile
from semel.broker.log.partition_log import PartitionLog
from semel.broker.log.segment import CLEANED_SUFFIX, LOG_SUFFIX, SEGMENT_SUFFIXES, Segment, segment_path
from semel.protocol.batch_header import BatchHeader, read_header
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.record_decoder import decode_records
from semel.runtime.storage import Storage

_log = logging.getLogger(__name__)

DEFAULT_KEYS_MAX: Final = 500_000
"""How many keys one round maps: about 75 MB."""
_RUN_BYTES: Final = 1 << 20


class CompactionAbandoned(Exception):  # noqa: N818 - not an error: the next round starts again
    """The log changed under the round (segments deleted, truncated), or the round was cancelled."""


@dataclass(frozen=True, slots=True)
class Dirtiness:
    """What a round would clean: offsets from `first_dirty_offset` to `end_offset`, whole segments.

    ratio is the dirty part of the bytes; `is_overdue` says that `max.compaction.lag.ms` has passed.
    """

    first_dirty_offset: int
    end_offset: int
    ratio: float
    is_overdue: bool


def dirtiness(log: PartitionLog, *, first_dirty_offset: int, last_stable_offset: int, now_ms: int) -> Dirtiness | None:
    """Return what could be compacted of a log, or None for nothing.

    `first_dirty_offset` is where the last round ended (`Compaction.end_offset`), 0 if there was none. Nothing at or
    beyond the last stable offset is touched, nor the active segment, nor what is younger than `min.compaction.lag.ms`.
    """
    config = log.config
    segments = log.segments
    start = max(log.log_start_offset, segments.first.base_offset)
    dirty = first_dirty_offset if start <= first_dirty_offset <= log.log_end_offset else start
    clean_bytes = dirty_bytes = 0
    end = dirty
    oldest_ms: int | None = None
    for segment in segments.inactive():
        segment_end = segments.end_of(segment, log.log_end_offset)
        if segment_end <= dirty:
            clean_bytes += segment.size
            continue
        young = config.min_compaction_lag_ms > 0 and segment.max_timestamp[0] > now_ms - config.min_compaction_lag_ms
        if segment_end > last_stable_offset or young:
            break
        dirty_bytes += segment.size
        end = segment_end
        if segment.size and segment.first_timestamp_ms > 0:
            oldest_ms = min(oldest_ms or segment.first_timestamp_ms, segment.first_timestamp_ms)
    if end <= dirty or not dirty_bytes:
        return None
    overdue = oldest_ms is not None and oldest_ms < now_ms - config.max_compaction_lag_ms
    return Dirtiness(dirty, end, dirty_bytes / (clean_bytes + dirty_bytes), overdue)


def plan_compaction(
    log: PartitionLog,
    *,
    first_dirty_offset: int,
    last_stable_offset: int,
    now_ms: int,
    keys_max: int = DEFAULT_KEYS_MAX,
) -> Compaction | None:
    """Return a round of compaction for a log that is dirty enough, or None. See `dirtiness`.

    Raises `OSError`, or `SemelError` (KAFKA_STORAGE_ERROR).
    """
    if not log.config.is_compacted or log.offline_error is not None:
        return None
    found = dirtiness(log, first_dirty_offset=first_dirty_offset, last_stable_offset=last_stable_offset, now_ms=now_ms)
    if found is None or (found.ratio <= log.config.min_cleanable_dirty_ratio and not found.is_overdue):
        return None
    return Compaction(log, found, now_ms, keys_max)


@dataclass(slots=True)
class _Source:
    """A segment to be cleaned, as far as another thread may know it."""

    segment: Segment
    path: str
    size: int
    end_offset: int


class Compaction:
    """One round over one log: `prepare` once, then `clean_next` and `swap` while `has_next`, then note `end_offset`."""

    __slots__ = (
        "_cleaned",
        "_config",
        "_filter",
        "_folder",
        "_generation",
        "_groups",
        "_keys",
        "_log",
        "_now_ms",
        "_sources",
        "_storage",
        "_transactions",
        "bytes_read",
        "bytes_written",
        "cancelled",
        "dirtiness",
    )

    def __init__(self, log: PartitionLog, found: Dirtiness, now_ms: int, keys_max: int) -> None:
        self._log = log
        self._storage: Storage = log.storage
        self._folder = log.folder
        self._config: LogConfig = log.config
        self._generation = log.local.generation
        self._now_ms = now_ms
        self.dirtiness = found
        segments = log.segments
        self._sources = [
            _Source(segment, segment.path(LOG_SUFFIX), segment.size, segments.end_of(segment, log.log_end_offset))
            for segment in segments.inactive()
            if segments.end_of(segment, log.log_end_offset) <= found.end_offset
        ]
        self._transactions = log.aborted_transactions(self._sources[0].segment.base_offset, found.end_offset)
        last_records = {entry.producer_id: (entry.last_data_offset, entry.epoch) for entry in log.producer_state}
        self._keys = KeyMap(keys_max)
        self._filter = BatchFilter(
            self._keys,
            TransactionsOnTheWay(self._transactions),
            last_records,
            now_ms=now_ms,
            delete_retention_ms=self._config.delete_retention_ms,
        )
        self._groups: list[list[_Source]] = []
        self._cleaned: Segment | None = None
        self.bytes_read = 0
        self.bytes_written = 0
        self.cancelled = False
        """Set from any thread to make the round end with `CompactionAbandoned` soon."""

    @property
    def end_offset(self) -> int:
        """Where the next round begins: below it the log is clean."""
        return self._keys.end_offset

    @property
    def has_next(self) -> bool:
        return bool(self._groups)

    # --- On any thread ------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Map the keys of the dirty part. Raises `OSError`, `SemelError` (CORRUPT_MESSAGE), `CompactionAbandoned`."""
        keys, start = self._keys, self.dirtiness.first_dirty_offset
        keys.end_offset = start
        dirty = [source for source in self._sources if source.end_offset > start]
        # The walk meets the markers of these alone: of one that ended before, it would never know that it has ended.
        base = dirty[0].segment.base_offset
        transactions = TransactionsOnTheWay(one for one in self._transactions if one.last_offset >= base)
        for source in dirty:
            for header, batch in self._batches(source):
                if header.is_control:
                    transactions.ends_nothing(header, batch)
                elif not transactions.is_aborted(header) and header.last_offset >= start:
                    if keys.is_full:
                        self._group_up_to(keys.end_offset)
                        return
                    for record in decode_records(batch):
                        if record.key is not None and record.offset >= start:
                            keys.put(record.key, record.offset)
                keys.end_offset = max(keys.end_offset, header.next_offset)
            keys.end_offset = source.end_offset
        self._group_up_to(keys.end_offset)

    def _batches(self, source: _Source) -> Iterator[tuple[BatchHeader, memoryview]]:
        try:
            file = SharedFile(self._storage.open(source.path))
            for _, header, batch in scan_batches(file, 0, source.size):
                if self.cancelled:
                    raise CompactionAbandoned(f"{self._folder}: the compaction was cancelled")
                yield header, batch
        except FileNotFoundError as error:
            raise CompactionAbandoned(f"{source.path} was deleted under the compaction") from error
        except CorruptBatchError:
            if self._log.local.generation != self._generation:
                raise CompactionAbandoned(f"{source.path} was truncated under the compaction") from None
            raise

    def _group_up_to(self, end_offset: int) -> None:
        """Put neighbours together that fit into one segment: cleaning must not leave ever more small ones."""
        size = indexes = 0
        config = self._config
        for source in self._sources:
            segment = source.segment
            if segment.base_offset >= end_offset:
                break
            group = self._groups[-1] if self._groups else None
            index_bytes = source.size // max(config.index_interval_bytes, 61) * 12 + 24
            if (
                group is None
                or size + source.size > config.segment_bytes
                or indexes + index_bytes > config.segment_index_bytes
                or source.end_offset - 1 - group[0].segment.base_offset > INT32_MAX
            ):
                self._groups.append([source])
                size, indexes = source.size, index_bytes
            else:
                group.append(source)
                size += source.size
                indexes += index_bytes

    def clean_next(self) -> None:
        """Write what stays of the next group, durably. Raises `OSError`, `SemelError`, `CompactionAbandoned`."""
        group = self._groups[0]
        base = group[0].segment.base_offset
        for suffix in SEGMENT_SUFFIXES:
            path = segment_path(self._folder, base, suffix) + CLEANED_SUFFIX
            if self._storage.exists(path):
                self._storage.remove(path)  # of a round that was abandoned
        cleaned = Segment(
            self._storage, self._folder, base, OpenFiles(), created_ms=self._now_ms, new=True, suffix=CLEANED_SUFFIX
        )
        run = bytearray()
        headers: list[BatchHeader] = []
        for source in group:
            self.bytes_read += source.size
            last = source is group[-1]
            for header, batch in self._batches(source):
                kept = self._filter.keep(header, batch, must_stay=last and header.next_offset == source.end_offset)
                if kept is None:
                    continue
                headers.append(header if kept is batch else read_header(kept))
                run += kept
                if len(run) >= _RUN_BYTES:
                    self._write(cleaned, run, headers)
                    run, headers = bytearray(), []
        if run:
            self._write(cleaned, run, headers)
        for transaction in self._filter.transactions.take_retained():
            cleaned.transactions.add(transaction)
        cleaned.close_indexes()
        # Recovery tells by the four names what is done, so all four files are there.
        for file in (*cleaned.files_to_sync(), cleaned.transactions.file):
            file.sync()
        self._storage.sync_folder(self._folder)
        cleaned.release_files()
        self._cleaned = cleaned

    def _write(self, cleaned: Segment, run: bytearray, headers: list[BatchHeader]) -> None:
        cleaned.append_run(memoryview(run), headers, self._config.index_interval_bytes)
        self.bytes_written += len(run)

    # --- On the log's thread ------------------------------------------------------------------------------------------

    def swap(self, now_ms: int) -> None:
        """Put the cleaned group in the place of its segments.

        Raises `CompactionAbandoned` where they are not the log's any more, and `SemelError` (KAFKA_STORAGE_ERROR) with
        the log offline.
        """
        cleaned, group = self._cleaned, self._groups.pop(0)
        assert cleaned is not None
        self._cleaned = None
        sources = [source.segment for source in group]
        current = set(map(id, self._log.segments.inactive()))
        if self._generation != self._log.local.generation or not all(id(segment) in current for segment in sources):
            self._groups.clear()
            for path in cleaned.paths():
                if self._storage.exists(path):
                    self._storage.remove(path)
            raise CompactionAbandoned(f"{self._folder}: the segments changed under the compaction")
        self._log.replace_segments(sources, cleaned, now_ms)


def compact(
    log: PartitionLog,
    *,
    first_dirty_offset: int,
    last_stable_offset: int,
    now_ms: int,
    keys_max: int = DEFAULT_KEYS_MAX,
) -> int:
    """Run a whole round where one is due, waiting for the disk. Returns where the next one begins."""
    compaction = plan_compaction(
        log,
        first_dirty_offset=first_dirty_offset,
        last_stable_offset=last_stable_offset,
        now_ms=now_ms,
        keys_max=keys_max,
    )
    if compaction is None:
        return first_dirty_offset
    compaction.prepare()
    while compaction.has_next:
        compaction.clean_next()
        compaction.swap(now_ms)
    return compaction.end_offset
