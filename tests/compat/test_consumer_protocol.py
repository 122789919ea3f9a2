"""confluent-kafka in the consumer group protocol (KIP-848), alone and in one group with classic members."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import confluent_kafka.admin
import pytest
from group_members import (
    AiokafkaMember,
    ConfluentMember,
    ConsumerProtocolMember,
    KafkaPythonMember,
    Member,
    SemelMember,
    Witness,
)
from live_node import LiveNode
from running_node import create_topic

from semel.protocol.api.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupDescription
from semel.protocol.api.groups import ListGroupsRequest, OffsetFetchRequest
from semel.protocol.ids import TopicPartition

PARTITIONS: Final = 4
PATIENCE_S: Final = 100.0
NEVER_MS: Final = 600_000
"""A session that outlasts the test: what happens earlier happened by a leave."""

_numbers = itertools.count()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    folder: Path = tmp_path_factory.mktemp("node")
    with LiveNode(folder, group_consumer_heartbeat_interval_ms=100, group_consumer_session_timeout_ms=NEVER_MS) as live:
        yield live


def wait_for(condition: Callable[[], Any], what: Callable[[], object]) -> None:
    """Wait until something holds; where it never does, say what there was in its place."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


class Scene:
    """A group with its members on topics of its own, and what was sent to them."""

    def __init__(self, node: LiveNode, subscription: str = "") -> None:
        number = next(_numbers)
        self.topic, self.group = f"orders-{number}", f"g-{number}"
        self.subscription = subscription.format(number) or self.topic
        self.node = node
        self.witness = Witness()
        self.members: list[Member] = []
        self.sent: set[bytes] = set()
        self.producer = confluent_kafka.Producer({"bootstrap.servers": str(node.node.kafka_address), "linger.ms": 1})
        self.create(self.topic)

    def create(self, topic: str) -> None:
        self.node.run(lambda: create_topic(self.node.node, topic, PARTITIONS))

    def join(
        self, kind: type[Member] = ConsumerProtocolMember, instance: str | None = None, assignor: str = "uniform"
    ) -> Member:
        name = f"{kind.__name__} {len(self.members)}"
        member = kind(self.node, self.witness, name, self.group, self.subscription, assignor, instance)
        self.members.append(member)
        member.start()
        return member

    def send(self, *topics: str, count: int = 20) -> None:
        for topic in topics or (self.topic,):
            for number in range(count):
                value = b"%d" % len(self.sent)
                self.sent.add(value)
                self.producer.produce(topic, value=value, partition=number % PARTITIONS)
        assert self.producer.flush(PATIENCE_S) == 0

    def wait_shared(self, *members: Member, partitions: int = PARTITIONS) -> None:
        """Wait until exactly these members share all partitions evenly."""

        def is_shared() -> bool:
            shares = self.witness.shares()
            return (
                set(shares) == {member.name for member in members}
                and sum(shares.values()) == partitions
                and max(shares.values()) - min(shares.values()) <= 1
            ) or bool(self.witness.faults)

        wait_for(is_shared, lambda: (self.witness.shares(), self.kind(), self.members))
        assert self.witness.faults == []

    def wait_read(self) -> None:
        wait_for(
            lambda: self.witness.values() == self.sent or self.witness.faults,
            lambda: f"not read: {sorted(self.sent - self.witness.values())}",
        )
        assert self.witness.faults == []

    def wait_committed(self) -> None:
        """Wait until the group stands at the end of everything that was sent."""
        wait_for(lambda: sum(self.committed().values()) == len(self.sent), self.committed)
        assert self.witness.faults == []

    def committed(self) -> dict[TopicPartition, int]:
        response = self.node.run(lambda: self.node.node.groups.fetch_offsets(OffsetFetchRequest(self.group, None)))
        return {tp: found.offset for tp, found in response.offsets.items()}

    def describe(self) -> ConsumerGroupDescription:
        request = ConsumerGroupDescribeRequest(self.group)
        found: ConsumerGroupDescription = self.node.run(lambda: self.node.node.groups.describe_consumers(request))
        return found

    def kind(self) -> tuple[str, str]:
        """Return the group's type and state."""
        listed = self.node.run(lambda: self.node.node.groups.list(ListGroupsRequest()))
        return next((each.group_type, each.state) for each in listed.groups if each.group_id == self.group)

    def wait_kind(self, *kind: str) -> None:
        wait_for(lambda: self.kind() == kind, self.kind)

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.stop()


@pytest.mark.parametrize("assignor", ConsumerProtocolMember.assignors)
def test_G2_three_members_come_and_go(node: LiveNode, assignor: str) -> None:
    with Scene(node) as scene:
        members: list[Member] = []
        for _ in range(3):
            scene.send()
            members.append(scene.join(assignor=assignor))
            scene.wait_shared(*members)
        scene.wait_kind("consumer", "Stable")
        assert scene.describe().assignor == assignor
        members.pop(0).stop()
        scene.send()
        scene.wait_shared(*members)
        scene.wait_read()
        scene.wait_committed()
        for member in members:
            member.stop()
        scene.wait_kind("consumer", "Empty")


def test_G4_a_static_member_comes_back_to_its_partitions(node: LiveNode) -> None:
    with Scene(node) as scene:
        first, second = scene.join(instance="i-1"), scene.join(instance="i-2")
        scene.wait_shared(first, second)
        scene.wait_kind("consumer", "Stable")
        epoch = scene.describe().group_epoch
        second.stop()
        wait_for(lambda: -2 in {member.member_epoch for member in scene.describe().members}, scene.describe)
        back = scene.join(instance="i-2")
        scene.wait_shared(first, back)
        scene.wait_kind("consumer", "Stable")
        assert scene.describe().group_epoch == epoch
        scene.send()
        scene.wait_read()


def test_a_regular_expression_takes_in_topics_that_come_later(node: LiveNode) -> None:
    with Scene(node, subscription="^orders-{0}(-.*)?$") as scene:
        members = [scene.join(), scene.join()]
        scene.wait_shared(*members)
        later = f"{scene.topic}-later"
        scene.create(later)
        scene.create(f"other-{scene.topic}")
        scene.wait_shared(*members, partitions=2 * PARTITIONS)
        scene.send(scene.topic, later)
        scene.wait_read()
        # librdkafka makes one expression of all that it was given.
        assert {member.topic_regex for member in scene.describe().members} == {f"({scene.subscription})"}


def test_topics_grow_under_a_group(node: LiveNode) -> None:
    with Scene(node) as scene:
        member = scene.join()
        scene.wait_shared(member)
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": str(node.node.kafka_address)})
        [grown] = admin.create_partitions([confluent_kafka.admin.NewPartitions(scene.topic, PARTITIONS + 2)]).values()
        grown.result(PATIENCE_S)
        scene.wait_shared(member, partitions=PARTITIONS + 2)


@pytest.mark.parametrize(
    ("kind", "assignor"),
    [
        (ConfluentMember, "cooperative-sticky"),
        (ConfluentMember, "range"),
        (KafkaPythonMember, "cooperative-sticky"),
        (AiokafkaMember, "sticky"),
        (SemelMember, "cooperative-sticky"),
    ],
)
def test_a_group_at_work_moves_to_the_newer_protocol_and_back(
    node: LiveNode, kind: type[Member], assignor: str
) -> None:
    with Scene(node) as scene:
        scene.send()
        classic = [scene.join(kind, assignor=assignor), scene.join(kind, assignor=assignor)]
        scene.wait_shared(*classic)
        scene.wait_kind("classic", "Stable")
        scene.send()
        newer = scene.join()
        scene.wait_shared(*classic, newer)
        scene.wait_kind("consumer", "Stable")
        assert sorted(member.uses_classic_protocol for member in scene.describe().members) == [False, True, True]
        scene.send()
        classic.pop(0).stop()
        scene.wait_shared(*classic, newer)
        scene.send()
        newer.stop()
        scene.wait_kind("classic", "Stable")
        scene.wait_shared(*classic)
        scene.send()
        scene.wait_read()
        scene.wait_committed()


def test_members_keep_what_they_have_when_the_node_restarts(tmp_path: Path) -> None:
    with LiveNode(tmp_path, group_consumer_heartbeat_interval_ms=100) as node, Scene(node) as scene:
        members = [scene.join(), scene.join()]
        scene.wait_shared(*members)
        scene.wait_kind("consumer", "Stable")
        scene.send()
        scene.wait_read()
        epoch = scene.describe().group_epoch
        node.stop()
        node.start()
        scene.send()
        scene.wait_read()
        scene.wait_shared(*members)
        assert scene.describe().group_epoch == epoch


def test_O4_offsets_in_a_transaction_are_those_of_a_member(node: LiveNode) -> None:
    """The consumer's group metadata carries the member epoch in the generation's place (KIP-447, KIP-848)."""
    with Scene(node) as scene:
        scene.send()
        address = str(node.node.kafka_address)
        options = {"bootstrap.servers": address, "group.id": scene.group, "group.protocol": "consumer"}
        consumer = confluent_kafka.Consumer({**options, "auto.offset.reset": "earliest", "enable.auto.commit": False})
        consumer.subscribe([scene.topic])
        read = 0
        deadline = time.monotonic() + PATIENCE_S
        while read < len(scene.sent):
            assert time.monotonic() < deadline, read
            read += sum(message.error() is None for message in consumer.consume(100, 0.1))
        producer = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": scene.group})
        producer.init_transactions(PATIENCE_S)
        member = consumer.consumer_group_metadata()
        positions = consumer.position(consumer.assignment())
        producer.begin_transaction()
        producer.send_offsets_to_transaction(positions, member, PATIENCE_S)
        producer.commit_transaction(PATIENCE_S)
        scene.wait_committed()
        consumer.close()
        second = scene.join()
        scene.wait_shared(second)
        producer.begin_transaction()
        with pytest.raises(confluent_kafka.KafkaException) as error:
            producer.send_offsets_to_transaction(positions, member, PATIENCE_S)
        assert error.value.args[0].txn_requires_abort()
        producer.abort_transaction(PATIENCE_S)


def test_confluents_admin_client_sees_consumer_groups(node: LiveNode) -> None:
    with Scene(node) as scene:
        member = scene.join()
        scene.wait_shared(member)
        scene.wait_kind("consumer", "Stable")
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": str(node.node.kafka_address)})
        consumer_type = confluent_kafka.ConsumerGroupType.CONSUMER
        listed = admin.list_consumer_groups(types={consumer_type}).result(PATIENCE_S)
        assert {group.type for group in listed.valid} == {consumer_type}
        assert scene.group in {group.group_id for group in listed.valid}
        [described] = admin.describe_consumer_groups([scene.group]).values()
        group = described.result(PATIENCE_S)
        assert group.type is consumer_type
        assert group.state is confluent_kafka.ConsumerGroupState.STABLE
        [found] = group.members
        assert len(found.assignment.topic_partitions) == PARTITIONS
        assert len(found.target_assignment.topic_partitions) == PARTITIONS
        member.stop()
        scene.wait_kind("consumer", "Empty")
        [deleted] = admin.delete_consumer_groups([scene.group]).values()
        deleted.result(PATIENCE_S)
