"""The console finishes transactions that nothing else will finish, on nodes that have lost what was needed for it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from console_client import ConsoleClient
from http_gateway import HttpGateway
from live_node import LiveNode
from lost_markers import cut_last_batch

import semel
from semel.protocol.ids import TRANSACTIONS_TOPIC, TopicPartition

ROOMY = {"disk_min_free_bytes": 64 << 20}
PATIENCE_S = 30.0


@contextmanager
def console_of(node: LiveNode, *, allows_changes: bool = True) -> Iterator[ConsoleClient]:
    with HttpGateway(node.bootstrap, allows_changes=allows_changes) as gateway:
        yield ConsoleClient(gateway.address)


def values(node: LiveNode, topic: str, partition: int, count: int) -> list[bytes | None]:
    """Return the first committed values of a partition, `count` of them or those that come in time."""
    found: list[bytes | None] = []
    deadline = time.monotonic() + PATIENCE_S
    with semel.Consumer(node.bootstrap, offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        while len(found) < count and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(0.1) or ()]
    return found


def until_complete(admin: semel.Admin) -> None:
    """Wait until all partitions of `pay` have the markers."""
    deadline = time.monotonic() + PATIENCE_S
    while not admin.transaction("pay").state.startswith("Complete"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def in_two_partitions(node: LiveNode, *, commits: bool) -> None:
    """Write into both partitions of `pay` in one transaction, and wait until all has its markers."""
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic("pay", partitions=2)
        with semel.Producer(node.bootstrap, transactional_id="pay") as producer:
            producer.begin_transaction()
            for partition in (0, 1):
                producer.send("pay", b"half", partition=partition)
            producer.flush()
            producer.commit_transaction() if commits else producer.abort_transaction()
        until_complete(admin)


@pytest.mark.parametrize("commits", [True, False])
def test_T3_T7_a_missing_marker_is_written_as_it_was_decided(tmp_path: Path, commits: bool) -> None:
    node = LiveNode(tmp_path, **ROOMY)
    node.start()
    try:
        in_two_partitions(node, commits=commits)
        node.stop()
        cut_last_batch(tmp_path / "data" / "pay-1")
        node.start()
        with semel.Producer(node.bootstrap) as producer:
            producer.send("pay", b"after", partition=1)
        place = {"topic": "pay", "partition": 1, "offset": 0}
        with console_of(node, allows_changes=False) as reading:
            shown = reading.get("transaction/finish", **place)
            assert "semel txn finish" in shown.plain
            assert "<form" not in shown.text
        with console_of(node) as console:
            assert "transaction/finish?topic=pay&amp;partition=1&amp;offset=0" in console.get("transactions").text
            form = console.get("transaction/finish", **place)
            assert f"the {'commit' if commits else 'abort'} marker that it lacks" in form.plain
            assert "marker-missing" in form.plain
            assert console.send(form, "transaction/finish", {}, **place).status == 400, "it is not confirmed"
            wrong = console.send(form, "transaction/finish", {"sure": "yes", "how": "abort"}, **place)
            assert wrong.status == 409
            assert "is decided" in wrong.plain
            told = {"sure": "yes", "how": "told", "outcome": "abort" if commits else "commit"}
            assert console.send(form, "transaction/finish", told, **place).status == 409, "the decision is known"
            done = console.send(form, "transaction/finish", {"sure": "yes"}, **place)
            assert "The transaction is finished on this partition." in done.plain
            assert "No open transaction holds readers back." in done.plain
            assert console.get("transaction/finish", **place).status == 409
            assert console.send(form, "transaction/finish", {"sure": "yes"}, **place).status == 409
        assert values(node, "pay", 1, 2 if commits else 1) == [b"half", b"after"][0 if commits else 1 :]
    finally:
        node.stop()


def test_T7_two_transactions_of_one_producer_are_told_apart(tmp_path: Path) -> None:
    """What is confirmed was said of the other one: "its abort is decided", above the button that commits."""
    node = LiveNode(tmp_path, **ROOMY)
    node.start()
    try:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("pay", partitions=2)
            with semel.Producer(node.bootstrap, transactional_id="pay") as producer:
                for partition, commits in ((0, False), (1, True)):
                    producer.begin_transaction()
                    producer.send("pay", b"x", partition=partition)
                    producer.flush()
                    producer.commit_transaction() if commits else producer.abort_transaction()
                    until_complete(admin)
        node.stop()
        for partition in (0, 1):
            cut_last_batch(tmp_path / "data" / f"pay-{partition}")
        node.start()
        with semel.Producer(node.bootstrap) as producer:
            for partition in (0, 1):
                producer.send("pay", b"after", partition=partition)
        with console_of(node) as console:
            places = [{"topic": "pay", "partition": partition, "offset": 0} for partition in (0, 1)]
            forms = [console.get("transaction/finish", **place) for place in places]
            for partition, outcome, other in ((0, "abort", "commit"), (1, "commit", "abort")):
                assert f"the {outcome} of 'pay' is decided" in forms[partition].plain
                assert f"gets the {outcome} marker" in forms[partition].plain
                assert f"the {other} of" not in forms[partition].plain
                assert f"pay-{1 - partition}" not in forms[partition].plain
            for place, form in zip(places, forms, strict=True):
                assert console.send(form, "transaction/finish", {"sure": "yes"}, **place).status == 200
        assert values(node, "pay", 0, 1) == [b"after"]
        assert values(node, "pay", 1, 2) == [b"x", b"after"]
    finally:
        node.stop()


def test_T8_a_transaction_that_no_coordinator_knows_is_aborted(tmp_path: Path) -> None:
    node = LiveNode(tmp_path, **ROOMY)
    node.start()
    try:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("out", partitions=1)
        place = {"topic": "out", "partition": 0, "offset": 0}
        producer = semel.Producer(node.bootstrap, transactional_id="lost")
        try:
            producer.begin_transaction()
            producer.send("out", b"held")
            producer.flush()
            with console_of(node) as console:
                known = console.get("transaction/finish", **place)
                assert known.status == 409
                assert "the transaction of 'lost', which its coordinator knows" in known.plain
                assert "Finish it" not in console.get("transactions").plain
            node.stop()
        finally:
            with suppress(semel.SemelError):
                producer.close(0)
        lost = list((tmp_path / "data").glob(f"{TRANSACTIONS_TOPIC}-*"))
        for folder in lost:
            shutil.rmtree(folder)
        node.start(accept_loss_of=[TopicPartition(TRANSACTIONS_TOPIC, number) for number in range(len(lost))])
        with semel.Producer(node.bootstrap) as other:
            other.send("out", b"after")
        with console_of(node) as console:
            assert "Finish it" in console.get("transactions").plain
            form = console.get("transaction/finish", **place)
            assert "An abort marker ends it" in form.plain
            assert console.send(form, "transaction/finish", {"sure": "yes", "how": "decided"}, **place).status == 409
            done = console.send(form, "transaction/finish", {"sure": "yes"}, **place)
            assert "No open transaction holds readers back." in done.plain
        assert values(node, "out", 0, 1) == [b"after"]
    finally:
        node.stop()


def test_what_is_not_there_can_not_be_finished(tmp_path: Path) -> None:
    with LiveNode(tmp_path, **ROOMY) as node, console_of(node) as console:
        assert console.get("transaction/finish").status == 400
        place = {"topic": "nowhere", "partition": 0, "offset": 0}
        assert console.get("transaction/finish", **place).status == 409
        form = console.get("transactions")
        for how in ("", "sideways", "told"):
            sent = console.send(form, "transaction/finish", {"sure": "yes", "how": how}, **place)
            assert sent.status in (400, 403)
        assert console.get("transaction/finish", topic="t", partition=1 << 31, offset=0).status == 400
