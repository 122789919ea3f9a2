"""What can stand at the place of the last word of a command line.

Commands, options and choices are read from the commands themselves, so that no list of them is written twice. What a
value is, its metavar says: TOPIC, GROUP, FILE, or [one|of|these].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import typer

from semel.cli.common import DEFAULT_BOOTSTRAP

FILES: Final = ":files"
DIRECTORIES: Final = ":directories"
"""What the shell itself completes; a name of a node's never begins with a colon."""

_CHOICES: Final = re.compile(r"[<\[]([\w.-]+(?:\|[\w.-]+)+)[>\]]")
_BOOTSTRAP: Final = ("--bootstrap", "-b")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word, and what it means."""

    word: str
    help: str = ""


Names = Callable[[str, str], Sequence[str]]
"""Gives the names that a node has: of a kind (TOPIC, GROUP, ...), at an address."""


def candidates(root: Any, words: Sequence[str], names: Names, bootstrap: str = DEFAULT_BOOTSTRAP) -> list[Candidate]:
    """Return what the last of `words` can become; the words before it are those after the program's name."""
    *before, current = words
    line = _Line(root, bootstrap)
    for word in before:
        if not line.read(word):
            return []
    return [found for found in line.following(current, names) if found.word.startswith((current, ":"))]


@runtime_checkable
class ListsCommands(Protocol):
    """A group that says what its commands do without loading them."""

    def summary(self, name: str) -> str: ...


class _Line:
    """A command line, read word by word."""

    def __init__(self, root: Any, bootstrap: str) -> None:
        self.command = root
        self.context = typer.Context(root, info_name="semel")
        self.path: tuple[str, ...] = ()
        self.waiting: Any = None
        """The option whose value is the next word."""
        self.positionals = 0
        self.options_ended = False
        self.bootstrap = bootstrap

    @property
    def is_group(self) -> bool:
        return hasattr(self.command, "list_commands")

    def read(self, word: str) -> bool:
        """Take in a whole word. Returns whether the line makes sense up to here."""
        if self.waiting is not None:
            if set(self.waiting.opts) & set(_BOOTSTRAP):
                self.bootstrap = word
            self.waiting = None
        elif word == "--" and not self.options_ended:
            self.options_ended = True
        elif word.startswith("-") and not self.options_ended:
            name, equals, value = word.partition("=")
            option = self._option(name)
            if option is not None and not option.is_flag and not equals:
                self.waiting = option
            elif name in _BOOTSTRAP and equals:
                self.bootstrap = value
        elif self.is_group:
            command = self.command.get_command(self.context, word)
            if command is None:
                return False
            self.context = typer.Context(command, info_name=word, parent=self.context)
            self.command = command
            self.path += (word,)
        else:
            self.positionals += 1
        return True

    def following(self, current: str, names: Names) -> Iterator[Candidate]:
        """Yield what may follow."""
        if self.waiting is not None:
            yield from self._values(self.waiting, names)
            return
        name, equals, _ = current.partition("=")
        if current.startswith("-") and not self.options_ended:
            option = self._option(name) if equals else None
            if option is not None:
                for found in self._values(option, names):
                    yield found if found.word.startswith(":") else Candidate(f"{name}={found.word}", found.help)
                return
            yield from self._options()
        elif self.is_group:
            for each in self.command.list_commands(self.context):
                yield Candidate(each, _first_line(self._summary(each)))
        else:
            arguments = [param for param in self.command.params if param.param_type_name == "argument"]
            if arguments:
                at = min(self.positionals, len(arguments) - 1)
                if at == self.positionals or arguments[at].nargs == -1:
                    yield from self._values(arguments[at], names)

    def _summary(self, name: str) -> str:
        if isinstance(self.command, ListsCommands):
            return self.command.summary(name)
        return self.command.get_command(self.context, name).help or ""

    def _option(self, name: str) -> Any:
        return next(
            (param for param in self.command.params if name in (*param.opts, *param.secondary_opts) and name[0] == "-"),
            None,
        )

    def _options(self) -> Iterator[Candidate]:
        for param in self.command.params:
            record = None if getattr(param, "hidden", False) else param.get_help_record(self.context)
            if param.param_type_name == "option" and record is not None:
                for name in (*param.opts, *param.secondary_opts):
                    if name.startswith("--"):
                        yield Candidate(name, _first_line(record[1]))
        yield Candidate("--help", "Show this message and exit.")

    def _values(self, param: Any, names: Names) -> Iterator[Candidate]:
        record = param.get_help_record(self.context)
        choices = None if record is None else _CHOICES.search(record[0])
        kind = (param.metavar or "").strip("[].")
        if choices is not None:
            yield from (Candidate(choice) for choice in choices[1].split("|") if not choice.isupper())
        elif kind in ("FILE", "PATH"):
            yield Candidate(FILES)
        elif kind == "DIR":
            yield Candidate(DIRECTORIES)
        elif self.path != ("topic", "create"):  # its topic is a new one
            yield from (Candidate(name) for name in names(kind, self.bootstrap))


def _first_line(text: str) -> str:
    """Return a help text's first sentence, as shells show it beside a word."""
    return " ".join(text.split("  [")[0].split()).partition(". ")[0].rstrip(".")
