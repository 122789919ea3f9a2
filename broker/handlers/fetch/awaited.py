"""Waiting for the answer to a fetch that may have it at once, or calls back when it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from semel.protocol.kafka.fetch import FetchResponse


class BegunFetch(Protocol):
    """A fetch that waits."""

    def cancel(self) -> None: ...


async def answer_of(begin: Callable[[Callable[[FetchResponse], None]], FetchResponse | BegunFetch]) -> FetchResponse:
    """Return the answer when it is there; `begin` is given what is called with it. Cancelling stops the wait."""
    answered: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()

    def done(response: FetchResponse) -> None:
        if not answered.done():
            answered.set_result(response)

    begun = begin(done)
    if isinstance(begun, FetchResponse):
        return begun
    try:
        return await answered
    finally:
        begun.cancel()
