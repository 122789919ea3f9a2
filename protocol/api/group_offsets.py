"""What a client says when it commits offsets: its place in the group, and where each partition stands.

Apart from `groups.py`, which is large and of which programs that only produce or consume need nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.protocol.ids import NO_LEADER_EPOCH

NO_GENERATION = -1
NO_MEMBER_ID = ""


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer's place in its group, by which the coordinator fences zombies (KIP-447, O4).

    The defaults are those of a committer that is no member.
    """

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed position: the offset of the next record to read. `commit_timestamp_ms` -1: take the clock's."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = -1
