"""Where clients' batches are opened: at once where that is cheap, in a few threads where it is not (S3, S4).

Who sends a batch decides what it costs to look into it: 3 KB may become 100 MB. So what is done on the event loop is
bounded by what comes out, for each batch and for each turn of the loop. Everything else is done in threads, which the
codecs and the check of the records leave the loop free in; one batch of each request after the other, the requests in
turns, so that one client's batches wait for each other and not everybody for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple, Protocol, TypeAlias

from semel.broker.config.node_config import NodeConfig
from semel.broker.log.append_validation import (
    CheckedBatch,
    UncompressedLimits,
    check_batch,
    check_records,
    not_compressed,
    open_batch,
)
from semel.broker.log.config import LogConfig
from semel.broker.log.partition_log import writable
from semel.protocol.batch_header import BATCH_OVERHEAD, COMPRESSION_MASK, BatchHeader
from semel.protocol.compression import Buffer, decompress_within
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import TopicPartition
from semel.runtime.threads import Threads

_log = logging.getLogger("semel.produce")

PLAIN_BYTES_MAX: Final = 2 << 20
"""Uncompressed batches up to this size are checked where they are appended: that costs about what their sum does."""
COMPRESSED_BYTES_MAX: Final = 64 << 10
ROOM_BYTES: Final = 256 << 10
"""What a batch may become on the event loop: a millisecond or two of the slowest codec."""
RECODED_BYTES_MAX: Final = 32 << 10
"""The same where it is compressed again, which costs many times as much."""
RECODING_COST: Final = 16
TURN_BYTES_MAX: Final = 1 << 20
"""What all batches may become on the event loop in one turn of it."""
PATIENCE_MIN_S: Final = 5.0
"""However little time a request gives its answer, its batches may wait this long to be checked."""


class Turn(Protocol):
    """A request's place in the order of its client's."""

    on_close: Callable[[], None] | None
    """Called when the client is gone."""

    def hold(self) -> None:
        """Let nothing of this client begin until `go_on`."""
        ...

    def go_on(self) -> None: ...


class Unchecked(NamedTuple):
    """A batch to be checked: its place in the request, and what the check needs to know."""

    place: int
    tp: TopicPartition
    buffer: bytearray | memoryview
    config: LogConfig


Outcome: TypeAlias = CheckedBatch | SemelError


class CheckJob:
    """The batches of one request that are checked elsewhere."""

    __slots__ = ("batches", "deadline", "done", "outcomes")

    def __init__(
        self, batches: Sequence[Unchecked], deadline: float, done: Callable[[Mapping[int, Outcome]], None]
    ) -> None:
        self.batches = deque(batches)
        self.deadline = deadline
        self.outcomes: dict[int, Outcome] = {}
        self.done: Callable[[Mapping[int, Outcome]], None] | None = done
        """None: nobody waits any more."""

    def cancel(self) -> None:
        """Forget the request: its client is gone."""
        self.done = None
        self.batches.clear()

    def refuse(self, error: SemelError) -> None:
        """Give up the batches that are left."""
        while self.batches:
            self.outcomes[self.batches.popleft().place] = error

    def finish(self) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(self.outcomes)


class BatchChecks:
    """The checks of one node's batches. Everything is called on the event loop, whose threads it has."""

    def __init__(self, config: NodeConfig) -> None:
        self.limits = UncompressedLimits(config.message_uncompressed_max_bytes, config.message_compression_ratio_max)
        self._threads = config.produce_check_threads
        self._queue_max = config.produce_check_queue_max
        self._executor: Threads | None = None
        self._queue: deque[CheckJob] = deque()
        self._running: dict[CheckJob, int] = {}
        """Requests that have a batch in a thread: its place."""
        self._closed = False
        self._room = memoryview(bytearray(ROOM_BYTES))
        self._left = TURN_BYTES_MAX
        self.checked_elsewhere = 0
        """Batches that were checked in a thread."""
        self.refused = 0
        """Requests that were not checked because too many waited (produce.check.queue.max)."""

    @property
    def queued(self) -> int:
        """How many requests wait for a thread."""
        return len(self._queue)

    @property
    def waiting(self) -> int:
        """How many requests wait for a thread, or have a batch in one."""
        return len(self._queue) + len(self._running)

    def at_once(
        self, tp: TopicPartition, header: BatchHeader, buffer: Buffer, config: LogConfig
    ) -> CheckedBatch | None:
        """Check a compressed batch, or one to be compressed, here and now; None where that is too much work.

        Raises `SemelError` as `check_batch` does.
        """
        most = RECODED_BYTES_MAX if config.recompresses else ROOM_BYTES
        if header.size_bytes > min(most, COMPRESSED_BYTES_MAX) or self._left <= 0:
            return None
        if self._left == TURN_BYTES_MAX:
            asyncio.get_running_loop().call_soon(self._next_turn)
        batch = writable(buffer)
        opened = open_batch(tp, batch, config)
        self._left -= header.size_bytes
        if not header.attributes & COMPRESSION_MASK:
            self._left -= RECODING_COST * header.size_bytes
            return check_records(tp, opened, batch, config, batch, BATCH_OVERHEAD, header.size_bytes)
        body = memoryview(batch)[BATCH_OVERHEAD : header.size_bytes]
        try:
            data = decompress_within(header.compression, body, self._room[:most])
        except CorruptBatchError as error:
            raise not_compressed(tp, error) from None
        if data is None:
            self._left -= most
            return None
        self._left -= len(data) * (RECODING_COST if config.recompresses else 1)
        return check_records(tp, opened, batch, config, data, 0, len(data))

    def _next_turn(self) -> None:
        self._left = TURN_BYTES_MAX

    def elsewhere(
        self, batches: Sequence[Unchecked], timeout_ms: int, done: Callable[[Mapping[int, Outcome]], None]
    ) -> CheckJob:
        """Check batches in a thread, and call `done` with an outcome for each place, unless the job is cancelled.

        Raises `SemelError` where too many wait already, and where the node stops.
        """
        if self._closed:
            raise _stopping()
        if len(self._queue) >= self._queue_max:
            self.refused += 1
            raise error_for(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self._queue)} requests wait for their batches to be checked (produce.check.queue.max): send "
                "again after a pause, smaller or uncompressed",
            )
        loop = asyncio.get_running_loop()
        job = CheckJob(batches, loop.time() + max(PATIENCE_MIN_S, timeout_ms / 1000), done)
        self._queue.append(job)
        self._begin(loop)
        return job

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give the threads something to do, the request that waits longest first."""
        while self._queue and len(self._running) < self._threads:
            job = self._queue.popleft()
            if loop.time() > job.deadline:
                job.refuse(_too_late())
            if not job.batches:
                job.finish()
                continue
            if self._executor is None:
                self._executor = Threads(self._threads, "semel-check")
            batch = job.batches.popleft()
            self._running[job] = batch.place
            checking = self._executor.submit(_check, batch, self.limits)
            checking.add_done_callback(_Back(self, loop, job, batch.place))

    def checked(self, loop: asyncio.AbstractEventLoop, job: CheckJob, place: int, outcome: Outcome) -> None:
        """Take what a thread found; the job gets behind the others for its next batch."""
        del self._running[job]
        self.checked_elsewhere += 1
        if job.done is not None:
            job.outcomes[place] = outcome
            if job.batches:
                self._queue.append(job)
            else:
                job.finish()
        self._begin(loop)

    def close(self) -> None:
        """Refuse what waits. What is in a thread ends on its own, and nobody waits for it."""
        self._closed = True
        waiting, self._queue = self._queue, deque()
        for job, place in self._running.items():
            job.outcomes[place] = _stopping()
        for job in (*self._running, *waiting):
            job.refuse(_stopping())
            job.finish()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None


class _Back:
    """Brings an outcome back from its thread."""

    __slots__ = ("_checks", "_job", "_loop", "_place")

    def __init__(self, checks: BatchChecks, loop: asyncio.AbstractEventLoop, job: CheckJob, place: int) -> None:
        self._checks = checks
        self._loop = loop
        self._job = job
        self._place = place

    def __call__(self, checking: Future[Outcome]) -> None:
        outcome = _stopping() if checking.cancelled() else checking.result()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the node has stopped
            self._loop.call_soon_threadsafe(self._checks.checked, self._loop, self._job, self._place, outcome)


def _check(batch: Unchecked, limits: UncompressedLimits) -> Outcome:
    """Check one batch, in a thread."""
    try:
        return check_batch(batch.tp, batch.buffer, batch.config, limits)
    except SemelError as error:
        # Neither may keep the frames with what was decompressed.
        error.__context__ = None
        return error.with_traceback(None)
    except Exception:
        _log.exception("a batch could not be checked: partition=%s", batch.tp)
        return error_for(ErrorCode.UNKNOWN_SERVER_ERROR, "the batch could not be checked: see the node's own log")


def _stopping() -> SemelError:
    return error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the node is stopping: nothing was appended; send again")


def _too_late() -> SemelError:
    return error_for(
        ErrorCode.REQUEST_TIMED_OUT,
        "the batch waited for its check for longer than timeout_ms, and was not appended: too many large compressed "
        "batches are sent at once",
    )
