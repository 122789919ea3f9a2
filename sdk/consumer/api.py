"""The consumer: reads partitions, alone or as a member of a group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from semel.protocol.api.groups import OffsetAndMetadata
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.sdk.consumer.base import CLOSE_TIMEOUT_S, DEFAULT_MAX_RECORDS, CommitCallback, ConsumerBase, finish
from semel.sdk.consumer.batch import Batch
from semel.sdk.consumer.listener import RebalanceListener
from semel.sdk.transport.arguments import Offsets

T = TypeVar("T")


class Consumer(ConsumerBase[RebalanceListener]):
    """Reads records, by default those of committed transactions only, from partitions that its group gives it.

    One thread uses a consumer; a background thread fetches ahead and keeps the membership alive. Another thread may
    close it, which ends a poll that waits.

    bootstrap:            the gRPC address of a node, or several
    group:                the group to share the topics' partitions with, and to commit offsets for
    topics, pattern:      what to subscribe to: names, or a regular expression that a whole name must match
    listener:             told of partitions that come and go, inside of polls
    isolation:            "read_committed" (default) or "read_uncommitted"
    offset_reset:         where to begin where nothing is committed: "earliest" (default), "latest", or "error"
    on_unreadable_batch:  what to do about a batch in the log that can't be read: "raise" (default) an
                          `UnreadableBatchError`, at each poll until you seek past it, or "skip" it: its records are
                          not handed out, a warning names the offsets, and `skipped_batches` counts it
    auto_commit_interval_ms: commit what was handed out before, in each poll that comes this long after the last commit,
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
    connect_timeout_ms:   how long to try where no node has ever answered: it is more likely a wrong address

    >>> Consumer("localhost:9094", group="enrich", topics="orders")
    Traceback (most recent call last):
    semel.protocol.errors.UsageError: topics takes a list of names: ['orders'], not the text 'orders'
    """

    # reading

    def poll(self, timeout_s: float | None = None, max_records: int = DEFAULT_MAX_RECORDS) -> Batch | None:
        """Return the next records, waiting up to `timeout_s` seconds for some (None: for as long as it takes).

        Returns None when there were none in time. Also where rebalances happen: the listener is called in here.
        Raises `FencedError` when another instance has taken this static member's place, `RetriableError` when the
        topics could not be looked up within api_timeout_ms, and `FatalError` for what repeating does not help.
        """
        return finish(self._poll(timeout_s, max_records))

    def batches(self, max_records: int = DEFAULT_MAX_RECORDS, timeout_s: float | None = None) -> Iterator[Batch]:
        """Yield batch after batch; ends when none comes for `timeout_s` seconds (None: never)."""
        while True:
            batch = self.poll(timeout_s, max_records)
            if batch is None:
                return
            yield batch

    def __iter__(self) -> Iterator[Record]:
        """Yield record after record, for ever. `commit()` then commits up to the record that was yielded last."""
        while True:
            yield from finish(self._next_one_by_one()).iterator

    def unsubscribe(self) -> None:
        """Read nothing, and leave the group; the listener is told first."""
        finish(self._unsubscribe())

    def seek_to_timestamp(self, timestamp_ms: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the first records at or after a time, in milliseconds since 1970; to the end where there are none."""
        finish(self._seek_to_timestamp(timestamp_ms, partitions))

    # offsets

    def commit(self, offsets: Offsets | None = None) -> None:
        """Commit for the group, and wait until it is durable: `offsets` (the next to read), or all that was handed out.

        Raises `AbortTransactionError` (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID) where the group has moved on: the
        records will be handed out again, here or to another member. Raises `RetriableError` (REBALANCE_IN_PROGRESS)
        where it is about to: poll, then commit again what is still yours.
        """
        finish(self._commit(offsets))

    def commit_async(self, offsets: Offsets | None = None, callback: CommitCallback | None = None) -> Future[None]:
        """Commit without waiting, after all commits before it. Return the future of its end.

        A later poll, commit or close calls `callback` with the error, or None; without a callback it raises the error.
        Raises `RetriableError` where too many commits wait already.
        """
        return self._commit_async(offsets, callback)

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return where the group stands (None: nothing committed), once no transaction holds the offsets open (O2)."""
        return finish(self._committed(partitions))

    def beginning_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return finish(self._beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the offset after the last record that this consumer may see, of each partition."""
        return finish(self._end_offsets(partitions))

    def offsets_for_times(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after each timestamp (ms since 1970); None where there is none."""
        return finish(self._offsets_for_times(timestamps))

    # life

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit what auto-commit owes, tell the listener, leave the group, and close. Does nothing the second time.

        `timeout_s` bounds the wait for commits.
        """
        finish(self._close(timeout_s, commits=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish(self._close(CLOSE_TIMEOUT_S, commits=error is None))

    # how to wait: by blocking

    def _prepare(self) -> None:
        self._ready = threading.Event()

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._core.client.run(coroutine)

    async def _wait_ready(self, timeout_s: float) -> None:
        self._ready.wait(timeout_s)

    async def _call(self, function: Callable[..., object], *args: object) -> None:
        function(*args)

    async def _end(self) -> None:
        self._core.client.close()

    def _forget_ready(self) -> None:
        self._ready.clear()

    def _wake(self) -> None:
        self._ready.set()
