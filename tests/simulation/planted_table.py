"""The table of faults that the simulator has to find, `faults.toml`, with the seed that finds each."""

from __future__ import annotations

import fnmatch
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mutants.edits import Edit
from mutants.kept_list import BadListError, edits_of, read_list

from simulation.runs import ONE_NODE, WORLDS

TABLE: Final = Path(__file__).with_name("faults.toml")
THIS_PYTHON: Final = f"{sys.version_info[0]}.{sys.version_info[1]}"
_KEYS: Final = {"fault", "rules", "place", "old", "new", "edits", "seed", "finds", "shown", "unseen", "sought", "world"}
FIRST_SEEDS: Final = 12
"""Of so many seeds it is noted how many find a fault."""


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """One fault that a programmer could make.

    says:   the fault in a sentence
    rules:  the rules that it breaks
    edits:  what makes the fault
    seed:   the seed that finds it, None where none was found yet
    finds:  what is wrong in that world: a kind of anomaly
    shown:  how many of the first `FIRST_SEEDS` seeds find it
    unseen: why no world can see it, None where one has to
    world:  the kind of world that is to find it (`runs.WORLDS`)
    sought: what is known of it where no world has found it yet: they have to become fiercer, or checks sharper
    """

    id: str
    says: str
    rules: tuple[str, ...]
    edits: tuple[Edit, ...]
    seed: int | None
    finds: str | None
    unseen: str | None
    world: str
    sought: str | None = None
    shown: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """python: the version with which the seeds were recorded. Another one's asyncio may take turns in another order."""

    python: str
    faults: tuple[PlantedFault, ...]


def read_table(path: Path = TABLE) -> Table:
    """Return the table. An entry without edits is the fault that has its id in `tests/mutants`.

    Raises `BadListError`.
    """
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
        python = entries.pop("python")
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise BadListError(f"{path.name}: {error}") from None
    kept = {fault.id: fault for fault in read_list()}
    faults = []
    for name, entry in entries.items():
        try:
            if unknown := entry.keys() - _KEYS:
                raise ValueError(f"{', '.join(sorted(unknown))} is none of {', '.join(sorted(_KEYS))}")
            seed, finds, unseen, sought = (entry.get(key) for key in ("seed", "finds", "unseen", "sought"))
            if (seed is None) != (finds is None) or (seed is not None) + bool(unseen) + bool(sought) > 1:
                raise ValueError("it needs both seed and finds, or unseen, or sought, or none of them yet")
            shown = entry.get("shown", 0)
            if not isinstance(shown, int) or not 0 <= shown <= (0 if seed is None else FIRST_SEEDS):
                raise ValueError(f"shown is to be a number up to {FIRST_SEEDS}, beside a seed")
            if "fault" in entry:
                what = entry["fault"], tuple(entry.get("rules", ())), edits_of(entry)
            else:
                if more := entry.keys() - {"seed", "finds", "shown", "unseen", "sought", "world"}:
                    raise ValueError(f"it has {', '.join(sorted(more))}, and does not say what the fault is")
                what = kept[name].says, kept[name].rules, kept[name].edits
            world = entry.get("world", ONE_NODE)
            if world not in WORLDS:
                raise ValueError(f"there is no world {world!r}: {', '.join(WORLDS)}")
            faults.append(PlantedFault(name, *what, seed, finds, unseen, world, sought, shown))
        except (KeyError, TypeError, ValueError) as error:
            raise BadListError(f"{path.name}: fault {name}: {error}") from None
    return Table(python, tuple(faults))


def chosen(faults: Sequence[PlantedFault], patterns: Iterable[str]) -> list[PlantedFault]:
    """Return the faults with these ids, which may be patterns such as `D1*`; all of them without any."""
    patterns = list(patterns) or ["*"]
    for pattern in patterns:
        if not fnmatch.filter((fault.id for fault in faults), pattern):
            raise BadListError(f"there is no fault {pattern!r}")
    return [fault for fault in faults if any(fnmatch.fnmatchcase(fault.id, pattern) for pattern in patterns)]


def recorded(text: str, found: Mapping[str, tuple[int, str, int]]) -> str:
    """Return a table's text with other seeds, kinds of anomalies and counts (`shown`), by the faults' ids. All else
    stays as it is.
    """
    sections = re.split(r"(?m)^(?=\[)", text)
    for number, section in enumerate(sections):
        name = section[1 : section.find("]")] if section.startswith("[") else ""
        if name in found:
            seed, kind, shown = found[name]
            section = re.sub(r"(?m)^(seed|finds|shown|sought) = .*\n", "", section)
            # What follows it, blank lines and comments, is about the next entries.
            lines = section.splitlines()
            end = len(lines)
            while not lines[end - 1] or lines[end - 1].startswith("#"):
                end -= 1
            lines[end:end] = [f"seed = {seed}", f'finds = "{kind}"', f"shown = {shown}"]
            sections[number] = "\n".join(lines) + "\n"
    return re.sub(r"(?m)^python = .*$", f'python = "{THIS_PYTHON}"', "".join(sections), count=1)
