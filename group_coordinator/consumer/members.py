"""One group of the consumer group protocol (KIP-848): what the log says about it, and what follows from that.

Everything durable is set by `apply`, record by record, in recovery and in normal work alike. Records may come in any
order, because compaction keeps the last one of each key: a member counts once there is a record of its details.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeAlias

from semel.group_coordinator.consumer.topics import Topics
from semel.group_coordinator.held_bytes import PARTITION_BYTES, details_bytes
from semel.group_coordinator.records.consumer_schemas import (
    ConsumerGroupKey,
    ConsumerKeyKind,
    GroupEpochValue,
    decode_current,
    decode_details,
    decode_epoch,
    decode_target,
    decode_target_epoch,
)
from semel.group_coordinator.records.consumer_state import (
    NOTHING_ASSIGNED,
    ConsumerGroupState,
    ConsumerMember,
    MemberAssignment,
    MemberDetails,
    MemberState,
)
from semel.protocol.api.consumer_groups import (
    NO_PARTITIONS,
    Partitions,
    TopicIdPartition,
)
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.schema import Buffer

Assigned: TypeAlias = Partitions | MemberAssignment | None


class ConsumerGroupData:
    """What a group is. `membership.py` decides when that changes."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.held_bytes = 0
        """What members hold, counted where records are replayed."""
        self.epoch_value: GroupEpochValue | None = None
        self.epoch_timestamp_ms = -1
        """When the current epoch began: for an empty group, when it became empty."""
        self.stored_target_epoch: int | None = None
        self.details: dict[str, MemberDetails] = {}
        self.currents: dict[str, MemberAssignment] = {}
        self.targets: dict[str, Partitions] = {}
        self.static_ids: dict[str, str] = {}
        self.seen_topics: Topics | None = None
        """The topics that the epoch's hash was last compared with; not in the log, so looked at after every start."""
        self._holders: dict[TopicIdPartition, str] = {}

    def copy(self) -> ConsumerGroupData:
        """Return a group that can be changed without changing this one."""
        copied = ConsumerGroupData(self.group_id)
        copied.epoch_value, copied.epoch_timestamp_ms = self.epoch_value, self.epoch_timestamp_ms
        copied.stored_target_epoch = self.stored_target_epoch
        copied.details, copied.currents = dict(self.details), dict(self.currents)
        copied.targets, copied.static_ids = dict(self.targets), dict(self.static_ids)
        copied._holders = dict(self._holders)
        copied.held_bytes = self.held_bytes
        return copied

    # --- What the log says --------------------------------------------------------------------------------------------

    def apply(self, key: ConsumerGroupKey, value: Buffer | None, timestamp_ms: int, parsed: Assigned = None) -> None:
        """Take over one record; None deletes. `parsed`: what a target or current assignment says, if that is known."""
        member_id = key.member_id
        match key.kind:
            case ConsumerKeyKind.GROUP:
                self.epoch_value = None if value is None else decode_epoch(value)
                self.epoch_timestamp_ms = timestamp_ms
            case ConsumerKeyKind.TARGET:
                self.stored_target_epoch = None if value is None else decode_target_epoch(value)
            case ConsumerKeyKind.MEMBER:
                self._set_details(member_id, None if value is None else decode_details(value))
            case ConsumerKeyKind.TARGET_MEMBER:
                if value is None:
                    self.targets.pop(member_id, None)
                else:
                    self.targets[member_id] = parsed if isinstance(parsed, frozenset) else decode_target(value)
            case ConsumerKeyKind.CURRENT:
                known = parsed if isinstance(parsed, MemberAssignment) else None
                self._set_current(member_id, None if value is None else known or decode_current(value))

    def _set_details(self, member_id: str, details: MemberDetails | None) -> None:
        before = self.details.pop(member_id, None)
        if before is not None and before.instance_id and self.static_ids.get(before.instance_id) == member_id:
            del self.static_ids[before.instance_id]
        if details is not None:
            self.details[member_id] = details
            if details.instance_id:
                self.static_ids[details.instance_id] = member_id

    def _set_current(self, member_id: str, current: MemberAssignment | None) -> None:
        before = self.currents.pop(member_id, NOTHING_ASSIGNED)
        after = NOTHING_ASSIGNED if current is None else current
        for partition in before.held - after.held:
            if self._holders.get(partition) == member_id:
                del self._holders[partition]
        for partition in after.held - before.held:
            self._holders[partition] = member_id
        if current is not None:
            self.currents[member_id] = current

    @property
    def has_records(self) -> bool:
        """Whether the log knows anything of this group, beyond its offsets."""
        return (
            self.epoch_value is not None
            or self.stored_target_epoch is not None
            or bool(self.details or self.currents or self.targets)
        )

    def snapshot(self) -> dict[str, object]:
        """Return all that the log must bring back, as plain values that compare equal after a replay."""
        return {
            "epoch": self.epoch_value,
            "target epoch": self.stored_target_epoch,
            "details": dict(self.details),
            "current": dict(self.currents),
            "targets": dict(self.targets),
            "holders": dict(self._holders),
        }

    def bytes_of(self, member_id: str) -> int:
        """Return what a member takes in memory, about."""
        current = self.currents.get(member_id, NOTHING_ASSIGNED)
        partitions = len(self.targets.get(member_id, ())) + 2 * (len(current.assigned) + len(current.to_revoke))
        return details_bytes(self.details.get(member_id)) + PARTITION_BYTES * partitions

    # --- State --------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return 0 if self.epoch_value is None else self.epoch_value.epoch

    @property
    def metadata_hash(self) -> int:
        return 0 if self.epoch_value is None else self.epoch_value.metadata_hash

    @property
    def target_epoch(self) -> int:
        return self.stored_target_epoch or 0

    @property
    def state(self) -> ConsumerGroupState:
        if not self.details:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        for member in self.members():
            if member.current.state is not MemberState.STABLE or member.current.epoch != self.target_epoch:
                return ConsumerGroupState.RECONCILING
        return ConsumerGroupState.STABLE

    # --- Members ------------------------------------------------------------------------------------------------------

    def members(self) -> Iterator[ConsumerMember]:
        return (self._member(member_id, details) for member_id, details in self.details.items())

    def member(self, member_id: str) -> ConsumerMember | None:
        details = self.details.get(member_id)
        return None if details is None else self._member(member_id, details)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static_ids.get(instance_id)
        return None if member_id is None else self.member(member_id)

    def _member(self, member_id: str, details: MemberDetails) -> ConsumerMember:
        return ConsumerMember(member_id, details, self.currents.get(member_id, NOTHING_ASSIGNED))

    def target(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NO_PARTITIONS)

    def holder(self, partition: TopicIdPartition) -> str | None:
        """Return the member that has a partition, or has not given it up yet."""
        return self._holders.get(partition)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether a member still cannot have all of its target, because others hold some of it."""
        missing = self.target(member.member_id) - member.current.assigned
        return any(partition in self._holders for partition in missing)

    def classic_protocols(self, without: Collection[str] = ()) -> tuple[int, Counter[str]]:
        """Return how many other members speak the classic protocol, and how many of them offer each assignor."""
        offered: Counter[str] = Counter()
        count = 0
        for member_id, details in self.details.items():
            if details.classic is not None and member_id not in without:
                count += 1
                offered.update({protocol.name for protocol in details.classic.protocols})
        return count, offered

    # --- Questions ----------------------------------------------------------------------------------------------------

    def check_epoch(self, member_id: str, epoch: int, *, transactional: bool = False) -> SemelError | None:
        """Return why a call of a member with this epoch is refused, if it is (O4)."""
        member = self.member(member_id)
        if member is None:
            return self.unknown_member(member_id)
        if epoch == member.current.epoch:
            return None
        # Transactional commits know the code of the classic protocol only.
        code = ErrorCode.ILLEGAL_GENERATION if member.is_classic or transactional else ErrorCode.STALE_MEMBER_EPOCH
        return error_for(
            code,
            f"member {member_id} of group {self.group_id} has the epoch {member.current.epoch}, not {epoch}; "
            "commit with the epoch of the latest heartbeat",
        )

    def unknown_member(self, member_id: str) -> SemelError:
        return error_for(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"group {self.group_id} has no member {member_id!r}; join again, with the member epoch 0",
        )

    def is_subscribed_to(self, topic: str, topics: Topics) -> bool:
        return any(
            topic in details.topic_names
            or (details.topic_regex is not None and topics.may_match(details.topic_regex, topic))
            for details in self.details.values()
        )


def topics_of(details: MemberDetails, matching: Callable[[str], frozenset[str]]) -> frozenset[str]:
    """Return the names that a member wants: those it named, and those that its expression matches now."""
    names = frozenset(details.topic_names)
    return names if not details.topic_regex else names | matching(details.topic_regex)


def topics_of_all(details: Iterable[MemberDetails], topics: Topics) -> set[str]:
    names: set[str] = set()
    patterns = set()
    for each in details:
        names.update(each.topic_names)
        if each.topic_regex:
            patterns.add(each.topic_regex)
    for pattern in patterns:
        names |= topics.matching(pattern)
    return names


def patterns_of(details: Iterable[MemberDetails]) -> set[str]:
    return {each.topic_regex for each in details if each.topic_regex}
