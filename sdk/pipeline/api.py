# Generated from aio.py beside it by `make sync-api`. Do not edit: change aio.py, and run that again.
"""The loop of `Consumer.run`: read, handle, send, and commit outputs with offsets, through every failure (E1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from semel.protocol.errors import AbortTransactionError, ErrorCode, FatalError, RetriableError, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.runtime.backoff import Backoff
from semel.sdk.pipeline.dead_letters import dead_letter_headers
from semel.sdk.pipeline.failures import Failure, Failures, RecordFailedError
from semel.sdk.pipeline.options import RunOptions
from semel.sdk.pipeline.progress import Progress, RunStatistics
from semel.sdk.pipeline.records import (
    Handler,
    Poll,
    Polled,
    ProducerRecord,
    Source,
    check_outputs,
    collected,
)
from semel.sdk.pipeline.stopping import StopRequest
from semel.sdk.producer.api import Producer, Transaction, core_of
from semel.sdk.producer.serialization import serialized
from semel.sdk.transport.blocking import call, run, sleep
from semel.sdk.transport.options import check_text
from semel.sdk.transport.serde import Serializer
from semel.sdk.transport.unreachable import UnreachableError

_log = logging.getLogger("semel.consumer")

POLL_S: Final = 0.5
"""How long a poll waits at most: then it is looked whether to stop."""
TAKE_OVER_S: Final = 2.0
"""How long one attempt to end what an older instance left open may last: a stop waits for it."""
AGAIN: Final = Backoff(100, 5_000)
"""The pauses after what the node refused or did not answer."""
OF_A_RECORD: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""What a node refuses a record with at every attempt."""


class _OutputRefusedError(Exception):
    """The producer can't send what a record's handler returned; some of it may be in the transaction already."""

    def __init__(self, record: Record, why: SemelError) -> None:
        super().__init__(str(why))
        self.record = record
        self.why = why


@dataclass(slots=True)
class _Step:
    """One transaction of a run.

    left:    where each partition ends of which not all records were handled.
    counts:  what it adds to the statistics once it has committed.
    done:    the offset of the last record that was handled, of each partition.
    last:    the record that was handled last.
    is_over: no further record is to be handled in it.
    failed:  what the run ends with once this has committed.
    """

    left: dict[TopicPartition, int] = field(default_factory=dict)
    done: dict[TopicPartition, int] = field(default_factory=dict)
    counts: RunStatistics = field(default_factory=RunStatistics)
    last: Record | None = None
    is_over: bool = False
    failed: RecordFailedError | None = None


class Pipeline:
    """One run. `poll` returns records as they are in the log, and `deserialize` makes of one what the handler gets.

    `check_found` raises where no node has ever answered.
    """

    def __init__(
        self,
        source: Source,
        poll: Poll,
        producer: Producer,
        handler: Handler,
        options: RunOptions,
        stop: StopRequest,
        now: Callable[[], float],
        *,
        check_found: Callable[[], None],
        deserialize: Callable[[Record], Record],
        serializers: Mapping[str, Serializer | None],
    ) -> None:
        self._source = source
        self._poll = poll
        self._producer = producer
        self._handler = handler
        self._options = options
        self._stop = stop
        self._now = now
        self._check_found = check_found
        self._deserialize = deserialize
        self._serializers = serializers
        self._failures = Failures(options.retries, options.backoff)
        self._paused: set[TopicPartition] = set()
        self._careful: dict[TopicPartition, int] = {}
        """Up to which offset each record of a partition has a transaction of its own: a node refused one of them."""
        self._limit = options.max_records
        self._refusals = 0
        self._progress = Progress(options.group, options.progress_interval_s, now)

    def run(self) -> RunStatistics:
        """See `Consumer.run`."""
        try:
            return self._run()
        finally:
            with suppress(UsageError):  # the consumer was closed
                self._source.resume(self._paused & self._source.assignment())

    def _run(self) -> RunStatistics:
        self._check_dead_letter_topic()
        idle_since = self._now()
        while not self._stop.is_set:
            self._resume_due()
            batch = self._next()
            if batch is None and self._has_no_position():
                self._take_over()
            self._progress.report(self._lag)
            if batch is not None:
                self._process(batch)
            if batch is not None or self._expects_more():
                idle_since = self._now()
            elif self._now() - idle_since >= self._options.idle_timeout_s:
                self._check_found()
                return self._progress.end("no record came")
        return self._progress.end(self._stop.reason or "")

    def _expects_more(self) -> bool:
        """Whether there may be records that a poll can't return now: of a partition that waits, or not located yet."""
        return not self._source.assignment().isdisjoint(self._paused) or self._has_no_position()

    def _has_no_position(self) -> bool:
        return any(self._source.position(tp) is None for tp in self._source.assignment())

    def _take_over(self) -> None:
        """End what an older instance has left open, where it is not known yet where the group stands.

        Its process may have been killed between its offsets and its commit: the position is known once its transaction
        has ended (O2), which lasts until its timeout, as nothing comes that would begin a transaction here.
        """
        producer = core_of(self._producer)
        if not producer.needs_initializing:
            return
        try:
            run(producer.client, producer.transactional().initialize(), TAKE_OVER_S)
        except RetriableError as error:  # tried again after the next poll
            _log.warning("group=%s can't begin transactions yet, retrying: %s", self._options.group, error)

    # --- Reading ------------------------------------------------------------------------------------------------------

    def _check_dead_letter_topic(self) -> None:
        topic = self._options.dead_letter_topic
        if topic is None:
            return
        try:
            self._producer.partition_count(topic)
        except RetriableError as error:
            _log.warning("whether there is a topic %r for dead letters is not known: %s", topic, error)

    def _next(self) -> Polled | None:
        """Return the next records, None where there are none soon."""
        timeout_s = POLL_S
        for tp in self._paused:
            due = self._failures.due_at(tp)
            timeout_s = min(timeout_s, POLL_S if due is None else max(0.0, due - self._now()))
        self._forget_careful()
        try:
            return self._poll(timeout_s, 1 if self._careful else self._limit)
        except UnreachableError:
            raise  # a poll raises it for an address that is wrong: a node that is away is waited for
        except RetriableError as error:
            _log.warning("group=%s can't read now, retrying: %s", self._options.group, error)
            self._pause(error)
            return None

    def _forget_careful(self) -> None:
        """Leave out partitions that others have now, and records that are gone."""
        if not self._careful:
            return
        here = self._source.assignment()
        self._careful = {
            tp: end for tp, end in self._careful.items() if tp in here and (self._source.position(tp) or 0) < end
        }

    def _resume_due(self) -> None:
        """Read partitions again whose failed record is due."""
        due = {tp for tp in self._paused if (self._failures.due_at(tp) or 0.0) <= self._now()}
        self._paused -= due
        here = due & self._source.assignment()
        if here:
            self._source.resume(here)

    def _lag(self) -> int:
        return sum(self._source.lag().values())

    # --- One transaction ----------------------------------------------------------------------------------------------

    def _process(self, batch: Polled) -> None:
        try:
            failed = self._transact(batch)
        except BaseException:
            self._give_back(batch)
            raise
        if failed is not None:
            raise failed

    def _give_back(self, batch: Polled) -> None:
        """The run ends amid a transaction: the next one of this consumer begins with what is not committed."""
        with suppress(UsageError):  # a client was closed
            transactions = core_of(self._producer).transactional()
            if transactions.is_undecided or transactions.has_stopped:
                batch.continue_at_committed()
            else:
                batch.rewind()

    def _transact(self, batch: Polled) -> RecordFailedError | None:
        """Handle records in one transaction. Returns what the run is to end with once it has committed."""
        step = _Step()
        try:
            with self._producer.transaction(commits=batch) as txn:
                self._handle(batch, txn, step)
                if step.left:
                    batch.truncate(step.left)
        except _OutputRefusedError as refused:
            self._settle(batch)
            self._failed(refused.record, refused.why)
            self._progress.counts.aborted += 1
            return None
        except AbortTransactionError as error:
            self._settle(batch)
            self._aborted(step, error)
            return None
        except RetriableError as error:
            _log.warning(
                "group=%s does not know yet how a transaction ended, asking again: %s", self._options.group, error
            )
            self._pause(error)
            if not self._settle(batch):
                self._progress.counts.aborted += 1
                return None
        self._committed(step)
        return step.failed

    def _handle(self, batch: Polled, txn: Transaction, step: _Step) -> None:
        """Handle records and send what comes of them, until the transaction is to end."""
        until = self._now() + self._options.commit_interval_s
        for record in batch.records:
            tp, offset = _place(record)
            if tp in step.left:
                continue
            if step.is_over or self._stop.is_set:
                step.left[tp] = offset
                continue
            failure = self._failures.of(tp, offset)
            outputs: list[ProducerRecord] = []
            if failure is None or not failure.is_final:
                if failure is not None and self._now() < failure.due:
                    step.left[tp] = offset
                    continue
                try:
                    outputs = self._outputs(batch, record)
                    failure = None
                except _ProgramMistakeError as error:
                    raise error.why from None
                except Exception as error:
                    failure = self._failed(record, error)
                    if not failure.is_final:
                        step.left[tp] = offset
                        continue
            if failure is not None:
                if self._options.dead_letter_topic is None:
                    step.failed = RecordFailedError(record, failure.attempts, failure.reason)
                    step.left[tp] = offset
                    step.is_over = True
                    continue
                outputs = [self._dead_letter(self._options.dead_letter_topic, record, failure)]
                step.counts.dead_letters += 1
            self._send(txn, record, outputs, is_dead_letter=failure is not None)
            step.counts.records += 1
            step.counts.sent += len(outputs)
            step.done[tp] = offset
            step.last = record
            step.is_over = self._now() >= until

    def _outputs(self, batch: Polled, record: Record) -> list[ProducerRecord]:
        """Return what the handler makes of a record, in bytes."""
        with batch.processing(record):
            result = collected(call(self._handler, self._deserialize(record)))
        try:
            outputs = check_outputs(result)
        except UsageError as error:
            raise _ProgramMistakeError(error) from None
        return [
            replace(
                output,
                topic=check_text("topic", output.topic),
                key=self._serialized(output, "key"),
                value=self._serialized(output, "value"),
            )
            for output in outputs
        ]

    def _serialized(self, output: ProducerRecord, what: str) -> bytes | None:
        serializer, field = self._serializers[what], getattr(output, what)
        try:
            return serialized(field, serializer, what, output.topic)
        except UsageError:
            if serializer is not None:
                raise
            # No record is at fault: the next ones would fail in the same way.
            raise _ProgramMistakeError(
                UsageError(
                    f"a {what} of type {type(field).__name__} can't be sent to topic {output.topic!r} as it is: return "
                    f'bytes or str, or give the run a serializer: run(..., producer={{"{what}_serializer": "json"}})'
                )
            ) from None

    def _send(self, txn: Transaction, record: Record, outputs: list[ProducerRecord], *, is_dead_letter: bool) -> None:
        for output in outputs:
            try:
                txn.send(
                    output.topic,
                    output.value,
                    key=output.key,
                    headers=output.headers,
                    partition=output.partition,
                    timestamp_ms=output.timestamp_ms,
                )
            except FatalError as error:
                if error.code not in OF_A_RECORD and not isinstance(error, UsageError):
                    raise
                if is_dead_letter:
                    raise _dead_letter_refused(record, error) from error
                raise _OutputRefusedError(record, error) from error

    def _dead_letter(self, topic: str, record: Record, failure: Failure) -> ProducerRecord:
        headers = dead_letter_headers(record, failure.reason, self._options.group)
        return ProducerRecord(topic, record.value, record.key, headers)

    def _failed(self, record: Record, error: Exception) -> Failure:
        tp, offset = _place(record)
        failure = self._failures.note(tp, offset, error, self._now())
        if failure.is_final:
            _log.error("%s@%d failed for good (attempt %d): %s", tp, offset, failure.attempts, failure.reason)
            return failure
        self._progress.counts.retries += 1
        _log.warning(
            "%s@%d failed (attempt %d of %d), retrying in %.1f s while its partition waits: %s",
            tp, offset, failure.attempts, self._options.retries + 1, failure.due - self._now(), failure.reason,
            exc_info=error if failure.attempts == 1 and not isinstance(error, SemelError) else None,
        )  # fmt: skip
        return failure

    # --- How it ended -------------------------------------------------------------------------------------------------

    def _committed(self, step: _Step) -> None:
        counts, new = self._progress.counts, step.counts
        self._refusals = 0
        if new.records:
            counts.transactions += 1
        counts.records += new.records
        counts.sent += new.sent
        counts.dead_letters += new.dead_letters
        for tp, offset in step.done.items():
            self._failures.forget(tp, offset)
            if offset + 1 >= self._careful.get(tp, 0):
                self._careful.pop(tp, None)
        if step.is_over:
            self._limit = max(1, new.records)
        else:
            self._limit = min(self._options.max_records, self._limit * 2)
        waiting = {tp for tp in step.left if (self._failures.due_at(tp) or 0.0) > self._now()}
        waiting &= self._source.assignment()
        if waiting:
            self._source.pause(waiting)
            self._paused |= waiting

    def _aborted(self, step: _Step, error: AbortTransactionError) -> None:
        """Nothing took effect, and the records are returned again."""
        self._progress.counts.aborted += 1
        if error.code not in OF_A_RECORD or step.last is None:
            _log.warning("group=%s runs a transaction again: %s", self._options.group, error)
            self._limit = max(1, step.counts.records // 2)  # it may have taken too long
            self._pause(error)
            return
        tp, offset = _place(step.last)
        if step.counts.records > 1:
            _log.warning("group=%s repeats a transaction record by record: %s", self._options.group, error)
            self._careful.update({tp: offset + 1 for tp, offset in step.done.items()})
        elif step.counts.dead_letters:
            raise _dead_letter_refused(step.last, error) from error
        else:
            _log.error("%s@%d: the node refuses what its handler returned: %s", tp, offset, error)
            self._failures.give_up(tp, offset, error, self._now())

    def _settle(self, batch: Polled) -> bool:
        """End what is open, asking until the answer is known; return whether it committed.

        Raises `RetriableError` where the run is to stop and there is no answer: the next one finds out.
        """
        while True:
            try:
                transactions = core_of(self._producer).transactional()
                if transactions.is_undecided:
                    return self._producer.commit_transaction()
                if transactions.is_open:
                    self._producer.abort_transaction()
                batch.rewind()
                return False
            except AbortTransactionError:
                continue  # it did not commit, and is to be aborted now
            except RetriableError as error:
                if self._stop.is_set:
                    raise
                _log.warning(
                    "group=%s does not know yet how a transaction ended, asking again: %s", self._options.group, error
                )
                self._pause(error)

    def _pause(self, error: SemelError) -> None:
        self._refusals += 1
        ends_at = self._now() + AGAIN.jittered_s(self._refusals, error.code)
        while not self._stop.is_set and (left_s := ends_at - self._now()) > 0:
            sleep(min(left_s, POLL_S))


class _ProgramMistakeError(Exception):
    """A handler returned what can't be sent: a mistake in the program, not in a record."""

    def __init__(self, why: UsageError) -> None:
        super().__init__(str(why))
        self.why = why


def _place(record: Record) -> tuple[TopicPartition, int]:
    return TopicPartition(record.topic, record.partition), record.offset


def _dead_letter_refused(record: Record, error: SemelError) -> FatalError:
    tp, offset = _place(record)
    return FatalError(f"{tp}@{offset} can't become a dead letter: {error.message}", error.code)
