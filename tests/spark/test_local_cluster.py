"""Processes of a real cluster are killed and stopped in the middle of their work: each row is there once (E2).

Two executors, each a JVM with Python processes below it. Attempts at tasks stop where a test says (`spark_faults`), and
sign what they write, so that the log itself shows who wrote what, and what became of it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from longer_runs import given
from spark_cluster import Cluster, Driver, LocalCluster, family, is_alive, send, wait_until
from spark_job import ROWS_PER_BATCH, Job, NewTopic

from semel.cli.demo.processes import NodeProcess

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, spark_environment: Mapping[str, str]) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), spark_environment) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(cluster: Cluster, node: NodeProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A driver that gives up an executor from which it has not heard for some seconds."""
    settings = {"storage__blockManagerHeartbeatTimeoutMs": "8s", "network__timeoutInterval": "500ms"}
    with Driver(cluster, node.bootstrap, tmp_path_factory.mktemp("driver"), **settings) as driver:
        yield driver


@pytest.fixture
def job(driver: Driver, bootstrap: str, new_topic: NewTopic, tmp_path: Path) -> Iterator[Job]:
    job = Job(driver, bootstrap, new_topic, tmp_path)
    yield job
    job.let_all_go()
    driver.settle()


@pytest.mark.drawn(3, "kills under Spark")
def test_E2_a_worker_process_is_killed_while_it_writes(job: Job) -> None:
    job.start("1-0-0-writing")
    victim = job.held("1-0-0-writing")
    lost = job.wait_written_by("1-0-0")
    send([victim["worker"]], signal.SIGKILL)
    job.end()
    assert not job.has_outcome("1-0-0")
    assert job.outcome("1-0-1")["rows"] == ROWS_PER_BATCH // 2
    assert job.written_by()["1-0-0"] >= lost
    assert job.written_by("read_committed")["1-0-0"] == 0


@pytest.mark.drawn(3, "kills under Spark")
def test_E2_a_worker_process_is_killed_while_it_reads(job: Job) -> None:
    job.start("1-1-0-reading")
    victim = job.held("1-1-0-reading")
    send([victim["worker"]], signal.SIGKILL)
    job.end()
    assert job.outcome("1-1-1")["rows"] == ROWS_PER_BATCH // 2


def test_E2_an_executor_is_killed_while_it_writes(job: Job) -> None:
    job.start("1-0-0-writing")
    victim = job.held("1-0-0-writing")
    lost = job.wait_written_by("1-0-0")
    send([victim["executor"]], signal.SIGKILL)
    job.end()
    assert not job.has_outcome("1-0-0")
    retry = job.outcome("1-0-1")
    assert (retry["rows"], retry["executor"] != victim["executor"]) == (ROWS_PER_BATCH // 2, True)
    assert job.written_by()["1-0-0"] >= lost
    assert job.written_by("read_committed")["1-0-0"] == 0


@pytest.mark.drawn(3, "kills under Spark")
def test_E2_a_batch_write_survives_a_killed_worker_process_and_a_killed_executor(job: Job) -> None:
    job.start_batch_write("0-0-0-writing", "0-1-0-writing")
    worker, executor = job.held("0-0-0-writing"), job.held("0-1-0-writing")
    lost = [job.wait_written_by("0-0-0"), job.wait_written_by("0-1-0")]
    assert worker["executor"] != executor["executor"]
    send([worker["worker"], executor["executor"]], signal.SIGKILL)
    job.end_batch_write()
    written = job.written_by()
    assert min(written["0-0-0"] - lost[0], written["0-1-0"] - lost[1]) >= 0
    committed = job.written_by("read_committed")
    assert (committed["0-0-0"], committed["0-1-0"], len(committed)) == (0, 0, 2)


@pytest.mark.drawn(3, "kills under Spark")
def test_E2_a_stage_is_run_again_because_its_input_went_with_an_executor(job: Job) -> None:
    """What a task of the second stage reads is on both executors. A stage that is run again counts attempts from 0."""
    job.start_batch_write("0-0-0-joining", "0-1-0-joining", shuffled=True)
    held = {partition: job.held(f"0-{partition}-0-joining") for partition in (0, 1)}
    assert held[0]["executor"] != held[1]["executor"]
    send([held[0]["executor"]], signal.SIGKILL)
    wait_until(lambda: not is_alive(held[0]["executor"]), "the executor is dead")
    job.let_all_go()
    job.end_batch_write()
    again = job.outcome("0-0-0")
    assert again["executor"] != held[0]["executor"]
    assert not job.has_outcome("0-0-1"), "the task alone was tried again, not its stage"


@pytest.mark.drawn(3, "kills under Spark")
def test_E2_an_executor_that_is_stopped_and_goes_on_after_the_decision_is_refused(job: Job) -> None:
    job.start("1-0-0-writing")
    zombie = job.held("1-0-0-writing")
    job.wait_written_by("1-0-0")
    job.outcome("1-1-0")  # its executor has by now what executors get from each other
    stopped = family(zombie["executor"])
    assert zombie["worker"] in stopped
    send(stopped, signal.SIGSTOP)
    try:
        job.wait_committed(1)
        winner = job.outcome("1-0-1")
        assert (winner["rows"], winner["executor"] != zombie["executor"]) == (ROWS_PER_BATCH // 2, True)
        assert not job.has_outcome("1-0-0")
        before = job.written_by()["1-0-0"]
        job.let_go("1-0-0-writing")
        send([zombie["worker"]], signal.SIGCONT)
        refused = job.outcome("1-0-0")
    finally:
        send(stopped, signal.SIGCONT)
    assert refused["worker"] == zombie["worker"]
    assert refused["error"] == "PRODUCER_FENCED"
    assert "committed without this writer" in refused["message"]
    job.end()
    assert job.written_by()["1-0-0"] == before
    assert job.written_by("read_committed")["1-0-0"] == 0
    wait_until(lambda: not any(map(is_alive, stopped)), "the executor that Spark gave up has ended")


@pytest.mark.drawn(3, "kills under Spark")
def test_E2_speculation_each_row_is_there_once_whichever_copy_of_a_task_wins(
    cluster: Cluster, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    settings = {
        "speculation": "true",
        "speculation__interval": "100ms",
        "speculation__multiplier": "1",
        "speculation__quantile": "0.1",
        "speculation__minTaskRuntime": "100ms",
    }
    with Driver(cluster, bootstrap, tmp_path / "driver", **settings) as driver:
        job = Job(driver, bootstrap, new_topic, tmp_path)
        # Copies wait, too: where an executor is slow, one could be through before the first attempt is where it stops.
        copies = ("0-0-1-joining", "1-0-1-written", "2-0-1-joining")
        job.start("0-0-0-written", "1-0-0-written", "2-0-0-joining", *copies)
        # Batch 0: the first attempt has written everything, and before its message goes off the copy has, too.
        first = job.held("0-0-0-written")
        job.let_go("0-0-1-joining")
        copy = job.outcome("0-0-1")
        assert first["executor"] != copy["executor"]
        job.wait_committed(0)
        # Batch 1: both have written everything, and the first one wins.
        job.held("1-0-0-written")
        job.held("1-0-1-written")
        job.let_go("1-0-0-written")
        job.wait_committed(1)
        # Batch 2: the first attempt is stopped before it writes, and begins when the copy is committed.
        late = job.held("2-0-0-joining")
        job.outcome("2-1-0")
        stopped = family(late["executor"])
        send(stopped, signal.SIGSTOP)
        try:
            job.let_go("2-0-1-joining")
            job.wait_committed(2)
            job.let_go("2-0-0-joining")
            send([late["worker"]], signal.SIGCONT)
            outcome = job.outcome("2-0-0")
        finally:
            send(stopped, signal.SIGCONT)
        assert (outcome["worker"], outcome["rows"], outcome["has_written"]) == (late["worker"], 0, False)
        job.end()
    rows = ROWS_PER_BATCH // 2
    tries = {"0-0-0", "0-0-1", "1-0-0", "1-0-1", "2-0-1"}
    written, committed = job.written_by(), job.written_by("read_committed")
    assert {attempt: written[attempt] for attempt in tries} == dict.fromkeys(tries, rows)
    assert {attempt: committed[attempt] for attempt in tries} == {
        "0-0-0": 0,
        "0-0-1": rows,
        "1-0-0": rows,
        "1-0-1": 0,
        "2-0-1": rows,
    }
    assert written["2-0-0"] == 0


@pytest.mark.skipif(given("SEMEL_SPARK_LONG", "0") != "1", reason="takes a minute: `make test-spark` runs it")
def test_E2_in_a_local_cluster_an_executor_is_killed_in_every_batch(
    spark_environment: Mapping[str, str], bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """While it writes, while it reads, and when it has written all and its message is not on its way yet."""
    cluster = LocalCluster(tmp_path / "cluster", spark_environment)
    with Driver(cluster, bootstrap, tmp_path / "driver") as driver:
        job = Job(driver, bootstrap, new_topic, tmp_path)
        places = ["0-0-0-writing", "1-1-0-reading", "2-0-0-written"]
        job.start(*places)
        for place in places:
            attempt, _, where = place.rpartition("-")
            victim = job.held(place)
            lost = 0 if where == "reading" else job.wait_written_by(attempt)
            send([victim["executor"]], signal.SIGKILL)
            wait_until(lambda pid=victim["executor"]: not is_alive(pid), "the executor is dead")
            retry = job.outcome(f"{attempt[:-1]}1")
            assert (retry["rows"], retry["executor"] != victim["executor"]) == (ROWS_PER_BATCH // 2, True)
            assert job.written_by()[attempt] >= lost
        job.end()
    assert {place.rpartition("-")[0] for place in places}.isdisjoint(job.written_by("read_committed"))
