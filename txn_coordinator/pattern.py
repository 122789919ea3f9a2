"""Regular expressions from outside, matched in bounded time.

Kafka matches these with RE2, which is linear in the text. Python's `re` tracks back, so what makes it slow is refused
before anything is matched: repeated groups that repeat or choose inside, look-around, back-references, and more than a
few repeats.
"""

from __future__ import annotations

import re
from functools import lru_cache

from semel.protocol.errors import ErrorCode, UsageError

PATTERN_LENGTH_MAX = 256
REPEATS_MAX = 3
"""How many `*`, `+`, `?` and `{m,n}` a pattern may have: matching takes the text's length to that power."""
COUNT_MAX = 1_000
"""The largest number in `{m,n}`, as in RE2."""

_COUNTED = re.compile(r"\{(\d{1,9})?(,(\d{1,9})?)?\}")


@lru_cache(maxsize=64)
def compile_pattern(text: str) -> re.Pattern[str]:
    """Return the compiled pattern; it is meant for `fullmatch`, as in Kafka.

    Raises `UsageError` (INVALID_REGULAR_EXPRESSION) for a pattern that is wrong or could take long.
    """
    if len(text) > PATTERN_LENGTH_MAX:
        raise _refusal(text[:32] + "…", f"it has {len(text)} characters; at most {PATTERN_LENGTH_MAX} are allowed")
    _check_bounded(text)
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise _refusal(text, str(error)) from None


def _check_bounded(text: str) -> None:
    repeats = 0
    complex_groups: list[bool] = []  # for each open group: does it repeat or choose inside?
    closed_complex = False  # whether what stands just before `position` is a group that does
    position = 0
    while position < len(text):
        char = text[position]
        after_complex, closed_complex = closed_complex, False
        counted = _COUNTED.match(text, position) if char == "{" else None
        if char == "\\":
            if text[position + 1 : position + 2].isdigit():
                raise _refusal(text, "back-references are not supported")
            position += 2
        elif char == "[":
            position = _after_class(text, position)
        elif char == "(":
            position = _after_group_start(text, position)
            complex_groups.append(False)
        elif char == ")":
            closed_complex = complex_groups.pop() if complex_groups else False
            if closed_complex and complex_groups:
                complex_groups[-1] = True
            position += 1
        elif char in "*+?" or counted is not None:
            if after_complex:
                raise _refusal(text, "a group that repeats or chooses inside can't be repeated")
            repeats += 1
            if counted is not None and any(int(number) > COUNT_MAX for number in counted.group(1, 3) if number):
                raise _refusal(text, f"counts are at most {COUNT_MAX}")
            position = counted.end() if counted is not None else position + 1
            complex_groups = [True] * len(complex_groups)
        else:
            if char == "|" and complex_groups:
                complex_groups[-1] = True
            position += 1
    if repeats > REPEATS_MAX:
        raise _refusal(text, f"it repeats {repeats} times; at most {REPEATS_MAX} are allowed")


def _after_class(text: str, position: int) -> int:
    """Return the position after the character class that begins at `position` (a first `]` belongs to it)."""
    position += 1
    if text[position : position + 1] == "^":
        position += 1
    first = position
    while position < len(text) and (text[position] != "]" or position == first):
        position += 2 if text[position] == "\\" else 1
    return position + 1


def _after_group_start(text: str, position: int) -> int:
    if text[position + 1 : position + 2] != "?":
        return position + 1
    if text[position + 2 : position + 3] == ":":
        return position + 3
    raise _refusal(text, "groups are (...) or (?:...); look-around, names and flags are not supported")


def _refusal(text: str, why: str) -> UsageError:
    return UsageError(f"the pattern {text!r} can't be used: {why}", ErrorCode.INVALID_REGULAR_EXPRESSION)
