"""How clients reach a node in their own process: by its name in place of an address, and without a port.

A node that can be reached so is in one table of the process, under a name such as `embedded:/var/lib/app/data`. The
name is text, as addresses are, so whatever passes a bootstrap on passes it on as well.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from semel.protocol.errors import ErrorCode, FatalError, UsageError

SCHEME: Final = "embedded:"


class NodeGoneError(FatalError):
    """The node in this process has ended for good: no retry reaches it."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.BROKER_NOT_AVAILABLE) -> None:
        super().__init__(message, code)


class NodeLink(Protocol):
    """A node in this process. Its methods may be called from any thread."""

    name: str

    def call(self, path: str, request: bytes, metadata: Sequence[tuple[str, str | bytes]]) -> Future[bytes]:
        """Call semel.v1: `path` is "/service/method". Cancelling the result cancels the call.

        The future fails with `SemelError`. Raises `NodeGoneError`.
        """
        ...

    def connect(self) -> socket.socket:
        """Return the client's end of a new data connection. Raises `NodeGoneError`."""
        ...

    def to(self, address: str) -> NodeLink:
        """Return the way to the node of the cluster at an address, "host:port", that this node gave: of its gRPC or its
        Kafka listener. A node that is alone is where every address leads.
        """
        ...


_links: dict[str, NodeLink] = {}
os.register_at_fork(after_in_child=_links.clear)


def register(link: NodeLink) -> None:
    """Let clients of this process find a node."""
    _links[link.name] = link


def forget(link: NodeLink) -> None:
    """Let no client find it any more. Those that have it keep it, and learn that it is gone."""
    if _links.get(link.name) is link:
        del _links[link.name]


def find_link(addresses: Sequence[str]) -> NodeLink | None:
    """Return the node that a bootstrap names; None where it has addresses. Raises `UsageError` for one that is closed.

    >>> find_link(["localhost:9094"])
    >>> find_link(["embedded:/data"])
    Traceback (most recent call last):
    semel.protocol.errors.UsageError: /data is not open in this process: semel.open("/data") opens it, and its clients \
work in that process alone
    """
    name = addresses[0]
    if not name.startswith(SCHEME):
        return None
    link = _links.get(name)
    if link is None:
        path = name.removeprefix(SCHEME)
        raise UsageError(
            f'{path} is not open in this process: semel.open("{path}") opens it, and its clients work in that process '
            "alone"
        )
    return link
