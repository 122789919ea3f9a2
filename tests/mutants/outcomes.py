"""What came of a planted fault, and how that is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mutants.kept_list import Fault


class Fate(Enum):
    NOTICED = "noticed"
    LIVES = "LIVES"
    DOES_NOT_APPLY = "NO LONGER APPLIES"
    NO_JUDGE = "NO TEST TO JUDGE"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`detail`: which test noticed it, or what went wrong. `reason`: how that test failed."""

    fault: Fault
    fate: Fate
    detail: str
    seconds: float = 0.0
    reason: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether somebody has to do something: a test is missing, or the list is behind the code."""
        return self.fate in (Fate.DOES_NOT_APPLY, Fate.NO_JUDGE) or (
            self.fate is Fate.LIVES and self.fault.lives is None
        )

    @property
    def is_surprise(self) -> bool:
        """Whether a test notices what the list says none does."""
        return self.fate is Fate.NOTICED and self.fault.lives is not None

    def line(self) -> str:
        fate = "lives, as expected" if self.fate is Fate.LIVES and not self.is_wrong else self.fate.value
        text = f"{self.fault.id:5} {fate:18} {self.seconds:5.1f} s  {self.detail}"
        if self.is_wrong:
            text += f"\n      the fault: {self.fault.says}"
        if self.fate is Fate.LIVES and self.fault.lives:
            text += f"\n      because: {self.fault.lives}"
        if self.is_surprise:
            text += (
                f"\n      but the list says that it lives ({self.fault.lives}): take that out, if it is so each time"
            )
        return text

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.fault.id,
            "fault": self.fault.says,
            "rules": self.fault.rules,
            "fate": self.fate.name.lower(),
            "expected_to_live": self.fault.lives,
            "detail": self.detail,
            "reason": self.reason,
            "seconds": round(self.seconds, 2),
        }


def summary(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.fate for outcome in outcomes)
    expected = sum(outcome.fate is Fate.LIVES and not outcome.is_wrong for outcome in outcomes)
    parts = [f"{len(outcomes)} faults: {counts[Fate.NOTICED]} noticed"]
    if expected:
        parts.append(f"{expected} live, as expected")
    if lives := counts[Fate.LIVES] - expected:
        parts.append(f"{lives} LIVE")
    parts += [f"{counts[fate]} {fate.value}" for fate in (Fate.DOES_NOT_APPLY, Fate.NO_JUDGE) if counts[fate]]
    text = ", ".join(parts)
    if wrong := [outcome.fault.id for outcome in outcomes if outcome.is_wrong]:
        text += (
            f"\n\nTo be done, for {' '.join(wrong)}: write the test that notices the fault, or correct its entry in "
            "tests/mutants/faults (tests/README.md, Planted faults)"
        )
    return text
