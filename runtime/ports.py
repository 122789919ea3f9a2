"""Ports for nodes that are to be started again at the same address."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import socket
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from semel.protocol.errors import FatalError
from semel.protocol.randomness import source

FIXED_PORTS: Final = range(11_000, 32_768)
"""Below those that Linux gives to clients (`net.ipv4.ip_local_port_range`)."""
_ANY: Final = "127.0.0.1:0"

T = TypeVar("T")


class Reservations:
    """What this process keeps for itself of the ports that all processes of a user choose from.

    Each port is the byte with its number in a file that they share, and is locked there. The system takes the locks
    back from a process that ends, however it ends. Without them, two processes would choose the same port: between the
    choice and the start of a node lie seconds on a busy machine, and a node that is away does not hold its port either.

    The last `keep` ports are kept, so that many processes can go on for long.
    """

    def __init__(self, path: Path, keep: int = 2_000) -> None:
        """Raises `OSError` where the file can't be had, or is another user's, who could keep all ports."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if os.fstat(self._file).st_uid != os.getuid():
            os.close(self._file)
            raise PermissionError(errno.EPERM, "it is another user's", str(path))
        self._process = os.getpid()
        self._kept: deque[int] = deque()
        self._keep = keep

    def reserve(self, port: int) -> bool:
        """Keep a port, unless another process has it."""
        if self._process != os.getpid():  # a fork does not have the locks of its parent
            self._process = os.getpid()
            self._kept.clear()
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        self._kept.append(port)
        if len(self._kept) > self._keep:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._kept.popleft())
        return True


def free_ports(count: int) -> list[int]:
    """Return ports that are free now on the loopback address. Raises `FatalError` where there are not as many.

    None is one that the system gives to a client: while a node is away, a client that tries its address again may be
    given that very port for its own end, is then connected to itself, and the node cannot start any more. Nor is any
    one that this process has had before, until it has had them all, or that another one of the user has chosen lately:
    it may be kept for a node that is away.
    """
    reservations = _reservations()
    with ExitStack() as stack:
        ports: list[int] = []
        for port in itertools.islice(_in_turn(), len(FIXED_PORTS)):
            if reservations and not reservations.reserve(port):
                continue
            with suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise FatalError(f"fewer than {count} of the ports {FIXED_PORTS.start} to {FIXED_PORTS[-1]} are free on 127.0.0.1")


@cache
def _reservations() -> Reservations | None:
    """Return this process's; none where the file can't be had: then two processes meet once in a while."""
    try:
        return Reservations(Path(tempfile.gettempdir()) / f"semel-ports-{os.getuid()}")
    except OSError:
        return None


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
