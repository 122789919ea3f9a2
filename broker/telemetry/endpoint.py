"""The HTTP endpoint of `metrics.listen`: /metrics for Prometheus, /healthz and /readyz for containers.

Small on purpose: GET and HEAD, one request a connection, heads of up to 8 KiB, all within seconds. What takes long is
done in a thread. A connection that has not asked yet makes room for a new one, and /healthz and /readyz are answered
however many scrapes are under way: a container's check must not restart a node in which all is well.

/healthz says that the event loop turns and the disk works; /readyz that the node can be used.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Protocol, TypeVar

from semel.broker.config.sources import Address
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.broker.telemetry.prometheus import page
from semel.broker.telemetry.reading import Reading
from semel.runtime.encrypted import EncryptedConnection
from semel.runtime.threads import Threads

_log = logging.getLogger("semel.metrics")

HEAD_BYTES_MAX: Final = 8 << 10
PATIENCE_S: Final = 10.0
"""For a request to arrive, for its answer to be made, and for the answer to be taken: each."""
LINGER_S: Final = 1.0
LINGER_BYTES: Final = 64 << 10
_PLAIN: Final = "text/plain; charset=utf-8"

_Held = TypeVar("_Held")


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the node works, and if not, why. One that works may have something to say, too."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    body: bytes
    content_type: str = _PLAIN
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a request for the metrics is refused with."""

    status: HTTPStatus
    message: str


class Callers(Protocol):
    """Knows who may read the metrics."""

    @property
    def ask(self) -> bool:
        """Whether anybody is asked who he is."""
        ...

    async def refusal(self, headers: Mapping[str, str], tls: ssl.SSLObject | None, peer: str) -> Refusal | None:
        """Return what a request is refused with; None for one that is served."""
        ...


class _BadRequestError(Exception):
    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class MetricsEndpoint:
    """Serves one node."""

    def __init__(
        self,
        address: Address,
        *,
        read: Callable[[], Awaitable[list[Reading]]],
        healthy: Callable[[], Health],
        ready: Callable[[], Health],
        resource: Mapping[str, str],
        connections_max: int,
        encryption: Callable[[], ssl.SSLContext] | None = None,
        callers: Callers | None = None,
    ) -> None:
        """`encryption`: gives what a connection is encrypted with that comes now; None: none is.

        callers: decides who gets more than whether the node works; None: everybody does
        """
        self._encryption = encryption
        self._callers = callers
        self._handshaking: dict[EncryptedConnection, str] = {}
        """Those that are not encrypted yet, with the addresses of their peers."""
        self.address = address
        """Where it listens; with the real port once it was started."""
        self._read = read
        self._healthy = healthy
        self._ready = ready
        self._resource = resource
        self._connections_max = connections_max
        self._connections: dict[asyncio.Task[None], str] = {}
        """Those that are served, with the addresses of their peers."""
        self._idle: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """Those of whom no request has come yet, the oldest first."""
        self._server: asyncio.Server | None = None
        self._is_stopped = False
        self._scraping = asyncio.Lock()
        self._thread = Threads(1, "semel-metrics")

    async def start(self) -> None:
        """Begin to answer. Raises `NodeStartError` where the address can't be had."""
        try:
            self._server = await asyncio.get_running_loop().create_server(self._protocol, *self.address)
        except OSError as error:
            raise NodeStartError(
                f"the metrics can't be served on {self.address}: {error.strerror or error}. Choose another with "
                "--metrics HOST:PORT, or leave it out.",
                StartFailure.ADDRESS,
            ) from error
        self.address = Address(self.address.host, self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close everything at once."""
        server, self._server = self._server, None
        self._is_stopped = True
        if server is not None:
            server.close()
            for handshaking in tuple(self._handshaking):
                handshaking.hang_up()
            for connection in tuple(self._connections):
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await server.wait_closed()
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def working(self) -> int:
        """How many connections are being answered."""
        return len(self._connections) - len(self._idle)

    def _protocol(self) -> asyncio.BaseProtocol:
        """Return what serves a connection that was accepted."""
        if self._encryption is None:
            return self._stream()
        return EncryptedConnection(self._stream, self._encryption(), self._shake_hands)

    def _shake_hands(self, connection: EncryptedConnection) -> None:
        """Have a connection in its handshake. One too many ends another one's."""
        self._handshaking[connection] = connection.address
        if self._is_stopped:
            connection.hang_up()
        elif len(self._handshaking) > self._connections_max:
            other = _of_whom_most_are(self._handshaking)
            del self._handshaking[other]
            other.hang_up()

        def shook_hands(ended: asyncio.Future[None]) -> None:
            self._handshaking.pop(connection, None)
            if not ended.cancelled():
                ended.exception()  # a client that can't encrypt gets nothing, and is nobody's trouble

        connection.encrypted.add_done_callback(shook_hands)

    def _stream(self) -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=HEAD_BYTES_MAX), self._accepted)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = str((writer.get_extra_info("peername") or ("",))[0])
        if len(self._connections) >= self._connections_max and self._idle:
            self._let_go(_of_whom_most_are({task: self._connections[task] for task in self._idle}))
        is_one_too_many = len(self._connections) >= 2 * self._connections_max
        # One address leaves places for others: a container's probe comes from another one than who guesses passwords.
        of_address = sum(each == address for each in self._connections.values())
        if is_one_too_many or of_address >= self._connections_max + self._connections_max // 2:
            writer.transport.abort()  # so many that not even a refusal can be had
            return
        # A task of our own: what asyncio makes of a coroutine here reports a cancellation as a failure.
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="serve metrics")
        self._connections[task] = address
        self._idle[task] = writer
        task.add_done_callback(self._forget)

    def _let_go(self, task: asyncio.Task[None]) -> None:
        self._idle[task].transport.abort()  # not left to the task, which may not have begun
        task.cancel()
        self._forget(task)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._connections.pop(task, None)
        self._idle.pop(task, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            method, answer = await self._answer(reader, writer)
            writer.write(_response(answer, with_body=method != "HEAD"))
            async with asyncio.timeout(PATIENCE_S):
                await writer.drain()
            await _linger(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the peer is gone, or as good as gone: it gets nothing
        finally:
            if writer.transport is not None:
                writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, _Answer]:
        try:
            method, path, headers = await _request(reader)
        except _BadRequestError as error:
            return "GET", _Answer(error.status, f"{error}\n".encode())
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._idle.pop(task, None)
        try:
            return method, await self._get(path, headers, writer)
        except Exception:
            _log.exception("the metrics could not be read")
            return method, _Answer(
                HTTPStatus.INTERNAL_SERVER_ERROR, b"the metrics could not be read: see the node's own log\n"
            )

    async def _get(self, path: str, headers: Mapping[str, str], writer: asyncio.StreamWriter) -> _Answer:
        is_open = self._callers is None or not self._callers.ask
        match path:
            case "/metrics":
                refusal = await self._refusal(headers, writer)
                return await self._metrics(headers) if refusal is None else _refused(refusal)
            case "/healthz":
                return _health(self._healthy(), tells_why=is_open)
            case "/readyz":
                return _health(self._ready(), tells_why=is_open)
            case _:
                return _Answer(HTTPStatus.NOT_FOUND, b"there are /metrics, /healthz and /readyz here\n")

    async def _refusal(self, headers: Mapping[str, str], writer: asyncio.StreamWriter) -> Refusal | None:
        if self._callers is None:
            return None
        if self.working > self._connections_max:  # before a password is checked for it
            return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, self._too_many())
        name = writer.get_extra_info("peername")
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._callers.refusal(headers, writer.get_extra_info("ssl_object"), str(name[0]))
        except TimeoutError:
            return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "it takes too long to find out who asks: retry later")

    def _too_many(self) -> str:
        return f"metrics.max.connections = {self._connections_max} are being answered: retry later"

    async def _metrics(self, headers: Mapping[str, str]) -> _Answer:
        if self.working > self._connections_max:
            return _Answer(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self._too_many()}\n".encode(),
            )
        # One at a time: many at once would take the same time each, and the event loop from its work.
        async with self._scraping:
            readings = await self._read()
            body, content_type, compressed = await asyncio.get_running_loop().run_in_executor(
                self._thread,
                page,
                readings,
                self._resource,
                headers.get("accept", ""),
                headers.get("accept-encoding", ""),
            )
        encoding = (("Content-Encoding", "gzip"),) if compressed else ()
        return _Answer(HTTPStatus.OK, body, content_type, (*encoding, ("Vary", "Accept, Accept-Encoding")))


def _of_whom_most_are(held: Mapping[_Held, str]) -> _Held:
    """Return the oldest of those whose address holds most: so no address crowds out the others."""
    counts = Counter(held.values())
    return max(held, key=lambda each: counts[held[each]])  # the first of the largest


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read a little of what was not read: closing on top of it would reset the connection, and the answer be lost."""
    if writer.can_write_eof():  # not where it is encrypted: the answer says how long it is
        writer.write_eof()
    left = LINGER_BYTES
    async with asyncio.timeout(LINGER_S):
        while left > 0 and (part := await reader.read(HEAD_BYTES_MAX)):
            left -= len(part)


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    """Return method, path and headers (names in lower case). Raises `_BadRequestError`, or `IncompleteReadError`."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _BadRequestError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the request's head has more than {HEAD_BYTES_MAX} bytes"
        ) from None
    except TimeoutError:
        raise _BadRequestError(HTTPStatus.REQUEST_TIMEOUT, "the request did not come to its end") from None
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        raise _BadRequestError(HTTPStatus.BAD_REQUEST, "this is not a request of HTTP/1.1")
    if words[0] not in ("GET", "HEAD"):
        raise _BadRequestError(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD are what can be asked here")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise _BadRequestError(HTTPStatus.BAD_REQUEST, "a header is NAME: VALUE")
        headers[name.lower()] = value.strip()
    return words[0], words[1].partition("?")[0], headers


def _health(health: Health, *, tells_why: bool) -> _Answer:
    """`tells_why`: not to strangers, who are told nothing but the status."""
    reason = health.reason if tells_why else ""
    if health.ok:
        return _Answer(HTTPStatus.OK, f"{reason or 'ok'}\n".encode())
    return _Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{reason or 'not ok'}\n".encode())


def _refused(refusal: Refusal) -> _Answer:
    asks = (("WWW-Authenticate", 'Basic realm="semel", charset="UTF-8"'),)
    headers = asks if refusal.status is HTTPStatus.UNAUTHORIZED else ()
    return _Answer(refusal.status, f"{refusal.message}\n".encode(), headers=headers)


def _response(answer: _Answer, *, with_body: bool) -> bytes:
    allow = (("Allow", "GET, HEAD"),) if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else ()
    headers = (
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("Connection", "close"),
        *allow,
        *answer.headers,
    )
    head = f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers)
    return head.encode("latin-1") + b"\r\n" + (answer.body if with_body else b"")
