"""Reading segments from the object store, for all readers of a node: what several want is fetched once.

Nobody waits here: a reader is given what is in memory, and is woken when more is. What could not be had is said to
those who ask within a second, and tried again after it. For a reader that continues the next stretch is fetched ahead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from semel.broker.log.batch_scan import scan_headers
from semel.broker.log.log_types import LogRange, TimestampOffset
from semel.broker.log.segments import open_record_at
from semel.broker.tiers.extents import Extent, ExtentCache
from semel.broker.tiers.object_store import ObjectStore, ObjectStoreError
from semel.broker.tiers.remote_log import RemoteSegment
from semel.broker.tiers.segment_object import CorruptObjectError, SegmentIndex
from semel.protocol.batch_header import BATCH_OVERHEAD, read_header
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.runtime.clock import Clock
from semel.runtime.threads import Threads

_log = logging.getLogger("semel.tiers")

T = TypeVar("T")

EXTENT_BYTES: Final = 4 << 20
"""How much is fetched at a time, where batches are no larger."""
_BATCH_BYTES_MAX: Final = 256 << 20
_LOADS_AT_ONCE: Final = 8
_LOADS_MAX: Final = 500
"""More stretches than these are not waited for: their readers ask again."""
_ROOM_LOOK_S: Final = 0.05
_FAILED_S: Final = 1.0
_TELL_EVERY_S: Final = 60.0
_TOLD_MAX: Final = 1_000


class _Failure(NamedTuple):
    error: SemelError
    until_s: float


class RemoteReader:
    """Reads the segments of all partitions of a node. `close` when the node stops."""

    def __init__(self, store: ObjectStore, clock: Clock, *, cache_bytes: int) -> None:
        self._store = store
        self._clock = clock
        self._cache = ExtentCache(cache_bytes)
        self._threads = Threads(2, "semel-remote")
        self._loads: dict[tuple[str, int], asyncio.Task[None]] = {}
        """By segment and by the offset that is wanted of it."""
        self._slots = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._failures: dict[str, _Failure] = {}
        """By segment."""
        self._told: dict[str, float] = {}
        self.requests = 0
        """Of reading, that were sent to the store."""
        self.read_bytes = 0
        self.failures = 0

    @property
    def cached_bytes(self) -> int:
        return self._cache.size_bytes

    def read(
        self,
        segment: RemoteSegment,
        offset: int,
        max_bytes: int,
        upto: int,
        min_one_batch: bool,
        committed_only: bool,
        wake: Callable[[], None],
    ) -> LogRange | None:
        """Return what is in memory of a segment from `offset` on; None where the segment has nothing there.

        Where it is not in memory, an empty range, and `wake` is called once it is, or can't be had. Raises `SemelError`
        (KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE) where it could not be had a moment ago.
        """
        extent = self._cache.find(segment.segment_id, offset)
        index = self._cache.index(segment.segment_id) if segment.aborted.size_bytes else None
        if extent is None or (segment.aborted.size_bytes and index is None):
            self._check_failed(segment)
            self._begin_load(segment, offset, wake)
            return LogRange(None, offset, offset)
        found = extent.read(offset, max_bytes, upto, min_one_batch=min_one_batch)
        if found is None:
            return None
        if extent.is_past_middle(offset) and extent.end_position < segment.size_bytes:
            self._read_ahead(segment, extent)
        if committed_only and index is not None and found.records is not None:
            records, first, after, _ = found
            return LogRange(records, first, after, index.aborted_between(first, after))
        return found

    def fetch_ahead(self, segment: RemoteSegment) -> None:
        """Fetch the beginning of a segment that a reader will soon come to."""
        if self._cache.find(segment.segment_id, segment.start_offset) is None:
            self._begin_load(segment, segment.start_offset, _wake_nobody)

    async def record_at(self, segment: RemoteSegment, timestamp_ms: int, start_offset: int) -> TimestampOffset | None:
        """Return the segment's first record at or after a time, and at or above an offset. Raises `SemelError`."""
        self._check_failed(segment)
        try:
            index = await self._index(segment)
            position = max(index.position_before(timestamp_ms), index.position_of(start_offset))
            while position < segment.size_bytes:
                extent = await self._fetch(segment, position)
                found = await self._in_thread(
                    lambda extent=extent: _record_in(extent, timestamp_ms, start_offset)  # type: ignore[misc]
                )
                if found is not None:
                    return found
                position = extent.end_position
        except (ObjectStoreError, CorruptObjectError, CorruptBatchError) as error:
            raise self._failed(segment, error) from error
        return None

    def forget(self, segment: RemoteSegment) -> None:
        """Hold nothing of a segment any more."""
        self._cache.forget(segment.segment_id)
        self._failures.pop(segment.segment_id, None)

    async def close(self) -> None:
        """Stop reading."""
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        self._threads.shutdown(wait=False)

    # --- Fetching -----------------------------------------------------------------------------------------------------

    def _begin_load(self, segment: RemoteSegment, offset: int, wake: Callable[[], None]) -> None:
        key = segment.segment_id, offset
        load = self._loads.get(key)
        if load is None:
            if len(self._loads) >= _LOADS_MAX:
                return
            load = asyncio.get_running_loop().create_task(self._load(segment, offset), name=f"read {segment.key}")
            self._loads[key] = load
            load.add_done_callback(lambda _: self._loads.pop(key, None))
        load.add_done_callback(lambda _: wake())

    def _read_ahead(self, segment: RemoteSegment, extent: Extent) -> None:
        if not self._cache.has(segment.segment_id, extent.end_position) and segment.segment_id not in self._failures:
            self._begin_load(segment, extent.end_offset, _wake_nobody)

    async def _load(self, segment: RemoteSegment, offset: int) -> None:
        try:
            async with self._slots:
                if self._cache.find(segment.segment_id, offset) is not None and not segment.aborted.size_bytes:
                    return
                index = await self._index(segment)
                position = self._cache.position_after(segment.segment_id, offset)
                if position is None:
                    position = index.position_of(offset)
                while position < segment.size_bytes:
                    extent = await self._fetch(segment, position)
                    if extent.end_offset > offset:
                        self._cache.add(segment.segment_id, extent, self._clock.monotonic())
                        break
                    position = extent.end_position
        except (ObjectStoreError, CorruptObjectError, CorruptBatchError) as error:
            self._failed(segment, error)
        except Exception as error:
            _log.exception("reading %s failed", segment.key)
            self._failed(segment, error)

    async def _index(self, segment: RemoteSegment) -> SegmentIndex:
        known = self._cache.index(segment.segment_id)
        if known is not None:
            return known
        begins, size_bytes = segment.index.position, segment.index.size_bytes + segment.aborted.size_bytes
        await self._wait_for_room(size_bytes)
        data = await self._ask(segment, begins, size_bytes)  # the two lie one behind the other
        border = segment.index.size_bytes
        index = await self._in_thread(lambda: SegmentIndex(segment, data[:border], data[border:]))
        self._cache.add_index(segment.segment_id, index)
        return index

    async def _fetch(self, segment: RemoteSegment, position: int) -> Extent:
        """Return the batches from a position on. Raises `CorruptBatchError`, too."""
        size_bytes = min(EXTENT_BYTES, segment.size_bytes - position)
        while True:
            await self._wait_for_room(size_bytes)
            data = await self._ask(segment, position, size_bytes)
            extent = await self._in_thread(lambda data=data: Extent.of(data, position))  # type: ignore[misc]
            if extent is not None:
                return extent
            wanted = read_header(data).size_bytes if len(data) >= BATCH_OVERHEAD else 0
            if not size_bytes < wanted <= min(segment.size_bytes - position, _BATCH_BYTES_MAX):
                raise CorruptBatchError(f"the batch at position {position} of {segment.key} is damaged")
            size_bytes = wanted

    async def _ask(self, segment: RemoteSegment, position: int, size_bytes: int) -> bytes:
        self.requests += 1
        data = await self._store.read(segment.key, position, size_bytes)
        self.read_bytes += len(data)
        return data

    async def _wait_for_room(self, size_bytes: int) -> None:
        """Wait until others have read what they asked for, or have not come for it."""
        wanted = min(size_bytes, self._cache.size_bytes_max // 2)
        while not self._cache.make_room(wanted, self._clock.monotonic()):  # noqa: ASYNC110  # time makes room, too
            await asyncio.sleep(_ROOM_LOOK_S)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    # --- When it fails ------------------------------------------------------------------------------------------------

    def _check_failed(self, segment: RemoteSegment) -> None:
        failure = self._failures.get(segment.segment_id)
        if failure is None:
            return
        if self._clock.monotonic() < failure.until_s:
            raise error_for(failure.error.code, failure.error.message)
        del self._failures[segment.segment_id]

    def _failed(self, segment: RemoteSegment, error: Exception) -> SemelError:
        self.failures += 1
        now_s = self._clock.monotonic()
        is_damage = isinstance(error, (CorruptObjectError, CorruptBatchError))
        message = str(error) if not isinstance(error, SemelError) else error.message
        failure = error_for(
            ErrorCode.CORRUPT_MESSAGE if is_damage else ErrorCode.KAFKA_STORAGE_ERROR,
            f"offsets {segment.start_offset} to {segment.end_offset - 1} can't be read from the remote storage: "
            f"{message}",
        )
        self._failures[segment.segment_id] = _Failure(failure, now_s + _FAILED_S)
        if now_s - self._told.get(segment.segment_id, float("-inf")) > _TELL_EVERY_S:
            if len(self._told) >= _TOLD_MAX:
                self._told.clear()
            self._told[segment.segment_id] = now_s
            _log.error("%s", failure.message)
        return failure


def _record_in(extent: Extent, timestamp_ms: int, start_offset: int) -> TimestampOffset | None:
    for at, header in scan_headers(extent.file, 0, extent.size_bytes):
        if header.max_timestamp_ms >= timestamp_ms and header.last_offset >= start_offset:
            found = open_record_at(extent.file, at, header, timestamp_ms, start_offset)
            if found is not None:
                return found
    return None


def _wake_nobody() -> None:
    """Nobody waits for what is read ahead."""
