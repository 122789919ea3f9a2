"""Offsets that arrive late, meet the end of their transaction, or come from a member that was given up."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from delayed_wire import (
    GROUP,
    ID,
    A,
    B,
    Wire,
    attack,
    next_of,
)

import semel
from semel.broker.handlers.topics.changes import delete_topics
from semel.cli.demo.processes import NodeProcess
from semel.protocol.errors import AbortTransactionError, ErrorCode, RetriableError
from semel.protocol.ids import ProducerIdAndEpoch
from semel.protocol.v1 import groups_pb2, groups_pb2_grpc
from semel.runtime.shard import ShardState

# --- Offsets ----------------------------------------------------------------------------------------------------------


def test_T6_O1_offsets_that_arrive_after_their_transaction_are_refused_and_nothing_stays_pending(
    tmp_path: Path,
) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        assert await wire.commit_offset(producer, 5) is None
        following = await wire.end_for_sure(producer)
        assert isinstance(following, ProducerIdAndEpoch)
        await wire.settled()
        assert await wire.commit_offset(producer, 3) is ErrorCode.PRODUCER_FENCED
        await wire.send_for_sure(following, b"y")
        assert await wire.commit_offset(producer, 3) is ErrorCode.PRODUCER_FENCED
        assert await wire.committed() == 5
        await wire.end_for_sure(following)
        await wire.settled()
        assert await wire.committed() == 5

    attack(tmp_path, test)


def test_O1_offsets_that_meet_the_end_of_their_transaction_are_in_it_or_refused(tmp_path: Path) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        expected = -1
        for number in range(150):
            commit = number % 2 == 0
            await wire.send_for_sure(producer, b"x")
            refusal, following = await asyncio.gather(
                wire.commit_offset(producer, number), wire.end_for_sure(producer, commit)
            )
            assert isinstance(following, ProducerIdAndEpoch)
            await wire.settled()
            if refusal is None and commit:
                expected = number
            assert await wire.committed() == expected
            producer = following

    attack(tmp_path, test)


@pytest.mark.parametrize("pending", [False, True], ids=["committed", "pending"])
def test_O1_offsets_of_a_topic_whose_deletion_a_crash_cut_short_do_not_count_for_its_successor(
    tmp_path: Path, pending: bool
) -> None:
    """Or a group would pass over the first records of a topic that is made again under the name."""

    async def commit_and_delete(wire: Wire) -> None:
        producer = await wire.begin()
        assert await wire.commit_offset(producer, 5) is None
        if not pending:
            await wire.end_for_sure(producer)
            await wire.settled()
            assert await wire.committed() == 5
        # The metadata says so, and then nothing more happens.
        wire.node.metadata._listeners.clear()
        (result,) = await delete_topics(wire.node, ["a"])
        assert result.error is ErrorCode.NONE
        if pending:
            raise CrashError

    async def read_anew(wire: Wire) -> None:
        assert await wire.committed() == -1
        if pending:
            await wire.begin()  # ends what was open
            await wire.settled()
            assert await wire.committed() == -1

    if pending:
        with pytest.raises(CrashError):
            attack(tmp_path, commit_and_delete)
    else:
        attack(tmp_path, commit_and_delete)
    attack(tmp_path, read_anew)


class CrashError(Exception):
    """The test ends here: what is open stays open."""


def test_O4_a_member_that_was_given_up_cannot_commit_as_if_it_were_nobody(tmp_path: Path) -> None:
    """Its successor may have processed the records: as an anonymous committer it would repeat them (E1)."""
    node = NodeProcess(
        tmp_path / "data", settings=["offsets.topic.num.partitions=2", "group.initial.rebalance.delay.ms=0"]
    )
    node.start()
    try:
        with semel.Admin(node.bootstrap) as admin, semel.Producer(node.bootstrap) as producer:
            admin.create_topic("a", partitions=1)
            producer.send("a", b"x")
        options = {"group": GROUP, "topics": ["a"], "heartbeat_interval_ms": 20}
        with (
            semel.Consumer(node.bootstrap, **options) as zombie,
            semel.Consumer(node.bootstrap, **options) as successor,
        ):
            assert zombie.poll(20)
            joined = zombie.group_metadata()
            assert joined is not None
            with grpc.insecure_channel(node.bootstrap) as channel:
                leaving = groups_pb2.LeaveGroupRequest.Member(member_id=joined.member_id)
                request = groups_pb2.LeaveGroupRequest(group_id=GROUP, members=[leaving])
                groups_pb2_grpc.GroupServiceStub(channel).LeaveGroup(request)
            assert successor.poll(20)
            member = zombie._core._member
            assert member is not None
            while member.membership.metadata.generation_id >= 0:  # until its heartbeat tells it
                time.sleep(0.01)
            said = zombie.group_metadata()
            assert said is not None
            with semel.Producer(node.bootstrap, transactional_id=ID) as producer:
                producer.begin_transaction()
                with pytest.raises(AbortTransactionError) as refused:
                    producer.send_offsets({A: 1}, said)
                assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
                producer.abort_transaction()
            assert successor.committed() == {A: None}
    finally:
        node.kill()


PASSING = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
"""What a client tries again after."""


def test_T2_T4_O1_coordinators_that_start_again_from_their_logs_all_the_time_lose_and_tear_nothing(
    tmp_path: Path,
) -> None:
    """With decisions, markers, verifications and answers under way: what was told is what is read."""

    async def again(call: Callable[[], Awaitable[Any]]) -> Any:
        while (found := await call()) in PASSING or (isinstance(found, tuple) and found[0] in PASSING):
            pass
        return found

    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        await wire.commit_offset(producer, 0)
        producer = await again(lambda: wire.end(producer))
        expected: list[bytes] = []
        offset = 0
        restarts = 0
        draw = random.Random(7)
        done = asyncio.Event()

        async def restart() -> None:
            nonlocal restarts
            while not done.is_set():
                await asyncio.sleep(draw.uniform(0, 0.004))
                service = draw.choice([wire.node.transactions, wire.node.groups])
                shard = service._runtime._shards[draw.randrange(2)]
                restarts += shard.state is ShardState.ACTIVE
                shard._reload(RetriableError("the test says so", ErrorCode.KAFKA_STORAGE_ERROR))

        restarting = asyncio.ensure_future(restart())
        for number in range(50):
            value, commit, mine = b"%d" % number, number % 3 != 1, producer
            for tp in (A, B):
                error, _ = await again(lambda tp=tp, value=value, mine=mine: wire.send(mine, value, tp=tp))  # type: ignore[misc]
                assert error is ErrorCode.NONE
            assert await again(lambda number=number, mine=mine: wire.commit_offset(mine, number)) is None  # type: ignore[misc]
            producer = await again(lambda commit=commit, mine=mine: wire.end(mine, commit))  # type: ignore[misc]
            assert producer == next_of(mine), "one bump, however often it was asked for"
            if commit:
                expected.append(value)
                offset = number
        done.set()
        await restarting
        await wire.settled()
        assert restarts > 20
        assert await wire.read(A) == await wire.read(B) == expected
        assert await wire.committed() == offset

    attack(tmp_path, test)
