"""Sockets for an address that a node listens on, and whether it can be had, asked before anything is made or opened."""

from __future__ import annotations

import asyncio
import socket


async def resolved(host: str, port: int) -> list[tuple[int, int, int, tuple[object, ...]]]:
    """Return family, kind, protocol and address of each socket that `host` stands for. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE, proto=socket.IPPROTO_TCP
    )
    return [(family, kind, protocol, address) for family, kind, protocol, _, address in dict.fromkeys(found)]


def bound(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    """Return a socket that has the address and does not listen yet. Raises `OSError` where it can't be had."""
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made


async def check_address(host: str, port: int, *, needs_all: bool = True) -> None:
    """Raise `OSError` where the address can't be had now. Nothing is kept, and no client notices.

    needs_all: of the addresses that `host` stands for, all; else one is enough, as for gRPC
    """
    errors: list[OSError] = []
    places = await resolved(host, port)
    for place in places:
        try:
            bound(*place).close()
        except OSError as error:
            errors.append(error)
    if errors and (needs_all or len(errors) == len(places)):
        raise errors[0]
