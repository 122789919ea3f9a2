"""An OAuth 2 server for tests: it gives tokens to a client with an id and a secret, or misbehaves as a test says."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from base64 import b64decode
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs

from certificates import Pair

CLIENT, SECRET = "etl", "hunter2"
Answer = tuple[int, bytes]


class TokenServer:
    """On a port of this machine. `answers`: what is answered first, one each; then tokens that `make` makes.

    asked: the bodies of all requests that came
    """

    def __init__(self, make: Callable[[], str] = lambda: "a.b.c", pair: Pair | None = None) -> None:
        self.make = make
        self.expires_in: object = 600
        self.answers: list[Answer] = []
        self.asked: list[dict[str, list[str]]] = []
        self.secret = SECRET
        self.drips = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer._answer(self)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        scheme = "http"
        if pair is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.certificate, pair.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}/token"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _answer(self, call: BaseHTTPRequestHandler) -> None:
        self.asked.append(parse_qs(call.rfile.read(int(call.headers["Content-Length"])).decode()))
        self.gate.wait(60)
        with contextlib.suppress(OSError):
            if self.drips.is_set():
                call.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while self.drips.is_set():
                    call.wfile.write(b"x")
                    time.sleep(0.05)
                return
            status, body = self.answers.pop(0) if self.answers else self._token(call.headers.get("Authorization", ""))
            call.send_response(status)
            call.send_header("Content-Length", str(len(body)))
            call.end_headers()
            call.wfile.write(body)

    def _token(self, proof: str) -> Answer:
        if b64decode(proof.removeprefix("Basic ")).decode() != f"{CLIENT}:{self.secret}":
            return 401, b'{"error": "invalid_client", "error_description": "no!"}'
        answer = {"access_token": self.make(), "token_type": "Bearer", "expires_in": self.expires_in}
        return 200, json.dumps({name: value for name, value in answer.items() if value is not None}).encode()

    def options(self, **more: str) -> dict[str, str]:
        """Return the options of a client, as librdkafka names them."""
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": self.url,
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": SECRET,
            **more,
        }

    def close(self) -> None:
        self.drips.clear()
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
