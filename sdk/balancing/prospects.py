"""Which partitions may have a step that gains something, without looking at all of them again and again.

Near the end of a search few steps are taken between two looks at all partitions. What most of them gain can't have
changed much since: by no more than what one unit more of each thing costs changed on the nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf

from semel.sdk.balancing.layout import Layout, Step


class Prospects:
    """What the best step of each partition gains at most."""

    def __init__(self, layout: Layout, movable: Sequence[int]) -> None:
        self._layout = layout
        self._movable = movable
        self._at_most = dict.fromkeys(movable, inf)
        self._slopes = layout.slopes()
        self._too_large: set[int] = set()

    def steps(self, gain_min: float) -> list[Step]:
        """Return the best step of each partition that has one that gains more than this."""
        layout, at_most = self._layout, self._at_most
        for number, drift in zip(self._movable, layout.drifts(self._movable, self._slopes), strict=True):
            at_most[number] += drift
        self._slopes = layout.slopes()
        for number in layout.changed | self._too_large if layout.room_grew else layout.changed:
            at_most[number] = inf
        layout.changed.clear()
        layout.room_grew = False
        found: list[Step] = []
        for number in self._movable:
            if at_most[number] <= gain_min:
                continue
            step = layout.best_step(number, -inf, may_copy=True)
            at_most[number] = gain = -inf if step is None else step.gain
            # Where a disk is too full for it, that may be otherwise later.
            if not layout.has_room_everywhere(number):
                self._too_large.add(number)
            if step is not None and gain > gain_min:
                found.append(step)
        return found


class LeaderChanges:
    """All other preferred leaders that there may be, by the present one and the other: only what changes is asked for.

    What a change gains depends on these two nodes alone, so that of two that stay as they are is still known.
    """

    def __init__(self, layout: Layout, movable: Sequence[int]) -> None:
        self._layout = layout
        self._movable = movable
        self._seen = -1
        self._by_nodes: defaultdict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)

    def by_nodes(self) -> Mapping[tuple[int, int], list[tuple[int, float]]]:
        """Return the numbers of partitions, in order, and what each gains, by the nodes that lead before and after."""
        layout, known, seen = self._layout, self._by_nodes, self._seen
        if layout.now == seen:
            return known
        changed = {node for node, at in enumerate(layout.changed_at) if at > seen}
        is_all, numbers = len(changed) == len(layout.node_ids), self._movable
        if is_all:
            known.clear()
        else:
            for nodes in [nodes for nodes in known if not changed.isdisjoint(nodes)]:
                del known[nodes]
            numbers = [number for number in numbers if not changed.isdisjoint(layout.replicas[number])]
        leaders = layout.leaders
        for number, node, gain in layout.leader_changes(numbers):
            leader = leaders[number]
            if is_all or leader in changed or node in changed:
                known[leader, node].append((number, gain))
        self._seen = layout.now
        return known
