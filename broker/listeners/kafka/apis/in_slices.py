"""Runs the parts of one request side by side, a bounded number at a time: clients choose how many parts there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from semel.runtime.turns import Turns

SLICE: Final = 50

_T = TypeVar("_T")


async def in_slices(items: Sequence[Any], call: Callable[[Any], Awaitable[_T]]) -> list[_T]:
    """Return the results of `call` for all items, in order."""
    turns = Turns()
    results: list[_T] = []
    for start in range(0, len(items), SLICE):
        results += await asyncio.gather(*(call(item) for item in items[start : start + SLICE]))
        await turns.give_way()
    return results
