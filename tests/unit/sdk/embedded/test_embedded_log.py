"""`semel.open`: what a log in this process does, and what it refuses."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import sqlalchemy as sa

import semel
from semel.broker.config.node_config import NodeConfig
from semel.broker.node import Node
from semel.broker.start_errors import NodeStartError
from semel.runtime.disk_storage import DiskFile
from semel.runtime.setting import ConfigError
from semel.sdk.transport.in_process import NodeGoneError

SMALL: dict[str, object] = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "disk.min.free.bytes": 0,
    "group.min.session.timeout.ms": 1,
}
WAIT_S = 60.0


def opened(folder: Path, **options: Any) -> semel.EmbeddedLog:
    return semel.open(folder, settings={**SMALL, **options.pop("settings", {})}, **options)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[semel.EmbeddedLog]:
    with opened(tmp_path / "data") as log:
        yield log


def values(log: semel.EmbeddedLog, topic: str, count: int) -> list[bytes | None]:
    """Return what readers of committed records see of a topic with one partition: so many, or more."""
    found: list[bytes | None] = []
    with log.consumer() as reader:
        reader.assign([semel.TopicPartition(topic, 0)])
        while len(found) < count:
            batch = reader.poll(WAIT_S)
            assert batch is not None, found
            found += [record.value for record in batch]
    return found


def listening_sockets() -> set[str]:
    """Return the addresses on which this process listens, by TCP or by a path."""
    inodes = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1])
    for line in Path("/proc/self/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in inodes and int(fields[3], 16) & 0x10000:
            found.add(" ".join(fields[7:]))
    return found


# --- What it does -----------------------------------------------------------------------------------------------------


def test_transactions_and_groups_work_as_with_any_node(log: semel.EmbeddedLog) -> None:
    log.create_topic("orders", partitions=2)
    log.create_topic("enriched")
    with log.producer() as loader:
        for number in range(10):
            loader.send("orders", b"%d" % number, partition=number % 2)
    with (
        log.producer(transactional_id="load-1") as producer,
        log.consumer(group="readers", topics=["orders"]) as consumer,
    ):
        seen = 0
        while seen < 10:
            batch = consumer.poll(WAIT_S)
            assert batch is not None
            with pytest.raises(ZeroDivisionError), producer.transaction(commits=batch):  # noqa: PT012
                producer.send("enriched", b"never")
                raise ZeroDivisionError
            batch = consumer.poll(WAIT_S)
            assert batch is not None
            with producer.transaction(commits=batch):
                for record in batch:
                    producer.send("enriched", record.value)
            seen += len(batch)
    assert sorted(value or b"" for value in values(log, "enriched", 10)) == [b"%d" % number for number in range(10)]
    with log.admin() as admin:
        assert {tp: lag.lag for tp, lag in admin.group_lag("readers").items()} == {
            semel.TopicPartition("orders", 0): 0,
            semel.TopicPartition("orders", 1): 0,
        }
        assert [finding.kind.name for finding in admin.diagnose().findings] == ["no-disk-reserve"]


def test_large_records_go_both_ways(log: semel.EmbeddedLog) -> None:
    """More than the sockets' buffers hold."""
    log.create_topic("large", configs={"max.message.bytes": "8000000"})
    large = os.urandom(3_000_000)
    with log.producer(record_bytes_max=7_000_000, request_bytes_max=7_500_000) as producer:
        for _ in range(5):
            producer.send("large", large)
    assert values(log, "large", 5) == [large] * 5


def test_several_writers_share_a_transaction(log: semel.EmbeddedLog) -> None:
    log.create_topic("orders")
    shared = log.shared_transaction("import", token="monday", sequence=1)
    members = []
    for part in range(2):
        with shared.join() as writer:
            writer.send("orders", b"%d" % part)
            members.append(writer.finish())
    assert not shared.commit(members).already_committed
    assert sorted(value or b"" for value in values(log, "orders", 2)) == [b"0", b"1"]
    assert log.shared_transaction("import", token="monday", sequence=1).committed is not None


def test_E1_a_run_works_on_it(log: semel.EmbeddedLog) -> None:
    """Its producer was refused: the address of the consumer was no HOST:PORT."""
    log.create_topic("orders")
    log.create_topic("enriched")
    with log.producer() as producer:
        producer.send("orders", b"7")
    with log.consumer(group="enrich", topics=["orders"]) as consumer:
        done = consumer.run(lambda order: semel.ProducerRecord("enriched", order.value), idle_timeout_s=0.5)
    assert (done.records, done.sent) == (1, 1)
    assert values(log, "enriched", 1) == [b"7"]


def test_E3_a_sink_and_an_outbox_work_on_it(log: semel.EmbeddedLog, tmp_path: Path) -> None:
    log.create_topic("orders")
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = sa.create_engine(url)
    outbox = log.outbox(url)
    outbox.create_tables()
    with outbox:
        with engine.begin() as connection:
            outbox.add(connection, "orders", b"7", key=b"k")
        outbox.run(idle_timeout_s=0.1)
    sink = log.sink(
        url, group="g", topics=["orders"], table="rows", columns={"id": int}, mapping=lambda one: {"id": int(one.value)}
    )
    sink.create_tables()
    with engine.begin() as connection:
        connection.execute(sa.text("create table rows (id integer)"))
    with sink:
        sink.run(idle_timeout_s=2)
    with engine.connect() as connection:
        assert connection.execute(sa.text("select id from rows")).scalars().all() == [7]
    engine.dispose()


def test_D1_what_was_written_is_there_after_the_next_open_and_the_directory_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "where"
    with opened(folder) as log:
        log.create_topic("orders")
        with log.producer() as producer:
            producer.send("orders", b"kept")
        assert log.path == str(folder)
    with semel.open(str(folder), settings=SMALL) as log:
        assert [topic.name for topic in log.topics()] == ["orders"]
        assert values(log, "orders", 1) == [b"kept"]
        log.delete_topic("orders")
        assert log.topics() == []


def test_D1_acknowledged_means_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync = DiskFile.sync

    def counted(file: DiskFile) -> None:
        sync(file)
        synced.append(file.path)

    with opened(tmp_path) as log:
        log.create_topic("orders")
        with log.producer() as producer:
            producer.send("orders", b"first").result(WAIT_S)
            monkeypatch.setattr(DiskFile, "sync", counted)
            for number in range(3):
                synced.clear()
                producer.send("orders", b"%d" % number).result(WAIT_S)
                assert any("/journal/" in path for path in synced)


def test_a_directory_of_a_node_is_opened_here_and_one_of_here_by_a_node(tmp_path: Path) -> None:
    """The same files: tests/e2e/test_embedded_kill.py does it with `semel serve`."""
    with opened(tmp_path, grpc="127.0.0.1:0") as log:
        log.create_topic("orders")
        with semel.Producer(log.bootstrap) as producer:
            producer.send("orders", b"1")

    async def serve() -> None:
        node = await Node.start(
            NodeConfig(data_dir=str(tmp_path), kafka_listen="127.0.0.1:0", grpc_listen="127.0.0.1:0")
        )
        assert node.metadata.topic("orders") is not None
        await node.stop()

    import asyncio

    asyncio.run(serve())
    with opened(tmp_path) as log:
        assert values(log, "orders", 1) == [b"1"]


def test_several_logs_are_open_at_once_and_know_nothing_of_each_other(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as one, opened(tmp_path / "b") as other:
        one.create_topic("mine")
        other.create_topic("theirs")
        assert [topic.name for log in (one, other) for topic in log.topics()] == ["mine", "theirs"]


def test_many_threads_use_one_log(log: semel.EmbeddedLog) -> None:
    log.create_topic("orders")
    with log.producer() as shared, ThreadPoolExecutor(8) as pool:

        def work(thread: int) -> None:
            with log.producer(transactional_id=f"t-{thread}") as producer:
                for number in range(5):
                    shared.send("orders", b"shared")
                    with producer.transaction():
                        producer.send("orders", b"%d %d" % (thread, number))

        list(pool.map(work, range(8)))
        shared.flush()
        found = values(log, "orders", 80)
    assert len(found) == 80
    assert found.count(b"shared") == 40


def test_T9_a_transaction_that_was_open_at_the_end_is_aborted_behind_the_next_open(tmp_path: Path) -> None:
    """What became due while the log was closed is done when it is open again."""
    with opened(tmp_path) as log:
        log.create_topic("orders")
        producer = log.producer(transactional_id="left", transaction_timeout_ms=200)
        producer.begin_transaction()
        producer.send("orders", b"never")
        producer.flush()
        producer._core.client.close()  # it is gone, and nobody has ended its transaction
        log._core._clients.clear()
    with opened(tmp_path) as log, log.admin() as admin:
        ended = threading.Event()
        while admin.transaction("left").state != "CompleteAbort":
            ended.wait(0.02)
        with log.producer() as other:
            other.send("orders", b"behind it")
        assert values(log, "orders", 1) == [b"behind it"]


# --- Ports ------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/proc/self/net/tcp"), reason="only Linux tells")
def test_S6_nothing_listens_unless_it_was_asked_for(tmp_path: Path) -> None:
    before = listening_sockets()
    with opened(tmp_path / "closed") as log:
        log.create_topic("orders")
        assert listening_sockets() - before == set()
    with opened(tmp_path / "open", kafka="127.0.0.1:0"):
        assert len(listening_sockets() - before) == 1


def test_addresses_are_told_only_where_ports_are_open(log: semel.EmbeddedLog) -> None:
    with pytest.raises(semel.UsageError, match=r'opened without ports: semel\.open\(.*, grpc="127\.0\.0\.1:0"\)'):
        _ = log.bootstrap
    with pytest.raises(semel.UsageError, match=r'kafka="127\.0\.0\.1:0"'):
        _ = log.kafka


def test_other_clients_come_in_by_the_ports_that_were_asked_for(tmp_path: Path) -> None:
    with opened(tmp_path, grpc="127.0.0.1:0") as log:
        log.create_topic("orders")
        with log.producer() as inside, semel.Producer(log.bootstrap) as outside:
            inside.send("orders", b"inside").result(WAIT_S)
            outside.send("orders", b"outside").result(WAIT_S)
        reader = confluent_kafka.Consumer(
            {"bootstrap.servers": log.kafka, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        reader.subscribe(["orders"])
        found: list[bytes | None] = []
        while len(found) < 2:
            message = reader.poll(WAIT_S)
            assert message is not None
            assert message.error() is None
            found.append(message.value())
        reader.close()
    assert found == [b"inside", b"outside"]


def test_a_kafka_port_alone_is_for_kafkas_clients(tmp_path: Path) -> None:
    with opened(tmp_path, kafka="127.0.0.1:0") as log:
        host, _, port = log.kafka.rpartition(":")
        socket.create_connection((host, int(port))).close()
        with pytest.raises(semel.UsageError):
            _ = log.bootstrap


# --- What it refuses --------------------------------------------------------------------------------------------------


def test_D3_the_directory_is_had_once_in_a_process(log: semel.EmbeddedLog) -> None:
    with pytest.raises(NodeStartError, match="in use by this process: it has it open already"):
        opened(Path(log.path))
    assert log.topics() == []


def test_settings_are_checked_as_those_of_a_node(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no setting log\.retention\.m; did you mean log\.retention\.ms"):
        semel.open(tmp_path, settings={"log.retention.m": 1})
    with pytest.raises(ConfigError, match=r"open\(settings=\.\.\.\), log\.retention\.ms"):
        semel.open(tmp_path, settings={"log.retention.ms": "soon"})
    for name, advice in {
        "data.dir": "first argument",
        "kafka.listen": r"open\(\.\.\., kafka=",
        "grpc.listen": r"open\(\.\.\., grpc=",
        "log.level": "logging",
    }.items():
        with pytest.raises(ConfigError, match=advice):
            semel.open(tmp_path, settings={name: "x"})
    for settings in ("log.retention.ms", {1: 2}):
        with pytest.raises(semel.UsageError):
            semel.open(tmp_path, settings=settings)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_settings_take_effect(tmp_path: Path) -> None:
    with opened(tmp_path, settings={"num.partitions": 3, "auto.create.topics.enable": "true"}) as log:
        assert len(log.create_topic("orders").partitions) == 3


def test_environment_variables_of_a_node_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_NUM_PARTITIONS", "7")
    monkeypatch.setenv("SEMEL_NO_SUCH_THING", "7")
    with opened(tmp_path) as log:
        assert len(log.create_topic("orders").partitions) == 1


@pytest.mark.parametrize("path", ["", "a\0b", b"data", 7, None])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(semel.UsageError, match="path of a directory"):
        semel.open(path)


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    with pytest.raises(NodeStartError, match="data"):
        semel.open(tmp_path / "data")


def test_wrong_arguments_name_the_right_ones(log: semel.EmbeddedLog) -> None:
    with pytest.raises(semel.UsageError, match="did you mean 'settings'"):
        semel.open(log.path, setings={})  # type: ignore[call-arg]
    with pytest.raises(semel.UsageError, match="did you mean 'transactional_id'"):
        log.producer(transactionalid="x")  # type: ignore[call-arg]
    with pytest.raises(semel.UsageError, match="takes no bootstrap"):
        log.producer(bootstrap="localhost:9094")
    with pytest.raises(ConfigError, match="HOST:PORT"):
        semel.open(log.path, kafka="9092")
    with pytest.raises(semel.UsageError, match="grpc is text"):
        semel.open(log.path, grpc=9094)  # type: ignore[arg-type]


def test_a_log_is_not_pickled(log: semel.EmbeddedLog) -> None:
    import pickle

    with pytest.raises(TypeError, match="it is a node of this process"):
        pickle.dumps(log)
    shared = log.shared_transaction("key", token="t")
    assert pickle.loads(pickle.dumps(shared)).key == "key"


# --- The end ----------------------------------------------------------------------------------------------------------


def test_closing_closes_its_clients_and_lets_the_directory_go(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.create_topic("orders")
    producer, consumer = log.producer(transactional_id="t"), log.consumer(group="g", topics=["orders"])
    producer.begin_transaction()
    producer.send("orders", b"never").result(WAIT_S)
    log.close()
    log.close()
    assert repr(log).endswith("not open>")
    with pytest.raises(semel.UsageError, match="closed"):
        producer.send("orders", b"late")
    with pytest.raises(semel.UsageError, match="closed"):
        consumer.poll(0)
    with pytest.raises(semel.UsageError, match=r"was closed: semel\.open\("):
        log.topics()
    with pytest.raises(semel.UsageError, match=r"was closed"), log:
        pass
    with opened(tmp_path) as log, log.admin() as admin:
        assert admin.transaction("t").state == "CompleteAbort"


def test_an_exception_in_the_block_aborts_what_is_open_and_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), opened(tmp_path) as log:  # noqa: PT012
        log.create_topic("orders")
        producer = log.producer(transactional_id="t")
        producer.begin_transaction()
        producer.send("orders", b"never").result(WAIT_S)
        raise ZeroDivisionError
    with opened(tmp_path) as log, log.admin() as admin:
        assert admin.transaction("t").state == "CompleteAbort"


def test_clients_of_a_log_that_was_closed_are_told_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        name = log._core.link.name
        stranger = semel.Admin(name)  # which the log does not know
        assert stranger.topics() == []
    with stranger, pytest.raises(NodeGoneError, match=r"was closed: semel\.open\("):
        stranger.topics()
    with pytest.raises(semel.UsageError, match="is not open in this process"):
        semel.Admin(name)


def test_D1_a_failed_disk_stops_it_and_its_clients_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path)
    log.create_topic("orders")
    producer = log.producer()
    producer.send("orders", b"kept").result(WAIT_S)

    def fail(file: DiskFile) -> None:
        raise OSError(5, "Input/output error", file.path)

    with monkeypatch.context() as broken:
        broken.setattr(DiskFile, "sync", fail)
        producer.send("orders", b"refused")
        with pytest.raises(semel.SemelError):
            producer.flush()
        stopped = threading.Event()
        while log.failure is None:
            stopped.wait(0.01)
        with pytest.raises(NodeGoneError, match=r"has stopped, because .* open it again"):  # noqa: PT012
            while True:  # until it stops
                log.topics()
        with pytest.raises(semel.FatalError, match="had stopped, because"):
            log.close()
    log.close()
    with opened(tmp_path) as log:
        assert values(log, "orders", 1)[0] == b"kept"
