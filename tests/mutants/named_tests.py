"""Finds the tests that the list names, without loading them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


class MissingTestError(Exception):
    """The list names a test that is not there."""


def covers(test_id: str, case: str) -> bool:
    """Whether a case, a test with its parameters, is meant by an id: of itself, of the test, or of the whole file."""
    return test_id in (case, case.partition("[")[0], case.partition("::")[0])


class TestIndex:
    """The tests below a folder. One that has moved to another file is found there, where its name is unique."""

    __test__ = False

    def __init__(self, tests: Path) -> None:
        self._tests = tests
        self._names: dict[Path, frozenset[str]] = {}

    def resolve(self, test_id: str) -> str:
        """Return the current id, `unit/test_x.py::test_y` or `...::TestX::test_y`, with its `[parameters]`."""
        file, _, rest = test_id.partition("::")
        name, bracket, parameters = rest.partition("[")
        path = self._tests / file
        if not name and path.exists():
            return test_id
        if not path.exists() or name not in self._in_file(path):
            found = [each for each in self._tests.glob("**/test_*.py") if name in self._in_file(each)]
            if len(found) != 1:
                raise MissingTestError(f"there is no {file}::{name}" + (", and several elsewhere" if found else ""))
            path = found[0]
        return f"{path.relative_to(self._tests).as_posix()}::{name}{bracket}{parameters}"

    def _in_file(self, path: Path) -> frozenset[str]:
        if path not in self._names:
            self._names[path] = frozenset(_names(ast.parse(path.read_text(encoding="utf-8"))))
        return self._names[path]


def _names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.ClassDef():
                yield from (f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef))
                yield node.name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield from (name, f"{name}::runTest")  # Model.TestCase of a stateful test
