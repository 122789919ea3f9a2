"""A reader's fetch session (KIP-227): what each request names, and that nothing is missed when the node forgets it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from consumer_kit import FACES, PATIENCE_S, Kit, nothing, read
from live_node import LiveNode

from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.kafka.fetch import FetchPartition, FetchResponse
from semel.sdk.consumer.fetch_session import FetchSession, SessionRequest
from semel.sdk.consumer.fetcher import Fetcher
from semel.sdk.consumer.subscription import PartitionState

TOPIC_ID = TopicId(UUID(int=7))


def part(number: int, offset: int = 0) -> FetchPartition:
    return FetchPartition("t", TOPIC_ID, number, offset, 1 << 20)


def state(number: int) -> PartitionState:
    return PartitionState(TopicPartition("t", number), 0)


def named(request: SessionRequest) -> tuple[list[int], list[int]]:
    return [item.partition for item in request.partitions], sorted(item.partition for item in request.forgotten)


def test_only_what_changed_is_named() -> None:
    a, b, c = state(0), state(1), state(2)
    session = FetchSession()
    first = {a: part(0), b: part(1)}
    request = session.ask(first)
    assert (request.session_id, request.epoch, *named(request)) == (0, 0, [0, 1], [])
    session.answered(55)
    request = session.ask(first)
    assert (request.session_id, request.epoch, *named(request)) == (55, 1, [], [])
    session.answered(55)
    request = session.ask({a: part(0, 9), c: part(2)})
    assert (request.session_id, request.epoch, *named(request)) == (55, 2, [0, 2], [1])
    session.answered(55)
    assert named(session.ask(session.known)) == ([], [])


def test_after_a_loss_everything_is_named_again_and_the_old_session_is_ended() -> None:
    a, b = state(0), state(1)
    session = FetchSession()
    session.ask({a: part(0), b: part(1)})
    session.answered(55)
    session.ask({b: part(1, 3)})
    session.lost()
    request = session.ask({b: part(1, 3)})
    assert (request.session_id, request.epoch, *named(request)) == (55, 0, [1], [])
    session.answered(56)
    assert session.ask(session.known).epoch == 1


def test_a_node_without_room_for_a_session_is_told_everything_each_time() -> None:
    a = state(0)
    session = FetchSession()
    for _ in range(3):
        request = session.ask({a: part(0)})
        assert (request.session_id, request.epoch, *named(request)) == (0, 0, [0], [])
        session.answered(0)


def test_a_partition_that_was_given_away_and_came_back_is_not_forgotten() -> None:
    session = FetchSession()
    session.ask({state(0): part(0, 5)})
    session.answered(55)
    assert named(session.ask({state(0): part(0, 8)})) == ([0], [])


def test_epochs_wrap_to_one() -> None:
    session = FetchSession()
    session._epoch = 0x7FFFFFFF
    session.answered(5)
    assert session.ask({}).epoch == 1


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with LiveNode(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture(params=sorted(FACES))
def kit(node: LiveNode, request: pytest.FixtureRequest) -> Iterator[Kit]:
    kit = Kit(node, request.param)
    yield kit
    kit.close()


def test_a_reader_whose_session_the_node_forgets_misses_nothing(kit: Kit) -> None:
    tps = kit.create(3)
    reader = kit.consumer()
    reader.assign(tps)
    nothing(reader, 0.1)
    sessions = kit.node.node._fetch.sessions
    forgotten = 0
    for number in range(6):
        if number % 2:
            for session_id in list(sessions._sessions):
                kit.node.run(lambda session_id=session_id: sessions._remove(session_id))
                forgotten += 1
        kit.fill(str(number), partition=number % 3)
        assert read(reader, 1) == [str(number)]
    assert forgotten >= 3


def test_pauses_and_assignments_reach_the_session(kit: Kit) -> None:
    a, b, c = kit.create(3)
    reader = kit.consumer()
    reader.assign([a, b])
    nothing(reader, 0.1)
    reader.pause([a])
    for number in range(3):
        kit.fill(f"{number}", partition=number)
    assert read(reader, 1) == ["1"]
    reader.assign([a, c])
    assert read(reader, 1) == ["2"]
    nothing(reader)
    reader.resume([a])
    assert read(reader, 1) == ["0"]


def test_E1_an_answer_from_before_a_seek_is_dropped(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken in, it would be read as if it began at the place gone back to, and what lies between be skipped."""
    (tp,) = kit.create()
    kit.fill(*"abcde")
    kit.fill(*"fgh")  # a batch of its own
    arrived, go_on = threading.Event(), threading.Event()
    ask = Fetcher._ask

    async def held(*arguments: Any) -> FetchResponse:
        response = await ask(*arguments)
        if any(answer.records for answer in response.partitions):
            arrived.set()
            await asyncio.to_thread(go_on.wait, PATIENCE_S)
        return response

    monkeypatch.setattr(Fetcher, "_ask", held)
    reader = kit.consumer()
    reader.assign([tp])
    reader.seek(tp, 5)
    assert reader.poll(0) is None
    assert arrived.wait(PATIENCE_S)
    reader.seek(tp, 0)
    go_on.set()
    assert read(reader, 8) == list("abcdefgh")
