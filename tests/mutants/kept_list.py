"""The kept list of faults, one file per area in `faults/` (tests/README.md says how to add one)."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mutants.edits import Edit

FOLDER: Final = Path(__file__).with_name("faults")
_KEYS: Final = {"fault", "rules", "place", "old", "new", "edits", "tests", "lives"}


class BadListError(Exception):
    """An entry of the list cannot be understood."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that a programmer could make.

    id:     what it is called, after the rule that it breaks.
    says:   the fault in a sentence.
    rules:  the rules that it breaks, empty where it breaks none that has a name.
    edits:  what makes the fault; mostly one.
    tests:  what has to notice it: ids of tests below `tests/`, a few, quick ones.
    lives:  why no test needs to notice it, None where one has to.
    """

    id: str
    area: str
    says: str
    rules: tuple[str, ...]
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    lives: str | None


def read_list(folder: Path = FOLDER) -> list[Fault]:
    """Return all faults. Raises `BadListError`."""
    faults: dict[str, Fault] = {}
    for path in sorted(folder.glob("*.toml")):
        try:
            entries = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise BadListError(f"{path.name}: {error}") from None
        for name, entry in entries.items():
            if name in faults:
                raise BadListError(f"{path.name} and {faults[name].area}.toml both have a fault {name}")
            try:
                faults[name] = _fault(name, path.stem, entry)
            except (KeyError, TypeError, ValueError) as error:
                raise BadListError(f"{path.name}: fault {name}: {error}") from None
    return list(faults.values())


def chosen(faults: Sequence[Fault], patterns: Iterable[str]) -> list[Fault]:
    """Return the faults with these ids; patterns such as `T1*` and the names of areas do, too."""
    found: dict[str, Fault] = {}
    for pattern in patterns:
        some = [each for each in faults if pattern == each.area or fnmatch.fnmatchcase(each.id, pattern)]
        if not some:
            raise BadListError(f"there is no fault {pattern!r}: --list names them all")
        found |= {each.id: each for each in some}
    return list(found.values())


def _fault(name: str, area: str, entry: dict[str, Any]) -> Fault:
    if unknown := entry.keys() - _KEYS:
        raise ValueError(f"{', '.join(sorted(unknown))} is none of {', '.join(sorted(_KEYS))}")
    edits = edits_of(entry)
    tests, lives = tuple(entry.get("tests", ())), entry.get("lives")
    if not tests and not lives:
        raise ValueError("it names no test that notices it, and does not say why it lives")
    return Fault(
        name,
        area,
        entry["fault"],
        tuple(entry.get("rules", ())),
        edits,
        tests,
        lives,
    )


def edits_of(entry: Mapping[str, Any]) -> tuple[Edit, ...]:
    """Return what an entry's `place`, `old` and `new` say, or its `edits`. Raises `ValueError`, `KeyError`."""
    edits = entry.get("edits", [])
    if bool(edits) == ("place" in entry):
        raise ValueError("it needs place, old and new, or edits that have these")
    edits = edits or [{key: entry[key] for key in ("place", "old", "new")}]
    return tuple(Edit(**each) for each in edits)
