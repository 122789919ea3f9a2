"""The history checker itself: a clean history passes, and each anomaly planted in it is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from history import History, HistoryWriter, Outcome, Read, Send, Transaction, check, load_transactions


def clean_history() -> History:
    """Two workers, three transactions: one committed, one aborted, one of unknown outcome that took effect."""
    return History(
        transactions=[
            Transaction(
                "w1", (Send("out", 0, "a", ("in", 0, 0)), Send("out", 1, "b", ("in", 0, 1))), Outcome.COMMITTED
            ),
            Transaction("w1", (Send("out", 0, "x", ("in", 0, 2)),), Outcome.ABORTED),
            Transaction("w2", (Send("out", 0, "c", ("in", 0, 2)), Send("out", 0, "d", ("in", 0, 3))), Outcome.UNKNOWN),
        ],
        reads=[
            Read("r1", "out", 0, ((0, "a"), (3, "c"), (4, "d"))),
            Read("r1", "out", 1, ((0, "b"),)),
            Read("r2", "out", 0, ((0, "a"), (3, "c"))),
        ],
        source_end_offsets={("in", 0): 4},
    )


def kinds(history: History) -> set[str]:
    return {anomaly.kind for anomaly in check(history)}


def test_E1_a_clean_history_has_no_anomaly() -> None:
    assert check(clean_history()) == []


def with_read(history: History, index: int, *records: tuple[int, str]) -> History:
    history.reads[index] = replace(history.reads[index], records=records)
    return history


@pytest.mark.parametrize(
    ("kind", "history"),
    [
        ("lost", with_read(clean_history(), 1)),
        ("duplicated", with_read(clean_history(), 1, (0, "b"), (1, "b"))),
        ("aborted-read", with_read(clean_history(), 0, (0, "a"), (2, "x"), (3, "c"), (4, "d"))),
        ("torn", with_read(clean_history(), 0, (0, "a"), (3, "c"))),
        ("phantom", with_read(clean_history(), 1, (0, "b"), (1, "never sent"))),
        ("reordered", with_read(clean_history(), 0, (0, "a"), (2, "d"), (3, "c"))),
        ("inconsistent", with_read(clean_history(), 2, (0, "a"), (3, "d"))),
        ("skipped", with_read(clean_history(), 2, (0, "a"), (4, "d"))),
        ("backwards", with_read(clean_history(), 2, (3, "c"), (0, "a"))),
        ("unread", replace(clean_history(), source_end_offsets={("in", 0): 5})),
    ],
)
def test_E1_a_planted_anomaly_is_named(kind: str, history: History) -> None:
    assert kind in kinds(history)


def test_E1_a_source_offset_transformed_by_two_members_is_named() -> None:
    history = clean_history()
    history.transactions.append(Transaction("w3", (Send("out", 1, "c again", ("in", 0, 2)),), Outcome.COMMITTED))
    with_read(history, 1, (0, "b"), (1, "c again"))
    assert kinds(history) == {"twice"}


def test_an_intent_without_an_outcome_is_unknown_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "w1.jsonl"
    writer = HistoryWriter(path, "w1")
    first = writer.intend([Send("out", 0, "a", ("in", 0, 0))])
    writer.settle(first, Outcome.COMMITTED)
    writer.intend([Send("out", 0, "b")])
    writer.close()
    path.write_text(path.read_text() + '{"id": 3, "worker": "w1", "se')
    assert load_transactions([path]) == [
        Transaction("w1", (Send("out", 0, "a", ("in", 0, 0)),), Outcome.COMMITTED),
        Transaction("w1", (Send("out", 0, "b"),), Outcome.UNKNOWN),
    ]
