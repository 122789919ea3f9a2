"""JSON as its standard has it: Python's parser takes numbers and texts that no answer could show again."""

from __future__ import annotations

import json
import math
from typing import Any, Final

LEVELS_MAX: Final = 200
"""How deep data that is answered again may be nested."""


class UnfitJsonError(ValueError):
    """Something is JSON for Python, and not for others. The message says what."""


def strict_loads(text: str | bytes) -> Any:
    """Return what JSON says. Raises `ValueError`; `UnfitJsonError` for what is not finite, and for half characters.

    >>> strict_loads('{"a": 1.5}'), mended_loads('{"a": 1e999}')
    ({'a': 1.5}, {'a': None})
    """
    found = json.loads(text, parse_float=_finite, parse_int=_whole, parse_constant=_refused)
    try:
        _text(found).encode()
    except UnicodeEncodeError:
        raise UnfitJsonError("a text has half a character in it, such as \\ud800 alone") from None
    return found


def mended_loads(text: str | bytes) -> Any:
    """Return what JSON says: null for numbers that are not finite, ? for half characters. Raises `ValueError`."""
    found = json.loads(text, parse_float=_finite_or_none, parse_constant=lambda _: None)
    try:
        _text(found).encode()
    except UnicodeEncodeError:
        found = json.loads(_text(found).encode("utf-8", "replace"))
    return found


def is_deep(value: object) -> bool:
    """Say whether data has more than `LEVELS_MAX` levels.

    >>> is_deep([[1]]), is_deep(json.loads("[" * 300 + "]" * 300))
    (False, True)
    """
    level = [value]
    for _ in range(LEVELS_MAX + 1):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _finite(digits: str) -> float:
    found = float(digits)
    if not math.isfinite(found):
        raise UnfitJsonError(f"the number {digits[:50]} is too large")
    return found


def _finite_or_none(digits: str) -> float | None:
    found = float(digits)
    return found if math.isfinite(found) else None


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        raise UnfitJsonError(f"the number {digits[:50]}... has too many digits") from None


def _refused(name: str) -> Any:
    raise UnfitJsonError(f"{name} is no number in JSON")
