"""How long a client lets a change of the metadata take (`timeout_ms` of its request)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from semel.protocol.errors import ErrorCode, error_for

_Result = TypeVar("_Result")

_still_working: Final[set[asyncio.Task[Any]]] = set()
"""Holds what continues after its caller was told that it takes too long."""


async def within(timeout_ms: int, change: Coroutine[Any, Any, _Result]) -> _Result:
    """Return what `change` returns. Raises REQUEST_TIMED_OUT where it takes longer; it is finished all the same."""
    task = asyncio.get_running_loop().create_task(change)
    _still_working.add(task)
    task.add_done_callback(_still_working.discard)
    done, _ = await asyncio.wait((task,), timeout=max(timeout_ms, 0) / 1000)
    if not done:
        task.add_done_callback(_forget)
        raise error_for(
            ErrorCode.REQUEST_TIMED_OUT,
            f"the change is not done after {timeout_ms} ms, and continues: ask for the metadata before you try again",
        )
    return task.result()


def _forget(task: asyncio.Task[Any]) -> None:
    """Nobody is left to be told of an error."""
    if not task.cancelled():
        task.exception()
