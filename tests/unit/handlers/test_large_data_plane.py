"""Produce and Fetch for very many partitions: others have their turns (S3), and what they may name is bounded (S2)."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from counted_turns import every_look_takes_a_millisecond, rounds_of_the_loop
from kafka_node import FakeNode, KafkaClient, batch, run_with_listener, until

from semel.broker.handlers.fetch import handler as fetch_module
from semel.broker.handlers.fetch import large as large_fetch
from semel.broker.handlers.produce import handler as produce_module
from semel.broker.handlers.produce import large as large_produce
from semel.broker.listeners.kafka.limits import entries_max
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID, ProducerIdAndEpoch
from semel.protocol.kafka import wire
from semel.protocol.kafka.api import ApiKey, ApiVersionsRequest, build_request_header
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest
from semel.runtime.turns import TURN_SECONDS

LOOKS_PER_TURN = round(TURN_SECONDS * 1000)
PARTS = 40
PRODUCER = ProducerIdAndEpoch(4000, 0)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two partitions are many, and a part has one of them."""
    for module in (large_fetch, large_produce):
        monkeypatch.setattr(module, "PART", 1)
    for module in (fetch_module, produce_module):
        monkeypatch.setattr(module, "PART", 1)


def produce(*batches: tuple[int, bytes], acks: int = 1) -> ProduceRequest:
    return ProduceRequest([ProducePartition("t", number, data) for number, data in batches], None, acks, 30_000)


def fetch(*partitions: int, wait_ms: int = 0) -> FetchRequest:
    return FetchRequest([FetchPartition("t", ZERO_TOPIC_ID, each, 0, 1 << 20) for each in partitions], wait_ms)


def test_S3_partitions_are_appended_to_and_read_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40,000 of them held the loop for half a second."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t", PARTS)
        every_look_takes_a_millisecond(monkeypatch)
        for acks in (0, 1, -1):
            request = produce(*[(number, batch(b"v")) for number in range(PARTS)], acks=acks)
            answer, rounds = await rounds_of_the_loop(listener.produce.produce(request))
            assert {item.error for item in answer.partitions} == {ErrorCode.NONE}
            assert [item.partition for item in answer.partitions] == list(range(PARTS))
            assert rounds >= PARTS // LOOKS_PER_TURN
        found, rounds = await rounds_of_the_loop(listener.fetch.fetch(fetch(*range(PARTS)), 12))
        assert [item.partition for item in found.partitions] == list(range(PARTS))
        assert all(item.records for item in found.partitions)
        assert rounds >= PARTS // LOOKS_PER_TURN

    run_with_listener(test, str(tmp_path))


def test_P2_nothing_of_the_same_connection_passes_a_large_request(tmp_path: Path) -> None:
    """The second request has the next sequence number for the last partition of the first one."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        partitions = node.create("t", PARTS)
        client = await KafkaClient.connect(listener.port)
        first = produce(*[(number, batch(b"a", producer=PRODUCER, sequence=0)) for number in range(PARTS)])
        second = produce((PARTS - 1, batch(b"b", producer=PRODUCER, sequence=1)))
        sent = client.send(first, 9), client.send(second, 9)
        answers = [client.produced(await client.receive(), 9, each) for each in sent]
        assert [item.error for answer in answers for item in answer.partitions] == [ErrorCode.NONE] * (PARTS + 1)
        assert partitions[-1].log_end_offset == 2

    run_with_listener(test, str(tmp_path))


def test_a_client_that_leaves_ends_its_large_requests(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        partitions = node.create("t", PARTS)
        client = await KafkaClient.connect(listener.port)
        client.send(fetch(*range(PARTS), wait_ms=3_600_000), 12)
        await until(lambda: listener.fetch.waiting == 1)
        await client.close()
        await until(lambda: listener.fetch.waiting == 0)
        other = await KafkaClient.connect(listener.port)
        other.send(produce(*[(number, batch(b"v")) for number in range(PARTS)]), 9)
        await until(lambda: partitions[0].log_end_offset == 1)
        await other.close()
        await until(lambda: not listener.produce.large_requests)
        assert [one.log_end_offset for one in partitions] == [1] * PARTS, "a request that has begun is done to its end"

    run_with_listener(test, str(tmp_path))


def test_a_large_fetch_waits_for_records_and_is_woken_by_them(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        partitions = node.create("t", PARTS)
        client = await KafkaClient.connect(listener.port)
        sent = client.send(fetch(*range(PARTS), wait_ms=3_600_000), 12)
        await until(lambda: listener.fetch.waiting == 1)
        partitions[7].append(bytearray(batch(b"v")))
        answer = client.fetched(await client.receive(), 12, sent)
        assert [item.partition for item in answer.partitions if item.records] == [7]

    run_with_listener(test, str(tmp_path))


def test_acks_0_closes_the_connection_of_a_large_request_with_a_refused_batch(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        partitions = node.create("t", PARTS)
        client = await KafkaClient.connect(listener.port)
        client.send(produce(*[(number, batch(b"v")) for number in range(PARTS + 1)], acks=0), 9)
        assert await client.closed()
        assert {each.log_end_offset for each in partitions} == {1}

    run_with_listener(test, str(tmp_path))


def test_a_large_request_that_fails_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that nobody waits for must not take the answer with it."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t", PARTS)

        def fail(*_: object) -> None:
            raise RuntimeError("planted")

        monkeypatch.setattr(listener.produce, "begin_part", fail)
        monkeypatch.setattr(listener.fetch, "read", fail)
        produced = await listener.produce.produce(produce(*[(number, batch(b"v")) for number in range(PARTS)]))
        assert {item.error for item in produced.partitions} == {ErrorCode.UNKNOWN_SERVER_ERROR}
        fetched = await listener.fetch.fetch(fetch(*range(PARTS)), 12)
        assert fetched.error is ErrorCode.UNKNOWN_SERVER_ERROR

    run_with_listener(test, str(tmp_path))
    assert caplog.text.count("RuntimeError: planted") == PARTS + 1


ENTRIES = 100


def of_partitions(key: ApiKey, count: int) -> bytes:
    """Bodies of Produce version 3 and Fetch version 4 with so many partitions, beside one topic."""
    if key is ApiKey.PRODUCE:
        return struct.pack(">hhiih1si", -1, 1, 1_000, 1, 1, b"t", count) + struct.pack(">ii", 0, -1) * count
    head = struct.pack(">iiiibih1si", -1, 0, 1, 1_000, 0, 1, 1, b"t", count)
    return head + struct.pack(">iqi", 0, 0, 1_000) * count


@pytest.mark.parametrize(("key", "version"), [(ApiKey.PRODUCE, 3), (ApiKey.FETCH, 4)])
def test_S2_what_a_request_may_name_is_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, key: ApiKey, version: int
) -> None:
    """A frame of 31 MB that named 400,000 partitions held the loop for 6 s."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        for count, is_taken in ((entries_max(node) - 1, True), (entries_max(node), False)):  # type: ignore[arg-type]
            client = await KafkaClient.connect(listener.port)
            frame = build_request_header(key, version, 1, "test") + of_partitions(key, count)
            client.writer.write(struct.pack(">i", len(frame)) + frame)
            if is_taken:
                await client.receive()
            else:
                assert await client.closed()
        assert f"more than {entries_max(node)} entries" in caplog.text  # type: ignore[arg-type]

    monkeypatch.setattr("semel.broker.listeners.kafka.data_plane.entries_max", lambda _: ENTRIES)
    monkeypatch.setitem(globals(), "entries_max", lambda _: ENTRIES)
    run_with_listener(test, str(tmp_path))


def test_S2_the_tagged_fields_of_headers_are_bounded() -> None:
    """A hundred megabytes of them took seconds to pass over."""
    head = struct.pack(">hhih", ApiKey.API_VERSIONS, 3, 1, 0)
    assert wire.parse_request_header(head + b"\x64" + b"\x63\x00" * 100).body == len(head) + 1 + 200
    with pytest.raises(wire.WireFormatError, match="more than 100 entries"):
        wire.parse_request_header(head + b"\x65" + b"\x63\x00" * 101)
    names = b"\x02n\x02v"
    assert ApiVersionsRequest.parse(names + b"\x64" + b"\x63\x00" * 100, 3) == ApiVersionsRequest("n", "v")
    with pytest.raises(wire.WireFormatError, match="more than 100 entries"):
        ApiVersionsRequest.parse(names + b"\x65" + b"\x63\x00" * 101, 3)
