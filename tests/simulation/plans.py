"""Which faults a world has, and when: drawn from its seed before it runs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final

from simulation.fault_kinds import (
    DELETION,
    DEPOSED,
    END_IN_CLEANING,
    KINDS,
    LATE_ANSWERS,
    LEFT_BEHIND,
    LOST_ANSWERS,
    SHORT_REIGN,
    Worlds,
)
from simulation.nemesis import Fault

LATE_ANSWERS_SHARE: Final = 0.5
"""In how many worlds with several nodes and transactions coordinators' answers come late."""


def draw_late_answers(seed: int) -> tuple[Fault, ...]:
    """Draw when answers between nodes come late."""
    chance = random.Random(f"late answers of {seed}")
    if chance.random() >= LATE_ANSWERS_SHARE:
        return ()
    shape = KINDS[LATE_ANSWERS]
    return tuple(
        Fault(
            at_s=round(0.2 + chance.random() * 15.0, 3),
            kind=LATE_ANSWERS,
            for_s=round(shape.longest_s * chance.random(), 3),
            amount=chance.randint(*shape.amount),
        )
        for _ in range(chance.randint(1, 3))
    )


CLEANING_SHARE: Final = 0.25
"""In how many worlds with one node it ends while it cleans a log."""


def draw_ends_in_cleaning(seed: int) -> tuple[Fault, ...]:
    """Draw when the node ends at the next cleaning of a log, how, and how far that has come."""
    chance = random.Random(f"cleanings of {seed}")
    if chance.random() >= CLEANING_SHARE:
        return ()
    return tuple(
        Fault(
            at_s=round(1.0 + chance.random() * 13.0, 3),
            kind=END_IN_CLEANING,
            target=chance.choice(KINDS[END_IN_CLEANING].targets),
            for_s=round(chance.random(), 3),
            amount=chance.randint(4, 40),
        )
        for _ in range(chance.randint(2, 5))
    )


SUCCESSIONS_SHARE: Final = 0.5
"""In how many worlds with several nodes leaders die, or are cut off, at a moment that is waited for."""


def draw_successions(seed: int, topics: Sequence[str]) -> tuple[Fault, ...]:
    """Draw when the leaders of topics follow each other in a way that is hard for replicas."""
    chance = random.Random(f"successions of {seed}")
    if chance.random() >= SUCCESSIONS_SHARE:
        return ()
    return tuple(
        Fault(
            at_s=round(0.2 + chance.random() * 9.0, 3),
            kind=chance.choice((SHORT_REIGN, LEFT_BEHIND, DEPOSED)),
            target=chance.choice(topics),
            for_s=round(1.0 + 6.0 * chance.random(), 3),
        )
        for _ in range(chance.randint(1, 2))
    )


DELETIONS_SHARE: Final = 0.6
"""In how many worlds with several nodes, of those where heads of logs are deleted, all lose power after that."""


def draw_deletions(seed: int, topic: str) -> tuple[Fault, ...]:
    """Draw when all nodes lose power as records of a topic are deleted."""
    chance = random.Random(f"deletions of {seed}")
    if chance.random() >= DELETIONS_SHARE:
        return ()
    return tuple(
        Fault(
            at_s=round(0.5 + chance.random() * 11.0, 3),
            kind=DELETION,
            target=topic,
            for_s=round(0.3 + 1.5 * chance.random(), 3),
        )
        for _ in range(chance.randint(1, 2))
    )


LOST_ANSWERS_SHARE: Final = 0.4
"""In how many worlds answers about transactions are lost."""


def draw_lost_answers(seed: int) -> tuple[Fault, ...]:
    """Draw when answers about transactions are lost."""
    chance = random.Random(f"lost answers of {seed}")
    if chance.random() >= LOST_ANSWERS_SHARE:
        return ()
    shape = KINDS[LOST_ANSWERS]
    return tuple(
        Fault(
            at_s=round(0.2 + chance.random() * 14.0, 3),
            kind=LOST_ANSWERS,
            target=chance.choice(shape.targets),
            for_s=round(shape.longest_s * (0.2 + 0.8 * chance.random()), 3),
            amount=chance.choice((1, 2, 3, 1000, 1000)),
        )
        for _ in range(chance.randint(1, 5))
    )


def in_order(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Return faults as they come."""
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def draw_lags(seed: int, nodes: Sequence[str]) -> tuple[Fault, ...]:
    """Draw when nodes do not hear of changes of the metadata, for so short that none loses its place."""
    chance = random.Random(f"lags of {seed}")
    return tuple(
        Fault(
            at_s=round(0.2 + chance.random() * 15.0, 3),
            kind="node without database",
            for_s=round(0.2 + 0.8 * chance.random(), 3),
            node=chance.choice(nodes),
        )
        for _ in range(chance.randint(4, 10))
    )


LEADER, CONTROLLER = "the leader", "the controller"
"""What a node may be when a fault happens to it."""


def draw_plan(
    chance: random.Random,
    clients: Sequence[str],
    seconds: float,
    most: int,
    nodes: Sequence[str] = (),
    *,
    mortal: str | None = None,
    moves: bool = False,
) -> tuple[Fault, ...]:
    """Draw what happens. Half of the worlds see few kinds of faults, so that each kind is also seen alone.

    nodes: those that faults may happen to, by name or by what they are; none where there is one node
    mortal: the only node that may die, where not all may
    moves: whether coordinators move, too
    """
    worlds = {Worlds.ALL, Worlds.OF_SEVERAL if nodes else Worlds.OF_ONE} | (
        {Worlds.OF_COORDINATORS} if moves else set()
    )
    kinds = [
        kind for kind, shape in KINDS.items() if shape.worlds in worlds and (mortal is None or not shape.is_of_all)
    ]
    if chance.random() < 0.5:
        kinds = chance.sample(kinds, 3)
    weights = [KINDS[kind].weight for kind in kinds]
    # Several nodes are hard pressed where faults come together and last: one at a time is what they are made for.
    longer = chance.choice((1, 2, 4)) if nodes else 1
    moments = [chance.random() * seconds for _ in range(4)] if nodes and chance.random() < 0.6 else []
    plan = []
    for _ in range(chance.randint(1, most)):
        kind = chance.choices(kinds, weights)[0]
        shape = KINDS[kind]
        targets = clients if shape.needs_client else nodes if shape.needs_other_node else shape.targets or ("",)
        plan.append(
            Fault(
                at_s=round(0.2 + _moment(chance, moments, seconds), 3),
                kind=kind,
                target=chance.choice(targets),
                for_s=round(longer * shape.longest_s * chance.random() ** 2, 3),
                amount=chance.randint(*shape.amount),
                node=_node_for(chance, kind, nodes, mortal),
            )
        )
    return in_order(plan)


def _moment(chance: random.Random, moments: Sequence[float], seconds: float) -> float:
    if not moments:
        return chance.random() * seconds
    return chance.choice(moments) + chance.choice((0.01, 0.3, 2.0)) * chance.random()


def _node_for(chance: random.Random, kind: str, nodes: Sequence[str], mortal: str | None) -> str:
    if not nodes or not KINDS[kind].is_of_node:
        return ""
    node = chance.choice(nodes)
    return node if mortal is None or kind in _HARMLESS else mortal


_HARMLESS: Final = frozenset(
    {
        "cut",
        "cut towards node",
        "cut towards client",
        "cut of nodes",
        "cut towards other node",
        "isolated node",
        "node without database",
        "break connections",
        "leaders move",
        "pause node",
        "clock",
        "slow disk",
    }
)
"""No process ends of these."""
