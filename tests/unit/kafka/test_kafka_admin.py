"""The other APIs that administrators use on the Kafka listener, in every version."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka_calls import call
from running_node import batch, create_topic, run_with_node

from semel.broker.node import Node
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

with_node = partial(run_with_node, topics={"a": 2})


async def ask(node: Node, key: ApiKey, version: int, **values: Any) -> Any:
    return await call(node.kafka_address.port, key, version, **values)


# --- DescribeLogDirs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 6))
def test_sizes_of_logs_and_of_their_disk(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "b")
        partition = node.partition(TopicPartition("a", 1))
        assert partition is not None
        data = batch(b"one", b"two")
        await partition.wait_committed(partition.append(bytearray(data)).last_offset)
        response = await ask(node, ApiKey.DESCRIBE_LOG_DIRS, version, topics=None)
        (folder,) = response.results
        assert (int(folder.error_code), folder.log_dir) == (0, str(tmp_path / "data"))
        sizes = {
            (topic.name, each.partition_index): (each.partition_size, each.offset_lag, each.is_future_key)
            for topic in folder.topics
            for each in topic.partitions
        }
        empty = (0, 0, False)
        assert sizes == {("a", 0): empty, ("a", 1): (len(data), 0, False), ("b", 0): empty}
        if version >= 4:
            assert 0 < folder.usable_bytes <= folder.total_bytes
        asked = [{"topic": "a", "partitions": [1, 7]}, {"topic": "nope", "partitions": [0]}]
        (folder,) = (await ask(node, ApiKey.DESCRIBE_LOG_DIRS, version, topics=asked)).results
        assert [(topic.name, len(topic.partitions)) for topic in folder.topics] == [("a", 1)]

    with_node(tmp_path, test)


def test_a_folder_whose_logs_all_failed_is_an_error(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        first, second = node.logs.partitions()
        failure = RetriableError("the disk failed", ErrorCode.KAFKA_STORAGE_ERROR)
        first.go_offline(failure)
        (folder,) = (await ask(node, ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None)).results
        assert (int(folder.error_code), [len(topic.partitions) for topic in folder.topics]) == (0, [1])
        second.go_offline(failure)
        (folder,) = (await ask(node, ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None)).results
        assert (int(folder.error_code), folder.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, ())

    with_node(tmp_path, test)


# --- Leaders and replicas ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_no_leader_need_be_elected(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        async def elect(partitions: list[dict[str, Any]] | None, kind: int = 0) -> tuple[int, dict[str, Any]]:
            response = await ask(
                node, ApiKey.ELECT_LEADERS, version, topic_partitions=partitions, election_type=kind, timeout=1000
            )
            found = {
                topic.topic: [(each.partition_id, int(each.error_code)) for each in topic.partition_result]
                for topic in response.replica_election_results
            }
            return int(getattr(response, "error_code", 0)), found

        asked = [{"topic": "a", "partitions": [0, 1, 1, 2]}, {"topic": "nope", "partitions": [0]}]
        not_needed = int(ErrorCode.ELECTION_NOT_NEEDED)
        expected = {"a": [(0, not_needed), (1, not_needed), (2, UNKNOWN)], "nope": [(0, UNKNOWN)]}
        assert await elect(asked) == (0, expected)
        assert await elect(None) == (0, {})
        if version >= 1:
            assert await elect(asked, 1) == (0, expected)
            assert await elect(asked, 2) == (ErrorCode.INVALID_REQUEST, {})

    with_node(tmp_path, test)


@pytest.mark.parametrize("version", range(2))
def test_replicas_stay_where_they_are(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        async def move(name: str, number: int, replicas: list[int] | None) -> tuple[int, str | None]:
            topics = [{"name": name, "partitions": [{"partition_index": number, "replicas": replicas}]}]
            response = await ask(node, ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, timeout=1000, topics=topics)
            assert int(response.error_code) == 0
            (moved,) = response.responses[0].partitions
            return int(moved.error_code), moved.error_message

        assert await move("a", 0, [1]) == (0, None)
        for name, number, replicas, error, said in (
            ("a", 1, [2], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "name nodes of the cluster"),
            ("a", 1, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "name nodes of the cluster"),
            ("a", 1, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "each once"),
            ("a", 1, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "not being moved"),
            ("a", 2, [1], UNKNOWN, "a-2"),
            ("nope", 0, None, UNKNOWN, "nope-0"),
        ):
            code, message = await move(name, number, replicas)
            assert code == error
            assert said in str(message)
        for topics in (None, [{"name": "a", "partition_indexes": [0]}]):
            response = await ask(node, ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=topics)
            assert (int(response.error_code), response.topics) == (0, ())

    with_node(tmp_path, test)


# --- ACLs and quotas --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 4))
def test_without_an_authorizer_there_are_no_acls(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        described = await ask(
            node, ApiKey.DESCRIBE_ACLS, version, resource_type_filter=1, operation=1, permission_type=1
        )
        acl = {"resource_type": 2, "resource_name": "a", "principal": "User:me", "host": "*", "operation": 2}
        created = await ask(node, ApiKey.CREATE_ACLS, version, creations=[{**acl, "permission_type": 3}] * 2)
        wanted = {"resource_type_filter": 1, "operation": 1, "permission_type": 1}
        deleted = await ask(node, ApiKey.DELETE_ACLS, version, filters=[wanted] * 3)
        answers = (described, *created.results, *deleted.filter_results)
        assert len(answers) == 1 + 2 + 3
        for each in answers:
            assert int(each.error_code) == ErrorCode.SECURITY_DISABLED
            assert "no authorizer" in each.error_message

    with_node(tmp_path, test)


# --- DeleteRecords ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_records_are_deleted_up_to_an_offset(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        partition = node.partition(TopicPartition("a", 0))
        assert partition is not None
        await partition.wait_committed(partition.append(bytearray(batch(b"1", b"2", b"3"))).last_offset)

        async def delete(name: str, *offsets: tuple[int, int]) -> list[tuple[int, int, int]]:
            items = [{"partition_index": number, "offset": offset} for number, offset in offsets]
            response = await ask(
                node, ApiKey.DELETE_RECORDS, version, topics=[{"name": name, "partitions": items}], timeout=1000
            )
            (topic,) = response.topics
            return [(each.partition_index, int(each.error_code), each.low_watermark) for each in topic.partitions]

        beyond = (0, int(ErrorCode.OFFSET_OUT_OF_RANGE), -1)
        assert await delete("a", (0, 2), (1, -1), (2, 0)) == [(0, 0, 2), (1, 0, 0), (2, UNKNOWN, -1)]
        assert await delete("a", (0, 4)) == [beyond]
        assert await delete("a", (0, -2)) == [beyond]
        assert await delete("a", (0, -1)) == [(0, 0, 3)]
        assert await delete("nope", (0, 0)) == [(0, UNKNOWN, -1)]

    with_node(tmp_path, test)
