"""Describing and changing the settings of topics and of the node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from running_node import SMALL, create_topic, run_with_node, running_node

from semel.broker.config.node_config import SETTINGS, TOPIC_SETTINGS, NodeConfig
from semel.broker.config.sources import LoadedConfig, Source
from semel.broker.handlers.configs import alter_configs, describe_configs
from semel.broker.node import Node
from semel.protocol.api.metadata import ALL_NODES, AlterConfigsRequest, ConfigEntry, ResourceType
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import OFFSETS_TOPIC, TopicPartition
from semel.protocol.int_bounds import INT64_MAX

TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER


def entry(node: Node, kind: ResourceType, resource: str, name: str) -> ConfigEntry:
    (found,) = describe_configs(node, kind, resource, [name])
    return found


def log_retention_ms(node: Node, topic: str) -> int:
    partition = node.partition(TopicPartition(topic, 0))
    assert partition is not None
    return partition.config.retention_ms


def test_a_topics_setting_is_its_own_or_the_nodes(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a", retention_ms="5")
        own, inherited = (entry(node, TOPIC, "a", name) for name in ("retention.ms", "segment.bytes"))
        assert (own.value, own.source, own.is_read_only) == ("5", "DYNAMIC_TOPIC", False)
        assert (inherited.value, inherited.source) == ("1000", "DEFAULT")
        assert log_retention_ms(node, "a") == 5
        assert {found.name for found in describe_configs(node, TOPIC, "a")} == set(TOPIC_SETTINGS)
        assert describe_configs(node, TOPIC, "a", ["nonsense"]) == ()

    run_with_node(tmp_path, test, log_segment_bytes=1000)


def test_changes_of_a_topic_reach_its_logs_and_survive_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a", retention_ms="5", cleanup_policy="compact,delete")
            await alter_configs(
                node, AlterConfigsRequest(TOPIC, "a", {"segment.bytes": "1000"}, ("retention.ms", "retention.bytes"))
            )
            assert log_retention_ms(node, "a") == NodeConfig().log_retention_ms
        async with running_node(tmp_path) as node:
            partition = node.partition(TopicPartition("a", 0))
            assert partition is not None
            assert partition.config.segment_bytes == 1000
            assert partition.config.is_compacted
            assert partition.config.is_deleted

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "resource", "name", "instead"),
    [
        (BROKER, "", "replica.alter.log.dirs.io.max.bytes.per.second", "a node has one directory"),
        (TOPIC, "a", "preallocate", "segments grow as they are written"),
    ],
)
def test_taking_back_what_only_kafka_has_does_nothing(
    tmp_path: Path, kind: ResourceType, resource: str, name: str, instead: str
) -> None:
    """kafka-reassign-partitions.sh --verify takes throttles back that nobody has set."""

    async def test(node: Node) -> None:
        await create_topic(node, "a")
        before = node.metadata.image.sequence
        await alter_configs(node, AlterConfigsRequest(kind, resource, {}, (name,)))
        assert node.metadata.image.sequence == before
        with pytest.raises(SemelError, match=instead):
            await alter_configs(node, AlterConfigsRequest(kind, resource, {name: "1"}))
        with pytest.raises(SemelError, match="there is no setting nonsense"):
            await alter_configs(node, AlterConfigsRequest(kind, resource, {}, ("nonsense",)))

    run_with_node(tmp_path, test)


LEADER, FOLLOWER = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"


def test_throttled_replicas_are_a_topics_own_setting_and_reach_its_partitions(tmp_path: Path) -> None:
    """There is no setting of the node's beneath them. Kafka's tools set them; others append and subtract."""

    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a", **{FOLLOWER.replace(".", "_"): "*"})
            found = entry(node, TOPIC, "a", LEADER)
            assert (found.value, found.source, found.is_read_only, found.type) == ("", "DEFAULT", False, "list")
            assert found.synonyms == ()
            await alter_configs(node, AlterConfigsRequest(TOPIC, "a", append={LEADER: "0:1,1:2"}))
            await alter_configs(node, AlterConfigsRequest(TOPIC, "a", append={LEADER: "1:2,0:7"}))
            await alter_configs(node, AlterConfigsRequest(TOPIC, "a", subtract={LEADER: "1:2"}))
        async with running_node(tmp_path) as node:
            assert entry(node, TOPIC, "a", LEADER).value == "0:1,0:7"
            partition = node.partition(TopicPartition("a", 0))
            assert partition is not None
            throttled = partition.config.leader_replication_throttled_replicas
            assert [throttled.has(0, 1), throttled.has(0, 2), throttled.has(1, 2)] == [True, False, False]
            assert partition.config.follower_replication_throttled_replicas.has(5, 5)
            await alter_configs(node, AlterConfigsRequest(TOPIC, "a", {}, (LEADER, FOLLOWER)))
            assert not partition.config.leader_replication_throttled_replicas.has(0, 1)

    asyncio.run(main())


def test_rates_of_throttled_replicas_are_the_nodes_dynamic_settings(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        name = "leader.replication.throttled.rate"
        assert (entry(node, BROKER, "1", name).value, entry(node, BROKER, "1", name).type) == (str(INT64_MAX), "long")
        await alter_configs(node, AlterConfigsRequest(BROKER, ALL_NODES, {name: "10"}))
        await alter_configs(node, AlterConfigsRequest(BROKER, "1", {name: "20"}))
        quota = node.replication_quotas.leader
        assert quota.left_bytes(0.0) == 20
        await alter_configs(node, AlterConfigsRequest(BROKER, "1", {}, (name,)))
        assert quota.left_bytes(0.0) == 10
        with pytest.raises(SemelError, match="at least 0 bytes/s"):
            await alter_configs(node, AlterConfigsRequest(BROKER, "1", {name: "-1"}))

    run_with_node(tmp_path, test)


def test_a_topic_with_no_cleanup_policy_keeps_everything(tmp_path: Path) -> None:
    """Kafka's clients may take `delete` away and put nothing in its place; that was refused."""

    async def test(node: Node) -> None:
        await create_topic(node, "a")
        await alter_configs(node, AlterConfigsRequest(TOPIC, "a", subtract={"cleanup.policy": "delete"}))
        assert entry(node, TOPIC, "a", "cleanup.policy").value == ""
        partition = node.partition(TopicPartition("a", 0))
        assert partition is not None
        assert not partition.config.is_deleted
        assert not partition.config.is_compacted

    run_with_node(tmp_path, test)


@pytest.mark.parametrize(
    ("request_", "code", "said"),
    [
        (AlterConfigsRequest(TOPIC, "a", {"retenton.ms": "1"}), ErrorCode.INVALID_CONFIG, "did you mean retention.ms"),
        (AlterConfigsRequest(TOPIC, "a", {"retention.ms": "-2"}), ErrorCode.INVALID_CONFIG, "at least -1"),
        (AlterConfigsRequest(TOPIC, "a", {"cleanup.policy": "keep"}), ErrorCode.INVALID_CONFIG, "cleanup.policy"),
        (
            AlterConfigsRequest(TOPIC, "a", {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}),
            ErrorCode.INVALID_CONFIG,
            "max.compaction.lag.ms",
        ),
        (AlterConfigsRequest(TOPIC, "a", {}, ("retenton.ms",)), ErrorCode.INVALID_CONFIG, "did you mean"),
        (
            AlterConfigsRequest(TOPIC, "a", {"retention.ms": "1"}, ("retention.ms",)),
            ErrorCode.INVALID_REQUEST,
            "in two ways",
        ),
        (AlterConfigsRequest(TOPIC, "a", {LEADER: "0:1,*"}), ErrorCode.INVALID_CONFIG, "'\\*' is no replica"),
        (AlterConfigsRequest(TOPIC, "a", {FOLLOWER: "0-1"}), ErrorCode.INVALID_CONFIG, "PARTITION:NODE"),
        (
            AlterConfigsRequest(TOPIC, "b", {"retention.ms": "1"}),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "there is no topic 'b'",
        ),
        (
            AlterConfigsRequest(TOPIC, OFFSETS_TOPIC, {"cleanup.policy": "delete"}),
            ErrorCode.INVALID_CONFIG,
            "coordinators live on it",
        ),
        (AlterConfigsRequest(BROKER, "7", {"num.partitions": "2"}), ErrorCode.INVALID_REQUEST, "this is node 1"),
        (AlterConfigsRequest(BROKER, "1", {"num.partition": "2"}), ErrorCode.INVALID_CONFIG, "did you mean"),
        (AlterConfigsRequest(BROKER, "1", {"num.partitions": "0"}), ErrorCode.INVALID_CONFIG, "out of range"),
        (AlterConfigsRequest(BROKER, "1", {"data.dir": "x"}), ErrorCode.INVALID_CONFIG, "can't be changed while"),
    ],
)
def test_wrong_changes_are_refused_and_change_nothing(
    tmp_path: Path, request_: AlterConfigsRequest, code: ErrorCode, said: str
) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a")
        await node.groups.topic_ready()
        sequence = node.metadata.image.sequence
        with pytest.raises(SemelError, match=said) as caught:
            await alter_configs(node, request_)
        assert caught.value.code is code
        assert node.metadata.image.sequence == sequence

    run_with_node(tmp_path, test)


def test_validate_only_and_empty_changes_write_nothing(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "a")
        sequence = node.metadata.image.sequence
        await alter_configs(node, AlterConfigsRequest(TOPIC, "a", {"retention.ms": "1"}, validate_only=True))
        await alter_configs(node, AlterConfigsRequest(TOPIC, "a"))
        assert node.metadata.image.sequence == sequence

    run_with_node(tmp_path, test)


def test_the_nodes_dynamic_settings_reach_topics_without_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        loaded = LoadedConfig(
            NodeConfig(data_dir=str(tmp_path / "data"), **{**SMALL, "num_partitions": 2}),
            {"num.partitions": Source.FLAG},
        )
        node = await Node.start(loaded)
        try:
            await create_topic(node, "a")
            await create_topic(node, "b", retention_ms="7")
            before = entry(node, BROKER, "1", "num.partitions")
            assert (before.value, before.source) == ("2", "FLAG")
            values = {"log.retention.ms": "99", "num.partitions": "4"}
            await alter_configs(node, AlterConfigsRequest(BROKER, "1", values))
            assert (log_retention_ms(node, "a"), log_retention_ms(node, "b")) == (99, 7)
            assert entry(node, TOPIC, "a", "retention.ms").source == "DYNAMIC_BROKER"
            after = entry(node, BROKER, "", "num.partitions")
            assert (after.value, after.source) == ("4", "DYNAMIC_BROKER")
        finally:
            await node.stop()
        node = await Node.start(loaded)
        try:
            assert node.config.num_partitions == 4
            await alter_configs(node, AlterConfigsRequest(BROKER, "1", {}, ("num.partitions", "log.retention.ms")))
            assert entry(node, BROKER, "1", "num.partitions") == before
            assert log_retention_ms(node, "a") == NodeConfig().log_retention_ms
        finally:
            await node.stop()

    asyncio.run(main())


def test_the_nodes_settings_are_shown_but_for_secrets(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        entries = {found.name: found for found in describe_configs(node, BROKER, "1")}
        assert set(entries) == set(SETTINGS)
        secret = entries["metadata.url"]
        assert (secret.value, secret.is_sensitive, secret.is_read_only) == ("", True, True)
        assert entries["auto.create.topics.enable"].value == "true"
        assert entries["log.cleanup.policy"].value == "delete"
        with pytest.raises(SemelError, match="there is no node"):
            describe_configs(node, BROKER, "2")
        with pytest.raises(SemelError, match="there is no topic"):
            describe_configs(node, TOPIC, "a")

    run_with_node(tmp_path, test, metadata_url=f"sqlite:///{tmp_path}/secret.sqlite")
