"""A group as its machine sees it: one interface for both protocols, so that the machine looks a group up and asks it.

The classic protocol is in `classic/`, the consumer protocol (KIP-848) in `consumer/`. What depends on the type of a
group, such as the move from one to the other, is in the machine. What a group has committed is in `offsets/table.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semel.group_coordinator.computations import Computed
from semel.group_coordinator.effects import PendingResult, TimerKey
from semel.protocol.api.groups import (
    GroupDescription,
    GroupListing,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from semel.protocol.errors import SemelError
from semel.runtime.machine import CoordinatorRecord, Ticket


@dataclass(frozen=True, slots=True)
class Expiry:
    """What a check for expired offsets must know of a group (KIP-211, O3)."""

    base_timestamp_ms: int | None
    """When the group became empty: no offset expires before the retention time from there. None: each by itself."""
    ends_group: bool
    """Whether the group goes with its last offset."""
    is_repeated: bool
    """Whether a group that stays is checked again after a while, and not first when it changes."""


class Group(ABC):
    """A group of either protocol. The calls answer the caller, now or later."""

    __slots__ = ("group_id",)

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id

    # --- Calls of the classic protocol --------------------------------------------------------------------------------

    @abstractmethod
    def join(self, request: JoinGroupRequest, pending: PendingResult) -> None: ...

    @abstractmethod
    def sync(self, request: SyncGroupRequest, pending: PendingResult) -> None: ...

    @abstractmethod
    def heartbeat(self, request: HeartbeatRequest, pending: PendingResult) -> None: ...

    @abstractmethod
    def leave(self, request: LeaveGroupRequest, pending: PendingResult) -> None: ...

    # --- Offsets ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def check_commit(self, request: OffsetCommitRequest) -> SemelError | None:
        """Return why this caller may not commit offsets, if it may not (O4, KIP-447)."""

    @abstractmethod
    def committed(self, member_id: str, pending: PendingResult) -> None:
        """Count a commit of a member as a heartbeat, where the protocol does."""

    @abstractmethod
    def check_fetch(self, request: OffsetFetchRequest) -> SemelError | None:
        """Return why this caller may not read offsets, if it may not."""

    @abstractmethod
    def check_offset_delete(self) -> SemelError | None:
        """Return why no offsets may be deleted on request, if they may not."""

    @abstractmethod
    def subscription(self) -> Callable[[str], bool]:
        """Return what tells the topics that the group is subscribed to: their offsets stay."""

    # --- The group as a whole -----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def state_name(self) -> str: ...

    @property
    @abstractmethod
    def member_count(self) -> int: ...

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """What its members hold in memory, about."""

    @property
    @abstractmethod
    def generation_id(self) -> int:
        """The generation, or the epoch of a consumer group."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether it may be deleted: nobody is in it."""

    @property
    @abstractmethod
    def is_unused(self) -> bool:
        """Whether the log knows nothing of it but its offsets, if any, and nobody waits."""

    @abstractmethod
    def listing(self) -> GroupListing: ...

    @abstractmethod
    def describe(self) -> GroupDescription:
        """Return what DescribeGroups says, in the words of the classic protocol."""

    @abstractmethod
    def expiry(self) -> Expiry | None:
        """Return what a check for expired offsets must know; None while a rebalance keeps it from being made."""

    @abstractmethod
    def tombstones(self) -> Sequence[CoordinatorRecord]:
        """Return the records that delete the group, but for its offsets."""

    @abstractmethod
    def forget(self) -> None:
        """Drop what is kept for the group: it is no more, or of the other type from now on."""

    # --- What happens to it -------------------------------------------------------------------------------------------

    @abstractmethod
    def resume(self, pending: PendingResult) -> None:
        """Give the members of a group read from the log their timeouts again."""

    @abstractmethod
    def timer_is_due(self, key: TimerKey, pending: PendingResult) -> None:
        """Do what is due. A timer of the other protocol is older than the group's type, and is passed over."""

    @abstractmethod
    def computed(self, computed: Computed, pending: PendingResult) -> None:
        """Take an assignment that was computed beside the loop, unless it is not this group's latest."""

    @abstractmethod
    def waiting(self) -> Sequence[Ticket]:
        """Return the calls that wait for an answer."""
