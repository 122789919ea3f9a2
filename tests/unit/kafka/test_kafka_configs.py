"""The APIs about settings on the Kafka listener, in every version."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka_calls import call
from running_node import SMALL, create_topic, run_with_node

from semel.broker.config.node_config import SETTINGS, TOPIC_SETTINGS, NodeConfig
from semel.broker.config.sources import LoadedConfig, Source
from semel.broker.node import Node
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import OFFSETS_TOPIC
from semel.protocol.kafka.api import ApiKey

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 1, 2, 3, 4, 5
SET, DELETE, APPEND, SUBTRACT = range(4)

with_node = partial(run_with_node, topics={"a": 1})


async def describe(
    node: Node, kind: int, name: str, keys: list[str] | None = None, version: int = 4, **options: Any
) -> Any:
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys}]
    response = await call(node.kafka_address.port, ApiKey.DESCRIBE_CONFIGS, version, resources=resources, **options)
    (result,) = response.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def value(node: Node, kind: int, name: str, key: str) -> tuple[str | None, int]:
    (found,) = (await describe(node, kind, name, [key])).configs
    return found.value, found.config_source


async def alter(
    node: Node,
    kind: int,
    name: str,
    *changes: tuple[int, str, str | None],
    version: int = 1,
    validate_only: bool = False,
) -> tuple[int, str | None]:
    """Change in increments; return the error and its message."""
    configs = [{"name": key, "config_operation": operation, "value": text} for operation, key, text in changes]
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
    response = await call(
        node.kafka_address.port,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        version,
        resources=resources,
        validate_only=validate_only,
    )
    (result,) = response.responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return int(result.error_code), result.error_message


# --- DescribeConfigs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 5))
def test_settings_of_topics_and_nodes_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        await alter(node, TOPIC, "a", (SET, "retention.ms", "5"))
        topic = {each.name: each for each in (await describe(node, TOPIC, "a", version=version)).configs}
        assert set(topic) == set(TOPIC_SETTINGS)
        own, inherited = topic["retention.ms"], topic["segment.bytes"]
        assert (own.value, own.config_source, own.read_only, own.is_sensitive) == ("5", DYNAMIC_TOPIC, False, False)
        assert (inherited.value, inherited.config_source) == ("1073741824", DEFAULT)
        assert own.synonyms == ()
        broker = {each.name: each for each in (await describe(node, BROKER, "1", version=version)).configs}
        assert set(broker) == set(SETTINGS)
        secret = broker["metadata.url"]
        assert (secret.value, secret.is_sensitive, secret.read_only) == (None, True, True)
        assert not broker["num.partitions"].read_only
        if version >= 3:
            assert own.documentation is None
            types = {each: broker[each].config_type for each in ("node.id", "log.retention.ms", "metadata.url")}
            assert types == {"node.id": 3, "log.retention.ms": 5, "metadata.url": 9}
            assert (topic["cleanup.policy"].config_type, broker["durability"].config_type) == (7, 2)
            assert broker["log.cleaner.min.cleanable.ratio"].config_type == 6
            assert broker["delete.topic.enable"].config_type == 1
            documented = await describe(node, TOPIC, "a", version=version, include_documentation=True)
            assert all(each.documentation for each in documented.configs)

    with_node(tmp_path, test, metadata_url=f"sqlite:///{tmp_path}/secret.sqlite")


def test_only_the_settings_that_are_asked_for(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        some = (await describe(node, TOPIC, "a", ["retention.ms", "nonsense"])).configs
        assert [each.name for each in some] == ["retention.ms"]

    with_node(tmp_path, test)


def test_no_names_of_settings_ask_for_all(tmp_path: Path) -> None:
    """An empty list means what null means, as in Kafka; it was answered with no settings."""

    async def test(node: Node) -> None:
        every = (await describe(node, TOPIC, "a")).configs
        assert len(every) > 1
        assert (await describe(node, TOPIC, "a", [])).configs == every

    with_node(tmp_path, test)


@pytest.mark.parametrize(
    ("kind", "name", "error", "said"),
    [
        (TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic 'nope'"),
        (BROKER, "7", ErrorCode.INVALID_REQUEST, "this is node 1"),
        (BROKER, "x", ErrorCode.INVALID_REQUEST, "this is node 1"),
        (BROKER_LOGGER, "1", ErrorCode.INVALID_REQUEST, "log.level"),
        (CLIENT_METRICS, "m", ErrorCode.INVALID_REQUEST, "no metrics"),
        (GROUP, "g", ErrorCode.INVALID_REQUEST, "begin with group."),
        (99, "a", ErrorCode.INVALID_REQUEST, "use topics"),
    ],
)
def test_what_has_no_settings_says_why(tmp_path: Path, kind: int, name: str, error: ErrorCode, said: str) -> None:
    async def test(node: Node) -> None:
        described = await describe(node, kind, name)
        assert int(described.error_code) == error
        assert said in described.error_message
        assert described.configs == ()
        code, message = await alter(node, kind, name, (SET, "retention.ms", "1"))
        assert code == error
        assert said in str(message)

    with_node(tmp_path, test)


def test_synonyms_are_every_value_that_was_given_strongest_first(tmp_path: Path) -> None:
    async def main() -> None:
        loaded = LoadedConfig(
            NodeConfig(data_dir=str(tmp_path / "data"), **SMALL, log_retention_ms=1), {"log.retention.ms": Source.FLAG}
        )
        node = await Node.start(loaded)
        try:
            await create_topic(node, "a", retention_ms="4")
            assert await alter(node, BROKER, "", (SET, "log.retention.ms", "2")) == (0, None)
            assert await alter(node, BROKER, "1", (SET, "log.retention.ms", "3")) == (0, None)
            default = ("log.retention.ms", str(7 * 86_400_000), DEFAULT)
            of_node = [
                ("log.retention.ms", "3", DYNAMIC_BROKER),
                ("log.retention.ms", "2", DYNAMIC_DEFAULT),
                ("log.retention.ms", "1", STATIC),
                default,
            ]
            for kind, name, key, expected in (
                (TOPIC, "a", "retention.ms", [("retention.ms", "4", DYNAMIC_TOPIC), *of_node]),
                (BROKER, "1", "log.retention.ms", of_node),
                (BROKER, "", "log.retention.ms", [of_node[1]]),
            ):
                (found,) = (await describe(node, kind, name, [key], include_synonyms=True)).configs
                assert [(each.name, each.value, each.source) for each in found.synonyms] == expected
                assert (found.value, found.config_source) == (expected[0][1], expected[0][2])
            await alter(node, BROKER, "1", (DELETE, "log.retention.ms", None))
            assert await value(node, BROKER, "1", "log.retention.ms") == ("2", DYNAMIC_DEFAULT)
        finally:
            await node.stop()
        node = await Node.start(loaded)
        try:
            assert node.config.log_retention_ms == 2
            await alter(node, BROKER, "", (DELETE, "log.retention.ms", None))
            assert await value(node, BROKER, "1", "log.retention.ms") == ("1", STATIC)
            assert (await describe(node, BROKER, "")).configs == ()
        finally:
            await node.stop()

    asyncio.run(main())


def test_secrets_are_in_no_answer(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        result = await describe(node, BROKER, "1", include_synonyms=True, include_documentation=True)
        assert "secret.sqlite" not in repr(result)

    with_node(tmp_path, test, metadata_url=f"sqlite:///{tmp_path}/secret.sqlite")


# --- IncrementalAlterConfigs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2))
def test_settings_change_in_increments(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        async def change(*changes: tuple[int, str, str | None]) -> None:
            assert await alter(node, TOPIC, "a", *changes, version=version) == (0, None)

        async def policy() -> tuple[str | None, int]:
            return await value(node, TOPIC, "a", "cleanup.policy")

        await change((SET, "retention.ms", "5"), (APPEND, "cleanup.policy", "compact"))
        assert await policy() == ("delete,compact", DYNAMIC_TOPIC)
        await change((APPEND, "cleanup.policy", "compact,delete"), (SET, "segment.bytes", "1000"))
        assert await policy() == ("delete,compact", DYNAMIC_TOPIC)
        await change((SUBTRACT, "cleanup.policy", "delete"), (DELETE, "retention.ms", None))
        assert await policy() == ("compact", DYNAMIC_TOPIC)
        await change((SUBTRACT, "cleanup.policy", "compact"))
        assert await policy() == ("", DYNAMIC_TOPIC)
        await change((APPEND, "cleanup.policy", "compact"))
        assert await policy() == ("compact", DYNAMIC_TOPIC)
        assert await value(node, TOPIC, "a", "retention.ms") == (str(7 * 86_400_000), DEFAULT)
        assert await value(node, TOPIC, "a", "segment.bytes") == ("1000", DYNAMIC_TOPIC)
        await change((DELETE, "cleanup.policy", "whatever"))
        assert await policy() == ("delete", DEFAULT)

    with_node(tmp_path, test)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ([(SET, "retenton.ms", "1")], ErrorCode.INVALID_CONFIG, "did you mean retention.ms"),
        ([(SET, "flush.ms", "1000")], ErrorCode.INVALID_CONFIG, "durability"),
        ([(SET, "retention.ms", "soon")], ErrorCode.INVALID_CONFIG, "retention.ms"),
        ([(APPEND, "retention.ms", "1")], ErrorCode.INVALID_CONFIG, "is no list"),
        ([(SUBTRACT, "retenton.ms", "1")], ErrorCode.INVALID_CONFIG, "did you mean"),
        ([(APPEND, "cleanup.policy", "burn")], ErrorCode.INVALID_CONFIG, "burn"),
        ([(SET, "retention.ms", None)], ErrorCode.INVALID_REQUEST, "has no value"),
        ([(APPEND, "cleanup.policy", None)], ErrorCode.INVALID_REQUEST, "has no value"),
        ([(7, "retention.ms", "1")], ErrorCode.INVALID_REQUEST, "operation 7"),
        ([(SET, "retention.ms", "1"), (DELETE, "retention.ms", None)], ErrorCode.INVALID_REQUEST, "once"),
        ([(SET, "retention.ms", "1"), (SET, "segment.ms", "x")], ErrorCode.INVALID_CONFIG, "segment.ms"),
    ],
)
def test_a_wrong_change_is_refused_whole(
    tmp_path: Path, changes: list[tuple[int, str, str | None]], error: ErrorCode, said: str
) -> None:
    async def test(node: Node) -> None:
        sequence = node.metadata.image.sequence
        code, message = await alter(node, TOPIC, "a", *changes)
        assert code == error
        assert said in str(message)
        assert node.metadata.image.sequence == sequence

    with_node(tmp_path, test)


def test_validate_only_says_what_would_happen(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        sequence = node.metadata.image.sequence
        assert await alter(node, TOPIC, "a", (SET, "retention.ms", "1"), validate_only=True) == (0, None)
        code, _ = await alter(node, TOPIC, "a", (SET, "retention.ms", "x"), validate_only=True)
        assert code == ErrorCode.INVALID_CONFIG
        assert node.metadata.image.sequence == sequence

    with_node(tmp_path, test)


@pytest.mark.parametrize("name", ["1", ""])
def test_a_running_nodes_settings(tmp_path: Path, name: str) -> None:
    async def test(node: Node) -> None:
        assert await alter(node, BROKER, name, (SET, "num.partitions", "4")) == (0, None)
        assert node.config.num_partitions == 4
        for key, text, said in (("data.dir", "x", "can't be changed while"), ("num.partitions", "0", "out of range")):
            code, message = await alter(node, BROKER, name, (SET, key, text))
            assert code == ErrorCode.INVALID_CONFIG
            assert said in str(message)
        assert await alter(node, BROKER, name, (DELETE, "num.partitions", None)) == (0, None)
        assert node.config.num_partitions == 1

    with_node(tmp_path, test)


def test_resources_in_a_request_fail_for_themselves_and_count_once(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        change = [{"name": "retention.ms", "config_operation": SET, "value": "7"}]
        resources = [
            {"resource_type": TOPIC, "resource_name": name, "configs": change} for name in ("nope", "b", "b", "a")
        ]
        for key, version in ((ApiKey.INCREMENTAL_ALTER_CONFIGS, 1), (ApiKey.ALTER_CONFIGS, 2)):
            response = await call(node.kafka_address.port, key, version, resources=resources, validate_only=False)
            assert {each.resource_name: int(each.error_code) for each in response.responses} == {
                "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "b": ErrorCode.INVALID_REQUEST,
                "a": 0,
            }
            assert len(response.responses) == 3
        assert await value(node, TOPIC, "a", "retention.ms") == ("7", DYNAMIC_TOPIC)

    with_node(tmp_path, test)


# --- AlterConfigs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_all_that_was_given(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        async def replace(kind: int, name: str, *, validate_only: bool = False, **values: str | None) -> int:
            configs = [{"name": key.replace("_", "."), "value": text} for key, text in values.items()]
            response = await call(
                node.kafka_address.port,
                ApiKey.ALTER_CONFIGS,
                version,
                resources=[{"resource_type": kind, "resource_name": name, "configs": configs}],
                validate_only=validate_only,
            )
            return int(response.responses[0].error_code)

        assert await replace(TOPIC, "a", retention_ms="5", segment_bytes="1000") == 0
        assert await replace(TOPIC, "a", segment_bytes="2000", validate_only=True) == 0
        assert node.metadata.image.topics["a"].configs == {"retention.ms": "5", "segment.bytes": "1000"}
        assert await replace(TOPIC, "a", segment_bytes="2000", flush="x") == ErrorCode.INVALID_CONFIG
        assert await replace(TOPIC, "a", segment_bytes=None) == ErrorCode.INVALID_REQUEST
        assert await replace(TOPIC, "a", segment_bytes="2000") == 0
        assert node.metadata.image.topics["a"].configs == {"segment.bytes": "2000"}
        assert await replace(TOPIC, "a") == 0
        assert node.metadata.image.topics["a"].configs == {}
        assert await replace(BROKER, "1", num_partitions="3", log_retention_ms="9") == 0
        assert await replace(BROKER, "1", num_partitions="4") == 0
        assert node.metadata.image.broker_configs == {1: {"num.partitions": "4"}}

    with_node(tmp_path, test)


def test_what_coordinators_need_of_their_topics_is_not_replaced(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.groups.topic_ready()
        configs = [{"name": "segment.bytes", "value": "1000"}]
        resources = [{"resource_type": TOPIC, "resource_name": OFFSETS_TOPIC, "configs": configs}]
        response = await call(
            node.kafka_address.port, ApiKey.ALTER_CONFIGS, 2, resources=resources, validate_only=False
        )
        assert int(response.responses[0].error_code) == ErrorCode.INVALID_CONFIG
        assert await value(node, TOPIC, OFFSETS_TOPIC, "cleanup.policy") == ("compact", DYNAMIC_TOPIC)

    with_node(tmp_path, test)


# --- ListConfigResources ----------------------------------------------------------------------------------------------


def test_what_has_settings_is_listed(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        async def listed(version: int, *kinds: int) -> tuple[int, list[tuple[str, int]]]:
            response = await call(node.kafka_address.port, ApiKey.LIST_CONFIG_RESOURCES, version, resource_types=kinds)
            found = [
                (each.resource_name, getattr(each, "resource_type", CLIENT_METRICS))
                for each in response.config_resources
            ]
            return int(response.error_code), found

        assert await listed(0) == (0, [])
        assert await listed(1) == (0, [("a", TOPIC), ("1", BROKER)])
        assert await listed(1, TOPIC, TOPIC) == (0, [("a", TOPIC)])
        assert await listed(1, GROUP) == (0, [])
        assert await listed(1, TOPIC, 99) == (ErrorCode.UNSUPPORTED_VERSION, [])

    with_node(tmp_path, test)
