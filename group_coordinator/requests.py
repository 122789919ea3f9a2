"""What the shell asks of the machine besides the APIs."""

from __future__ import annotations

from dataclasses import dataclass

from semel.protocol.api.groups import OffsetCommitRequest
from semel.protocol.ids import ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class TopicsDeleted:
    """These topics are gone: drop every group's offsets of them. Answered with None once done."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class TopicsLeft:
    """There are no topics but these: drop every group's offsets of others. Answered with None once done."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class HeldPartitions:
    """Ask which partitions a group has offsets of. Answered with `OffsetTable.numbers`."""

    group_id: str
    require_stable: bool


class VerificationGuard:
    """Stands for one question to the transaction coordinator, and equals no other, of no other coordinator either."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class BeginVerification:
    """Ask for a guard before the transaction coordinator is asked about a producer's transaction (T8).

    Answered with None where the transaction is known to be open here already, and needs no verification.
    """

    producer: ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class VerifiedCommit:
    """A transactional commit with the guard under which it was verified: a marker in between makes the guard void."""

    request: OffsetCommitRequest
    guard: VerificationGuard | None
