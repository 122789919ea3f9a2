"""Bulk by each broker's own Python client: what a Python program gets. The client mostly bounds it, not the server.

What appends does so for `seconds`, waits until all is acknowledged, and returns how many records these are.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from typing import Any

import confluent_kafka
from harness import NodeProcess, Peer
from workloads.kafka_peers import TIMEOUT_S
from workloads.kafka_peers import client as librdkafka

import semel
from brokers import installed
from brokers.wire import ANSWER_S

AT_ONCE = 100
"""Records between two looks at the clock."""
REDIS_AT_ONCE = 1000
"""Commands of one pipeline, and records of one XREAD."""


def semel_append(peer: Peer, log: str, value: bytes, seconds: float) -> int:
    assert isinstance(peer, NodeProcess)
    count, end = 0, time.perf_counter() + seconds
    # A node that Ctrl-C has ended, too, is not waited for long.
    settings = {"linger_ms": 5, "batch_size_bytes": 256 << 10, "delivery_timeout_ms": int(ANSWER_S * 1000)}
    with semel.Producer(peer.grpc, **settings) as producer:
        while time.perf_counter() < end:
            for _ in range(AT_ONCE):
                producer.send(log, value)
            count += AT_ONCE
        producer.flush()
    return count


def semel_read(peer: Peer, log: str, count: int) -> None:
    assert isinstance(peer, NodeProcess)
    with semel.Consumer(peer.grpc) as consumer:
        consumer.assign([semel.TopicPartition(log, 0)])
        while count > 0:
            found = consumer.poll(TIMEOUT_S, 10_000)
            assert found, "nothing came"
            count -= len(found)


def confluent_append(peer: Peer, log: str, value: bytes, seconds: float) -> int:
    count, end = 0, time.perf_counter() + seconds
    producer = confluent_kafka.Producer(librdkafka(peer))
    while time.perf_counter() < end:
        try:
            producer.produce(log, value)
            count += 1
        except BufferError:
            producer.poll(0.01)
    assert producer.flush(TIMEOUT_S) == 0
    return count


def confluent_read(peer: Peer, log: str, count: int) -> None:
    settings = librdkafka(peer, group_id="bench", enable_auto_commit=False, fetch_queue_backoff_ms=1)
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.assign([confluent_kafka.TopicPartition(log, 0, confluent_kafka.OFFSET_BEGINNING)])
        while count > 0:
            found = consumer.consume(min(10_000, count), TIMEOUT_S)
            assert found, "nothing came"
            count -= len(found)
    finally:
        consumer.close()


def _client(module: str) -> Any:
    installed.use_python_client(module)
    return importlib.import_module(module)


def nats_append(peer: Peer, log: str, value: bytes, seconds: float) -> int:
    """Publish without waiting for each answer: 4,000 are on their way at most, as the client has it."""
    nats = _client("nats")

    async def run() -> int:
        end = time.perf_counter() + seconds
        connection = await nats.connect(f"nats://{peer.bootstrap}")
        stream = connection.jetstream()
        answers: list[asyncio.Future[Any]] = []
        while time.perf_counter() < end:
            answers += [await stream.publish_async(log, value) for _ in range(AT_ONCE)]
        await asyncio.gather(*answers)
        await connection.close()
        return len(answers)

    return asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def nats_read(peer: Peer, log: str, count: int) -> None:
    """Read with an ordered consumer, which the client recommends where nothing is acknowledged."""
    nats = _client("nats")

    async def run() -> None:
        connection = await nats.connect(f"nats://{peer.bootstrap}")
        subscription = await connection.jetstream().subscribe(log, ordered_consumer=True)
        for _ in range(count):
            await subscription.next_msg(TIMEOUT_S)
        await connection.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def redis_append(peer: Peer, log: str, value: bytes, seconds: float) -> int:
    redis = _client("redis")
    count, end = 0, time.perf_counter() + seconds
    with redis.Redis(*peer.address) as connection:
        while time.perf_counter() < end:
            pipeline = connection.pipeline(transaction=False)
            for _ in range(REDIS_AT_ONCE):
                pipeline.xadd(log, {"v": value})
            count += len(pipeline.execute())
    return count


def redis_read(peer: Peer, log: str, count: int) -> None:
    redis = _client("redis")
    with redis.Redis(*peer.address) as connection:
        after: bytes = b"0"
        while count > 0:
            # RESP2 answers with pairs, RESP3 with a dict: both have the records last.
            answer = connection.xread({log: after}, count=REDIS_AT_ONCE)
            assert answer, "nothing came"
            entries = answer[0][1] if isinstance(answer, list) else next(iter(answer.values()))[0]
            after = entries[-1][0]
            count -= len(entries)
