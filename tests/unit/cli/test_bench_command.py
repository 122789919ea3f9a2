"""`semel bench`: what it measures, what it prints, and which topics it makes and deletes."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import semel
from semel.cli.bench import workloads
from semel.cli.bench.client import Acknowledged, Acks, ProducerPlan
from semel.cli.bench.measuring import Histogram, Measured
from semel.cli.bench.workloads import Load
from semel.cli.common import ExitCode
from semel.cli.main import app
from semel.protocol.errors import FatalError, RetriableError
from semel.testing import Broker

PLAN = ProducerPlan("none", Acks.ALL)
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture(params=["semel", "confluent"])
def run(request: pytest.FixtureRequest, node: Broker) -> Run:
    """Run a workload with each client, at the port that it needs."""
    if request.param == "confluent":
        pytest.importorskip("confluent_kafka")
    address = node.bootstrap if request.param == "semel" else node.kafka

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["bench", *arguments, "--client", request.param, "--bootstrap", address])

    return run


def topics(node: Broker) -> set[str]:
    with semel.Admin(node.bootstrap) as admin:
        return {topic.name for topic in admin.topics()}


@pytest.mark.parametrize(
    ("workload", "options", "has_latency"),
    [
        ("produce", ("--compression", "lz4", "--acks", "1"), True),
        ("consume", (), False),
        ("transactions", ("--transaction-records", "60"), True),
        ("end-to-end", ("--rate", "2000"), True),
    ],
)
def test_each_workload_is_measured_on_a_topic_of_its_own_which_is_deleted(
    run: Run, node: Broker, workload: str, options: tuple[str, ...], has_latency: bool
) -> None:
    done = run(workload, "--records", "200", "--record-size", "50", "--partitions", "2", "--json", *options)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["workload"], found["records"], found["partitions"]) == (workload, 200, 2)
    assert found["topic"].startswith("semel-bench-")
    assert found["records_per_s"] > 0
    assert found["topic"] not in topics(node)
    assert f"deleted topic {found['topic']}" in done.stderr
    assert (found["latency_ms"] is not None) is has_latency
    if has_latency:
        latency = found["latency_ms"]
        assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["max"]
    if workload == "transactions":
        assert found["transactions"] == 4  # the last one with the 20 that are left


def test_a_topic_that_is_given_is_used_and_kept(run: Run, node: Broker) -> None:
    kept = node.create_topic(partitions=3)
    done = run("produce", "--records", "30", "--topic", kept)
    assert done.exit_code == 0, done.output
    assert f"topic {kept}, partitions 3" in done.stdout
    assert "latency      p50 " in done.stdout
    assert "deleted" not in done.stderr
    read = run("consume", "--topic", kept, "--json")
    assert json.loads(read.stdout)["records"] >= 30
    assert kept in topics(node)


def test_a_topic_that_is_not_there_is_refused_and_not_made(run: Run, node: Broker) -> None:
    done = run("produce", "--topic", "mistyped", "--records", "1")
    assert done.exit_code == ExitCode.REFUSED
    assert "there is no topic 'mistyped'" in done.stderr
    assert "mistyped" not in topics(node)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("produce", "--topic", "t", "--partitions", "3"), "--partitions is for the new topic"),
        (("produce", "--duration", "2h"), "at most an hour"),
        (("produce", "--duration", "0"), "more than 0"),
        (("end-to-end", "--record-size", "8"), "--record-size"),
        (("produce", "--record-size", "100000000"), "--record-size"),
        (("produce", "--acks", "2"), "--acks"),
    ],
)
def test_a_wrong_option_is_refused(arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, ["bench", *arguments, "--bootstrap", "127.0.0.1:1"])
    assert done.exit_code == ExitCode.USAGE
    assert said in done.stderr


def test_without_confluent_kafka_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    done = CliRunner().invoke(app, ["bench", "produce", "--client", "confluent"])
    assert done.exit_code == ExitCode.USAGE
    assert "`pip install confluent-kafka`" in done.stderr


def test_without_a_node_it_says_so() -> None:
    done = CliRunner().invoke(app, ["bench", "produce", "--bootstrap", "127.0.0.1:1"])
    assert done.exit_code == ExitCode.UNREACHABLE
    assert "Is the node running?" in done.stderr


# against a client that is played


class PlayedClient:
    """Delivers to its own consumer; `fault` says what goes wrong."""

    name = "played"

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.sent: list[bytes] = []
        self.calls: list[str] = []
        self._lock = threading.Lock()
        self._read = 0

    def create_topic(self, name: str, partitions: int) -> None: ...

    def delete_topic(self, name: str) -> None: ...

    def partition_count(self, topic: str) -> int:
        return 1

    def producer(self, topic: str, plan: ProducerPlan) -> Any:
        return self

    def consumer(self, topic: str, *, from_end: bool) -> Any:
        return _PlayedConsumer(self)

    def send(self, value: bytes, acknowledged: Acknowledged | None) -> None:
        with self._lock:
            self.sent += [value] * (2 if self.fault == "twice" else 1)
        if acknowledged is not None:
            acknowledged(FatalError("the disk is full") if self.fault == "refused" else None)

    def taken(self) -> Sequence[bytes]:
        with self._lock:
            taken, self._read = self.sent[self._read :], len(self.sent)
        return taken

    def begin(self) -> None:
        self.calls.append("begin")

    def commit(self) -> None:
        self.calls.append("commit")

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")

    def abandon(self) -> None:
        self.calls.append("abandon")


class _PlayedConsumer:
    def __init__(self, client: PlayedClient) -> None:
        self._client = client

    def poll(self, timeout_s: float) -> Sequence[bytes]:
        if self._client.fault == "unreadable":
            raise FatalError("can't be read")
        return [] if self._client.fault == "lost" else self._client.taken()

    def close(self) -> None: ...


def test_a_record_that_is_refused_ends_the_run_without_waiting_for_the_others() -> None:
    client = PlayedClient("refused")
    with pytest.raises(FatalError, match="the disk is full"):
        workloads.produce(client, "t", PLAN, Load(10, 1_000_000, None, None))
    assert len(client.sent) <= 1 + workloads.LOOK_EVERY
    assert client.calls[-1] == "abandon"


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("twice", FatalError, "some arrived twice"),
        ("unreadable", FatalError, "can't be read"),
        ("lost", RetriableError, "no record arrived for .* of 5; `semel doctor`"),
    ],
)
def test_end_to_end_counts_what_arrives(
    monkeypatch: pytest.MonkeyPatch, fault: str, kind: type[Exception], said: str
) -> None:
    monkeypatch.setattr(workloads, "STALLED_S", 0.2)
    with pytest.raises(kind, match=said):
        workloads.end_to_end(PlayedClient(fault), "t", PLAN, Load(32, 5, None, 1000.0))


def test_transactions_are_of_the_size_that_was_asked_for() -> None:
    client = PlayedClient()
    plan = ProducerPlan("none", Acks.ALL, "id")
    measured = workloads.transactions(client, "t", plan, Load(10, 25, None, None), 10)
    assert client.calls == ["begin", "commit"] * 4 + ["close"]  # the first one is not measured
    assert (measured.records, measured.transactions, measured.latencies.count) == (25, 3, 3)


def test_a_rate_spreads_the_records_and_late_ones_keep_when_they_were_due() -> None:
    due = list(Load(10, 20, None, 1000.0).moments())
    assert {later - earlier for earlier, later in itertools.pairwise(due)} == {1_000_000}


def test_latencies_are_right_to_a_percent() -> None:
    latencies = Histogram()
    for microseconds in range(1, 10_001):
        latencies.add(microseconds * 1_000)
    for percent in (1, 50, 95, 99, 100):
        assert latencies.percentile_ms(percent) == pytest.approx(percent / 10, rel=0.011)
    latencies.add(10**18)
    assert latencies.max_ms == 10**12
    assert Histogram().summary() is None


def test_a_result_says_records_bytes_and_transactions_each_second() -> None:
    latencies = Histogram()
    latencies.add(2_000_000)
    measured = Measured(1_000, 4_000_000, 2.0, latencies, 10)
    found = measured.as_json({"workload": "w"})
    assert (found["records_per_s"], found["mb_per_s"], found["transactions_per_s"]) == (500, 2, 5)
    assert [line.split()[0] for line in measured.lines("of each")] == [
        "records",
        "transactions",
        "records/s",
        "MB/s",
        "latency",
        "(of",
    ]
