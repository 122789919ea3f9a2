"""R9: what a coordinator answers from its state alone passes the read barrier: each kind of answer of both of them.

The tables name every request of the machines and every public method of the coordinators: a new one fails here until it
is in its table, with an example that shows that it waits, or with the reason why it need not.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from coordinator_node import ID, P0, TIMEOUT_MS, Log, Node, spin
from group_driver import assignment, commit, fetch, subscription
from held_barrier import HeldBarrier, Passing
from memory_log import MemoryLog
from ready_topic import topic_is_ready

from semel.group_coordinator.computations import Computation, Computed
from semel.group_coordinator.coordinator import GroupCoordinator
from semel.group_coordinator.machine import GroupMachine
from semel.group_coordinator.requests import (
    BeginVerification,
    HeldPartitions,
    TopicsDeleted,
    TopicsLeft,
    VerifiedCommit,
)
from semel.protocol.api.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from semel.protocol.api.groups import (
    DeleteGroupRequest,
    DescribeGroupRequest,
    GroupProtocol,
    HeartbeatRequest,
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
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.shared_transactions import (
    AbortSharedRequest,
    CommitSharedRequest,
    DescribeSharedRequest,
    LeaveSharedRequest,
    ListSharedRequest,
    OpenSharedRequest,
)
from semel.protocol.api.transactions import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TransactionVersion,
)
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch
from semel.runtime.clock import ManualClock
from semel.runtime.machine import Tick
from semel.runtime.read_barrier import ONE_NODE
from semel.txn_coordinator.coordinator import TransactionCoordinator
from semel.txn_coordinator.effects import MarkersWritten, WithProducerId
from semel.txn_coordinator.machine import TransactionMachine

ROOT: Final = Path(__file__).resolve().parents[3]
KEY, ATTEMPT, TOKEN = "batch", "attempt-1", "token-1"
FIRST, STRANGER = ProducerIdAndEpoch(1001, 0), ProducerIdAndEpoch(1001, 9)
GROUP = "enrich"
ZOMBIE, ENDED = ProducerIdAndEpoch(4001, 2), ProducerIdAndEpoch(4001, 3)

NO_CALLER = "nobody waits for it: what it does leaves as records"
LOOK = "a look for metrics, diagnostics and tests; who acts on it calls `confirm` before"
NO_STATE = "it does not look at what a machine holds"


# --- What the transaction coordinator answers from state --------------------------------------------------------------

_FENCED_INIT = InitProducerIdRequest(ID, TIMEOUT_MS, STRANGER)
_VERIFY = AddPartitionsToTxnRequest(ID, ProducerIdAndEpoch(1001, 1), (P0,), verify_only=True)
_REPEATED_END = EndTxnRequest(ID, FIRST, True, token=TOKEN)
_UNKNOWN_ABORT = AbortTransactionRequest("nobody")
_RETIRED_OPEN = OpenSharedRequest(KEY, ATTEMPT, TOKEN, timeout_ms=TIMEOUT_MS)
_REPEATED_COMMIT = CommitSharedRequest(KEY, ATTEMPT, TOKEN, ())

TRANSACTION_REQUESTS: Final[Mapping[type, object]] = {
    InitProducerIdRequest: _FENCED_INIT,
    AddPartitionsToTxnRequest: _VERIFY,
    EndTxnRequest: _REPEATED_END,
    WithProducerId: WithProducerId(_FENCED_INIT, 7),
    MarkersWritten: MarkersWritten(ID, -5, FIRST, frozenset({P0})),
    Tick: NO_CALLER,
    AbortTransactionRequest: _UNKNOWN_ABORT,
    DescribeTransactionRequest: DescribeTransactionRequest(ID),
    ListTransactionsRequest: ListTransactionsRequest(),
    OpenSharedRequest: _RETIRED_OPEN,
    CommitSharedRequest: _REPEATED_COMMIT,
    AbortSharedRequest: AbortSharedRequest(KEY, ATTEMPT),
    LeaveSharedRequest: LeaveSharedRequest(KEY, ATTEMPT, FIRST),
    DescribeSharedRequest: DescribeSharedRequest(KEY),
    ListSharedRequest: ListSharedRequest(),
}

Call = Callable[[Any], Awaitable[object]]

TRANSACTION_METHODS: Final[Mapping[str, Call | str]] = {
    "init_producer_id": lambda service: service.init_producer_id(_FENCED_INIT),
    "add_partitions": lambda service: service.add_partitions(_VERIFY),
    "verify": lambda service: service.verify(_VERIFY),
    "check_batches": lambda service: service.check_batches(_VERIFY),
    "end_txn": lambda service: service.end_txn(_REPEATED_END),
    "list": lambda service: service.list(ListTransactionsRequest()),
    "describe": lambda service: service.describe(DescribeTransactionRequest(ID)),
    "abort": lambda service: service.abort(_UNKNOWN_ABORT),
    "open_shared": lambda service: service.open_shared(_RETIRED_OPEN),
    "commit_shared": lambda service: service.commit_shared(_REPEATED_COMMIT),
    "abort_shared": lambda service: service.abort_shared(AbortSharedRequest(KEY, ATTEMPT)),
    "leave_shared": lambda service: service.leave_shared(LeaveSharedRequest(KEY, ATTEMPT, FIRST)),
    "list_shared": lambda service: service.list_shared(ListSharedRequest()),
    "describe_shared": lambda service: service.describe_shared(DescribeSharedRequest(KEY)),
    "completed": lambda service: service.completed(ID, 60),
    "confirm": lambda service: service.confirm(),
    "close": NO_STATE,
    "load": NO_STATE,
    "unload": NO_STATE,
    "partition_for": NO_STATE,
    "pending_markers": LOOK,
    "marker_trouble": LOOK,
    "machines": LOOK,
    "held": LOOK,
    "open_transaction": LOOK,
    "coordinates": LOOK,
    "shard_states": LOOK,
    "partitions_away": LOOK,
    "run_due_timers": NO_CALLER,
}


class _Transactions:
    """A transactional id whose transaction is committed with a token, and a key with a committed attempt."""

    def __init__(self) -> None:
        self.barrier = HeldBarrier()
        self.node = Node(barrier=self.barrier)
        self.service: Any = self.node.service
        self.logs: list[Log] = self.node.logs

    async def begin(self) -> None:
        await self.node.load()
        producer = await self.node.init()
        assert producer == FIRST
        await self.node.add(producer, P0)
        await self.service.end_txn(EndTxnRequest(ID, producer, True, token=TOKEN))
        await self.service.open_shared(_RETIRED_OPEN)
        await self.service.commit_shared(_REPEATED_COMMIT)
        await self.node.settled()
        await spin()

    def submit(self, request: object) -> Awaitable[object]:
        return self.service._runtime.submit(0, request)

    async def close(self) -> None:
        await self.service.close()


# --- What the group coordinator answers from state --------------------------------------------------------------------

_REFUSED_COMMIT = replace(commit({P0: 9}), group_id=GROUP, generation_id=7, member_id="a stranger")
_ZOMBIE_COMMIT = replace(commit({P0: 9}, producer=ZOMBIE), group_id=GROUP, transactional_id=ID)
_LATE_JOIN = JoinGroupRequest(
    GROUP, "a stranger", None, "consumer", (GroupProtocol("range", subscription("orders")),), 10_000, 60_000, "c", "h"
)
_NO_MEMBER = LeaveGroupRequest(GROUP, (MemberIdentity("a stranger"),))
_LATE_HEARTBEAT = ConsumerGroupHeartbeatRequest("nobody", "a stranger", 5)

GROUP_REQUESTS: Final[Mapping[type, object]] = {
    JoinGroupRequest: _LATE_JOIN,
    SyncGroupRequest: SyncGroupRequest(GROUP, 1, "a stranger", None, {}),
    HeartbeatRequest: HeartbeatRequest(GROUP, 1, "a stranger", None),
    LeaveGroupRequest: _NO_MEMBER,
    OffsetFetchRequest: fetch(P0, group=GROUP),
    OffsetDeleteRequest: OffsetDeleteRequest("nobody", (P0,)),
    ListGroupsRequest: ListGroupsRequest(),
    DescribeGroupRequest: DescribeGroupRequest(GROUP),
    HeldPartitions: HeldPartitions(GROUP, require_stable=True),
    DeleteGroupRequest: DeleteGroupRequest(GROUP),
    ConsumerGroupHeartbeatRequest: _LATE_HEARTBEAT,
    ConsumerGroupDescribeRequest: ConsumerGroupDescribeRequest(GROUP),
    Computed: Computed(Computation("nobody", lambda: None, 1), None),
    TopicsDeleted: TopicsDeleted(frozenset({"others"})),
    TopicsLeft: TopicsLeft(frozenset({P0.topic})),
    BeginVerification: BeginVerification(ENDED),
    OffsetCommitRequest: _REFUSED_COMMIT,
    VerifiedCommit: VerifiedCommit(_ZOMBIE_COMMIT, None),
    Tick: NO_CALLER,
}

GROUP_METHODS: Final[Mapping[str, Call | str]] = {
    "join": lambda service: service.join(_LATE_JOIN),
    "sync": lambda service: service.sync(SyncGroupRequest(GROUP, 1, "a stranger", None, {})),
    "heartbeat": lambda service: service.heartbeat(HeartbeatRequest(GROUP, 1, "a stranger", None)),
    "leave": lambda service: service.leave(_NO_MEMBER),
    "consumer_heartbeat": lambda service: service.consumer_heartbeat(_LATE_HEARTBEAT),
    "commit_offsets": lambda service: service.commit_offsets(_REFUSED_COMMIT),
    "fetch_offsets": lambda service: service.fetch_offsets(fetch(P0, group=GROUP)),
    "delete_offsets": lambda service: service.delete_offsets(OffsetDeleteRequest("nobody", (P0,))),
    "topics_deleted": lambda service: service.topics_deleted(["others"]),
    "list": lambda service: service.list(ListGroupsRequest()),
    "describe": lambda service: service.describe(DescribeGroupRequest(GROUP)),
    "describe_consumers": lambda service: service.describe_consumers(ConsumerGroupDescribeRequest(GROUP)),
    "delete": lambda service: service.delete(DeleteGroupRequest(GROUP)),
    "write_marker": lambda service: service.write_marker(0, ENDED, 0, True, TransactionVersion.V2),
    "add_to_transaction": "it asks the transaction coordinator, whose answer passes the barrier",
    "close": NO_STATE,
    "load": NO_STATE,
    "unload": NO_STATE,
    "offsets_partition": NO_STATE,
    "machines": LOOK,
    "held": LOOK,
    "shard_states": LOOK,
    "partitions_away": LOOK,
    "run_due_timers": NO_CALLER,
}


class _Groups:
    """A stable group of one member with offsets, of which a transaction has published some."""

    def __init__(self) -> None:
        self.barrier = HeldBarrier()
        self.logs = [MemoryLog()]
        self.service: Any = GroupCoordinator(
            partition_count=lambda: 1,
            open_log=self.logs.__getitem__,
            topic_ready=topic_is_ready,
            transactions=Node().service,
            clock=ManualClock(),
            barrier=self.barrier,
            new_id=lambda: "1",
        )

    async def begin(self) -> None:
        await self.service.load(0, 3)
        promised: JoinGroupResponse = await self.service.join(replace(_LATE_JOIN, member_id=""))
        joined = await self.service.join(replace(_LATE_JOIN, member_id=promised.member_id))
        shares = {joined.member_id: assignment(0)}
        await self.service.sync(SyncGroupRequest(GROUP, joined.generation_id, joined.member_id, None, shares))
        written = replace(commit({P0: 5}, producer=ZOMBIE), group_id=GROUP, transactional_id=ID)
        guard = await self.submit(BeginVerification(ZOMBIE))
        await self.submit(VerifiedCommit(written, guard))
        await self.service.write_marker(0, ENDED, 0, True, TransactionVersion.V2)
        await spin()

    def submit(self, request: object) -> Awaitable[object]:
        return self.service._runtime.submit(0, request)

    async def close(self) -> None:
        self.service.close()


# --- Every answer waits -----------------------------------------------------------------------------------------------


def _examples() -> list[Any]:
    found = []
    for world, requests, methods in (
        (_Transactions, TRANSACTION_REQUESTS, TRANSACTION_METHODS),
        (_Groups, GROUP_REQUESTS, GROUP_METHODS),
    ):
        name = world.__name__.strip("_").lower()
        for kind, request in requests.items():
            if not isinstance(request, str):
                call: Call = lambda made, request=request: made.submit(request)  # noqa: E731
                found.append(pytest.param(world, call, id=f"{name}-{kind.__name__}"))
        for method, example in methods.items():
            if not isinstance(example, str):
                through: Call = lambda made, example=example: example(made.service)  # noqa: E731
                found.append(pytest.param(world, through, id=f"{name}.{method}"))
    return found


async def _outcome(call: Awaitable[object]) -> object:
    try:
        return await call
    except SemelError as error:
        return error.code, error.message


@pytest.mark.parametrize(("world", "call"), _examples())
def test_R9_every_answer_from_state_alone_passes_the_barrier(world: Callable[[], Any], call: Call) -> None:
    async def scenario() -> None:
        made = world()
        await made.begin()
        ends = [log.log_end_offset for log in made.logs]
        made.barrier.asked.clear()
        outcome = await asyncio.wait_for(_outcome(call(made)), 20)
        assert made.barrier.asked, "it did not pass the barrier"
        assert {epoch for _, epoch in made.barrier.asked} == {3}

        made.barrier.passing = Passing.REFUSED
        refused = await asyncio.wait_for(_outcome(call(made)), 20)
        assert isinstance(refused, tuple)
        assert refused[0] is ErrorCode.NOT_COORDINATOR

        made.barrier.passing = Passing.HELD
        waiting = asyncio.ensure_future(_outcome(call(made)))
        await spin()
        assert not waiting.done(), "it was answered before the barrier"
        made.barrier.open()
        assert type(await asyncio.wait_for(waiting, 20)) is type(outcome)

        assert [log.log_end_offset for log in made.logs] == ends, "the example is answered from state alone"
        await made.close()

    asyncio.run(scenario())


def test_R9_the_tables_name_every_request_and_every_method() -> None:
    made: Any = TransactionMachine(0, 0)
    assert set(made._handlers) == set(TRANSACTION_REQUESTS)
    made = GroupMachine()
    apart = {OffsetCommitRequest, VerifiedCommit, Tick}  # `handle` looks for these itself
    assert set(made._handlers) | apart == set(GROUP_REQUESTS)
    for coordinator, table in ((TransactionCoordinator, TRANSACTION_METHODS), (GroupCoordinator, GROUP_METHODS)):
        methods = {name for name, _ in inspect.getmembers(coordinator, inspect.isfunction) if not name.startswith("_")}
        assert methods == set(table)
        for name, example in table.items():
            if example in (LOOK, NO_STATE):
                assert name == "close" or not inspect.iscoroutinefunction(getattr(coordinator, name)), name


LOOKERS: Final[Mapping[str, str]] = {
    "broker/metrics/readings.py": "metrics",
    "broker/metrics/limits.py": "metrics",
    "broker/diagnostics/groups.py": "facts about this node, for the doctor to judge",
    "broker/diagnostics/snapshot.py": "facts about this node, for the doctor to judge",
    "broker/diagnostics/client_abort.py": "confirms first",
    "broker/diagnostics/hanging.py": "confirms first",
    "txn_coordinator/coordinator.py": "the methods of the table",
    "group_coordinator/coordinator.py": "the methods of the table",
}


def test_R9_whoever_looks_at_a_machine_past_the_barrier_is_known() -> None:
    look = re.compile(r"\.(?:machines|open_transaction|coordinates)\(|_runtime\.machines|\bshard\.machine\b")
    found = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for folder in ("broker", "txn_coordinator", "group_coordinator")
        for path in (ROOT / folder).rglob("*.py")
        if look.search(path.read_text())
    }
    assert set(found) == set(LOOKERS)
    for name, why in LOOKERS.items():
        if why == "confirms first":
            assert re.search(r"await node\.transactions\.confirm\(\)(?:.|\n)*?\.open_transaction\(", found[name]), name


# --- The barrier and the log ------------------------------------------------------------------------------------------


def test_R9_an_answer_with_a_record_of_its_own_does_not_wait() -> None:
    """The commit of its record shows the same."""

    async def scenario() -> None:
        made = _Transactions()
        await made.begin()
        made.barrier.passing = Passing.REFUSED
        assert await made.service.init_producer_id(InitProducerIdRequest("another", TIMEOUT_MS)) is not None
        await made.close()

    # a new id needs a producer id first: that answer is from state, and the caller hears of the refusal
    with pytest.raises(SemelError) as caught:
        asyncio.run(scenario())
    assert caught.value.code is ErrorCode.NOT_COORDINATOR

    async def again() -> None:
        made = _Transactions()
        await made.begin()
        made.barrier.passing = Passing.REFUSED
        assert await made.service.init_producer_id(InitProducerIdRequest(ID, TIMEOUT_MS)) is not None
        await made.close()

    asyncio.run(again())


def test_R9_D5_behind_the_barrier_an_answer_still_waits_for_what_it_rests_on() -> None:
    async def scenario() -> None:
        made = _Transactions()
        await made.begin()
        [log] = made.logs
        log.auto_commit = False
        init = asyncio.ensure_future(made.service.init_producer_id(InitProducerIdRequest(ID, TIMEOUT_MS)))
        await spin()
        made.barrier.passing = Passing.HELD
        told = asyncio.ensure_future(made.service.describe(DescribeTransactionRequest(ID)))
        await spin()
        made.barrier.open()
        await spin()
        assert not told.done()
        await log.commit()
        await init
        assert (await told).state == "Empty"
        log.auto_commit = True
        await made.close()

    asyncio.run(scenario())


def test_R9_what_the_log_says_of_a_producer_passes_the_barrier_too() -> None:
    """A batch that the log refuses is no record: a log that has a successor may know another epoch than that one."""

    async def scenario() -> None:
        made = _Groups()
        await made.begin()

        async def late() -> object:
            guard = await made.submit(BeginVerification(ZOMBIE))
            return await _outcome(made.submit(VerifiedCommit(_ZOMBIE_COMMIT, guard)))

        outcome = await late()
        assert isinstance(outcome, tuple)
        assert outcome[0] is ErrorCode.INVALID_PRODUCER_EPOCH
        guard = await made.submit(BeginVerification(ZOMBIE))
        made.barrier.passing = Passing.REFUSED
        refused = await asyncio.wait_for(_outcome(made.submit(VerifiedCommit(_ZOMBIE_COMMIT, guard))), 20)
        assert isinstance(refused, tuple)
        assert refused[0] is ErrorCode.NOT_COORDINATOR
        made.barrier.passing = Passing.HELD
        waiting = asyncio.ensure_future(_outcome(made.submit(VerifiedCommit(_ZOMBIE_COMMIT, guard))))
        await spin()
        assert not waiting.done()
        made.barrier.open()
        assert await asyncio.wait_for(waiting, 20) == outcome
        await made.close()

    asyncio.run(scenario())


def test_R9_a_shard_that_is_closed_answers_those_behind_the_barrier() -> None:
    async def scenario() -> None:
        made = _Transactions()
        await made.begin()
        made.barrier.passing = Passing.HELD
        told = asyncio.ensure_future(_outcome(made.service.describe(DescribeTransactionRequest(ID))))
        await spin()
        made.service.unload(0)
        outcome = await asyncio.wait_for(told, 20)
        assert isinstance(outcome, tuple)
        assert outcome[0] is ErrorCode.NOT_COORDINATOR
        made.barrier.open()
        await spin()
        await made.close()

    asyncio.run(scenario())


def test_R9_a_barrier_that_fails_is_no_proof() -> None:
    async def scenario() -> None:
        made = _Transactions()
        await made.begin()

        async def broken() -> None:
            raise RuntimeError("a bug")

        made.barrier.begin = lambda tp, epoch: broken()  # type: ignore[method-assign]
        outcome = await asyncio.wait_for(_outcome(made.service.describe(DescribeTransactionRequest(ID))), 20)
        assert isinstance(outcome, tuple)
        assert outcome[0] is ErrorCode.NOT_COORDINATOR
        await made.close()

    asyncio.run(scenario())


def test_R9_on_one_node_nothing_waits() -> None:
    """An answer from state is given in the same turn of the event loop, as without the barrier."""

    async def scenario() -> None:
        assert ONE_NODE.begin(P0, 3) is None
        made = Node()
        await made.load()
        await made.init()
        call = made.service.describe(DescribeTransactionRequest(ID))
        with pytest.raises(StopIteration):
            call.send(None)
        await made.service.close()

    asyncio.run(scenario())
