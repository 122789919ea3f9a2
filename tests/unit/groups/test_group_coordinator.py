"""The group coordinator's shell, over the real shard runtime and a log in memory."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest
from counted_turns import rounds_of_the_loop
from group_driver import assignment, commit, fetch, subscription
from memory_log import MemoryLog
from ready_topic import NoTopic, topic_is_ready

from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.coordinator import (
    FETCHED_AT_ONCE_MAX,
    OFFSETS_AT_ONCE_MAX,
    OFFSETS_OF_A_SMALL_REQUEST,
    GroupCoordinator,
)
from semel.group_coordinator.machine import GroupMachine
from semel.group_coordinator.offsets.table import OffsetTable
from semel.protocol.api.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from semel.protocol.api.groups import (
    DeleteGroupRequest,
    DescribeGroupRequest,
    GroupProtocol,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from semel.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TransactionVersion,
)
from semel.protocol.errors import ErrorCode, FencedError, RetriableError, SemelError, UsageError
from semel.protocol.ids import OFFSETS_TOPIC, ProducerIdAndEpoch, TopicPartition
from semel.runtime import turns
from semel.runtime.clock import ManualClock
from semel.runtime.machine import Result, Ticket

P0 = TopicPartition("orders", 0)
PRODUCER = ProducerIdAndEpoch(4001, 3)
PARTITIONS = 5


class Transactions:
    """A transaction coordinator that notes what it is asked, and answers as it is told."""

    def __init__(self) -> None:
        self.added: list[AddPartitionsToTxnRequest] = []
        self.verified: list[AddPartitionsToTxnRequest] = []
        self.code = ErrorCode.NONE
        self.meanwhile: Coroutine[Any, Any, None] | None = None

    async def add_partitions(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        self.added.append(request)
        return await self._answer(request)

    async def verify(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        self.verified.append(request)
        return await self._answer(request)

    async def _answer(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        if self.meanwhile is not None:
            await self.meanwhile
            self.meanwhile = None
        return AddPartitionsToTxnResponse(dict.fromkeys(request.partitions, self.code))


class World:
    def __init__(self, config: GroupConfig | None = None) -> None:
        self.logs = {number: MemoryLog() for number in range(PARTITIONS)}
        self.transactions = Transactions()
        self.clock = ManualClock()
        self.service = GroupCoordinator(
            partition_count=lambda: PARTITIONS,
            open_log=self.logs.__getitem__,
            topic_ready=topic_is_ready,
            transactions=self.transactions,
            clock=self.clock,
            config=config,
            new_id=self._new_id,
        )
        self._ids = 0

    def _new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"

    async def load(self) -> GroupCoordinator:
        for number in self.logs:
            await self.service.load(number, 0)
        return self.service

    def join(self, group_id: str = "enrich", member_id: str = "", **changes: Any) -> JoinGroupRequest:
        request = JoinGroupRequest(
            group_id,
            member_id,
            None,
            "consumer",
            (GroupProtocol("range", subscription("orders")),),
            10_000,
            60_000,
            "client",
            "host",
        )
        return replace(request, **changes)

    async def stable(self, group_id: str = "enrich") -> JoinGroupResponse:
        promised = await self.service.join(self.join(group_id))
        response = await self.service.join(self.join(group_id, promised.member_id))
        request = SyncGroupRequest(
            group_id, response.generation_id, response.member_id, None, {response.member_id: assignment(0)}
        )
        assert (await self.service.sync(request)).assignment == assignment(0)
        return response


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


def test_D5_O1_offsets_are_told_when_the_commit_that_published_them_is_durable() -> None:
    """Plain ones, and those that a marker publishes: who begins at an offset that is lost later has skipped records."""

    async def scenario() -> None:
        world = World()
        service = await world.load()
        log = world.logs[service.offsets_partition("enrich").partition]
        for committing in (commit({P0: 5}), commit({P0: 7}, producer=PRODUCER)):
            await service.commit_offsets(replace(committing, group_id="enrich", transactional_id="t"))
            log.auto_commit = False
            if committing.producer is None:
                again = asyncio.ensure_future(service.commit_offsets(replace(committing, group_id="enrich")))
            else:
                ended = ProducerIdAndEpoch(PRODUCER.producer_id, PRODUCER.producer_epoch + 1)
                marker = service.write_marker(
                    service.offsets_partition("enrich").partition, ended, 0, True, TransactionVersion.V2
                )
                again = asyncio.ensure_future(marker)
            await asyncio.sleep(0)
            told = asyncio.ensure_future(service.fetch_offsets(fetch(P0, group="enrich")))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not again.done()
            assert not told.done()
            await log.commit()
            await again
            assert (await told).offsets[P0].offset == (5 if committing.producer is None else 7)
            log.auto_commit = True

    run(scenario())


async def code_of(call: Coroutine[Any, Any, object]) -> ErrorCode:
    with pytest.raises(SemelError) as caught:
        await call
    return caught.value.code


def test_a_member_joins_syncs_commits_restarts_and_leaves() -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        member = await world.stable()
        beat = HeartbeatRequest("enrich", 1, member.member_id, None)
        assert await groups.heartbeat(beat) == HeartbeatResponse()
        await groups.commit_offsets(commit({P0: 9}, generation=1, member_id=member.member_id))
        await groups.load(groups.offsets_partition("enrich").partition, 1)
        assert await groups.heartbeat(beat) == HeartbeatResponse()
        assert (await groups.fetch_offsets(fetch(P0))).offsets[P0].offset == 9
        assert (await groups.describe(DescribeGroupRequest("enrich"))).state == "Stable"
        left = await groups.leave(LeaveGroupRequest("enrich", (MemberIdentity(member.member_id),)))
        assert left.errors == (ErrorCode.NONE,)
        await groups.delete(DeleteGroupRequest("enrich"))
        assert (await groups.describe(DescribeGroupRequest("enrich"))).state == "Dead"
        groups.close()

    run(test())


def test_deferred_joins_are_answered_when_everybody_is_there() -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        first = await world.stable()
        promised = await groups.join(world.join())
        waiting = asyncio.create_task(groups.join(world.join(member_id=promised.member_id)))
        await asyncio.sleep(0)
        assert await code_of(groups.heartbeat(HeartbeatRequest("enrich", 1, first.member_id, None))) is (
            ErrorCode.REBALANCE_IN_PROGRESS
        )
        leader = await groups.join(world.join(member_id=first.member_id))
        assert len(leader.members) == 2
        assert (await waiting).generation_id == 2
        groups.close()

    run(test())


def test_unload_answers_who_waits() -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        await world.stable()
        promised = await groups.join(world.join())
        waiting = asyncio.create_task(groups.join(world.join(member_id=promised.member_id)))
        await asyncio.sleep(0)
        groups.unload(groups.offsets_partition("enrich").partition)
        assert await code_of(_result(waiting)) is ErrorCode.NOT_COORDINATOR
        assert await code_of(groups.describe(DescribeGroupRequest("enrich"))) is ErrorCode.NOT_COORDINATOR
        groups.close()

    run(test())


async def _result(task: asyncio.Task[Any]) -> object:
    return await task


def test_sync_is_answered_only_when_its_record_is_committed() -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        log = world.logs[groups.offsets_partition("enrich").partition]
        promised = await groups.join(world.join())
        response = await groups.join(world.join(member_id=promised.member_id))
        log.auto_commit = False
        request = SyncGroupRequest("enrich", response.generation_id, response.member_id, None, {})
        waiting = asyncio.create_task(groups.sync(request))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        await log.commit()
        assert (await waiting).assignment == b""
        groups.close()

    run(test())


def test_heartbeats_are_answered_while_groups_load(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        # No turn ends: on a busy machine a list would otherwise give way to the loading that it is to find.
        monkeypatch.setattr(turns, "seconds", lambda: 0.0)
        world = World()
        groups = await world.load()
        loading = asyncio.ensure_future(groups.load(groups.offsets_partition("enrich").partition, 1))
        assert await groups.heartbeat(HeartbeatRequest("enrich", 1, "any", None)) == HeartbeatResponse()
        assert await code_of(groups.list(ListGroupsRequest())) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await loading
        groups.unload(groups.offsets_partition("enrich").partition)
        assert await code_of(groups.heartbeat(HeartbeatRequest("enrich", 1, "any", None))) is ErrorCode.NOT_COORDINATOR
        groups.close()

    run(test())


def test_list_gathers_all_partitions() -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        names = [f"group-{number}" for number in range(12)]
        for name in names:
            await groups.commit_offsets(commit({P0: 1}, group=name))
        assert [listing.group_id for listing in (await groups.list(ListGroupsRequest())).groups] == sorted(names)
        assert len({groups.offsets_partition(name) for name in names}) > 1
        assert groups.offsets_partition(names[0]).topic == OFFSETS_TOPIC
        await groups.topics_deleted(["orders"])
        assert (await groups.list(ListGroupsRequest())).groups == ()
        groups.close()

    run(test())


# --- Transactions -----------------------------------------------------------------------------------------------------


def test_O1_transactional_offsets_wait_for_the_marker() -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        partition = groups.offsets_partition("enrich")
        await groups.commit_offsets(commit({P0: 5}, producer=PRODUCER))
        assert (await groups.fetch_offsets(fetch(P0))).offsets[P0].error is ErrorCode.UNSTABLE_OFFSET_COMMIT
        await groups.write_marker(partition.partition, PRODUCER, 0, True)
        assert (await groups.fetch_offsets(fetch(P0))).offsets[P0].offset == 5
        groups.close()

    run(test())


@pytest.mark.parametrize("version", list(TransactionVersion))
def test_T8_first_commit_of_a_transaction_is_verified_or_adds_its_partition(version: TransactionVersion) -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        await groups.commit_offsets(commit({P0: 5}, producer=PRODUCER), version=version)
        await groups.commit_offsets(commit({P0: 6}, producer=PRODUCER), version=version)
        asked = world.transactions.added if version is TransactionVersion.V2 else world.transactions.verified
        [request] = asked
        assert len(world.transactions.added) + len(world.transactions.verified) == 1
        assert request.partitions == (groups.offsets_partition("enrich"),)
        assert (request.transactional_id, request.producer, request.version) == ("txn", PRODUCER, version)
        assert request.verify_only is (version < TransactionVersion.V2)
        groups.close()

    run(test())


def test_T8_commit_that_is_not_in_the_transaction_is_refused() -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        world.transactions.code = ErrorCode.TRANSACTION_ABORTABLE
        refused = groups.commit_offsets(commit({P0: 5}, producer=PRODUCER), version=TransactionVersion.V1)
        assert await code_of(refused) is ErrorCode.TRANSACTION_ABORTABLE
        assert not any(log.batches for log in world.logs.values())
        groups.close()

    run(test())


def test_T8_transaction_that_ends_during_the_verification_leaves_nothing_hanging() -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        partition = groups.offsets_partition("enrich").partition
        world.transactions.meanwhile = groups.write_marker(partition, PRODUCER, 0, False)
        late = groups.commit_offsets(commit({P0: 5}, producer=PRODUCER))
        assert await code_of(late) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await groups.fetch_offsets(fetch(P0))).offsets[P0].error is ErrorCode.NONE
        await groups.commit_offsets(commit({P0: 5}, producer=PRODUCER))
        groups.close()

    run(test())


def test_T8_a_marker_that_ends_nothing_in_the_offsets_voids_what_is_being_verified_too() -> None:
    """Of the older protocol all transactions have one epoch: a marker of one without offsets repeats the last one."""

    async def test() -> None:
        world = World()
        groups = await world.load()
        partition = groups.offsets_partition("enrich").partition
        log = world.logs[partition]
        await groups.commit_offsets(commit({P0: 5}, producer=PRODUCER), version=TransactionVersion.V1)
        await groups.write_marker(partition, PRODUCER, 0, True)
        end = log.log_end_offset
        world.transactions.meanwhile = groups.write_marker(partition, PRODUCER, 0, False)
        late = groups.commit_offsets(commit({P0: 6}, producer=PRODUCER), version=TransactionVersion.V1)
        assert await code_of(late) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert log.log_end_offset == end, "nothing was added: no marker would ever end it"
        assert (await groups.fetch_offsets(fetch(P0))).offsets[P0].offset == 5
        groups.close()

    run(test())


def test_producer_that_the_log_fences_is_told_so_and_the_group_goes_on() -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        member = await world.stable()
        log = world.logs[groups.offsets_partition("enrich").partition]
        log.refuse = FencedError("epoch 3 is old", ErrorCode.INVALID_PRODUCER_EPOCH)
        zombie = commit({P0: 5}, generation=1, member_id=member.member_id, producer=PRODUCER)
        assert await code_of(groups.commit_offsets(zombie)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await groups.heartbeat(HeartbeatRequest("enrich", 1, member.member_id, None)) == HeartbeatResponse()
        groups.close()

    run(test())


def test_failed_append_reloads_the_group_from_its_log() -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        member = await world.stable()
        partition = groups.offsets_partition("enrich").partition
        world.logs[partition].refuse = RetriableError("the disk is slow", ErrorCode.KAFKA_STORAGE_ERROR)
        plain = commit({P0: 5}, generation=1, member_id=member.member_id)
        assert await code_of(groups.commit_offsets(plain)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        for _ in range(20):
            await asyncio.sleep(0)
        await groups.commit_offsets(plain)
        assert (await groups.fetch_offsets(fetch(P0))).offsets[P0].offset == 5
        groups.close()

    run(test())


# --- Time, events, and what is refused at the door --------------------------------------------------------------------


def test_silent_member_is_removed_by_the_clock(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        member = await world.stable()
        world.clock.advance(ms=10_000)
        groups.run_due_timers()
        beat = HeartbeatRequest("enrich", 1, member.member_id, None)
        assert await code_of(groups.heartbeat(beat)) is ErrorCode.UNKNOWN_MEMBER_ID
        groups.close()

    with caplog.at_level(logging.INFO, logger="semel.groups"):
        run(test())
    assert "group member removed group=enrich generation=1" in caplog.text


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "x" * 1025}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "x" * 5_000}, ErrorCode.INVALID_REQUEST),
        ({"group_instance_id": "x" * 5_000}, ErrorCode.INVALID_REQUEST),
        ({"client_id": "x" * 5_000}, ErrorCode.INVALID_REQUEST),
        ({"client_id": "x" * 4_094}, ErrorCode.INVALID_REQUEST),  # too long with what is added to make a member id
        ({"protocols": (GroupProtocol("p", bytes(300_000)),)}, ErrorCode.INVALID_REQUEST),
        ({"protocols": tuple(GroupProtocol(str(n), b"") for n in range(65))}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_joins_out_of_bounds_are_refused(changes: dict[str, Any], code: ErrorCode) -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        assert await code_of(groups.join(world.join(**changes))) is code
        groups.close()

    run(test())


def test_a_member_that_comes_without_an_id_is_given_one() -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        assert (await groups.join(world.join())).member_id == "client-id-1"
        # The id that it was given is the one it has.
        assert (await groups.join(world.join(member_id="client-id-1"))).member_id == "client-id-1"
        static = await groups.join(world.join("static", group_instance_id="i-1"))
        assert static.member_id == "i-1-id-2"
        joining = ConsumerGroupHeartbeatRequest(
            "newer", "", 0, rebalance_timeout_ms=60_000, topic_names=("orders",), owned=frozenset()
        )
        assert await code_of(groups.consumer_heartbeat(joining)) is ErrorCode.INVALID_REQUEST
        old = replace(joining, needs_member_id=True)
        assert (await groups.consumer_heartbeat(old)).member_id == "id-3"
        assert (await groups.consumer_heartbeat(replace(old, member_id="mine"))).member_id == "mine"
        groups.close()

    run(test())


CALLS: dict[str, Callable[[GroupCoordinator, World], Coroutine[Any, Any, Any]]] = {
    "join": lambda groups, world: groups.join(world.join()),
    "sync": lambda groups, world: groups.sync(SyncGroupRequest("enrich", 1, "m", None, {})),
    "heartbeat": lambda groups, world: groups.heartbeat(HeartbeatRequest("enrich", 1, "m", None)),
    "leave": lambda groups, world: groups.leave(LeaveGroupRequest("enrich", (MemberIdentity("m"),))),
    "consumer heartbeat": lambda groups, world: groups.consumer_heartbeat(
        ConsumerGroupHeartbeatRequest("enrich", "m", 1)
    ),
    "commit": lambda groups, world: groups.commit_offsets(commit({P0: 1})),
    "commit many": lambda groups, world: groups.commit_offsets(commit(dict.fromkeys(many_partitions(), 1))),
    "commit in a transaction": lambda groups, world: groups.commit_offsets(
        replace(commit({P0: 1}, producer=PRODUCER), transactional_id="t")
    ),
    "add to transaction": lambda groups, world: groups.add_to_transaction("t", PRODUCER, "enrich"),
    "fetch": lambda groups, world: groups.fetch_offsets(fetch(P0)),
    "delete offsets": lambda groups, world: groups.delete_offsets(OffsetDeleteRequest("enrich", (P0,))),
    "delete many offsets": lambda groups, world: groups.delete_offsets(
        OffsetDeleteRequest("enrich", tuple(many_partitions()))
    ),
    "describe": lambda groups, world: groups.describe(DescribeGroupRequest("enrich")),
    "describe consumers": lambda groups, world: groups.describe_consumers(ConsumerGroupDescribeRequest("enrich")),
    "delete": lambda groups, world: groups.delete(DeleteGroupRequest("enrich")),
}


def many_partitions() -> list[TopicPartition]:
    return [TopicPartition("orders", number) for number in range(OFFSETS_AT_ONCE_MAX + 1)]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_its_topic_made_before_a_machine_is_asked(name: str) -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        topic = groups.topic_ready = NoTopic()
        assert await code_of(CALLS[name](groups, world)) is ErrorCode.NOT_COORDINATOR
        assert topic.creations == 1
        assert not world.transactions.added
        groups.topic_ready = topic_is_ready
        assert (await groups.list(ListGroupsRequest())).groups == ()
        groups.close()

    run(test())


def test_a_list_of_groups_makes_no_topic() -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        topic = groups.topic_ready = NoTopic()
        assert (await groups.list(ListGroupsRequest())).groups == ()
        assert topic.creations == 0
        groups.close()

    run(test())


def test_empty_group_id_is_for_old_offsets_only() -> None:
    async def test() -> None:
        world = World()
        groups = await world.load()
        await groups.commit_offsets(commit({P0: 1}, group=""))
        assert (await groups.fetch_offsets(fetch(P0, group=""))).offsets[P0].offset == 1
        assert (await groups.describe(DescribeGroupRequest(""))).state == "Empty"
        await groups.delete(DeleteGroupRequest(""))
        for call in (
            groups.sync(SyncGroupRequest("", 1, "m", None, {})),
            groups.heartbeat(HeartbeatRequest("", 1, "m", None)),
            groups.leave(LeaveGroupRequest("", ())),
            groups.delete_offsets(OffsetDeleteRequest("", ())),
            groups.commit_offsets(commit({P0: 1}, group="", producer=PRODUCER)),
        ):
            assert await code_of(call) is ErrorCode.INVALID_GROUP_ID
        groups.close()

    run(test())


def test_leave_of_more_members_than_a_group_has_and_commit_without_its_id_are_refused() -> None:
    async def test() -> None:
        world = World(GroupConfig(group_max_size=2))
        groups = await world.load()
        many = LeaveGroupRequest("enrich", tuple(MemberIdentity(str(number)) for number in range(3)))
        assert await code_of(groups.leave(many)) is ErrorCode.INVALID_REQUEST
        nameless = replace(commit({P0: 1}, producer=PRODUCER), transactional_id=None)
        with pytest.raises(UsageError, match="transactional id"):
            await groups.commit_offsets(nameless)
        groups.close()

    run(test())


MANY = [TopicPartition("orders", number) for number in range(2 * OFFSETS_AT_ONCE_MAX + 5)]
PARTS = [OFFSETS_AT_ONCE_MAX, OFFSETS_AT_ONCE_MAX, 5]


class Decided:
    """How many records each decision of the machines was for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.refusal_at: dict[int, SemelError] = {}
        """The next decision after so many is this refusal, once."""
        known = GroupMachine.handle

        def noted(machine: GroupMachine, request: Any, now_ms: int, ticket: Ticket) -> Result[Any]:
            if len(self.sizes) in self.refusal_at and isinstance(request, (OffsetCommitRequest, OffsetDeleteRequest)):
                return Result(self.refusal_at.pop(len(self.sizes)))
            result = known(machine, request, now_ms, ticket)
            if result.records:
                self.sizes.append(len(result.records))
            return result

        monkeypatch.setattr(GroupMachine, "handle", noted)


def test_S3_many_offsets_are_committed_and_deleted_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    decided = Decided(monkeypatch)

    async def test() -> None:
        groups = await World().load()
        request = commit(dict.fromkeys(MANY, 7))
        answer, rounds = await rounds_of_the_loop(groups.commit_offsets(request))
        assert decided.sizes == PARTS
        assert rounds >= len(PARTS)
        assert answer.errors == dict.fromkeys(MANY, ErrorCode.NONE)
        assert list(answer.errors) == MANY
        decided.sizes.clear()
        deletion, rounds = await rounds_of_the_loop(groups.delete_offsets(OffsetDeleteRequest("enrich", tuple(MANY))))
        assert decided.sizes == PARTS
        assert rounds >= len(PARTS)
        assert deletion.errors == dict.fromkeys(MANY, ErrorCode.NONE)
        decided.sizes.clear()
        await groups.commit_offsets(commit(dict.fromkeys(MANY, 8), producer=PRODUCER))
        assert decided.sizes == PARTS
        groups.close()

    run(test())


def decided_in_rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list that gets, for each request that a machine decides, the round of the event loop."""
    rounds: list[int] = []
    handle = GroupMachine.handle
    now = itertools.count()
    state = {"now": 0}

    def counting(self: GroupMachine, request: object, now_ms: int, ticket: Ticket) -> Any:
        rounds.append(state["now"])
        return handle(self, request, now_ms, ticket)

    def next_round() -> None:
        state["now"] = next(now)
        asyncio.get_running_loop().call_soon(next_round)

    asyncio.get_running_loop().call_soon(next_round)
    monkeypatch.setattr(GroupMachine, "handle", counting)
    return rounds


@pytest.mark.parametrize("what", ["groups deleted", "offsets committed", "offsets fetched"])
def test_S3_large_requests_of_many_clients_are_decided_one_in_a_round(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty clients that delete a group of 1,000 offsets each held the loop for 400 ms."""
    names = [f"group-{number}" for number in range(20)]
    offsets = {TopicPartition("orders", number): 1 for number in range(OFFSETS_OF_A_SMALL_REQUEST + 1)}

    async def test() -> None:
        groups = await World().load()
        for name in names:
            await groups.commit_offsets(replace(commit(offsets), group_id=name))
        rounds = decided_in_rounds(monkeypatch)
        calls: dict[str, Callable[[str], Coroutine[Any, Any, object]]] = {
            "groups deleted": lambda name: groups.delete(DeleteGroupRequest(name)),
            "offsets committed": lambda name: groups.commit_offsets(replace(commit(offsets), group_id=name)),
            "offsets fetched": lambda name: groups.fetch_offsets(OffsetFetchRequest(name, tuple(offsets))),
        }
        await asyncio.gather(*(calls[what](name) for name in names))
        assert len(rounds) == len(names)
        assert len(set(rounds)) == len(names)
        groups.close()

    run(test())


def test_O1_a_commit_behind_the_deletion_of_its_group_comes_after_it() -> None:
    async def test() -> None:
        groups = await World().load()
        await groups.commit_offsets(commit({P0: 1}))
        deletion = asyncio.ensure_future(groups.delete(DeleteGroupRequest("enrich")))
        await asyncio.sleep(0)
        again = asyncio.ensure_future(groups.commit_offsets(commit({P0: 2})))
        await asyncio.gather(deletion, again)
        answer = await groups.fetch_offsets(OffsetFetchRequest("enrich", (P0,)))
        assert answer.offsets[P0].offset == 2
        groups.close()

    run(test())


def test_S3_O1_what_a_group_asks_behind_a_commit_in_parts_comes_after_it() -> None:
    async def test() -> None:
        groups = await World().load()
        first = asyncio.ensure_future(groups.commit_offsets(commit(dict.fromkeys(MANY, 1))))
        await asyncio.sleep(0)
        small = asyncio.ensure_future(groups.commit_offsets(commit({MANY[-1]: 2})))
        many = asyncio.ensure_future(groups.commit_offsets(commit({**dict.fromkeys(MANY[:-1], 3), MANY[-1]: 2})))
        other = asyncio.ensure_future(groups.commit_offsets(commit({P0: 9}, group="other")))
        await other
        assert not small.done()
        await asyncio.gather(first, small, many)
        found = (await groups.fetch_offsets(fetch(MANY[0], MANY[-2], MANY[-1]))).offsets
        assert [found[tp].offset for tp in (MANY[0], MANY[-2], MANY[-1])] == [3, 3, 2]
        assert not groups._in_parts
        groups.close()

    run(test())


def test_S3_where_a_later_part_of_a_commit_is_refused_its_partitions_have_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided = Decided(monkeypatch)
    refusal = FencedError("the generation is over", ErrorCode.ILLEGAL_GENERATION)

    async def test() -> None:
        groups = await World().load()
        decided.refusal_at = {1: refusal}
        errors = (await groups.commit_offsets(commit(dict.fromkeys(MANY, 7)))).errors
        done, refused = MANY[:OFFSETS_AT_ONCE_MAX], MANY[OFFSETS_AT_ONCE_MAX:]
        assert errors == {
            **dict.fromkeys(done, ErrorCode.NONE),
            **dict.fromkeys(refused, ErrorCode.ILLEGAL_GENERATION),
        }
        decided.refusal_at = {len(decided.sizes): refusal}
        assert await code_of(groups.commit_offsets(commit(dict.fromkeys(MANY, 7)))) is ErrorCode.ILLEGAL_GENERATION
        assert decided.sizes == PARTS[:1]
        groups.close()

    run(test())


def test_S3_a_commit_that_is_too_large_as_a_whole_is_refused_before_a_part_of_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided = Decided(monkeypatch)

    async def test() -> None:
        groups = await World(GroupConfig(group_records_max_bytes=60_000)).load()
        refused = groups.commit_offsets(commit(dict.fromkeys(MANY, 7)))
        assert await code_of(refused) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert decided.sizes == []
        groups.close()

    run(test())


def test_S3_offsets_of_many_partitions_are_fetched_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    known = OffsetTable.fetch

    def noted(self: OffsetTable, group_id: str, asked: Sequence[TopicPartition], **how: bool) -> Any:
        sizes.append(len(asked))
        return known(self, group_id, asked, **how)

    monkeypatch.setattr(OffsetTable, "fetch", noted)

    async def test() -> None:
        service = await World().load()
        many = tuple(TopicPartition("orders", number) for number in range(2 * FETCHED_AT_ONCE_MAX + 5))
        await service.commit_offsets(commit({many[0]: 7, many[-1]: 8}))
        offsets = (await service.fetch_offsets(fetch(*many))).offsets
        assert tuple(offsets) == many
        assert (offsets[many[0]].offset, offsets[many[1]].offset, offsets[many[-1]].offset) == (7, -1, 8)
        assert sizes == [FETCHED_AT_ONCE_MAX, FETCHED_AT_ONCE_MAX, 5]

    run(test())
