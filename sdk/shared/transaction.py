"""One transaction that many processes write in, and one of them commits (T12)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from semel.protocol.api.commit_decisions import NAME_BYTES_MAX, NO_SEQUENCE, CommitDecision
from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
from semel.protocol.api.shared_transactions import (
    AbortSharedRequest,
    CommitOutcome,
    CommitSharedRequest,
    CommitSharedResponse,
    OpenSharedRequest,
    OpenSharedResponse,
)
from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FatalError,
    FencedError,
    RetriableError,
    SemelError,
    UsageError,
)
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.int_bounds import INT64_MAX
from semel.protocol.randomness import new_uuid
from semel.sdk.producer.api import RecordSender
from semel.sdk.producer.transaction_calls import commit_offsets
from semel.sdk.shared.calls import abort_shared, commit_shared, open_shared
from semel.sdk.shared.writer import SharedWriterId
from semel.sdk.telemetry import metrics, tracing
from semel.sdk.transport.arguments import as_expected_offsets, as_offsets, check_payload
from semel.sdk.transport.border import ends_tracebacks
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.kafka_names import in_our_names
from semel.sdk.transport.options import ClientOptions, check_bool, check_int, check_name, checked_names, option_names

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


@dataclass(frozen=True, slots=True)
class _MovedGroup:
    """What a commit does to a group: where it goes, and where it must stand before (O5)."""

    group: GroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    expected: Mapping[TopicPartition, int]


@ends_tracebacks
class SharedHandle:
    """One attempt at a shared transaction, without a way to wait: what the sync and the asyncio API share."""

    __slots__ = (
        "_bootstrap",
        "_client_options",
        "_offset_writer",
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
        bootstrap: str | Sequence[str] | None,
        key: str,
        *,
        token: str,
        sequence: int | None = None,
        timeout_ms: int = 300_000,
        attempt: str | None = None,
        run: str | None = None,
        one_off: bool = False,
        client_id: str = "semel",
        max_block_ms: int = 60_000,
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int | None = None,
    ) -> None:
        """Make a handle without asking anybody: the first writer that joins opens the attempt. See `open`.

        bootstrap:    the address of a node, "host:port", its gRPC port or its Kafka port, or several; None: what the
                      environment variable SEMEL_BOOTSTRAP says, else localhost:9094
        key:          names a line of transactions that follow each other, such as a job's
        token:        names what is committed: the same each time that this piece of work is tried, such as its date
        sequence:     its place in the application's order, if there is one: larger than that of the last commit
        timeout_ms:   how long each writer's part may stay open, from its first record to the commit
        attempt:      names this try, again for each; None: a random name
        run:          names the run of the program that tries; once another run has opened an attempt, all of this one's
                      are over, also those that nobody had opened
        one_off:      nobody will ever use this key again: it is forgotten a quarter of an hour after its commit (the
                      node's commit.one.off.expiration.ms)
        max_block_ms: how long one call may take, retries included, also while no node can be reached
        connect_timeout_ms: how long to try where no node has ever answered, to fail early; None: max_block_ms
        """
        self._client_options = ClientOptions.checked(
            bootstrap,
            client_id=client_id,
            api_timeout_ms=max_block_ms,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
        )
        self._bootstrap = str(self._client_options.bootstrap)
        self.key = check_name("key", key, NAME_BYTES_MAX)
        self.token = check_name("token", token, NAME_BYTES_MAX)
        self.sequence = None if sequence is None else check_int("sequence", sequence, 0, INT64_MAX)
        self.timeout_ms = check_int("timeout_ms", timeout_ms, 1)
        self.attempt = new_uuid().hex if attempt is None else check_name("attempt", attempt, NAME_BYTES_MAX)
        self.run = None if run is None else check_name("run", run, NAME_BYTES_MAX)
        self.one_off = check_bool("one_off", one_off)
        self.committed: CommitDecision | None = None
        self._offset_writer: OpenSharedResponse | None = None
        self._trace = tracing.inject(()) if tracing.active() else ()

    def _writer_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a writer's producer. Raises `UsageError` for those that the transaction decides."""
        options = in_our_names("join()", option_names(RecordSender), options, {})
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
        expected_offsets: Mapping[TopicPartition, int] | None,
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
        expected = as_expected_offsets(expected_offsets or {}, positions)
        moved = None if committer is None or not positions else _MovedGroup(committer, positions, expected)
        return lambda client: self._commit(client, writers, payload, moved)

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
        moved: _MovedGroup | None,
    ) -> SharedCommit:
        started = client.clock.monotonic()
        try:
            with self._settling():
                done = await self._decide(client, writers, payload, moved)
        except SemelError as error:
            outcome = "fenced" if isinstance(error, FencedError) else "failed"
            metrics.transaction_ended(outcome, client.clock.monotonic() - started)
            raise
        outcome = "already_committed" if done.already_committed else "committed"
        metrics.transaction_ended(outcome, client.clock.monotonic() - started)
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
        moved: _MovedGroup | None,
    ) -> SharedCommit:
        if moved is not None:
            writers = [*writers, *await self._write_offsets(client, moved)]
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

    async def _write_offsets(self, client: ClientCore, moved: _MovedGroup) -> list[ProducerIdAndEpoch]:
        """Commit the offsets as one more writer, so that the same decision publishes them. Returns whom to name."""
        # One writer for all calls: what a call before this one left pending is its own, and not in its way (O5).
        joined = self._offset_writer or await open_shared(client.control, self._open_request(writer=True))
        if joined.producer is None:
            return []  # the token is committed, and its offsets with it
        self._offset_writer = joined
        try:
            await commit_offsets(
                client.control,
                client.options,
                joined.transactional_id,
                joined.producer,
                moved.offsets,
                moved.group,
                moved.expected,
            )
        except RetriableError:
            raise
        except SemelError as error:
            self._offset_writer = None
            if await self._open(client) is not None:
                return []  # another call has committed the token meanwhile: it ended this writer, and moved the group
            if isinstance(error, FencedError):
                raise
            message = f"offsets of group {moved.group.group_id!r} can't be committed, so nothing was: {error.message}"
            if error.code is ErrorCode.INVALID_UPDATE_VERSION:
                raise FatalError(message, error.code) from error  # another attempt would find the same
            raise AbortTransactionError(message, error.code) from error
        return [joined.producer]

    async def _abort(self, client: ClientCore) -> None:
        started = client.clock.monotonic()
        await abort_shared(client.control, AbortSharedRequest(self.key, self.attempt, self.one_off))
        metrics.transaction_ended("aborted", client.clock.monotonic() - started)

    def _lasting_client(self) -> ClientCore | None:
        """Return a client of this process that outlives calls and writers, where somebody keeps one."""
        return None

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
