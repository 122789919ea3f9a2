"""A model of replicated partitions: logs as lists of records, leaders that lag behind the metadata, nodes that crash.

What decides about leaders and in-sync sets is the code under test (`semel.broker.controller`); all else is a model by
Kafka's rules: who may join, what is committed, what a crash loses. After each change of the metadata the model checks
what must hold of it. Everything is drawn from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from chained_changes import chained

from semel.broker.controller.elections import (
    configs_changed,
    elect,
    elect_preferred,
    elect_unclean,
    node_registered,
    nodes_fenced,
    nodes_unfenced,
)
from semel.broker.controller.full_disks import disk_told, led_elsewhere
from semel.broker.controller.isr import ProposedIsr, decide_isr, left_by
from semel.broker.controller.readable_again import incomplete_until_read, readable_again
from semel.broker.controller.shutdown import step_down
from semel.broker.metadata.changes import (
    METADATA_VERSION,
    BrokerRegistered,
    Change,
    ConfigsChanged,
    MetadataVersionRaised,
    PartitionChanged,
    PartitionState,
    TopicCreated,
)
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import NO_LEADER, TopicId, TopicPartition, new_topic_id

TOPIC = "t"


class Record(NamedTuple):
    leader_epoch: int
    number: int


@dataclass
class Leader:
    """What a node knows of a partition that it leads, as of the metadata that it has applied."""

    leader_epoch: int
    state: PartitionState
    epoch_start: int
    ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Log end and broker epoch of each follower that has fetched in this leader epoch."""
    proposal: ProposedIsr | None = None
    high_watermark: int = 0


@dataclass
class Replica:
    log: list[Record] = field(default_factory=list)
    synced: int = 0
    leader: Leader | None = None


@dataclass
class Node:
    node_id: int
    durability: str
    directory: int = 0
    starts: int = 0
    is_up: bool = False
    was_stopped: bool = False
    had_power_cut: bool = False
    broker_epoch: int = -1
    view: int = 0
    """How many of the metadata's images it has applied."""
    replicas: dict[int, Replica] = field(default_factory=dict)
    unreadable: set[int] = field(default_factory=set)
    """Partitions that its disk has not let it open in this run."""
    damaged: set[int] = field(default_factory=set)
    """Partitions that it has lost synced records of, and has not begun to fetch again."""
    not_read: set[tuple[TopicId, int]] = field(default_factory=set)
    """What it counts as incomplete of for no other reason than that it could not be read."""


def is_enough(state: PartitionState, count: int, min_isr: int) -> bool:
    return count >= max(1, min(min_isr, len(state.replicas)))


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.images = [EMPTY_IMAGE]
        self.default_min_isr = self.random.choice([1, 2])
        durability = self.random.choice(["os", "os", "disk"])
        self.nodes = {node_id: Node(node_id, durability) for node_id in range(1, self.random.choice([3, 3, 4]) + 1)}
        self.topic_id: TopicId = new_topic_id()
        self.committed: dict[int, list[Record]] = {}
        self.reigns: dict[tuple[int, int], tuple[int, int]] = {}
        """Who leads a partition in a leader epoch: the node and its broker epoch."""
        self.unclean: dict[int, int] = {}
        """The leader epoch of each partition's last unclean election: what older leaders commit is lost with it."""
        self.proposals: list[tuple[Node, int, ProposedIsr]] = []
        self.stopping: set[int] = set()
        self.written = 0
        self.counts: dict[str, int] = {}
        for node in self.nodes.values():
            self.restart(node)
        self.create_topic()

    @property
    def image(self) -> MetadataImage:
        return self.images[-1]

    def partitions(self) -> tuple[PartitionState, ...]:
        return self.image.topics[TOPIC].partitions

    def min_isr(self, image: MetadataImage) -> int:
        return int(image.topics[TOPIC].configs.get("min.insync.replicas", self.default_min_isr))

    def create_topic(self) -> None:
        states = []
        for number in range(self.random.choice([1, 2])):
            count = self.random.choice([1, 2, 3, 3, 3])
            replicas = tuple(self.random.sample(sorted(self.nodes), count))
            states.append(PartitionState(replicas[0], 0, replicas, replicas))
            self.committed[number] = []
            for node_id in replicas:
                self.nodes[node_id].replicas[number] = Replica()
        configs = {"min.insync.replicas": str(self.random.choice([1, 2, 2, 3]))} if self.random.random() < 0.8 else {}
        created = TopicCreated(TOPIC, self.topic_id, tuple(states), configs)
        self.commit([MetadataVersionRaised(METADATA_VERSION), created])
        for node in self.nodes.values():
            self.apply_view(node, len(self.images) - 1)

    # --- The metadata, and what must hold of it -----------------------------------------------------------------------

    def commit(self, changes: list[Change]) -> None:
        """Apply changes as one transaction, and check what they say."""
        if not changes:
            return
        before = self.image
        self.images.append(before.apply_all(chained(changes, before.position)))
        for change in changes:
            if isinstance(change, PartitionChanged):
                known = before.partition(TopicPartition(TOPIC, change.partition))
                assert known is not None
                self.check_follows(change.partition, known, change.state)
        if TOPIC in self.image.topics:
            for number, state in enumerate(self.partitions()):
                self.check_state(number, state)
                self.check_complete(number, state)

    def check_follows(self, number: int, before: PartitionState, after: PartitionState) -> None:
        assert after.partition_epoch == before.partition_epoch + 1, "R5: the partition epoch counts each change"
        assert after.leader_epoch >= before.leader_epoch, "R4: a leader epoch never goes back"
        if after.leader != before.leader:
            assert after.leader_epoch > before.leader_epoch, "R4: two leaders for one epoch"
        assert after.replicas == before.replicas

    def check_state(self, number: int, state: PartitionState) -> None:
        alive = {node_id for node_id, broker in self.image.brokers.items() if not broker.is_fenced}
        members = [*state.isr, *state.elr, *state.last_known_elr]
        assert len(members) == len(set(members)), f"a replica is two things at once: {state}"
        assert set(members) <= set(state.replicas)
        if state.leader != NO_LEADER:
            assert state.leader in state.isr, f"R4: a leader that is not in sync: {state}"
            assert state.leader in alive, f"R4: a leader that is fenced: {state}"
            if len(state.replicas) > 1:
                reign = state.leader, self.image.brokers[state.leader].epoch
                first = self.reigns.setdefault((number, state.leader_epoch), reign)
                assert first == reign, (
                    f"R4: the epoch {state.leader_epoch} of {number} has the leaders {first}, {reign}"
                )
        else:
            able = [each for each in (*state.isr, *state.elr) if each in alive and each not in self.stopping]
            assert not able, f"nobody leads, and {able} could: {state}"
        if len(state.replicas) > 1:
            assert set(state.isr) <= alive, f"R5: a fenced replica is in sync: {state}"
        if is_enough(state, len(state.isr), self.min_isr(self.image)):
            assert not state.elr, f"records are committed without the eligible replicas: {state}"
        else:
            known = state.isr or state.elr or state.last_known_elr
            assert known or any(self.nodes[each].directory for each in state.replicas), f"nobody had them: {state}"

    def check_complete(self, number: int, state: PartitionState) -> None:
        """Leader completeness: who may be elected has every committed record.

        A node that is down has lost nothing yet: what a power cut costs is lost when it registers.
        """
        if len(state.replicas) == 1:
            return
        committed = self.committed[number]
        for member in (*state.isr, *state.elr):
            log = self.nodes[member].replicas[number].log
            assert log[: len(committed)] == committed, f"R4, R5: node {member} lacks committed records: {state}"

    # --- Replication --------------------------------------------------------------------------------------------------

    def apply_view(self, node: Node, view: int) -> None:
        """A node applies the metadata up to the image `view`, one transaction after the other."""
        for index in range(node.view + 1, view + 1):
            image = self.images[index]
            node.view = index
            topic = image.topics.get(TOPIC)
            for number, replica in node.replicas.items() if topic is not None else ():
                self.become(node, number, replica, image.topics[TOPIC].partitions[number])

    def become(self, node: Node, number: int, replica: Replica, state: PartitionState) -> None:
        if state.leader != node.node_id:
            replica.leader = None
            return
        node.unreadable.discard(number)  # an operator's word
        node.damaged.discard(number)
        leads = replica.leader
        if leads is None or leads.leader_epoch != state.leader_epoch:
            if len(state.replicas) > 1:
                committed = self.committed[number]
                is_current = self.partitions()[number].leader_epoch == state.leader_epoch
                assert not is_current or replica.log[: len(committed)] == committed, "R4: elected without all records"
            replica.leader = Leader(state.leader_epoch, state, len(replica.log))
        elif state.partition_epoch > leads.state.partition_epoch:
            leads.state, leads.proposal = state, None
        self.advance(node, number)

    def counted(self, node: Node, replica: Replica) -> int:
        return replica.synced if node.durability == "disk" else len(replica.log)

    def advance(self, node: Node, number: int) -> None:
        """Move the high watermark by R1: over the in-sync set that is committed, and one that may be."""
        replica = node.replicas[number]
        leads = replica.leader
        if leads is None or not is_enough(leads.state, len(leads.state.isr), self.min_isr(self.images[node.view])):
            return
        if leads.leader_epoch < self.unclean.get(number, 0):
            return
        maximal = {*leads.state.isr, *(leads.proposal.isr if leads.proposal else ())} - {node.node_id}
        ends = [self.counted(node, replica), *(leads.ends.get(each, (0, 0))[0] for each in maximal)]
        leads.high_watermark = max(leads.high_watermark, min(ends))
        seen = replica.log[: leads.high_watermark]
        committed = self.committed[number]
        if len(leads.state.replicas) > 1:
            shorter = min(len(seen), len(committed))
            assert seen[:shorter] == committed[:shorter], "D3: two logs are committed"
        if len(seen) > len(committed):
            committed[:] = seen
            self.count("commit")

    def fetch(self, follower: Node, number: int) -> None:
        """A follower cuts its log to what it shares with the leader's (R3, R7), says where it ends, and reads."""
        state = self.images[follower.view].topics[TOPIC].partitions[number]
        leader = self.nodes.get(state.leader)
        if leader is None or leader is follower or not leader.is_up:
            return
        leads = leader.replicas[number].leader
        if leads is None or leads.leader_epoch != state.leader_epoch:
            return
        if number in follower.unreadable:
            return
        follower.damaged.discard(number)
        mine, theirs = follower.replicas[number], leader.replicas[number].log
        same = 0
        while same < min(len(mine.log), len(theirs)) and mine.log[same] == theirs[same]:
            same += 1
        del mine.log[same:]
        mine.synced = same if follower.durability == "disk" else min(mine.synced, same)
        leads.ends[follower.node_id] = same, follower.broker_epoch
        mine.log += theirs[same : same + self.random.choice([0, 1, 2, 9])]
        self.advance(leader, number)

    # --- What can happen ----------------------------------------------------------------------------------------------

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def a_node(self, where: Callable[[Node], bool]) -> Node | None:
        found = [node for node in self.nodes.values() if where(node)]
        return self.random.choice(found) if found else None

    def a_leader(self) -> tuple[Node, int, Leader] | None:
        found = [
            (node, number, replica.leader)
            for node in self.nodes.values()
            for number, replica in node.replicas.items()
            if node.is_up and replica.leader is not None
        ]
        return self.random.choice(found) if found else None

    def step_append(self) -> None:
        if (found := self.a_leader()) is None:
            return
        node, number, leads = found
        for _ in range(self.random.choice([1, 1, 3])):
            self.written += 1
            node.replicas[number].log.append(Record(leads.leader_epoch, self.written))
        self.advance(node, number)

    def step_sync(self) -> None:
        node = self.a_node(lambda each: each.is_up and bool(each.replicas))
        if node is not None:
            number = self.random.choice(sorted(node.replicas))
            node.replicas[number].synced = len(node.replicas[number].log)
            self.advance(node, number)

    def step_fetch(self) -> None:
        node = self.a_node(lambda each: each.is_up and bool(each.replicas))
        if node is not None:
            number = self.random.choice(sorted(node.replicas))
            if node.durability == "disk":  # It fetches on only after what it appended is synced.
                node.replicas[number].synced = len(node.replicas[number].log)
            self.fetch(node, number)

    def step_follow(self) -> None:
        node = self.a_node(lambda each: each.is_up and each.view < len(self.images) - 1)
        if node is not None:
            self.apply_view(node, self.random.randint(node.view + 1, len(self.images) - 1))

    def step_propose(self) -> None:
        if (found := self.a_leader()) is None or found[2].proposal is not None:
            return
        node, number, leads = found
        state = leads.state
        caught_up = [
            each
            for each in state.replicas
            if each not in state.isr
            and each in leads.ends
            and leads.ends[each][0] >= max(leads.high_watermark, leads.epoch_start)
        ]
        isr = [each for each in state.isr if each == node.node_id or self.random.random() < 0.6]
        if caught_up and self.random.random() < 0.8:
            isr = [*state.isr, self.random.choice(caught_up)]
        epochs = {each: leads.ends[each][1] for each in isr if each in leads.ends}
        epochs |= dict.fromkeys(set(isr) - set(epochs), -1)  # It is in sync, and was not heard of in this epoch.
        leads.proposal = ProposedIsr(self.topic_id, number, state.leader_epoch, state.partition_epoch, epochs)
        self.proposals.append((node, node.broker_epoch, leads.proposal))

    def step_decide(self) -> None:
        """A proposal arrives, late perhaps, or twice; its answer arrives, or does not."""
        if not self.proposals:
            return
        node, broker_epoch, proposal = self.proposals.pop(self.random.randrange(len(self.proposals)))
        if self.random.random() < 0.3:
            self.proposals.append((node, broker_epoch, proposal))
        decision = decide_isr(
            self.image, node.node_id, broker_epoch, [proposal],
            default_min_isr=self.default_min_isr, stopping=self.stopping,
        )  # fmt: skip
        error = decision.results[0].error
        self.count(error.name)
        self.commit(decision.changes)
        leads = node.replicas[proposal.partition].leader
        if not node.is_up or leads is None or leads.proposal is not proposal or self.random.random() < 0.3:
            return
        self.apply_view(node, len(self.images) - 1)
        if error is not ErrorCode.NONE and leads.proposal is proposal and error is ErrorCode.INELIGIBLE_REPLICA:
            leads.proposal = None
            self.proposals = [each for each in self.proposals if each[2] is not proposal]

    def step_leave(self) -> None:
        """A node can't write its replicas."""
        node = self.a_node(lambda each: each.is_up)
        if node is not None:
            is_lost = self.random.random() < 0.3
            wanted = {(self.topic_id, number): is_lost for number in node.replicas}
            epoch = node.broker_epoch - int(self.random.random() < 0.1)
            changes = left_by(self.image, node.node_id, epoch, wanted, default_min_isr=self.default_min_isr)
            self.count("left" if changes else "stayed")
            self.commit(changes)

    def step_full(self) -> None:
        """A node's disk refuses producers, or has room again."""
        node = self.a_node(lambda each: each.is_up)
        if node is not None:
            led = [(self.topic_id, number) for number in node.replicas]
            epoch = node.broker_epoch - int(self.random.random() < 0.1)
            is_full = self.random.random() < 0.6
            changes = led_elsewhere(self.image, node.node_id, epoch, led) if is_full else []
            self.count("led elsewhere" if changes else "led here")
            self.commit([*disk_told(self.image, node.node_id, epoch, is_full=is_full), *changes])

    def step_fence(self) -> None:
        fenced = [each for each in self.nodes if self.random.random() < 0.4]
        self.commit(self.fence(fenced))

    def fence(self, node_ids: list[int]) -> list[Change]:
        return nodes_fenced(self.image, node_ids, default_min_isr=self.default_min_isr, stopping=self.stopping)

    def step_unfence(self) -> None:
        """Heartbeats of nodes that are up arrive."""
        up = [
            each.node_id
            for each in self.nodes.values()
            if each.is_up and self.image.brokers[each.node_id].epoch == each.broker_epoch
        ]
        self.commit(nodes_unfenced(self.image, up, default_min_isr=self.default_min_isr, stopping=self.stopping))

    def step_crash(self) -> None:
        node = self.a_node(lambda each: each.is_up)
        if node is not None:
            node.is_up = False
            node.was_stopped = self.random.random() < 0.3
            node.had_power_cut = not node.was_stopped and self.random.random() < 0.7

    def step_restart(self) -> None:
        node = self.a_node(lambda each: not each.is_up)
        if node is not None:
            self.restart(node)

    def restart(self, node: Node) -> None:
        """A node starts and registers; this is when it finds out what it has lost."""
        for replica in node.replicas.values():
            replica.leader = None
            if node.had_power_cut:
                del replica.log[replica.synced :]
            replica.synced = len(replica.log)
        if node.starts and self.random.random() < 0.1:
            node.directory += 1
            for replica in node.replicas.values():
                replica.log.clear()
                replica.synced = 0
            node.damaged.clear()
            node.not_read.clear()
        node.unreadable = {number for number in node.replicas if node.starts and self.random.random() < 0.12}
        for number in sorted(node.replicas.keys() - node.unreadable):
            if node.starts and self.random.random() < 0.04:
                self.damage(node, number)
        if self.random.random() < 0.1:
            node.durability = self.random.choice(["os", "disk"])
        is_clean = node.was_stopped or not node.starts
        node.is_up, node.had_power_cut, node.was_stopped = True, False, False
        node.starts += 1
        self.stopping.discard(node.node_id)
        registration = BrokerRegistered(
            node.node_id, f"{node.node_id}-{node.starts}", f"dir-{node.directory}", "h", 1, "h", 2,
            is_clean=is_clean, durability=node.durability,
        )  # fmt: skip
        damaged = {TopicPartition(TOPIC, number) for number in node.unreadable | node.damaged}
        changes = node_registered(
            self.image, registration, default_min_isr=self.default_min_isr, stopping=self.stopping, damaged=damaged
        )
        node.not_read = incomplete_until_read(
            self.image,
            registration,
            unreadable={(self.topic_id, number) for number in node.unreadable},
            former=node.not_read,
            lost={(self.topic_id, number) for number in node.damaged},
        )
        node.broker_epoch = self.image.sequence + 1
        self.commit([registration, *changes])
        node.view = len(self.images) - 2
        self.apply_view(node, len(self.images) - 1)

    def damage(self, node: Node, number: int) -> None:
        """A start finds synced records of a partition lost."""
        replica = node.replicas[number]
        del replica.log[self.random.randint(0, len(replica.log)) :]
        replica.synced = min(replica.synced, len(replica.log))
        node.damaged.add(number)
        node.not_read.discard((self.topic_id, number))

    def step_read(self) -> None:
        """A partition can be opened now."""
        node = self.a_node(lambda each: each.is_up and bool(each.unreadable))
        if node is not None:
            number = self.random.choice(sorted(node.unreadable))
            node.unreadable.discard(number)
            if self.random.random() < 0.2:
                self.damage(node, number)

    def step_tell(self) -> None:
        node = self.a_node(lambda each: each.is_up and bool(each.not_read))
        if node is not None:
            self.tell_read(node, node.broker_epoch - int(self.random.random() < 0.1))

    def tell_read(self, node: Node, broker_epoch: int) -> None:
        """A node tells of what can be read again, and forgets what nobody waits for by the metadata that it knows."""
        known = self.images[node.view].topics[TOPIC].partitions
        node.not_read = {key for key in node.not_read if node.node_id in known[key[1]].last_known_elr}
        keys = [key for key in sorted(node.not_read) if key[1] not in node.unreadable]
        changes = readable_again(self.image, node.node_id, broker_epoch, keys, default_min_isr=self.default_min_isr)
        self.count("readable again" if changes else "nothing to tell")
        self.commit(changes)

    def step_stop(self) -> None:
        node = self.a_node(lambda each: each.is_up)
        if node is not None:
            self.stopping.add(node.node_id)
            step = step_down(self.image, node.node_id, default_min_isr=self.default_min_isr, stopping=self.stopping)
            self.commit(step.changes)

    def step_elect(self) -> None:
        """An operator asks for the preferred leader, or for any; only the second may lose records."""
        number = self.random.randrange(len(self.partitions()))
        state, tp = self.partitions()[number], TopicPartition(TOPIC, number)
        try:
            if self.random.random() < 0.2:
                election = elect_unclean(self.image, tp, default_min_isr=self.default_min_isr, stopping=self.stopping)
            else:
                election = elect_preferred(self.image, tp, stopping=self.stopping)
        except SemelError:
            return
        self.count("unclean" if election.is_unclean else "elected")
        if election.is_unclean:
            assert state.leader == NO_LEADER
            leader = self.nodes[election.change.state.leader]
            leader.unreadable.discard(number)
            replica, committed = leader.replicas[number], self.committed[number]
            is_sure = leader.durability == "os" and not leader.had_power_cut
            mine = replica.log if is_sure else replica.log[: replica.synced]
            same = 0
            while same < min(len(mine), len(committed)) and mine[same] == committed[same]:
                same += 1
            del committed[same:]
            self.unclean[number] = election.change.state.leader_epoch
        self.commit([election.change])

    def step_configure(self) -> None:
        if self.random.random() < 0.3:
            value = self.random.choice([None, "1", "2", "3"])
            change = ConfigsChanged("TOPIC", TOPIC, {"min.insync.replicas": value})
            self.commit(configs_changed(self.image, change, default_min_isr=self.default_min_isr))

    def step(self) -> None:
        steps, weights = zip(*STEPS.items(), strict=True)
        self.random.choices(steps, weights)[0](self)

    def heal(self) -> None:
        """Everything is up and connected again: each partition that can have a leader has one, and all are in sync."""
        for node in self.nodes.values():
            if not node.is_up or node.node_id in self.stopping:
                node.was_stopped = node.was_stopped or node.is_up
                self.restart(node)
        for node in self.nodes.values():
            node.unreadable.clear()
        for _ in range(12):
            self.step_unfence()
            for node in self.nodes.values():
                self.tell_read(node, node.broker_epoch)
            for node in self.nodes.values():
                self.apply_view(node, len(self.images) - 1)
            for number, state in enumerate(self.partitions()):
                after = elect(state, self.image, min_isr=self.min_isr(self.image))
                assert after == state, f"nobody was elected where somebody could be: {state}, {after}"
                for follower in state.replicas:
                    for _ in range(3):
                        self.nodes[follower].replicas[number].synced = len(self.nodes[follower].replicas[number].log)
                        self.fetch(self.nodes[follower], number)
                if state.leader != NO_LEADER:
                    self.join_all(number, state)

    def join_all(self, number: int, state: PartitionState) -> None:
        node = self.nodes[state.leader]
        leads = node.replicas[number].leader
        assert leads is not None
        assert leads.leader_epoch == state.leader_epoch
        least = max(leads.high_watermark, leads.epoch_start)
        epochs = {each: end[1] for each, end in leads.ends.items() if each in state.isr or end[0] >= least}
        epochs |= dict.fromkeys(set(state.isr) - set(epochs), -1)
        leads.proposal = ProposedIsr(self.topic_id, number, state.leader_epoch, state.partition_epoch, epochs)
        decision = decide_isr(
            self.image, node.node_id, node.broker_epoch, [leads.proposal], default_min_isr=self.default_min_isr
        )
        assert decision.results[0].error is ErrorCode.NONE, decision.results[0]
        self.commit(decision.changes)


STEPS: dict[Callable[[World], None], int] = {
    World.step_append: 20,
    World.step_sync: 8,
    World.step_fetch: 45,
    World.step_follow: 25,
    World.step_propose: 12,
    World.step_decide: 12,
    World.step_leave: 3,
    World.step_full: 3,
    World.step_fence: 3,
    World.step_unfence: 6,
    World.step_crash: 4,
    World.step_restart: 6,
    World.step_read: 4,
    World.step_tell: 5,
    World.step_stop: 2,
    World.step_elect: 3,
    World.step_configure: 2,
}
