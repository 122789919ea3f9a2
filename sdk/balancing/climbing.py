"""The search for a better balance: steps that each lower the cost, until none does.

A single step changes one preferred leader or moves one replica. Where none gains, several steps at once may: leaders
passed on over nodes in between, and two leaders or two replicas that change places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, TypeVar

from semel.sdk.balancing.cost import ROUNDING
from semel.sdk.balancing.layout import NO_COPY, Layout, Step
from semel.sdk.balancing.prospects import LeaderChanges, Prospects

_EXCHANGED_MAX: Final = 24
"""So many partitions of each of two nodes are tried for an exchange, spread over their sizes, or over what their leader
sends: all would be millions."""

_Item = TypeVar("_Item")

_NEAR: Final = 4
"""A step that lacks less than so many times of what a step has to gain may gain enough soon, when others are taken."""


class Climb:
    """A search from one layout. `movable`: the numbers of the partitions that may be changed, in order."""

    def __init__(self, layout: Layout, movable: Sequence[int], steps_max: int) -> None:
        self._layout = layout
        self._movable = movable
        self._steps_left = steps_max
        self._prospects = Prospects(layout, movable)
        self._leader_changes = LeaderChanges(layout, movable)
        # Pairs of nodes that had nothing to exchange, and when that was. It stays so while neither changes.
        self._leaders_tried: dict[tuple[int, int], int] = {}
        self._replicas_tried: dict[tuple[int, int], int] = {}

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
        layout, gain_min = self._layout, self._layout.gain_min
        nearly = -_NEAR * gain_min
        found = self._prospects.steps(nearly) if may_copy else self._leader_steps(nearly)
        todo = [(step, layout.now) for step in found]
        share, any_taken = 0.5, False
        while True:
            todo.sort(key=lambda each: (-each[0].gain, each[0].number))
            waiting: list[tuple[Step, int]] = []
            is_done = True
            for promised, looked_at in todo:
                number, now = promised.number, layout.now
                if may_copy or promised.gain > gain_min:
                    is_known = may_copy and now == looked_at
                else:
                    is_known = layout.is_unchanged(number, looked_at)
                step = promised if is_known else layout.best_step(number, nearly, may_copy=may_copy)
                if step is None:
                    continue
                if step.gain > gain_min and step.gain >= share * promised.gain:
                    if self.is_cut_off:
                        return any_taken
                    self._take(step)
                    any_taken, is_done = True, False
                waiting.append((step, now))
            if is_done:
                return any_taken
            todo, share = waiting, share / 2

    def _leader_steps(self, gain_min: float) -> list[Step]:
        """Return for each partition the other preferred leader that gains most, if it gains more than `gain_min`."""
        best: dict[int, tuple[float, int]] = {}
        for (_, node), changes in self._leader_changes.by_nodes().items():
            for number, gain in changes:
                # Of equal ones the lowest node.
                if gain > gain_min and (number not in best or (gain, -node) > best[number]):
                    best[number] = (gain, -node)
        return [Step(number, NO_COPY, NO_COPY, -node, gain) for number, (gain, node) in best.items()]

    # --- Leaders over nodes in between ----------------------------------------------------------------------------

    def _pass_leader_on(self) -> bool:
        """Let one node lead one partition less, and another one more, though they share no partition.

        The first passes one on to a node that passes another on, and so on: the cheapest way, in leaders that it makes
        worse spread within their topics.
        """
        links = self._links()
        best: tuple[float, int, int] | None = None
        layout = self._layout
        ways: dict[int, dict[int, tuple[float, int]]] = {}
        for most in layout.able:
            # A way that costs as much as is gained at most leads nowhere.
            cost_max = max(layout.lead_over_gain(most, least) for least in layout.able) - layout.gain_min
            if cost_max <= 0:
                continue
            cheap = {nodes: link for nodes, link in links.items() if link[0] < cost_max}
            ways[most] = _cheapest_ways(most, cheap, layout.able)
            for least, (detour, _) in ways[most].items():
                gain = layout.lead_over_gain(most, least) - detour
                if gain > layout.gain_min and (best is None or gain > best[0]):
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

        def place(item: tuple[tuple[int, int], list[tuple[int, float]]]) -> tuple[int, int]:
            (_, node), ((number, _), *_) = item
            return number, layout.replicas[number].index(node)

        # Of equally cheap ways the first found is taken: in the order of the partitions, not of what changed last.
        for (leader, node), changes in sorted(self._leader_changes.by_nodes().items(), key=place):
            over = layout.lead_over_gain(leader, node)
            # One that helps otherwise counts as free: else a way in a circle could be the cheapest.
            detour, number = min((max(0.0, over - gain), number) for number, gain in changes)
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
        by_nodes, began = self._leader_changes.by_nodes(), layout.now

        def led(leader: int, node: int) -> list[tuple[int, float]]:
            return sorted(by_nodes.get((leader, node), ()), key=lambda each: (rates[each[0]], each[0]))

        any_taken = False
        for left, right in self._untried(self._leaders_tried):
            by_left, by_right = led(left, right), led(right, left)
            while not self.is_cut_off and (pair := self._best_leader_exchange(left, right, by_left, by_right, began)):
                self._take(Step(pair[0], NO_COPY, NO_COPY, right), Step(pair[1], NO_COPY, NO_COPY, left))
                any_taken = True
        return any_taken

    def _best_leader_exchange(
        self,
        left: int,
        right: int,
        by_left: Sequence[tuple[int, float]],
        by_right: Sequence[tuple[int, float]],
        known_at: int,
    ) -> tuple[int, int] | None:
        """Return the partitions of two nodes that gain most when their leaders change places, None where none do.

        by_left, by_right: those that each leads and the other may lead, and what each change gained alone at `known_at`
        """
        layout, rates = self._layout, self._layout.led_rates
        is_known = max(layout.changed_at[left], layout.changed_at[right]) <= known_at

        def alone(changes: Sequence[tuple[int, float]], leader: int, node: int) -> list[tuple[int, float]]:
            if is_known:
                return list(_spread(changes))
            still = [each for each in changes if layout.leaders[each[0]] == leader]
            return [(number, layout.leader_gain(number, node)) for number, _ in _spread(still)]

        going, coming = alone(by_left, left, right), alone(by_right, right, left)
        if not going or not coming:
            return None
        best, best_gain = None, layout.exchange_gain_min
        others = [(gain, rates[number]) for number, gain in coming]
        topics = {layout.topics[number] for number, _ in coming}
        for number, gain in going:
            # First what they gain of different topics, which is much faster: most gain nothing.
            fixed, per_rate = layout.together_gain_apart(number)
            most = gain + fixed + max([other_gain + per_rate * rate for other_gain, rate in others])
            if most + ROUNDING <= best_gain and layout.topics[number] not in topics:
                continue
            for other, other_gain in coming:
                together = gain + other_gain + layout.together_gain(number, other)
                if together > best_gain:
                    best, best_gain = (number, other), together
        return best

    def _untried(self, tried: dict[tuple[int, int], int]) -> Iterator[tuple[int, int]]:
        """Yield all pairs of nodes of which one has changed since they were tried, and note those that stay so.

        What is tried is what nodes had when this began.
        """
        changed_at, began = self._layout.changed_at, self._layout.now
        for pair in combinations(self._layout.able, 2):
            if max(changed_at[pair[0]], changed_at[pair[1]]) <= tried.get(pair, -1):
                continue
            yield pair
            if max(changed_at[pair[0]], changed_at[pair[1]]) <= began:
                tried[pair] = began

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
        for left, right in self._untried(self._replicas_tried):
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
        going = [step for each in _spread(on_left) if (step := self._step(each, left, right))]
        coming = [step for each in _spread(on_right) if (step := self._step(each, right, left))]
        equal = layout.best_exchanges(
            [(step, layout.gain(step)) for step in going],
            [(step, layout.gain(step)) for step in coming],
            layout.gain_min,
        )
        best, best_gain = None, layout.gain_min
        for step, other in equal:
            gain = layout.gain(step)
            undo = layout.take(step)
            gain += layout.gain(other)
            layout.take(undo)
            if gain > best_gain:
                best, best_gain = (step, other), gain
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


def _spread(items: Sequence[_Item]) -> Iterator[_Item]:
    """Return all of a few partitions, or some of many, at equal distances."""
    count = min(len(items), _EXCHANGED_MAX)
    return (items[place * len(items) // count] for place in range(count))


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
