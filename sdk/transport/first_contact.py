"""Finds out which of several addresses answers, by asking all of them at once.

A node that is frozen, or behind a network that drops what is sent, takes a connection and says nothing. Asked first and
alone, it would cost each new client seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any


async def first_to_answer(probes: Mapping[str, Coroutine[Any, Any, bool]], limit_s: float) -> str | None:
    """Return the address whose probe is the first to give True. None where none does so within the limit."""
    tasks = {asyncio.ensure_future(probe): given for given, probe in probes.items()}
    waiting = set(tasks)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    try:
        while waiting:
            done, waiting = await asyncio.wait(
                waiting, timeout=max(0.0, deadline - loop.time()), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return None
            for task, given in tasks.items():
                if task in done and task.result():
                    return given
        return None
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
