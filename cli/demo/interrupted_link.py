"""A TCP link on this machine that can be cut: what is sent then neither arrives nor fails, until it is healed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Final

_CHUNK_BYTES: Final = 1 << 16


class InterruptedLink:
    """Passes on what comes to `port` to another port, in both directions."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self._sockets: set[socket.socket] = set()
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        """Let everything through again. Connections from before are ended: both sides have given them up."""
        self._end_connections()
        self._open.set()

    def close(self) -> None:
        self._is_closed = True
        self._open.set()
        with suppress(OSError):
            self._server.close()
        self._end_connections()

    def _end_connections(self) -> None:
        for one in list(self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._open.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target_port))
        except OSError:
            near.close()
            return
        self._sockets |= {near, far}
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                self._open.wait()
                target.sendall(data)
        for one in (source, target):
            self._sockets.discard(one)
            with suppress(OSError):
                one.close()
