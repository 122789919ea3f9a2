"""What a follower tells its leader by a fetch is so when it says it (D1, R1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

from replicated_logs import TP, ReplicatedLogs

from semel.broker.config.node_config import NodeConfig
from semel.broker.logs.replication_quota import ReplicationQuota
from semel.broker.peers.requests import FetchAsReplica
from semel.broker.replication.fetcher import Fetcher
from semel.broker.replication.following import next_fetch, take_in
from semel.broker.replication.parts import take_part
from semel.broker.replication.throttle import FollowerThrottle
from semel.protocol.batch_builder import encode_batch
from semel.protocol.int_bounds import INT64_MAX
from semel.protocol.kafka.fetch import FetchRequest, FetchResponse
from semel.runtime.clock import ManualClock


class SilentLeader:
    """Stands for the connections to other nodes: notes what is asked, and never answers."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def ask(self, leader_id: int, request: FetchAsReplica) -> FetchResponse:
        self.asked += [item.fetch_offset for item in request.request.partitions]
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    def hang_up(self, *_: object) -> None: ...


class Scene:
    """Machine 3 has a record of machine 1 that is not on its disk yet, and is about to ask for the next."""

    def __init__(self) -> None:
        self.world = ReplicatedLogs(1)
        leader, _, self.follower = self.world.machines.values()
        leader.partition.append(bytearray(encode_batch([(1, None, b"v", ())])), acks=1)
        item = next_fetch(self.follower.partition, 1 << 20, 0)
        fetch = FetchRequest([item], 0, replica_id=3, replica_epoch=self.follower.broker_epoch)
        (answer,), _ = leader.fetches.read(fetch)
        take_in(self.follower.partition, item, answer)
        self.leader = SilentLeader()

    def fetcher(self) -> Fetcher:
        throttle = FollowerThrottle(3, ReplicationQuota(lambda: INT64_MAX), ManualClock(), lambda _: True)
        return Fetcher(3, 1, cast(Any, self.leader), NodeConfig, lambda: 1, lambda _: 0, throttle, lambda *_: None)

    async def turns(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


def run(test: Callable[[Scene, Fetcher], Awaitable[None]]) -> None:
    scene = Scene()  # outside the loop, where nothing syncs until the test does

    async def main() -> None:
        fetcher = scene.fetcher()
        fetcher.follow({TP: scene.follower.partition})
        task = asyncio.ensure_future(fetcher.run())
        try:
            await scene.turns()
            assert scene.leader.asked == [], "what it has is not on its disk"
            await test(scene, fetcher)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_D1_the_leader_hears_of_what_is_on_the_disk_once_it_is() -> None:
    async def test(scene: Scene, fetcher: Fetcher) -> None:
        scene.follower.sync()
        await scene.turns()
        assert scene.leader.asked == [1]

    run(test)


def test_D1_one_that_is_elected_while_its_disk_is_busy_does_not_say_that_it_has_the_records() -> None:
    async def test(scene: Scene, fetcher: Fetcher) -> None:
        state = scene.world.image.partition(TP)
        assert state is not None
        elected = replace(state, leader=3, leader_epoch=state.leader_epoch + 1, partition_epoch=1)
        take_part(scene.follower.partition, elected, 3, 0.0)
        await scene.turns()
        assert scene.leader.asked == []

    run(test)


def test_R1_one_that_was_cut_while_its_disk_was_busy_does_not_say_that_it_has_what_went() -> None:
    async def test(scene: Scene, fetcher: Fetcher) -> None:
        scene.follower.partition.truncate_to(0)
        async with asyncio.timeout(20):
            while not scene.leader.asked:  # noqa: ASYNC110 (there is nothing that tells of it)
                await asyncio.sleep(0.02)
        assert scene.leader.asked == [0]

    run(test)
