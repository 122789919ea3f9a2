"""Metadata, DescribeTopicPartitions and DescribeCluster on the Kafka listener, in every version."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka_calls import call
from running_node import create_topic, run_with_node

from semel.broker.node import Node
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import OFFSETS_TOPIC, ZERO_TOPIC_ID, TopicPartition, new_topic_id
from semel.protocol.kafka.api import ApiKey, NodeEndpoint
from semel.protocol.kafka.messages import build_response
from semel.protocol.kafka.metadata import METADATA_MAX_VERSION, MetadataPartition, MetadataResponse, MetadataTopic

NAMES_ONLY = [*range(10), 13]


async def ask(node: Node, version: int, topics: list[dict[str, Any]] | None, **values: Any) -> Any:
    return await call(node.kafka_address.port, ApiKey.METADATA, version, topics=topics, **values)


def errors(response: Any) -> dict[str, int]:
    return {topic.name: int(topic.error_code) for topic in response.topics}


@pytest.mark.parametrize("version", range(14))
def test_a_topic_and_the_nodes_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a", 2)
        response = await ask(node, version, [{"name": "a"}, {"name": "a"}])
        (topic,) = response.topics
        assert (topic.name, int(topic.error_code)) == ("a", 0)
        assert [(each.partition_index, each.leader_id) for each in topic.partitions] == [(0, 1), (1, 1)]
        assert all(each.replica_nodes == (1,) and each.isr_nodes == (1,) for each in topic.partitions)
        (broker,) = response.brokers
        assert (broker.node_id, broker.host, broker.port) == (1, "127.0.0.1", node.kafka_address.port)
        if version >= 1:
            assert response.controller_id == 1
            assert (topic.is_internal, broker.rack) == (False, "r1")
        if version >= 2:
            assert response.cluster_id == node.metadata.image.cluster_id
        if version >= 5:
            assert all(each.offline_replicas == () for each in topic.partitions)
        if version >= 7:
            assert all(each.leader_epoch == 0 for each in topic.partitions)
        if version >= 10:
            image = node.metadata.topic("a")
            assert image is not None
            assert topic.topic_id == image.topic_id

    run_with_node(tmp_path, test, broker_rack="r1")


@pytest.mark.parametrize("version", range(METADATA_MAX_VERSION + 1))
def test_the_response_is_byte_for_byte_kios(version: int) -> None:
    partitions = [
        MetadataPartition(ErrorCode.NONE, 0, 1, 5, (1, 2), (1,), (2,)),
        MetadataPartition(ErrorCode.LEADER_NOT_AVAILABLE, 1, -1, 7, (3,), (), (3,)),
    ]
    topics = [
        MetadataTopic(ErrorCode.NONE, "a", new_topic_id(), True, partitions, 0b1000),
        MetadataTopic(ErrorCode.UNKNOWN_TOPIC_ID, None if version >= 12 else "", new_topic_id(), False, (), -(1 << 31)),
        MetadataTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "b", ZERO_TOPIC_ID, False, (), -(1 << 31)),
    ]
    brokers = [NodeEndpoint(1, "one.example", 9092, "r1"), NodeEndpoint(2, "two.example", 9093)]
    response = MetadataResponse(brokers, None if version % 2 else "cluster", 2, topics, 0b100)
    values = {
        "brokers": [each._asdict() for each in brokers],
        "cluster_id": response.cluster_id,
        "controller_id": 2,
        "cluster_authorized_operations": 0b100,
        "topics": [
            {
                "error_code": topic.error,
                "name": topic.name,
                "topic_id": topic.topic_id.bytes,
                "is_internal": topic.is_internal,
                "topic_authorized_operations": topic.authorized_operations,
                "partitions": [
                    {
                        "error_code": each.error,
                        "partition_index": each.partition,
                        "leader_id": each.leader_id,
                        "leader_epoch": each.leader_epoch,
                        "replica_nodes": each.replicas,
                        "isr_nodes": each.isr,
                        "offline_replicas": each.offline_replicas,
                    }
                    for each in topic.partitions
                ],
            }
            for topic in topics
        ],
    }
    assert response.build(version) == build_response(ApiKey.METADATA, version, **values)


def test_a_leader_that_is_not_in_the_cluster_is_none(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a")
        image = node.metadata.image
        topic = image.topics["a"]
        gone = replace(topic, partitions=(replace(topic.partitions[0], leader=9),))
        node.metadata.image = replace(image, topics={"a": gone})
        (told,) = (await ask(node, 13, [{"name": "a"}])).topics
        (partition,) = told.partitions
        assert (int(partition.error_code), partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)

    run_with_node(tmp_path, test)


def test_all_topics_none_and_some_are_told_apart_by_version(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "b")
        await create_topic(node, "a")
        await node.groups.topic_ready()
        everything = [OFFSETS_TOPIC, "a", "b"]
        assert [topic.name for topic in (await ask(node, 0, [])).topics] == everything
        for version in range(1, 14):
            response = await ask(node, version, None)
            assert [topic.name for topic in response.topics] == everything
            assert [topic.is_internal for topic in response.topics] == [True, False, False]
            assert (await ask(node, version, [])).topics == ()

    run_with_node(tmp_path, test)


def test_topics_by_id_and_what_is_said_of_unknown_ones(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a")
        image = node.metadata.topic("a")
        assert image is not None
        unknown = new_topic_id()
        for version in (12, 13):
            # Where there is any id, names do not count.
            asked = [{"topic_id": image.topic_id.bytes}, {"topic_id": unknown.bytes}, {"name": "new"}]
            known, missing = (await ask(node, version, asked, allow_auto_topic_creation=True)).topics
            assert (known.name, known.topic_id, int(known.error_code)) == ("a", image.topic_id, 0)
            assert (missing.name, missing.topic_id) == (None, unknown)
            assert int(missing.error_code) == ErrorCode.UNKNOWN_TOPIC_ID
        for version in (10, 11):
            for refused in ({"topic_id": image.topic_id.bytes, "name": "a"}, {"name": None}):
                response = await ask(node, version, [refused])
                assert errors(response) == {refused["name"] or "": ErrorCode.INVALID_REQUEST}
        response = await ask(node, 13, [{"name": None}])
        assert errors(response) == {"": ErrorCode.INVALID_REQUEST}
        assert node.metadata.topic("new") is None

    run_with_node(tmp_path, test)


@pytest.mark.parametrize("version", NAMES_ONLY)
def test_a_missing_topic_is_made_where_client_and_node_allow_it(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        response = await ask(node, version, [{"name": "new"}, {"name": "no good"}, {"name": OFFSETS_TOPIC}])
        assert errors(response) == {"new": 0, "no good": ErrorCode.INVALID_TOPIC_EXCEPTION, OFFSETS_TOPIC: 0}
        assert {topic.name: len(topic.partitions) for topic in response.topics}["new"] == 3
        # What is told can be used at once.
        assert node.partition(TopicPartition("new", 2)) is not None
        assert node.partition(TopicPartition(OFFSETS_TOPIC, 0)) is not None
        if version >= 4:
            asked = [{"name": "other"}, {"name": "a/b"}]
            response = await ask(node, version, asked, allow_auto_topic_creation=False)
            assert errors(response) == {
                "other": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION,
            }

    run_with_node(tmp_path, test, num_partitions=3)


def test_why_a_topic_was_not_made_is_said_and_the_others_are_told(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a.b")
        response = await ask(node, 13, [{"name": "a_b"}, {"name": "a.b"}, {"name": "fine"}])
        assert errors(response) == {"a_b": ErrorCode.INVALID_TOPIC_EXCEPTION, "a.b": 0, "fine": 0}

        async def unavailable(*_: object) -> None:
            raise RetriableError("no controller", ErrorCode.NOT_CONTROLLER)

        node.metadata.change = unavailable  # type: ignore[method-assign,assignment]
        response = await ask(node, 13, [{"name": "a.b"}, {"name": "more"}])
        assert errors(response) == {"a.b": 0, "more": ErrorCode.NOT_CONTROLLER}
        del node.metadata.change

    run_with_node(tmp_path, test)


def test_replicas_that_do_not_exist_are_an_error_of_the_topic(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        assert errors(await ask(node, 13, [{"name": "a"}])) == {"a": ErrorCode.INVALID_REPLICATION_FACTOR}

    run_with_node(tmp_path, test, default_replication_factor=3)


def test_no_topic_is_made_where_the_node_does_not_allow_it(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        response = await ask(node, 13, [{"name": "a"}, {"name": OFFSETS_TOPIC}])
        assert errors(response) == dict.fromkeys(("a", OFFSETS_TOPIC), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert [topic.is_internal for topic in response.topics] == [False, True]

    run_with_node(tmp_path, test, auto_create_topics_enable=False)


def test_a_log_that_failed_is_an_offline_replica(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a", 2)
        partition = node.partition(TopicPartition("a", 1))
        assert partition is not None
        partition.go_offline(RetriableError("the disk failed", ErrorCode.KAFKA_STORAGE_ERROR))
        (topic,) = (await ask(node, 13, [{"name": "a"}])).topics
        assert [each.offline_replicas for each in topic.partitions] == [(), (1,)]

    run_with_node(tmp_path, test)


def test_a_partition_whose_directory_is_gone_has_no_leader_and_the_others_have(tmp_path: Path) -> None:
    """Clients went on sending it records without a key, which others could have taken."""

    async def test(node: Node) -> None:
        await create_topic(node, "a", 2)
        shutil.rmtree(tmp_path / "data" / "a-1")
        await node.logs.maintenance.flush()
        (topic,) = (await ask(node, 13, [{"name": "a"}])).topics
        assert [(each.error_code, each.leader_id, each.offline_replicas) for each in topic.partitions] == [
            (ErrorCode.NONE, 1, ()),
            (ErrorCode.LEADER_NOT_AVAILABLE, -1, (1,)),
        ]

    run_with_node(tmp_path, test)


@pytest.mark.parametrize("version", range(8, 14))
def test_authorized_operations_are_all_where_asked_for(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a")
        for asked, topic_bits, cluster_bits in ((True, 0b1101_1111_1000, 0b1_1111_1010_0000), (False, None, None)):
            response = await ask(
                node,
                version,
                [{"name": "a"}],
                include_topic_authorized_operations=asked,
                include_cluster_authorized_operations=asked,
            )
            unknown = -(1 << 31)
            assert response.topics[0].topic_authorized_operations == (unknown if topic_bits is None else topic_bits)
            if version <= 10:
                assert response.cluster_authorized_operations == (unknown if cluster_bits is None else cluster_bits)

    run_with_node(tmp_path, test)


# --- DescribeTopicPartitions ------------------------------------------------------------------------------------------


async def pages(node: Node, names: list[str], limit: int) -> list[list[tuple[str, int]]]:
    found: list[list[tuple[str, int]]] = []
    cursor: dict[str, Any] | None = None
    while True:
        response = await describe(node, names, limit, cursor)
        found.append([(topic.name, each.partition_index) for topic in response.topics for each in topic.partitions])
        if response.next_cursor is None:
            return found
        cursor = {
            "topic_name": response.next_cursor.topic_name,
            "partition_index": response.next_cursor.partition_index,
        }


async def describe(node: Node, names: list[str], limit: int = 2000, cursor: dict[str, Any] | None = None) -> Any:
    return await call(
        node.kafka_address.port,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=cursor,
    )


@pytest.mark.parametrize("limit", [-1, 1, 2, 3, 4, 5, 6, 100])
def test_pages_together_hold_every_partition_once(tmp_path: Path, limit: int) -> None:
    async def test(node: Node) -> None:
        for name, count in (("c", 1), ("a", 3), ("b", 2)):
            await create_topic(node, name, count)
        everything = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]
        for names, expected in (
            ([], everything),
            (["b", "a"], everything[:5]),
            (["c", "c"], everything[5:]),
        ):
            found = await pages(node, names, limit)
            assert [each for page in found for each in page] == expected
            assert all(len(page) <= max(limit, 1) for page in found)

    run_with_node(tmp_path, test)


def test_the_node_bounds_a_page_too(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a", 3)
        assert [len(page) for page in await pages(node, [], 100)] == [2, 1]

    run_with_node(tmp_path, test, max_request_partition_size_limit=2)


def test_a_described_topic_has_its_id_operations_and_errors(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a")
        response = await describe(node, ["x", "a", "no good"])
        assert errors(response) == {
            "a": 0,
            "no good": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "x": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        topic = response.topics[0]
        assert topic.topic_id == node.metadata.image.topics["a"].topic_id
        assert topic.topic_authorized_operations == 0b1101_1111_1000
        (partition,) = topic.partitions
        assert (partition.leader_id, partition.leader_epoch, partition.isr_nodes) == (1, 0, (1,))
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((), ())
        assert node.metadata.topic("x") is None

    run_with_node(tmp_path, test)


def test_cursors_of_topics_and_partitions_that_are_gone(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a", 2)
        await create_topic(node, "c", 2)
        after_deleted = await describe(node, [], cursor={"topic_name": "b", "partition_index": 1})
        assert [(topic.name, len(topic.partitions)) for topic in after_deleted.topics] == [("c", 2)]
        beyond = await describe(node, [], cursor={"topic_name": "a", "partition_index": 9})
        assert [(topic.name, len(topic.partitions)) for topic in beyond.topics] == [("a", 0), ("c", 2)]
        wrong = await describe(node, ["a"], cursor={"topic_name": "a", "partition_index": -1})
        assert errors(wrong) == {"a": ErrorCode.INVALID_REQUEST}

    run_with_node(tmp_path, test)


# --- DescribeCluster --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        port = node.kafka_address.port
        for asked, bits in ((True, 0b1_1111_1010_0000), (False, -(1 << 31))):
            response = await call(port, ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=asked)
            assert int(response.error_code) == 0
            assert response.cluster_id == node.metadata.image.cluster_id
            assert response.controller_id == 1
            (broker,) = response.brokers
            assert (broker.broker_id, broker.host, broker.port, broker.rack) == (1, "127.0.0.1", port, None)
            assert response.cluster_authorized_operations == bits
        if version >= 1:
            for endpoint_type, error in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (7, 115)):
                response = await call(port, ApiKey.DESCRIBE_CLUSTER, version, endpoint_type=endpoint_type)
                assert int(response.error_code) == error
                assert "ask for brokers" in response.error_message
                assert response.brokers == ()

    run_with_node(tmp_path, test)
