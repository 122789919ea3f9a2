"""A machine that lost power, or is behind a cut, sends no end of its connections: probes find out."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

import semel
from semel.protocol.api.topics import PartitionDescription, TopicDescription
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import TopicId
from semel.protocol.v1 import metadata_pb2
from semel.sdk.transport import control
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.cluster import ClusterSnapshot
from semel.sdk.transport.known_nodes import KnownNodes
from semel.sdk.transport.options import ClientOptions
from semel.sdk.transport.silent_nodes import SilentNodes
from semel.testing import Broker, Cluster

HOUR_MS = 3_600_000


class SilentProxy:
    """Passes bytes on until the test silences it. The connections stay."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.is_silent = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                node = socket.create_connection(self._target)
                self._sockets += [client, node]
                for pair in ((client, node), (node, client)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if not self.is_silent:
                    target.sendall(data)

    def close(self) -> None:
        for each in (self._server, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def proxy() -> Iterator[SilentProxy]:
    with Broker() as node:
        proxy = SilentProxy(node.bootstrap)
        yield proxy
        proxy.close()


def test_a_call_to_a_node_that_fell_silent_fails_long_before_its_time_is_over(
    proxy: SilentProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join of a group waited for all of max_poll_interval_ms."""
    quick = {"grpc.keepalive_time_ms": 1_000, "grpc.keepalive_timeout_ms": 500, "grpc.http2.ping_timeout_ms": 500}
    assert quick.keys() <= dict(control._CHANNEL_OPTIONS).keys()
    options = tuple((name, quick.get(name, value)) for name, value in control._CHANNEL_OPTIONS)
    monkeypatch.setattr(control, "_CHANNEL_OPTIONS", options)
    patient = ClientOptions.checked(proxy.address, request_timeout_ms=HOUR_MS, api_timeout_ms=HOUR_MS)
    client = ClientCore("Client", patient)

    async def ask() -> None:
        await client.control.call(control.GET_METADATA, metadata_pb2.GetMetadataRequest(), retry=False)

    try:
        client.run(ask())
        proxy.is_silent = True
        with pytest.raises(RetriableError):
            client.run(ask())
    finally:
        client.close()


@pytest.mark.timeout(300)
def test_clients_of_a_frozen_node_go_on_with_the_next_leader_long_before_their_requests_time_out() -> None:
    """They waited for all of request_timeout_ms: nothing ends the connections to a process that is stopped."""
    patient = {"request_timeout_ms": HOUR_MS}
    with (
        Cluster(3) as cluster,
        semel.Producer(cluster.bootstrap, delivery_timeout_ms=2 * HOUR_MS, **patient) as producer,
        semel.Consumer(cluster.bootstrap, topics=["t"], group="g", api_timeout_ms=HOUR_MS, **patient) as consumer,
    ):
        cluster.create_topic("t")
        values: list[bytes | None] = []
        for number in range(3):
            if number:
                cluster.pause(cluster.leader("t"))
            producer.send("t", b"%d" % number).result()
            while len(values) <= number:
                values += [record.value for record in consumer.poll(1.0) or ()]
            cluster.heal()
            cluster.wait_in_sync("t")
        assert values == [b"0", b"1", b"2"]


class _Others:
    """Nodes that answer who leads, in place of the client's control plane and metadata."""

    def __init__(self, leader: int) -> None:
        self.nodes = KnownNodes(("one:1", "two:2"))
        self.nodes.by_id = {1: "one:1", 2: "two:2", 3: "three:3"}
        self.asked: list[str] = []
        self._leader = leader

    async def ask_node(self, address: str, *, timeout_ms: float) -> ClusterSnapshot:
        self.asked.append(address)
        if len(self.asked) == 1:
            raise RetriableError("this one is away too", ErrorCode.NETWORK_EXCEPTION)
        topic = TopicDescription("t", TopicId(b"0" * 16), False, (PartitionDescription(0, self._leader, 1),))
        return ClusterSnapshot(topics={"t": topic})


class _Waiting:
    """A connection on which a request waits."""

    is_open, in_flight = True, 1
    closed = 0

    def close(self, _reason: str) -> None:
        self.closed += 1


@pytest.mark.parametrize("leader", [1, 2])
def test_a_node_that_still_leads_is_waited_for(leader: int) -> None:
    """A slow disk, or a partition that waits for its followers: another connection would not help."""
    others, waiting = _Others(leader), _Waiting()

    async def look() -> None:
        nodes = SilentNodes(others, others)  # type: ignore[arg-type]
        for _ in range(2):
            nodes.look_into(1, waiting)  # type: ignore[arg-type]
        await asyncio.gather(*nodes._asking.values())

    asyncio.run(look())
    assert sorted(others.asked) == ["three:3", "two:2"], "each of the others until one answers, and once"
    assert (waiting.closed, others.nodes.current) == ((0, "one:1") if leader == 1 else (1, "two:2"))
