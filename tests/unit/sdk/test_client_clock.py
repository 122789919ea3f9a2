"""A client lives by its clock: hours of lingering, deadlines and intervals pass when a test moves it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from fake_node import FakeNode

import semel
from semel.protocol.errors import ErrorCode, SemelError
from semel.runtime.clock import ManualClock
from semel.sdk.producer.api import Producer
from semel.sdk.producer.core import ProducerCore
from semel.sdk.producer.settings import ProducerOptions
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.options import ClientOptions
from semel.testing import Broker

WAIT_S = 30
HOUR_MS = 3_600_000
TP = semel.TopicPartition("orders", 0)


class ClockedProducer(Producer):
    clock = ManualClock()

    def _make_core(self, options: ProducerOptions) -> ProducerCore:
        client = ClientCore("Producer", options.client, self.clock)
        return ProducerCore(options, blocking=True, client=client)

    def move(self, ms: int) -> None:
        """Move the clock. The loop's own timers run by the machine's here, so the sender is woken."""
        self.clock.advance(ms=ms)
        self._core._wake()


class ClockedConsumer(semel.Consumer):
    clock = ManualClock()

    def _make_client(self, options: ClientOptions) -> ClientCore:
        self.has_begun = threading.Event()
        return ClientCore("Consumer", options, self.clock)

    def _deadline(self, timeout_s: float | None) -> float:
        deadline = super()._deadline(timeout_s)
        self.has_begun.set()
        return deadline


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode({"orders": 1}) as node:
        yield node


@pytest.fixture
def producer(node: FakeNode) -> Iterator[ClockedProducer]:
    producer = ClockedProducer(
        node.bootstrap, linger_ms=HOUR_MS, delivery_timeout_ms=3 * HOUR_MS, metadata_max_age_ms=24 * HOUR_MS
    )
    client = producer._core.client
    try:
        yield producer
        producer.close(WAIT_S)
    finally:
        client.close()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.001)


def test_a_batch_lingers_and_records_have_the_time_of_the_clients_clock(
    node: FakeNode, producer: ClockedProducer
) -> None:
    sent_ms = producer.clock.now_ms()
    delivery = producer.send("orders", b"one")
    producer.move(HOUR_MS - 1)
    producer._core.client.run(asyncio.sleep(0))  # so the sender has looked
    assert not node.produced
    producer.move(1)
    assert delivery.result(WAIT_S).timestamp_ms == sent_ms


def test_a_delivery_times_out_by_the_clients_clock(node: FakeNode, producer: ClockedProducer) -> None:
    node.produce_script.extend([ErrorCode.NOT_LEADER_OR_FOLLOWER] * 10_000)
    delivery = producer.send("orders", b"one")
    producer.move(HOUR_MS)
    wait_until(lambda: node.produced)
    asked = len(node.produced)
    producer.move(HOUR_MS)
    while len(node.produced) == asked:  # the pause after a refusal begins when the client hears of it
        producer.move(1)
        time.sleep(0.001)
    assert not delivery.done()
    producer.move(HOUR_MS)
    with pytest.raises(SemelError) as failed:
        delivery.result(WAIT_S)
    assert failed.value.code is ErrorCode.REQUEST_TIMED_OUT
    with pytest.raises(SemelError):
        producer.flush(WAIT_S)


def test_polls_auto_commits_and_the_longest_time_between_polls_go_by_the_clients_clock() -> None:
    with (
        Broker() as broker,
        semel.Admin(broker.bootstrap) as admin,
        ClockedConsumer(
            broker.bootstrap,
            group="readers",
            topics=["orders"],
            auto_commit_interval_ms=2 * HOUR_MS,
            max_poll_interval_ms=5 * HOUR_MS,
            heartbeat_interval_ms=5,
        ) as consumer,
    ):
        admin.create_topic("orders", partitions=1)
        with semel.Producer(broker.bootstrap) as producer:
            producer.send("orders", b"one")
        while consumer.poll(0) is None:
            consumer.clock.advance(ms=1)
        assert not admin.group_offsets("readers")

        polled: list[object] = []
        waiting = threading.Thread(target=lambda: polled.append(consumer.poll(HOUR_MS / 1000)))
        consumer.has_begun.clear()
        waiting.start()
        consumer.has_begun.wait(WAIT_S)
        consumer.clock.advance(ms=HOUR_MS)
        while waiting.is_alive():
            consumer._core.on_ready()
            waiting.join(0.01)
        assert polled == [None]

        consumer.poll(0)
        consumer.clock.advance(ms=2 * HOUR_MS)
        consumer.poll(0)
        wait_until(lambda: TP in admin.group_offsets("readers"))

        assert not consumer._core.is_lost
        consumer.clock.advance(ms=5 * HOUR_MS + 1)
        wait_until(lambda: consumer._core.is_lost)
