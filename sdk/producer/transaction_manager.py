"""The states of a transactional producer, and what each call may do in them. No IO: the producer asks and reports.

    UNINITIALIZED -> READY -> IN_TRANSACTION -> FLUSHING -> COMMITTING -> READY
    an open transaction whose commit was not asked for yet -> ABORTING -> READY
    FLUSHING -> PREPARED: somebody outside decides (KIP-939); then COMMITTING or ABORTING, perhaps by the next instance
    a record or an offset commit that fails in a transaction -> ABORTABLE, out of which only an abort leads
    another instance has taken over -> FENCED; anything that cannot be repeated -> FAILED: both for good

Every transaction runs under a producer epoch of its own: the answer to EndTransaction carries the next one (T6,
KIP-890). While that answer is missing the decision may have been taken or not, so the state stays COMMITTING or
ABORTING, and the same call with the same epoch is repeated until it is answered (T7). FLUSHING is before the decision:
an abort is possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FatalError,
    FencedError,
    RetriableError,
    SemelError,
    UsageError,
)
from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch


class State(Enum):
    """Where a transactional producer is."""

    UNINITIALIZED = "uninitialized"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    FLUSHING = "flushing"
    PREPARED = "prepared"
    ABORTABLE = "abortable"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FENCED = "fenced"
    FAILED = "failed"


LEGAL_MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.UNINITIALIZED: frozenset({State.READY, State.PREPARED, State.FENCED, State.FAILED}),
    State.READY: frozenset({State.IN_TRANSACTION, State.FENCED, State.FAILED}),
    State.IN_TRANSACTION: frozenset({State.FLUSHING, State.ABORTING, State.ABORTABLE, State.FENCED, State.FAILED}),
    State.FLUSHING: frozenset(
        {
            State.COMMITTING,
            State.READY,
            State.PREPARED,
            State.ABORTING,
            State.ABORTABLE,
            State.FENCED,
            State.FAILED,
        }
    ),
    State.PREPARED: frozenset({State.COMMITTING, State.READY, State.ABORTING, State.FENCED, State.FAILED}),
    State.ABORTABLE: frozenset({State.ABORTING, State.FENCED, State.FAILED}),
    # A commit that the coordinator refuses for good, because it has aborted on its own, leaves the abort to be
    # confirmed.
    State.COMMITTING: frozenset({State.READY, State.ABORTABLE, State.FENCED, State.FAILED}),
    State.ABORTING: frozenset({State.READY, State.FENCED, State.FAILED}),
    State.FENCED: frozenset(),
    State.FAILED: frozenset(),
}
"""From each state, the states that may follow."""


class TransactionManager:
    """The machine. Not thread-safe: its owner calls it under one lock."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._state = State.UNINITIALIZED
        self._producer = NO_PRODUCER
        self._error: SemelError | None = None
        self._over = False  # the coordinator has ended the open transaction on its own

    @property
    def state(self) -> State:
        return self._state

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """The id and epoch of the current transaction, or the next one."""
        return self._producer

    @property
    def error(self) -> SemelError | None:
        """Why the transaction, or the producer, cannot continue; None if it can."""
        return self._error

    @property
    def may_send(self) -> bool:
        return self._state is State.IN_TRANSACTION

    @property
    def needs_initializing(self) -> bool:
        return self._state is State.UNINITIALIZED

    def initialized(self, producer: ProducerIdAndEpoch, *, prepared: bool = False) -> None:
        """The coordinator has given an id and epoch, and fenced every older instance.

        With `prepared`, a transaction of an older instance is open, which this one is to end.
        """
        self._check_alive()
        self._producer = producer
        self._error = None
        self._move(State.PREPARED if prepared else State.READY)

    def begin(self) -> None:
        """Begin a transaction. Raises `UsageError` if one is open, or one's end is not confirmed."""
        self._check_alive()
        if self._state in (State.IN_TRANSACTION, State.FLUSHING, State.ABORTABLE):
            raise UsageError(
                "a transaction is open already on this producer; commit or abort it first: transactions don't nest",
                ErrorCode.INVALID_TXN_STATE,
            )
        if self._state is State.PREPARED:
            raise UsageError(
                "a transaction is prepared on this producer; end it first, with complete_transaction(), "
                "commit_transaction() or abort_transaction()",
                ErrorCode.INVALID_TXN_STATE,
            )
        if self._state is State.COMMITTING:
            raise UsageError(
                "whether the last transaction committed is not known yet; call commit_transaction() again, which "
                "gives the same answer however often it is asked, before the next transaction begins",
                ErrorCode.INVALID_TXN_STATE,
            )
        if self._state is State.ABORTING:
            raise UsageError(
                "the last transaction's abort is not confirmed yet; call abort_transaction() again before the next "
                "begins",
                ErrorCode.INVALID_TXN_STATE,
            )
        self._error = None
        self._move(State.IN_TRANSACTION)

    def check_sending(self, *, offsets: bool = False) -> None:
        """Raise what a send is to raise now; nothing while a transaction is open and well.

        With `offsets`, for an offset commit, which may also come while records are flushed.
        """
        self._check_alive()
        if self._state is State.ABORTABLE:
            raise self._abortable()
        if self._state is State.PREPARED:
            raise UsageError(
                "this transaction is prepared: nothing can be added to it; commit or abort it",
                ErrorCode.INVALID_TXN_STATE,
            )
        if self._state is not State.IN_TRANSACTION and not (offsets and self._state is State.FLUSHING):
            raise UsageError(
                "this producer has a transactional_id, so it sends in transactions only: use `with "
                "producer.transaction() as txn: txn.send(...)`, or begin_transaction() first",
                ErrorCode.INVALID_TXN_STATE,
            )

    def failed_part(self, error: SemelError) -> None:
        """A record or an offset commit of the open transaction failed for good: it can only abort now."""
        if self._state not in (State.IN_TRANSACTION, State.FLUSHING):
            return  # of a transaction that is over
        if isinstance(error, FencedError):
            self.stop(error)
            return
        self._error = error
        self._move(State.ABORTABLE)

    def begin_commit(self) -> bool:
        """Start to commit, or continue with a commit that was not answered. Raises `AbortTransactionError` if it can't.

        Returns whether to flush, and then to call `decide`; otherwise the decision is to be asked for again.
        """
        self._check_alive()
        if self._state is State.COMMITTING:
            return False
        if self._state is State.ABORTABLE:
            raise self._abortable()
        if self._state not in (State.IN_TRANSACTION, State.FLUSHING, State.PREPARED):
            raise self._no_transaction("commit_transaction")
        if self._state is State.IN_TRANSACTION:
            self._move(State.FLUSHING)
        return True

    def decide(self, *, anything_sent: bool) -> bool:
        """Everything is flushed. Returns whether the coordinator is to be asked: not for an empty transaction.

        Raises `AbortTransactionError` if a part failed meanwhile.
        """
        self._check_flushed()
        self._move(State.COMMITTING if anything_sent else State.READY)
        return anything_sent

    def begin_prepare(self) -> None:
        """Start to prepare. Raises `AbortTransactionError` if the transaction can't commit."""
        self._check_alive()
        if self._state is State.ABORTABLE:
            raise self._abortable()
        if self._state not in (State.IN_TRANSACTION, State.FLUSHING):
            raise self._no_transaction("prepare_transaction")
        if self._state is State.IN_TRANSACTION:
            self._move(State.FLUSHING)

    def prepared(self) -> None:
        """Everything is flushed: from now on only a decision is missing. Raises if a part failed meanwhile."""
        self._check_flushed()
        self._move(State.PREPARED)

    def refused_commit(self, error: SemelError, *, is_named: bool = False) -> SemelError:
        """The coordinator refused to commit. Returns what to raise. `is_named`: the commit had a token (T13)."""
        if isinstance(error, RetriableError):
            return error  # nothing is known: the state stays, and asking again is safe
        if error.code is ErrorCode.UNKNOWN_SERVER_ERROR:
            # Not the coordinator's word: something broke on the way there, or on the way back.
            return RetriableError(f"whether the transaction committed is not known: {error.message}")
        self._error = error
        self._move(State.ABORTABLE)
        if is_named and isinstance(error, FatalError):
            return error  # it contradicts what is committed: running it again would, too
        return self._abortable()

    def timed_out(self, producer: ProducerIdAndEpoch, message: str) -> AbortTransactionError:
        """The coordinator has aborted on its own and given a new identity (KIP-360). Returns what to raise."""
        self._producer = producer
        self._over = True
        self._error = AbortTransactionError(message, ErrorCode.TRANSACTION_ABORTABLE)
        if self._state is not State.ABORTABLE:
            self._move(State.ABORTABLE)
        return self._abortable()

    def begin_abort(self) -> bool:
        """Start to abort, or continue with one that was not answered. Returns whether the coordinator must be told."""
        self._check_alive()
        if self._state is State.READY or self._state is State.UNINITIALIZED:
            raise self._no_transaction("abort_transaction")
        if self._state is State.COMMITTING:
            raise UsageError(
                "this transaction's commit was asked for and may have happened; call commit_transaction() again to "
                "know",
                ErrorCode.INVALID_TXN_STATE,
            )
        if self._state is not State.ABORTING:
            self._move(State.ABORTING)
        return not self._over

    def ended(self, producer: ProducerIdAndEpoch | None) -> None:
        """The transaction is over. `producer` is for the next one; None if the coordinator never heard of this one."""
        if producer is not None:
            self._producer = producer
        self._error = None
        self._over = False
        self._move(State.READY)

    def stop(self, error: SemelError) -> None:
        """Nothing can continue: this instance is fenced, or failed for good."""
        if self._state in (State.FENCED, State.FAILED):
            return
        self._error = error
        self._move(State.FENCED if isinstance(error, FencedError) else State.FAILED)

    def stopped_error(self) -> SemelError:
        """Return what every call raises once the producer is fenced or has failed."""
        assert self._error is not None
        if self._state is State.FENCED:
            return FencedError(
                f"another producer with transactional_id {self.transactional_id!r} has taken over, or an operator has "
                f"aborted this one's transaction; close this one ({self._error.message})",
                self._error.code,
            )
        return FatalError(
            f"this producer has failed; close it and make a new one ({self._error.message})", self._error.code
        )

    def _check_alive(self) -> None:
        if self._state in (State.FENCED, State.FAILED):
            raise self.stopped_error()

    def _check_flushed(self) -> None:
        """Raise what happened to the transaction while its records were flushed; nothing if it may be decided."""
        self._check_alive()
        if self._state is State.ABORTABLE:
            raise self._abortable()
        if self._state not in (State.FLUSHING, State.PREPARED):
            raise AbortTransactionError(
                "another thread aborted the transaction, or closed the producer, while this one committed it",
                ErrorCode.INVALID_TXN_STATE,
            )

    def _abortable(self) -> AbortTransactionError:
        assert self._error is not None
        return AbortTransactionError(
            f"the transaction can't commit, abort it and run it again: {self._error.message}", self._error.code
        )

    def _no_transaction(self, call: str) -> UsageError:
        return UsageError(
            f"{call}() without an open transaction; begin one with begin_transaction() or `with "
            "producer.transaction()`",
            ErrorCode.INVALID_TXN_STATE,
        )

    def _move(self, state: State) -> None:
        assert state in LEGAL_MOVES[self._state], f"{self._state} -> {state}"
        self._state = state
