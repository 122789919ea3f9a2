"""Shared transactions and commit tokens: the part of the transaction machine that is Semel's own (T12, T13).

A writer of a shared transaction is an ordinary transactional producer to partitions, markers and readers: it has a
transactional id made of the key, a producer id of its own, and lives in the key's shard. It can't commit alone. The
decision is one batch of records: the key's decision, the end of each writer that the committer named, and the abort of
every other one, as far as the batch has room. The others can't commit any more, whatever they do: a mark in the key's
record says that they are there, and ticks abort them. From there on each runs its course as any transaction does, crash
or not (T3, T4), and is forgotten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeAlias

from semel.protocol.api.clients import ClientOrigin
from semel.protocol.api.commit_decisions import CommitDecision
from semel.protocol.api.shared_transactions import (
    AbortSharedRequest,
    CommitOutcome,
    CommitSharedRequest,
    CommitSharedResponse,
    DescribeSharedRequest,
    LeaveSharedRequest,
    ListSharedRequest,
    ListSharedResponse,
    OpenSharedRequest,
    OpenSharedResponse,
    SharedDescription,
    SharedListing,
    SharedWriter,
    member_id,
)
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from semel.runtime.deadlines import Deadlines
from semel.runtime.machine import CoordinatorRecord, Result
from semel.txn_coordinator.commit_history import CommitHistory, contradiction_to, other_sequence
from semel.txn_coordinator.commit_records import (
    AttemptState,
    CommitKind,
    CommitRecordKey,
    decode_attempt,
    encode_attempt,
    encode_attempt_key,
)
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.effects import PRODUCER_ID_NEEDED
from semel.txn_coordinator.held_bytes import HeldBytes, attempt_bytes
from semel.txn_coordinator.prepare import ending_by, prepare_end, prepare_new
from semel.txn_coordinator.producer_identity import RefusalError, refuse, refuse_timeout
from semel.txn_coordinator.records import record_of, size_of, tombstone_of
from semel.txn_coordinator.state import PREPARED, TransactionMetadata, TransactionState

Decided: TypeAlias = tuple[list[CoordinatorRecord], list[Any]]
"""Records and the effects that rest on them."""

_SHARED: Final = CommitKind.SHARED


class SharedTransactions:
    """Attempts and writers by key, and the time of what was committed. Changes in `replay` and `note_writer` alone.

    transactions: the machine's ids, the writers' among them.
    history:      what was committed.
    held:         counts what is held (S2).
    decide, fence: the machine's own way to end a transaction, and to abort one that did not ask for it.
    """

    def __init__(
        self,
        config: TransactionConfig,
        transactions: dict[str, TransactionMetadata],
        history: CommitHistory,
        held: HeldBytes,
        decide: Callable[[TransactionMetadata, int], Decided],
        fence: Callable[[TransactionMetadata, ClientOrigin | None, int], Decided],
    ) -> None:
        self._config = config
        self._transactions = transactions
        self._decide = decide
        self._fence = fence
        self._history = history
        self._held = held
        self._attempts: dict[str, AttemptState] = {}
        self._writers: defaultdict[str, set[str]] = defaultdict(set)
        self._expirations: dict[CommitKind, Deadlines[str]] = {kind: Deadlines() for kind in CommitKind}
        self._sweeps: dict[str, None] = {}

    @property
    def most_writers(self) -> int:
        """How many writers the transaction has that has most."""
        return max(map(len, self._writers.values()), default=0)

    # --- Replay -------------------------------------------------------------------------------------------------------

    def replay(self, key: CommitRecordKey, value: bytes | None) -> None:
        if key.token is None:
            self._replay_attempt(key.key, value)
        elif (kind := self._history.replay(key, value)) is not None:
            self._want_expiration(kind, key.key)

    def growth(self, key: CommitRecordKey, value: bytes | None) -> int:
        """Return how many bytes more there are after a record (S2)."""
        if key.token is not None:
            return self._history.growth(key, value)
        state = None if value is None else decode_attempt(key.key, value)
        return attempt_bytes(state) - attempt_bytes(self._attempts.get(key.key))

    def _replay_attempt(self, key: str, value: bytes | None) -> None:
        self._sweeps.pop(key, None)
        self._held.add(key, -attempt_bytes(self._attempts.pop(key, None)))
        if value is not None:
            state = self._attempts[key] = decode_attempt(key, value)
            self._held.add(key, attempt_bytes(state))
            if state.sweeping:
                self._sweeps[key] = None
        self._want_expiration(_SHARED, key)

    def _want_expiration(self, kind: CommitKind, key: str) -> None:
        deadline_ms = self._expires_ms(kind, key)
        if deadline_ms is None:
            self._expirations[kind].cancel(key)
        else:
            self._expirations[kind].hasten(key, deadline_ms)

    def _expires_ms(self, kind: CommitKind, key: str) -> int | None:
        """When a key was idle for long enough to be forgotten; None for one that is not known."""
        state = self._attempts.get(key) if kind is _SHARED else None
        last = self._history.last(kind, key)
        times = [*([] if state is None else [state.last_update_ms]), *([] if last is None else [last.decided_ms])]
        return max(times) + self._idle_ms(state) if times else None

    def _idle_ms(self, state: AttemptState | None) -> int:
        if state is not None and state.one_off:
            return self._config.commit_one_off_expiration_ms
        return self._config.commit_history_expiration_ms

    def note_writer(self, key: str, transactional_id: str, *, gone: bool = False) -> None:
        """A writer's record was replayed."""
        if not gone:
            self._writers[key].add(transactional_id)
            return
        writers = self._writers.get(key)
        if writers is not None:
            writers.discard(transactional_id)
            if not writers:
                del self._writers[key]

    # --- Opening and joining ------------------------------------------------------------------------------------------

    def open(self, request: OpenSharedRequest, spare_id: int, now_ms: int) -> Result[Any]:
        """Open an attempt or join it; as a writer, with a producer id."""
        refuse_timeout(request.key, request.timeout_ms, self._config)
        if (decision := self._history.find(_SHARED, request.key, request.token)) is not None:
            if (contradiction := other_sequence(request.key, decision, request.sequence)) is not None:
                raise contradiction
            return Result(OpenSharedResponse(committed=decision))
        state = self._state_for(request)
        _refuse_retired(state, request)
        self._history.refuse_sequence(_SHARED, request.key, request.sequence)
        is_open = state.attempt == request.attempt
        if is_open and (state.token, state.sequence) != (request.token, request.sequence):
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"attempt {request.attempt!r} of {request.key!r} is at token {state.token!r}, not {request.token!r}: "
                "give each attempt a name of its own",
            )
        if request.writer and spare_id == NO_PRODUCER_ID:
            return Result(PRODUCER_ID_NEEDED)
        if (
            is_open
            and request.writer
            and len(self._writers.get(request.key, ())) >= self._config.shared_transaction_max_writers
        ):
            self._held.refusals.note("shared.transaction.max.writers")
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"{request.key!r} has {self._config.shared_transaction_max_writers} writers, as many as the node's "
                "setting shared.transaction.max.writers allows: let fewer tasks write (in Spark, coalesce(n) before "
                "the write), or let several tasks share one writer",
            )
        records: list[CoordinatorRecord] = []
        effects: list[Any] = []
        if not is_open:
            opened = _opened(state, request, now_ms)
            records, effects, left = self._abort_all(
                request.key, now_ms, self._config.transaction_record_max_bytes // 2, request.client
            )
            records.insert(0, _attempt_record(opened, sweeping=left))
        if not request.writer:
            return Result(OpenSharedResponse(), records, effects=effects)
        writer = prepare_new(
            member_id(request.key, spare_id), spare_id, request.timeout_ms, now_ms, attempt=request.attempt
        )
        records.append(record_of(writer._replace(client=request.client)))
        return Result(OpenSharedResponse(writer.transactional_id, writer.producer), records, effects=effects)

    def _state_for(self, request: OpenSharedRequest | CommitSharedRequest | AbortSharedRequest) -> AttemptState:
        """The key's state. A key is a one-off for as long as all say so, so that no line of commits is cut short."""
        state = self._attempts.get(request.key)
        if state is None:
            return AttemptState(request.key, one_off=request.one_off and not self._history.of(_SHARED, request.key))
        ends = isinstance(request, AbortSharedRequest)
        return state if ends or request.one_off or not state.one_off else replace(state, one_off=False)

    # --- Deciding -----------------------------------------------------------------------------------------------------

    def commit(self, request: CommitSharedRequest, now_ms: int) -> Result[Any]:
        """T12: exactly the named writers, under one decision. T13: a token that is decided changes nothing."""
        state = self._state_for(request)
        if (decision := self._history.find(_SHARED, request.key, request.token)) is not None:
            return self._committed_before(request, state, decision, now_ms)
        _refuse_retired(state, request)
        if state.attempt not in ("", request.attempt):
            raise _superseded(request.key, request.attempt, state.attempt)
        self._history.refuse_sequence(_SHARED, request.key, request.sequence)
        if state.attempt and (state.token, state.sequence) != (request.token, request.sequence):
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"attempt {request.attempt!r} of {request.key!r} was opened for token {state.token!r}, not "
                f"{request.token!r}",
            )
        if not state.attempt:
            state = _opened(state, request, now_ms)
        named = self._named(request)
        decision = CommitDecision(
            request.token, request.sequence, request.payload, request.attempt, now_ms, len(request.writers)
        )
        closed = state.closed(request.attempt, now_ms)
        records = self._history.records_of(_SHARED, request.key, decision)
        effects: list[Any] = []
        for writer in named:
            more = self._commit_writer(writer, request, now_ms)
            records += more[0]
            effects += more[1]
        size = size_of([_attempt_record(closed, sweeping=True), *records])
        size_max = self._config.transaction_record_max_bytes
        if size > size_max:
            raise refuse(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the decision for {request.key!r} takes {size} bytes, more than {size_max}: its "
                f"{len(named)} writers wrote to {sum(len(writer.partitions) for writer in named)} partitions in total. "
                "Nothing is committed. Let fewer writers (in Spark, coalesce(n) before the write), or each to fewer "
                "partitions, take part",
            )
        aborts, aborted, left = self._abort_all(
            request.key,
            now_ms,
            size_max - size,
            request.client,
            but={writer.transactional_id for writer in named},
        )
        records = [_attempt_record(closed, sweeping=left), *records, *aborts]
        return Result(CommitSharedResponse(CommitOutcome.COMMITTED, decision), records, effects=[*effects, *aborted])

    def _committed_before(
        self, request: CommitSharedRequest, state: AttemptState, decision: CommitDecision, now_ms: int
    ) -> Result[Any]:
        """The token is decided: by this very attempt, whose answer was lost, or by an earlier one."""
        is_open = state.attempt == request.attempt
        records, effects = self._end_open(state, request.client, now_ms) if is_open else ([], [])
        contradiction = contradiction_to(request.key, decision, request.payload, request.sequence)
        if contradiction is not None:
            return Result(contradiction.error, records, effects=effects)
        again = decision.attempt == request.attempt
        outcome = CommitOutcome.COMMITTED if again else CommitOutcome.ALREADY_COMMITTED
        return Result(CommitSharedResponse(outcome, decision), records, effects=effects)

    def _named(self, request: CommitSharedRequest) -> list[TransactionMetadata]:
        """The writers that the committer names. All must be there, open, and of this attempt, or none commits."""
        if len(set(request.writers)) != len(request.writers):
            raise refuse(ErrorCode.INVALID_REQUEST, f"the commit of {request.key!r} names a writer twice")
        named = []
        for producer in request.writers:
            writer = self._transactions.get(member_id(request.key, producer.producer_id))
            if (
                writer is None
                or writer.attempt != request.attempt
                or writer.producer != producer
                or writer.state not in (TransactionState.EMPTY, TransactionState.ONGOING)
            ):
                raise _lost(request.key, producer)
            named.append(writer)
        return named

    def _commit_writer(self, writer: TransactionMetadata, request: CommitSharedRequest, now_ms: int) -> Decided:
        if writer.state is TransactionState.EMPTY:
            return [tombstone_of(writer)], []
        decided = prepare_end(
            writer,
            committed=True,
            version=TransactionVersion.V2,
            now_ms=now_ms,
            ids=request.trace,
            ending=ending_by(writer, request.client),
        )
        return self._decide(decided, now_ms)

    def abort(self, request: AbortSharedRequest, now_ms: int) -> Result[None]:
        """Abort an attempt. It is retired even where it never came to be, so that its late writers are sent away."""
        state = self._state_for(request)
        if request.attempt in state.retired:
            return Result(None)
        if state.attempt == request.attempt:
            records, effects = self._end_open(state, request.client, now_ms)
            return Result(None, records, effects=effects)
        closed = state.closed(request.attempt, now_ms)
        return Result(None, [_attempt_record(closed, sweeping=state.sweeping)])

    def _end_open(self, state: AttemptState, by: ClientOrigin | None, now_ms: int) -> Decided:
        """Retire the attempt that is open, and abort its writers."""
        records, effects, left = self._abort_all(state.key, now_ms, self._config.transaction_record_max_bytes // 2, by)
        return [_attempt_record(state.closed(state.attempt, now_ms), sweeping=left), *records], effects

    def leave(self, request: LeaveSharedRequest, now_ms: int) -> Result[None]:
        """Abort one writer's part. One that is gone already is as it should be."""
        writer = self._transactions.get(member_id(request.key, request.producer.producer_id))
        if writer is None or writer.attempt != request.attempt or writer.producer != request.producer:
            return Result(None)
        records, effects = self._abort_writer(writer, request.client, now_ms)
        return Result(None, records, effects=effects)

    def _abort_all(
        self, key: str, now_ms: int, room: int, by: ClientOrigin | None, but: Iterable[str] = ()
    ) -> tuple[list[CoordinatorRecord], list[Any], bool]:
        """Abort all writers of a key, as many as `room` bytes of records hold. Says whether some are left to `sweep`.

        Those can't commit, for their attempt is retired by the record that goes with these.
        """
        records: list[CoordinatorRecord] = []
        effects: list[Any] = []
        for transactional_id in sorted(self._writers.get(key, set()).difference(but)):
            more = self._abort_writer(self._transactions[transactional_id], by, now_ms)
            room -= size_of(more[0])
            if room < 0:
                return records, effects, True
            records += more[0]
            effects += more[1]
        return records, effects, False

    def sweep(self, now_ms: int) -> Decided:
        """Abort more of the writers that a decision, or a newer attempt, had no room for. Always at least one."""
        for key in self._sweeps:
            state = self._attempts[key]
            left = sorted(
                name for name in self._writers.get(key, ()) if self._transactions[name].attempt != state.attempt
            )
            records: list[CoordinatorRecord] = []
            effects: list[Any] = []
            size = 0
            for name in left:
                more = self._abort_writer(self._transactions[name], None, now_ms)
                size += size_of(more[0])
                if records and size > self._config.transaction_record_max_bytes // 2:
                    return records, effects
                records += more[0]
                effects += more[1]
            return [*records, _attempt_record(state, sweeping=False)], effects
        return [], []

    def _abort_writer(self, writer: TransactionMetadata, by: ClientOrigin | None, now_ms: int) -> Decided:
        if writer.state is TransactionState.ONGOING:
            return self._fence(writer, by, now_ms)
        if writer.state in PREPARED:
            return [], []
        return [tombstone_of(writer)], []

    def describe(self, request: DescribeSharedRequest, now_ms: int) -> Result[SharedDescription]:
        state = self._attempts.get(request.key) or AttemptState(request.key)
        writers = [self._transactions[name] for name in sorted(self._writers.get(request.key, ()))]
        return Result(
            SharedDescription(
                key=request.key,
                attempt=state.attempt,
                token=state.token,
                sequence=state.sequence,
                writers=tuple(
                    SharedWriter(each.transactional_id, each.producer, each.state.label, each.start_ms)
                    for each in writers
                ),
                decisions=self._history.of_both_kinds(request.key),
            )
        )

    def list_keys(self, _request: ListSharedRequest, _now_ms: int) -> Result[ListSharedResponse]:
        keys = {*self._attempts, *self._history.keys(_SHARED)}
        return Result(ListSharedResponse(tuple(self._listed(key) for key in keys)))

    def _listed(self, key: str) -> SharedListing:
        state, last = self._attempts.get(key), self._history.last(_SHARED, key)
        token = state.token if state is not None and state.attempt else ""
        return SharedListing(key, token) if last is None else SharedListing(key, token, last.token, last.decided_ms)

    # --- Time ---------------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        if self._sweeps:
            return 0
        return min(
            (ms for timers in self._expirations.values() if (ms := timers.next_deadline_ms()) is not None), default=None
        )

    def expire(self, now_ms: int) -> list[CoordinatorRecord]:
        """Forget one key that has had neither attempt nor commit for long; empty where there is none to forget."""
        for kind, timers in self._expirations.items():
            while (key := timers.pop_due(now_ms)) is not None:
                deadline_ms = self._expires_ms(kind, key)
                if deadline_ms is None:
                    continue
                state = self._attempts.get(key) if kind is _SHARED else None
                if deadline_ms > now_ms:
                    timers.hasten(key, deadline_ms)
                elif kind is _SHARED and self._writers.get(key):
                    pause_ms = min(self._idle_ms(state), self._config.transaction_max_timeout_ms)
                    timers.hasten(key, now_ms + pause_ms)
                else:
                    records = self._history.tombstones(kind, key)
                    if state is not None:
                        records.append(CoordinatorRecord(encode_attempt_key(key), None))
                    return records
        return []


def _opened(state: AttemptState, request: OpenSharedRequest | CommitSharedRequest, now_ms: int) -> AttemptState:
    return state.opened(request.attempt, request.token, request.sequence, now_ms, run=request.run)


def _refuse_retired(state: AttemptState, request: OpenSharedRequest | CommitSharedRequest) -> None:
    if request.attempt in state.retired:
        raise _superseded(state.key, request.attempt, state.attempt)
    if request.run in state.retired_runs:
        raise refuse(
            ErrorCode.PRODUCER_FENCED,
            f"attempt {request.attempt!r} of {state.key!r} is over: run {state.run!r} has taken the place of its run",
        )


def _attempt_record(state: AttemptState, *, sweeping: bool) -> CoordinatorRecord:
    return CoordinatorRecord(encode_attempt_key(state.key), encode_attempt(replace(state, sweeping=sweeping)))


def _superseded(key: str, attempt: str, current: str) -> RefusalError:
    why = f"attempt {current!r} has taken its place" if current else "it was ended"
    return refuse(ErrorCode.PRODUCER_FENCED, f"attempt {attempt!r} of {key!r} is over: {why}")


def _lost(key: str, producer: ProducerIdAndEpoch) -> RefusalError:
    return refuse(
        ErrorCode.TRANSACTION_ABORTABLE,
        f"writer {producer.producer_id} (epoch {producer.producer_epoch}) of {key!r} is not open any more, it timed "
        "out or was aborted: nothing was committed; run the attempt again under another name",
    )
