"""One metric as it is now: what is read of a node, and what both outputs are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from semel.broker.telemetry.instruments import Instrument
from semel.runtime.telemetry.buckets import Distribution

Value: TypeAlias = int | float | Distribution


@dataclass(frozen=True, slots=True)
class Reading:
    """An instrument's values now. Each comes with the values of the instrument's labels."""

    instrument: Instrument
    values: Sequence[tuple[tuple[str, ...], Value]]

    def __post_init__(self) -> None:
        count = len(self.instrument.labels)
        assert all(len(labels) == count for labels, _ in self.values), f"{self.instrument.name}: {count} labels"
