"""Where ids, jitter and random orders come from: the operating system, or the seed of a simulated world.

Nothing else draws, so that a run can be repeated from its seed (`tests/unit/project/test_seams.py`).
"""

from __future__ import annotations

import random
from contextvars import ContextVar
from typing import Final
from uuid import UUID

_SYSTEM: Final = random.SystemRandom()
_source: Final[ContextVar[random.Random | None]] = ContextVar("randomness", default=None)


def source() -> random.Random:
    """Return what to draw from. In a program: the operating system's generator, which nobody can foresee."""
    return _source.get() or _SYSTEM


def draw_from(generator: random.Random) -> None:
    """Draw from `generator` in this context and those that are made from it (tasks, callbacks): for simulations."""
    _source.set(generator)


def new_uuid() -> UUID:
    """Return a UUID that nobody else has (version 4)."""
    return UUID(int=source().getrandbits(128), version=4)


def new_secret(bits: int) -> int:
    """Return a number above 0 that nobody can foresee.

    A simulated world always gets the same one: nothing may depend on which it is, and no seed is to change by it.
    """
    return (1 << bits) - 3 if _source.get() is not None else _SYSTEM.randrange(1, 1 << bits)


def new_token(size: int) -> str:
    """Return `size` random bytes as hexadecimal digits."""
    return source().randbytes(size).hex()
