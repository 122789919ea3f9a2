"""A file of users for tests: their passwords are hashed as little as is allowed."""

from __future__ import annotations

from pathlib import Path

from semel.broker.users.user_file import write_user
from semel.protocol.scram import ITERATIONS_MIN, SCRAM_MECHANISMS, make_verifier

ALICE, PASSWORD = "alice", "wonder=,land ß"


def set_user(path: Path, name: str = ALICE, password: str | None = PASSWORD) -> Path:
    """Add a user or change him; without a password, remove him."""
    verifiers = None
    if password is not None:
        verifiers = [make_verifier(mechanism, password, ITERATIONS_MIN) for mechanism in SCRAM_MECHANISMS]
    write_user(str(path), name, verifiers)
    return path
