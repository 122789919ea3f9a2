"""Where all replicas are while a plan is made, and what one step more would change.

Nodes, topics and partitions are numbers here, in the order of their ids and names, so that the same cluster gives the
same plan in whatever order it is described. All loads are whole numbers, so that a step and its opposite leave nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from operator import sub
from typing import Final

from semel.sdk.balancing.cost import ROUNDING, Factors, Weights, receivers
from semel.sdk.balancing.model import ClusterModel, PartitionModel

NO_COPY: Final = -1


@dataclass(frozen=True, slots=True)
class Step:
    """One replica goes from a node to another, or only another replica becomes the preferred leader.

    source, target: numbers of nodes; both NO_COPY where nothing is copied
    leader:         the preferred leader after it, a number of a node
    gain:           by how much it lowers the imbalance, less what it costs
    """

    number: int
    source: int
    target: int
    leader: int
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Slopes:
    """What one unit more of each thing costs on each node, and by how much at most it has changed within each topic."""

    of_nodes: tuple[tuple[float, ...], ...]
    of_topics: tuple[float, ...]


class Layout:
    """The replicas of all partitions, changed step by step.

    `home` is what a partition is compared with: only replicas on nodes without one at home are copied. So a step that
    takes a replica back home gains what its copy would have cost, and one that takes it elsewhere costs nothing more.
    """

    def __init__(self, cluster: ClusterModel, empty: Collection[int], weights: Weights) -> None:
        nodes = sorted(cluster.nodes, key=lambda each: each.node_id)
        able = {each.node_id for each in receivers(cluster, empty)}
        self.node_ids = tuple(each.node_id for each in nodes)
        self._index = {node_id: node for node, node_id in enumerate(self.node_ids)}
        self.is_able = tuple(node_id in able for node_id in self.node_ids)
        self.able = tuple(node for node, is_able in enumerate(self.is_able) if is_able)
        self.emptied = frozenset(self._index[node_id] for node_id in empty)
        racks = sorted({each.rack for each in nodes})
        self.racks = tuple(racks.index(each.rack) for each in nodes)
        self._is_one_rack = len(racks) == 1
        # A tenth stays free: a disk must not be filled by what is meant to relieve others.
        self._room = [None if each.free_bytes is None else each.free_bytes * 9 // 10 for each in nodes]
        self._room_least = self._least_room()
        self.room_grew = False
        """Whether a disk has got room for something again."""
        self._weights = weights
        self._place(sorted(cluster.partitions, key=lambda each: each.partition))
        self._count()
        self.now = 0
        """How many changes there were."""
        self.changed: set[int] = set()
        """The numbers of the partitions that were changed."""
        self._topic_drift = [0.0] * self._topic_count
        self.changed_at = [0] * len(nodes)
        """The last change of what each node has or leads, or of where else the partitions on it are."""

    def _place(self, partitions: Sequence[PartitionModel]) -> None:
        self.partitions = partitions
        self.sizes = [each.size_bytes for each in partitions]
        self._rates = [round(each.bytes_in_per_s) for each in partitions]
        self.led_rates = [round(each.led_bytes_out_per_s) for each in partitions]
        """What the leader of each sends."""
        topics = {name: topic for topic, name in enumerate(sorted({each.partition.topic for each in partitions}))}
        self.topics = [topics[each.partition.topic] for each in partitions]
        self._topic_count = len(topics)
        self.replicas = [[self._index[each] for each in one.replicas] for one in partitions]
        self.leaders = [each[0] for each in self.replicas]
        self.home = [frozenset(each) for each in self.replicas]
        self.home_leaders = list(self.leaders)
        self._original = list(zip(self.home, self.leaders, strict=True))
        # A replica that is behind is no leader to prefer: it could not lead now. What is copied will be in sync.
        self._behind = [frozenset(map(self._index.__getitem__, {*one.replicas} - one.in_sync)) for one in partitions]

    def _count(self) -> None:
        size = len(self.node_ids)
        self._counts, self._leads, self._bytes, self._in, self._out = ([0] * size for _ in range(5))
        self._topic_counts, self._topic_leads = ([[0] * size for _ in range(self._topic_count)] for _ in range(2))
        for number, replicas in enumerate(self.replicas):
            for node in replicas:
                self._add(number, node, 1)
            self._lead(number, self.leaders[number], 1)
        # Before replicas are moved off the nodes that are emptied: all of them will be on the others.
        self._weigh(range(size))

    # --- Loads ----------------------------------------------------------------------------------------------------

    def weigh(self) -> None:
        """Take what the nodes that may get replicas have together now as what is to be spread over them."""
        self._weigh(self.able)

    def _weigh(self, nodes: Sequence[int]) -> None:
        self._factors = factors = Factors.of(
            self._weights,
            max(1, len(self.able)),
            replicas=sum(self._counts[node] for node in nodes),
            leaders=sum(self._leads[node] for node in nodes),
            size_bytes=sum(self._bytes[node] for node in nodes),
            bytes_in=sum(self._in[node] for node in nodes),
            bytes_out=sum(self._out[node] for node in nodes),
            topic_replicas=[sum(of_topic[node] for node in nodes) for of_topic in self._topic_counts],
            topic_leaders=[sum(of_topic[node] for node in nodes) for of_topic in self._topic_leads],
        )
        # What a replica costs beside all others on a node, and what its copy costs.
        self._squares = [
            factors.replicas + factors.size_bytes * size**2 + factors.bytes_in * rate**2 + factors.topic_replicas[topic]
            for size, rate, topic in zip(self.sizes, self._rates, self.topics, strict=True)
        ]
        self._copies = [factors.per_byte * size + factors.per_replica for size in self.sizes]
        size = len(self.node_ids)
        self._count_slopes, self._lead_slopes = [0.0] * size, [0.0] * size
        self._byte_slopes, self._in_slopes, self._out_slopes = ([0.0] * size for _ in range(3))
        for node in range(size):
            self._slope(node)

    def _slope(self, node: int) -> None:
        """Note what one unit more of each on a node costs; the search reads these far more often than they change."""
        factors = self._factors
        self._count_slopes[node] = 2 * factors.replicas * self._counts[node]
        self._lead_slopes[node] = 2 * factors.leaders * self._leads[node]
        self._byte_slopes[node] = 2 * factors.size_bytes * self._bytes[node]
        self._in_slopes[node] = 2 * factors.bytes_in * self._in[node]
        self._out_slopes[node] = 2 * factors.bytes_out * self._out[node]

    def _add(self, number: int, node: int, sign: int) -> None:
        self._counts[node] += sign
        self._bytes[node] += sign * self.sizes[number]
        self._in[node] += sign * self._rates[number]
        self._topic_counts[self.topics[number]][node] += sign

    def _lead(self, number: int, node: int, sign: int) -> None:
        self._leads[node] += sign
        self._out[node] += sign * self.led_rates[number]
        self._topic_leads[self.topics[number]][node] += sign

    @property
    def gain_min(self) -> float:
        """What a step has to gain more than, to be worth its place in a plan."""
        return self._factors.gain_min

    @property
    def exchange_gain_min(self) -> float:
        """The same for two leaders that change places."""
        return self._factors.exchange_gain_min

    # --- Steps ----------------------------------------------------------------------------------------------------

    def take(self, step: Step) -> Step:
        """Carry out a step, and return the one that undoes it."""
        number, leader = step.number, self.leaders[step.number]
        topic, factors = self.topics[number], self._factors
        if step.source != step.target:
            self._topic_drift[topic] += 4 * factors.topic_replicas[topic]
            self.replicas[number].remove(step.source)
            self.replicas[number].append(step.target)
            self._add(number, step.source, -1)
            self._add(number, step.target, 1)
            self._fill(number, step.source, -1)
            self._fill(number, step.target, 1)
            self._slope(step.source)
            self._slope(step.target)
        if step.leader != leader:
            self._topic_drift[topic] += 4 * factors.topic_leaders[topic]
            self._lead(number, leader, -1)
            self._lead(number, step.leader, 1)
            self.leaders[number] = step.leader
            self._slope(leader)
            self._slope(step.leader)
        self._note(step, leader)
        return Step(number, step.target, step.source, leader, -step.gain)

    def _note(self, step: Step, leader: int) -> None:
        self.now += 1
        self.changed.add(step.number)
        changed_at = self.changed_at
        changed_at[leader] = changed_at[step.leader] = self.now
        if step.source != step.target:
            changed_at[step.source] = self.now
            for node in self.replicas[step.number]:
                changed_at[node] = self.now

    def _fill(self, number: int, node: int, sign: int) -> None:
        # What leaves a disk does not count: it is deleted only once the copy elsewhere is complete.
        room = self._room[node]
        if room is not None and node not in self._original[number][0]:
            self._room[node] = room - sign * self.sizes[number]
            if sign < 0:
                self.room_grew = True
            self._room_least = self._least_room()

    def _least_room(self) -> float:
        return min((room for node in self.able if (room := self._room[node]) is not None), default=inf)

    def has_room(self, number: int, node: int) -> bool:
        """Return whether a node's disk has room for a replica beside all that it gets already."""
        room = self._room[node]
        return room is None or node in self._original[number][0] or self.sizes[number] <= room

    def has_room_everywhere(self, number: int) -> bool:
        """Return whether each node that may get replicas has room for one of a partition."""
        return self.sizes[number] <= self._room_least

    def settle(self) -> None:
        """Take where the replicas are now as their home, as a plan does that is made once these moves are complete."""
        for number, (replicas, leader) in enumerate(zip(self.replicas, self.leaders, strict=True)):
            if leader != self.home_leaders[number] or self.home[number].symmetric_difference(replicas):
                self.home[number], self.home_leaders[number] = frozenset(replicas), leader
                self.changed.add(number)
        self.now += 1
        self.changed_at[:] = [self.now] * len(self.node_ids)

    def restore_home(self) -> None:
        """Take where the replicas were at first as their home."""
        for number, (replicas, leader) in enumerate(self._original):
            self.home[number], self.home_leaders[number] = replicas, leader

    def is_unchanged(self, number: int, since: int) -> bool:
        """Return whether what a partition's replicas gain as its preferred leader is the same as it was then."""
        changed_at = self.changed_at
        return all(changed_at[node] <= since for node in self.replicas[number])

    def is_whole(self, number: int) -> bool:
        """Return whether all of a partition's replicas are in sync, those that are to be copied included."""
        return self._behind[number].isdisjoint(self.replicas[number])

    def rack_count(self, number: int) -> int:
        return len({self.racks[node] for node in self.replicas[number]})

    def keeps_racks(self, number: int, source: int, target: int) -> bool:
        """Return whether a partition's replicas are in as many racks as before when one of them goes elsewhere."""
        left, right = self.racks[source], self.racks[target]
        if self._is_one_rack or left == right:
            return True
        inside = [self.racks[node] for node in self.replicas[number]]
        return right not in inside or inside.count(left) > 1

    # --- What steps gain ------------------------------------------------------------------------------------------

    def adding(self, number: int, node: int) -> float:
        """Return what a replica more on a node adds to the cost."""
        cost = self._loads(number, (node,))[0] + self._squares[number]
        return cost if node in self.home[number] else cost + self._copies[number]

    def gain(self, step: Step) -> float:
        """Return by how much a step lowers the cost. The nodes may get replicas, or nothing is copied."""
        gain = 0.0
        number, source, target = step.number, step.source, step.target
        if source != target:
            off, on = self._loads(number, (source, target))
            gain = off - on - 2 * self._squares[number]
            if target not in self.home[number]:
                gain -= self._copies[number]
            if source not in self.home[number]:
                gain += self._copies[number]
        if step.leader != self.leaders[number]:
            gain += self.leader_gain(number, step.leader)
        return gain

    def gain_of_all(self, number: int) -> float:
        """Return what all steps of a partition gain together: what would be lost if it were as at first."""
        original, leader = self._original[number]
        added = sorted(set(self.replicas[number]).difference(original))
        removed = sorted(original.difference(self.replicas[number]))
        lost = 0.0
        undo: list[Step] = []
        for source, target in zip(added, removed, strict=True):
            step = Step(number, source, target, leader)
            lost += self.gain(step)
            undo.append(self.take(step))
        for step in reversed(undo):
            self.take(step)
        return -lost

    def leader_gain(self, number: int, leader: int) -> float:
        """Return what another preferred leader gains; both it and the present one may get replicas."""
        return self._leader_gains(number, (leader,))[0]

    def _leader_gains(self, number: int, leaders: Sequence[int]) -> list[float]:
        topic, before, home = self.topics[number], self.leaders[number], self.home_leaders[number]
        factor, of_topic, slopes = self._factors.topic_leaders[topic], self._topic_leads[topic], self._lead_slopes
        twice, change = 2 * factor, self._factors.leader_change
        off = slopes[before] + twice * of_topic[before] - 2 * (self._factors.leaders + factor)
        if before == home:
            gains = [off - slopes[node] - twice * of_topic[node] - change for node in leaders]
        else:
            gains = [
                off - slopes[node] - twice * of_topic[node] + (change if node == home else 0.0) for node in leaders
            ]
        rate = self.led_rates[number]
        if not rate:
            return gains
        # All that the leader sends goes with it, so the squares of what nodes send change, too.
        sent = self._out_slopes
        fewer = rate * sent[before] - 2 * self._factors.bytes_out * rate**2
        return [gain + fewer - rate * sent[node] for node, gain in zip(leaders, gains, strict=True)]

    def leader_changes(self, numbers: Iterable[int]) -> Iterator[tuple[int, int, float]]:
        """Yield the other preferred leaders that partitions may have: the number, the node, and the gain.

        Of nodes that may get replicas alone. It is the same as `leader_gain`, of very many at once, and much faster,
        because the search asks for all of them again and again.
        """
        factors, leaders, homes, behind = self._factors, self.leaders, self.home_leaders, self._behind
        slopes, sent, is_able, change = self._lead_slopes, self._out_slopes, self.is_able, factors.leader_change
        for number in numbers:
            before = leaders[number]
            if not is_able[before]:
                continue
            home, rate, topic = homes[number], self.led_rates[number], self.topics[number]
            factor, of_topic, late = factors.topic_leaders[topic], self._topic_leads[topic], behind[number]
            twice = 2 * factor
            off = slopes[before] + twice * of_topic[before] + rate * sent[before]
            off -= 2 * (factors.leaders + factor + factors.bytes_out * rate**2)
            if before == home:
                off -= change
            for node in self.replicas[number]:
                if node != before and is_able[node] and node not in late:
                    gain = off - slopes[node] - twice * of_topic[node] - rate * sent[node]
                    yield number, node, gain + change if node == home else gain

    def together_gain(self, number: int, other: int) -> float:
        """Return what it gains that the leaders of two partitions change places, besides what each change gains alone.

        Alone, each adds to what the other node leads, and that costs; together they only exchange what they differ by.
        """
        factors, rates, topics = self._factors, self.led_rates, self.topics
        of_topic = factors.topic_leaders[topics[number]] if topics[number] == topics[other] else 0.0
        return 4 * (factors.leaders + of_topic + factors.bytes_out * rates[number] * rates[other])

    def together_gain_apart(self, number: int) -> tuple[float, float]:
        """Return what this is with a partition of another topic: a part that is fixed, and one per byte it sends."""
        return 4 * self._factors.leaders, 4 * self._factors.bytes_out * self.led_rates[number]

    def best_exchanges(
        self, going: Sequence[tuple[Step, float]], coming: Sequence[tuple[Step, float]], gain_min: float
    ) -> list[tuple[Step, Step]]:
        """Return the two steps that gain most when two nodes exchange replicas, and all others that gain as much.

        None where none gain more than this. Of what gains as much, sums of floats differ in the last digits.

        going, coming: steps from one node to the other, and back, each with what it gains alone. Alone, each adds to
                       what the other node has, and that costs; together they only exchange what they differ by.
        """
        if not going or not coming:
            return []
        best: list[tuple[Step, Step]] = []
        best_gain = gain_min
        factors, sizes, rates, sent, topics = self._factors, self.sizes, self._rates, self.led_rates, self.topics
        others = [
            (gain, sizes[step.number], rates[step.number], sent[step.number] if step.leader == step.target else None)
            for step, gain in coming
        ]
        coming_topics = {topics[step.number] for step, _ in coming}
        for step, alone in going:
            number, topic, is_led = step.number, topics[step.number], step.leader == step.target
            per_byte, per_rate = 4 * factors.size_bytes * sizes[number], 4 * factors.bytes_in * rates[number]
            fixed = alone + 4 * factors.replicas
            led, per_sent = self.together_gain_apart(number) if is_led else (0.0, 0.0)
            gains = [
                fixed + gain + per_byte * size + per_rate * rate + (0.0 if out is None else led + per_sent * out)
                for gain, size, rate, out in others
            ]
            # Of different topics most gain nothing, and then nothing else needs to be looked at.
            if topic not in coming_topics and max(gains) + ROUNDING <= best_gain:
                continue
            for gain, (other, _) in zip(gains, coming, strict=True):
                if topics[other.number] == topic:
                    gain += 4 * factors.topic_replicas[topic]
                    if is_led and other.leader == other.target:
                        gain += 4 * factors.topic_leaders[topic]
                if gain + ROUNDING <= best_gain or other.number == number:
                    continue
                if gain > best_gain + ROUNDING:
                    best.clear()
                best.append((step, other))
                best_gain = max(best_gain, gain)
        return best

    def lead_over_gain(self, most: int, least: int) -> float:
        """Return what it gains that one node leads one partition less, and another one more, of whatever topics."""
        return self._lead_slopes[most] - self._lead_slopes[least] - 2 * self._factors.leaders

    def _loads(self, number: int, nodes: Sequence[int]) -> list[float]:
        """Return what nodes have of all that a partition's replica adds to, each times how much it adds."""
        topic, size, rate = self.topics[number], self.sizes[number], self._rates[number]
        counts, sizes, rates = self._count_slopes, self._byte_slopes, self._in_slopes
        twice, of_topic = 2 * self._factors.topic_replicas[topic], self._topic_counts[topic]
        return [counts[node] + size * sizes[node] + rate * rates[node] + twice * of_topic[node] for node in nodes]

    def best_step(self, number: int, gain_min: float, *, may_copy: bool) -> Step | None:
        """Return the step of a partition that gains most, None where none gains more than `gain_min`.

        Of equal ones, that with the lowest nodes.
        """
        best, best_gain = None, gain_min
        replicas, leader = sorted(self.replicas[number]), self.leaders[number]
        led_by, led_gain = NO_COPY, -inf
        if self.is_able[leader]:
            is_able, behind = self.is_able, self._behind[number]
            others = [node for node in replicas if node != leader and is_able[node] and node not in behind]
            for node, gain in zip(others, self._leader_gains(number, others), strict=True):
                if gain > led_gain:
                    led_by, led_gain = node, gain
        if led_gain > best_gain:
            best, best_gain = Step(number, NO_COPY, NO_COPY, led_by, led_gain), led_gain
        if not may_copy or not self.is_whole(number):
            return best
        return self._best_copy(number, replicas, (led_by, led_gain), best, best_gain)

    def _best_copy(
        self, number: int, replicas: Sequence[int], led: tuple[int, float], best: Step | None, best_gain: float
    ) -> Step | None:
        """Return the best step that copies a replica, or `best` where none gains more than that.

        led: of the replicas that there are, the one that would best become the preferred leader, and what that gains
        """
        leader, home = self.leaders[number], self.home[number]
        targets = [node for node in self.able if node not in replicas]
        if not self.has_room_everywhere(number):
            targets = [node for node in targets if self.has_room(number, node)]
        if not targets:
            return best
        square, copy = 2 * self._squares[number], self._copies[number]
        loads = self._loads(number, targets)
        costs = [load if node in home else load + copy for node, load in zip(targets, loads, strict=True)]
        after, led_gain = led
        racks = self.racks
        inside = [] if self._is_one_rack else [racks[node] for node in replicas]
        sources = [node for node in replicas if self.is_able[node]]
        found: tuple[int, int, int] | None = None
        for source, load in zip(sources, self._loads(number, sources), strict=True):
            off, left = (load if source in home else load + copy) - square, racks[source]
            gains = [off - cost for cost in costs]
            # First at most, because most gain nothing.
            most = max(gains)
            if source == leader:
                most += max(led_gain, self._leader_gain_max(number)) + ROUNDING
            if most <= best_gain:
                continue
            if inside.count(left) == 1:
                to = [racks[node] for node in targets]
                gains = [
                    gain if right == left or right not in inside else -inf
                    for right, gain in zip(to, gains, strict=True)
                ]
            if source == leader:
                led_on = self._leader_gains(number, targets)
                gains = [gain + (led_gain if on < led_gain else on) for gain, on in zip(gains, led_on, strict=True)]
            most = max(gains)
            if most > best_gain:
                place = gains.index(most)
                target, best_gain = targets[place], most
                leads = leader if source != leader else after if led_on[place] < led_gain else target
                found = (source, target, leads)
        return best if found is None else Step(number, *found, best_gain)

    def _leader_gain_max(self, number: int) -> float:
        """Return what any other preferred leader gains at most."""
        factors, topic, before, rate = self._factors, self.topics[number], self.leaders[number], self.led_rates[number]
        leads, sent, of_topic = self._lead_slopes, self._out_slopes, self._topic_leads[topic]
        factor = factors.topic_leaders[topic]
        gain = leads[before] - min(leads) - 2 * (factors.leaders + factor)
        gain += 2 * factor * (of_topic[before] - min(of_topic))
        if rate:
            gain += rate * (sent[before] - min(sent)) - 2 * factors.bytes_out * rate**2
        home = self.home_leaders[number]
        return gain - factors.leader_change if before == home else gain + factors.leader_change

    # --- What a search may skip -----------------------------------------------------------------------------------

    def slopes(self) -> Slopes:
        """Return what one unit more of each costs on each node now."""
        return Slopes(tuple(map(tuple, self._all_slopes())), tuple(self._topic_drift))

    def _all_slopes(self) -> tuple[list[float], ...]:
        return self._count_slopes, self._lead_slopes, self._byte_slopes, self._in_slopes, self._out_slopes

    def drifts(self, numbers: Iterable[int], since: Slopes) -> Iterator[float]:
        """Yield for each partition by how much more its best step can gain than it did, at most.

        Only for partitions whose own replicas and leader have not changed.
        """
        drifts = map(_spread_of_changes, since.of_nodes, self._all_slopes())
        per_replica, per_leader, per_byte, per_rate, per_sent = drifts
        sizes, rates, sent, topics = self.sizes, self._rates, self.led_rates, self.topics
        fixed = [
            per_replica + per_leader + now - was for now, was in zip(self._topic_drift, since.of_topics, strict=True)
        ]
        for each in numbers:
            yield fixed[topics[each]] + per_byte * sizes[each] + per_rate * rates[each] + per_sent * sent[each]


def _spread_of_changes(before: Sequence[float], now: Sequence[float]) -> float:
    """Return how much more a step can gain that goes from any node to any other."""
    changes: list[float] = list(map(sub, now, before))
    return max(changes, default=0.0) - min(changes, default=0.0)
