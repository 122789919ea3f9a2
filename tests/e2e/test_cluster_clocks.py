"""Three nodes whose clocks are more than an hour apart, and jump, while nodes are killed.

Who is alive is told by the database's clock. Nothing else may depend on whose clock is right: no record is doubled or
lost, transactions have their time wherever their coordinator is, producers stay known, and followers delete nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cluster_run import cluster_run, in_sync
from committed_values import read_by_semel
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient
from database_servers import PostgresqlServer
from equal_replicas import assert_replicas_are_equal
from kafka_calls import call
from node_processes import NodeProcesses, wait_for
from shifted_clock import set_clock

import semel
from semel import TopicPartition
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TRANSACTIONS_TOPIC
from semel.protocol.kafka.api import ApiKey

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.timeout(600)]
MINUTE_MS = 60_000
IDS = AHEAD, RIGHT, BEHIND = 1, 2, 3
OFF_MS = {AHEAD: 75 * MINUTE_MS, RIGHT: 0, BEHIND: -80 * MINUTE_MS}
SETTINGS: dict[str, Any] = {
    "broker.session.timeout.ms": 2_000,
    "controller.lease.ms": 2_000,
    "replica.lag.time.max.ms": 3_000,
    "producer.id.expiration.ms": 30 * MINUTE_MS,
    "producer.id.expiration.check.interval.ms": 100,
    "log.retention.check.interval.ms": 100,
}
CALL_S = 60.0
LOOKS = 20
"""So often is looked for what must not happen; nodes have looked at their clocks several times by then."""


class NodesWithClocks(NodeProcesses):
    """Each node's clock is off by what was set, and at first by `OFF_MS`."""

    def program(self, node_id: int) -> list[str]:
        return self.chosen("--clock", str(self._clock(node_id)))

    def _clock(self, node_id: int) -> Path:
        return self.data_dir(node_id).with_suffix(".clock")

    def set_clock(self, node_id: int, off_ms: int) -> None:
        set_clock(self._clock(node_id), off_ms)

    def set_clocks(self) -> None:
        for node_id, off_ms in OFF_MS.items():
            self.set_clock(node_id, off_ms)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodesWithClocks]:
    database = PostgresqlServer()
    try:
        database.start()
        folder = tmp_path_factory.mktemp("cluster")
        running = NodesWithClocks(folder, **SETTINGS, **{"metadata.url": database.new_database("semel")})
        try:
            running.set_clocks()
            running.start(*IDS)
            # Something to compare also where a worker runs only tests that delete what they write.
            with semel.Admin(running.bootstrap) as admin, semel.Producer(running.bootstrap) as producer:
                admin.create_topic("compared", partitions=1)
                producer.send("compared", b"one").result(CALL_S)
            yield running
            for node_id in running.running:
                running.stop(node_id)
        finally:
            running.close()
    finally:
        database.close()
    assert_replicas_are_equal(running.data_dir(node_id) for node_id in IDS)


@pytest.fixture(autouse=True)
def all_again(nodes: NodesWithClocks) -> None:
    """All nodes run, also after a test that failed, and their clocks are off as at first."""
    nodes.set_clocks()
    nodes.start(*(node_id for node_id in IDS if node_id not in nodes.running))


def coordinated_by(nodes: NodesWithClocks, node_id: int) -> str:
    """Let each node lead what it is the first replica of, and return a transactional id that a node coordinates."""
    made_by = "the first makes the topic"
    with semel.Producer(nodes.bootstrap, transactional_id=made_by) as producer, producer.transaction():
        pass
    in_sync(nodes, TRANSACTIONS_TOPIC)
    tool = AdminClient({"bootstrap.servers": ",".join(nodes.kafka.values())})
    tool.elect_leaders(ElectionType.PREFERRED).result(CALL_S)
    names = [f"at {node_id}, {number}" for number in range(30)]
    wait_for(lambda: any(nodes.coordinator(name) == node_id for name in names), f"node {node_id} coordinates")
    return next(name for name in names if nodes.coordinator(name) == node_id)


def state(nodes: NodesWithClocks, transactional_id: str) -> str:
    with semel.Admin([nodes.grpc[node_id] for node_id in nodes.running]) as admin:
        return admin.transaction(transactional_id).state


def led_by(nodes: NodesWithClocks, topic: str, node_id: int) -> int:
    """Make a topic and return a partition of it that a node leads."""
    in_sync(nodes, topic)
    return next(number for number in range(len(IDS)) if nodes.leader(topic, number) == node_id)


@pytest.mark.drawn(1, "clocks of nodes")
def test_E1_each_record_is_transformed_once_whatever_the_nodes_clocks_say(
    nodes: NodesWithClocks, tmp_path: Path
) -> None:
    with cluster_run(nodes, tmp_path, "clocks") as run:
        for struck in IDS:
            nodes.kill(struck)
            nodes.set_clock(struck, -OFF_MS[struck])  # it was wrong the other way round
            nodes.set_clock(struck % 3 + 1, 150 * MINUTE_MS)
            nodes.wait_replaced(struck)
            run.more()
            nodes.start(struck)
            in_sync(nodes, run.source, run.target)
        run.assert_exactly_once()


@pytest.mark.drawn(1, "clocks of nodes")
def test_T9_a_transaction_has_its_time_where_its_coordinator_moves_to_a_clock_that_is_ahead(
    nodes: NodesWithClocks,
) -> None:
    with semel.Admin(nodes.bootstrap) as admin:
        admin.create_topic("moved", partitions=1)
    name = coordinated_by(nodes, BEHIND)
    with semel.Producer(nodes.bootstrap, transactional_id=name) as producer, producer.transaction() as transaction:
        transaction.send("moved", b"one").result(CALL_S)
        nodes.kill(BEHIND)
        nodes.wait_replaced(BEHIND)
        wait_for(lambda: coordinator_is_loaded(nodes, name), "another coordinates")
        for _ in range(LOOKS):
            assert state(nodes, name) == "Ongoing"
        transaction.send("moved", b"two")
    nodes.start(BEHIND)
    assert read_by_semel(nodes.bootstrap, "moved", 1) == ["one", "two"]


@pytest.mark.drawn(1, "clocks of nodes")
def test_T9_a_transaction_times_out_where_its_coordinator_moves_to_a_clock_that_is_behind(
    nodes: NodesWithClocks,
) -> None:
    with semel.Admin(nodes.bootstrap) as admin:
        admin.create_topic("given-up", partitions=1)
    name = coordinated_by(nodes, AHEAD)
    with (
        semel.Producer(nodes.bootstrap, transactional_id=name, transaction_timeout_ms=8_000) as producer,
        suppress(semel.SemelError),
        producer.transaction() as transaction,
    ):
        transaction.send("given-up", b"one").result(CALL_S)
        nodes.kill(AHEAD)
        nodes.wait_replaced(AHEAD)
        wait_for(lambda: coordinator_is_loaded(nodes, name), "another coordinates")
        wait_for(lambda: state(nodes, name) == "CompleteAbort", "the transaction has timed out")
    nodes.start(AHEAD)
    assert read_by_semel(nodes.bootstrap, "given-up", 1) == []


def coordinator_is_loaded(nodes: NodesWithClocks, name: str) -> bool:
    try:
        state(nodes, name)
    except semel.RetriableError:
        return False
    return True


def test_P8_a_producer_is_known_after_a_fail_over_and_jumps_of_the_clock(nodes: NodesWithClocks) -> None:
    with semel.Admin(nodes.bootstrap) as admin:
        admin.create_topic("repeated", partitions=len(IDS))
    number = led_by(nodes, "repeated", RIGHT)
    port = int(nodes.kafka[RIGHT].rpartition(":")[2])
    given = asyncio.run(
        call(
            port, ApiKey.INIT_PRODUCER_ID, 4,
            transactional_id=None, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1,
        )
    )  # fmt: skip
    record = (time.time_ns() // 1_000_000, b"key", b"value", ())
    batch = encode_batch([record], producer_id=given.producer_id, producer_epoch=0, base_sequence=0)

    def produce(node_id: int) -> tuple[ErrorCode, int]:
        topics = [{"name": "repeated", "partition_data": [{"index": number, "records": batch}]}]
        port = int(nodes.kafka[node_id].rpartition(":")[2])
        answer = asyncio.run(
            call(port, ApiKey.PRODUCE, 9, transactional_id=None, acks=-1, timeout=10_000, topic_data=topics)
        )
        told = answer.responses[0].partition_responses[0]
        return ErrorCode(int(told.error_code)), told.base_offset

    assert produce(RIGHT) == (ErrorCode.NONE, 0)
    in_sync(nodes, "repeated")
    nodes.kill(RIGHT)
    nodes.wait_replaced(RIGHT)
    leader = nodes.leader("repeated", number)
    for off_ms in (OFF_MS[leader], 240 * MINUTE_MS, -240 * MINUTE_MS, 240 * MINUTE_MS):
        nodes.set_clock(leader, off_ms)
        for _ in range(LOOKS):
            assert produce(leader) == (ErrorCode.NONE, 0), f"the clock is off by {off_ms} ms"
    nodes.start(RIGHT)
    in_sync(nodes, "repeated")


def test_D6_followers_whose_clocks_are_ahead_delete_nothing_that_the_leader_keeps(nodes: NodesWithClocks) -> None:
    topic, count = "kept", 60
    with semel.Admin(nodes.bootstrap) as admin, semel.Producer(nodes.bootstrap, linger_ms=0) as producer:
        configs = {"retention.ms": str(30 * MINUTE_MS), "segment.bytes": "500", "file.delete.delay.ms": "0"}
        admin.create_topic(topic, partitions=len(IDS), configs=configs)
        number = led_by(nodes, topic, RIGHT)
        for _ in range(count):
            producer.send(topic, b"x" * 100, partition=number).result(60)
        nodes.set_clock(BEHIND, 75 * MINUTE_MS)
        # What the leader deletes, its followers delete, in the same rounds in which they look at times.
        assert admin.delete_records({TopicPartition(topic, number): 20}) == {TopicPartition(topic, number): 20}
        for node_id in IDS:
            wait_for(lambda: min(segments(nodes, node_id, topic, number)) > 0, "the first segments are gone")  # noqa: B023
        kept = segments(nodes, RIGHT, topic, number)
        assert 0 < min(kept) <= 20
        for node_id in (AHEAD, BEHIND):
            assert segments(nodes, node_id, topic, number) == kept
        (start,) = admin.list_offsets({TopicPartition(topic, number): -2}).values()
        assert start.offset == 20
        admin.delete_topic(topic)  # the next leader deletes by its own clock


def segments(nodes: NodesWithClocks, node_id: int, topic: str, number: int) -> set[int]:
    """Return where the segments begin that a node has of a partition."""
    folder = nodes.data_dir(node_id) / f"{topic}-{number}"
    return {int(path.stem) for path in folder.glob("*.log")}
