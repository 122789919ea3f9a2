"""What four client libraries write and read of a record: key, value, headers and timestamp, in one form for all."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from foreign_clients import QUIET

import semel
from semel.protocol.ids import TopicPartition

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses what Python 3.11 deprecates
    import kafka
    from kafka.structs import TopicPartition as KafkaPartition

PATIENCE_S: Final = 30
LARGEST_BYTES: Final = 16 * 1024 * 1024
"""What every client is told to send and to take."""


class Row(NamedTuple):
    """One record, as any of them would have it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class Address(Protocol):
    """Where a node listens: `kafka` for foreign clients, `grpc` for our own."""

    @property
    def kafka(self) -> str: ...
    @property
    def grpc(self) -> str: ...


Write = Callable[[Address, str, int, Sequence[Row], str], list[int]]
"""Called with topic, partition, rows and codec; returns the offsets that the broker gave."""
Read = Callable[[Address, TopicPartition, int, int], list[tuple[int, Row]]]
"""Called with the first offset and how many; returns offsets and rows."""
Find = Callable[[Address, TopicPartition, int], int | None]
"""Returns the offset of the first record from a time on, None where there is none."""


def confluent_writes(at: Address, topic: str, partition: int, rows: Sequence[Row], codec: str) -> list[int]:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": at.kafka,
            "compression.type": codec,
            "message.max.bytes": LARGEST_BYTES,
            "linger.ms": 5,
        },
        logger=QUIET,
    )
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for row in rows:
        producer.produce(
            topic,
            row.value,
            row.key,
            partition,
            headers=list(row.headers),
            timestamp=row.timestamp_ms,
            on_delivery=delivered,
        )
    assert producer.flush(PATIENCE_S) == 0
    return offsets


def kafka_python_writes(at: Address, topic: str, partition: int, rows: Sequence[Row], codec: str) -> list[int]:
    producer = kafka.KafkaProducer(
        bootstrap_servers=at.kafka,
        compression_type=None if codec == "none" else codec,
        max_request_size=LARGEST_BYTES,
        linger_ms=5,
    )
    try:
        sent = [
            producer.send(
                topic,
                value=row.value,
                key=row.key,
                headers=list(row.headers),
                partition=partition,
                timestamp_ms=row.timestamp_ms,
            )
            for row in rows
        ]
        return [future.get(PATIENCE_S).offset for future in sent]
    finally:
        producer.close()


def aiokafka_writes(at: Address, topic: str, partition: int, rows: Sequence[Row], codec: str) -> list[int]:
    async def work() -> list[int]:
        producer = AIOKafkaProducer(
            bootstrap_servers=at.kafka,
            compression_type=None if codec == "none" else codec,
            max_request_size=LARGEST_BYTES,
            linger_ms=5,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    value=row.value,
                    key=row.key,
                    headers=list(row.headers),
                    partition=partition,
                    timestamp_ms=row.timestamp_ms,
                )
                for row in rows
            ]
            async with asyncio.timeout(PATIENCE_S):
                return [found.offset for found in await asyncio.gather(*sent)]
        finally:
            await producer.stop()

    return asyncio.run(work())


def semel_writes(at: Address, topic: str, partition: int, rows: Sequence[Row], codec: str) -> list[int]:
    with semel.Producer(at.grpc, compression=codec, record_bytes_max=LARGEST_BYTES) as producer:
        sent = [
            producer.send(
                topic,
                row.value,
                key=row.key,
                headers=row.headers,
                partition=partition,
                timestamp_ms=row.timestamp_ms,
            )
            for row in rows
        ]
        return [delivery.result(PATIENCE_S).offset for delivery in sent]


def confluent_reads(at: Address, tp: TopicPartition, first: int, count: int) -> list[tuple[int, Row]]:
    found: list[tuple[int, Row]] = []
    with confluent_consumer(at) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, first)])
        while len(found) < count:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"nothing came after {len(found)} records"
            assert message.error() is None, message.error()
            _, timestamp = message.timestamp()
            headers = tuple((name, value) for name, value in message.headers() or ())
            found.append((message.offset(), Row(message.key(), message.value(), headers, timestamp)))
    return found


def confluent_consumer(at: Address) -> Any:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": at.kafka,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": LARGEST_BYTES,
            "receive.message.max.bytes": 2 * LARGEST_BYTES + 512,
            "fetch.max.bytes": 2 * LARGEST_BYTES,
        },
        logger=QUIET,
    )


def kafka_python_consumer(at: Address) -> Any:
    return kafka.KafkaConsumer(
        bootstrap_servers=at.kafka, enable_auto_commit=False, max_partition_fetch_bytes=LARGEST_BYTES
    )


def kafka_python_reads(at: Address, tp: TopicPartition, first: int, count: int) -> list[tuple[int, Row]]:
    found: list[tuple[int, Row]] = []
    place = KafkaPartition(tp.topic, tp.partition)
    consumer = kafka_python_consumer(at)
    try:
        consumer.assign([place])
        consumer.seek(place, first)
        while len(found) < count:
            for record in consumer.poll(PATIENCE_S * 1000).get(place, ()):
                row = Row(record.key, record.value, tuple(record.headers), record.timestamp)
                found.append((record.offset, row))
    finally:
        consumer.close()
    return found[:count]


def aiokafka_reads(at: Address, tp: TopicPartition, first: int, count: int) -> list[tuple[int, Row]]:
    async def work() -> list[tuple[int, Row]]:
        found: list[tuple[int, Row]] = []
        async with aiokafka_consumer(at) as consumer:
            place = AioPartition(tp.topic, tp.partition)
            consumer.assign([place])
            consumer.seek(place, first)
            async with asyncio.timeout(PATIENCE_S):
                while len(found) < count:
                    record = await consumer.getone()
                    row = Row(record.key, record.value, tuple(record.headers), record.timestamp)
                    found.append((record.offset, row))
        return found

    return asyncio.run(work())


def aiokafka_consumer(at: Address) -> Any:
    return AIOKafkaConsumer(
        bootstrap_servers=at.kafka, enable_auto_commit=False, max_partition_fetch_bytes=LARGEST_BYTES
    )


def semel_reads(at: Address, tp: TopicPartition, first: int, count: int) -> list[tuple[int, Row]]:
    found: list[tuple[int, Row]] = []
    with semel.Consumer(at.grpc) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, first)
        while len(found) < count:
            batch = consumer.poll(PATIENCE_S)
            assert batch is not None, f"nothing came after {len(found)} records"
            found += [
                (record.offset, Row(record.key, record.value, tuple(record.headers), record.timestamp_ms))
                for record in batch
            ]
    return found[:count]


def confluent_finds(at: Address, tp: TopicPartition, timestamp_ms: int) -> int | None:
    with confluent_consumer(at) as consumer:
        asked = [confluent_kafka.TopicPartition(tp.topic, tp.partition, timestamp_ms)]
        (found,) = consumer.offsets_for_times(asked, PATIENCE_S)
        return None if found.offset == confluent_kafka.OFFSET_END else int(found.offset)


def kafka_python_finds(at: Address, tp: TopicPartition, timestamp_ms: int) -> int | None:
    consumer = kafka_python_consumer(at)
    try:
        place = KafkaPartition(tp.topic, tp.partition)
        found = consumer.offsets_for_times({place: timestamp_ms})[place]
        return None if found is None else int(found.offset)
    finally:
        consumer.close()


def aiokafka_finds(at: Address, tp: TopicPartition, timestamp_ms: int) -> int | None:
    async def work() -> int | None:
        async with aiokafka_consumer(at) as consumer:
            place = AioPartition(tp.topic, tp.partition)
            found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
            return None if found is None else int(found.offset)

    return asyncio.run(work())


def semel_finds(at: Address, tp: TopicPartition, timestamp_ms: int) -> int | None:
    with semel.Consumer(at.grpc) as consumer:
        consumer.assign([tp])
        return consumer.offsets_for_times({tp: timestamp_ms})[tp]


WRITES: Final[Mapping[str, Write]] = {
    "confluent": confluent_writes,
    "kafka-python": kafka_python_writes,
    "aiokafka": aiokafka_writes,
    "semel": semel_writes,
}
READS: Final[Mapping[str, Read]] = {
    "confluent": confluent_reads,
    "kafka-python": kafka_python_reads,
    "aiokafka": aiokafka_reads,
    "semel": semel_reads,
}
FINDS: Final[Mapping[str, Find]] = {
    "confluent": confluent_finds,
    "kafka-python": kafka_python_finds,
    "aiokafka": aiokafka_finds,
    "semel": semel_finds,
}
