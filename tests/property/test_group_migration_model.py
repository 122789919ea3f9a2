"""Classic members and members of the newer protocol in one group that moves between the two, at any moment (G2).

The classic clients are eager or cooperative, the group is upgraded and downgraded by who joins and leaves, answers are
lost, and the coordinator restarts. A partition is held by at most one client that the group would not fence, and once
the noise ends all partitions are shared by those who are there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from consumer_member import Member, partitions, topics
from group_driver import GROUP, GroupDriver, compacted, replayed, subscription
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from longer_runs import given

from semel.group_coordinator.classic.state import GroupState
from semel.group_coordinator.config import GroupConfig
from semel.protocol.api.consumer_groups import Partitions
from semel.protocol.api.groups import (
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from semel.protocol.consumer_protocol import decode_assignment
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicPartition
from semel.runtime.machine import Ticket

EXAMPLES = int(given("SEMEL_MODEL_EXAMPLES", "100"))
COUNT = 4
SESSION_MS = 10_000
REBALANCE_MS = 20_000
BEAT_MS = 1_000


class Stage(Enum):
    OUT = "to join"
    JOINING = "waits for its join"
    JOINED = "to sync"
    SYNCING = "waits for its sync"
    MEMBER = "works"


@dataclass(eq=False)
class Classic:
    """A consumer of the classic protocol: eager ones give everything up before they join."""

    protocol: str
    instance: str | None
    stage: Stage = Stage.OUT
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    held: set[TopicPartition] = field(default_factory=set)
    ticket: Ticket | None = None
    fenced: bool = False

    def refused(self, code: ErrorCode) -> None:
        self.stage = Stage.OUT
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID):
            self.held.clear()
            self.generation = -1
            self.fenced = code is ErrorCode.FENCED_INSTANCE_ID
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
        else:
            again = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            assert code in again, code


class MigrationModel(RuleBasedStateMachine):
    @initialize(
        protocol=st.sampled_from(("range", "cooperative-sticky", "cooperative-sticky")),
        kinds=st.lists(st.booleans(), max_size=3),
        policy=st.sampled_from(("bidirectional", "bidirectional", "bidirectional", "upgrade")),
        rounds=st.sampled_from((0, 12)),
        at_once_max=st.sampled_from((0, 5, 2_000)),
    )
    def begin(self, protocol: str, kinds: list[bool], policy: str, rounds: int, at_once_max: int) -> None:
        config = GroupConfig(
            group_consumer_session_timeout_ms=SESSION_MS,
            group_consumer_heartbeat_interval_ms=BEAT_MS,
            group_consumer_migration_policy=policy,
            group_assigned_at_once_max=at_once_max,
        )
        self.driver = GroupDriver(config, topics=topics(orders=COUNT))
        self.protocol = protocol
        self.policy = policy
        self.last_id = 0
        self.classics: list[Classic] = []
        self.newer: list[Member] = []
        for is_newer in kinds:
            self.add(is_newer, None)
        self.live_on(rounds)

    def add(self, is_newer: bool, instance: str | None) -> None:
        self.last_id += 1
        if is_newer:
            self.newer.append(Member(f"m-{self.last_id}", GROUP, instance=instance))
        else:
            self.classics.append(Classic(self.protocol, instance))

    # --- Clients ------------------------------------------------------------------------------------------------------

    def step(self, client: Classic | Member) -> None:
        if client.fenced:
            return
        if isinstance(client, Member):
            client.answered(self.driver.answers[self.driver.call(client.request())])
            client.reconcile()
        elif client.stage is Stage.OUT:
            self._join(client)
        elif client.stage is Stage.JOINING:
            self._on_join_answer(client)
        elif client.stage is Stage.JOINED:
            counts = {"orders": COUNT} if client.leads else None
            request = SyncGroupRequest(
                GROUP, client.generation, client.member_id, client.instance, {}, "consumer", self.protocol, counts
            )
            client.ticket = self.driver.call(request)
            client.stage = Stage.SYNCING
        elif client.stage is Stage.SYNCING:
            self._on_sync_answer(client)
        else:
            request_ = HeartbeatRequest(GROUP, client.generation, client.member_id, client.instance)
            answer = self.driver.answers[self.driver.call(request_)]
            if isinstance(answer, SemelError):
                client.refused(answer.code)

    def _join(self, client: Classic) -> None:
        if client.protocol == "range":
            client.held.clear()
        request = self.driver.join_request(
            client.member_id,
            instance=client.instance,
            protocols={self.protocol: subscription("orders", owned=client.held, generation=client.generation)},
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )
        client.ticket = self.driver.call(request)
        client.stage = Stage.JOINING

    def _on_join_answer(self, client: Classic) -> None:
        assert client.ticket is not None
        answer = self.driver.answers.get(client.ticket)
        if isinstance(answer, SemelError):
            client.refused(answer.code)
        elif isinstance(answer, JoinGroupResponse):
            client.member_id = answer.member_id
            if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
                client.stage = Stage.OUT
                return
            client.generation = answer.generation_id
            client.leads = answer.leader_id == answer.member_id and not answer.skip_assignment
            client.stage = Stage.JOINED

    def _on_sync_answer(self, client: Classic) -> None:
        assert client.ticket is not None
        answer = self.driver.answers.get(client.ticket)
        if isinstance(answer, SemelError):
            client.refused(answer.code)
        elif isinstance(answer, SyncGroupResponse):
            given = set(decode_assignment(answer.assignment).partitions)
            gave_up, client.held = client.held - given, given
            client.stage = Stage.OUT if client.protocol != "range" and gave_up else Stage.MEMBER

    def everybody(self) -> list[Classic | Member]:
        return [*self.classics, *self.newer]

    def live_on(self, rounds: int, *, computes: bool = True) -> None:
        for _ in range(rounds):
            for client in self.everybody():
                self.step(client)
                self.G2_no_partition_has_two_owners()
            self.driver.advance(BEAT_MS)
            if computes:
                self.driver.compute_all()

    # --- What happens -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.everybody())
    @rule(number=st.integers(0, 7), count=st.integers(1, 4))
    def one_acts(self, number: int, count: int) -> None:
        client = self.everybody()[number % len(self.everybody())]
        for _ in range(count):
            self.step(client)

    @rule(rounds=st.integers(1, 12), computes=st.booleans())
    def life_goes_on(self, rounds: int, computes: bool) -> None:
        self.live_on(rounds, computes=computes)

    @rule(number=st.integers(0, 3), fails=st.sampled_from((False, False, False, True)))
    def an_assignment_is_computed(self, number: int, fails: bool) -> None:
        """Any of those that were begun, also of a coordinator that has restarted since."""
        if self.driver.computations:
            self.driver.compute(number % len(self.driver.computations), fails=fails)

    @precondition(lambda self: len(self.everybody()) < 4)
    @rule(is_newer=st.booleans(), instance=st.sampled_from((None, None, "i-0")))
    def one_joins(self, is_newer: bool, instance: str | None) -> None:
        if instance is None or all(each.instance != instance for each in self.everybody()):
            self.add(is_newer, instance)

    @precondition(lambda self: self.everybody())
    @rule(number=st.integers(0, 7), leaves=st.booleans(), comes_back=st.sampled_from((None, True, False)))
    def one_goes(self, number: int, leaves: bool, comes_back: bool | None) -> None:
        """It leaves or dies, and perhaps another is started in its place, of the newer protocol or the other."""
        client = self.everybody()[number % len(self.everybody())]
        if isinstance(client, Member):
            self.newer.remove(client)
            if leaves:
                will_be_back = client.instance is not None and comes_back is not None
                self.driver.call(client.leave_request(will_be_back=will_be_back))
        else:
            self.classics.remove(client)
            if leaves:
                self.driver.call(LeaveGroupRequest(GROUP, (MemberIdentity(client.member_id, client.instance),)))
        if comes_back is not None:
            self.add(comes_back, client.instance)

    @precondition(lambda self: self.newer)
    @rule(number=st.integers(0, 7))
    def a_newer_one_misses_an_answer(self, number: int) -> None:
        member = self.newer[number % len(self.newer)]
        if not member.fenced:
            self.driver.call(member.request())
            member.lost()

    @rule(ms=st.sampled_from((100, 3_000, 5_000, SESSION_MS, 21_000)))
    def time_passes(self, ms: int) -> None:
        self.driver.advance(ms)

    @rule(is_compacted=st.booleans(), keeps_tombstones=st.booleans(), share=st.floats(0, 1))
    def the_coordinator_restarts(self, is_compacted: bool, keeps_tombstones: bool, share: float) -> None:
        before = self.driver.machine.durable_state()
        if is_compacted and self.driver.log:
            upto = int(self.driver.next_offset * share)
            self.driver.log = compacted(self.driver.log, keep_tombstones=keeps_tombstones, upto=upto)
        self.driver.reload()
        if self.driver.machine.consumer_group(GROUP) is not None:
            assert self.driver.machine.durable_state() == before

    # --- What must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def G2_no_partition_has_two_owners(self) -> None:
        if not hasattr(self, "driver"):
            return
        owners: dict[object, object] = {}
        for client in self.everybody():
            if self._is_current(client):
                for partition in self._held(client):
                    assert partition not in owners, f"{partition} is {owners[partition]}'s and {client}'s"
                    owners[partition] = client

    def _held(self, client: Classic | Member) -> Partitions:
        if isinstance(client, Member):
            return client.held
        return partitions("orders", *(number for _, number in client.held))

    def _is_current(self, client: Classic | Member) -> bool:
        """Whether the group would take a call of this client, a commit above all, as it is now."""
        consumers = self.driver.machine.consumer_group(GROUP)
        if consumers is not None:
            member = consumers.member(client.member_id)
            if member is None:
                return False
            if isinstance(client, Member):
                return client.epoch in (member.current.epoch, member.current.previous_epoch)
            return client.generation == member.current.epoch
        group = self.driver.machine.group(GROUP)
        if group is None or isinstance(client, Member):
            return False
        return client.member_id in group.members and client.generation == group.generation_id

    @invariant()
    def there_is_one_group_of_either_kind(self) -> None:
        if not hasattr(self, "driver"):
            return
        machine = self.driver.machine
        assert machine.consumer_group(GROUP) is None or machine.group(GROUP) is None
        again = replayed(self.driver.log)
        assert (again.consumer_group(GROUP) is None) == (machine.consumer_group(GROUP) is None)

    def teardown(self) -> None:
        """The noise ends: everything is shared, and the group is of the kind that its members make it."""
        if not hasattr(self, "driver"):
            return
        self.classics = [client for client in self.classics if not client.fenced]
        self.newer = [client for client in self.newer if not client.fenced]
        self.live_on(120)
        if not self.everybody():
            return
        held = [self._held(client) for client in self.everybody()]
        assert frozenset().union(*held) == partitions("orders", *range(COUNT))
        assert sum(map(len, held)) == COUNT
        assert max(map(len, held)) - min(map(len, held)) <= 1
        is_consumer_group = self.driver.machine.consumer_group(GROUP) is not None
        if self.newer:
            assert is_consumer_group
        elif self.policy == "bidirectional":
            assert not is_consumer_group
            group = self.driver.machine.group(GROUP)
            assert group is not None
            assert group.state is GroupState.STABLE


TestGroupMigrationModel = MigrationModel.TestCase
TestGroupMigrationModel.settings = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None)
