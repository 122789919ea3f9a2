"""How the SDK's providers end with their node."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Protocol

from semel.runtime.threads import Threads

FLUSH_TIMEOUT_S: Final = 3.0
_QUICK_S: Final = 5.0


class Provider(Protocol):
    """Of spans, or of log records."""

    def force_flush(self, timeout_millis: int = ...) -> bool: ...

    def shutdown(self) -> Any: ...


async def end_provider(provider: Provider, log: logging.Logger, what: str) -> None:
    """Send what there is, for a moment, beside the event loop. A collector that is away is not waited for: the thread
    gives up and ends the provider after the exporter's own timeout.

    what: is sent, for the log
    """

    def end() -> None:
        try:
            provider.force_flush(int(FLUSH_TIMEOUT_S * 1000))
        finally:
            provider.shutdown()

    thread = Threads(1, "semel-telemetry-end")
    try:
        async with asyncio.timeout(_QUICK_S):
            await asyncio.get_running_loop().run_in_executor(thread, end)
    except TimeoutError:
        log.info("the last %s could not be exported in time", what)
    finally:
        thread.shutdown(wait=False)
