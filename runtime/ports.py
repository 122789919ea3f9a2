"""Ports for nodes that are to be started again at the same address."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cache
from typing import Final, TypeVar

from semel.protocol.errors import FatalError
from semel.protocol.randomness import source

FIXED_PORTS: Final = range(11_000, 32_768)
"""Below those that Linux gives to clients (`net.ipv4.ip_local_port_range`)."""
_ANY: Final = "127.0.0.1:0"

T = TypeVar("T")


def free_ports(count: int) -> list[int]:
    """Return ports that are free now on the loopback address. Raises `FatalError` where there are not as many.

    None is one that the system gives to a client: while a node is away, a client that tries its address again may be
    given that very port for its own end, is then connected to itself, and the node cannot start any more. Nor is any
    one that this process has had before, until it has had them all: it may be kept for a node that is away.
    """
    with ExitStack() as stack:
        ports: list[int] = []
        for port in itertools.islice(_in_turn(), len(FIXED_PORTS)):
            with suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise FatalError(f"fewer than {count} of the ports {FIXED_PORTS.start} to {FIXED_PORTS[-1]} are free on 127.0.0.1")


@cache
def _in_turn() -> Iterator[int]:
    """Return where this process is in its way through the ports. Each process has an order of its own.

    Two that went through them in the same order would meet, and then take the same ports, one after the other.
    """
    order = list(FIXED_PORTS)
    source().shuffle(order)
    return itertools.cycle(order)


def lasting_address(address: T) -> T | str:
    """Return an address to listen on, with such a port where it leaves the port of 127.0.0.1 open."""
    return f"127.0.0.1:{free_ports(1)[0]}" if address == _ANY else address
