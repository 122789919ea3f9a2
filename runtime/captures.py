"""What the groups of a regular expression have captured, in time that grows only with the text's length.

An expression of `runtime/linear_regex.py` is run over a text as Pike's machine does (Cox, "Regular Expression Matching:
the Virtual Machine Approach"): all ways to match go on side by side, ordered by which one a backtracking engine would
have found first, so that the groups have what Java's or Python's have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from semel.runtime.linear_regex import OTHER, PatternError, holds, program_with_groups

_Spans = tuple[int, ...]
"""Where each group begins and ends, the whole match first; -1 where it has taken no part."""
_Way = tuple[int, _Spans]
"""A state, and what the groups have captured on the way to it."""
_REFERENCE: Final = re.compile(r"\\(?P<literal>.)|\$(?P<number>[0-9]+)|\$\{(?P<name>\w+)\}", re.DOTALL)


class EffortError(Exception):
    """Matching would take longer than is allowed."""


class Effort:
    """How many states may still be looked at."""

    def __init__(self, states: int) -> None:
        self.left = states

    def take(self, states: int) -> None:
        """Raises `EffortError` where there are not so many left."""
        self.left -= states
        if self.left < 0:
            raise EffortError


class Replacement:
    """An expression, and what is put in the place of each match, as `String.replaceAll` of Java does it.

    In the replacement `$1` and `${name}` are what a group has captured, `$0` is the whole match, and a character after
    a backslash is itself. Of a number that has no group, as many digits count as make one; with none, `$7` is a text.
    """

    def __init__(self, expression: str, replacement: str) -> None:
        """Raises `PatternError` where the expression or the replacement can't be read."""
        self._program = program_with_groups(expression)
        self._replacement = self._parsed(replacement)
        self._no_spans = (-1,) * (2 * self._program.group_count + 2)

    def apply(self, text: str, effort: Effort) -> str:
        """Return the text with each match replaced, from left to right. Raises `EffortError`."""
        made: list[str] = []
        copied = position = 0
        while position <= len(text):
            spans = self._search(text, position, effort)
            if spans is None:
                break
            begin, end = spans[:2]
            made.append(text[copied:begin])
            made += [each if isinstance(each, str) else _captured(text, spans, each) for each in self._replacement]
            copied = end
            position = end if end > begin else end + 1
        made.append(text[copied:])
        return "".join(made)

    def _search(self, text: str, start: int, effort: Effort) -> _Spans | None:
        """Return the first match from a position on, of those that begin there the preferred one."""
        nodes = self._program.nodes
        found: _Spans | None = None
        ways: list[_Way] = []
        for position in range(start, len(text) + 1):
            if found is None:
                ways.append((self._program.enter, (position, *self._no_spans[1:])))
            elif not ways:
                break
            before = text[position - 1] if position else None
            after = text[position] if position < len(text) else None
            any_of = {after} if after is None or after.isascii() else {after, OTHER}
            going_on: list[_Way] = []
            for number, spans in self._reached(ways, before, after, position, effort):
                if number == self._program.leave:
                    found = (spans[0], position, *spans[2:])
                    break  # those behind it are less preferred
                characters = nodes[number].characters
                if characters is not None and not characters.isdisjoint(any_of):
                    going_on.append((nodes[number].out[0], spans))
            ways = going_on
        return found

    def _reached(
        self, ways: Sequence[_Way], before: str | None, after: str | None, position: int, effort: Effort
    ) -> list[_Way]:
        """Return what can be reached without a character, the preferred first, each state once."""
        nodes = self._program.nodes
        reached: list[_Way] = []
        seen: set[int] = set()
        to_do = list(reversed(ways))
        while to_do:
            number, spans = to_do.pop()
            if number in seen:
                continue
            seen.add(number)
            node = nodes[number]
            if node.characters is not None or number == self._program.leave:
                reached.append((number, spans))
                continue
            if node.check is not None and not holds(node.check, before, after):
                continue
            if node.mark is not None:
                spans = (*spans[: node.mark], position, *spans[node.mark + 1 :])
            to_do += [(each, spans) for each in reversed(node.out)]
        effort.take(len(seen))
        return reached

    def _parsed(self, replacement: str) -> list[str | int]:
        parts: list[str | int] = []
        position = 0
        for found in _REFERENCE.finditer(replacement):
            parts.append(_literal(replacement, position, found.start()))
            position = found.end()
            if found["literal"] is not None:
                parts.append(found["literal"])
            elif found["name"] is not None:
                if found["name"] not in self._program.names:
                    raise PatternError(f"the replacement {replacement!r} refers to a group {found['name']!r}, of which "
                                       "there is none")  # fmt: skip
                parts.append(self._program.names[found["name"]])
            else:
                parts += self._numbered(replacement, found["number"])
        return [*parts, _literal(replacement, position, len(replacement))]

    def _numbered(self, replacement: str, digits: str) -> list[str | int]:
        count = self._program.group_count
        if digits[0] == "0":
            return [0, digits[1:]]
        taken = len(digits)
        while taken and int(digits[:taken]) > count:
            taken -= 1
        if taken:
            return [int(digits[:taken]), digits[taken:]]
        if not count:
            raise PatternError(f"the replacement {replacement!r} refers to ${digits}, and the pattern has no group")
        return [f"${digits}"]


def _literal(replacement: str, begin: int, end: int) -> str:
    text = replacement[begin:end]
    if "$" in text or "\\" in text:
        raise PatternError(
            f"in the replacement {replacement!r} a number or a {{name}} follows each $, and a character each "
            "backslash; a $ of the text is \\$"
        )
    return text


def _captured(text: str, spans: _Spans, group: int) -> str:
    begin, end = spans[2 * group : 2 * group + 2]
    return "" if begin < 0 or end < 0 else text[begin:end]
