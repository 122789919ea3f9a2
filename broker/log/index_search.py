# cython: annotation_typing=False
"""Binary search over the entries of an index, as they are in its file: numbers in big-endian order, of fixed size.

Compiled with the C types of index_search.pxd, because each fetch looks up where it ends, or interpreted.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from semel.protocol import uncompiled as cython

if not cython.compiled:

    def address_of(view: memoryview) -> memoryview:
        return view


def last_at_most(
    entries: memoryview, count: int, size: int, second_at: int, field: int, target: int
) -> tuple[int, int, int]:
    """Return the number of the last of `count` entries whose field is at or below `target`, and both its fields.

    Where there is none, the number is -1. Entries have `size` bytes, and their second field begins at `second_at`;
    `field` is 0 or 1. Raises `ValueError` where there are fewer entries.
    """
    if count * size > len(entries):
        raise ValueError(f"{count} entries of {size} bytes are not in {len(entries)} bytes")
    data = address_of(entries)
    begin = second_at if field else 0
    end = size if field else second_at
    low = 0
    high = count
    while low < high:
        middle = (low + high) // 2
        if _number(data, middle * size + begin, middle * size + end) <= target:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return -1, 0, 0
    at = (low - 1) * size
    return low - 1, _number(data, at, at + second_at), _number(data, at + second_at, at + size)


def _number(data: memoryview, position: int, end: int) -> int:
    value = data[position]
    if value >= 128:
        value -= 256
    position += 1
    while position < end:
        value = value * 256 + data[position]
        position += 1
    return value
