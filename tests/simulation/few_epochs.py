"""Worlds in which epochs run out after a handful of transactions, and not after 32,766, so that ids change (T10)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from semel.sdk.producer import sender
from semel.txn_coordinator import machine, prepare, producer_identity, state

_HOLDERS = (machine, prepare, producer_identity, state, sender)
"""Every module that compares with the last epoch: a limit of the format, which no setting lowers."""
_FENCERS = (prepare, state)


@contextmanager
def few_epochs(seed: int) -> Iterator[None]:
    """Lower the last epoch while a world runs, in one of four worlds."""
    chance = random.Random(f"epochs of {seed}")
    kept = [(module, name, getattr(module, name)) for module, name in _names()]
    if chance.random() < 0.25:
        last, real = chance.randint(2, 8), state.MAX_PRODUCER_EPOCH
        for module, name, value in kept:
            setattr(module, name, last + value - real)
    try:
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)


def _names() -> Iterator[tuple[object, str]]:
    yield from ((module, "MAX_PRODUCER_EPOCH") for module in _HOLDERS)
    yield from ((module, "FENCING_EPOCH") for module in _FENCERS)
