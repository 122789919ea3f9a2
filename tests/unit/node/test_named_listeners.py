"""Nodes with several listeners: what they tell by each, what the listeners share, and who is left out."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from cluster import cluster
from kafka_calls import call
from kafka_node import KafkaClient, close_clients, until
from live_node import LiveNode
from running_node import batch, create_topic, running_node
from typer.testing import CliRunner

import semel
from semel.broker.node import Node
from semel.broker.start_errors import NodeStartError
from semel.cli.main import app
from semel.protocol.api.cluster import Listener
from semel.protocol.api.elsewhere import GO_TO_METADATA
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest
from semel.protocol.v1 import metadata_pb2, metadata_pb2_grpc, topics_pb2, topics_pb2_grpc
from semel.testing import Broker

OUTSIDE = "outside.example.com"
DEFAULTS: dict[str, Any] = {"kafka_listen": "127.0.0.1:9092", "grpc_listen": "127.0.0.1:9094"}
PATIENT: dict[str, Any] = {"broker_session_timeout_ms": 60_000}
"""Nobody is taken for dead, however busy the machine is."""


def two(number: int = 1) -> dict[str, Any]:
    """Settings of a node with a listener inside and one outside, whose clients are told ports that end in `number`."""
    return {
        **DEFAULTS,
        "kafka_listeners": ("internal=127.0.0.1:0", f"external=127.0.0.1:0?advertised={OUTSIDE}:109{number}"),
        "grpc_listeners": ("internal=127.0.0.1:0", f"external=127.0.0.1:0?advertised={OUTSIDE}:209{number}"),
    }


def places(brokers: Any) -> set[tuple[str, int]]:
    return {(each.host, each.port) for each in brokers}


async def metadata(node: Node, place: int, version: int = 12) -> Any:
    port = node.kafka_addresses[place].port
    return await call(port, ApiKey.METADATA, version, topics=None, allow_auto_topic_creation=False)


def test_each_kafka_api_that_names_nodes_tells_the_addresses_of_the_clients_listener(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, **two()) as node:
            await create_topic(node, "t")
            real = ("127.0.0.1", node.kafka_addresses[0].port)
            for place, told in enumerate((real, (OUTSIDE, 1091))):
                port = node.kafka_addresses[place].port
                assert places((await metadata(node, place)).brokers) == {told}
                described = await call(port, ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1)
                assert places(described.brokers) == {told}
                found = await call(port, ApiKey.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=("g",))
                assert places(found.coordinators) == {told}
                alone = await call(port, ApiKey.FIND_COORDINATOR, 3, key_type=0, key="g")
                assert (alone.host, alone.port) == told
                topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
                quorum = await call(port, ApiKey.DESCRIBE_QUORUM, 2, topics=topics)
                assert places(quorum.nodes[0].listeners) == {told}

    asyncio.run(main())


def test_grpc_tells_the_addresses_of_the_callers_listener(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, **two()) as node:
            wanted = (
                ("127.0.0.1", node.grpc_addresses[0].port, "127.0.0.1", node.kafka_addresses[0].port),
                (OUTSIDE, 2091, OUTSIDE, 1091),
            )
            for address, told in zip(node.grpc_addresses, wanted, strict=True):
                async with grpc.aio.insecure_channel(str(address)) as channel:
                    stub = metadata_pb2_grpc.MetadataServiceStub(channel)
                    (one,) = (await stub.GetMetadata(metadata_pb2.GetMetadataRequest())).nodes
                    assert (one.grpc_host, one.grpc_port, one.kafka_host, one.kafka_port) == told

    asyncio.run(main())


def test_a_kafka_client_finds_the_grpc_listener_of_the_same_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, **two()) as node:
            names = ("grpc.listen", "grpc.advertised", "kafka.advertised")
            resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": names}
            found = []
            for address in node.kafka_addresses:
                answer = await call(address.port, ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource])
                found.append({each.name: each.value for each in answer.results[0].configs})
            inside, outside = found
            assert inside == {"grpc.listen": str(node.grpc_address), "grpc.advertised": "", "kafka.advertised": ""}
            assert outside["grpc.advertised"] == f"{OUTSIDE}:2091"
            assert outside["kafka.advertised"] == f"{OUTSIDE}:1091"

    asyncio.run(main())


def test_a_leader_is_named_by_the_clients_listener_or_not_at_all(tmp_path: Path) -> None:
    """KIP-951: what a refused Produce or Fetch says of the leader."""

    async def main() -> None:
        async with cluster(tmp_path, 0, **DEFAULTS, **PATIENT) as made:
            await made.start(1, **two(1))
            await made.start(2, **two(2))
            await made.until(lambda: all(len(node.metadata.image.brokers) == 2 for node in made.nodes.values()))
            await create_topic(made.nodes[1], "t")
            await made.until(lambda: all(node.metadata.topic("t") for node in made.nodes.values()))
            leader, topic = made.state(TopicPartition("t", 0)).leader, made.any().metadata.topic("t")
            assert topic is not None
            write = ProduceRequest([ProducePartition("t", 0, batch(b"a"))], None, 1, 30_000)
            read = FetchRequest([FetchPartition("", topic.topic_id, 0, 0, 1000)], 0)
            real = ("127.0.0.1", made.nodes[leader].kafka_addresses[0].port)
            for place, told in enumerate((real, (OUTSIDE, 1090 + leader))):
                client = await KafkaClient.connect(made.nodes[3 - leader].kafka_addresses[place].port)
                for answer in (await client.produce(write, 12), await client.fetch(read, 16)):
                    assert answer.partitions[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
                    assert places(answer.node_endpoints) == {told}
            await close_clients()

    asyncio.run(main())


def test_a_node_without_a_listener_of_the_name_is_left_out(tmp_path: Path) -> None:
    """As in Kafka: LISTENER_NOT_FOUND of its partitions from version 6 on, LEADER_NOT_AVAILABLE before."""

    async def main() -> None:
        async with cluster(tmp_path, 0, **DEFAULTS, **PATIENT) as made:
            inside = {name: (items[0],) for name, items in two().items() if name.endswith("listeners")}
            await made.start(1, **two(1))
            await made.start(2, **inside)
            await made.until(lambda: all(len(node.metadata.image.brokers) == 2 for node in made.nodes.values()))
            await made.create("t", 8, 2, min_insync_replicas="1")
            node = made.nodes[1]
            assert len(places((await metadata(node, 0)).brokers)) == 2
            for version, code in ((12, ErrorCode.LISTENER_NOT_FOUND), (5, ErrorCode.LEADER_NOT_AVAILABLE)):
                told = await metadata(node, 1, version)
                assert places(told.brokers) == {(OUTSIDE, 1091)}
                (topic,) = (each for each in told.topics if each.name == "t")
                for each in topic.partitions:
                    led_by = made.state(TopicPartition("t", each.partition_index)).leader
                    assert (each.error_code, each.leader_id) == ((0, 1) if led_by == 1 else (code, -1))
                    assert each.offline_replicas == (2,)
                assert {each.leader_id for each in topic.partitions} == {1, -1}

            port = node.kafka_addresses[1].port
            groups = tuple(f"g{number}" for number in range(20))
            await call(port, ApiKey.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=groups)
            found = await call(port, ApiKey.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=groups)
            codes = {(each.node_id, each.host, each.error_code) for each in found.coordinators}
            assert codes == {(1, OUTSIDE, 0), (-1, "", ErrorCode.COORDINATOR_NOT_AVAILABLE)}

            async with grpc.aio.insecure_channel(str(node.grpc_addresses[1])) as channel:
                nodes = (
                    await metadata_pb2_grpc.MetadataServiceStub(channel).GetMetadata(metadata_pb2.GetMetadataRequest())
                ).nodes
                assert [(each.node_id, each.grpc_host) for each in nodes] == [(1, OUTSIDE)]
                request = topics_pb2.DescribeConfigsRequest(resource_type=topics_pb2.BROKER, resource_name="2")
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await topics_pb2_grpc.TopicServiceStub(channel).DescribeConfigs(request)
                assert GO_TO_METADATA not in dict(error.value.trailing_metadata() or ())

    asyncio.run(main())


def test_S2_listeners_share_the_limits_of_connections_and_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, **two(), kafka_max_connections_per_ip=2) as node:
            listeners = node.client_listeners
            assert listeners is not None
            assert listeners.kafka[0].room is listeners.kafka[1].room
            opened = [socket.create_connection(("127.0.0.1", address.port)) for address in node.kafka_addresses]
            await until(lambda: all(each.statistics().connections == 1 for each in listeners.kafka))
            opened.append(socket.create_connection(("127.0.0.1", node.kafka_addresses[1].port)))
            await until(lambda: listeners.kafka[1].statistics().refused_of_address == 1)
            statistics = listeners.kafka_statistics()
            assert statistics is not None
            assert (statistics.connections, statistics.refused_of_address) == (2, 1)
            for each in opened:
                each.close()
            await until(lambda: not listeners.kafka[0]._acceptor.connections.from_address)

    asyncio.run(main())


def test_a_port_that_is_taken_is_told_with_the_listener(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            listen = f"127.0.0.1:{taken.getsockname()[1]}"
            items = ("internal=127.0.0.1:0", f"external={listen}")
            with pytest.raises(NodeStartError, match=f"the Kafka listener external can't have {listen}"):
                await running_node(tmp_path, **{**two(), "kafka_listeners": items}).__aenter__()

    asyncio.run(main())


def test_a_broker_for_tests_has_the_addresses_of_its_listeners_again() -> None:
    inside = ("internal=127.0.0.1:0", "external=127.0.0.1:0")
    with Broker(kafka_listeners=inside, grpc_listeners=inside) as broker:
        addresses = broker.bootstrap, broker.kafka
        broker.create_topic("t")
        broker.stop()
        broker.start()
        assert (broker.bootstrap, broker.kafka) == addresses


def test_operators_see_the_listeners_of_each_node(tmp_path: Path) -> None:
    given = {name: value for name, value in two().items() if name.endswith("listeners")}
    with LiveNode(tmp_path, **given) as live:
        with semel.Admin(live.bootstrap) as admin:
            (state,) = admin.nodes()
        kafka, grpc_port = live.node.kafka_address.port, live.node.grpc_address.port
        assert state.listeners == (
            Listener("kafka", "internal", "127.0.0.1", kafka),
            Listener("kafka", "external", OUTSIDE, 1091),
            Listener("grpc", "internal", "127.0.0.1", grpc_port),
            Listener("grpc", "external", OUTSIDE, 2091),
        )
        told = CliRunner().invoke(app, ["node", "list", "--json", "--bootstrap", live.bootstrap])
        assert told.exit_code == 0, told.output
        assert json.loads(told.stdout)[0]["listeners"][1] == {
            "protocol": "kafka", "name": "external", "host": OUTSIDE, "port": 1091,
        }  # fmt: skip
