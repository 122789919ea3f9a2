"""Those who ask for offsets hear of wrong answers: of a group's places, and of where logs begin and end."""

from __future__ import annotations

from typing import Any

import pytest

from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, IsolationLevel
from semel.protocol.ids import TopicPartition
from simulation.kafka_lister import _Answer, _Logged, _trouble
from simulation.kafka_offsets import NOTHING, UNSTABLE, Standing

RECORDS = [_Logged(0, 50, 1), _Logged(1, 70, 1), _Logged(2, 60, 2), _Logged(3, 70, 2)]
"""Two records of each leader epoch. The log ends at 4."""


def answered(standing: Standing, offset: int, *, stable: bool, ended: bool = False) -> bool:
    """Return whether an answer may be."""
    return not standing.take({0: offset}, stable=stable, may_have_ended=lambda _: ended)


def a_standing() -> Standing:
    """Return a group that stands at 5, and that a transaction is about to move to 7."""
    return Standing("a group", {0: (1, 5)}, {"a": {0: (2, 7)}})


def test_O2_while_a_transaction_is_open_nothing_is_stable() -> None:
    standing = a_standing()
    assert answered(standing, UNSTABLE, stable=True)
    assert answered(standing, 5, stable=False)
    for offset in (5, 7, NOTHING):
        assert not answered(standing, offset, stable=True)
    for offset in (7, NOTHING, UNSTABLE):
        assert not answered(standing, offset, stable=False)


def test_O1_the_marker_of_a_commit_may_have_come_or_not_and_does_not_go_again() -> None:
    standing = a_standing()
    standing.outcomes["a"] = True
    assert answered(standing, 5, stable=False)
    assert answered(standing, UNSTABLE, stable=True)
    assert answered(standing, 7, stable=True)
    assert not answered(standing, 5, stable=False)
    assert not answered(standing, UNSTABLE, stable=True)


def test_O1_a_transaction_may_time_out_and_one_that_aborts_moves_nothing() -> None:
    standing = a_standing()
    assert not answered(standing, 5, stable=True)
    assert answered(standing, 5, stable=True, ended=True)
    assert not answered(standing, 7, stable=False)
    assert standing.pending == {}


def test_O1_what_stands_later_in_the_log_counts_whenever_the_marker_comes() -> None:
    standing = a_standing()
    standing.committed[0] = (3, 6)
    standing.outcomes["a"] = True
    assert answered(standing, 6, stable=True)
    assert not answered(standing, 7, stable=True)


def test_O1_a_deletion_takes_what_is_pending_along() -> None:
    standing = a_standing()
    standing.deleted(0)
    standing.outcomes["a"] = True
    assert answered(standing, NOTHING, stable=True)
    assert not answered(standing, 7, stable=False)


def test_where_an_answer_was_lost_nothing_is_judged() -> None:
    standing = a_standing()
    standing.doubtful = True
    assert answered(standing, 9, stable=True)


def an_answer(timestamp_ms: int, offset: int, found_ms: int, leader_epoch: int, end: int = 4) -> Any:
    place = TopicPartition("out", 0)
    return _Answer(place, timestamp_ms, IsolationLevel.READ_COMMITTED, end, offset, found_ms, leader_epoch)


@pytest.mark.parametrize(
    "answer",
    [
        an_answer(LATEST_TIMESTAMP, 4, -1, 2),
        an_answer(LATEST_TIMESTAMP, 2, -1, 1),
        an_answer(EARLIEST_TIMESTAMP, 0, -1, 1),
        an_answer(EARLIEST_TIMESTAMP, 0, -1, 0, end=0),
        an_answer(MAX_TIMESTAMP, 1, 70, 1),
        an_answer(MAX_TIMESTAMP, 0, 50, 1, end=1),
        an_answer(MAX_TIMESTAMP, -1, -1, -1),
        an_answer(51, 1, 70, 1),
        an_answer(71, -1, -1, -1),
        an_answer(51, -1, -1, -1, end=1),
    ],
)
def test_L2_right_answers_about_a_log(answer: _Answer) -> None:
    assert _trouble(answer, RECORDS, 4) == ""


@pytest.mark.parametrize(
    "answer",
    [
        an_answer(LATEST_TIMESTAMP, 5, -1, 2),
        an_answer(LATEST_TIMESTAMP, 4, -1, 1),
        an_answer(EARLIEST_TIMESTAMP, 1, -1, 1),
        an_answer(EARLIEST_TIMESTAMP, 0, -1, 2),
        an_answer(MAX_TIMESTAMP, 0, 50, 1),
        an_answer(MAX_TIMESTAMP, 1, 70, 2),
        an_answer(MAX_TIMESTAMP, 3, 70, 2),
        an_answer(MAX_TIMESTAMP, 9, 80, 2),
        an_answer(51, 2, 60, 2),
        an_answer(51, 1, 60, 1),
        an_answer(51, -1, -1, -1),
        an_answer(71, 3, 70, 2),
    ],
)
def test_L2_wrong_answers_about_a_log(answer: _Answer) -> None:
    assert _trouble(answer, RECORDS, 4)
