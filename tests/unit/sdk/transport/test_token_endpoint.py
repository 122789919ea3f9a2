"""Clients that get tokens of an OAuth 2 server (KIP-768): what it may do wrong, and what nobody is shown."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from certificates import Authority
from token_server import CLIENT, SECRET, TokenServer

from semel.protocol.errors import ErrorCode, FatalError, UsageError
from semel.protocol.schemes import hidden_password
from semel.sdk.transport import token_endpoint
from semel.sdk.transport.login import Credentials, Login
from semel.sdk.transport.options import parse_bootstrap
from semel.sdk.transport.security import Security, security_of_query, taken_from
from semel.sdk.transport.token_endpoint import (
    ANSWER_BYTES_MAX,
    EndpointTokens,
    NoTokenError,
    parse_token,
)
from semel.sdk.transport.token_form import TOKEN_BYTES_MAX

PATIENCE_S = 60.0
NAME = "sasl.oauthbearer."


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer() as made:
        yield made


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one attempt before those that wait hear of a failure."""
    monkeypatch.setattr(token_endpoint, "RETRY_S", 0.0)


class Now:
    """The time by which tokens end, set by a test."""

    def __init__(self) -> None:
        self.s = 1_000.0

    def monotonic(self) -> float:
        return self.s

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.s * 1000)


@pytest.fixture
def now() -> Now:
    return Now()


def tokens_of(server: TokenServer, now: Now | None = None, **more: str) -> EndpointTokens:
    return EndpointTokens(server.url, CLIENT, lambda: SECRET, clock=now, **more)


def ready(tokens: EndpointTokens, timeout_s: float = PATIENCE_S, *, fresh: bool = False) -> str:
    return asyncio.run(tokens.ready(timeout_s, fresh=fresh))


def login_of(server: TokenServer, **more: str) -> Login:
    found = taken_from("Admin", dict(server.options(**more)), Security())
    assert found.login is not None
    return found.login


def jwt(**claims: object) -> str:
    return f"e30.{urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.x"


# --- Getting tokens ---------------------------------------------------------------------------------------------------


def test_a_token_is_asked_for_once_and_kept_until_four_fifths_of_its_time(server: TokenServer, now: Now) -> None:
    made = iter(["first", "second"])
    server.make = lambda: next(made)
    tokens = tokens_of(server, now, scope="read write")
    assert [ready(tokens), ready(tokens), tokens.current()] == ["first"] * 3
    assert server.asked == [{"grant_type": ["client_credentials"], "scope": ["read write"]}]
    now.s += 0.79 * 600
    assert ready(tokens, fresh=True) == "first"
    assert len(server.asked) == 1
    now.s += 0.07 * 600
    server.gate.clear()
    assert tokens.current() == ready(tokens) == "first", "it holds still, so nobody waits for the next one"
    server.gate.set()
    assert ready(tokens, fresh=True) == "second"
    assert len(server.asked) == 2


def test_while_the_server_is_away_a_token_is_used_until_its_end_and_not_longer(
    server: TokenServer, now: Now, moment: None
) -> None:
    tokens = tokens_of(server, now)
    ready(tokens)
    server.answers = [(503, b"")] * 3
    now.s += 0.9 * 600
    assert ready(tokens, fresh=True) == "a.b.c"
    now.s += 0.2 * 600
    with pytest.raises(NoTokenError, match="there is no token"):
        tokens.current()
    with pytest.raises(NoTokenError, match="it answers 503"):
        ready(tokens)
    server.answers.clear()
    assert ready(tokens) == "a.b.c"


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_what_may_pass_is_tried_again(server: TokenServer, status: int) -> None:
    server.answers = [(status, b"no")] * 2
    assert ready(tokens_of(server)) == "a.b.c"
    assert len(server.asked) == 3


def test_a_server_that_refuses_the_client_is_not_asked_again(server: TokenServer) -> None:
    server.secret = "another"
    with pytest.raises(FatalError, match=r"refuses the client 'etl': it answers 401 \(invalid_client\)") as raised:
        ready(tokens_of(server))
    assert raised.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert len(server.asked) == 1
    assert "no!" not in raised.value.message, "a stranger's words are not shown"


def test_the_secret_s_file_is_read_for_each_token(server: TokenServer, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("wrong\n")
    options = {f"{NAME}client.secret.location": str(path)}
    given = server.options(**options)
    del given[f"{NAME}client.secret"]
    login = taken_from("Admin", dict(given), Security()).login
    assert login is not None
    credentials = Credentials(login)
    with pytest.raises(FatalError, match="refuses"):
        asyncio.run(credentials.ready(PATIENCE_S))
    path.write_text(f"{SECRET}\n")
    asyncio.run(credentials.ready(PATIENCE_S))
    assert credentials.metadata("127.0.0.1:1", encrypted=False) == (("authorization", "Bearer a.b.c"),)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "no JSON object"),
        (b"<html>", "no JSON object"),
        (b"[1]", "no JSON object"),
        (b"[" * 50_000, "no JSON object"),
        (b"\xff\xfe", "no JSON object"),
        (b"{}", "no access_token"),
        (b'{"access_token": 7, "expires_in": 9}', "no access_token"),
        (b'{"access_token": "", "expires_in": 9}', "no access_token"),
        (b'{"access_token": "a b", "expires_in": 9}', "no access_token"),
        (b'{"access_token": "a\\r\\nX-Header: y", "expires_in": 9}', "no access_token"),
        (json.dumps({"access_token": "x" * (TOKEN_BYTES_MAX + 1), "expires_in": 9}).encode(), "no access_token"),
        (b'{"access_token": "abc", "expires_in": 9, "token_type": "mac"}', "not of the type bearer"),
        (b'{"access_token": "abc"}', "how long the token lasts"),
        (b'{"access_token": "abc", "expires_in": true}', "how long the token lasts"),
        (b'{"access_token": "abc", "expires_in": NaN}', "how long the token lasts"),
        (b'{"access_token": "abc", "expires_in": 1e999}', "how long the token lasts"),
        (b'{"access_token": "a.__.c"}', "how long the token lasts"),
        (b'{"access_token": "abc", "expires_in": 0}', "has ended already"),
        (b'{"access_token": "abc", "expires_in": -5}', "has ended already"),
        (json.dumps({"access_token": jwt(exp=99)}).encode(), "has ended already"),
    ],
)
def test_S2_an_answer_that_is_none_is_refused_and_not_repeated(
    server: TokenServer, moment: None, body: bytes, told: str
) -> None:
    server.answers = [(200, body)]
    with pytest.raises(NoTokenError) as raised:
        ready(tokens_of(server))
    assert told in raised.value.message
    assert "abc" not in raised.value.message


def test_S2_a_huge_answer_is_given_up(server: TokenServer, moment: None) -> None:
    server.answers = [(200, b" " * (ANSWER_BYTES_MAX + 1))]
    with pytest.raises(NoTokenError, match="it has more than 65536 bytes"):
        ready(tokens_of(server))


@pytest.mark.parametrize("how", ["drips", "silent"])
def test_S2_an_answer_that_does_not_come_is_given_up(
    server: TokenServer, moment: None, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(token_endpoint, "TIMEOUT_S", 0.3)
    if how == "drips":
        server.drips.set()
    else:
        server.gate.clear()
    with pytest.raises(NoTokenError, match="gives no token"):
        ready(tokens_of(server))


def test_who_waits_has_a_time_of_his_own(server: TokenServer) -> None:
    server.gate.clear()
    tokens = tokens_of(server)
    with pytest.raises(NoTokenError, match=r"gave no token within 0\.1 s"):
        ready(tokens, 0.1)
    server.gate.set()
    assert ready(tokens) == "a.b.c", "the same attempt continues"
    assert len(server.asked) == 1


def test_who_waits_in_vain_hears_why(server: TokenServer) -> None:
    server.answers = [(503, b"")] * 1_000
    tokens = tokens_of(server)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with pytest.raises(NoTokenError) as raised:
                ready(tokens, 0.5)
            if raised.value.message.endswith("gave no token within 0.5 s: it answers 503"):
                return
            assert time.monotonic() < deadline
    finally:
        tokens.close()


def test_a_client_that_is_closed_does_not_go_on_asking(server: TokenServer) -> None:
    server.answers = [(503, b"")] * 1_000
    tokens = tokens_of(server)
    tokens.close()
    with pytest.raises(NoTokenError, match="it answers 503"):
        ready(tokens)
    assert len(server.asked) == 1


def test_a_token_that_a_node_refuses_is_not_shown_again(server: TokenServer) -> None:
    made = iter(["first", "second"])
    server.make = lambda: next(made)
    tokens = tokens_of(server)
    assert ready(tokens) == "first"
    tokens.refused("another one")
    assert ready(tokens) == "first"
    tokens.refused("first")
    assert ready(tokens) == "second"


def test_many_that_wait_ask_once(server: TokenServer) -> None:
    tokens = tokens_of(server)

    async def all_at_once() -> list[str]:
        return await asyncio.gather(*(tokens.ready(PATIENCE_S) for _ in range(50)))

    assert asyncio.run(all_at_once()) == ["a.b.c"] * 50
    assert len(server.asked) == 1


def test_a_token_s_time_is_what_the_server_says_or_the_token_itself() -> None:
    def lasts(**answer: object) -> float:
        return parse_token(json.dumps(answer).encode(), 1_000.0)[1]

    assert lasts(access_token="x", expires_in=60) == 60
    assert lasts(access_token="x", expires_in="60") == 60
    assert lasts(access_token=jwt(exp=1_300)) == 300
    assert lasts(access_token=jwt(exp=1_300), expires_in=60) == 60, "the clocks of the two machines may differ"
    assert lasts(access_token="x", expires_in=10**30) == 366 * 86_400


def test_https_is_checked_by_the_authorities_that_are_given(tmp_path: Path, moment: None) -> None:
    authority = Authority(tmp_path)
    with TokenServer(pair=authority.node()) as server:
        assert ready(tokens_of(server, ca_location=str(authority.ca))) == "a.b.c"
        asked = len(server.asked)
        with pytest.raises(NoTokenError, match="CERTIFICATE_VERIFY_FAILED"):
            ready(tokens_of(server))
        assert len(server.asked) == asked, "nobody else gets the secret"


# --- Options ----------------------------------------------------------------------------------------------------------


def test_clients_take_kafkas_options_and_the_bootstrap_carries_them_on(server: TokenServer) -> None:
    wanted = Login(
        "", mechanism="OAUTHBEARER", token_url=server.url, client_id=CLIENT, client_secret=SECRET, scope="read"
    )
    assert login_of(server, **{f"{NAME}scope": "read"}) == wanted
    java = {
        "sasl.mechanism": "OAUTHBEARER",
        f"{NAME}token.endpoint.url": server.url,
        f"{NAME}client.credentials.client.id": CLIENT,
        f"{NAME}client.credentials.client.secret": SECRET,
        f"{NAME}scope": "read",
    }
    older = {
        f"{NAME}token.endpoint.url": server.url,
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        f'clientId="{CLIENT}" clientSecret="{SECRET}" scope="read";',
    }
    python = {name.replace(".", "_"): value for name, value in server.options(**{f"{NAME}scope": "read"}).items()}
    for options in (java, older, python):
        assert taken_from("Admin", dict(options), Security()).login == wanted
    given = parse_bootstrap(f"sasl://127.0.0.1:1{Security(None, wanted).query()}")
    assert given.security.login == wanted
    assert parse_bootstrap(str(given)) == given, "what passes a bootstrap on, to Spark's tasks, passes it on"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"token.endpoint.url": "http://login.example.com/token"}, "is http: the secret and tokens would be readable"),
        ({"token.endpoint.url": "https://me:pw@login.example.com/token"}, "has a user or a password in it"),
        ({"token.endpoint.url": "https:///token"}, "is no address"),
        ({"token.endpoint.url": "https://x:99999/token"}, "is no address"),
        ({"token.endpoint.url": "https://x/to\nken"}, "is no address"),
        ({"token.endpoint.url": "ftp://x/token"}, "needs sasl.oauthbearer.token.endpoint.url=file:///PATH"),
        ({"token.endpoint.url": "file:///token"}, "with a token in a file: nothing is asked for"),
        ({"client.id": ""}, "needs sasl.oauthbearer.client.id"),
        ({"client.id": "a:b"}, "without spaces and colons"),
        ({"client.secret": ""}, "needs sasl.oauthbearer.client.secret.location, a file"),
        ({"client.secret.location": "/secret"}, "has both"),
        ({"method": "default"}, "is oidc where tokens are got by http"),
    ],
)
def test_what_can_t_be_meant_is_refused_without_the_secret(changes: dict[str, str], told: str) -> None:
    options = {
        "sasl.mechanism": "OAUTHBEARER",
        f"{NAME}method": "oidc",
        f"{NAME}token.endpoint.url": "https://login.example.com/token",
        f"{NAME}client.id": CLIENT,
        f"{NAME}client.secret": SECRET,
        **{f"{NAME}{name}": value for name, value in changes.items()},
    }
    query = "&".join(f"{name}={quote(value)}" for name, value in options.items())
    with pytest.raises(UsageError) as raised:
        security_of_query("bootstrap", "sasl://", query)
    assert told in raised.value.message
    assert SECRET not in raised.value.message


def test_an_unencrypted_server_elsewhere_is_asked_only_where_that_was_said() -> None:
    options = {
        "sasl.mechanism": "OAUTHBEARER",
        f"{NAME}token.endpoint.url": "http://login.example.com/token",
        f"{NAME}client.id": CLIENT,
        f"{NAME}client.secret": SECRET,
        "sasl.plain.without.tls": "true",
    }
    assert taken_from("Admin", options, Security()).login is not None


def test_files_that_can_t_be_used_are_told_at_once(server: TokenServer, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    missing = server.options(**{f"{NAME}client.secret.location": str(tmp_path / "absent")})
    del missing[f"{NAME}client.secret"]
    login = taken_from("Admin", missing, Security()).login
    assert login is not None
    with pytest.raises(UsageError, match=r"client\.secret\.location = .*absent can't be read"):
        Credentials(login)
    secured = {
        **server.options(**{"https.ca.location": str(tmp_path / "empty")}),
        f"{NAME}token.endpoint.url": "https://x/t",
    }
    login = taken_from("Admin", secured, Security()).login
    assert login is not None
    with pytest.raises(UsageError, match=r"https\.ca\.location = .* has no certificates in PEM"):
        Credentials(login)


def test_S5_nothing_shows_the_secret_or_the_token(server: TokenServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    login = login_of(server)
    where = parse_bootstrap(f"sasl://127.0.0.1:1{Security(None, login).query()}")
    credentials = Credentials(login)
    server.answers = [(500, b"")]
    asyncio.run(credentials.ready(PATIENCE_S))
    for shown in (repr(login), repr(where), repr(credentials), hidden_password(str(where)), caplog.text):
        assert SECRET not in shown
        assert "a.b.c" not in shown
    with pytest.raises(UsageError) as raised:
        parse_bootstrap(f"sasl://127.0.0.1:1{Security(None, login).query()}&{SECRET}=x")
    assert SECRET not in raised.value.message
