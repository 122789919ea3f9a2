"""What one request, tick or marker leads to, gathered while it is handled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final, NamedTuple

from semel.group_coordinator.computations import Computation
from semel.protocol.errors import SemelError
from semel.protocol.ids import ProducerIdAndEpoch
from semel.runtime.machine import DEFERRED, CoordinatorRecord, Result, Ticket

DETAIL_CHARACTERS_MAX: Final = 1_024
"""Of an event's detail: clients give reasons of any length (KIP-800), which end up in the node's log."""


class GroupEventKind(Enum):
    REBALANCING = "rebalancing"
    GENERATION_STARTED = "generation started"
    STABLE = "stable"
    ASSIGNED = "target assigned"
    """Of a consumer group: from here on its members are taken there, one by one."""
    EMPTY = "empty"
    MEMBER_REMOVED = "member removed"
    MEMBER_REPLACED = "member replaced"
    OFFSETS_EXPIRED = "offsets expired"
    DELETED = "deleted"
    UPGRADED = "became a consumer group"
    DOWNGRADED = "became a classic group"


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """Something an operator may want to know of: the effects of this machine, logged and counted by the shell."""

    kind: GroupEventKind
    group_id: str
    generation_id: int
    detail: str


class TimerKind(StrEnum):
    SESSION = "session"
    """A member must be heard of."""
    JOIN = "join"
    """The members must have joined."""
    SYNC = "sync"
    """The members must have asked for their assignment."""
    EXPIRY = "expiry"
    """The group's offsets may have expired."""
    CLEANUP = "cleanup"
    """Work too large for one batch of records continues."""
    MEMBER_SESSION = "member session"
    """A member of a consumer group must be heard of."""
    REVOCATION = "revocation"
    """A member of a consumer group must have given up partitions."""
    MEMBER_REJOIN = "member rejoin"
    """A classic member of a consumer group must have joined again."""
    MEMBER_SYNC = "member sync"
    """A classic member of a consumer group must have asked for its assignment."""
    DOWNGRADE = "downgrade"
    """A consumer group has classic members only, and may become a classic one."""
    ASSIGN = "assign"
    """A consumer group's target assignment is to be computed beside the loop."""
    CONVERTED = "converted"
    """A group that became a classic one must rebalance."""


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class PendingResult:
    """Gathers records, answers and effects. `answer` serves the caller itself and those that were deferred alike."""

    __slots__ = ("_answers", "effects", "now_ms", "records", "ticket")

    def __init__(self, now_ms: int, ticket: Ticket) -> None:
        self.now_ms = now_ms
        self.ticket = ticket
        self.records: list[CoordinatorRecord] = []
        self.effects: list[GroupEvent | Computation] = []
        self._answers: dict[Ticket, object] = {}

    def answer(self, ticket: Ticket, response: object) -> None:
        assert ticket not in self._answers, f"ticket {ticket} is answered twice"
        self._answers[ticket] = response

    def reply(self, response: object) -> None:
        """Answer the caller."""
        self.answer(self.ticket, response)

    @property
    def is_refused(self) -> bool:
        """Whether the caller was answered with an error."""
        return isinstance(self._answers.get(self.ticket), SemelError)

    def refuse(self, error: SemelError) -> None:
        """Answer the caller with an error after all."""
        self._answers[self.ticket] = error

    def note(self, kind: GroupEventKind, group_id: str, generation_id: int, detail: str) -> None:
        self.effects.append(GroupEvent(kind, group_id, generation_id, detail[:DETAIL_CHARACTERS_MAX]))

    def result(self, producer: ProducerIdAndEpoch | None = None) -> Result[Any]:
        response = self._answers.pop(self.ticket, DEFERRED)
        return Result(response, self.records, self._listed_answers(), self.effects, producer)

    def result_of_tick(self) -> Result[Any]:
        """The same for a tick, which nobody called for."""
        return Result(None, self.records, self._listed_answers(), self.effects)

    def _listed_answers(self) -> Sequence[tuple[Ticket, object]]:
        return list(self._answers.items())
