"""A query of Spark on three nodes that are killed and frozen in the middle of its batches (E1, E2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from node_processes import NodeProcesses, node_processes
from spark_job import ROWS_PER_BATCH, DriverThread, Job, NewTopic

import semel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
REQUEST_MS = "3000"
"""What waits for a frozen node waits for the request's whole time."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    settings = {"broker.session.timeout.ms": 2_000, "controller.lease.ms": 2_000}
    with node_processes(tmp_path_factory.mktemp("cluster"), **settings) as running:
        yield running


@pytest.fixture(scope="module")
def bootstrap(nodes: NodeProcesses) -> str:
    return nodes.bootstrap


@pytest.fixture
def job(spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path) -> Iterator[Job]:
    """Small batches between Spark and its processes, so that a task can be held between two of them."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    driver = DriverThread(spark, bootstrap, {"kafka.request.timeout.ms": REQUEST_MS})
    job = Job(driver, bootstrap, new_topic, tmp_path)
    yield job
    job.let_all_go()
    driver.settle()
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.drawn(3, "kills under Spark")
def test_E1_E2_a_query_writes_each_row_once_while_leaders_and_coordinators_are_killed_and_frozen(
    job: Job, nodes: NodeProcesses, bootstrap: str
) -> None:
    """In a batch the leader of its output is killed, and when another leads, the coordinator is frozen.

    In the next one the coordinator is frozen between the rows and their decision. The query continues before any of
    them is back, wherever two nodes are there.
    """
    job.start("1-0-0-writing", "2-0-0-written")
    job.held("1-0-0-writing")
    job.wait_written_by("1-0-0")
    leader = nodes.leader(job.topic, 0)
    nodes.kill(leader)
    nodes.wait_replaced(leader)
    coordinator = nodes.coordinator(job.key)
    nodes.freeze(coordinator)
    job.let_go("1-0-0-writing")
    nodes.have_back(leader)
    nodes.wait_replaced(coordinator)
    job.wait_committed(1)
    nodes.have_back(coordinator)

    job.held("2-0-0-written")
    coordinator = nodes.coordinator(job.key)
    nodes.freeze(coordinator)
    job.let_go("2-0-0-written")
    nodes.wait_replaced(coordinator)
    job.wait_committed(2)
    nodes.have_back(coordinator)
    job.end()
    assert job.outcome("1-0-0")["rows"] == ROWS_PER_BATCH // 2
    with semel.Admin(bootstrap) as admin:
        assert [one.token for one in admin.commits(job.key)] == ["batch-0", "batch-1", "batch-2"]
