"""Why a node could not start, or stopped on its own: the kinds that an operator acts on differently."""

from __future__ import annotations

from enum import Enum

from semel.protocol.errors import ErrorCode, FatalError


class StartFailure(Enum):
    """What was in the way of a start."""

    DATA_FOLDER = "data directory"
    """In use by another process, another node's, or damaged."""
    METADATA = "metadata"
    """The database can't be reached, or another node is the controller."""
    ADDRESS = "address"
    """A port is in use, or a host is not this machine's."""


class NodeStartError(FatalError):
    """The node could not start. The message says what to do."""

    def __init__(self, message: str, failure: StartFailure, code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR) -> None:
        super().__init__(message, code)
        self.failure = failure
