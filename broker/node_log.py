"""The node's own log: one line an event, as text for people or JSON for collectors, without secrets."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

from semel.broker.audit.log import LOGGER, attributes_of
from semel.runtime.flood_guard import FloodGuard

_LINE_CHARACTERS_MAX: Final = 16 << 10
"""Longer lines are cut: what strangers call themselves, and their reasons, may have 32 KB each."""

# It begins at the slashes: to look for the scheme before them took seconds for 32 KB of letters (S3).
_PASSWORD_IN_URL: Final = re.compile(r"(?P<before>://[^\s:/@]*):[^\s@/]+@")


def redact(text: str) -> str:
    """Return `text` with the passwords of URLs taken out (S5)."""
    return _PASSWORD_IN_URL.sub(r"\g<before>:***@", text)


def _cut(text: str) -> str:
    left_out = len(text) - _LINE_CHARACTERS_MAX
    return text if left_out <= 0 else f"{text[:_LINE_CHARACTERS_MAX]}... ({left_out} characters left out)"


class _OneLine(logging.Formatter):
    """What both forms share: UTC with milliseconds, and tracebacks kept with their event."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _traceback(self, record: logging.LogRecord) -> str:
        return "" if record.exc_info is None else _cut(redact(self.formatException(record.exc_info)))


class TextFormatter(_OneLine):
    """`2026-11-21T08:00:00.000Z INFO  semel.node started`; line ends within an event are shown as `\\n`."""

    def format(self, record: logging.LogRecord) -> str:
        text = _cut(redact(record.getMessage()))
        traceback = self._traceback(record)
        whole = f"{text}\n{traceback}" if traceback else text
        escaped = whole.replace("\\n", "\\\\n").replace("\r", "\\r").replace("\n", "\\n")
        return f"{self.formatTime(record)} {record.levelname:<7} {record.name} {escaped}"


class JsonFormatter(_OneLine):
    """One JSON object a line: time, level, logger, message; traceback and attributes where there are some."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(redact(record.getMessage())),
        }
        if traceback := self._traceback(record):
            event["traceback"] = traceback
        if attributes := attributes_of(record):
            event["attributes"] = attributes
        return json.dumps(event, ensure_ascii=False)


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to a stream, which may be on the disk that has failed: then there is no log, and the node continues."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handleError(record)


def configure_logging(log_format: str, log_level: str, stream: TextIO | None = None) -> FloodGuard:
    """Send the process's log to `stream` (standard error). For a process that is a node; a library must not do this.

    Returns what bounds the log; `flush` it now and then.
    """
    guard = FloodGuard(exempt=frozenset({LOGGER}))
    handler = _Handler(stream or sys.stderr)
    handler.addFilter(guard)
    guard.handler = handler
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for other in root.handlers[:]:
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(log_level.upper())
    # Who sets a higher level wants less about the node's health, and still hears who changed what.
    logging.getLogger(LOGGER).setLevel(logging.INFO)
    return guard
