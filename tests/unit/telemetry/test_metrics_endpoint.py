"""The HTTP endpoint of the metrics: what it answers, and that nothing sent to it does harm."""

from __future__ import annotations

import asyncio
import gzip
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_node import LiveNode
from metrics_scrape import HttpAnswer, ask, get
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from running_node import SMALL

from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import Address
from semel.broker.metrics.readings import Reading
from semel.broker.node import Node
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.broker.telemetry import endpoint
from semel.protocol.errors import SemelError


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    settings = {"metrics_listen": "127.0.0.1:0", "metrics_max_connections": 4}
    with LiveNode(tmp_path_factory.mktemp("endpoint"), **settings) as live:
        yield live


@pytest.fixture
def address(live: LiveNode) -> Address:
    assert live.node.metrics_address is not None
    return live.node.metrics_address


def test_text_is_the_format_that_is_asked_for_by_nobody(address: Address) -> None:
    answer = get(address, "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "semel_node_ready" in {family.name for family in parse_text(answer.body.decode())}


def test_openmetrics_is_given_to_those_who_ask_for_it(address: Address) -> None:
    answer = get(address, "/metrics", Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.body.endswith(b"# EOF\n")
    assert "semel_node_ready" in {family.name for family in parse_openmetrics(answer.body.decode())}


def test_an_answer_is_compressed_for_those_who_take_that(address: Address) -> None:
    answer = get(address, "/metrics?name=x", Accept_Encoding="gzip")
    assert answer.headers["content-encoding"] == "gzip"
    assert b"semel_node_ready 1.0" in gzip.decompress(answer.body)


def test_health_and_readiness_of_a_node_that_serves(address: Address) -> None:
    assert get(address, "/healthz").body == get(address, "/readyz").body == b"ok\n"


def test_head_has_the_headers_alone(address: Address) -> None:
    answer = ask(address, b"HEAD /healthz HTTP/1.0\r\n\r\n")
    assert (answer.status, answer.headers["content-length"], answer.body) == (200, "3", b"")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET http://elsewhere/metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n : x\r\n\r\n", 400),
        (b"GET /metrics HTTP/2\r\n\r\n", 400),
        (b"GET /" + b"x" * (9 << 10) + b" HTTP/1.1\r\n\r\n", 431),
    ],
)
def test_bad_requests_are_answered_with_what_is_wrong(address: Address, request_bytes: bytes, status: int) -> None:
    answer = ask(address, request_bytes)
    assert answer.status == status
    assert answer.body
    assert get(address, "/healthz").status == 200


def test_an_answer_is_not_lost_over_what_was_not_read(address: Address) -> None:
    """The connection was reset: the refusal of a large body, or of one connection too many, did not arrive."""
    for _ in range(20):
        answer = ask(address, b"POST /metrics HTTP/1.1\r\nContent-Length: 40000\r\n\r\n" + b"x" * 40_000)
        assert answer.status == 405


def test_a_connection_that_sends_nothing_or_half_a_request_is_let_go(address: Address) -> None:
    for half in (b"", b"GET /metr"):
        with socket.create_connection(address, timeout=30) as connection:
            connection.sendall(half)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""


def test_a_request_that_does_not_come_to_its_end_is_answered_after_a_while(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "PATIENCE_S", 0.2)
    answer = ask(address, b"GET /metrics HTTP/1.1\r\n")
    assert answer.status == 408


def test_idle_connections_do_not_keep_a_node_from_saying_that_it_is_healthy(address: Address) -> None:
    """They filled the endpoint, and a container's check would have restarted a node in which all was well."""
    held: list[socket.socket] = []
    try:
        for _ in range(30):  # the bound is 4
            held.append(socket.create_connection(address, timeout=30))
            assert get(address, "/healthz").status == 200
        assert get(address, "/metrics").status == 200
        assert held[0].recv(1) == b"", "the oldest makes room"
    finally:
        for connection in held:
            connection.close()


def test_while_all_connections_are_being_answered_metrics_wait_for_later_and_health_does_not() -> None:
    async def main() -> None:
        going_on = asyncio.Event()

        async def read() -> list[Reading]:
            await going_on.wait()
            return []

        server = endpoint.MetricsEndpoint(
            Address("127.0.0.1", 0),
            read=read,
            healthy=lambda: endpoint.Health(ok=True),
            ready=lambda: endpoint.Health(ok=False, reason="starting"),
            resource={},
            connections_max=2,
        )
        await server.start()
        try:
            scrapes = [asyncio.create_task(asyncio.to_thread(get, server.address, "/metrics")) for _ in range(2)]
            await asyncio.to_thread(wait_until, lambda: server.working == 2)
            refused = await asyncio.to_thread(get, server.address, "/metrics")
            assert refused.status == 503
            assert b"metrics.max.connections = 2" in refused.body
            assert (await asyncio.to_thread(get, server.address, "/healthz")).status == 200
            assert (await asyncio.to_thread(get, server.address, "/readyz")).body == b"starting\n"
            going_on.set()
            assert [answer.status for answer in await asyncio.gather(*scrapes)] == [200, 200]
            assert (await asyncio.to_thread(get, server.address, "/metrics")).status == 200
        finally:
            await server.stop()

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one address of the loopback")
def test_S2_connections_of_one_address_leave_places_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's probe comes from another address than who keeps the port busy."""
    monkeypatch.setattr(endpoint, "LINGER_S", 600.0)

    def say(address: Address, source: str, path: str) -> bytes:
        """Ask, and keep the connection. Returns what came first; nothing where it was closed."""
        connection = socket.create_connection(address, timeout=30, source_address=(source, 0))
        held.append(connection)
        try:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            return connection.recv(12)
        except OSError:
            return b""

    held: list[socket.socket] = []

    async def main() -> None:
        going_on = asyncio.Event()

        async def read() -> list[Reading]:
            await going_on.wait()
            return []

        server = endpoint.MetricsEndpoint(
            Address("127.0.0.1", 0),
            read=read,
            healthy=lambda: endpoint.Health(ok=True),
            ready=lambda: endpoint.Health(ok=True),
            resource={},
            connections_max=2,
        )
        await server.start()
        try:
            scrapes = [
                asyncio.create_task(asyncio.to_thread(say, server.address, "127.0.0.1", "/metrics")) for _ in range(2)
            ]
            await asyncio.to_thread(wait_until, lambda: server.working == 2)
            assert await asyncio.to_thread(say, server.address, "127.0.0.1", "/metrics") == b"HTTP/1.1 503"
            assert await asyncio.to_thread(say, server.address, "127.0.0.1", "/healthz") == b"", "half as many more"
            assert await asyncio.to_thread(say, server.address, "127.0.0.2", "/healthz") == b"HTTP/1.1 200"
            going_on.set()
            assert await asyncio.gather(*scrapes) == [b"HTTP/1.1 200"] * 2
        finally:
            for connection in held:
                connection.close()
            await server.stop()

    asyncio.run(main())


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_port_that_is_taken_is_said_with_what_to_do_and_nothing_stays_behind(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = NodeConfig(
            **SMALL, data_dir=str(tmp_path / "data"), metrics_listen=f"127.0.0.1:{taken.getsockname()[1]}"
        )
        with pytest.raises(NodeStartError, match="--metrics HOST:PORT") as raised:
            asyncio.run(Node.start(config))
    assert raised.value.failure is StartFailure.ADDRESS
    assert not (tmp_path / "data").exists()


def test_a_node_that_failed_is_neither_healthy_nor_ready(tmp_path: Path) -> None:
    async def main() -> None:
        config = NodeConfig(**SMALL, data_dir=str(tmp_path / "data"), metrics_listen="127.0.0.1:0")
        node = await Node.start(config)
        try:
            assert node.metrics_address is not None
            node.failed.set_result(SemelError("its disk failed"))
            for path in ("/healthz", "/readyz"):
                answer = await asyncio.to_thread(get, node.metrics_address, path)
                assert answer.status == 503
                assert b"its disk failed" in answer.body
        finally:
            await node.stop(grace_ms=0)

    asyncio.run(main())


def test_the_endpoint_answers_while_the_node_still_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[HttpAnswer] = []

    async def main() -> None:
        register = Node._register

        async def while_starting(node: Node) -> None:
            assert node.metrics_address is not None
            paths = ("/healthz", "/readyz", "/metrics")
            answers.extend([await asyncio.to_thread(get, node.metrics_address, path) for path in paths])
            await register(node)

        monkeypatch.setattr(Node, "_register", while_starting)
        config = NodeConfig(**SMALL, data_dir=str(tmp_path / "data"), metrics_listen="127.0.0.1:0")
        await (await Node.start(config)).stop(grace_ms=0)

    asyncio.run(main())
    assert [answer.status for answer in answers] == [200, 503, 200]
    assert b"starting" in answers[1].body
    assert b"semel_node_ready 0.0" in answers[2].body
