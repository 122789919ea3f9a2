"""CreateTopics, DeleteTopics and CreatePartitions on the Kafka listener, in every version."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kafka_calls import call
from running_node import create_topic, run_with_node

from semel.broker.config.node_config import TOPIC_SETTINGS
from semel.broker.listeners.kafka.apis.deadline import within
from semel.broker.node import Node
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import OFFSETS_TOPIC, TopicPartition, new_topic_id
from semel.protocol.kafka.api import ApiKey

MINUTE = 60_000


def topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    configs = [{"name": key, "value": value} for key, value in more.pop("configs", {}).items()]
    assignments = [{"partition_index": number, "broker_ids": nodes} for number, nodes in more.pop("assignments", ())]
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": assignments,
        "configs": configs,
    }


async def create(node: Node, version: int, *topics: dict[str, Any], **values: Any) -> Any:
    values = {"timeout": MINUTE, **values}
    return await call(node.kafka_address.port, ApiKey.CREATE_TOPICS, version, topics=topics, **values)


def errors(response: Any) -> dict[str, int]:
    return {each.name: int(each.error_code) for each in response.topics}


@pytest.mark.parametrize("version", range(2, 8))
def test_topics_are_made_and_described_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        response = await create(
            node,
            version,
            topic("a", 3, 1, configs={"retention.ms": "5"}),
            topic("defaults", -1, -1),
            topic("a b"),
        )
        assert errors(response) == {"a": 0, "defaults": 0, "a b": ErrorCode.INVALID_TOPIC_EXCEPTION}
        assert {name: len(image.partitions) for name, image in node.metadata.image.topics.items()} == {
            "a": 3,
            "defaults": 2,
        }
        # What is answered can be used at once.
        assert node.partition(TopicPartition("a", 2)) is not None
        made = {each.name: each for each in response.topics}
        assert "other than ASCII" in made["a b"].error_message
        assert made["a"].error_message is None
        if version >= 5:
            assert (made["a"].num_partitions, made["a"].replication_factor) == (3, 1)
            settings = {each.name: (each.value, each.config_source) for each in made["a"].configs}
            assert set(settings) == set(TOPIC_SETTINGS)
            assert settings["retention.ms"] == ("5", 1)
            assert settings["segment.bytes"] == ("1073741824", 5)
            assert made["a b"].configs == ()
        if version >= 7:
            assert made["a"].topic_id == node.metadata.image.topics["a"].topic_id
            assert made["a b"].topic_id is None

    run_with_node(tmp_path, test, num_partitions=2)


@pytest.mark.parametrize("version", range(2, 8))
def test_validate_only_makes_nothing(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        response = await create(node, version, topic("a"), topic("b", 0), validate_only=True)
        assert errors(response) == {"a": 0, "b": ErrorCode.INVALID_PARTITIONS}
        assert not node.metadata.image.topics

    run_with_node(tmp_path, test)


def test_what_is_wrong_with_a_topic_is_its_own_error(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "old")
        response = await create(
            node,
            7,
            topic("old"),
            topic("twice"),
            topic("twice", 2),
            topic("null", configs={"retention.ms": None}),
            topic("unknown", configs={"retenton.ms": "1"}),
            topic("kafkas", configs={"unclean.leader.election.enable": "true"}),
            topic("replicas", 1, 2),
            topic("both", 1, 1, assignments=[(0, [1])]),
            topic("gap", -1, -1, assignments=[(0, [1]), (2, [1])]),
            topic("repeated", -1, -1, assignments=[(0, [1]), (0, [1])]),
            topic("nowhere", -1, -1, assignments=[(0, [7])]),
            topic("empty", -1, -1, assignments=[(0, [])]),
            topic("same", -1, -1, assignments=[(0, [1, 1])]),
            topic("assigned", -1, -1, assignments=[(1, [1]), (0, [1])]),
        )
        wrong = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert errors(response) == {
            "null": ErrorCode.INVALID_CONFIG,
            "repeated": wrong,
            "old": ErrorCode.TOPIC_ALREADY_EXISTS,
            "twice": ErrorCode.INVALID_REQUEST,
            "unknown": ErrorCode.INVALID_CONFIG,
            "kafkas": ErrorCode.INVALID_CONFIG,
            "replicas": ErrorCode.INVALID_REPLICATION_FACTOR,
            "both": ErrorCode.INVALID_REQUEST,
            "gap": wrong,
            "nowhere": wrong,
            "empty": wrong,
            "same": wrong,
            "assigned": 0,
        }
        assert all(bool(each.error_message) == bool(int(each.error_code)) for each in response.topics)
        assert set(node.metadata.image.topics) == {"old", "assigned"}
        assert len(node.metadata.image.topics["assigned"].partitions) == 2

    run_with_node(tmp_path, test)


def test_a_node_that_is_not_the_controller_says_so_of_every_topic(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "old")

        async def refuse(*_: object) -> None:
            raise RetriableError("not the controller", ErrorCode.NOT_CONTROLLER)

        node.metadata.change = refuse  # type: ignore[method-assign,assignment]
        assert errors(await create(node, 7, topic("a"), topic("b"))) == dict.fromkeys("ab", ErrorCode.NOT_CONTROLLER)
        response = await delete(node, 6, {"name": "old"})
        assert [int(each.error_code) for each in response.responses] == [ErrorCode.NOT_CONTROLLER]
        assert await grow(node, 3, {"name": "old", "count": 2}) == {"old": ErrorCode.NOT_CONTROLLER}
        del node.metadata.change

    run_with_node(tmp_path, test)


def test_a_change_that_takes_too_long_is_said_to_go_on(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        may_go_on = asyncio.Event()
        change = node.metadata.change

        async def slow(decide: Any) -> Any:
            await may_go_on.wait()
            return await change(decide)

        node.metadata.change = slow  # type: ignore[method-assign]
        response = await create(node, 7, topic("a"), timeout=1)
        assert errors(response) == {"a": ErrorCode.REQUEST_TIMED_OUT}
        assert "ask for the metadata" in response.topics[0].error_message
        may_go_on.set()
        del node.metadata.change
        while node.metadata.topic("a") is None:  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0)

    run_with_node(tmp_path, test)


def test_an_error_after_the_deadline_is_in_the_nodes_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        failed = asyncio.Event()

        async def fail() -> None:
            try:
                await asyncio.sleep(0.001)
                raise RetriableError("too late")
            finally:
                failed.set()

        with pytest.raises(RetriableError, match="not done after 0 ms"):
            await within(0, fail())
        await failed.wait()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert caplog.messages == ["a change failed after its client had stopped waiting for it: too late"]


# --- DeleteTopics -----------------------------------------------------------------------------------------------------


async def delete(node: Node, version: int, *topics: Any, **values: Any) -> Any:
    names = [each["name"] for each in topics] if version < 6 else []
    values = {"timeout": MINUTE, **values}
    return await call(
        node.kafka_address.port, ApiKey.DELETE_TOPICS, version, topics=topics, topic_names=names, **values
    )


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted_by_name_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        for name in ("a", "b", "twice"):
            await create_topic(node, name)
        await node.groups.topic_ready()
        topic_id = node.metadata.image.topics["a"].topic_id
        asked = ("a", "nope", OFFSETS_TOPIC, "twice", "twice")
        response = await delete(node, version, *({"name": name} for name in asked))
        assert [(each.name, int(each.error_code)) for each in response.responses] == [
            ("a", 0),
            ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (OFFSETS_TOPIC, ErrorCode.INVALID_REQUEST),
            ("twice", ErrorCode.INVALID_REQUEST),
        ]
        assert set(node.metadata.image.topics) == {"b", "twice", OFFSETS_TOPIC}
        assert node.partition(TopicPartition("a", 0)) is None
        if version >= 5:
            assert [bool(each.error_message) for each in response.responses] == [False, True, True, True]
        if version >= 6:
            assert response.responses[0].topic_id == topic_id

    run_with_node(tmp_path, test)


def test_topics_are_deleted_by_id(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        for name in ("a", "b", "c"):
            await create_topic(node, name)
        ids = {name: image.topic_id for name, image in node.metadata.image.topics.items()}
        unknown = new_topic_id()
        response = await delete(
            node,
            6,
            {"name": None, "topic_id": ids["a"].bytes},
            {"name": None, "topic_id": unknown.bytes},
            {"name": "b", "topic_id": ids["b"].bytes},
            {"name": None, "topic_id": bytes(16)},
            {"name": None, "topic_id": ids["c"].bytes},
            {"name": "c"},
        )
        assert sorted((str(each.topic_id), each.name, int(each.error_code)) for each in response.responses) == sorted(
            (str(topic_id), name, int(error))
            for topic_id, name, error in (
                (ids["a"], "a", 0),
                (unknown, None, ErrorCode.UNKNOWN_TOPIC_ID),
                (ids["b"], "b", ErrorCode.INVALID_REQUEST),
                (None, None, ErrorCode.INVALID_REQUEST),
                (ids["c"], "c", ErrorCode.INVALID_REQUEST),
            )
        )
        assert set(node.metadata.image.topics) == {"b", "c"}

    run_with_node(tmp_path, test)


@pytest.mark.parametrize("version", range(1, 7))
def test_deletion_that_is_switched_off(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a")
        response = await delete(node, version, {"name": "a"})
        expected = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
        assert [int(each.error_code) for each in response.responses] == [expected]

    run_with_node(tmp_path, test, delete_topic_enable=False)


# --- CreatePartitions -------------------------------------------------------------------------------------------------


async def grow(node: Node, version: int, *topics: dict[str, Any], **values: Any) -> dict[str, int]:
    topics = tuple({"assignments": None, **each} for each in topics)
    values = {"timeout": MINUTE, "validate_only": False, **values}
    response = await call(node.kafka_address.port, ApiKey.CREATE_PARTITIONS, version, topics=topics, **values)
    assert all(bool(each.error_message) == bool(int(each.error_code)) for each in response.results)
    return {each.name: int(each.error_code) for each in response.results}


@pytest.mark.parametrize("version", range(4))
def test_topics_grow(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        for name in "abcdefg":
            await create_topic(node, name)
        asked = [
            {"name": "a", "count": 3},
            {"name": "b", "count": 1},
            {"name": "c", "count": 0},
            {"name": "d", "count": 3, "assignments": [{"broker_ids": [1]}, {"broker_ids": [1]}]},
            {"name": "e", "count": 3, "assignments": [{"broker_ids": [1]}]},
            {"name": "f", "count": 2, "assignments": [{"broker_ids": [2]}]},
            {"name": "g", "count": 2},
            {"name": "g", "count": 2},
            {"name": "nope", "count": 2},
        ]
        expected = {
            "a": 0,
            "b": ErrorCode.INVALID_PARTITIONS,
            "c": ErrorCode.INVALID_PARTITIONS,
            "d": 0,
            "e": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "f": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "g": ErrorCode.INVALID_REQUEST,
            "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        sequence = node.metadata.image.sequence
        assert await grow(node, version, *asked, validate_only=True) == expected
        assert node.metadata.image.sequence == sequence
        assert await grow(node, version, *asked) == expected
        counts = {name: len(image.partitions) for name, image in node.metadata.image.topics.items()}
        assert counts == {"a": 3, "b": 1, "c": 1, "d": 3, "e": 1, "f": 1, "g": 1}
        assert node.partition(TopicPartition("d", 2)) is not None

    run_with_node(tmp_path, test)
