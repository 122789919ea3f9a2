"""Requests beside Apache Kafka: tiny ones, paced ones, transactions."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

import confluent_kafka
import dataplane
from harness import Peer, Sample, measured

from workloads.kafka_peers import DISK, KAFKA, OS, TIMEOUT_S, Peers, Row, Scale, client, cpu_each, rates, turns
from workloads.latency import paced_raw

TRANSACTIONS: Final = (("1 record", 1, 1), ("100 records", 100, 1), ("10 partitions", 10, 10))
"""What is in a transaction: how many records, in how many partitions."""


def tiny(peers: Peers, scale: Scale) -> list[Row]:
    """A record of 100 B a request, raw: 1 and 32 connections with one in flight, and 100 in flight on one."""
    rows = []
    batch = dataplane.batch_of(100)
    for durability in (OS, DISK):
        waits = "Python and system calls" if durability == OS else "syncs"
        for connections, partitions in ((1, 1), (32, 1), (32, 32)):
            frames = [dataplane.produce_frame("tiny", n % partitions, batch, -1) for n in range(connections)]
            samples = turns(
                peers[durability],
                lambda peer, frames=frames: measured(peer, lambda: dataplane.unpipelined(peer, frames, scale.seconds)),
                scale.rounds,
                "tiny",
                partitions,
            )
            label = f"one 100 B record a request, {connections} connections, {partitions} partitions"
            costs = cpu_each(samples, "request")
            rows.append(Row(label, durability, "k requests/s", rates(samples, 1e3), costs=costs, bound=waits))
        frame = dataplane.produce_frame("tiny", 0, batch, -1)
        samples = turns(
            peers[durability],
            lambda peer, frame=frame: measured(peer, lambda: dataplane.pipelined(peer, frame, scale.seconds, 100)),
            scale.rounds,
            "tiny",
        )
        label = "one 100 B record a request, 100 in flight on 1 connection"
        costs = cpu_each(samples, "request")
        rows.append(Row(label, durability, "k requests/s", rates(samples, 1e3), costs=costs, bound=waits))
    return rows


def latency(peers: Peers, scale: Scale) -> list[Row]:
    """500 records of 100 B a second, raw: until acknowledged, and until a waiting fetch has them."""
    rows = []
    for durability in (OS, DISK):
        samples = turns(
            peers[durability],
            lambda peer: paced_raw(peer, "paced", scale.seconds * 2, end_of(peer, "paced")),
            scale.rounds,
            "paced",
        )
        for what in samples[KAFKA][0].rates:
            values = {name: [one.rates[what] for one in taken] for name, taken in samples.items()}
            bound = "wake-ups of two processes" if durability == OS else "a sync, and wake-ups"
            costs = cpu_each(samples, "record")
            rows.append(Row(f"{what}, 500 records/s", durability, "us", values, True, costs, bound))
    return rows


def end_of(peer: Peer, topic: str) -> int:
    consumer = confluent_kafka.Consumer(client(peer, group_id="bench"))
    try:
        return int(consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), TIMEOUT_S)[1])
    finally:
        consumer.close()


def transactions(peers: Peers, scale: Scale) -> list[Row]:
    """One librdkafka producer that commits one transaction after the other."""
    rows = []
    for durability in (OS, DISK):
        for label, records, partitions in TRANSACTIONS:
            run = partial(commit_again_and_again, records=records, partitions=partitions, seconds=scale.seconds)
            samples = turns(peers[durability], run, scale.rounds, "transactions", 10)
            costs = cpu_each(samples, "transaction")
            bound = "steps one after the other: join, data, decision, markers, completion"
            rows.append(
                Row(f"transactions, {label}", durability, "transactions/s", rates(samples), costs=costs, bound=bound)
            )
    return rows


def commit_again_and_again(peer: Peer, *, records: int, partitions: int, seconds: float) -> Sample:
    producer = confluent_kafka.Producer(client(peer, transactional_id=f"bench-{records}-{partitions}", linger_ms=0))
    producer.init_transactions(TIMEOUT_S)

    def once() -> None:
        producer.begin_transaction()
        for n in range(records):
            producer.produce("transactions", b"v" * 100, partition=n % partitions)
        producer.commit_transaction(TIMEOUT_S)

    def run() -> float:
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            once()
            count += 1
        return count

    once()
    return measured(peer, run)
