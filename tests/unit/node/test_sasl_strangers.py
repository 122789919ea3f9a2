"""What strangers can do on the Kafka listener before they have proven a user's password (S2, S5, S6)."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from asking_node import asking, at, authenticated
from live_node import LiveNode
from stranger import Stranger
from user_files import ALICE, PASSWORD, set_user

import semel
from semel.broker.listeners.kafka import authentication as authentication_module
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.sasl import sasl_authenticate_request, sasl_handshake_request
from semel.runtime.kafka_client.connection import Connection, ConnectionLostError, connect, dial_tcp
from semel.sdk.transport.login import AuthenticationFailedError, Credentials

PATIENCE_S = 30


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return set_user(tmp_path / "users")


@pytest.fixture
def node(tmp_path: Path, users: Path) -> Iterator[LiveNode]:
    with LiveNode(tmp_path, **asking(users)) as live:
        yield live


@pytest.fixture
def stranger(node: LiveNode) -> Iterator[Callable[[], Stranger]]:
    made: list[Stranger] = []

    def another() -> Stranger:
        made.append(Stranger(node))
        return made[-1]

    yield another
    for one in made:
        one.close()


RIGHT = f"\0{ALICE}\0{PASSWORD}".encode()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication_module, "FAILED_DELAY_S", 0.0)


@pytest.mark.usefixtures("fast")
def test_S6_nothing_is_served_before_a_client_has_authenticated(
    node: LiveNode, stranger: Callable[[], Stranger]
) -> None:
    """Each API that there is, before the first step and between the two."""
    kafka = node.node.kafka_listener
    assert kafka is not None
    before = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
    for api in kafka.registry:
        if api.key in before:
            continue
        for has_begun in (False, True):
            client = stranger()
            if has_begun:
                assert client.handshake() is ErrorCode.NONE
            assert client.ask(api.key, api.min_version, bytes(64)) is None, api.key.name
    assert node.node.metadata.image.topics == {}


@pytest.mark.usefixtures("fast")
def test_S6_any_order_of_steps_serves_those_alone_who_proved_themselves_last(
    node: LiveNode, stranger: Callable[[], Stranger]
) -> None:
    """Steps at random, against a model of what is allowed."""
    draw = random.Random(20)
    tokens = (b"", RIGHT, RIGHT + b"x", b"\0bob\0x", b"bob" + RIGHT, b"n,,n=alice,r=abc", b"\xff", bytes(5_000))
    proven = 0
    for _ in range(150):
        client, state = stranger(), "new"
        for _ in range(draw.randrange(1, 7)):
            step = draw.choice(("handshake", "authenticate", "versions", "metadata"))
            if goes_on := draw.random() < 0.6:
                step = {"new": "handshake", "begun": "authenticate"}.get(state, "metadata")
            if step == "versions":
                assert client.ask(ApiKey.API_VERSIONS, 0, b"") is not None
                continue
            if step == "handshake":
                mechanism = "PLAIN" if goes_on else draw.choice(("PLAIN", "GSSAPI", ""))
                code = client.handshake(mechanism)
                if state != "new":
                    assert code is ErrorCode.ILLEGAL_SASL_STATE
                    break
                if mechanism != "PLAIN":
                    assert code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
                    break
                assert code is ErrorCode.NONE
                state = "begun"
            elif step == "authenticate":
                token = RIGHT if goes_on else draw.choice(tokens)
                code = client.authenticate(token)
                if state != "begun":
                    assert code is ErrorCode.ILLEGAL_SASL_STATE
                    break
                if token != RIGHT:
                    assert code is ErrorCode.SASL_AUTHENTICATION_FAILED
                    break
                assert code is ErrorCode.NONE
                state, proven = "proven", proven + 1
            else:
                answer = client.ask(ApiKey.METADATA, 1, (0).to_bytes(4, "big"))
                assert (answer is not None) == (state == "proven")
                if answer is None:
                    break
        else:
            continue
        assert client.is_hung_up_on
    assert proven > 10


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "first",
    [
        b"n,,n=alice,r=",
        b"n,,n=alice",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,,n=al=ice,r=abc",
        b"n,,m=x,n=alice,r=abc",
        b"n,,n=alice,r=abc," + b"x=" + b"y" * 5_000,
        b"n,,n=,r=abc",
        b"\xff",
        b"",
    ],
)
def test_S5_a_broken_first_token_of_scram_is_refused(stranger: Callable[[], Stranger], first: bytes) -> None:
    client = stranger()
    assert client.handshake("SCRAM-SHA-256") is ErrorCode.NONE
    assert client.authenticate(first) is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.is_hung_up_on


@pytest.mark.usefixtures("fast")
def test_S6_a_proof_of_one_connection_proves_nothing_on_another(
    node: LiveNode, stranger: Callable[[], Stranger], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    answer = Credentials._answer

    async def noted(self: Credentials, connection: Connection, address: str, token: bytes) -> bytes:
        sent.append(token)
        return await answer(self, connection, address, token)

    monkeypatch.setattr(Credentials, "_answer", noted)
    node.run(lambda: authenticated(node))
    first, final = sent
    client = stranger()
    assert client.handshake("SCRAM-SHA-256") is ErrorCode.NONE
    assert client.authenticate(first) is ErrorCode.NONE
    assert client.authenticate(final) is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_client_finds_out_that_a_stranger_answers_in_the_nodes_place(
    node: LiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who does not know what proves the password can't answer SCRAM's last token, and says yes to everything."""
    answer = Credentials._answer

    async def yes(self: Credentials, connection: Connection, address: str, token: bytes) -> bytes:
        told = await answer(self, connection, address, token)
        return b"v=" + b"A" * 43 + b"=" if told.startswith(b"v=") else told

    monkeypatch.setattr(Credentials, "_answer", yes)

    async def test() -> None:
        with pytest.raises(AuthenticationFailedError, match="has not proven that it is a node"):
            await authenticated(node)

    node.run(test)


def test_S2_requests_are_small_before_a_client_has_authenticated(
    node: LiveNode, stranger: Callable[[], Stranger]
) -> None:
    client = stranger()
    client.send((authentication_module.REQUEST_BYTES_MAX + 1).to_bytes(4, "big"))
    assert client.is_hung_up_on

    async def large() -> bool:
        """Afterwards they may be as large as ever."""
        connection = await authenticated(node)
        body = (0).to_bytes(4, "big") + bytes(authentication_module.REQUEST_BYTES_MAX * 2)
        await connection.request(ApiKey.METADATA, 1, [body], timeout_ms=10_000)
        connection.close()
        return True

    assert node.run(large)


def test_S2_who_does_not_authenticate_is_hung_up_on(
    tmp_path: Path, users: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LiveNode(tmp_path, **asking(users, kafka_request_receive_timeout_ms=400)) as live:
        silent, begun = Stranger(live), Stranger(live)
        assert begun.handshake() is ErrorCode.NONE

        async def lasting() -> bool:
            """One that has authenticated stays."""
            connection = await authenticated(live)
            await asyncio.sleep(1.0)
            return connection.is_open

        assert live.run(lasting)
        assert silent.is_hung_up_on
        assert begun.is_hung_up_on
        for one in (silent, begun):
            one.close()
    assert "the client has not authenticated within kafka.request.receive.timeout.ms=400" in caplog.text


def test_S5_what_the_log_says_of_failures_has_no_password(
    node: LiveNode, stranger: Callable[[], Stranger], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client = stranger()
    client.handshake()
    begun = time.monotonic()
    assert client.authenticate(b"\0" + b"a" * 80 + b"\n\0hunter2") is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert time.monotonic() - begun >= authentication_module.FAILED_DELAY_S, "guessing takes time"
    with semel.Admin(at(node.bootstrap, password="hunter2")) as admin, pytest.raises(FatalError):
        admin.topics()
    assert "authentication.failed: listener='kafka' peer='127.0.0.1:" in caplog.text
    assert f"user='{'a' * 60}' reason='wrong user or password" in caplog.text
    assert "hunter2" not in caplog.text
    kafka = node.node.kafka_listener
    assert kafka is not None
    assert kafka.statistics().failed_authentications == 1


def test_the_node_names_both_apis_only_where_it_asks(tmp_path: Path, node: LiveNode) -> None:
    def versions(live: LiveNode) -> Awaitable[set[int]]:
        async def ask() -> set[int]:
            connection = await connect("here", dial_tcp(*live.node.kafka_address), client_id="test")
            connection.close()
            return set(connection.versions)

        return ask()

    both = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
    assert both <= node.run(lambda: versions(node))
    with LiveNode(tmp_path / "other") as other:
        assert not both & other.run(lambda: versions(other))


def test_a_connection_that_is_lost_amid_it_leaves_nothing(node: LiveNode) -> None:
    async def test() -> None:
        for _ in range(20):
            connection = await connect("here", dial_tcp(*node.node.kafka_address), client_id="test")
            asked = connection.request(ApiKey.SASL_HANDSHAKE, 1, sasl_handshake_request("PLAIN"), timeout_ms=5_000)
            await asked
            waiting = connection.request(
                ApiKey.SASL_AUTHENTICATE, 1, sasl_authenticate_request(b"\0a\0b"), timeout_ms=5_000
            )
            connection.close()
            with pytest.raises(ConnectionLostError):
                await waiting

    node.run(test)
    kafka = node.node.kafka_listener
    assert kafka is not None
    deadline = time.monotonic() + PATIENCE_S
    while kafka._connections:
        assert time.monotonic() < deadline
        time.sleep(0.01)
