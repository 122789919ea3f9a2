"""Listeners that ask for passwords: who is served, and who is refused and told why (S2, S6)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from asking_node import MECHANISMS, asking, at, authenticated
from certificates import Authority, encrypted
from grpc_health.v1 import health_pb2, health_pb2_grpc
from live_node import LiveNode
from passing_numbers import PATIENCE_S, numbers_pass
from user_files import ALICE, PASSWORD, set_user

import semel
from semel.protocol.errors import ErrorCode, FatalError, SemelError, UsageError
from semel.protocol.v1 import metadata_pb2
from semel.runtime.clock import ManualClock
from semel.runtime.kafka_client.connection import Connection, connect, dial_tcp
from semel.sdk.transport.connection import Connections
from semel.sdk.transport.login import AuthenticationFailedError, Credentials, Login
from semel.sdk.transport.options import Bootstrap, ClientOptions
from semel.sdk.transport.security import Access, Security


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return set_user(tmp_path / "users")


@pytest.fixture
def node(tmp_path: Path, users: Path) -> Iterator[LiveNode]:
    with LiveNode(tmp_path, **asking(users)) as live:
        yield live


def refusal(bootstrap: object) -> SemelError:
    with (
        semel.Admin(bootstrap, connect_timeout_ms=2_000) as admin,  # type: ignore[arg-type]
        pytest.raises(SemelError) as raised,
    ):
        admin.topics()
    return raised.value


# --- Semel's own clients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
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
            name: node.run(lambda name=name, word=word: authenticated(node, name, word))
            for name, word in ((ALICE, PASSWORD), ("bob", "b"))
        }  # type: ignore[misc]
        set_user(users, "bob", None)
        with pytest.raises(FatalError, match="wrong user or password"):
            bob.topics()
        kafka = node.node.kafka_listener
        assert kafka is not None
        node.run(kafka._watch)
        assert node.run(lambda: _is_closed(connections["bob"]))
        assert connections[ALICE].is_open
        set_user(users, ALICE, "another")
        node.run(kafka._watch)
        assert node.run(lambda: _is_closed(connections[ALICE]))
        with pytest.raises(FatalError, match="wrong user or password"):
            alice.topics()


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


@pytest.mark.parametrize("client", ["producer", "transaction", "consumer"])
def test_who_has_another_password_now_is_named_in_place_of_a_time_out(
    node: LiveNode, users: Path, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.sdk.transport.login._LATE_NODE_S", 0.0)
    bootstrap = at(node.bootstrap)
    with semel.Admin(bootstrap) as admin:
        admin.create_topic("t", partitions=1)
    said = r"the user alice is refused: .*wrong user or password.* make a new client with the one that he has now"

    def gets_another_password() -> None:
        set_user(users, ALICE, "another")
        assert node.node.users is not None
        assert node.node.kafka_listener is not None
        node.run(node.node.users.settled)
        node.run(node.node.kafka_listener._watch)

    if client == "consumer":
        with semel.Consumer(bootstrap, topics=["t"], group="g", offset_reset="earliest") as consumer:
            consumer.poll(0.1)
            gets_another_password()
            with pytest.raises(FatalError, match=said):
                _poll_on(consumer)
    elif client == "producer":
        producer = semel.Producer(bootstrap)
        producer.send("t", b"1").result(PATIENCE_S)
        gets_another_password()
        for _ in range(2):  # and so each time
            with pytest.raises(FatalError, match=said):
                producer.send("t", b"2").result(PATIENCE_S)
        with pytest.raises(FatalError, match=said):
            producer.close()
    else:
        with semel.Producer(bootstrap, transactional_id="t") as producer:
            with producer.transaction() as txn:
                txn.send("t", b"1")
            gets_another_password()
            with pytest.raises(SemelError, match=said), producer.transaction() as txn:
                txn.send("t", b"2")


def _poll_on(consumer: semel.Consumer) -> None:
    while True:
        consumer.poll(PATIENCE_S)


def test_a_node_is_believed_once_it_has_refused_the_user_for_a_while(node: LiveNode, users: Path) -> None:
    """Users of the metadata come to nodes one after the other, and files of passwords are changed later."""
    clock = ManualClock()
    address = node.node.kafka_address

    def pool(login: Login) -> Connections:
        options = ClientOptions((str(address),), retry_backoff_ms=1)
        return Connections(options, clock, lambda _: tuple(address), access=Access(Security(None, login)))  # type: ignore[arg-type,return-value]

    def refused(connections: Connections, after_s: int) -> type[SemelError]:
        clock.advance(ms=after_s * 1_000)
        with pytest.raises(SemelError, match="wrong user or password") as error:
            node.run(lambda: connections._connect(1))
        return type(error.value)

    by_hand = pool(Login(ALICE, "wrong"))
    assert [refused(by_hand, 6) for _ in range(4)] == [*[AuthenticationFailedError] * 3, FatalError]
    assert refused(by_hand, 60) is AuthenticationFailedError, "nobody knows what was in between"
    file = users.parent / "password"
    file.write_text("wrong")
    in_a_file = pool(Login(ALICE, password_location=str(file)))
    assert [refused(in_a_file, 20) for _ in range(3)] == [*[AuthenticationFailedError] * 2, FatalError]
    file.write_text(PASSWORD)
    node.run(lambda: in_a_file._connect(1))
    file.write_text("wrong again")
    assert refused(in_a_file, 20) is AuthenticationFailedError, "it was right meanwhile"


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
            assert answers.is_active(), "it continues for as long as the user is there"
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
            await authenticated(node, "x", "y", mechanism="PLAIN")
        return raised.value.message

    assert "too many passwords are being checked" in node.run(plain)
