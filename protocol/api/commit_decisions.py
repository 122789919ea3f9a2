"""Commits that were decided under a key for good, and what may be recorded with one (T13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NO_SEQUENCE: Final = -1

PAYLOAD_BYTES_MAX: Final = 64 << 10
"""The largest payload that is recorded with a commit."""

NAME_BYTES_MAX: Final = 512
"""Of the key of a shared transaction, an attempt, a run, and a commit token."""


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """A commit that was decided under a key, for good.

    token:      the application's name for it.
    sequence:   its place in the application's order, such as a batch id; -1 where it gave none.
    payload:    what the application recorded with it, such as the range of its source.
    attempt:    the attempt that succeeded; empty for a transaction of one producer.
    decided_ms: when, in milliseconds since 1970.
    writers:    how many writers it committed.
    """

    token: str
    sequence: int
    payload: bytes
    attempt: str
    decided_ms: int
    writers: int
