"""The first attempt goes without tenacity; what follows a failure is tenacity's, the first attempt counted."""

from __future__ import annotations

import asyncio

import pytest
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_none

from semel.runtime.retrying import attempted


class Again(Exception):  # noqa: N818
    pass


def run(outcomes: list[int | Exception], attempts: int = 5) -> tuple[int, int, int]:
    """Return what came out, and how many attempts and tenacities it took."""
    calls = machines = 0

    async def attempt() -> int:
        nonlocal calls
        calls += 1
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def retrying() -> AsyncRetrying:
        nonlocal machines
        machines += 1
        return AsyncRetrying(
            stop=stop_after_attempt(attempts), wait=wait_none(), retry=retry_if_exception_type(Again), reraise=True
        )

    return asyncio.run(attempted(attempt, Again, retrying)), calls, machines


def test_a_first_success_needs_no_machinery() -> None:
    assert run([7]) == (7, 1, 0)


def test_failures_are_repeated() -> None:
    assert run([Again(), Again(), 7]) == (7, 3, 1)


def test_the_first_attempt_counts() -> None:
    outcomes: list[int | Exception] = [Again("first"), Again("second"), Again("last"), 7]
    with pytest.raises(Again, match="last"):
        run(outcomes, attempts=3)
    assert outcomes == [7]


@pytest.mark.parametrize("earlier", [0, 1])
def test_other_errors_end_it(earlier: int) -> None:
    outcomes: list[int | Exception] = [*(Again() for _ in range(earlier)), KeyError("no"), 7]
    with pytest.raises(KeyError):
        run(outcomes)
    assert outcomes == [7]
