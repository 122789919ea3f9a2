"""One transaction that many processes write in, and one of them commits (T12)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from semel.protocol.api.groups import OffsetAndMetadata
from semel.protocol.api.shared_transactions import (
    NAME_BYTES_MAX,
    NO_SEQUENCE,
    AbortSharedRequest,
    CommitDecision,
    CommitOutcome,
    CommitSharedRequest,
    CommitSharedResponse,
    OpenSharedRequest,
)
from semel.protocol.errors import AbortTransactionError, ErrorCode, FencedError, RetriableError, SemelError, UsageError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.sdk.producer.transaction import GroupMetadata
from semel.sdk.producer.transaction_calls import commit_offsets
from semel.sdk.shared.calls import abort_shared, commit_shared, open_shared
from semel.sdk.shared.writer import SharedWriter, SharedWriterId
from semel.sdk.telemetry import metrics, tracing
from semel.sdk.transport.arguments import as_offsets, check_payload
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.options import ClientOptions, check_bool, check_int, check_name, checked_names

T = TypeVar("T")

_DECIDED_BY_THE_TRANSACTION: Final = (
    "bootstrap",
    "transactional_id",
    "acks",
    "idempotent",
    "two_phase",
    "transaction_timeout_ms",
)
"""Options of producers that writers of a shared transaction don't choose."""


@dataclass(frozen=True, slots=True)
class SharedCommit:
    """What became of a commit.

    already_committed: an earlier attempt had committed the token; this attempt's writers were aborted
    decision:          what counts, for good
    """

    already_committed: bool
    decision: CommitDecision


class SharedHandle:
    """One attempt at a shared transaction, without a way to wait: what `semel.SharedTransaction` and its twin share."""

    __slots__ = (
        "_bootstrap",
        "_client_options",
        "_trace",
        "attempt",
        "committed",
        "key",
        "one_off",
        "run",
        "sequence",
        "timeout_ms",
        "token",
    )

    @checked_names
    def __init__(
        self,
        bootstrap: str,
        key: str,
        *,
        token: str,
        sequence: int | None = None,
        timeout_ms: int = 300_000,
        attempt: str | None = None,
        run: str | None = None,
        one_off: bool = False,
        client_id: str = "semel-shared",
        max_block_ms: int = 60_000,
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int = 3_000,
    ) -> None:
        """Make a handle without asking anybody: the first writer that joins opens the attempt. See `open`.

        bootstrap:    the address of a node's gRPC listener, "host:port"; several with commas between
        key:          names a line of transactions that follow each other, such as a job's
        token:        names what is committed: the same each time that this piece of work is tried, such as its date
        sequence:     its place in the application's order, if there is one: larger than that of the last commit
        timeout_ms:   how long each writer's part may stay open, from its first record to the commit
        attempt:      names this try, again for each; None: a random name
        run:          names the run of the program that tries; once another run has opened an attempt, all of this one's
                      are over, also those that nobody had opened
        one_off:      nobody will ever use this key again: it is forgotten a quarter of an hour after its commit (the
                      node's commit.one.off.expiration.ms)
        max_block_ms: how long one call may take, retries included
        """
        self._client_options = ClientOptions.checked(
            bootstrap,
            client_id=client_id,
            api_timeout_ms=max_block_ms,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
        )
        self._bootstrap = ",".join(self._client_options.addresses)
        self.key = check_name("key", key, NAME_BYTES_MAX)
        self.token = check_name("token", token, NAME_BYTES_MAX)
        self.sequence = None if sequence is None else check_int("sequence", sequence, 0, 2**63 - 1)
        self.timeout_ms = check_int("timeout_ms", timeout_ms, 1)
        self.attempt = uuid.uuid4().hex if attempt is None else check_name("attempt", attempt, NAME_BYTES_MAX)
        self.run = None if run is None else check_name("run", run, NAME_BYTES_MAX)
        self.one_off = check_bool("one_off", one_off)
        self.committed: CommitDecision | None = None
        self._trace = tracing.inject(()) if tracing.active() else ()

    def _writer_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a writer's producer. Raises `UsageError` for those that the transaction decides."""
        for name in _DECIDED_BY_THE_TRANSACTION:
            if name in options:
                raise UsageError(f"join() has no option {name!r}: the shared transaction decides it")
        client = self._client_options
        settings = {
            "client_id": client.client_id,
            "max_block_ms": client.api_timeout_ms,
            "request_timeout_ms": client.request_timeout_ms,
            "connect_timeout_ms": client.connect_timeout_ms,
        }
        return {**settings, **options}

    def _committing(
        self,
        members: Iterable[SharedWriterId],
        payload: bytes,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None,
        group: GroupMetadata | str | None,
    ) -> Callable[[ClientCore], Coroutine[Any, Any, SharedCommit]]:
        """Check what is to be committed, and return the call that does."""
        check_payload(payload)
        if bool(offsets) and group is None:
            raise UsageError(
                "commit(offsets=...) needs the group that they are committed for: commit(..., group='name')"
            )
        committer = GroupMetadata(group) if isinstance(group, str) else group
        writers = self._named(members)
        positions = as_offsets(offsets or {})
        return lambda client: self._commit(client, writers, payload, positions, committer)

    def _named(self, members: Iterable[SharedWriterId]) -> list[ProducerIdAndEpoch]:
        writers = []
        if isinstance(members, SharedWriterId) or not isinstance(members, Iterable):
            raise UsageError(
                f"commit() takes a list of what the writers' finish() returned, not {type(members).__name__}: for one, "
                "commit([member]); for none, commit([])"
            )
        for member in members:
            if not isinstance(member, SharedWriterId):
                raise UsageError(f"members are what the writers' finish() returned, not {type(member).__name__}")
            if (member.key, member.attempt) != (self.key, self.attempt):
                raise UsageError(
                    f"a member is of attempt {member.attempt!r} of {member.key!r}, not of {self.attempt!r} of "
                    f"{self.key!r}: all writers join through the handle that commits, or a copy of it"
                )
            if member.has_written:
                writers.append(ProducerIdAndEpoch(member.producer_id, member.producer_epoch))
        return writers

    async def _open(self, client: ClientCore) -> CommitDecision | None:
        return (await open_shared(client.control, self._open_request(writer=False))).committed

    async def _commit(
        self,
        client: ClientCore,
        writers: list[ProducerIdAndEpoch],
        payload: bytes,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata | None,
    ) -> SharedCommit:
        started = time.monotonic()
        try:
            with self._settling():
                done = await self._decide(client, writers, payload, offsets, group)
        except SemelError as error:
            outcome = "fenced" if isinstance(error, FencedError) else "failed"
            metrics.transaction_ended(outcome, time.monotonic() - started)
            raise
        outcome = "already_committed" if done.already_committed else "committed"
        metrics.transaction_ended(outcome, time.monotonic() - started)
        return done

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """Spans around the decision: the commit's always below the transaction's, in the trace of the handle (E4)."""
        if not tracing.active():
            yield
            return
        client_id, above = self._client_options.client_id, tracing.context_of(self._trace)
        told: dict[str, Any] = {"kind": "client", "client_id": client_id, "about": tracing.TRANSACTION}
        whole = tracing.start_span("transaction", self.key, parent=above, **told)
        context = tracing.context_with(whole, above)
        decision = tracing.start_span("commit", self.key, parent=context, **told)
        try:
            with tracing.attached(tracing.context_with(decision, context)):
                yield
        except BaseException as error:
            tracing.end_span(decision, error)
            tracing.end_span(whole, error)
            raise
        tracing.end_span(decision)
        tracing.end_span(whole)

    async def _decide(
        self,
        client: ClientCore,
        writers: list[ProducerIdAndEpoch],
        payload: bytes,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata | None,
    ) -> SharedCommit:
        if offsets and group is not None:
            writers = [*writers, *await self._write_offsets(client, offsets, group)]
        request = CommitSharedRequest(
            self.key,
            self.attempt,
            self.token,
            tuple(writers),
            payload,
            self._sequence_or_none,
            self.one_off,
            self.run or "",
        )
        try:
            response: CommitSharedResponse = await commit_shared(client.control, request)
        except SemelError as error:
            if error.code is ErrorCode.UNKNOWN_SERVER_ERROR and not isinstance(error, RetriableError):
                # Not the coordinator's word: something broke on the way there, or on the way back.
                raise RetriableError(f"whether {self.key!r} committed is not known: {error.message}") from error
            raise
        self.committed = response.decision
        return SharedCommit(response.outcome is CommitOutcome.ALREADY_COMMITTED, response.decision)

    async def _write_offsets(
        self, client: ClientCore, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> list[ProducerIdAndEpoch]:
        """Commit the offsets as one more writer, so that the same decision publishes them. Returns whom to name."""
        joined = await open_shared(client.control, self._open_request(writer=True))
        if joined.producer is None:
            return []  # the token is committed, and its offsets with it
        try:
            await commit_offsets(
                client.control, client.options, joined.transactional_id, joined.producer, offsets, group
            )
        except (RetriableError, FencedError):
            raise
        except SemelError as error:
            raise AbortTransactionError(
                f"offsets of group {group.group_id!r} can't be committed, so nothing was: {error.message}", error.code
            ) from error
        return [joined.producer]

    async def _abort(self, client: ClientCore) -> None:
        started = time.monotonic()
        await abort_shared(client.control, AbortSharedRequest(self.key, self.attempt, self.one_off))
        metrics.transaction_ended("aborted", time.monotonic() - started)

    def _open_request(self, *, writer: bool) -> OpenSharedRequest:
        return OpenSharedRequest(
            self.key,
            self.attempt,
            self.token,
            self.timeout_ms,
            self._sequence_or_none,
            writer=writer,
            one_off=self.one_off,
            run=self.run or "",
        )

    @property
    def _sequence_or_none(self) -> int:
        return NO_SEQUENCE if self.sequence is None else self.sequence

    def __repr__(self) -> str:
        state = ", committed" if self.committed is not None else ""
        return f"SharedTransaction(key={self.key!r}, token={self.token!r}, attempt={self.attempt!r}{state})"


class SharedTransaction(SharedHandle):
    """A handle on one attempt at a transaction of many writers. Picklable: hand it to other processes.

        shared = semel.SharedTransaction.open("localhost:9094", "nightly-import", token="2026-11-21")
        members = pool.map(work, [(shared, part) for part in parts])   # each: join(), send, finish()
        shared.commit(members)

    All writers that the commit names take effect at the same moment; what any other one wrote, a crashed or a late one,
    is aborted. A new attempt under the same key aborts and fences an older one that is still open.
    """

    __slots__ = ()

    @classmethod
    def open(
        cls,
        bootstrap: str,
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
        shared.committed = shared._run(shared._open)
        return shared

    def join(self, **options: Any) -> SharedWriter:
        """Join as a writer, in any process: the result sends as a `Producer` does, and `finish()` ends it.

        options: of the producer, such as compression and linger_ms; not those that the transaction decides

        Where the token is committed already, the writer's `committed` says so, and it takes no records. Raises
        `FencedError` when another attempt has taken this one's place, or this one is decided.
        """
        request = self._open_request(writer=True)
        client = self._lasting_client()
        return SharedWriter(self._bootstrap, request, self._trace, client=client, **self._writer_options(options))

    def commit(
        self,
        members: Iterable[SharedWriterId],
        *,
        payload: bytes = b"",
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        group: GroupMetadata | str | None = None,
    ) -> SharedCommit:
        """Commit exactly what `members` wrote, and abort every other writer. Safe to repeat, also after a crash.

        members: what the writers' `finish()` returned; may be empty
        payload: up to 64 KiB that are recorded with the token; a repetition must bring the same
        offsets: of the next records to read, committed for `group` by the same decision

        Returns whether an earlier attempt had committed the token already. Raises `AbortTransactionError` when a member
        is not open any more, so that nothing was committed (run it again, as a new attempt), `FencedError` when another
        attempt has taken over (stop), `FatalError` when the token was committed with another payload or the sequence is
        not after the last one, and `RetriableError` when the outcome could not be learnt: commit again, or ask
        `Admin.commits`.
        """
        return self._run(self._committing(members, payload, offsets, group))

    def abort(self) -> None:
        """Abort the attempt with all its writers, also those that join late. Changes nothing once it is decided."""
        self._run(self._abort)

    def _lasting_client(self) -> ClientCore | None:
        """Return a client of this process that outlives calls and writers, where somebody keeps one."""
        return None

    def _run(self, call: Callable[[ClientCore], Coroutine[Any, Any, T]]) -> T:
        """Ask through a client that lives for this call: a handle has no thread or connection to lose in a fork."""
        lasting = self._lasting_client()
        if lasting is not None:
            return lasting.run(call(lasting))
        client = ClientCore("SharedTransaction", self._client_options)
        try:
            return client.run(call(client))
        finally:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Abort what was not committed. Nothing that is decided changes."""
        if self.committed is not None:
            return
        try:
            self.abort()
        except SemelError as while_aborting:
            if error is None:
                raise
            error.add_note(f"and the attempt could not be aborted: {while_aborting}")
