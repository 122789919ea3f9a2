"""A group of clients that join, leave, die and restart, with delayed and repeated requests and a coordinator that is
reloaded from its log at any point, against a model of committed offsets (G1, G2, O1, O2, O4) and for liveness.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from group_driver import GROUP, GroupDriver, commit, compacted, fetch, replayed, subscription
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semel.group_coordinator.classic.state import GroupState
from semel.group_coordinator.config import GroupConfig
from semel.protocol.api.groups import (
    DeleteGroupRequest,
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetDeleteRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from semel.protocol.consumer_protocol import decode_assignment
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime.machine import Ticket

TOPIC = "orders"
PARTITIONS = tuple(TopicPartition(TOPIC, number) for number in range(4))
COUNTS = {TOPIC: len(PARTITIONS)}
SESSION_MS = 10_000
REBALANCE_MS = 30_000
PRODUCERS = tuple(ProducerIdAndEpoch(number, 0) for number in (71, 72))


class Stage(Enum):
    OUT = "to join"
    JOINING = "waits for its join"
    JOINED = "to sync"
    SYNCING = "waits for its sync"
    MEMBER = "works"


@dataclass(eq=False)
class Client:
    """A consumer as it should be: eager ones give everything up before they join, cooperative ones what they lost."""

    protocol: str
    instance: str | None
    stage: Stage = Stage.OUT
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    skip: bool = False
    held: set[TopicPartition] = field(default_factory=set)
    ticket: Ticket | None = None
    fenced: bool = False

    @property
    def cooperative(self) -> bool:
        return self.protocol == "cooperative-sticky"

    def lose_everything(self) -> None:
        self.held.clear()
        self.generation = -1
        self.stage = Stage.OUT

    def refused(self, code: ErrorCode) -> None:
        self.stage = Stage.OUT
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
            self.lose_everything()
        elif code is ErrorCode.ILLEGAL_GENERATION:
            self.lose_everything()
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            self.fenced = True
            self.lose_everything()
        else:
            assert code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR), code


@dataclass
class Written:
    """A commit that was accepted, as the model keeps it: in order, and whether it counts."""

    partition: TopicPartition
    offset: int
    producer: ProducerIdAndEpoch | None
    counts: bool


class GroupModel(RuleBasedStateMachine):
    @initialize(
        protocol=st.sampled_from(("range", "sticky", "cooperative-sticky", "cooperative-sticky")),
        delay_ms=st.sampled_from((0, 0, 3_000)),
        instances=st.lists(st.sampled_from((None, "i-0", "i-1")), max_size=3, unique_by=lambda name: name or object()),
        rounds=st.sampled_from((0, 15)),
    )
    def begin(self, protocol: str, delay_ms: int, instances: list[str | None], rounds: int) -> None:
        self.driver = GroupDriver(GroupConfig(group_initial_rebalance_delay_ms=delay_ms))
        self.protocol = protocol
        self.clients = [Client(protocol, instance) for instance in instances]
        self.sent: list[object] = []
        self.written: list[Written] = []
        self.next_value = 0
        self.live_on(rounds)

    # --- Clients ------------------------------------------------------------------------------------------------------

    def send(self, request: object) -> Ticket:
        self.sent.append(request)
        return self.driver.call(request)

    def step(self, client: Client) -> None:
        """Let a client do the next thing that it has to."""
        if client.fenced:
            return
        if client.stage is Stage.OUT:
            self._join(client)
        elif client.stage is Stage.JOINING:
            self._on_join_answer(client)
        elif client.stage is Stage.JOINED:
            client.ticket = self.send(
                SyncGroupRequest(
                    GROUP,
                    client.generation,
                    client.member_id,
                    client.instance,
                    {},
                    "consumer",
                    self.protocol,
                    COUNTS if client.leads and not client.skip else None,
                )
            )
            client.stage = Stage.SYNCING
        elif client.stage is Stage.SYNCING:
            self._on_sync_answer(client)
        else:
            self._heartbeat(client)

    def _join(self, client: Client) -> None:
        if not client.cooperative:
            client.held.clear()
        said = subscription(TOPIC, owned=client.held, generation=client.generation)
        request = self.driver.join_request(
            client.member_id,
            instance=client.instance,
            protocols={self.protocol: said},
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )
        client.ticket = self.send(request)
        client.stage = Stage.JOINING

    def _on_join_answer(self, client: Client) -> None:
        answer = self._answer(client)
        if answer is None:
            return
        if isinstance(answer, SemelError):
            client.refused(answer.code)
            return
        assert isinstance(answer, JoinGroupResponse)
        client.member_id = answer.member_id
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.stage = Stage.OUT
            return
        client.generation = answer.generation_id
        client.leads = answer.leader_id == answer.member_id
        client.skip = answer.skip_assignment
        client.stage = Stage.JOINED

    def _on_sync_answer(self, client: Client) -> None:
        answer = self._answer(client)
        if answer is None:
            return
        if isinstance(answer, SemelError):
            client.refused(answer.code)
            return
        assert isinstance(answer, SyncGroupResponse)
        assigned = set(decode_assignment(answer.assignment).partitions)
        gave_up = client.held - assigned
        client.held = assigned
        client.stage = Stage.OUT if client.cooperative and gave_up else Stage.MEMBER

    def _heartbeat(self, client: Client) -> None:
        request = HeartbeatRequest(GROUP, client.generation, client.member_id, client.instance)
        answer = self.driver.answers[self.send(request)]
        if isinstance(answer, SemelError):
            client.refused(answer.code)

    def _answer(self, client: Client) -> object | None:
        assert client.ticket is not None
        return self.driver.answers.get(client.ticket)

    # --- Rules --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < 4)
    @rule(static=st.booleans())
    def add_client(self, static: bool) -> None:
        taken = {client.instance for client in self.clients}
        free = [name for name in ("i-0", "i-1") if name not in taken]
        self.clients.append(Client(self.protocol, free[0] if static and free else None))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), count=st.integers(1, 5))
    def let_one_act(self, data: st.DataObject, count: int) -> None:
        client = data.draw(st.sampled_from(self.clients))
        for _ in range(count):
            self.step(client)

    @rule(rounds=st.integers(1, 20))
    def life_goes_on(self, rounds: int) -> None:
        self.live_on(rounds)

    @rule()
    def life_goes_on_until_it_settles(self) -> None:
        self.live_on(30)

    def live_on(self, rounds: int) -> None:
        for _ in range(rounds):
            for client in list(self.clients):
                self.step(client)
                self.no_partition_has_two_owners()
            self.driver.advance(500)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def one_dies(self, data: st.DataObject) -> None:
        self.clients.remove(data.draw(st.sampled_from(self.clients)))

    @precondition(lambda self: any(client.instance for client in self.clients))
    @rule(data=st.data(), is_gone=st.booleans())
    def static_one_restarts(self, data: st.DataObject, is_gone: bool) -> None:
        """The old instance is gone, or still runs and must be fenced."""
        old = data.draw(st.sampled_from([client for client in self.clients if client.instance]))
        if is_gone or len(self.clients) >= 5:
            self.clients.remove(old)
        self.clients.append(Client(self.protocol, old.instance))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def one_leaves(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        self.send(LeaveGroupRequest(GROUP, (MemberIdentity(client.member_id, client.instance),)))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def old_request_arrives_again(self, data: st.DataObject) -> None:
        self.driver.call(data.draw(st.sampled_from(self.sent)))

    @rule(ms=st.sampled_from((100, 3_000, 5_000, 10_000, 31_000)))
    def time_passes(self, ms: int) -> None:
        self.driver.advance(ms)

    @rule(keep_tombstones=st.booleans(), compact=st.booleans(), data=st.data())
    def coordinator_restarts(self, keep_tombstones: bool, compact: bool, data: st.DataObject) -> None:
        """O1: from its log, compacted up to any point."""
        before = self.driver.machine.durable_state()
        if compact and self.driver.log:
            upto = data.draw(st.integers(0, self.driver.next_offset))
            self.driver.log = compacted(self.driver.log, keep_tombstones=keep_tombstones, upto=upto)
        self.driver.reload()
        assert self.driver.machine.durable_state() == before

    @precondition(lambda self: self.clients)
    @rule(
        data=st.data(),
        partition=st.sampled_from(PARTITIONS),
        producer=st.sampled_from((None, *PRODUCERS)),
        stale=st.sampled_from((0, 0, 0, -1, 1)),
    )
    def one_commits(
        self, data: st.DataObject, partition: TopicPartition, producer: ProducerIdAndEpoch | None, stale: int
    ) -> None:
        """O4: only a current member with the current generation gets through."""
        client = data.draw(st.sampled_from(self.clients))
        generation = client.generation + stale
        self.next_value += 1
        request = commit(
            {partition: self.next_value},
            generation=generation,
            member_id=client.member_id,
            instance=client.instance,
            producer=producer,
        )
        expected = self._commit_refusal(client, generation, producer is not None)
        answer = self.driver.answers[self.driver.call(request)]
        if expected is None:
            assert not isinstance(answer, SemelError), answer
            self.written.append(Written(partition, self.next_value, producer, producer is None))
        else:
            assert isinstance(answer, SemelError)
            assert answer.code is expected

    def _commit_refusal(self, client: Client, generation: int, in_transaction: bool) -> ErrorCode | None:
        group = self.driver.machine.group(GROUP)
        if group is None or group.state is GroupState.EMPTY:
            if generation < 0:
                return None
            return ErrorCode.ILLEGAL_GENERATION if group is None else ErrorCode.UNKNOWN_MEMBER_ID
        if generation < 0 and not client.member_id and client.instance is None:
            return None if in_transaction else ErrorCode.UNKNOWN_MEMBER_ID
        if client.instance is not None:
            holder = group.static_members.get(client.instance)
            if holder is not None and holder != client.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if client.member_id not in group.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.members[client.member_id].group_instance_id != client.instance:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        if group.state is GroupState.COMPLETING_REBALANCE and not in_transaction:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return None

    @rule(producer=st.sampled_from(PRODUCERS), committed=st.booleans())
    def transaction_ends(self, producer: ProducerIdAndEpoch, committed: bool) -> None:
        self.driver.marker(producer, committed=committed)
        for written in self.written:
            if written.producer == producer:
                written.counts, written.producer = committed, None
        self.written = [written for written in self.written if written.counts or written.producer is not None]

    @rule(partition=st.sampled_from(PARTITIONS))
    def offsets_are_deleted(self, partition: TopicPartition) -> None:
        answer = self.driver.answers[self.driver.call(OffsetDeleteRequest(GROUP, (partition,)))]
        if not isinstance(answer, SemelError) and answer.errors[partition] is ErrorCode.NONE:  # type: ignore[attr-defined]
            self.written = [written for written in self.written if written.partition != partition]

    @rule()
    def group_is_deleted(self) -> None:
        group = self.driver.machine.group(GROUP)
        answer = self.driver.answers[self.driver.call(DeleteGroupRequest(GROUP))]
        if group is None:
            assert isinstance(answer, SemelError)
            assert answer.code is ErrorCode.GROUP_ID_NOT_FOUND
        elif group.state is not GroupState.EMPTY and isinstance(answer, SemelError):
            assert answer.code is ErrorCode.NON_EMPTY_GROUP
        else:
            self.written = []

    # --- What must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def offsets_are_what_was_committed(self) -> None:
        """O1, O2: of what counts the last one written, and nothing stable where something is pending."""
        answer = self.driver.ask(fetch(*PARTITIONS))
        assert isinstance(answer, OffsetFetchResponse)
        unstable = {written.partition for written in self.written if written.producer is not None}
        expected = {written.partition: written.offset for written in self.written if written.counts}
        for partition, fetched in answer.offsets.items():
            if partition in unstable:
                assert fetched.error is ErrorCode.UNSTABLE_OFFSET_COMMIT
            else:
                assert (fetched.error, fetched.offset) == (ErrorCode.NONE, expected.get(partition, -1))

    @invariant()
    def replay_gives_the_same(self) -> None:
        """O1: the log, and its compacted form."""
        state = self.driver.machine.durable_state()
        assert replayed(self.driver.log).durable_state() == state
        assert replayed(compacted(self.driver.log, keep_tombstones=False)).durable_state() == state

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        """G2: neither in what is stored, nor among the members of the current generation themselves."""
        group = self.driver.machine.group(GROUP)
        if group is None:
            return
        if group.last_stored is not None:
            stored = [
                partition
                for member in group.last_stored.members
                for partition in decode_assignment(member.assignment).partitions
            ]
            assert len(stored) == len(set(stored))
        held = [
            partition
            for client in self.clients
            if client.generation == group.generation_id and client.member_id in group.members
            for partition in client.held
        ]
        assert len(held) == len(set(held))

    @invariant()
    def group_is_consistent(self) -> None:
        """G1, and the counts that are kept instead of being counted."""
        group = self.driver.machine.group(GROUP)
        if group is None:
            return
        assert (group.state is GroupState.EMPTY) == (not group.members) or group.pending_joins
        assert group.awaiting_join_count == sum(member.join_ticket is not None for member in group.members.values())
        assert group.pending_syncs <= set(group.members)
        assert not group.pending_joins & set(group.members)
        assert (group.leader_id is None) == (not group.members)
        assert {m.group_instance_id for m in group.members.values() if m.is_static} == set(group.static_members)
        if group.state is not GroupState.PREPARING_REBALANCE:
            assert group.awaiting_join_count == 0
        if group.state is not GroupState.COMPLETING_REBALANCE:
            assert all(member.sync_ticket is None for member in group.members.values())

    def teardown(self) -> None:
        """Liveness: once faults end, all live clients work in one generation, and all partitions have an owner."""
        if not hasattr(self, "driver"):
            return
        for _ in range(300):
            self.clients = [client for client in self.clients if not client.fenced]
            self.live_on(1)
            if self._has_settled():
                return
        raise AssertionError(f"the group does not settle: {self.driver.machine.group(GROUP)}, {self.clients}")

    def _has_settled(self) -> bool:
        group = self.driver.machine.group(GROUP)
        if not self.clients:
            return group is None or group.state is GroupState.EMPTY
        held = [partition for client in self.clients for partition in client.held]
        return (
            group is not None
            and group.state is GroupState.STABLE
            and set(group.members) == {client.member_id for client in self.clients}
            and all(
                client.stage is Stage.MEMBER and client.generation == group.generation_id for client in self.clients
            )
            and sorted(held) == list(PARTITIONS)
        )


GroupModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestGroupModel = GroupModel.TestCase
