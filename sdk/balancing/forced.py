"""Moves that have to be, whatever they cost: off nodes that are emptied, and into racks that a partition lacks.

Each is placed in the best place there is now. The search for a better balance may choose another later, for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from semel.protocol.wording import counted, size
from semel.sdk.balancing.layout import Layout, Step


def empty_nodes(layout: Layout, movable: Iterable[int]) -> tuple[list[int], dict[int, str]]:
    """Move the replicas off the nodes that are emptied.

    Returns the numbers of the partitions that were moved, and why others could not be: these are as before.
    """
    moved: list[int] = []
    impossible: dict[int, str] = {}
    # The largest first, while there is room for them.
    for number in sorted(movable, key=lambda each: (-layout.sizes[each], each)):
        leaving = sorted(layout.emptied.intersection(layout.replicas[number]))
        if leaving:
            reason = _leave(layout, number, leaving)
            if reason:
                impossible[number] = reason
            else:
                moved.append(number)
    return moved, impossible


def _leave(layout: Layout, number: int, leaving: list[int]) -> str:
    """Replace replicas of a partition, all or none; return why that is impossible, else an empty text."""
    replicas = layout.replicas[number]
    factor, racks_before = len(replicas), layout.rack_count(number)
    stay = [node for node in replicas if node not in leaving]
    others = [node for node in layout.able if node not in replicas]
    left = len(stay) + len(others)
    if left < factor:
        return f"{counted(factor, 'replica')} {_needs(factor)} {counted(factor, 'node')}, and {left} {_are(left)} left"
    roomy = [node for node in others if layout.has_room(number, node)]
    if len(roomy) < len(leaving):
        return (
            f"{counted(len(leaving), 'replica')} of {size(layout.sizes[number])} {_needs(len(leaving))} another node, "
            f"and {len(roomy)} of the {counted(len(others), 'node')} without one {_have(len(roomy))} room for it"
        )
    chosen: list[int] = []
    for _ in leaving:
        inside = {layout.racks[node] for node in (*stay, *chosen)}
        chosen.append(
            min(
                (node for node in roomy if node not in chosen),
                key=lambda node: (layout.racks[node] in inside, layout.adding(number, node), node),
            )
        )
    racks_after = len({layout.racks[node] for node in (*stay, *chosen)})
    if racks_after < racks_before:
        return (
            f"its replicas are in {counted(racks_before, 'rack')}, and would be in {racks_after}: "
            "no node of another rack may get a replica and has room for it"
        )
    led_by = layout.leaders[number]
    for source, target in zip(leaving, chosen, strict=True):
        layout.take(Step(number, source, target, target if source == led_by else layout.leaders[number]))
    return ""


def use_racks(layout: Layout, movable: Iterable[int]) -> tuple[list[int], dict[int, str]]:
    """Move replicas so that each partition's are in as many racks as they can be. Returns as `empty_nodes` does."""
    moved: list[int] = []
    lacking: dict[int, str] = {}
    usable = {layout.racks[node] for node in layout.able}
    for number in sorted(movable, key=lambda each: (-layout.sizes[each], each)):
        replicas = layout.replicas[number]
        wanted = min(len(replicas), len(usable.union(layout.racks[node] for node in replicas)))
        while (count := layout.rack_count(number)) < wanted:
            step = _step_into_a_rack(layout, number)
            if step is None:
                lacking[number] = (
                    f"its replicas are in {counted(count, 'rack')} and could be in {wanted}, but no node of another "
                    f"rack has room for {size(layout.sizes[number])}"
                )
                break
            layout.take(step)
            if number not in moved[-1:]:
                moved.append(number)
    return moved, lacking


def _step_into_a_rack(layout: Layout, number: int) -> Step | None:
    replicas, leader = layout.replicas[number], layout.leaders[number]
    inside = [layout.racks[node] for node in replicas]
    spare = [node for node in replicas if inside.count(layout.racks[node]) > 1]
    targets = [node for node in layout.able if layout.racks[node] not in inside and layout.has_room(number, node)]
    if not targets:
        return None
    target = min(targets, key=lambda node: (layout.adding(number, node), node))
    # A leader that stays needs no other one. Of the rest, the node that has the most gives its replica away.
    source = max(spare, key=lambda node: (node != leader, layout.adding(number, node), -node))
    return Step(number, source, target, target if source == leader else leader)


def _needs(number: int) -> str:
    return "needs" if number == 1 else "need"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _have(number: int) -> str:
    return "has" if number == 1 else "have"
