"""Which of the addresses behind a name takes connections: `localhost` is ::1 and 127.0.0.1, and a server has often one.

gRPC tells of the last address that it tried, so a server on the other one looks as if nothing listened there.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from typing import Final

CONNECT_TIMEOUT_S: Final = 1.0


async def accepting_address(target: str) -> str | None:
    """Return the first address behind the name in `target`, "host:port", that takes a connection; None where none does.

    None also where `target` has no name.
    """
    host, _, port = target.rpartition(":")
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        pass
    else:
        return None
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        return None
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as connection:
                connection.setblocking(False)
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await loop.sock_connect(connection, place)
        except ConnectionResetError:
            pass  # it was taken, and closed at once
        except (OSError, TimeoutError):
            continue
        return f"[{place[0]}]:{port}" if ":" in str(place[0]) else f"{place[0]}:{port}"
    return None
