"""What one request, tick or marker leads to, gathered while it is handled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from semel.protocol.ids import ProducerIdAndEpoch
from semel.runtime.machine import DEFERRED, CoordinatorRecord, Result, Ticket


class GroupEventKind(Enum):
    REBALANCING = "rebalancing"
    GENERATION_STARTED = "generation started"
    STABLE = "stable"
    EMPTY = "empty"
    MEMBER_REMOVED = "member removed"
    MEMBER_REPLACED = "member replaced"
    OFFSETS_EXPIRED = "offsets expired"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """Something an operator may want to know of: the effects of this machine, logged and counted by the shell."""

    kind: GroupEventKind
    group_id: str
    generation_id: int
    detail: str


class TimerKind(Enum):
    SESSION = "session"
    """A member must be heard of."""
    JOIN = "join"
    """The members must have joined."""
    SYNC = "sync"
    """The members must have asked for their assignment."""
    EXPIRY = "expiry"
    """The group's offsets may have expired."""
    CLEANUP = "cleanup"
    """Work too large for one batch of records goes on."""


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class Turn:
    """Gathers records, answers and effects. `answer` serves the caller itself and those that were deferred alike."""

    __slots__ = ("_answers", "effects", "now_ms", "records", "ticket")

    def __init__(self, now_ms: int, ticket: Ticket) -> None:
        self.now_ms = now_ms
        self.ticket = ticket
        self.records: list[CoordinatorRecord] = []
        self.effects: list[GroupEvent] = []
        self._answers: dict[Ticket, object] = {}

    def answer(self, ticket: Ticket, response: object) -> None:
        assert ticket not in self._answers, f"ticket {ticket} is answered twice"
        self._answers[ticket] = response

    def reply(self, response: object) -> None:
        """Answer the caller of this turn."""
        self.answer(self.ticket, response)

    def note(self, kind: GroupEventKind, group_id: str, generation_id: int, detail: str) -> None:
        self.effects.append(GroupEvent(kind, group_id, generation_id, detail))

    def result(self, producer: ProducerIdAndEpoch | None = None) -> Result[Any]:
        response = self._answers.pop(self.ticket, DEFERRED)
        return Result(response, self.records, self._listed_answers(), self.effects, producer)

    def result_of_tick(self) -> Result[Any]:
        """The same for a turn that nobody called for."""
        return Result(None, self.records, self._listed_answers(), self.effects)

    def _listed_answers(self) -> Sequence[tuple[Ticket, object]]:
        return list(self._answers.items())
