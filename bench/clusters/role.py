"""What one partition with one replica costs on one node: this checkout beside another, in turns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import dataplane
from harness import NodeProcess, Sample, in_turns, measured, running_node
from workloads.kafka_peers import DISK, OS, new_topic

from clusters.report import ClusterRow, Goal, Scale

THIS, OTHER = "this", "other"
TOPIC = "bench"
FETCH_BYTES = 4 << 10
ROUNDS_MIN = 5
"""Two in a hundred is less than what single runs differ by."""


def python_of(checkout: Path) -> str:
    """Return the Python of a checkout that was built. Raises `FileNotFoundError`, which says how to build it."""
    python = checkout / ".venv" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{python} does not exist; run `make build` in {checkout}")
    return str(python.absolute())


def role(checkout: Path, scale: Scale) -> list[ClusterRow]:
    """Small requests to a node of each checkout: CPU of the node for each."""
    frame = dataplane.produce_frame(TOPIC, 0, dataplane.batch_of(100), -1)
    requests: dict[str, Callable[[NodeProcess], float]] = {
        "a produce of 100 B, 1 connection": lambda node: dataplane.unpipelined(node, [frame], scale.seconds),
        "a produce of 100 B, 32 connections": lambda node: dataplane.unpipelined(node, [frame] * 32, scale.seconds),
        "a produce of 100 B, 100 in flight": lambda node: dataplane.pipelined(node, frame, scale.seconds, 100),
        "a fetch of 4 KiB, 1 connection": lambda node: (
            dataplane.fetches(node, TOPIC, 0, FETCH_BYTES, scale.seconds, 1) / FETCH_BYTES
        ),
    }
    rows = []
    for durability in (OS, DISK):
        with ExitStack() as stack:
            nodes = {
                OTHER: stack.enter_context(running_node({"durability": durability}, python=python_of(checkout))),
                THIS: stack.enter_context(running_node({"durability": durability})),
            }
            for node in nodes.values():
                new_topic(node, TOPIC)
                dataplane.fill(node, TOPIC, 0, 100, 100 << 10)
            for label, run in requests.items():
                variants: dict[str, Callable[[], Sample]] = {
                    name: partial(measured, node, partial(run, node)) for name, node in nodes.items()
                }
                samples = in_turns(variants, max(scale.rounds, ROUNDS_MIN))
                cpu = {name: [one.cpu_s / one.count * 1e6 for one in taken] for name, taken in samples.items()}
                rows.append(ClusterRow(f"CPU of {label}", durability, "us", cpu, True, goal=Goal(1.02, 1.02)))
    return rows
