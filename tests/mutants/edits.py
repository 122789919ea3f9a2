"""Edits of source code that are found by what they change, not by line, so that they survive refactoring.

A place is named `module:function`, or `module` for what stands outside functions. What is to be changed there is given
as source and compared as syntax: comments, line breaks and parentheses do not count. It has to be there exactly once.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path


class DoesNotApplyError(Exception):
    """An edit's place, or what it changes there, is gone or is there more than once."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Put `new` in place of `old` at `place`: two expressions, or two runs of statements."""

    place: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class _Span:
    """Where a piece of source stands. Columns are in bytes, as in the nodes of `ast`; lines are counted from 1."""

    line: int
    column: int
    end_line: int
    end_column: int


class Sources:
    """The sources below one folder, the package's, each read and parsed once."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self._trees: dict[Path, ast.Module] = {}

    def text(self, path: Path) -> str:
        return path.read_text(encoding="utf-8")

    def tree(self, path: Path) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = ast.parse(self.text(path), str(path))
        return self._trees[path]

    def locate(self, place: str) -> tuple[Path, ast.AST]:
        """Return the file and the node of a place; a function is looked for everywhere if it has moved."""
        module, _, name = place.partition(":")
        path = self.package / f"{module.replace('.', '/')}.py"
        if not name:
            if not path.exists():
                raise DoesNotApplyError(f"there is no module {module}")
            return path, self.tree(path)
        if path.exists() and (node := _definition(self.tree(path), name)) is not None:
            return path, node
        elsewhere = [
            (each, node) for each in self._all_files() if (node := _definition(self.tree(each), name)) is not None
        ]
        if len(elsewhere) != 1:
            found = ", ".join(str(each.relative_to(self.package)) for each, _ in elsewhere)
            raise DoesNotApplyError(
                f"{name} is not in {module} any more, and {f'is in {found}' if found else 'nowhere else'}"
            )
        return elsewhere[0]

    def _all_files(self) -> Iterator[Path]:
        # The folders of the package are links, which rglob does not follow before Python 3.13.
        for folder in (self.package, *sorted(each for each in self.package.iterdir() if each.is_dir())):
            pattern = "*.py" if folder == self.package else "**/*.py"
            yield from sorted(path for path in folder.glob(pattern) if not path.name.endswith(("_pb2.py", "_grpc.py")))


def apply(edits: tuple[Edit, ...], sources: Sources) -> dict[Path, str]:
    """Return the new text of each file that the edits change. Raises `DoesNotApplyError`."""
    spans: dict[Path, list[tuple[_Span, Edit]]] = {}
    for edit in edits:
        path, node = sources.locate(edit.place)
        spans.setdefault(path, []).append((_find(edit, node), edit))
    changed = {}
    for path, found in spans.items():
        text = sources.text(path)
        for span, edit in sorted(found, key=lambda one: (one[0].line, one[0].column), reverse=True):
            text = _replaced(text, span, edit)
        try:
            compile(text, str(path), "exec")
        except SyntaxError as error:
            raise DoesNotApplyError(f"what it makes of {path.name} does not compile: {error}") from None
        changed[path] = text
    return changed


def _definition(tree: ast.Module, name: str) -> ast.AST | None:
    """Return the class or function of a qualified name such as `ProducerState.check_batch`."""
    node: ast.AST = tree
    for part in name.split("."):
        found = [
            each
            for each in ast.walk(node)
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and each.name == part
        ]
        if node is tree and len(found) > 1:
            found = [each for each in found if each in tree.body]
        if len(found) != 1:
            return None
        node = found[0]
    return node


def _find(edit: Edit, node: ast.AST) -> _Span:
    spans = list(_expressions(edit.old, node) if _is_expression(edit) else _statements(edit.old, node))
    if len(spans) != 1:
        count = "is not there" if not spans else f"is there {len(spans)} times"
        raise DoesNotApplyError(f"in {edit.place}, {edit.old.strip()!r} {count}")
    return spans[0]


@cache
def _is_expression(edit: Edit) -> bool:
    try:
        ast.parse(edit.old.strip(), mode="eval")
        ast.parse(edit.new.strip(), mode="eval")
    except SyntaxError:
        return False
    return True


def _expressions(old: str, node: ast.AST) -> Iterator[_Span]:
    wanted = ast.dump(ast.parse(old.strip(), mode="eval").body)
    stack = [node]
    while stack:
        each = stack.pop()
        if isinstance(each, ast.expr) and ast.dump(each) == wanted:
            assert each.end_lineno is not None
            assert each.end_col_offset is not None
            yield _Span(each.lineno, each.col_offset, each.end_lineno, each.end_col_offset)
        elif not isinstance(each, ast.JoinedStr):  # before Python 3.12, nodes in it have no place of their own
            stack.extend(ast.iter_child_nodes(each))


def _statements(old: str, node: ast.AST) -> Iterator[_Span]:
    try:
        parsed = ast.parse(textwrap.dedent(old).strip("\n")).body
    except SyntaxError:
        raise DoesNotApplyError(f"{old.strip()!r} is neither an expression nor whole statements") from None
    wanted = [ast.dump(each) for each in parsed]
    for each in ast.walk(node):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(each, name, None)
            if not isinstance(body, list):
                continue
            for start in range(len(body) - len(wanted) + 1):
                run = body[start : start + len(wanted)]
                if [ast.dump(statement) for statement in run] == wanted:
                    yield _Span(run[0].lineno, run[0].col_offset, run[-1].end_lineno, run[-1].end_col_offset)


def _replaced(text: str, span: _Span, edit: Edit) -> str:
    lines = text.encode().split(b"\n")
    before = b"\n".join([*lines[: span.line - 1], lines[span.line - 1][: span.column]])
    after = b"\n".join([lines[span.end_line - 1][span.end_column :], *lines[span.end_line :]])
    if _is_expression(edit):
        new = f"({edit.new.strip()})"
    else:
        new = textwrap.indent(textwrap.dedent(edit.new).strip("\n"), " " * span.column).lstrip(" ")
    return (before + new.encode() + after).decode()
