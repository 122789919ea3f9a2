"""Listeners that ask for passwords: who is served, who is refused, and what strangers can do before (S2, S5, S6)."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import Authority, encrypted
from grpc_health.v1 import health_pb2, health_pb2_grpc
from live_node import LiveNode
from user_files import ALICE, PASSWORD, set_user

import semel
from semel.broker.listeners.kafka import authentication as authentication_module
from semel.protocol.errors import ErrorCode, FatalError, SemelError, UsageError
from semel.protocol.kafka.api import ApiKey, build_request_header, join_parts
from semel.protocol.kafka.sasl import (
    read_sasl_authenticate,
    read_sasl_handshake,
    sasl_authenticate_request,
    sasl_handshake_request,
)
from semel.protocol.v1 import metadata_pb2
from semel.runtime.kafka_client.connection import Connection, ConnectionLostError, connect, dial_tcp
from semel.sdk.transport.login import AuthenticationFailedError, Credentials, Login
from semel.sdk.transport.options import Bootstrap
from semel.sdk.transport.security import Security

PATIENCE_S = 30
ALL = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return set_user(tmp_path / "users")


@pytest.fixture
def node(tmp_path: Path, users: Path) -> Iterator[LiveNode]:
    with LiveNode(tmp_path, **asking(users)) as live:
        yield live


def asking(users: Path, **more: Any) -> dict[str, Any]:
    """Return the settings of a node whose two listeners ask for passwords."""
    return {
        "kafka_listen": "sasl://127.0.0.1:0",
        "grpc_listen": "sasl://127.0.0.1:0",
        "sasl_users_location": str(users),
        "sasl_enabled_mechanisms": ALL,
        **more,
    }


def at(address: object, user: str = ALICE, password: str = PASSWORD, mechanism: str = ALL[0]) -> Bootstrap:
    return Bootstrap((str(address),), Security(None, Login(user, password, mechanism=mechanism)))


def numbers_pass(bootstrap: object, count: int = 3) -> None:
    """Produce and consume, with a transaction and a group."""
    topic = f"numbers-{time.monotonic_ns()}"
    with semel.Admin(bootstrap) as admin:  # type: ignore[arg-type]
        admin.create_topic(topic, partitions=1)
    with semel.Producer(bootstrap, transactional_id=topic) as producer, producer.transaction():  # type: ignore[arg-type]
        for number in range(count):
            producer.send(topic, str(number).encode())
    with semel.Consumer(bootstrap, topics=[topic], group=topic, offset_reset="earliest") as consumer:  # type: ignore[arg-type]
        got: list[bytes | None] = []
        while len(got) < count:
            batch = consumer.poll(PATIENCE_S)
            assert batch is not None, f"{got} of {count}"
            got += [record.value for record in batch]
    assert got == [str(number).encode() for number in range(count)]


def refusal(bootstrap: object) -> SemelError:
    with (
        semel.Admin(bootstrap, connect_timeout_ms=2_000) as admin,  # type: ignore[arg-type]
        pytest.raises(SemelError) as raised,
    ):
        admin.topics()
    return raised.value


# --- Semel's own clients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ALL)
def test_a_user_is_served_by_either_port(node: LiveNode, mechanism: str) -> None:
    numbers_pass(at(node.bootstrap, mechanism=mechanism))
    numbers_pass(at(node.node.kafka_address, mechanism=mechanism))


def test_a_user_is_served_encrypted(tmp_path: Path, users: Path) -> None:
    authority = Authority(tmp_path / "authority")
    settings = {**encrypted(authority.node()), **asking(users)}
    settings |= {name: settings[name].replace("sasl://", "tls+sasl://") for name in ("kafka_listen", "grpc_listen")}
    with LiveNode(tmp_path, **settings) as live:
        security = Security(authority.tls(), Login(ALICE, PASSWORD))
        numbers_pass(Bootstrap((str(live.bootstrap),), security))
        assert str(live._settings["grpc_listen"]).startswith("tls+sasl://")


def test_S6_others_hear_why_they_are_not_served(node: LiveNode) -> None:
    for address in (node.bootstrap, node.node.kafka_address):
        for bootstrap in (at(address, password="wrong"), at(address, "nobody", ""), at(address, "nobody", "x")):
            error = refusal(bootstrap)
            assert isinstance(error, FatalError), "it does not help to try again"
            assert error.code is ErrorCode.SASL_AUTHENTICATION_FAILED
            assert "wrong user or password" in error.message
        assert "serves users alone: give sasl.username" in refusal(str(address)).message


def test_a_user_for_a_node_that_asks_for_none_is_served_here_and_told_elsewhere(tmp_path: Path) -> None:
    """A stranger in between could leave the question out, and answer himself."""
    with LiveNode(tmp_path) as live:
        numbers_pass(at(live.node.kafka_address))

        async def far() -> None:
            connection = await connect("log1.example.com:9092", dial_tcp(*live.node.kafka_address), client_id="test")
            credentials = Credentials(Login(ALICE, PASSWORD))
            with pytest.raises(FatalError, match="serves everybody, and has no users"):
                await credentials.authenticate(connection, encrypted=False)
            await credentials.authenticate(connection, encrypted=True)
            connection.close()

        live.run(far)


def test_a_mechanism_that_is_not_enabled_is_told_with_those_that_are(tmp_path: Path, users: Path) -> None:
    with LiveNode(tmp_path, **asking(users, sasl_enabled_mechanisms=("SCRAM-SHA-512",))) as live:
        error = refusal(at(live.node.kafka_address))
        assert "does not take SCRAM-SHA-256: it takes SCRAM-SHA-512" in error.message


def test_a_program_that_the_node_runs_in_needs_no_password(tmp_path: Path, users: Path) -> None:
    listeners = dict.fromkeys(("grpc", "kafka"), "sasl://127.0.0.1:0")
    settings = {"sasl.users.location": str(users)}
    with semel.open(tmp_path / "data", settings=settings, **listeners) as embedded:
        with embedded.admin() as admin:
            admin.create_topic("t", partitions=1)
        with embedded.producer() as producer:
            producer.send("t", b"v")


def test_S6_who_is_removed_or_gets_another_password_is_out(
    node: LiveNode, users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_user(users, "bob", "b")
    with semel.Admin(at(node.bootstrap)) as alice, semel.Admin(at(node.bootstrap, "bob", "b")) as bob:
        alice.create_topic("t", partitions=1)
        assert [topic.name for topic in bob.topics()] == ["t"]
        connections = {
            name: node.run(lambda name=name, word=word: _authenticated(node, name, word))
            for name, word in ((ALICE, PASSWORD), ("bob", "b"))
        }  # type: ignore[misc]
        set_user(users, "bob", None)
        with pytest.raises(FatalError, match="wrong user or password"):
            bob.topics()
        kafka = node.node._kafka
        assert kafka is not None
        node.run(kafka._watch)
        assert node.run(lambda: _is_closed(connections["bob"]))
        assert connections[ALICE].is_open
        set_user(users, ALICE, "another")
        node.run(kafka._watch)
        assert node.run(lambda: _is_closed(connections[ALICE]))
        with pytest.raises(FatalError, match="wrong user or password"):
            alice.topics()


async def _authenticated(node: LiveNode, user: str = ALICE, password: str = PASSWORD, **more: Any) -> Connection:
    credentials = Credentials(Login(user, password, **more))
    return await connect(
        str(node.node.kafka_address),
        dial_tcp(*node.node.kafka_address),
        client_id="test",
        prove=lambda connection: credentials.authenticate(connection, encrypted=False),
    )


async def _is_closed(connection: Connection) -> bool:
    async with asyncio.timeout(PATIENCE_S):
        while connection.is_open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return True


def test_the_user_may_be_given_as_options_beside_the_scheme(node: LiveNode) -> None:
    """The address is as the node itself prints it."""
    address = f"sasl://{node.bootstrap}"
    with semel.Admin(address, sasl_username=ALICE, sasl_password=PASSWORD) as admin:
        assert admin.topics() == []
    with pytest.raises(UsageError, match="serve users alone"):
        semel.Admin(address, client_id="x")


@pytest.mark.parametrize("name", ["kafka_listen", "grpc_listen"])
def test_one_of_the_listeners_may_ask_alone(tmp_path: Path, users: Path, name: str) -> None:
    with LiveNode(tmp_path, **{**asking(users), name: "127.0.0.1:0"}) as live:
        numbers_pass(at(live.bootstrap))


@pytest.mark.parametrize("case", ["mechanism", "nobody"])
def test_what_no_retry_can_change_ends_a_producer_and_a_consumer_at_once(
    tmp_path: Path, users: Path, case: str
) -> None:
    settings = {**asking(users), "grpc_listen": "127.0.0.1:0", "sasl_enabled_mechanisms": ("SCRAM-SHA-512",)}
    said = "does not take SCRAM-SHA-256" if case == "mechanism" else "serves users alone"
    with LiveNode(tmp_path, **settings) as live:
        bootstrap: Any = at(live.bootstrap) if case == "mechanism" else live.bootstrap
        with semel.Admin(bootstrap) as admin:
            admin.create_topic("t", partitions=1)
        with pytest.raises(FatalError, match=said), semel.Producer(bootstrap) as producer:
            producer.send("t", b"v").result(PATIENCE_S)
        with (
            semel.Consumer(bootstrap, topics=["t"], group="g", offset_reset="earliest") as consumer,
            pytest.raises(FatalError, match=said),
        ):
            consumer.poll(PATIENCE_S)


def test_a_transactional_producer_outlives_a_change_of_its_password(
    tmp_path: Path, node: LiveNode, users: Path
) -> None:
    """The node hears of it first, and the client's file comes later."""
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    login = Login(ALICE, password_location=str(password))
    bootstrap = str(Bootstrap((node.bootstrap,), Security(None, login)))
    with semel.Admin(bootstrap) as admin:
        admin.create_topic("t", partitions=1)
    with semel.Producer(bootstrap, transactional_id="t") as producer:
        with producer.transaction():
            producer.send("t", b"1")
        set_user(users, ALICE, "another")
        changing = threading.Timer(1.0, password.write_text, ["another\n"])
        changing.start()
        with producer.transaction():
            producer.send("t", b"2")
        changing.join()
    assert "wrong user or password" in refusal(at(node.bootstrap)).message, "who never was accepted hears it at once"


# --- gRPC -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    ["", "Basic", "Basic !!!", "Basic YWxpY2U=", "Bearer x", "Basic " + "A" * 20_000, "Basic 4pyT"],
)
def test_S6_a_call_that_proves_nobody_is_refused(node: LiveNode, given: str) -> None:
    with grpc.insecure_channel(node.bootstrap) as channel:
        call = channel.unary_unary(
            "/semel.v1.MetadataService/GetMetadata", bytes, metadata_pb2.GetMetadataResponse.FromString
        )
        for metadata in ((("authorization", given),), ()):
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", timeout=PATIENCE_S, metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        stream = channel.stream_stream("/semel.v1.DataService/Produce", bytes, bytes)
        with pytest.raises(grpc.RpcError) as refused:
            next(stream(iter([b""]), timeout=PATIENCE_S, metadata=(("authorization", given),)))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        reflection = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", bytes, bytes
        )
        with pytest.raises(grpc.RpcError) as refused:
            next(reflection(iter([b""]), timeout=PATIENCE_S))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        unknown = channel.unary_unary("/semel.v1.MetadataService/None", bytes, bytes)
        with pytest.raises(grpc.RpcError) as refused:
            unknown(b"", timeout=PATIENCE_S)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_S6_a_stream_ends_with_its_user(node: LiveNode, users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.broker.listeners.grpc.authentication.LOOK_S", 0.1)
    metadata = Credentials(Login(ALICE, PASSWORD)).metadata("127.0.0.1:1", encrypted=False)
    hold = threading.Event()

    def requests() -> Iterator[bytes]:
        hold.wait(PATIENCE_S)
        yield b""

    try:
        with grpc.insecure_channel(node.bootstrap) as channel:
            stream = channel.stream_stream("/semel.v1.DataService/Fetch", bytes, bytes)
            answers = stream(requests(), timeout=PATIENCE_S, metadata=metadata)
            time.sleep(0.5)
            assert answers.is_active(), "it goes on for as long as the user is there"
            set_user(users, ALICE, "another")
            with pytest.raises(grpc.RpcError) as ended:
                next(answers)
            assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "was removed, or has another password now" in (ended.value.details() or "")
    finally:
        hold.set()


def test_health_is_told_to_anybody(node: LiveNode) -> None:
    """A probe of Kubernetes has no password, and hears only whether the node serves."""
    with grpc.insecure_channel(node.bootstrap) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_S2_too_many_checks_at_once_are_told_to_come_again(node: LiveNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.broker.users.users._CHECKS_MAX", 0)
    with grpc.insecure_channel(node.bootstrap) as channel:
        call = channel.unary_unary("/semel.v1.MetadataService/GetMetadata", bytes, bytes)
        with pytest.raises(grpc.RpcError) as refused:
            call(
                b"", timeout=PATIENCE_S, metadata=Credentials(Login("x", "y")).metadata("127.0.0.1:1", encrypted=False)
            )
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

    async def plain() -> str:
        with pytest.raises(AuthenticationFailedError) as raised:
            await _authenticated(node, "x", "y", mechanism="PLAIN")
        return raised.value.message

    assert "too many passwords are being checked" in node.run(plain)


# --- The Kafka listener, before a client has authenticated ------------------------------------------------------------


class Stranger:
    """Sends requests as it likes on one connection."""

    def __init__(self, node: LiveNode) -> None:
        self._socket = socket.create_connection(tuple(node.node.kafka_address), PATIENCE_S)
        self._socket.settimeout(PATIENCE_S)

    def ask(self, key: int, version: int, body: bytes) -> bytes | None:
        """Return the body of the answer; None where the node hangs up."""
        frame = build_request_header(key, version, 7, "stranger") + body
        try:
            self._socket.sendall(len(frame).to_bytes(4, "big") + frame)
            return self._answer()
        except ConnectionError:
            return None

    def _answer(self) -> bytes | None:
        size = self._read(4)
        frame = None if size is None else self._read(int.from_bytes(size, "big"))
        return None if frame is None else frame[4:]

    def _read(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                return None
            data += part
        return data

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    @property
    def is_hung_up_on(self) -> bool:
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def handshake(self, mechanism: str = "PLAIN") -> ErrorCode | None:
        answer = self.ask(ApiKey.SASL_HANDSHAKE, 1, join_parts(sasl_handshake_request(mechanism)))
        return None if answer is None else read_sasl_handshake(answer).error

    def authenticate(self, token: bytes) -> ErrorCode | None:
        answer = self.ask(ApiKey.SASL_AUTHENTICATE, 1, join_parts(sasl_authenticate_request(token)))
        return None if answer is None else read_sasl_authenticate(answer).error

    def close(self) -> None:
        self._socket.close()


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
    kafka = node.node._kafka
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
    node.run(lambda: _authenticated(node))
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
            await _authenticated(node)

    node.run(test)


def test_S2_requests_are_small_before_a_client_has_authenticated(
    node: LiveNode, stranger: Callable[[], Stranger]
) -> None:
    client = stranger()
    client.send((authentication_module.REQUEST_BYTES_MAX + 1).to_bytes(4, "big"))
    assert client.is_hung_up_on

    async def large() -> bool:
        """Afterwards they may be as large as ever."""
        connection = await _authenticated(node)
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
            connection = await _authenticated(live)
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
    refusal(at(node.bootstrap, password="hunter2"))
    assert "authentication failed: peer=127.0.0.1:" in caplog.text
    assert f"user='{'a' * 60}': wrong user or password" in caplog.text
    assert "hunter2" not in caplog.text
    kafka = node.node._kafka
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
    kafka = node.node._kafka
    assert kafka is not None
    deadline = time.monotonic() + PATIENCE_S
    while kafka._connections:
        assert time.monotonic() < deadline
        time.sleep(0.01)
