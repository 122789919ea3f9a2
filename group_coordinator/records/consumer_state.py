"""The states of a consumer group and of its members (KIP-848), and what a member is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from semel.protocol.api.consumer_groups import NO_PARTITIONS, Partitions
from semel.protocol.api.groups import GroupProtocol


class ConsumerGroupState(Enum):
    """Kafka's states of a consumer group, by the names its tools show. They follow from the members' states."""

    EMPTY = "Empty"
    """No members. Committed offsets may remain."""
    ASSIGNING = "Assigning"
    """Members or topics changed; the next heartbeat computes who is to read what."""
    RECONCILING = "Reconciling"
    """Members are on their way to what they are to read."""
    STABLE = "Stable"
    """Every member reads what it is to read."""
    DEAD = "Dead"
    """Deleted, or never there."""


class MemberState(IntEnum):
    """How far a member is on its way to its target; the numbers are those in the log."""

    STABLE = 0
    """It has what it is to have."""
    UNREVOKED_PARTITIONS = 1
    """It must first give partitions up, and say so."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others have not given up yet."""
    UNKNOWN = 127
    """A state that a newer coordinator wrote."""


@dataclass(frozen=True, slots=True)
class ClassicMetadata:
    """What a member said in the classic protocol, kept for as long as it speaks that."""

    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]


@dataclass(frozen=True, slots=True)
class MemberDetails:
    """What a member says about itself. `classic` is None for members that speak the consumer group protocol."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicMetadata | None = None


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """What a member has, and what it is still to give up. Together they are what nobody else may have (G2).

    previous_epoch: is accepted from a member that the answer with `epoch` did not reach.
    """

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    to_revoke: Partitions = NO_PARTITIONS

    @property
    def held(self) -> Partitions:
        return self.assigned | self.to_revoke


NOTHING_ASSIGNED = MemberAssignment()


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member as one value: decisions are made on it, and take effect through records."""

    member_id: str
    details: MemberDetails
    current: MemberAssignment = NOTHING_ASSIGNED

    @property
    def is_classic(self) -> bool:
        return self.details.classic is not None
