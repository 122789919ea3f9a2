"""confluent-kafka, for `semel bench --client confluent`: measures Semel and any Kafka broker in the same way."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from semel.cli.bench.client import Acknowledged, Acks, BenchConsumer, BenchProducer, ProducerPlan
from semel.protocol.errors import FatalError, RetriableError, UsageError
from semel.protocol.schemes import hidden_password
from semel.protocol.wording import counted

ANSWER_S: Final = 10.0
FLUSH_S: Final = 120.0
POLL_RECORDS: Final = 5_000


class ConfluentClient:
    """See `BenchClient`. Raises `UsageError` where the package is not installed, `RetriableError` where none "
    "answers."""

    name = "confluent"

    def __init__(self, bootstrap: str) -> None:
        try:
            import confluent_kafka
            from confluent_kafka import admin
        except ImportError:
            raise UsageError(
                "--client confluent needs the package confluent-kafka: `pip install confluent-kafka`, or leave out "
                "--client to measure a Semel node with Semel's client"
            ) from None
        self._kafka: Any = confluent_kafka
        self._admin_module: Any = admin
        self._config: dict[str, Any] = {"bootstrap.servers": bootstrap, "client.id": "semel-bench", "log_level": 0}
        self._admin: Any = admin.AdminClient(self._config, logger=_silent())
        try:
            self._admin.list_topics(timeout=ANSWER_S)
        except confluent_kafka.KafkaException:
            raise RetriableError(
                f"no Kafka broker answers at {hidden_password(bootstrap)} within {ANSWER_S:.0f} s; --client confluent "
                "needs the Kafka port (of Semel: 9092), and takes no tls:// or sasl://"
            ) from None

    def create_topic(self, name: str, partitions: int) -> None:
        new = self._admin_module.NewTopic(name, num_partitions=partitions)
        self._wait(self._admin.create_topics([new])[name])

    def delete_topic(self, name: str) -> None:
        self._wait(self._admin.delete_topics([name])[name])

    def _wait(self, future: Any) -> None:
        try:
            future.result(ANSWER_S)
        except self._kafka.KafkaException as error:
            raise FatalError(f"{error.args[0].str()}") from None

    def partition_count(self, topic: str) -> int:
        found = self._admin.list_topics(timeout=ANSWER_S).topics.get(topic)  # asked for by name, it would be created
        if found is None:
            raise FatalError(f"there is no topic {topic!r}: create it, or leave out --topic")
        return len(found.partitions)

    def producer(self, topic: str, plan: ProducerPlan) -> BenchProducer:
        return _Producer(self._kafka, self._config, topic, plan)

    def consumer(self, topic: str, *, from_end: bool) -> BenchConsumer:
        return _Consumer(self._kafka, self._config, topic, self.partition_count(topic), from_end=from_end)


class _Producer:
    def __init__(self, kafka: Any, config: dict[str, Any], topic: str, plan: ProducerPlan) -> None:
        self._topic = topic
        self._kafka = kafka
        transactional = {} if plan.transactional_id is None else {"transactional.id": plan.transactional_id}
        self._producer: Any = kafka.Producer(
            {
                **config,
                "acks": plan.acks.value,
                "enable.idempotence": plan.acks is Acks.ALL,
                "compression.type": plan.compression,
                "linger.ms": 5,
                **transactional,
            },
            logger=_silent(),
        )
        self._failed: BaseException | None = None
        self._is_initialized = False
        self._is_closing = False
        self._poller = threading.Thread(target=self._poll, name="semel-bench-poll", daemon=True)
        self._poller.start()

    def _poll(self) -> None:
        """Call the callbacks as soon as acknowledgements come: a latency ends when its callback is called."""
        while not self._is_closing:
            self._producer.poll(0.05)

    def send(self, value: bytes, acknowledged: Acknowledged | None) -> None:
        def delivered(error: Any, _message: object) -> None:
            failure = None if error is None else FatalError(f"a record was not delivered: {error.str()}")
            self._failed = self._failed or failure
            if acknowledged is not None:
                acknowledged(failure)

        while True:
            try:
                self._producer.produce(self._topic, value, on_delivery=delivered)
                return
            except BufferError:
                self._producer.poll(0.01)

    def begin(self) -> None:
        if not self._is_initialized:
            self._call(self._producer.init_transactions, ANSWER_S)
            self._is_initialized = True
        self._call(self._producer.begin_transaction)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction, FLUSH_S)

    def flush(self) -> None:
        left = self._producer.flush(FLUSH_S)
        if self._failed is not None:
            raise self._failed
        if left:
            raise RetriableError(f"{counted(left, 'record')} not acknowledged within {FLUSH_S:.0f} s")

    def _call(self, function: Any, *arguments: float) -> None:
        try:
            function(*arguments)
        except self._kafka.KafkaException as error:
            raise FatalError(f"a transaction failed: {error.args[0].str()}") from None

    def close(self) -> None:
        self.flush()
        self.abandon()

    def abandon(self) -> None:
        self._is_closing = True
        self._producer.purge()
        self._poller.join(1)


class _Consumer:
    def __init__(self, kafka: Any, config: dict[str, Any], topic: str, partition_count: int, *, from_end: bool) -> None:
        self._kafka = kafka
        self._consumer: Any = kafka.Consumer(
            {
                **config,
                "group.id": "semel-bench",  # asked for by the client, and not used: nothing is committed
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            },
            logger=_silent(),
        )
        places = [kafka.TopicPartition(topic, number, kafka.OFFSET_BEGINNING) for number in range(partition_count)]
        if from_end:
            for place in places:
                place.offset = self._consumer.get_watermark_offsets(place, timeout=ANSWER_S)[1]
        self._consumer.assign(places)

    def poll(self, timeout_s: float) -> Sequence[bytes]:
        messages = self._consumer.consume(POLL_RECORDS, 0)  # what is there, or else the next one as soon as it comes
        if not messages:
            message = self._consumer.poll(timeout_s)
            messages = [] if message is None else [message]
        for message in messages:
            if message.error() is not None:
                raise FatalError(f"reading failed: {message.error().str()}")
        return [message.value() or b"" for message in messages]

    def close(self) -> None:
        self._consumer.close()


def _silent() -> Any:
    """Return a logger that says nothing: what fails is raised."""
    import logging

    logger = logging.getLogger("semel.bench.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
