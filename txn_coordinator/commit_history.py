"""What was committed under each key, for those who ask again (T13, E5): the last commits of each, by token.

The keys of shared transactions and the transactional ids of producers are names of two kinds: a text may be both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge
from typing import Final

from semel.protocol.api.commit_decisions import NO_SEQUENCE, CommitDecision
from semel.protocol.errors import ErrorCode
from semel.runtime.machine import CoordinatorRecord
from semel.txn_coordinator.commit_records import (
    CommitKind,
    CommitRecordKey,
    decode_decision,
    encode_decision,
    encode_decision_key,
    encode_old_decision_key,
)
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.held_bytes import HeldBytes, decision_bytes
from semel.txn_coordinator.producer_identity import RefusalError, refuse

_NONE: Final[dict[str, CommitDecision]] = {}


class CommitHistory:
    """The commits that are remembered, by kind, key and token. Changes in `replay` alone."""

    def __init__(self, config: TransactionConfig, held: HeldBytes) -> None:
        self._config = config
        self._held = held
        self._decisions: dict[tuple[CommitKind, str], dict[str, CommitDecision]] = {}
        self._in_old_form: set[tuple[CommitKind, str, str]] = set()

    def replay(self, record: CommitRecordKey, value: bytes | None) -> CommitKind | None:
        """Take over what a decision's record says. Returns the kind, None where that is not known or of no interest."""
        assert record.token is not None
        if value is None:
            for kind in CommitKind if record.kind is None else (record.kind,):
                if ((kind, record.key, record.token) in self._in_old_form) is (record.kind is None):
                    self._forget(kind, record.key, record.token)
            return record.kind
        decision = decode_decision(record.key, record.token, value)
        place = (record.kind or _kind_of(decision), record.key, record.token)
        (self._in_old_form.add if record.kind is None else self._in_old_form.discard)(place)
        self._held.add(record.key, self._growth_by(place[0], record.key, decision))
        self._decisions.setdefault(place[:2], {})[record.token] = decision
        return place[0]

    def _forget(self, kind: CommitKind, key: str, token: str) -> None:
        self._in_old_form.discard((kind, key, token))
        decisions = self._decisions.get((kind, key))
        if decisions is not None:
            self._held.add(key, -decision_bytes(decisions.pop(token, None)))
            if not decisions:
                del self._decisions[kind, key]

    def growth(self, record: CommitRecordKey, value: bytes | None) -> int:
        """Return how many bytes more there are after a record of a decision (S2)."""
        assert record.token is not None
        if value is not None:
            decision = decode_decision(record.key, record.token, value)
            return self._growth_by(record.kind or _kind_of(decision), record.key, decision)
        return -decision_bytes(self.find(record.kind or CommitKind.SHARED, record.key, record.token))

    def _growth_by(self, kind: CommitKind, key: str, decision: CommitDecision) -> int:
        return decision_bytes(decision) - decision_bytes(self.find(kind, key, decision.token))

    # --- What is remembered -------------------------------------------------------------------------------------------

    def of(self, kind: CommitKind, key: str) -> Mapping[str, CommitDecision]:
        """Return the commits of a key by token, oldest first."""
        return self._decisions.get((kind, key), _NONE)

    def keys(self, kind: CommitKind) -> Iterator[str]:
        """Yield the keys that have commits."""
        return (key for each, key in self._decisions if each is kind)

    def find(self, kind: CommitKind, key: str, token: str) -> CommitDecision | None:
        return self._decisions.get((kind, key), _NONE).get(token)

    def last(self, kind: CommitKind, key: str) -> CommitDecision | None:
        return next(reversed(self._decisions.get((kind, key), _NONE).values()), None)

    def of_both_kinds(self, key: str) -> tuple[CommitDecision, ...]:
        parts = (self.of(kind, key).values() for kind in CommitKind)
        return tuple(merge(*parts, key=lambda decision: decision.decided_ms))

    def repeated(self, kind: CommitKind, key: str, token: str, payload: bytes, sequence: int) -> CommitDecision | None:
        """Return the decision that repeats, None for a new one; refuse what contradicts those that are remembered."""
        decision = self.find(kind, key, token)
        if decision is None:
            self.refuse_sequence(kind, key, sequence)
        elif (contradiction := contradiction_to(key, decision, payload, sequence)) is not None:
            raise contradiction
        return decision

    def refuse_sequence(self, kind: CommitKind, key: str, sequence: int) -> None:
        """Refuse a sequence that is not after the last one."""
        if sequence == NO_SEQUENCE:
            return
        last = max((each.sequence for each in self.of(kind, key).values()), default=NO_SEQUENCE)
        if sequence <= last:
            raise refuse(
                ErrorCode.INVALID_TXN_STATE,
                f"{key!r} has committed sequence {last}; {sequence} is not after it, nor a repetition that is still "
                "remembered. Was a checkpoint rolled back?",
            )

    # --- Records ------------------------------------------------------------------------------------------------------

    def records_of(self, kind: CommitKind, key: str, decision: CommitDecision) -> list[CoordinatorRecord]:
        """Return the record of a decision, and what makes room for it."""
        kept = self.of(kind, key)
        surplus = list(kept)[: max(0, len(kept) + 1 - self._config.commit_history_max)]
        return [
            CoordinatorRecord(encode_decision_key(kind, key, decision.token), encode_decision(decision)),
            *(self._tombstone(kind, key, token) for token in surplus),
        ]

    def tombstones(self, kind: CommitKind, key: str) -> list[CoordinatorRecord]:
        """Return what forgets all commits of a key."""
        return [self._tombstone(kind, key, token) for token in self.of(kind, key)]

    def _tombstone(self, kind: CommitKind, key: str, token: str) -> CoordinatorRecord:
        if (kind, key, token) in self._in_old_form:
            return CoordinatorRecord(encode_old_decision_key(key, token), None)
        return CoordinatorRecord(encode_decision_key(kind, key, token), None)


def _kind_of(decision: CommitDecision) -> CommitKind:
    """In the old form: only commits of shared transactions are of an attempt."""
    return CommitKind.SHARED if decision.attempt else CommitKind.PRODUCER


def contradiction_to(key: str, decision: CommitDecision, payload: bytes, sequence: int) -> RefusalError | None:
    """Return why this is no repetition of `decision`, None where it is one."""
    if decision.payload != payload:
        return refuse(
            ErrorCode.INVALID_TXN_STATE,
            f"token {decision.token!r} of {key!r} was committed with another payload: this is not a repetition of that "
            "commit. Was a checkpoint rolled back, or a token used twice?",
        )
    return other_sequence(key, decision, sequence)


def other_sequence(key: str, decision: CommitDecision, sequence: int) -> RefusalError | None:
    """Return why `sequence` can't be that of a repetition. Only where both give one can they differ."""
    if NO_SEQUENCE in (sequence, decision.sequence) or sequence == decision.sequence:
        return None
    return refuse(
        ErrorCode.INVALID_TXN_STATE,
        f"token {decision.token!r} of {key!r} was committed as sequence {decision.sequence}, not {sequence}: this is "
        "not a repetition of that commit. Was a token used twice?",
    )
