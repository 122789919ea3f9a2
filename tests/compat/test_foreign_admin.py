"""What administrators do with confluent-kafka, kafka-python and aiokafka, against a whole node."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka.admin
import confluent_kafka
import pytest
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from confluent_kafka import admin as confluent
from live_node import LiveNode

from semel.protocol.ids import TopicPartition

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses what Python 3.11 deprecates
    import kafka
    import kafka.admin

CALL_S = 30


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveNode]:
    with LiveNode(tmp_path) as live:
        yield live


def bootstrap(live: LiveNode) -> str:
    return str(live.node.kafka_address)


def configs_of(live: LiveNode, topic: str) -> dict[str, str]:
    return dict(live.node.metadata.image.topics[topic].configs)


def partitions_of(live: LiveNode) -> dict[str, int]:
    return {name: len(topic.partitions) for name, topic in live.node.metadata.image.topics.items()}


# --- Confluent-kafka --------------------------------------------------------------------------------------------------


def confluent_admin(live: LiveNode) -> confluent.AdminClient:
    return confluent.AdminClient({"bootstrap.servers": bootstrap(live)})


def results(futures: dict[Any, Any]) -> dict[Any, Any]:
    """Return what each future gives, or the code of its error."""
    found = {}
    for key, future in futures.items():
        try:
            found[key] = future.result(CALL_S)
        except confluent_kafka.KafkaException as error:
            found[key] = error.args[0].code()
    return found


def test_confluent_topics(live: LiveNode) -> None:
    client = confluent_admin(live)
    assert client.list_topics(timeout=CALL_S).topics == {}
    made = results(
        client.create_topics(
            [
                confluent.NewTopic("a", 2, 1, config={"retention.ms": "5"}),
                confluent.NewTopic("b", 2, replica_assignment=[[1], [1]]),
                confluent.NewTopic("c", -1, -1),
                confluent.NewTopic("many", 1, 3),
            ]
        )
    )
    invalid = confluent_kafka.KafkaError.INVALID_REPLICATION_FACTOR
    assert made == {"a": None, "b": None, "c": None, "many": invalid}
    assert results(client.create_topics([confluent.NewTopic("v", 1, 1)], validate_only=True)) == {"v": None}
    assert results(client.create_partitions([confluent.NewPartitions("a", 4)])) == {"a": None}
    assert partitions_of(live) == {"a": 4, "b": 2, "c": 1}
    metadata = client.list_topics(timeout=CALL_S)
    assert (set(metadata.topics), metadata.controller_id) == ({"a", "b", "c"}, 1)
    assert metadata.cluster_id == live.node.metadata.image.cluster_id
    described = results(client.describe_topics(confluent_kafka.TopicCollection(["a"])))["a"]
    assert (len(described.partitions), described.partitions[3].leader.id) == (4, 1)
    assert results(client.delete_topics(["b", "nope"])) == {
        "b": None,
        "nope": confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
    assert partitions_of(live) == {"a": 4, "c": 1}


def test_confluent_settings(live: LiveNode) -> None:
    client = confluent_admin(live)
    results(client.create_topics([confluent.NewTopic("a", 1, 1, config={"retention.ms": "5"})]))
    resource = confluent.ConfigResource(confluent.ConfigResource.Type.TOPIC, "a")
    change = confluent.ConfigResource(
        confluent.ConfigResource.Type.TOPIC,
        "a",
        incremental_configs=[
            confluent.ConfigEntry(
                "cleanup.policy", "compact", incremental_operation=confluent.AlterConfigOpType.APPEND
            ),
            confluent.ConfigEntry("retention.ms", None, incremental_operation=confluent.AlterConfigOpType.DELETE),
        ],
    )
    assert list(results(client.incremental_alter_configs([change])).values()) == [None]
    assert configs_of(live, "a") == {"cleanup.policy": "delete,compact"}
    (found,) = results(client.describe_configs([resource])).values()
    assert found["cleanup.policy"].value == "delete,compact"
    assert found["cleanup.policy"].source == confluent.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert list(found["retention.ms"].synonyms) == ["log.retention.ms"]
    broker = confluent.ConfigResource(confluent.ConfigResource.Type.BROKER, "1")
    (found,) = results(client.describe_configs([broker])).values()
    assert (found["num.partitions"].value, found["node.id"].is_read_only) == ("1", True)


def test_confluent_offsets_and_the_cluster(live: LiveNode) -> None:
    client = confluent_admin(live)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap(live)})
    for number in range(3):
        producer.produce("made-by-asking", b"%d" % number, timestamp=1000 + number)
    assert producer.flush(CALL_S) == 0
    at = confluent_kafka.TopicPartition("made-by-asking", 0)
    spec = confluent.OffsetSpec
    for asked, offset in (
        (spec.earliest(), 0),
        (spec.latest(), 3),
        (spec.max_timestamp(), 2),
        (spec.for_timestamp(1001), 1),
    ):
        (found,) = results(client.list_offsets({at: asked})).values()
        assert found.offset == offset
    deleted = results(client.delete_records([confluent_kafka.TopicPartition("made-by-asking", 0, 2)]))
    assert [each.low_watermark for each in deleted.values()] == [2]
    cluster = client.describe_cluster(include_authorized_operations=True).result(CALL_S)
    assert (cluster.controller.id, [node.id for node in cluster.nodes]) == (1, [1])
    assert confluent.AclOperation.ALTER in cluster.authorized_operations
    elected = client.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [at]).result(CALL_S)
    (error,) = elected.values()
    assert error.name() == "ELECTION_NOT_NEEDED"


# --- Kafka-python -----------------------------------------------------------------------------------------------------


def test_kafka_python_administers(live: LiveNode) -> None:
    client = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap(live))
    try:
        client.create_topics([kafka.admin.NewTopic("a", 2, 1, topic_configs={"retention.ms": "5"})])
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            client.create_topics([kafka.admin.NewTopic("a", 2, 1)])
        client.create_partitions({"a": kafka.admin.NewPartitions(3)})
        assert client.list_topics() == ["a"]
        assert partitions_of(live) == {"a": 3}
        (described,) = client.describe_topics(["a"])
        assert [each["leader_id"] for each in described["partitions"]] == [1, 1, 1]
        topic = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, "a")
        assert client.describe_configs([topic])["topic"]["a"]["retention.ms"]["value"] == "5"
        topic = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, "a", {"retention.ms": "9"})
        client.alter_configs([topic])
        assert configs_of(live, "a") == {"retention.ms": "9"}
        assert client.describe_cluster()["controller_id"] == 1
        (folder,) = client.describe_log_dirs()[0]["log_dirs"]
        assert {each["name"] for each in folder["topics"]} == {"a"}
        assert client.list_partition_reassignments() == {}
        assert client.describe_features()["transaction.version"]["finalized"] == (2, 2)
        client.delete_topics(["a"])
        assert partitions_of(live) == {}
    finally:
        client.close()


# --- Aiokafka ---------------------------------------------------------------------------------------------------------


def with_aiokafka(live: LiveNode, test: Callable[[aiokafka.admin.AIOKafkaAdminClient], Awaitable[None]]) -> None:
    async def main() -> None:
        client = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap(live))
        await client.start()
        try:
            await test(client)
        finally:
            await client.close()

    asyncio.run(main())


def test_aiokafka_administers(live: LiveNode) -> None:
    async def test(client: aiokafka.admin.AIOKafkaAdminClient) -> None:
        await client.create_topics([aiokafka.admin.NewTopic("a", 2, 1, topic_configs={"retention.ms": "5"})])
        await client.create_partitions({"a": aiokafka.admin.NewPartitions(3)})
        assert await client.list_topics() == ["a"]
        assert partitions_of(live) == {"a": 3}
        (described,) = await client.describe_topics(["a"])
        assert [each["leader"] for each in described["partitions"]] == [1, 1, 1]
        resource = AioConfigResource(AioConfigResourceType.TOPIC, "a")
        (answer,) = await client.describe_configs([resource])
        values = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        assert values["retention.ms"] == "5"
        await client.alter_configs([AioConfigResource(AioConfigResourceType.TOPIC, "a", {"segment.bytes": "1000"})])
        # AlterConfigs of old: what it does not name goes back to its default.
        assert configs_of(live, "a") == {"segment.bytes": "1000"}
        assert (await client.describe_cluster())["controller_id"] == 1
        await client.delete_topics(["a"])
        assert partitions_of(live) == {}

    with_aiokafka(live, test)
    assert live.node.partition(TopicPartition("a", 0)) is None
