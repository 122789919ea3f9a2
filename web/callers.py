"""Who makes a request: HTTP Basic (RFC 7617), checked by the node itself, which knows the users."""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import secrets
from base64 import b64decode
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from semel.protocol.errors import ErrorCode, SemelError
from semel.web.gateway import CALLER, Caller, Clients, Gateway
from semel.web.problems import Problem, problem_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_USER_BYTES_MAX: Final = 1 << 10
_OPEN_PATHS: Final = ("/healthz",)
"""What says nothing of the log."""


class Callers:
    """Asks each request for a user and a password. One that the node accepted is trusted for a while."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway
        self._salt = secrets.token_bytes(16)
        self._accepted: OrderedDict[bytes, float] = OrderedDict()
        self._checks = asyncio.Semaphore(8)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._gateway.asks_for_passwords or scope["path"] in _OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            caller = named_caller(dict(scope["headers"]).get(b"authorization", b""))
            await self._check(caller)
        except Problem as problem:
            await problem.response()(scope, receive, send)
            return
        scope[CALLER] = caller
        await self._app(scope, receive, send)

    async def _check(self, caller: Caller) -> None:
        loop = asyncio.get_running_loop()
        key = hashlib.sha256(self._salt + f"{caller.user}:{caller.password}".encode()).digest()
        if self._accepted.get(key, 0.0) > loop.time():
            return
        async with self._checks:
            if self._accepted.get(key, 0.0) > loop.time():
                return
            # Clients of its own, so that guessing passwords does not close those of others.
            clients = Clients(self._gateway.bootstrap_of(caller), "semel-http")
            try:
                await clients.admin().nodes()
            except SemelError as error:
                if error.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
                    raise _unauthorized("the node does not know this user with this password") from None
                if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:  # the password was right
                    raise problem_of(error) from None
            finally:
                await clients.close()
            self._accepted[key] = loop.time() + self._gateway.limits.user_check_s
            while len(self._accepted) > self._gateway.limits.users_max:
                self._accepted.popitem(last=False)


def named_caller(authorization: bytes) -> Caller:
    """Return whom an Authorization header names. Raises `Problem` 401.

    >>> named_caller(b"Basic YWxpY2U6czNjcmV0").user
    'alice'
    """
    scheme, _, given = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        raise _unauthorized("this gateway serves users alone: give a name and a password (HTTP Basic)")
    try:
        user, colon, password = b64decode(given.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise _unauthorized("the Authorization header is not Basic with base64 of NAME:PASSWORD in UTF-8") from None
    if not colon or not user or not password or len(given) > _USER_BYTES_MAX * 3:
        raise _unauthorized("the Authorization header must name a user and a password")
    return Caller(user, password)


def _unauthorized(detail: str) -> Problem:
    return Problem(401, detail, error_code=40101, headers={"WWW-Authenticate": 'Basic realm="semel", charset="UTF-8"'})
