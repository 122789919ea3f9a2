"""An HTTP proxy on loopback in front of an S3: slow, refusing, losing answers and cutting them off, as a test says."""

from __future__ import annotations

import random
import threading
from collections import Counter
from enum import Enum
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

TIMEOUT_S: Final = 20.0
_SLOW_S: Final = (0.05, 0.5)


class Fault(Enum):
    """What happens to a request."""

    SLOW = "it is passed on late"
    REFUSED = "it is answered 503 SlowDown, and was not passed on"
    UNANSWERED = "it is passed on, and answered 500 InternalError all the same"
    LOST = "it is passed on, and the connection ends without an answer"
    CUT = "it is passed on, and the connection ends in the middle of the answer"


class FaultyS3:
    """Passes requests on to `endpoint`. With `rate` set, each one meets a fault with that probability."""

    def __init__(self, endpoint: str, seed: int) -> None:
        self.rate = 0.0
        self.met: Counter[Fault] = Counter()
        self._draw = random.Random(seed)
        self._lock = threading.Lock()
        self._target: Final = urlsplit(endpoint).netloc
        self._stops = threading.Event()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._stops.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(TIMEOUT_S)

    def drawn(self) -> Fault | None:
        """Return what happens to the next request."""
        with self._lock:
            if self._draw.random() >= self.rate:
                return None
            fault = self._draw.choice(list(Fault))
            self.met[fault] += 1
            return fault

    def wait_slowly(self) -> None:
        with self._lock:
            seconds = self._draw.uniform(*_SLOW_S)
        self._stops.wait(seconds)

    def ask(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> tuple[HTTPResponse, bytes]:
        """Pass a request on as it is: what it says of the host is signed. Raises `OSError`, `HTTPException`."""
        connection = HTTPConnection(self._target, timeout=TIMEOUT_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        return type("Handler", (_Handler,), {"proxy": self})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is none."""


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyS3
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT_S

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.proxy.drawn()
        if fault is Fault.REFUSED:
            self._refuse(503, "SlowDown")
            return
        if fault is Fault.SLOW:
            self.proxy.wait_slowly()
        try:
            answer, data = self.proxy.ask(self.command, self.path, self.headers.items(), body)
        except (OSError, HTTPException):
            self.close_connection = True  # the S3 is away: nobody answers
            return
        if fault is Fault.UNANSWERED:
            self._refuse(500, "InternalError")
        elif fault is Fault.LOST:
            self.close_connection = True
        else:
            self._answer(answer, data, cut=fault is Fault.CUT)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815

    def _answer(self, answer: HTTPResponse, data: bytes, *, cut: bool) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "keep-alive"):
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        size = answer.getheader("Content-Length", "0") if is_head else str(len(data))
        if answer.status != 204:
            self.send_header("Content-Length", size)
        self.end_headers()
        if cut:
            self.close_connection = True
            data = data[: len(data) // 2]
        self.wfile.write(data)

    def _refuse(self, status: int, code: str) -> None:
        data = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>Try again.</Message></Error>'.encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Log nothing."""
