"""Worlds of three machines with real logs: fetches come late and twice, power goes, leaders change (R1, R3, R4, R5)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest
from replicated_logs import run_seed

SEEDS_A_TEST = 12


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of restarts would say what they found."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("first", range(0, 5 * SEEDS_A_TEST, SEEDS_A_TEST))
def test_R1_R3_R4_R5_what_is_committed_is_in_the_log_of_whoever_may_lead(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + SEEDS_A_TEST):
        counts.update(run_seed(seed))
    for what in ("committed", "TAKEN_IN", "CUT", "isr"):
        assert counts[what] > 0, f"these worlds are too tame: {counts}"
