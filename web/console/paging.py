"""Long lists on pages: a part of them at a time, and a filter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")

ROWS: Final = 50
"""On one page."""


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """A part of a list. number: from 1; total: how many items there are in all."""

    items: Sequence[Item]
    number: int
    pages: int
    total: int

    @property
    def first(self) -> int:
        """The place of the first item here, from 1; 0 where there is none."""
        return (self.number - 1) * ROWS + 1 if self.items else 0

    @property
    def last(self) -> int:
        return self.first + len(self.items) - 1 if self.items else 0


def page_of(items: Sequence[Item], number: int) -> Page[Item]:
    """Return a page; the last one where there are not so many.

    >>> page_of(range(120), 3).items, page_of(range(120), 99).number, page_of([], 5).number
    (range(100, 120), 3, 1)
    """
    pages = max(1, -(-len(items) // ROWS))
    number = min(max(number, 1), pages)
    return Page(items[(number - 1) * ROWS : number * ROWS], number, pages, len(items))


def matching(items: Iterable[Item], wanted: str, name: Callable[[Item], str]) -> list[Item]:
    """Return the items whose name contains a text, whatever its case, in the order of their names."""
    text = wanted.casefold()
    return sorted((item for item in items if text in name(item).casefold()), key=name)
