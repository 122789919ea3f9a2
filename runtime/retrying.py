"""The first attempt without the machinery of retries.

tenacity's bookkeeping costs some 60 us an attempt, a tenth of a transaction; almost every first attempt succeeds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying

Outcome = TypeVar("Outcome")


async def attempted(
    attempt: Callable[[], Awaitable[Outcome]], repeatable: type[Exception], retrying: Callable[[], AsyncRetrying]
) -> Outcome:
    """Return what `attempt` returns; where it raises `repeatable`, continue as `retrying` says.

    `retrying` is asked for at the first failure, which counts as its first attempt.
    """
    failure: Exception | None
    try:
        return await attempt()
    except repeatable as error:
        failure = error

    async def again() -> Outcome:
        nonlocal failure
        if failure is not None:
            first, failure = failure, None
            raise first
        return await attempt()

    return await retrying()(again)
