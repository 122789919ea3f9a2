"""What a coordinator machine is: a synchronous class whose only truth is the log it is replayed from.

`handle` looks at a request and answers with records to append, an answer, and effects. It changes no state that the
log must survive. The runtime appends the records and gives them back through `replay`, the only place where state
changes, so recovery and normal work are one path. Models: Kafka's coordinator-common (KIP-848), h11's sans-IO style.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NewType, Protocol, TypeVar

from semel.protocol.errors import SemelError
from semel.protocol.ids import ProducerIdAndEpoch

Response = TypeVar("Response")

Ticket = NewType("Ticket", int)
"""Names a caller that waits, so that a machine can answer it later (a join, at the end of a rebalance)."""


class Deferred:
    """The type of `DEFERRED`: the answer comes later, under the request's ticket."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "DEFERRED"


DEFERRED: Final = Deferred()


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """A key and a value for an internal topic, already in Kafka's schema. A value of None deletes the key (D4)."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Result(Generic[Response]):
    """What a machine decided.

    records:  appended in one batch; nothing is answered before they are committed (T2).
    response: the answer, a `SemelError` to raise to the caller, or DEFERRED.
    answers:  answers to callers that were deferred earlier, by ticket.
    effects:  what the shell is to do once the records are committed (send markers, wake a reader): plain data.
    producer: append the records inside this producer's transaction (transactional offset commits).
    """

    response: Response | SemelError | Deferred
    records: Sequence[CoordinatorRecord] = ()
    answers: Sequence[tuple[Ticket, object]] = ()
    effects: Sequence[Any] = ()
    producer: ProducerIdAndEpoch | None = field(default=None)


@dataclass(frozen=True, slots=True)
class Tick:
    """The request that the runtime sends when `next_deadline_ms` has passed. Its answer is None."""


TICK: Final = Tick()


class Machine(Protocol):
    """A coordinator's state machine for one partition of its internal topic. Never does IO, reads a clock or waits."""

    def handle(self, request: Any, now_ms: int, ticket: Ticket) -> Result[Any]:
        """Decide about one request. Raises nothing for bad requests: a refusal is the result's response."""
        ...

    def replay(self, record: CoordinatorRecord, offset: int, producer: ProducerIdAndEpoch | None, now_ms: int) -> None:
        """Apply one record from the log. `producer` is set for records inside a transaction."""
        ...

    def marker_came(self, producer: ProducerIdAndEpoch) -> None:
        """Take note that a producer's transaction is over, also where it has nothing in this partition's log (T8).

        Nothing that is kept may come of it: a marker that ends something is replayed besides.
        """
        ...

    def replay_marker(self, producer: ProducerIdAndEpoch, committed: bool, now_ms: int) -> Result[None] | None:
        """Apply a transaction marker of this partition's log. The result, if any, carries answers and effects only."""
        ...

    def loaded(self, now_ms: int) -> Result[None]:
        """Say what is to be done now that the whole log was replayed: timers to arm, markers to send again (T4)."""
        ...

    def next_deadline_ms(self) -> int | None:
        """Return when the machine wants a `Tick`, or None."""
        ...

    def closed(self) -> Sequence[Ticket]:
        """Return the tickets still waiting, which the runtime answers with NOT_COORDINATOR."""
        ...
