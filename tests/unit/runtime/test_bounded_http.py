"""A request over HTTP ends in time, whatever the server does (S2)."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from semel.runtime.bounded_http import ask

DRIPS = 600
TIMEOUT_S = 0.3


def test_S2_a_server_that_drips_is_given_up_also_where_connecting_took_all_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a name has two addresses, and the first does not answer."""
    connect = socket.create_connection
    sent: list[int] = []

    def slowly(*arguments: Any, **more: Any) -> socket.socket:
        time.sleep(2 * TIMEOUT_S)
        return connect(*arguments, **more)

    def drip() -> None:
        peer, _ = server.accept()
        with peer:
            try:
                peer.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                for number in range(DRIPS):
                    sent.append(number)
                    peer.sendall(b"x")
                    time.sleep(0.05)
            except OSError:
                pass  # the client has hung up

    with socket.create_server(("127.0.0.1", 0)) as server:
        dripping = threading.Thread(target=drip)
        dripping.start()
        monkeypatch.setattr(socket, "create_connection", slowly)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with pytest.raises(Exception):  # noqa: B017 (a lost connection, or a broken answer)
            ask(url, headers={}, timeout_s=TIMEOUT_S, bytes_max=1 << 20)
        dripping.join()
    assert len(sent) < DRIPS, "it was waited for to the end"
