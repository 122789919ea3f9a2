"""Both ends of a fetch keep to the quota for throttled replicas, and who is in sync is never throttled (KIP-73, R1)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from replicated_logs import TP, Machine, ReplicatedLogs, waiting_fetches

from semel.broker.config.node_config import NodeConfig
from semel.broker.handlers.fetch import replica as replica_module
from semel.broker.handlers.fetch.replica import ReplicaFetch
from semel.broker.log.throttled_replicas import ALL_REPLICAS, NO_REPLICAS, ThrottledReplicas
from semel.broker.peers.requests import FetchAsReplica
from semel.broker.replication.fetcher import Fetcher
from semel.broker.replication.following import next_fetch, take_in
from semel.broker.replication.parts import take_part
from semel.broker.replication.throttle import FollowerThrottle
from semel.protocol.batch_builder import encode_batch
from semel.protocol.kafka.fetch import FETCH_MAX_VERSION, FetchRequest, FetchResponse

LONG_MS = 3_600_000
RATE = 100


class Scene:
    """Machine 1 leads, 2 is in sync and has all, 3 is neither: it lacks what is committed. Rates are small."""

    def __init__(self, *, leader: ThrottledReplicas = NO_REPLICAS, follower: ThrottledReplicas = NO_REPLICAS) -> None:
        self.world = ReplicatedLogs(1)
        self.machines = list(self.world.machines.values())
        self.leader, self.second, self.third = self.machines
        self.answers: list[FetchResponse] = []
        state = self.world.image.partition(TP)
        assert state is not None
        for machine in self.machines:
            machine.rate = RATE
            take_part(machine.partition, replace(state, isr=(1, 2), partition_epoch=1), machine.node_id, 0.0)
            config = replace(
                machine.partition.config, min_insync_replicas=1,
                leader_replication_throttled_replicas=leader, follower_replication_throttled_replicas=follower,
            )  # fmt: skip
            machine.partition.update_config(config)
        self.commit(3)

    def append(self, size_bytes: int = RATE) -> None:
        self.leader.partition.append(bytearray(encode_batch([(1, None, b"v" * size_bytes, ())])), acks=1)
        self.leader.sync()

    def commit(self, count: int) -> None:
        """Append batches, and have machine 2 fetch them."""
        for _ in range(count):
            self.append()
        while self.second.partition.log_end_offset < self.leader.partition.log_end_offset:
            assert self.fetch(self.second) > 0, "it is in sync"
        self.fetch(self.second)
        assert self.leader.partition.high_watermark == self.leader.partition.log_end_offset

    def request(self, machine: Machine, wait_ms: int = 0, max_bytes: int = 1) -> FetchRequest:
        """Ask for the next batch."""
        machine.sync()
        item = next_fetch(machine.partition, max_bytes, 0)
        return FetchRequest([item], wait_ms, replica_id=machine.node_id, replica_epoch=machine.broker_epoch)

    def fetch(self, machine: Machine) -> int:
        """Fetch once, and return how many bytes came."""
        request = self.request(machine)
        (answer,), _ = self.leader.fetches.read(request)
        take_in(machine.partition, request.partitions[0], answer)
        return 0 if answer.records is None else len(answer.records)

    def begin(self, request: FetchRequest) -> FetchResponse | ReplicaFetch:
        return self.leader.fetches.begin(request, FETCH_MAX_VERSION, self.answers.append)


# --- The leader -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("throttled", "expected"),
    [
        (ALL_REPLICAS, [True, False]),
        (ThrottledReplicas(pairs=frozenset({(0, 1)})), [True, False]),
        (ThrottledReplicas(pairs=frozenset({(0, 3), (1, 1)})), [True, True]),
        (NO_REPLICAS, [True, True]),
    ],
)
def test_a_leader_withholds_records_of_its_throttled_replicas_while_the_quota_is_used_up(
    throttled: ThrottledReplicas, expected: list[bool]
) -> None:
    scene = Scene(leader=throttled)
    assert [scene.fetch(scene.third) > 0 for _ in range(2)] == expected
    follower = scene.leader.partition.leader.follower(3)  # type: ignore[union-attr]
    assert follower is not None
    assert follower.end_offset == 1, "what a fetch says of the follower counts all the same"
    scene.leader.clock.advance(ms=2_000)
    assert scene.fetch(scene.third) > 0
    assert scene.leader.quotas.leader.total_bytes == (0 if all(expected) else scene.third.partition.log.size_bytes)


def test_R1_a_leader_withholds_nothing_from_a_replica_in_sync_and_counts_nothing_of_it() -> None:
    scene = Scene(leader=ALL_REPLICAS)
    assert scene.leader.quotas.leader.total_bytes == 0
    scene.fetch(scene.third)
    assert scene.leader.quotas.leader.is_exceeded(0.0)
    scene.commit(3)


def test_R1_a_leader_withholds_nothing_from_a_replica_that_is_about_to_be_in_sync() -> None:
    """It has all that is committed: its leader may count it already, before anybody else knows."""
    scene = Scene(leader=ALL_REPLICAS)
    while scene.third.partition.log_end_offset < scene.leader.partition.high_watermark:
        assert scene.fetch(scene.third) > 0
        scene.leader.clock.advance(ms=2_000)
    counted = scene.leader.quotas.leader.total_bytes
    for _ in range(3):
        scene.append()
        assert scene.fetch(scene.third) > 0
    assert scene.leader.quotas.leader.total_bytes == counted


def test_R1_a_leader_withholds_nothing_from_one_that_it_has_proposed_as_in_sync() -> None:
    scene = Scene(leader=ALL_REPLICAS)
    state = scene.leader.partition.leader
    assert state is not None
    assert state.may_be_throttled(3, 0, 1)
    state._proposed = (1, 2, 3)
    assert not state.may_be_throttled(3, 0, 1)


def run(test: Callable[[Scene], Awaitable[None]], scene: Callable[[], Scene]) -> None:
    made = scene()  # outside the loop, where nothing syncs until the test does

    async def main() -> None:
        async with asyncio.timeout(60):
            await test(made)

    asyncio.run(main())


async def spin() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_large", [False, True])
def test_a_fetch_of_what_is_withheld_waits_for_the_quota_and_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    async def test(scene: Scene) -> None:
        request = scene.request(scene.third, LONG_MS)
        if is_large:
            monkeypatch.setattr(replica_module, "PART", 1)
            request.partitions *= 2
        begun = scene.begin(request)
        assert isinstance(begun, ReplicaFetch), "neither is the high watermark news to it"
        await spin()
        assert begun._timer is not None
        assert begun._timer.when() - asyncio.get_running_loop().time() < 2.0
        scene.append()
        await spin()
        assert scene.answers == [], "or each append would have it ask again in vain"
        scene.leader.clock.advance(ms=2_000)
        begun.answer_now()  # as the timer does
        await spin()
        (answer,) = scene.answers
        assert answer.partitions[0].records is not None
        assert waiting_fetches(scene.leader.partition) == 0

    def made() -> Scene:
        scene = Scene(leader=ALL_REPLICAS)
        scene.fetch(scene.third)
        return scene

    run(test, made)


def test_a_fetch_that_is_woken_by_something_else_brings_what_was_withheld_if_the_quota_is_free_by_then() -> None:
    async def test(scene: Scene) -> None:
        begun = scene.begin(scene.request(scene.third, LONG_MS))
        assert isinstance(begun, ReplicaFetch)
        scene.leader.clock.advance(ms=2_000)
        begun.answer_soon()  # as where there is more in a partition that was left out
        await spin()
        (answer,) = scene.answers
        assert answer.partitions[0].records is not None

    def made() -> Scene:
        scene = Scene(leader=ALL_REPLICAS)
        scene.fetch(scene.third)
        return scene

    run(test, made)


def test_a_fetch_that_waits_for_the_quota_is_answered_by_the_timer_alone() -> None:
    async def test(scene: Scene) -> None:
        scene.begin(scene.request(scene.third, LONG_MS))
        while not scene.answers:  # noqa: ASYNC110 (the timer is what is tested)
            await asyncio.sleep(0.01)

    def made() -> Scene:
        scene = Scene(leader=ALL_REPLICAS)
        scene.leader.rate = 50_000_000
        scene.leader.quotas.leader.record(50_000_001, 0.0)
        return scene

    run(test, made)


# --- The follower -----------------------------------------------------------------------------------------------------


class Asked:
    """Stands for the connections to other nodes: the leader is asked at once, and notes what for."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.offsets: list[int] = []
        self.waits_ms: list[int] = []

    async def ask(self, leader_id: int, request: FetchAsReplica) -> FetchResponse:
        self.offsets += [item.fetch_offset for item in request.request.partitions]
        self.waits_ms.append(request.request.max_wait_ms)
        responses, _ = self._scene.leader.fetches.read(request.request)
        await asyncio.sleep(0)  # an answer never comes at once
        return FetchResponse(responses)

    def hang_up(self, *_: object) -> None: ...


def fetcher(scene: Scene, asked: Asked, *, is_in_sync: bool = False) -> Fetcher:
    third = scene.third
    throttle = FollowerThrottle(3, third.quotas.follower, third.clock, lambda _: is_in_sync)
    config = NodeConfig(replica_fetch_max_bytes=1)
    made = Fetcher(
        3, 1, cast(Any, asked), lambda: config, lambda: third.broker_epoch, lambda _: 0, throttle, lambda *_: None
    )
    made.follow({TP: third.partition})
    return made


async def step(scene: Scene, one: Fetcher) -> bool:
    """Ask once, and return whether there was anything to ask for."""
    scene.third.sync()
    asked = one._next()
    if asked:
        response = await one._ask(asked)
        assert response is not None
        one._take_in(asked, response)
    return bool(asked)


def test_a_follower_leaves_its_throttled_replicas_out_until_the_quota_is_free() -> None:
    async def test(scene: Scene) -> None:
        asked = Asked(scene)
        one = fetcher(scene, asked)
        assert [await step(scene, one) for _ in range(3)] == [True, False, False]
        assert scene.third.quotas.follower.total_bytes == scene.third.partition.log.size_bytes
        assert 0 < (one._idle_s() or 0) <= 1.0
        scene.third.clock.advance(ms=2_000)
        assert await step(scene, one)
        assert asked.offsets == [0, 1]

    run(test, lambda: Scene(follower=ThrottledReplicas(pairs=frozenset({(0, 3)}))))


@pytest.mark.parametrize("why", ["in sync", "not throttled", "has what is committed"])
def test_R1_a_follower_never_leaves_out_what_the_leader_may_wait_for(why: str) -> None:
    async def test(scene: Scene) -> None:
        one = fetcher(scene, Asked(scene), is_in_sync=why == "in sync")
        if why == "has what is committed":
            while one.lag.get(TP) != 0:
                await step(scene, one)
                scene.third.clock.advance(ms=2_000)
        counted = scene.third.quotas.follower.total_bytes
        scene.third.quotas.follower.record(1 << 30, scene.third.clock.monotonic())
        assert [await step(scene, one) for _ in range(3)] == [True] * 3
        assert scene.third.quotas.follower.total_bytes == counted + (1 << 30), "nor does it count"

    other = ThrottledReplicas(pairs=frozenset({(0, 2), (1, 3)}))
    run(test, lambda: Scene(follower=other if why == "not throttled" else ALL_REPLICAS))


def test_a_follower_does_not_wait_at_the_leader_past_the_time_when_its_quota_is_free() -> None:
    async def test(scene: Scene) -> None:
        one = fetcher(scene, Asked(scene))
        await step(scene, one)
        scene.third.clock.advance(ms=1_500)
        assert not await step(scene, one)
        free_in_s = scene.third.quotas.follower.free_in_s(1.5)
        assert 0 < free_in_s < 0.5
        assert one._wait_ms() == math.ceil(free_in_s * 1000)
        scene.third.clock.advance(ms=500)
        assert one._wait_ms() == 500, "the quota is free: it is the leader who has nothing"

    run(test, lambda: Scene(follower=ALL_REPLICAS))


def test_a_follower_continues_by_itself_and_ends_when_it_is_to_end() -> None:
    async def test(scene: Scene) -> None:
        asked = Asked(scene)
        third = scene.third
        third.rate = 1_000_000
        one = fetcher(scene, asked)
        third.clock.monotonic = asyncio.get_running_loop().time  # type: ignore[method-assign]
        third.quotas.follower.record(1_010_000, third.clock.monotonic())
        running = asyncio.ensure_future(one.run())
        while not asked.offsets:  # noqa: ASYNC110 (the wait is what is tested)
            await asyncio.sleep(0.01)
        third.rate = 0
        await spin()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(test, lambda: Scene(follower=ALL_REPLICAS))
