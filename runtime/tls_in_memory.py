"""A TLS handshake between two sides of this process: what one of them shows, and whether the other one takes it."""

from __future__ import annotations

import ssl
from typing import Final

_ROUNDS_MAX: Final = 8
"""More than any handshake needs."""


def shown_to(client_side: ssl.SSLContext, server_side: ssl.SSLContext, host: str | None) -> bytes:
    """Return the certificate that the server's side shows, DER. Raises `ssl.SSLError` where the handshake fails.

    host: whose name the client's side checks, where it checks one
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_ROUNDS_MAX):
        waits = 0
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                waits += 1
        if not waits:
            break
    return client.getpeercert(binary_form=True) or b""
