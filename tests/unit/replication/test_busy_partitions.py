"""A follower asks for what is busy alone, and for everything in time (R1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.config.node_config import NodeConfig
from semel.broker.peers.peers import PeerUnavailableError
from semel.broker.peers.requests import FetchAsReplica
from semel.broker.replication import fetcher as module
from semel.broker.replication.fetcher import Fetcher
from semel.broker.replication.following import Followed
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition, new_topic_id
from semel.protocol.kafka.fetch import FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse

TOPIC_ID = new_topic_id()
IDLE = 8
"""Partitions besides the first one, which is busy."""


class Leader:
    """Stands for the connections to other nodes: the partitions in `busy` always have records."""

    def __init__(self) -> None:
        self.busy = {0}
        self.names: list[int] = []
        """What the first answer about the first partition alone names besides, without records."""
        self.asked: list[tuple[float, list[int], int]] = []
        """When, for which partitions, and how long it might wait."""

    async def ask(self, leader_id: int, request: FetchAsReplica) -> FetchResponse:
        fetch: FetchRequest = request.request
        now = asyncio.get_running_loop().time()
        numbers = [item.partition for item in fetch.partitions]
        self.asked.append((now, numbers, fetch.max_wait_ms))
        if not self.busy.intersection(numbers):
            await asyncio.sleep(fetch.max_wait_ms / 1000)
        await asyncio.sleep(0.001)
        names: list[int] = []
        if numbers == [0]:
            names, self.names = self.names, []
        return FetchResponse(
            [
                FetchPartitionResponse(
                    "t", TOPIC_ID, number, ErrorCode.NONE, records=b"some" if number in self.busy else None
                )
                for number in numbers
            ]
            + [FetchPartitionResponse("t", TOPIC_ID, number, ErrorCode.NONE) for number in names]
        )

    def hang_up(self, *_: object) -> None: ...


def followed(number: int) -> Any:
    async def all_durable() -> None: ...

    return SimpleNamespace(
        tp=TopicPartition("t", number),
        topic_id=TOPIC_ID,
        leader=None,
        offline_error=None,
        all_durable=all_durable,
        log_end_offset=0,
    )


def run(
    monkeypatch: pytest.MonkeyPatch, leader: Leader, seconds: float, until: Callable[[], bool] = lambda: False
) -> None:
    """Follow for some time, or until it is enough."""
    monkeypatch.setattr(
        module, "next_fetch", lambda one, *_: FetchPartition("t", TOPIC_ID, one.tp.partition, 0, 1 << 20)
    )
    monkeypatch.setattr(module, "is_still_true", lambda *_: True)
    monkeypatch.setattr(module, "take_in", lambda *_: Followed.TAKEN_IN)
    throttle = SimpleNamespace(applies=lambda *_: False, left_bytes=lambda: 1 << 40, free_in_s=lambda: 0.0)

    async def main() -> None:
        fetcher = Fetcher(
            3, 1, cast(Any, leader), NodeConfig, lambda: 1, lambda _: 0, cast(Any, throttle), lambda *_: None
        )
        fetcher.follow({one.tp: one for one in (followed(number) for number in range(IDLE + 1))})
        task = asyncio.ensure_future(fetcher.run())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not until():  # noqa: ASYNC110 (nothing tells)
                    await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_what_is_busy_is_asked_for_alone_until_all_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALL_EVERY_S", 0.05)
    leader = Leader()
    run(monkeypatch, leader, 0.5)
    assert leader.asked[0][1] == list(range(IDLE + 1)), "nobody knows yet what is busy"
    alone = [numbers for _, numbers, _ in leader.asked if numbers == [0]]
    whole = [numbers for _, numbers, _ in leader.asked if len(numbers) == IDLE + 1]
    assert len(alone) + len(whole) == len(leader.asked)
    assert len(alone) > len(whole) > 2
    for _, numbers, wait_ms in leader.asked:
        if numbers == [0]:
            assert wait_ms <= 1000 * module.ALL_EVERY_S + 1, "whatever it waits for, the others have their turn"


def test_what_an_answer_names_is_asked_for_next_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALL_EVERY_S", 3600.0)
    leader = Leader()
    leader.names = [5, IDLE + 7]  # of which one is not followed at all
    run(monkeypatch, leader, 0.2)
    asked = [numbers for _, numbers, _ in leader.asked]
    assert asked[1:4] == [[0], [0, 5], [0]]


def test_after_a_failure_all_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader may have started again, and knows of no partition that it has more of it than the follower."""
    monkeypatch.setattr(module, "ALL_EVERY_S", 3600.0)
    leader = Leader()
    ask = leader.ask

    async def asked(leader_id: int, request: FetchAsReplica) -> FetchResponse:
        answer = await ask(leader_id, request)
        if len(leader.asked) == 3:
            raise PeerUnavailableError("gone")
        return answer

    monkeypatch.setattr(leader, "ask", asked)
    run(monkeypatch, leader, 2.0, until=lambda: len(leader.asked) > 4)
    assert [len(numbers) for _, numbers, _ in leader.asked[:5]] == [IDLE + 1, 1, 1, IDLE + 1, 1]


def test_where_nothing_is_busy_one_request_waits_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader()
    leader.busy.clear()
    run(monkeypatch, leader, 0.1)
    assert [(numbers, wait_ms) for _, numbers, wait_ms in leader.asked] == [(list(range(IDLE + 1)), 500)]


def test_what_has_had_no_records_for_long_is_asked_for_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_S", 0.1)
    leader = Leader()
    ask = leader.ask

    async def asked(leader_id: int, request: FetchAsReplica) -> FetchResponse:
        if len(leader.asked) == 30:
            leader.busy.clear()
        return await ask(leader_id, request)

    monkeypatch.setattr(leader, "ask", asked)
    run(monkeypatch, leader, 1.0)
    assert leader.asked[-1][1:] == (list(range(IDLE + 1)), 500)
