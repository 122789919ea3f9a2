"""Accepting connections where there are too many of them, or no descriptors left (S2)."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
from pathlib import Path

import pytest
from kafka_node import FakeNode, KafkaClient, batch, run_with_listener, turns, until

from semel.broker.config.kafka_limits import KafkaLimits, parse_connection_overrides
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import check_config
from semel.broker.listeners import acceptor as acceptor_module
from semel.broker.listeners.acceptor import Acceptor
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.broker.open_files import share_open_files, warn_of_few_open_files
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest
from semel.runtime.setting import ConfigError


async def is_served(client: KafkaClient) -> bool:
    request = ProduceRequest([ProducePartition("t", 0, batch(b"a"))], None, 1, 1000)
    return (await client.produce(request)).partitions[0].error is ErrorCode.NONE


class NoDescriptors:
    """A listening socket that has connections, and no descriptors for them."""

    def __init__(self, real: socket.socket) -> None:
        self.real = real
        self.asked = 0
        self.failing = True

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        self.asked += 1
        if self.failing:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.real.accept()

    def fileno(self) -> int:
        return self.real.fileno()

    def close(self) -> None:
        self.real.close()


def test_S2_no_descriptors_left_is_a_pause_and_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio asked 512 times in a turn, and wrote a traceback for each."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        acceptor = listener._acceptor
        loop = asyncio.get_running_loop()
        (real,) = acceptor._sockets
        loop.remove_reader(real)
        without = NoDescriptors(real)
        acceptor._sockets = [without]  # type: ignore[list-item]
        pauses: list[float] = []
        monkeypatch.setattr(acceptor, "_loop", _Loop(loop, pauses))
        acceptor._watch()
        client = await KafkaClient.connect(listener.port)
        await until(lambda: len(pauses) >= 1)
        await turns(20)
        assert (without.asked, pauses) == (1, [acceptor_module._PAUSE_S]), "it is left alone for a while"
        acceptor._watch()
        await until(lambda: len(pauses) == 2)
        assert listener.statistics().accepts_exhausted == 2
        without.failing = False
        acceptor._watch()
        assert await is_served(client)

    run_with_listener(test, str(tmp_path))
    assert not any(record.exc_info for record in caplog.records)
    told = [text for text in caplog.messages if "accepts no connections for 1 s" in text]
    assert len(told) == 2
    assert "ulimit -n" in told[0]


class _Loop:
    """The loop, whose timers the test looks at and calls itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pauses: list[float]) -> None:
        self._real = loop
        self._pauses = pauses

    def call_later(self, delay: float, call: object) -> asyncio.TimerHandle:
        self._pauses.append(delay)
        return self._real.call_later(3600, lambda: None)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


def test_S2_connections_of_one_address_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        clients = [await KafkaClient.connect(listener.port) for _ in range(2)]
        for client in clients:
            assert await is_served(client)
        third = await KafkaClient.connect(listener.port)
        assert await third.closed()
        statistics = listener.statistics()
        assert (statistics.refused_connections, statistics.refused_of_address) == (1, 1)
        await clients[0].close()
        await until(lambda: listener.statistics().connections == 1)
        assert await is_served(await KafkaClient.connect(listener.port))

    run_with_listener(test, str(tmp_path), limits=KafkaLimits(kafka_max_connections_per_ip=2))
    assert "reason=more than kafka.max.connections.per.ip=2 of this address" in caplog.text


def test_S2_connections_that_are_reset_before_they_are_served_do_not_count_for_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As health checks do it: whom they came from, the system has forgotten by then."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        for number in range(1, 4):
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", listener.port)) as client:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted = 20 * number
            await until(lambda: listener.counters.accepted_connections == accepted)  # noqa: B023
            await until(lambda: listener._acceptor.connections.open == 0)
        assert not listener._acceptor.connections.from_address
        assert await is_served(await KafkaClient.connect(listener.port))

    run_with_listener(test, str(tmp_path), limits=KafkaLimits(kafka_max_connections_per_ip=20))
    assert not [record for record in caplog.records if record.exc_info]


def test_S2_an_address_may_have_a_bound_of_its_own(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        assert await is_served(await KafkaClient.connect(listener.port))
        assert await (await KafkaClient.connect(listener.port)).closed()

    run_with_listener(test, str(tmp_path), limits=KafkaLimits(kafka_max_connections_overrides=("127.0.0.1:1",)))


def test_a_connection_that_can_not_be_served_is_not_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        made = listener._acceptor._protocol

        def fails() -> asyncio.BaseProtocol:
            raise MemoryError

        for _ in range(3):
            listener._acceptor._protocol = fails
            assert await (await KafkaClient.connect(listener.port)).closed()
        listener._acceptor._protocol = made
        assert await is_served(await KafkaClient.connect(listener.port))

    run_with_listener(test, str(tmp_path), limits=KafkaLimits(max_connections=1))
    assert [bool(record.exc_info) for record in caplog.records if record.levelno == logging.ERROR] == [
        True,
        False,
        False,
    ]


def test_an_address_that_is_taken_leaves_nothing_open() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            acceptor = Acceptor("t", asyncio.Protocol, None, None)  # type: ignore[arg-type]
            with pytest.raises(OSError, match="in use"):
                await acceptor.listen("127.0.0.1", taken.getsockname()[1])
            assert not acceptor.is_listening

    asyncio.run(test())


@pytest.mark.parametrize("limit", [20, 64, 256, 1024, 4096, 65536, 1 << 30])
def test_S2_no_listener_can_take_the_files_of_the_logs_or_of_another(
    limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = NodeConfig()
    shares = share_open_files(config, limit)
    assert shares.grpc >= 4
    assert shares.kafka >= 4
    if limit >= 256:
        assert shares.kafka + shares.grpc + min(config.log_max_open_files, limit // 2) + 64 <= limit
    warn_of_few_open_files(config, limit)
    assert ("Raise the hard limit" in caplog.text) == (limit < 20_000)
    if limit >= 65536:
        assert (shares.kafka, shares.grpc) == (config.max_connections, config.grpc_max_connections)


def test_overrides_of_addresses_are_read() -> None:
    config = NodeConfig(kafka_max_connections_overrides=("10.0.0.7:500", "[::1]:3"))
    assert parse_connection_overrides(config.kafka_max_connections_overrides) == {"10.0.0.7": 500, "::1": 3}
    for wrong in ("10.0.0.7", "host:5", "10.0.0.7:x", "10.0.0.7:-1"):
        with pytest.raises(ConfigError, match=r"is not ADDRESS:COUNT"):
            check_config(NodeConfig(data_dir="d", kafka_max_connections_overrides=(wrong,)))
