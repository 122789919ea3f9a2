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
        self.starts: dict[int, int] = {}
        """Where logs start, by the first answer."""
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
        starts, self.starts = self.starts, {}
        return FetchResponse(
            [
                FetchPartitionResponse(
                    "t",
                    TOPIC_ID,
                    number,
                    ErrorCode.NONE,
                    log_start_offset=starts.get(number, 0),
                    records=b"some" if number in self.busy else None,
                )
                for number in numbers
            ]
            + [FetchPartitionResponse("t", TOPIC_ID, number, ErrorCode.NONE) for number in names]
        )

    def hang_up(self, *_: object) -> None: ...


def followed(number: int, durable: asyncio.Event | None = None) -> Any:
    """Return a follower's partition, whose log is on the disk once `durable` is set."""

    async def all_durable() -> None:
        if durable is not None:
            await durable.wait()

    return SimpleNamespace(
        tp=TopicPartition("t", number),
        topic_id=TOPIC_ID,
        leader=None,
        offline_error=None,
        all_durable=all_durable,
        log_end_offset=0,
        log_start_offset=0,
    )


def all_followed(durable: asyncio.Event | None = None) -> dict[TopicPartition, Any]:
    return {one.tp: one for one in (followed(number, durable) for number in range(IDLE + 1))}


def following(leader: Leader, config: NodeConfig | None = None) -> Fetcher:
    throttle = cast(Any, SimpleNamespace(applies=lambda *_: False, left_bytes=lambda: 1 << 40, free_in_s=lambda: 0.0))
    used = config or NodeConfig()
    return Fetcher(3, 1, cast(Any, leader), lambda: used, lambda: 1, lambda _: 0, throttle, lambda *_: None)


@pytest.fixture(autouse=True)
def outcomes(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Followed]]:
    """What becomes of answers, by partition; what is not told is taken in."""
    told: dict[int, list[Followed]] = {}

    def take_in(partition: Any, _: object, answer: FetchPartitionResponse) -> Followed:
        partition.log_start_offset = max(partition.log_start_offset, answer.log_start_offset)
        left = told.get(partition.tp.partition)
        return left.pop(0) if left else Followed.TAKEN_IN

    def next_fetch(one: Any, *_: object) -> FetchPartition:
        item = FetchPartition("t", TOPIC_ID, one.tp.partition, 0, 1 << 20)
        item.log_start_offset = 0
        return item

    monkeypatch.setattr(module, "next_fetch", next_fetch)
    monkeypatch.setattr(module, "is_still_true", lambda *_: True)
    monkeypatch.setattr(module, "take_in", take_in)
    return told


async def run_until(fetcher: Fetcher, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
    """Follow for some time, or until it is enough."""
    task = asyncio.ensure_future(fetcher.run())
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not until():  # noqa: ASYNC110 (nothing tells)
                await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def run(
    leader: Leader, seconds: float, until: Callable[[], bool] = lambda: False, config: NodeConfig | None = None
) -> None:
    async def main() -> None:
        fetcher = following(leader, config)
        fetcher.follow(all_followed())
        await run_until(fetcher, seconds, until)

    asyncio.run(main())


def test_what_is_busy_is_asked_for_alone_until_all_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALL_EVERY_S", 0.05)
    leader = Leader()
    run(leader, 0.5)
    assert leader.asked[0][1] == list(range(IDLE + 1)), "nobody knows yet what is busy"
    alone = [numbers for _, numbers, _ in leader.asked if numbers == [0]]
    whole = [numbers for _, numbers, _ in leader.asked if len(numbers) == IDLE + 1]
    assert len(alone) + len(whole) == len(leader.asked)
    assert len(alone) > len(whole) > 2
    for _, numbers, wait_ms in leader.asked:
        if numbers == [0]:
            assert wait_ms <= 1000 * module.ALL_EVERY_S + 1, "whatever it waits for, the others have their turn"


@pytest.mark.parametrize(("at_once", "wait_ms_max"), [(IDLE + 1, 300), (3, 100)])
def test_R1_all_have_had_their_turn_before_the_leader_takes_one_for_lagging(
    monkeypatch: pytest.MonkeyPatch, at_once: int, wait_ms_max: int
) -> None:
    """One that was not asked for since then, and gets a record, has not had all for too long."""
    monkeypatch.setattr(module, "PARTITIONS_PER_FETCH_MAX", at_once)
    leader = Leader()
    run(leader, 20.0, lambda: [0] in numbers_asked(leader), NodeConfig(replica_lag_time_max_ms=1_200))
    waits_ms = [wait_ms for _, numbers, wait_ms in leader.asked if numbers == [0]]
    assert waits_ms
    assert max(waits_ms) <= wait_ms_max + 1


def test_R1_idle_partitions_that_take_turns_have_theirs_in_time_where_nothing_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PARTITIONS_PER_FETCH_MAX", 3)
    leader = Leader()
    leader.busy.clear()
    run(leader, 20.0, lambda: len(leader.asked) > 4, NodeConfig(replica_lag_time_max_ms=1_200))
    waits_ms = [wait_ms for _, _, wait_ms in leader.asked]
    assert max(waits_ms) <= 100 + 1
    assert waits_ms[:2] == [0, 0]
    assert min(waits_ms[2:]) > 0, "or it would ask all the time"


def test_what_an_answer_names_is_asked_for_next_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALL_EVERY_S", 3600.0)
    leader = Leader()
    leader.names = [5, IDLE + 7]  # of which one is not followed at all
    run(leader, 0.2)
    asked = [numbers for _, numbers, _ in leader.asked]
    assert asked[1:4] == [[0], [5, 0], [0]]


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
    run(leader, 20.0, until=lambda: len(leader.asked) > 4)
    assert [len(numbers) for _, numbers, _ in leader.asked[:5]] == [IDLE + 1, 1, 1, IDLE + 1, 1]


def test_where_nothing_is_busy_one_request_waits_for_all() -> None:
    leader = Leader()
    leader.busy.clear()
    run(leader, 0.1)
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
    run(leader, 1.0)
    assert (sorted(leader.asked[-1][1]), leader.asked[-1][2]) == (list(range(IDLE + 1)), 500)


# --- What must be asked for, and is not busy --------------------------------------------------------------------------


def numbers_asked(leader: Leader) -> list[list[int]]:
    return [numbers for _, numbers, _ in leader.asked]


def test_all_are_asked_for_at_once_also_where_that_takes_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTITIONS_PER_FETCH_MAX", 3)
    monkeypatch.setattr(module, "ALL_EVERY_S", 3600.0)
    leader = Leader()
    run(leader, 20.0, until=lambda: len(leader.asked) > 4)
    first = leader.asked[:3]
    assert sorted(number for _, numbers, _ in first for number in numbers) == list(range(IDLE + 1))
    assert [wait_ms for _, _, wait_ms in first[:2]] == [0, 0], "the others are not to wait for their turn"
    assert numbers_asked(leader)[3:5] == [[0], [0]]


def test_what_can_not_be_asked_for_keeps_the_others_from_waiting_once_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTITIONS_PER_FETCH_MAX", 3)

    async def main() -> None:
        leader = Leader()
        leader.busy.clear()
        fetcher = following(leader)
        parts = all_followed()
        for number in range(1, IDLE + 1):
            parts[TopicPartition("t", number)].offline_error = RuntimeError("the disk")
        fetcher.follow(parts)
        await run_until(fetcher, 20.0, lambda: len(leader.asked) > 1)
        assert [(numbers, wait_ms) for _, numbers, wait_ms in leader.asked][1] == ([0], 500)

    asyncio.run(main())


def test_what_is_named_comes_first_and_none_of_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALL_EVERY_S", 3600.0)
    leader = Leader()
    leader.names = [5, 6, 7, 8]
    ask = leader.ask

    async def asked(leader_id: int, request: FetchAsReplica) -> FetchResponse:
        monkeypatch.setattr(module, "PARTITIONS_PER_FETCH_MAX", 3)
        return await ask(leader_id, request)

    monkeypatch.setattr(leader, "ask", asked)
    run(leader, 20.0, until=lambda: len(leader.asked) > 4)
    assert numbers_asked(leader)[1:5] == [[0], [5, 6, 7], [8, 0], [0]]


@pytest.mark.parametrize("outcome", [Followed.CUT, Followed.LATE])
def test_what_was_cut_or_answered_too_late_is_asked_for_next(
    monkeypatch: pytest.MonkeyPatch, outcomes: dict[int, list[Followed]], outcome: Followed
) -> None:
    monkeypatch.setattr(module, "ALL_EVERY_S", 3600.0)
    outcomes[5] = [outcome]
    leader = Leader()
    run(leader, 20.0, until=lambda: len(leader.asked) > 3)
    assert numbers_asked(leader)[1:4] == [[5, 0], [0], [0]]


def test_what_is_no_longer_true_after_the_wait_for_the_disk_is_asked_for_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALL_EVERY_S", 3600.0)
    untrue = [5]

    def is_still_true(partition: Any, *_: object) -> bool:
        return not (partition.tp.partition in untrue and untrue.pop())

    monkeypatch.setattr(module, "is_still_true", is_still_true)
    leader = Leader()
    run(leader, 20.0, until=lambda: len(leader.asked) > 3)
    assert 5 not in leader.asked[0][1]
    assert numbers_asked(leader)[1:4] == [[5, 0], [0], [0]]


def test_what_comes_during_the_wait_for_the_disk_is_asked_for_with_the_others() -> None:
    async def main() -> None:
        leader, durable = Leader(), asyncio.Event()
        fetcher = following(leader)
        parts = all_followed(durable)
        more = parts.popitem()
        fetcher.follow(parts)
        following_on = asyncio.ensure_future(run_until(fetcher, 20.0, lambda: bool(leader.asked)))
        await asyncio.sleep(0.01)
        fetcher.follow(dict([*parts.items(), more]))
        durable.set()
        await following_on
        assert sorted(leader.asked[0][1]) == list(range(IDLE + 1))

    asyncio.run(main())


def test_a_request_that_waits_ends_where_there_is_more_to_ask_for() -> None:
    async def main() -> None:
        leader = Leader()
        leader.busy.clear()
        hung_up: list[object] = []
        leader.hang_up = lambda *what: hung_up.append(what)  # type: ignore[method-assign]
        fetcher = following(leader)
        parts = all_followed()
        more = parts.popitem()
        fetcher.follow(parts)
        following_on = asyncio.ensure_future(run_until(fetcher, 20.0, lambda: len(leader.asked) > 1))
        while not leader.asked:  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.001)
        fetcher.follow(dict([*parts.items(), more]))
        assert len(hung_up) == 1
        await following_on
        assert sorted(leader.asked[1][1]) == list(range(IDLE + 1))

    asyncio.run(main())


def test_one_that_is_offline_after_it_was_refused_does_not_keep_the_others_from_waiting(
    outcomes: dict[int, list[Followed]],
) -> None:
    async def main() -> None:
        leader = Leader()
        leader.busy.clear()
        fetcher = following(leader)
        parts = all_followed()
        outcomes[5] = [Followed.REFUSED]
        fetcher.follow(parts)
        refused = parts[TopicPartition("t", 5)]
        answer = FetchPartitionResponse("t", TOPIC_ID, 5, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        fetcher._take_in([(refused, module.next_fetch(refused, 1, 0))], FetchResponse([answer]))
        assert refused.tp in fetcher._paused
        refused.offline_error = RuntimeError("the disk")
        fetcher._paused[refused.tp] = asyncio.get_running_loop().time() - 1
        assert fetcher._next()
        assert fetcher._wait_ms() == 500

    asyncio.run(main())


def test_D1_a_start_that_the_disk_notes_later_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion at the leader waits until its followers say that their disks have it."""

    async def main() -> None:
        monkeypatch.setattr(module, "ALL_EVERY_S", 3600.0)
        leader = Leader()
        fetcher = following(leader)
        parts = all_followed()
        leader.starts = {5: 7}
        fetcher.follow(parts)
        await run_until(fetcher, 20.0, lambda: len(leader.asked) > 3)
        assert numbers_asked(leader)[1:4] == [[5, 0]] * 3
        assert all(wait_ms <= module.UNNOTED_WAIT_MS for _, _, wait_ms in leader.asked[1:])
        fetcher._noting_until = 0.0  # it takes too long: the disk may be full
        assert fetcher._next()
        assert not fetcher._is_unnoted

    asyncio.run(main())
