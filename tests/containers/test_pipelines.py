"""E1 across containers: a pipeline's instances in containers of their own, foreign clients outside at both ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import docker
import pytest
from chaos import GROUP, PARTITIONS, SOURCE, TARGET, read_everything, source_ends
from history import History, check
from kafka_pipeline_ends import KafkaFeeder, KafkaReader
from semel_containers import (
    IN_CONTAINERS,
    Workers,
    base_image,
    engine,
    gateway_of,
    log_of,
    network,
    node_container,
    semel_image,
    wait_until,
)
from testcontainers.core.network import Network

import semel
from semel.runtime.ports import free_ports
from semel.sdk.testing.container import SemelContainer

__all__ = ["base_image", "engine", "network", "semel_image"]

pytestmark = [*IN_CONTAINERS, pytest.mark.slow]

Fault = Callable[[SemelContainer, Workers, Network], None]


def run_pipeline(engine: docker.DockerClient, image: str, network: Network, folder: Path, fault: Fault) -> None:
    """Run source -> workers in containers -> target with a fault in the middle, and judge what all clients saw."""
    node = node_container(image, advertised_host=gateway_of(engine, network))
    # The same after a restart, as in any place where clients are given one address for good.
    kafka, grpc = free_ports(2)
    node.with_bind_ports(node.kafka_port, kafka).with_bind_ports(node.grpc_port, grpc)
    with node.with_network(network):
        kafka, grpc = node.get_bootstrap_server(), node.get_grpc_address()
        with semel.Admin(grpc) as admin:
            for topic in (SOURCE, TARGET):
                admin.create_topic(topic, partitions=PARTITIONS)
        feeder = KafkaFeeder(kafka, SOURCE, PARTITIONS)
        reader = KafkaReader(kafka, TARGET, PARTITIONS)
        feeder.start()
        reader.start()
        with Workers(image, grpc, network, 2, folder) as workers:
            try:
                _wait_for_output(reader, 100)
                fault(node, workers, network)
                _wait_for_output(reader, 100)
                feeder.finish()
                wait_until(lambda: _has_read_all(grpc, workers), "the pipeline to work off its source")
            except AssertionError as error:
                error.add_note(f"{workers.logs()}\n--- node: {log_of(node)}")
                raise
            transactions = [*feeder.transactions, *workers.transactions()]
        history = History(transactions, [*reader.finish(), *read_everything(grpc)])
        with semel.Admin(grpc) as admin:
            history.source_end_offsets = source_ends(admin)
    anomalies = check(history)
    assert not anomalies, [str(anomaly) for anomaly in anomalies[:10]]


def _wait_for_output(reader: KafkaReader, more: int) -> None:
    """Wait until so many more records came out of the pipeline."""
    wanted = _count(reader) + more
    wait_until(lambda: _count(reader) >= wanted, f"{wanted} records in the target, of which {_count(reader)} are there")


def _count(reader: KafkaReader) -> int:
    return sum(map(len, reader.records.values()))


def _has_read_all(grpc: str, workers: Workers) -> bool:
    workers.start_missing()
    with semel.Admin(grpc) as admin:
        committed = {(tp.topic, tp.partition): place.offset for tp, place in admin.group_offsets(GROUP).items()}
        return all(committed.get(partition, 0) >= end for partition, end in source_ends(admin).items())


def test_E1_holds_when_the_node_and_a_worker_are_killed_and_restarted_on_their_volume(
    engine: docker.DockerClient, semel_image: str, network: Network, tmp_path: Path
) -> None:
    def kill(node: SemelContainer, workers: Workers, _: Network) -> None:
        workers.running[0].kill()
        node.kill()
        node.restart()
        workers.start_missing()

    run_pipeline(engine, semel_image, network, tmp_path, kill)


def test_E1_holds_when_the_network_between_a_worker_and_the_node_is_cut(
    engine: docker.DockerClient, semel_image: str, network: Network, tmp_path: Path
) -> None:
    def cut(node: SemelContainer, workers: Workers, network: Network) -> None:
        cable = engine.networks.get(network.id)
        lonely = workers.running[0].get_container_id()
        cable.disconnect(lonely)
        with semel.Admin(node.get_grpc_address()) as admin:
            wait_until(lambda: len(admin.group(GROUP).members) == 1, "the group to continue without the one cut off")
        cable.connect(lonely)
        workers.start_missing()

    run_pipeline(engine, semel_image, network, tmp_path, cut)
