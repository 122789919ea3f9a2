"""What `Consumer` and its asyncio twin are made of: everything but how they wait.

What waits is written once, as coroutines over four ways to wait (`_run`, `_wait_ready`, `_call`, `_end`). The asyncio
twin awaits them. In `Consumer` they block the thread and never suspend, so that `finish` can run the coroutine through
in one go.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import Any, Generic, TypeVar

from semel.protocol.api.groups import OffsetAndMetadata
from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from semel.protocol.errors import RetriableError, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.sdk.consumer.batch import Batch, Outstanding, RecordByRecord
from semel.sdk.consumer.core import ConsumerCore, Handout
from semel.sdk.consumer.group_member import AssignmentChange, ChangeKind
from semel.sdk.consumer.processing import processing, trace_receive
from semel.sdk.consumer.settings import make_core
from semel.sdk.consumer.subscription import OffsetReset, SubscriptionKind
from semel.sdk.producer.transaction import GroupMetadata
from semel.sdk.telemetry import tracing
from semel.sdk.transport.arguments import (
    Offsets,
    as_offsets,
    check_partition,
    check_partitions,
    check_seconds,
    check_topics,
)
from semel.sdk.transport.options import NotPicklable, check_int, check_text, checked_names

T = TypeVar("T")
Listener = TypeVar("Listener")
CommitCallback = Callable[[SemelError | None], object]

_log = logging.getLogger("semel.sdk.consumer")

DEFAULT_MAX_RECORDS = 10_000
ITERATION_RECORDS = 500
COMMITS_PENDING_MAX = 1_000
"""How many `commit_async` may wait at a time."""
CLOSE_TIMEOUT_S = 10.0
LOOK_AGAIN_S = 1.0
"""How long a poll waits before it says again that the user is alive."""


class ConsumerBase(NotPicklable, ABC, Generic[Listener]):
    """A consumer without a way to wait. See `semel.Consumer` for the options."""

    _in_place_of_pickling = "it owns a thread and connections; make one in each process or worker, where it is used"

    @checked_names
    def __init__(
        self,
        bootstrap: str | Sequence[str] = "localhost:9094",
        *,
        group: str | None = None,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        listener: Listener | None = None,
        isolation: str = "read_committed",
        offset_reset: str = "earliest",
        on_unreadable_batch: str = "raise",
        auto_commit_interval_ms: int | None = None,
        assignors: Sequence[str] | str = "cooperative-sticky",
        instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int | None = None,
        max_poll_interval_ms: int = 300_000,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 50 << 20,
        max_partition_bytes: int = 1 << 20,
        buffered_bytes_max: int = 64 << 20,
        client_id: str = "semel",
        rack: str = "",
        request_timeout_ms: int = 30_000,
        api_timeout_ms: int = 60_000,
        connect_timeout_ms: int = 3_000,
    ) -> None:
        self._listener = _check_listener(listener)
        self._auto_commit_s = None
        if auto_commit_interval_ms is not None:
            if group is None:
                raise UsageError("option auto_commit_interval_ms commits for a group: give group, too")
            self._auto_commit_s = check_int("auto_commit_interval_ms", auto_commit_interval_ms, 1) / 1000
        self._core = make_core(
            "Consumer",
            bootstrap,
            group=group,
            topics=topics,
            pattern=pattern,
            isolation=isolation,
            offset_reset=offset_reset,
            on_unreadable_batch=on_unreadable_batch,
            assignors=assignors,
            instance_id=instance_id,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_partition_bytes=max_partition_bytes,
            buffered_bytes_max=buffered_bytes_max,
            client_id=client_id,
            rack=rack,
            request_timeout_ms=request_timeout_ms,
            api_timeout_ms=api_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
        )
        self._auto_committing: Future[None] | None = None
        self._auto_commit_due = math.inf
        self._auto_committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._pending: deque[tuple[Future[None], CommitCallback | None]] = deque()
        self._outstanding = Outstanding()
        self._one_by_one: RecordByRecord | None = None
        self._closing = False
        self._closed = False
        self._prepare()
        # Weakly: what runs on the IO thread shall not keep a consumer alive that nobody has any more.
        wake = weakref.WeakMethod(self._wake)
        self._core.on_ready = lambda: _call_if_alive(wake)
        self._finalizer = weakref.finalize(self, _close_dropped, self._core)
        self._finalizer.atexit = False

    # how to wait

    @abstractmethod
    def _prepare(self) -> None:
        """Make what waiting needs."""

    @abstractmethod
    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the IO thread and wait for it."""

    @abstractmethod
    async def _wait_ready(self, timeout_s: float) -> None:
        """Wait until `_wake` was called since `_forget_ready`, or for so long."""

    @abstractmethod
    async def _call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function of the user's, and wait for what it does."""

    @abstractmethod
    async def _end(self) -> None:
        """Close the client."""

    @abstractmethod
    def _forget_ready(self) -> None: ...

    @abstractmethod
    def _wake(self) -> None:
        """Let a poll that waits look again. From any thread."""

    # reading

    async def _poll(self, timeout_s: float | None, max_records: int) -> Batch | None:
        check_int("max_records", max_records, 1)
        deadline = _deadline(timeout_s)
        self._settle()
        handout = await self._next_handout(deadline, max_records)
        if handout is None:
            return None
        batch = Batch(self._core, handout, self._outstanding)
        self._outstanding.add(batch)
        return batch

    async def _next_one_by_one(self) -> RecordByRecord:
        """Return what to iterate over next: the rest of an iteration that was broken off, or the next records."""
        rest = self._one_by_one
        if rest is not None and not rest.is_done:
            return rest
        handout = await self._next_handout(math.inf, ITERATION_RECORDS)
        assert handout is not None
        self._one_by_one = RecordByRecord(self._core, handout)
        return self._one_by_one

    async def _next_handout(self, deadline: float, max_records: int) -> Handout | None:
        core = self._core
        self._check_usable()
        if core.subscription.kind is SubscriptionKind.NONE:
            raise UsageError("this consumer reads nothing yet; call subscribe() or assign() before poll()")
        await self._tell_of_commits()
        started_ns = time.time_ns()
        while True:
            self._auto_commit()  # also while nothing comes: the last records before a pause are committed, too
            core.note_poll()
            self._forget_ready()
            error = core.next_error()
            if error is not None:
                raise error
            while core.needs_step:
                change = await self._run(core.step())
                if change is None:
                    break
                await self._tell(change)
            handout = core.collect(max_records)
            if handout is not None:
                if tracing.active():
                    trace_receive(core, handout.records, started_ns)
                return handout
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            await self._wait_ready(min(left_s, LOOK_AGAIN_S))
            self._check_usable()

    def processing(self, record: Record) -> AbstractContextManager[None]:
        """Return a context manager inside of which `record` is processed: see `Batch.processing`.

        for record in consumer:
            with consumer.processing(record):
                ...
        """
        return processing(self._core, record)

    def _settle(self) -> None:
        """End an iteration over records that is under way, so that what it has left comes again."""
        rest, self._one_by_one = self._one_by_one, None
        if rest is not None and not rest.is_done:
            rest.stop()

    async def _tell(self, change: AssignmentChange) -> None:
        listener: Any = self._listener
        if change.kind is ChangeKind.ASSIGNED:
            if listener is not None:
                await self._call(listener.on_assigned, change.partitions)
        elif change.partitions:
            if change.kind is ChangeKind.REVOKED:
                await self._commit_before_going(self._core.client.options.api_timeout_ms / 1000)
            if listener is not None:
                told = listener.on_revoked if change.kind is ChangeKind.REVOKED else listener.on_lost
                await self._call(told, change.partitions)

    # what is read

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Read topics, or all whose whole name matches `pattern`, shared with the group, in place of those so far.

        Topics and partitions that come later are taken in within seconds. Raises `UsageError` after `assign`.
        """
        self._check_usable()
        if (topics is None) == (pattern is None):
            raise UsageError("give either topics or pattern")
        if listener is not None:
            self._listener = _check_listener(listener)
        self._core.subscribe(
            None if topics is None else check_topics(topics),
            None if pattern is None else check_text("pattern", pattern),
        )

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without sharing them. With a group, begin where it has committed.

        Partitions that were assigned before continue where they are. Raises `UsageError` after `subscribe`.
        """
        self._check_usable()
        self._settle()
        self._core.assign(check_partitions(partitions))

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are read now."""
        return self._core.assignment()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`, and let `commit()` commit it. Raises `UsageError` where `partition` is not assigned."""
        self._check_usable()
        tp = check_partition(partition)
        check_int("offset", offset, 0, 2**63 - 1)
        self._settle()
        self._core.seek(tp, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the first record of the partitions (None: all that are assigned)."""
        self._seek_to(OffsetReset.EARLIEST, partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the end of the partitions (None: all that are assigned), as it is when the next poll looks."""
        self._seek_to(OffsetReset.LATEST, partitions)

    def _seek_to(self, strategy: OffsetReset, partitions: Iterable[TopicPartition] | None) -> None:
        tps = self._chosen(partitions)
        self._settle()
        self._core.seek_to(strategy, tps)

    async def _seek_to_timestamp(self, timestamp_ms: int, partitions: Iterable[TopicPartition] | None) -> None:
        check_int("timestamp_ms", timestamp_ms, 0, 2**62)
        found = await self._run(self._core.offsets_for_times(dict.fromkeys(self._chosen(partitions), timestamp_ms)))
        self._settle()
        for tp, offset in found.items():
            if offset is None:
                self._core.seek_to(OffsetReset.LATEST, [tp])
            else:
                self._core.seek(tp, offset)

    def pause(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Hand out nothing of these partitions (None: all) until `resume`; they stay assigned."""
        tps = self._chosen(partitions)
        self._settle()
        self._core.pause(tps, paused=True)

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Hand out records of these partitions (None: all) again."""
        self._core.pause(self._chosen(partitions), paused=False)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are paused."""
        return self._core.paused()

    @property
    def skipped_batches(self) -> int:
        """How many batches could not be read and were passed over, with on_unreadable_batch="skip"."""
        return self._core.skipped_batches

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next record to be handed out; None as long as it is not known."""
        self._check_usable()
        tp = check_partition(partition)
        left = self._left_to_hand_out().get(tp)
        return self._core.position(tp) if left is None else left

    def lag(self) -> dict[TopicPartition, int]:
        """Return how far each partition is behind the end of what this consumer may see, as of its last fetch."""
        return self._core.lags()

    # offsets

    def group_metadata(self) -> GroupMetadata | None:
        """Return who commits now; None outside of a group."""
        return self._core.group_metadata()

    async def _commit(self, offsets: Offsets | None) -> None:
        self._check_usable()
        await self._tell_of_commits()
        await self._run(self._core.commit(self._to_commit(offsets), self._core.committer()))

    def _commit_soon(self, offsets: Offsets | None) -> Future[None]:
        self._check_usable()
        committer, chosen = self._core.committer(), self._to_commit(offsets)
        return self._core.client.io.submit(self._core.commit(chosen, committer))

    def _commit_async(self, offsets: Offsets | None, callback: CommitCallback | None) -> Future[None]:
        if len(self._pending) >= COMMITS_PENDING_MAX:
            raise RetriableError(
                f"{COMMITS_PENDING_MAX} commits wait already; poll, or wait for the futures of some, before the next"
            )
        future = self._commit_soon(offsets)
        self._pending.append((future, callback))
        return future

    async def _tell_of_commits(self) -> None:
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
                await self._call(callback, error)

    def _to_commit(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is not None:
            return as_offsets(offsets)
        chosen = self._core.handed_out()
        for tp, offset in self._left_to_hand_out().items():
            if tp in chosen:
                chosen[tp] = OffsetAndMetadata(offset)
        return chosen

    def _left_to_hand_out(self) -> dict[TopicPartition, int]:
        return {} if self._one_by_one is None else self._one_by_one.positions()

    async def _committed(
        self, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return await self._run(self._core.committed(self._chosen(partitions)))

    async def _beginning_offsets(self, partitions: Iterable[TopicPartition] | None) -> dict[TopicPartition, int]:
        return await self._run(self._core.end_offsets(self._chosen(partitions), EARLIEST_TIMESTAMP))

    async def _end_offsets(self, partitions: Iterable[TopicPartition] | None) -> dict[TopicPartition, int]:
        return await self._run(self._core.end_offsets(self._chosen(partitions), LATEST_TIMESTAMP))

    async def _offsets_for_times(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        self._check_usable()
        asked = {
            check_partition(tp): check_int(f"timestamp of {tp}", timestamp_ms, 0, 2**62)
            for tp, timestamp_ms in timestamps.items()
        }
        return await self._run(self._core.offsets_for_times(asked))

    def _auto_commit(self) -> None:
        """Commit what polls before this one handed out, where it is time to."""
        if self._auto_commit_s is None:
            return
        now = time.monotonic()
        pending = self._auto_committing
        if pending is not None and pending.done():
            self._auto_committing = None
            error = None if pending.cancelled() else pending.exception()
            if error is not None:
                self._auto_committed = {}
                _log.warning("auto-commit failed, the next one tries again: %s", error)
        if self._auto_commit_due is math.inf:
            self._auto_commit_due = now + self._auto_commit_s
        if now < self._auto_commit_due or self._auto_committing is not None:
            return
        self._auto_commit_due = now + self._auto_commit_s
        chosen = self._to_commit(None)
        if chosen and chosen != self._auto_committed:
            try:
                committer = self._core.committer()
            except SemelError:
                return  # no member now: what was handed out comes again
            self._auto_committed = chosen
            self._auto_committing = self._core.client.io.submit(self._core.commit(chosen, committer))

    async def _commit_before_going(self, timeout_s: float) -> None:
        """Auto-commit before partitions go. What fails comes again elsewhere; that is no reason not to let them go."""
        if self._auto_commit_s is None:
            return
        chosen = self._to_commit(None)
        if not chosen:
            return
        try:
            await self._run(self._core.commit_within(chosen, self._core.committer(), timeout_s))
        except SemelError as error:
            _log.warning(
                "the position of the last records is not committed, and they will be returned again: %s", error
            )

    # life

    async def _unsubscribe(self) -> None:
        self._check_usable()
        self._one_by_one = None
        try:
            await self._let_go(self._core.client.options.api_timeout_ms / 1000, commits=True)
        finally:
            self._core.unsubscribe()
            if self._core.is_started:
                await self._run(self._core.leave())

    async def _close(self, timeout_s: float, *, commits: bool) -> None:
        _deadline(timeout_s)
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
                await self._let_go(timeout_s, commits=commits)
                await self._run(self._core.finish_commits(timeout_s))
                await self._tell_of_commits()
        finally:
            self._closed = True
            self._wake()
            try:
                if self._core.is_started:
                    await self._run(self._core.close())
            finally:
                await self._end()

    async def _let_go(self, timeout_s: float, *, commits: bool) -> None:
        """Commit what auto-commit owes, and tell the listener that its partitions go."""
        if commits and not self._core.is_lost:
            await self._commit_before_going(timeout_s)
        owned = self._core.owned
        listener: Any = self._listener
        if owned and listener is not None:
            await self._call(listener.on_lost if self._core.is_lost else listener.on_revoked, owned)

    def __repr__(self) -> str:
        group = "no group" if self._core.group is None else f"group {self._core.group.group!r}"
        return f"<Consumer of {group} at {', '.join(self._core.client.options.addresses)}>"

    def _chosen(self, partitions: Iterable[TopicPartition] | None) -> list[TopicPartition]:
        self._check_usable()
        return sorted(self._core.assignment()) if partitions is None else check_partitions(partitions)

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError("this Consumer is closed; make a new one")
        self._core.client.io.check()


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine through that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    coroutine.close()
    raise AssertionError("the coroutine has waited, where it should have blocked")


def _call_if_alive(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    alive = method()
    if alive is not None:
        alive()


def _close_dropped(core: ConsumerCore) -> None:
    """Close what a consumer was made of that was dropped without a close, or it would own its partitions for ever."""
    if core.is_started and not core.client.io.forked:
        # On a thread of its own: the collector may run on the IO thread, which can't wait for itself.
        threading.Thread(target=_close_quietly, args=(core,), name="semel-close").start()


def _close_quietly(core: ConsumerCore) -> None:
    _log.warning("a consumer was dropped without a close; use it in a with-block")
    with suppress(SemelError):
        core.client.run(core.close(), CLOSE_TIMEOUT_S * 1000)
    core.client.close()


def _check_listener(listener: Listener | None) -> Listener | None:
    if listener is None:
        return None
    missing = [name for name in ("on_assigned", "on_revoked", "on_lost") if not callable(getattr(listener, name, None))]
    if missing or isinstance(listener, type):
        raise UsageError(
            f"listener must be an instance of a subclass of RebalanceListener, not {listener!r}"
            + (f", which has no {', '.join(missing)}" if missing else "")
        )
    return listener


def _deadline(timeout_s: float | None) -> float:
    """Return the time.monotonic() at which `timeout_s` is over. Raises `UsageError`."""
    seconds = check_seconds("timeout_s", timeout_s)
    return math.inf if seconds is None else time.monotonic() + seconds
