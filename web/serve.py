"""Runs the gateway: a socket, uvicorn with bounds, ready once a node has answered; at its end requests are finished."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import uvicorn

from semel.protocol.errors import RetriableError, UsageError
from semel.protocol.loopback import is_loopback
from semel.protocol.schemes import asks_for_password, scheme_for, speaks_tls, without_scheme
from semel.web.app import Part, make_app
from semel.web.connections import connection_class
from semel.web.gateway import Gateway

_log = logging.getLogger("semel.http")

BACKLOG: Final = 128
_FIRST_WAIT_S: Final = 0.1
_WAIT_S_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a gateway listens.

    host, port:  the port may be 0, any free one
    tls:         the certificate and its private key, PEM files; None: nothing is encrypted
    has_users:   whether it asks for passwords
    """

    host: str
    port: int
    tls: tuple[str, str] | None = None
    has_users: bool = False

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


def listen_of(text: str, *, certificate: str = "", key: str = "", is_insecure: bool = False) -> Listen:
    """Return where to listen, of [SCHEME://]HOST:PORT. Raises `UsageError`, also where strangers would be served.

    >>> listen_of("127.0.0.1:8080").port
    8080
    """
    host, colon, port = without_scheme(text).rpartition(":")
    if "://" in without_scheme(text) or not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen takes HOST:PORT, for example 127.0.0.1:8080, not {text!r}")
    if bool(certificate) != bool(key):
        raise UsageError("--certificate and --key go together: a certificate, and its private key")
    if speaks_tls(text) and not certificate:
        raise UsageError(f"--listen {text} encrypts: give --certificate FILE and --key FILE")
    if certificate and not speaks_tls(text):
        raise UsageError(f"--certificate is for a gateway that encrypts: --listen tls://{without_scheme(text)}")
    listen = Listen(host.strip("[]"), int(port), (certificate, key) if certificate else None, asks_for_password(text))
    if not listen.is_loopback and not is_insecure and not (listen.tls and listen.has_users):
        what = (
            "passwords would cross the network in plain text"
            if listen.has_users
            else "everybody who can connect may read, write and delete what the gateway's own user may"
        )
        raise UsageError(
            f"other machines can reach {text}, and {what}. Three ways out: listen on 127.0.0.1; encrypt and ask for "
            f"passwords, with --listen tls+sasl://{without_scheme(text)} --certificate FILE --key FILE; or keep "
            "strangers out of the network, and say so with --insecure"
        )
    return listen


class _Server(uvicorn.Server):
    """uvicorn's, without its signal handlers: `semel http` says when the gateway ends."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def serve(
    gateway: Gateway,
    parts: Sequence[Part],
    listen: Listen,
    *,
    stop: asyncio.Future[None],
    ready: Callable[[str], None],
) -> None:
    """Serve until `stop` is done. `ready` gets [SCHEME://]HOST:PORT once requests are answered.

    Waits for a node that is not there yet. Raises `OSError` where the address can't be had, `UsageError` for
    certificates that can't be used, `FatalError` where the node refuses the gateway's user.
    """
    opened = _socket(listen)
    try:
        if not await _node_answers(gateway, stop):
            return
        await _serve(gateway, parts, listen, opened, stop, ready)
    finally:
        opened.close()
        await gateway.close()


async def _serve(
    gateway: Gateway,
    parts: Sequence[Part],
    listen: Listen,
    opened: socket.socket,
    stop: asyncio.Future[None],
    ready: Callable[[str], None],
) -> None:
    limits = gateway.limits
    config = uvicorn.Config(
        make_app(gateway, parts, is_loopback=listen.is_loopback),
        http=connection_class(limits),
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=limits.header_bytes_max,
        timeout_keep_alive=max(1, round(limits.idle_s)),
        timeout_graceful_shutdown=max(1, round(limits.stop_s)),
        backlog=BACKLOG,
        ssl_certfile=listen.tls[0] if listen.tls else None,
        ssl_keyfile=listen.tls[1] if listen.tls else None,
    )
    try:
        config.load()
    except (ssl.SSLError, OSError) as error:
        raise UsageError(f"--certificate and --key can't be used: {error}") from None
    server = _Server(config)
    running = asyncio.get_running_loop().create_task(server.serve([opened]), name="serve HTTP")
    listening = asyncio.ensure_future(server.listens.wait())
    await asyncio.wait((running, listening), return_when=asyncio.FIRST_COMPLETED)
    listening.cancel()
    if not running.done():
        host, port = opened.getsockname()[:2]
        scheme = scheme_for(tls=listen.tls is not None, sasl=listen.has_users)
        ready(f"{scheme}[{host}]:{port}" if ":" in host else f"{scheme}{host}:{port}")
        await asyncio.wait((running, stop), return_when=asyncio.FIRST_COMPLETED)
        gateway.stop()
        server.should_exit = True
    await running


async def _node_answers(gateway: Gateway, stop: asyncio.Future[None]) -> bool:
    """Wait for a node; return False where the gateway is stopped meanwhile. Raises `FatalError`."""
    wait_s = _FIRST_WAIT_S
    while not stop.done():
        asking = asyncio.ensure_future(gateway.own.admin().topics())
        await asyncio.wait((asking, stop), return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            asking.cancel()
            await asyncio.wait((asking,))
            return False
        try:
            asking.result()
        except RetriableError as error:
            _log.warning("waiting for a node: %s", error)
            await asyncio.wait((stop,), timeout=wait_s)
            wait_s = min(wait_s * 2, _WAIT_S_MAX)
        else:
            return True
    return False


def _socket(listen: Listen) -> socket.socket:
    (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
        listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(BACKLOG)
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened
