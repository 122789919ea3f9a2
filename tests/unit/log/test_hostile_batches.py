"""S4: what no reader could read is not appended. S3: a small batch that becomes a large one holds nobody up."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from interpreted import interpreted
from kafka_node import FakeNode, KafkaClient, run_with_listener, turns, until
from lying_batches import LIES, NOW_MS, record, sealed
from running_node import channel_to, create_topic, running_node

from semel.broker.handlers.produce import batch_checks
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.broker.log import append_validation
from semel.broker.log.append_validation import RefusedRecordsError, UncompressedLimits, check_batch
from semel.broker.log.config import CleanupPolicy, CompressionSetting, LogConfig, TimestampType
from semel.protocol import record_check
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import read_header
from semel.protocol.compression import Compression, compress
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest, ProduceResponse
from semel.protocol.record_decoder import decode_records
from semel.protocol.v1 import data_pb2, data_pb2_grpc

TP = TopicPartition("t", 0)
CODECS = list(Compression)
MIB = 1 << 20
COMPACTED = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}))


@pytest.fixture(params=["as installed", "interpreted"])
def check(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The check of records, compiled and from its source; the broker's checks use it."""
    module: ModuleType = record_check
    if request.param == "interpreted":
        (module,) = interpreted("semel.protocol.record_check")
        for name in ("summarize_records", "keyless_records", "oldest_time"):
            monkeypatch.setattr(append_validation, name, getattr(module, name))
    return module


def refusal(batch: bytes | bytearray, config: LogConfig | None = None) -> SemelError:
    with pytest.raises(SemelError) as caught:
        check_batch(TP, bytearray(batch), config or LogConfig())
    return caught.value


def to_t(*batches: bytes | bytearray, acks: int = -1, timeout_ms: int = 30_000) -> ProduceRequest:
    items = [ProducePartition("t", number, batch) for number, batch in enumerate(batches)]
    return ProduceRequest(items, None, acks, timeout_ms)


def codes(response: ProduceResponse) -> list[ErrorCode]:
    return [item.error for item in response.partitions]


def bomb(size_bytes: int, codec: Compression = Compression.ZSTD, **producer: int) -> bytes:
    """A batch of one record of zeros: a few kilobytes, whatever its size."""
    return bytes(encode_batch([(NOW_MS, b"k", bytes(size_bytes), ())], compression=codec, **producer))


# --- Batches that lie -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("lie", LIES)
def test_S4_a_batch_whose_records_are_no_records_is_refused(check: ModuleType, lie: str, codec: Compression) -> None:
    batch = LIES[lie].build(codec)
    assert refusal(batch).code is LIES[lie].code
    # It is the batch that is wrong, and not what a topic does with it.
    for config in (COMPACTED, LogConfig(compression_type=CompressionSetting.LZ4)):
        assert refusal(batch, config).code is LIES[lie].code


@pytest.mark.parametrize("lie", LIES)
def test_S4_a_lying_batch_leaves_no_trace_in_the_log(tmp_path: Path, lie: str) -> None:
    """By the Kafka listener, acks 1 and all, plain and compressed; a good batch after it has the next offset."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        for place, codec in enumerate((Compression.NONE, Compression.GZIP, Compression.ZSTD)):
            for acks in (1, -1):
                answer = await client.produce(to_t(LIES[lie].build(codec), acks=acks), 9)
                assert codes(answer) == [LIES[lie].code]
            assert codes(await client.produce(to_t(sealed(record(), 1, codec=codec)), 9)) == [ErrorCode.NONE]
            assert partition.log_end_offset == place + 1

    run_with_listener(test, str(tmp_path))


def test_S4_lying_batches_are_refused_on_the_grpc_stream(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, channel_to(node) as channel:
            await create_topic(node, "t", 1)
            data = data_pb2_grpc.DataServiceStub(channel)
            batches = [lie.build(codec) for lie in LIES.values() for codec in (Compression.NONE, Compression.LZ4)]
            requests = [
                data_pb2.ProduceRequest(
                    acks=-1,
                    timeout_ms=30_000,
                    items=[data_pb2.ProduceRequest.Item(topic="t", partition=0, record_batches=bytes(batch))],
                )
                for batch in [*batches, sealed(record(), 1)]
            ]
            errors = [answer.items[0].error.code async for answer in data.Produce(iter(requests))]
            expected = [int(lie.code) for lie in LIES.values() for _ in range(2)]
            assert errors == [*expected, 0]
            partition = node.partition(TP)
            assert partition is not None
            assert partition.log_end_offset == 1

    asyncio.run(main())


def test_S4_the_answer_names_the_record(tmp_path: Path) -> None:
    """KIP-467, from version 8 on."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        client = await KafkaClient.connect(listener.port)
        batch = sealed(record() + record(delta=1) + record(delta=7), 3, last_delta=2)
        (answer,) = (await client.produce(to_t(batch), 9)).partitions
        assert answer.error is ErrorCode.INVALID_RECORD
        assert [(place, "offset delta" in (text or "")) for place, text in answer.record_errors] == [(2, True)]
        assert "record 2" in (answer.error_message or "")

    run_with_listener(test, str(tmp_path))


def test_S4_all_shapes_of_good_records_are_taken(check: ModuleType) -> None:
    """Beside the shape that the check is quick for: long numbers, keys, headers, nulls, empty fields, many records."""
    headers = (("name", b"value"), ("", None), ("long" * 40, b"x" * 300), ("empty", b""))
    shapes: list[list[tuple[int, bytes | None, bytes | None, Any]]] = [
        [(NOW_MS, None, None, ())],
        [(NOW_MS, b"", b"", ())],
        [(-1, None, b"v", ())],
        [(NOW_MS, b"key" * 50, b"v" * 9_000, headers)],
        [(NOW_MS, None, b"v" * 100_000, ()), (NOW_MS - 5, b"k", None, headers)],
        [(NOW_MS + place * 1_000, None if place % 3 else b"k", b"v" * (place % 200), ()) for place in range(9_000)],
        [(0, b"k" * 9_000, b"v", ()), (NOW_MS, None, b"v", ()), (5, None, b"v", ())],
    ]
    for records in shapes:
        for codec in CODECS:
            batch = bytearray(encode_batch(records, compression=codec))
            found = check_batch(TP, batch, LogConfig())
            assert found.buffer is batch
            assert found.max_timestamp_ms == max(time for time, *_ in records)
            assert [record.value for record in decode_records(batch)] == [value for _, _, value, _ in records]


def test_S4_the_maximum_timestamp_is_that_of_the_records(check: ModuleType) -> None:
    """As Kafka has it: a header that says another is put right, with its checksum."""
    for codec in CODECS:
        for said in (0, -1, NOW_MS + 999, 2**63 - 1, -(2**63)):
            batch = sealed(record(time=-7) + record(delta=1, time=5) + record(delta=2), 3, codec=codec, max_time=said)
            found = check_batch(TP, batch, LogConfig())
            assert found.max_timestamp_ms == NOW_MS + 5
            assert read_header(found.buffer).max_timestamp_ms == NOW_MS + 5
            assert max(each.timestamp_ms for each in decode_records(found.buffer)) == NOW_MS + 5


def test_S4_what_the_check_of_records_finds(check: ModuleType) -> None:
    records = b"".join(record(b"v", key=key, delta=place, time=time) for place, (key, time) in enumerate(
        [(b"a", 4), (None, -3), (b"", 9), (None, 0)]
    ))  # fmt: skip
    header = read_header(sealed(records, 4))
    found = check.summarize_records(header, b"--" + records + b"--", 2, 2 + len(records))
    assert (found.fault, found.place, found.keyless) == (0, 4, 2)
    assert (found.min_timestamp_ms, found.max_timestamp_ms) == (NOW_MS - 3, NOW_MS + 9)
    assert check.keyless_records(header, records, 0, len(records), 10) == [1, 3]
    assert check.keyless_records(header, records, 0, len(records), 1) == [1]
    assert check.oldest_time(header, records, 0, len(records)) == NOW_MS - 3
    untimed = read_header(sealed(records, 4, base_time=2))
    assert check.oldest_time(untimed, records, 0, len(records)) == 2
    with pytest.raises(ValueError, match="not within"):
        check.summarize_records(header, records, 0, len(records) + 1)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_S4_records_that_are_too_old_or_have_no_key_are_named(tmp_path: Path, codec: Compression) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        old = LogConfig(message_timestamp_before_max_ms=1_000)
        for name, config in (("compacted", COMPACTED), ("bounded", old)):
            node.create(name, config=config)
        client = await KafkaClient.connect(listener.port)
        now_ms = node.clock.now_ms()

        async def ask(topic: str, *times: int, key: bytes | None = b"k") -> Any:
            batch = encode_batch([(time, key, b"v", ()) for time in times], compression=codec)
            request = ProduceRequest([ProducePartition(topic, 0, bytes(batch))], None, 1, 30_000)
            return (await client.produce(request, 9)).partitions[0]

        assert (await ask("compacted", now_ms, now_ms)).error is ErrorCode.NONE
        refused = await ask("compacted", now_ms, now_ms, key=None)
        assert refused.error is ErrorCode.INVALID_RECORD
        assert [place for place, _ in refused.record_errors] == [0, 1]
        assert (await ask("bounded", now_ms - 1_000)).error is ErrorCode.NONE
        assert (await ask("bounded", -1)).error is ErrorCode.NONE
        for times in ([now_ms - 1_001], [now_ms, now_ms - 2_000], [-1, now_ms - 2_000, now_ms]):
            assert (await ask("bounded", *times)).error is ErrorCode.INVALID_TIMESTAMP
        ancient = sealed(record(), 1, codec=codec, base_time=-2)
        request = ProduceRequest([ProducePartition("bounded", 0, ancient)], None, 1, 30_000)
        assert codes(await client.produce(request, 9)) == [ErrorCode.INVALID_TIMESTAMP]

    run_with_listener(test, str(tmp_path))


def test_S4_append_time_does_not_excuse_records(check: ModuleType) -> None:
    """What the log stamps has its own bytes below, which readers add up all the same."""
    stamped = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    for lie in LIES.values():
        assert refusal(lie.build(Compression.NONE), stamped).code is lie.code


# --- Bombs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS[1:], ids=lambda codec: codec.name)
def test_S3_a_bomb_is_bounded_by_its_size_and_by_ratio(codec: Compression) -> None:
    limits = UncompressedLimits(bytes_max=24 * MIB, ratio_max=10)
    batch = bytearray(bomb(20 * MIB, codec))
    if len(batch) * 10 < 20 * MIB:
        with pytest.raises(SemelError, match=r"message\.compression\.ratio\.max") as caught:
            check_batch(TP, batch, LogConfig(max_message_bytes=4 * MIB), limits)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    else:
        check_batch(TP, batch, LogConfig(max_message_bytes=4 * MIB), limits)
    with pytest.raises(SemelError, match=r"message\.uncompressed\.max\.bytes") as caught:
        check_batch(TP, bytearray(bomb(25 * MIB, codec)), LogConfig(max_message_bytes=25 * MIB), limits)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    # Up to 16 MiB the ratio says nothing: records that are alike compress a thousand times.
    check_batch(TP, bytearray(bomb(15 * MIB, codec)), LogConfig(max_message_bytes=4 * MIB), limits)


def test_S3_well_compressed_data_is_taken() -> None:
    """A megabyte that becomes a hundred."""
    limits = UncompressedLimits()
    assert limits.bytes_for(MIB, LogConfig()) >= 100 * MIB
    assert limits.bytes_for(300, LogConfig()) == 16 * MIB
    assert limits.bytes_for(300, LogConfig(max_message_bytes=50 * MIB)) == 50 * MIB


class Held:
    """Holds the threads' checks until they are let go, and notes which thread each ran in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.begun: list[TopicPartition] = []
        self.threads: set[int] = set()
        check = batch_checks._check

        def held(batch: batch_checks.Unchecked, limits: UncompressedLimits) -> batch_checks.Outcome:
            self.begun.append(batch.tp)
            self.threads.add(threading.get_ident())
            assert self.gate.wait(60)
            return check(batch, limits)

        monkeypatch.setattr(batch_checks, "_check", held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(monkeypatch)
    yield made
    made.gate.set()


TOPICS = {
    "plain": LogConfig(),
    "compacted": COMPACTED,
    "recoded": LogConfig(compression_type=CompressionSetting.GZIP),
    "bounded": LogConfig(message_timestamp_before_max_ms=2**62),
}


@pytest.mark.parametrize("codec", CODECS[1:], ids=lambda codec: codec.name)
@pytest.mark.parametrize("kind", TOPICS)
def test_S3_a_bomb_is_opened_off_the_loop(tmp_path: Path, held: Held, kind: str, codec: Compression) -> None:
    """Others are served while a thread has it, and it is appended when that is done."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (bombed,) = node.create("t", config=TOPICS[kind])
        node.create("other")
        client, other = await KafkaClient.connect(listener.port), await KafkaClient.connect(listener.port)
        client.send(to_t(bomb(4 * MIB, codec)), 9)
        await until(lambda: len(held.begun) == 1)
        good = ProduceRequest([ProducePartition("other", 0, sealed(record(), 1))], None, -1, 30_000)
        assert codes(await other.produce(good, 9)) == [ErrorCode.NONE]
        assert bombed.log_end_offset == 0
        held.gate.set()
        answer = ProduceResponse.parse(memoryview(await client.receive())[5:], 9)
        assert codes(answer) == [ErrorCode.NONE]
        assert held.threads.isdisjoint({threading.get_ident()})
        assert bombed.log_end_offset == 1
        assert listener.produce.checks.checked_elsewhere == 1

    run_with_listener(test, str(tmp_path))


def test_S3_what_is_done_on_the_loop_is_bounded_for_each_turn_of_it(tmp_path: Path, held: Held) -> None:
    """Small batches are opened at once, as long as what comes out of all of them is little."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t", 40)
        client = await KafkaClient.connect(listener.port)
        held.gate.set()
        batch = bomb(100_000)
        few = batch_checks.TURN_BYTES_MAX // 100_000 // 2
        assert codes(await client.produce(to_t(*[batch] * few), 9)) == [ErrorCode.NONE] * few
        assert not held.begun
        assert codes(await client.produce(to_t(*[batch] * 40), 9)) == [ErrorCode.NONE] * 40
        assert 40 - 3 * few < len(held.begun) < 40 - few
        before = len(held.begun)
        await turns()
        assert codes(await client.produce(to_t(batch), 9)) == [ErrorCode.NONE]
        assert len(held.begun) == before

    run_with_listener(test, str(tmp_path))


def numbered(sequence: int, size_bytes: int, *, transactional: bool = False) -> bytes:
    return bytes(
        encode_batch(
            [(NOW_MS, b"k", bytes(size_bytes), ())],
            compression=Compression.ZSTD,
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


@pytest.mark.parametrize("transactional", [False, True], ids=["idempotent", "transactional"])
def test_S3_P2_batches_behind_one_that_is_checked_keep_their_order(
    tmp_path: Path, held: Held, transactional: bool
) -> None:
    """Five in flight, as idempotent producers send them; the second and fourth take long to check."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        for sequence in range(5):
            request = to_t(numbered(sequence, 4 * MIB if sequence in (1, 3) else 10, transactional=transactional))
            request.transactional_id = "tx" if transactional else None
            client.send(request, 12)
        await until(lambda: len(held.begun) == 1)
        await turns(20)
        assert partition.log_end_offset == 1
        held.gate.set()
        for _ in range(5):
            answer = ProduceResponse.parse(memoryview(await client.receive())[5:], 12)
            assert codes(answer) == [ErrorCode.NONE]
        assert partition.log_end_offset == 5
        assert len(held.begun) == 2

    run_with_listener(test, str(tmp_path))
    assert ProducerIdAndEpoch(7, 0)


def test_S3_P2_the_grpc_stream_keeps_its_order_too(tmp_path: Path, held: Held) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, channel_to(node) as channel:
            await create_topic(node, "t", 1)
            data = data_pb2_grpc.DataServiceStub(channel)
            requests = [
                data_pb2.ProduceRequest(
                    acks=-1,
                    timeout_ms=30_000,
                    items=[
                        data_pb2.ProduceRequest.Item(
                            topic="t", partition=0, record_batches=numbered(place, 4 * MIB if place == 1 else 10)
                        )
                    ],
                )
                for place in range(4)
            ]
            call = data.Produce(iter(requests))
            partition = node.partition(TP)
            assert partition is not None
            async with asyncio.timeout(60):
                await until(lambda: len(held.begun) == 1)
                await turns(20)
                assert partition.log_end_offset == 1
                held.gate.set()
                assert [answer.items[0].error.code async for answer in call] == [0, 0, 0, 0]
            assert partition.log_end_offset == 4

    asyncio.run(main())


def test_S3_a_bomb_whose_client_is_gone_is_dropped(tmp_path: Path, held: Held) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        checks = listener.produce.checks
        clients = [await KafkaClient.connect(listener.port) for _ in range(6)]
        for client in clients:
            client.send(to_t(bomb(4 * MIB)), 9)
        await until(lambda: checks.waiting == 6)
        for client in clients:
            client.writer.close()
        await until(lambda: listener.statistics().connections == 0)
        held.gate.set()
        await until(lambda: checks.waiting == 0)
        assert len(held.begun) == 2, "those that no thread had begun are not worked off"
        assert partition.log_end_offset == 0

    run_with_listener(test, str(tmp_path))


def test_S3_connections_take_turns(tmp_path: Path, held: Held) -> None:
    """Two have all threads, with twenty bombs each in a request; a third waits for one batch of each, not for all."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t", 20)
        (other,) = node.create("other")
        greedy = [await KafkaClient.connect(listener.port) for _ in range(2)]
        patient = await KafkaClient.connect(listener.port)
        for client in greedy:
            client.send(to_t(*[bomb(MIB)] * 20), 9)
        await until(lambda: len(held.begun) == 2)
        patient.send(ProduceRequest([ProducePartition("other", 0, bomb(MIB))], None, -1, 30_000), 9)
        await until(lambda: listener.produce.checks.waiting == 3)
        held.gate.set()
        assert codes(ProduceResponse.parse(memoryview(await patient.receive())[5:], 9)) == [ErrorCode.NONE]
        assert other.log_end_offset == 1
        assert held.begun.index(TopicPartition("other", 0)) <= 3
        for client in greedy:
            assert codes(ProduceResponse.parse(memoryview(await client.receive())[5:], 9)) == [ErrorCode.NONE] * 20

    run_with_listener(test, str(tmp_path))


def test_S3_the_queue_has_a_bound(tmp_path: Path, held: Held) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        checks = listener.produce.checks
        checks._queue_max = 3
        clients = [await KafkaClient.connect(listener.port) for _ in range(6)]
        for client in clients[:5]:
            client.send(to_t(bomb(MIB)), 9)
        await until(lambda: checks.waiting == 5)
        (refused,) = (await clients[5].produce(to_t(bomb(MIB)), 9)).partitions
        assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS
        assert "produce.check.queue.max" in (refused.error_message or "")
        # What needs no thread is taken all the same.
        assert codes(await clients[5].produce(to_t(sealed(record(), 1)), 9)) == [ErrorCode.NONE]
        held.gate.set()

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize("transactional", [False, True], ids=["idempotent", "transactional"])
def test_S2_S3_a_request_that_finds_the_queue_full_is_answered_and_can_be_sent_again(
    tmp_path: Path, held: Held, transactional: bool
) -> None:
    """A transactional one was never answered. Its other batch, which needs no thread, is taken."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        bombed, other, _ = node.create("t", 3)
        checks = listener.produce.checks
        checks._queue_max = 1
        for _ in range(checks._threads + 1):
            (await KafkaClient.connect(listener.port)).send(
                ProduceRequest([ProducePartition("t", 2, bomb(MIB))], None, -1, 30_000), 9
            )
        await until(lambda: checks.waiting == checks._threads + 1)
        client = await KafkaClient.connect(listener.port)
        small, large = (numbered(0, size, transactional=transactional) for size in (10, 4 * MIB))
        items = [ProducePartition("t", 1, small), ProducePartition("t", 0, large)]
        request = ProduceRequest(items, "tx" if transactional else None, -1, 30_000)
        taken, refused = (await client.produce(request, 12)).partitions
        assert (taken.error, refused.error) == (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS)
        assert "produce.check.queue.max" in (refused.error_message or "")
        assert (other.log_end_offset, bombed.log_end_offset) == (1, 0)
        held.gate.set()
        await until(lambda: checks.waiting == 0)
        assert codes(await client.produce(request, 12)) == [ErrorCode.NONE] * 2
        assert (other.log_end_offset, bombed.log_end_offset) == (1, 1)

    run_with_listener(test, str(tmp_path))


def test_S3_a_stop_refuses_what_waits(tmp_path: Path, held: Held) -> None:
    """What is in a thread is not waited for, and nothing is appended after the stop."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        checks = listener.produce.checks
        clients = [await KafkaClient.connect(listener.port) for _ in range(5)]
        for client in clients:
            client.send(to_t(bomb(MIB)), 9)
        await until(lambda: checks.waiting == 5)
        await listener.produce.close()
        for client in clients:
            answer = ProduceResponse.parse(memoryview(await client.receive())[5:], 9)
            assert codes(answer) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert partition.log_end_offset == 0

    run_with_listener(test, str(tmp_path))


def test_S3_a_batch_that_waits_longer_than_its_client_is_not_opened(tmp_path: Path, held: Held) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        checks = listener.produce.checks
        clients = [await KafkaClient.connect(listener.port) for _ in range(4)]
        for client in clients:
            client.send(to_t(bomb(MIB), timeout_ms=1), 9)
        await until(lambda: checks.waiting == 4)
        for job in checks._queue:
            job.deadline = 0.0
        held.gate.set()
        answered = [codes(ProduceResponse.parse(memoryview(await each.receive())[5:], 9))[0] for each in clients]
        assert answered.count(ErrorCode.REQUEST_TIMED_OUT) == 2
        assert len(held.begun) == partition.log_end_offset == 2

    run_with_listener(test, str(tmp_path))


def test_S3_what_lies_is_found_in_a_thread_too(tmp_path: Path, held: Held) -> None:
    """A bomb whose records are no records: refused with its place, and the connection continues."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        held.gate.set()
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        lying = sealed(record(bytes(4 * MIB)) + record(), 2, codec=Compression.GZIP)
        (answer,) = (await client.produce(to_t(lying), 9)).partitions
        assert answer.error is ErrorCode.INVALID_RECORD
        assert [place for place, _ in answer.record_errors] == [1]
        assert held.begun == [TP]
        assert codes(await client.produce(to_t(sealed(record(), 1)), 9)) == [ErrorCode.NONE]
        assert partition.log_end_offset == 1

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize("kind", CompressionSetting)
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_batch_in_another_codec_has_the_same_records(kind: CompressionSetting, codec: Compression) -> None:
    records = [(NOW_MS + place, b"k%d" % place, b"v" * place, (("h", None),)) for place in range(50)]
    batch = bytearray(
        encode_batch(records, compression=codec, producer_id=9, producer_epoch=3, base_sequence=17, transactional=True)
    )
    found = check_batch(TP, batch, LogConfig(compression_type=kind))
    header = read_header(found.buffer)
    assert decode_records(found.buffer) == decode_records(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, 17)
    assert header.is_transactional
    wanted = {CompressionSetting.PRODUCER: codec, CompressionSetting.UNCOMPRESSED: Compression.NONE}
    assert header.compression is (wanted[kind] if kind in wanted else Compression[kind.name])


def test_gzip_of_many_steps_and_members_reads_back() -> None:
    """It is decompressed in steps: of input, of output, and of members."""
    from semel.protocol.compression import decompress

    parts = [bytes(3 * MIB), struct.pack(">q", 7) * 100_000, b"x", b"y" * 70_000]
    packed = b"".join(bytes(compress(Compression.GZIP, part)) for part in parts)
    joined = b"".join(parts)
    assert bytes(decompress(Compression.GZIP, packed, max_size_bytes=len(joined))) == joined


def test_refused_records_are_no_error_to_retry() -> None:
    assert not isinstance(refusal(LIES["offset delta twice"].build(Compression.NONE)), OSError)
    assert isinstance(refusal(LIES["offset delta twice"].build(Compression.NONE)), RefusedRecordsError)
