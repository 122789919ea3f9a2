"""Who writes metadata: one run of a node, until it is deposed by the next."""

from __future__ import annotations

from dataclasses import dataclass

from semel.protocol.errors import ErrorCode, FatalError, FencedError


class NodeDeposedError(FencedError):
    """The node was started again, or removed: this run of it can't write any more."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.STALE_BROKER_EPOCH) -> None:
        super().__init__(message, code)


class LeftBehindError(FatalError):
    """The node was away for so many changes that those it lacks are only in a snapshot: its next start reads that."""


class NodeRemovedError(NodeDeposedError):
    """The node was removed from the cluster, by an operator."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: one run of a node. `epoch` is the number of the change by which it registered."""

    node_id: int
    epoch: int
