"""The read barrier of nodes that share partitions: what shows that a node still leads, and what does not (R9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from replicated_logs import TP, Machine, ReplicatedLogs

from semel.broker.logs.proofs import FetchRounds
from semel.broker.metadata.changes import PartitionState
from semel.broker.replication import barrier as barrier_module
from semel.broker.replication.barrier import ReplicationBarrier
from semel.broker.replication.following import next_fetch, take_in
from semel.broker.replication.parts import take_part
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.kafka.fetch import FetchRequest, FetchResponse

EPOCH = 0
PASSED = "passed"
WAITS = "waits"


class Database:
    """The metadata as node 1 knows it, and as the database has it. A reading takes as long as the test says."""

    def __init__(self, state: PartitionState) -> None:
        self.image = self.stored = self._image(state)
        self.failure: SemelError | None = None
        self.begun = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    def write(self, state: PartitionState) -> None:
        """Change the partition. Node 1 has not heard of it."""
        self.stored = self._image(state)

    async def refresh(self) -> object:
        self.begun += 1
        seen, failure = self.stored, self.failure
        await self.may_end.wait()
        if failure is not None:
            raise failure
        self.image = seen
        return seen

    @staticmethod
    def _image(state: PartitionState) -> Any:
        return SimpleNamespace(partition=lambda tp: state if tp == TP else None)


class Scene:
    """Three machines of which 1 leads, with its barrier. Fetches happen when the test says so."""

    def __init__(self, *, min_isr: int = 1, **state: object) -> None:
        self.world = ReplicatedLogs(1)
        self.leader, self.second, self.third = self.world.machines.values()
        found = self.world.image.partition(TP)
        assert found is not None
        self.state = found
        for machine in self.world.machines.values():
            config = replace(machine.partition.config, min_insync_replicas=min_isr)
            machine.partition.update_config(config)
        if state:
            self.change(**state)
        self.database = Database(self.state)
        node = SimpleNamespace(
            metadata=self.database,
            config=SimpleNamespace(node_id=1),
            logs=self.leader.logs,
            partition=lambda tp: self.leader.partition if tp == TP else None,
        )
        self.barrier = ReplicationBarrier(cast(Any, node))
        self.told: dict[int, int] = {}

    def change(self, **changed: object) -> None:
        """Have all machines apply a newer state of the partition."""
        self.state = replace(self.state, partition_epoch=self.state.partition_epoch + 1, **changed)  # type: ignore[arg-type]
        for machine in self.world.machines.values():
            note = take_part(machine.partition, self.state, machine.node_id, 0.0)
            if note is not None:
                note.run()

    def request(self, follower: Machine, wait_ms: int = 0) -> FetchRequest:
        """Return a follower's next fetch, as it is sent now."""
        follower.sync()
        return FetchRequest(
            [next_fetch(follower.partition, 1 << 20, 0)],
            wait_ms,
            replica_id=follower.node_id,
            replica_epoch=follower.broker_epoch,
            session_id=self.told.get(follower.node_id, 0),
        )

    async def deliver(self, request: FetchRequest) -> FetchResponse:
        """Let the leader answer a fetch, and the follower have the answer."""
        response = await self.leader.fetches.fetch(request)
        follower = self.world.machines[request.replica_id]
        self.told[follower.node_id] = response.session_id
        take_in(follower.partition, request.partitions[0], response.partitions[0])
        return response

    async def fetch(self, *followers: Machine) -> None:
        for follower in followers:
            await self.deliver(self.request(follower))

    def ask(self, leader_epoch: int = EPOCH) -> asyncio.Future[object]:
        begun = self.barrier.begin(TP, leader_epoch)
        assert begun is not None, "it does not wait"
        return asyncio.ensure_future(outcome(begun))


async def outcome(waiting: Awaitable[None]) -> object:
    try:
        await waiting
    except SemelError as error:
        return error.code
    return PASSED


async def now(asked: asyncio.Future[object]) -> object:
    """Return what came of a question by now."""
    for _ in range(20):
        await asyncio.sleep(0)
    return asked.result() if asked.done() else WAITS


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(main())


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier_module, "PATIENCE_S", 0.001)


@pytest.fixture(autouse=True)
def much_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is decided by a machine that is slow."""
    monkeypatch.setattr(barrier_module, "PATIENCE_S", 3_600.0)


def test_R9_it_passes_once_all_others_in_sync_have_fetched_since_and_not_before() -> None:
    async def test() -> None:
        scene = Scene()
        await scene.fetch(scene.second, scene.third)
        asked = scene.ask()
        await scene.fetch(scene.second, scene.third)
        assert await now(asked) == WAITS, "these were sent with what they were told before"
        await scene.fetch(scene.second)
        assert await now(asked) == WAITS, "3 may have been elected"
        await scene.fetch(scene.third)
        assert await now(asked) == PASSED
        assert scene.database.begun == 0

    run(test)


def test_R9_a_fetch_that_was_sent_before_does_not_count_however_late_it_comes() -> None:
    async def test() -> None:
        scene = Scene(isr=(1, 2))
        await scene.fetch(scene.second)
        sent_before = [scene.request(scene.second) for _ in range(3)]
        asked = scene.ask()
        for request in sent_before:
            await scene.deliver(request)
            assert await now(asked) == WAITS
        await scene.fetch(scene.second)
        assert await now(asked) == PASSED

    run(test)


def test_R9_who_may_have_been_taken_into_the_in_sync_set_is_asked_too() -> None:
    async def test() -> None:
        scene = Scene(isr=(1, 2))
        await scene.fetch(scene.second, scene.third)
        leader = scene.leader.partition.leader
        assert leader is not None
        usable = {machine.node_id: machine.broker_epoch for machine in scene.world.machines.values()}
        wanted = leader.wanted_isr(0, now_s=0.0, lag_max_s=10.0, log_start_offset=0, log_end_offset=0, usable=usable)
        assert wanted is not None
        assert set(wanted.isr) == {1, 2, 3}
        asked = scene.ask()
        await scene.fetch(scene.second, scene.second)
        assert await now(asked) == WAITS, "3 may be in sync, and may have been elected"
        await scene.fetch(scene.third, scene.third)
        assert await now(asked) == PASSED

    run(test)


def test_R9_a_fetch_that_says_no_epoch_does_not_count() -> None:
    async def test() -> None:
        scene = Scene(isr=(1, 2))
        await scene.fetch(scene.second)
        asked = scene.ask()
        await scene.fetch(scene.second)
        request = scene.request(scene.second)
        request.partitions[0].current_leader_epoch = -1
        await scene.deliver(request)
        assert await now(asked) == WAITS
        await scene.fetch(scene.second)
        assert await now(asked) == PASSED

    run(test)


def test_R9_a_follower_that_waits_is_answered_at_once_and_its_next_fetch_is_the_proof() -> None:
    async def test() -> None:
        scene = Scene(isr=(1, 2))
        await scene.fetch(scene.second, scene.second)
        waits = asyncio.ensure_future(scene.deliver(scene.request(scene.second, 20_000)))
        assert await now(waits) == WAITS
        asked = scene.ask()
        assert await now(waits) != WAITS
        assert await now(asked) == WAITS
        waits = asyncio.ensure_future(scene.deliver(scene.request(scene.second, 20_000)))
        assert await now(asked) == PASSED
        assert await now(waits) == WAITS, "nobody asks any more"
        waits.cancel()

    run(test)


def test_R9_a_fetch_does_not_wait_while_a_barrier_does() -> None:
    async def test() -> None:
        scene = Scene(isr=(1, 2))
        await scene.fetch(scene.second, scene.second)
        asked = scene.ask()
        waits = asyncio.ensure_future(scene.deliver(scene.request(scene.second, 20_000)))
        assert await now(waits) != WAITS
        waits = asyncio.ensure_future(scene.deliver(scene.request(scene.second, 20_000)))
        assert await now(asked) == PASSED
        waits.cancel()

    run(test)


def test_R9_questions_of_one_moment_share_a_proof_and_later_ones_wait_for_the_next() -> None:
    async def test() -> None:
        scene = Scene(isr=(1, 2))
        await scene.fetch(scene.second, scene.second)
        first = [scene.ask() for _ in range(3)]
        first[1].cancel()
        await scene.fetch(scene.second)
        later = [scene.ask() for _ in range(3)]
        await scene.fetch(scene.second)
        assert [await now(each) for each in (first[0], first[2], *later)] == [PASSED, PASSED, WAITS, WAITS, WAITS]
        await scene.fetch(scene.second)
        assert [await now(each) for each in later] == [PASSED] * 3

    run(test)


def test_R9_the_only_replica_waits_for_nobody() -> None:
    async def test() -> None:
        scene = Scene(replicas=(1,), isr=(1,))
        assert scene.barrier.begin(TP, EPOCH) is None

    run(test)


def test_R9_a_leader_whom_nobody_can_replace_waits_for_nobody() -> None:
    async def test() -> None:
        scene = Scene(isr=(1,))
        assert scene.barrier.begin(TP, EPOCH) is None

    run(test)


@pytest.mark.parametrize(
    ("min_isr", "state"),
    [
        pytest.param(2, {"isr": (1,), "elr": (2,)}, id="below-min-isr"),
        pytest.param(1, {"isr": (1,), "elr": (2,)}, id="another-is-eligible"),
        pytest.param(3, {"isr": (1, 2), "elr": (3,)}, id="not-all-who-may-lead-are-asked"),
    ],
)
def test_R9_where_others_may_lead_whom_nobody_asks_the_database_says_who_does(
    min_isr: int, state: dict[str, object]
) -> None:
    async def test() -> None:
        scene = Scene(min_isr=min_isr, **state)
        asked = scene.ask()
        assert await now(asked) == PASSED
        assert scene.database.begun == 1
        scene.database.write(replace(scene.state, leader=2, leader_epoch=1))
        assert await now(scene.ask()) is ErrorCode.NOT_COORDINATOR

    run(test)


def test_R9_a_reading_of_the_database_that_began_before_does_not_count() -> None:
    async def test() -> None:
        scene = Scene(min_isr=2, isr=(1,), elr=(2,))
        scene.database.may_end.clear()
        early = scene.ask()
        assert await now(early) == WAITS
        scene.database.write(replace(scene.state, leader=2, leader_epoch=1))
        late = [scene.ask() for _ in range(5)]
        scene.database.may_end.set()
        assert await now(early) == PASSED, "it was led here when this one asked"
        assert [await now(each) for each in late] == [ErrorCode.NOT_COORDINATOR] * 5
        assert scene.database.begun == 2, "all that wait share a reading"

    run(test)


def test_R9_without_followers_and_database_it_can_not_be_told() -> None:
    async def test() -> None:
        scene = Scene(min_isr=2, isr=(1,), elr=(2,))
        scene.database.failure = RetriableError("the database is away")
        assert await now(scene.ask()) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(test)


def test_R9_the_database_is_asked_where_followers_are_silent_and_at_once_the_next_time(no_patience: None) -> None:
    async def test() -> None:
        scene = Scene(isr=(1, 2))
        await scene.fetch(scene.second)
        assert await scene.ask() == PASSED
        assert scene.database.begun == 1
        barrier_module.PATIENCE_S = 3_600.0  # type: ignore[misc]  # `no_patience` sets it back
        assert await now(scene.ask()) == PASSED, "it does not wait for the silent one again"
        assert scene.database.begun == 2
        await scene.fetch(scene.second)
        asked = scene.ask()
        assert await now(asked) == WAITS
        await scene.fetch(scene.second, scene.second)
        assert await now(asked) == PASSED
        assert scene.database.begun == 2

    run(test)


def test_R9_nobody_reads_the_database_for_callers_that_are_gone(no_patience: None) -> None:
    async def test() -> None:
        scene = Scene(isr=(1, 2))
        begun = cast("asyncio.Future[None]", scene.barrier.begin(TP, EPOCH))
        begun.cancel()
        leader = scene.leader.partition.leader
        assert leader is not None
        for _ in range(10_000):
            if not leader.awaits(2):
                break
            await asyncio.sleep(0.001)
        assert not leader.awaits(2)
        await asyncio.sleep(0)
        assert scene.database.begun == 0

    run(test)


def test_R9_a_node_that_was_replaced_says_so_at_once() -> None:
    async def test() -> None:
        scene = Scene()
        waiting = scene.ask()
        scene.database.image = scene.database._image(replace(scene.state, leader=2, leader_epoch=1))
        assert await now(scene.ask()) is ErrorCode.NOT_COORDINATOR, "its image says so"
        scene = Scene(leader=2, leader_epoch=1)
        assert await now(scene.ask(0)) is ErrorCode.NOT_COORDINATOR, "it follows"
        scene = Scene(leader=1, leader_epoch=1)
        assert await now(scene.ask(0)) is ErrorCode.NOT_COORDINATOR, "it was elected again"
        assert await now(waiting) == WAITS
        scene = Scene()
        scene.database.image = scene.database._image(replace(scene.state, leader_epoch=1))
        for epoch in (0, 1):
            assert await now(scene.ask(epoch)) is ErrorCode.NOT_COORDINATOR, "its log has not got there yet"

    run(test)


def test_R9_who_waits_under_an_epoch_that_is_over_hears_it_from_the_next_question() -> None:
    async def test() -> None:
        scene = Scene()
        waiting = scene.ask()
        scene.change(leader_epoch=1)
        scene.database.image = scene.database._image(scene.state)
        asked = scene.ask(1)
        assert await now(waiting) is ErrorCode.NOT_COORDINATOR
        for _ in range(2):
            await scene.fetch(scene.second, scene.third)
        assert await now(asked) == PASSED

    run(test)


# --- Rounds -----------------------------------------------------------------------------------------------------------


def test_R9_a_round_counts_from_the_moment_that_somebody_is_told_of_it() -> None:
    rounds = FetchRounds()
    before = rounds.tell()
    begun = rounds.begin()
    assert rounds.begin() == begun
    assert [rounds.is_since(told, begun) for told in (0, -1, before, begun)] == [False] * 4
    assert rounds.tell() == begun
    assert rounds.is_since(begun, begun)
    later = rounds.begin()
    rounds.tell()
    assert rounds.is_since(later, begun)
    assert not rounds.is_since(begun, later)
    assert not rounds.is_since(later % INT32_MAX + 1, begun), "nobody was told of that one"


def test_R9_rounds_begin_again_behind_the_largest_number() -> None:
    rounds = FetchRounds()
    rounds._now = INT32_MAX
    last = rounds.tell()
    begun = rounds.begin()
    assert (last, begun) == (INT32_MAX, 1)
    rounds.tell()
    assert rounds.is_since(begun, begun)
    assert rounds.is_since(begun, last)
    assert not rounds.is_since(last, begun)
