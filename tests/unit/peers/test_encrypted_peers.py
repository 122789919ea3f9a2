"""Nodes whose `peer.listen` has `tls://`: what they say is encrypted, and each checks who answers (S1, S6)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from echoing_peers import Echo, EchoServer
from kafka_node import until
from two_nodes import ONE, TWO, TwoNodes, registration, run_with_two, tell

from semel.broker.listeners.peers.listener import UNPROVEN_MAX
from semel.broker.peers.handshake import Role
from semel.broker.peers.silence import Sign
from semel.runtime.kafka_client.connection import ConnectionLostError
from semel.runtime.setting import ConfigError

Test = Callable[[TwoNodes], Awaitable[None]]


def run_encrypted(folder: Path, test: Test, authority: Authority | None = None, *hosts: str, **changed: Any) -> None:
    """Run two nodes that encrypt what they say to each other, with certificates for `hosts`."""
    authority = authority or Authority(folder / "authority")
    pair = authority.node("node", *hosts)
    settings = {
        "peer_listen": "tls://127.0.0.1:0",
        "ssl_certificate_location": str(pair.certificate),
        "ssl_key_location": str(pair.key),
        "ssl_ca_location": str(authority.ca),
    }
    run_with_two(folder, test, **{**settings, **changed})


def port_of(both: TwoNodes) -> int:
    listener = both.two.peer_listener
    assert listener is not None
    return listener.port


def test_S6_nodes_ask_each_other_over_encrypted_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(both: TwoNodes) -> None:
        EchoServer(both.two)
        said = [bytes(size) for size in (1, 70_000, 3_000_000)]
        assert await asyncio.gather(*(both.one.peers.ask(TWO, Echo(one)) for one in said)) == said
        connection = both.one.peers._peers[TWO]._channels[Role.REQUESTS].connection
        assert connection is not None
        assert connection._transport is not None
        assert connection._transport.get_extra_info("cipher") is not None
        assert await both.one.peers.probe(TWO, 5_000) is Sign.ANSWERED
        assert await both.two.peers.ask(ONE, _fetch_nothing()) is not None

    run_encrypted(tmp_path, test)
    assert "can't connect to this one" not in caplog.text


def _fetch_nothing() -> Any:
    from semel.broker.peers.requests import FetchAsReplica
    from semel.protocol.kafka.fetch import FetchRequest

    return FetchAsReplica(FetchRequest([], 0, replica_id=TWO))


def test_S1_a_node_in_plain_text_gets_no_answer(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        EchoServer(both.two)
        plain = replace(registration(both.two), peer_host="127.0.0.1")
        await tell(both.one, plain)
        with pytest.raises(ConnectionLostError):
            await both.one.peers.ask(TWO, Echo(b"x"), timeout_ms=5_000)

    run_encrypted(tmp_path, test)


def test_S1_who_answers_with_a_certificate_for_another_name_is_not_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(both: TwoNodes) -> None:
        server = EchoServer(both.two)
        with pytest.raises(ConnectionLostError, match="certificate verify failed"):
            await both.one.peers.ask(TWO, Echo(b"x"), timeout_ms=5_000)
        assert server.asked == []

    run_encrypted(tmp_path, test, None, "log1.example.com")
    told = "the other nodes can't connect to this one as 127.0.0.1: [SSL: CERTIFICATE_VERIFY_FAILED]"
    assert caplog.text.count(told) == 2, "each of them says so as it starts"


def test_S1_who_answers_with_a_certificate_of_strangers_is_not_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(both: TwoNodes) -> None:
        server = EchoServer(both.two)
        with pytest.raises(ConnectionLostError, match="certificate verify failed"):
            await both.one.peers.ask(TWO, Echo(b"x"), timeout_ms=5_000)
        assert server.asked == []

    run_encrypted(tmp_path, test, ssl_ca_location=str(Authority(tmp_path / "strangers").ca))
    assert "node 2 is not asked anything: TLS with tls://127.0.0.1" in caplog.text


def test_S1_encryption_does_not_stand_in_for_the_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path / "authority")

    async def test(both: TwoNodes) -> None:
        context = authority.tls(authority.client()).context()
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(both), ssl=context)
        writer.write(bytes(200))
        assert await reader.read() == b""
        await until(lambda: both.two.peer_listener.refused_handshakes > 0)  # type: ignore[union-attr]
        writer.close()

    with caplog.at_level(logging.WARNING):
        run_encrypted(tmp_path, test, authority)
    assert "closing connection of a peer" in caplog.text


def test_S2_strangers_who_begin_handshakes_keep_no_node_out(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        EchoServer(both.two)
        address = ("127.0.0.1", port_of(both))
        silent = [socket.create_connection(address) for _ in range(3 * UNPROVEN_MAX)]
        assert both.two.peer_listener is not None
        acceptor = both.two.peer_listener._acceptor
        await until(lambda: acceptor.connections.open + acceptor.refused + acceptor.failed_handshakes >= len(silent))
        assert len(acceptor._handshaking) <= UNPROVEN_MAX
        assert await both.one.peers.ask(TWO, Echo(b"x"), timeout_ms=5_000) == b"x"
        for each in silent:
            each.close()
        await until(lambda: not acceptor._handshaking)

    run_encrypted(tmp_path, test, peer_max_connections=1)


def test_a_node_says_what_it_lacks_to_reach_one_that_encrypts(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        await tell(both.one, replace(registration(both.two), peer_host="tls://127.0.0.1"))
        with pytest.raises(ConnectionLostError, match=r"set ssl\.ca\.location here"):
            await both.one.peers.ask(TWO, Echo(b"x"), timeout_ms=5_000)

    run_with_two(tmp_path, test)


def test_nodes_that_encrypt_and_those_that_do_not_reach_each_other(tmp_path: Path) -> None:
    """So nodes can be restarted one by one: each is reached as it says."""

    async def test(both: TwoNodes) -> None:
        EchoServer(both.two)
        assert registration(both.two).peer_host == "127.0.0.1"
        assert await both.one.peers.ask(TWO, Echo(b"x")) == b"x"

    authority = Authority(tmp_path / "authority")
    run_with_two(tmp_path, test, ssl_ca_location=str(authority.ca))


def test_a_file_of_authorities_that_can_t_be_used_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "wrong.pem").write_text("no certificate")

    async def test(both: TwoNodes) -> None:
        raise AssertionError("it must not start")

    with pytest.raises(ConfigError, match=r"ssl\.ca\.location = .*wrong\.pem can't be used"):
        run_encrypted(tmp_path, test, ssl_ca_location=str(tmp_path / "wrong.pem"))
    for name in ("one", "two"):
        (tmp_path / name).rmdir()
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location = .*wrong\.pem can't be used"):
        run_with_two(tmp_path, test, ssl_ca_location=str(tmp_path / "wrong.pem"))
