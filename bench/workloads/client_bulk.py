"""Bulk by Semel's clients and their peers: sends until all are acknowledged, and records read from a topic's start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

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
    rate_row,
    topic_of,
    turns,
)
from workloads.common import BATCH_BYTES, DURABILITIES, SIZES
from workloads.kafka_peers import OS, TIMEOUT_S, client

PARTITIONS: Final = 3
LINGER_MS: Final = 5
GATHERED: Final = 500
POLLED_MAX: Final = 10_000
FILLED_BATCH_BYTES: Final = 16 << 10
CONSUMED: Final = Goal(2.0, 1.2)


# --- Producers --------------------------------------------------------------------------------------------------------


def produce(nodes: Nodes, scale: Scale) -> list[Row]:
    """Idempotent sends by one producer: by one thread, and by one task."""
    rows = []
    for durability in DURABILITIES:
        node = nodes[durability]
        with topic_of(node, "sent", PARTITIONS):
            for label, size, key in (("100 B", 100, None), ("100 B, keyed", 100, b"customer-7"), ("1 KiB", 1024, None)):
                how = (node, b"x" * size, key, scale.of_size(scale.records, size))
                samples = turns(
                    {SEMEL: partial(send_semel, *how), CONFLUENT: partial(send_confluent, *how)}, scale.rounds
                )
                rows.append(rate_row(f"produce {label}", durability, samples, SEMEL, CONFLUENT))
            for label, size, gathered in (
                ("100 B, asyncio", 100, 0),
                ("1 KiB, asyncio", 1024, 0),
                (f"100 B, asyncio, {GATHERED} acknowledgements gathered at a time", 100, GATHERED),
            ):
                asyncio_how = (node, b"x" * size, scale.of_size(scale.asyncio_records, size), gathered)
                samples = turns(
                    {
                        SEMEL_ASYNCIO: partial(in_loop, send_semel_asyncio, *asyncio_how),
                        AIOKAFKA: partial(in_loop, send_aiokafka, *asyncio_how),
                    },
                    scale.rounds,
                )
                rows.append(rate_row(f"produce {label}", durability, samples, SEMEL_ASYNCIO, AIOKAFKA))
    return rows


def send_semel(node: NodeProcess, value: bytes, key: bytes | None, records: int) -> Sample:
    with semel.Producer(node.grpc, linger_ms=LINGER_MS, batch_size_bytes=BATCH_BYTES) as producer:
        producer.send("sent", b"warm").result(TIMEOUT_S)
        send = producer.send
        watch = Stopwatch(node)
        if key is None:
            for _ in range(records):
                send("sent", value)
        else:
            for _ in range(records):
                send("sent", value, key=key)
        producer.flush()
        return watch.stop(records)


def send_confluent(node: NodeProcess, value: bytes, key: bytes | None, records: int) -> Sample:
    settings = client(node, enable_idempotence=True, linger_ms=LINGER_MS, batch_size=BATCH_BYTES)
    memory = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 65536}
    producer = confluent_kafka.Producer({**settings, **memory})
    producer.produce("sent", b"warm")
    producer.flush(TIMEOUT_S)
    send, poll = producer.produce, producer.poll
    watch = Stopwatch(node)
    for _ in range(records):
        while True:
            try:
                send("sent", value, key)
                break
            except BufferError:
                poll(0.01)
    assert producer.flush(TIMEOUT_S) == 0
    return watch.stop(records)


async def send_semel_asyncio(node: NodeProcess, value: bytes, records: int, gathered: int) -> Sample:
    async with semel.aio.Producer(node.grpc, linger_ms=LINGER_MS, batch_size_bytes=BATCH_BYTES) as producer:
        await (await producer.send("sent", b"warm"))
        return await _send_in_loop(node, producer, value, records, gathered)


async def send_aiokafka(node: NodeProcess, value: bytes, records: int, gathered: int) -> Sample:
    async with AIOKafkaProducer(
        bootstrap_servers=node.bootstrap,
        enable_idempotence=True,
        acks="all",
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES,
    ) as producer:
        await producer.send_and_wait("sent", b"warm")
        return await _send_in_loop(node, producer, value, records, gathered)


async def _send_in_loop(node: NodeProcess, producer: Any, value: bytes, records: int, gathered: int) -> Sample:
    watch = Stopwatch(node)
    if gathered:
        for _ in range(0, records, gathered):
            await asyncio.gather(*[await producer.send("sent", value) for _ in range(gathered)])
    else:
        for _ in range(records):
            await producer.send("sent", value)
        await producer.flush()
    return watch.stop(records)


# --- Consumers --------------------------------------------------------------------------------------------------------


def consume(nodes: Nodes, scale: Scale) -> list[Row]:
    """Read committed, by one consumer without a group, in batches of up to 16 KiB: as batches, values, one by one.

    From the first record on, which waits for connections and metadata.
    """
    node = nodes[OS]
    rows = []
    for label, size in zip(("100 B", "1 KiB"), SIZES, strict=True):
        count = scale.of_size(scale.records, size)
        with topic_of(node, "read", PARTITIONS):
            fill(node, size, count)
            samples = turns({name: partial(run, node, count) for name, run in READERS.items()}, scale.rounds)
            asyncio_samples = turns(
                {name: partial(run, node, count // 2) for name, run in ASYNCIO_READERS.items()}, scale.rounds
            )
        for what, theirs in (("", ""), (", values", ", values"), (", one by one", "")):
            pair = {SEMEL: samples[SEMEL + what], CONFLUENT: samples[CONFLUENT + theirs]}
            rows.append(rate_row(f"consume {label}{what}", OS, pair, SEMEL, CONFLUENT, goal=CONSUMED))
        for what in ("", ", one by one"):
            pair = {name: asyncio_samples[name + what] for name in (SEMEL_ASYNCIO, AIOKAFKA)}
            rows.append(rate_row(f"consume {label}, asyncio{what}", OS, pair, SEMEL_ASYNCIO, AIOKAFKA))
    return rows


def fill(node: NodeProcess, size: int, records: int) -> None:
    value = b"x" * size
    with semel.Producer(node.grpc, linger_ms=LINGER_MS, batch_size_bytes=FILLED_BATCH_BYTES) as producer:
        for _ in range(records):
            producer.send("read", value)


def read_semel(node: NodeProcess, records: int, counted: Callable[[semel.Batch], int]) -> Sample:
    with semel.Consumer(node.grpc) as reader:
        reader.assign([semel.TopicPartition("read", number) for number in range(PARTITIONS)])
        assert reader.poll(TIMEOUT_S, 1) is not None
        watch, count = Stopwatch(node), 1
        while count < records:
            batch = reader.poll(TIMEOUT_S, POLLED_MAX)
            assert batch is not None
            count += counted(batch)
        return watch.stop(count - 1)


def read_one_by_one(node: NodeProcess, records: int) -> Sample:
    with semel.Consumer(node.grpc) as reader:
        reader.assign([semel.TopicPartition("read", number) for number in range(PARTITIONS)])
        assert reader.poll(TIMEOUT_S, 1) is not None
        watch, count = Stopwatch(node), 1
        for _ in reader:
            count += 1
            if count >= records:
                break
        return watch.stop(count - 1)


def read_confluent(node: NodeProcess, records: int, counted: Callable[[list[confluent_kafka.Message]], int]) -> Sample:
    # As in `kafka_bulk`: by default librdkafka pauses for a second once it holds 100,000 records.
    reader = confluent_kafka.Consumer(
        client(
            node,
            group_id="bench",
            enable_auto_commit=False,
            isolation_level="read_committed",
            queued_min_messages=1_000_000,
            fetch_queue_backoff_ms=1,
        )
    )
    try:
        reader.assign([confluent_kafka.TopicPartition("read", number, 0) for number in range(PARTITIONS)])
        assert counted(reader.consume(1, TIMEOUT_S)) == 1
        watch, count = Stopwatch(node), 1
        while count < records:  # `consume` waits for as many as it is asked for
            count += counted(reader.consume(min(POLLED_MAX, records - count), 1))
        return watch.stop(count - 1)
    finally:
        reader.close()


async def read_semel_asyncio(node: NodeProcess, records: int, *, one_by_one: bool) -> Sample:
    async with semel.aio.Consumer(node.grpc) as reader:
        reader.assign([semel.TopicPartition("read", number) for number in range(PARTITIONS)])
        assert await reader.poll(TIMEOUT_S, 1) is not None
        watch, count = Stopwatch(node), 1
        if one_by_one:
            async for _ in reader:
                count += 1
                if count >= records:
                    break
        while count < records:
            batch = await reader.poll(TIMEOUT_S, POLLED_MAX)
            assert batch is not None
            count += len(batch)
        return watch.stop(count - 1)


async def read_aiokafka(node: NodeProcess, records: int, *, one_by_one: bool) -> Sample:
    async with AIOKafkaConsumer(
        bootstrap_servers=node.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as reader:
        reader.assign([AioTopicPartition("read", number) for number in range(PARTITIONS)])
        await reader.getone()
        watch, count = Stopwatch(node), 1
        if one_by_one:
            async for _ in reader:
                count += 1
                if count >= records:
                    break
        while count < records:
            found = await reader.getmany(timeout_ms=int(TIMEOUT_S * 1e3), max_records=POLLED_MAX)
            count += sum(len(some) for some in found.values())
        return watch.stop(count - 1)


READERS: dict[str, Callable[[NodeProcess, int], Sample]] = {
    SEMEL: partial(read_semel, counted=len),
    CONFLUENT: partial(read_confluent, counted=len),
    f"{SEMEL}, values": partial(read_semel, counted=lambda batch: len([record.value for record in batch.records])),
    f"{CONFLUENT}, values": partial(read_confluent, counted=lambda batch: len([message.value() for message in batch])),
    f"{SEMEL}, one by one": read_one_by_one,
}
ASYNCIO_READERS: dict[str, Callable[[NodeProcess, int], Sample]] = {
    SEMEL_ASYNCIO: partial(in_loop, read_semel_asyncio, one_by_one=False),
    AIOKAFKA: partial(in_loop, read_aiokafka, one_by_one=False),
    f"{SEMEL_ASYNCIO}, one by one": partial(in_loop, read_semel_asyncio, one_by_one=True),
    f"{AIOKAFKA}, one by one": partial(in_loop, read_aiokafka, one_by_one=True),
}
