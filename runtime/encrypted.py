"""A connection that encrypts, of asyncio's own protocol for TLS: with buffers of a size that thousands can have.

asyncio gives each connection 256 KiB to read into before it has said a word, and lets as much wait to be read.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from asyncio import sslproto
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""How long a client may take until its connection is encrypted. gRPC has `grpc.handshake.timeout.ms` for it."""
_SHUTDOWN_TIMEOUT_S: Final = 1.0
"""How long a closed connection waits for the peer to say that it closes, too."""
_BUFFER_BYTES: Final = 16 << 10
"""What is read at a time: as much as one record of TLS holds."""


class EncryptedConnection(sslproto.SSLProtocol):
    """The server's side. `encrypted` is done once the handshake is; it raises `OSError` where that fails."""

    max_size = _BUFFER_BYTES

    def __init__(
        self,
        made: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext,
        came: Callable[[EncryptedConnection], None] | None = None,
    ) -> None:
        """`came` is called once it is known whose connection this is, as its handshake begins."""
        loop = asyncio.get_running_loop()
        self.encrypted: asyncio.Future[None] = loop.create_future()
        self._came = came
        self._asks = context.verify_mode is not ssl.CERT_NONE
        super().__init__(
            loop,
            made(),
            context,
            self.encrypted,
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,  # type: ignore[arg-type]  # a float as well
            ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
        )
        self._set_read_buffer_limits(_BUFFER_BYTES)  # type: ignore[attr-defined]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._came is not None:
            self._came(self)

    @property
    def address(self) -> str:
        """Of the peer; empty where it is gone already."""
        me: Any = self
        name = me._transport.get_extra_info("peername")
        return str(name[0]) if name else ""

    def hang_up(self) -> None:
        """Have the handshake fail, as if the peer had closed the connection."""
        me: Any = self
        with suppress(OSError):  # it is gone already
            me._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def _start_shutdown(self) -> None:
        """Close also where the peer has closed while nothing was read here: asyncio then waits for ever."""
        me: Any = self
        if me._state is sslproto.SSLProtocolState.FLUSHING and me._shutdown_timeout_handle is None:
            loop = asyncio.get_running_loop()
            me._shutdown_timeout_handle = loop.call_later(_SHUTDOWN_TIMEOUT_S, me._check_shutdown_timeout)
            me._do_flush()
            return
        super()._start_shutdown()

    def _on_handshake_complete(self, handshake_exc: BaseException | None) -> None:
        if handshake_exc is None and self._asks and _has_expired(self._sslobj):  # type: ignore[attr-defined]
            # It was valid in the session that is resumed now.
            handshake_exc = ssl.SSLCertVerificationError("the client's certificate has expired")
        super()._on_handshake_complete(handshake_exc)


def _has_expired(connection: Any) -> bool:
    shown = connection.getpeercert()
    if shown is None:  # it showed none, where it need not
        return False
    ends = shown.get("notAfter")
    return ends is None or ssl.cert_time_to_seconds(ends) < time.time()
