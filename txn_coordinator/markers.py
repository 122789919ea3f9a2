"""Sends the markers of decided transactions until every partition has its own, then reports back (T3).

One task for each decision, never two for the same: with the older protocol a second marker, late, could end the
producer's next transaction. What fails is tried again for as long as this node coordinates the id; the next one
begins again from the log (T4), and its higher coordinator epoch shuts this one's late markers out (P9).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, Protocol, TypeVar

from opentelemetry.trace import Span
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from semel.protocol.api.transactions import TxnMarker
from semel.protocol.errors import ErrorCode, FencedError, SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.randomness import source
from semel.runtime.retrying import attempted
from semel.runtime.telemetry.tracing import end_span
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.effects import MarkersWritten, SendMarkers
from semel.txn_coordinator.tracing import TransactionSpans

_log = logging.getLogger("semel.txn.markers")

_DONE: Final = frozenset(
    {
        ErrorCode.NONE,
        # No data of the transaction can be in such a partition, as Kafka reasons.
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
        # The partition has seen a later epoch of this producer, so this transaction ended there before. To insist would
        # keep the producer from ever going on (KAFKA-19999).
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
_MAYBE_GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

_Answer = TypeVar("_Answer")

_DOUBLINGS_MAX: Final = 20
LOUD_AFTER_ATTEMPTS: Final = 5
"""A leader's move or a restart is over by then; from there on each failure is logged as a warning."""


class MarkerWriter(Protocol):
    """Writes markers into partitions, wherever their leaders are."""

    async def write_markers(self, marker: TxnMarker) -> Mapping[TopicPartition, ErrorCode]:
        """Write one marker to each of its partitions and return how that went.

        NONE means: the marker is committed, and offsets committed in the transaction are visible (KAFKA-17507).
        """
        ...

    async def deleted(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[str, TopicId]
    ) -> frozenset[TopicPartition]:
        """Return those partitions whose topics were deleted, of the ids that are given: they need no marker (R8).

        A topic that this node does not know may be newer than what it has read of the metadata: then it reads on, and
        raises `SemelError` where it can't.
        """
        ...


class _NotWrittenError(Exception):
    """Some partitions have no marker yet."""


class _Send(NamedTuple):
    partition: int
    transactional_id: str
    decided_ms: int
    coordinator_epoch: int


class MarkerSender:
    """Carries out `SendMarkers` effects.

    report: hands a `MarkersWritten` to the machine of a partition of `__transaction_state`; raises `SemelError`.
    """

    def __init__(
        self,
        writer: MarkerWriter,
        report: Callable[[int, MarkersWritten], Awaitable[object]],
        config: TransactionConfig,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        spans: TransactionSpans | None = None,
    ) -> None:
        self._writer = writer
        self._report = report
        self._sleep = sleep
        self._spans = spans
        self._first_pause_s = config.transaction_marker_retry_backoff_ms / 1000
        self._longest_pause_s = config.transaction_marker_retry_backoff_max_ms / 1000
        self._in_flight = asyncio.Semaphore(config.transaction_markers_max_in_flight)
        self._tasks: dict[_Send, asyncio.Task[None]] = {}
        self._troubles: dict[str, tuple[int, str]] = {}

    def send(self, partition: int, effect: SendMarkers) -> None:
        """Begin to send, unless the same decision's markers are on their way already."""
        key = _Send(partition, effect.transactional_id, effect.decided_ms, effect.marker.coordinator_epoch)
        if key in self._tasks:
            return
        task = asyncio.get_running_loop().create_task(
            self._run(partition, effect), name=f"markers {effect.transactional_id}"
        )
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._forget(key, done))

    def cancel(self, partition: int) -> None:
        """Stop sending for a partition of `__transaction_state` that this node no longer leads."""
        for key, task in list(self._tasks.items()):
            if key.partition == partition:
                task.cancel()
                del self._tasks[key]

    async def close(self) -> None:
        """Stop sending altogether. What is not written is sent after the next start."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def pending(self) -> int:
        """Return how many decisions are on their way."""
        return len(self._tasks)

    def trouble(self, transactional_id: str) -> tuple[int, str]:
        """Return how often an id's markers could not be written, and why the last time."""
        return self._troubles.get(transactional_id, (0, ""))

    def _forget(self, key: _Send, done: asyncio.Task[None]) -> None:
        self._troubles.pop(key.transactional_id, None)
        if self._tasks.get(key) is done:
            del self._tasks[key]

    async def _run(self, partition: int, effect: SendMarkers) -> None:
        try:
            await self._write_all(effect)
            await self._report_until_heard(partition, effect)
        except FencedError as error:
            # A later coordinator has the word; this node is about to learn that it was replaced.
            _log.error("markers refused, a later coordinator took over id=%s error=%s", effect.transactional_id, error)
        except SemelError as error:
            _log.info("markers not reported id=%s error=%s", effect.transactional_id, error)

    async def _write_all(self, effect: SendMarkers) -> None:
        left = set(effect.marker.partitions)
        spans: dict[TopicPartition, Span] = {}
        if self._spans is not None and effect.trace is not None:
            spans = {tp: self._spans.marker(effect, tp) for tp in effect.marker.partitions}

        def settle(done: Collection[TopicPartition]) -> None:
            left.difference_update(done)
            for tp in done if spans else ():
                end_span(spans.pop(tp))

        async def write() -> None:
            if left:
                errors = await self._write(effect.marker, left)
                settle([tp for tp in left if self._is_done(tp, errors.get(tp))])
                if maybe_gone := [tp for tp in left if errors.get(tp) in _MAYBE_GONE]:
                    settle(await self._deleted(maybe_gone, effect.marker))
            if left:
                raise _NotWrittenError(f"{len(left)} partitions have no marker yet, among them {min(left)}")

        try:
            await attempted(write, _NotWrittenError, lambda: self._retrying(_NotWrittenError, effect))
        finally:
            for span in spans.values():
                end_span(span, "cancelled", "this coordinator has stopped to write it")

    async def _write(self, marker: TxnMarker, left: Collection[TopicPartition]) -> Mapping[TopicPartition, ErrorCode]:
        """Write to the partitions that are left and return how that went. Raises `FencedError` to give up."""
        part = marker if len(left) == len(marker.partitions) else replace(marker, partitions=tuple(sorted(left)))
        async with self._in_flight:
            errors = await self._reached(self._writer.write_markers(part), marker)
        if ErrorCode.TRANSACTION_COORDINATOR_FENCED in errors.values():
            raise FencedError(
                f"a coordinator later than epoch {marker.coordinator_epoch} wrote markers for {marker.producer}",
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            )
        return errors

    @staticmethod
    def _is_done(tp: TopicPartition, error: ErrorCode | None) -> bool:
        if error is ErrorCode.INVALID_PRODUCER_EPOCH:
            _log.warning("a marker came too late, the partition is at a later epoch partition=%s", tp)
        return error in _DONE

    async def _deleted(self, partitions: Collection[TopicPartition], marker: TxnMarker) -> frozenset[TopicPartition]:
        """Return the partitions that are known to be deleted. Where nobody can tell, their markers are retried (R8)."""
        return await self._reached(self._writer.deleted(partitions, marker.topic_ids), marker)

    @staticmethod
    async def _reached(call: Awaitable[_Answer], marker: TxnMarker) -> _Answer:
        """Wait for what may break on its way: whatever it is, the decision stands and has to get there."""
        try:
            return await call
        except SemelError as error:
            if error.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                raise
            raise _NotWrittenError(str(error)) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not this task was cancelled but something it waited for, such as a partition that closed.
            raise _NotWrittenError("a write was cancelled on its way to a partition") from None
        except Exception as error:
            _log.exception("writing markers failed producer=%s", marker.producer)
            raise _NotWrittenError(str(error)) from error

    async def _report_until_heard(self, partition: int, effect: SendMarkers) -> None:
        report = MarkersWritten(
            effect.transactional_id, effect.decided_ms, effect.marker.producer, frozenset(effect.marker.partitions)
        )

        async def tell() -> None:
            try:
                await self._report(partition, report)
            except SemelError as error:
                if error.code is ErrorCode.NOT_COORDINATOR:
                    raise
                raise _NotHeardError(str(error)) from error

        await attempted(tell, _NotHeardError, lambda: self._retrying(_NotHeardError, effect))

    def _retrying(self, kind: type[Exception], effect: SendMarkers) -> AsyncRetrying:
        def before_sleep(state: RetryCallState) -> None:
            level = logging.WARNING if state.attempt_number >= LOUD_AFTER_ATTEMPTS else logging.DEBUG
            error = state.outcome.exception() if state.outcome is not None else None
            self._troubles[effect.transactional_id] = (state.attempt_number, str(error))
            _log.log(
                level,
                "markers not through yet, trying again id=%s attempt=%d error=%s",
                effect.transactional_id,
                state.attempt_number,
                error,
            )

        return AsyncRetrying(
            sleep=self._sleep,
            wait=self._pause_s,
            retry=retry_if_exception_type(kind),
            before_sleep=before_sleep,
            reraise=True,
        )

    def _pause_s(self, state: RetryCallState) -> float:
        """Return up to twice as long after each failure, at random, so that many do not come at one time."""
        doublings = min(state.attempt_number - 1, _DOUBLINGS_MAX)
        return source().uniform(0.0, min(self._first_pause_s * 2**doublings, self._longest_pause_s))


class _NotHeardError(Exception):
    """The shard could not take the report yet (it is loading, or its log failed)."""
