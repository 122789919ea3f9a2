"""Runs the parts of one request side by side, a bounded number at a time: clients choose how many parts there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

SLICE: Final = 200

_T = TypeVar("_T")


async def in_slices(items: Sequence[Any], call: Callable[[Any], Awaitable[_T]]) -> list[_T]:
    """Return the results of `call` for all items, in order."""
    results: list[_T] = []
    for start in range(0, len(items), SLICE):
        results += await asyncio.gather(*(call(item) for item in items[start : start + SLICE]))
    return results
