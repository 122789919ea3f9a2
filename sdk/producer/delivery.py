"""What becomes of a record that was sent, and the batch that it travels in.

One object of the size of a few words stands for each record; all that records of a batch share is in the batch.
Compiled with delivery.pxd: `send` makes millions of deliveries a second.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

try:
    import cython
except ModuleNotFoundError:
    from semel.protocol import uncompiled as cython

from semel.protocol.batch_builder import BatchBuilder
from semel.protocol.errors import ErrorCode, RetriableError, SemelError, UsageError
from semel.sdk.transport.border import bare
from semel.sdk.transport.io_thread import on_any_io_thread

_log = logging.getLogger("semel.producer")


class RecordMetadata(NamedTuple):
    """Where a record is. `offset` is -1 where the node does not say (acks=0).

    `timestamp_ms` is the record's own, or the node's time of the append where the topic is set so.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


DeliveryCallback: TypeAlias = Callable[["RecordMetadata | None", "SemelError | None"], object]
"""Called on the IO thread, in the order of a partition's records: with metadata, or with an error. Must not block."""

_outcome_lock = threading.Lock()


class ProducerBatch:
    """Records of one partition that travel together, from the first append to the acknowledgement.

    `serial` numbers a producer's batches in the order they were begun. Times are of the monotonic clock, in ms.
    `builder` is None for one that came ready-made, as `data`.
    """

    __slots__ = (
        "append_time_ms",
        "attempts",
        "base_offset",
        "base_sequence",
        "builder",
        "callbacks",
        "charged_bytes",
        "created_ms",
        "data",
        "done",
        "error",
        "event",
        "first_in_line",
        "in_doubt",
        "in_flight",
        "not_before_ms",
        "partition",
        "parts",
        "producer_epoch",
        "producer_id",
        "record_count",
        "sent_in",
        "serial",
        "topic",
        "traces",
        "wakers",
    )

    def __init__(self, serial: int, topic: str, partition: int, builder: BatchBuilder | None, created_ms: int) -> None:
        self.serial = serial
        self.topic = topic
        self.partition = partition
        self.builder = builder
        self.created_ms = created_ms
        self.charged_bytes = 0
        self.record_count = 0
        self.callbacks: list[tuple[int, int, DeliveryCallback]] | None = None
        self.traces: list[Any] | None = None  # of traced records: see sdk/producer/record_tracing.py
        self.sent_in: Any = None  # the trace context of the span that sends it
        # The sender's: what was sent, and under which identity.
        self.data: bytearray | None = None
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.attempts = 0
        self.in_flight = False
        self.first_in_line = False  # at the last sending, everything before it had been acknowledged
        self.in_doubt = False  # a copy went out whose answer never came
        self.not_before_ms = 0
        # The outcome.
        self.done = False
        self.base_offset = -1
        self.append_time_ms = -1
        self.error: SemelError | None = None
        self.event: threading.Event | None = None
        self.wakers: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] | None = None
        self.parts: list[tuple[int, ProducerBatch]] | None = None

    def __repr__(self) -> str:
        return (
            f"ProducerBatch({self.topic}-{self.partition}, {self.record_count} records, sequence {self.base_sequence})"
        )

    def succeed(self, base_offset: int, append_time_ms: int) -> None:
        """Acknowledge every record. Runs their callbacks."""
        self.base_offset = base_offset
        self.append_time_ms = append_time_ms
        self._finish()

    def fail(self, error: SemelError) -> None:
        """Fail every record with the same error. Runs their callbacks."""
        self.error = error
        self._finish()

    def split(self, parts: list[tuple[int, ProducerBatch]]) -> None:
        """Let `parts`, by the place of their first record, say what becomes of the records.

        For a batch that is too large for its topic. The parts take the callbacks over.
        """
        callbacks = self.callbacks or []
        self.callbacks = None
        for index, (first, part) in enumerate(parts):
            end = parts[index + 1][0] if index + 1 < len(parts) else self.record_count
            moved = [(delta - first, at, call) for delta, at, call in callbacks if first <= delta < end]
            part.callbacks = moved or None
        with _outcome_lock:
            self.parts = parts
            event = self.event
            wakers, self.wakers = self.wakers, None
        self.builder = None
        self.data = None
        # All who wait continue to wait for their part.
        if event is not None:
            event.set()
        if wakers is not None:
            _wake(wakers)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until the batch is done or split. Returns whether it is."""
        with _outcome_lock:
            if self.done or self.parts is not None:
                return True
            if self.event is None:
                self.event = threading.Event()
            event = self.event
        if timeout_s != 0 and on_any_io_thread():
            raise UsageError(
                "a delivery's result was waited for inside a callback, on the thread that is to bring it: it would "
                "never come; use add_done_callback(), or wait on a thread of your own"
            )
        return event.wait(timeout_s)

    def settled(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None] | None:
        """Return a future of the running loop for when the batch is done or split; None where it is."""
        future: asyncio.Future[None] = loop.create_future()
        with _outcome_lock:
            if self.done or self.parts is not None:
                return None
            if self.wakers is None:
                self.wakers = {}
            self.wakers.setdefault(loop, []).append(future)
        return future

    def add_callback(self, delta: int, timestamp_ms: int, callback: DeliveryCallback) -> None:
        """Call `callback` for the record at `delta` when it is done; at once if it is."""
        with _outcome_lock:
            if not self.done and self.parts is None:
                if self.callbacks is None:
                    self.callbacks = []
                self.callbacks.append((delta, timestamp_ms, callback))
                return
        if self.parts is not None:
            first, part = self.part_of(delta)
            part.add_callback(delta - first, timestamp_ms, callback)
        else:
            self._call(delta, timestamp_ms, callback)

    def part_of(self, delta: int) -> tuple[int, ProducerBatch]:
        """Return the part that the record at `delta` went to, with the place of the part's first record."""
        assert self.parts is not None
        return next((first, part) for first, part in reversed(self.parts) if first <= delta)

    def metadata(self, delta: int, timestamp_ms: int) -> RecordMetadata:
        """Return where the record at `delta` is, after success."""
        offset = self.base_offset + delta if self.base_offset >= 0 else -1
        return RecordMetadata(
            self.topic, self.partition, offset, self.append_time_ms if self.append_time_ms >= 0 else timestamp_ms
        )

    def _finish(self) -> None:
        self.builder = None
        self.data = None
        with _outcome_lock:
            self.done = True
            callbacks, self.callbacks = self.callbacks, None
            event = self.event
            wakers, self.wakers = self.wakers, None
        if event is not None:
            event.set()
        if wakers is not None:
            _wake(wakers)
        if callbacks is not None:
            for delta, timestamp_ms, callback in callbacks:
                self._call(delta, timestamp_ms, callback)

    def _call(self, delta: int, timestamp_ms: int, callback: DeliveryCallback) -> None:
        try:
            if self.error is None:
                callback(self.metadata(delta, timestamp_ms), None)
            else:
                callback(None, self.error)
        except Exception:
            _log.exception("a delivery callback for %s-%d failed", self.topic, self.partition)


class Delivery:
    """The future of one record: wait for it with `result()`, or await it. May be dropped."""

    __slots__ = ("_batch", "_delta", "_timestamp_ms")

    def __init__(self, batch: ProducerBatch, delta: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._delta = delta
        self._timestamp_ms = timestamp_ms

    @property
    def topic(self) -> str:
        return self._batch.topic

    @property
    def partition(self) -> int:
        return self._batch.partition

    def done(self) -> bool:
        """Whether the record was acknowledged or has failed."""
        self._follow()
        return self._batch.done

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait up to `timeout_s` seconds (None: until the producer's delivery timeout) and return where the record is.

        Raises the `SemelError` that the record failed with, or `RetriableError` (REQUEST_TIMED_OUT) when it is not
        known in time; the record may still arrive then. Raises `UsageError` in a callback, where it can never come.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise bare(error)
        return self._batch.metadata(self._delta, self._timestamp_ms)

    def exception(self, timeout_s: float | None = None) -> SemelError | None:
        """Wait as `result` does, and return the error that the record failed with, or None."""
        while not self._batch.done:
            if not self._batch.wait(timeout_s):
                raise RetriableError(
                    f"no acknowledgement of a record to {self.topic}-{self.partition} within {timeout_s} s; "
                    "it may still come: wait longer, or flush",
                    ErrorCode.REQUEST_TIMED_OUT,
                )
            self._follow()
        return self._batch.error

    def add_done_callback(self, callback: DeliveryCallback) -> None:
        """Call `callback(metadata, error)` on the IO thread when the record is done; at once if it is."""
        self._follow()
        self._batch.add_callback(self._delta, self._timestamp_ms, callback)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        self._follow()
        while not self._batch.done:
            future = self._batch.settled(asyncio.get_running_loop())
            if future is not None:
                yield from future
            self._follow()
        return self.result(0)

    def __repr__(self) -> str:
        state = "pending"
        if self._batch.done:
            state = "acknowledged" if self._batch.error is None else f"failed: {self._batch.error}"
        return f"<Delivery to {self.topic}-{self.partition}: {state}>"

    def _follow(self) -> None:
        """Continue with the part of a batch that was split."""
        while self._batch.parts is not None:
            first, part = self._batch.part_of(self._delta)
            self._batch, self._delta = part, self._delta - first


def _wake(wakers: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]]) -> None:
    """Wake tasks of other loops from the IO thread: each loop once, however many records of a batch it waits for."""
    for loop, futures in wakers.items():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_settle, futures)


def _settle(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


COMPILED = cython.compiled
