"""Calls to a SQL database, off the event loop, and ended where the database never answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from semel.broker.metadata.database import Database

_log = logging.getLogger("semel.metadata")

T = TypeVar("T")


async def call_off_loop(executor: Executor, database: Database, call: Callable[[], T]) -> T:
    """Call in a thread of the executor, which has one. A connection that does not answer in time is given up: whether
    what was asked for was done is to be looked up with another one.
    """
    loop = asyncio.get_running_loop()
    begun: list[float] = []

    def run() -> T:
        begun.append(loop.time())
        return call()

    work = loop.run_in_executor(executor, run)
    deadline_s = database.deadline_s
    if deadline_s is None:
        return await work
    try:
        left_s = deadline_s
        while not (await asyncio.wait({work}, timeout=left_s))[0]:
            # Calls before it have their own time: this one's begins with its turn.
            left_s = deadline_s if not begun else begun[-1] + deadline_s - loop.time()
            if left_s <= 0:
                _log.error("the metadata database %s does not answer: its connection is given up", database.location)
                database.interrupt()
                left_s = deadline_s
    except asyncio.CancelledError:
        work.cancel()
        raise
    return work.result()
