"""Which consumer groups wait for a target assignment that is computed beside the loop, as their machine knows it (S3).

Nothing of it is in the log: an epoch above the target's says that an assignment is due, and the next heartbeat finds
that out again after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from semel.group_coordinator.computations import PAUSE_FACTOR, Computation, Computed
from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.consumer.members import ConsumerGroupData, patterns_of, topics_of, topics_of_all
from semel.group_coordinator.consumer.target_assignment import assign_targets
from semel.group_coordinator.consumer.topics import Topics
from semel.group_coordinator.effects import PendingResult, TimerKey, TimerKind
from semel.group_coordinator.records.consumer_schemas import target_record
from semel.group_coordinator.records.consumer_state import MemberDetails
from semel.protocol.api.consumer_groups import NO_PARTITIONS, Partitions
from semel.protocol.errors import SemelError
from semel.runtime.deadlines import Deadlines
from semel.runtime.machine import CoordinatorRecord


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a target is computed from, in a thread: nothing of it changes while the group does."""

    group_id: str
    epoch: int
    members: Mapping[str, MemberDetails]
    before: Mapping[str, Partitions]
    assignor: str
    matched: Mapping[str, frozenset[str]]
    topics: Topics

    def compute(self) -> Targets:
        assigned = assign_targets(self.members, self.before, self.assignor, self.topics, self.matched.__getitem__)
        assert assigned is not None, "without a bound there is a result"
        targets, records = {}, {}
        for member_id, target in assigned.items():
            known = self.before.get(member_id)
            if known == target:
                targets[member_id] = known
            else:
                targets[member_id] = target
                records[member_id] = target_record(self.group_id, member_id, target)
        return Targets(self, targets, records)


@dataclass(frozen=True, slots=True)
class Targets:
    """A target assignment with its records; what did not change is the same object as before, and has none."""

    of: Snapshot
    targets: Mapping[str, Partitions]
    records: Mapping[str, CoordinatorRecord]


class DeferredTargets:
    """At most one computation for each group, and a pause after it."""

    def __init__(self, config: GroupConfig, timers: Deadlines[TimerKey]) -> None:
        self._config = config
        self._timers = timers
        self._running: dict[str, Computation] = {}
        self._not_before_ms: dict[str, int] = {}
        self._refusals: dict[str, tuple[int, SemelError]] = {}
        self._costly: set[str] = set()
        """Groups that are not large, and still could not be assigned at once."""

    def is_large(self, group: ConsumerGroupData, topics: Topics) -> bool:
        """Whether an assignment would take too long for a turn of the event loop, by what it has to look at."""
        if group.group_id in self._costly:
            return True
        most = self._config.group_assigned_at_once_max
        left = most - len(group.details) - sum(len(each.topic_names) for each in group.details.values())
        for each in group.details.values():
            if each.topic_regex:
                left -= len(topics.matching(each.topic_regex))
            if left < 0:
                return True
        return sum(topics.counts_of(topics_of_all(group.details.values(), topics)).values()) > left

    def is_pending(self, group_id: str) -> bool:
        """Whether a computation runs, or is to begin."""
        return group_id in self._running or _key(group_id) in self._timers

    def schedule(self, group_id: str, now_ms: int, *, is_costly: bool = False) -> None:
        """Have the target of a group computed, once what runs for it has ended and the pause after it is over."""
        if is_costly:
            self._costly.add(group_id)
        if not self.is_pending(group_id):
            self._timers.schedule(_key(group_id), max(now_ms, self._not_before_ms.get(group_id, now_ms)))

    def begin(self, group: ConsumerGroupData, assignor: str, topics: Topics, pending: PendingResult) -> None:
        """Begin what was scheduled, unless there is no need for it any more."""
        patterns = patterns_of(group.details.values())
        assert group.group_id not in self._running, "it is scheduled once what ran has ended"
        if group.epoch <= group.target_epoch or topics.unmatched(patterns):
            return
        snapshot = Snapshot(
            group.group_id,
            group.epoch,
            dict(group.details),
            dict(group.targets),
            assignor,
            {pattern: topics.matching(pattern) for pattern in patterns},
            topics,
        )
        computation = Computation(group.group_id, partial(Snapshot.compute, snapshot), group.epoch)
        self._running[group.group_id] = computation
        pending.effects.append(computation)

    def ended(self, computed: Computed, now_ms: int) -> bool:
        """Take note that a computation has ended. Returns whether its result is this machine's to look at."""
        group_id = computed.of.group_id
        if self._running.get(group_id) is not computed.of:
            return False
        del self._running[group_id]
        self._costly.discard(group_id)
        pause_ms = max(self._config.group_consumer_assignment_interval_ms, PAUSE_FACTOR * computed.took_ms)
        self._not_before_ms[group_id] = now_ms + pause_ms
        return True

    def refuse(self, group_id: str, epoch: int, error: SemelError) -> None:
        """Remember that the target of an epoch cannot be stored."""
        self._refusals[group_id] = (epoch, error)

    def refusal(self, group: ConsumerGroupData) -> SemelError | None:
        """Return why there is no target for the current epoch, and will be none."""
        epoch, error = self._refusals.get(group.group_id, (-1, None))
        return error if epoch == group.epoch else None

    def forget(self, group_id: str) -> None:
        """Drop what is known of a group that is no more; what runs for it comes too late."""
        self._timers.cancel(_key(group_id))
        self._running.pop(group_id, None)
        self._costly.discard(group_id)
        self._not_before_ms.pop(group_id, None)
        self._refusals.pop(group_id, None)


def records_of(group: ConsumerGroupData, found: Targets, topics: Topics) -> list[CoordinatorRecord]:
    """Return the records that make a target, computed from an earlier moment, that of the members there are by now.

    Who left is passed over, who came has nothing yet, a static member's new instance has what the one before was to
    have, and nobody is given topics that it does not want any more.
    """
    targets: dict[str, Partitions] = {}
    records: dict[str, CoordinatorRecord] = {}
    for member_id, target in found.targets.items():
        details = found.of.members[member_id]
        now_id = member_id
        if member_id not in group.details:
            now_id = group.static_ids.get(details.instance_id or "", "")
            if not now_id or now_id in found.targets:
                continue
        now = group.details[now_id]
        if now is not details and now != details and not topics.unmatched(patterns_of([now])):
            wanted = {topics.by_name[name].topic_id for name in topics_of(now, topics.matching) & topics.by_name.keys()}
            target = frozenset(partition for partition in target if partition.topic_id in wanted)
        targets[now_id] = target
        if now_id == member_id and target is found.targets[member_id]:
            record = found.records.get(member_id)
            if record is not None:
                records[member_id] = record
    for member_id, before in group.targets.items():
        target = targets.setdefault(member_id, NO_PARTITIONS)
        if target is before:
            records.pop(member_id, None)
    return [
        records.get(member_id) or target_record(group.group_id, member_id, target)
        for member_id, target in targets.items()
        if target is not group.targets.get(member_id)
        and (member_id in records or target != group.targets.get(member_id))
    ]


def _key(group_id: str) -> TimerKey:
    return TimerKey(TimerKind.ASSIGN, group_id)
