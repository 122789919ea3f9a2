"""In sdk/sql no object uses names of another that begin with an underscore, but in the file that gives them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "sdk" / "sql"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def given_by(tree: ast.Module) -> set[str]:
    """Return the private names that this file gives: of methods, of class attributes, and of what is set on `self`."""
    found = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return {name for name in found if is_private(name)}


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def reaches(text: str) -> Iterator[str]:
    tree = ast.parse(text)
    given = given_by(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node) and node.attr not in given:
            yield ast.unparse(node)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_no_private_name_of_another_file_is_used(path: Path) -> None:
    assert not list(reaches(path.read_text(encoding="utf-8"))), "make it public there, or move what needs it"


def test_a_reach_is_found() -> None:
    own = "class A:\n    def __init__(self, b):\n        self._b = b\n"
    assert list(reaches(own + "def of(a: A):\n    return a._b\n")) == []
    assert list(reaches(own + "    def c(self):\n        return self._b._c\n")) == ["self._b._c"]
