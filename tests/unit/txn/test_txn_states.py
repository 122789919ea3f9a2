"""The states of a transaction, which moves between them are legal, and the functions that prepare them."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from txn_producer import ID, P0, TIMEOUT_MS, V0, V1, V2, S
from txn_shard import START_MS

from semel.txn_coordinator.prepare import (
    prepare_add_partitions,
    prepare_complete,
    prepare_dead,
    prepare_end,
    prepare_epoch_bump,
    prepare_epoch_fence,
    prepare_new,
)
from semel.txn_coordinator.state import (
    COMPLETED,
    LEGAL_PREDECESSORS,
    IllegalTransitionError,
    TransactionMetadata,
    is_legal,
    transition_diagram,
    trigger_table,
)

LEGAL_MOVES = {
    (S.EMPTY, S.EMPTY), (S.COMPLETE_COMMIT, S.EMPTY), (S.COMPLETE_ABORT, S.EMPTY),
    (S.ONGOING, S.ONGOING), (S.EMPTY, S.ONGOING), (S.COMPLETE_COMMIT, S.ONGOING), (S.COMPLETE_ABORT, S.ONGOING),
    (S.ONGOING, S.PREPARE_COMMIT),
    (S.ONGOING, S.PREPARE_ABORT), (S.PREPARE_EPOCH_FENCE, S.PREPARE_ABORT),
    (S.PREPARE_COMMIT, S.COMPLETE_COMMIT),
    (S.PREPARE_ABORT, S.COMPLETE_ABORT),
    (S.ONGOING, S.PREPARE_EPOCH_FENCE),
    (S.EMPTY, S.DEAD), (S.COMPLETE_COMMIT, S.DEAD), (S.COMPLETE_ABORT, S.DEAD),
}  # fmt: skip
LEGAL_WITH_EPOCH_BUMP = {
    (S.EMPTY, S.PREPARE_ABORT),
    (S.COMPLETE_COMMIT, S.PREPARE_ABORT),
    (S.COMPLETE_ABORT, S.PREPARE_ABORT),
}


@pytest.mark.parametrize(("before", "after"), list(product(S, S)))
def test_T1_only_the_listed_moves_are_legal(before: S, after: S) -> None:
    assert is_legal(before, after, V0) == is_legal(before, after, V1) == ((before, after) in LEGAL_MOVES)
    assert is_legal(before, after, V2) == ((before, after) in LEGAL_MOVES | LEGAL_WITH_EPOCH_BUMP)


def test_T1_every_prepare_function_refuses_every_other_move() -> None:
    txn = TransactionMetadata(ID, 5, 0, TIMEOUT_MS, S.EMPTY, START_MS)
    moves = {
        S.EMPTY: lambda txn: prepare_epoch_bump(txn, TIMEOUT_MS, START_MS),
        S.ONGOING: lambda txn: prepare_add_partitions(txn, [P0], V1, START_MS),
        S.PREPARE_COMMIT: lambda txn: prepare_end(txn, committed=True, version=V1, now_ms=START_MS),
        S.PREPARE_ABORT: lambda txn: prepare_end(txn, committed=False, version=V1, now_ms=START_MS),
        S.PREPARE_EPOCH_FENCE: prepare_epoch_fence,
        S.DEAD: prepare_dead,
    }
    for (after, move), before in product(moves.items(), S):
        if before in LEGAL_PREDECESSORS[after]:
            assert move(txn._replace(state=before)).state is after
        else:
            with pytest.raises(IllegalTransitionError, match=f"from {before.label} to {after.label}"):
                move(txn._replace(state=before))
    for before in set(S) - {S.PREPARE_COMMIT, S.PREPARE_ABORT}:
        with pytest.raises(IllegalTransitionError):
            prepare_complete(txn._replace(state=before), START_MS)


def test_T1_the_documentation_shows_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "transactions.md").read_text(encoding="utf-8")
    drawn = re.search(r"```mermaid\n(.*?)```", page, re.DOTALL)
    assert drawn is not None
    assert drawn.group(1) == transition_diagram()
    assert f"\n\n{trigger_table()}\n" in page


def test_prepare_functions_change_nothing() -> None:
    ongoing = prepare_add_partitions(prepare_new(ID, 5, TIMEOUT_MS, START_MS), [P0], V2, START_MS)
    before = ongoing._replace()
    prepare_end(ongoing, committed=True, version=V2, now_ms=START_MS)
    prepare_epoch_fence(ongoing)
    assert ongoing == before


def test_completed_states_are_what_expires_and_begins_anew() -> None:
    assert COMPLETED | {S.EMPTY} == LEGAL_PREDECESSORS[S.DEAD]
