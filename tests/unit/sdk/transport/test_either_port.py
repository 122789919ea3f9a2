"""`bootstrap` takes either port of a node: its gRPC one, or its Kafka one, which says where the other is."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_node import LiveNode
from typer.testing import CliRunner

import semel
from semel.cli.main import app
from semel.protocol.errors import FatalError, RetriableError
from semel.protocol.kafka.api import ApiKey, ApiVersionRange, ApiVersionsResponse, frame_response, parse_request_header
from semel.protocol.kafka.messages import build_response, prepare
from semel.protocol.v1 import metadata_pb2
from semel.sdk.transport import control
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.options import ClientOptions
from semel.sdk.transport.rpcs import GET_METADATA
from semel.sdk.transport.security import Access
from semel.sdk.transport.unreachable import Trouble
from semel.testing import Broker

QUICK = {"connect_timeout_ms": 200, "api_timeout_ms": 3_600_000}
PORTS = ("grpc", "kafka")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    # What a node imports at its first such request takes seconds on a busy machine, more than a client waits.
    prepare(ApiKey.DESCRIBE_CLUSTER, 0)
    prepare(ApiKey.DESCRIBE_CONFIGS, 4)
    with Broker() as broker:
        yield broker


@pytest.fixture(params=PORTS)
def address(broker: Broker, request: pytest.FixtureRequest) -> str:
    return broker.bootstrap if request.param == "grpc" else broker.kafka


@contextmanager
def kafka_broker(configs: dict[str, str] | None) -> Iterator[str]:
    """A Kafka broker with these settings; None: it hangs up when it is asked for them."""
    server = socket.create_server(("127.0.0.1", 0))
    apis = [
        ApiVersionRange(key, 0, 4) for key in (ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_CONFIGS)
    ]

    def answer(frame: bytes) -> list[bytes | memoryview]:
        header = parse_request_header(frame)
        key, version = ApiKey(header.api_key), header.api_version
        if key is ApiKey.API_VERSIONS:
            return list(ApiVersionsResponse(apis).frame(version, header.correlation_id))
        if key is ApiKey.DESCRIBE_CLUSTER:
            brokers = [{"broker_id": 7, "host": "127.0.0.1", "port": 9092}]
            body = build_response(key, version, cluster_id="c", controller_id=7, brokers=brokers)
        else:
            assert configs is not None
            entries = [{"name": name, "value": value} for name, value in configs.items()]
            body = build_response(
                key, version, results=[{"resource_type": 4, "resource_name": "7", "configs": entries}]
            )
        return list(frame_response(key, version, header.correlation_id, body))

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while len(size := stream.read(4)) == 4:
                (length,) = struct.unpack(">i", size)
                if length > 1 << 20:
                    return
                frame = stream.read(length)
                if configs is None and parse_request_header(frame).api_key != ApiKey.API_VERSIONS:
                    return
                connection.sendall(b"".join(answer(frame)))

    def run() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            serve(connection)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)


def test_the_clients_take_either_port(broker: Broker, address: str) -> None:
    topic = broker.create_topic()
    with semel.Admin(address) as admin:
        assert admin.topic(topic).name == topic
    with semel.Producer(address) as producer:
        producer.send(topic, b"plain").result(30)
    with semel.Producer(address, transactional_id=f"{topic}-writer") as producer, producer.transaction():
        producer.send(topic, b"transactional")
    with semel.SharedTransaction.open(address, f"{topic}-key", token="t") as shared, shared.join() as writer:
        writer.send(topic, b"shared")
        shared.commit([writer.finish()])
    with semel.Consumer(address, group=f"{topic}-readers", topics=[topic], offset_reset="earliest") as consumer:
        seen: list[bytes | None] = []
        while len(seen) < 3:
            batch = consumer.poll(30)
            assert batch is not None
            seen += [record.value for record in batch]
        consumer.commit()
    assert seen == [b"plain", b"transactional", b"shared"]


def test_the_asyncio_clients_take_either_port(broker: Broker, address: str) -> None:
    topic = broker.create_topic()

    async def run() -> bytes | None:
        async with semel.aio.Admin(address) as admin:
            assert (await admin.topic(topic)).name == topic
        async with semel.aio.Producer(address) as producer:
            await (await producer.send(topic, b"x"))
        async with semel.aio.Consumer(
            address, group=f"{topic}-readers", topics=[topic], offset_reset="earliest"
        ) as one:
            batch = await one.poll(30)
            assert batch is not None
            return next(iter(batch)).value

    assert asyncio.run(run()) == b"x"


def test_the_command_takes_either_port(address: str) -> None:
    def run(*arguments: str, stdin: str | None = None) -> str:
        done = CliRunner().invoke(app, [*arguments, "--bootstrap", address], input=stdin)
        assert done.exit_code == 0, done.output
        return done.stdout

    run("topic", "create", "commands", "--if-not-exists")
    run("produce", "commands", stdin="hello\n")
    assert run("consume", "commands", "--from-beginning", "--max", "1") == "hello\n"
    assert run("health", "--timeout", "30") == "serving\n"
    assert "commands" in run("topic", "list")


def test_the_two_ports_of_one_node_and_a_dead_one_stand_beside_each_other(broker: Broker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"127.0.0.1:{server.getsockname()[1]}"
    with semel.Admin(broker.bootstrap) as admin:
        expected = admin.topics()
    for addresses in ([nobody, broker.kafka, broker.bootstrap], [broker.kafka, nobody], [nobody, broker.kafka]):
        with semel.Admin(addresses) as admin:
            for _ in range(3):
                assert admin.topics() == expected


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("frozen_at", [0, 1])
def test_a_frozen_server_among_the_addresses_does_not_hold_up_the_others(
    broker: Broker, port: str, frozen_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections and says nothing. Asked first, it took all of `connect_timeout_ms`, in every new process."""
    monkeypatch.setattr(control, "_CONTACT_S", 3_600.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        addresses = [broker.bootstrap if port == "grpc" else broker.kafka]
        addresses.insert(frozen_at, f"127.0.0.1:{server.getsockname()[1]}")
        with semel.Admin(addresses, **QUICK) as admin:
            assert isinstance(admin.topics(), list)


def test_where_every_address_is_silent_or_dead_the_error_names_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_CONTACT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as closed:
        silent, dead = (f"127.0.0.1:{each.getsockname()[1]}" for each in (server, closed))
        closed.close()
        with (
            semel.Admin([silent, dead], connect_timeout_ms=6_000, api_timeout_ms=3_600_000) as admin,
            pytest.raises(RetriableError, match="none of the nodes can be reached") as failure,
        ):
            admin.topics()
    assert silent in str(failure.value)
    assert dead in str(failure.value)


def test_the_kafka_listener_is_asked_once_and_by_nobody_who_has_the_grpc_port(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.sdk.transport import discovery

    asked: list[str] = []
    find = discovery.find_grpc_address

    async def counted(target: str, access: Access, **options: object) -> str | None:
        asked.append(target)
        return await find(target, access, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(discovery, "find_grpc_address", counted)
    for address in (broker.bootstrap, broker.kafka):
        core = ClientCore("Test", ClientOptions.checked(address))
        try:

            async def many(core: ClientCore = core) -> None:
                requests = (core.control.call(GET_METADATA, metadata_pb2.GetMetadataRequest()) for _ in range(20))
                await asyncio.gather(*requests)

            core.run(many())
            core.run(many())
        finally:
            core.close()
    assert asked == [broker.kafka]


def test_a_node_that_is_back_at_another_grpc_port_is_found_by_its_kafka_port(tmp_path: Path) -> None:
    with LiveNode(tmp_path) as node:
        kafka, first = str(node.node.kafka_address), node.bootstrap
        with semel.Admin(kafka) as admin:
            admin.create_topic("orders", partitions=1)
            kafka_listener = node.node.kafka_listener
            assert kafka_listener is not None
            assert kafka_listener.statistics().aborted_connections == 0  # nothing to warn of
            node.stop()
            with socket.create_server((host_of(first), port_of(first))):  # nobody gets the old one
                node._settings["grpc_listen"] = "127.0.0.1:0"
                node.start()
            assert node.bootstrap != first
            assert [topic.name for topic in admin.topics()] == ["orders"]


def host_of(address: str) -> str:
    return address.rpartition(":")[0]


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("configs", [{}, {"advertised.listeners": "PLAINTEXT://x:9092"}])
def test_a_kafka_broker_is_told_from_a_node(configs: dict[str, str]) -> None:
    with (
        kafka_broker(configs) as address,
        semel.Admin(address, connect_timeout_ms=3_600_000, api_timeout_ms=3_600_000) as admin,
        pytest.raises(FatalError, match=rf"{address} is a Kafka broker, not a Semel node"),
    ):
        admin.topics()


def test_a_listener_that_does_not_say_is_asked_again_and_then_named() -> None:
    with (
        kafka_broker(None) as address,
        semel.Admin(address, **QUICK) as admin,
        pytest.raises(RetriableError, match=rf"{address} speaks Kafka's protocol, and did not say") as caught,
    ):
        admin.topics()
    assert getattr(caught.value, "trouble", None) is Trouble.KAFKA


def test_where_the_grpc_port_that_a_node_names_is_out_of_reach_the_error_says_who_named_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"127.0.0.1:{server.getsockname()[1]}"
    with (
        kafka_broker({"grpc.advertised": nobody, "grpc.listen": "0.0.0.0:9094"}) as address,
        semel.Admin(address, **QUICK) as admin,
        pytest.raises(RetriableError, match=rf"nothing listens on {nobody}.*what the node at {address} gives"),
    ):
        admin.topics()


def test_a_node_that_listens_everywhere_is_reached_at_the_host_that_was_given(broker: Broker) -> None:
    _, _, port = broker.bootstrap.rpartition(":")
    with (
        kafka_broker({"grpc.advertised": "", "grpc.listen": f"0.0.0.0:{port}"}) as address,
        semel.Admin(address) as admin,
    ):
        admin.topics()


def test_the_command_says_it_of_a_foreign_broker() -> None:
    with kafka_broker({}) as address:
        for command in (["topic", "list"], ["health", "--timeout", "30"]):
            done = CliRunner().invoke(app, [*command, "--bootstrap", address])
            assert done.exit_code != 0
            assert "is a Kafka broker, not a Semel node" in done.stderr
