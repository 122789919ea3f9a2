"""What the product logs as an exception that nobody expects: a programming error, and so an anomaly of the world."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from semel.protocol.errors import SemelError
from semel.runtime.simulated_storage import SimulatedCrash

EXPECTED = (SemelError, OSError, SimulatedCrash)
"""What happens in worlds: refusals, lost connections, failing disks, deaths."""


class _Unexpected(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, EXPECTED):
            self.found.append(f"{record.name}: {record.getMessage()}: {type(error).__name__}: {error}")


@contextmanager
def unexpected_errors() -> Iterator[list[str]]:
    """Give a list to which each such exception is added. Nothing below an error is logged meanwhile."""
    handler, root = _Unexpected(), logging.getLogger()
    kept, root.handlers[:] = root.handlers[:], [handler]
    disabled = root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield handler.found
    finally:
        root.handlers[:] = kept
        logging.disable(disabled)
