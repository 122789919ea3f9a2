"""Links between the pages lead somewhere, as they are written; columns of tables have names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests" / "README.md", *ROOT.glob("bench/*.md"))
    if "build" not in path.parts
)
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2\s*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
COLUMNS = re.compile(r"^(\|.*\|) *\n\|(?: *:?-+:? *\|)+ *$", re.MULTILINE)


def prose_of(page: Path) -> str:
    """A page without its blocks of code, and without what is code inside of lines."""
    return re.sub(
        r"`[^`\n]*`", lambda code: code[0].replace("[", " ").replace("]", " "), FENCE.sub("", page.read_text())
    )


def links_of(page: Path) -> Iterator[str]:
    yield from (target for target in LINK.findall(prose_of(page)) if "://" not in target)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def anchors_of(page: Path) -> frozenset[str]:
    return frozenset(map(slug, HEADING.findall(FENCE.sub("", page.read_text()))))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for target in links_of(page):
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors_of(path)):
            broken.append(target)
    assert not broken


def test_the_check_itself_finds_what_is_broken(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`\n\n[a](#one-two) [b](gone.md) `[c](code.md)`\n\n```text\n# no heading\n[d](fenced.md)\n```\n"
    )
    assert list(links_of(page)) == ["#one-two", "gone.md"]
    assert anchors_of(page) == {"one-two"}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "bench" not in page.parts], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_column_of_a_table_has_a_name(page: Path) -> None:
    headers = COLUMNS.findall(FENCE.sub("", page.read_text()))
    assert not [header for header in headers if any(not cell.strip() for cell in header.strip("|").split("|"))]
