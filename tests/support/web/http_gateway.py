"""An HTTP gateway in the tests' own process, with a thread and an event loop of its own, and an HTTP client for it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from http.client import HTTPConnection
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

from semel.web.app import Part
from semel.web.gateway import Gateway
from semel.web.limits import Limits
from semel.web.parts import PARTS
from semel.web.serve import Listen, serve

TIMEOUT_S = 60.0


class Answered(NamedTuple):
    """An answer. body: parsed, where it is JSON."""

    status: int
    body: Any
    headers: dict[str, str]


class HttpGateway:
    """A gateway that serves from start to end of a with-block."""

    def __init__(
        self,
        bootstrap: str,
        parts: Sequence[Part] = PARTS,
        limits: Limits | None = None,
        *,
        has_users: bool = False,
        tls: tuple[str, str] | None = None,
        allows_changes: bool = False,
    ) -> None:
        self.gateway = Gateway(bootstrap, limits, asks_for_passwords=has_users, allows_changes=allows_changes)
        self._parts = parts
        self._listen = Listen("127.0.0.1", 0, tls, has_users)
        self._stop: Future[None] = Future()
        self._ready: Future[str] = Future()
        self._thread = threading.Thread(target=self._run, name="http gateway")

    def _run(self) -> None:
        async def run() -> None:
            stop = asyncio.wrap_future(self._stop)
            await serve(self.gateway, self._parts, self._listen, stop=stop, ready=self._ready.set_result)

        try:
            asyncio.run(run())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            else:
                raise

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.address = self._ready.result(TIMEOUT_S).rpartition("/")[2]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if not self._stop.done():
            self._stop.set_result(None)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None, **query: object
    ) -> Answered:
        return ask(self.address, method, path, body, headers, **query)


def ask(
    address: str, method: str, path: str, body: object = None, headers: dict[str, str] | None = None, **query: object
) -> Answered:
    """Send one request; a body that is no bytes is sent as JSON."""
    connection = HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        told = {"Content-Type": "application/vnd.schemaregistry.v1+json", **(headers or {})}
        connection.request(method, f"{path}?{urlencode(query)}" if query else path, sent, told)
        answer = connection.getresponse()
        data = answer.read()
        is_json = "json" in answer.headers.get("content-type", "")
        return Answered(
            answer.status, json.loads(data) if is_json else data, {k.lower(): v for k, v in answer.headers.items()}
        )
    finally:
        connection.close()
