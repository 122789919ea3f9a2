"""What the workloads of Semel's clients beside their peers share: names, nodes, scale, and the rows of the table."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from clusters.report import Goal
from harness import Figure, NodeProcess, Sample, in_turns, number, running_node

import semel
from workloads.common import DURABILITIES

SEMEL, SEMEL_ASYNCIO = "semel", "semel.aio"
CONFLUENT, AIOKAFKA = "confluent-kafka", "aiokafka"
GOAL: Final = Goal(4.0, 2.0)
"""For records a second, where GOALS.md has no other."""

Nodes = Mapping[str, NodeProcess]
"""By durability."""


@dataclass(frozen=True)
class Scale:
    """How long and how often.

    records:         of 100 B in a turn of bulk, a quarter as many of 1 KiB; half of both for consumers of asyncio
    asyncio_records: for producers of asyncio
    seconds:         a turn of transactions, half a turn of paced records
    idle_partitions: that one consumer waits for
    """

    rounds: int
    records: int
    asyncio_records: int
    seconds: float
    idle_partitions: int

    def of_size(self, records: int, size: int) -> int:
        return records if size == 100 else records // 4


FULL = Scale(rounds=5, records=400_000, asyncio_records=60_000, seconds=0.8, idle_partitions=1_000)
QUICK = Scale(rounds=1, records=20_000, asyncio_records=4_000, seconds=0.3, idle_partitions=100)


@contextmanager
def running_nodes() -> Iterator[Nodes]:
    """Run one node for each durability. Groups do not wait for further members."""
    with ExitStack() as stack:
        yield {
            durability: stack.enter_context(
                running_node({"durability": durability, "group.initial.rebalance.delay.ms": 0})
            )
            for durability in DURABILITIES
        }


@contextmanager
def topic_of(node: NodeProcess, name: str, partitions: int) -> Iterator[str]:
    """Have a topic for as long."""
    with semel.Admin(node.grpc) as admin:
        admin.create_topic(name, partitions=partitions)
        try:
            yield name
        finally:
            admin.delete_topic(name)


def turns(runs: Mapping[str, Callable[[], Sample]], rounds: int) -> dict[str, list[Sample]]:
    """Let the clients take turns. What one of them has left is collected before the next."""

    def run_collected(run: Callable[[], Sample]) -> Sample:
        gc.collect()
        return run()

    os.sync()
    samples = in_turns({name: partial(run_collected, run) for name, run in runs.items()}, rounds)
    print(".", end="", file=sys.stderr, flush=True)
    return samples


def in_loop(run: Callable[..., Coroutine[Any, Any, Sample]], *arguments: Any, **more: Any) -> Sample:
    """Run a client of asyncio in a loop of its own."""
    return asyncio.run(run(*arguments, **more))


@dataclass(frozen=True)
class Row:
    """A client of Semel beside a peer. `samples` are of one unit; CPU is in microseconds each, such as a record."""

    workload: str
    durability: str
    client: str
    peer: str
    unit: str
    samples: Mapping[str, Sequence[float]]
    each: str
    client_us: Mapping[str, Sequence[float]]
    node_us: Mapping[str, Sequence[float]]
    goal: Goal
    less_is_better: bool = False

    @property
    def ratio(self) -> float:
        return statistics.median(self.samples[self.client]) / statistics.median(self.samples[self.peer])

    @property
    def verdict(self) -> str:
        return self.goal.verdict(self.ratio, less_is_better=self.less_is_better)

    def figures(self) -> list[Figure]:
        """Return what is written as JSON: for each of the two the figure, and the CPU of client and node."""
        name = f"{self.workload}, {self.durability}"
        return [
            Figure("clients", f"{name}, {who}{what}", statistics.median(values), unit, list(values), goal)
            for who in (self.peer, self.client)
            for what, unit, values, goal in (
                ("", self.unit, self.samples[who], str(self.goal) if who == self.client else ""),
                (f": client's CPU a {self.each}", "us", self.client_us[who], ""),
                (f": node's CPU a {self.each}", "us", self.node_us[who], ""),
            )
        ]


def rate_row(
    workload: str,
    durability: str,
    samples: Mapping[str, Sequence[Sample]],
    client: str,
    peer: str,
    *,
    unit: str = "k records/s",
    each: str = "record",
    per: float = 1e3,
    goal: Goal = GOAL,
) -> Row:
    """Return the row for units a second, counted in `per`."""
    rates = {name: [one.count / one.seconds / per for one in samples[name]] for name in (client, peer)}
    return Row(workload, durability, client, peer, unit, rates, each, *_cpu(samples, client, peer), goal)


def least_row(
    workload: str,
    durability: str,
    samples: Mapping[str, Sequence[Sample]],
    client: str,
    peer: str,
    *,
    what: str,
    unit: str = "us",
    each: str = "record",
    goal: Goal,
) -> Row:
    """Return the row for one of the further figures of a workload, such as a percentile, of which less is better."""
    values = {name: [one.rates[what] for one in samples[name]] for name in (client, peer)}
    return Row(workload, durability, client, peer, unit, values, each, *_cpu(samples, client, peer), goal, True)


def _cpu(
    samples: Mapping[str, Sequence[Sample]], *names: str
) -> tuple[Mapping[str, Sequence[float]], Mapping[str, Sequence[float]]]:
    return (
        {name: [one.client_cpu_s / one.count * 1e6 for one in samples[name]] for name in names},
        {name: [one.cpu_s / one.count * 1e6 for one in samples[name]] for name in names},
    )


def table(rows: Sequence[Row]) -> list[str]:
    """Return the table in Markdown. Where two figures share a field, the peer's is first."""
    lines = [
        "| workload | durability | client / peer | peer | Semel | ratio | lowest to highest | client's CPU "
        "| node's CPU | goal (floor) | |",
        "|---|---|---|---:|---:|---:|---|---|---|---|---|",
    ]
    for row in rows:
        both = (row.peer, row.client)
        shown = " | ".join(f"{number(statistics.median(row.samples[name]))} {row.unit}" for name in both)
        spread = " / ".join(f"{number(min(row.samples[name]))} to {number(max(row.samples[name]))}" for name in both)
        costs = " | ".join(
            " / ".join(number(statistics.median(taken[name])) for name in both) + f" us a {row.each}"
            for taken in (row.client_us, row.node_us)
        )
        lines.append(
            f"| {row.workload} | {row.durability} | {row.client} / {row.peer} | {shown} | {row.ratio:.2f}x | {spread} "
            f"| {costs} | {row.goal} | {row.verdict} |"
        )
    return lines
