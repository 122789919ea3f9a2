"""Regular expressions of clients over names, in time that grows only with the names' length.

Coordinators match topics (KIP-848) and transactional ids (KIP-1152) against RE2/J expressions that any client may
send, so matching must not be a way to stop a node. Python's `re` backtracks; this is Thompson's construction with a
lazily built, bounded automaton of states, as in RE2 (Cox, "Regular Expression Matching Can Be Simple And Fast").

Read is RE2's syntax as far as names need it: literals, `.`, classes with ranges (of ASCII),
negation and `[:alpha:]` names, `\\d \\w \\s` and their negations, `\\x41`, `\\Q...\\E`, groups of all kinds with the
flags `i`, `s`, `m`, `U`, alternation, greedy and lazy repetition up to 1000, `^ $ \\A \\z`, and `\\b \\B`. Not read,
and refused as invalid: Unicode classes (`\\pL`), and what RE2 has not either: backreferences and lookaround.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

PATTERN_CHARACTERS_MAX: Final = 1_024
PROGRAM_STATES_MAX: Final = 2_000
"""Of the automaton of one expression; nested repetitions multiply."""

EFFORT_MAX: Final = 500_000
"""States looked at while one expression is matched against all topics: a fraction of a second."""

REPEAT_MAX: Final = 1_000
NESTING_MAX: Final = 100
CACHED_STATES_MAX: Final = 1_000
"""Sets of states kept; beyond that they are forgotten and made again, so memory is bounded, too."""

_ASCII: Final = frozenset(map(chr, range(128)))
OTHER: Final = "beyond ASCII"
"""In a set of characters: all that are not ASCII. `.` and what excludes some have it."""
_ANY: Final = _ASCII | {OTHER}
_DIGITS: Final = frozenset("0123456789")
_LOWER: Final = frozenset("abcdefghijklmnopqrstuvwxyz")
_UPPER: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_WORD: Final = _DIGITS | _LOWER | _UPPER | {"_"}
_SPACE: Final = frozenset("\t\n\f\r ")
_PUNCTUATION: Final = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_PERL: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_POSIX: Final = {
    "alnum": _DIGITS | _LOWER | _UPPER,
    "alpha": _LOWER | _UPPER,
    "ascii": _ASCII,
    "blank": frozenset("\t "),
    "cntrl": frozenset(map(chr, [*range(32), 127])),
    "digit": _DIGITS,
    "graph": frozenset(map(chr, range(33, 127))),
    "lower": _LOWER,
    "print": frozenset(map(chr, range(32, 127))),
    "punct": _PUNCTUATION,
    "space": _SPACE | {"\v"},
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": _DIGITS | frozenset("abcdefABCDEF"),
}
_ESCAPED: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class PatternError(ValueError):
    """The expression cannot be read; the message says why and where."""


class _Check(Enum):
    """What must hold between two characters."""

    BEGIN = auto()
    END = auto()
    WORD_EDGE = auto()
    NO_WORD_EDGE = auto()


_WORD_CHECKS: Final = frozenset({_Check.WORD_EDGE, _Check.NO_WORD_EDGE})


@dataclass(slots=True)
class _Node:
    """A state: takes a character of `characters` to `out`, or continues for free, if `check` holds.

    Of several in `out` the first is preferred. `mark`: 2 n where group n begins, 2 n + 1 where it ends.
    """

    out: list[int]
    characters: frozenset[str] | None = None
    check: _Check | None = None
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """The states from `start` to `end` (exclusive, whole pieces can be copied), entered at `enter`, left at `leave`."""

    start: int
    end: int
    enter: int
    leave: int


@dataclass(frozen=True, slots=True)
class GroupProgram:
    """The states of an expression with groups that capture: of `runtime/captures.py`.

    names: of the groups that have one
    """

    nodes: Sequence[_Node]
    enter: int
    leave: int
    group_count: int
    names: Mapping[str, int]


def program_with_groups(expression: str) -> GroupProgram:
    """Return the states of an expression, with marks of its groups. Raises `PatternError`.

    Its flags are `i` alone: the others say which part of a text matches, and not every language has the same ones.
    """
    parser = _Parser(expression, captures=True)
    piece = parser.parse()
    return GroupProgram(parser.nodes, piece.enter, piece.leave, parser.group_count, parser.group_names)


class LinearPattern:
    """An expression that is matched against whole names. Raises `PatternError` where it cannot be read."""

    def __init__(self, expression: str) -> None:
        parser = _Parser(expression)
        piece = parser.parse()
        self._nodes = parser.nodes
        self._enter, self._leave = piece.enter, piece.leave
        self.expression = expression
        self._looks_at_words = any(node.check in _WORD_CHECKS for node in self._nodes)
        self.effort = 0
        """States looked at so far."""
        self._steps: dict[tuple[frozenset[int], str | None, str], frozenset[int]] = {}
        self._accepted: dict[tuple[frozenset[int], str | None], bool] = {}

    @property
    def state_count(self) -> int:
        """Of the automaton: what it took to make it."""
        return len(self._nodes)

    def matches(self, name: str) -> bool:
        """Return whether all of `name` matches."""
        return any(self.walk(name))

    def walk(self, name: str) -> Iterator[bool]:
        """Match `name` in steps: yield False after each that took effort, and in the end whether all of it matches.

        One step looks at `PROGRAM_STATES_MAX` states at most, the whole may look at so many for each character.
        """
        states = frozenset({self._enter})
        before: str | None = None
        for character in name:
            effort = self.effort
            states = self._step(states, before, character)
            if not states:
                yield False
                return
            if self.effort != effort:
                yield False
            before = character if self._looks_at_words else ""
        yield self._is_accepted(states, before)

    def _is_accepted(self, states: frozenset[int], before: str | None) -> bool:
        key = (states, before)
        accepted = self._accepted.get(key)
        if accepted is None:
            if len(self._accepted) >= CACHED_STATES_MAX:
                self._accepted.clear()
            accepted = self._accepted[key] = self._leave in self._reach(states, before, None)
        return accepted

    def _step(self, states: frozenset[int], before: str | None, character: str) -> frozenset[int]:
        key = (states, before, character)
        found = self._steps.get(key)
        if found is None:
            reached = self._reach(states, before, character)
            nodes = self._nodes
            any_of = {character} if character.isascii() else {character, OTHER}
            found = frozenset(
                nodes[number].out[0]
                for number in reached
                if (characters := nodes[number].characters) is not None and not characters.isdisjoint(any_of)
            )
            if len(self._steps) >= CACHED_STATES_MAX:
                self._steps.clear()
            self._steps[key] = found
        return found

    def _reach(self, states: Iterable[int], before: str | None, after: str | None) -> set[int]:
        """Return what can be reached without a character, between two of them."""
        reached: set[int] = set()
        to_do = list(states)
        while to_do:
            number = to_do.pop()
            if number in reached:
                continue
            reached.add(number)
            node = self._nodes[number]
            if node.characters is None and (node.check is None or holds(node.check, before, after)):
                to_do += node.out
        self.effort += len(reached)
        return reached


def holds(check: _Check, before: str | None, after: str | None) -> bool:
    """Return whether a check is fulfilled between two characters; None: where the text ends."""
    if check is _Check.BEGIN:
        return before is None
    if check is _Check.END:
        return after is None
    at_edge = (before in _WORD) != (after in _WORD)
    return at_edge == (check is _Check.WORD_EDGE)


class _Parser:
    """Recursive descent over the expression; makes the states as it goes."""

    def __init__(self, expression: str, *, captures: bool = False) -> None:
        if len(expression) > PATTERN_CHARACTERS_MAX:
            raise PatternError(f"it has {len(expression)} characters, at most {PATTERN_CHARACTERS_MAX} are taken")
        self.nodes: list[_Node] = []
        self.group_count = 0
        self.group_names: dict[str, int] = {}
        self._captures = captures
        self._text = expression
        self._position = 0
        self._ignore_case = False
        self._depth = 0

    def parse(self) -> _Piece:
        piece = self._alternatives()
        if self._position < len(self._text):
            raise self._error("a ')' has no '('")
        return piece

    # --- The text -----------------------------------------------------------------------------------------------------

    def _error(self, why: str) -> PatternError:
        return PatternError(f"{why}, at character {self._position + 1} of {self._text!r}")

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise self._error("it ends too early")
        self._position += 1
        return character

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._position):
            return False
        self._position += len(text)
        return True

    # --- The states ---------------------------------------------------------------------------------------------------

    def _node(
        self,
        *out: int,
        characters: frozenset[str] | None = None,
        check: _Check | None = None,
        mark: int | None = None,
    ) -> int:
        if len(self.nodes) >= PROGRAM_STATES_MAX:
            raise self._error(f"it takes more than {PROGRAM_STATES_MAX} states; repeat less")
        self.nodes.append(_Node(list(out), characters, check, mark))
        return len(self.nodes) - 1

    def _single(
        self, *, characters: frozenset[str] | None = None, check: _Check | None = None, mark: int | None = None
    ) -> _Piece:
        enter = self._node(characters=characters, check=check, mark=mark)
        leave = self._node()
        self.nodes[enter].out.append(leave)
        return _Piece(enter, leave + 1, enter, leave)

    def _copy(self, piece: _Piece) -> _Piece:
        """Append the states of a piece once more. All its arrows lead within it: `leave` is still open."""
        offset = len(self.nodes) - piece.start
        for number in range(piece.start, piece.end):
            node = self.nodes[number]
            out = (each + offset for each in node.out)
            self._node(*out, characters=node.characters, check=node.check, mark=node.mark)
        return _Piece(piece.start + offset, piece.end + offset, piece.enter + offset, piece.leave + offset)

    def _join(self, pieces: list[_Piece]) -> _Piece:
        for piece, following in itertools.pairwise(pieces):
            self.nodes[piece.leave].out.append(following.enter)
        return _Piece(pieces[0].start, len(self.nodes), pieces[0].enter, pieces[-1].leave)

    # --- The grammar --------------------------------------------------------------------------------------------------

    def _alternatives(self) -> _Piece:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self._error(f"groups are nested more than {NESTING_MAX} deep")
        start = len(self.nodes)
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self._depth -= 1
        if len(branches) == 1:
            return branches[0]
        leave = self._node()
        for branch in branches:
            self.nodes[branch.leave].out.append(leave)
        enter = self._node(*(branch.enter for branch in branches))
        return _Piece(start, len(self.nodes), enter, leave)

    def _sequence(self) -> _Piece:
        pieces = [self._single()]
        while self._peek() not in ("", "|", ")"):
            piece = self._atom()
            if piece is not None:
                pieces.append(self._repeated(piece))
        return self._join(pieces)

    def _repeated(self, piece: _Piece) -> _Piece:
        bounds = self._repetition()
        if bounds is None:
            return piece
        is_lazy = self._take("?")  # of no matter to whether a name matches, but to what its groups have
        if self._peek() in ("*", "+", "?") or self._bounds_follow():
            raise self._error("a repetition follows a repetition")
        least, most = bounds
        # The copies are made before the piece gets arrows to what follows.
        count = most if most is not None else max(least, 1)
        copies = [piece, *(self._copy(piece) for _ in range(max(count, 1) - 1))]
        start, end = piece.start, self._node()
        for number, copy in enumerate(copies):
            if number >= least:
                skip = self._node(*_preferred(copy.enter, end, is_lazy))
                copies[number] = _Piece(copy.start, copy.end, skip, copy.leave)
        for copy, following in itertools.pairwise(copies):
            self.nodes[copy.leave].out.append(following.enter)
        last = self.nodes[copies[-1].leave]
        last.out += [end] if most is not None else _preferred(copies[-1].enter, end, is_lazy)
        enter = end if most == 0 else copies[0].enter
        return _Piece(start, len(self.nodes), enter, end)

    def _repetition(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        bounds = self._bounds_follow()
        if not bounds:
            return None
        self._position += len(bounds)
        least, comma, most = bounds[1:-1].partition(",")
        low, high = int(least), (int(most) if most else None) if comma else int(least)
        if low > REPEAT_MAX or (high is not None and not low <= high <= REPEAT_MAX):
            raise self._error(f"a repetition is from at most {REPEAT_MAX} to at most as many times, in order")
        return low, high

    def _bounds_follow(self) -> str:
        """Return the `{2}`, `{2,}` or `{2,3}` that comes next; any other brace is a literal."""
        end = self._text.find("}", self._position)
        text = self._text[self._position : end + 1]
        least, _, most = text[1:-1].partition(",")
        if not text.startswith("{") or not _is_number(least) or (most and not _is_number(most)):
            return ""
        return text

    def _atom(self) -> _Piece | None:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._single(characters=self._class())
            case ".":
                return self._single(characters=_ANY - {"\n"})
            case "^":
                return self._single(check=_Check.BEGIN)
            case "$":
                return self._single(check=_Check.END)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                self._position -= 1
                raise self._error(f"there is nothing to repeat before {character!r}")
        return self._single(characters=self._cased(character))

    def _group(self) -> _Piece | None:
        """Read a group after its '(', or flags alone, which hold to the end of the group that they stand in."""
        outer = self._ignore_case
        name = ""
        if self._take("?"):
            if self._take("P<") or (self._peek() == "<" and self._text[self._position + 1 :][:1] not in ("=", "!")):
                self._take("<")
                name = self._text[self._position :].partition(">")[0]
                if not name or not set(name) <= _WORD or not self._take(name + ">"):
                    raise self._error("a group's name is made of letters, digits and '_', and ends with '>'")
            elif self._take(":") or self._flags():
                return self._rest_of_group(outer)
            else:
                return None
        if not self._captures:
            return self._rest_of_group(outer)
        self.group_count += 1
        number = self.group_count
        if name and self.group_names.setdefault(name, number) != number:
            raise self._error(f"two groups are called {name}")
        begin = self._single(mark=2 * number)
        return self._join([begin, self._rest_of_group(outer), self._single(mark=2 * number + 1)])

    def _rest_of_group(self, outer: bool) -> _Piece:
        piece = self._alternatives()
        if not self._take(")"):
            raise self._error("a '(' has no ')'")
        self._ignore_case = outer
        return piece

    def _flags(self) -> bool:
        """Read `i-s:` or `i)`; return whether a group follows, as after a colon."""
        value = True
        while True:
            character = self._next()
            if character in (":", ")"):
                return character == ":"
            if character == "-" and value:
                value = False
            elif character == "i":
                self._ignore_case = value
            elif self._captures or character not in ("s", "m", "U"):
                # Lookaround among others: no engine of linear time has that.
                self._position -= 1
                raise self._error(f"'(?{character}' is not known here")

    def _escape(self) -> _Piece | None:
        character = self._next()
        match character:
            case "A":
                return self._single(check=_Check.BEGIN)
            case "z":
                return self._single(check=_Check.END)
            case "b":
                return self._single(check=_Check.WORD_EDGE)
            case "B":
                return self._single(check=_Check.NO_WORD_EDGE)
            case "Q":
                quoted = self._text[self._position :].partition("\\E")[0]
                self._position += len(quoted)
                self._take("\\E")
                return self._join([self._single(), *(self._single(characters=self._cased(each)) for each in quoted)])
        self._position -= 1
        return self._single(characters=self._escaped_characters())

    def _escaped_characters(self) -> frozenset[str]:
        """Read what follows a backslash in a class or outside of one."""
        character = self._next()
        if character.lower() in _PERL:
            known = _PERL[character.lower()]
            return known if character.islower() else _ANY - known
        if character == "x":
            digits = self._text[self._position :].partition("}")[0][1:] if self._peek() == "{" else ""
            if digits:
                self._position += len(digits) + 2
            else:
                digits = self._next() + self._next()
            if not set(digits) <= _POSIX["xdigit"] or len(digits) > 6:
                raise self._error("a code of a character has hexadecimal digits")
            return self._cased(chr(min(int(digits, 16), 0x10FFFF)))
        if character in _ESCAPED:
            return frozenset(_ESCAPED[character])
        if character in _WORD and character != "_":
            raise self._error(f"the escape '\\{character}' is not known here")
        return self._cased(character)

    def _class(self) -> frozenset[str]:
        negated = self._take("^")
        found: set[str] = set()
        first = True
        while first or self._peek() != "]":
            first = False
            if self._take("[:"):
                found |= self._posix_class()
                continue
            if self._captures and self._take("&&"):
                raise self._error("a class has no intersection (&&): write it as one of its own")
            low = self._class_item()
            if len(low) > 1 or self._peek() != "-" or self._text[self._position + 1 :][:1] in ("", "]"):
                found |= self._cased_set(low)
                continue
            self._position += 1
            high = self._class_item()
            begin, end = ord(min(low)), ord(min(high))
            if len(high) > 1 or end < begin:
                raise self._error("a range of characters goes from one to a later one")
            if self._captures and end > 127:
                raise self._error("a range of characters has only those of ASCII: name others one by one")
            found |= self._cased_set(frozenset(map(chr, range(begin, min(end, 127) + 1))))
        self._position += 1
        if not negated:
            return frozenset(found)
        if not found <= _ANY:
            raise self._error("only characters of ASCII can be excluded")
        return _ANY - found

    def _class_item(self) -> frozenset[str]:
        character = self._next()
        if character != "\\":
            return frozenset(character)
        ignore_case, self._ignore_case = self._ignore_case, False
        try:
            return self._escaped_characters()
        finally:
            self._ignore_case = ignore_case

    def _posix_class(self) -> frozenset[str]:
        negated = self._take("^")
        name = self._text[self._position :].partition(":]")[0]
        if name not in _POSIX or not self._take(name + ":]"):
            raise self._error("a named class is one of " + ", ".join(f"[:{known}:]" for known in sorted(_POSIX)))
        return _ANY - _POSIX[name] if negated else self._cased_set(_POSIX[name])

    def _cased(self, character: str) -> frozenset[str]:
        return self._cased_set(frozenset(character))

    def _cased_set(self, characters: frozenset[str]) -> frozenset[str]:
        if not self._ignore_case:
            return characters
        return characters | {each.lower() for each in characters} | {each.upper() for each in characters}


def _preferred(once_more: int, end: int, is_lazy: bool) -> list[int]:
    return [end, once_more] if is_lazy else [once_more, end]


def _is_number(text: str) -> bool:
    return 0 < len(text) <= 9 and set(text) <= _DIGITS
