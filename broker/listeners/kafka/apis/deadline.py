"""How long a client lets a change of the metadata take (`timeout_ms` of its request)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from semel.protocol.errors import ErrorCode, SemelError, error_for

_log = logging.getLogger("semel.kafka")

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
        task.add_done_callback(_note_end)
        raise error_for(
            ErrorCode.REQUEST_TIMED_OUT,
            f"the change is not done after {timeout_ms} ms, and continues: ask for the metadata before you try again",
        )
    return task.result()


def _note_end(task: asyncio.Task[Any]) -> None:
    """Nobody waits for an error any more: only the node's log can say why the change did not happen."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        unexpected = None if isinstance(error, SemelError) else error
        _log.warning("a change failed after its client had stopped waiting for it: %s", error, exc_info=unexpected)
