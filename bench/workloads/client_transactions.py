"""Transactions by Semel's producer and its peers, and consume, transform, produce with the offsets in them."""

from __future__ import annotations

import time
from functools import partial
from typing import Final, TypedDict

import confluent_kafka
from aiokafka import AIOKafkaProducer
from clusters.report import Goal
from harness import NodeProcess, Sample, Stopwatch

import semel
from workloads.client_peers import AIOKAFKA, CONFLUENT, SEMEL, Nodes, Row, Scale, in_loop, rate_row, topic_of, turns
from workloads.common import DURABILITIES
from workloads.kafka_peers import TIMEOUT_S, client
from workloads.kafka_requests import TRANSACTIONS, commit_again_and_again
from workloads.latency import end_offset
from workloads.transactions import prepare_pipeline, transform

COMMITTED: Final = Goal(3.0, 1.5)
VALUE: Final = b"v" * 100
PIPELINE_BATCH: Final = 1_000


class Shape(TypedDict):
    """What is in a transaction, and how long a turn is."""

    records: int
    partitions: int
    seconds: float


def transactions(nodes: Nodes, scale: Scale) -> list[Row]:
    """One producer that commits one transaction after the other."""
    rows = []
    for durability in DURABILITIES:
        node = nodes[durability]
        with topic_of(node, "transactions", 10):
            for label, records, partitions in TRANSACTIONS:
                shape = Shape(records=records, partitions=partitions, seconds=scale.seconds)
                samples = turns(
                    {
                        SEMEL: partial(commit_semel, node, **shape),
                        CONFLUENT: partial(commit_again_and_again, node, **shape),
                        AIOKAFKA: partial(in_loop, commit_aiokafka, node, **shape),
                    },
                    scale.rounds,
                )
                rows += [
                    rate_row(
                        f"transactions, {label}",
                        durability,
                        samples,
                        SEMEL,
                        peer,
                        unit="commits/s",
                        each="commit",
                        per=1,
                        goal=COMMITTED,
                    )
                    for peer in (CONFLUENT, AIOKAFKA)
                ]
    return rows


def commit_semel(node: NodeProcess, *, records: int, partitions: int, seconds: float) -> Sample:
    with semel.Producer(node.grpc, transactional_id=f"bench-{records}-{partitions}", linger_ms=0) as producer:

        def once() -> None:
            with producer.transaction() as txn:
                for n in range(records):
                    txn.send("transactions", VALUE, partition=n % partitions)

        once()
        watch, count, end = Stopwatch(node), 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            once()
            count += 1
        return watch.stop(count)


async def commit_aiokafka(node: NodeProcess, *, records: int, partitions: int, seconds: float) -> Sample:
    async with AIOKafkaProducer(
        bootstrap_servers=node.bootstrap, transactional_id=f"bench-{records}-{partitions}"
    ) as producer:

        async def once() -> None:
            async with producer.transaction():
                for n in range(records):
                    await producer.send("transactions", VALUE, partition=n % partitions)

        await once()
        watch, count, end = Stopwatch(node), 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            await once()
            count += 1
        return watch.stop(count)


def pipeline(nodes: Nodes, scale: Scale) -> list[Row]:
    """Consume, transform, produce: up to 1,000 records in a transaction with their offsets, as member of a group."""
    rows = []
    for durability in DURABILITIES:
        node = nodes[durability]
        prepare_pipeline(node, scale.records // 10)
        samples = turns({SEMEL: partial(transform, node), CONFLUENT: partial(transform_confluent, node)}, scale.rounds)
        with semel.Admin(node.grpc) as admin:
            for topic in ("input", "output"):
                admin.delete_topic(topic)
        label = "consume, transform, produce"
        rows.append(rate_row(label, durability, samples, SEMEL, CONFLUENT, goal=COMMITTED))
    return rows


def transform_confluent(node: NodeProcess) -> Sample:
    """Do what `transform` does."""
    name = f"pipeline-confluent-{time.monotonic_ns()}"
    total = end_offset(node, "input")
    producer = confluent_kafka.Producer(client(node, transactional_id=name))
    producer.init_transactions(TIMEOUT_S)
    consumer = confluent_kafka.Consumer(
        client(
            node,
            group_id=name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_partition_fetch_bytes=256 << 10,
        )
    )
    try:
        consumer.subscribe(["input"])
        found = consumer.consume(1, TIMEOUT_S)  # joins the group
        watch, done = Stopwatch(node), 0
        while found:
            producer.begin_transaction()
            for message in found:
                producer.produce("output", message.value(), message.key())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), TIMEOUT_S
            )
            producer.commit_transaction(TIMEOUT_S)
            done += len(found)
            # `consume` waits for as many as it is asked for
            found = consumer.consume(min(PIPELINE_BATCH, total - done), TIMEOUT_S) if done < total else []
        return watch.stop(done)
    finally:
        consumer.close()
