"""Three nodes whose power is cut, one, two or all at once: their disks have what was synced, and nothing else (D1).

With durability=disk nothing that was acknowledged is lost. With durability=os one node that loses power fetches what
it lacks from the others; all at once may lose the last moments, and have no leader until an operator elects one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from chaos import PARTITIONS, Clients, read_everything
from cluster_run import cluster_run, in_sync
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient
from equal_replicas import assert_replicas_are_equal
from node_processes import NodeProcesses, wait_for

import semel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
IDS = (1, 2, 3)
FIRST_LOG = "00000000000000000000.log"
QUICK = {"broker.session.timeout.ms": 2_000, "controller.lease.ms": 2_000, "replica.lag.time.max.ms": 3_000}
TOPIC = "values"
CALL_S = 60.0


class PowerlessNodes(NodeProcesses):
    """`kill` is a power cut to them."""

    def program(self, node_id: int) -> list[str]:
        return self.chosen("--synced")


@contextmanager
def powerless_nodes(folder: Path, **settings: Any) -> Iterator[PowerlessNodes]:
    """Run three nodes. Their replicas have to be equal at the end."""
    nodes = PowerlessNodes(folder, **QUICK, **settings)
    try:
        nodes.start(*IDS)
        yield nodes
        for node_id in IDS:
            nodes.stop(node_id)
    finally:
        nodes.close()
    assert_replicas_are_equal(nodes.data_dir(node_id) for node_id in IDS)


@pytest.mark.drawn(1, "power cuts")
@pytest.mark.parametrize("clients", list(Clients), ids=lambda clients: clients.name.lower())
def test_D1_E1_nothing_is_lost_when_one_two_or_all_three_lose_power(tmp_path: Path, clients: Clients) -> None:
    with powerless_nodes(tmp_path / "cluster") as nodes, cluster_run(nodes, tmp_path, "cut", clients) as run:
        for struck in ((nodes.leader(run.source, 0),), (2, 3), IDS):
            nodes.kill(*struck)
            nodes.start(*struck)
            run.more()
            in_sync(nodes, run.source, run.target)
        run.assert_exactly_once()


@pytest.mark.drawn(1, "power cuts")
def test_D1_E1_with_durability_os_one_after_the_other_may_lose_power(tmp_path: Path) -> None:
    settings = {"durability": "os", "log.flush.interval.ms": 3_600_000}
    with powerless_nodes(tmp_path / "cluster", **settings) as nodes, cluster_run(nodes, tmp_path, "cut") as run:
        for struck in IDS:
            nodes.kill(struck)
            run.more()
            nodes.start(struck)
            in_sync(nodes, run.source, run.target)
        run.assert_exactly_once()


def send(nodes: PowerlessNodes, first: int, count: int) -> None:
    """Send numbers, and wait until all are acknowledged."""
    with semel.Producer(nodes.bootstrap) as producer:
        for number in range(first, first + count):
            producer.send(TOPIC, b"value %d;" % number, partition=number % PARTITIONS)
        producer.flush(CALL_S)


def are_on_all_disks(nodes: PowerlessNodes, first: int, count: int) -> bool:
    return all(
        b"value %d;" % number in (nodes.data_dir(node_id) / f"{TOPIC}-{number % PARTITIONS}" / FIRST_LOG).read_bytes()
        for node_id in IDS
        for number in range(first, first + count)
    )


def test_D1_with_durability_os_all_at_once_lose_the_last_moments_alone(tmp_path: Path) -> None:
    settings = {"durability": "os", "log.flush.interval.ms": 2_000}
    with powerless_nodes(tmp_path / "cluster", **settings) as nodes, semel.Admin(nodes.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
        send(nodes, 0, 300)
        wait_for(lambda: are_on_all_disks(nodes, 0, 300), "the system has written all to the disks")
        send(nodes, 300, 300)
        nodes.kill(*IDS)
        nodes.start(*IDS)
        wait_for(lambda: {one.leader_id for one in admin.topic(TOPIC).partitions} == {-1}, "nobody leads")
        tool = AdminClient({"bootstrap.servers": ",".join(nodes.kafka.values())})
        leaderless = [confluent_kafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        assert set(tool.elect_leaders(ElectionType.UNCLEAN, leaderless).result(CALL_S).values()) == {None}
        in_sync(nodes, TOPIC)
        send(nodes, 600, 300)
        for read in read_everything(nodes.bootstrap, [TOPIC]):
            found = [int(value.removeprefix("value ").removesuffix(";")) for _, value in read.records]
            kept = [number for number in found if number < 600]
            assert kept == list(range(read.partition, 600, PARTITIONS))[: len(kept)], "only the last ones are missing"
            assert len(kept) >= 300 // PARTITIONS
            assert found[len(kept) :] == list(range(600 + read.partition, 900, PARTITIONS))
