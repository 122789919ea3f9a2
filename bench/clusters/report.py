"""The table of clusters: each figure beside its goal, and whether it is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness import Figure, number
from workloads.kafka_peers import KAFKA, SEMEL, Row

ABSENT = "-"
TITLES: Mapping[str, str] = {KAFKA: "Apache Kafka", SEMEL: "Semel"}


@dataclass(frozen=True)
class Scale:
    """How long and how often. `seconds` is for one turn of one workload.

    rounds:     turns that count
    kills:      how often a node is killed, frozen or stopped; so many times all three begin with node 1
    megabytes:  records of a turn of bulk; where each is durable, a quarter
    ids:        transactional ids that are known when a coordinator is killed
    partitions: of the topic whose leaders are killed
    """

    rounds: int
    kills: int
    seconds: float
    megabytes: int
    ids: int
    partitions: int


FULL = Scale(rounds=3, kills=3, seconds=2.0, megabytes=64, ids=10_000, partitions=1_000)
QUICK = Scale(rounds=1, kills=1, seconds=0.3, megabytes=4, ids=100, partitions=30)


@dataclass(frozen=True)
class Goal:
    """What is aimed at, and the least that is accepted: for Semel's figure, or for its ratio to Kafka's."""

    goal: float
    floor: float
    unit: str = "x"

    @property
    def of_ratio(self) -> bool:
        return self.unit == "x"

    def __str__(self) -> str:
        space = "" if self.of_ratio else " "
        if self.goal == self.floor:
            return f"{self.goal:g}{space}{self.unit}"
        return f"{self.goal:g}{space}{self.unit} ({self.floor:g})"

    def verdict(self, value: float, *, less_is_better: bool) -> str:
        """Say what a figure, or a ratio, has reached."""
        sign = 1 if less_is_better else -1
        if sign * value <= sign * self.goal:
            return "reached"
        return "floor" if sign * value <= sign * self.floor else "missed"


@dataclass(frozen=True)
class ClusterRow(Row):
    """A row with its goal. A peer without samples was not measured; `why` says why."""

    goal: Goal | None = None
    why: str = ""


def verdict(row: ClusterRow, base: str = KAFKA, peer: str = SEMEL) -> str:
    """Return a row's last word on its goal; nothing where there is none, or nothing to compare with."""
    if row.goal is None or not row.samples.get(peer) or (row.goal.of_ratio and not row.samples.get(base)):
        return ""
    value = row.median(peer) / (row.median(base) or 1.0) if row.goal.of_ratio else row.median(peer)
    return row.goal.verdict(value, less_is_better=row.less_is_better)


def table(rows: Sequence[ClusterRow], titles: Mapping[str, str] = TITLES) -> list[str]:
    """Return the table in Markdown: medians, ratio, spread, CPU, goals. What bounds a figure is its author's to say.

    titles: of the two peers; the second's figure is divided by the first's
    """
    (key, title), (peer, peer_title) = titles.items()
    both_titles = f"{title} / {peer_title}"
    lines = [
        f"| workload | durability | {title} | {peer_title} | ratio | lowest to highest, {both_titles} "
        f"| servers' CPU, {both_titles} | goal (floor) | | what bounds it |",
        "|---|---|---:|---:|---:|---|---|---|---|---|",
    ]
    for row in rows:
        both = [row.samples.get(name) or () for name in (key, peer)]
        shown = [f"{number(row.median(name))} {row.unit}" if row.samples.get(name) else ABSENT for name in (key, peer)]
        ratio = f"{row.median(peer) / row.median(key):.2f}x" if all(both) and row.median(key) else ABSENT
        spread = " / ".join(_spread(values) for values in both)
        costs = row.costs or {}
        cost = " / ".join(costs.get(name, ABSENT) for name in (key, peer)) if costs else ""
        goal = "" if row.goal is None else str(row.goal)
        bound = "; ".join(text for text in (row.bound, row.why) if text)
        lines.append(
            f"| {row.workload} | {row.durability} | {' | '.join(shown)} | {ratio} | {spread} | {cost} "
            f"| {goal} | {verdict(row, key, peer)} | {bound} |"
        )
    return lines


def _spread(values: Sequence[float]) -> str:
    return f"{number(min(values))} to {number(max(values))}" if values else ABSENT


def figures_of(rows: Sequence[ClusterRow]) -> list[Figure]:
    """Return what is written as JSON: a figure for each peer of each row."""
    return [
        Figure(
            "cluster",
            f"{row.workload}, {row.durability}, {peer}",
            row.median(peer),
            row.unit,
            list(values),
            "" if row.goal is None else str(row.goal),
            (row.costs or {}).get(peer, ""),
            row.bound,
        )
        for row in rows
        for peer, values in row.samples.items()
        if values
    ]


def by_peer(peers: Sequence[str]) -> Mapping[str, list[float]]:
    """Return an empty list of samples for each."""
    return {peer: [] for peer in peers}
