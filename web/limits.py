"""What bounds the HTTP gateway: sizes, times and counts, and the layers around the app that hold requests to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect

from semel.web.problems import Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_RETRY_AFTER_S: Final = 1
_HEALTH_PATH: Final = "/healthz"
"""What is answered however much there is to do: a busy gateway would otherwise be taken for a dead one."""
_STOP_SHARE: Final = 0.8
"""Of `stop_s`: then what is not answered yet is answered 503, before the server cuts it off."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one gateway.

    body_bytes_max:   of one request. 413 beyond it
    header_bytes_max: the request line and all headers of one request together. The connection is closed beyond it
    connections_max:  open at a time. A new one beyond it is closed at once
    requests_max:     answered at a time. 503 beyond it, with Retry-After
    receive_s:        how long a request may take to arrive: its headers, and then its body
    idle_s:           how long a connection may be open without a request
    send_s:           how long a client may leave a full buffer of its answer unread
    request_s:        how long an answer may take in all. 503 beyond it
    page_s:           how long a page of the console may take, so that a node that is away is said soon
    users_max:        users whose clients are kept open; those that were not used for the longest are closed first
    user_check_s:     how long a password that the node accepted is trusted
    stop_s:           how long requests may go on when the gateway is being closed
    """

    body_bytes_max: int = 4 << 20
    header_bytes_max: int = 32 << 10
    connections_max: int = 1_000
    requests_max: int = 200
    receive_s: float = 20.0
    idle_s: float = 75.0
    send_s: float = 30.0
    request_s: float = 120.0
    page_s: float = 12.0
    users_max: int = 100
    user_check_s: float = 60.0
    stop_s: float = 10.0


class Bounded:
    """Holds each request to the limits: how many at a time, how large, how slow."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits
        self._now = 0
        self._running: set[_OneRequest] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_counted = scope["path"] != _HEALTH_PATH
        if is_counted and self._now >= self._limits.requests_max:
            problem = Problem(503, f"{self._now} requests are being answered: try again", retry_after_s=_RETRY_AFTER_S)
            await problem.response()(scope, receive, send)
            return
        self._now += is_counted
        request = _OneRequest(self._app, self._limits)
        self._running.add(request)
        try:
            await request.run(scope, receive, send)
        finally:
            self._running.discard(request)
            self._now -= is_counted

    def stop(self) -> None:
        """Have each request answered in time for the server to end."""
        for request in self._running:
            request.stop()
        ends_s = min(self._limits.request_s, self._limits.stop_s * _STOP_SHARE)
        self._limits = replace(self._limits, request_s=ends_s)  # of what has just come in


class _OneRequest:
    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits
        self._has_answered = False
        self._is_complete = False
        self._body_bytes = 0
        self._body_ends: float | None = None
        self._bound: asyncio.Timeout | None = None
        self._late = f"it took longer than {limits.request_s:g} s"

    def stop(self) -> None:
        """End before the server does."""
        if self._bound is None or self._bound.expired():
            return
        ends, stops = self._bound.when(), asyncio.get_running_loop().time() + self._limits.stop_s * _STOP_SHARE
        if ends is None or stops < ends:
            self._late = "the gateway is being stopped, and what became of this request is not known: send it again"
            self._bound.reschedule(stops)

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def bounded_receive() -> Message:
            return await self._receive(receive)

        async def bounded_send(message: Message) -> None:
            self._has_answered = True
            if message["type"] == "http.response.start" and has_body and not self._is_complete:
                # The rest of the body is not read: what comes behind it could not be told from it.
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            async with asyncio.timeout(self._limits.send_s):
                await send(message)

        declared = _declared_bytes(scope)
        has_body = declared > 0 or any(name == b"transfer-encoding" for name, _ in scope["headers"])
        try:
            if declared > self._limits.body_bytes_max:
                raise self._too_large()
            async with asyncio.timeout(self._limits.request_s) as self._bound:
                await self._app(scope, bounded_receive, bounded_send)
        except Problem as problem:
            if not self._has_answered:
                await problem.response(close=True)(scope, receive, send)
        except ClientDisconnect:
            pass  # nobody is there to be answered
        except TimeoutError:
            if not self._has_answered:
                late = Problem(503, self._late, retry_after_s=_RETRY_AFTER_S)
                await late.response(close=True)(scope, receive, send)
            # What has begun can't be taken back: the server closes the connection in the middle of it.

    async def _receive(self, receive: Receive) -> Message:
        if self._is_complete:
            return await receive()  # until the client goes
        loop = asyncio.get_running_loop()
        if self._body_ends is None:
            self._body_ends = loop.time() + self._limits.receive_s
        try:
            async with asyncio.timeout_at(self._body_ends):
                message = await receive()
        except TimeoutError:
            raise Problem(408, f"the body took longer than {self._limits.receive_s:g} s to arrive") from None
        self._is_complete = not message.get("more_body", False)
        self._body_bytes += len(message.get("body", b""))
        if self._body_bytes > self._limits.body_bytes_max:
            raise self._too_large()
        return message

    def _too_large(self) -> Problem:
        return Problem(413, f"a body has at most {self._limits.body_bytes_max} bytes")


class NoForeignPages:
    """Refuses what browsers send for pages of other sites: who may use a browser here has not asked for it.

    A page can send requests to any address that its reader reaches. A browser names the page's site in `Origin`; a site
    whose name was pointed at this machine meanwhile (DNS rebinding) is found by `Host`, which must be a loopback name
    or an IP address where the gateway listens on the loopback alone.
    """

    def __init__(self, app: ASGIApp, *, is_loopback: bool, hosts: Sequence[str] = ()) -> None:
        self._app = app
        self._is_loopback = is_loopback
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            host = headers.get(b"host", b"").decode("latin-1")
            origin = headers.get(b"origin", b"").decode("latin-1")
            problem = None
            if origin and origin not in (f"http://{host}", f"https://{host}"):
                problem = Problem(
                    403, "this request was made for a page of another site, which the gateway does not serve"
                )
            elif self._is_loopback and host and not self._is_own(host):
                problem = Problem(421, f"this gateway has no name {host[:100]!r}: use its address")
            if problem is not None:
                await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name == "localhost" or name in self._hosts:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def _declared_bytes(scope: Scope) -> int:
    """Return what Content-Length says; 0 where there is none. The HTTP parser has checked that it is a number."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)
