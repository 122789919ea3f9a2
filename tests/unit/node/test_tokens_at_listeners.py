"""Listeners that take tokens (OAUTHBEARER, RFC 7628): who is served, until when, and what all others hear (S2, S6)."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from live_node import LiveNode
from passing_numbers import PATIENCE_S, numbers_pass
from permitted_node import PERMITTED, acl, allow
from running_node import create_topic
from stranger import Stranger
from token_issuer import Issuer
from user_files import ALICE, PASSWORD, set_user

import semel
from semel.broker.listeners.kafka import authentication as authentication_module
from semel.broker.users.exchanges import BEARER_BYTES_MAX, INVALID_TOKEN
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.v1 import metadata_pb2
from semel.sdk.transport.login import Credentials, Login
from semel.sdk.transport.options import Bootstrap
from semel.sdk.transport.security import Security

HOUR_MS = 3_600_000


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


@pytest.fixture
def node(tmp_path: Path, issuer: Issuer) -> Iterator[LiveNode]:
    with LiveNode(tmp_path, **issuer.settings()) as live:
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


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication_module, "FAILED_DELAY_S", 0.0)


def shown(token: str, beside: str = "", user: str = "") -> bytes:
    """Return a client's first message."""
    return f"n,{user and f'a={user}'},\1auth=Bearer {token}\1{beside}\1".encode()


def at(address: object, path: Path) -> Bootstrap:
    """Return where a node is, for a client with the token in a file."""
    return Bootstrap((str(address),), Security(None, Login("", mechanism="OAUTHBEARER", token_url=path.as_uri())))


def saved(tmp_path: Path, token: str) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{token}\n")
    return path


def look(node: LiveNode) -> None:
    """Close the connections that have to leave."""
    kafka = node.node.kafka_listener
    assert kafka is not None
    node.run(kafka._watch)


def test_a_client_with_a_token_is_served_by_either_port(tmp_path: Path, node: LiveNode, issuer: Issuer) -> None:
    token = saved(tmp_path, issuer.token(algorithm="ES256"))
    numbers_pass(at(node.bootstrap, token))
    numbers_pass(at(node.node.kafka_address, token))
    numbers_pass(str(at(node.bootstrap, token)))
    with semel.Admin(
        node.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url=token.as_uri(),
    ) as admin:
        assert admin.topics()


def test_S6_others_hear_that_the_token_is_not_taken_and_nothing_more(
    tmp_path: Path, node: LiveNode, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    over = issuer.token(lasts_s=-10)
    token = saved(tmp_path, over)
    for address in (node.bootstrap, node.node.kafka_address):
        with semel.Admin(at(address, token), connect_timeout_ms=2_000) as admin, pytest.raises(FatalError) as raised:
            admin.topics()
        assert raised.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "invalid_token" in raised.value.message
        assert "xpired" not in raised.value.message
    assert "ExpiredSignatureError" in caplog.text
    assert over not in caplog.text


@pytest.mark.usefixtures("fast")
def test_S6_a_wrong_token_is_answered_as_the_rfc_has_it(
    node: LiveNode, issuer: Issuer, stranger: Callable[[], Stranger]
) -> None:
    client = stranger()
    assert client.handshake("OAUTHBEARER") is ErrorCode.NONE
    first = client.answer_to(shown(issuer.token(aud="others")))
    assert first is not None
    assert (first.error, first.token) == (ErrorCode.NONE, b'{"status":"invalid_token"}')
    last = client.answer_to(b"\1")
    assert last is not None
    assert (last.error, last.message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, '{"status":"invalid_token"}')
    assert client.is_hung_up_on
    kafka = node.node.kafka_listener
    assert kafka is not None
    assert kafka.statistics().failed_authentications == 1


def test_S7_the_user_of_a_token_has_the_rights(tmp_path: Path, issuer: Issuer) -> None:
    token = saved(tmp_path, issuer.token(sub="x", client_id="app"))
    settings = issuer.settings(sasl_oauthbearer_sub_claim_name="client_id", **PERMITTED)
    with LiveNode(tmp_path, **settings) as live:
        live.run(lambda: create_topic(live.node, "t"))
        with semel.Admin(at(live.bootstrap, token)) as admin:
            assert admin.topics() == []
        live.run(lambda: allow(live.node, acl("WRITE", "topic:t", principal="User:app")))
        with semel.Producer(at(live.bootstrap, token)) as producer:
            producer.send("t", b"v").result(PATIENCE_S)


def test_S6_a_connection_ends_with_its_token(
    node: LiveNode, issuer: Issuer, stranger: Callable[[], Stranger], caplog: pytest.LogCaptureFixture
) -> None:
    client = stranger()
    client.handshake("OAUTHBEARER")
    token = issuer.token(lasts_s=3)
    ends_at = time.time() + 3
    assert client.authenticate(shown(token)) is ErrorCode.NONE
    assert 0 < client.lifetime_ms <= 3_000
    while time.time() <= ends_at:
        time.sleep(0.1)
    look(node)
    assert client.is_hung_up_on
    assert "the token of the user alice has ended" in caplog.text
    again = stranger()
    again.handshake("OAUTHBEARER")
    answer = again.answer_to(shown(token))
    assert answer is not None
    assert answer.token == INVALID_TOKEN


@pytest.mark.usefixtures("fast")
def test_S6_another_token_of_the_same_user_takes_the_place_of_the_first(
    node: LiveNode, issuer: Issuer, stranger: Callable[[], Stranger]
) -> None:
    client = stranger()
    client.handshake("OAUTHBEARER")
    ends_at = time.time() + 3
    assert client.authenticate(shown(issuer.token(lasts_s=3))) is ErrorCode.NONE
    assert client.authenticate(shown(issuer.token())) is ErrorCode.ILLEGAL_SASL_STATE, "a handshake comes first"
    client = stranger()
    client.handshake("OAUTHBEARER")
    assert client.authenticate(shown(issuer.token(lasts_s=3))) is ErrorCode.NONE
    assert client.handshake("OAUTHBEARER") is ErrorCode.NONE
    assert client.ask(ApiKey.METADATA, 1, (0).to_bytes(4, "big")) is not None, "the first one still counts"
    assert client.authenticate(shown(issuer.token(lasts_s=3_600))) is ErrorCode.NONE
    assert HOUR_MS - 100_000 < client.lifetime_ms <= HOUR_MS
    while time.time() <= ends_at:
        time.sleep(0.1)
    look(node)
    assert client.ask(ApiKey.METADATA, 1, (0).to_bytes(4, "big")) is not None
    assert client.handshake("OAUTHBEARER") is ErrorCode.NONE
    assert client.authenticate(shown(issuer.token("bob"))) is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.is_hung_up_on


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "broken",
    [
        lambda token: b"",
        lambda token: b"\1",
        lambda token: b"n,,\1\1",
        lambda token: b"n,,\1auth=Bearer \1\1",
        lambda token: f"n,,\1auth=Bearer {token}\1".encode(),
        lambda token: f"y,,\1auth=Bearer {token}\1\1".encode(),
        lambda token: f"n,,\1auth=Basic {token}\1\1".encode(),
        lambda token: f"n,,\1auth=Bearer {token}\1auth=Bearer {token}\1\1".encode(),
        lambda token: shown(token, "x=\0\1"),
        lambda token: shown(token, "1=x\1"),
        lambda token: shown(token, user="bob"),
        lambda token: shown(token, f"x={'y' * BEARER_BYTES_MAX}\1"),
        lambda token: shown(token + "é"),
        lambda token: b"\xff" * 100,
    ],
)
def test_S5_a_broken_first_message_is_refused(
    issuer: Issuer, stranger: Callable[[], Stranger], broken: Callable[[str], bytes]
) -> None:
    client = stranger()
    assert client.handshake("OAUTHBEARER") is ErrorCode.NONE
    assert client.authenticate(broken(issuer.token())) is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.is_hung_up_on


def test_what_clients_may_say_beside_a_token_is_taken(issuer: Issuer, stranger: Callable[[], Stranger]) -> None:
    client = stranger()
    client.handshake("OAUTHBEARER")
    said = shown(issuer.token(), "logicalCluster=lkc-1\1host=h\1", "alice").replace(b"Bearer", b"bearer")
    assert client.authenticate(said) is ErrorCode.NONE


@pytest.mark.usefixtures("fast")
def test_S6_any_order_of_steps_serves_those_alone_who_have_shown_a_token(
    tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps at random, with passwords and tokens, against a model of what is allowed."""
    monkeypatch.setattr("semel.broker.users.authentication._AGAIN_AFTER_S", 0)  # however fast they come
    draw = random.Random(21)
    users = set_user(tmp_path / "users")
    mine, other, wrong = shown(issuer.token()), shown(issuer.token("bob")), shown(issuer.token(iss="x"))
    plain = f"\0{ALICE}\0{PASSWORD}".encode()
    right = {"OAUTHBEARER": {mine: "alice", other: "bob"}, "PLAIN": {plain: "alice"}}
    settings = issuer.settings(sasl_enabled_mechanisms=("OAUTHBEARER", "PLAIN"), sasl_users_location=str(users))
    proven = renewed = 0
    with LiveNode(tmp_path, **settings) as node:
        for _ in range(300):
            client = Stranger(node)
            begun, user, by, refused = "", "", "", False
            for _ in range(draw.randrange(2, 10)):
                step = draw.choice(("handshake", "authenticate", "metadata", "go on", "go on", "go on"))
                if step == "go on":
                    step = "authenticate" if begun else "handshake" if by != "PLAIN" else "metadata"
                if step == "handshake":
                    mechanism = draw.choice(("OAUTHBEARER", "OAUTHBEARER", "PLAIN", "SCRAM-SHA-256"))
                    code = client.handshake(mechanism)
                    if by == "PLAIN" or (begun and not user):
                        assert code is ErrorCode.ILLEGAL_SASL_STATE
                        break
                    if mechanism not in right or (by and mechanism != by):
                        assert code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
                        break
                    assert code is ErrorCode.NONE
                    begun, refused = mechanism, False
                elif step == "authenticate":
                    said = draw.choice((mine, mine, mine, other, wrong, plain, b"\1", b""))
                    answer = client.answer_to(said)
                    assert answer is not None
                    if not begun:
                        assert answer.error is ErrorCode.ILLEGAL_SASL_STATE
                        break
                    name = right[begun].get(said)
                    if not refused and begun == "OAUTHBEARER" and said == wrong:
                        assert (answer.error, answer.token) == (ErrorCode.NONE, INVALID_TOKEN)
                        refused = True
                        continue
                    if refused or name is None or (user and name != user):
                        assert answer.error is ErrorCode.SASL_AUTHENTICATION_FAILED
                        break
                    assert answer.error is ErrorCode.NONE
                    renewed, proven = renewed + bool(user), proven + 1
                    begun, user, by = "", name, begun
                else:
                    served = client.ask(ApiKey.METADATA, 1, (0).to_bytes(4, "big"))
                    assert (served is not None) == bool(user)
                    if served is None:
                        break
            else:
                client.close()
                continue
            assert client.is_hung_up_on
            client.close()
    assert proven > 20
    assert renewed > 2


def test_S2_a_token_that_is_too_large_is_refused_without_a_look(
    issuer: Issuer, stranger: Callable[[], Stranger], caplog: pytest.LogCaptureFixture
) -> None:
    client = stranger()
    client.handshake("OAUTHBEARER")
    answer = client.answer_to(shown(issuer.token(more="x" * 13_000)))
    assert answer is not None
    assert answer.token == INVALID_TOKEN
    assert "at most 16384 are taken" in caplog.text


def test_a_producer_goes_on_with_the_token_that_its_file_has_next(
    tmp_path: Path, node: LiveNode, issuer: Issuer
) -> None:
    token = saved(tmp_path, issuer.token(lasts_s=3))
    ends_at = time.time() + 3
    with semel.Admin(at(node.bootstrap, token)) as admin, semel.Producer(at(node.bootstrap, token)) as producer:
        admin.create_topic("t", partitions=1)
        producer.send("t", b"1").result(PATIENCE_S)
        while time.time() <= ends_at:
            time.sleep(0.1)
        look(node)
        changing = threading.Timer(1.0, token.write_text, [issuer.token()])
        changing.start()
        producer.send("t", b"2").result(PATIENCE_S)
        changing.join()
        assert [topic.name for topic in admin.topics()] == ["t"]


# --- gRPC -------------------------------------------------------------------------------------------------------------


def call(node: LiveNode, given: str) -> grpc.StatusCode | None:
    with grpc.insecure_channel(node.bootstrap) as channel:
        ask = channel.unary_unary(
            "/semel.v1.MetadataService/GetMetadata", bytes, metadata_pb2.GetMetadataResponse.FromString
        )
        try:
            ask(b"", timeout=PATIENCE_S, metadata=(("authorization", given),))
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return None


def test_S6_a_call_without_a_right_token_is_refused(node: LiveNode, issuer: Issuer) -> None:
    token = issuer.token()
    for given in (f"Bearer {token}", f"bearer  {token}"):
        assert call(node, given) is None
    for given in (
        f"Bearer {token}x",
        f"Bearer {issuer.token(aud='others')}",
        "Bearer",
        "Bearer ",
        f"Bearer {'x' * 40_000}",
        token,
        "Basic YWxpY2U6eA==",
    ):
        assert call(node, given) is grpc.StatusCode.UNAUTHENTICATED, given[:20]


def test_S6_a_node_that_takes_passwords_alone_takes_no_token(tmp_path: Path, issuer: Issuer) -> None:
    users = set_user(tmp_path / "users")
    listeners = dict.fromkeys(("kafka_listen", "grpc_listen"), "sasl://127.0.0.1:0")
    with LiveNode(tmp_path, **listeners, sasl_users_location=str(users)) as live:
        assert call(live, f"Bearer {issuer.token()}") is grpc.StatusCode.UNAUTHENTICATED
        client = Stranger(live)
        assert client.handshake("OAUTHBEARER") is ErrorCode.UNSUPPORTED_SASL_MECHANISM
        client.close()


def test_S6_a_stream_ends_with_its_token(
    tmp_path: Path, node: LiveNode, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.broker.listeners.grpc.authentication.LOOK_S", 0.1)
    login = Login("", mechanism="OAUTHBEARER", token_url=saved(tmp_path, issuer.token(lasts_s=4)).as_uri())
    metadata = Credentials(login).metadata("127.0.0.1:1", encrypted=False)
    hold = threading.Event()

    def requests() -> Iterator[bytes]:
        hold.wait(PATIENCE_S)
        yield b""

    try:
        with grpc.insecure_channel(node.bootstrap) as channel:
            answers = channel.stream_stream("/semel.v1.DataService/Fetch", bytes, bytes)(
                requests(), timeout=PATIENCE_S, metadata=metadata
            )
            with pytest.raises(grpc.RpcError) as ended:
                next(answers)
            assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "the token of the user alice has ended" in (ended.value.details() or "")
    finally:
        hold.set()


def test_S5_no_token_is_in_the_log(
    tmp_path: Path, node: LiveNode, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tokens = [issuer.token(), issuer.token(aud="others"), issuer.token(key=issuer.other_rsa)]
    for token in tokens:
        call(node, f"Bearer {token}")
        client = Stranger(node)
        client.handshake("OAUTHBEARER")
        client.authenticate(shown(token))
        client.close()
    assert "authentication.failed: listener='kafka' peer=" in caplog.text
    for token in tokens:
        assert not any(part in caplog.text for part in token.split(".")[1:])
