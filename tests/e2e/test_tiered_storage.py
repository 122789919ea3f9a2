"""A pipeline whose topics are in S3 but for their last records, on nodes that are killed (E1, KIP-405).

At the end everything is read from the first record on, most of it from the remote storage.
"""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest
from chaos import PARTITIONS, Clients
from cluster_run import cluster_run, in_sync
from node_processes import NodeProcesses, node_processes, wait_for
from s3_server import BUCKET

import semel
from semel.protocol.api.topics import EARLIEST_TIMESTAMP

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SETTINGS = {
    "broker.session.timeout.ms": 2_000,
    "controller.lease.ms": 2_000,
    "remote.log.manager.task.interval.ms": 200,
    "log.retention.check.interval.ms": 200,
    "log.segment.delete.delay.ms": 0,
    "log.flush.interval.ms": 200,
}
CONFIGS = {"remote.storage.enable": "true", "segment.bytes": "3000", "local.retention.bytes": "1"}


def objects_of(endpoint: str, topic: str) -> list[str]:
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="prefix/")
    return [one["Key"] for page in pages for one in page.get("Contents", []) if f"/{topic}-" in one["Key"]]


def local_bytes(nodes: NodeProcesses, topic: str) -> int:
    """Return how much of a topic is on the disks of all nodes."""
    return sum(
        file.stat().st_size for node_id in nodes.running for file in nodes.data_dir(node_id).glob(f"{topic}-*/*.log")
    )


@pytest.mark.drawn(1)
@pytest.mark.parametrize("clients", list(Clients), ids=lambda clients: clients.name.lower())
def test_E1_D6_nothing_is_lost_or_there_twice_when_nodes_are_killed(
    tmp_path: Path, s3_url: str, s3_endpoint: str, clients: Clients
) -> None:
    name = f"tiered-{clients.name.lower()}"
    settings = {**SETTINGS, "remote.storage.url": s3_url}
    with (
        node_processes(tmp_path / "cluster", **settings) as nodes,
        cluster_run(nodes, tmp_path, name, clients, configs=CONFIGS) as run,
    ):
        for struck in ((nodes.leader(run.source, 0),), (1, 2), (1, 2, 3)):
            run.more(120)
            nodes.kill(*struck)
            nodes.start(*struck)
            in_sync(nodes, run.source, run.target)
        wait_for(lambda: len(objects_of(s3_endpoint, run.target)) > 10, "segments in S3")
        run.assert_exactly_once()
        with semel.Admin(nodes.bootstrap) as admin:
            tps = [semel.TopicPartition(run.target, number) for number in range(PARTITIONS)]
            starts = admin.list_offsets(dict.fromkeys(tps, EARLIEST_TIMESTAMP))
            assert {one.offset for one in starts.values()} == {0}
        # A segment stays until there is a snapshot of the producers behind it.
        wait_for(lambda: local_bytes(nodes, run.target) < 3 * PARTITIONS * 3 * 3_100, "the disks let go")
        with semel.Admin(nodes.bootstrap) as admin:
            admin.delete_topic(run.target)
        wait_for(lambda: not objects_of(s3_endpoint, run.target), "the deleted topic's objects are gone")
