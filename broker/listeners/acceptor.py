"""Accepts connections on one address: as many as there may be, in all and from one address, and never in a storm.

asyncio's own server logs a traceback for each of hundreds of attempts a second where descriptors have run out, and
makes a task and a transport before anybody can say that a connection is one too many.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from semel.broker.listeners.addresses import bound, resolved
from semel.runtime.encrypted import EncryptedConnection
from semel.runtime.limited_log import LimitedLog

_ACCEPTED_A_TURN: Final = 64
"""The most connections that are accepted before others have their turn (S3)."""

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_S: Final = 1.0
"""So long none is accepted after the system had no descriptor for one: it waits in the listen queue."""

BACKLOG: Final = 512
IN_PROCESS: Final = "in-process"
"""The address of connections that came by no port: from the node's own process."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """connections_max: at once. per_address_max: of them from one address; `overrides` for some addresses."""

    connections_max: int
    per_address_max: int
    overrides: Mapping[str, int] = field(default_factory=dict)
    connections_setting: str = "max.connections"
    handshakes_max: int | None = None
    """How many connections may be in their TLS handshake: one more takes the place of the oldest. None: any number."""


class OpenConnections:
    """How many connections are open, in all and from each address: of all listeners that share their limits."""

    def __init__(self) -> None:
        self.open = 0
        self.from_address: dict[str, int] = {}
        self.throttled: dict[socket.socket, Callable[[socket.socket], None]] = {}
        """Those that are served nothing, as a quota says, the oldest first, with what ends each."""

    def came(self, address: str) -> None:
        """Count one of this address."""
        self.open += 1
        self.from_address[address] = self.from_address.get(address, 0) + 1

    def left(self, address: str) -> None:
        """A connection of this address is gone."""
        self.open -= 1
        count = self.from_address[address] - 1
        if count:
            self.from_address[address] = count
        else:
            del self.from_address[address]


class _Accepted(socket.socket):
    """Knows whom it was accepted from, also where it has been reset since: the system has forgotten that then."""

    def __init__(self, accepted: socket.socket, name: Any) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self._name = name

    def getpeername(self) -> Any:
        return self._name


class Acceptor:
    """Listens on one address and makes a protocol for each connection that may stay.

    The caller that made the protocols calls `left` once for each whose `connection_lost` was called.
    """

    def __init__(
        self,
        name: str,
        protocol: Callable[[], asyncio.BaseProtocol],
        limits: ConnectionLimits,
        log: LimitedLog,
        encryption: Callable[[], ssl.SSLContext] | None = None,
        wait_s: Callable[[str], float] = lambda _address: 0.0,
        connections: OpenConnections | None = None,
    ) -> None:
        """`encryption`: gives what a connection is encrypted with that is accepted now. None: nothing encrypts them.

        wait_s: asked for each connection of an address; more than 0: it is one too many, and closed after so many
                seconds, in which its client does not try again (KIP-612)
        connections: where several listeners share their limits, what counts the connections of all of them
        """
        self._wait_s = wait_s
        self._throttled: dict[socket.socket, tuple[str, asyncio.TimerHandle]] = {}
        self.throttled = 0
        """Connections that came faster than the quota of their address allows."""
        self._name = name
        self._encryption = encryption
        self._protocol = protocol
        self.limits = limits
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._resume: asyncio.TimerHandle | None = None
        self._accepting: set[asyncio.Task[None]] = set()
        self._handshaking: dict[socket.socket, None] = {}
        self.connections = connections or OpenConnections()
        self.refused = 0
        """Connections that were closed because there were too many, in all or from their address."""
        self.refused_of_address = 0
        """Those of them that were too many from their address."""
        self.failed_handshakes = 0
        """Connections that ended before they were encrypted, or showed no certificate that is accepted."""
        self.exhausted = 0
        """How often the system had no descriptor, or no memory, for another connection."""

    @property
    def is_listening(self) -> bool:
        return bool(self._sockets)

    @property
    def open(self) -> int:
        """Connections that hold a place now, also those that are not encrypted yet, or throttled; of all listeners that
        share their limits.
        """
        return self.connections.open

    @property
    def most_of_an_address(self) -> int:
        """How many of them are from the address that has most."""
        counts = self.connections.from_address.items()
        return max((count for address, count in counts if address != IN_PROCESS), default=0)

    async def listen(self, host: str, port: int) -> int:
        """Begin to accept, and return the port. Raises `OSError` where the address can't be had."""
        sockets: list[socket.socket] = []
        try:
            for place in await resolved(host, port):
                sockets.append(bound(*place))
                sockets[-1].listen(BACKLOG)
                sockets[-1].setblocking(False)
        except BaseException:
            for each in sockets:
                each.close()
            raise
        self._sockets = sockets
        self._watch()
        return int(sockets[0].getsockname()[1])

    async def adopt(self, accepted: socket.socket) -> None:
        """Begin a connection that nobody had to accept: one end of a pair of sockets in this process."""
        accepted.setblocking(False)
        self.connections.came(IN_PROCESS)
        await self._begin(accepted, IN_PROCESS)

    async def close(self) -> None:
        """Accept no more. Those that were accepted have their `connection_made` called before this returns.

        Those that are not encrypted yet are closed: a client may take seconds for its handshake.
        """
        sockets, self._sockets = self._sockets, []
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        for each in sockets:
            self._loop.remove_reader(each)
            each.close()
        for throttled in tuple(self._throttled):
            self._end_throttled(throttled)
        if self._accepting:
            for handshaking in self._handshaking:
                _hang_up(handshaking)
            await asyncio.wait(self._accepting)

    def left(self, address: str) -> None:
        """A connection of this address is gone."""
        self.connections.left(address)

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._resume = None
        for each in self._sockets:
            self._loop.add_reader(each, self._accept, each)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            try:
                accepted, name = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(error)
                    return
                continue  # of one connection, which was gone before it was accepted
            address = str(name[0])
            if self._admits(address, f"{name[0]}:{name[1]}"):
                wait_s = self._wait_s(address)
                if wait_s > 0:
                    self._throttle(accepted, address, wait_s)
                    continue
                connection = _Accepted(accepted, name)
                if self._encryption is None:
                    task = self._loop.create_task(self._begin(connection, address))
                else:
                    self._shake_hands(connection)
                    task = self._loop.create_task(self._encrypt(connection, address, self._encryption))
                self._accepting.add(task)
                task.add_done_callback(self._accepting.discard)
            else:
                accepted.close()

    def _throttle(self, accepted: socket.socket, address: str, wait_s: float) -> None:
        self.throttled += 1
        self._throttled[accepted] = address, self._loop.call_later(wait_s, self._end_throttled, accepted)
        self.connections.throttled[accepted] = self._end_throttled

    def _end_throttled(self, accepted: socket.socket) -> None:
        address, timer = self._throttled.pop(accepted)
        del self.connections.throttled[accepted]
        timer.cancel()
        accepted.close()
        self.left(address)

    def _admits(self, address: str, peer: str) -> bool:
        limits = self.limits
        throttled = self.connections.throttled
        if self.connections.open >= limits.connections_max and throttled:
            # It holds a descriptor, so it counts; but it is served nothing, and keeps no place from those that are, by
            # whichever listener they come.
            oldest, end = next(iter(throttled.items()))
            end(oldest)
        of_address = self.connections.from_address.get(address, 0)
        is_own = address in limits.overrides
        most = limits.overrides.get(address, limits.per_address_max)
        if self.connections.open >= limits.connections_max:
            self._log.warning(
                "closing connection: peer=%s reason=more than %s=%d",
                peer, limits.connections_setting, limits.connections_max,
            )  # fmt: skip
        elif of_address >= most:
            self.refused_of_address += 1
            self._log.warning(
                "closing connection: peer=%s reason=more than %s=%d of this address",
                peer, "kafka.max.connections.overrides" if is_own else "kafka.max.connections.per.ip", most,
            )  # fmt: skip
        else:
            self.connections.came(address)
            return True
        self.refused += 1
        return False

    async def _begin(self, accepted: socket.socket, address: str) -> None:
        begun = False

        def protocol() -> asyncio.BaseProtocol:
            nonlocal begun
            made = self._protocol()
            begun = True
            return made

        try:
            await self._loop.connect_accepted_socket(protocol, accepted)
        except Exception as error:
            # With a protocol there is a transport, which tells it that the connection is lost.
            if not begun:
                accepted.close()
                self.left(address)
            self._log.exception(error, "a connection to the %s listener could not be served", self._name)

    def _shake_hands(self, accepted: socket.socket) -> None:
        """Note a connection that is to be encrypted, in the place of the oldest where there are too many."""
        self._handshaking[accepted] = None
        most = self.limits.handshakes_max
        if most is not None and len(self._handshaking) > most:
            oldest = next(iter(self._handshaking))
            del self._handshaking[oldest]
            _hang_up(oldest)

    async def _encrypt(self, accepted: socket.socket, address: str, encryption: Callable[[], ssl.SSLContext]) -> None:
        """Begin an encrypted connection. Its protocol does not hear of a handshake that fails."""
        try:
            _, connection = await self._loop.connect_accepted_socket(
                lambda: EncryptedConnection(self._protocol, encryption()), accepted
            )
            await connection.encrypted
        except Exception as error:
            accepted.close()
            self.left(address)
            self._tell_of_failure(accepted.getpeername(), error)
        finally:
            self._handshaking.pop(accepted, None)

    def _tell_of_failure(self, peer: tuple[str, int], error: Exception) -> None:
        self.failed_handshakes += 1
        if isinstance(error, (ConnectionResetError, ssl.SSLEOFError)):
            return  # it went away, as what only looks whether somebody listens: no line for each
        if not isinstance(error, OSError):
            self._log.exception(error, "a connection to the %s listener could not be encrypted", self._name)
            return
        reason = getattr(error, "reason", None) or error.strerror or str(error) or type(error).__name__
        self._log.warning(
            "closing connection: peer=%s:%d reason=the TLS handshake with the %s listener failed: %s",
            peer[0], peer[1], self._name, str(reason).replace("_", " ").lower(),
        )  # fmt: skip

    def _pause(self, error: OSError) -> None:
        """Let connections wait for a moment: asking again at once would be all that the node does."""
        self.exhausted += 1
        for each in self._sockets:
            self._loop.remove_reader(each)
        self._resume = self._loop.call_later(_PAUSE_S, self._watch)
        self._log.warning(
            "the %s listener accepts no connections for %.0f s: %s (connections=%d). Raise the limit of open files "
            "(ulimit -n, LimitNOFILE), or lower %s",
            self._name, _PAUSE_S, os.strerror(error.errno or 0), self.connections.open, self.limits.connections_setting,
        )  # fmt: skip


def _hang_up(connection: socket.socket) -> None:
    """Have the handshake on a connection fail, as if the peer had closed it."""
    with suppress(OSError):  # it is gone already
        connection.shutdown(socket.SHUT_RDWR)
