"""How the subject of a client's certificate becomes a principal's name: `ssl.principal.mapping.rules` (KIP-371).

A certificate's subject comes from somebody else, who has had it signed: no expression of a rule looks at it for longer
than is allowed, however the two fit together. Java's engine goes back and forth; this one does not
(`runtime/linear_regex.py`).
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from semel.runtime.captures import Effort, EffortError, Replacement
from semel.runtime.linear_regex import LinearPattern, PatternError
from semel.runtime.setting import ConfigError

MAPPING_RULES: Final = "ssl.principal.mapping.rules"
DEFAULT: Final = "DEFAULT"
RULES_MAX: Final = 100
NAME_MAX: Final = 2_048
"""The longest subject that rules are asked about."""
EFFORT_MAX: Final = 100_000
"""States looked at for one subject by all rules: some tens of milliseconds."""
_REMEMBERED_MAX: Final = 1_000
_RULE: Final = re.compile(
    r"RULE:(?P<pattern>(?:[^\\/]|\\.)*)/(?P<replacement>(?:[^\\/]|\\.)*)/(?P<case>[LU]?)", re.DOTALL
)
_SHOWN: Final = 200
NO_RULE: Final = f"no rule of {MAPPING_RULES} gives a name to the owner of this certificate"


@dataclass(frozen=True, slots=True)
class _Rule:
    """Of names that all of `pattern` matches. case: what is made of the result, L or U; empty: nothing."""

    pattern: LinearPattern
    replacement: Replacement
    case: str

    def apply(self, name: str, effort: Effort) -> str | None:
        """Return what the rule makes of a name; None where it is not about it. Raises `EffortError`."""
        is_about, before = False, self.pattern.effort
        for step in self.pattern.walk(name):
            effort.take(self.pattern.effort - before)
            is_about, before = step, self.pattern.effort
        if not is_about:
            return None
        made = self.replacement.apply(name, effort)
        return made.lower() if self.case == "L" else made.upper() if self.case == "U" else made


class PrincipalMapping:
    """The rules of a node, the first that is about a name counts. From any thread."""

    def __init__(self, text: str) -> None:
        """Raises `ConfigError` saying which rule is wrong."""
        self._rules = [_parsed(number, rule) for number, rule in enumerate(_split(text), 1)]
        if len(self._rules) > RULES_MAX:
            raise ConfigError(f"{MAPPING_RULES} has {len(self._rules)} rules; at most {RULES_MAX} are taken")
        self._lock = threading.Lock()
        self._known: OrderedDict[str, str | None] = OrderedDict()

    def name_of(self, subject: str) -> str | None:
        """Return a principal's name for the subject of a certificate; None where no rule gives it one."""
        if len(subject) > NAME_MAX:
            return None
        with self._lock:
            if subject not in self._known:
                self._known[subject] = self._name_of(subject)
                if len(self._known) > _REMEMBERED_MAX:
                    self._known.popitem(last=False)
            self._known.move_to_end(subject)
            return self._known[subject]

    def _name_of(self, subject: str) -> str | None:
        effort = Effort(EFFORT_MAX)
        for rule in self._rules:
            try:
                name = subject if rule is None else rule.apply(subject, effort)
            except EffortError:
                return None  # a rule after it is not meant for whom this one may be meant for
            if name is not None:
                return name
        return None


def _split(text: str) -> Iterator[str]:
    """Yield the rules between the commas that are not in a pattern or a replacement; empty ones are left out."""
    position = 0
    while position < len(text):
        if text[position].isspace() or text[position] == ",":
            position += 1
            continue
        found = _RULE.match(text, position)
        ends = text.find(",", position if found is None else found.end())
        end = len(text) if ends < 0 else ends
        yield text[position:end].rstrip()
        position = end


def _parsed(number: int, text: str) -> _Rule | None:
    """Return a rule; None for the one that takes any name as it is. Raises `ConfigError`."""
    if text == DEFAULT:
        return None
    found = _RULE.fullmatch(text)
    if found is None:
        raise _wrong(number, text, f"a rule is {DEFAULT}, or RULE:PATTERN/REPLACEMENT/ with L or U behind it for lower "
                                   "or upper case; a / in the pattern is \\/")  # fmt: skip
    try:
        return _Rule(
            LinearPattern(found["pattern"]), Replacement(found["pattern"], found["replacement"]), found["case"]
        )
    except PatternError as error:
        raise _wrong(number, text, str(error)) from None


def _wrong(number: int, text: str, why: str) -> ConfigError:
    return ConfigError(f"{MAPPING_RULES}: rule {number}, {text[:_SHOWN]}, can't be read: {why}")
