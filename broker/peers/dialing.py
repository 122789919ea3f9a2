"""Opens a connection to another node: the handshake, then the Kafka protocol on the same transport."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from semel.broker.peers.encryption import PeerEncryption
from semel.broker.peers.handshake import CHALLENGE_BYTES, NONCE_BYTES, ClientHandshake, HandshakeError, Place, Role
from semel.broker.peers.secret import PROOF_BYTES
from semel.protocol.randomness import source
from semel.protocol.schemes import speaks_tls, without_scheme
from semel.runtime.kafka_client.connection import Connection, ConnectionLostError, Dial


def dial_peer(host: str, port: int, here: Place, node_id: int, role: Role, encryption: PeerEncryption) -> Dial:
    """Return what opens a connection to a node that proves to be the one that is meant.

    host: with `tls://` before it where the node encrypts
    """

    async def dial(made: Callable[[], Connection]) -> Connection:
        loop = asyncio.get_running_loop()
        handshake = ClientHandshake(here, node_id, role, source().randbytes(NONCE_BYTES))
        if speaks_tls(host):
            try:
                transport, greeting = await loop.create_connection(
                    lambda: _Greeting(handshake), without_scheme(host), port, ssl=encryption.context()
                )
            except ssl.SSLError as error:
                encryption.tell(node_id, f"TLS with {host}:{port} fails: {error}")
                raise
            except ConnectionLostError as error:
                encryption.tell(node_id, error.message)
                raise
        else:
            transport, greeting = await loop.create_connection(lambda: _Greeting(handshake), host, port)
        try:
            await greeting.proven
        except BaseException:
            transport.abort()
            raise
        connection = made()
        if transport.is_closing():
            raise ConnectionLostError(f"node {node_id} closed the connection after the handshake")
        transport.set_protocol(connection)
        connection.connection_made(transport)
        transport.resume_reading()
        return connection

    return dial


class _Greeting(asyncio.BufferedProtocol):
    """Reads no byte more than the message that is next."""

    def __init__(self, handshake: ClientHandshake) -> None:
        self._handshake = handshake
        self._transport: asyncio.Transport | None = None
        self._message = bytearray(CHALLENGE_BYTES)
        self._filled = 0
        self._is_challenged = False
        self.proven: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are no subclass of it
        self._transport = transport
        transport.write(self._handshake.hello)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._message)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._message):
            return
        message, self._filled = bytes(self._message), 0
        assert self._transport is not None
        if not self._is_challenged:
            self._is_challenged = True
            self._message = bytearray(PROOF_BYTES)
            self._transport.write(self._handshake.prove(message))
            return
        # What follows is for the connection that comes in this one's place.
        self._transport.pause_reading()
        try:
            self._handshake.check(message)
        except HandshakeError as error:
            self._end(ConnectionLostError(error.message, error.code))
        else:
            if not self.proven.done():
                self.proven.set_result(None)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._end(
            ConnectionLostError(
                "the node ended the handshake. Its log says why; most often the nodes have different contents in "
                "cluster.secret.file, or another node listens at this address"
            )
        )

    def _end(self, error: ConnectionLostError) -> None:
        if not self.proven.done():
            self.proven.set_exception(error)
            self.proven.exception()  # who waited may have given up
