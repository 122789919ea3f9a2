"""Transactions that many processes write in, and one of them commits (T12)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self, TypeVar

from semel.protocol.api.commit_decisions import CommitDecision
from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
from semel.protocol.api.shared_transactions import OpenSharedRequest
from semel.protocol.errors import SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.producer.aio import RecordSender
from semel.sdk.producer.core import ProducerCore
from semel.sdk.producer.settings import ProducerOptions
from semel.sdk.shared.transaction import SharedCommit, SharedHandle
from semel.sdk.shared.writer import SharedPart, SharedWriterCore, SharedWriterId
from semel.sdk.telemetry import tracing
from semel.sdk.transport.arguments import check_seconds
from semel.sdk.transport.awaiting import run, work
from semel.sdk.transport.border import ends_tracebacks
from semel.sdk.transport.client import ClientCore

T = TypeVar("T")


@ends_tracebacks
class SharedWriter(RecordSender):
    """Writes in a shared transaction, as a `Producer` does, under an identity of its own. Made by `join()`.

        async with await shared.join() as writer:
            await writer.send("orders", value, key=key)
            member = await writer.finish()

    What it wrote counts when the committer names `member`. A writer that is closed, or dies, without `finish()` counts
    for nothing. Thread-safe; belongs to the process that made it.
    """

    _in_place_of_pickling = "it belongs to its process; pickle the SharedTransaction, and join in the other process"

    def __init__(
        self,
        bootstrap: str,
        request: OpenSharedRequest,
        trace: tracing.Headers,
        *,
        client: ClientCore | None = None,
        **options: Any,
    ) -> None:
        """Only `SharedTransaction.join` makes them: it also asks the coordinator for their identity.

        trace:  the trace context of the handle, which sends inside the with-block are made in, unless there is another
        client: to write through, which continues after this writer; None: one of its own
        """
        self._request = request
        self._client = client
        self._trace = trace
        self._attached: AbstractContextManager[None] = nullcontext()
        super().__init__(bootstrap, **options)

    def _make_core(self, options: ProducerOptions) -> ProducerCore:
        return SharedWriterCore(options, self._request, blocking=self._blocking, client=self._client)

    @property
    def _part(self) -> SharedPart:
        assert isinstance(self._core, SharedWriterCore)
        return self._core.shared

    @property
    def committed(self) -> CommitDecision | None:
        """The decision, where the token was committed before this writer joined: then there is nothing to write."""
        return self._part.committed

    @property
    def transactional_id(self) -> str | None:
        """The name that the coordinator has given this writer; it shows in `semel txn list`."""
        return self._part.transactional_id or None

    def _begin_trace(self) -> None:
        self._attached = tracing.attached(tracing.context_of(self._trace))
        self._attached.__enter__()

    def _end_trace(self) -> None:
        self._attached.__exit__(None, None, None)
        self._attached = nullcontext()

    def _finished(self) -> SharedWriterId:
        if not self._part.has_finished:
            raise UsageError("this writer was closed before it finished, so it counts for nothing; join again")
        return self._part.identity()

    def __repr__(self) -> str:
        return f"SharedWriter(key={self._request.key!r}, attempt={self._request.attempt!r})"

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent before is acknowledged, for up to `timeout_s` seconds (None: delivery_timeout_ms).

        Raises `RetriableError` (REQUEST_TIMED_OUT) when it takes longer, and what `finish` raises once this writer's
        part can't be committed any more.
        """
        check_seconds("timeout_s", timeout_s)
        self._core.check_open()
        await run(self._core.client, self._part.flush(), timeout_s)

    async def finish(self) -> SharedWriterId:
        """Flush, close, and return what the committer is to name. The same again when called again.

        Raises `AbortTransactionError` when something was not written, or the part timed out (join again, and write it
        again), `FencedError` when a newer attempt has taken over, or this one was decided without this writer (stop).
        """
        if not self._core.is_closed:
            await run(self._core.client, self._part.finish())
            await self.close()
        return self._finished()

    async def close(self, timeout_s: float | None = None) -> None:
        """Close. Without `finish()` before, what was written is aborted. Does nothing the second time."""
        await super().close(timeout_s)

    async def __aenter__(self) -> Self:
        self._core.check_open()
        self._begin_trace()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_trace()
        try:
            await self.close()
        except SemelError as while_closing:
            if error is None:
                raise
            error.add_note(f"and closing the writer failed: {while_closing}")


@ends_tracebacks
class SharedTransaction(SharedHandle):
    """A handle on one attempt at a transaction of many writers. Picklable: hand it to other processes.

        shared = await semel.aio.SharedTransaction.open("localhost:9094", "nightly-import", token="2026-11-21")
        members = pool.map(work, [(shared, part) for part in parts])   # each: join(), send, finish()
        await shared.commit(members)

    All writers that the commit names take effect at the same moment; what any other one wrote, a crashed or a late one,
    is aborted. A new attempt under the same key aborts and fences an older one that is still open.
    """

    __slots__ = ()

    @classmethod
    async def open(
        cls,
        bootstrap: str | Sequence[str] | None,
        key: str,
        *,
        token: str,
        sequence: int | None = None,
        timeout_ms: int = 300_000,
        attempt: str | None = None,
        **options: Any,
    ) -> Self:
        """Begin an attempt: abort and fence an older one of the same key, or learn that there is nothing to do.

        Where `token` is committed already, `committed` is that decision, for example after a crash between the commit
        and its answer. Arguments as in `SharedTransaction(...)`. Raises `FatalError` (INVALID_TXN_STATE) for a
        `sequence` that is not after the last commit's.
        """
        shared = cls(bootstrap, key, token=token, sequence=sequence, timeout_ms=timeout_ms, attempt=attempt, **options)
        shared.committed = await shared._run(shared._open)
        return shared

    async def join(self, **options: Any) -> SharedWriter:
        """Join as a writer, in any process: the result sends as a `Producer` does, and `finish()` ends it.

        options: of the producer, such as compression and linger_ms; not those that the transaction decides

        Where the token is committed already, the writer's `committed` says so, and it takes no records. Raises
        `FencedError` when another attempt has taken this one's place, or this one is decided.
        """
        request = self._open_request(writer=True)
        client = self._lasting_client()
        writer = SharedWriter(self._bootstrap, request, self._trace, client=client, **self._writer_options(options))
        try:
            await run(writer._core.client, writer._part.join())
        except BaseException:
            await writer.close()
            raise
        return writer

    async def commit(
        self,
        members: Iterable[SharedWriterId],
        *,
        payload: bytes = b"",
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        group: GroupMetadata | str | None = None,
        expected_offsets: Mapping[TopicPartition, int] | None = None,
    ) -> SharedCommit:
        """Commit exactly what `members` wrote, and abort every other writer. Safe to repeat, also after a crash.

        members: what the writers' `finish()` returned; may be empty
        payload: up to 64 KiB that are recorded with the token; a repetition must bring the same
        offsets: of the next records to read, committed for `group` by the same decision
        expected_offsets: where the group must stand before that, for partitions of `offsets`: where its work began, or
                 -1 where it must have committed nothing. So of two programs that have read the same records one alone
                 commits (rule O5). A group that has committed nothing for a partition stands where it is expected, and
                 one that stands at the offset to commit, by the same metadata, was moved there by the same work

        Returns whether an earlier attempt had committed the token already. Raises `AbortTransactionError` when a member
        is not open any more, so that nothing was committed (run it again, as a new attempt), `FencedError` when another
        attempt has taken over (stop), `FatalError` when the token was committed with another payload, the sequence is
        not after the last one, or the group stands elsewhere than expected (INVALID_UPDATE_VERSION), and
        `RetriableError` when the outcome could not be learnt: commit again, or ask `Admin.commits`.
        """
        return await self._run(self._committing(members, payload, offsets, group, expected_offsets))

    async def abort(self) -> None:
        """Abort the attempt with all its writers, also those that join late. Changes nothing once it is decided."""
        await self._run(self._abort)

    async def _run(self, call: Callable[[ClientCore], Coroutine[Any, Any, T]]) -> T:
        """Ask through a client that lives for this call: a handle has no thread or connection to lose in a fork."""
        lasting = self._lasting_client()
        if lasting is not None:
            return await run(lasting, call(lasting))
        client = ClientCore("SharedTransaction", self._client_options)
        try:
            return await run(client, call(client))
        finally:
            await work(client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Abort what was not committed. Nothing that is decided changes."""
        if self.committed is not None:
            return
        try:
            await self.abort()
        except SemelError as while_aborting:
            if error is None:
                raise
            error.add_note(f"and the attempt could not be aborted: {while_aborting}")
