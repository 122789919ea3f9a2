"""What a key has committed, and the attempt at its next transaction: two kinds of records in `__transaction_state`.

Their keys have versions of Semel's own, which Kafka's readers step over as they do over each one they don't know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from semel.protocol.api.shared_transactions import NO_SEQUENCE, CommitDecision
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.schema import Reader, Writer

ATTEMPT_KEY_VERSION: Final = 10_000
DECISION_KEY_VERSION: Final = 10_001
VALUE_VERSION: Final = 0

RETIRED_MAX: Final = 32
"""Attempts known to be over, so that a late writer of theirs is sent away, and not taken for a newer attempt's."""

MEMBER_PREFIX: Final = "__semel.shared/"
"""Begins the transactional ids of the writers of shared transactions. No producer may name such a one itself."""


@dataclass(frozen=True, slots=True)
class AttemptState:
    """The attempt at a key's next transaction. `attempt` is empty where none is open. Immutable."""

    key: str
    attempt: str = ""
    token: str = ""
    sequence: int = NO_SEQUENCE
    retired: tuple[str, ...] = ()
    last_update_ms: int = 0

    def opened(self, attempt: str, token: str, sequence: int, now_ms: int) -> AttemptState:
        """With `attempt` open; the one that was open is retired."""
        closed = self if not self.attempt else self.closed(self.attempt, now_ms)
        return replace(
            closed, attempt=attempt, token=token, sequence=sequence, last_update_ms=max(now_ms, self.last_update_ms)
        )

    def closed(self, attempt: str, now_ms: int) -> AttemptState:
        """With `attempt` retired, whether it was the open one or never came to be."""
        retired = self.retired if attempt in self.retired else (*self.retired, attempt)[-RETIRED_MAX:]
        now = max(now_ms, self.last_update_ms)
        if attempt != self.attempt:
            return replace(self, retired=retired, last_update_ms=now)
        return AttemptState(self.key, retired=retired, last_update_ms=now)


def member_id(key: str, producer_id: int) -> str:
    """Return the transactional id of a writer of `key`: unique, since its producer id is."""
    return f"{MEMBER_PREFIX}{key}/{producer_id}"


def key_of_member(transactional_id: str) -> str | None:
    """Return the key whose writer this id is, None for an ordinary producer's."""
    if not transactional_id.startswith(MEMBER_PREFIX):
        return None
    key, slash, _ = transactional_id.removeprefix(MEMBER_PREFIX).rpartition("/")
    return key if slash else None


def encode_attempt_key(key: str) -> bytes:
    writer = Writer()
    writer.int16(ATTEMPT_KEY_VERSION)
    writer.string(key)
    return writer.to_bytes()


def encode_attempt(state: AttemptState) -> bytes:
    writer = Writer()
    writer.int16(VALUE_VERSION)
    writer.compact_string(state.attempt)
    writer.compact_string(state.token)
    writer.int64(state.sequence)
    writer.compact_array(state.retired, writer.compact_string)
    writer.int64(state.last_update_ms)
    writer.tagged_fields()
    return writer.to_bytes()


def encode_decision_key(key: str, token: str) -> bytes:
    writer = Writer()
    writer.int16(DECISION_KEY_VERSION)
    writer.string(key)
    writer.string(token)
    return writer.to_bytes()


def encode_decision(decision: CommitDecision) -> bytes:
    writer = Writer()
    writer.int16(VALUE_VERSION)
    writer.int64(decision.sequence)
    writer.compact_bytes(decision.payload)
    writer.compact_string(decision.attempt)
    writer.int64(decision.decided_ms)
    writer.int32(decision.writers)
    writer.tagged_fields()
    return writer.to_bytes()


@dataclass(frozen=True, slots=True)
class CommitRecordKey:
    """Whose record it is: a key's attempt, or, with `token`, one of its decisions."""

    key: str
    token: str | None


def decode_commit_key(data: bytes) -> CommitRecordKey | None:
    """Return None for a record of another kind."""
    reader = Reader(data)
    version = reader.int16()
    if version not in (ATTEMPT_KEY_VERSION, DECISION_KEY_VERSION):
        return None
    key = reader.string()
    token = reader.string() if version == DECISION_KEY_VERSION else None
    reader.expect_end()
    return CommitRecordKey(key, token)


def decode_attempt(key: str, value: bytes) -> AttemptState:
    """Raises `CorruptDataError` for bytes that do not fit, and `FatalError` for a version newer than this."""
    reader = _reader(key, value)
    state = AttemptState(
        key,
        attempt=reader.compact_string(),
        token=reader.compact_string(),
        sequence=reader.int64(),
        retired=tuple(reader.compact_array(reader.compact_string)),
        last_update_ms=reader.int64(),
    )
    reader.tagged_fields()
    return state


def decode_decision(key: str, token: str, value: bytes) -> CommitDecision:
    """Raises `CorruptDataError` for bytes that do not fit, and `FatalError` for a version newer than this."""
    reader = _reader(key, value)
    decision = CommitDecision(
        token=token,
        sequence=reader.int64(),
        payload=reader.compact_bytes(),
        attempt=reader.compact_string(),
        decided_ms=reader.int64(),
        writers=reader.int32(),
    )
    reader.tagged_fields()
    return decision


def _reader(key: str, value: bytes) -> Reader:
    reader = Reader(value)
    version = reader.int16()
    if version != VALUE_VERSION:
        raise FatalError(
            f"a record about the commits of {key!r} has version {version}; this node reads {VALUE_VERSION}: run the "
            "version that wrote it",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    return reader
