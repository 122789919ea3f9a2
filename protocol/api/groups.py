"""What the group coordinator is asked and answers (the classic protocol, KIP-345, KIP-394, KIP-429, KIP-447).

A refusal of a whole request is a `SemelError`; errors of single partitions are in the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition


@dataclass(frozen=True, slots=True)
class GroupProtocol:
    """A protocol (assignor) that a member offers, with its own metadata (a subscription, for consumers)."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupRequest:
    """`supports_skip_assignment`: the client can be told that it leads and need not assign (KIP-814).

    `new_member_id`: what the coordinator calls a member that comes without an id (machines draw no randomness).
    """

    group_id: str
    member_id: str
    group_instance_id: str | None
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str
    client_host: str
    new_member_id: str = ""
    require_known_member_id: bool = True
    reason: str = ""
    supports_skip_assignment: bool = True


@dataclass(frozen=True, slots=True)
class JoinGroupMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupResponse:
    """`members` is filled for the leader only. MEMBER_ID_REQUIRED is answered with `error` and the id to use."""

    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader_id: str
    member_id: str
    members: tuple[JoinGroupMember, ...] = ()
    skip_assignment: bool = False
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class SyncGroupRequest:
    """`assignments` maps member ids to their assignment; empty from all but the leader.

    A leader may leave the work to the coordinator: then the edge sets `partition_counts` (of every topic it knows that
    a member subscribes to), and the machine runs the chosen assignor itself, over the members' subscriptions.
    """

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    assignments: Mapping[str, bytes]
    protocol_type: str | None = None
    protocol_name: str | None = None
    partition_counts: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class SyncGroupResponse:
    assignment: bytes
    protocol_type: str | None
    protocol_name: str | None


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    pass


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """A member to remove: by id, or by instance id with an empty member id."""

    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest:
    group_id: str
    members: tuple[MemberIdentity, ...]


@dataclass(frozen=True, slots=True)
class LeaveGroupResponse:
    """One error for each member asked, in the same order."""

    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    """With `producer`, a commit inside that producer's transaction (TxnOffsetCommit): pending until its marker (O1).

    An empty member id with generation -1 is a commit from outside the group ("simple" consumers, resets). An epoch of
    a member of a consumer group (KIP-848) takes the place of the generation. `retention_ms`: how long an old client
    wants its offsets kept, None for as long as the node keeps them (KIP-211). `expected`, in transactions alone: where
    the group must stand for the commit to count, by partition, -1 for nowhere (O5); partitions without one may stand
    anywhere.
    """

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    transactional_id: str | None = None
    producer: ProducerIdAndEpoch | None = None
    retention_ms: int | None = None
    expected: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse:
    errors: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest:
    """`partitions` None asks for all of the group's. `require_stable` as in O2.

    Members of consumer groups (KIP-848) say who they are, others leave `member_id` None and `member_epoch` -1.
    """

    group_id: str
    partitions: tuple[TopicPartition, ...] | None
    require_stable: bool = True
    member_id: str | None = None
    member_epoch: int = -1


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """`offset` is -1 where nothing is committed."""

    offset: int
    leader_epoch: int
    metadata: str
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse:
    offsets: Mapping[TopicPartition, FetchedOffset]


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest:
    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetDeleteResponse:
    errors: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class ListGroupsRequest:
    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"


@dataclass(frozen=True, slots=True)
class ListGroupsResponse:
    """`unreadable`: why groups are missing in it, for each partition of their coordinators that can't be read."""

    groups: tuple[GroupListing, ...]
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeGroupRequest:
    group_id: str


@dataclass(frozen=True, slots=True)
class GroupMemberDescription:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    generation_id: int
    leader_id: str
    members: tuple[GroupMemberDescription, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroupRequest:
    group_id: str


@dataclass(frozen=True, slots=True)
class DeleteGroupResponse:
    pass
