"""What listens at one address of a name is told, where gRPC speaks of another address that nothing listens on."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

import semel
from semel.sdk.transport import control
from semel.sdk.transport.name_addresses import accepting_address
from semel.sdk.transport.unreachable import Trouble, UnreachableError, trouble_at
from semel.testing import Broker


def hangs_up(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def greets(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9\r\n")
    while connection.recv(1_000):
        pass


def is_silent(connection: socket.socket) -> None:
    while connection.recv(1_000):
        pass


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on 127.0.0.1 alone: its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def loop() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=work, args=(connection,), daemon=True).start()

    def work(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            serve(connection)

    threading.Thread(target=loop, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def told_of(target: str) -> UnreachableError:
    """What a client makes of it that gRPC calls `target` refused."""
    with semel.Admin(target) as admin:
        client = admin._core.client
        return client.run(client.control._explained(target, trouble_at(target, Trouble.REFUSED)))


@pytest.mark.parametrize(
    ("serve", "trouble"),
    [(hangs_up, Trouble.HANGS_UP), (greets, Trouble.NOT_GRPC), (is_silent, Trouble.SILENT)],
)
def test_a_server_at_one_address_of_a_name_was_called_refused(
    serve: Callable[[socket.socket], None], trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_EXPLAIN_S", 2.0 if serve is is_silent else 60.0)
    with server(serve) as port:
        found = told_of(f"localhost:{port}")
        assert found.trouble is trouble
        assert f"localhost:{port}" in found.message
        assert "127.0.0.1" not in found.message


def test_refused_stays_refused_where_nothing_takes_a_connection() -> None:
    with server(hangs_up) as port:
        pass
    assert told_of(f"localhost:{port}").trouble is Trouble.REFUSED


def test_an_address_by_its_number_is_believed() -> None:
    with server(hangs_up) as port:
        assert told_of(f"127.0.0.1:{port}").trouble is Trouble.REFUSED
        assert asyncio.run(accepting_address(f"[::1]:{port}")) is None
        assert asyncio.run(accepting_address(f"localhost:{port}")) == f"127.0.0.1:{port}"
        assert asyncio.run(accepting_address(f"no-such-host.invalid:{port}")) is None


def test_a_node_that_answers_meanwhile_is_tried_again() -> None:
    with Broker() as node:
        assert told_of(f"localhost:{node.bootstrap.rpartition(':')[2]}").trouble is Trouble.REFUSED
