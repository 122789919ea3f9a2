"""What the group coordinator is asked and answers in the consumer group protocol (KIP-848)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from semel.protocol.ids import TopicId

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""The member epochs by which a member joins, leaves, and as a static member says that it will be back."""


class TopicIdPartition(NamedTuple):
    """A partition of a topic by its id: a topic that is made again under its name is another one."""

    topic_id: TopicId
    partition: int


Partitions: TypeAlias = frozenset[TopicIdPartition]

NO_PARTITIONS: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatRequest:
    """A heartbeat. None, and -1 for the timeout, say that something is as it was in the last one.

    owned:           what the member holds, None where that did not change.
    needs_member_id: a member that joins without an id is given one (version 0 of the API).
    new_member_id:   that id, which the coordinator made.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    needs_member_id: bool = False
    new_member_id: str = ""

    @property
    def says_everything(self) -> bool:
        """Whether the member repeats all it has to say: then it is told everything, too (an answer was lost)."""
        return (
            self.rebalance_timeout_ms >= 0
            and (self.topic_names is not None or self.topic_regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatResponse:
    """`assignment` is what the member may read from now on; None where that did not change."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Partitions | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeRequest:
    group_id: str


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """`name` is empty where the topic is gone."""

    topic_id: TopicId
    name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerMemberDescription:
    """`uses_classic_protocol` for a member that has not moved to this protocol yet."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    assignment: tuple[DescribedTopic, ...]
    target: tuple[DescribedTopic, ...]
    uses_classic_protocol: bool


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescription:
    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]
