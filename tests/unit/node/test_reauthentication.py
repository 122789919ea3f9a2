"""Clients prove again who they are after connections.max.reauth.ms (KIP-368), with passwords and delegation tokens."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asking_node import MECHANISMS, at
from delegating_node import TOKEN_AUTH, delegating, login_of, open_connection, prove, shake_hands
from live_node import LiveNode
from passing_numbers import numbers_pass
from user_files import ALICE, PASSWORD, set_user

import semel
from semel.broker.users.authentication import Authentication
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey
from semel.runtime.kafka_client.connection import Connection, ConnectionLostError

HOUR_MS = 3_600_000
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    users = set_user(set_user(tmp_path / "users"), "bob", PASSWORD)
    with LiveNode(tmp_path, **delegating(users, connections_max_reauth_ms=HOUR_MS)) as live:
        yield live


def run(node: LiveNode, test: Callable[[], Awaitable[None]]) -> None:
    node.run(test)


def end_sessions(node: LiveNode) -> None:
    """Have the time of all connections be over."""
    listener = node.node.kafka_listener
    assert listener is not None
    for connection in listener._connections:
        if connection.authentication is not None:
            assert connection.authentication.ends < math.inf
            connection.authentication.ends = -math.inf


async def is_served(connection: Connection) -> bool:
    """Ask for something; return whether it is answered, and not the connection closed."""
    try:
        await connection.request(ApiKey.API_VERSIONS, 0, [b""], timeout_ms=60_000)
    except ConnectionLostError:
        return False
    return True


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_who_goes_on_after_the_end_is_closed_and_who_proves_it_again_is_served(node: LiveNode, mechanism: str) -> None:
    async def test() -> None:
        goes_on, proves = [await open_connection(node.node.kafka_address) for _ in range(2)]
        for connection in (goes_on, proves):
            answer, lifetime_ms = await prove(connection, ALICE, PASSWORD, mechanism)
            assert (answer.error, lifetime_ms) == (ErrorCode.NONE, HOUR_MS)
            assert await is_served(connection)
        end_sessions(node)
        assert not await is_served(goes_on)
        answer, lifetime_ms = await prove(proves, ALICE, PASSWORD, mechanism)
        assert (answer.error, lifetime_ms) == (ErrorCode.NONE, HOUR_MS)
        assert await is_served(proves)

    run(node, test)


def test_without_the_setting_nobody_has_to_and_may_not(tmp_path: Path) -> None:
    with LiveNode(tmp_path, **delegating(set_user(tmp_path / "users"))) as node:

        async def test() -> None:
            connection = await open_connection(node.node.kafka_address)
            assert (await prove(connection, ALICE, PASSWORD))[1] == 0
            assert await shake_hands(connection) is ErrorCode.ILLEGAL_SASL_STATE

        run(node, test)


@pytest.mark.parametrize(
    ("user", "password", "mechanism"),
    [
        (ALICE, PASSWORD, "SCRAM-SHA-512"),
        (ALICE, PASSWORD, "PLAIN"),
        ("bob", PASSWORD, "SCRAM-SHA-256"),
        (ALICE, "wrong", "SCRAM-SHA-256"),
    ],
)
def test_S6_another_mechanism_or_user_or_password_closes_the_connection(
    node: LiveNode, user: str, password: str, mechanism: str
) -> None:
    async def test() -> None:
        connection = await open_connection(node.node.kafka_address)
        await prove(connection, ALICE, PASSWORD)
        if mechanism != "SCRAM-SHA-256":
            assert await shake_hands(connection, mechanism) is ErrorCode.UNSUPPORTED_SASL_MECHANISM
        else:
            assert (await prove(connection, user, password, mechanism))[0].error is FAILED
        assert not await is_served(connection)

    run(node, test)


def test_S2_a_client_proves_it_again_once_a_second(node: LiveNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.broker.users.authentication._AGAIN_AFTER_S", 3_600)

    async def test() -> None:
        connection = await open_connection(node.node.kafka_address)
        for _ in range(2):
            assert (await prove(connection, ALICE, PASSWORD))[0].error is ErrorCode.NONE
        assert await shake_hands(connection) is ErrorCode.ILLEGAL_SASL_STATE

    run(node, test)


def test_semels_clients_go_on_when_their_connections_are_closed(tmp_path: Path) -> None:
    users = set_user(tmp_path / "users")
    with LiveNode(tmp_path, **delegating(users, connections_max_reauth_ms=1)) as node:
        numbers_pass(at(node.bootstrap))


def test_a_delegation_token_is_proven_again_by_the_same_owner_alone(node: LiveNode) -> None:
    with semel.Admin(at(node.bootstrap)) as alice, semel.Admin(at(node.bootstrap, "bob")) as bob:
        short = alice.create_delegation_token(max_lifetime_ms=HOUR_MS // 2)
        long, of_bob = alice.create_delegation_token(), bob.create_delegation_token()

    async def test() -> None:
        connection = await open_connection(node.node.kafka_address)
        answer, lifetime_ms = await prove(connection, *login_of(short), extensions=TOKEN_AUTH)
        assert answer.error is ErrorCode.NONE
        assert 0 < lifetime_ms <= HOUR_MS // 2, "as long as the token"
        answer, lifetime_ms = await prove(connection, *login_of(long))
        assert (answer.error, lifetime_ms) == (ErrorCode.NONE, HOUR_MS), "as long as the setting"
        assert await is_served(connection)
        other = await open_connection(node.node.kafka_address)
        await prove(other, *login_of(short))
        assert (await prove(other, *login_of(of_bob)))[0].error is FAILED
        assert not await is_served(other)

    run(node, test)


def test_the_end_is_counted_from_the_last_proof() -> None:
    class Proven:
        user, verifier, token, refusal = "alice", object(), None, ""

        async def answer(self, _token: bytes) -> bytes:
            return b""

    now = [100.0]
    here: Any = Authentication(None, None, MECHANISMS, lambda: now[0], 5_000)
    assert (here.since, here.ends, here.lifetime_ms) == (100.0, math.inf, 5_000)
    for begins in (110.0, 114.0):
        now[0] = begins
        here._exchange = Proven()
        assert asyncio.run(here.answer(b"")) == (b"", True)
        assert here.ends == begins + 5
        for passed, is_over in ((0.0, False), (5.0, False), (5.001, True)):
            now[0] = begins + passed
            assert here.is_over is is_over
