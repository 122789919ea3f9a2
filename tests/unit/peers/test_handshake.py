"""S1: nothing is read of a peer before it has proven that it has the secret of the cluster."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from kafka_calls import request_body
from kafka_node import until
from running_node import running_node
from two_nodes import ONE, SECRET, TWO, secret_file

from semel.broker.listeners.peers.listener import UNPROVEN_MAX, PeerListener
from semel.broker.node import Node
from semel.broker.peers.dialing import dial_peer
from semel.broker.peers.encryption import PeerEncryption
from semel.broker.peers.handshake import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    ClientHandshake,
    HandshakeError,
    Place,
    Role,
    ServerHandshake,
)
from semel.broker.peers.secret import PROOF_BYTES, ClusterSecret, read_secret
from semel.protocol.kafka.api import ApiKey, build_request_header
from semel.runtime.kafka_client.connection import Connection, ConnectionLostError, connect
from semel.runtime.setting import ConfigError

HERE = Place("cluster", ONE, ClusterSecret(SECRET))
THERE = Place("cluster", TWO, ClusterSecret(SECRET))


def shake(
    client: Place, server: Place, *, server_id: int = ONE, nonces: tuple[bytes, bytes] = (b"c" * 32, b"s" * 32)
) -> int:
    """Return as which node the server knows the client in the end. Raises `HandshakeError`."""
    ours, theirs = ClientHandshake(client, server_id, Role.REQUESTS, nonces[0]), ServerHandshake(server, nonces[1])
    ours.check(theirs.prove(ours.prove(theirs.greet(ours.hello))))
    return theirs.node_id


# --- The two sides ----------------------------------------------------------------------------------------------------


def test_both_sides_prove_themselves() -> None:
    assert shake(THERE, HERE) == TWO


@pytest.mark.parametrize(
    ("client", "why"),
    [
        (replace(THERE, secret=ClusterSecret(SECRET[:-1] + b"x")), "another cluster.secret.file"),
        (replace(THERE, cluster_id="other"), "is of another cluster"),
        (replace(THERE, node_id=ONE), "it says that it is node 1"),
        (replace(THERE, node_id=-1), "it says that it is node -1"),
    ],
)
def test_S1_a_stranger_is_refused(client: Place, why: str) -> None:
    with pytest.raises(HandshakeError, match=why):
        shake(client, HERE)


def test_S1_a_proof_for_another_node_is_refused() -> None:
    with pytest.raises(HandshakeError, match="it wants node 3, and this is node 1"):
        shake(THERE, HERE, server_id=3)


def test_S1_a_server_without_the_secret_is_refused() -> None:
    ours = ClientHandshake(THERE, ONE, Role.REQUESTS, b"c" * 32)
    mine = ours.prove(b"s" * 32)
    for forged in (bytes(PROOF_BYTES), mine, b"", mine[:-1]):
        with pytest.raises(HandshakeError, match="the node that answered"):
            ours.check(forged)


@pytest.mark.parametrize("part", ["magic", "version", "role", "client", "server", "nonce"])
def test_S1_every_part_of_the_hello_is_proven(part: str) -> None:
    ours, theirs = ClientHandshake(THERE, ONE, Role.REQUESTS, b"c" * 32), ServerHandshake(HERE, b"s" * 32)
    at = {"magic": 0, "version": 9, "role": 10, "client": 14, "server": 18, "nonce": 19}[part]
    changed = bytearray(ours.hello)
    changed[at] ^= 1
    with pytest.raises(HandshakeError):
        theirs.prove(ours.prove(theirs.greet(bytes(changed))))


def test_S1_a_recorded_handshake_is_worth_nothing() -> None:
    ours, theirs = ClientHandshake(THERE, ONE, Role.REQUESTS, b"c" * 32), ServerHandshake(HERE, b"s" * 32)
    recorded = ours.prove(theirs.greet(ours.hello))
    theirs.prove(recorded)
    again = ServerHandshake(HERE, b"t" * 32)
    again.greet(ours.hello)
    with pytest.raises(HandshakeError):
        again.prove(recorded)


# --- The secret -------------------------------------------------------------------------------------------------------


def test_S5_the_secret_is_in_no_repr_and_not_pickled() -> None:
    text = SECRET.decode()
    for shown in (repr(HERE), str(HERE.secret), repr(ServerHandshake(HERE, bytes(32)))):
        assert text not in shown
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(HERE.secret)


def test_the_file_of_the_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = secret_file(tmp_path, SECRET + b"\r\n")
    with caplog.at_level(logging.WARNING):
        assert read_secret(path).proves(b"x", ClusterSecret(SECRET).proof(b"x"))
        assert not caplog.records
        Path(path).chmod(0o640)
        read_secret(path)
    assert "may be used by others than its owner (mode -rw-r-----): chmod 600 it" in caplog.text
    assert SECRET.decode() not in caplog.text
    for content in (SECRET[:-1], b"", SECRET[:-1] + b"\n", bytes(5_000)):
        with pytest.raises(ConfigError, match=r"has 32 to 4096 bytes, not \d+\. `openssl rand") as caught:
            read_secret(secret_file(tmp_path, content))
        assert SECRET[:-1].decode() not in str(caught.value)
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        read_secret(str(tmp_path / "nowhere"))


# --- The listener -----------------------------------------------------------------------------------------------------


def run(folder: Path, test: Callable[[Node, PeerListener], Awaitable[None]], **settings: int) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(60),
            running_node(
                folder,
                node_id=ONE,
                peer_listen="127.0.0.1:0",
                cluster_secret_file=secret_file(folder),
                **settings,
            ) as node,
        ):
            listener = node.peer_listener
            assert listener is not None
            await test(node, listener)

    asyncio.run(main())


def place_of(node: Node, secret: bytes = SECRET) -> Place:
    return Place(node.metadata.image.cluster_id, TWO, ClusterSecret(secret))


async def open_peer(
    node: Node, listener: PeerListener, secret: bytes = SECRET, role: Role = Role.REQUESTS
) -> Connection:
    place = place_of(node, secret)
    dial = dial_peer("127.0.0.1", listener.port, place, ONE, role, PeerEncryption(""))
    return await connect("the peer", dial, client_id="two")


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return what came before the other side closed the connection."""
    with suppress(ConnectionResetError):
        return await reader.read()
    return b""


def test_a_node_is_served_its_own_apis(tmp_path: Path) -> None:
    async def test(node: Node, listener: PeerListener) -> None:
        connection = await open_peer(node, listener)
        assert set(connection.versions) == {
            ApiKey.FETCH,
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            ApiKey.WRITE_TXN_MARKERS,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            ApiKey.DESCRIBE_PRODUCERS,
            ApiKey.API_VERSIONS,
        }
        connection.close()
        assert listener.refused_handshakes == 0

    run(tmp_path, test)


def test_S1_a_node_with_another_secret_is_refused_and_told_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(node: Node, listener: PeerListener) -> None:
        with pytest.raises(ConnectionLostError, match=r"most often .* different contents in cluster\.secret\.file"):
            await open_peer(node, listener, b"x" * 32)
        await until(lambda: listener.refused_handshakes == 1)
        assert "as node 2 it has another cluster.secret.file" in caplog.text
        assert SECRET.decode() not in caplog.text
        assert not listener._unproven
        assert listener._acceptor.connections.open == 0

    run(tmp_path, test)


def test_S1_requests_before_the_proof_are_not_read(tmp_path: Path) -> None:
    """Neither a client's first bytes nor what follows a hello."""

    async def test(node: Node, listener: PeerListener) -> None:
        body = request_body(ApiKey.WRITE_TXN_MARKERS, 2, markers=[])
        frame = build_request_header(ApiKey.WRITE_TXN_MARKERS, 2, 7, "test") + body
        request = len(frame).to_bytes(4, "big") + frame
        hello = ClientHandshake(place_of(node), ONE, Role.REQUESTS, bytes(32)).hello
        assert len(hello) == HELLO_BYTES
        for sent in (request * 3, hello + request * 3, bytes(1 << 20), b"GET / HTTP/1.1\r\n\r\n" * 4):
            before = listener.refused_handshakes
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(sent)
            assert len(await ended(reader)) <= CHALLENGE_BYTES
            writer.close()
            await until(lambda before=before: listener.refused_handshakes == before + 1)  # type: ignore[misc]
        assert listener.counters.received_bytes == 0
        assert listener.counters.accepted_connections == 0

    run(tmp_path, test)


def test_S1_a_recorded_handshake_opens_nothing(tmp_path: Path) -> None:
    async def test(node: Node, listener: PeerListener) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        handshake = ClientHandshake(place_of(node), ONE, Role.REQUESTS, b"n" * 32)
        writer.write(handshake.hello)
        proof = handshake.prove(await reader.readexactly(CHALLENGE_BYTES))
        writer.write(proof)
        handshake.check(await reader.readexactly(PROOF_BYTES))
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(handshake.hello)
        await reader.readexactly(CHALLENGE_BYTES)
        writer.write(proof)
        assert await ended(reader) == b""
        writer.close()
        await until(lambda: listener.refused_handshakes == 1)

    run(tmp_path, test)


def test_S2_a_connection_that_says_nothing_is_closed(tmp_path: Path) -> None:
    async def test(node: Node, listener: PeerListener) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"SEMEL")
        assert await ended(reader) == b""
        writer.close()
        assert listener.refused_handshakes == 1
        await until(lambda: listener._acceptor.connections.open == 0)

    run(tmp_path, test, peer_handshake_timeout_ms=100)


def test_S2_a_connection_that_is_cut_amid_the_handshake_leaves_nothing(tmp_path: Path) -> None:
    async def test(node: Node, listener: PeerListener) -> None:
        hello = ClientHandshake(place_of(node), ONE, Role.REQUESTS, bytes(32)).hello
        for sent in (b"", hello[:1], hello[:-1], hello, hello + b"x"):
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(sent)
            await writer.drain()
            writer.transport.abort()
        await until(lambda: not listener._unproven and listener._acceptor.connections.open == 0)
        connection = await open_peer(node, listener)
        connection.close()

    run(tmp_path, test)


def test_S2_strangers_that_keep_connections_open_do_not_keep_nodes_out(tmp_path: Path) -> None:
    async def test(node: Node, listener: PeerListener) -> None:
        strangers = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(UNPROVEN_MAX + 10)]
        await until(lambda: listener.refused_handshakes == 10)
        assert len(listener._unproven) == UNPROVEN_MAX
        connection = await open_peer(node, listener)
        assert connection.is_open
        connection.close()
        for _, writer in strangers:
            writer.close()

    run(tmp_path, test, peer_handshake_timeout_ms=60_000)


def test_S2_nodes_have_a_bound_too(tmp_path: Path) -> None:
    async def test(node: Node, listener: PeerListener) -> None:
        kept = [await open_peer(node, listener) for _ in range(2)]
        with pytest.raises(ConnectionLostError):
            await open_peer(node, listener)
        kept[0].close()
        await until(lambda: len(listener._connections) == 1)
        kept.append(await open_peer(node, listener))
        for each in kept:
            each.close()

    run(tmp_path, test, peer_max_connections=2)


def test_a_stop_ends_what_has_not_proven_itself(tmp_path: Path) -> None:
    async def test(node: Node, listener: PeerListener) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        await until(lambda: len(listener._unproven) == 1)
        await node.stop()
        assert await ended(reader) == b""
        writer.close()

    run(tmp_path, test, peer_handshake_timeout_ms=60_000)


def test_a_node_that_is_alone_listens_to_no_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            assert node.peer_listener is None
            assert node.metadata.image.brokers[node.config.node_id].peer_port == 0

    asyncio.run(main())


def test_S1_the_listener_of_the_peers_needs_a_secret(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match=r"peer\.listen = 127\.0\.0\.1:0 needs cluster\.secret\.file"):
            async with running_node(tmp_path, peer_listen="127.0.0.1:0"):
                raise AssertionError

    asyncio.run(main())
