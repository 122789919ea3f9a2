"""`SemelContainer` as users of testcontainers have it."""

from __future__ import annotations

import confluent_kafka
import pytest
from kafka_pipeline_ends import QUIET
from semel_containers import (
    IN_CONTAINERS,
    base_image,
    engine,
    log_of,
    network,
    node_container,
    semel_image,
    wait_until,
)
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

import semel
from semel.runtime.ports import free_ports
from semel.testing import SemelContainer

__all__ = ["base_image", "engine", "network", "semel_image"]

pytestmark = IN_CONTAINERS


def send_by_kafka(bootstrap: str, topic: str, *values: bytes) -> None:
    errors: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap}, logger=QUIET)
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: error and errors.append(error))
    assert producer.flush(60) == 0
    assert not errors


def read_all(grpc: str, topic: str, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with semel.Consumer(grpc) as consumer:
        consumer.assign([semel.TopicPartition(topic, 0)])
        while len(found) < count:
            found += [record.value for record in consumer.poll(30) or ()]
    return found


def test_clients_outside_need_nothing_but_the_addresses(semel_image: str) -> None:
    with SemelContainer(semel_image) as container:
        send_by_kafka(container.get_bootstrap_server(), "orders", b"a", b"b")
        assert read_all(container.get_grpc_address(), "orders", 2) == [b"a", b"b"]


def test_records_survive_a_kill_and_clients_keep_bound_ports(semel_image: str) -> None:
    container = SemelContainer(semel_image)
    kafka, grpc = free_ports(2)
    container.with_bind_ports(container.kafka_port, kafka).with_bind_ports(container.grpc_port, grpc)
    with container, semel.Producer(container.get_grpc_address()) as producer:
        with semel.Admin(container.get_grpc_address()) as admin:
            admin.create_topic("orders")
        producer.send("orders", b"before").result(60)
        container.kill()
        container.restart()
        producer.send("orders", b"after").result(60)
        assert read_all(container.get_grpc_address(), "orders", 2) == [b"before", b"after"]


def test_clients_in_the_network_use_the_alias(semel_image: str, network: Network) -> None:
    node = node_container(semel_image, clients_in_network=True).with_network(network).with_network_aliases("log")
    with node:
        assert node.get_bootstrap_server() == "log:9092"
        assert node.get_grpc_address() == "log:9094"
        client = DockerContainer(semel_image, entrypoint=["sh", "-c"], healthcheck={"test": ["NONE"]})
        client.with_network(network).with_env("SEMEL_BOOTSTRAP", node.get_grpc_address())
        client.with_command(
            [
                "semel topic create orders >&2 && seq 1 10 | semel produce orders && "
                "semel consume orders --from-beginning --max 10"
            ]
        )
        with client:
            assert client.wait() == 0, log_of(client)
            assert client.get_logs()[0].split() == [b"%d" % number for number in range(1, 11)]


def test_in_a_network_a_node_tells_an_address_that_the_network_knows(semel_image: str, network: Network) -> None:
    node = DockerContainer(semel_image).with_network(network).with_network_aliases("log")
    node.with_env("SEMEL_LISTENERS_ALLOW_ANONYMOUS", "true")
    client = DockerContainer(semel_image).with_network(network).with_env("SEMEL_BOOTSTRAP", "log:9094")
    client.with_env("SEMEL_LISTENERS_ALLOW_ANONYMOUS", "true")
    with node, client:
        wait_until(lambda: client.exec(["semel", "health"]).exit_code == 0, "the node to serve")
        for command in ("semel topic create orders", "seq 1 10 | semel produce orders"):
            done = client.exec(["sh", "-c", command])
            assert done.exit_code == 0, done.output


def test_ports_settings_arguments_and_waits_are_taken(semel_image: str) -> None:
    container = SemelContainer(semel_image, kafka_port=19092, grpc_port=19094, command="serve --log-format json")
    container.with_setting("auto.create.topics.enable", False).with_setting("num.partitions", 7)
    container.waiting_for(LogMessageWaitStrategy("ready: kafka 0.0.0.0:19092 grpc 0.0.0.0:19094"))
    with container, semel.Admin(container.get_grpc_address()) as admin:
        admin.create_topic("orders")
        assert len(admin.topic("orders").partitions) == 7
        assert '"message"' in log_of(container)
        [setting] = admin.node_configs(1, ["auto.create.topics.enable"])
        assert setting.value == "false"


def test_what_cannot_work_is_refused_before_anything_runs(semel_image: str) -> None:
    with pytest.raises(ValueError, match="advertised_host or clients_in_network"):
        SemelContainer(semel_image, advertised_host="localhost", clients_in_network=True)
    with pytest.raises(ValueError, match="needs a network and a name in it"):
        SemelContainer(semel_image, clients_in_network=True).start()
