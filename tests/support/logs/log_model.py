"""Helpers for tests of a partition's log: building batches, reading everything back, and a dump of what a log knows."""

from __future__ import annotations

from collections import Counter
from typing import Any

from semel.broker.log.config import LogConfig
from semel.broker.log.partition_log import PartitionLog
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import BatchHeader, iter_batches
from semel.protocol.compression import Compression
from semel.protocol.control_records import ControlType, decode_control
from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicPartition, new_topic_id
from semel.protocol.record_decoder import Record, decode_records
from semel.runtime.simulated_storage import SimulatedStorage

TP = TopicPartition("t", 0)
NOW = 1_700_000_000_000
FOLDER = "data/t-0"
TOPIC_ID = new_topic_id()
SMALL_SEGMENTS = LogConfig(segment_bytes=2000, index_interval_bytes=200)


def open_log(storage: SimulatedStorage, config: LogConfig, *, folder: str = FOLDER, **options: Any) -> PartitionLog:
    return PartitionLog.open(storage, folder, TP, TOPIC_ID, config, **{"now_ms": NOW, **options})


def storage_with_folder() -> SimulatedStorage:
    """A disk on which the log's folder survives a power cut, as where a node has made it."""
    storage = SimulatedStorage()
    storage.make_folder(FOLDER)
    for folder in ("/", FOLDER.rpartition("/")[0]):
        storage.sync_folder(folder)
    return storage


def make_batch(
    records: list[tuple[bytes | None, bytes | None]],
    *,
    producer: ProducerIdAndEpoch = NO_PRODUCER,
    sequence: int = -1,
    transactional: bool = False,
    timestamp_ms: int = NOW,
    compression: Compression = Compression.NONE,
) -> bytearray:
    return bytearray(
        encode_batch(
            [(timestamp_ms + n, key, value, ()) for n, (key, value) in enumerate(records)],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            transactional=transactional,
            compression=compression,
        )
    )


def read_batches(log: PartitionLog, offset: int | None = None) -> list[tuple[BatchHeader, bytes]]:
    """Return all batches of a log from `offset` on, as a reader gets them."""
    found: list[tuple[BatchHeader, bytes]] = []
    offset = log.log_start_offset if offset is None else offset
    while offset < log.log_end_offset:
        part = log.read(offset, 1 << 20, log.log_end_offset)
        if part.records is None:
            break
        data = part.read()
        found += [
            (header, data[header.position : header.position + header.size_bytes]) for header in iter_batches(data)
        ]
        assert part.next_offset > offset
        offset = part.next_offset
    return found


def read_committed(log: PartitionLog) -> list[Record]:
    """Return what a read_committed consumer that reads everything from the start sees, filtering as clients do (L3)."""
    stable = log.first_unstable_offset(log.log_end_offset)
    stable = log.log_end_offset if stable is None else stable
    records: list[Record] = []
    aborted = sorted(log.aborted_transactions(log.log_start_offset, stable), key=lambda one: one.first_offset)
    ongoing: set[int] = set()
    for header, data in read_batches(log):
        if header.base_offset >= stable:
            break
        while aborted and aborted[0].first_offset <= header.last_offset:
            ongoing.add(aborted.pop(0).producer_id)
        if header.is_control:
            if header.record_count and decode_control(decode_records(data)[0]).type is ControlType.ABORT:
                ongoing.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in ongoing):
            records += [record for record in decode_records(data) if record.offset >= log.log_start_offset]
    return records


def indexes(log: PartitionLog) -> list[tuple[int, list[tuple[int, int]], list[tuple[int, int]], list[Any]]]:
    """Return all entries of all indexes of all segments."""
    return [
        (
            segment.base_offset,
            [segment.offsets.entry(n) for n in range(len(segment.offsets))],
            [segment.times.entry(n) for n in range(len(segment.times))],
            list(segment.transactions),
        )
        for segment in log.segments
    ]


def fill(log: PartitionLog, count: int = 150) -> None:
    """Several producers, some in transactions of both outcomes, one left open."""
    sequences = Counter[int]()
    for n in range(count):
        producer = ProducerIdAndEpoch(n % 4, n % 2)
        transactional = n % 4 < 2
        data = make_batch(
            [(b"k", b"v" * (n % 30))] * (1 + n % 3),
            producer=producer,
            sequence=sequences[n % 4],
            transactional=transactional,
            timestamp_ms=NOW + n,
        )
        sequences[n % 4] += 1 + n % 3
        log.append(data, leader_epoch=n // 50, now_ms=NOW, verified=True)
        if transactional and n % 12 > 8:
            log.append_marker(producer, 1, n % 8 < 4, NOW, leader_epoch=n // 50)


def dump(log: PartitionLog) -> tuple[Any, ...]:
    return (
        log.log_start_offset,
        log.log_end_offset,
        [data for _, data in read_batches(log)],
        repr(log.producer_state),
        log.epochs.entries(),
        log.aborted_transactions(0, 10_000),
        [txn for _, _, _, txns in indexes(log) for txn in txns],
    )
