"""One HTTP connection of the gateway: uvicorn's, with bounds for how many there are and how slowly a request may come."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from semel.web.limits import Limits


def connection_class(limits: Limits) -> type[H11Protocol]:
    """Return the class of connections with these limits, as uvicorn makes them."""

    class LimitedConnection(BoundedConnection):
        def __init__(
            self,
            config: Config,
            server_state: ServerState,
            app_state: dict[str, Any],
            _loop: asyncio.AbstractEventLoop | None = None,
        ) -> None:
            super().__init__(config, server_state, app_state, _loop)
            self.limits = limits

    return LimitedConnection


class BoundedConnection(H11Protocol):
    """Closes itself where it is one too many, or where the headers of a request do not arrive in time.

    uvicorn bounds the size of headers and how long a connection may be silent; a byte now and then would keep it open.
    """

    limits: Limits
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.limits.connections_max:
            transport.abort()
            self.transport = transport
            return
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._deadline is None:  # a next request has begun; until then uvicorn counts how long nothing comes
            self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        self._deadline = self.loop.call_later(self.limits.receive_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self.transport.abort()
