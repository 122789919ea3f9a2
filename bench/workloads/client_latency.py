"""Paced records through Semel's clients and their peers, and what waiting for many partitions costs a consumer."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from clusters.report import Goal
from harness import NodeProcess, Sample, Stopwatch

import semel
import semel.aio
from workloads.client_peers import (
    AIOKAFKA,
    CONFLUENT,
    SEMEL,
    SEMEL_ASYNCIO,
    Nodes,
    Row,
    Scale,
    in_loop,
    least_row,
    topic_of,
    turns,
)
from workloads.common import DURABILITIES
from workloads.kafka_peers import OS, TIMEOUT_S, client
from workloads.latency import PACE, WARM, Times, end_offset, paced_sdk, paced_threads

LESS: Final = Goal(0.4, 0.7)
PACED: Final = "paced"
WIDE: Final = "wide"


def latency(nodes: Nodes, scale: Scale) -> list[Row]:
    """500 records of 100 B a second, one at a time: until acknowledged, and until a waiting consumer has them."""
    rows = []
    for durability in DURABILITIES:
        node, seconds = nodes[durability], scale.seconds * 2
        with topic_of(node, PACED, 1):
            samples = turns(
                {
                    SEMEL: partial(paced_sdk, node, PACED, seconds),
                    CONFLUENT: partial(paced_confluent, node, seconds),
                    SEMEL_ASYNCIO: partial(in_loop, paced_semel_asyncio, node, seconds),
                    AIOKAFKA: partial(in_loop, paced_aiokafka, node, seconds),
                },
                scale.rounds,
            )
        rows += [
            least_row(f"{what}, {PACE} records/s", durability, samples, ours, theirs, what=what, goal=LESS)
            for ours, theirs in ((SEMEL, CONFLUENT), (SEMEL_ASYNCIO, AIOKAFKA))
            for what in samples[ours][0].rates
        ]
    return rows


@contextmanager
def confluent_consumer(node: NodeProcess, places: Sequence[tuple[str, int, int]]) -> Iterator[confluent_kafka.Consumer]:
    """Have a consumer of partitions, each from an offset on."""
    consumer = confluent_kafka.Consumer(
        client(node, group_id="bench", enable_auto_commit=False, isolation_level="read_committed")
    )
    consumer.assign([confluent_kafka.TopicPartition(*place) for place in places])
    try:
        yield consumer
    finally:
        consumer.close()


def paced_confluent(node: NodeProcess, seconds: float) -> Sample:
    producer = confluent_kafka.Producer(client(node, linger_ms=0, enable_idempotence=True))
    acknowledged = 0

    def delivered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        nonlocal acknowledged
        assert error is None, error
        acknowledged += 1

    def send(value: bytes) -> None:
        before = acknowledged
        producer.produce(PACED, value, on_delivery=delivered)
        while acknowledged == before:
            producer.poll(TIMEOUT_S)

    with confluent_consumer(node, [(PACED, 0, end_offset(node, PACED))]) as consumer:

        def poll() -> list[bytes | None]:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            return [message.value()]

        return paced_threads(node, seconds, send, poll)


async def paced_semel_asyncio(node: NodeProcess, seconds: float) -> Sample:
    async with semel.aio.Consumer(node.grpc) as consumer, semel.aio.Producer(node.grpc, linger_ms=0) as producer:
        tp = semel.TopicPartition(PACED, 0)
        consumer.assign([tp])
        consumer.seek(tp, (await consumer.end_offsets([tp]))[tp])

        async def send(value: bytes) -> None:
            await (await producer.send(PACED, value))

        async def poll() -> list[bytes | None]:
            found = await consumer.poll(TIMEOUT_S, 100)
            assert found is not None
            return [record.value for record in found]

        return await paced_tasks(node, seconds, send, poll)


async def paced_aiokafka(node: NodeProcess, seconds: float) -> Sample:
    async with (
        AIOKafkaConsumer(bootstrap_servers=node.bootstrap, isolation_level="read_committed") as consumer,
        AIOKafkaProducer(bootstrap_servers=node.bootstrap, enable_idempotence=True) as producer,
    ):
        tp = AioTopicPartition(PACED, 0)
        consumer.assign([tp])
        consumer.seek(tp, (await consumer.end_offsets([tp]))[tp])

        async def send(value: bytes) -> None:
            await producer.send_and_wait(PACED, value)

        async def poll() -> list[bytes | None]:
            found = await consumer.getmany(timeout_ms=int(TIMEOUT_S * 1e3), max_records=100)
            return [record.value for some in found.values() for record in some]

        return await paced_tasks(node, seconds, send, poll)


async def paced_tasks(
    node: NodeProcess,
    seconds: float,
    send: Callable[[bytes], Awaitable[None]],
    poll: Callable[[], Awaitable[Sequence[bytes | None]]],
) -> Sample:
    """Do what `paced_threads` does, with two tasks of one loop."""
    times = Times(int(seconds * PACE))
    await send(WARM)
    await poll()

    async def consume() -> None:
        while not times.are_complete:
            times.arrive(await poll())

    waiting = asyncio.ensure_future(consume())
    watch, begin = Stopwatch(node), time.perf_counter()
    for n in range(times.count):
        await asyncio.sleep(max(0.0, begin + n / PACE - time.perf_counter()))
        value = times.next_value(n)
        await send(value)
        times.acknowledged[n] = time.perf_counter()
    await waiting
    return times.sample(watch.stop(times.count))


def idle(nodes: Nodes, scale: Scale) -> list[Row]:
    """One consumer of many partitions: nothing comes for a while, then a record in one of them now and then."""
    node, partitions = nodes[OS], scale.idle_partitions
    with topic_of(node, WIDE, partitions):
        quiet = turns(
            {SEMEL: partial(wait_semel, node, scale), CONFLUENT: partial(wait_confluent, node, scale)}, scale.rounds
        )
    label = f"one of {partitions:,} partitions"
    return [
        least_row(f"a record in {label}, {what}", OS, quiet, SEMEL, CONFLUENT, what=what, unit=unit, goal=LESS)
        for what, unit in (("end to end p50", "us"), ("consumer's CPU of waiting", "us a second"))
    ]


def wait_semel(node: NodeProcess, scale: Scale) -> Sample:
    tps = [semel.TopicPartition(WIDE, number) for number in range(scale.idle_partitions)]
    with semel.Consumer(node.grpc) as consumer:
        consumer.assign(tps)
        for tp, offset in consumer.end_offsets(tps).items():
            consumer.seek(tp, offset)
        return _waiting(node, scale, lambda seconds: consumer.poll(seconds, 100) is not None)


def wait_confluent(node: NodeProcess, scale: Scale) -> Sample:
    ends = [(WIDE, number, confluent_kafka.OFFSET_END) for number in range(scale.idle_partitions)]
    with confluent_consumer(node, ends) as consumer:
        return _waiting(node, scale, lambda seconds: consumer.poll(seconds) is not None)


def _waiting(node: NodeProcess, scale: Scale, poll: Callable[[float], bool]) -> Sample:
    """Measure a consumer at the ends of all partitions. The records are sent by Semel's producer for either."""
    with semel.Producer(node.grpc, linger_ms=0) as producer:
        assert not poll(2)  # connects, and finds its places
        watch = Stopwatch(node)
        assert not poll(scale.seconds)
        at_rest = watch.stop(1)
        delays = []
        watch = Stopwatch(node)
        for number in range(50):
            sent = time.perf_counter()
            producer.send(WIDE, VALUE, partition=number % scale.idle_partitions)
            assert poll(TIMEOUT_S)
            delays.append(time.perf_counter() - sent)
        taken = watch.stop(len(delays))
    figures = {
        "end to end p50": statistics.median(delays) * 1e6,
        "consumer's CPU of waiting": at_rest.client_cpu_s / at_rest.seconds * 1e6,
    }
    return replace(taken, rates=figures)


VALUE: Final = b"x" * 100
