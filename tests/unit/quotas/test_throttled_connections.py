"""Connections of the Kafka listener whose clients have used up a quota."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kafka_node import FakeNode, KafkaClient, batch, run_with_listener, until

from semel.broker.config.kafka_limits import KafkaLimits
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID
from semel.protocol.kafka.api import ApiKey, ApiVersionsRequest
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest
from semel.protocol.quotas import QuotaEntity

MINE = QuotaEntity(None, "test")
ASKED = ApiVersionsRequest("test", "1")
LIMITS = KafkaLimits(max_connections=11)


def quota(node: FakeNode, **values: float) -> None:
    """Give the client of these tests a quota."""
    node.metadata.client_quotas = {MINE: dict(values)} if values else {}
    node.client_quotas.update()


def of(size: int, acks: int = 1, topic: str = "t") -> ProduceRequest:
    return ProduceRequest([ProducePartition(topic, 0, batch(bytes(size)))], None, acks, 30_000)


def reading(offset: int = 0, session_id: int = 0, epoch: int = -1) -> FetchRequest:
    partition = FetchPartition("t", ZERO_TOPIC_ID, 0, offset, 1 << 20)
    return FetchRequest([partition], 0, 1, 1 << 20, session_id=session_id, session_epoch=epoch)


async def others_are_served(listener: KafkaListener) -> None:
    """Ask by another connection, so often that anything that was to happen on the first has happened."""
    other = await KafkaClient.connect(listener.port)
    for _ in range(20):
        other.send(ASKED, 3)
        await other.receive()
    await other.close()


def test_the_answer_comes_at_once_and_nothing_more_is_read(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        quota(node, producer_byte_rate=1)
        client = await KafkaClient.connect(listener.port)
        answer = await client.produce(of(5_000))
        assert answer.partitions[0].error is ErrorCode.NONE, "what is too much is not refused"
        assert answer.throttle_time_ms > 5_000_000
        client.send(of(10), 9)
        await others_are_served(listener)
        assert partition.log_end_offset == 1
        assert listener.counters.requests[ApiKey.PRODUCE] == 1

    run_with_listener(test, str(tmp_path))


def test_what_was_read_already_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        quota(node, producer_byte_rate=100)
        client = await KafkaClient.connect(listener.port)
        sent = client.send_together([of(size) for size in (1_050, 10, 10)], 9)
        await until(lambda: partition.log_end_offset > 0)
        assert partition.log_end_offset == 1
        answers = [KafkaClient.produced(await client.receive(), 9, one) for one in sent]
        assert answers[0].throttle_time_ms > 0
        assert [each.partitions[0].base_offset for each in answers] == [0, 1, 2]

    run_with_listener(test, str(tmp_path))


def test_a_producer_that_wants_no_answers_waits_too(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        quota(node, producer_byte_rate=1)
        client = await KafkaClient.connect(listener.port)
        client.send(of(5_000, acks=0), 9)
        client.send(of(10, acks=0), 9)
        await until(lambda: partition.log_end_offset > 0)
        await others_are_served(listener)
        assert partition.log_end_offset == 1

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize("has_session", [False, True])
def test_a_reader_gets_nothing_while_its_quota_is_used_up(tmp_path: Path, has_session: bool) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        client = await KafkaClient.connect(listener.port)
        for _ in range(2):
            await client.produce(of(800))
        session_id, epoch = 0, -1
        if has_session:
            begun = await client.fetch(reading(epoch=0))
            session_id, epoch = begun.session_id, 1
        quota(node, consumer_byte_rate=100)
        assert (await client.fetch(reading(0, session_id, epoch))).partitions[0].records
        told = await client.fetch(reading(1, session_id, epoch if epoch < 0 else 2))
        assert (told.partitions, told.error, told.session_id) == ([], ErrorCode.NONE, session_id)
        assert told.throttle_time_ms > 0
        node.clock.advance(ms=11_000)  # type: ignore[attr-defined]
        later = await client.fetch(reading(1, session_id, epoch if epoch < 0 else 3))
        assert later.throttle_time_ms == 0
        assert len(later.partitions[0].records or b"") > 800

    run_with_listener(test, str(tmp_path))


def test_who_calls_himself_a_replica_is_a_client(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        client = await KafkaClient.connect(listener.port)
        for _ in range(2):
            await client.produce(of(800))
        quota(node, consumer_byte_rate=100)
        for size, offset in ((1, 0), (0, 1)):
            request = reading(offset)
            request.replica_id = 2
            answer = await client.fetch(request)
            assert len(answer.partitions) == size
        assert answer.throttle_time_ms > 0

    run_with_listener(test, str(tmp_path))


def test_a_node_that_stops_answers_what_it_has_read_of_who_waits(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        quota(node, producer_byte_rate=1)
        client = await KafkaClient.connect(listener.port)
        # In one packet, so that the node reads both before the first uses the quota up.
        sent = client.send_together([of(100)] * 2, 9)
        await until(lambda: partition.log_end_offset > 0)
        stopping = asyncio.ensure_future(listener.stop(30.0))
        for one in sent:
            KafkaClient.produced(await client.receive(), 9, one)
        await client.close()
        await stopping

    run_with_listener(test, str(tmp_path))


def test_a_quota_counts_on_connections_that_there_are_and_not_any_more_once_it_is_removed(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        client = await KafkaClient.connect(listener.port)
        assert (await client.produce(of(5_000))).throttle_time_ms == 0
        quota(node, producer_byte_rate=500)
        assert (await client.produce(of(5_010))).throttle_time_ms > 0
        quota(node)
        assert (await client.produce(of(5_000))).throttle_time_ms == 0

    run_with_listener(test, str(tmp_path))


def test_a_program_in_the_nodes_process_has_no_quota(tmp_path: Path) -> None:
    import socket

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        quota(node, producer_byte_rate=1)
        ours, its = socket.socketpair()
        await listener.adopt(its)
        client = KafkaClient(*await asyncio.open_connection(sock=ours))
        for _ in range(2):
            assert (await client.produce(of(5_000))).throttle_time_ms == 0
        await client.close()

    run_with_listener(test, str(tmp_path))


def test_connections_beyond_an_addresss_quota_are_closed_unserved(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.metadata.client_quotas = {QuotaEntity(ip="127.0.0.1"): {"connection_creation_rate": 1.0}}
        node.client_quotas.update()
        served = [await KafkaClient.connect(listener.port) for _ in range(10)]
        for client in served:
            client.send(ASKED, 3)
            await client.receive()
        late = await KafkaClient.connect(listener.port)
        late.send(ASKED, 3)
        assert await late.closed()
        statistics = listener.statistics()
        assert (statistics.throttled_connections, statistics.connections) == (1, 10)
        node.clock.advance(ms=11_000)  # type: ignore[attr-defined]
        again = await KafkaClient.connect(listener.port)
        again.send(ASKED, 3)
        await again.receive()

    run_with_listener(test, str(tmp_path))


def test_S2_a_throttled_connection_keeps_no_place_from_one_that_is_served(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.metadata.client_quotas = {QuotaEntity(ip="127.0.0.1"): {"connection_creation_rate": 1.0}}
        node.client_quotas.update()
        served = [await KafkaClient.connect(listener.port) for _ in range(10)]
        late = await KafkaClient.connect(listener.port)
        await until(lambda: listener.statistics().throttled_connections == 1)
        assert listener.acceptor.open == 11, "it holds a file, so it counts"
        node.metadata.client_quotas = {}
        node.client_quotas.update()
        again = await KafkaClient.connect(listener.port)
        again.send(ASKED, 3)
        await again.receive()
        assert await late.closed()
        assert (listener.statistics().refused_connections, listener.acceptor.open) == (0, 11)
        assert await (await KafkaClient.connect(listener.port)).closed(), "the places of those that are served are kept"
        assert len(served) == 10

    run_with_listener(test, str(tmp_path), limits=LIMITS)


def test_S2_nor_at_another_listener_of_the_node(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        inside = KafkaListener(node, "127.0.0.1", 0, LIMITS, listener_name="inside", beside=listener)  # type: ignore[arg-type]
        await inside.start()
        try:
            node.metadata.client_quotas = {QuotaEntity(ip="127.0.0.1"): {"connection_creation_rate": 1.0}}
            node.client_quotas.update()
            served = [await KafkaClient.connect(listener.port) for _ in range(10)]
            late = await KafkaClient.connect(listener.port)
            await until(lambda: listener.statistics().throttled_connections == 1)
            node.metadata.client_quotas = {}
            node.client_quotas.update()
            other = await KafkaClient.connect(inside.port)
            other.send(ASKED, 3)
            await other.receive()
            assert await late.closed()
            assert (inside.statistics().refused_connections, inside.acceptor.open, len(served)) == (0, 11, 10)
        finally:
            await inside.stop(5.0)
            await inside.produce.close()

    run_with_listener(test, str(tmp_path), limits=LIMITS)


def test_E1_what_came_from_a_client_that_is_gone_is_not_appended_once_it_may(tmp_path: Path) -> None:
    """It has sent the same over another connection meanwhile: without a sequence that would be a second time."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        for ends in ("the wait", "a look"):
            before = partition.log_end_offset
            quota(node, producer_byte_rate=1)
            client = await KafkaClient.connect(listener.port)
            for size in (5_000, 10):
                client.send(of(size), 9)
            await until(lambda before=before: partition.log_end_offset > before)  # type: ignore[misc]
            (connection,) = listener._connections
            await until(lambda connection=connection: connection.muted)  # type: ignore[misc]
            await client.close()
            await until(connection.has_hung_up)
            if ends == "a look":
                listener._watch()
            else:
                quota(node)
            await until(lambda: not listener._connections)
            assert partition.log_end_offset == before + 1

    run_with_listener(test, str(tmp_path))


def test_another_quota_ends_the_wait_for_the_one_before(tmp_path: Path) -> None:
    """An operator who meant 10 MB a second and set 10 bytes can put that right."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        quota(node, producer_byte_rate=1)
        client = await KafkaClient.connect(listener.port)
        assert (await client.produce(of(5_000))).throttle_time_ms > 0
        client.send(of(10), 9)
        await others_are_served(listener)
        assert partition.log_end_offset == 1
        quota(node, producer_byte_rate=1_000_000)
        await until(lambda: partition.log_end_offset == 2)

    run_with_listener(test, str(tmp_path))
