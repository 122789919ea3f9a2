"""Requests to an HTTP gateway, by the standard library alone: what any program can send."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Reply:
    """An answer: its status, its headers by name in lower case, and its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        """Its body as concatenated JSON, a value a line."""
        return [json.loads(line) for line in self.body.splitlines()]


class GatewayRequests:
    """Sends each request on a connection of its own. May be used by several threads."""

    def __init__(self, url: str) -> None:
        self.host = urlsplit(url).netloc
        self._cluster = ""

    @property
    def cluster(self) -> str:
        """The path of the cluster."""
        if not self._cluster:
            (cluster,) = self.get("/v3/clusters").json["data"]
            self._cluster = f"/v3/clusters/{cluster['cluster_id']}"
        return self._cluster

    def get(self, path: str, **headers: str) -> Reply:
        return self.request("GET", path, None, headers)

    def post(self, path: str, body: Any, key: str | None = None) -> Reply:
        """Send JSON, or bytes as they are; path: below the cluster. key: the Idempotency-Key."""
        return self.request("POST", self.cluster + path, body, {} if key is None else {"Idempotency-Key": key})

    def request(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        with self.answering(method, path, body, headers) as answer:
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    @contextmanager
    def answering(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request, and give its answer to be read bit by bit."""
        connection = http.client.HTTPConnection(self.host, timeout=TIMEOUT_S)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            yield connection.getresponse()
        finally:
            connection.close()


def text(value: str, key: str | None = None, **more: Any) -> dict[str, Any]:
    """A record of texts, as a request has it."""
    record = {"value": {"type": "STRING", "data": value}, **more}
    return record if key is None else {**record, "key": {"type": "STRING", "data": key}}
