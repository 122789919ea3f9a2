"""Encrypted listeners: who is served, who is refused and told why, and certificates that are renewed (S5, S6)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from certificates import Authority, Pair, encrypted
from live_node import LiveNode
from passing_numbers import PATIENCE_S, numbers_pass
from running_node import running_node

import semel
from semel.protocol.errors import RetriableError, SemelError, UsageError
from semel.protocol.kafka.api import ApiKey
from semel.runtime.kafka_client.connection import ConnectionLostError, connect, dial_tcp
from semel.runtime.setting import ConfigError
from semel.sdk.testing.broker import Broker
from semel.sdk.transport.options import Bootstrap
from semel.sdk.transport.security import Security, Tls


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def node(tmp_path: Path, authority: Authority) -> Iterator[LiveNode]:
    """A node that encrypts, and serves everybody."""
    with LiveNode(tmp_path, **encrypted(authority.node())) as live:
        yield live


@pytest.fixture
def strict_node(tmp_path: Path, authority: Authority) -> Iterator[LiveNode]:
    """A node that encrypts, and serves those with a certificate."""
    with LiveNode(tmp_path, **encrypted(authority.node(), authority)) as live:
        yield live


def at(address: object, tls: Tls) -> str:
    return str(Bootstrap((str(address),), Security(tls)))


def refusal(bootstrap: str, **options: object) -> str:
    """The error that a client gets that can't reach a node."""
    with (
        semel.Admin(bootstrap, connect_timeout_ms=2_000, **options) as admin,  # type: ignore[arg-type]
        pytest.raises(SemelError) as raised,
    ):
        admin.topics()
    return str(raised.value)


# --- Serving ----------------------------------------------------------------------------------------------------------


def test_a_client_that_knows_the_authority_is_served_by_either_port(node: LiveNode, authority: Authority) -> None:
    numbers_pass(at(node.bootstrap, authority.tls()))
    numbers_pass(at(node.node.kafka_address, authority.tls()))


def test_a_client_with_a_certificate_is_served_where_one_is_asked_for(
    strict_node: LiveNode, authority: Authority
) -> None:
    numbers_pass(at(strict_node.bootstrap, authority.tls(authority.client())))


def test_options_may_have_the_names_of_kafkas_clients(strict_node: LiveNode, authority: Authority) -> None:
    client = authority.client()
    for names in (
        ("ssl_ca_location", "ssl_certificate_location", "ssl_key_location"),
        ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"),
        ("ssl_cafile", "ssl_certfile", "ssl_keyfile"),
    ):
        options = dict(zip(names, map(str, (authority.ca, client.certificate, client.key)), strict=True))
        with semel.Admin(strict_node.bootstrap, security_protocol="SSL", **options) as admin:  # type: ignore[arg-type]
            assert admin.topics() == []


def test_large_records_and_many_pass_whole(node: LiveNode, authority: Authority) -> None:
    """Answers of megabytes go through the buffers of TLS, and through its pauses."""
    bootstrap = at(node.bootstrap, authority.tls())
    values = [os.urandom(900_000) for _ in range(12)]
    with semel.Admin(bootstrap) as admin:
        admin.create_topic("large", partitions=1)
    with semel.Producer(bootstrap) as producer:
        for value in values:
            producer.send("large", value)
    with semel.Consumer(bootstrap, topics=["large"], group="large", offset_reset="earliest") as consumer:
        got: list[bytes | None] = []
        while len(got) < len(values):
            batch = consumer.poll(PATIENCE_S)
            assert batch is not None
            got += [record.value for record in batch]
    assert got == values


def test_S6_encrypted_answers_of_any_size_arrive(node: LiveNode, authority: Authority) -> None:
    """The node must not believe that its transport is full, or empty, when it is not: the answer would never end."""
    bootstrap = at(node.bootstrap, authority.tls())
    values = [os.urandom(size) for size in (1, 20_000, 900_000) for _ in range(10)]
    with semel.Admin(bootstrap) as admin:
        admin.create_topic("sizes", partitions=1)
    with semel.Producer(bootstrap) as producer:
        for value in values:
            producer.send("sizes", value)
    context = authority.tls().context()
    with (
        socket.create_connection(node.node.kafka_address, PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as reader,
    ):
        versions = _frame(ApiKey.API_VERSIONS, 0, 7, b"")
        fetches = [_frame(ApiKey.FETCH, 4, number, _fetch("sizes")) for number in range(8)]
        reader.sendall(b"".join([versions, *fetches, versions]))  # several answers wait before anything is read
        answers = [_exactly(reader, int.from_bytes(_exactly(reader, 4), "big")) for _ in range(len(fetches) + 2)]
    assert [int.from_bytes(answer[:4], "big") for answer in answers] == [7, *range(8), 7]
    assert all(value in answer for answer in answers[1:-1] for value in values)


def _frame(key: ApiKey, version: int, correlation_id: int, body: bytes) -> bytes:
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + correlation_id.to_bytes(4, "big") + b"\x00\x01t"
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


def _fetch(topic: str, wait_ms: int = 0, min_bytes: int = 0) -> bytes:
    """Partition 0 from its beginning, 40 MB at most."""
    waits = wait_ms.to_bytes(4, "big") + min_bytes.to_bytes(4, "big")
    most, one = (40_000_000).to_bytes(4, "big"), (1).to_bytes(4, "big")
    partition = bytes(4) + bytes(8) + most
    topics = one + len(topic).to_bytes(2, "big") + topic.encode() + one + partition
    return b"\xff" * 4 + waits + most + b"\x00" + topics


def test_S6_data_connections_check_the_name_of_the_node(tmp_path: Path, authority: Authority) -> None:
    with LiveNode(tmp_path, **encrypted(authority.node("node", "log1.example.com"))) as node:
        dial = dial_tcp(*node.node.kafka_address, authority.tls().context())
        with pytest.raises(ConnectionLostError, match="certificate verify failed"):
            asyncio.run(connect("a node", dial, client_id="t"))


def _exactly(reader: ssl.SSLSocket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        data += reader.recv(count - len(data)) or pytest.fail("the node closed the connection")
    return bytes(data)


def test_asyncio_clients_are_served_as_well(node: LiveNode, authority: Authority) -> None:
    async def main() -> list[str]:
        async with semel.aio.Admin(at(node.bootstrap, authority.tls())) as admin:
            await admin.create_topic("async", partitions=1)
            return [topic.name for topic in await admin.topics()]

    assert asyncio.run(main()) == ["async"]


# --- Refusing ---------------------------------------------------------------------------------------------------------


def test_S6_who_shows_no_certificate_is_refused_by_both_listeners(
    strict_node: LiveNode, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    assert "refused this client's certificate" in refusal(at(strict_node.bootstrap, authority.tls()))
    with caplog.at_level(logging.WARNING, "semel"):
        assert _is_hung_up_on(strict_node, authority.tls().context())
        _until(lambda: "the tls handshake with the kafka listener failed" in caplog.text.lower())
    assert strict_node.node.kafka_listener is not None
    assert strict_node.node.kafka_listener.statistics().accepted_connections == 0


def test_S6_a_certificate_of_a_stranger_is_refused_by_both_listeners(
    strict_node: LiveNode, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger").client()
    tls = authority.tls(stranger)
    assert "refused this client's certificate" in refusal(at(strict_node.bootstrap, tls))
    assert _is_hung_up_on(strict_node, tls.context())


def test_S6_plain_text_is_answered_by_neither_listener(node: LiveNode) -> None:
    assert "encrypted" in refusal(node.bootstrap)
    with socket.create_connection(node.node.kafka_address, PATIENCE_S) as client:
        client.sendall(b"\x00\x00\x00\x0b\x00\x12\x00\x00\x00\x00\x00\x01\x00\x01t")
        answer = _all_of(client)
    assert b"\x00\x00\x00\x01" not in answer[:8], "an answer of Kafka's protocol has the correlation id here"


def test_a_client_is_told_of_a_node_of_an_unknown_authority(node: LiveNode, tmp_path: Path) -> None:
    told = refusal(at(node.bootstrap, Authority(tmp_path / "other").tls()))
    assert "of no authority that this client knows" in told
    assert "ssl.ca.location" in told


def test_a_client_is_told_of_a_certificate_for_another_name(tmp_path: Path, authority: Authority) -> None:
    with LiveNode(tmp_path, **encrypted(authority.node("node", "log1.example.com"))) as node:
        assert "is not for '127.0.0.1'" in refusal(at(node.bootstrap, authority.tls()))


def test_a_client_that_encrypts_is_told_of_a_node_that_does_not(tmp_path: Path, authority: Authority) -> None:
    with LiveNode(tmp_path) as node:
        assert "is not encrypted" in refusal(at(node.bootstrap, authority.tls()))


def test_TLS_1_1_is_not_spoken(node: LiveNode, authority: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(str(authority.ca))
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    for address in (node.node.kafka_address, node.node.grpc_address):
        with socket.create_connection(address, PATIENCE_S) as plain, pytest.raises(OSError):
            context.wrap_socket(plain, server_hostname="localhost")


def test_S2_a_client_that_does_not_shake_hands_keeps_its_place_only_for_a_while(
    node: LiveNode, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.runtime.encrypted.HANDSHAKE_TIMEOUT_S", 0.2)
    assert node.node.kafka_listener is not None
    acceptor = node.node.kafka_listener._acceptor
    before = acceptor.connections.open
    with socket.create_connection(node.node.kafka_address, PATIENCE_S) as silent:
        assert _all_of(silent) == b""
    _until(lambda: acceptor.connections.open == before)
    numbers_pass(at(node.bootstrap, authority.tls()))


def test_S2_a_stop_waits_for_no_handshake(tmp_path: Path, authority: Authority) -> None:
    async def main() -> None:
        async with running_node(tmp_path, **encrypted(authority.node())) as node:
            assert node.kafka_listener is not None
            acceptor = node.kafka_listener._acceptor
            silent = socket.create_connection(node.kafka_address, PATIENCE_S)
            while not acceptor._handshaking:  # noqa: ASYNC110 (nobody tells of it)
                await asyncio.sleep(0.01)
        assert acceptor.connections.open == 0
        silent.close()

    async def bounded() -> None:  # the handshake itself may take ten seconds
        async with asyncio.timeout(9):
            await main()

    asyncio.run(bounded())


# --- Renewing ---------------------------------------------------------------------------------------------------------


def _shown(address: tuple[str, int], alpn: str | None = None) -> bytes:
    """The certificate that a listener shows, DER."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if alpn is not None:
        context.set_alpn_protocols([alpn])
    with socket.create_connection(address, PATIENCE_S) as plain, context.wrap_socket(plain) as wrapped:
        return wrapped.getpeercert(binary_form=True) or b""


def test_a_renewed_certificate_is_shown_without_a_restart(
    node: LiveNode, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    kafka, grpc = node.node.kafka_address, node.node.grpc_address
    before = _shown(kafka)
    assert _shown(grpc, "h2") == before
    bootstrap = at(node.bootstrap, authority.tls())
    with semel.Admin(bootstrap) as lasting, caplog.at_level(logging.INFO, "semel.tls"):
        lasting.topics()
        authority.node()
        after = _shown(kafka)
        assert after != before
        assert _shown(grpc, "h2") == after
        lasting.topics()  # over the connection that it has
    assert caplog.text.count("the certificate was renewed") == 1
    numbers_pass(bootstrap)


def test_S6_a_listener_shows_and_asks_for_certificates_of_its_own_also_renewed_ones(
    tmp_path: Path, authority: Authority
) -> None:
    outside = Authority(tmp_path / "outside")
    general, own = authority.node(), outside.node()
    item = (
        f"ext=tls://127.0.0.1:0?ssl.certificate.location={own.certificate}&ssl.key.location={own.key}"
        f"&ssl.ca.location={outside.ca}&ssl.client.auth=required"
    )
    given = {
        "kafka_listeners": ("int=tls://127.0.0.1:0", item),
        "grpc_listeners": ("int=tls://127.0.0.1:0", item),
        "ssl_certificate_location": str(general.certificate),
        "ssl_key_location": str(general.key),
    }
    with LiveNode(tmp_path, **given) as live:
        listeners = live.node.client_listeners
        assert listeners is not None
        pairs = zip(live.node.kafka_addresses, listeners.grpc, strict=True)
        inside, strict = ((kafka, grpc.address) for kafka, grpc in pairs)
        shown = outside.tls(outside.client())
        numbers_pass(at(inside[1], authority.tls()))
        numbers_pass(at(strict[1], shown))
        for address in strict:
            assert "certificate" in refusal(at(address, outside.tls()))
            assert "certificate" in refusal(at(address, outside.tls(authority.client())))
        before = _shown(inside[0])
        outside.node()
        renewed = outside.node()
        numbers_pass(at(strict[1], shown))
        assert _shown(inside[0]) == before
        context = shown.context()
        context.check_hostname = False
        with socket.create_connection(strict[0], PATIENCE_S) as plain, context.wrap_socket(plain) as wrapped:
            now = wrapped.getpeercert(binary_form=True) or b""
        first = renewed.certificate.read_text().partition("-----END")[0]
        assert ssl.PEM_cert_to_DER_cert(f"{first}-----END CERTIFICATE-----") == now


def test_S6_a_certificate_that_cant_be_used_leaves_the_old_one_and_is_logged_once(
    node: LiveNode, authority: Authority, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    before = _shown(node.node.kafka_address)
    pair = Pair(tmp_path / "authority" / "node.pem", tmp_path / "authority" / "node.key")
    with caplog.at_level(logging.INFO, "semel.tls"):
        other = authority.node("other")
        other.certificate.replace(pair.certificate)  # its key comes later
        for _ in range(3):
            assert _shown(node.node.kafka_address) == before
            assert _shown(node.node.grpc_address, "h2") == before
        assert caplog.text.count("the certificate stays as it was") == 1
        pair.key.unlink()
        for _ in range(3):
            assert _shown(node.node.kafka_address) == before
        assert caplog.text.count("the certificate stays as it was") == 2
        other.key.replace(pair.key)
        assert _shown(node.node.kafka_address) != before
    assert "renewed" in caplog.text
    numbers_pass(at(node.bootstrap, authority.tls()))


def test_a_key_that_could_not_be_read_is_used_once_it_can(
    node: LiveNode, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where there was no descriptor left: nothing of the files has changed since."""
    monkeypatch.setattr("semel.broker.listeners.tls._RETRY_S", 0.0)
    before = _shown(node.node.kafka_address)
    with monkeypatch.context() as patch:
        patch.setattr("semel.broker.listeners.tls._read", _no_descriptor)
        authority.node()
        assert _shown(node.node.kafka_address) == before
    assert _shown(node.node.kafka_address) != before


def _no_descriptor(name: str, path: str) -> bytes:
    raise ConfigError(f"{name} = {path} can't be read: too many open files")


def test_S3_a_pipe_in_place_of_a_file_holds_up_nobody(node: LiveNode, authority: Authority, tmp_path: Path) -> None:
    before = _shown(node.node.kafka_address)
    key = tmp_path / "authority" / "node.key"
    key.unlink()
    os.mkfifo(key)
    assert _shown(node.node.kafka_address) == before
    numbers_pass(at(node.bootstrap, authority.tls()))


def test_S6_a_session_is_not_resumed_once_its_certificate_has_expired(
    strict_node: LiveNode, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = authority.tls(authority.client()).context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    address = strict_node.node.kafka_address
    with (
        socket.create_connection(address, PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as first,
    ):
        first.sendall(_frame(ApiKey.API_VERSIONS, 0, 1, b""))
        assert _exactly(first, 4)
        session = first.session
    monkeypatch.setattr("semel.runtime.encrypted._has_expired", lambda _: True)
    with (
        socket.create_connection(address, PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost", session=session) as again,
    ):
        assert again.session_reused
        with suppress(OSError):
            again.sendall(_frame(ApiKey.API_VERSIONS, 0, 1, b""))
            assert again.recv(1) == b""


def test_a_stop_waits_a_second_for_a_client_that_says_nothing_more(node: LiveNode, authority: Authority) -> None:
    context = authority.tls().context()
    plain = socket.create_connection(node.node.kafka_address, PATIENCE_S)
    idle = context.wrap_socket(plain, server_hostname="localhost")
    idle.sendall(_frame(ApiKey.API_VERSIONS, 0, 1, b""))
    assert _exactly(idle, 4)
    listener = node.node.kafka_listener
    assert listener is not None
    node.stop()
    assert listener.statistics().connections == 0
    node.start()
    idle.close()


def test_S5_no_key_is_in_an_error_or_a_log(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pair = authority.node()
    pair.certificate.write_bytes(pair.key.read_bytes())
    with caplog.at_level(logging.DEBUG), pytest.raises(SemelError) as raised, LiveNode(tmp_path, **encrypted(pair)):
        pass
    body = pair.key.read_text().splitlines()[1]
    assert body not in f"{raised.value!r} {raised.value} {caplog.text}"
    assert "ssl.certificate.location" in str(raised.value)


# --- Helpers ----------------------------------------------------------------------------------------------------------


def _all_of(client: socket.socket) -> bytes:
    """What comes until the node closes."""
    data = b""
    try:
        while chunk := client.recv(4_096):
            data += chunk
    except ConnectionError:
        pass
    return data


def _is_hung_up_on(node: LiveNode, context: ssl.SSLContext) -> bool:
    """Whether the Kafka listener closes a connection without an answer. TLS 1.3 tells a client after its handshake."""
    with socket.create_connection(node.node.kafka_address, PATIENCE_S) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
                wrapped.sendall(b"\x00\x00\x00\x0b\x00\x12\x00\x00\x00\x00\x00\x01\x00\x01t")
                return wrapped.recv(1) == b""
        except (ssl.SSLError, ConnectionError):
            return True


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_client_can_t_read_is_named(tmp_path: Path, authority: Authority) -> None:
    for tls, told in (
        (Tls(str(tmp_path / "absent.pem")), "ssl.ca.location"),
        (Tls(str(authority.client().key)), "has no certificates in PEM"),
        (Tls(str(authority.ca), str(authority.ca), str(authority.ca)), "are no certificate with its private key"),
    ):
        with pytest.raises(UsageError, match=told):
            tls.context()
        with pytest.raises(UsageError, match=told):
            tls.credentials()
        with pytest.raises(UsageError, match=told), semel.Admin(at("127.0.0.1:1", tls)) as admin:
            admin.topics()
    assert not issubclass(UsageError, RetriableError)


def test_S2_who_leaves_while_nothing_is_read_of_him_keeps_no_place(node: LiveNode, authority: Authority) -> None:
    """A fetch waits, what follows it is malformed, and the client goes: asyncio alone would wait for ever."""
    context = authority.tls().context()
    listener = node.node.kafka_listener
    assert listener is not None
    with semel.Admin(at(node.bootstrap, authority.tls())) as admin:
        admin.create_topic("empty", partitions=1)
    for _ in range(3):
        plain = socket.create_connection(node.node.kafka_address, PATIENCE_S)
        client = context.wrap_socket(plain, server_hostname="localhost")
        client.sendall(_frame(ApiKey.API_VERSIONS, 0, 1, b""))
        _exactly(client, int.from_bytes(_exactly(client, 4), "big"))  # and the tickets of TLS 1.3
        waits = _fetch("empty", 1_500, 1 << 20)
        client.sendall(_frame(ApiKey.FETCH, 4, 2, waits) + (-5).to_bytes(4, "big", signed=True))
        _until(lambda: listener.statistics().waiting_fetches > 0)
        plain_again = client.detach()
        socket.socket(fileno=plain_again).close()
    _until(lambda: listener.statistics().connections == 0)


def test_a_log_in_the_program_and_the_test_kit_encrypt_as_well(tmp_path: Path, authority: Authority) -> None:
    settings = {name.replace("_", "."): value for name, value in encrypted(authority.node()).items()}
    files = {name: value for name, value in settings.items() if name.startswith("ssl.")}
    with semel.open(tmp_path / "log", settings=files, grpc="tls://127.0.0.1:0") as log:
        assert log.bootstrap.startswith("tls://127.0.0.1:")
        numbers_pass(f"{log.bootstrap}?ssl.ca.location={authority.ca}")
    with Broker(**encrypted(authority.node())) as broker:
        for _ in range(2):
            numbers_pass(f"tls://{broker.bootstrap.removeprefix('tls://')}?ssl.ca.location={authority.ca}")
            broker.stop()
            broker.start()
