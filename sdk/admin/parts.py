"""What is asked of many things, in requests that a node takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

_Item = TypeVar("_Item")


def in_parts(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Yield the items in their order, up to `size` at a time."""
    left = iter(items)
    while part := list(islice(left, size)):
        yield part
