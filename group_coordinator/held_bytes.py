"""What groups hold in memory, about, counted where it changes; and whether there is room for more (S2).

A member keeps its place: only what makes a group larger is refused. What members hold is given back when they leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from semel.group_coordinator.config import GroupConfig
from semel.group_coordinator.records.consumer_state import MemberDetails
from semel.protocol.api.groups import GroupProtocol
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.runtime.refusals import Refusals

MEMBER_BYTES: Final = 1_500
"""A member with its timers and its share of the group, without what it says."""
TEXT_BYTES: Final = 60
"""An object of text or bytes, without its content."""
PARTITION_BYTES: Final = 150
"""A partition in an assignment."""
OFFSET_BYTES: Final = 350
"""A committed offset without its metadata."""
OFFSET_GROUP_BYTES: Final = 2_000
"""What a group costs for having offsets at all."""


class HeldBytes:
    """What the groups of one or all partitions of `__consumer_offsets` hold."""

    __slots__ = ("members", "offsets")

    def __init__(self, members: int = 0, offsets: int = 0) -> None:
        self.members = members
        self.offsets = offsets


class Room:
    """Says whether there is room: in a group, and in all groups of the node together."""

    def __init__(self, config: GroupConfig, held_by_all: Callable[[], HeldBytes], refusals: Refusals) -> None:
        """`refusals`: where what is refused for a bound of groups is counted, also by others than this."""
        self.refusals = refusals
        self._config = config
        self._held_by_all = held_by_all

    def refuse_member(self, group_id: str, group_bytes: int, more: int) -> SemelError | None:
        """Return why a group that holds `group_bytes` can't hold `more`, if it can't."""
        if more <= 0:
            return None
        if group_bytes + more > self._config.group_max_bytes:
            wrong = f"the members of group {group_id} hold {group_bytes} bytes of {self._config.group_max_bytes}"
            setting = "group.max.bytes"
        elif (held := self._held_by_all().members) + more > self._config.group_members_max_bytes:
            wrong = f"the members of all groups hold {held} bytes of {self._config.group_members_max_bytes}"
            setting = "group.members.max.bytes"
        else:
            return None
        self.refusals.note(setting)
        return error_for(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"{wrong} ({setting}), and {more} more are too many: use fewer members or shorter subscriptions, or raise "
            "the setting",
        )

    def refuse_offsets(self, group_id: str, more: int) -> SemelError | None:
        """Return why a group can't commit what takes so many bytes more, if it can't."""
        if more <= 0 or (held := self._held_by_all().offsets) + more <= self._config.offsets_max_bytes:
            return None
        self.refusals.note("offsets.max.bytes")
        return error_for(
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
            f"the committed offsets of all groups hold {held} bytes of {self._config.offsets_max_bytes} "
            f"(offsets.max.bytes), so group {group_id} can commit no offsets of partitions that it has none of, nor "
            "longer metadata: delete groups that are not used any more, or raise the setting",
        )


def text_bytes(*texts: str | None) -> int:
    """Return what texts take; None takes nothing."""
    return sum(TEXT_BYTES + len(text) * (1 if text.isascii() else 4) for text in texts if text is not None)


def protocol_bytes(protocols: Iterable[GroupProtocol]) -> int:
    return sum(text_bytes(each.name) + TEXT_BYTES + len(each.metadata) for each in protocols)


def details_bytes(details: MemberDetails | None) -> int:
    """Return what a member of a consumer group holds by what it says; 0 for one that is not there."""
    if details is None:
        return 0
    said = (details.instance_id, details.rack_id, details.client_id, details.client_host, details.topic_regex)
    classic = 0 if details.classic is None else protocol_bytes(details.classic.protocols)
    return MEMBER_BYTES + text_bytes(*said, details.server_assignor, *details.topic_names) + classic


def offset_bytes(metadata: str) -> int:
    return OFFSET_BYTES + text_bytes(metadata)
