"""Cooperative sticky (KIP-429): the sticky assignment, less what another member still holds.

First phase: a partition that is to change hands is taken from its owner and given to nobody. Once the owner has revoked
it, it joins again, and in the second phase the partition is free and goes to its new owner (G2). Members that lose
nothing never stop working.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.group_coordinator.assignor import sticky
from semel.group_coordinator.assignor.subscription import Assignments, MemberSubscription
from semel.protocol.ids import TopicPartition

NAME = "cooperative-sticky"


def assign(members: Sequence[MemberSubscription], partition_counts: Mapping[str, int]) -> Assignments:
    """Return the target of `sticky`, without the partitions that wait for their owner to revoke them."""
    holders: dict[TopicPartition, set[str]] = {}
    for member in members:
        for partition in member.owned:
            holders.setdefault(partition, set()).add(member.member_id)
    owners = sticky.previous_owners(members)
    return {
        member_id: [
            partition for partition in partitions if _is_free(partition, member_id, holders.get(partition), owners)
        ]
        for member_id, partitions in sticky.assign(members, partition_counts).items()
    }


def _is_free(
    partition: TopicPartition, taker: str, holders: set[str] | None, owners: Mapping[TopicPartition, str]
) -> bool:
    """Return whether `taker` may have the partition now: it holds it by right already, or nobody holds it."""
    return not holders or owners.get(partition) == taker
