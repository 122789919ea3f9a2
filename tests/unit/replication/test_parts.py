"""The part of a partition on a node: who serves clients, what a fetch tells, what an answer does (R1 to R5, T8)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from replicated_logs import TP, Machine, ReplicatedLogs

from semel.broker.handlers.fetch.replica import COMMITTED_AFTER_S, ReplicaFetch
from semel.broker.log.config import AppendOrigin, CleanupPolicy
from semel.broker.log.leader_epochs import LeaderEpochs
from semel.broker.metadata.changes import PartitionState
from semel.broker.replication.following import Followed, next_fetch, take_in
from semel.broker.replication.parts import take_part
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import ProducerIdAndEpoch
from semel.protocol.kafka.fetch import FETCH_MAX_VERSION, FetchPartitionResponse, FetchRequest, FetchResponse

PRODUCER = ProducerIdAndEpoch(7, 0)


class Scene:
    """Three machines, of which 1 leads; fetches happen when the test says so."""

    def __init__(self) -> None:
        self.world = ReplicatedLogs(1)
        self.leader, self.second, self.third = self.world.machines.values()
        self.state = self.now()

    def now(self) -> PartitionState:
        state = self.world.image.partition(TP)
        assert state is not None
        return state

    def append(self, count: int = 1, machine: Machine | None = None) -> int:
        batch = encode_batch([(1, b"k", b"v", ())] * count)
        return (machine or self.leader).partition.append(bytearray(batch), acks=1).last_offset

    def request(self, follower: Machine, wait_ms: int = 0) -> FetchRequest:
        follower.sync()
        item = next_fetch(follower.partition, 1 << 20, follower.partition.log_start_offset)
        return FetchRequest([item], wait_ms, replica_id=follower.node_id, replica_epoch=follower.broker_epoch)

    def fetch(self, follower: Machine, leader: Machine | None = None) -> Followed:
        request = self.request(follower)
        (answer,), _ = (leader or self.leader).fetches.read(request)
        return take_in(follower.partition, request.partitions[0], answer)

    def change(self, **changed: object) -> None:
        """Have all machines apply a newer state of the partition."""
        self.state = replace(self.state, partition_epoch=self.state.partition_epoch + 1, **changed)  # type: ignore[arg-type]
        for machine in self.world.machines.values():
            note = take_part(machine.partition, self.state, machine.node_id, 0.0)
            if note is not None:
                note.run()


def test_R1_a_record_is_committed_once_all_in_sync_have_fetched_behind_it() -> None:
    scene = Scene()
    answers: list[SemelError | None] = []
    scene.leader.partition.when_committed(scene.append(), answers.append)
    scene.leader.sync()
    for follower in (scene.second, scene.third):
        assert scene.fetch(follower) is Followed.TAKEN_IN
    assert answers == [], "they have it, and have not said so"
    assert scene.fetch(scene.second) is Followed.TAKEN_IN
    assert answers == []
    assert scene.fetch(scene.third) is Followed.TAKEN_IN
    assert answers == [None]
    assert scene.third.partition.high_watermark == 1, "the answer to the fetch that committed it says so"
    assert scene.second.partition.high_watermark == 0


def test_D1_what_is_not_on_the_leaders_own_disk_is_not_committed() -> None:
    scene = Scene()
    scene.append()
    for follower in (scene.second, scene.third) * 2:
        scene.fetch(follower)
    assert scene.leader.partition.high_watermark == 0
    scene.leader.sync()
    assert scene.leader.partition.high_watermark == 1


def test_R3_who_waits_hears_that_another_leads_and_clients_are_sent_there() -> None:
    scene = Scene()
    answers: list[SemelError | None] = []
    scene.leader.partition.when_committed(scene.append(), answers.append)
    woken: list[object] = []
    scene.leader.partition.add_append_listener(woken.append)
    scene.change(leader=2, leader_epoch=1, isr=(2, 3))
    (refusal,) = answers
    assert refusal is not None
    assert refusal.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert woken == [scene.leader.partition], "a waiting fetch is answered, too"
    for ask in (
        lambda: scene.append(),
        lambda: scene.leader.partition.read(0, max_bytes=100),
        lambda: scene.leader.partition.list_offset(-1),
        lambda: scene.leader.partition.append_marker(PRODUCER, 0, True),
        lambda: scene.leader.partition.delete_records(0),
    ):
        with pytest.raises(RetriableError, match="is led by node 2"):
            ask()


def test_R3_the_old_leader_cuts_what_nobody_else_has_and_follows() -> None:
    scene = Scene()
    scene.append()
    for follower in (scene.second, scene.third) * 2:
        scene.fetch(follower)
    scene.append(3)
    scene.change(leader=2, leader_epoch=1, isr=(2, 3))
    scene.append(1, scene.second)
    assert scene.leader.partition.log_end_offset == 4
    assert scene.fetch(scene.leader, scene.second) is Followed.CUT
    assert scene.leader.partition.log_end_offset == 1
    assert scene.fetch(scene.leader, scene.second) is Followed.TAKEN_IN
    assert scene.leader.batches(2) == scene.second.batches(2)


def leader_without_epoch_1(*policies: CleanupPolicy) -> Scene:
    """A scene whose leader copied its log when nothing of epoch 1 was left, and whose third replica has that epoch.

    Offsets 0 and 1 are of epoch 0, 2 to 4 of epoch 1, 5 of epoch 2; the third has none of the last, and all that was
    committed before it.
    """
    scene = Scene()
    for machine in scene.world.machines.values():
        config = replace(machine.partition.config, cleanup_policy=frozenset(policies))
        machine.partition.log.update_config(config)
    for epoch, count in ((1, 2), (2, 3)):
        scene.append(count)
        scene.leader.sync()
        for follower in (scene.second, scene.third) * 3:
            scene.fetch(follower)
        scene.change(leader=1, leader_epoch=epoch)
    assert scene.third.partition.high_watermark == 5
    epochs = scene.leader.partition.log.epochs
    assert list(epochs.entries()) == [(0, 0), (1, 2), (2, 5)]
    scene.leader.partition.log.epochs = LeaderEpochs([(0, 0), (2, 5)])
    scene.append(1)
    scene.leader.sync()
    return scene


def test_R3_committed_records_of_an_epoch_that_the_leader_has_compacted_away_are_kept() -> None:
    """The follower refused to cut what is committed, and never followed again."""
    scene = leader_without_epoch_1(CleanupPolicy.COMPACT)
    assert scene.fetch(scene.third) is Followed.CUT
    assert (scene.third.partition.log_end_offset, scene.third.partition.high_watermark) == (5, 5)
    assert scene.fetch(scene.third) is Followed.TAKEN_IN
    assert scene.third.batches(6) == scene.leader.batches(6)
    assert scene.third.partition.last_epoch == 2


def test_R3_R4_a_leader_that_lacks_committed_records_is_not_followed() -> None:
    """Nothing is compacted away in such a topic; and an epoch that ended too early never had the records."""
    with pytest.raises(SemelError, match="is committed up to 5 here and cannot be cut at 2"):
        (scene := leader_without_epoch_1(CleanupPolicy.DELETE)).fetch(scene.third)
    scene = leader_without_epoch_1(CleanupPolicy.COMPACT)
    scene.leader.partition.log.epochs = LeaderEpochs([(0, 0), (2, 4)])
    with pytest.raises(SemelError, match="is committed up to 5 here and cannot be cut at 2"):
        scene.fetch(scene.third)


def test_R4_an_older_epoch_makes_nobody_lead_or_follow() -> None:
    scene = Scene()
    before = scene.state
    scene.change(leader=2, leader_epoch=1, isr=(2, 3))
    take_part(scene.leader.partition, before, 1, 0.0)
    assert scene.leader.partition.leader is None
    take_part(scene.second.partition, before, 2, 0.0)
    assert scene.second.partition.leader is not None
    assert scene.second.partition.leader_epoch == 1


def test_T8_a_new_epoch_voids_verifications() -> None:
    """Another leader may have had the transaction's marker meanwhile."""
    scene = Scene()
    log = scene.second.partition.log
    guard = log.start_verification(PRODUCER, 0, 0)
    assert guard is not None
    scene.change(leader=2, leader_epoch=1, isr=(2, 3))
    batch = encode_batch(
        [(1, None, b"v", ())], producer_id=PRODUCER.producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )
    with pytest.raises(SemelError) as refused:
        scene.second.partition.append(bytearray(batch), verified=guard)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE


def test_R2_coordinators_wait_for_enough_replicas() -> None:
    scene = Scene()
    for machine in scene.world.machines.values():
        machine.partition.update_config(replace(machine.partition.config, min_insync_replicas=2))
    scene.change(isr=(1,))
    for origin in (AppendOrigin.COORDINATOR, AppendOrigin.CLIENT):
        with pytest.raises(RetriableError) as refused:
            scene.leader.partition.append(bytearray(encode_batch([(1, b"k", b"v", ())])), origin=origin)
        assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    scene.append()  # acks=1 asks for nobody
    scene.leader.sync()
    assert scene.leader.partition.high_watermark == 0


def test_a_partition_that_nobody_leads_says_so() -> None:
    scene = Scene()
    scene.change(leader=-1, leader_epoch=1)
    with pytest.raises(RetriableError, match="has no leader"):
        scene.append()


def test_a_node_that_has_just_started_serves_nobody() -> None:
    scene = Scene()
    scene.append()
    scene.leader.crash()
    scene.leader.start()
    with pytest.raises(RetriableError, match="has no part yet"):
        scene.append()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (FetchPartitionResponse("t", None, 0, ErrorCode.FENCED_LEADER_EPOCH), Followed.REFUSED),  # type: ignore[arg-type]
        (FetchPartitionResponse("t", None, 0, ErrorCode.OFFSET_OUT_OF_RANGE), Followed.REFUSED),  # type: ignore[arg-type]
        (
            FetchPartitionResponse("t", None, 0, ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=9),  # type: ignore[arg-type]
            Followed.BEHIND,
        ),
    ],
)
def test_an_answer_that_refuses_changes_nothing(answer: FetchPartitionResponse, expected: Followed) -> None:
    scene = Scene()
    request = scene.request(scene.second)
    assert take_in(scene.second.partition, request.partitions[0], answer) is expected
    assert scene.second.partition.log_end_offset == 0


def test_R3_an_answer_that_comes_after_the_next_one_changes_nothing() -> None:
    scene = Scene()
    scene.append()
    scene.fetch(scene.second)
    scene.append()
    request = scene.request(scene.second)
    (late,), _ = scene.leader.fetches.read(request)
    assert scene.fetch(scene.second) is Followed.TAKEN_IN
    assert take_in(scene.second.partition, request.partitions[0], late) is Followed.LATE
    assert scene.second.partition.log_end_offset == 2


def test_a_follower_follows_where_the_log_starts() -> None:
    scene = Scene()
    scene.append(5)
    scene.leader.sync()
    for follower in (scene.second, scene.third) * 2:
        scene.fetch(follower)
    scene.leader.partition.delete_records(3)
    scene.fetch(scene.second)
    assert scene.second.partition.log_start_offset == 3


def test_a_fetch_waits_until_something_is_appended_and_until_it_is_committed() -> None:
    async def main() -> None:
        scene = Scene()
        scene.fetch(scene.second)
        waiting = asyncio.create_task(scene.leader.fetches.fetch(scene.request(scene.second, 60_000)))
        await asyncio.sleep(0)
        assert not waiting.done()
        scene.append()
        answer = (await waiting).partitions[0]
        assert answer.records is not None
        take_in(scene.second.partition, scene.request(scene.second).partitions[0], answer)
        scene.leader.sync()
        waiting = asyncio.create_task(scene.leader.fetches.fetch(scene.request(scene.second, 60_000)))
        await asyncio.sleep(0)
        assert not waiting.done()
        for _ in range(2):
            scene.fetch(scene.third)
        assert (await waiting).partitions[0].high_watermark == 1

    asyncio.run(main())


def test_R1_a_follower_that_was_told_of_less_hears_how_much_is_committed() -> None:
    scene = Scene()
    scene.append()
    scene.leader.sync()
    for _ in range(2):
        scene.fetch(scene.second)
    scene.fetch(scene.third)
    request = scene.request(scene.third)
    scene.leader.fetches.read(request)
    assert scene.leader.partition.high_watermark == 1
    assert scene.second.partition.high_watermark == 0

    async def fetch() -> None:
        answered: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        begun = scene.leader.fetches.begin(
            scene.request(scene.second, 3_600_000), FETCH_MAX_VERSION, answered.set_result
        )
        assert isinstance(begun, ReplicaFetch)
        assert begun.waits_s() <= COMMITTED_AFTER_S
        async with asyncio.timeout(60):
            assert (await answered).partitions[0].high_watermark == 1

    asyncio.run(fetch())


def test_a_fetch_that_nothing_happens_to_is_answered_when_its_time_is_over() -> None:
    async def main() -> None:
        scene = Scene()
        scene.fetch(scene.second)
        answer = (await scene.leader.fetches.fetch(scene.request(scene.second, 1))).partitions[0]
        assert (answer.error, answer.records) == (ErrorCode.NONE, None)

    asyncio.run(main())


def test_all_who_wait_until_a_followers_log_is_on_the_disk_go_on() -> None:
    """One fetcher waits while the leader changes, and that of the next leader begins to wait as well."""

    scene = Scene()
    scene.append()
    assert scene.fetch(scene.third) is Followed.TAKEN_IN  # outside the loop, where nothing syncs until the test does

    async def test() -> None:
        waiting = [asyncio.ensure_future(scene.third.partition.all_durable()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(one.done() for one in waiting), "its record is not on the disk yet"
        scene.third.sync()
        async with asyncio.timeout(20):
            await asyncio.gather(*waiting)

    asyncio.run(test())


def test_one_who_gives_up_waiting_for_the_disk_leaves_the_other_waiting() -> None:
    scene = Scene()
    scene.append()
    assert scene.fetch(scene.third) is Followed.TAKEN_IN

    async def test() -> None:
        gone, stays = (asyncio.ensure_future(scene.third.partition.all_durable()) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        assert gone.cancelled()
        scene.third.sync()
        async with asyncio.timeout(20):
            await stays

    asyncio.run(test())


@pytest.mark.parametrize("cut", [False, True], ids=["after a restart", "after a cut"])
def test_L1_a_marker_that_is_not_committed_yet_holds_readers_back(cut: bool) -> None:
    """A snapshot does not have the transactions whose markers the high watermark has not passed."""
    scene = Scene()
    batch = encode_batch([(1, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    scene.leader.partition.append(bytearray(batch), acks=1, verified=True)
    for follower in (scene.second, scene.third) * 2:
        scene.leader.sync()
        assert scene.fetch(follower) is Followed.TAKEN_IN
    assert scene.leader.partition.append_marker(PRODUCER, 0, True) == 1
    if cut:
        scene.append()
    logs = scene.leader.logs
    assert logs is not None
    asyncio.run(logs.close())
    scene.leader.start()
    partition = scene.leader.partition
    if cut:
        assert partition.truncate_to(2)
    assert (partition.high_watermark, partition.log_end_offset) == (1, 2)
    assert partition.last_stable_offset == 0
    assert partition.log.first_unstable_offset(1) == 0
    assert partition.log.first_unstable_offset(2) is None
