"""Round-robin: all partitions of all topics are dealt to the members in turn, past those that do not want them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.group_coordinator.assignor.subscription import (
    Assignments,
    MemberSubscription,
    in_order,
    subscribed_topics,
)
from semel.protocol.ids import TopicPartition

NAME = "roundrobin"


def assign(members: Sequence[MemberSubscription], partition_counts: Mapping[str, int]) -> Assignments:
    """Deal in order of topic and partition. With unequal subscriptions the loads may differ by more than one."""
    assignments: Assignments = {member.member_id: [] for member in members}
    ordered = in_order(members)
    turn = 0
    for topic, count in subscribed_topics(members, partition_counts).items():
        for partition in range(count):
            while topic not in ordered[turn].topics:
                turn = (turn + 1) % len(ordered)
            assignments[ordered[turn].member_id].append(TopicPartition(topic, partition))
            turn = (turn + 1) % len(ordered)
    return assignments
