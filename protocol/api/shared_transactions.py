"""What is asked and answered about shared transactions and commit tokens (T12, T13): Semel's own, Kafka has neither.

A key names a line of transactions that follow each other, such as the batches of one streaming query. One attempt at
the next one is open at a time; any number of writers join it, each with a producer id of its own, and one decision
commits those that the committer names and aborts all others. Decisions are told apart by the application's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from semel.protocol.api.clients import ClientOrigin
from semel.protocol.api.commit_decisions import NO_SEQUENCE, CommitDecision
from semel.protocol.ids import NO_TIMESTAMP, ProducerIdAndEpoch
from semel.protocol.trace_context import DecisionIds

MEMBER_PREFIX: Final = "__semel.shared/"
"""Begins the transactional ids of the writers of shared transactions. No producer may name such a one itself."""


def member_id(key: str, producer_id: int) -> str:
    """Return the transactional id of a writer of `key`: unique, since its producer id is."""
    return f"{MEMBER_PREFIX}{key}/{producer_id}"


def key_of_member(transactional_id: str) -> str | None:
    """Return the key whose writer this id is, None for an ordinary producer's."""
    if not transactional_id.startswith(MEMBER_PREFIX):
        return None
    key, slash, _ = transactional_id.removeprefix(MEMBER_PREFIX).rpartition("/")
    return key if slash else None


@dataclass(frozen=True, slots=True)
class OpenSharedRequest:
    """Begin an attempt at a transaction of `key`, or join it.

    attempt: names this try, again for each; all that take part in it give the same. An older try is aborted and fenced.
    token, sequence: what shall be committed. A sequence, where given, is larger than that of the last commit.
    timeout_ms: how long each writer's part may stay open.
    writer: whether a producer id is wanted to write with; otherwise, only whether there is anything to do.
    one_off: nobody will ever repeat this key, so it is forgotten soon after its commit.
    run: the run of the program that this attempt is of, if it says. Once another run has opened an attempt, all those
        of this run are over, also one that had not joined yet.
    """

    key: str
    attempt: str
    token: str
    timeout_ms: int
    sequence: int = NO_SEQUENCE
    writer: bool = True
    one_off: bool = False
    run: str = ""
    client: ClientOrigin | None = None


@dataclass(frozen=True, slots=True)
class OpenSharedResponse:
    """`transactional_id`, `producer`: to write with. `committed`: it was committed before, there is nothing to do."""

    transactional_id: str = ""
    producer: ProducerIdAndEpoch | None = None
    committed: CommitDecision | None = None


class CommitOutcome(Enum):
    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"
    """Another attempt had committed the same token with the same payload; this attempt's writers are aborted."""


@dataclass(frozen=True, slots=True)
class CommitSharedRequest:
    """Commit exactly `writers`; every other writer of the key is aborted and fenced. `writers` may be empty.

    one_off, run: as at the opening, for where nobody has joined.
    """

    key: str
    attempt: str
    token: str
    writers: tuple[ProducerIdAndEpoch, ...]
    payload: bytes = b""
    sequence: int = NO_SEQUENCE
    one_off: bool = False
    run: str = ""
    trace: DecisionIds | None = None
    client: ClientOrigin | None = None


@dataclass(frozen=True, slots=True)
class CommitSharedResponse:
    outcome: CommitOutcome
    decision: CommitDecision


@dataclass(frozen=True, slots=True)
class AbortSharedRequest:
    """Abort an attempt with all its writers. Changes nothing once it is decided, or another one has taken its place."""

    key: str
    attempt: str
    one_off: bool = False
    client: ClientOrigin | None = None


@dataclass(frozen=True, slots=True)
class LeaveSharedRequest:
    """Abort one writer's part, so that its partitions need not wait for the others."""

    key: str
    attempt: str
    producer: ProducerIdAndEpoch
    client: ClientOrigin | None = None


@dataclass(frozen=True, slots=True)
class DescribeSharedRequest:
    key: str


@dataclass(frozen=True, slots=True)
class ListSharedRequest:
    """All keys."""


@dataclass(frozen=True, slots=True)
class SharedListing:
    """A key. `open_token`: of the attempt that is open; `last_token`: of the last commit; empty where there is none."""

    key: str
    open_token: str = ""
    last_token: str = ""
    last_commit_ms: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class ListSharedResponse:
    """`unreadable`: why keys are missing in it, for each partition of their coordinators that can't be read."""

    keys: tuple[SharedListing, ...]
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedWriter:
    transactional_id: str
    producer: ProducerIdAndEpoch
    state: str
    start_ms: int


@dataclass(frozen=True, slots=True)
class SharedDescription:
    """`attempt` is empty where nothing is open. `decisions` are the last 100, oldest first.

    A producer whose transactional id is the same text has commits of its own, those without an attempt.
    """

    key: str
    attempt: str
    token: str
    sequence: int
    writers: tuple[SharedWriter, ...]
    decisions: tuple[CommitDecision, ...]
