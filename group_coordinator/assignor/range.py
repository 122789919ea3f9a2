"""Range: each topic's partitions are cut into runs, one for each of its members in order.

Topics with equal partition counts and members are cut alike, so joins over several topics find their keys together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.group_coordinator.assignor.subscription import (
    Assignments,
    MemberSubscription,
    in_order,
    subscribed_topics,
)
from semel.protocol.ids import TopicPartition

NAME = "range"


def assign(members: Sequence[MemberSubscription], partition_counts: Mapping[str, int]) -> Assignments:
    """Give the first `count % members` members of a topic one partition more than the others."""
    assignments: Assignments = {member.member_id: [] for member in members}
    ordered = in_order(members)
    for topic, count in subscribed_topics(members, partition_counts).items():
        takers = [member.member_id for member in ordered if topic in member.topics]
        share, extra = divmod(count, len(takers))
        first = 0
        for index, member_id in enumerate(takers):
            end = first + share + (1 if index < extra else 0)
            assignments[member_id] += [TopicPartition(topic, partition) for partition in range(first, end)]
            first = end
    return assignments
