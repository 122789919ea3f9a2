"""Changes of the metadata, each at a place in a chain of digests, as a store gives them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from semel.broker.metadata.chain import START, Position, digest_of
from semel.broker.metadata.changes import Change, encode_change


def chained(changes: Iterable[Change], after: Position = START) -> Iterator[tuple[Position, Change]]:
    """Yield changes with their positions. They are written by the first lease, at the beginning of time."""
    last = after
    for change in changes:
        last = Position(last.sequence + 1, digest_of(last.digest, last.sequence + 1, *encode_change(change), 1, 0))
        yield last, change
