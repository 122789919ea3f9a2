"""What may import what: the table in docs/architecture.md, held against every import, those for types alone too."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "architecture.md"
TOPS = ("protocol", "runtime", "txn_coordinator", "group_coordinator", "broker", "sdk", "web", "spark", "cli")
WHOLE = ("protocol", "cli", "txn_coordinator")
"""Rooms with folders for their files alone: each is one room."""


@cache
def modules() -> dict[str, Path]:
    """All modules of ours but the generated ones, by name below `semel`."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for top in TOPS
        for path in (ROOT / top).rglob("*.py")
        if "_pb2" not in path.name
    }


def room_of(module: str) -> str:
    """The folder of a module, as the table names it: two levels, or one for rooms that are whole."""
    parts = module.split(".")
    if parts[0] in WHOLE or len(parts) == 1 or not (ROOT / parts[0] / parts[1]).is_dir():
        return parts[0] + "/"
    return f"{parts[0]}/{parts[1]}/"


def file_or_room(module: str) -> str:
    """The same, and a file beside folders is a room of its own."""
    room = room_of(module)
    return module if room.count("/") == 1 and room.rstrip("/") not in WHOLE else room


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("semel."):
            base = node.module.removeprefix("semel.")
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules() else base
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("semel.") for a in node.names if a.name.startswith("semel."))


@cache
def all_imports() -> tuple[tuple[str, str], ...]:
    found = ((name, target) for name, path in modules().items() for target in imports_of(path))
    return tuple(pair for pair in found if pair[1] in modules())


@cache
def table() -> dict[str, frozenset[str]]:
    rows = re.findall(r"^\| `([a-z_/]+/)` \|[^|]*\| ([^|]*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {room: frozenset(re.findall(r"`([a-z_/]+/)`", allowed)) for room, allowed in rows}


def test_every_folder_has_a_line_in_the_table() -> None:
    assert {room_of(module) for module in modules()} == set(table())


def test_no_import_goes_where_the_table_does_not_allow_it() -> None:
    wrong = {
        f"{module} imports {target}"
        for module, target in all_imports()
        if (room := room_of(module)) != (other := room_of(target)) and other not in table()[room]
    }
    assert not wrong, "an arrow that docs/architecture.md does not have: turn it round, or add it there with a reason"


def test_the_table_allows_nothing_that_nobody_needs() -> None:
    used = defaultdict(set)
    for module, target in all_imports():
        used[room_of(module)].add(room_of(target))
    spare = {room: allowed - used[room] for room, allowed in table().items() if allowed - used[room]}
    assert not spare


def test_rooms_import_each_other_in_one_direction() -> None:
    """Files that lie beside folders count alone, so that a folder may use what lies below it and be used above it."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module, target in all_imports():
        if file_or_room(module) != file_or_room(target):
            graph[file_or_room(module)].add(file_or_room(target))
    assert circle_in(graph) == []


def test_modules_import_each_other_in_one_direction() -> None:
    """Imports for types alone count too: where they make a circle, two files are one, or a Protocol is missing."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module, target in all_imports():
        if module != target:
            graph[module].add(target)
    assert circle_in(graph) == []


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """Return a circle, empty where there is none."""
    done: set[str] = set()
    for start in sorted(graph):
        way: list[str] = []
        stack: list[tuple[str, Iterator[str]]] = [(start, iter(sorted(graph.get(start, ()))))]
        while stack:
            node, others = stack[-1]
            if node not in way:
                way.append(node)
            following = next((each for each in others if each not in done), None)
            if following is None:
                done.add(node)
                stack.pop()
                way.remove(node)
            elif following in way:
                return [*way[way.index(following) :], following]
            else:
                stack.append((following, iter(sorted(graph.get(following, ())))))
    return []


@pytest.mark.parametrize(
    ("graph", "circle"),
    [
        ({"a": {"b"}, "b": {"c"}}, []),
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c", "b"]),
    ],
)
def test_a_circle_is_found(graph: dict[str, set[str]], circle: list[str]) -> None:
    assert circle_in(graph) == circle
