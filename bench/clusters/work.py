"""What three nodes do while all of them live: bulk, paced requests, transactions."""

from __future__ import annotations

import os
from functools import partial

from harness import Sample, in_turns
from workloads.kafka_bulk import send_confluent
from workloads.kafka_peers import OS, SEMEL, cpu_each, cpu_gb, delete_topic, new_topic, rates, turns, warm
from workloads.kafka_requests import commit_again_and_again, end_of
from workloads.latency import paced_raw

from clusters.peers import Cluster, Pair
from clusters.report import ClusterRow, Goal, Scale

LARGE_BATCHES: dict[str, object] = {"batch.size": 1_000_000, "linger.ms": 50}
PRODUCES: tuple[tuple[str, int, dict[str, object], Goal], ...] = (
    ("librdkafka's defaults", 100, {}, Goal(1.0, 0.8)),
    ("librdkafka's defaults", 1024, {}, Goal(1.0, 0.8)),
    ("librdkafka, batches of 1 MB", 100, LARGE_BATCHES, Goal(1.3, 1.0)),
    ("librdkafka, batches of 1 MB", 1024, LARGE_BATCHES, Goal(1.3, 1.0)),
)
DURABLE = Goal(4.0, 2.0)
PARTITIONS = 10
PACED = "paced"


def warm_up(cluster: Cluster, scale: Scale) -> None:
    """Do some of everything until it gets no cheaper."""
    new_topic(cluster, "bulk", 3)
    new_topic(cluster, "transactions", PARTITIONS)
    cluster.new_topic(PACED, [1])

    def some_of_everything() -> float:
        send_confluent(cluster, size=100, records=scale.megabytes * 1_000, settings={})
        paced_raw(cluster, PACED, scale.seconds, end_of(cluster, PACED))
        commit_again_and_again(cluster, records=PARTITIONS, partitions=PARTITIONS, seconds=scale.seconds)
        return 1.0

    warm(cluster, some_of_everything)
    for topic in ("bulk", "transactions", PACED):
        delete_topic(cluster, topic)


def produce(pair: Pair, kind: str, scale: Scale) -> list[ClusterRow]:
    """Bulk with acks=all by librdkafka, to 3 partitions: with its defaults, and with batches of 1 MB."""
    rows = []
    megabytes = scale.megabytes if kind == OS else max(1, scale.megabytes // 4)
    for label, size, settings, goal in PRODUCES:
        run = partial(send_confluent, size=size, records=megabytes * 1_000_000 // size, settings=settings)
        samples = turns(pair, run, scale.rounds, "bulk", 3)
        rows.append(
            ClusterRow(
                f"produce {size} B, {label}",
                kind,
                "k records/s",
                rates(samples, 1e3),
                costs=cpu_gb(samples, size),
                goal=goal if kind == OS else DURABLE,
            )
        )
    return rows


def latency(pair: Pair, kind: str, scale: Scale) -> list[ClusterRow]:
    """500 records of 100 B a second, raw, to one partition: until acknowledged, and until a waiting fetch has them."""
    for cluster in pair.values():
        cluster.new_topic(PACED, [1])
    os.sync()
    samples = in_turns(
        {name: partial(_paced, cluster, scale.seconds * 2) for name, cluster in pair.items()}, scale.rounds
    )
    for cluster in pair.values():
        delete_topic(cluster, PACED)
    goals = {"acknowledged p50": Goal(0.8, 1.0), "acknowledged p99": Goal(0.7, 1.0)}
    return [
        ClusterRow(
            f"{what}, 500 records/s",
            kind,
            "us",
            {name: [one.rates[what] for one in taken] for name, taken in samples.items()},
            True,
            cpu_each(samples, "record"),
            goal=goals.get(what),
        )
        for what in samples[SEMEL][0].rates
    ]


def _paced(cluster: Cluster, seconds: float) -> Sample:
    return paced_raw(cluster, PACED, seconds, end_of(cluster, PACED))


def transactions(pair: Pair, kind: str, scale: Scale) -> list[ClusterRow]:
    """One librdkafka producer that commits one transaction of 10 records in 10 partitions after the other."""
    run = partial(commit_again_and_again, records=PARTITIONS, partitions=PARTITIONS, seconds=scale.seconds)
    samples = turns(pair, run, scale.rounds, "transactions", PARTITIONS)
    costs = cpu_each(samples, "transaction")
    goal = Goal(1.5, 1.0)
    label = f"transactions, {PARTITIONS} partitions over 3 nodes"
    return [ClusterRow(label, kind, "transactions/s", rates(samples), costs=costs, goal=goal)]
