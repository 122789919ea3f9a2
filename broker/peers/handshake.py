"""How two nodes prove to each other that they have the secret of the cluster, before anything else is read.

    client -> server   hello: who I am, whom I want, for what, and a number drawn for this connection
    server -> client   challenge: another number drawn for this connection
    client -> server   proof over all of that
    server -> client   proof over all of that, made with another word

Every message has a fixed length, so nothing a stranger says makes a node read or keep more. The server proves nothing
to who has not proven itself. A proof recorded elsewhere is worth nothing, as the numbers differ; nor is a proof of the
other side, or of another node, role or cluster. Without IO: `broker/peers/dialing.py` and `broker/listeners/peers/`
read and write.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from semel.broker.peers.secret import ClusterSecret
from semel.protocol.errors import ErrorCode, FatalError

_MAGIC: Final = b"SEMELPEER"
_VERSION: Final = 1
_HELLO: Final = struct.Struct(f">{len(_MAGIC)}sBBii32s")
NONCE_BYTES: Final = 32

HELLO_BYTES: Final = _HELLO.size
CHALLENGE_BYTES: Final = NONCE_BYTES


class Role(IntEnum):
    """What a connection is for. An answer waits for those before it, so what may wait long has one of its own."""

    REQUESTS = 0
    MARKERS = 1
    """Answered once they are committed."""
    FETCHES = 2
    """Answered once there is something."""


class HandshakeError(FatalError):
    """The other side has not proven what it has to. The message is for this node's log, not for the other side."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.CLUSTER_AUTHORIZATION_FAILED) -> None:
        super().__init__(message, code)


@dataclass(frozen=True, slots=True)
class Place:
    """A node of a cluster, and what it proves itself with."""

    cluster_id: str
    node_id: int
    secret: ClusterSecret


class ClientHandshake:
    """The side that connects."""

    def __init__(self, here: Place, server_id: int, role: Role, nonce: bytes) -> None:
        """`nonce`: drawn for this connection."""
        self._here = here
        self.hello: Final = _HELLO.pack(_MAGIC, _VERSION, role, here.node_id, server_id, nonce)
        self._said = b""

    def prove(self, challenge: bytes) -> bytes:
        """Return the proof that answers the server's challenge."""
        self._said = _said(self._here.cluster_id, self.hello, challenge)
        return self._here.secret.proof(b"client" + self._said)

    def check(self, proof: bytes) -> None:
        """Raises `HandshakeError` where the server does not have the secret."""
        if not self._here.secret.proves(b"server" + self._said, proof):
            raise HandshakeError("the node that answered has another cluster.secret.file, or is of another cluster")


class ServerHandshake:
    """The side that listens."""

    def __init__(self, here: Place, nonce: bytes) -> None:
        """`nonce`: drawn for this connection."""
        self._here = here
        self.challenge: Final = nonce
        self._said = b""
        self.node_id = -1
        """The node that connected, as it says; to be believed once `prove` has returned."""
        self.role = Role.REQUESTS

    def greet(self, hello: bytes) -> bytes:
        """Return the challenge. Raises `HandshakeError`."""
        magic, version, role, client_id, server_id, _ = _HELLO.unpack(hello)
        if magic != _MAGIC:
            raise HandshakeError("it is no node: clients use kafka.listen and grpc.listen")
        if version != _VERSION:
            raise HandshakeError(f"it greets in version {version}, this node in {_VERSION}: upgrade the older one")
        if server_id != self._here.node_id:
            raise HandshakeError(f"it wants node {server_id}, and this is node {self._here.node_id}")
        if client_id < 0 or client_id == self._here.node_id:
            raise HandshakeError(f"it says that it is node {client_id}, and this is node {self._here.node_id}")
        try:
            self.role = Role(role)
        except ValueError:
            raise HandshakeError(f"it connects for {role}, which this node does not know: upgrade it") from None
        self.node_id = client_id
        self._said = _said(self._here.cluster_id, hello, self.challenge)
        return self.challenge

    def prove(self, proof: bytes) -> bytes:
        """Return this side's proof for one that is right. Raises `HandshakeError`."""
        if not self._here.secret.proves(b"client" + self._said, proof):
            raise HandshakeError(f"as node {self.node_id} it has another cluster.secret.file, or is of another cluster")
        return self._here.secret.proof(b"server" + self._said)


def _said(cluster_id: str, hello: bytes, challenge: bytes) -> bytes:
    return b"semel peers" + hello + challenge + cluster_id.encode()
