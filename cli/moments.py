"""Times on the command line: how long ago, ISO 8601, or milliseconds since 1970."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from semel.cli.common import parse_duration
from semel.protocol.errors import UsageError

MOMENT: Final = "TIME"
"""The metavar of options that `parse_moment` reads."""
MOMENT_FORMS: Final = (
    "10m (that long ago; also s, h, d), an ISO 8601 time such as 2026-01-31T12:00:00Z (local without an offset), or "
    "milliseconds since 1970"
)

_MILLISECONDS: Final = re.compile(r"[0-9]{12,18}")
_AGO: Final = re.compile(r"[0-9.]+\s*[a-z]+", re.IGNORECASE)


def parse_moment(text: str, option: str, now_ms: int, *, also: str = "") -> int:
    """Return a time in milliseconds since 1970, and 0 for what is before: negative ones mean something else.

    Raises `UsageError`.

    >>> parse_moment("10m", "--since", 1_700_000_000_000), parse_moment("1699999990000", "--since", 1_700_000_000_000)
    (1699999400000, 1699999990000)
    >>> parse_moment("2026-01-31T12:00:00+00:00", "--since", 0)
    1769860800000
    """
    text = text.strip()
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    if text.isdecimal():
        raise UsageError(
            f"{option} {text}: for {text} seconds ago write {text}s; a time in milliseconds since 1970 has 13 digits"
        )
    if _AGO.fullmatch(text):
        return max(0, now_ms - round(parse_duration(text, option) * 1000))
    try:
        moment = datetime.fromisoformat(text)
        return 0 if moment.year < 1970 else max(0, int(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise UsageError(f"{option} takes {also}{MOMENT_FORMS}, not {text!r}") from None
