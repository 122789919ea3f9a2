"""`semel log verify` calls sound what nodes leave: after a kill or a power cut (D1), under settings of all kinds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sound_data import as_directory, wrong_in_memory

import semel
from semel.broker.inspection.findings import Severity
from semel.broker.inspection.verify import Report, verify
from semel.broker.log.checkpoints import OffsetCheckpoint
from semel.broker.logs.data_folder import HIGH_WATERMARK_FILE, RECOVERY_POINT_FILE
from semel.broker.logs.opening import LogOpener
from semel.runtime.disk_storage import DiskStorage
from semel.testing import Broker, Unsynced

VALUE = b"v" * 300


def write(broker: Broker, rounds: int) -> None:
    """Transactions that are aborted and committed in turn."""
    with semel.Producer(broker.bootstrap, transactional_id="t") as producer:
        for number in range(rounds):
            producer.begin_transaction()
            for _ in range(3):
                producer.send("orders", VALUE)
            producer.flush()
            if number % 2:
                producer.commit_transaction()
            else:
                producer.abort_transaction()


def killed(unsynced: Unsynced, seed: int) -> Broker:
    """A broker whose logs of many small segments were flushed, written to again, and killed."""
    broker = Broker(seed=seed)
    broker.start()
    broker.create_topic("orders", partitions=2, configs={"segment.bytes": "2048", "index.interval.bytes": "256"})
    write(broker, 6)
    broker._run(lambda node: node.logs.maintenance.flush())
    write(broker, 5)
    broker.kill(unsynced)
    return broker


@pytest.fixture
def brokers() -> Iterator[list[Broker]]:
    made: list[Broker] = []
    yield made
    for broker in made:
        broker.close()


CRASHES = [(Unsynced.KEPT, 0), (Unsynced.LOST, 0), *((Unsynced.TORN, seed) for seed in range(4))]


@pytest.mark.parametrize(("unsynced", "seed"), CRASHES, ids=lambda given: str(getattr(given, "value", given)))
def test_D1_what_a_crash_tore_and_a_start_puts_right_is_no_damage(
    brokers: list[Broker], unsynced: Unsynced, seed: int
) -> None:
    broker = killed(unsynced, seed)
    brokers.append(broker)
    assert broker._data is not None
    assert not wrong_in_memory(broker._data)
    broker.start()
    assert len(broker.records("orders", at_least=15)) == 15, "it was sound: nothing is lost"
    write(broker, 2)
    broker.kill(unsynced)
    assert not wrong_in_memory(broker._data)


def report_of(broker: Broker) -> Report:
    assert broker._data is not None
    with as_directory(broker._data) as folder:
        return verify(str(folder), metadata_url=broker._data.metadata_url)


def test_D1_what_the_start_would_put_right_is_told_as_a_note(brokers: list[Broker]) -> None:
    broker = killed(Unsynced.LOST, 0)
    brokers.append(broker)
    report = report_of(broker)
    assert not report.is_clean
    (journal,) = [one for one in report.findings if one.path == "journal"]
    assert journal.severity is Severity.NOTE
    assert journal.on_start == "gives them back to the logs"


@pytest.mark.parametrize("name", [HIGH_WATERMARK_FILE, RECOVERY_POINT_FILE])
def test_D1_only_a_high_watermark_may_be_behind_the_end_of_a_log_that_a_power_cut_tore(
    brokers: list[Broker], name: str
) -> None:
    broker = killed(Unsynced.LOST, 0)
    brokers.append(broker)
    assert broker._data is not None
    with as_directory(broker._data) as folder:
        checkpoint = OffsetCheckpoint(DiskStorage(), f"{folder}/{name}")
        checkpoint.write({**checkpoint.read(), semel.TopicPartition("orders", 0): 1000})
        report = verify(str(folder), metadata_url=broker._data.metadata_url)
    (found,) = [one for one in report.findings if one.path == name]
    assert found.severity is (Severity.NOTE if name == HIGH_WATERMARK_FILE else Severity.WARNING)


def test_what_other_threads_log_meanwhile_is_not_said_to_be_the_start_s(
    brokers: list[Broker], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker()
    brokers.append(broker)
    broker.start()
    broker.create_topic("orders")
    broker.stop()
    told = []

    def shout() -> None:
        """While the start is tried, a client on another thread loses its connection."""
        thread = threading.Thread(target=lambda: logging.getLogger("semel.client").warning("no connection to node 1"))
        thread.start()
        thread.join()
        told.append(True)

    monkeypatch.setattr("semel.broker.logs.opening.LogOpener.open_log", _before(shout))
    report = report_of(broker)
    assert told
    assert report.is_whole, list(report.findings)
    assert "no connection to node 1" in caplog.text, "its own handlers have it"


def _before(shout: Callable[[], None]) -> Callable[..., Any]:
    open_log = LogOpener.open_log

    def call(*args: Any, **options: Any) -> Any:
        shout()
        return open_log(*args, **options)

    return call


def compacted(broker: Broker, **configs: str) -> None:
    """Fill a topic with few keys, and let its log be compacted."""
    broker.start()
    broker.create_topic("orders", configs={"segment.bytes": "2048", "min.cleanable.dirty.ratio": "0.01", **configs})
    for _ in range(2):
        with semel.Producer(broker.bootstrap) as producer:
            for number in range(100):
                producer.send("orders", VALUE, key=b"%d" % (number % 5)).result(60)
        broker.advance(24 * 3600)
    assert len(broker.records("orders")) < 150


def test_D4_a_log_that_was_compacted_under_other_settings_of_its_topic_has_no_damage(brokers: list[Broker]) -> None:
    broker = Broker()
    brokers.append(broker)
    compacted(broker, **{"cleanup.policy": "compact"})
    with semel.Admin(broker.bootstrap) as admin:
        admin.alter_topic_configs("orders", changes={"cleanup.policy": "delete"})
    broker.stop()
    assert broker._data is not None
    assert not wrong_in_memory(broker._data)


def test_D4_a_log_that_the_node_s_own_settings_compact_has_no_damage(brokers: list[Broker]) -> None:
    broker = Broker(log_cleanup_policy="compact")
    brokers.append(broker)
    compacted(broker)
    broker.stop()
    assert broker._data is not None
    assert not wrong_in_memory(broker._data)
