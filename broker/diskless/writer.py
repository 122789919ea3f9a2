"""Writes what is appended to the diskless partitions that a node leads: small runs as rows, others as objects.

What is small is committed at once, all partitions together, while nothing else of these partitions is under way: the
next commit takes what came during this one. The rest is gathered for a short time and becomes one object for all
partitions. Objects are uploaded side by side; the runs of one partition are committed in their order.

A commit is repeated until it is known what became of it. Only a later claim ends that: this node leads no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol, TypeVar

from semel.broker.config.node_config import NodeConfig
from semel.broker.diskless.rows import Committed, DisklessRows, Entry, NewEntry, ObjectGoneError, PartitionKey
from semel.broker.logs.partition import Partition
from semel.broker.tiers.object_store import ObjectStore
from semel.broker.tiers.store_quotas import APPEND, StoreQuotas
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import SemelError
from semel.protocol.randomness import new_token
from semel.runtime.clock import Clock
from semel.runtime.storage import Buffer

_log = logging.getLogger("semel.diskless")

T = TypeVar("T")

_UPLOADS_MAX: Final = 8
_ROWS_MAX: Final = 500
"""So many partitions one commit has at most."""
_BURST_S: Final = 4
"""After a quiet time so many seconds' worth may be written to the database at once."""
_THROTTLED_S_MAX: Final = 1.0
"""It is looked so often whether the quota of requests was raised."""
_AGAIN_S: Final = 0.1
_AGAIN_S_MAX: Final = 2.0
_KEY_BYTES: Final = 12


class Place(Protocol):
    """Where the node's writer writes to."""

    @property
    def config(self) -> NodeConfig: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def store(self) -> ObjectStore: ...

    @property
    def quotas(self) -> StoreQuotas: ...

    @property
    def rows(self) -> DisklessRows: ...

    @property
    def run(self) -> str:
        """The run of the node: its incarnation."""
        ...

    @property
    def key_prefix(self) -> str:
        """What the keys of its objects begin with."""
        ...

    def claim_of(self, partition: Partition) -> str:
        """Return the claim under which a partition is led here; "" where there is none any more."""
        ...

    async def ask(self, call: Callable[[], T]) -> T:
        """Ask the database. Raises `SemelError`."""
        ...

    def may_be_inline(self, partition: Partition) -> bool:
        """Say whether the database may take small appends of a partition."""
        ...

    def entry_committed(self, partition: Partition, entry: Entry) -> None:
        """Take note that an entry was committed."""
        ...

    def lost(self, partition: Partition, end_offset: int | None = None) -> None:
        """Take note that another node has the claim, or that nothing is known of a commit.

        end_offset: where the database has lost what was committed before, the end of what it has
        """
        ...


class _Pending:
    """What was appended to one partition and is under way nowhere."""

    __slots__ = ("buffers", "claim", "end_offset", "partition", "size_bytes", "start_offset")

    def __init__(self, partition: Partition, claim: str, start_offset: int) -> None:
        self.partition = partition
        self.claim = claim
        self.start_offset = self.end_offset = start_offset
        self.size_bytes = 0
        self.buffers: list[Buffer] = []

    def add(self, end_offset: int, buffers: Sequence[Buffer]) -> int:
        size = sum(map(len, buffers))
        self.end_offset = end_offset
        self.buffers += buffers
        self.size_bytes += size
        return size

    @property
    def key(self) -> PartitionKey:
        return self.partition.topic_id, self.partition.tp.partition


class _Run(NamedTuple):
    """What one commit has of a partition."""

    pending: _Pending
    data: bytes


class Writer:
    """That of one node. `close` when it stops: what is not committed then was not acknowledged."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._pending: dict[Partition, _Pending] = {}
        self._gathered_since_s: float | None = None
        """When the oldest append came that waits for an object."""
        self._throttled_since_s: float | None = None
        """Since when an object waits for nothing but the quota of requests."""
        self._last: dict[Partition, asyncio.Task[None]] = {}
        """The last commit under way that has a part of a partition."""
        self._inline: asyncio.Task[None] | None = None
        self._uploads: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._inlining: dict[Partition, asyncio.Future[None]] = {}
        """The commit under way of each partition's small appends."""
        self._budget = float(_BURST_S * place.config.diskless_inline_bytes_per_second)
        self._budget_at_s = place.clock.monotonic()
        self._turn: asyncio.Handle | None = None
        self.is_closed = False
        self.waiting_bytes = 0
        """What was appended and not committed yet."""
        self._errors: dict[str, str] = {}
        """Why the last attempt failed, by what was attempted. What succeeds says nothing of the others."""
        self.busy: set[str] = set()
        """The keys of objects that are being written, or committed."""
        self.commits = self.entries = self.inline_bytes = self.objects = 0

    @property
    def error(self) -> str:
        """Why something could not be done that is tried again; empty where nothing is."""
        return next(iter(self._errors.values()), "")

    # --- Taking appends -----------------------------------------------------------------------------------------------

    def add(self, partition: Partition, start_offset: int, end_offset: int, buffers: Sequence[Buffer]) -> None:
        """Commit what was just appended, as soon as it may be. The buffers stay as they are until then."""
        pending = self._pending.get(partition)
        if pending is None:
            claim = self._place.claim_of(partition)
            pending = self._pending[partition] = _Pending(partition, claim, start_offset)
        self.waiting_bytes += pending.add(end_offset, buffers)
        self._go_on()

    def _go_on(self) -> None:
        """See to it that what may be begun is begun, with all that comes in this turn of the loop."""
        if self._turn is None and self._pending and not self.is_closed:
            self._turn = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._turn = None
        # Each is looked at once: from one moment to the next there is more to spend, and none may fall between the two.
        gathered = [one for one in self._pending.values() if not self._is_inline(one)]
        if self._inline is None and len(gathered) < len(self._pending):
            self._inline = asyncio.get_running_loop().create_task(self._commit_inline(), name="commit small appends")
            self._inline.add_done_callback(_log_failure)
        self._look_after_gathered(gathered)

    def _is_inline(self, pending: _Pending) -> bool:
        size, config = pending.size_bytes, self._place.config
        return (
            size <= config.diskless_inline_max_bytes
            and pending.partition not in self._last
            and self._may_spend(size)
            and self._place.may_be_inline(pending.partition)
        )

    def _may_spend(self, size: int) -> bool:
        now_s, rate = self._place.clock.monotonic(), self._place.config.diskless_inline_bytes_per_second
        self._budget = min(self._budget + (now_s - self._budget_at_s) * rate, float(_BURST_S * rate))
        self._budget_at_s = now_s
        return self._budget >= size

    # --- Rows ---------------------------------------------------------------------------------------------------------

    async def _commit_inline(self) -> None:
        """Commit all that is small, again and again while there is any."""
        done: asyncio.Future[None] | None = None
        try:
            while runs := self._take_inline():
                done = asyncio.get_running_loop().create_future()
                self._inlining = {run.pending.partition: done for run in runs}
                self.inline_bytes += sum(len(run.data) for run in runs)
                with self._nothing_behind(runs):
                    await self._commit(runs, [_entry(run, "", 0) for run in runs])
                done.set_result(None)
        finally:
            if done is not None and not done.done():
                done.cancel()
            self._inlining = {}
            self._inline = None
            self._go_on()

    def _take_inline(self) -> list[_Run]:
        found: list[_Run] = []
        for pending in list(self._pending.values()):
            if len(found) < _ROWS_MAX and self._is_inline(pending):
                self._budget -= pending.size_bytes
                found.append(self._take(pending))
        return found

    def _take(self, pending: _Pending) -> _Run:
        del self._pending[pending.partition]
        return _Run(pending, b"".join(pending.buffers))

    # --- Objects ------------------------------------------------------------------------------------------------------

    def _look_after_gathered(self, gathered: list[_Pending]) -> None:
        """Begin an object where it is time, or see to it that this is looked at again."""
        if not gathered:
            self._gathered_since_s = self._throttled_since_s = None
            return
        now_s, config = self._place.clock.monotonic(), self._place.config
        if self._gathered_since_s is None:
            self._gathered_since_s = now_s
        left_s = self._gathered_since_s + config.diskless_append_commit_interval_ms / 1000 - now_s
        is_much = sum(one.size_bytes for one in gathered) >= config.diskless_append_buffer_max_bytes
        is_due = (left_s <= 0 or is_much) and len(self._uploads) < _UPLOADS_MAX
        if is_due and (throttled_s := self._place.quotas.put_wait_s()) > 0:
            if self._throttled_since_s is None:
                self._throttled_since_s = now_s
            self._wake_after(min(throttled_s, _THROTTLED_S_MAX))
        elif is_due:
            if self._throttled_since_s is not None:
                self._place.quotas.throttled_s[APPEND] += now_s - self._throttled_since_s
                self._throttled_since_s = None
            self._begin_object(gathered[:_ROWS_MAX])
            self._gathered_since_s = None
            if len(gathered) > _ROWS_MAX:
                self._wake_after(0.0)
        elif left_s > 0:
            self._wake_after(left_s)

    def _wake_after(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._timer_over)

    def _timer_over(self) -> None:
        self._timer = None
        self._go_on()

    def _begin_object(self, gathered: list[_Pending]) -> None:
        runs = [self._take(one) for one in gathered]
        self._place.quotas.puts(sum(len(run.data) for run in runs))
        partitions = [run.pending.partition for run in runs]
        before: set[asyncio.Future[None]] = {self._last[each] for each in partitions if each in self._last}
        before |= {self._inlining[each] for each in partitions if each in self._inlining}
        task = asyncio.get_running_loop().create_task(self._write_object(runs, before), name="write an object")
        for partition in partitions:
            self._last[partition] = task
        self._uploads.add(task)
        task.add_done_callback(self._object_done)

    def _object_done(self, task: asyncio.Task[None]) -> None:
        self._uploads.discard(task)
        for partition in [one for one, last in self._last.items() if last is task]:
            del self._last[partition]
        _log_failure(task)
        self._go_on()

    async def _write_object(self, runs: list[_Run], before: set[asyncio.Future[None]]) -> None:
        """Upload an object, and commit it once what comes before it is committed."""
        data = b"".join(run.data for run in runs)
        with self._nothing_behind(runs):
            while not await self._try_object(runs, data, before):
                pass

    async def _try_object(self, runs: list[_Run], data: bytes, before: set[asyncio.Future[None]]) -> bool:
        key = f"{self._place.key_prefix}{new_token(_KEY_BYTES)}"
        self.busy.add(key)
        try:
            await self._upload(key, data)
            if before:
                await asyncio.wait(before)
            entries, position = [], 0
            for run in runs:
                entries.append(_entry(run, key, position))
                position += len(run.data)
            await self._commit(runs, entries)
            self.objects += 1
        except ObjectGoneError:
            _log.warning("the object %s was given up before it was committed: it is written again", key)
            return False
        finally:
            self.busy.discard(key)
        return True

    async def _upload(self, key: str, data: bytes) -> None:
        place = self._place
        size, run = len(data), place.run

        async def note() -> None:
            await place.ask(lambda: place.rows.begin_object(key, run, size, place.clock.now_ms()))

        is_repeated = False

        async def put() -> None:
            nonlocal is_repeated
            if is_repeated:
                place.quotas.puts(size)  # the store bills each
            is_repeated = True
            await place.store.put(key, iter((data,)), size)

        await self._until_done("note an object", note)
        await self._until_done("write an object", put)

    # --- Committing ---------------------------------------------------------------------------------------------------

    async def _commit(self, runs: Sequence[_Run], entries: Sequence[NewEntry]) -> None:
        """Commit runs, and tell their partitions what became of them. Raises `ObjectGoneError`."""
        found = Committed(set(), {})
        # What comes behind a run that was given up is never committed: it would leave a gap.
        wanted = [
            entry
            for run, entry in zip(runs, entries, strict=True)
            if self._place.claim_of(run.pending.partition) == run.pending.claim
        ]

        async def commit() -> None:
            nonlocal found
            if wanted:
                found = await self._place.ask(lambda: self._place.rows.commit(wanted))

        await self._until_done("commit records", commit)
        self.commits += 1
        for run, entry in zip(runs, entries, strict=True):
            partition = run.pending.partition
            if entry.key in found.led:
                self.entries += 1
                self._place.entry_committed(partition, entry.entry)
                if partition.offline_error is None:
                    partition.made_durable(run.pending.end_offset)
            else:
                self._forget(partition)
                self._place.lost(partition, found.ends.get(entry.key))

    @contextmanager
    def _nothing_behind(self, runs: Sequence[_Run]) -> Iterator[None]:
        """Where a commit ends before it is known what became of it, commit nothing more of its partitions. Its bytes
        wait no longer, however it ends.
        """
        try:
            yield
        except BaseException:
            for run in runs:
                self._forget(run.pending.partition)
                self._place.lost(run.pending.partition)
            raise
        finally:
            self.waiting_bytes -= sum(len(run.data) for run in runs)

    def _forget(self, partition: Partition) -> None:
        """Give up what comes behind something that will never be committed."""
        pending = self._pending.pop(partition, None)
        if pending is not None:
            self.waiting_bytes -= pending.size_bytes

    async def _until_done(self, what: str, step: Callable[[], Awaitable[None]]) -> None:
        pause_s = _AGAIN_S
        while True:
            try:
                await step()
            except SemelError as error:
                if what not in self._errors:
                    _log.error("could not %s, and it is tried again: %s", what, error.message)
                self._errors[what] = f"could not {what}: {error.message}"
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _AGAIN_S_MAX)
            else:
                self._errors.pop(what, None)
                return

    # --- Ending -------------------------------------------------------------------------------------------------------

    def cancel(self) -> list[asyncio.Task[None]]:
        """Commit nothing more. Returns what ends now."""
        self.is_closed = True
        for waiting in (self._timer, self._turn):
            if waiting is not None:
                waiting.cancel()
        tasks = [*self._uploads, *([] if self._inline is None else [self._inline])]
        for task in tasks:
            task.cancel()
        return tasks


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (failure := task.exception()) is not None:
        _log.error("could not %s", task.get_name(), exc_info=failure)


def _entry(run: _Run, object_key: str, position: int) -> NewEntry:
    pending, data = run
    inline = b"" if object_key else data
    entry = Entry(pending.start_offset, pending.end_offset, object_key, position, len(data), crc32c(data), inline)
    return NewEntry(pending.key, pending.claim, entry)
