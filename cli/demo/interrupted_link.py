"""A link on this machine that can be cut: what is sent then neither arrives nor fails, until it is healed."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final

_CHUNK_BYTES: Final = 1 << 16


class Link(ABC):
    """Passes on what comes to a socket that listens to another one, in both directions."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._open = threading.Event()
        self._open.set()
        self._sockets: set[socket.socket] = set()
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @abstractmethod
    def _connect_far(self) -> socket.socket:
        """Return a connection to where everything goes. Raises `OSError`."""

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
            far = self._connect_far()
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
                one.shutdown(socket.SHUT_RDWR)  # a close alone waits for the thread that reads there
            with suppress(OSError):
                one.close()


class InterruptedLink(Link):
    """Passes on what comes to `port` to another port."""

    def __init__(self, target_port: int) -> None:
        super().__init__(socket.create_server(("127.0.0.1", 0)))
        self.port: int = self._server.getsockname()[1]
        self._target_port = target_port

    def _connect_far(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._target_port))


class InterruptedSocket(Link):
    """Passes on what comes to a Unix socket, which it makes at `path`, to another one."""

    def __init__(self, path: str, target_path: str) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.bind(path)
        server.listen()
        super().__init__(server)
        self._target_path = target_path

    def _connect_far(self) -> socket.socket:
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(self._target_path)
        except OSError:
            far.close()
            raise
        return far
