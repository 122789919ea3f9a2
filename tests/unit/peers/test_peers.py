"""One node asks another: where it is now, as long as it answers, and over connections that come back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from echoing_peers import Echo, EchoServer
from kafka_node import until
from two_nodes import ONE, TWO, TwoNodes, registration, run_with_two, tell

from semel.broker.listeners.kafka.registry import Api
from semel.broker.listeners.peers.listener import PeerListener
from semel.broker.metadata.changes import BrokerFenced
from semel.broker.peers.peers import Peers, PeerUnavailableError
from semel.broker.peers.requests import FetchAsReplica
from semel.broker.peers.secret import ClusterSecret
from semel.broker.peers.silence import Sign
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest
from semel.runtime.kafka_client.connection import ConnectionLostError


def test_a_node_asks_another_over_one_connection_and_says_who_it_is(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        server = EchoServer(both.two)
        assert not server.listener._connections
        answers = await asyncio.gather(*(both.one.peers.ask(TWO, Echo(b"%d" % number)) for number in range(20)))
        assert answers == [b"%d" % number for number in range(20)]
        assert {node_id for node_id, _ in server.asked} == {ONE}
        assert len(server.listener._connections) == 1

    run_with_two(tmp_path, test)


def test_what_waits_long_does_not_hold_up_other_requests(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        server = EchoServer(both.two)
        partition = FetchPartition("t", await both.create("t", ONE, TWO), 1, 0, 1 << 20)
        request = FetchRequest([partition], 60_000, replica_id=ONE)
        fetch = asyncio.ensure_future(both.one.peers.ask(TWO, FetchAsReplica(request)))
        await until(lambda: server.listener.in_flight() == 1)
        assert await both.one.peers.ask(TWO, Echo(b"quick")) == b"quick"
        assert not fetch.done()
        fetch.cancel()
        await asyncio.gather(fetch, return_exceptions=True)

    run_with_two(tmp_path, test)


def test_S1_a_node_fetches_as_itself_alone(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        partition = FetchPartition("t", await both.create("t", ONE, TWO), 1, 0, 1 << 20)
        [answer] = (
            await both.one.peers.ask(TWO, FetchAsReplica(FetchRequest([partition], 0, replica_id=ONE)))
        ).partitions
        assert answer.error is ErrorCode.NONE
        with pytest.raises(ConnectionLostError):
            await both.one.peers.ask(TWO, FetchAsReplica(FetchRequest([partition], 0, replica_id=3)))

    run_with_two(tmp_path, test)


def test_a_silent_node_costs_a_request_its_time_and_no_more(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        server = EchoServer(both.two)
        await both.one.peers.ask(TWO, Echo(b"first"))
        server.gate.clear()
        with pytest.raises(PeerUnavailableError) as caught:
            await both.one.peers.ask(TWO, Echo(b"silence"), timeout_ms=50)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        server.gate.set()
        assert await both.one.peers.ask(TWO, Echo(b"again")) == b"again"

    run_with_two(tmp_path, test)


def test_a_connection_that_was_lost_is_opened_again(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        server = EchoServer(both.two)
        server.gate.clear()
        asked = asyncio.ensure_future(both.one.peers.ask(TWO, Echo(b"cut")))
        await until(lambda: len(server.asked) == 1)
        server.listener.disconnect()
        with pytest.raises(ConnectionLostError):
            await asked
        server.gate.set()
        assert await both.one.peers.ask(TWO, Echo(b"again")) == b"again"

    run_with_two(tmp_path, test)


def test_a_node_that_registers_elsewhere_is_asked_there_and_its_former_self_no_more(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        server = EchoServer(both.two)
        server.gate.clear()
        asked = asyncio.ensure_future(both.one.peers.ask(TWO, Echo(b"old")))
        await until(lambda: len(server.asked) == 1)
        moved = PeerListener(both.two, "127.0.0.1", 0, ClusterSecret(b"0123456789abcdef0123456789abcdef"))
        await moved.start()
        moved.registry.register(Api(ApiKey.LIST_GROUPS, 0, 0, server._answer, pipelined=True))
        await tell(both.one, replace(registration(both.two), incarnation="later", peer_port=moved.port))
        with pytest.raises(ConnectionLostError, match="registered again"):
            await asked
        server.gate.set()
        assert await both.one.peers.ask(TWO, Echo(b"new")) == b"new"
        assert len(moved._connections) == 1
        await until(lambda: not server.listener._connections)
        await moved.stop(0)

    run_with_two(tmp_path, test)


def test_what_a_node_was_asked_that_is_taken_for_dead_is_not_waited_for(tmp_path: Path) -> None:
    """Transactions waited for all of peer.request.timeout.ms when a coordinator was frozen."""

    async def test(both: TwoNodes) -> None:
        server = EchoServer(both.two)
        server.gate.clear()
        asked = asyncio.ensure_future(both.one.peers.ask(TWO, Echo(b"lost"), timeout_ms=20_000))
        await until(lambda: len(server.asked) == 1)
        await tell(both.one, BrokerFenced(TWO, both.one.metadata.image.brokers[TWO].epoch))
        with pytest.raises(ConnectionLostError, match="taken for dead"):
            await asked
        server.gate.set()
        assert await both.one.peers.ask(TWO, Echo(b"alive")) == b"alive", "a mistake: it is connected to again"

    run_with_two(tmp_path, test)


def test_an_attempt_to_connect_ends_when_the_node_registers_elsewhere(tmp_path: Path) -> None:
    """Who waits for it hears that the attempt is over, not that it was cancelled itself."""

    async def test(both: TwoNodes) -> None:
        server = EchoServer(both.two)
        silent = await asyncio.start_server(lambda _, writer: silenced.append(writer), "127.0.0.1", 0)
        silenced: list[asyncio.StreamWriter] = []
        port = silent.sockets[0].getsockname()[1]
        await tell(both.one, replace(registration(both.two), incarnation="silent", peer_port=port))
        asked = asyncio.ensure_future(both.one.peers.ask(TWO, Echo(b"nowhere")))
        await until(lambda: len(silenced) == 1)
        await tell(both.one, registration(both.two))
        with pytest.raises(ConnectionLostError, match="registered again"):
            await asked
        assert await both.one.peers.ask(TWO, Echo(b"here")) == b"here"
        assert len(server.asked) == 1
        silent.close()
        for writer in silenced:
            writer.close()

    run_with_two(tmp_path, test)


def test_an_answer_that_can_not_be_read_ends_the_connection(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        server = EchoServer(both.two)
        with pytest.raises(ConnectionLostError, match="answered LIST_GROUPS with what can't be read: no echo"):
            await both.one.peers.ask(TWO, Echo(b"unreadable"))
        await until(lambda: not server.listener._connections)

    run_with_two(tmp_path, test)


def test_a_request_that_the_other_node_does_not_know_says_so(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        with pytest.raises(FatalError, match="upgrade the older one"):
            await both.one.peers.ask(TWO, Echo(b"unknown"))

    run_with_two(tmp_path, test)


def test_nodes_that_can_not_be_asked_and_the_next_step(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        one = both.one
        with pytest.raises(PeerUnavailableError, match="there is no node 9 in the metadata"):
            await one.peers.ask(9, Echo(b""))
        without = Peers(ONE, lambda: one.metadata.image, None, one.config, one.clock)
        with pytest.raises(PeerUnavailableError, match=r"set cluster\.secret\.file .* and peer\.listen"):
            await without.ask(TWO, Echo(b""))
        await tell(one, replace(registration(both.two), peer_port=0))
        with pytest.raises(PeerUnavailableError, match=r"set peer\.listen there"):
            await one.peers.ask(TWO, Echo(b""))
        one.peers.close()
        with pytest.raises(PeerUnavailableError, match="this node stops"):
            await one.peers.ask(TWO, Echo(b""))

    run_with_two(tmp_path, test)


def test_a_probe_tells_a_node_that_runs_from_one_that_is_gone_and_from_silence(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        peers, listener = both.one.peers, both.two.peer_listener
        assert listener is not None
        assert await peers.probe(TWO, 5_000) is Sign.ANSWERED
        await until(lambda: not listener._connections)  # it leaves nothing open
        stranger = Peers(
            ONE, lambda: both.one.metadata.image, ClusterSecret(b"?" * 32), both.one.config, both.one.clock
        )
        assert await stranger.probe(TWO, 5_000) is Sign.NONE
        stranger.close()
        accepted: list[asyncio.StreamWriter] = []
        mute = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
        _, port = mute.sockets[0].getsockname()
        await tell(both.one, replace(registration(both.two), peer_port=port))
        assert await peers.probe(TWO, 50) is Sign.NONE  # as of a frozen process: its machine accepts
        mute.close()
        for writer in accepted:
            writer.close()
            await writer.wait_closed()
        assert await peers.probe(TWO, 5_000) is Sign.REFUSED
        await tell(both.one, replace(registration(both.two), peer_port=0))
        assert await peers.probe(TWO, 5_000) is Sign.NONE
        assert await peers.probe(9, 5_000) is Sign.NONE

    run_with_two(tmp_path, test)


def test_a_close_fails_what_is_in_flight(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        server = EchoServer(both.two)
        server.gate.clear()
        asked = asyncio.ensure_future(both.one.peers.ask(TWO, Echo(b"last")))
        await until(lambda: len(server.asked) == 1)
        both.one.peers.close()
        with pytest.raises(ConnectionLostError, match="this node stops"):
            await asked
        server.gate.set()

    run_with_two(tmp_path, test)
