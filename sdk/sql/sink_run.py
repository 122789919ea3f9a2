"""What `Sink.run` does: reads and maps on the caller's thread, writes on another, and holds a bounded amount between.

The caller's thread continues polling while the database is slow, so that the sink stays a member of its group; when the
buffer is full it pauses what it reads.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final

from semel.protocol.errors import AbortTransactionError, FatalError, RetriableError, SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.sdk.sql.database import Verdict, failed
from semel.sdk.sql.offsets import Step
from semel.sdk.sql.sink_state import SinkState
from semel.sdk.sql.target import Mapped, MappingFunction, TargetTable
from semel.sdk.telemetry import tracing

_log = logging.getLogger("semel.sql")

POLL_S: Final = 0.05
POLL_RECORDS: Final = 2_000
REVOKE_WAIT_S: Final = 10.0
"""How long partitions that go wait for the transaction that writes them; a longer one is refused by its epoch."""
RECORD_BYTES: Final = 100
"""What a record takes beside its key and value."""


@dataclass(slots=True)
class _Chunk:
    """Mapped records, with what writing them does to the positions.

    weight:     records or rows, whichever is more.
    is_careful: the database refused a row: it is looked for.
    """

    items: list[Mapped]
    steps: dict[TopicPartition, Step]
    since: float
    weight: int = 0
    size_bytes: int = 0
    is_careful: bool = False
    rows: int = 0
    poison: int = 0
    first_poison: tuple[Record, str] | None = None


@dataclass(slots=True)
class _Buffer:
    """What was read and is not being written yet."""

    chunks: deque[_Chunk] = field(default_factory=deque)
    weight: int = 0
    size_bytes: int = 0

    def add(self, chunk: _Chunk) -> None:
        self.chunks.append(chunk)
        self.weight += chunk.weight
        self.size_bytes += chunk.size_bytes

    def pop(self) -> _Chunk:
        chunk = self.chunks.popleft()
        self.weight -= chunk.weight
        self.size_bytes -= chunk.size_bytes
        return chunk


class SinkRun:
    """One run of a sink."""

    def __init__(self, state: SinkState, target: TargetTable, mapping: MappingFunction) -> None:
        self._state = state
        self._target = target
        self._mapping = mapping
        self._rows_max = state.options.rows_max
        self._bytes_max = state.options.bytes_max
        self._buffer = _Buffer()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="semel-sql-writer")
        self._writing: Future[None] | None = None
        self._chunk: _Chunk | None = None
        self._is_closing = False

    def buffered(self) -> tuple[int, int]:
        """Return how many records and bytes were read and are not written."""
        chunks = [*self._buffer.chunks, *([self._chunk] if self._chunk is not None else [])]
        return sum(len(chunk.items) for chunk in chunks), sum(chunk.size_bytes for chunk in chunks)

    def run(self, idle_timeout_s: float | None) -> None:
        """See `Sink.run`."""
        state = self._state
        idle_since = time.monotonic()
        while not state.is_stopped:
            if self._writing is not None and self._writing.done():
                self._finish()
            if state.dead_letters is not None:
                state.dead_letters.check()
            if self._writing is None and self._is_due():
                self._begin()
            batch = state.poll(self._hold_back(), min(self._rows_max, POLL_RECORDS))
            if batch is not None:
                self._buffer.add(self._mapped(batch, state.steps.pop(batch)))
            if batch is not None or self._writing is not None or self._buffer.chunks or state.claims.is_waiting:
                idle_since = time.monotonic()
            elif idle_timeout_s is not None and time.monotonic() - idle_since >= idle_timeout_s:
                state.check_found()
                return

    def _hold_back(self) -> float:
        """Stop or resume reading, as the buffer is; return for how long to poll."""
        consumer = self._state.consumer
        if self._writing is not None and self._is_full():
            reading = consumer.assignment() - consumer.paused()
            if reading:
                consumer.pause(reading)
            wait([self._writing], timeout=POLL_S)
            return 0.0
        held = consumer.paused() - self._state.claims.waiting()
        if held:
            consumer.resume(held)
        if self._writing is not None:
            return POLL_S
        if self._buffer.chunks:
            return max(0.0, min(POLL_S, self._buffer.chunks[0].since + self._state.options.linger_s - time.monotonic()))
        return POLL_S

    def _is_full(self) -> bool:
        return self._buffer.weight >= self._rows_max or self._buffer.size_bytes >= self._bytes_max

    def _is_due(self) -> bool:
        chunks = self._buffer.chunks
        return bool(chunks) and (self._is_full() or time.monotonic() - chunks[0].since >= self._state.options.linger_s)

    def _mapped(self, records: Sequence[Record], steps: dict[TopicPartition, Step]) -> _Chunk:
        chunk = _Chunk([self._target.mapped(record, self._mapping) for record in records], steps, time.monotonic())
        for item in chunk.items:
            record = item.record
            chunk.weight += max(1, len(item.changes))
            chunk.size_bytes += len(record.key or b"") + len(record.value or b"") + RECORD_BYTES
        return chunk

    # --- Writing ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Give the writer what is buffered, up to the bounds of a transaction, of partitions that are ours still."""
        claims = self._state.claims
        taken = _Chunk([], {}, time.monotonic())
        while self._buffer.chunks and taken.weight < self._rows_max and taken.size_bytes < self._bytes_max:
            chunk = self._buffer.pop()
            ours = {tp: step for tp, step in chunk.steps.items() if claims.is_ours(tp, step)}
            for tp, step in ours.items():
                first = taken.steps.get(tp, step)
                assert tp not in taken.steps or (first.epoch, first.next_position) == (step.epoch, step.position)
                taken.steps[tp] = Step(step.epoch, first.position, step.next_position)
            taken.items += (
                chunk.items
                if len(ours) == len(chunk.steps)
                else [item for item in chunk.items if TopicPartition(item.record.topic, item.record.partition) in ours]
            )
            taken.weight += chunk.weight
            taken.size_bytes += chunk.size_bytes
        if taken.steps:
            self._chunk = taken
            self._writing = self._writer.submit(self._write, taken)

    def let_go(self, going: frozenset[TopicPartition]) -> None:
        """Partitions go: let what is being written of them be written first, so that nobody does it again."""
        if self._writing is not None and self._chunk is not None and not going.isdisjoint(self._chunk.steps):
            wait([self._writing], timeout=REVOKE_WAIT_S)

    def _finish(self) -> None:
        """Take what the writer came to."""
        assert self._writing is not None
        assert self._chunk is not None
        (writing, self._writing), (chunk, self._chunk) = (self._writing, None), (self._chunk, None)
        state = self._state
        try:
            writing.result()
        except AbortTransactionError as error:
            _log.info("written by nobody or by others: %s", error)
            state.refused(chunk.steps)
            return
        except RetriableError:
            if state.is_stopped or self._is_closing:
                return
            raise
        state.wrote(chunk.steps, len(chunk.items))
        state.counts["rows"] += chunk.rows
        state.counts["dead_letters"] += chunk.poison
        if chunk.first_poison is not None:
            record, reason = chunk.first_poison
            _log.warning(
                "dead letters: %d; the first is %s-%d@%d: %s",
                chunk.poison, record.topic, record.partition, record.offset, reason,
            )  # fmt: skip
        state.counts["skipped"] += sum(1 for item in chunk.items if not item.changes and item.poison is None)

    def _write(self, chunk: _Chunk) -> None:
        """Write a chunk, again and again while the database is away. Runs on the writer's thread."""
        state = self._state
        span = state.span([item.record for item in chunk.items])
        try:
            with tracing.attached(None if span is None else tracing.context_with(span)):
                state.database.retried(
                    lambda: self._attempt(chunk),
                    timeout_s=state.options.retry_timeout_s,
                    is_over=lambda: state.is_stopped or self._is_closing,
                    on_retry=state.note_retry,
                )
        except Exception as error:
            if span is not None:
                tracing.end_span(span, error)
            if isinstance(error, SemelError):
                raise
            raise failed(state.database, error) from error
        if span is not None:
            tracing.end_span(span)

    def _attempt(self, chunk: _Chunk) -> None:
        if not chunk.is_careful:
            try:
                self._transaction(chunk)
                return
            except Exception as error:
                if self._state.database.verdict(error) is not Verdict.ROW:
                    raise
                chunk.is_careful = True
        self._transaction(chunk)

    def _transaction(self, chunk: _Chunk) -> None:
        """Rows and offsets together (E3)."""
        state = self._state
        good = [item for item in chunk.items if item.changes]
        poison = [(item.record, item.poison) for item in chunk.items if item.poison is not None]
        with state.database.begin() as connection:
            if not state.offsets.advance(connection, chunk.steps):
                return  # an attempt before this one has committed, and its answer was lost
            if chunk.is_careful:
                poison += self._target.write_what_fits(connection, good)
            else:
                self._target.write(connection, good)
            if poison:
                poison.sort(key=lambda one: (one[0].topic, one[0].partition, one[0].offset))
                if state.dead_letters is None:
                    raise _cannot_write(*poison[0])
                state.dead_letters.add(connection, poison)
            # Before the commit, whose answer may be lost.
            dead = {id(record) for record, _ in poison}
            chunk.poison = len(dead)
            chunk.first_poison = poison[0] if poison else None
            chunk.rows = sum(len(item.changes) for item in good if id(item.record) not in dead)

    def close(self) -> None:
        """Wait for the transaction under way, and take it into account; it is not repeated any more."""
        self._is_closing = True
        self._writer.shutdown(wait=True)
        if self._writing is not None:
            try:
                self._finish()
            except SemelError as error:
                _log.warning("the last transaction came to nothing, its records are read again: %s", error)


def _cannot_write(record: Record, reason: str) -> FatalError:
    return FatalError(
        f"record {record.topic}-{record.partition}@{record.offset} can't become a row: {reason}; fix the mapping or "
        "the table, or give the Sink a dead_letter_topic"
    )
