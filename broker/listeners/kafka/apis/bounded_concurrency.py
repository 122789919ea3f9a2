"""Runs the parts of one request side by side, a bounded number at a time: clients choose how many parts there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from semel.runtime.turns import Turns

SLICE: Final = 50

_T = TypeVar("_T")


async def bounded_concurrency(items: Sequence[Any], call: Callable[[Any], Awaitable[_T]]) -> list[_T]:
    """Return the results of `call` for all items, in order.

    In each round of the event loop one of them begins: what it does at once may take long (S3).
    """
    turns = Turns()
    results: list[_T] = []
    for start in range(0, len(items), SLICE):
        calls: list[asyncio.Future[_T]] = []
        try:
            for item in items[start : start + SLICE]:
                calls.append(asyncio.ensure_future(call(item)))
                await asyncio.sleep(0)
            results += await asyncio.gather(*calls)
        except asyncio.CancelledError:
            for begun in calls:
                begun.cancel()
            raise
        await turns.give_way()
    return results
