"""Answers of connections that are busy at the same time: sent together, and soon."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_node import FakeNode, KafkaClient, batch, run_with_listener

from semel.broker.listeners.kafka.flushes import BUSY_S, TOGETHER_MAX, Flushes
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest


class Place:
    """Connections that share their flushes, and a loop whose turns end when told to."""

    def __init__(self) -> None:
        self.called: list[Callable[[], None]] = []
        self.flushed: list[int] = []
        self.flushes = Flushes(self.called.append)

    def wait(self, number: int, now: float) -> bool:
        return self.flushes.wait(Connection(self, number), number, now)

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
    assert not any(place.wait(7, n * BUSY_S / 10) for n in range(50))
    assert (place.called, place.flushed) == ([], [])


def test_connections_that_are_not_busy_at_the_same_time_are_answered_at_once() -> None:
    place = Place()
    assert not any(place.wait(n % 2, n * BUSY_S * 1.01) for n in range(50))
    assert (place.called, place.flushed) == ([], [])


def test_connections_that_are_busy_at_the_same_time_are_answered_at_the_end_of_the_turn_in_their_order() -> None:
    place = Place()
    assert [place.wait(n, 5.0) for n in (3, 1, 2)] == [False, True, True]
    assert place.flushed == []
    assert len(place.called) == 1, "one call ends the turn for all"
    place.end_turn()
    assert place.flushed == [1, 2]
    assert [place.wait(n, 5.0) for n in (3, 1)] == [True, True], "the next turn is one like this"
    place.end_turn()
    assert place.flushed == [1, 2, 3, 1]


def test_no_more_than_so_many_connections_wait_for_each_other() -> None:
    place = Place()
    count = 3 * TOGETHER_MAX
    place.wait(-2, 1.0)
    most = 0
    for number in range(count):
        assert place.wait(number, 1.0)
        most = max(most, number + 1 - len(place.flushed))
    assert most < TOGETHER_MAX
    place.end_turn()
    assert place.flushed == list(range(count))


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
