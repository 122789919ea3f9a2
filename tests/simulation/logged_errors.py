"""Tells programming errors of the product from what is expected in worlds, also where it only logs them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)
"""What only a mistake raises. Refusals, lost connections, failing disks and unreadable files have other types."""


def programming_error(error: BaseException | None) -> BaseException | None:
    """Return the mistake that an error is, or has for a cause or a part; None where there is none."""
    while error is not None:
        if isinstance(error, BaseExceptionGroup):
            return next(filter(None, map(programming_error, error.exceptions)), None)
        if isinstance(error, MISTAKES):
            return error
        error = error.__cause__
    return None


class _Unexpected(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        logged = [record.exc_info[1]] if record.exc_info else []
        # A log that goes offline for a broken invariant says so, and its clients see no more than a failed disk.
        args = record.args if isinstance(record.args, tuple) else ()
        logged += [each for each in args if isinstance(each, BaseException)]
        for error in map(programming_error, logged):
            if error is not None:
                self.found.append(f"{record.name}: {record.getMessage()}: {type(error).__name__}: {error}")


@contextmanager
def unexpected_errors() -> Iterator[list[str]]:
    """Give a list to which each such error is added. Nothing below an error is logged meanwhile."""
    handler, root = _Unexpected(), logging.getLogger()
    kept, root.handlers[:] = root.handlers[:], [handler]
    disabled = root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield handler.found
    finally:
        root.handlers[:] = kept
        logging.disable(disabled)
