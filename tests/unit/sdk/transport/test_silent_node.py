"""A machine that lost power, or is behind a cut, sends no end of its connections: probes find out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from semel.protocol.errors import RetriableError
from semel.protocol.v1 import metadata_pb2
from semel.sdk.transport import control
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.options import ClientOptions
from semel.testing import Broker

HOUR_MS = 3_600_000


class SilentProxy:
    """Passes bytes on until the test silences it. The connections stay."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.is_silent = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                node = socket.create_connection(self._target)
                self._sockets += [client, node]
                for pair in ((client, node), (node, client)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if not self.is_silent:
                    target.sendall(data)

    def close(self) -> None:
        for each in (self._server, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def proxy() -> Iterator[SilentProxy]:
    with Broker() as node:
        proxy = SilentProxy(node.bootstrap)
        yield proxy
        proxy.close()


def test_a_call_to_a_node_that_fell_silent_fails_long_before_its_time_is_over(
    proxy: SilentProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join of a group waited for all of max_poll_interval_ms."""
    quick = {"grpc.keepalive_time_ms": 1_000, "grpc.keepalive_timeout_ms": 500, "grpc.http2.ping_timeout_ms": 500}
    assert quick.keys() <= dict(control._CHANNEL_OPTIONS).keys()
    options = tuple((name, quick.get(name, value)) for name, value in control._CHANNEL_OPTIONS)
    monkeypatch.setattr(control, "_CHANNEL_OPTIONS", options)
    patient = ClientOptions.checked(proxy.address, request_timeout_ms=HOUR_MS, api_timeout_ms=HOUR_MS)
    client = ClientCore("Client", patient)

    async def ask() -> None:
        await client.control.call(control.GET_METADATA, metadata_pb2.GetMetadataRequest(), retry=False)

    try:
        client.run(ask())
        proxy.is_silent = True
        with pytest.raises(RetriableError):
            client.run(ask())
    finally:
        client.close()
