"""The table of all brokers, and what is written as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness import Figure, number

from brokers.servers import SEMEL
from brokers.work import BrokerRow

HEAD = (
    "| workload | durability | broker | median | lowest to highest | by Semel's | server's CPU "
    "| an acknowledgement says |",
    "|---|---|---|---:|---|---:|---|---|",
)


def lines_of(row: BrokerRow) -> list[str]:
    """Return a line for each broker; a ratio is its median by Semel's."""
    lines = []
    base = row.median(SEMEL) if row.samples.get(SEMEL) else 0.0
    for broker, values in row.samples.items():
        better = "less" if row.less_is_better else "more"
        ratio = f"{row.median(broker) / base:.2f}x ({better} is better)" if base and broker != SEMEL else ""
        spread = f"{number(min(values))} to {number(max(values))}"
        lines.append(
            f"| {row.workload} | {row.durability} | {broker} | {number(row.median(broker))} {row.unit} | {spread} "
            f"| {ratio} | {row.costs.get(broker, '')} | {row.promises.get(broker, '')} |"
        )
    lines += [
        f"| {row.workload} | {row.durability} | {broker} | failed |  |  |  | {why} |"
        for broker, why in row.failures.items()
    ]
    return lines


def figures_of(rows: Sequence[BrokerRow]) -> list[Figure]:
    return [
        Figure(
            "other_brokers",
            f"{row.workload}, {row.durability}, {broker}",
            row.median(broker),
            row.unit,
            list(values),
            cost=row.costs.get(broker, ""),
        )
        for row in rows
        for broker, values in row.samples.items()
    ]


def as_json(row: BrokerRow) -> dict[str, object]:
    """Return what `plots.py` reads."""
    return {
        "workload": row.workload,
        "durability": row.durability,
        "unit": row.unit,
        "less_is_better": row.less_is_better,
        "samples": {broker: list(values) for broker, values in row.samples.items()},
        "costs": dict(row.costs),
        "promises": dict(row.promises),
    }


def missing_lines(missing: Mapping[str, str]) -> list[str]:
    return [f"left out: {name}: {why}" for name, why in missing.items()]
