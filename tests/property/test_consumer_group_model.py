"""Consumer groups (KIP-848) under joins, leaves, time-outs, lost answers, late requests and restarts (G2, G3, G4).

Clients are as they should be (`consumer_member.Member`), the way to the coordinator is not. At any time a partition is
held by at most one client that the group would not fence, and the group knows of that; what the log gives back equals
what is live. Once the noise ends every group comes to rest, with everything assigned as its assignor would.
"""

from __future__ import annotations

from consumer_member import Member, topic_id
from group_driver import GroupDriver, compacted, replayed
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from longer_runs import given

from semel.group_coordinator.assignor import range as range_assignor
from semel.group_coordinator.assignor.subscription import MemberSubscription
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.consumer.members import ConsumerGroupData
from semel.group_coordinator.consumer.topics import Topic, Topics
from semel.group_coordinator.records.consumer_state import ConsumerGroupState
from semel.protocol.api.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    Partitions,
    TopicIdPartition,
)
from semel.protocol.ids import TopicId

EXAMPLES = int(given("SEMEL_MODEL_EXAMPLES", "120"))
GROUP = "g"
SESSION_MS = 10_000
BEAT_MS = 3_000
NAMES = ("a", "b")
PARTITIONS_MAX = 6


class ConsumerGroupModel(RuleBasedStateMachine):
    @initialize(
        assignor=st.sampled_from(("uniform", "uniform", "range")),
        instances=st.lists(st.sampled_from((None, "i-0", "i-1")), max_size=4, unique_by=lambda name: name or object()),
        wishes=st.lists(st.sampled_from((("a",), ("a", "b"), None)), min_size=8, max_size=8),
        counts=st.tuples(st.integers(0, 5), st.integers(0, 5)),
        rounds=st.sampled_from((0, 6)),
        at_once_max=st.sampled_from((0, 8, 2_000)),
    )
    def begin(
        self,
        assignor: str,
        instances: list[str | None],
        wishes: list[tuple[str, ...] | None],
        counts: tuple[int, int],
        rounds: int,
        at_once_max: int,
    ) -> None:
        self.counts = dict(zip(NAMES, counts, strict=True))
        self.incarnations = dict.fromkeys(NAMES, 0)
        self.assignor = assignor
        self.wishes = wishes
        config = GroupConfig(
            group_consumer_session_timeout_ms=SESSION_MS,
            group_consumer_heartbeat_interval_ms=BEAT_MS,
            group_consumer_assignors=("uniform", "range"),
            group_assigned_at_once_max=at_once_max,
        )
        self.driver = GroupDriver(config, topics=self.topics())
        self.last_id = 0
        self.clients: list[Member] = []
        self.sent: list[ConsumerGroupHeartbeatRequest] = []
        for instance in instances:
            self.start(instance)
        for _ in range(rounds):
            self.everybody_beats()
            self.driver.compute_all()

    def topics(self) -> Topics:
        return Topics(Topic(name, self.id_of(name), count) for name, count in self.counts.items() if count)

    def id_of(self, name: str) -> TopicId:
        return topic_id(f"{name}{self.incarnations[name]}")

    def start(self, instance: str | None) -> None:
        wish = self.wishes[self.last_id % len(self.wishes)]
        self.last_id += 1
        regex = "[ab]" if wish is None else None
        member = Member(f"m-{self.last_id}", GROUP, wish, regex, instance, self.assignor)
        self.clients.append(member)

    def group(self) -> ConsumerGroupData | None:
        return self.driver.machine.consumer_group(GROUP)

    def client(self, number: int) -> Member:
        return self.clients[number % len(self.clients)]

    def send(self, member: Member) -> object:
        request = member.request()
        self.sent.append(request)
        return self.driver.answers[self.driver.call(request)]

    def everybody_beats(self) -> None:
        for member in self.clients:
            if not member.fenced:
                member.answered(self.send(member))
                member.reconcile()
        self.driver.advance(BEAT_MS)

    # --- What happens -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 7), reconciles=st.booleans())
    def beats(self, number: int, reconciles: bool) -> None:
        member = self.client(number)
        if not member.fenced:
            member.answered(self.send(member))
            if reconciles:
                member.reconcile()

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 7))
    def reconciles(self, number: int) -> None:
        self.client(number).reconcile()

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 7))
    def loses_an_answer(self, number: int) -> None:
        member = self.client(number)
        if not member.fenced:
            self.send(member)
            member.lost()

    @precondition(lambda self: self.sent)
    @rule(number=st.integers(0, 100))
    def an_old_request_comes_again(self, number: int) -> None:
        """One from before the current epoch: within an epoch they come in order, as on one connection."""
        request = self.sent[-1 - number % min(len(self.sent), 12)]
        group = self.group()
        current = None if group is None else group.currents.get(request.member_id)
        if (
            current is None
            and request.member_epoch == 0
            and any(client.member_id == request.member_id and client.held for client in self.clients)
        ):
            # A join that is a whole session late takes the member back at an epoch that its client may have itself, if
            # the group was deleted meanwhile. KIP-848 has nothing that tells the two apart.
            return
        if current is None or request.member_epoch != current.epoch:
            self.driver.call(request)

    @rule(instance=st.sampled_from((None, None, "i-0", "i-1")))
    def joins(self, instance: str | None) -> None:
        if len(self.clients) < 5 and (instance is None or all(each.instance != instance for each in self.clients)):
            self.start(instance)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 7), will_be_back=st.booleans())
    def leaves(self, number: int, will_be_back: bool) -> None:
        member = self.client(number)
        self.clients.remove(member)
        self.driver.call(member.leave_request(will_be_back=will_be_back and member.instance is not None))

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 7), comes_back=st.booleans())
    def dies(self, number: int, comes_back: bool) -> None:
        member = self.client(number)
        self.clients.remove(member)
        if comes_back:
            self.start(member.instance)

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 7))
    def loses_its_partitions_and_joins_again(self, number: int) -> None:
        """As a client does that could not reach the group for too long."""
        self.client(number).lose_everything()

    @rule(ms=st.sampled_from((100, BEAT_MS, SESSION_MS // 2, SESSION_MS, 61_000)))
    def time_passes(self, ms: int) -> None:
        self.driver.advance(ms)

    @rule(computes=st.booleans())
    def everybody_lives_on(self, computes: bool) -> None:
        self.everybody_beats()
        if computes:
            self.driver.compute_all()

    @rule(number=st.integers(0, 3), fails=st.sampled_from((False, False, False, True)))
    def an_assignment_is_computed(self, number: int, fails: bool) -> None:
        """Any of those that were begun, also of a coordinator that has restarted since."""
        if self.driver.computations:
            self.driver.compute(number % len(self.driver.computations), fails=fails)

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 2))
    def a_topic_grows_or_goes(self, name: str, count: int) -> None:
        if count:
            self.counts[name] = min(self.counts[name] + count, PARTITIONS_MAX)
        else:
            self.counts[name] = 0
            self.incarnations[name] += 1
        self.driver.topics = self.topics()

    @rule(is_compacted=st.booleans(), keeps_tombstones=st.booleans(), share=st.floats(0, 1))
    def the_coordinator_restarts(self, is_compacted: bool, keeps_tombstones: bool, share: float) -> None:
        """From its log, which may be compacted up to any point."""
        before = self.driver.machine.durable_state()
        if is_compacted and self.driver.log:
            upto = int(self.driver.next_offset * share)
            self.driver.log = compacted(self.driver.log, keep_tombstones=keeps_tombstones, upto=upto)
        self.driver.reload()
        assert self.driver.machine.durable_state() == before

    # --- What must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def G2_no_partition_has_two_owners(self) -> None:
        if not hasattr(self, "driver"):
            return
        group = self.group()
        if group is None:
            return
        owners: dict[TopicIdPartition, str] = {}
        for member_id, current in group.currents.items():
            for partition in current.held:
                assert partition not in owners, f"{partition} is {owners[partition]}'s and {member_id}'s"
                owners[partition] = member_id
        for client in self.clients:
            member = group.member(client.member_id)
            if member is None or client.epoch not in (member.current.epoch, member.current.previous_epoch):
                continue  # it will be fenced, and so would its commits
            for partition in client.held:
                assert owners.get(partition) == client.member_id, f"{client.member_id} has {partition} no more"

    @invariant()
    def epochs_never_go_back_and_one_assignment_is_computed_at_a_time(self) -> None:
        if not hasattr(self, "driver"):
            return
        assert self.driver.running_max <= 1
        group = self.group()
        if group is None:
            self.epochs: dict[str, int] = {}
            return
        epochs = {"group": group.epoch, "target": group.target_epoch}
        assert all(epochs[name] >= before for name, before in getattr(self, "epochs", {}).items())
        assert group.target_epoch <= group.epoch
        assert all(current.epoch <= group.target_epoch for current in group.currents.values())
        assert len(frozenset().union(*group.targets.values())) == sum(map(len, group.targets.values()))
        self.epochs = epochs

    @invariant()
    def the_log_holds_the_state(self) -> None:
        if not hasattr(self, "driver"):
            return
        state = self.driver.machine.durable_state()
        assert replayed(self.driver.log).durable_state() == state
        assert replayed(compacted(self.driver.log, keep_tombstones=False)).durable_state() == state

    def teardown(self) -> None:
        """The noise ends: each member gets its share, and the group comes to rest."""
        if not hasattr(self, "driver"):
            return
        self.clients = [client for client in self.clients if not client.fenced]
        # The last of it: sessions of the dead, and a revocation that a client which lost everything never confirmed.
        for _ in range(40):
            self.everybody_beats()
            self.driver.compute_all()
        group = self.group()
        if not self.clients:
            assert group is None or group.state is ConsumerGroupState.EMPTY
            return
        assert group is not None
        assert group.state is ConsumerGroupState.STABLE
        assert set(group.details) == {client.member_id for client in self.clients}
        for client in self.clients:
            assert client.held == group.target(client.member_id)
        self._G3_everything_is_assigned_as_it_should_be()

    def _G3_everything_is_assigned_as_it_should_be(self) -> None:
        wanted = {client.member_id: self._wanted(client) for client in self.clients}
        everything: Partitions = frozenset().union(*(self._partitions(name) for name in set().union(*wanted.values())))
        assert frozenset().union(*(client.held for client in self.clients)) == everything
        if self.assignor == "range":
            subscriptions = [
                MemberSubscription(client.member_id, frozenset(wanted[client.member_id]), (), -1, client.instance)
                for client in self.clients
            ]
            expected = range_assignor.assign(subscriptions, {name: self.counts[name] for name in NAMES})
            assert {client.member_id: client.held for client in self.clients} == {
                member_id: self.driver.topics.with_ids(given) for member_id, given in expected.items()
            }
        elif len({frozenset(names) for names in wanted.values()}) == 1:
            loads = [len(client.held) for client in self.clients]
            assert max(loads) - min(loads) <= 1

    def _wanted(self, client: Member) -> set[str]:
        return set(NAMES if client.names is None else client.names) & set(self.driver.topics.by_name)

    def _partitions(self, name: str) -> Partitions:
        return frozenset(TopicIdPartition(self.id_of(name), number) for number in range(self.counts[name]))


TestConsumerGroupModel = ConsumerGroupModel.TestCase
TestConsumerGroupModel.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
