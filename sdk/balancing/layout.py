"""Where all replicas are while a plan is made, and what one step more would change.

Nodes, topics and partitions are numbers here, in the order of their ids and names, so that the same cluster gives the
same plan in whatever order it is described. All loads are whole numbers, so that a step and its opposite leave nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from semel.sdk.balancing.cost import Factors, Weights, receivers
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
        self._is_limited = any(room is not None for room in self._room)
        self._weights = weights
        self._place(sorted(cluster.partitions, key=lambda each: each.partition))
        self._count()

    def _place(self, partitions: Sequence[PartitionModel]) -> None:
        self.partitions = partitions
        self.sizes = [each.size_bytes for each in partitions]
        self._rates = [round(each.bytes_in_per_s) for each in partitions]
        self.led_rates = [round(each.led_bytes_out_per_s) for each in partitions]
        """What the leader of each sends."""
        topics = {name: topic for topic, name in enumerate(sorted({each.partition.topic for each in partitions}))}
        self._topics = [topics[each.partition.topic] for each in partitions]
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
        self._factors = Factors.of(
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
        self._topic_counts[self._topics[number]][node] += sign

    def _lead(self, number: int, node: int, sign: int) -> None:
        self._leads[node] += sign
        self._out[node] += sign * self.led_rates[number]
        self._topic_leads[self._topics[number]][node] += sign

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
        if step.source != step.target:
            self.replicas[number].remove(step.source)
            self.replicas[number].append(step.target)
            self._add(number, step.source, -1)
            self._add(number, step.target, 1)
            self._fill(number, step.source, -1)
            self._fill(number, step.target, 1)
            self._slope(step.source)
            self._slope(step.target)
        if step.leader != leader:
            self._lead(number, leader, -1)
            self._lead(number, step.leader, 1)
            self.leaders[number] = step.leader
            self._slope(leader)
            self._slope(step.leader)
        return Step(number, step.target, step.source, leader, -step.gain)

    def _fill(self, number: int, node: int, sign: int) -> None:
        # What leaves a disk does not count: it is deleted only once the copy elsewhere is complete.
        room = self._room[node]
        if room is not None and node not in self._original[number][0]:
            self._room[node] = room - sign * self.sizes[number]

    def has_room(self, number: int, node: int) -> bool:
        """Return whether a node's disk has room for a replica beside all that it gets already."""
        room = self._room[node]
        return room is None or node in self._original[number][0] or self.sizes[number] <= room

    def settle(self) -> None:
        """Take where the replicas are now as their home, as a plan does that is made once these moves are complete."""
        self.home = [frozenset(replicas) for replicas in self.replicas]
        self.home_leaders = list(self.leaders)

    def restore_home(self) -> None:
        """Take where the replicas were at first as their home."""
        for number, (replicas, leader) in enumerate(self._original):
            self.home[number], self.home_leaders[number] = replicas, leader

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
        cost = self._loads(number, (node,))[0] + self._square(number)
        return cost if node in self.home[number] else cost + self._copy(number)

    def gain(self, step: Step) -> float:
        """Return by how much a step lowers the cost. The nodes may get replicas, or nothing is copied."""
        gain = 0.0
        number, source, target = step.number, step.source, step.target
        if source != target:
            off, on = self._loads(number, (source, target))
            gain = off - on - 2 * self._square(number)
            if target not in self.home[number]:
                gain -= self._copy(number)
            if source not in self.home[number]:
                gain += self._copy(number)
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
        topic, before, home = self._topics[number], self.leaders[number], self.home_leaders[number]
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
            home, rate, topic = homes[number], self.led_rates[number], self._topics[number]
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
        factors, rates, topics = self._factors, self.led_rates, self._topics
        of_topic = factors.topic_leaders[topics[number]] if topics[number] == topics[other] else 0.0
        return 4 * (factors.leaders + of_topic + factors.bytes_out * rates[number] * rates[other])

    def lead_over_gain(self, most: int, least: int) -> float:
        """Return what it gains that one node leads one partition less, and another one more, of whatever topics."""
        return self._lead_slopes[most] - self._lead_slopes[least] - 2 * self._factors.leaders

    def _loads(self, number: int, nodes: Sequence[int]) -> list[float]:
        """Return what nodes have of all that a partition's replica adds to, each times how much it adds."""
        topic, size, rate = self._topics[number], self.sizes[number], self._rates[number]
        counts, sizes, rates = self._count_slopes, self._byte_slopes, self._in_slopes
        twice, of_topic = 2 * self._factors.topic_replicas[topic], self._topic_counts[topic]
        return [counts[node] + size * sizes[node] + rate * rates[node] + twice * of_topic[node] for node in nodes]

    def _square(self, number: int) -> float:
        factors = self._factors
        return (
            factors.replicas
            + factors.size_bytes * self.sizes[number] ** 2
            + factors.bytes_in * self._rates[number] ** 2
            + factors.topic_replicas[self._topics[number]]
        )

    def _copy(self, number: int) -> float:
        return self._factors.per_byte * self.sizes[number] + self._factors.per_replica

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
        square, copy, home = 2 * self._square(number), self._copy(number), self.home[number]
        sources = [node for node in replicas if self.is_able[node]]
        targets = [node for node in self.able if node not in replicas]
        if self._is_limited:
            targets = [node for node in targets if self.has_room(number, node)]
        loads = self._loads(number, targets)
        costs = [load if node in home else load + copy for node, load in zip(targets, loads, strict=True)]
        for source, load in zip(sources, self._loads(number, sources), strict=True):
            off = (load if source in home else load + copy) - square
            if source != leader:
                for target, cost in zip(targets, costs, strict=True):
                    if off - cost > best_gain and self.keeps_racks(number, source, target):
                        best_gain = off - cost
                        best = Step(number, source, target, leader, best_gain)
                continue
            for target, cost, led_on in zip(targets, costs, self._leader_gains(number, targets), strict=True):
                after = target
                if led_on < led_gain:
                    after, led_on = led_by, led_gain
                gain = off - cost + led_on
                if gain > best_gain and self.keeps_racks(number, source, target):
                    best, best_gain = Step(number, source, target, after, gain), gain
        return best
