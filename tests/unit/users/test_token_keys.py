"""Keys of tokens that are got by https: again and again, sooner for a key that is not known, and in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import http.server
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from token_issuer import Issuer, keys_of

from semel.broker.config.node_config import NodeConfig
from semel.broker.users import token_keys
from semel.broker.users.token_keys import KEYS_BYTES_MAX, NO_KEYS, TokenKeys, fetch
from semel.broker.users.tokens import TokenError, Tokens

PATIENCE_S = 30
REFRESH = "sasl_oauthbearer_jwks_endpoint_refresh_ms"


class Endpoint:
    """Gives keys by HTTP, with TLS where there is an authority."""

    def __init__(self, authority: Authority | None = None) -> None:
        self.answer: tuple[int, bytes, dict[str, str]] = (200, b"", {})
        self.asked = 0
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.asked += 1
                status, body, headers = endpoint.answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_of_the_request: Any) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # clients hang up

        self._server = Server(("127.0.0.1", 0), Handler)
        scheme = "http"
        if authority is not None:
            pair = authority.node("endpoint")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.certificate, pair.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}/keys?x=1"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def gives(self, *keys: Any) -> None:
        self.answer = (200, json.dumps(keys_of(*keys)).encode(), {})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


@pytest.fixture
def endpoint(issuer: Issuer) -> Iterator[Endpoint]:
    made = Endpoint()
    made.gives(issuer.rsa)
    yield made
    made.close()


def config(issuer: Issuer, endpoint: Endpoint, **more: Any) -> NodeConfig:
    return NodeConfig(**issuer.settings(sasl_oauthbearer_jwks_endpoint_url=endpoint.url, **more))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_keys_are_got_again_and_kept_while_they_can_t_be(issuer: Issuer, endpoint: Endpoint) -> None:
    keys = TokenKeys(config(issuer, endpoint, **{REFRESH: 1_000}))
    try:
        until(lambda: len(keys.current()) == 1)
        endpoint.answer = (503, b"", {})
        asked = endpoint.asked
        until(lambda: endpoint.asked > asked)
        assert len(keys.current()) == 1
        endpoint.gives(issuer.rsa, issuer.ec)
        until(lambda: len(keys.current()) == 2)
    finally:
        keys.close()


def test_S6_an_unknown_key_is_asked_for_once_for_all_who_need_it(
    issuer: Issuer, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(config(issuer, endpoint))
    try:
        asyncio.run(tokens.check(issuer.token()))
        monkeypatch.setattr(token_keys, "ASKED_FOR_S", 0.0)
        endpoint.gives(issuer.other_rsa, issuer.ec)
        fresh = issuer.token(algorithm="ES256")
        assert asyncio.run(tokens.check(fresh)).subject == "alice"
        asked = endpoint.asked
        monkeypatch.setattr(token_keys, "ASKED_FOR_S", 3_600.0)

        async def many() -> list[object]:
            wrong = [issuer.token(headers={"kid": f"x{number}"}) for number in range(20)]
            return await asyncio.gather(*map(tokens.check, wrong), return_exceptions=True)

        assert all(isinstance(each, TokenError) for each in asyncio.run(many()))
        assert endpoint.asked == asked, "strangers do not have the issuer asked again and again"
        monkeypatch.setattr(token_keys, "ASKED_FOR_S", 0.0)
        assert all(isinstance(each, TokenError) for each in asyncio.run(many()))
        assert asked < endpoint.asked < asked + 20
    finally:
        tokens.close()


def test_S6_keys_that_come_amid_a_check_count(
    issuer: Issuer, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were asked for just now, so that nobody asks for them again."""
    tokens = Tokens(config(issuer, endpoint))
    try:
        until(lambda: len(tokens._keys.current()) == 1)
        seen = [NO_KEYS]
        current = tokens._keys.current
        monkeypatch.setattr(tokens._keys, "current", lambda: seen.pop() if seen else current())
        monkeypatch.setattr(tokens, "known", lambda _text: None)
        assert asyncio.run(tokens.check(issuer.token())).subject == "alice"
    finally:
        tokens.close()


def test_a_node_waits_for_keys_that_are_not_there_yet(issuer: Issuer, endpoint: Endpoint) -> None:
    endpoint.answer = (404, b"", {})
    tokens = Tokens(config(issuer, endpoint, sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms=50))
    try:
        with pytest.raises(TokenError, match="there is no key 'k0'"):
            asyncio.run(tokens.check(issuer.token()))
        endpoint.gives(issuer.rsa)
        until(lambda: len(tokens._keys.current()) == 1)
        assert asyncio.run(tokens.check(issuer.token())).subject == "alice"
    finally:
        tokens.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((302, b"", {"Location": "http://127.0.0.1:1/"}), "it answers 302"),
        ((500, b"{}", {}), "it answers 500"),
        ((200, b" " * (KEYS_BYTES_MAX + 1), {}), "it has more than"),
    ],
)
def test_S2_what_is_no_answer_is_given_up(
    endpoint: Endpoint, answer: tuple[int, bytes, dict[str, str]], said: str
) -> None:
    endpoint.answer = answer
    with pytest.raises(ValueError, match=said):
        fetch(endpoint.url)


def test_S2_an_answer_that_drips_in_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of a header comes in time, and the whole never does."""
    monkeypatch.setattr(token_keys, "_TIMEOUT_S", 0.5)
    listening = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        accepted, _ = listening.accept()
        with accepted, contextlib.suppress(OSError):
            accepted.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while True:
                accepted.sendall(b"x")
                time.sleep(0.05)

    threading.Thread(target=drip, daemon=True).start()
    with listening, pytest.raises((OSError, http.client.HTTPException)):
        fetch(f"http://127.0.0.1:{listening.getsockname()[1]}/keys")


def test_S2_the_same_keys_again_leave_what_is_known_of_tokens(issuer: Issuer, endpoint: Endpoint) -> None:
    tokens = Tokens(config(issuer, endpoint, **{REFRESH: 1_000}))
    try:
        text = issuer.token()
        asyncio.run(tokens.check(text))
        asked = endpoint.asked
        until(lambda: endpoint.asked > asked + 1)
        assert tokens.known(text) is not None
    finally:
        tokens.close()


def test_S6_keys_come_from_who_has_the_certificate(
    tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "authority")
    endpoint = Endpoint(authority)
    endpoint.gives(issuer.rsa)
    try:
        with pytest.raises(ssl.SSLCertVerificationError):
            fetch(endpoint.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
        assert json.loads(fetch(endpoint.url)) == keys_of(issuer.rsa)
    finally:
        endpoint.close()
