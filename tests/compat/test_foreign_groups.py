"""Groups of confluent-kafka, kafka-python and aiokafka: with every assignor of theirs, and mixed with Semel's SDK."""

from __future__ import annotations

import asyncio
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import pytest
from group_members import (
    KAFKA_PYTHON_POLL_MS,
    AiokafkaMember,
    ConfluentMember,
    KafkaPythonMember,
    Member,
    SemelMember,
    Witness,
)
from live_node import LiveNode
from running_node import create_topic

import semel
from semel.protocol.api.groups import DescribeGroupRequest, GroupDescription, OffsetFetchRequest
from semel.protocol.ids import TopicPartition

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses what Python 3.11 deprecates
    import kafka

PARTITIONS: Final = 4
PATIENCE_S: Final = 40.0
FOREIGN: Final = (ConfluentMember, KafkaPythonMember, AiokafkaMember)
EACH_ASSIGNOR: Final = [(kind, assignor) for kind in FOREIGN for assignor in kind.assignors]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
"""kafka-python leaves some of its sockets to the garbage collector."""

_numbers = itertools.count()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    folder: Path = tmp_path_factory.mktemp("node")
    with LiveNode(folder) as live:
        yield live


@pytest.fixture(scope="module")
def producer(node: LiveNode) -> Iterator[semel.Producer]:
    with semel.Producer(node.bootstrap) as producer:
        yield producer


def wait_for(condition: Callable[[], Any], what: Callable[[], object]) -> None:
    """Wait until something holds; where it never does, say what there was in its place."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


class Scene:
    """A topic, a group on it, its members, and what was sent to it."""

    def __init__(self, node: LiveNode, producer: semel.Producer, assignor: str) -> None:
        number = next(_numbers)
        self.topic, self.group, self.assignor = f"topic-{number}", f"group-{number}", assignor
        self.node = node
        self.witness = Witness()
        self.members: list[Member] = []
        self._producer = producer
        self._sent = 0
        node.run(lambda: create_topic(node.node, self.topic, PARTITIONS))

    def join(self, kind: type[Member], instance: str | None = None) -> Member:
        name = f"{kind.__name__} {len(self.members)}"
        member = kind(self.node, self.witness, name, self.group, self.topic, self.assignor, instance)
        self.members.append(member)
        member.start()
        return member

    def send(self, count: int = 20) -> None:
        for partition, values in self.next_values(count).items():
            for value in values:
                self._producer.send(self.topic, value=value, partition=partition)
        self._producer.flush()

    def next_values(self, count: int = 20) -> dict[int, list[bytes]]:
        """Return values that nobody has sent yet, by the partition they belong to."""
        values: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        for number in range(self._sent, self._sent + count):
            values[number % PARTITIONS].append(b"%d" % number)
        self._sent += count
        return values

    def wait_shared(self, *members: Member) -> None:
        """Wait until exactly these members share all partitions, evenly, in a group at rest."""

        def is_shared() -> bool:
            shares = self.witness.shares()
            return (
                set(shares) == {member.name for member in members}
                and sum(shares.values()) == PARTITIONS
                and max(shares.values()) - min(shares.values()) <= 1
                and self.describe().state == "Stable"
            ) or bool(self.witness.faults)

        wait_for(is_shared, lambda: (self.witness.shares(), self.describe()))
        assert self.witness.faults == []

    def wait_read(self) -> None:
        """Wait until everything sent was read, and committed where it belongs."""
        expected = {b"%d" % number for number in range(self._sent)}
        wait_for(
            lambda: self.witness.values() == expected or self.witness.faults,
            lambda: f"not read: {sorted(expected - self.witness.values())}",
        )
        self.wait_committed()

    def wait_committed(self) -> None:
        """Wait until the group stands at the end."""
        ends = {TopicPartition(self.topic, number): self._sent // PARTITIONS for number in range(PARTITIONS)}
        wait_for(lambda: self.committed() == ends, lambda: f"committed: {self.committed()}")
        assert self.witness.faults == []

    def committed(self) -> dict[TopicPartition, int]:
        request = OffsetFetchRequest(self.group, None)
        response = self.node.run(lambda: self.node.node.groups.fetch_offsets(request))
        return {tp: found.offset for tp, found in response.offsets.items()}

    def describe(self) -> GroupDescription:
        found: GroupDescription = self.node.run(
            lambda: self.node.node.groups.describe(DescribeGroupRequest(self.group))
        )
        return found

    def stop(self, *members: Member) -> None:
        for member in members or self.members:
            member.stop()

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def grow_and_shrink(scene: Scene, kinds: Sequence[type[Member]]) -> None:
    """Members come one by one, the first, which leads, leaves, and records are sent all the while."""
    scene.send()
    members: list[Member] = []
    for kind in kinds:
        members.append(scene.join(kind))
        scene.wait_shared(*members)
        scene.send()
    assert scene.describe().protocol_name == scene.assignor
    leader = members.pop(0)
    scene.stop(leader)
    scene.send()
    scene.wait_shared(*members)
    scene.wait_read()
    assert all(scene.witness.readers[member.name] for member in members)
    scene.stop(*members)
    wait_for(lambda: scene.describe().state == "Empty", scene.describe)


@pytest.mark.parametrize(("kind", "assignor"), EACH_ASSIGNOR)
def test_G2_three_members_come_and_go(
    node: LiveNode, producer: semel.Producer, kind: type[Member], assignor: str
) -> None:
    with Scene(node, producer, assignor) as scene:
        grow_and_shrink(scene, [kind, kind, kind])


@pytest.mark.parametrize(("kind", "assignor"), EACH_ASSIGNOR)
def test_G2_a_foreign_leader_assigns_to_semels_sdk_and_hands_over_to_it(
    node: LiveNode, producer: semel.Producer, kind: type[Member], assignor: str
) -> None:
    with Scene(node, producer, assignor) as scene:
        grow_and_shrink(scene, [kind, SemelMember, kind])


@pytest.mark.parametrize(("kind", "assignor"), EACH_ASSIGNOR)
def test_G2_semels_sdk_has_foreign_members_assigned_to_and_hands_over_to_one(
    node: LiveNode, producer: semel.Producer, kind: type[Member], assignor: str
) -> None:
    with Scene(node, producer, assignor) as scene:
        grow_and_shrink(scene, [SemelMember, kind, SemelMember])


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_G2_all_clients_share_one_group_and_one_topic(node: LiveNode, producer: semel.Producer, assignor: str) -> None:
    """Every library's producer writes, every library's consumer reads."""
    with Scene(node, producer, assignor) as scene:
        members = [scene.join(kind) for kind in (*FOREIGN, SemelMember)]
        scene.wait_shared(*members)
        for send in (send_by_confluent, send_by_kafka_python, send_by_aiokafka):
            send(str(node.node.kafka_address), scene.topic, scene.next_values())
        scene.send()
        scene.wait_read()
        assert all(scene.witness.readers[member.name] == 20 for member in members)


def send_by_confluent(address: str, topic: str, values: Mapping[int, Sequence[bytes]]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 0})
    for partition, chosen in values.items():
        for value in chosen:
            producer.produce(topic, value, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def send_by_kafka_python(address: str, topic: str, values: Mapping[int, Sequence[bytes]]) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=address)
    try:
        sent = [
            producer.send(topic, value, partition=partition) for partition, chosen in values.items() for value in chosen
        ]
        for future in sent:
            future.get(PATIENCE_S)
    finally:
        producer.close()


def send_by_aiokafka(address: str, topic: str, values: Mapping[int, Sequence[bytes]]) -> None:
    async def send() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address)
        await producer.start()
        try:
            for partition, chosen in values.items():
                for value in chosen:
                    await producer.send_and_wait(topic, value, partition=partition)
        finally:
            await producer.stop()

    asyncio.run(send())


# --- Static members (KIP-345) -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FOREIGN)
def test_G4_a_static_member_returns_without_a_rebalance(
    node: LiveNode, producer: semel.Producer, kind: type[Member]
) -> None:
    with Scene(node, producer, "range") as scene:
        first, second = scene.join(kind, "a"), scene.join(kind, "b")
        scene.wait_shared(first, second)
        scene.send()
        scene.wait_read()
        before = scene.describe()
        for member, instance in ((second, "b"), (first, "a")):
            scene.stop(member)
            assert scene.describe().state == "Stable"
            scene.send()
            scene.join(kind, instance)
            wait_for(lambda: len(scene.witness.shares()) == 2, scene.describe)
            scene.wait_read()
        after = scene.describe()
        assert after.generation_id == before.generation_id
        assert {m.group_instance_id for m in after.members} == {"a", "b"}
        assert {m.member_id for m in after.members}.isdisjoint(m.member_id for m in before.members)
        assert {m.group_instance_id: m.assignment for m in after.members} == {
            m.group_instance_id: m.assignment for m in before.members
        }


@pytest.mark.parametrize("kind", [ConfluentMember, KafkaPythonMember])
def test_O4_a_second_instance_of_a_static_member_fences_the_first(
    node: LiveNode, producer: semel.Producer, kind: type[Member]
) -> None:
    with Scene(node, producer, "range") as scene:
        first = scene.join(kind, "a")
        scene.send()
        scene.wait_read()
        zombies, scene.witness = scene.witness, Witness()
        second = scene.join(kind, "a")
        scene.wait_shared(second)
        scene.send()
        wait_for(first.fenced.is_set, lambda: zombies.faults)
        scene.wait_committed()
        assert scene.witness.values() == {b"%d" % number for number in range(20, 40)}
        assert zombies.faults == []


# --- Commits and positions --------------------------------------------------------------------------------------------


def test_confluent_commits_and_seeks(node: LiveNode, producer: semel.Producer) -> None:
    with Scene(node, producer, "range") as scene:
        scene.send()
        told: list[Any] = []
        options = {
            "bootstrap.servers": str(node.node.kafka_address),
            "group.id": scene.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "on_commit": lambda error, offsets: told.append((error, offsets)),
        }
        tp = confluent_kafka.TopicPartition
        reader = confluent_kafka.Consumer(options)
        try:
            reader.subscribe([scene.topic])
            found: list[Any] = []
            wait_for(lambda: found.extend(reader.consume(20, 0.05)) or len(found) == 20, lambda: found)
            reader.commit(offsets=[tp(scene.topic, 0, 2, "note"), tp(scene.topic, 1, 3)], asynchronous=False)
            stored = reader.committed([tp(scene.topic, number) for number in range(3)], PATIENCE_S)
            assert [each.offset for each in stored] == [2, 3, confluent_kafka.OFFSET_INVALID]
            assert stored[0].metadata == "note"
            told.clear()
            reader.commit(offsets=[tp(scene.topic, 2, 4)], asynchronous=True)
            wait_for(lambda: reader.poll(0.05) or told, lambda: told)
            assert told[0][0] is None
            reader.seek(tp(scene.topic, 3, 1))
            again: list[Any] = []
            wait_for(lambda: again.extend(reader.consume(20, 0.05)) or len(again) == 4, lambda: again)
            assert [(message.partition(), message.offset()) for message in again] == [(3, n) for n in range(1, 5)]
        finally:
            reader.close()
        # confluent-kafka counts the end of the C string in.
        check_resumed(scene, "note\0")


def test_kafka_python_commits_and_seeks(node: LiveNode, producer: semel.Producer) -> None:
    with Scene(node, producer, "range") as scene:
        scene.send()
        reader = kafka.KafkaConsumer(
            bootstrap_servers=str(node.node.kafka_address),
            group_id=scene.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        try:
            reader.subscribe([scene.topic])
            found: list[Any] = []

            def read() -> list[Any]:
                return [record for records in reader.poll(KAFKA_PYTHON_POLL_MS).values() for record in records]

            wait_for(lambda: found.extend(read()) or len(found) == 20, lambda: found)
            tps = [kafka.TopicPartition(scene.topic, number) for number in range(PARTITIONS)]
            offset = kafka.OffsetAndMetadata
            reader.commit({tps[0]: offset(2, "note", -1), tps[1]: offset(3, "", -1)})
            assert reader.committed(tps[0], metadata=True).metadata == "note"
            assert [reader.committed(tp) for tp in tps[:3]] == [2, 3, None]
            told: list[Any] = []
            reader.commit_async({tps[2]: offset(4, "", -1)}, callback=lambda *args: told.append(args))
            wait_for(lambda: reader.poll(KAFKA_PYTHON_POLL_MS) or told, lambda: told)
            reader.seek(tps[3], 1)
            again: list[Any] = []
            wait_for(lambda: again.extend(read()) or len(again) == 4, lambda: again)
            assert [(record.partition, record.offset) for record in again] == [(3, n) for n in range(1, 5)]
            assert reader.position(tps[3]) == 5
        finally:
            reader.close()
        check_resumed(scene)


def test_aiokafka_commits_and_seeks(node: LiveNode, producer: semel.Producer) -> None:
    async def read(reader: Any, count: int) -> list[Any]:
        found: list[Any] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count:
                found += [r for records in (await reader.getmany(timeout_ms=50)).values() for r in records]
        return found

    async def work(scene: Scene) -> None:
        reader = aiokafka.AIOKafkaConsumer(
            scene.topic,
            bootstrap_servers=str(node.node.kafka_address),
            group_id=scene.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await reader.start()
        try:
            await read(reader, 20)
            tps = [aiokafka.TopicPartition(scene.topic, number) for number in range(PARTITIONS)]
            await reader.commit({tps[0]: (2, "note"), tps[1]: 3})
            assert [await reader.committed(tp) for tp in tps[:3]] == [2, 3, None]
            await asyncio.gather(reader.commit({tps[2]: 4}), reader.commit({tps[1]: 3}))
            reader.seek(tps[3], 1)
            again = await read(reader, 4)
            assert [(record.partition, record.offset) for record in again] == [(3, n) for n in range(1, 5)]
            assert await reader.position(tps[3]) == 5
        finally:
            await reader.stop()

    with Scene(node, producer, "range") as scene:
        scene.send()
        asyncio.run(work(scene))
        check_resumed(scene)


def check_resumed(scene: Scene, note: str = "note") -> None:
    """What a foreign client committed is where Semel's SDK continues."""
    expected = {0: 2, 1: 3, 2: 4}
    assert {tp.partition: offset for tp, offset in scene.committed().items()} == expected
    with semel.Consumer(scene.node.bootstrap, group=scene.group, topics=[scene.topic]) as reader:
        tps = [TopicPartition(scene.topic, number) for number in range(PARTITIONS)]
        stored = reader.committed(tps)
        assert stored[tps[0]] is not None
        assert (stored[tps[0]].offset, stored[tps[0]].metadata, stored[tps[3]]) == (2, note, None)
        found: list[tuple[int, int]] = []
        wait_for(
            lambda: (
                found.extend((r.partition, r.offset) for r in reader.poll(0.05) or ()) or len(found) == 3 + 2 + 1 + 5
            ),
            lambda: found,
        )
        assert sorted(found) == [(p, n) for p in range(PARTITIONS) for n in range(expected.get(p, 0), 5)]


def test_confluents_admin_sees_and_changes_groups(node: LiveNode, producer: semel.Producer) -> None:
    with Scene(node, producer, "range") as scene:
        member = scene.join(ConfluentMember)
        scene.send()
        scene.wait_read()
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": str(node.node.kafka_address)})
        states = {confluent_kafka.ConsumerGroupState.STABLE}
        listed = admin.list_consumer_groups(states=states).result(PATIENCE_S)
        assert listed.errors == []
        assert scene.group in {group.group_id for group in listed.valid}
        [described] = admin.describe_consumer_groups([scene.group]).values()
        group = described.result(PATIENCE_S)
        assert (group.state, group.partition_assignor) == (confluent_kafka.ConsumerGroupState.STABLE, "range")
        assert len(group.members[0].assignment.topic_partitions) == PARTITIONS
        assert offsets_by(admin, scene) == dict.fromkeys(range(PARTITIONS), 5)
        [refused] = admin.delete_consumer_groups([scene.group]).values()
        with pytest.raises(confluent_kafka.KafkaException) as raised:
            refused.result(PATIENCE_S)
        assert raised.value.args[0].code() == confluent_kafka.KafkaError.NON_EMPTY_GROUP
        scene.stop(member)
        moved = confluent_kafka.ConsumerGroupTopicPartitions(
            scene.group, [confluent_kafka.TopicPartition(scene.topic, 2, 1)]
        )
        [altered] = admin.alter_consumer_group_offsets([moved]).values()
        altered.result(PATIENCE_S)
        assert offsets_by(admin, scene) == {0: 5, 1: 5, 2: 1, 3: 5}
        [deleted] = admin.delete_consumer_groups([scene.group]).values()
        deleted.result(PATIENCE_S)
        assert scene.committed() == {}


def offsets_by(admin: Any, scene: Scene) -> dict[int, int]:
    asked = confluent_kafka.ConsumerGroupTopicPartitions(scene.group)
    [found] = admin.list_consumer_group_offsets([asked]).values()
    return {tp.partition: tp.offset for tp in found.result(PATIENCE_S).topic_partitions}
