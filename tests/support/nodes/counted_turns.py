"""A clock for work that is done in turns: each look at it takes a millisecond, so that turns can be counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import pytest

from semel.runtime import turns

_Result = TypeVar("_Result")


class LookClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


def every_look_takes_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a turn ends after so many looks as it has milliseconds, however fast the machine is."""
    monkeypatch.setattr(turns, "_measure", LookClock())


async def rounds_of_the_loop(work: Awaitable[_Result]) -> tuple[_Result, int]:
    """Return what `work` returns, and how often others had the event loop while it was done."""
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0)
            rounds += 1

    counting = asyncio.ensure_future(count())
    try:
        return await work, rounds
    finally:
        counting.cancel()
