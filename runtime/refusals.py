"""How often something was refused because a bound was reached, by the setting that is the bound (S2)."""

from __future__ import annotations


class Refusals:
    """Counts from the start on. Its keys are settings of ours alone, so there are few."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def note(self, setting: str, count: int = 1) -> None:
        """Count what was refused."""
        self._counts[setting] = self._counts.get(setting, 0) + count

    def of(self, setting: str) -> int:
        """Return how often a setting was reached; 0 where it never was."""
        return self._counts.get(setting, 0)
