"""Fetches of followers as a listener serves them: answered, waiting, cancelled, large, and when the node stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from replicated_logs import TP, Machine, ReplicatedLogs

from semel.broker.handlers.fetch import replica as replica_module
from semel.broker.handlers.fetch.replica import ReplicaFetch, ReplicaFetchHandler
from semel.broker.replication.following import next_fetch, take_in
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.fetch import FETCH_MAX_VERSION, FetchPartition, FetchRequest, FetchResponse

LONG_MS = 3_600_000


class Scene:
    """Machine 1 leads, 2 fetches. `answers` are those of fetches that did not have theirs at once."""

    def __init__(self) -> None:
        self.world = ReplicatedLogs(1)
        self.leader, self.follower, _ = self.world.machines.values()
        self.handler: ReplicaFetchHandler = self.leader.fetches
        self.answers: list[FetchResponse] = []
        for _ in range(2):
            self.catch_up(self.follower)

    def catch_up(self, follower: Machine) -> None:
        request = self.request(0)
        (answer,), _ = self.handler.read(request)
        take_in(follower.partition, request.partitions[0], answer)

    def request(self, wait_ms: int = LONG_MS, *more: FetchPartition) -> FetchRequest:
        self.follower.sync()
        items = [*more, next_fetch(self.follower.partition, 1 << 20, 0)]
        return FetchRequest(items, wait_ms, replica_id=2, replica_epoch=self.follower.broker_epoch)

    def begin(self, request: FetchRequest) -> FetchResponse | ReplicaFetch:
        return self.handler.begin(request, FETCH_MAX_VERSION, self.answers.append)

    def append(self) -> None:
        self.leader.partition.append(bytearray(encode_batch([(1, None, b"v", ())])), acks=1)

    @property
    def is_listened_to(self) -> bool:
        return self.leader.partition._replica_listeners is not None


def run(test: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await test(Scene())

    asyncio.run(main())


async def spin() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_news_are_answered_and_nothing_waits() -> None:
    async def test(scene: Scene) -> None:
        scene.append()
        answer = scene.begin(scene.request())
        assert isinstance(answer, FetchResponse)
        assert answer.partitions[0].records is not None
        assert answer.session_id > 0
        assert scene.handler.waiting == 0
        assert not scene.is_listened_to

    run(test)


def test_a_fetch_that_waits_has_one_answer_with_all_that_came_in_one_turn() -> None:
    async def test(scene: Scene) -> None:
        begun = scene.begin(scene.request())
        assert isinstance(begun, ReplicaFetch)
        await spin()
        assert scene.answers == []
        scene.append()
        scene.append()
        await spin()
        (answer,) = scene.answers
        item = scene.request().partitions[0]
        take_in(scene.follower.partition, item, answer.partitions[0])
        assert scene.follower.partition.log_end_offset == 2
        assert scene.handler.waiting == 0
        assert not scene.is_listened_to

    run(test)


def test_one_that_is_cancelled_listens_to_nothing_and_gives_no_answer() -> None:
    async def test(scene: Scene) -> None:
        begun = scene.begin(scene.request())
        assert isinstance(begun, ReplicaFetch)
        scene.append()  # it is about to be answered
        begun.cancel()
        begun.cancel()
        await spin()
        assert scene.answers == []
        assert scene.handler.waiting == 0
        assert not scene.is_listened_to

    run(test)


def test_when_the_node_stops_all_are_answered_and_none_waits() -> None:
    async def test(scene: Scene) -> None:
        scene.begin(scene.request())
        scene.handler.finish()
        await spin()
        assert len(scene.answers) == 1
        assert isinstance(scene.begin(scene.request()), FetchResponse)
        assert not scene.is_listened_to

    run(test)


def test_the_time_to_wait_has_a_bound_and_ends_with_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        monkeypatch.setattr(replica_module, "WAIT_MS_MAX", 1)
        answer = await scene.handler.fetch(scene.request())
        assert answer.partitions[0].records is None
        assert not scene.is_listened_to

    run(test)


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch of more than one partition is read in parts of one."""
    monkeypatch.setattr(replica_module, "PART", 1)


def same(scene: Scene) -> FetchPartition:
    """Ask for the same partition once more, so that a fetch is large."""
    return next_fetch(scene.follower.partition, 1 << 20, 0)


@pytest.mark.usefixtures("in_parts")
def test_a_large_fetch_waits_for_news_too() -> None:
    async def test(scene: Scene) -> None:
        scene.begin(scene.request(LONG_MS, same(scene), same(scene)))
        await spin()
        assert scene.answers == []
        assert scene.is_listened_to
        scene.append()
        await spin()
        (answer,) = scene.answers
        assert [each.records is not None for each in answer.partitions] == [True] * 3
        assert scene.handler.waiting == 0
        assert not scene.is_listened_to

    run(test)


@pytest.mark.usefixtures("in_parts")
def test_what_comes_while_a_large_fetch_is_read_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        read = replica_module.Reading.read
        times: list[int] = []

        def read_and_append(reading: replica_module.Reading, items: list[FetchPartition]) -> None:
            read(reading, items)
            times.append(1)
            if len(times) == 2:
                scene.append()  # behind the last part of it

        monkeypatch.setattr(replica_module.Reading, "read", read_and_append)
        scene.begin(scene.request(LONG_MS, same(scene)))
        await spin()
        assert len(scene.answers) == 1

    run(test)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("turns", [0, 1, 20])
def test_a_large_fetch_ends_when_it_is_cancelled(turns: int) -> None:
    async def test(scene: Scene) -> None:
        begun = scene.begin(scene.request(LONG_MS, same(scene)))
        assert isinstance(begun, ReplicaFetch)
        for _ in range(turns):
            await asyncio.sleep(0)
        begun.cancel()
        await spin()
        scene.append()
        await spin()
        assert scene.answers == []
        assert scene.handler.waiting == 0
        assert not scene.is_listened_to

    run(test)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("turns", [0, 20])
def test_a_large_fetch_is_answered_when_the_node_stops(turns: int) -> None:
    async def test(scene: Scene) -> None:
        scene.begin(scene.request(LONG_MS, same(scene)))
        for _ in range(turns):
            await asyncio.sleep(0)
        scene.handler.finish()
        await spin()
        assert len(scene.answers) == 1
        assert not scene.is_listened_to

    run(test)


def test_a_failure_is_the_answer_about_its_partition_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        scene.append()
        partition = scene.leader.partition
        found = scene.handler._node.partition
        broken = TopicPartition(TP.topic, 7)
        monkeypatch.setattr(
            scene.handler._node, "partition", lambda tp: object() if tp == broken else found(tp), raising=False
        )
        item = FetchPartition("t", scene.world.topic_id, 7, 0, 100)
        answer = scene.begin(scene.request(LONG_MS, item))
        assert isinstance(answer, FetchResponse)
        bad, good = answer.partitions
        assert bad.error is ErrorCode.UNKNOWN_SERVER_ERROR
        assert good.records is not None
        assert partition.offline_error is None

    run(test)
