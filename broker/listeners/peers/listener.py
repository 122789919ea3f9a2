"""Accepts the other nodes of the cluster: nothing is read of a connection before it has proven that it is one (S1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from semel.broker.handlers.fetch.handler import FetchHandler
from semel.broker.handlers.write_txn_markers import MARKERS_WAIT_S, LocalMarkerWriter
from semel.broker.listeners.acceptor import IN_PROCESS, ConnectionLimits
from semel.broker.listeners.kafka.connection import ConnectionProtocol, KafkaConnection
from semel.broker.listeners.kafka.frame_listener import FrameListener
from semel.broker.listeners.peers.apis import ReplicaFetches, peer_apis
from semel.broker.listeners.tls import Certificates
from semel.broker.peers.handshake import HELLO_BYTES, NONCE_BYTES, HandshakeError, Place, ServerHandshake
from semel.broker.peers.secret import PROOF_BYTES, ClusterSecret
from semel.broker.services import Services
from semel.protocol.randomness import source

UNPROVEN_MAX: Final = 64
"""Connections that have not proven themselves yet. One more takes the place of the oldest, so that strangers who keep
connections open can't keep the other nodes out."""


class PeerListener(FrameListener):
    """Serves the other nodes on one address."""

    name = "peer"

    def __init__(
        self,
        node: Services,
        host: str,
        port: int,
        secret: ClusterSecret,
        *,
        fetches: ReplicaFetches | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        """`fetches`: what serves followers; by default they read what clients may read.

        certificates: where connections are encrypted
        """
        self._fetches = fetches or FetchHandler(node, node.config)
        apis = peer_apis(LocalMarkerWriter(node, MARKERS_WAIT_S), self._fetches)
        encryption = None if certificates is None else certificates.for_nodes
        super().__init__(node, host, port, node.config, apis, encryption=encryption)
        self._secret = secret
        self._unproven: dict[_Greeting, None] = {}
        self.refused_handshakes = 0
        """Connections that were closed before they had proven to be of a node of this cluster."""

    async def stop(self, grace_s: float = 10.0) -> None:
        self._drop_unproven()
        await super().stop(grace_s)
        self._drop_unproven()

    def disconnect(self) -> None:
        self._drop_unproven()
        super().disconnect()

    def _drop_unproven(self) -> None:
        for greeting in tuple(self._unproven):
            greeting.abort()

    def _protocol(self) -> asyncio.BaseProtocol:
        here = Place(self.node.metadata.image.cluster_id, self.node.config.node_id, self._secret)
        return _Greeting(self, ServerHandshake(here, source().randbytes(NONCE_BYTES)))

    def _connection_limits(self) -> ConnectionLimits:
        most = self.node.config.peer_max_connections
        return ConnectionLimits(
            most + 2 * UNPROVEN_MAX,
            most + 2 * UNPROVEN_MAX,
            connections_setting="peer.max.connections",
            handshakes_max=UNPROVEN_MAX,
        )

    def _finish(self) -> None:
        self._fetches.finish()

    # --- For connections ----------------------------------------------------------------------------------------------

    def greeted(self, greeting: _Greeting) -> bool:
        """Note a connection that has to prove itself. Returns whether it may stay."""
        if self._is_cut_off or self._emptied is not None:
            return False
        if len(self._unproven) >= UNPROVEN_MAX:
            next(iter(self._unproven)).refuse(f"{UNPROVEN_MAX} newer connections wait to prove themselves")
        self._unproven[greeting] = None
        return True

    def proven(self, greeting: _Greeting, transport: asyncio.Transport, node_id: int) -> None:
        """Serve a connection that has proven to be of a node."""
        del self._unproven[greeting]
        connection = KafkaConnection(self)
        connection.peer_node = node_id
        transport.set_protocol(ConnectionProtocol(connection))
        connection.connection_made(transport)

    def may_stay(self) -> bool:
        """Say whether there is room for another connection that has proven itself."""
        return len(self._connections) < self.node.config.peer_max_connections

    def ended(self, greeting: _Greeting, address: str) -> None:
        """A connection is gone that has not proven itself."""
        self._unproven.pop(greeting, None)
        self._acceptor.left(address)

    @property
    def handshake_timeout_s(self) -> float:
        return self.node.config.peer_handshake_timeout_ms / 1000


class _Greeting(asyncio.BufferedProtocol):
    """A connection until it has proven itself. Reads no byte more than the message that is next."""

    def __init__(self, listener: PeerListener, handshake: ServerHandshake) -> None:
        self._listener = listener
        self._handshake = handshake
        self._transport: asyncio.Transport | None = None
        self._message = bytearray(HELLO_BYTES)
        self._filled = 0
        self._next: Callable[[bytes], None] = self._greeted
        self._timer: asyncio.TimerHandle | None = None
        self._address = self._peer = ""
        self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are no subclass of it
        self._transport = transport
        name = transport.get_extra_info("peername")
        self._address = str(name[0]) if isinstance(name, tuple) else IN_PROCESS
        self._peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else IN_PROCESS
        if not self._listener.greeted(self):
            self.abort()
            return
        timeout_s = self._listener.handshake_timeout_s
        self._timer = self._listener.loop.call_later(timeout_s, self.refuse, f"no proof came within {timeout_s:g} s")

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._message)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._message) or self._is_over:
            return
        message, self._filled = bytes(self._message), 0
        try:
            self._next(message)
        except HandshakeError as error:
            self.refuse(error.message)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._listener.ended(self, self._address)

    def refuse(self, why: str) -> None:
        """Close with a line in this node's log. The other side hears nothing (S5)."""
        if not self._is_over:
            self._listener.refused_handshakes += 1
            self._listener.refusals.warning("closing connection of a peer: peer=%s reason=%s", self._peer, why)
        self.abort()

    def abort(self) -> None:
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()

    def _greeted(self, hello: bytes) -> None:
        challenge = self._handshake.greet(hello)
        self._message, self._next = bytearray(PROOF_BYTES), self._proven
        assert self._transport is not None
        self._transport.write(challenge)

    def _proven(self, proof: bytes) -> None:
        answer = self._handshake.prove(proof)
        if not self._listener.may_stay():
            self.refuse("more than peer.max.connections")
            return
        assert self._transport is not None
        assert self._timer is not None
        self._timer.cancel()
        self._is_over = True
        self._transport.write(answer)
        self._listener.proven(self, self._transport, self._handshake.node_id)
