"""The other nodes of the cluster, as one node asks them.

Each has a connection for each role, opened when it is first wanted and again, with backoff, after it was lost. Where a
node is, the metadata says: one that registered again is connected to again, and what was asked of its former self fails
at once. So does what was asked of a node that is taken for dead. A request that fails may have had its effect; who
asked knows whether to ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from semel.broker.metadata.changes import BrokerFenced, BrokerRegistered, Change
from semel.broker.metadata.image import BrokerImage, MetadataImage
from semel.broker.peers.config import PeerConfig
from semel.broker.peers.dialing import dial_peer
from semel.broker.peers.encryption import PeerEncryption
from semel.broker.peers.handshake import Place, Role
from semel.broker.peers.requests import PeerRequest
from semel.broker.peers.secret import ClusterSecret
from semel.broker.peers.silence import Sign
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.kafka.wire import WireFormatError
from semel.runtime.backoff import Backoff
from semel.runtime.clock import Clock
from semel.runtime.kafka_client.channel import Channel
from semel.runtime.kafka_client.connection import Connection, ConnectionLostError, connect

BACKOFF: Final = Backoff(50, 1_000)
IN_FLIGHT_MAX: Final = 256
"""Requests on one connection that are not answered. More wait for room."""

Response = TypeVar("Response")


class _Address(NamedTuple):
    """Where a node is, since it last registered."""

    epoch: int
    incarnation: str
    host: str
    port: int


class PeerUnavailableError(RetriableError):
    """A node can't be asked now. Whether it has done what it was asked is not known."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.NETWORK_EXCEPTION) -> None:
        super().__init__(message, code)


class Peers:
    """Asks other nodes. Nothing is opened before the first question, so a node that is alone opens nothing."""

    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        secret: ClusterSecret | None,
        config: PeerConfig,
        clock: Clock,
        encryption: PeerEncryption | None = None,
    ) -> None:
        """`image`: gives the newest metadata, by which nodes are found. secret: None where this node has none."""
        self._encryption = encryption or PeerEncryption("")
        self._node_id = node_id
        self._image = image
        self._secret = secret
        self._config = config
        self._clock = clock
        self._peers: dict[int, _Peer] = {}
        self._is_closed = False
        self._is_cut_off = False

    async def ask(self, node_id: int, request: PeerRequest[Response], *, timeout_ms: float | None = None) -> Response:
        """Return a node's answer. One attempt, within `timeout_ms` (peer.request.timeout.ms by default).

        Raises `RetriableError`: `PeerUnavailableError` or `ConnectionLostError`. Then it may have been done or not.
        Raises `FatalError` where the node does not know such a request.
        """
        limit_ms = self._config.peer_request_timeout_ms + request.waits_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await self._peer(node_id).ask(request, limit_ms)
        except TimeoutError:
            raise PeerUnavailableError(
                f"node {node_id} did not answer {request.key.name} within {limit_ms:.0f} ms",
                ErrorCode.REQUEST_TIMED_OUT,
            ) from None

    async def probe(self, node_id: int, timeout_ms: float) -> Sign:
        """Find out whether a node runs, by a connection of its own that asks nothing. Never fails."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._peer(node_id).greet()
        except ConnectionRefusedError:
            return Sign.REFUSED
        except (SemelError, OSError):
            return Sign.NONE
        return Sign.ANSWERED

    def hang_up(self, node_id: int, role: Role) -> None:
        """Close a node's connection of a role; what is in flight on it fails as lost. The next question opens it."""
        peer = self._peers.get(node_id)
        if peer is not None:
            peer.hang_up(role)

    def cut_off(self) -> None:
        """Reach nobody, as if the network were gone, until `let_out`."""
        self._is_cut_off = True
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.close("the network is gone")

    def let_out(self) -> None:
        """Reach the other nodes again."""
        self._is_cut_off = False

    def follow(self, change: Change, image: MetadataImage) -> None:
        """Take a change of the metadata over: connections to a node's former self end, and to one taken for dead.

        A node that is frozen answers nothing. What it was asked, about a transaction for instance, another one can
        answer by now.
        """
        if isinstance(change, BrokerFenced):
            peer = self._peers.pop(change.node_id, None)
            if peer is not None:
                peer.close("the node is taken for dead")
        elif isinstance(change, BrokerRegistered):
            peer = self._peers.get(change.node_id)
            broker = image.brokers.get(change.node_id)
            if peer is not None and (broker is None or peer.address != _address_of(broker)):
                del self._peers[change.node_id]
                peer.close("the node has registered again")

    def close(self) -> None:
        """Ask nobody any more; what is in flight fails as lost."""
        self._is_closed = True
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.close("this node stops")

    def _peer(self, node_id: int) -> _Peer:
        if self._is_closed or self._is_cut_off:
            raise PeerUnavailableError("this node stops" if self._is_closed else "the network is gone")
        broker = self._image().brokers.get(node_id)
        if broker is None:
            raise PeerUnavailableError(f"there is no node {node_id} in the metadata", ErrorCode.BROKER_NOT_AVAILABLE)
        if self._secret is None:
            raise PeerUnavailableError(
                f"this node can't ask node {node_id}: set cluster.secret.file to the file that all nodes share, and "
                "peer.listen, on each of them",
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            )
        if broker.peer_port == 0:
            raise PeerUnavailableError(
                f"node {node_id} does not listen to other nodes: set peer.listen there", ErrorCode.BROKER_NOT_AVAILABLE
            )
        peer, address = self._peers.get(node_id), _address_of(broker)
        if peer is not None and peer.address == address:
            return peer
        if peer is not None:
            peer.close("the node has registered again")
        here = Place(self._image().cluster_id, self._node_id, self._secret)
        peer = self._peers[node_id] = _Peer(node_id, address, here, self._config, self._clock, self._encryption)
        return peer


class _Peer:
    """One node since it last registered."""

    def __init__(
        self,
        node_id: int,
        address: _Address,
        here: Place,
        config: PeerConfig,
        clock: Clock,
        encryption: PeerEncryption,
    ) -> None:
        self._encryption = encryption
        self.address = address
        self._node_id = node_id
        self._here = here
        self._config = config
        self._clock = clock
        self._channels: dict[Role, Channel] = {}
        self._closed_for = ""

    async def ask(self, request: PeerRequest[Response], timeout_ms: float) -> Response:
        connection = await self._connection(request.role)
        await connection.wait_room()
        version = connection.highest_version(request.key, request.version_min, request.version_max)
        answer = connection.request(request.key, version, (request.body(version),), timeout_ms=timeout_ms)
        body = await answer
        try:
            return request.read(body, version)
        except WireFormatError as error:
            connection.close(f"unreadable answer: {error.message}")
            raise ConnectionLostError(
                f"node {self._node_id} answered {request.key.name} with what can't be read: {error.message}"
            ) from error

    async def greet(self) -> None:
        """Open a connection, have the node prove itself, and close it. Raises `ConnectionLostError`, `OSError`."""
        _, _, host, port = self.address
        dial = dial_peer(host, port, self._here, self._node_id, Role.REQUESTS, self._encryption)
        connection = await dial(lambda: Connection(f"node {self._node_id}", "probe", in_flight_max=1))
        connection.close("it was only asked whether it runs")

    async def _connection(self, role: Role) -> Connection:
        channel = self._channels.get(role)
        if channel is None:
            channel = self._channel(role)
        try:
            connection = await channel.get()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed_for or (task is not None and task.cancelling()):
                raise
            # Not who asks was cancelled, but the attempt that it waited for.
            raise self._lost() from None
        if self._closed_for:
            connection.close(self._closed_for)
            raise self._lost()
        return connection

    def _lost(self) -> ConnectionLostError:
        return ConnectionLostError(f"connection to node {self._node_id}: {self._closed_for}")

    def hang_up(self, role: Role) -> None:
        channel = self._channels.get(role)
        if channel is not None and channel.connection is not None:
            channel.connection.close("this node asks for something else")

    def close(self, reason: str) -> None:
        self._closed_for = reason
        for channel in self._channels.values():
            channel.close(reason)

    def _channel(self, role: Role) -> Channel:
        async def open_one() -> Connection:
            _, _, host, port = self.address
            return await connect(
                f"node {self._node_id} at {host}:{port}",
                dial_peer(host, port, self._here, self._node_id, role, self._encryption),
                client_id=f"node-{self._here.node_id}",
                in_flight_max=IN_FLIGHT_MAX,
                timeout_ms=self._config.peer_request_timeout_ms,
            )

        channel = self._channels[role] = Channel(open_one, BACKOFF, self._clock.monotonic)
        return channel


def _address_of(broker: BrokerImage) -> _Address:
    return _Address(broker.epoch, broker.incarnation, broker.peer_host, broker.peer_port)
