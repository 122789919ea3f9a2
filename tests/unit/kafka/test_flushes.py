"""Answers of connections that are busy at the same time: sent together, and soon."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_node import FakeNode, KafkaClient, batch, run_with_listener

from semel.broker.listeners.kafka.flushes import BUSY_S, TOGETHER_MAX, TOGETHER_S, Flushes
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest


class Place:
    """Connections that share their flushes, and a loop whose turns end when told to."""

    def __init__(self) -> None:
        self.called: list[Callable[[], None]] = []
        self.flushed: list[int] = []
        self.flushes = Flushes(self.called.append)

    def flush(self, number: int, now: float) -> None:
        self.flushes.flush(Connection(self, number), number, now)

    def end_turn(self) -> None:
        called, self.called[:] = self.called[:], []
        for each in called:
            each()


class Connection:
    def __init__(self, place: Place, number: int) -> None:
        self._place = place
        self._number = number

    def flush(self) -> None:
        self._place.flushed.append(self._number)


def test_a_connection_that_is_busy_alone_is_answered_at_once() -> None:
    place = Place()
    for n in range(50):
        place.flush(7, n * BUSY_S / 10)
        assert len(place.flushed) == n + 1
    assert place.called == []


def test_connections_that_are_not_busy_at_the_same_time_are_answered_at_once() -> None:
    place = Place()
    for n in range(50):
        place.flush(n % 2, n * BUSY_S * 1.01)
        assert len(place.flushed) == n + 1
    assert place.called == []


def test_connections_that_are_busy_at_the_same_time_are_answered_at_the_end_of_the_turn_in_their_order() -> None:
    place = Place()
    for number in (3, 1, 2):
        place.flush(number, 5.0)
    assert place.flushed == [3], "nobody was busy before the first"
    assert len(place.called) == 1, "one call ends the turn for all"
    place.end_turn()
    assert place.flushed == [3, 1, 2]
    for number in (3, 1):
        place.flush(number, 5.0)
    assert place.flushed == [3, 1, 2], "the next turn is one like this"
    place.end_turn()
    assert place.flushed == [3, 1, 2, 3, 1]


def test_no_more_than_so_many_connections_wait_for_each_other() -> None:
    place = Place()
    count = 3 * TOGETHER_MAX
    for number in range(count + 1):
        place.flush(number, 1.0)
        assert number + 1 - len(place.flushed) < TOGETHER_MAX
    place.end_turn()
    assert place.flushed == list(range(count + 1))


def test_S3_an_answer_does_not_wait_for_others_whose_requests_take_long() -> None:
    """Each of fifteen others may have a turn of milliseconds before the end of the turn of the loop."""
    place = Place()
    step = BUSY_S * 0.9
    for number in range(TOGETHER_MAX):
        now = number * step
        place.flush(number, now)
        waiting = [n for n in range(number + 1) if n not in place.flushed]
        assert all(now - n * step < TOGETHER_S for n in waiting)


def test_S3_who_waits_is_answered_as_soon_as_a_request_took_long() -> None:
    place = Place()
    for number in range(3):
        place.flush(number, 1.0)
    assert place.flushed == [0]
    place.flush(3, 1.0 + 2 * BUSY_S)
    assert place.flushed == [0, 1, 2, 3]


@pytest.mark.parametrize("leaves", [False, True])
def test_all_are_answered_who_ask_at_the_same_time_and_who_leaves_meanwhile_disturbs_nobody(
    tmp_path: Path, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.broker.listeners.kafka.flushes.BUSY_S", 1.0)

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        clients = [await KafkaClient.connect(listener.port) for _ in range(3 * TOGETHER_MAX)]
        rounds = 5
        for _ in range(rounds):
            for client in clients:
                client.send(ProduceRequest([ProducePartition("t", 0, batch(b"x"))], None, 1, 1000), 9)
            if leaves:
                for client in random.Random(4).sample(clients, 5):
                    clients.remove(client)
                    client.writer.close()
            answers = await asyncio.gather(*(client.receive() for client in clients))
            assert len(answers) == len(clients)
        last = await clients[0].produce(ProduceRequest([ProducePartition("t", 0, batch(b"y"))], None, 1, 1000))
        assert last.partitions[0].error is ErrorCode.NONE
        if not leaves:
            assert partition.log_end_offset == rounds * len(clients) + 1

    run_with_listener(test, str(tmp_path))
