"""The states of a group with their only legal moves (G1), and what is known of a member."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from semel.group_coordinator.held_bytes import MEMBER_BYTES, protocol_bytes, text_bytes
from semel.protocol.api.groups import GroupProtocol
from semel.runtime.machine import Ticket


class GroupState(Enum):
    """Kafka's states of a classic group, by the names its tools show."""

    EMPTY = "Empty"
    """No members. Committed offsets may remain."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for the members to join again."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Every member was answered; waiting for the leader's assignment."""
    STABLE = "Stable"
    """The assignment is in the log, and members work under it."""
    DEAD = "Dead"
    """Deleted."""


LEGAL_PREDECESSORS: Mapping[GroupState, frozenset[GroupState]] = MappingProxyType(
    {
        GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
        GroupState.PREPARING_REBALANCE: frozenset(
            {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
        ),
        GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
        GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
        GroupState.DEAD: frozenset(
            {
                GroupState.EMPTY,
                GroupState.PREPARING_REBALANCE,
                GroupState.COMPLETING_REBALANCE,
                GroupState.STABLE,
            }
        ),
    }
)


def state_diagram() -> str:
    """Return the table above as a Mermaid diagram; docs/groups.md shows it, and a test keeps the two equal."""
    lines = ["stateDiagram-v2", f"    [*] --> {GroupState.EMPTY.value}"]
    lines += [
        f"    {before.value} --> {after.value}"
        for after in GroupState
        for before in GroupState
        if before in LEGAL_PREDECESSORS[after]
    ]
    lines.append(f"    {GroupState.DEAD.value} --> [*]")
    return "\n".join(lines)


@dataclass(slots=True)
class GroupMember:
    """A member, with the tickets of the calls it waits on.

    `is_new` until its first join is answered: it cannot send heartbeats before that. `is_absent` while it is part of a
    generation that it did not join itself: a static member whose session continues.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    is_absent: bool = False
    join_ticket: Ticket | None = field(default=None)
    sync_ticket: Ticket | None = field(default=None)

    @property
    def held_bytes(self) -> int:
        """What the member takes in memory, about, but for its assignment."""
        said = text_bytes(self.member_id, self.group_instance_id, self.client_id, self.client_host)
        return MEMBER_BYTES + said + protocol_bytes(self.protocols)

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def heartbeat_is_excused(self) -> bool:
        """True while the member waits for us rather than we for it. New members are timed even then."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return what the member said under a protocol; empty where it does not offer it."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def vote(self, candidates: frozenset[str]) -> str:
        """Return the first of the member's protocols that is among `candidates`."""
        for protocol in self.protocols:
            if protocol.name in candidates:
                return protocol.name
        raise AssertionError(f"member {self.member_id} offers none of {sorted(candidates)}")
