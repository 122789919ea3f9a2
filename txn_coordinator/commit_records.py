"""What a key has committed, and the attempt at its next transaction: records of Semel's own in `__transaction_state`.

Their keys have versions which Kafka's readers step over as they do over each one they don't know. A producer's commits
and those of shared transactions have different ones, so that a transactional id and a key may be the same text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from semel.protocol.api.commit_decisions import NO_SEQUENCE, CommitDecision
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.schema import Reader, Writer

ATTEMPT_KEY_VERSION: Final = 10_000
OLD_DECISION_KEY_VERSION: Final = 10_001
"""Of both kinds of commits, told apart by their attempts. Still read, and not written any more."""
VALUE_VERSION: Final = 0

_TAG_ONE_OFF: Final = 0
_TAG_RUN: Final = 1
_TAG_RETIRED_RUNS: Final = 2
_TAG_SWEEPING: Final = 3

RETIRED_MAX: Final = 32
"""Attempts known to be over, so that a late writer of theirs is sent away, and not taken for a newer attempt's."""

RETIRED_RUNS_MAX: Final = 32
"""Runs known to be over, with all of their attempts, those that nobody has heard of included."""


class CommitKind(Enum):
    """Who commits under a key, and the version of the record keys that say so."""

    SHARED = 10_002
    PRODUCER = 10_003


@dataclass(frozen=True, slots=True)
class AttemptState:
    """The attempt at a key's next transaction. `attempt` is empty where none is open. Immutable.

    run, retired_runs: the run that the last attempt was of, and those before it.
    one_off:           nobody ever repeats the key: it is forgotten soon.
    sweeping:          writers of older attempts are still to be aborted, more than one batch of records could hold.
    """

    key: str
    attempt: str = ""
    token: str = ""
    sequence: int = NO_SEQUENCE
    retired: tuple[str, ...] = ()
    last_update_ms: int = 0
    run: str = ""
    retired_runs: tuple[str, ...] = ()
    one_off: bool = False
    sweeping: bool = False

    def opened(self, attempt: str, token: str, sequence: int, now_ms: int, *, run: str = "") -> AttemptState:
        """With `attempt` open; the one that was open is retired, and with another run all that the last one begins."""
        closed = self if not self.attempt else self.closed(self.attempt, now_ms)
        retired_runs = self.retired_runs
        if run and self.run and run != self.run:
            retired_runs = (*retired_runs, self.run)[-RETIRED_RUNS_MAX:]
        return replace(
            closed,
            attempt=attempt,
            token=token,
            sequence=sequence,
            last_update_ms=max(now_ms, self.last_update_ms),
            run=run or self.run,
            retired_runs=retired_runs,
        )

    def closed(self, attempt: str, now_ms: int) -> AttemptState:
        """With `attempt` retired, whether it was the open one or never came to be."""
        retired = self.retired if attempt in self.retired else (*self.retired, attempt)[-RETIRED_MAX:]
        closed = replace(self, retired=retired, last_update_ms=max(now_ms, self.last_update_ms))
        if attempt != self.attempt:
            return closed
        return replace(closed, attempt="", token="", sequence=NO_SEQUENCE)


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
    writer.tagged_fields(_tagged(state))
    return writer.to_bytes()


def _tagged(state: AttemptState) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    if state.one_off:
        fields[_TAG_ONE_OFF] = b""
    if state.run:
        fields[_TAG_RUN] = state.run.encode()
    if state.retired_runs:
        runs = Writer()
        runs.compact_array(state.retired_runs, runs.compact_string)
        fields[_TAG_RETIRED_RUNS] = runs.to_bytes()
    if state.sweeping:
        fields[_TAG_SWEEPING] = b""
    return fields


def encode_decision_key(kind: CommitKind, key: str, token: str) -> bytes:
    return _decision_key(kind.value, key, token)


def encode_old_decision_key(key: str, token: str) -> bytes:
    """Return the key of a record from before the kinds had keys of their own, to remove it by."""
    return _decision_key(OLD_DECISION_KEY_VERSION, key, token)


def _decision_key(version: int, key: str, token: str) -> bytes:
    writer = Writer()
    writer.int16(version)
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
    """Whose record it is: a key's attempt, or, with `token`, one of its decisions. `kind` is None in the old form."""

    key: str
    token: str | None
    kind: CommitKind | None = None


_KINDS: Final = {kind.value: kind for kind in CommitKind}


def decode_commit_key(data: bytes) -> CommitRecordKey | None:
    """Return None for a record of another kind."""
    reader = Reader(data)
    version = reader.int16()
    if version not in (ATTEMPT_KEY_VERSION, OLD_DECISION_KEY_VERSION, *_KINDS):
        return None
    key = reader.string()
    token = reader.string() if version != ATTEMPT_KEY_VERSION else None
    reader.expect_end()
    return CommitRecordKey(key, token, _KINDS.get(version))


def decode_attempt(key: str, value: bytes) -> AttemptState:
    """Raises `CorruptDataError` for bytes that do not fit, and `FatalError` for a version newer than this."""
    reader = _reader(key, value)
    attempt = reader.compact_string()
    token = reader.compact_string()
    sequence = reader.int64()
    retired = tuple(reader.compact_array(reader.compact_string))
    last_update_ms = reader.int64()
    tags = reader.tagged_fields()
    runs = Reader(tags.get(_TAG_RETIRED_RUNS, _NO_RUNS))
    return AttemptState(
        key,
        attempt,
        token,
        sequence,
        retired,
        last_update_ms,
        run=tags.get(_TAG_RUN, b"").decode(),
        retired_runs=tuple(runs.compact_array(runs.compact_string)),
        one_off=_TAG_ONE_OFF in tags,
        sweeping=_TAG_SWEEPING in tags,
    )


_NO_RUNS: Final = b"\x01"
"""An empty compact array."""


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
