"""Sticky: the most even loads that the subscriptions allow, and among those the fewest partitions moved (G3).

With equal subscriptions each member has a share, and the members that hold most keep most. With unequal ones this is a
min-cost flow of partitions to members: loads first (the sum of their squares, so no member could hand a partition on,
over others if need be, to one with two fewer), moves second. It is solved by improving paths (Harvey et al.,
"Semi-matchings for bipartite graphs and load balancing"): start with nothing moved, then shift one partition at a time
along the cheapest path from a fuller member to an emptier one, until no path helps.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence

from semel.group_coordinator.assignor.subscription import (
    Assignments,
    MemberSubscription,
    in_order,
    subscribed_topics,
)
from semel.protocol.ids import TopicPartition

NAME = "sticky"

EFFORT_MAX = 1_000_000
"""Steps of the path search before it settles for what it has: half a second or so. Only large groups whose members
subscribe to different topics come near it; they then stay valid, a little less even than they could be."""

EFFORT_AT_ONCE_MAX = 20_000
"""Of this search and the shedding before it, where it is done within a turn of the event loop: some 10 ms (S3)."""

_HOMELESS = -1
_FAR = 1 << 30
_NO_CLAIM = -(1 << 40)


def assign(members: Sequence[MemberSubscription], partition_counts: Mapping[str, int]) -> Assignments:
    """Return the most even assignment that moves the fewest partitions from their previous owners."""
    assigned = _assign(members, partition_counts)
    assert assigned is not None, "without a bound there is a result"
    return assigned


def assign_at_once(members: Sequence[MemberSubscription], partition_counts: Mapping[str, int]) -> Assignments | None:
    """Return the same, or None where that takes more than `EFFORT_AT_ONCE_MAX`."""
    return _assign(members, partition_counts, EFFORT_AT_ONCE_MAX)


def _assign(
    members: Sequence[MemberSubscription], partition_counts: Mapping[str, int], effort_max: int | None = None
) -> Assignments | None:
    ordered = in_order(members)
    if not ordered:
        return {}
    counts = subscribed_topics(ordered, partition_counts)
    owners = previous_owners(ordered)
    wanted = [member.topics & counts.keys() for member in ordered]
    if all(topics == wanted[0] for topics in wanted):
        shares = _assign_equal(ordered, counts, owners)
    else:
        balance = _Balance(ordered, counts, owners)
        if not balance.shed_in_bulk(effort_max) or not balance.improve(effort_max):
            return None
        shares = balance.shares()
    return {member.member_id: sorted(share) for member, share in zip(ordered, shares, strict=True)}


def previous_owners(members: Sequence[MemberSubscription]) -> dict[TopicPartition, str]:
    """Return who holds each partition by right: the one claim of the latest generation. Two such claims are none."""
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for partition in set(member.owned):
            generation_id, _ = claims.get(partition, (_NO_CLAIM, None))
            if member.generation_id > generation_id:
                claims[partition] = (member.generation_id, member.member_id)
            elif member.generation_id == generation_id:
                claims[partition] = (generation_id, None)
    return {partition: owner for partition, (_, owner) in claims.items() if owner is not None}


def _assign_equal(
    members: Sequence[MemberSubscription], counts: Mapping[str, int], owners: Mapping[TopicPartition, str]
) -> list[list[TopicPartition]]:
    """Share evenly; the members that own most get the larger shares, and keep theirs up to their share."""
    index = {member.member_id: number for number, member in enumerate(members)}
    owned: list[list[TopicPartition]] = [[] for _ in members]
    free: deque[TopicPartition] = deque()
    for topic, count in counts.items():
        for number in range(count):
            partition = TopicPartition(topic, number)
            owner = owners.get(partition)
            if owner is None:
                free.append(partition)
            else:
                owned[index[owner]].append(partition)
    share, extra = divmod(sum(counts.values()), len(members))
    by_owned = sorted(range(len(members)), key=lambda number: (-len(owned[number]), number))
    sizes = {number: share + (1 if rank < extra else 0) for rank, number in enumerate(by_owned)}
    for number, size in sizes.items():
        free.extend(owned[number][size:])
        del owned[number][size:]
    hungry = deque(number for number in range(len(members)) if len(owned[number]) < sizes[number])
    while free:
        number = hungry.popleft()
        owned[number].append(free.popleft())
        if len(owned[number]) < sizes[number]:
            hungry.append(number)
    return owned


class _Balance:
    """An assignment under improvement.

    A partition's home is its previous owner, if that still wants it. Of all assignments with the same loads, the one
    held here has always moved the fewest partitions from home; each step keeps that true.
    """

    def __init__(
        self,
        members: Sequence[MemberSubscription],
        counts: Mapping[str, int],
        owners: Mapping[TopicPartition, str],
    ) -> None:
        self._size = len(members)
        self._loads = [0] * self._size
        self._has_received = [False] * self._size
        self._effort = 0
        # By holder, topic and home: partitions alike in all three are interchangeable.
        self._held: list[dict[str, dict[int, list[TopicPartition]]]] = [{} for _ in members]
        self._takers = {
            topic: [number for number, member in enumerate(members) if topic in member.topics] for topic in counts
        }
        index = {member.member_id: number for number, member in enumerate(members)}
        homeless: list[TopicPartition] = []
        for topic, count in counts.items():
            for number in range(count):
                partition = TopicPartition(topic, number)
                home = index[owners[partition]] if partition in owners else _HOMELESS
                if home != _HOMELESS and topic in members[home].topics:
                    self._give(partition, home, home)
                else:
                    homeless.append(partition)
        homeless.sort(key=lambda partition: (len(self._takers[partition.topic]), partition))
        for partition in homeless:
            taker = min(self._takers[partition.topic], key=lambda number: (self._loads[number], number))
            self._give(partition, _HOMELESS, taker)
            self._has_received[taker] = True

    def shares(self) -> list[list[TopicPartition]]:
        return [
            [partition for homes in held.values() for partitions in homes.values() for partition in partitions]
            for held in self._held
        ]

    def shed_in_bulk(self, effort_max: int | None) -> bool:
        """Hand partitions straight from the fullest members to the emptiest, where no path could be cheaper.

        That is so while givers only ever gave, and from what was theirs, and takers only ever took. Returns False
        where it gave up, because it takes more than `effort_max`.
        """
        effort = 0
        has_given = [False] * self._size
        emptiest = {
            topic: [(self._loads[number], number) for number in takers] for topic, takers in self._takers.items()
        }
        for heap in emptiest.values():
            heapq.heapify(heap)
        fullest = [(-self._loads[number], number) for number in range(self._size) if not self._has_received[number]]
        heapq.heapify(fullest)
        while fullest:
            negative_load, giver = heapq.heappop(fullest)
            if self._has_received[giver] or -negative_load != self._loads[giver]:
                continue
            effort += len(self._held[giver])
            if effort_max is not None and effort > effort_max:
                return False
            best: tuple[int, int, str] | None = None
            for topic in self._held[giver]:
                head = self._emptiest_taker(emptiest[topic], has_given, giver)
                if head is not None and (best is None or (*head, topic) < best):
                    best = (*head, topic)
            if best is None or best[0] > self._loads[giver] - 2:
                continue
            _, taker, topic = best
            self._move(giver, taker, topic, giver)
            has_given[giver] = self._has_received[taker] = True
            for other in self._held[taker]:
                heapq.heappush(emptiest[other], (self._loads[taker], taker))
            effort += len(self._held[taker])
            heapq.heappush(fullest, (-self._loads[giver], giver))
        return True

    def _emptiest_taker(self, heap: list[tuple[int, int]], has_given: list[bool], giver: int) -> tuple[int, int] | None:
        while heap:
            load, number = heap[0]
            if has_given[number] or number == giver:
                heapq.heappop(heap)
            elif load != self._loads[number]:
                heapq.heapreplace(heap, (self._loads[number], number))
            else:
                return heap[0]
        return None

    def improve(self, effort_max: int | None) -> bool:
        """Shift partitions along improving paths until there is none, from the fullest members down.

        It settles for what it has after `EFFORT_MAX` steps. Returns False where it took more than `effort_max`.
        """
        most = EFFORT_MAX if effort_max is None else effort_max
        improved = True
        while improved:
            improved = False
            for load in sorted(set(self._loads), reverse=True):
                while self._improve_from(load):
                    improved = True
                    if self._effort > most:
                        return effort_max is None
        return effort_max is None or self._effort <= most

    def _improve_from(self, load: int) -> bool:
        """Find the best path from any member with `load` partitions, and take it. Returns False where none helps."""
        distances, steps = self._search([number for number in range(self._size) if self._loads[number] == load])
        target: tuple[int, int, int] | None = None
        for number, distance in enumerate(distances):
            gain = load - self._loads[number]
            if distance != _FAR and (gain >= 2 or (gain == 1 and distance < 0)):
                candidate = (self._loads[number], distance, number)
                if target is None or candidate < target:
                    target = candidate
        if target is None:
            return False
        step = steps[target[2]]
        taker = target[2]
        while step is not None:
            giver, topic, home = step
            self._move(giver, taker, topic, home)
            taker, step = giver, steps[giver]
        return True

    def _search(self, sources: Sequence[int]) -> tuple[list[int], list[tuple[int, str, int] | None]]:
        """Return the cheapest way to each member: what it costs in moves, and the last step of it.

        Taking a partition from its home costs one, bringing it home gains one, all else is free. There are no cycles
        that gain, or fewer moves would give the same loads; so a queue finds the cheapest paths.
        """
        distances = [_FAR] * self._size
        steps: list[tuple[int, str, int] | None] = [None] * self._size
        topic_distances: dict[str, int] = {}
        queue = deque(sources)
        queued = set(sources)
        for source in sources:
            distances[source] = 0
        while queue and self._effort <= EFFORT_MAX:
            giver = queue.popleft()
            queued.discard(giver)
            here = distances[giver]
            for topic, homes in self._held[giver].items():
                self._effort += 1
                away = next((home for home in homes if home != giver), giver)
                reached = [(home, here - 1, home) for home in homes if home not in (giver, _HOMELESS)]
                distance = here + (1 if away == giver else 0)
                if distance < topic_distances.get(topic, _FAR):
                    topic_distances[topic] = distance
                    takers = self._takers[topic]
                    self._effort += len(takers)
                    reached += [(taker, distance, away) for taker in takers]
                for taker, there, home in reached:
                    if there < distances[taker]:
                        distances[taker] = there
                        steps[taker] = (giver, topic, home)
                        if taker not in queued:
                            queued.add(taker)
                            queue.append(taker)
        return distances, steps

    def _move(self, giver: int, taker: int, topic: str, home: int) -> None:
        homes = self._held[giver][topic]
        partition = homes[home].pop()
        if not homes[home]:
            del homes[home]
            if not homes:
                del self._held[giver][topic]
        self._loads[giver] -= 1
        self._give(partition, home, taker)

    def _give(self, partition: TopicPartition, home: int, taker: int) -> None:
        self._held[taker].setdefault(partition.topic, {}).setdefault(home, []).append(partition)
        self._loads[taker] += 1
