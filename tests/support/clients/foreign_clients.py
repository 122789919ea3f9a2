"""confluent-kafka, aiokafka, kafka-python and our own SDK behind one interface: a test runs with each."""

from __future__ import annotations

import asyncio
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import KafkaError as AioError
from aiokafka.structs import OffsetAndMetadata as AioOffset

import semel
from semel.protocol.ids import TopicPartition

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses what Python 3.11 deprecates
    import kafka
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata
    from kafka.structs import TopicPartition as KafkaPartition

QUIET = logging.getLogger("foreign.librdkafka")
QUIET.setLevel(logging.CRITICAL)
"""librdkafka tells on stderr of every connection that a test takes from it."""

PATIENCE_S = 30


class Bootstrap(Protocol):
    """Where a node listens: `kafka` for foreign clients, `grpc` for our own."""

    kafka: str
    grpc: str


class FailedError(Exception):
    """What a client raised, and whether it says that it was fenced."""

    def __init__(self, error: BaseException, fenced: bool) -> None:
        super().__init__(repr(error))
        self.fenced = fenced


class Writer(Protocol):
    """A producer. Transactional with a name; calls raise `FailedError`."""

    def begin(self) -> None: ...
    def send(self, topic: str, values: Iterable[bytes], partition: int = 0) -> None: ...
    def offsets(self, offsets: Mapping[TopicPartition, int], consumer: Any) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class ConfluentWriter:
    def __init__(
        self, at: Bootstrap, name: str | None = None, *, timeout_ms: int = 20_000, codec: str = "none"
    ) -> None:
        options: dict[str, Any] = {"enable.idempotence": True, "compression.type": codec, "linger.ms": 2}
        if name is not None:
            options |= {"transactional.id": name, "transaction.timeout.ms": timeout_ms}
        self._producer = confluent_kafka.Producer({"bootstrap.servers": at.kafka, **options}, logger=QUIET)
        if name is not None:
            self._try(self._producer.init_transactions, PATIENCE_S)

    def begin(self) -> None:
        self._try(self._producer.begin_transaction)

    def send(self, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
        failed: list[Any] = []

        def told(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for value in values:
            self._try(self._producer.produce, topic, value, partition=partition, on_delivery=told)
        assert self._producer.flush(PATIENCE_S) == 0
        if failed:
            raise FailedError(confluent_kafka.KafkaException(failed[0]), _is_fenced(failed[0]))

    def offsets(self, offsets: Mapping[TopicPartition, int], consumer: Any) -> None:
        self._try(
            self._producer.send_offsets_to_transaction,
            [confluent_kafka.TopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()],
            consumer.metadata(),
            PATIENCE_S,
        )

    def commit(self) -> None:
        self._try(self._producer.commit_transaction, PATIENCE_S)

    def abort(self) -> None:
        self._try(self._producer.abort_transaction, PATIENCE_S)

    def close(self) -> None:
        self._try(self._producer.purge)

    @staticmethod
    def _try(call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        try:
            return call(*args, **more)
        except confluent_kafka.KafkaException as error:
            raise FailedError(error, _is_fenced(error.args[0])) from error


def _is_fenced(error: Any) -> bool:
    return error.code() in (
        confluent_kafka.KafkaError._FENCED,
        confluent_kafka.KafkaError.PRODUCER_FENCED,
        confluent_kafka.KafkaError.INVALID_PRODUCER_EPOCH,
    )


class KafkaPythonWriter:
    def __init__(
        self, at: Bootstrap, name: str | None = None, *, timeout_ms: int = 20_000, codec: str = "none"
    ) -> None:
        options: dict[str, Any] = {"compression_type": None if codec == "none" else codec, "enable_idempotence": True}
        if name is not None:
            options |= {"transactional_id": name, "transaction_timeout_ms": timeout_ms}
        self._producer = kafka.KafkaProducer(bootstrap_servers=at.kafka, **options)
        if name is not None:
            self._try(self._producer.init_transactions)

    def begin(self) -> None:
        self._try(self._producer.begin_transaction)

    def send(self, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
        sent = [self._try(self._producer.send, topic, value, partition=partition) for value in values]
        for future in sent:
            self._try(future.get, PATIENCE_S)

    def offsets(self, offsets: Mapping[TopicPartition, int], consumer: Any) -> None:
        places = {
            KafkaPartition(tp.topic, tp.partition): OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()
        }
        self._try(self._producer.send_offsets_to_transaction, places, consumer.metadata())

    def commit(self) -> None:
        self._try(self._producer.commit_transaction)

    def abort(self) -> None:
        self._try(self._producer.abort_transaction)

    def close(self) -> None:
        self._try(self._producer.close, timeout=2)

    @staticmethod
    def _try(call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        try:
            return call(*args, **more)
        except KafkaError as error:
            raise FailedError(error, "Fenced" in repr(error) or "ProducerEpoch" in repr(error)) from error


class AioWriter:
    def __init__(
        self, at: Bootstrap, name: str | None = None, *, timeout_ms: int = 20_000, codec: str = "none"
    ) -> None:
        self._runner = asyncio.Runner()
        options: dict[str, Any] = {"compression_type": None if codec == "none" else codec, "enable_idempotence": True}
        if name is not None:
            options |= {"transactional_id": name, "transaction_timeout_ms": timeout_ms}

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(bootstrap_servers=at.kafka, **options)
            await producer.start()
            return producer

        self._producer: AIOKafkaProducer = self._run(start())

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
        async def work() -> None:
            for sent in [await self._producer.send(topic, value, partition=partition) for value in values]:
                await sent

        self._run(work())

    def offsets(self, offsets: Mapping[TopicPartition, int], consumer: Any) -> None:
        places = {AioPartition(tp.topic, tp.partition): AioOffset(offset, "") for tp, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(places, consumer.metadata()))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        self._run(self._producer.stop())
        self._runner.close()

    def _run(self, work: Any) -> Any:
        try:
            return self._runner.run(asyncio.wait_for(_of(work), PATIENCE_S))
        except AioError as error:
            raise FailedError(error, "Fenced" in repr(error)) from error


async def _of(work: Any) -> Any:
    return await work


class SemelWriter:
    def __init__(
        self, at: Bootstrap, name: str | None = None, *, timeout_ms: int = 20_000, codec: str = "none"
    ) -> None:
        self._producer = semel.Producer(
            at.grpc, transactional_id=name, transaction_timeout_ms=timeout_ms, compression=codec
        )

    def begin(self) -> None:
        self._try(self._producer.begin_transaction)

    def send(self, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
        for value in values:
            self._try(self._producer.send, topic, value, partition=partition)
        self._try(self._producer.flush)

    def offsets(self, offsets: Mapping[TopicPartition, int], consumer: Any) -> None:
        self._try(self._producer.send_offsets, dict(offsets), consumer.metadata())

    def commit(self) -> None:
        self._try(self._producer.commit_transaction)

    def abort(self) -> None:
        self._try(self._producer.abort_transaction)

    def close(self) -> None:
        self._try(self._producer.close, 2)

    @staticmethod
    def _try(call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        try:
            return call(*args, **more)
        except semel.SemelError as error:
            raise FailedError(error, isinstance(error, semel.FencedError)) from error


WRITERS: Mapping[str, Callable[..., Writer]] = {
    "confluent": ConfluentWriter,
    "kafka-python": KafkaPythonWriter,
    "aiokafka": AioWriter,
    "semel": SemelWriter,
}


# --- Readers ----------------------------------------------------------------------------------------------------------


def read_with_confluent(at: Bootstrap, tps: list[TopicPartition], committed: bool) -> dict[TopicPartition, list[bytes]]:
    found: dict[TopicPartition, list[bytes]] = {tp: [] for tp in tps}
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": at.kafka,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "earliest",
        },
        logger=QUIET,
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, 0) for tp in tps])
        ended: set[TopicPartition] = set()
        while ended != set(tps):
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"nothing came, and only {ended} have ended"
            tp = TopicPartition(message.topic(), message.partition())
            if message.error() is None:
                found[tp].append(message.value())
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(tp)
            else:
                raise confluent_kafka.KafkaException(message.error())
    finally:
        consumer.close()
    return found


def read_with_kafka_python(
    at: Bootstrap, tps: list[TopicPartition], committed: bool
) -> dict[TopicPartition, list[bytes]]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=at.kafka,
        isolation_level="read_committed" if committed else "read_uncommitted",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    found: dict[TopicPartition, list[bytes]] = {tp: [] for tp in tps}
    try:
        places = [KafkaPartition(tp.topic, tp.partition) for tp in tps]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(tp) < ends[tp] for tp in places):
            for place, records in consumer.poll(500).items():
                found[TopicPartition(place.topic, place.partition)] += [record.value for record in records]
    finally:
        consumer.close()
    return found


def read_with_aiokafka(at: Bootstrap, tps: list[TopicPartition], committed: bool) -> dict[TopicPartition, list[bytes]]:
    async def work() -> dict[TopicPartition, list[bytes]]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=at.kafka,
            isolation_level="read_committed" if committed else "read_uncommitted",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        found: dict[TopicPartition, list[bytes]] = {tp: [] for tp in tps}
        await consumer.start()
        try:
            places = [AioPartition(tp.topic, tp.partition) for tp in tps]
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            async with asyncio.timeout(PATIENCE_S):
                while any([await consumer.position(tp) < ends[tp] for tp in places]):
                    for place, records in (await consumer.getmany(timeout_ms=100)).items():
                        found[TopicPartition(place.topic, place.partition)] += [record.value for record in records]
        finally:
            await consumer.stop()
        return found

    return asyncio.run(work())


def read_with_semel(at: Bootstrap, tps: list[TopicPartition], committed: bool) -> dict[TopicPartition, list[bytes]]:
    found: dict[TopicPartition, list[bytes]] = {tp: [] for tp in tps}
    isolation = "read_committed" if committed else "read_uncommitted"
    with semel.Consumer(at.grpc, isolation=isolation) as consumer:
        consumer.assign(tps)
        ends = consumer.end_offsets(tps)
        while any((consumer.position(tp) or 0) < ends[tp] for tp in tps):
            for record in consumer.poll(1.0) or ():
                found[TopicPartition(record.topic, record.partition)].append(record.value or b"")
    return found


READERS: Mapping[str, Callable[..., dict[TopicPartition, list[bytes]]]] = {
    "confluent": read_with_confluent,
    "kafka-python": read_with_kafka_python,
    "aiokafka": read_with_aiokafka,
    "semel": read_with_semel,
}


# --- Members of a group -----------------------------------------------------------------------------------------------


class Member(ABC):
    """A consumer of a group that reads one topic, and stays a member until it is closed."""

    def __init__(self, at: Bootstrap, group: str, topic: str) -> None:
        self.group = group

    @abstractmethod
    def take(self, count: int) -> list[tuple[TopicPartition, int, bytes]]:
        """Wait for so many records."""

    def metadata(self) -> Any:
        """What the client's own producer sends with offsets; aiokafka's sends the group's name alone."""
        return self.group

    @abstractmethod
    def close(self) -> None: ...


class ConfluentMember(Member):
    def __init__(self, at: Bootstrap, group: str, topic: str) -> None:
        super().__init__(at, group, topic)
        options = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": at.kafka, "isolation.level": "read_committed", **options}, logger=QUIET
        )
        self._consumer.subscribe([topic])

    def take(self, count: int) -> list[tuple[TopicPartition, int, bytes]]:
        found: list[tuple[TopicPartition, int, bytes]] = []
        while len(found) < count:
            message = self._consumer.poll(PATIENCE_S)
            assert message is not None, f"only {len(found)} of {count} records came"
            assert message.error() is None, message.error()
            found.append((TopicPartition(message.topic(), message.partition()), message.offset(), message.value()))
        return found

    def metadata(self) -> Any:
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonMember(Member):
    def __init__(self, at: Bootstrap, group: str, topic: str) -> None:
        super().__init__(at, group, topic)
        self._consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=at.kafka,
            group_id=group,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )

    def take(self, count: int) -> list[tuple[TopicPartition, int, bytes]]:
        found: list[tuple[TopicPartition, int, bytes]] = []
        while len(found) < count:
            for place, records in self._consumer.poll(500, max_records=count - len(found)).items():
                tp = TopicPartition(place.topic, place.partition)
                found += [(tp, record.offset, record.value) for record in records]
        return found

    def metadata(self) -> Any:
        return self._consumer.group_metadata()

    def close(self) -> None:
        self._consumer.close()


class AioMember(Member):
    def __init__(self, at: Bootstrap, group: str, topic: str) -> None:
        super().__init__(at, group, topic)
        self._runner = asyncio.Runner()

        async def start() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=at.kafka,
                group_id=group,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
            await consumer.start()
            return consumer

        self._consumer: AIOKafkaConsumer = self._runner.run(start())

    def take(self, count: int) -> list[tuple[TopicPartition, int, bytes]]:
        async def work() -> list[tuple[TopicPartition, int, bytes]]:
            found: list[tuple[TopicPartition, int, bytes]] = []
            async with asyncio.timeout(PATIENCE_S):
                while len(found) < count:
                    records = await self._consumer.getmany(timeout_ms=100, max_records=count - len(found))
                    for place, items in records.items():
                        tp = TopicPartition(place.topic, place.partition)
                        found += [(tp, record.offset, record.value) for record in items]
            return found

        return self._runner.run(work())

    def close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()


class SemelMember(Member):
    def __init__(self, at: Bootstrap, group: str, topic: str) -> None:
        super().__init__(at, group, topic)
        self._consumer = semel.Consumer(at.grpc, group=group, topics=[topic])

    def take(self, count: int) -> list[tuple[TopicPartition, int, bytes]]:
        found: list[tuple[TopicPartition, int, bytes]] = []
        while len(found) < count:
            records = self._consumer.poll(1.0, max_records=count - len(found)) or ()
            found += [
                (TopicPartition(record.topic, record.partition), record.offset, record.value or b"")
                for record in records
            ]
        return found

    def metadata(self) -> Any:
        return self._consumer.group_metadata()

    def close(self) -> None:
        self._consumer.close()


MEMBERS: Mapping[str, type[Member]] = {
    "confluent": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AioMember,
    "semel": SemelMember,
}
