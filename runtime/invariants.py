"""What must always hold, checked in pairs where two parts meet, and as the node runs: these checks are never left out.

A rule that does not hold is a bug of ours, or memory that can't be trusted. To continue would spread it, so the one who
owns what it is about stops using that: a partition goes offline, a coordinator's shard starts again from its log.
"""

from __future__ import annotations


class BrokenInvariantError(AssertionError):
    """A rule does not hold. The text says where, which rule, and with which numbers."""

    def __init__(self, where: object, rule: str, **numbers: object) -> None:
        found = ", ".join(f"{name}={number}" for name, number in numbers.items())
        super().__init__(f"{where}: broken invariant: {rule} ({found})")


def check(holds: bool, where: object, rule: str, **numbers: object) -> None:
    """Raise `BrokenInvariantError` unless `holds`. On a hot path, compare first and raise it there."""
    if not holds:
        raise BrokenInvariantError(where, rule, **numbers)
