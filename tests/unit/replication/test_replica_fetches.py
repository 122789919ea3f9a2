"""Fetches of followers as a listener serves them: answered, waiting, cancelled, large, and when the node stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from replicated_logs import TP, Machine, ReplicatedLogs, waiting_fetches

from semel.broker.config.node_config import RACK_AWARE_SELECTOR, NodeConfig
from semel.broker.handlers.fetch import replica as replica_module
from semel.broker.handlers.fetch import unasked as unasked_module
from semel.broker.handlers.fetch.replica import ReplicaFetch, ReplicaFetchHandler
from semel.broker.logs.partition import Partition
from semel.broker.logs.proofs import Proof
from semel.broker.replication.following import next_fetch, take_in
from semel.broker.replication.parts import take_part
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.fetch import (
    FETCH_MAX_VERSION,
    INITIAL_SESSION_EPOCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)

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
        """Whether a fetch listens, besides what remembers that this follower has asked."""
        return waiting_fetches(self.leader.partition) > 0


def run(test: Callable[[Scene], Awaitable[None]], make: Callable[[], Scene] = Scene) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await test(make())

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


def test_what_followers_fetch_does_not_count_as_read_by_consumers() -> None:
    """The plan of a balanced cluster adds what followers fetch to it: it would count twice."""

    async def test(scene: Scene) -> None:
        scene.append()
        answer = scene.begin(scene.request())
        assert isinstance(answer, FetchResponse)
        assert answer.partitions[0].records
        assert scene.leader.partition.fetched_bytes == 0

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


def commit(scene: Scene) -> None:
    """Have a record committed that both followers have: the second is told of it by nothing else."""
    scene.append()
    scene.leader.sync()
    request = scene.request(0)
    (answer,), _ = scene.handler.read(request)
    take_in(scene.follower.partition, request.partitions[0], answer)
    scene.begin(scene.request())
    third = scene.world.machines[3]
    for _ in range(2):
        third.sync()
        item = next_fetch(third.partition, 1 << 20, 0)
        request = FetchRequest([item], 0, replica_id=3, replica_epoch=third.broker_epoch)
        (answer,), _ = scene.handler.read(request)
        take_in(third.partition, item, answer)
    assert scene.leader.partition.high_watermark == 1


def test_what_is_committed_is_told_a_little_later_where_nothing_else_is_to_be_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(scene: Scene) -> None:
        monkeypatch.setattr(replica_module, "COMMITTED_AFTER_S", 3600.0)
        commit(scene)
        await spin()
        assert scene.answers == []
        scene.append()
        await spin()
        (answer,) = scene.answers
        assert (answer.partitions[0].high_watermark, answer.partitions[0].records is None) == (1, False)

    run(test)


def test_the_wait_for_more_ends_a_little_after_something_was_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        monkeypatch.setattr(replica_module, "COMMITTED_AFTER_S", 0.001)
        commit(scene)
        while not scene.answers:  # noqa: ASYNC110 (the wait is what is tested)
            await asyncio.sleep(0.001)
        assert scene.answers[0].partitions[0].high_watermark == 1

    run(test)


def test_what_a_fetch_that_was_cancelled_would_have_told_is_told_to_the_next_one() -> None:
    async def test(scene: Scene) -> None:
        commit(scene)
        for begun in tuple(scene.handler._begun):
            begun.cancel()
        for _ in range(2):
            begun = scene.begin(scene.request())
            assert isinstance(begun, ReplicaFetch)
            assert begun.waits_s() <= replica_module.COMMITTED_AFTER_S
            begun.cancel()

    run(test)


def test_an_answer_at_the_end_of_the_wait_says_how_all_is_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all that changes wakes a fetch: the retention moves the start of a log, and nobody waits for that."""

    async def test(scene: Scene) -> None:
        monkeypatch.setattr(replica_module, "COMMITTED_AFTER_S", 3600.0)
        commit(scene)
        for begun in tuple(scene.handler._begun):
            begun.cancel()
        begun = scene.begin(scene.request())
        assert isinstance(begun, ReplicaFetch)
        scene.leader.partition.log.delete_records(1)
        await spin()
        assert scene.answers == []
        begun.answer_now()  # as the timer does
        (answer,) = scene.answers
        assert answer.partitions[0].log_start_offset == 1

    run(test)


def test_E2_where_followers_are_read_from_they_hear_at_once_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        monkeypatch.setattr(replica_module, "COMMITTED_AFTER_S", 3600.0)
        scene.leader.node.config = NodeConfig(replica_selector_class=RACK_AWARE_SELECTOR)
        commit(scene)
        await spin()
        assert [answer.partitions[0].high_watermark for answer in scene.answers] == [1]

    run(test)


# --- What a follower leaves out ---------------------------------------------------------------------------------------

OTHER = TopicPartition(TP.topic, 1)


class TwoPartitions(Scene):
    """There is a second partition, of which nothing is committed, with records at the leader alone."""

    def __init__(self) -> None:
        super().__init__()
        for machine in (self.leader, self.follower):
            assert machine.logs is not None
            machine.logs.create_partition(OTHER, self.world.topic_id, self.world.log_config)
            take_part(self.other(machine), self.world.image.partition(TP), machine.node_id, 0.0)  # type: ignore[arg-type]
        self.leader.node.partition = self.leader.logs.partition  # type: ignore[union-attr]

    def other(self, machine: Machine) -> Partition:
        found = None if machine.logs is None else machine.logs.partition(OTHER)
        assert found is not None
        return found

    def append_to_other(self) -> None:
        self.other(self.leader).append(bytearray(encode_batch([(1, None, b"v", ())])), acks=1)

    def request_for(self, *partitions: Partition, session_epoch: int = INITIAL_SESSION_EPOCH) -> FetchRequest:
        self.follower.sync()
        return FetchRequest(
            [next_fetch(partition, 1 << 20, 0) for partition in partitions],
            LONG_MS,
            replica_id=2,
            replica_epoch=self.follower.broker_epoch,
            session_epoch=session_epoch,
        )

    def ask_for_both(self) -> None:
        """The first answer tells where the log starts, the second fetch would wait."""
        for _ in range(2):
            begun = self.begin(self.request_for(self.follower.partition, self.other(self.follower)))
        assert isinstance(begun, ReplicaFetch)
        begun.cancel()


def named(answer: object) -> list[tuple[int, bool]]:
    """Return which partitions an answer is about, and whether it has records of them."""
    assert isinstance(answer, FetchResponse)
    return [(each.partition, each.records is not None) for each in answer.partitions]


@pytest.mark.parametrize("is_waiting", [True, False])
def test_an_answer_names_what_has_got_more_and_was_left_out(is_waiting: bool) -> None:
    async def test(scene: Scene) -> None:
        assert isinstance(scene, TwoPartitions)
        scene.ask_for_both()
        if is_waiting:
            scene.begin(scene.request_for(scene.follower.partition))
            scene.append_to_other()
            await spin()
        else:
            scene.append_to_other()
            scene.answers.append(scene.begin(scene.request_for(scene.follower.partition)))  # type: ignore[arg-type]
        assert [named(answer) for answer in scene.answers] == [[(0, False), (1, False)]]
        again = scene.begin(scene.request_for(scene.follower.partition, scene.other(scene.follower)))
        assert named(again) == [(0, False), (1, True)]

    run(test, TwoPartitions)


def test_what_was_asked_for_meanwhile_is_not_named() -> None:
    async def test(scene: Scene) -> None:
        assert isinstance(scene, TwoPartitions)
        scene.ask_for_both()
        scene.append_to_other()
        assert named(scene.begin(scene.request_for(scene.other(scene.follower)))) == [(1, True)]
        assert isinstance(scene.begin(scene.request_for(scene.follower.partition)), ReplicaFetch)

    run(test, TwoPartitions)


def test_an_answer_does_not_name_what_its_fetch_asked_for() -> None:
    """While a large one is read again, there may be more in something that was read."""

    async def test(scene: Scene) -> None:
        assert isinstance(scene, TwoPartitions)
        scene.ask_for_both()
        request = scene.request_for(scene.other(scene.follower))
        reading = scene.handler.begin_reading(request, FETCH_MAX_VERSION)
        reading.read(request.partitions)
        scene.append_to_other()
        assert named(scene.handler.answer(request, reading)) == [(1, False)]
        assert named(scene.begin(request)) == [(1, True)]

    run(test, TwoPartitions)


def test_what_is_named_once_is_named_again_once_it_was_asked_for_in_vain() -> None:
    async def test(scene: Scene) -> None:
        assert isinstance(scene, TwoPartitions)
        scene.ask_for_both()
        scene.other(scene.leader).ask_replicas()  # a read barrier asks, and there are no records
        assert named(scene.begin(scene.request_for(scene.follower.partition))) == [(0, False), (1, False)]
        begun = scene.begin(scene.request_for(scene.other(scene.follower)))
        assert isinstance(begun, ReplicaFetch)
        begun.cancel()
        scene.append_to_other()
        assert named(scene.begin(scene.request_for(scene.follower.partition))) == [(0, False), (1, False)]

    run(test, TwoPartitions)


def test_R9_what_a_proof_waits_for_is_named_until_the_follower_has_fetched_it_once_more() -> None:
    """The answer that wakes the follower is no proof: its next fetch is, and that may be of what is busy alone."""

    async def test(scene: Scene) -> None:
        assert isinstance(scene, TwoPartitions)
        scene.ask_for_both()
        other = scene.other(scene.leader)
        assert other.leader is not None
        scene.begin(scene.request_for(scene.follower.partition, scene.other(scene.follower)))
        proven: list[bool] = []
        rounds = scene.leader.node.logs.fetch_rounds
        other.leader.prove(Proof(rounds.begin(), frozenset({2}), lambda: proven.append(True)))
        other.ask_replicas()
        await spin()
        assert [named(answer) for answer in scene.answers] == [[(0, False), (1, False)]]
        next_one = scene.begin(scene.request_for(scene.follower.partition))
        assert named(next_one) == [(0, False), (1, False)], "the second was not asked for"
        assert isinstance(next_one, FetchResponse)
        request = scene.request_for(scene.other(scene.follower))
        request.session_id = next_one.session_id
        scene.begin(request)
        assert proven == [True]

    run(test, TwoPartitions)


def test_what_had_no_room_in_an_answer_is_named_in_the_next_one() -> None:
    async def test(scene: Scene) -> None:
        assert isinstance(scene, TwoPartitions)
        scene.ask_for_both()
        scene.append()
        scene.append_to_other()
        request = scene.request_for(scene.follower.partition, scene.other(scene.follower))
        request.max_bytes = 1
        answer = scene.begin(request)
        assert named(answer) == [(0, True), (1, False)]
        assert isinstance(answer, FetchResponse)
        take_in(scene.follower.partition, request.partitions[0], answer.partitions[0])
        assert named(scene.begin(scene.request_for(scene.follower.partition))) == [(0, False), (1, False)]

    run(test, TwoPartitions)


def test_R1_a_fetch_that_was_given_up_does_not_keep_what_comes_from_the_next_one() -> None:
    """Its connection is gone, and the leader has not noticed: what it would be answered with, nobody would read."""

    async def test(scene: Scene) -> None:
        assert isinstance(scene, TwoPartitions)
        scene.ask_for_both()
        both = scene.request_for(scene.follower.partition, scene.other(scene.follower))
        assert isinstance(scene.begin(both), ReplicaFetch)
        since = scene.request_for(scene.follower.partition, scene.other(scene.follower))
        since.max_wait_ms = 0
        assert isinstance(scene.begin(since), FetchResponse)
        scene.append_to_other()
        assert named(scene.begin(scene.request_for(scene.follower.partition))) == [(0, False), (1, False)]

    run(test, TwoPartitions)


@pytest.mark.parametrize("is_large", [False, True])
def test_R1_a_fetch_that_was_given_up_tells_nothing_and_names_nothing(
    monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    async def test(scene: Scene) -> None:
        assert isinstance(scene, TwoPartitions)
        scene.ask_for_both()
        given_up: list[FetchResponse] = []
        request = scene.request_for(scene.follower.partition)
        if is_large:
            monkeypatch.setattr(replica_module, "PART", 1)
            request.partitions *= 2
        begun = scene.handler.begin(request, FETCH_MAX_VERSION, given_up.append)
        assert isinstance(begun, ReplicaFetch)
        assert isinstance(scene.begin(scene.request_for(scene.follower.partition)), ReplicaFetch)
        scene.append()
        scene.append_to_other()
        await spin()
        begun.cancel()  # the end of its connection comes at last
        assert [named(answer) for answer in given_up] == [[]]
        assert [named(answer) for answer in scene.answers] == [[(0, True), (1, False)]]
        assert scene.handler.waiting == 0
        assert not scene.is_listened_to

    run(test, TwoPartitions)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_fetch_that_has_ended_is_not_kept(is_cancelled: bool) -> None:
    """It has what it read with it, which may be a whole answer."""

    async def test(scene: Scene) -> None:
        assert isinstance(scene, TwoPartitions)
        scene.ask_for_both()
        begun = scene.begin(scene.request_for(scene.follower.partition))
        assert isinstance(begun, ReplicaFetch)
        assert scene.handler._unasked[2].waiting is begun
        if is_cancelled:
            begun.cancel()
        else:
            scene.append()
            await spin()
        assert len(scene.answers) == (0 if is_cancelled else 1)
        assert scene.handler._unasked[2].waiting is None

    run(test, TwoPartitions)


@dataclass(frozen=True)
class Named:
    """What of a partition is named."""

    tp: TopicPartition
    topic_id: None = None


def test_one_answer_names_no_more_than_is_done_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unasked_module, "NAMED_MAX", 2)
    unasked = unasked_module.Unasked()
    partitions = [Named(TopicPartition("t", n)) for n in range(5)]
    unasked.ask_again(partitions)  # type: ignore[arg-type]
    asked = [None, partitions[1]]
    told = [[one.partition for one in unasked.named(asked)] for _ in range(3)]  # type: ignore[arg-type]
    assert told == [[0, 2], [3, 4], []]
    assert list(unasked.has_more) == [partitions[1]]


def test_a_follower_that_would_not_ask_for_it_is_told_of_nothing_else() -> None:
    async def test(scene: Scene) -> None:
        assert isinstance(scene, TwoPartitions)
        scene.ask_for_both()
        scene.begin(scene.request_for(scene.follower.partition, session_epoch=-1))
        scene.append_to_other()
        await spin()
        assert scene.answers == []
        for _ in range(2):
            assert isinstance(scene.begin(scene.request_for(scene.follower.partition, session_epoch=-1)), ReplicaFetch)

    run(test, TwoPartitions)


# --- Large fetches ----------------------------------------------------------------------------------------------------


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


def test_what_comes_while_a_large_fetch_is_read_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        assert isinstance(scene, TwoPartitions)
        scene.ask_for_both()
        monkeypatch.setattr(replica_module, "PART", 1)
        read = replica_module.Reading.read

        def read_and_append(reading: replica_module.Reading, items: list[FetchPartition], **more: bool) -> None:
            read(reading, items, **more)
            if items[0].partition == OTHER.partition and scene.other(scene.leader).log_end_offset == 0:
                asyncio.get_running_loop().call_soon(scene.append_to_other)

        monkeypatch.setattr(replica_module.Reading, "read", read_and_append)
        monkeypatch.setattr(replica_module.Turns, "give_way", lambda _: spin())
        scene.begin(scene.request_for(scene.other(scene.follower), scene.follower.partition))
        for _ in range(5):
            await spin()
        assert len(scene.answers) == 1
        monkeypatch.undo()
        next_one = scene.begin(scene.request_for(scene.follower.partition))
        assert named(next_one) == [(0, False), (1, False)], "what came since it was read is named"

    run(test, TwoPartitions)


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
