"""Shared transactions and commit tokens: the part of the transaction machine that is Semel's own (T12, T13).

A writer of a shared transaction is an ordinary transactional producer to partitions, markers and readers: it has a
transactional id made of the key, a producer id of its own, and lives in the key's shard. It can't commit by itself. The
decision is one batch of records: the key's decision, the end of each writer that the committer named, and the abort of
every other one. From there on each runs its course as any transaction does, crash or not (T3, T4), and is forgotten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from semel.protocol.api.shared_transactions import (
    NO_SEQUENCE,
    AbortSharedRequest,
    CommitDecision,
    CommitOutcome,
    CommitSharedRequest,
    CommitSharedResponse,
    DescribeSharedRequest,
    LeaveSharedRequest,
    OpenSharedRequest,
    OpenSharedResponse,
    SharedDescription,
    SharedWriter,
)
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from semel.runtime.machine import CoordinatorRecord, Result
from semel.txn_coordinator.callers import RefusalError, refuse, refuse_timeout
from semel.txn_coordinator.commit_records import (
    AttemptState,
    CommitRecordKey,
    decode_attempt,
    decode_decision,
    encode_attempt,
    encode_attempt_key,
    encode_decision,
    encode_decision_key,
    member_id,
)
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.effects import PRODUCER_ID_NEEDED
from semel.txn_coordinator.prepare import prepare_end, prepare_new
from semel.txn_coordinator.records import record_of, size_of, tombstone_of
from semel.txn_coordinator.state import PREPARED, TransactionMetadata, TransactionState
from semel.txn_coordinator.timers import Timers

Decided: TypeAlias = tuple[list[CoordinatorRecord], list[Any]]
"""Records and the effects that rest on them."""

_NO_DECISIONS: Final[dict[str, CommitDecision]] = {}


class SharedTransactions:
    """Attempts, decisions and writers by key. State changes in `replay` and `note_writer` alone.

    transactions: the machine's ids, the writers' among them.
    decide, fence: the machine's own way to end a transaction, and to abort one that did not ask for it.
    """

    def __init__(
        self,
        config: TransactionConfig,
        transactions: dict[str, TransactionMetadata],
        decide: Callable[[TransactionMetadata, int], Decided],
        fence: Callable[[TransactionMetadata, int], Decided],
    ) -> None:
        self._config = config
        self._transactions = transactions
        self._decide = decide
        self._fence = fence
        self._attempts: dict[str, AttemptState] = {}
        self._decisions: dict[str, dict[str, CommitDecision]] = {}
        self._writers: defaultdict[str, set[str]] = defaultdict(set)
        self._expirations = Timers()

    # -- replay

    def replay(self, key: CommitRecordKey, value: bytes | None) -> None:
        if key.token is None:
            self._replay_attempt(key.key, value)
        else:
            self._replay_decision(key.key, key.token, value)

    def _replay_attempt(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._attempts.pop(key, None)
            return
        state = decode_attempt(key, value)
        self._attempts[key] = state
        self._expirations.want(key, state.last_update_ms + self._config.commit_history_expiration_ms)

    def _replay_decision(self, key: str, token: str, value: bytes | None) -> None:
        if value is None:
            decisions = self._decisions.get(key, _NO_DECISIONS)
            decisions.pop(token, None)
            if not decisions:
                self._decisions.pop(key, None)
            return
        decision = decode_decision(key, token, value)
        self._decisions.setdefault(key, {})[token] = decision
        self._expirations.want(key, decision.decided_ms + self._config.commit_history_expiration_ms)

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

    # -- opening and joining

    def open(self, request: OpenSharedRequest, spare_id: int, now_ms: int) -> Result[Any]:
        """Open an attempt or join it; as a writer, with a producer id."""
        refuse_timeout(request.key, request.timeout_ms, self._config)
        if (decision := self.find(request.key, request.token)) is not None:
            return Result(OpenSharedResponse(committed=decision))
        state = self._attempts.get(request.key) or AttemptState(request.key)
        self._refuse_retired(state, request.attempt)
        self._refuse_sequence(request.key, request.sequence)
        is_open = state.attempt == request.attempt
        if is_open and (state.token, state.sequence) != (request.token, request.sequence):
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"attempt {request.attempt!r} of {request.key!r} is at token {state.token!r}, not {request.token!r}: "
                "give each attempt a name of its own",
            )
        if request.writer and spare_id == NO_PRODUCER_ID:
            return Result(PRODUCER_ID_NEEDED)
        records, effects = ([], []) if is_open else self._supersede(state, request, now_ms)
        if not request.writer:
            return Result(OpenSharedResponse(), records, effects=effects)
        if is_open and len(self._writers.get(request.key, ())) >= self._config.shared_writers_max:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"{request.key!r} has {self._config.shared_writers_max} writers (shared.transaction.max.writers): "
                "let several tasks share one, or commit more often",
            )
        writer = prepare_new(
            member_id(request.key, spare_id), spare_id, request.timeout_ms, now_ms, attempt=request.attempt
        )
        records.append(record_of(writer))
        return Result(OpenSharedResponse(writer.transactional_id, writer.producer), records, effects=effects)

    def _supersede(self, state: AttemptState, request: OpenSharedRequest, now_ms: int) -> Decided:
        """Open a newer attempt: whatever older ones have open is aborted and fenced, all in the same batch."""
        opened = state.opened(request.attempt, request.token, request.sequence, now_ms)
        records, effects = self._abort_all(request.key, now_ms)
        return [_attempt_record(opened), *records], effects

    # -- deciding

    def commit(self, request: CommitSharedRequest, now_ms: int) -> Result[Any]:
        """T12: exactly the named writers, under one decision. T13: a token that is decided changes nothing."""
        state = self._attempts.get(request.key) or AttemptState(request.key)
        if (decision := self.find(request.key, request.token)) is not None:
            return self._committed_before(request, state, decision, now_ms)
        self._refuse_retired(state, request.attempt)
        if state.attempt not in ("", request.attempt):
            raise _superseded(request.key, request.attempt, state.attempt)
        self._refuse_sequence(request.key, request.sequence)
        if state.attempt and (state.token, state.sequence) != (request.token, request.sequence):
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"attempt {request.attempt!r} of {request.key!r} was opened for token {state.token!r}, not "
                f"{request.token!r}",
            )
        named = self._named(request)
        decision = CommitDecision(
            request.token, request.sequence, request.payload, request.attempt, now_ms, len(request.writers)
        )
        records = [
            _attempt_record(state.closed(request.attempt, now_ms)),
            *self.decision_records(request.key, decision),
        ]
        effects: list[Any] = []
        for writer in named:
            more = self._commit_writer(writer, now_ms)
            records += more[0]
            effects += more[1]
        aborted = self._abort_all(request.key, now_ms, but={writer.transactional_id for writer in named})
        records += aborted[0]
        effects += aborted[1]
        if size_of(records) > self._config.record_bytes_max:
            raise refuse(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the decision for {request.key!r} takes {size_of(records)} bytes, more than "
                f"{self._config.record_bytes_max}: let fewer writers, or each to fewer partitions, take part",
            )
        return Result(CommitSharedResponse(CommitOutcome.COMMITTED, decision), records, effects=effects)

    def _committed_before(
        self, request: CommitSharedRequest, state: AttemptState, decision: CommitDecision, now_ms: int
    ) -> Result[Any]:
        """The token is decided: by this very attempt, whose answer was lost, or by an earlier one."""
        records: list[CoordinatorRecord] = []
        effects: list[Any] = []
        if state.attempt == request.attempt:
            records, effects = self._abort_all(request.key, now_ms)
            records.insert(0, _attempt_record(state.closed(request.attempt, now_ms)))
        if decision.payload != request.payload:
            return Result(_other_payload(request.key, request.token).error, records, effects=effects)
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

    def _commit_writer(self, writer: TransactionMetadata, now_ms: int) -> Decided:
        if writer.state is TransactionState.EMPTY:
            return [tombstone_of(writer)], []
        return self._decide(prepare_end(writer, committed=True, version=TransactionVersion.V2, now_ms=now_ms), now_ms)

    def abort(self, request: AbortSharedRequest, now_ms: int) -> Result[None]:
        """Abort an attempt. It is retired even where it never came to be, so that its late writers are sent away."""
        state = self._attempts.get(request.key) or AttemptState(request.key)
        if request.attempt in state.retired:
            return Result(None)
        records: list[CoordinatorRecord] = []
        effects: list[Any] = []
        if state.attempt == request.attempt:
            records, effects = self._abort_all(request.key, now_ms)
        return Result(None, [_attempt_record(state.closed(request.attempt, now_ms)), *records], effects=effects)

    def leave(self, request: LeaveSharedRequest, now_ms: int) -> Result[None]:
        """Abort one writer's part. One that is gone already is as it should be."""
        writer = self._transactions.get(member_id(request.key, request.producer.producer_id))
        if writer is None or writer.attempt != request.attempt or writer.producer != request.producer:
            return Result(None)
        records, effects = self._abort_writer(writer, now_ms)
        return Result(None, records, effects=effects)

    def _abort_all(self, key: str, now_ms: int, but: Iterable[str] = ()) -> Decided:
        """Abort all writers of a key, as many as one batch of records holds.

        The others are left to the next call or to their timeout: their attempt is retired, so none of them can commit.
        """
        records: list[CoordinatorRecord] = []
        effects: list[Any] = []
        size = 0
        for transactional_id in sorted(self._writers.get(key, set()).difference(but)):
            more = self._abort_writer(self._transactions[transactional_id], now_ms)
            size += size_of(more[0])
            if size > self._config.record_bytes_max // 2:
                break
            records += more[0]
            effects += more[1]
        return records, effects

    def _abort_writer(self, writer: TransactionMetadata, now_ms: int) -> Decided:
        if writer.state is TransactionState.ONGOING:
            return self._fence(writer, now_ms)
        if writer.state in PREPARED:
            return [], []
        return [tombstone_of(writer)], []

    # -- decisions

    def find(self, key: str, token: str) -> CommitDecision | None:
        """Return the decision with this token, if it is among the last ones of the key."""
        return self._decisions.get(key, _NO_DECISIONS).get(token)

    def recorded(self, key: str, token: str, payload: bytes, sequence: int) -> CommitDecision | None:
        """Return the decision that repeats, None for a new one; refuse what contradicts those that are remembered."""
        decision = self.find(key, token)
        if decision is None:
            self._refuse_sequence(key, sequence)
        elif decision.payload != payload:
            raise _other_payload(key, token)
        return decision

    def decision_records(self, key: str, decision: CommitDecision) -> list[CoordinatorRecord]:
        """Return the record of a decision, and what makes room for it."""
        kept = self._decisions.get(key, _NO_DECISIONS)
        surplus = list(kept)[: max(0, len(kept) + 1 - self._config.commit_history_max)]
        return [
            CoordinatorRecord(encode_decision_key(key, decision.token), encode_decision(decision)),
            *(CoordinatorRecord(encode_decision_key(key, token), None) for token in surplus),
        ]

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
                decisions=tuple(self._decisions.get(request.key, _NO_DECISIONS).values()),
            )
        )

    # -- time

    def next_deadline_ms(self) -> int | None:
        return self._expirations.next_ms()

    def expire(self, now_ms: int) -> list[CoordinatorRecord]:
        """Forget one key that has had neither attempt nor commit for long; empty where there is none to forget."""
        while (key := self._expirations.pop_due(now_ms)) is not None:
            decisions = self._decisions.get(key, _NO_DECISIONS)
            state = self._attempts.get(key)
            last_ms = max([decision.decided_ms for decision in decisions.values()], default=0)
            deadline_ms = max(last_ms, state.last_update_ms if state else 0) + self._config.commit_history_expiration_ms
            if deadline_ms > now_ms or self._writers.get(key):
                self._expirations.want(key, max(deadline_ms, now_ms + self._config.transaction_max_timeout_ms))
                continue
            records = [CoordinatorRecord(encode_decision_key(key, token), None) for token in decisions]
            if state is not None:
                records.append(CoordinatorRecord(encode_attempt_key(key), None))
            if records:
                return records
        return []

    # -- refusals

    def _refuse_retired(self, state: AttemptState, attempt: str) -> None:
        if attempt in state.retired:
            raise _superseded(state.key, attempt, state.attempt)

    def _refuse_sequence(self, key: str, sequence: int) -> None:
        if sequence == NO_SEQUENCE:
            return
        last = max((each.sequence for each in self._decisions.get(key, _NO_DECISIONS).values()), default=NO_SEQUENCE)
        if sequence <= last:
            raise refuse(
                ErrorCode.INVALID_TXN_STATE,
                f"{key!r} has committed sequence {last}; {sequence} is not after it, nor a repetition that is still "
                "remembered. Was a checkpoint rolled back?",
            )


def _attempt_record(state: AttemptState) -> CoordinatorRecord:
    return CoordinatorRecord(encode_attempt_key(state.key), encode_attempt(state))


def _superseded(key: str, attempt: str, current: str) -> RefusalError:
    why = f"attempt {current!r} has taken its place" if current else "it was ended"
    return refuse(ErrorCode.PRODUCER_FENCED, f"attempt {attempt!r} of {key!r} is over: {why}")


def _other_payload(key: str, token: str) -> RefusalError:
    return refuse(
        ErrorCode.INVALID_TXN_STATE,
        f"token {token!r} of {key!r} was committed with another payload: this is not a repetition of that commit. Was "
        "a checkpoint rolled back, or a token used twice?",
    )


def _lost(key: str, producer: ProducerIdAndEpoch) -> RefusalError:
    return refuse(
        ErrorCode.TRANSACTION_ABORTABLE,
        f"writer {producer.producer_id} (epoch {producer.producer_epoch}) of {key!r} is not open any more, it timed "
        "out or was aborted: nothing was committed; run the attempt again under another name",
    )
