"""What must hold of a group with several members: who owns what, over all that happens to them (G2, G3, G4, O4).

A member owns what it believes to own, for as long as the coordinator counts it as a member of that generation, or
epoch. One that was expelled and does not know it yet is a zombie: it may believe what it likes, and commit nothing.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from semel.broker.metadata.image import EMPTY_IMAGE
from semel.group_coordinator.assignor import range as range_assignor
from semel.group_coordinator.assignor import round_robin
from semel.group_coordinator.classic.state import GroupState
from semel.group_coordinator.consumer.target_assignment import UNIFORM
from semel.group_coordinator.records.consumer_state import ConsumerGroupState
from semel.protocol.api.consumer_groups import LEAVE_STATIC_EPOCH, TopicIdPartition
from semel.protocol.consumer_protocol import decode_assignment, decode_subscription
from semel.protocol.ids import OFFSETS_TOPIC, TopicId, TopicPartition
from semel.runtime.keys import partition_for_key
from simulation.actors import INPUT, OUTPUT, Actor
from simulation.kafka_group_members import COOPERATIVE, ClassicMember, Member

if TYPE_CHECKING:
    from semel.group_coordinator.classic.members import ClassicGroupData
    from semel.group_coordinator.consumer.members import ConsumerGroupData
    from semel.group_coordinator.machine import GroupMachine
    from simulation.ledger import Ledger
    from simulation.loop import Process
    from simulation.world import SimulatedNode, World

GROUP: Final = "members"
MEMBERS_SHARE: Final = 0.5
"""How many worlds with transactions have such a group."""
STATIC_SHARE: Final = 0.5
"""How many of those have static members."""
SETTLE_S: Final = 60.0
"""How long the group may take to be stable after all faults."""
_ANSWER_S: Final = 1.5
"""So much of a session is to be left where it must not end meanwhile."""
_RETURN_S: Final = 4.0
"""A static member is judged by how it comes back where that takes no longer: a rebalance would take so long."""
_CALM_S: Final = 3.0
"""So long no clock may have jumped before: the members' timeouts are by the coordinator's."""

Shares = dict[str, frozenset[TopicPartition]]


@dataclass(frozen=True, slots=True)
class MemberGroup:
    """What the group of a world is.

    is_new:     by the new protocol (KIP-848), where the coordinator assigns
    static:     for each member whether it is static
    session_ms: after how long a silent member is expelled
    """

    is_new: bool
    assignor: str
    static: tuple[bool, ...]
    session_ms: int
    topics: tuple[str, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """What nodes are told of it."""
        return {
            "group_consumer_session_timeout_ms": self.session_ms,
            "group_consumer_heartbeat_interval_ms": 1_000,
        }


def draw_group(seed: int) -> MemberGroup | None:
    """Draw the group of a world, which has a chance of its own: worlds without one are as if there were none."""
    chance = random.Random(f"members of {seed}")
    if chance.random() >= MEMBERS_SHARE:
        return None
    kind = chance.choice(("new", "eager", "cooperative"))
    assignors = {
        "new": (UNIFORM, range_assignor.NAME),
        "eager": (round_robin.NAME, range_assignor.NAME),
        "cooperative": (COOPERATIVE,),
    }
    is_static = chance.random() < STATIC_SHARE
    return MemberGroup(
        kind == "new",
        chance.choice(assignors[kind]),
        tuple(is_static and chance.random() < 0.7 for _ in range(chance.choice((2, 3, 3)))),
        chance.choice((4_000, 6_000)),
        chance.choice(((INPUT,), (INPUT, OUTPUT))),
    )


@dataclass(frozen=True, slots=True)
class View:
    """The group as its coordinator holds it now. One of `classic` and `consumer` is there."""

    node: SimulatedNode
    machine: GroupMachine
    classic: ClassicGroupData | None
    consumer: ConsumerGroupData | None

    @property
    def generation(self) -> int:
        """The generation of the group, or its epoch."""
        if self.classic is not None:
            return self.classic.generation_id
        assert self.consumer is not None
        return self.consumer.epoch

    @property
    def member_ids(self) -> Collection[str]:
        if self.classic is not None:
            return self.classic.members.keys()
        assert self.consumer is not None
        return self.consumer.details.keys()

    def static_id(self, instance_id: str) -> str | None:
        """Return the id of the member that has the place of an instance."""
        group = self.classic.static_members if self.classic is not None else getattr(self.consumer, "static_ids", {})
        return group.get(instance_id)

    def counts(self, member: Member) -> bool:
        """Whether what a member believes to own is its own: it is in this generation, or in this epoch."""
        if self.consumer is not None:
            known = self.consumer.member(member.member_id)
            if known is None or known.current.epoch == LEAVE_STATIC_EPOCH:
                return False
            return member.generation in (known.current.epoch, known.current.previous_epoch)
        assert self.classic is not None
        one = self.classic.members.get(member.member_id)
        if one is None:
            return False
        if member.generation == self.classic.generation_id:
            return True
        # It has joined this generation by what it said last, and does not know of it yet.
        return (
            isinstance(member, ClassicMember)
            and member.is_cooperative
            and not one.is_absent
            and one.metadata(member.assignor) == member.subscription
        )

    def may_commit(self, member: Member) -> bool:
        """Whether a commit of a member as it is now may be accepted (O4)."""
        if self.consumer is not None:
            known = self.consumer.member(member.member_id)
            return known is not None and known.current.epoch == member.generation
        assert self.classic is not None
        return member.member_id in self.classic.members and member.generation == self.classic.generation_id

    def shares(self, names: Mapping[TopicId, str]) -> Shares:
        """Return what each member has now."""
        if self.consumer is not None:
            currents = self.consumer.currents.items()
            return {member_id: _named(current.assigned, names) for member_id, current in currents}
        assert self.classic is not None
        return {
            one.member_id: frozenset(decode_assignment(one.assignment).partitions)
            for one in self.classic.members.values()
        }

    @property
    def is_stable(self) -> bool:
        """Whether nobody has anything to do until somebody comes or goes. A cooperative move is a second rebalance."""
        if self.consumer is not None:
            return self.consumer.state is ConsumerGroupState.STABLE
        group = self.classic
        assert group is not None
        if group.state is not GroupState.STABLE:
            return False
        given = {tp for one in group.members.values() for tp in decode_assignment(one.assignment).partitions}
        said = (decode_subscription(one.metadata(group.protocol_name)) for one in group.members.values())
        return group.protocol_name != COOPERATIVE or all(given.issuperset(each.owned_partitions) for each in said)


def _named(partitions: Iterable[TopicIdPartition], names: Mapping[TopicId, str]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(names[each.topic_id], each.partition) for each in partitions)


def owned_twice(machine: GroupMachine) -> Iterator[str]:
    """Say of every group of a coordinator what it gives two members, by its own books (G2)."""
    for group_id, _, _ in machine.groups():
        consumer, classic = machine.consumer_group(group_id), machine.group(group_id)
        if consumer is not None:
            held = {member_id: current.held for member_id, current in consumer.currents.items()}
            for what, shares in (("is to give", consumer.targets), ("gives", held)):
                if twice := _twice(shares):
                    yield f"group {group_id} {what} {twice} to two members: {shares}"
        elif classic is not None and classic.is_consumer_group and classic.state is GroupState.STABLE:
            given = {one.member_id: decode_assignment(one.assignment).partitions for one in classic.members.values()}
            if twice := _twice(given):
                yield f"generation {classic.generation_id} of group {group_id} gives {twice} to two members: {given}"


def _twice(shares: Mapping[str, Collection[Any]]) -> set[Any]:
    seen: set[Any] = set()
    return {each for share in shares.values() for each in share if each in seen or seen.add(each)}  # type: ignore[func-returns-value]


@dataclass(slots=True)
class Entry:
    """One process that is a member."""

    process: Process
    name: str
    member: Member


@dataclass(frozen=True, slots=True)
class Return:
    """A static member is about to join again, in a group that is stable and in which nobody else does anything."""

    machine: GroupMachine
    begun_s: float
    ends_s: float
    """When its session ends."""
    events: int
    generation: int
    share: frozenset[TopicPartition]
    others: tuple[tuple[str, Member], ...]


class GroupWatch:
    """Knows the members of all lives, and what each believes."""

    def __init__(self, world: World, ledger: Ledger, group: MemberGroup, partitions: int) -> None:
        self.world = world
        self.ledger = ledger
        self.group = group
        self.counts = dict.fromkeys(group.topics, partitions)
        self.acknowledged: dict[TopicPartition, int | None] = {}
        self.is_calm = False
        """Whether members stay from now on."""
        self.unrest = 0
        """Counts whenever somebody comes, goes or falls silent of its own accord."""
        self.looks = 0
        self.stable = 0
        """How many looks found a stable group."""
        self.returns = 0
        """How many returns of static members were judged."""
        self.refused = 0
        """How many commits of zombies were refused."""
        self.programs: list[Actor] = []
        """Those whose lives are members."""
        self._entries: list[Entry] = []
        self._members: list[Member] = []
        """All there ever were."""
        self._names: dict[TopicId, str] = {}
        self._places: dict[str, Member] = {}
        """The last member of each instance that has joined."""
        self._clocks = self._clocks_now()
        self._clocks_since_s = -_CALM_S

    # --- Who is there -------------------------------------------------------------------------------------------------

    def enter(self, process: Process, name: str, member: Member) -> Entry:
        """A process is about to join."""
        self.unrest += 1
        self._names |= {topic_id: name for name, (topic_id, _) in member.topics.items()}
        entry = Entry(process, name, member)
        self._entries.append(entry)
        self._members.append(member)
        return entry

    def leave(self, entry: Entry) -> None:
        """It takes no part any more."""
        self.unrest += 1
        self._entries.remove(entry)

    def _alive(self) -> list[Entry]:
        self._entries = [entry for entry in self._entries if not entry.process.is_dead]
        return self._entries

    def view(self) -> View | None:
        """Return the group as its coordinator holds it; None where nobody coordinates it now."""
        nodes = [
            node
            for node in self.world.nodes.values()
            if node.node is not None and node.is_up and node.node.is_serving and not node.storage.crashed
        ]
        if len(self.world.nodes) > 1:
            nodes = _leading(nodes)
        for node in nodes:
            assert node.node is not None
            for machine in node.node.groups.machines():
                classic, consumer = machine.group(GROUP), machine.consumer_group(GROUP)
                if classic is not None or consumer is not None:
                    return View(node, machine, classic, consumer)
        return None

    # --- At any time --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Check what must hold now."""
        self._look_at_clocks()
        view = self.view()
        if view is None:
            return
        self.looks += 1
        believed = [(entry, entry.member.assigned) for entry in self._alive() if view.counts(entry.member)]
        for number, (one, share) in enumerate(believed):
            for other, also in believed[:number]:
                if both := share & also:
                    self._wrong("G2", f"{one.name} and {other.name} both own {sorted(both)}: {self._told(view)}")
        for trouble in owned_twice(view.machine):
            self._wrong("G2", trouble)
        if view.is_stable and view.member_ids:
            self.stable += 1
            if trouble := self._uneven(view.shares(self._names)):
                self._wrong("G3", f"{trouble}: {self._told(view)}")

    def _look_at_clocks(self) -> None:
        clocks = self._clocks_now()
        if clocks != self._clocks:
            self._clocks, self._clocks_since_s = clocks, self.world.scheduler.now

    def _clocks_now(self) -> list[int]:
        return [node.clock.off_ms for node in self.world.nodes.values()]

    def _uneven(self, shares: Shares) -> str:
        """Return what is wrong with shares of everything, "" where nothing is. All members want the same topics."""
        wanted = {TopicPartition(topic, number) for topic, count in self.counts.items() for number in range(count)}
        given = {tp for share in shares.values() for tp in share}
        if given != wanted:
            return f"{sorted(wanted ^ given)} has no owner"
        by_topic = self.group.assignor == range_assignor.NAME
        for some in [[topic] for topic in self.counts] if by_topic else [list(self.counts)]:
            loads = [sum(tp.topic in some for tp in share) for share in shares.values()]
            if max(loads) - min(loads) > 1:
                return f"the loads of {some} are {loads}"
        return ""

    def judge_commit(self, before: View | None, could: bool, member: Member, name: str) -> None:
        """A commit was accepted, or refused. could: whether `before`, as it was asked for, it could be accepted."""
        after = self.view()
        if before is None or after is None or could or after.machine is not before.machine:
            return  # who starts again may stand at the generation before
        who = f"{name} as {member.member_id!r} in {member.generation}"
        self._wrong("O4", f"a commit of {who} is accepted: {self._told(after)}")

    # --- Static members -----------------------------------------------------------------------------------------------

    def about_to_return(self, member: Member) -> Return | None:
        """Return what a static member's return is judged by; None where others may cause a rebalance."""
        instance_id, now = member.instance_id, self.world.scheduler.now
        if instance_id is None:
            return None
        before = self._places.get(instance_id)
        self._look_at_clocks()
        view = self.view()
        if before is None or view is None or now - self._clocks_since_s < _CALM_S:
            return None
        old_id = view.static_id(instance_id)
        if old_id is None or old_id != before.member_id or not self._has_time(before):
            return None
        if not (view.is_stable if view.consumer is None else _waits_for(view.consumer, old_id)):
            return None
        ids = {member_id: None for member_id in view.member_ids if member_id != old_id}
        others = {one.member_id: one for one in self._members if one.member_id in ids}
        expected = Return(
            view.machine,
            now,
            before.heard_s + self.group.session_ms / 1000,
            self._events(),
            view.generation,
            view.shares(self._names)[old_id],
            tuple(others.items()),
        )
        there = {entry.member.member_id for entry in self._alive() if entry.member is not member}
        are_known = there <= ids.keys() == others.keys()
        return expected if are_known and self._are_quiet(expected, view) else None

    def _events(self) -> int:
        """Count what may cause a rebalance."""
        return self.unrest + sum(member.expelled for member in self._members)

    def _has_time(self, member: Member) -> bool:
        """Whether a member's session lasts for longer than an answer takes."""
        return self.world.scheduler.now + _ANSWER_S < member.heard_s + self.group.session_ms / 1000

    def _are_quiet(self, expected: Return, view: View | None = None) -> bool:
        """Whether the others are as they were, and in their sessions. view: to see whether they are in the group"""
        others = dict(expected.others)
        for entry in self._alive():
            process, member = entry.process, entry.member
            if others.get(member.member_id) is not member:
                continue
            if process.is_paused or (view is not None and not (member.is_in and view.counts(member))):
                return False
        return all(one.member_id == member_id and self._has_time(one) for member_id, one in expected.others)

    def returned(self, expected: Return | None, member: Member) -> None:
        """A member has joined: a static one may have been here before (G4)."""
        if member.instance_id is not None:
            self._places[member.instance_id] = member
        if expected is None or self._events() != expected.events:
            return
        self._look_at_clocks()
        view, now = self.view(), self.world.scheduler.now
        if (
            view is None
            or view.machine is not expected.machine
            or now > min(expected.begun_s + _RETURN_S, expected.ends_s)
        ):
            return
        if expected.begun_s - self._clocks_since_s < _CALM_S or not self._are_quiet(expected):
            return
        self.returns += 1
        if view.generation != expected.generation or member.generation != expected.generation:
            self._wrong(
                "G4",
                f"{member.instance_id} came back in {expected.generation}, and is in {member.generation} "
                f"of {view.generation}: {self._told(view)}",
            )
        elif member.assigned != expected.share:
            self._wrong("G4", f"{member.instance_id} had {sorted(expected.share)}, and got {sorted(member.assigned)}")

    # --- At the end ---------------------------------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Whether the group is stable, with those who are there, and each of them knows what it owns."""
        return not self.what_is_unsettled()

    def what_is_unsettled(self) -> str:
        wanted = {f"{program.name}.{program.lives}" for program in self.programs if not program.is_done}
        if (there := {entry.name for entry in self._alive()}) != wanted:
            return f"{sorted(there)} are there, and not {sorted(wanted)}"
        view, members = self.view(), [entry.member for entry in self._entries]
        if view is None:
            return "" if not members else "nobody coordinates the group"
        if {member.member_id for member in members} != set(view.member_ids):
            return f"members are {[member.member_id for member in members]}, and the group has {self._told(view)}"
        if not members:
            return ""
        if not view.is_stable:
            return f"the group is not stable: {self._told(view)}"
        shares, believed = view.shares(self._names), {member.member_id: member.assigned for member in members}
        if believed != shares:
            return f"members own {believed}, and were given {shares}"
        return self._uneven(shares)

    def _told(self, view: View) -> str:
        group = view.classic.state.value if view.classic is not None else getattr(view.consumer, "state", None)
        shares = {member_id: sorted(map(str, share)) for member_id, share in view.shares(self._names).items()}
        return f"{self.group.assignor}, {view.generation}, {group}, {list(view.member_ids)}, {shares}"

    def _wrong(self, rule: str, detail: str) -> None:
        self.ledger.wrong(rule, detail)


def _waits_for(group: ConsumerGroupData, member_id: str) -> bool:
    """Whether a group is stable but for this member, which has left for a while and had all that it is to have."""
    own = group.currents[member_id]
    if own.epoch != LEAVE_STATIC_EPOCH or own.assigned != group.target(member_id) or group.epoch != group.target_epoch:
        return False
    return all(
        each.current.epoch in (group.epoch, LEAVE_STATIC_EPOCH) and group.target(each.member_id) == each.current.held
        for each in group.members()
        if each.member_id != member_id
    )


def _leading(nodes: Sequence[SimulatedNode]) -> list[SimulatedNode]:
    """Return the node that leads the group's partition by the newest metadata that any node has, if it knows that."""
    images = {node.name: node.node.metadata.image for node in nodes if node.node is not None}
    newest = max(images.values(), key=lambda image: image.sequence, default=EMPTY_IMAGE)
    topic = newest.topics.get(OFFSETS_TOPIC)
    if topic is None:
        return []
    number = partition_for_key(GROUP, len(topic.partitions))
    led = topic.partitions[number]
    return [
        node
        for node in nodes
        if node.settings["node_id"] == led.leader
        and (own := images[node.name].topics.get(OFFSETS_TOPIC)) is not None
        and own.partitions[number].leader_epoch == led.leader_epoch
    ]
