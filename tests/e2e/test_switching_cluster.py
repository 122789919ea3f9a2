"""All topics of a cluster become diskless, the coordinators' too, while a pipeline works on them and nodes die."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos import Clients
from cluster_run import cluster_run
from everything_diskless import is_everything_diskless
from node_processes import NodeProcesses, node_processes, wait_for
from sound_data import CLUSTER_METADATA
from sound_store import assert_sound_store, leave_nothing

import semel
from semel.broker.metadata.store import sqlite_url
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def make_diskless(nodes: NodeProcesses, topic: str) -> None:
    with semel.Admin(nodes.bootstrap) as admin:
        admin.alter_topic_configs(topic, changes={"diskless.enable": "true"})


def is_diskless(nodes: NodeProcesses, topic: str) -> bool:
    with semel.Admin(nodes.bootstrap) as admin:
        return all(len(one.replicas) == 1 and not one.is_switching for one in admin.topic(topic).partitions)


@pytest.mark.skipif(is_everything_diskless(), reason="all topics are diskless from the beginning")
@pytest.mark.drawn(1, "switched clusters")
@pytest.mark.parametrize("clients", list(Clients))
def test_E1_D1_T4_a_cluster_on_disks_becomes_one_without(tmp_path: Path, clients: Clients) -> None:
    database, objects = sqlite_url(str(tmp_path / "cluster" / CLUSTER_METADATA)), f"file://{tmp_path}/objects"
    settings = {
        "remote.storage.url": objects,
        "remote.log.manager.task.interval.ms": 500,
        "offsets.topic.segment.bytes": 20_000,
        "transaction.state.log.segment.bytes": 20_000,
        "log.cleaner.backoff.ms": 500,
        "diskless.append.commit.interval.ms": 20,
    }
    with node_processes(tmp_path / "cluster", **settings) as nodes, cluster_run(nodes, tmp_path, "all", clients) as run:
        run.more()
        topics = [run.source, OFFSETS_TOPIC, run.target, TRANSACTIONS_TOPIC]
        for number, topic in enumerate(topics):
            make_diskless(nodes, topic)
            killed = number % 3 + 1
            nodes.kill(killed)
            run.more()
            nodes.start(killed)
            wait_for(lambda topic=topic: is_diskless(nodes, topic), f"{topic} is diskless")  # type: ignore[misc]
            run.more()
        for node_id in (1, 2, 3):
            assert "--accept-loss-of" not in nodes.log(node_id), "no log of a coordinator was called damaged"
        nodes.kill(1, 2, 3)
        assert_sound_store(nodes, database, objects)
        leave_nothing(nodes)
        nodes.start(1, 2, 3)
        run.more()
        run.assert_exactly_once()
        run.close()
        nodes.kill(1, 2, 3)
        leave_nothing(nodes)
