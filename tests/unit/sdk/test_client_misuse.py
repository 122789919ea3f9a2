"""Uses of the clients that can't work: each is told what to do in its place."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fake_node import FakeNode

import semel
from semel.protocol.errors import SemelError, UsageError
from semel.testing import Broker

WAIT_S = 30


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode({"orders": 1}) as node:
        yield node


def test_a_producer_that_nobody_holds_was_called_closed(node: FakeNode) -> None:
    with pytest.raises(UsageError, match=r"closed when the last reference to it went; keep it in a variable"):
        semel.Producer(node.bootstrap).send("orders", b"x")
    send = semel.Producer(node.bootstrap).send
    gc.collect()
    with pytest.raises(UsageError, match="keep it in a variable"):
        send("orders", b"x")
    with semel.Producer(node.bootstrap) as producer:
        assert producer.send("orders", b"x").result(WAIT_S).offset == 0, "nothing was sent before"


def test_waiting_for_a_delivery_in_a_callback_blocked_for_ever(node: FakeNode) -> None:
    met: list[BaseException | None] = []
    done = threading.Event()

    with semel.Producer(node.bootstrap, linger_ms=0) as producer:

        def delivered(metadata: Any, error: SemelError | None) -> None:
            again = producer.send("orders", b"again")
            try:
                again.result()
            except SemelError as refused:
                met.append(refused)
            try:
                again.exception(timeout=60)
            except SemelError as refused:
                met.append(refused)
            again.add_done_callback(lambda *_: done.set())

        producer.send("orders", b"first", on_delivery=delivered)
        assert done.wait(WAIT_S), "the thread continues"
    assert [type(error) for error in met] == [UsageError, UsageError]
    assert "inside a callback" in str(met[0])


def test_clients_that_were_pickled_spoke_of_locks(node: FakeNode) -> None:
    async_faces = (semel.aio.Producer(node.bootstrap), semel.aio.Consumer(node.bootstrap), semel.aio.Admin())
    faces = (semel.Producer(node.bootstrap), semel.Consumer(node.bootstrap), semel.Admin(), *async_faces)
    for face in faces:
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(
                TypeError, match=rf"a {type(face).__name__} can't be pickled or copied: .* each process"
            ):
                attempt(face)
    for face in faces[:3]:
        face.close()


def test_a_batch_that_was_pickled_spoke_of_locks() -> None:
    with Broker() as node, semel.Admin(node.bootstrap) as admin:
        admin.create_topic("orders", partitions=1)
        with semel.Producer(node.bootstrap) as producer:
            producer.send("orders", b"x")
        with semel.Consumer(node.bootstrap) as consumer:
            consumer.assign([semel.TopicPartition("orders", 0)])
            batch = consumer.poll(WAIT_S)
            assert batch is not None
            with pytest.raises(TypeError, match=r"a Batch can't be pickled or copied: .*pass on `batch\.records`"):
                pickle.dumps(batch)
            assert pickle.loads(pickle.dumps(batch.records)) == batch.records


def test_a_consumer_that_reads_one_way_said_that_it_reads_by_assigned() -> None:
    consumer = semel.Consumer(group="enrich")
    consumer.assign([semel.TopicPartition("orders", 0)])
    with pytest.raises(UsageError, match=r"reads the partitions that it was assigned; call unsubscribe.* subscribed"):
        consumer.subscribe(["orders"])
    consumer.unsubscribe()
    consumer.subscribe(pattern="ord.*")
    with pytest.raises(UsageError, match="reads the topics that match its pattern; call unsubscribe"):
        consumer.assign([semel.TopicPartition("orders", 0)])
