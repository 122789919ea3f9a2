"""How a node sends a client of semel.v1 to another one, which has what the call is about."""

from __future__ import annotations

from typing import Final

from semel.protocol.errors import ErrorCode, RetriableError

GO_TO_METADATA: Final = "semel-go-to"
"""The trailing metadata of a refused call with the gRPC address, "host:port", of the node to ask instead."""

SENT_AWAY: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_LEADER_OR_FOLLOWER})
"""What a node refuses a whole call with that another one answers."""


class ElsewhereError(RetriableError):
    """Another node answers this call. `go_to` is its gRPC address, "host:port"."""

    go_to: str = ""


def elsewhere(code: ErrorCode, message: str, go_to: str) -> ElsewhereError:
    """Return the error that sends a caller to another node."""
    error = ElsewhereError(message, code)
    error.go_to = go_to
    return error
