"""Members of a group in a quiet world do what they are for, and what they must not see is found."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semel.group_coordinator.classic.state import GroupState
from semel.group_coordinator.records.consumer_state import MemberAssignment
from semel.protocol.api.consumer_groups import TopicIdPartition
from semel.protocol.consumer_protocol import Assignment, Subscription, encode_assignment, encode_subscription
from semel.protocol.ids import TopicId, TopicPartition
from simulation.group_watch import GroupWatch, MemberGroup, View, draw_group, owned_twice
from simulation.kafka_group_members import COOPERATIVE, ClassicMember, Member
from simulation.kafka_wire import JAVA_4, Party
from simulation.ledger import Ledger

ROOT = Path(__file__).parents[2]
TOPIC_ID = TopicId.__supertype__(int=7)
TPS = [TopicPartition("in", number) for number in range(3)]

A_CALM_WORLD = """
import json, sys
from simulation import casting, node_scenario
from simulation.group_watch import MemberGroup

is_new, assignor = json.loads(sys.argv[1])
casting.draw_group = lambda seed: MemberGroup(is_new, assignor, (True, True, False), 4_000, ("in",))
done, anomalies = dict.fromkeys(("looks", "stable", "returns", "committed", "lives"), 0), []
for seed in range(3, 9):  # not every world is long enough for all of it
    world = node_scenario.NodeScenario(seed, ())
    verdict = world.run([actor.name for actor in world.actors if "member" not in actor.name and actor.name != "feeder"
                         and "transformer" not in actor.name])
    watch = world.members
    for name in ("looks", "stable", "returns"):
        done[name] += getattr(watch, name)
    done["committed"] += len(watch.acknowledged)
    done["lives"] += min(actor.lives for actor in watch.programs)
    anomalies += map(str, verdict.anomalies)
    if anomalies or all(done.values()):
        break
print(json.dumps([anomalies, done]))
"""


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("is_new", "assignor"), [(True, "uniform"), (True, "range"), (False, "roundrobin"), (False, COOPERATIVE)]
)
def test_G2_G3_G4_in_a_calm_world_members_come_and_go_and_static_ones_get_their_places_back(
    is_new: bool, assignor: str
) -> None:
    support = ROOT / "tests" / "support"
    path = os.pathsep.join(map(str, (ROOT / "tests", support / "pipelines", support / "clients")))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
    run = subprocess.run(
        [sys.executable, "-P", "-c", A_CALM_WORLD, json.dumps([is_new, assignor])],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    anomalies, done = json.loads(run.stdout)
    assert anomalies == []
    assert all(done.values()), done


def test_worlds_have_groups_of_every_kind() -> None:
    drawn = [draw_group(seed) for seed in range(100)]
    groups = [group for group in drawn if group is not None]
    assert 30 < len(groups) < 70
    assert {(group.is_new, group.assignor) for group in groups} == {
        (True, "uniform"), (True, "range"), (False, "roundrobin"), (False, "range"), (False, COOPERATIVE),
    }  # fmt: skip
    assert {any(group.static) for group in groups} == {True, False}
    assert {len(group.static) for group in groups} == {2, 3}


@dataclass
class FakeView:
    """A group as a test says it is."""

    generation: int = 1
    given: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)
    machine: Any = field(default_factory=lambda: SimpleNamespace(groups=lambda: ()))
    expelled: tuple[str, ...] = ()
    is_stable: bool = True
    classic: Any = None
    consumer: Any = None

    @property
    def member_ids(self) -> list[str]:
        return list(self.given)

    def static_id(self, instance_id: str) -> str | None:
        return self.member_ids[0]

    def counts(self, member: Member) -> bool:
        return member.member_id not in self.expelled

    def shares(self, names: object) -> dict[str, frozenset[TopicPartition]]:
        return self.given


class Watched:
    """A watch over members that a test moves; the coordinator is a fake one."""

    def __init__(self, *shares: list[TopicPartition], assignor: str = "roundrobin") -> None:
        self.ledger = Ledger()
        scheduler = SimpleNamespace(now=20.0)
        world: Any = SimpleNamespace(nodes={"node": SimpleNamespace(clock=SimpleNamespace(off_ms=0))}, network=None)
        world.scheduler = scheduler
        self.scheduler = scheduler
        group = MemberGroup(False, assignor, (True,) * len(shares), 6_000, ("in",))
        self.watch = GroupWatch(world, self.ledger, group, 3)
        self.view = FakeView(given={f"m{number}": frozenset(share) for number, share in enumerate(shares)})
        self.watch.view = lambda: self.view  # type: ignore[method-assign, assignment, return-value]
        self.members = [self._member(world, name, share) for name, share in self.view.given.items()]
        for member in self.members:
            process: Any = SimpleNamespace(is_dead=False, is_paused=False)
            self.watch.enter(process, member.member_id, member)

    def _member(self, world: Any, name: str, share: frozenset[TopicPartition]) -> ClassicMember:
        party = Party(world, self.ledger, name, name, random.Random(1), JAVA_4)
        member = ClassicMember(party, "members", {"in": (TOPIC_ID, 3)})
        member.member_id, member.instance_id, member.generation = name, name, 1
        member.assigned, member.heard_s, member._must_join = share, 19.0, False
        return member

    @property
    def rules(self) -> list[str]:
        return [one.kind for one in self.ledger.anomalies]


def test_G2_two_members_of_a_generation_that_own_a_partition_are_found_and_a_zombie_is_not_one() -> None:
    watched = Watched(TPS[:2], TPS[2:])
    watched.watch.look()
    assert watched.rules == []
    watched.members[1].assigned |= {TPS[0]}
    watched.view.expelled = ("m1",)
    watched.watch.look()
    assert watched.rules == []
    watched.view.expelled = ()
    watched.watch.look()
    assert watched.rules == ["G2"]


@pytest.mark.parametrize(
    ("shares", "assignor", "rules"),
    [
        (((0, 1), (2,)), "roundrobin", []),
        (((0, 1), ()), "roundrobin", ["G3"]),
        (((0, 1, 2), ()), "roundrobin", ["G3"]),
        (((0, 1, 2), ()), "range", ["G3"]),
    ],
)
def test_G3_a_stable_group_leaves_nothing_out_and_is_even(
    shares: tuple[tuple[int, ...], ...], assignor: str, rules: list[str]
) -> None:
    watched = Watched(*([TPS[number] for number in share] for share in shares), assignor=assignor)
    watched.watch.look()
    assert watched.rules == rules
    watched.ledger.anomalies.clear()
    watched.view.is_stable = False
    watched.watch.look()
    assert watched.rules == []


def test_O4_a_commit_of_a_member_that_was_expelled_before_it_asked_must_be_refused() -> None:
    watched = Watched(TPS[:2], TPS[2:])
    before: Any = watched.view
    watched.watch.judge_commit(before, True, watched.members[0], "m0")
    assert watched.rules == []
    watched.watch.judge_commit(before, False, watched.members[0], "m0")
    assert watched.rules == ["O4"]
    # A coordinator that has started again may have forgotten a generation that nobody had synced.
    watched.view = FakeView()
    watched.watch.judge_commit(before, False, watched.members[0], "m0")
    assert watched.rules == ["O4"]


@pytest.mark.parametrize(
    ("generation", "share", "rules"), [(1, TPS[:2], []), (2, TPS[:2], ["G4"]), (1, [], ["G4"]), (1, TPS, ["G4"])]
)
def test_G4_a_static_member_that_returns_in_time_has_its_place_in_the_same_generation(
    generation: int, share: list[TopicPartition], rules: list[str]
) -> None:
    watched = Watched(TPS[:2], TPS[2:])
    watch, (first, _) = watched.watch, watched.members
    assert watch.about_to_return(first) is None, "it was never there before"
    watch.returned(None, first)
    watch.leave(watch._entries[0])
    again = watched._member(watch.world, "m9", frozenset(share))
    again.instance_id = "m0"
    process: Any = SimpleNamespace(is_dead=False, is_paused=False)
    watch.enter(process, "again", again)
    expected = watch.about_to_return(again)
    assert expected is not None
    again.generation = watched.view.generation = generation
    watch.returned(expected, again)
    assert (watch.returns, watched.rules) == (1, rules)


def test_G4_a_return_is_not_judged_where_somebody_else_may_cause_a_rebalance() -> None:
    watched = Watched(TPS[:2], TPS[2:])
    watch, (first, second) = watched.watch, watched.members
    watch.returned(None, first)
    watch.leave(watch._entries[0])
    again = watched._member(watch.world, "m9", frozenset())
    again.instance_id = "m0"
    second.heard_s = 15.0
    assert watch.about_to_return(again) is None, "the other one's session is about to end"
    second.heard_s = 19.0
    expected = watch.about_to_return(again)
    assert expected is not None
    watch.unrest += 1
    watched.view.generation = 2
    watch.returned(expected, again)
    assert (watch.returns, watched.rules) == (0, [])


def a_machine(*, consumer: Any = None, classic: Any = None) -> Any:
    return SimpleNamespace(
        groups=lambda: [("group", "Stable", 2)], consumer_group=lambda _: consumer, group=lambda _: classic
    )


def test_G2_a_coordinator_that_gives_a_partition_to_two_is_found_by_its_own_books() -> None:
    one, two = (frozenset({TopicIdPartition(TOPIC_ID, number)}) for number in range(2))
    apart = {"a": MemberAssignment(assigned=one), "b": MemberAssignment(assigned=two)}
    assert list(owned_twice(a_machine(consumer=SimpleNamespace(targets={"a": one}, currents=apart)))) == []
    # What is to be revoked is its owner's until that has said that it is.
    both = {"a": MemberAssignment(to_revoke=one), "b": MemberAssignment(assigned=one)}
    assert len(list(owned_twice(a_machine(consumer=SimpleNamespace(targets={}, currents=both))))) == 1
    same = {"a": one, "b": one}
    assert len(list(owned_twice(a_machine(consumer=SimpleNamespace(targets=same, currents=apart))))) == 1


def test_G2_a_classic_group_is_looked_at_once_it_is_stable() -> None:
    def member(name: str, *given: TopicPartition) -> Any:
        return SimpleNamespace(member_id=name, assignment=encode_assignment(Assignment(given)))

    members = {"a": member("a", TPS[0]), "b": member("b", TPS[0])}
    group = SimpleNamespace(is_consumer_group=True, state=GroupState.STABLE, generation_id=3, members=members)
    assert len(list(owned_twice(a_machine(classic=group)))) == 1
    group.state = GroupState.PREPARING_REBALANCE
    assert list(owned_twice(a_machine(classic=group))) == []


def test_G2_a_cooperative_group_is_not_stable_while_a_partition_has_been_taken_and_given_to_nobody() -> None:
    def view(*given: TopicPartition) -> View:
        one: Any = SimpleNamespace(
            member_id="a",
            assignment=encode_assignment(Assignment(given)),
            metadata=lambda _: encode_subscription(Subscription(("in",), None, tuple(TPS[:2]), 3)),
        )
        group: Any = SimpleNamespace(state=GroupState.STABLE, protocol_name=COOPERATIVE, members={"a": one})
        node: Any = None
        return View(node, a_machine(), group, None)

    assert view(*TPS).is_stable
    assert not view(TPS[0], TPS[2]).is_stable
