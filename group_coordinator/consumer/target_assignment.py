"""Who is to read what in a consumer group: the assignors that the coordinator runs itself (KIP-848, G3).

`uniform` is the sticky assignor over the previous target: the most even loads, and the fewest partitions moved.
`range` cuts each topic into runs. Both are those of the classic protocol, which consumers run themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from semel.group_coordinator.assignor import range as range_assignor
from semel.group_coordinator.assignor import sticky
from semel.group_coordinator.assignor.subscription import Assignor, MemberSubscription
from semel.group_coordinator.consumer.members import topics_of
from semel.group_coordinator.consumer.topics import Topics
from semel.group_coordinator.records.consumer_state import MemberDetails
from semel.protocol.api.consumer_groups import NO_PARTITIONS, Partitions

UNIFORM = "uniform"

SERVER_ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {UNIFORM: sticky.assign, range_assignor.NAME: range_assignor.assign}
)


def preferred_assignor(members: Iterable[MemberDetails], configured: Sequence[str]) -> str:
    """Return the assignor that most members ask for; ties, and groups that ask for none, go by the configured order."""
    votes = Counter(details.server_assignor for details in members if details.server_assignor in configured)
    return max(configured, key=lambda name: votes[name])


def assign_targets(
    members: Mapping[str, MemberDetails],
    before: Mapping[str, Partitions],
    assignor: str,
    topics: Topics,
    matching: Callable[[str], frozenset[str]],
    *,
    at_once: bool = False,
) -> dict[str, Partitions] | None:
    """Return what each member is to read; `before` is what each was to read until now.

    matching: gives the topics that an expression matches.
    at_once:  give up, and return None, where it takes too long for a turn of the event loop (S3).
    """
    subscriptions = [
        MemberSubscription(
            member_id,
            topics_of(details, matching),
            tuple(topics.with_names(before.get(member_id, NO_PARTITIONS))),
            0,
            details.instance_id,
        )
        for member_id, details in members.items()
    ]
    wanted = {name for subscription in subscriptions for name in subscription.topics}
    assign = sticky.assign_at_once if at_once and assignor == UNIFORM else SERVER_ASSIGNORS[assignor]
    assigned = assign(subscriptions, topics.counts_of(wanted))
    if assigned is None:
        return None
    return {member_id: topics.with_ids(partitions) for member_id, partitions in assigned.items()}
