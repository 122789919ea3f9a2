"""One group of the classic protocol: its members, generation and state, and what may be asked of them.

What the log must survive (generation, protocol, leader, members, assignment) is set by `apply` from a record, in
recovery and in normal work alike. The rest (who is joining, who is awaited) lives in memory and dies with the
coordinator, as in Kafka: members then join again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from semel.group_coordinator.classic.state import LEGAL_PREDECESSORS, GroupMember, GroupState
from semel.group_coordinator.computations import Computation
from semel.group_coordinator.group_context import GroupContext
from semel.group_coordinator.held_bytes import MEMBER_BYTES, text_bytes
from semel.group_coordinator.records.schemas import GroupMetadataValue, MemberMetadata
from semel.protocol.api.groups import (
    GroupProtocol,
    JoinGroupMember,
    JoinGroupResponse,
    SyncGroupResponse,
)
from semel.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, decode_topics
from semel.protocol.corruption import CorruptDataError
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.int_bounds import INT32_MAX

GENERATION_MAX = INT32_MAX


class ClassicGroupData:
    """What a group is. Its methods keep that consistent; `membership.py` and `rebalance.py` call them."""

    def __init__(self, group_id: str, now_ms: int, shared: GroupContext) -> None:
        self.group_id = group_id
        self.shared = shared
        self.held_bytes = 0
        """What members and promises of members hold."""
        self._stored_bytes = 0
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_timestamp_ms = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, GroupMember] = {}
        self.static_members: dict[str, str] = {}
        self.pending_joins: set[str] = set()
        self.pending_syncs: set[str] = set()
        self.awaiting_join_count = 0
        self.assigning: Computation | None = None
        """What computes the assignment of this generation beside the loop, where the leader leaves it to us."""
        self.new_member_added = False
        self.initial_delay_ms = 0
        self.initial_delay_left_ms = 0
        self.subscribed_topics: frozenset[str] | None = None
        self.last_stored: GroupMetadataValue | None = None
        self._protocol_counts: Counter[str] = Counter()

    # --- What the log says --------------------------------------------------------------------------------------------

    def apply(self, value: GroupMetadataValue, *, loading: bool, size_bytes: int = 0) -> None:
        """Take over a generation from the log. Members known already keep their calls and their other protocols.

        `size_bytes`: of its record, which is kept.

        While `loading`, states are set as they were; compaction leaves out the moves between them.
        """
        known = self.members
        self._count(size_bytes - self._stored_bytes - sum(member.held_bytes for member in known.values()))
        self._stored_bytes = size_bytes
        self.members = {}
        self.static_members = {}
        self.awaiting_join_count = 0
        self._protocol_counts.clear()
        self.protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol
        self.generation_id = value.generation
        self.leader_id = value.leader
        for stored in value.members:
            member = known.get(stored.member_id)
            if member is None or member.metadata(value.protocol) != stored.subscription:
                member = GroupMember(
                    stored.member_id,
                    stored.group_instance_id,
                    stored.client_id,
                    stored.client_host,
                    stored.rebalance_timeout_ms,
                    stored.session_timeout_ms,
                    (GroupProtocol(value.protocol or "", stored.subscription),),
                )
            member.assignment = stored.assignment
            self._insert(member)
        self.subscribed_topics = self._compute_subscribed_topics()
        state = GroupState.STABLE if self.members else GroupState.EMPTY
        if loading:
            self.state = state
        elif state is not self.state:
            self.transition_to(state, value.state_timestamp_ms)
        self.state_timestamp_ms = value.state_timestamp_ms
        self.last_stored = value

    def stored(self, now_ms: int, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
        """Return this generation as the log is to keep it, with `assignments` by member id."""
        return GroupMetadataValue(
            self.protocol_type or "",
            self.generation_id,
            self.protocol_name,
            self.leader_id,
            now_ms,
            tuple(
                MemberMetadata(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(self.protocol_name),
                    assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    # --- State --------------------------------------------------------------------------------------------------------

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        """Move by the table (G1). Any other move is a bug here, never a client's fault."""
        assert self.state in LEGAL_PREDECESSORS[state], (
            f"group {self.group_id}: {self.state} cannot become {state} (G1)"
        )
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = now_ms

    @property
    def is_stored(self) -> bool:
        """Whether the log knows of this group, beyond its offsets."""
        return self.last_stored is not None

    @property
    def is_unused(self) -> bool:
        """Whether nothing is lost with this object but its offsets, if any."""
        return self.state is GroupState.EMPTY and not self.is_stored and not self.members and not self.pending_joins

    @property
    def can_rebalance(self) -> bool:
        return self.state in LEGAL_PREDECESSORS[GroupState.PREPARING_REBALANCE]

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def all_joined(self) -> bool:
        return len(self.members) == self.awaiting_join_count and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def is_subscribed_to(self, topic: str) -> bool:
        """Return True also where the members' subscriptions cannot be read: better keep an offset than lose it."""
        return self.is_consumer_group if self.subscribed_topics is None else topic in self.subscribed_topics

    # --- Members ------------------------------------------------------------------------------------------------------

    def _count(self, more_bytes: int) -> None:
        self.held_bytes += more_bytes
        self.shared.held.members += more_bytes

    def forget_held(self) -> None:
        """The group is no more: what it holds is free."""
        self._count(-self.held_bytes)

    def promise(self, member_id: str) -> None:
        """Expect a member with this id to join (KIP-394)."""
        if member_id not in self.pending_joins:
            self.pending_joins.add(member_id)
            self._count(MEMBER_BYTES + text_bytes(member_id))

    def _forget_promise(self, member_id: str) -> None:
        if member_id in self.pending_joins:
            self.pending_joins.remove(member_id)
            self._count(-MEMBER_BYTES - text_bytes(member_id))

    def add(self, member: GroupMember, protocol_type: str) -> None:
        assert member.member_id not in self.members
        assert member.group_instance_id not in self.static_members
        if not self.members:
            self.protocol_type = protocol_type
        self._insert(member)
        self._forget_promise(member.member_id)
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> GroupMember | None:
        """Take a member, or a promise of one, out of the group; a leader hands over to the next in line."""
        self._forget_promise(member_id)
        self.pending_syncs.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._count(-member.held_bytes)
        self._protocol_counts.subtract(protocol.name for protocol in member.protocols)
        if member.join_ticket is not None:
            self.awaiting_join_count -= 1
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        return member

    def replace_static(self, old: GroupMember, new_id: str) -> GroupMember:
        """Give a static member's place, assignment and leadership to a new instance of it (KIP-345)."""
        assert old.group_instance_id is not None
        was_leader = self.leader_id == old.member_id
        self.remove(old.member_id)
        new = GroupMember(
            new_id,
            old.group_instance_id,
            old.client_id,
            old.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocols,
            old.assignment,
        )
        self._insert(new)
        if was_leader:
            self.leader_id = new_id
        return new

    def update_member(
        self, member: GroupMember, protocols: tuple[GroupProtocol, ...], client_id: str, client_host: str
    ) -> None:
        self._protocol_counts.subtract(protocol.name for protocol in member.protocols)
        before = member.held_bytes
        member.protocols, member.client_id, member.client_host = protocols, client_id, client_host
        self._count(member.held_bytes - before)
        self._protocol_counts.update(protocol.name for protocol in protocols)

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is one of those who joined. Returns False where nobody did."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].join_ticket is not None:
            return True
        for member in self.members.values():
            if member.join_ticket is not None:
                self.leader_id = member.member_id
                return True
        return False

    def check_member(self, member_id: str, group_instance_id: str | None) -> SemelError | None:
        """Return why a call by this member is refused, if it is (O4)."""
        if group_instance_id is not None:
            current_id = self.static_members.get(group_instance_id)
            if current_id is not None and current_id != member_id:
                return error_for(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"instance {group_instance_id} of group {self.group_id} was taken over by member {current_id}; "
                    f"member {member_id} must stop",
                )
            if current_id is None:
                return self.unknown_member(member_id)
        return None if member_id in self.members else self.unknown_member(member_id)

    def check_generation(self, member_id: str, generation_id: int) -> SemelError | None:
        if generation_id == self.generation_id:
            return None
        return error_for(
            ErrorCode.ILLEGAL_GENERATION,
            f"member {member_id} of group {self.group_id} is of generation {generation_id}, "
            f"the group is at {self.generation_id}; join again",
        )

    def unknown_member(self, member_id: str) -> SemelError:
        return error_for(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"group {self.group_id} has no member {member_id!r}; join again with an empty member id",
        )

    def rebalance_in_progress(self) -> SemelError:
        return error_for(ErrorCode.REBALANCE_IN_PROGRESS, f"group {self.group_id} is rebalancing; join again")

    def _insert(self, member: GroupMember) -> None:
        self.members[member.member_id] = member
        self._count(member.held_bytes)
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self._protocol_counts.update(protocol.name for protocol in member.protocols)
        if member.join_ticket is not None:
            self.awaiting_join_count += 1

    # --- Protocols ----------------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a member with these protocols fits in: one of them must be everybody's."""
        names = list(names)
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(names)
        count = len(self.members)
        return self.protocol_type == protocol_type and any(self._protocol_counts[name] == count for name in names)

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among those that all members offer; ties go to the first voter."""
        count = len(self.members)
        candidates = frozenset(name for name, offered in self._protocol_counts.items() if offered == count)
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def begin_generation(self, now_ms: int) -> None:
        """Count up, settle the protocol, and await the assignment. The group has members."""
        self._count_generation_up()
        self.protocol_name = self.select_protocol()
        self.subscribed_topics = self._compute_subscribed_topics()
        self.transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
        self.pending_syncs.clear()

    def begin_empty_generation(self) -> None:
        """Count up without members; the record that follows makes the group Empty."""
        self._count_generation_up()
        self.protocol_name = None
        self.pending_syncs.clear()

    def _count_generation_up(self) -> None:
        self.generation_id = 1 if self.generation_id >= GENERATION_MAX else self.generation_id + 1

    def _compute_subscribed_topics(self) -> frozenset[str] | None:
        if not self.is_consumer_group:
            return None
        try:
            return frozenset(
                topic
                for member in self.members.values()
                for topic in decode_topics(member.metadata(self.protocol_name))
            )
        except CorruptDataError:
            return None

    # --- Answers ------------------------------------------------------------------------------------------------------

    def join_response(self, member: GroupMember, *, skip_assignment: bool = False) -> JoinGroupResponse:
        """Return what a member learns when its join is answered; the leader learns of the others, too."""
        is_leader = member.member_id == self.leader_id
        return JoinGroupResponse(
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self.leader_id or "",
            member.member_id,
            tuple(
                JoinGroupMember(other.member_id, other.group_instance_id, other.metadata(self.protocol_name))
                for other in self.members.values()
            )
            if is_leader
            else (),
            skip_assignment,
        )

    def sync_response(self, assignment: bytes) -> SyncGroupResponse:
        return SyncGroupResponse(assignment, self.protocol_type, self.protocol_name)
