"""Where a value is on an axis, as a share of its length."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

STEPS = (1.0, 2.0, 5.0)
TICKS_MAX = 7


@dataclass(frozen=True)
class LogScale:
    """A logarithmic axis from `low` to `high`, with the one in between."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> LogScale:
        """Return the axis that has all of them, from a half to two at least, and ends at 1, 2 or 5 of a decade."""
        given = [*values, 0.5, 2.0]
        return cls(_step_below(min(given)), 1 / _step_below(1 / max(given)))

    def at(self, value: float) -> float:
        return math.log(value / self.low) / math.log(self.high / self.low)

    @property
    def ticks(self) -> list[float]:
        """Return where lines are: at 1, 2 and 5 of each decade, or at each decade where these were too many."""
        decades = range(math.floor(math.log10(self.low)) - 1, math.ceil(math.log10(self.high)) + 1)
        every = [step * 10.0**decade for decade in decades for step in STEPS]
        inside = [tick for tick in every if self.low * 0.999 <= tick <= self.high * 1.001]
        if len(inside) <= TICKS_MAX:
            return inside
        return [tick for tick in inside if math.isclose(math.log10(tick) % 1, 0, abs_tol=1e-9)]


def _step_below(value: float) -> float:
    decade = 10.0 ** math.floor(math.log10(value))
    return max(step * decade for step in STEPS if step * decade <= value * 1.0001)
