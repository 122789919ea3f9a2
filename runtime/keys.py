"""Which partition of an internal topic a key lives on: Kafka's rule, which all clients and tools share."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

_INT32_MIN = -(2**31)


_KEPT_LENGTH_MAX: Final = 256
"""Clients choose keys: the hashes of longer ones are not kept, for their texts would be kept with them."""


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode()`: a signed 32-bit number over the text's UTF-16 code units."""
    return _kept_hash(text) if len(text) <= _KEPT_LENGTH_MAX else _hash(text)


def _hash(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for index in range(0, len(units), 2):
        code = (31 * code + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return code - (1 << 32) if code & 0x80000000 else code


_kept_hash: Final = lru_cache(maxsize=8192)(_hash)


def partition_for_key(key: str, count: int) -> int:
    """Return the partition of `key` (a group id or transactional id) in an internal topic of `count` partitions.

    Raises `ValueError` where `count` is not positive.

    >>> partition_for_key("enrich-0", 50)
    16
    """
    if count <= 0:
        raise ValueError(f"a topic has at least one partition, not {count}")
    code = java_string_hash(key)
    # Java's Math.abs leaves the smallest number negative; Kafka's Utils.abs makes it 0.
    return 0 if code == _INT32_MIN else abs(code) % count


class PartitionCount:
    """How many partitions an internal topic has: asked when that is first needed, and the same from then on.

    Not before, for another node may make the topic, with another number: each key would then live elsewhere.
    """

    __slots__ = ("_ask", "_count")

    def __init__(self, ask: Callable[[], int]) -> None:
        """`ask` says how many there are, and raises `SemelError` while there is no topic."""
        self._ask = ask
        self._count = 0

    def partition_for(self, key: str) -> int:
        """Return the partition of `key`; see `partition_for_key`. Raises what `ask` raises."""
        if not self._count:
            self._count = self._ask()
        return partition_for_key(key, self._count)
