"""What the page is made of: runs of benches, read from their JSON."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KAFKA, SEMEL = "kafka", "semel"


class RunError(Exception):
    """A file is not what a bench writes; the text names it and says what to do."""


@dataclass(frozen=True)
class Cost:
    """What a unit of work costs a server: `47.3`, `us a request`."""

    value: float
    unit: str


@dataclass(frozen=True)
class PlottedRow:
    """One workload with one durability: samples, costs and promises by who was measured."""

    workload: str
    durability: str
    unit: str
    less_is_better: bool
    samples: Mapping[str, Sequence[float]]
    costs: Mapping[str, Cost] = field(default_factory=dict)
    promises: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_ratio(self) -> bool:
        """Whether both were measured, and Kafka's figure can be divided by."""
        return bool(self.samples.get(KAFKA) and self.samples.get(SEMEL)) and all(
            value > 0 for peer in (KAFKA, SEMEL) for value in self.samples[peer]
        )

    def median(self, who: str) -> float:
        return statistics.median(self.samples[who])

    @property
    def ratio(self) -> float:
        """Semel's median by Kafka's."""
        return self.median(SEMEL) / self.median(KAFKA)

    @property
    def ratio_spread(self) -> tuple[float, float]:
        """The lowest and the highest ratio of one round, and the ratio of the medians with them.

        Where the two have not as many rounds: the lowest by the highest, and the highest by the lowest.
        """
        kafka, semel = self.samples[KAFKA], self.samples[SEMEL]
        if len(kafka) == len(semel):
            ratios = [mine / theirs for mine, theirs in zip(semel, kafka, strict=True)]
        else:
            ratios = [min(semel) / max(kafka), max(semel) / min(kafka)]
        return min(*ratios, self.ratio), max(*ratios, self.ratio)


@dataclass(frozen=True)
class Run:
    """One run of one bench: `name` is the file's, as the bench has it."""

    name: str
    machine: Mapping[str, Any]
    command: str
    versions: Mapping[str, str]
    rows: Sequence[PlottedRow]

    @property
    def beside_kafka(self) -> bool:
        return any(KAFKA in row.samples for row in self.rows)


def read_run(path: Path) -> Run:
    """Read what a bench wrote. Raises `RunError`."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise RunError(f"there is no {path}; run `make bench BENCH={path.stem}` first") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} can not be read: {error}") from None
    if not isinstance(content, dict) or "rows" not in content:
        raise RunError(f"{path} has no rows to plot; run `make bench BENCH={path.stem}` again")
    try:
        rows = [row for one in content["rows"] if (row := _row_of(one)).samples]
        machine, versions = dict(content["machine"]), dict(content.get("versions", {}))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is not what a bench writes: {type(error).__name__}: {error}") from None
    if not rows:
        raise RunError(f"{path} has no row that was measured; run `make bench BENCH={path.stem}` again")
    return Run(path.stem, machine, str(content.get("command", "")), versions, rows)


def _row_of(content: Mapping[str, Any]) -> PlottedRow:
    """Return a row without brokers that have no samples."""
    samples = {
        str(who): [float(value) for value in values] for who, values in content["samples"].items() if len(values) > 0
    }
    costs = {str(who): cost for who, text in content.get("costs", {}).items() if (cost := cost_of(text)) is not None}
    return PlottedRow(
        str(content["workload"]),
        str(content["durability"]),
        str(content["unit"]),
        bool(content["less_is_better"]),
        samples,
        costs,
        {str(who): str(text) for who, text in content.get("promises", {}).items()},
    )


def cost_of(text: str) -> Cost | None:
    """Return the number and the unit of `3,075 us a transaction`; None where it begins with no number."""
    found = re.match(r"([\d,]+(?:\.\d+)?) (.+)$", text)
    return None if found is None else Cost(float(found[1].replace(",", "")), found[2])
