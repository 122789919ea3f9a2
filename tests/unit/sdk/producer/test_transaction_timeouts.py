"""A transaction that is open for too long: what its producer is told by a real node, and that it can continue (T9)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

import semel
from semel.protocol.errors import AbortTransactionError, FencedError
from semel.testing import Broker

TIMEOUT_MS = 300
WAIT_S = 30
ID = "enrich-0"
ORDERS = semel.TopicPartition("orders", 0)
OTHER = semel.TopicPartition("orders", 1)


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture
def topic(node: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic("orders", partitions=2)
        yield "orders"
        admin.delete_topic("orders")


def wait_aborted(node: Broker) -> None:
    """Until the coordinator has aborted the transaction on its own, and its markers are written."""
    deadline = time.monotonic() + WAIT_S
    with semel.Admin(node.bootstrap) as admin:
        while admin.transaction(ID).state != "CompleteAbort":
            assert time.monotonic() < deadline, admin.transaction(ID)
            time.sleep(0.01)


def producer(node: Broker, timeout_ms: int = TIMEOUT_MS) -> semel.Producer:
    return semel.Producer(node.bootstrap, transactional_id=ID, transaction_timeout_ms=timeout_ms, linger_ms=0)


def committed(node: Broker) -> list[bytes | None]:
    found: list[bytes | None] = []
    with semel.Consumer(node.bootstrap) as consumer:
        consumer.assign([ORDERS, OTHER])
        ends = consumer.end_offsets()
        while any((consumer.position(tp) or 0) < end for tp, end in ends.items()):
            found += [record.value for record in consumer.poll(1) or ()]
    return found


def dawdle(node: Broker, writer: semel.Producer, after: Callable[[semel.Transaction], object]) -> None:
    """Run a transaction that is open for too long, and do one thing more in it after that."""
    with writer.transaction() as txn:
        txn.send("orders", b"early", partition=0).result(WAIT_S)
        wait_aborted(node)
        after(txn)


AFTER: dict[str, Callable[[semel.Transaction], object]] = {
    "commits": lambda txn: None,
    "sends on": lambda txn: txn.send("orders", b"late", partition=0),
    "sends to another partition": lambda txn: txn.send("orders", b"late", partition=1),
    "commits offsets": lambda txn: txn.send_offsets({ORDERS: 1}, semel.GroupMetadata("enrich")),
}


@pytest.mark.parametrize("after", sorted(AFTER))
def test_T9_a_producer_was_fenced_by_its_own_timeout(node: Broker, topic: str, after: str) -> None:
    with producer(node) as writer:
        for _ in range(2):
            with pytest.raises(AbortTransactionError, match=rf"timed out after {TIMEOUT_MS} ms.* the coordinator has"):
                dawdle(node, writer, AFTER[after])
    with producer(node, 60_000) as writer, writer.transaction() as txn:
        txn.send("orders", b"again")
    assert committed(node) == [b"again"]


def test_T9_the_next_transaction_of_the_same_producer_commits(node: Broker, topic: str) -> None:
    with producer(node, 2_000) as writer:
        with pytest.raises(AbortTransactionError, match="timed out"):
            dawdle(node, writer, AFTER["commits"])
        with writer.transaction() as txn:
            txn.send("orders", b"again")
        writer.begin_transaction()
        writer.send("orders", b"early", partition=0).result(WAIT_S)
        wait_aborted(node)
        with pytest.raises(AbortTransactionError, match="timed out"):
            writer.commit_transaction()
        writer.abort_transaction()
        writer.begin_transaction()
        writer.send("orders", b"and again", partition=0)
        writer.commit_transaction()
    assert sorted(map(bytes, filter(None, committed(node)))) == [b"again", b"and again"]


def test_T5_a_zombie_that_timed_out_is_fenced_when_another_has_come(node: Broker, topic: str) -> None:
    def another_comes(_: semel.Transaction) -> None:
        with producer(node, 60_000) as new, new.transaction() as txn:
            txn.send("orders", b"the new one's")

    with producer(node) as old:
        with pytest.raises(FencedError, match="has taken over"):
            dawdle(node, old, another_comes)
        with pytest.raises(FencedError, match="has taken over"):
            old.begin_transaction()
    assert committed(node) == [b"the new one's"]


def test_an_operators_abort_still_fences(node: Broker, topic: str) -> None:
    with producer(node, 60_000) as old:
        old.begin_transaction()
        old.send("orders", b"early", partition=0).result(WAIT_S)
        with semel.Admin(node.bootstrap) as admin:
            admin.abort_transaction(ID)
        wait_aborted(node)
        with pytest.raises(FencedError, match="an operator has aborted"):
            old.commit_transaction()
    assert committed(node) == []
