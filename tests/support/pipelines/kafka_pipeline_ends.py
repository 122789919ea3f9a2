"""Both ends of the pipeline under test with confluent-kafka: what feeds the source, and what reads the target."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import confluent_kafka
from history import Outcome, Read, Send, Transaction

QUIET = logging.getLogger("chaos.librdkafka")
QUIET.setLevel(logging.CRITICAL + 1)
"""librdkafka tells of every connection that the run takes from it."""


class KafkaFeeder(threading.Thread):
    """Sends numbered values with an idempotent producer, and records what was acknowledged."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        every_s: float = 0.002,
        may_send: Callable[[int], bool] = lambda sent: True,
    ) -> None:
        """`may_send` is asked before each value, with the count of those that were sent."""
        super().__init__(daemon=True)
        self._may_send = may_send
        self.transactions: list[Transaction] = []
        self._topic, self._partitions, self._every_s = topic, partitions, every_s
        self._stopping = threading.Event()
        self._outcomes: dict[int, Outcome] = {}
        self._sends: list[Send] = []
        self._errors: list[str] = []
        self._left = 0
        # A batch has to fit into the small segments of some tests, however much has gathered while no node leads.
        options = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, "batch.size": 2_000}
        # Nothing is given up while the run lasts.
        self._producer = confluent_kafka.Producer({**options, "message.timeout.ms": 3_600_000}, logger=QUIET)

    def run(self) -> None:
        while not self._stopping.wait(self._every_s):
            number = len(self._sends)
            if not self._may_send(number):
                self._producer.poll(0)
                continue
            send = Send(self._topic, number % self._partitions, f"s{number}")
            self._sends.append(send)
            self._producer.produce(
                send.topic, send.value.encode(), partition=send.partition, on_delivery=self._delivered(number)
            )
            self._producer.poll(0)
        self._left = self._producer.flush(60)

    @property
    def acknowledged(self) -> int:
        return len(self._outcomes)

    @property
    def error(self) -> AssertionError | None:
        """What librdkafka gave up at."""
        return AssertionError(self._errors[:3]) if self._errors else None

    def stop(self) -> None:
        """Send no more."""
        self._stopping.set()

    def finish(self) -> None:
        self.stop()
        self.join(90)
        assert not self.is_alive(), "the feeder's flush did not end"
        assert not self._left, f"{self._left} values were not acknowledged in a minute without faults"
        assert not self._errors, self._errors[:3]
        self.transactions = [
            Transaction("feeder", (send,), self._outcomes.get(number, Outcome.UNKNOWN))
            for number, send in enumerate(self._sends)
        ]

    def _delivered(self, number: int):  # type: ignore[no-untyped-def]
        def record(error: object, _: object) -> None:
            if error is None:
                self._outcomes[number] = Outcome.COMMITTED
            else:
                self._errors.append(str(error))

        return record


class KafkaReader(threading.Thread):
    """Reads committed records of a topic while everything happens, never seeking."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self.records: dict[int, list[tuple[int, str]]] = {number: [] for number in range(partitions)}
        self._topic = topic
        self._stopping = threading.Event()
        self._errors: list[str] = []
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "live",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",  # it never has a reason to begin again
            },
            logger=QUIET,
        )
        self._consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])

    def run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self.records[message.partition()].append((message.offset(), message.value().decode()))
            elif not error.retriable() and error.code() not in _PASSING:
                self._errors.append(str(error))

    @property
    def error(self) -> AssertionError | None:
        """What librdkafka gave up at."""
        return AssertionError(self._errors[:3]) if self._errors else None

    def stop(self) -> None:
        """Read no more."""
        self._stopping.set()

    def finish(self) -> list[Read]:
        self.stop()
        self.join(30)
        self._consumer.close()
        assert not self._errors, self._errors[:3]
        return [Read("live", self._topic, number, tuple(records)) for number, records in self.records.items()]


_PASSING = frozenset(
    {
        confluent_kafka.KafkaError._TRANSPORT,
        confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
        confluent_kafka.KafkaError._TIMED_OUT,
    }
)
"""What librdkafka tells of while it continues on its own."""
