"""What every assignor is given, and the order in which members are served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from semel.protocol.consumer_protocol import NO_GENERATION
from semel.protocol.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member as an assignor sees it: what it wants, what it holds, and since which generation (-1: unknown)."""

    member_id: str
    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    group_instance_id: str | None = None


Assignments: TypeAlias = dict[str, list[TopicPartition]]
"""Partitions by member id; every member has an entry."""

Assignor: TypeAlias = Callable[[Sequence[MemberSubscription], Mapping[str, int]], Assignments]
"""From members and partition counts by topic, makes the assignment. Pure. Topics without a count are left out."""


def in_order(members: Iterable[MemberSubscription]) -> list[MemberSubscription]:
    """Return static members by instance id, then the others by member id: an order that restarts do not change."""
    return sorted(
        members,
        key=lambda member: (
            (0, member.group_instance_id, member.member_id)
            if member.group_instance_id is not None
            else (1, member.member_id, "")
        ),
    )


def subscribed_topics(members: Iterable[MemberSubscription], partition_counts: Mapping[str, int]) -> dict[str, int]:
    """Return the partition counts of the topics that exist and that somebody wants, sorted by topic."""
    topics = sorted({topic for member in members for topic in member.topics})
    counts = ((topic, partition_counts.get(topic, 0)) for topic in topics)
    return {topic: count for topic, count in counts if count > 0}
