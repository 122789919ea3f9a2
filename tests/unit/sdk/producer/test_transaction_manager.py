"""The client's transaction states: moves that are not in the table are refused, and refusals say what to do."""

from __future__ import annotations

from functools import partial

import pytest

from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FatalError,
    FencedError,
    RetriableError,
    SemelError,
    UsageError,
)
from semel.protocol.ids import ProducerIdAndEpoch
from semel.sdk.producer.transaction_manager import LEGAL_MOVES, State, TransactionManager

FIRST = ProducerIdAndEpoch(7, 0)
SECOND = ProducerIdAndEpoch(7, 1)
PART = AbortTransactionError("a record failed", ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def ready() -> TransactionManager:
    manager = TransactionManager("enrich-0")
    manager.initialized(FIRST)
    return manager


def in_state(state: State) -> TransactionManager:
    manager = TransactionManager("enrich-0")
    if state is State.UNINITIALIZED:
        return manager
    manager.initialized(FIRST)
    if state is State.READY:
        return manager
    if state is State.FENCED:
        manager.stop(FencedError("someone else", ErrorCode.PRODUCER_FENCED))
        return manager
    if state is State.FAILED:
        manager.stop(FatalError("broken"))
        return manager
    manager.begin()
    if state in (State.FLUSHING, State.COMMITTING):
        manager.begin_commit()
        if state is State.COMMITTING:
            manager.decide(anything_sent=True)
    elif state is State.PREPARED:
        manager.begin_prepare()
        manager.prepared()
    elif state is State.ABORTABLE:
        manager.failed_part(PART)
    elif state is State.ABORTING:
        manager.begin_abort()
    assert manager.state is state
    return manager


def test_a_transaction_commits_and_the_next_has_an_epoch_of_its_own() -> None:
    manager = ready()
    manager.begin()
    assert manager.may_send
    assert manager.begin_commit()
    assert not manager.may_send
    assert manager.decide(anything_sent=True)
    manager.ended(SECOND)
    assert manager.state is State.READY
    assert manager.producer == SECOND


def test_an_empty_transaction_asks_nobody() -> None:
    manager = ready()
    manager.begin()
    manager.begin_commit()
    assert not manager.decide(anything_sent=False)
    assert (manager.state, manager.producer) == (State.READY, FIRST)


def test_T7_a_commit_without_an_answer_is_asked_again_and_nothing_else_is_possible() -> None:
    manager = in_state(State.COMMITTING)
    lost = RetriableError("no answer", ErrorCode.NETWORK_EXCEPTION)
    assert manager.refused_commit(lost) is lost
    with pytest.raises(UsageError, match=r"call commit_transaction\(\) again"):
        manager.begin()
    with pytest.raises(UsageError, match="may have happened"):
        manager.begin_abort()
    assert not manager.begin_commit()  # nothing to flush: only the decision is asked for again
    manager.ended(SECOND)
    manager.begin()


def test_a_failed_part_leaves_only_the_abort() -> None:
    manager = in_state(State.IN_TRANSACTION)
    manager.failed_part(PART)
    for call in (manager.check_sending, manager.begin_commit):
        with pytest.raises(AbortTransactionError, match="abort it and run it again: a record failed") as caught:
            call()
        assert caught.value.code is PART.code
    assert manager.begin_abort()
    manager.ended(SECOND)
    assert manager.error is None
    manager.begin()


def test_a_part_that_fails_while_flushing_stops_the_commit_before_the_decision() -> None:
    manager = in_state(State.FLUSHING)
    manager.failed_part(PART)
    with pytest.raises(AbortTransactionError):
        manager.decide(anything_sent=True)
    assert manager.state is State.ABORTABLE


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_transaction_that_another_thread_aborts_while_it_is_flushed_does_not_commit(is_confirmed: bool) -> None:
    manager = in_state(State.FLUSHING)
    manager.begin_abort()
    if is_confirmed:
        manager.ended(SECOND)
    state = manager.state
    for decide in (partial(manager.decide, anything_sent=True), manager.prepared):
        with pytest.raises(AbortTransactionError, match="another thread aborted the transaction, or closed the"):
            decide()
    assert manager.state is state


def test_a_part_of_a_transaction_that_is_over_changes_nothing() -> None:
    for state in (State.READY, State.COMMITTING, State.ABORTING):
        manager = in_state(state)
        manager.failed_part(PART)
        assert manager.state is state


def test_a_transaction_that_timed_out_is_aborted_without_asking_again() -> None:
    manager = in_state(State.COMMITTING)
    error = manager.timed_out(SECOND, "aborted by the coordinator")
    assert isinstance(error, AbortTransactionError)
    assert not manager.begin_abort()
    manager.ended(manager.producer)
    assert manager.producer == SECOND
    manager.begin()
    assert manager.begin_abort()  # the next one's abort is told


def test_a_fenced_producer_says_so_forever() -> None:
    manager = in_state(State.IN_TRANSACTION)
    manager.failed_part(FencedError("epoch 3 is fenced", ErrorCode.PRODUCER_FENCED))
    assert manager.state is State.FENCED
    for call in (manager.begin, manager.check_sending, manager.begin_commit, manager.begin_abort):
        with pytest.raises(FencedError, match=r"'enrich-0' has taken over.*epoch 3 is fenced") as caught:
            call()
        assert caught.value.code is ErrorCode.PRODUCER_FENCED
    manager.stop(FatalError("later"))
    assert manager.state is State.FENCED


def test_a_failed_producer_says_so_forever() -> None:
    manager = in_state(State.FAILED)
    with pytest.raises(FatalError, match=r"close it and make a new one \(broken\)"):
        manager.begin()


CALLS = {
    "begin": lambda manager: manager.begin(),
    "check_sending": lambda manager: manager.check_sending(),
    "begin_commit": lambda manager: manager.begin_commit(),
    "begin_prepare": lambda manager: manager.begin_prepare(),
    "begin_abort": lambda manager: manager.begin_abort(),
}
ALLOWED = {
    State.UNINITIALIZED: {"begin"},
    State.READY: {"begin"},
    State.IN_TRANSACTION: {"check_sending", "begin_commit", "begin_prepare", "begin_abort"},
    State.FLUSHING: {"begin_commit", "begin_prepare", "begin_abort"},
    State.PREPARED: {"begin_commit", "begin_abort"},
    State.ABORTABLE: {"begin_abort"},
    State.COMMITTING: {"begin_commit"},
    State.ABORTING: {"begin_abort"},
    State.FENCED: set(),
    State.FAILED: set(),
}


@pytest.mark.parametrize("state", [state for state in State if state is not State.UNINITIALIZED])
@pytest.mark.parametrize("call", CALLS)
def test_each_call_in_each_state(state: State, call: str) -> None:
    manager = in_state(state)
    if call in ALLOWED[state]:
        CALLS[call](manager)
    else:
        with pytest.raises(SemelError):
            CALLS[call](manager)
        assert manager.state is state


def test_the_table_names_every_state_and_the_last_ones_have_no_way_out() -> None:
    assert set(LEGAL_MOVES) == set(State)
    assert not LEGAL_MOVES[State.FENCED]
    assert not LEGAL_MOVES[State.FAILED]
    for state, moves in LEGAL_MOVES.items():
        assert state not in moves
    with pytest.raises(AssertionError, match="READY"):
        in_state(State.READY)._move(State.COMMITTING)


def test_sending_outside_a_transaction_says_how_to_begin_one() -> None:
    with pytest.raises(UsageError, match=r"with producer\.transaction"):
        in_state(State.READY).check_sending()
    with pytest.raises(UsageError, match=r"commit_transaction\(\) without an open transaction"):
        in_state(State.READY).begin_commit()
    in_state(State.FLUSHING).check_sending(offsets=True)


def test_what_an_older_instance_left_prepared_can_be_committed_or_aborted() -> None:
    for end in ("begin_commit", "begin_abort"):
        manager = TransactionManager("enrich-0")
        manager.initialized(SECOND, prepared=True)
        with pytest.raises(UsageError, match=r"a transaction is prepared on this producer; end it first"):
            manager.begin()
        with pytest.raises(UsageError, match="nothing can be added to it"):
            manager.check_sending()
        assert getattr(manager, end)()
        if end == "begin_commit":
            assert manager.decide(anything_sent=True)
        manager.ended(SECOND)
        manager.begin()


def test_T13_a_token_that_contradicts_what_is_committed_is_fatal_and_the_transaction_can_only_abort() -> None:
    manager = in_state(State.COMMITTING)
    other = FatalError("another payload", ErrorCode.INVALID_TXN_STATE)
    assert manager.refused_commit(other, is_named=True) is other
    assert manager.state is State.ABORTABLE
