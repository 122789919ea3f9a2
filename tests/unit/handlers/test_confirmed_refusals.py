"""A batch is refused as out of order only by who leads still: a deposed leader lacks what came since (P2, R9)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from counted_turns import every_look_takes_a_millisecond
from kafka_node import until
from running_node import batch, create_topic, running_node
from two_nodes import ONE, TWO, TwoNodes, run_with_two, tell

from semel.broker.metadata.changes import PartitionChanged, PartitionState
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.node import Node
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.produce import (
    ACKS_ALL,
    ACKS_LEADER,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
)

PRODUCER_ID = 5


async def produced(node: Node, sequence: int, acks: int = ACKS_ALL) -> ProducePartitionResponse:
    data = batch(b"v", producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence)
    request = ProduceRequest([ProducePartition("t", 0, data)], None, acks, 30_000)
    return (await node.produce.produce(request)).partitions[0]


@pytest.mark.parametrize("acks", [ACKS_LEADER, ACKS_ALL])
def test_P2_who_leads_refuses_a_batch_that_is_out_of_order(tmp_path: Path, acks: int) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE)
        assert (await produced(both.one, 0, acks)).error is ErrorCode.NONE
        refused = await produced(both.one, 5, acks)
        assert refused.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert "sent sequence 5, where 1 is next" in (refused.error_message or "")
        assert both.one.produce.refusals == {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: 1}
        assert (await produced(both.one, 1, acks)).error is ErrorCode.NONE

    run_with_two(tmp_path, test)


@pytest.mark.parametrize("acks", [ACKS_LEADER, ACKS_ALL])
def test_P2_who_was_deposed_sends_the_producer_to_the_new_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    async def test(both: TwoNodes) -> None:
        topic_id = await both.create("t", ONE)
        assert (await produced(both.one, 0, acks)).error is ErrorCode.NONE
        deposed = PartitionChanged("t", topic_id, 0, PartitionState(TWO, 1, (ONE, TWO), (TWO,), 1))
        refresh = both.one.metadata.refresh

        async def learning() -> object:
            monkeypatch.setattr(both.one.metadata, "refresh", refresh)
            await tell(both.one, deposed)
            return await refresh()

        monkeypatch.setattr(both.one.metadata, "refresh", learning)
        answer = await produced(both.one, 2, acks)  # 1 was appended by the new leader
        assert answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (answer.leader_id, answer.leader_epoch) == (TWO, 1)
        assert both.one.produce.refusals == {ErrorCode.NOT_LEADER_OR_FOLLOWER: 1}, "as it was answered, and once"

    run_with_two(tmp_path, test)


def test_P2_who_can_t_find_out_refuses_for_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE)
        assert (await produced(both.one, 0)).error is ErrorCode.NONE

        async def away() -> None:
            raise MetadataUnavailableError("the database is away")

        with monkeypatch.context() as patch:
            patch.setattr(both.one.metadata, "refresh", away)
            assert (await produced(both.one, 2)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await produced(both.one, 1)).error is ErrorCode.NONE

    run_with_two(tmp_path, test)


def test_P2_no_refusal_leaves_before_a_look_that_began_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE)
        assert (await produced(both.one, 0)).error is ErrorCode.NONE
        refresh, looks = both.one.metadata.refresh, []

        async def held() -> object:
            looks.append(asyncio.Event())
            await looks[-1].wait()
            return await refresh()

        monkeypatch.setattr(both.one.metadata, "refresh", held)
        first = asyncio.ensure_future(produced(both.one, 2))
        await until(lambda: len(looks) == 1)
        second = asyncio.ensure_future(produced(both.one, 3))  # what is being read may be older than this
        await asyncio.sleep(0)
        assert not first.done()
        looks[0].set()
        await until(lambda: len(looks) == 2)
        assert (await first).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert not second.done()
        looks[1].set()
        assert (await second).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    run_with_two(tmp_path, test)


def test_P2_a_look_that_breaks_holds_up_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE)
        assert (await produced(both.one, 0)).error is ErrorCode.NONE

        async def broken() -> None:
            raise RuntimeError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(both.one.metadata, "refresh", broken)
            assert (await produced(both.one, 2)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await produced(both.one, 2)).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    run_with_two(tmp_path, test)


class Run:
    """A request of which it is counted how many of its batches are answered before others have the event loop."""

    def __init__(self) -> None:
        self.answers = self.in_this_round = self.most_in_a_round = 0

    def fail(self, index: int, error: SemelError) -> None:
        self.answers += 1
        self.in_this_round += 1
        self.most_in_a_round = max(self.most_in_a_round, self.in_this_round)


def test_S3_many_refusals_are_answered_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request can have thousands of batches."""

    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE)
        run, confirmations = Run(), both.one.produce.confirmations
        assert confirmations is not None
        error = error_for(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "out of order")
        every_look_takes_a_millisecond(monkeypatch)
        for place in range(1_000):
            confirmations.begin(run, place, error, TopicPartition("t", 0))
        while run.answers < 1_000:
            run.in_this_round = 0
            await asyncio.sleep(0)
        assert run.most_in_a_round < 20

    run_with_two(tmp_path, test)


def test_S3_many_refusals_share_a_look_at_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE)
        assert (await produced(both.one, 0)).error is ErrorCode.NONE
        refresh, looks = both.one.metadata.refresh, 0

        async def counted() -> object:
            nonlocal looks
            looks += 1
            await asyncio.sleep(0.01)
            return await refresh()

        monkeypatch.setattr(both.one.metadata, "refresh", counted)
        answers = await asyncio.gather(*(produced(both.one, sequence) for sequence in range(2, 100)))
        assert {each.error for each in answers} == {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
        assert looks <= 2

    run_with_two(tmp_path, test)


def test_a_node_that_is_alone_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "t")
            monkeypatch.setattr(node.metadata, "refresh", None)
            assert (await produced(node, 0)).error is ErrorCode.NONE
            assert (await produced(node, 2)).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    asyncio.run(main())


def test_a_stop_waits_for_no_look_at_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE)
        assert (await produced(both.one, 0)).error is ErrorCode.NONE
        began = asyncio.Event()

        async def endless() -> None:
            began.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(both.one.metadata, "refresh", endless)
            waiting = asyncio.ensure_future(produced(both.one, 2))
            await began.wait()
            await both.one.produce.close()
            assert (await waiting).error is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_with_two(tmp_path, test)
