"""What a client says of an address at which no node of Semel answers, and how soon.

No wall-clock time is measured: `api_timeout_ms` would outlast the test's own time limit, so a test that ends has seen
the short `connect_timeout_ms`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fake_node import FakeNode

import semel
from semel.protocol.errors import ErrorCode, FatalError, RetriableError
from semel.protocol.v1 import transactions_pb2
from semel.runtime.kafka_client.connection import ConnectionLostError, connect, dial_tcp
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.options import ClientOptions
from semel.sdk.transport.rpcs import INIT_PRODUCER_ID
from semel.sdk.transport.unreachable import Trouble, unreachable

Serve = Callable[[socket.socket], None]
QUICK = {"connect_timeout_ms": 200, "api_timeout_ms": 3_600_000}


def nobodys_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@contextmanager
def listener(serve: Serve) -> Iterator[str]:
    """A server that treats each connection as `serve` does."""
    server = socket.create_server(("127.0.0.1", 0))

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


def answer_http(connection: socket.socket) -> None:
    with connection:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def hang_up(connection: socket.socket) -> None:
    connection.close()


# --- The words of gRPC ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("details", "trouble"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9: Failed to connect to remote "
            "host: Connection refused",
            Trouble.REFUSED,
        ),
        (
            "errors resolving no.invalid:9: [field:hostname lookup error:address lookup failed for no.invalid:9: "
            "Domain name not found]",
            Trouble.UNKNOWN_HOST,
        ),
        ("DNS resolution failed for no.invalid:9: C-ares status is not ARES_SUCCESS", Trouble.UNKNOWN_HOST),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:192.0.2.1:9: connect: No route to host",
            Trouble.NO_ROUTE,
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:9: Socket closed",
            Trouble.HANGS_UP,
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:9: recvmsg:Connection reset "
            "by peer (104)",
            Trouble.HANGS_UP,
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:9: Failed parsing HTTP/2 "
            "(Expected SETTINGS frame as the first frame, got frame type 45)",
            Trouble.NOT_GRPC,
        ),
        ("Socket closed", Trouble.OTHER),
        ("something that a later gRPC says", Trouble.OTHER),
    ],
)
def test_what_grpc_says_of_an_address_is_told_apart(details: str, trouble: Trouble) -> None:
    error = unreachable("host:9", details)
    assert error.trouble is trouble
    assert error.code is ErrorCode.NETWORK_EXCEPTION
    assert "host:9" in error.message
    if trouble is Trouble.OTHER:
        assert details in error.message


# --- Addresses where no node is ---------------------------------------------------------------------------------------


def test_a_port_where_nothing_listens_was_reported_after_half_a_minute() -> None:
    address = f"127.0.0.1:{nobodys_port()}"
    expected = rf"nothing listens on {address}: connection refused\. Is the node running\? `semel serve` starts one"
    with semel.Admin(address, **QUICK) as admin, pytest.raises(RetriableError, match=expected) as caught:
        admin.topics()
    assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
    producer = semel.Producer(address, connect_timeout_ms=200, max_block_ms=3_600_000)
    with pytest.raises(RetriableError, match=expected):
        producer.send("orders", b"x")
    producer.close()
    producer = semel.Producer(address, connect_timeout_ms=200, max_block_ms=3_600_000, transactional_id="enrich-0")
    with pytest.raises(RetriableError, match=expected):
        producer.begin_transaction()
    producer.close()
    for consumer in (
        semel.Consumer(address, group="enrich", topics=["orders"], **QUICK),
        semel.Consumer(address, group="enrich", pattern="ord.*", **QUICK),
        semel.Consumer(address, **QUICK),
    ):
        with consumer:
            if consumer.assignment() == frozenset() and "no group" in repr(consumer):
                consumer.assign([semel.TopicPartition("orders", 0)])
            with pytest.raises(RetriableError, match=expected):
                consumer.poll()


def test_the_asyncio_clients_report_it_too() -> None:
    address = f"127.0.0.1:{nobodys_port()}"

    async def run() -> None:
        async with semel.aio.Admin(address, **QUICK) as admin:
            with pytest.raises(RetriableError, match="nothing listens on"):
                await admin.topics()
        async with semel.aio.Producer(address, connect_timeout_ms=200, max_block_ms=3_600_000) as producer:
            with pytest.raises(RetriableError, match="nothing listens on"):
                await producer.send("orders", b"x")
        async with semel.aio.Consumer(address, group="enrich", topics=["orders"], **QUICK) as consumer:
            with pytest.raises(RetriableError, match="nothing listens on"):
                await consumer.poll()

    asyncio.run(run())


def test_a_host_that_is_not_there_is_told_from_a_port() -> None:
    with (
        semel.Admin("no-such-host.invalid:9094", **QUICK) as admin,
        pytest.raises(RetriableError, match=r"there is no host 'no-such-host\.invalid': its name can't be resolved"),
    ):
        admin.topics()


def test_a_kafka_broker_that_is_no_node_of_semel_is_recognised() -> None:
    with FakeNode({"orders": 1}) as node:
        address = f"127.0.0.1:{node.kafka_port}"
        with (
            semel.Admin(address, connect_timeout_ms=3_600_000, api_timeout_ms=3_600_000) as admin,
            pytest.raises(FatalError, match=rf"{address} is a Kafka broker, not a Semel node: .*`semel serve` starts"),
        ):
            admin.topics()


def test_a_right_address_beside_wrong_ones_is_found() -> None:
    with FakeNode({"orders": 1}) as node:
        wrong = f"127.0.0.1:{nobodys_port()},127.0.0.1:{node.kafka_port}"
        with semel.Producer(f"{wrong},{node.bootstrap}") as producer:
            assert producer.send("orders", b"x").result(30).offset == 0
        with (
            semel.Admin(wrong, **QUICK) as admin,
            pytest.raises(
                RetriableError, match=r"none of the nodes can be reached: nothing listens .* is a Kafka broker, not a"
            ),
        ):
            admin.topics()


def test_another_server_at_the_address_is_told_from_a_node() -> None:
    for serve, expected in (
        (answer_http, "is an HTTP server, but no"),
        (hang_up, "speaks neither gRPC nor Kafka's protocol"),
    ):
        with (
            listener(serve) as address,
            semel.Admin(address, **QUICK) as admin,
            pytest.raises(RetriableError, match=expected),
        ):
            admin.topics()


def test_a_node_slower_than_a_tenth_of_a_second_to_accept_was_never_reached() -> None:
    """gRPC's smallest pause between attempts is the time that one of them is given, too."""
    with FakeNode({"orders": 1}) as node:
        host, _, port = node.bootstrap.partition(":")
        waited = threading.Event()

        def pump(source: socket.socket, target: socket.socket) -> None:
            try:
                while data := source.recv(65536):
                    target.sendall(data)
            except OSError:
                pass
            finally:
                for end in (source, target):
                    end.close()

        def slowly(client: socket.socket) -> None:
            waited.wait(0.3)
            upstream = socket.create_connection((host, int(port)))
            for ends in ((client, upstream), (upstream, client)):
                threading.Thread(target=pump, args=ends, daemon=True).start()

        with (
            listener(slowly) as address,
            semel.Admin(address, connect_timeout_ms=1, request_timeout_ms=60_000) as admin,
        ):
            assert [topic.name for topic in admin.topics()] == ["orders"]


# --- A client that has reached its node once --------------------------------------------------------------------------


def test_a_client_that_loses_its_node_goes_on_trying_until_its_deadline() -> None:
    node = FakeNode({"orders": 1})
    node.start()
    options = ClientOptions.checked(node.bootstrap, retry_backoff_ms=1, connect_timeout_ms=1, api_timeout_ms=60_000)
    core = ClientCore("Test", options)
    try:
        core.run(core.control.call(INIT_PRODUCER_ID, transactions_pb2.InitProducerIdRequest()))
        node.stop()
        refused = core.io.submit(core.control.call(INIT_PRODUCER_ID, transactions_pb2.InitProducerIdRequest()))
        with pytest.raises(RetriableError, match="nothing listens on"):
            core.run(core.control.call(INIT_PRODUCER_ID, transactions_pb2.InitProducerIdRequest(), timeout_ms=300))
        assert not refused.done()
        node.start()
        assert refused.result(60).producer.producer_id >= 1001
    finally:
        core.close()
        node.stop()


# --- The data plane ---------------------------------------------------------------------------------------------------


def test_the_grpc_port_advertised_as_the_kafka_one_is_recognised() -> None:
    with FakeNode({"orders": 1}) as node:
        host, _, port = node.bootstrap.partition(":")
        with pytest.raises(
            ConnectionLostError, match=r"this is an HTTP/2 listener, .* does the node's kafka\.advertised"
        ):
            asyncio.run(connect(node.bootstrap, dial_tcp(host, int(port)), client_id="test"))


def test_a_producer_whose_data_address_is_dead_says_so_before_the_delivery_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warned = threading.Event()

    class Listen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING and "can't connect to" in record.getMessage():
                warned.set()

    handler = Listen()
    logging.getLogger("semel.producer").addHandler(handler)
    try:
        with FakeNode({"orders": 1}) as node:
            node.advertised_kafka_port = nobodys_port()
            producer = semel.Producer(node.bootstrap, retry_backoff_ms=1, retry_backoff_max_ms=2)
            delivery = producer.send("orders", b"x")
            assert warned.wait(60)
            assert not delivery.done()
            with pytest.raises(semel.SemelError):
                producer.close(timeout_s=0.001)
    finally:
        logging.getLogger("semel.producer").removeHandler(handler)


def test_a_connection_attempt_that_is_cancelled_leaves_no_socket_open() -> None:
    """Nobody has the connection yet, to close it: the garbage collector found it, at best."""
    asked, closed = threading.Event(), threading.Event()

    def silent(connection: socket.socket) -> None:
        with connection:
            connection.recv(1000)
            asked.set()
            connection.recv(1000)  # returns when the client closes
            closed.set()

    async def attempt(address: str) -> None:
        host, _, port = address.rpartition(":")
        task = asyncio.create_task(connect(address, dial_tcp(host, int(port)), client_id="test", timeout_ms=3_600_000))
        await asyncio.to_thread(asked.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(closed.wait)

    with listener(silent) as address:
        asyncio.run(attempt(address))
    assert closed.is_set()
