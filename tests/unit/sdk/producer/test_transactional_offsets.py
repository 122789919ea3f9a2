"""Offsets that are committed in a transaction, as clients see them: pending until the marker (O1, O2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from impatience import given_up

import semel
from semel.protocol.errors import ErrorCode
from semel.testing import Broker

WAIT_S = 30
TP = semel.TopicPartition("orders", 0)


@pytest.fixture
def node() -> Iterator[Broker]:
    with Broker() as node:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("orders", partitions=1)
            admin.create_topic("enriched", partitions=1)
        with semel.Producer(node.bootstrap) as producer:
            for value in (b"a", b"b", b"c"):
                producer.send("orders", value)
        yield node


def admin_sees(node: Broker) -> int | None:
    """What is committed for the group, without waiting for what is pending."""
    with semel.Admin(node.bootstrap) as admin:
        place = admin.group_offsets("enrich").get(TP)
    return None if place is None else place.offset


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def producer(node: Broker) -> semel.Producer:
    return semel.Producer(node.bootstrap, transactional_id="enrich-0", linger_ms=0)


@pytest.mark.parametrize("restarts", [False, True], ids=["", "the node restarts"])
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_O1_offsets_in_a_transaction_are_pending_until_its_marker(node: Broker, commits: bool, restarts: bool) -> None:
    with semel.Admin(node.bootstrap) as admin:
        admin.alter_group_offsets("enrich", {TP: 1})
    with producer(node) as writer:
        writer.begin_transaction()
        writer.send("enriched", b"A").result(WAIT_S)
        writer.send_offsets({TP: 3}, semel.GroupMetadata("enrich"))
        assert admin_sees(node) == 1
        if restarts:
            node.stop()
            node.start()
            assert admin_sees(node) == 1, "the state after a restart is the state before it"
        with semel.Consumer(node.bootstrap, group="enrich") as reader:
            reader.assign([TP])
            given_up(reader, lambda: reader.committed([TP]), ErrorCode.UNSTABLE_OFFSET_COMMIT)  # O2
        if commits:
            writer.commit_transaction()
        else:
            writer.abort_transaction()
    expected = 3 if commits else 1
    with semel.Consumer(node.bootstrap, group="enrich") as reader:
        reader.assign([TP])
        place = reader.committed([TP])[TP]
        assert place is not None
        assert place.offset == expected, "and a caller that asks for stable offsets waits for the marker"
    wait_for(lambda: admin_sees(node) == expected)


def test_O1_a_batch_commits_with_its_transaction_and_a_successor_begins_there(node: Broker) -> None:
    with (
        producer(node) as writer,
        semel.Consumer(node.bootstrap, group="enrich", topics=["orders"], heartbeat_interval_ms=20) as reader,
    ):
        batch = reader.poll(WAIT_S, max_records=2)
        assert batch is not None
        with writer.transaction(commits=batch) as txn:
            txn.send("enriched", b"AB").result(WAIT_S)
            assert admin_sees(node) is None
        assert [record.value for record in batch] == [b"a", b"b"]
        batch = reader.poll(WAIT_S, max_records=1)
        assert batch is not None
        writer.begin_transaction()
        writer.send("enriched", b"C").result(WAIT_S)
        writer.send_offsets(batch.next_offsets, batch.group_metadata)
        assert admin_sees(node) == 2
        writer.abort_transaction()
    wait_for(lambda: admin_sees(node) == 2)
    with semel.Consumer(node.bootstrap, group="enrich", topics=["orders"], heartbeat_interval_ms=20) as successor:
        batch = successor.poll(WAIT_S)
        assert batch is not None
        assert [record.value for record in batch] == [b"c"]
