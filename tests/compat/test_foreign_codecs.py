"""Golden bytes: what kafka-python, aiokafka and librdkafka (confluent-kafka) write, Semel reads, and the reverse.

librdkafka has no codec to call, so its bytes go over a socket: its own mock broker keeps what its producer sent, where
a raw Fetch finds it, and serves what a raw Produce put there to its consumer.
"""

from __future__ import annotations

import socket
import struct
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.record.control_record import COMMIT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.default_records import _DefaultRecordBatchPy as AioPlainBatch
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from codec_twins import codec as codec_twin
from confluent_kafka import Consumer, Producer, TopicPartition

from semel.protocol.compression import Compression
from semel.protocol.schema import Reader, Writer

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses what Python 3.11 deprecates
    from kafka.record.memory_records import MemoryRecords as KafkaRecords
    from kafka.record.memory_records import MemoryRecordsBuilder as KafkaBuilder

NOW = 1_700_000_000_000
NAMES = {
    Compression.NONE: "none",
    Compression.GZIP: "gzip",
    Compression.SNAPPY: "snappy",
    Compression.LZ4: "lz4",
    Compression.ZSTD: "zstd",
}
RECORDS: list[tuple[int, bytes | None, bytes | None, Any]] = [
    (NOW, b"key", b"value", ()),
    (NOW + 5, None, b"value", (("trace", b"1-2"), ("empty", b""), ("none", None), ("trace", b"again"))),
    (NOW - 9, b"", b"", ()),
    (NOW + 1, b"deleted", None, (("ключ", b"\x00\xff"),)),
    (NOW + 2, None, None, ()),
    (NOW + 100_000, b"k" * 64, b"v" * 90_000, ()),
    *[(NOW + n, b"%d" % n, b'{"id": %d, "square": %d}' % (n, n * n), ()) for n in range(5000)],
]


@pytest.fixture(params=["built", "interpreted"])
def codec(request: pytest.FixtureRequest) -> Any:
    return codec_twin(request.param)


def plain(records: Any) -> list[Any]:
    """Return foreign or own records as comparable tuples."""
    return [(getattr(r, "timestamp_ms", None) or r.timestamp, r.key, r.value, tuple(r.headers)) for r in records]


def ours(codec: Any, buffer: Any) -> list[Any]:
    """Decode all batches of a buffer with Semel, and make sure that every way of decoding agrees."""
    headers = codec.validate_batches(buffer, max_batch_bytes=10**9)
    records = [record for header in headers for record in codec.decode_records(buffer, header.position)]
    values = [value for header in headers for value in codec.decode_values(buffer, header.position)]
    table = codec.decode_to_arrow([buffer])
    assert values == table["value"].to_pylist() == [record.value for record in records]
    assert table["key"].to_pylist() == [record.key for record in records]
    assert table["offset"].to_pylist() == [record.offset for record in records]
    return plain(records)


PRODUCERS = [(False, -1, -1, -1), (False, 77, 3, 12), (True, 2**40, 5, 2**31 - 1)]
"""Plain, idempotent and transactional: transactional, producer id, epoch, base sequence."""


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize(("transactional", "producer_id", "epoch", "sequence"), PRODUCERS)
def test_aiokafka_writes_and_semel_reads(
    codec: Any, compression: Compression, transactional: bool, producer_id: int, epoch: int, sequence: int
) -> None:
    builder = AioBuilder(2, compression, transactional, producer_id, epoch, sequence, 10**7)
    for offset, (timestamp, key, value, headers) in enumerate(RECORDS):
        builder.append(offset, timestamp, key, value, list(headers))
    batch = builder.build()
    assert ours(codec, batch) == RECORDS
    header = codec.read_header(batch)
    assert header.compression is compression
    assert header.is_transactional is transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, epoch, sequence)


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize(("transactional", "producer_id", "epoch", "sequence"), PRODUCERS)
@pytest.mark.parametrize("reader", [AioBatch, AioPlainBatch])
def test_semel_writes_and_aiokafka_reads(
    codec: Any,
    reader: Any,
    compression: Compression,
    transactional: bool,
    producer_id: int,
    epoch: int,
    sequence: int,
) -> None:
    batch = codec.encode_batch(
        RECORDS,
        compression=compression,
        base_offset=99,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    foreign = reader(batch)
    assert foreign.validate_crc()
    assert foreign.is_transactional is transactional
    assert (foreign.producer_id, foreign.producer_epoch, foreign.base_sequence) == (producer_id, epoch, sequence)
    assert (foreign.base_offset, foreign.next_offset) == (99, 99 + len(RECORDS))
    records = list(foreign)
    assert plain(records) == RECORDS
    assert [record.offset for record in records] == list(range(99, 99 + len(RECORDS)))


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize(("transactional", "producer_id", "epoch", "sequence"), PRODUCERS)
def test_kafka_python_both_ways(
    codec: Any, compression: Compression, transactional: bool, producer_id: int, epoch: int, sequence: int
) -> None:
    builder = KafkaBuilder(2, int(compression), 10**7, 0, transactional, producer_id, epoch, sequence)
    for timestamp, key, value, headers in RECORDS:
        builder.append(timestamp, key, value, list(headers))
    builder.close()
    theirs = bytes(builder.buffer())
    assert ours(codec, theirs) == RECORDS
    header = codec.read_header(theirs)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, epoch, sequence)
    assert header.is_transactional is transactional
    batch = codec.encode_batch(
        RECORDS,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
        leader_epoch=0,
    )
    foreign = KafkaRecords(batch).next_batch()
    assert foreign.validate_crc()
    assert plain(foreign) == RECORDS
    if compression is Compression.NONE:
        # They code the same, so the bytes are the same too.
        assert batch == theirs


def test_markers_and_append_time_are_read_by_others(codec: Any) -> None:
    marker = codec.encode_control_batch(
        codec.ControlType.COMMIT, producer_id=5, producer_epoch=1, coordinator_epoch=9, timestamp_ms=NOW, base_offset=3
    )
    foreign = AioBatch(marker)
    assert foreign.is_control_batch
    assert foreign.is_transactional
    (record,) = foreign
    assert ControlRecord.parse(record.key) == COMMIT_MARKER
    assert KafkaRecords(marker).next_batch().is_control_batch

    stamped = bytearray(codec.encode_batch(RECORDS, compression=Compression.LZ4))
    codec.set_append_time(stamped, 0, NOW + 1234)
    foreign = AioBatch(bytes(stamped))
    assert foreign.validate_crc()
    assert foreign.timestamp_type == 1
    assert {record.timestamp for record in foreign} == {NOW + 1234}


def test_several_batches_in_one_buffer_are_read_by_others(codec: Any) -> None:
    buffer = codec.encode_batch(RECORDS[:3]) + codec.encode_batch(
        RECORDS[3:], base_offset=3, compression=Compression.ZSTD
    )
    for reader in (AioRecords(buffer), KafkaRecords(buffer[: buffer.index(b"\x28\xb5\x2f\xfd") - 61])):
        read: list[Any] = []
        while reader.has_next():
            read += plain(reader.next_batch())
        assert read in (RECORDS, RECORDS[:3])


# --- librdkafka -------------------------------------------------------------------------------------------------------


class MockBroker:
    """Talks to the mock broker inside a librdkafka producer with raw Produce and Fetch requests."""

    def __init__(self) -> None:
        self.producers: list[Producer] = []
        self.host = ""
        self._socket: socket.socket | None = None

    def start(self) -> None:
        owner = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        self.producers.append(owner)
        (broker,) = owner.list_topics(timeout=10).brokers.values()
        self.host = f"{broker.host}:{broker.port}"
        self._socket = socket.create_connection((broker.host, broker.port), timeout=10)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self.producers.clear()

    def producer(self, **options: Any) -> Producer:
        producer = Producer({"bootstrap.servers": self.host, "log_level": 0, "linger.ms": 50, **options})
        self.producers.append(producer)
        return producer

    def call(self, api_key: int, version: int, body: Writer) -> Reader:
        head = Writer()
        head.int16(api_key)
        head.int16(version)
        head.int32(1)
        head.string("semel-test")
        request = bytes(head) + bytes(body)
        assert self._socket is not None
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._receive(4))
        reader = Reader(self._receive(size))
        assert reader.int32() == 1
        return reader

    def _receive(self, size: int) -> bytes:
        assert self._socket is not None
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part
            data += part
        return data

    def produce(self, topic: str, batch: bytes) -> None:
        body = Writer()
        body.nullable_string(None)
        body.int16(-1)
        body.int32(5000)
        body.int32(1)
        body.string(topic)
        body.int32(1)
        body.int32(0)
        body.bytes_(batch)
        reader = self.call(0, 7, body)
        assert reader.int32() == 1
        assert reader.string() == topic
        assert reader.int32() == 1
        assert (reader.int32(), reader.int16()) == (0, 0)

    def fetch(self, topic: str) -> bytes:
        """Return all record bytes of partition 0."""
        data = b""
        offset = 0
        while True:
            body = Writer()
            for value in (-1, 100, 1, 10**8):
                body.int32(value)
            body.int8(0)
            body.int32(1)
            body.string(topic)
            body.int32(1)
            body.int32(0)
            body.int64(offset)
            body.int32(10**8)
            reader = self.call(1, 4, body)
            reader.int32()
            assert (reader.int32(), reader.string(), reader.int32(), reader.int32()) == (1, topic, 1, 0)
            assert reader.int16() == 0
            high_watermark = reader.int64()
            reader.int64()
            count = reader.int32()
            for _ in range(max(0, count)):
                reader.raw(16)
            part = reader.nullable_bytes() or b""
            data += part
            for header in codec_twin("built").iter_batches(part):
                offset = header.next_offset
            if offset >= high_watermark:
                return data


@pytest.fixture(scope="module")
def broker() -> Iterator[MockBroker]:
    mock = MockBroker()
    mock.start()
    yield mock
    mock.close()


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("idempotent", [False, True])
def test_librdkafka_writes_and_semel_reads(broker: MockBroker, compression: Compression, idempotent: bool) -> None:
    topic = f"theirs-{NAMES[compression]}-{idempotent}"
    producer = broker.producer(**{"compression.type": NAMES[compression], "enable.idempotence": idempotent})
    for timestamp, key, value, headers in RECORDS:
        producer.produce(topic, value, key, 0, timestamp=timestamp, headers=list(headers))
    assert producer.flush(20) == 0
    data = broker.fetch(topic)
    for kind in ("built", "interpreted"):
        codec = codec_twin(kind)
        assert ours(codec, data) == RECORDS
        headers_read = list(codec.iter_batches(data))
        assert any(header.compression is compression for header in headers_read)
        assert all(header.has_producer is idempotent for header in headers_read)
        if idempotent:
            sequence = 0
            for header in headers_read:
                assert header.base_sequence == sequence
                sequence = header.last_sequence + 1


@pytest.mark.parametrize("compression", list(Compression))
def test_semel_writes_and_librdkafka_reads(broker: MockBroker, compression: Compression) -> None:
    codec = codec_twin("built")  # the twins write the same bytes
    topic = f"ours-{NAMES[compression]}"
    broker.producers[0].list_topics(topic, timeout=10)
    broker.produce(topic, codec.encode_batch(RECORDS[:10], compression=compression))
    broker.produce(
        topic,
        codec.encode_batch(RECORDS[10:], compression=compression, producer_id=4, producer_epoch=0, base_sequence=0),
    )
    consumer = Consumer(
        {
            "bootstrap.servers": broker.host,
            "group.id": topic,
            "check.crcs": True,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        read: list[Any] = []
        for _ in range(100):
            if len(read) >= len(RECORDS):
                break
            messages = consumer.consume(10_000, timeout=0.2)
            for message in messages:
                assert message.error() is None
                read.append((message.timestamp()[1], message.key(), message.value(), tuple(message.headers() or ())))
        assert read == RECORDS
    finally:
        consumer.close()
