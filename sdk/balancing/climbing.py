"""The search for a better balance: steps that each lower the cost, until none does.

A single step changes one preferred leader or moves one replica. Where none gains, several steps at once may: leaders
passed on over nodes in between, and two leaders or two replicas that change places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from semel.sdk.balancing.layout import NO_COPY, Layout, Step

_EXCHANGED_MAX: Final = 24
"""So many partitions of each of two nodes are tried for an exchange, spread over their sizes, or over what their leader
sends: all would be millions."""

_NEAR: Final = 4
"""A step that lacks less than so many times of what a step has to gain may gain enough soon, when others are taken."""


class Climb:
    """A search from one layout. `movable`: the numbers of the partitions that may be changed, in order."""

    def __init__(self, layout: Layout, movable: Sequence[int], steps_max: int) -> None:
        self._layout = layout
        self._movable = movable
        self._steps_left = steps_max

    @property
    def is_cut_off(self) -> bool:
        """Whether the search ended because it had taken as many steps as it may."""
        return self._steps_left <= 0

    def run(self) -> bool:
        """Take steps until none gains anything. Returns whether any was taken."""
        begun_with = self._steps_left
        while not self.is_cut_off and self._take_some():
            pass
        return self._steps_left < begun_with

    def _take_some(self) -> bool:
        # What leaders alone can do is done by them, before anything is copied for it.
        return (
            self._take_singles(may_copy=False)
            or self._pass_leader_on()
            or self._exchange_leaders()
            or self._take_singles(may_copy=True)
            or self._exchange()
        )

    def _take(self, *steps: Step) -> None:
        for step in steps:
            self._layout.take(step)
        self._steps_left -= len(steps)

    # --- One replica ----------------------------------------------------------------------------------------------

    def _take_singles(self, *, may_copy: bool) -> bool:
        """Take the best steps of all partitions, the better ones first. Returns whether any was taken.

        Each step changes what the others gain. So those that gain less than half of what they promised wait, and those
        that gain nearly enough are looked at again, which is far less than to look at all partitions again.
        """
        best_step, gain_min = self._layout.best_step, self._layout.gain_min
        nearly = -_NEAR * gain_min
        if may_copy:
            todo = [step for number in self._movable if (step := best_step(number, nearly, may_copy=True))]
        else:
            todo = self._leader_steps(nearly)
        share, any_taken = 0.5, False
        while True:
            todo.sort(key=lambda step: (-step.gain, step.number))
            waiting: list[Step] = []
            is_done = True
            for promised in todo:
                step = best_step(promised.number, nearly, may_copy=may_copy)
                if step is None:
                    continue
                if step.gain > gain_min and step.gain >= share * promised.gain:
                    if self.is_cut_off:
                        return any_taken
                    self._take(step)
                    any_taken, is_done = True, False
                waiting.append(step)
            if is_done:
                return any_taken
            todo, share = waiting, share / 2

    def _leader_steps(self, gain_min: float) -> list[Step]:
        """Return for each partition the other preferred leader that gains most, if it gains more than `gain_min`."""
        best: dict[int, Step] = {}
        for number, node, gain in self._layout.leader_changes(self._movable):
            if gain > gain_min and (number not in best or gain > best[number].gain):
                best[number] = Step(number, NO_COPY, NO_COPY, node, gain)
        return list(best.values())

    # --- Leaders over nodes in between ----------------------------------------------------------------------------

    def _pass_leader_on(self) -> bool:
        """Let one node lead one partition less, and another one more, though they share no partition.

        The first passes one on to a node that passes another on, and so on: the cheapest way, in leaders that it makes
        worse spread within their topics.
        """
        links = self._links()
        best: tuple[float, int, int] | None = None
        ways = {node: _cheapest_ways(node, links, self._layout.able) for node in self._layout.able}
        for most, reached in ways.items():
            for least, (detour, _) in reached.items():
                gain = self._layout.lead_over_gain(most, least) - detour
                if gain > self._layout.gain_min and (best is None or gain > best[0]):
                    best = (gain, most, least)
        if best is None:
            return False
        _, most, least = best
        steps: list[Step] = []
        while least != most:
            before = ways[most][least][1]
            steps.append(links[before, least][1])
            least = before
        return self._take_if_better(steps)

    def _links(self) -> dict[tuple[int, int], tuple[float, Step]]:
        """Return what it costs least to pass one partition on from a node to another, by both, and the step."""
        layout = self._layout
        links: dict[tuple[int, int], tuple[float, Step]] = {}
        for number, node, gain in layout.leader_changes(self._movable):
            leader = layout.leaders[number]
            # One that helps otherwise counts as free: else a way in a circle could be the cheapest.
            detour = max(0.0, layout.lead_over_gain(leader, node) - gain)
            known = links.get((leader, node))
            if known is None or detour < known[0]:
                links[leader, node] = (detour, Step(number, NO_COPY, NO_COPY, node))
        return links

    def _take_if_better(self, steps: Sequence[Step]) -> bool:
        """Take steps that gain something together: of one topic, each changes what the others gain."""
        undo: list[Step] = []
        gain = 0.0
        for step in steps:
            gain += self._layout.gain(step)
            undo.append(self._layout.take(step))
        if gain > self._layout.gain_min:
            self._steps_left -= len(steps)
            return True
        for step in reversed(undo):
            self._layout.take(step)
        return False

    # --- Two leaders ----------------------------------------------------------------------------------------------

    def _exchange_leaders(self) -> bool:
        """Let each two nodes exchange partitions that they lead, one for one, while that gains.

        One that sends much for one that sends little: either alone may gain nothing, because one node would lead more
        partitions than the other. Returns whether any did.
        """
        layout, rates = self._layout, self._layout.led_rates
        if not any(rates):
            return False
        between: dict[tuple[int, int], list[int]] = {}
        for number, node, _ in layout.leader_changes(self._movable):
            between.setdefault((layout.leaders[number], node), []).append(number)
        for numbers in between.values():
            numbers.sort(key=lambda each: (rates[each], each))
        any_taken = False
        for left, right in combinations(layout.able, 2):
            by_left, by_right = between.get((left, right), []), between.get((right, left), [])
            while not self.is_cut_off and (pair := self._best_leader_exchange(left, right, by_left, by_right)):
                self._take(Step(pair[0], NO_COPY, NO_COPY, right), Step(pair[1], NO_COPY, NO_COPY, left))
                any_taken = True
        return any_taken

    def _best_leader_exchange(
        self, left: int, right: int, by_left: Sequence[int], by_right: Sequence[int]
    ) -> tuple[int, int] | None:
        layout, together = self._layout, self._layout.together_gain
        going = [number for number in by_left if layout.leaders[number] == left]
        coming = [number for number in by_right if layout.leaders[number] == right]
        others = [(each, layout.leader_gain(each, left)) for each in _spread(coming)]
        best, best_gain = None, layout.exchange_gain_min
        for number in _spread(going):
            alone = layout.leader_gain(number, right)
            for other, other_alone in others:
                gain = alone + other_alone + together(number, other)
                if gain > best_gain:
                    best, best_gain = (number, other), gain
        return best

    # --- Two replicas ---------------------------------------------------------------------------------------------

    def _exchange(self) -> bool:
        """Let each two nodes exchange the two replicas that gain the most by it. Returns whether any did."""
        on_node: dict[int, list[int]] = {node: [] for node in self._layout.able}
        for number in filter(self._layout.is_whole, self._movable):
            for node in self._layout.replicas[number]:
                if node in on_node:
                    on_node[node].append(number)
        for numbers in on_node.values():
            numbers.sort(key=lambda each: (self._layout.sizes[each], each))
        any_taken = False
        for left, right in combinations(self._layout.able, 2):
            if self.is_cut_off:
                break
            steps = self._best_exchange(left, right, on_node[left], on_node[right])
            if steps:
                self._take(*steps)
                any_taken = True
        return any_taken

    def _best_exchange(
        self, left: int, right: int, on_left: Sequence[int], on_right: Sequence[int]
    ) -> tuple[Step, Step] | None:
        layout = self._layout
        best, best_gain = None, layout.gain_min
        coming = [step for step in (self._step(each, right, left) for each in _spread(on_right)) if step]
        for number in _spread(on_left):
            going = self._step(number, left, right)
            if going is None:
                continue
            gain = layout.gain(going)
            undo = layout.take(going)
            for step in coming:
                both = gain + layout.gain(step)
                if both > best_gain and step.number != number:
                    best, best_gain = (going, step), both
            layout.take(undo)
        return best

    def _step(self, number: int, source: int, target: int) -> Step | None:
        """Return the step that takes a replica, and its leadership, to another node; None where it may not go there."""
        layout, leader = self._layout, self._layout.leaders[number]
        replicas = layout.replicas[number]
        if source not in replicas or target in replicas or not layout.has_room(number, target):
            return None
        if not layout.keeps_racks(number, source, target):
            return None
        return Step(number, source, target, target if source == leader else leader)


def _spread(numbers: Sequence[int]) -> Iterator[int]:
    """Return all of a few partitions, or some of many, at equal distances."""
    count = min(len(numbers), _EXCHANGED_MAX)
    return (numbers[place * len(numbers) // count] for place in range(count))


def _cheapest_ways(
    start: int, links: dict[tuple[int, int], tuple[float, Step]], nodes: Sequence[int]
) -> dict[int, tuple[float, int]]:
    """Return what the cheapest way to each node costs, and the node before it (Bellman and Ford)."""
    ways: dict[int, tuple[float, int]] = {start: (0.0, start)}
    for _ in nodes:
        is_shorter = False
        for (before, node), (detour, _) in links.items():
            if before in ways and node != start:
                cost = ways[before][0] + detour
                if node not in ways or cost < ways[node][0]:
                    ways[node] = (cost, before)
                    is_shorter = True
        if not is_shorter:
            break
    return ways
