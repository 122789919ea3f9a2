"""A client's data connections: one for each node, by its address, or without a port where the node is in this process.

All methods run on the IO thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.runtime.clock import Clock
from semel.runtime.kafka_client.channel import Channel
from semel.runtime.kafka_client.connection import Connection, ConnectionLostError, Dial, connect, dial_tcp
from semel.sdk.transport.in_process import NodeGoneError, NodeLink
from semel.sdk.transport.login import AuthenticationFailedError
from semel.sdk.transport.options import ClientOptions
from semel.sdk.transport.outage import GAP_S, WARN_EVERY_S
from semel.sdk.transport.security import Access

_log = logging.getLogger("semel.client")

_RENEWED_AT: Final = 0.85
"""The part of the time for which a node takes a token after which the next one is shown, as in Kafka."""
_RENEWAL_PAUSE_S: Final = 1.1
"""A node closes a connection whose client proves who it is twice within a second, as Kafka does."""


def dial_link(link: NodeLink) -> Dial:
    """Return what opens a connection to a node in this process."""

    async def dial(made: Callable[[], Connection]) -> Connection:
        try:
            accepted = link.connect()
        except NodeGoneError as error:
            raise ConnectionLostError(error.message) from None
        try:
            _, connection = await asyncio.get_running_loop().create_connection(made, sock=accepted)
        except BaseException:
            accepted.close()
            raise
        return connection

    return dial


class Connections:
    """One connection for each node, opened when wanted, and again with backoff and jitter after it failed."""

    def __init__(
        self,
        options: ClientOptions,
        clock: Clock,
        resolve: Callable[[int], tuple[str, int]],
        link: NodeLink | None = None,
        on_silence: Callable[[int, Connection], None] | None = None,
        access: Access | None = None,
    ) -> None:
        """`resolve` gives the data address of a node id. Raises `RetriableError` for a node it does not know.

        link:       the node, where it is in this process
        on_silence: is called with a node and the connection to it where answers are late, see `Connection.on_silence`
        """
        self._link = link
        self._access = access or Access()
        self._options = options
        self._now = clock.monotonic
        self._resolve = resolve
        self._on_silence = on_silence
        self._channels: dict[int, Channel] = {}
        self._renewals: set[asyncio.Task[None]] = set()
        self._failing: dict[int, tuple[float, float, float]] = {}
        """Since when a node takes no connection, when it was tried last, and when to warn of it."""
        self._refusing: dict[int, tuple[float, float]] = {}
        """Since when a node does not take the user, and when it was asked last."""

    def opened(self, node_id: int) -> Connection | None:
        """Return the open connection to a node, if there is one."""
        channel = self._channels.get(node_id)
        if channel is None:
            return None
        connection = channel.connection
        return connection if connection is not None and connection.is_open else None

    async def get(self, node_id: int) -> Connection:
        """Return an open connection to a node. One attempt, after the pause that earlier failures ask for.

        Raises `ConnectionLostError`, and `FatalError` where the node has not taken the user for so long that no try
        will help.
        """
        channel = self._channels.get(node_id)
        if channel is None:
            channel = Channel(lambda: self._connect(node_id), self._options.backoff, self._now)
            self._channels[node_id] = channel
        return await channel.get()

    def failures(self, node_id: int) -> int:
        """Return how many attempts at a node have failed since the last that did not."""
        channel = self._channels.get(node_id)
        return 0 if channel is None else channel.failures

    def close(self) -> None:
        """Close all connections; what is in flight fails as lost."""
        for channel in self._channels.values():
            channel.close()
        for renewal in self._renewals:
            renewal.cancel()

    def _tell_of(self, node_id: int, error: ConnectionLostError) -> None:
        """Warn where a node has taken no data connection for a while: records wait, and calls may be answered."""
        now = self._now()
        since, failed_at, warn_at = self._failing.get(node_id, (now, now, now + WARN_EVERY_S))
        if now - failed_at > GAP_S:
            since, warn_at = now, now + WARN_EVERY_S
        if now >= warn_at:
            warn_at = now + WARN_EVERY_S
            encrypts = self._access.encryption is not None
            hint = "; if it refuses this client's certificate, its log says why" if encrypts else ""
            _log.warning(
                "node %d takes no data connection, still trying (%.0f s): %s%s",
                node_id, now - since, error.message, hint,
            )  # fmt: skip
        self._failing[node_id] = since, now, warn_at

    def _is_believed(self, node_id: int) -> bool:
        """Return whether a node that does not take the user has said so for long enough. It may hear of him later."""
        now = self._now()
        since, asked_at = self._refusing.get(node_id, (now, now))
        if now - asked_at > GAP_S:
            since = now
        self._refusing[node_id] = since, now
        return now - since >= self._access.patience_s

    async def _connect(self, node_id: int) -> Connection:
        host, port = self._resolve(node_id)
        link = None if self._link is None else self._link.to(f"{host}:{port}")
        encryption = self._access.context()
        try:
            if link is None:
                await self._access.ready(self._options.request_timeout_ms / 1000)
            connection = await connect(
                f"{host}:{port}" if link is None else link.name,
                dial_tcp(host, port, encryption) if link is None else dial_link(link),
                client_id=self._options.client_id,
                in_flight_max=self._options.connection_in_flight_max,
                timeout_ms=min(self._options.request_timeout_ms, 10_000),
                prove=None if link is not None else self._access.prove,
            )
        except AuthenticationFailedError as error:
            self._tell_of(node_id, error)
            if self._is_believed(node_id):
                message = self._access.explained(error.message)
                raise FatalError(message, ErrorCode.SASL_AUTHENTICATION_FAILED) from None
            raise
        except ConnectionLostError as error:
            self._refusing.pop(node_id, None)
            self._tell_of(node_id, error)
            raise
        self._failing.pop(node_id, None)
        self._refusing.pop(node_id, None)
        if self._on_silence is not None:
            connection.on_silence = partial(self._on_silence, node_id, connection)
        if connection.proof_lasts_s > 0:
            renewal = asyncio.get_running_loop().create_task(self._renew(connection), name=f"token of node {node_id}")
            self._renewals.add(renewal)
            renewal.add_done_callback(self._renewals.discard)
        return connection

    async def _renew(self, connection: Connection) -> None:
        """Show another token before the one ends that a connection was made with: the node would close it (KIP-368)."""
        while (lasts_s := connection.proof_lasts_s) > 0:
            await asyncio.sleep(max(lasts_s * _RENEWED_AT, _RENEWAL_PAUSE_S))
            if not connection.is_open:
                return
            try:
                await self._access.prove(connection)
            except SemelError as error:
                _log.warning("the client could not prove again who it is, and a connection ends: %s", error.message)
                return
