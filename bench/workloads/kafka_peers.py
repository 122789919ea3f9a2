"""What the workloads beside Apache Kafka share: who takes turns, how long, topics, and the rows of the table."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from harness import Peer, Sample, cpu_us_each, in_turns, measured, number, rate

KAFKA, SEMEL = "kafka", "semel"
OS, DISK = "os", "disk"
SIZES = (100, 1024)
BATCH_BYTES = 256 << 10
TIMEOUT_S = 120.0
WARM_UPS_MAX = 10


@dataclass(frozen=True)
class Scale:
    """How long and how often. `seconds` is for one turn of one workload."""

    seconds: float
    rounds: int
    megabytes: int
    java_megabytes: int
    idle_partitions: int


FULL = Scale(2.0, 5, 128, 400, 1000)
QUICK = Scale(0.3, 1, 8, 8, 50)


@dataclass(frozen=True)
class Row:
    """One line of the table. `samples` are by peer and of the same unit."""

    workload: str
    durability: str
    unit: str
    samples: Mapping[str, Sequence[float]]
    less_is_better: bool = False
    costs: Mapping[str, str] | None = None
    bound: str = ""

    def median(self, peer: str) -> float:
        return statistics.median(self.samples[peer])

    @property
    def ratio(self) -> float:
        return self.median(SEMEL) / self.median(KAFKA)


def as_json(row: Row) -> dict[str, object]:
    """Return what `plots.py` reads."""
    return {
        "workload": row.workload,
        "durability": row.durability,
        "unit": row.unit,
        "less_is_better": row.less_is_better,
        "samples": {peer: list(values) for peer, values in row.samples.items()},
        "costs": dict(row.costs or {}),
    }


Peers = Mapping[str, Mapping[str, Peer]]
"""By durability, then by name."""


def client(peer: Peer, **settings: object) -> dict[str, Any]:
    """Return librdkafka's settings, with underscores for dots; it says errors alone."""
    more = {name.replace("_", "."): value for name, value in settings.items()}
    return {"bootstrap.servers": peer.bootstrap, "log_level": 3, **more}


def new_topic(peer: Peer, name: str, partitions: int = 1, replicas: Sequence[Sequence[int]] | None = None) -> None:
    """Create a topic, and wait until its leaders answer: Kafka's know of it a moment later.

    replicas: the nodes of each partition, the leader first; by default the peer chooses as many as it makes by default
    """
    admin = AdminClient(client(peer))
    partitions = partitions if replicas is None else len(replicas)
    placed = {"replication_factor": -1} if replicas is None else {"replica_assignment": replicas}
    topic = NewTopic(name, partitions, **placed)
    for future in admin.create_topics([topic]).values():
        future.result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    asked = {confluent_kafka.TopicPartition(name, n): OffsetSpec.latest() for n in range(partitions)}
    while any(future.exception(TIMEOUT_S) for future in admin.list_offsets(asked).values()):
        assert time.monotonic() < deadline, f"{name} has no leaders"
        time.sleep(0.01)


def delete_topic(peer: Peer, name: str) -> None:
    admin = AdminClient(client(peer))
    for future in admin.delete_topics([name]).values():
        future.result(TIMEOUT_S)


def turns(
    peers: Mapping[str, Peer], run: Callable[[Peer], Sample], rounds: int, topic: str | None = None, partitions: int = 1
) -> dict[str, list[Sample]]:
    """Let the peers take turns, with a topic of their own for as long."""
    if topic is not None:
        for peer in peers.values():
            new_topic(peer, topic, partitions)
    os.sync()
    samples = in_turns({name: partial(run, peer) for name, peer in peers.items()}, rounds)
    print(".", end="", file=sys.stderr, flush=True)
    if topic is not None:
        for peer in peers.values():
            delete_topic(peer, topic)
    return samples


def warm(peer: Peer, run: Callable[[], float]) -> None:
    """Run something until it gets no cheaper: a JVM compiles what it has often run, and that takes a while."""
    cheapest = float("inf")
    for _ in range(WARM_UPS_MAX):
        cost = cpu_us_each([measured(peer, run)])
        if cost > cheapest * 0.9:
            break
        cheapest = cost


def rates(samples: Mapping[str, Sequence[Sample]], per: float = 1) -> dict[str, list[float]]:
    return {name: [one / per for one in rate(taken)[1]] for name, taken in samples.items()}


def cpu_each(samples: Mapping[str, Sequence[Sample]], unit: str) -> dict[str, str]:
    return {name: f"{number(cpu_us_each(taken))} us a {unit}" for name, taken in samples.items()}


def cpu_gb(samples: Mapping[str, Sequence[Sample]], size: int) -> dict[str, str]:
    """Return CPU seconds a GB; samples count records of `size` bytes."""
    return {name: f"{cpu_us_each(taken) * 1e3 / size:.2f} s a GB" for name, taken in samples.items()}
