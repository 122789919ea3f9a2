"""Clients that get their tokens of a server (KIP-768): nothing is interrupted when a token ends (KIP-368)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_node import LiveNode
from passing_numbers import numbers_pass
from token_issuer import Issuer
from token_server import TokenServer

import semel
import semel.aio
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.protocol.errors import ErrorCode, FatalError, RetriableError
from semel.protocol.kafka.api import ApiKey
from semel.sdk.transport import connection as connection_module
from semel.sdk.transport.options import Bootstrap
from semel.sdk.transport.security import Security, taken_from

PATIENCE_S = 60.0
LASTS_S = 6


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


@pytest.fixture
def node(tmp_path: Path, issuer: Issuer) -> Iterator[LiveNode]:
    with LiveNode(tmp_path, **issuer.settings()) as live:
        yield live


@pytest.fixture
def server(issuer: Issuer) -> Iterator[TokenServer]:
    with TokenServer(issuer.token) as made:
        yield made


def at(address: object, server: TokenServer) -> Bootstrap:
    return Bootstrap((str(address),), taken_from("a test", dict(server.options()), Security()))


def kafka_of(node: LiveNode) -> KafkaListener:
    listener = node.node.kafka_listener
    assert listener is not None
    return listener


def test_clients_of_either_port_get_tokens_themselves(node: LiveNode, server: TokenServer) -> None:
    numbers_pass(at(node.bootstrap, server))
    numbers_pass(at(node.node.kafka_address, server))
    numbers_pass(str(at(node.bootstrap, server)))
    with semel.Admin(node.bootstrap, security_protocol="SASL_PLAINTEXT", **server.options()) as admin:
        assert admin.topics()

    async def by_asyncio() -> None:
        async with semel.aio.Admin(str(at(node.bootstrap, server))) as admin:
            assert await admin.topics()

    asyncio.run(by_asyncio())


def test_S6_a_client_that_the_server_refuses_hears_that_and_not_its_secret(node: LiveNode, server: TokenServer) -> None:
    server.secret = "another"
    with semel.Admin(at(node.bootstrap, server)) as admin, pytest.raises(FatalError) as raised:
        admin.topics()
    assert raised.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "refuses the client 'etl'" in raised.value.message
    assert "hunter2" not in raised.value.message


def test_a_server_that_is_away_is_named_once_the_time_to_connect_is_over(node: LiveNode, server: TokenServer) -> None:
    where = at(node.bootstrap, server)
    server.close()
    with semel.Admin(where, connect_timeout_ms=100) as admin, pytest.raises(RetriableError) as raised:
        admin.topics()
    assert f"{server.url} g" in raised.value.message, "gives, or gave, no token"
    assert "refused" in raised.value.message


def test_a_connection_outlives_its_first_token(
    node: LiveNode, server: TokenServer, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine under load may be late, so the next token is shown long before the first one ends."""
    monkeypatch.setattr(connection_module, "_RENEWED_AT", 0.1)
    server.make = lambda: issuer.token(lasts_s=LASTS_S)
    server.expires_in = 1
    kafka = kafka_of(node)
    with semel.Producer(at(node.bootstrap, server), idempotent=False) as producer:
        with semel.Admin(at(node.bootstrap, server)) as admin:
            admin.create_topic("t", partitions=1)
        first = producer.send("t", b"1").result()
        began, accepted = time.time(), kafka.statistics().accepted_connections
        ends = began + LASTS_S + 1
        sent, deadline = 1, time.monotonic() + PATIENCE_S
        while time.time() < ends:
            assert time.monotonic() < deadline
            assert producer.send("t", b"n").result().offset == first.offset + sent
            sent += 1
            time.sleep(0.02)
        node.run(kafka._watch)  # it closes connections whose token has ended
        producer.send("t", b"last").result()
        statistics = kafka.statistics()
    assert statistics.accepted_connections == accepted, "the same connection all the time"
    assert statistics.aborted_connections == 0
    assert statistics.requests[ApiKey.SASL_AUTHENTICATE.name] > 3
    assert len(server.asked) > 3
