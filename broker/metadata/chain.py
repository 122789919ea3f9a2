"""The chain over the metadata's changes (R10): each has a digest of itself and of all before it.

Two places that have the same digest for a change have the same history up to it. So a node that remembers one number
and one digest finds out that its database lost changes, or has others in their place, without reading them.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, NamedTuple

from semel.broker.metadata.changes import MetadataCorruptError, to_json
from semel.protocol.errors import FatalError


class Position(NamedTuple):
    """The last change of a history, and its digest."""

    sequence: int
    digest: str


START: Final = Position(0, "0" * 64)
"""Before the first change."""


class MetadataWentBackError(FatalError):
    """The database lacks changes that this node has applied, or has others in their place (R10)."""


class ChainBrokenError(MetadataCorruptError):
    """A change in the database does not continue the one before it."""


def digest_of(
    before: str,
    sequence: int,
    kind: str,
    payload: str,
    controller_epoch: int,
    written_at_ms: int,
    writer_node: int | None = None,
    writer_epoch: int | None = None,
) -> str:
    """Return the digest of a change that comes after one with the digest `before`.

    When it was written, by which node, and under which lease, is part of it: a history in which the same change was
    made twice, before a fail-over and after it, is another one. So is one in which somebody else made it. Changes of
    older versions have no writer.
    """
    writer = () if writer_node is None or writer_epoch is None else (writer_node, writer_epoch)
    return _sha256(before, sequence, kind, payload, controller_epoch, written_at_ms, *writer)


def digest_of_snapshot(sequence: int, payload: str) -> str:
    """Return where the chain begins if the changes before it are gone: with the snapshot that an upgrade found."""
    return _sha256("snapshot", sequence, payload)


def _sha256(*values: str | int) -> str:
    return sha256(to_json(values).encode("ascii")).hexdigest()
