"""Asks an HTTP server once, in a bounded time and for a bounded answer. It follows no redirection, and blocks."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_BLOCK_BYTES: Final = 16 << 10
_LOOK_S: Final = 0.1


class Answer(NamedTuple):
    """What a server said. `body` is whole."""

    status: int
    body: bytes


def ask(
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str],
    body: bytes | None = None,
    timeout_s: float,
    bytes_max: int,
    ca_location: str = "",
) -> Answer:
    """Send one request to a URL of http or https and return the answer.

    ca_location: a PEM file with the authorities of https; empty: the system's
    Raises `OSError`, `ValueError` for an answer of more than `bytes_max`, and `HTTPException`.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    ends = time.monotonic() + timeout_s
    connection: http.client.HTTPConnection

    done = threading.Event()

    def give_up() -> None:
        # Each wait is bounded, but there may be any number of them: in a header that drips in, for one. Who is still
        # connecting then, to the second of a name's addresses for one, has no socket yet: it is looked at again.
        wait_s = timeout_s
        while not done.wait(wait_s):
            wait_s = _LOOK_S
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    too_late = threading.Thread(target=give_up, name="semel-http", daemon=True)
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=ca_location or None)
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    too_late.start()
    try:
        path = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        connection.request(method, path, body=body, headers=dict(headers))
        data = b""
        with connection.getresponse() as answer:  # it may have the socket for itself by now
            while block := answer.read1(_BLOCK_BYTES):
                data += block
                if len(data) > bytes_max:
                    raise ValueError(f"it has more than {bytes_max} bytes")
        if time.monotonic() > ends:
            raise TimeoutError(f"it takes longer than {timeout_s:g} s")
        return Answer(answer.status, data)
    finally:
        done.set()
        connection.close()
