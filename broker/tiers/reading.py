"""Reading segments from the object store, for all readers of a node: what several want is fetched once.

Nobody waits here: a reader is given what is in memory, and is woken when more is. What could not be had is said to
those who ask within a second, and tried again after it. For a reader that continues the next stretch is fetched ahead.
What nobody has asked for any more, by the time that it could be fetched, is not fetched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

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
"""How much is fetched at a time, where few readers ask and batches are no larger."""
_EXTENT_BYTES_MIN: Final = 256 << 10
_ROOM_SHARE: Final = 4
"""What is fetched for all that ask now is at most this part of the cache."""
_OPENED_MAX: Final = 100
"""So many batches of a segment one look-up by time opens: more only where their headers lie about their times."""
_BATCH_BYTES_MAX: Final = 256 << 20
_LOADS_AT_ONCE: Final = 8
_LOADS_MAX: Final = 500
"""More stretches than these are not waited for: their readers ask again."""
_ASKED_S: Final = 2.0
"""What was asked for so long ago, and by nobody who waits, is wanted no more."""
_ROOM_LOOK_S: Final = 0.05
_FAILED_S: Final = 1.0
_TELL_EVERY_S: Final = 60.0
_REMEMBERED_MAX: Final = 1_000
_INDEX: Final = -1


class _Failure(NamedTuple):
    error: SemelError
    until_s: float


class _UnwantedError(Exception):
    """Nobody wants what was to be fetched any more."""


class Waiting:
    """Who waits for what is read of a partition: `wake` is called once there is more, or an error."""

    def __init__(self, wake: Callable[[], None], has_waiting: Callable[[], bool]) -> None:
        """has_waiting: says whether anybody waits now."""
        self.wake = wake
        self.has_waiting = has_waiting


class _Load:
    """A stretch that is being fetched."""

    __slots__ = ("asked_s", "task", "waiting")

    def __init__(self, task: asyncio.Task[None], now_s: float) -> None:
        self.task = task
        self.asked_s = now_s
        self.waiting: set[Waiting] = set()


class RemoteReader:
    """Reads the segments of all partitions of a node. `close` when the node stops."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        *,
        cache_bytes: int,
        executor: Executor | None = None,
        admit: Callable[[int, Callable[[], bool]], Awaitable[bool]] | None = None,
    ) -> None:
        """executor: checks what was read, in place of threads of its own

        admit: waits until so many bytes may be read for consumers; False: they were not wanted any more
        """
        self._store = store
        self._admit = admit
        self._clock = clock
        self._cache = ExtentCache(cache_bytes)
        self._threads: Executor = executor or Threads(2, "semel-remote")
        self._loads: dict[tuple[str, int], _Load] = {}
        """By segment and by the offset that is wanted of it."""
        self._fetches: dict[tuple[str, int], asyncio.Future[Any]] = {}
        """By segment and position; _INDEX for its index."""
        self._crowded: set[Waiting] = set()
        """Those for whom nothing is fetched, because too much is: they ask again when something is done."""
        self._slots = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._failures: dict[str, _Failure] = {}
        """By segment."""
        self._told: dict[str, float] = {}
        self.failures = 0

    @property
    def loads(self) -> int:
        """How many stretches are being fetched, or are to be."""
        return len(self._loads)

    @property
    def cached_bytes(self) -> int:
        return self._cache.size_bytes + self._cache.index_bytes

    def read(
        self,
        segment: RemoteSegment,
        offset: int,
        max_bytes: int,
        upto: int,
        min_one_batch: bool,
        committed_only: bool,
        waiting: Waiting,
    ) -> LogRange | None:
        """Return what is in memory of a segment from `offset` on; None where the segment has no batch from there on.

        Where it is not in memory, an empty range, and `waiting` is woken once it is, or can't be had. Raises
        `SemelError` (KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE) where it could not be had a moment ago.
        """
        extent = self._cache.find(segment.segment_id, offset)
        needs_index = committed_only and segment.aborted.size_bytes > 0
        index = self._cache.index(segment.segment_id) if needs_index else None
        if extent is None or (needs_index and index is None):
            self._check_failed(segment)
            self._begin_load(segment, offset, waiting)
            return LogRange(None, offset, offset)
        found = extent.read(offset, max_bytes, upto, min_one_batch=min_one_batch)
        if found is None:
            return None
        if extent.is_past_middle(offset) and extent.end_position < segment.size_bytes:
            self._read_ahead(segment, extent.end_offset)
        if index is not None and found.records is not None:
            records, first, after, _ = found
            return LogRange(records, first, after, index.aborted_between(first, after))
        return found

    def fetch_ahead(self, segment: RemoteSegment) -> None:
        """Fetch the beginning of a segment that a reader will soon come to."""
        self._read_ahead(segment, segment.start_offset)

    async def record_at(self, segment: RemoteSegment, timestamp_ms: int, start_offset: int) -> TimestampOffset | None:
        """Return the segment's first record at or after a time, and at or above an offset. Raises `SemelError`."""
        self._check_failed(segment)
        try:
            index = await self._index(segment)
            position = max(index.position_before(timestamp_ms), index.position_of(start_offset))
            opened = 0
            while position < segment.size_bytes:
                extent = await self._extent_at(segment, position)
                found, more = await self._in_thread(
                    partial(_record_in, extent, timestamp_ms, start_offset, _OPENED_MAX - opened)
                )
                if found is not None:
                    return found
                opened += more
                if opened >= _OPENED_MAX:
                    raise CorruptBatchError(f"{opened} batches of {segment.key} have no record of the time they claim")
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
        tasks = self.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False)

    def cancel(self) -> list[asyncio.Task[None]]:
        """Fetch nothing more. Returns what is about to end."""
        tasks = [load.task for load in self._loads.values()]
        for task in tasks:
            task.cancel()
        return tasks

    # --- Fetching -----------------------------------------------------------------------------------------------------

    def _begin_load(self, segment: RemoteSegment, offset: int, waiting: Waiting | None) -> None:
        key = segment.segment_id, offset
        load = self._loads.get(key)
        now_s = self._clock.monotonic()
        if load is None:
            if len(self._loads) >= _LOADS_MAX:
                if waiting is not None and len(self._crowded) < _LOADS_MAX:
                    self._crowded.add(waiting)
                return
            task = asyncio.get_running_loop().create_task(self._load(segment, offset), name=f"read {segment.key}")
            load = self._loads[key] = _Load(task, now_s)
            task.add_done_callback(lambda _: self._loaded(key))
        load.asked_s = now_s
        if waiting is not None:
            load.waiting.add(waiting)

    def _loaded(self, key: tuple[str, int]) -> None:
        crowded, self._crowded = self._crowded, set()
        for waiting in (*self._loads.pop(key).waiting, *crowded):
            waiting.wake()

    def _read_ahead(self, segment: RemoteSegment, offset: int) -> None:
        """Fetch what a reader will need next, where nobody waits for anything else."""
        if (
            segment.segment_id not in self._failures
            and len(self._loads) < _LOADS_AT_ONCE
            and (segment.segment_id, offset) not in self._loads
            and self._cache.find(segment.segment_id, offset) is None
        ):
            self._begin_load(segment, offset, None)

    def _is_wanted(self, key: tuple[str, int]) -> bool:
        load = self._loads.get(key)
        if load is None:
            return False
        is_recent = self._clock.monotonic() - load.asked_s <= _ASKED_S
        return is_recent or any(one.has_waiting() for one in load.waiting)

    async def _load(self, segment: RemoteSegment, offset: int) -> None:
        key = segment.segment_id, offset

        def is_wanted() -> bool:
            return self._is_wanted(key)

        try:
            await asyncio.sleep(0)  # until the load is in the table
            index = await self._index(segment, is_wanted) if segment.aborted.size_bytes else None
            if self._cache.find(segment.segment_id, offset) is not None or not self._is_wanted(key):
                return
            before = self._cache.before(segment.segment_id, offset)
            if before is not None:
                position = before.end_position
            else:
                position = (index or await self._index(segment, is_wanted)).position_of(offset)
            follows = offset
            while position < segment.size_bytes and self._is_wanted(key):
                extent = await self._extent_at(segment, position, is_wanted)
                if not self._loads[key].waiting:
                    self._cache.release(segment.segment_id, position)  # it was fetched ahead
                # What was asked for may lie before its first batch: there is none in between.
                end_offset = segment.end_offset if extent.end_position == segment.size_bytes else extent.end_offset
                extent.cover(min(follows, extent.first_offset), end_offset)
                if extent.end_offset > offset:
                    return
                follows, position = extent.end_offset, extent.end_position
        except _UnwantedError:
            pass
        except (ObjectStoreError, CorruptObjectError, CorruptBatchError) as error:
            self._failed(segment, error)
        except Exception as error:
            _log.exception("reading %s failed", segment.key)
            self._failed(segment, error)

    async def _index(self, segment: RemoteSegment, is_wanted: Callable[[], bool] | None = None) -> SegmentIndex:
        """Return a segment's index, from memory or from the store. is_wanted: as in `_extent_at`."""
        return await self._once(
            (segment.segment_id, _INDEX),
            lambda: self._cache.index(segment.segment_id),
            lambda: self._fetch_index(segment, is_wanted),
        )

    async def _fetch_index(self, segment: RemoteSegment, is_wanted: Callable[[], bool] | None) -> SegmentIndex:
        begins, size_bytes = segment.index.position, segment.index.size_bytes + segment.aborted.size_bytes
        await self._wait_for_quota(size_bytes, is_wanted)
        async with self._slots:
            data = await self._store.read(segment.key, begins, size_bytes)  # the two lie one behind the other
        border = segment.index.size_bytes
        index = await self._in_thread(lambda: SegmentIndex(segment, data[:border], data[border:]))
        self._cache.add_index(segment.segment_id, index)
        return index

    async def _extent_at(
        self, segment: RemoteSegment, position: int, is_wanted: Callable[[], bool] | None = None
    ) -> Extent:
        """Return the stretch that begins at a position, from memory or from the store.

        is_wanted: whether a consumer still wants it. None: it is looked up for its time, which waits for no quota.
        """
        return await self._once(
            (segment.segment_id, position),
            lambda: self._cache.at(segment.segment_id, position),
            lambda: self._fetch(segment, position, is_wanted),
        )

    async def _once(
        self, key: tuple[str, int], known: Callable[[], T | None], fetch: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """Return what is known, or fetch it: once for all who want it at a time."""
        while (found := known()) is None:
            under_way: asyncio.Future[T] | None = self._fetches.get(key)
            if under_way is None:
                break
            await asyncio.wait([under_way])
            if not under_way.cancelled() and not isinstance(under_way.exception(), _UnwantedError):
                return under_way.result()
        if found is not None:
            return found
        fetching = self._fetches[key] = asyncio.get_running_loop().create_future()
        try:
            found = await fetch()
        except BaseException as error:
            if isinstance(error, Exception):
                fetching.set_exception(error)
                fetching.exception()  # somebody may have waited for it, or not
            else:
                fetching.cancel()
            raise
        finally:
            del self._fetches[key]
        fetching.set_result(found)
        return found

    async def _fetch(self, segment: RemoteSegment, position: int, is_wanted: Callable[[], bool] | None) -> Extent:
        """Return the batches from a position on. Raises `CorruptBatchError`, too."""
        share = self._cache.size_bytes_max // (_ROOM_SHARE * max(len(self._loads), 1))
        size_bytes = min(max(_EXTENT_BYTES_MIN, min(EXTENT_BYTES, share)), segment.size_bytes - position)
        while True:
            reserved = await self._reserve(size_bytes, is_wanted)
            try:
                await self._wait_for_quota(size_bytes, is_wanted)
                async with self._slots:
                    data = await self._store.read(segment.key, position, size_bytes)
                extent = await self._in_thread(lambda data=data: Extent.of(data, position))  # type: ignore[misc]
                if extent is not None:
                    self._cache.add(segment.segment_id, extent, self._clock.monotonic())
                    return extent
            finally:
                self._cache.reserved_bytes -= reserved
            wanted = read_header(data).size_bytes if len(data) >= BATCH_OVERHEAD else 0
            if not size_bytes < wanted <= min(segment.size_bytes - position, _BATCH_BYTES_MAX):
                raise CorruptBatchError(f"the batch at position {position} of {segment.key} is damaged")
            size_bytes = wanted

    async def _wait_for_quota(self, size_bytes: int, is_wanted: Callable[[], bool] | None) -> None:
        """Wait until so much may be read, while it is wanted. What is looked up for its time does not wait."""
        if self._admit is not None and is_wanted is not None and not await self._admit(size_bytes, is_wanted):
            raise _UnwantedError

    async def _reserve(self, size_bytes: int, is_wanted: Callable[[], bool] | None) -> int:
        """Wait until others have read what they asked for, or have not come for it. Returns what is reserved."""
        wanted = min(size_bytes, self._cache.size_bytes_max // 2)
        while not self._cache.reserve(wanted, self._clock.monotonic()):  # time makes room, too
            await asyncio.sleep(_ROOM_LOOK_S)
            if is_wanted is not None and not is_wanted():
                raise _UnwantedError
        return wanted

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
        for remembered in (self._failures, self._told):
            if len(remembered) >= _REMEMBERED_MAX:
                remembered.clear()
        self._failures[segment.segment_id] = _Failure(failure, now_s + _FAILED_S)
        if now_s - self._told.get(segment.segment_id, float("-inf")) > _TELL_EVERY_S:
            self._told[segment.segment_id] = now_s
            _log.error("%s", failure.message)
        return failure


def _record_in(
    extent: Extent, timestamp_ms: int, start_offset: int, opened_max: int
) -> tuple[TimestampOffset | None, int]:
    """Return the record, where there is one, and how many batches were opened: at most so many."""
    opened = 0
    for at, header in scan_headers(extent.file, 0, extent.size_bytes):
        if header.max_timestamp_ms >= timestamp_ms and header.last_offset >= start_offset:
            found = open_record_at(extent.file, at, header, timestamp_ms, start_offset)
            opened += 1
            if found is not None or opened >= opened_max:
                return found, opened
    return None, opened
