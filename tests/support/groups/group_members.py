"""Members of consumer groups from four client libraries, each polling on a thread of its own, and what they did.

Every member commits what it was handed before it polls again. It tries again after the next poll where a rebalance
refused the commit: a cooperative member keeps its partitions, and gets no record of them a second time. `Witness`
watches over all of them: who owns which partition (G2), and what was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

import aiokafka
import confluent_kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky

import semel
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses what Python 3.11 deprecates
    import kafka
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

HEARTBEAT_MS: Final = 100
SESSION_MS: Final = 10_000
POLL_S: Final = 0.05
KAFKA_PYTHON_POLL_MS: Final = 500
"""kafka-python forgets an assignment that comes between two polls, so its polls outlast a rebalance."""


class Witness:
    """What all members of one group saw. Its methods are called from their threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.owners: dict[TopicPartition, str] = {}
        self.faults: list[str] = []
        self.read: defaultdict[TopicPartition, dict[int, bytes]] = defaultdict(dict)
        self.readers: defaultdict[str, int] = defaultdict(int)

    def assigned(self, name: str, partitions: Iterable[Any]) -> None:
        with self._lock:
            for tp in plain(partitions):
                owner = self.owners.setdefault(tp, name)
                if owner != name:
                    self.faults.append(f"{tp} was given to {name} while {owner} had it")

    def revoked(self, name: str, partitions: Iterable[Any]) -> None:
        with self._lock:
            for tp in plain(partitions):
                if self.owners.get(tp) == name:
                    del self.owners[tp]

    def gone(self, name: str) -> None:
        """A member reads nothing from here on."""
        with self._lock:
            self.owners = {tp: owner for tp, owner in self.owners.items() if owner != name}

    def record(self, name: str, topic: str, partition: int, offset: int, value: bytes) -> None:
        tp = TopicPartition(topic, partition)
        with self._lock:
            if self.owners.get(tp) != name:
                self.faults.append(f"{name} read {tp} at {offset}, which {self.owners.get(tp)} has")
            if self.read[tp].setdefault(offset, value) != value:
                self.faults.append(f"{tp} has two values at {offset}")
            self.readers[name] += 1

    def fault(self, text: str) -> None:
        with self._lock:
            self.faults.append(text)

    def shares(self) -> dict[str, int]:
        """Return how many partitions each member owns."""
        with self._lock:
            counts: dict[str, int] = defaultdict(int)
            for owner in self.owners.values():
                counts[owner] += 1
            return dict(counts)

    def values(self) -> set[bytes]:
        with self._lock:
            return {value for found in self.read.values() for value in found.values()}


def plain(partitions: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(tp.topic, tp.partition) for tp in partitions]


class Member(ABC):
    """A consumer that polls on its own thread from `start` to `stop`. `fenced` is set once another took its place."""

    assignors: tuple[str, ...]

    def __init__(
        self, node: Any, witness: Witness, name: str, group: str, topic: str, assignor: str, instance: str | None = None
    ) -> None:
        self.name = name
        self.fenced = threading.Event()
        self._node = node
        self._witness = witness
        self._group = group
        self._topic = topic
        self._assignor = assignor
        self._instance = instance
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Commit, leave (a static member stays for its session), and wait until that is done."""
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), f"{self.name} does not stop"

    def _main(self) -> None:
        try:
            self._run()
        except Exception as error:
            self._witness.fault(f"{self.name} failed: {error!r}")

    @abstractmethod
    def _run(self) -> None:
        """Consume until it is to stop."""

    def _assigned(self, partitions: Iterable[Any]) -> None:
        self._witness.assigned(self.name, partitions)

    def _revoked(self, partitions: Iterable[Any]) -> None:
        self._witness.revoked(self.name, partitions)


class SemelMember(Member):
    """Semel's own SDK: as the leader it has the coordinator assign."""

    assignors = ("range", "roundrobin", "sticky", "cooperative-sticky")

    def _run(self) -> None:
        member = self

        class Listener(semel.RebalanceListener):
            def on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
                member._assigned(partitions)

            def on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
                member._revoked(partitions)

            def on_lost(self, partitions: Iterable[TopicPartition]) -> None:
                member._revoked(partitions)

        consumer = semel.Consumer(
            self._node.bootstrap,
            group=self._group,
            topics=[self._topic],
            listener=Listener(),
            assignors=self._assignor,
            instance_id=self._instance,
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
        )
        is_committed = True
        try:
            while not self._stopping.is_set():
                try:
                    batch = consumer.poll(POLL_S)
                    for record in batch or ():
                        self._witness.record(
                            self.name, record.topic, record.partition, record.offset, bytes(record.value or b"")
                        )
                    is_committed = is_committed and batch is None
                    if not is_committed:
                        consumer.commit()
                        is_committed = True
                except semel.FencedError:
                    self.fenced.set()
                    return
                except SemelError as error:
                    if error.code.name not in REFUSED_COMMITS:
                        raise
        finally:
            self._witness.gone(self.name)
            consumer.close()


REFUSED_COMMITS: Final = frozenset({"REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"})
"""Why a commit may be refused while the group moves on: the records are then read again."""


class ConfluentMember(Member):
    """librdkafka."""

    assignors = ("range", "roundrobin", "cooperative-sticky")

    def _protocol(self) -> dict[str, Any]:
        return {
            "partition.assignment.strategy": self._assignor,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": SESSION_MS,
        }

    def _run(self) -> None:
        options = {
            "bootstrap.servers": str(self._node.node.kafka_address),
            "group.id": self._group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
            **self._protocol(),
            **({} if self._instance is None else {"group.instance.id": self._instance}),
        }
        consumer = confluent_kafka.Consumer(options)
        consumer.subscribe(
            [self._topic],
            on_assign=lambda _, partitions: self._assigned(partitions),
            on_revoke=lambda _, partitions: self._revoked(partitions),
            on_lost=lambda _, partitions: self._revoked(partitions),
        )
        is_committed = True
        try:
            while not self._stopping.is_set():
                try:
                    is_committed = not self._take(consumer.consume(100, POLL_S)) and is_committed
                    if not is_committed:
                        consumer.commit(asynchronous=False)
                        is_committed = True
                except confluent_kafka.KafkaException as error:
                    code = error.args[0].code()
                    if code in CONFLUENT_FENCED:
                        self.fenced.set()
                        return
                    if code not in CONFLUENT_REFUSED:
                        raise
                    is_committed = code == confluent_kafka.KafkaError._NO_OFFSET  # another member has it all
        finally:
            self._witness.gone(self.name)
            consumer.close()

    def _take(self, messages: list[Any]) -> bool:
        for message in messages:
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
            self._witness.record(
                self.name, message.topic(), message.partition(), message.offset(), message.value() or b""
            )
        return bool(messages)


class ConsumerProtocolMember(ConfluentMember):
    """librdkafka in the consumer group protocol (KIP-848): the coordinator assigns, its settings say how often."""

    assignors = ("uniform", "range")

    def _protocol(self) -> dict[str, Any]:
        return {
            "group.protocol": "consumer",
            "group.remote.assignor": self._assignor,
            "topic.metadata.refresh.interval.ms": 1_000,
        }


CONFLUENT_FENCED: Final = frozenset({confluent_kafka.KafkaError.FENCED_INSTANCE_ID, confluent_kafka.KafkaError._FATAL})
CONFLUENT_REFUSED: Final = frozenset(
    {
        confluent_kafka.KafkaError.REBALANCE_IN_PROGRESS,
        confluent_kafka.KafkaError.ILLEGAL_GENERATION,
        confluent_kafka.KafkaError.UNKNOWN_MEMBER_ID,
        confluent_kafka.KafkaError.STALE_MEMBER_EPOCH,
        confluent_kafka.KafkaError.FENCED_MEMBER_EPOCH,
        confluent_kafka.KafkaError._NO_OFFSET,  # it was revoked in between
        confluent_kafka.KafkaError._ASSIGNMENT_LOST,
    }
)


class KafkaPythonMember(Member):
    """kafka-python."""

    assignors = ("range", "roundrobin", "sticky", "cooperative-sticky")
    _classes: Final = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }

    def _run(self) -> None:
        member = self

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Any) -> None:
                member._assigned(assigned)

            def on_partitions_revoked(self, revoked: Any) -> None:
                member._revoked(revoked)

            def on_partitions_lost(self, lost: Any) -> None:
                member._revoked(lost)

        consumer = kafka.KafkaConsumer(
            bootstrap_servers=str(self._node.node.kafka_address),
            group_id=self._group,
            group_instance_id=self._instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[self._classes[self._assignor]],
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            fetch_max_wait_ms=50,
        )
        consumer.subscribe([self._topic], listener=Listener())
        is_committed = True
        try:
            while not self._stopping.is_set():
                try:
                    found = consumer.poll(KAFKA_PYTHON_POLL_MS)
                    for tp, records in found.items():
                        for record in records:
                            self._witness.record(self.name, tp.topic, tp.partition, record.offset, record.value or b"")
                    is_committed = is_committed and not found
                    if not is_committed:
                        consumer.commit()
                        is_committed = True
                except kafka.errors.FencedInstanceIdError:
                    self.fenced.set()
                    return
                except (kafka.errors.CommitFailedError, kafka.errors.RebalanceInProgressError):
                    continue
        finally:
            self._witness.gone(self.name)
            consumer.close()


class AiokafkaMember(Member):
    """aiokafka, on an event loop of its own. It does not know that static members are fenced."""

    assignors = ("range", "roundrobin", "sticky")
    _classes: Final = {"range": AioRange, "roundrobin": AioRoundRobin, "sticky": AioSticky}

    def _run(self) -> None:
        asyncio.run(self._poll())

    async def _poll(self) -> None:
        member = self

        class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Any) -> None:
                member._assigned(assigned)

            def on_partitions_revoked(self, revoked: Any) -> None:
                member._revoked(revoked)

        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=str(self._node.node.kafka_address),
            group_id=self._group,
            group_instance_id=self._instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[self._classes[self._assignor]],
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            fetch_max_wait_ms=50,
        )
        consumer.subscribe([self._topic], listener=Listener())
        await consumer.start()
        is_committed = True
        try:
            while not self._stopping.is_set():
                try:
                    found = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
                    for tp, records in found.items():
                        for record in records:
                            self._witness.record(self.name, tp.topic, tp.partition, record.offset, record.value or b"")
                    is_committed = is_committed and not found
                    if not is_committed:
                        await consumer.commit()
                        is_committed = True
                except (aiokafka.errors.CommitFailedError, aiokafka.errors.IllegalStateError):
                    continue
        finally:
            self._witness.gone(self.name)
            with contextlib.suppress(aiokafka.errors.KafkaError):
                await consumer.stop()
