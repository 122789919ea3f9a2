# Generated from aio.py beside it by `make sync-api`. Do not edit: change aio.py, and run that again.
"""The consumer: reads partitions, alone or as a member of a group."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from semel.protocol.errors import SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.sdk.consumer.base import (
    CLOSE_TIMEOUT_S,
    DEFAULT_MAX_RECORDS,
    ITERATION_RECORDS,
    LOOK_AGAIN_S,
    CommitCallback,
    ConsumerBase,
)
from semel.sdk.consumer.batch import Batch, RecordByRecord
from semel.sdk.consumer.core import PolledRecords
from semel.sdk.consumer.group_member import AssignmentChange, ChangeKind
from semel.sdk.consumer.processing import trace_receive
from semel.sdk.consumer.subscription import OffsetReset, SubscriptionKind
from semel.sdk.pipeline.progress import RunStatistics
from semel.sdk.pipeline.records import Handler
from semel.sdk.pipeline.stopping import stopped_by_signals
from semel.sdk.telemetry import tracing
from semel.sdk.transport.arguments import Offsets, check_partition, check_seconds
from semel.sdk.transport.blocking import Future, Signal, as_future, call, run, work
from semel.sdk.transport.border import edge, ends_tracebacks
from semel.sdk.transport.options import check_bool, check_int

_log = logging.getLogger("semel.consumer")


class RebalanceListener:
    """Told of changes of a consumer's partitions, inside of its polls. Override what you need.

    >>> class Cache(RebalanceListener):
    ...     def on_revoked(self, partitions):
    ...         print("save what belongs to", sorted(map(str, partitions)))
    """

    def on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """These were added; reading them begins after this returns. Seek here to begin at a place of your own."""

    def on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """These go to another member after this returns; committing for them is still possible."""

    def on_lost(self, partitions: Iterable[TopicPartition]) -> None:
        """These may have gone already: the session ended. Committing for them fails."""


@ends_tracebacks
class Consumer(ConsumerBase[RebalanceListener]):
    """Reads records, by default those of committed transactions only, from partitions that its group gives it.

    One thread or task uses a consumer at a time; a background thread fetches ahead and keeps the membership alive.
    Another one may close it, which ends a poll that waits.

    bootstrap:            the address of a node, or several: its gRPC port (9094) or its Kafka port (9092); None:
                          what the environment variable SEMEL_BOOTSTRAP says, else localhost:9094
    group:                the group to share the topics' partitions with, and to commit offsets for
    topics, pattern:      what to subscribe to: names, or a regular expression that a whole name must match
    listener:             told of partitions that come and go, inside of polls
    isolation:            "read_committed" (default) or "read_uncommitted"
    offset_reset:         where to begin where nothing is committed: "earliest" (default), "latest", or "error"
    on_unreadable_batch:  what to do about a batch in the log that can't be read: "raise" (default) an
                          `UnreadableBatchError`, at each poll until you seek past it, or "skip" it: its records are
                          not returned, a warning names the offsets, and `skipped_batches` counts it
    key_deserializer, value_deserializer: "json", "text", or a function: bytes -> what `record.key` and `record.value`
                          are; None leaves bytes. Not called for None. Where one fails, `poll` raises a
                          `DeserializationError`, again until you seek past the record; `run` counts it as a failure
    auto_commit_interval_ms: commit what was returned before, in each poll that comes this long after the last commit,
                          before partitions go, and when closing; but not when an exception ends the with-block.
                          None (default) leaves committing to you, or to `producer.transaction(commits=batch)`
    assignors:            "cooperative-sticky" (default), "sticky", "range", "roundrobin", or several to agree on
    instance_id:          makes a static member: it returns within the session timeout without a rebalance (KIP-345)
    session_timeout_ms:   after how much silence the group gives this member's partitions to others
    heartbeat_interval_ms: None takes a third of the session timeout, 3 s at most
    max_poll_interval_ms: after how long without a poll this member counts as stuck
    max_wait_ms, min_bytes, max_bytes, max_partition_bytes, buffered_bytes_max: how it fetches; see `FetchOptions`
    api_timeout_ms:       how long one call may take, retries included
    request_timeout_ms:   how long one attempt may take
    connect_timeout_ms:   after how long a poll raises where no node has ever answered, to fail early; None: never, it
                          waits as long as its timeout says

    >>> Consumer("localhost:9094", group="enrich", topics="orders")
    Traceback (most recent call last):
    semel.protocol.errors.UsageError: topics takes a list of names: ['orders'], not the text 'orders'
    """

    # --- Reading ------------------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float | None = None, max_records: int = DEFAULT_MAX_RECORDS) -> Batch | None:
        """Return the next records, waiting up to `timeout_s` seconds for some (None: for as long as it takes).

        Returns None when there were none in time, also while no node can be reached: a warning in the log says so each
        few seconds. Also where rebalances happen: the listener is called in here.
        Raises `FencedError` when another instance has taken this static member's place, `FatalError` for what repeating
        does not help, and `UnreachableError` where the address is wrong (no such host, no node of Semel), or
        connect_timeout_ms is over.
        """
        check_int("max_records", max_records, 1)
        self._check_free()
        return self._batch(self._deserialized(self._next_polled(timeout_s, max_records)))

    def _poll_as_stored(self, timeout_s: float | None, max_records: int) -> Batch | None:
        return self._batch(self._next_polled(timeout_s, max_records))

    def _next_polled(self, timeout_s: float | None, max_records: int) -> PolledRecords | None:
        deadline = self._deadline(timeout_s)
        self._settle()
        return self._next_handout(deadline, max_records)

    def batches(self, max_records: int = DEFAULT_MAX_RECORDS, timeout_s: float | None = None) -> Iterator[Batch]:
        """Yield batch after batch; ends when none comes for `timeout_s` seconds (None: never).

        Raises what `poll` raises, and `UnreachableError` where no node has answered in that time: nobody knows then
        whether there are records.
        """
        while True:
            batch = self.poll(timeout_s, max_records)
            if batch is None:
                self._core.check_found()
                return
            yield batch

    def __iter__(self) -> Iterator[Record]:
        """Yield record after record, for ever. This never commits: `commit()` does, up to the record yielded last.

            for record in consumer:
                handle(record)
                consumer.commit()  # or once for many records, or auto_commit_interval_ms=5_000

        Without a commit, the next consumer of the group reads the same records again.
        """
        while True:
            handout = self._next_one_by_one()
            yield from handout.iterator

    @edge
    def _next_one_by_one(self) -> RecordByRecord:
        """Return what to iterate over next: the rest of an iteration that was broken off, or the next records."""
        self._check_free()
        rest = self._one_by_one
        if rest is not None and not rest.is_done:
            return rest
        handout = self._deserialized(self._next_handout(math.inf, ITERATION_RECORDS))
        assert handout is not None
        self._one_by_one = RecordByRecord(self._core, handout)
        return self._one_by_one

    def _next_handout(self, deadline: float, max_records: int) -> PolledRecords | None:
        core = self._core
        self._check_usable()
        if core.subscription.kind is SubscriptionKind.NONE:
            raise UsageError("this consumer reads nothing yet; call subscribe() or assign() before poll()")
        self._tell_of_commits()
        started_ns = time.time_ns()
        while True:
            self._auto_commit()  # also while nothing comes: the last records before a pause are committed, too
            core.note_poll()
            self._ready.clear()
            error = core.next_error()
            if error is not None:
                raise error
            while core.needs_step:
                change = run(self._core.client, core.step())
                if change is None:
                    break
                self._tell(change)
            handout = core.collect(max_records)
            if handout is not None:
                if tracing.active():
                    trace_receive(core, handout.records, started_ns)
                return handout
            left_s = deadline - self._now()
            if left_s <= 0:
                core.check_findable()
                return None
            self._ready.wait(min(left_s, LOOK_AGAIN_S))
            self._check_usable()

    # --- Handling -----------------------------------------------------------------------------------------------------

    def run(
        self,
        handler: Handler,
        *,
        transactional_id: str | None = None,
        producer: Mapping[str, Any] | None = None,
        dead_letter_topic: str | None = None,
        retries: int = 5,
        retry_backoff_ms: int = 1_000,
        retry_backoff_max_ms: int = 60_000,
        max_records: int = 500,
        commit_interval_ms: int = 1_000,
        idle_timeout_s: float | None = None,
        progress_interval_s: float | None = 60.0,
        handle_signals: bool = True,
    ) -> RunStatistics:
        """Handle record after record, exactly once: what the handler returns is sent, and committed with the offsets.

            def enriched(order):
                return semel.ProducerRecord("enriched", enrich(order.value), key=order.key)

            with semel.Consumer("localhost:9094", group="enrich", topics=["orders"]) as consumer:
                consumer.run(enriched)

        The handler gets a `Record` and returns a `ProducerRecord`, several of them, or None. It may be called again
        for a record whose transaction was aborted, so what else it does should be safe to repeat. Several records
        share a transaction. A lost connection, a restarted node, a rebalance and an aborted transaction are retried
        here, until `stop()`, SIGTERM or Ctrl-C: then the record in hand is finished and committed, and this returns.
        While the node is away that may last half a minute.

        transactional_id:    of the producer; fences an older process. None: the group with this consumer's
                             `instance_id`, which stays the same over restarts, or else with a random one: then readers
                             wait for the transaction of a killed process until it times out
        producer:            further options of the `Producer`, such as {"value_serializer": "json"}
        dead_letter_topic:   where a record is sent that fails for good, as it is, with the reason in its
                             headers, in the same transaction. None: this raises `RecordFailedError`
        retries:             how often a record that failed is handled again. Its partition waits
                             meanwhile, others continue
        retry_backoff_ms, retry_backoff_max_ms: the wait before the first retry, doubled for each further one
        max_records, commit_interval_ms: a transaction commits after so many records, or after so long
        idle_timeout_s:      return when no record comes for so long. None: never
        progress_interval_s: how often a line with rate and lag is logged, at INFO. None: never
        handle_signals:      stop for SIGTERM and SIGINT, where this is the main thread and they have no other handler

        Raises `FencedError` where a newer instance has this one's place, `FatalError` for what repeating does not help
        (`RecordFailedError` among it), and `UnreachableError` where the address is wrong. Raises `RetriableError` where
        it was told to stop while the node was away: whether the last transaction committed is then not known, and the
        next run continues where it ended.
        """
        self._check_free()
        with stopped_by_signals(self._stop.set, is_wanted=check_bool("handle_signals", handle_signals)):
            from semel.sdk.pipeline.api import Pipeline  # late: most consumers need no producer
            from semel.sdk.producer.api import Producer

            options = self._run_options(
                handler,
                dead_letter_topic=dead_letter_topic,
                retries=retries,
                retry_backoff_ms=retry_backoff_ms,
                retry_backoff_max_ms=retry_backoff_max_ms,
                max_records=max_records,
                commit_interval_ms=commit_interval_ms,
                idle_timeout_s=idle_timeout_s,
                progress_interval_s=progress_interval_s,
            )
            further, serializers = self._producer_options(transactional_id, producer)
            made = Producer(str(self._core.client.options.bootstrap), **further)
            pipeline = Pipeline(
                self,
                self._poll_as_stored,
                made,
                handler,
                options,
                self._stop,
                self._now,
                check_found=self._core.check_found,
                deserialize=self._deserialize,
                serializers=serializers,
            )
            self._runs = True
            try:
                done = pipeline.run()
            except BaseException as error:
                made.__exit__(type(error), error, None)
                raise
            finally:
                self._runs = False
                self._stop.clear()
            made.close()
            return done

    # --- Changes of the assignment ------------------------------------------------------------------------------------

    def _tell(self, change: AssignmentChange) -> None:
        listener: Any = self._listener
        if change.kind is ChangeKind.ASSIGNED:
            if listener is not None:
                call(listener.on_assigned, change.partitions)
        elif change.partitions:
            if change.kind is ChangeKind.REVOKED:
                self._commit_before_going(self._core.client.options.api_timeout_ms / 1000)
            if listener is not None:
                told = listener.on_revoked if change.kind is ChangeKind.REVOKED else listener.on_lost
                call(told, change.partitions)

    def unsubscribe(self) -> None:
        """Read nothing, and leave the group; the listener is called first."""
        self._check_free()
        self._one_by_one = None
        try:
            self._let_go(self._core.client.options.api_timeout_ms / 1000, commits=True)
        finally:
            self._core.unsubscribe()
            if self._core.is_started:
                run(self._core.client, self._core.leave())

    def seek_to_timestamp(self, timestamp_ms: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the first records at or after a time, in milliseconds since 1970; to the end where there are none."""
        check_int("timestamp_ms", timestamp_ms, 0, 2**62)
        self._check_free()
        found = run(
            self._core.client, self._core.offsets_for_times(dict.fromkeys(self._chosen(partitions), timestamp_ms))
        )
        self._settle()
        for tp, offset in found.items():
            if offset is None:
                self._core.seek_to(OffsetReset.LATEST, [tp])
            else:
                self._core.seek(tp, offset)

    # --- Offsets ------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Offsets | None = None) -> None:
        """Commit for the group, and wait until it is durable: `offsets` (the next to read), or all that was returned.

        Raises `AbortTransactionError` (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID) where the group has moved on: the
        records will be returned again, here or to another member. Raises `RetriableError` (REBALANCE_IN_PROGRESS)
        where it is about to: poll, then commit again what is still yours.
        """
        self._check_free()
        self._tell_of_commits()
        run(self._core.client, self._core.offsets.commit(self._to_commit(offsets), self._core.committer()))

    def commit_async(self, offsets: Offsets | None = None, callback: CommitCallback | None = None) -> Future[None]:
        """Commit without waiting, after all commits before it. Return the future of its end.

        A later poll, commit or close calls `callback` with the error, or None; without a callback it raises the error.
        Raises `RetriableError` where too many commits wait already.
        """
        return as_future(self._commit_soon(offsets, callback))

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return where the group stands (None: nothing committed), once no transaction holds the offsets open (O2)."""
        return run(self._core.client, self._core.offsets.committed(self._chosen(partitions)))

    def beginning_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return run(self._core.client, self._core.end_offsets(self._chosen(partitions), EARLIEST_TIMESTAMP))

    def end_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the offset after the last record that this consumer may see, of each partition."""
        return run(self._core.client, self._core.end_offsets(self._chosen(partitions), LATEST_TIMESTAMP))

    def offsets_for_times(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after each timestamp (ms since 1970); None where there is none."""
        self._check_usable()
        asked = {
            check_partition(tp): check_int(f"timestamp of {tp}", timestamp_ms, 0, 2**62)
            for tp, timestamp_ms in timestamps.items()
        }
        return run(self._core.client, self._core.offsets_for_times(asked))

    def _tell_of_commits(self) -> None:
        """Call the callbacks of commits that are done. Raises the error of one that has no callback."""
        while self._pending and self._pending[0][0].done():
            future, callback = self._pending.popleft()
            if future.cancelled():
                continue
            error = future.exception()
            if error is not None and (callback is None or not isinstance(error, SemelError)):
                raise error
            if callback is not None:
                assert error is None or isinstance(error, SemelError)
                call(callback, error)

    def _commit_before_going(self, timeout_s: float) -> None:
        """Auto-commit before partitions go. What fails is read again elsewhere; that is no reason to keep them."""
        if self._auto_commit_s is None:
            return
        chosen = self._to_commit(None)
        if not chosen:
            return
        try:
            run(self._core.client, self._core.offsets.commit_within(chosen, self._core.committer(), timeout_s))
        except SemelError as error:
            _log.warning(
                "the position of the last records is not committed, and they will be returned again: %s", error
            )

    # --- Life ---------------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit what auto-commit owes, tell the listener, leave the group, and close. Does nothing the second time.

        `timeout_s` bounds the wait for commits.
        """
        self._close(timeout_s, commits=True)

    def _close(self, timeout_s: float, *, commits: bool) -> None:
        check_seconds("timeout_s", timeout_s)
        if self._closing:
            return
        self._closing = True
        self._finalizer.detach()
        io = self._core.client.io
        if io.forked or io.closed:
            self._closed = True
            return
        try:
            if self._core.is_started:
                self._let_go(timeout_s, commits=commits)
                run(self._core.client, self._core.offsets.finish(timeout_s))
                self._tell_of_commits()
        finally:
            self._closed = True
            self._ready.set()
            try:
                if self._core.is_started:
                    run(self._core.client, self._core.close())
            finally:
                work(self._core.client.close)

    def _let_go(self, timeout_s: float, *, commits: bool) -> None:
        """Commit what auto-commit owes, and tell the listener that its partitions go."""
        if commits and not self._core.is_lost:
            self._commit_before_going(timeout_s)
        owned = self._core.owned
        listener: Any = self._listener
        if owned and listener is not None:
            call(listener.on_lost if self._core.is_lost else listener.on_revoked, owned)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(CLOSE_TIMEOUT_S, commits=error is None)

    def _prepare(self) -> None:
        self._ready = Signal()
        self._core.on_ready = self._ready.set
