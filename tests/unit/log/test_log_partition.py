"""A partition's log on a simulated disk: appends, lookups, files, retention, and what a failing disk does."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from semel.broker.log.config import AppendOrigin, CleanupPolicy, CompressionSetting, LogConfig, TimestampType
from semel.broker.log.log_types import AppendResult
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.partition_log import PartitionLog
from semel.protocol.api.topics import MAX_TIMESTAMP
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import TimestampType as BatchTimestampType
from semel.protocol.batch_header import iter_batches, read_header
from semel.protocol.compression import Compression
from semel.protocol.control_records import ControlType, encode_control_batch
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicPartition, new_topic_id
from semel.protocol.record_decoder import Record, decode_records
from semel.runtime.simulated_storage import SimulatedStorage

TP = TopicPartition("t", 0)
NOW = 1_700_000_000_000
FOLDER = "data/t-0"
TOPIC_ID = new_topic_id()
DEFAULTS = LogConfig()


def open_log(storage: SimulatedStorage, config: LogConfig = DEFAULTS, **options: object) -> PartitionLog:
    return PartitionLog.open(storage, FOLDER, TP, TOPIC_ID, config, now_ms=NOW, **options)  # type: ignore[arg-type]


def batch(
    count: int = 1,
    *,
    producer: ProducerIdAndEpoch = NO_PRODUCER,
    sequence: int = -1,
    transactional: bool = False,
    timestamp_ms: int = NOW,
    size: int = 10,
    key: bytes | None = b"k",
    compression: Compression = Compression.NONE,
) -> bytearray:
    return bytearray(
        encode_batch(
            [(timestamp_ms + n, key, b"v" * size, ()) for n in range(count)],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            transactional=transactional,
            compression=compression,
        )
    )


def append(
    log: PartitionLog, count: int = 1, *, now_ms: int = NOW, verified: bool = True, **fields: object
) -> AppendResult:
    data = batch(count, **fields)  # type: ignore[arg-type]
    return log.append(data, leader_epoch=0, now_ms=now_ms, verified=verified)


def read_all(log: PartitionLog, offset: int = 0, upto: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
    records: list[Record] = []
    upto = log.log_end_offset if upto is None else upto
    while True:
        found = log.read(offset, max_bytes, upto)
        if found.size == 0:
            return records
        data = found.read()
        assert len(data) == found.size
        headers = list(iter_batches(data))
        assert sum(header.size_bytes for header in headers) == found.size, "whole batches"
        assert headers[0].base_offset == found.first_offset
        assert headers[-1].last_offset < found.next_offset
        for header in headers:
            if not header.is_control:
                records.extend(record for record in decode_records(data, header.position) if record.offset >= offset)
        assert found.next_offset > offset
        offset = found.next_offset


def refused(code: ErrorCode) -> object:
    return pytest.raises(SemelError, match=code.name)


SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=200)


def test_appends_are_read_back_at_any_offset_and_size() -> None:
    log = open_log(SimulatedStorage(), SMALL)
    rng = random.Random(1)
    counts = [rng.randint(1, 5) for _ in range(200)]
    for count in counts:
        result = append(log, count)
        assert result.last_offset == result.base_offset + count - 1
        assert len(result.appended) == 1
        assert read_header(result.appended[0]).base_offset == result.base_offset
    end = sum(counts)
    assert log.log_end_offset == end
    assert len(log.segments) > 5
    assert [record.offset for record in read_all(log)] == list(range(end))
    for offset in range(0, end, 7):
        for max_bytes in (1, 300, 1 << 20):
            assert [record.offset for record in read_all(log, offset, max_bytes=max_bytes)] == list(range(offset, end))
    for upto in range(0, end, 11):
        offsets = [record.offset for record in read_all(log, 0, upto)]
        assert offsets == list(range(len(offsets)))
        assert len(offsets) <= upto


def test_reads_stay_below_the_bound_and_within_the_size() -> None:
    log = open_log(SimulatedStorage())
    for _ in range(10):
        append(log, 3)
    size = log.size_bytes // 10
    found = log.read(0, 5 * size + 1, 30)
    assert (found.size, found.next_offset) == (5 * size, 15)
    found = log.read(4, 1, 30)
    assert (found.size, found.first_offset, found.next_offset) == (size, 3, 6)
    assert log.read(4, 1, 30, False).size == 0
    assert log.read(0, 1 << 20, 0).size == 0
    found = log.read(0, 1 << 20, 6)
    assert (found.size, found.next_offset) == (2 * size, 6)
    assert log.read(30, 1 << 20, 30).size == 0
    for outside in (-1, 31):
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            log.read(outside, 1, 30)


def test_what_a_client_may_not_send_is_refused_and_changes_nothing() -> None:
    config = LogConfig(max_message_bytes=500, message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    log = open_log(SimulatedStorage(), config)
    producer = ProducerIdAndEpoch(1, 0)
    marker = encode_control_batch(
        ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW
    )
    broken = batch()
    broken[-1] ^= 1
    cases: Iterable[tuple[bytes, ErrorCode]] = [
        (broken, ErrorCode.CORRUPT_MESSAGE),
        (batch(size=500), ErrorCode.MESSAGE_TOO_LARGE),
        (marker, ErrorCode.INVALID_RECORD),
        (batch() + batch(), ErrorCode.INVALID_RECORD),
        (batch(producer=producer), ErrorCode.INVALID_RECORD),
        (batch(transactional=True), ErrorCode.INVALID_RECORD),
        (batch(timestamp_ms=NOW + 1001), ErrorCode.INVALID_TIMESTAMP),
        (batch(timestamp_ms=NOW - 1001), ErrorCode.INVALID_TIMESTAMP),
        (batch(2, timestamp_ms=NOW + 1000), ErrorCode.INVALID_TIMESTAMP),
        (batch(producer=producer, sequence=0, transactional=True), ErrorCode.INVALID_TXN_STATE),
    ]
    for data, code in cases:
        with refused(code):
            log.append(data, leader_epoch=0, now_ms=NOW)
    assert log.log_end_offset == 0
    assert log.size_bytes == 0
    assert len(log.producer_state) == 0
    append(log, timestamp_ms=NOW + 999)


def test_P6_a_plain_batch_does_not_enter_the_open_transaction_of_its_producer() -> None:
    log = open_log(SimulatedStorage())
    producer = ProducerIdAndEpoch(1, 0)
    append(log, producer=producer, sequence=0, transactional=True)
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(log, producer=producer, sequence=1)
    append(log, producer=producer, sequence=1, transactional=True)
    log.append_marker(producer, 0, True, NOW, leader_epoch=0)
    append(log, producer=producer, sequence=2)
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(log, producer=producer, sequence=3, transactional=True, verified=False)


CONTROL, DELETE_HORIZON, APPEND_TIME = 0x20, 0x40, 0x08


@pytest.mark.parametrize("sequence", [-1, 0])
@pytest.mark.parametrize("producer_id", [-1, 7])
@pytest.mark.parametrize("bit", [CONTROL, DELETE_HORIZON, APPEND_TIME])
@pytest.mark.parametrize("transactional", [False, True])
def test_P6_no_control_bit_passes_however_the_header_looks(
    bit: int, producer_id: int, sequence: int, transactional: bool
) -> None:
    """A marker that a client could append would end, or make, transactions that nobody decided."""
    log = open_log(SimulatedStorage())
    forged = batch(producer=ProducerIdAndEpoch(producer_id, 0), sequence=sequence, transactional=transactional)
    attributes = int.from_bytes(forged[21:23], "big") | bit
    forged[21:23] = attributes.to_bytes(2, "big")
    forged[17:21] = crc32c(forged[21:]).to_bytes(4, "big")
    wrong_producer = sequence < 0 if producer_id >= 0 else transactional
    code = ErrorCode.INVALID_TIMESTAMP if bit == APPEND_TIME and not wrong_producer else ErrorCode.INVALID_RECORD
    with refused(code):
        log.append(forged, leader_epoch=0, now_ms=NOW, verified=True)
    assert (log.log_end_offset, log.size_bytes, len(log.producer_state)) == (0, 0, 0)


def test_a_compacted_topic_needs_keys() -> None:
    log = open_log(SimulatedStorage(), LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT})))
    append(log)
    with refused(ErrorCode.INVALID_RECORD):
        append(log, key=None)


def test_a_topic_that_stamps_at_the_append() -> None:
    log = open_log(SimulatedStorage(), LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME))
    producer = ProducerIdAndEpoch(1, 0)
    first = append(log, 2, timestamp_ms=5, producer=producer, sequence=0, now_ms=NOW)
    assert first.log_append_time_ms == NOW
    assert first.max_timestamp_ms == NOW
    again = append(log, 2, timestamp_ms=5, producer=producer, sequence=0, now_ms=NOW + 99)
    assert again.duplicate
    assert again.log_append_time_ms == NOW, "P1: the original's"
    header = read_header(first.appended[0])
    assert header.timestamp_type is BatchTimestampType.LOG_APPEND_TIME
    assert {record.timestamp_ms for record in read_all(log)} == {NOW}
    found = log.offset_for_timestamp(NOW)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (0, NOW)


@pytest.mark.parametrize("setting", [CompressionSetting.ZSTD, CompressionSetting.UNCOMPRESSED])
def test_a_topic_with_a_codec_of_its_own(setting: CompressionSetting) -> None:
    log = open_log(SimulatedStorage(), LogConfig(compression_type=setting))
    producer = ProducerIdAndEpoch(1, 0)
    result = append(log, 50, size=100, compression=Compression.LZ4, producer=producer, sequence=0)
    header = read_header(result.appended[0])
    expected = Compression.ZSTD if setting is CompressionSetting.ZSTD else Compression.NONE
    assert header.compression is expected
    assert (header.producer_id, header.base_sequence, header.record_count) == (1, 0, 50)
    assert len(read_all(log)) == 50


def test_P1_a_repeated_batch_is_answered_with_the_original_and_not_appended() -> None:
    log = open_log(SimulatedStorage())
    producer = ProducerIdAndEpoch(1, 0)
    append(log, 5)
    first = append(log, 2, producer=producer, sequence=0)
    append(log, 2, producer=producer, sequence=2)
    size = log.size_bytes
    again = append(log, 2, producer=producer, sequence=0)
    assert again == AppendResult(5, 6, NOW + 1, True, NOW + 1, ())
    for wrong in (1, 3, 5, 6):
        with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            append(log, 2, producer=producer, sequence=wrong)
    assert (first.base_offset, first.log_append_time_ms) == (5, -1)
    assert log.size_bytes == size


def test_P1_what_repeats_a_batch_of_an_ended_transaction_is_refused_and_the_next_number_goes_on() -> None:
    log = open_log(SimulatedStorage())
    producer = ProducerIdAndEpoch(1, 0)
    append(log, 2, producer=producer, sequence=0, transactional=True)
    assert append(log, 2, producer=producer, sequence=0, transactional=True).duplicate
    log.append_marker(producer, 0, False, NOW, leader_epoch=0)
    size = log.size_bytes
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(log, 2, producer=producer, sequence=0, transactional=True)
    assert log.size_bytes == size
    append(log, producer=producer, sequence=2, transactional=True)
    assert append(log, producer=producer, sequence=2, transactional=True).duplicate
    with refused(ErrorCode.INVALID_TXN_STATE):
        append(log, 2, producer=producer, sequence=0, transactional=True)


def test_P9_a_repeated_marker_appends_nothing() -> None:
    log = open_log(SimulatedStorage())
    producer = ProducerIdAndEpoch(1, 0)
    append(log, producer=producer, sequence=0, transactional=True)
    first = log.append_marker(producer, 3, True, NOW, leader_epoch=0)
    assert not first.duplicate
    size = log.size_bytes
    again = log.append_marker(producer, 3, True, NOW, leader_epoch=0)
    assert again.duplicate
    assert again.last_offset >= first.last_offset
    assert not again.appended
    assert (log.size_bytes, log.log_end_offset) == (size, 2)
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        log.append_marker(producer, 2, True, NOW, leader_epoch=0)


def test_T8_a_marker_voids_a_verification_under_way() -> None:
    log = open_log(SimulatedStorage())
    producer = ProducerIdAndEpoch(1, 0)
    guard = log.start_verification(producer, 0, NOW)
    assert guard is not None
    log.append_marker(producer, 0, False, NOW, leader_epoch=0)
    data = batch(producer=producer, sequence=0, transactional=True)
    with refused(ErrorCode.INVALID_TXN_STATE):
        log.append(data, leader_epoch=0, now_ms=NOW, verified=guard)
    guard = log.start_verification(producer, 0, NOW)
    assert guard is not None
    log.append(data, leader_epoch=0, now_ms=NOW, verified=guard)
    assert log.has_ongoing_transaction(producer)
    assert log.start_verification(producer, 1, NOW) is None
    append(log, producer=producer, sequence=1, transactional=True, verified=False)


def test_coordinators_append_inside_a_transaction_without_sequences() -> None:
    log = open_log(SimulatedStorage())
    data = bytes(batch(2, producer=ProducerIdAndEpoch(4, 2), transactional=True))
    log.append(data, origin=AppendOrigin.COORDINATOR, leader_epoch=0, now_ms=NOW)
    log.append(data, origin=AppendOrigin.COORDINATOR, leader_epoch=0, now_ms=NOW)
    assert log.first_unstable_offset(4) == 0


def test_L3_aborted_transactions_are_found_across_segments() -> None:
    log = open_log(SimulatedStorage(), SMALL)
    rng = random.Random(3)
    sequences = dict.fromkeys(range(6), 0)
    open_since: dict[int, int] = {}
    aborted: list[tuple[int, int, int]] = []
    for _ in range(400):
        producer_id = rng.randrange(6)
        producer = ProducerIdAndEpoch(producer_id, 0)
        if producer_id in open_since and rng.random() < 0.3:
            committed = rng.random() < 0.5
            marker = log.append_marker(producer, 0, committed, NOW, leader_epoch=0).base_offset
            first = open_since.pop(producer_id)
            if not committed:
                aborted.append((producer_id, first, marker))
        else:
            result = append(log, producer=producer, sequence=sequences[producer_id], transactional=True)
            sequences[producer_id] += 1
            open_since.setdefault(producer_id, result.base_offset)
    assert len(log.segments) > 3
    stable = log.first_unstable_offset(log.log_end_offset)
    assert stable == min(open_since.values())
    for first in range(0, stable, 5):
        for upto in (first + 1, first + 20, stable):
            found = {(one.producer_id, one.first_offset) for one in log.aborted_transactions(first, min(upto, stable))}
            expected = {(pid, begin) for pid, begin, end in aborted if end >= first and begin < min(upto, stable)}
            assert found >= expected, "every aborted transaction that overlaps"
            assert all((pid, begin) in {(a, b) for a, b, _ in aborted} for pid, begin in found)


def test_lookups_by_timestamp() -> None:
    log = open_log(SimulatedStorage(), SMALL)
    rng = random.Random(5)
    stamps: list[int] = []
    for _ in range(150):
        base = NOW + rng.randint(-500, 500) + 20 * len(stamps)
        append(log, 3, timestamp_ms=base)
        stamps += [base, base + 1, base + 2]
    for target in [min(stamps) - 1, *rng.sample(stamps, 60), max(stamps), max(stamps) + 1]:
        expected = next((offset for offset, stamp in enumerate(stamps) if stamp >= target), None)
        found = log.offset_for_timestamp(target)
        assert (None if found is None else found.offset) == expected
        if found is not None and expected is not None:
            assert found.timestamp_ms == stamps[expected]
    found = log.offset_for_timestamp(MAX_TIMESTAMP)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (stamps.index(max(stamps)), max(stamps))
    log.delete_records(300)
    found = log.offset_for_timestamp(min(stamps))
    assert found is not None
    assert found.offset == 300
    assert open_log(SimulatedStorage()).offset_for_timestamp(MAX_TIMESTAMP) is None


def test_segments_roll_by_size_age_full_index_and_relative_offset() -> None:
    storage = SimulatedStorage()
    log = open_log(storage, LogConfig(segment_bytes=1000))
    while len(log.segments) == 1:
        append(log)
    assert next(iter(log.segments)).size <= 1000
    log = PartitionLog.open(storage, "a", TP, TOPIC_ID, LogConfig(segment_ms=1000), now_ms=NOW)
    append(log, timestamp_ms=NOW)
    append(log, timestamp_ms=NOW + 1000)
    assert len(log.segments) == 1
    append(log, timestamp_ms=NOW + 1001)
    assert len(log.segments) == 2
    config = LogConfig(segment_index_bytes=36, index_interval_bytes=0)
    log = PartitionLog.open(storage, "b", TP, TOPIC_ID, config, now_ms=NOW)
    for n in range(20):
        append(log, timestamp_ms=NOW + n)
    assert len(log.segments) > 3
    for segment in log.segments:
        assert segment.offsets.size_bytes <= 36
        assert segment.times.size_bytes <= 36
    log = PartitionLog.open(storage, "c", TP, TOPIC_ID, LogConfig(), now_ms=NOW)
    for base in (0, 1 << 31, (1 << 31) + 1, 1 << 33):
        log.replay_append(base, encode_batch([(NOW, b"k", b"v", ())], base_offset=base), now_ms=NOW)
    assert [record.offset for record in read_all(log)] == [0, 1 << 31, (1 << 31) + 1, 1 << 33]
    assert len(log.segments) == 4
    with refused(ErrorCode.RECORD_LIST_TOO_LARGE):
        append(open_log(SimulatedStorage(), LogConfig(segment_bytes=100)), size=200)


def test_a_look_up_by_time_begins_at_or_before_the_first_record_of_that_time() -> None:
    """An index entry names the last offset of a batch, and that time may be its first record's."""
    log = open_log(SimulatedStorage(), LogConfig(index_interval_bytes=0))
    records = [(NOW, b"k", b"v", ())] * 3
    for first in (0, 3, 6):
        log.append(encode_batch([(NOW + first, *record[1:]) for record in records]), leader_epoch=0, now_ms=NOW + 10)
    times = log.segments.active.times
    assert [times.entry(number)[0] for number in range(len(times))] == [NOW + 3, NOW + 6]
    for timestamp_ms, first in ((NOW, 0), (NOW + 1, 3), (NOW + 3, 3), (NOW + 4, 6), (NOW + 6, 6)):
        assert times.offset_before(timestamp_ms) <= first
        found = log.offset_for_timestamp(timestamp_ms)
        assert found is not None
        assert found.offset == first


def test_P5_replaying_skips_what_is_there_and_checks_no_sequence() -> None:
    leader = open_log(SimulatedStorage(), SMALL)
    producer = ProducerIdAndEpoch(1, 5)
    written = []
    for n in range(60):
        written.append(append(leader, 2, producer=producer, sequence=2 * n, transactional=n % 3 == 0).appended[0])
        if n % 3 == 0:
            marker = leader.append_marker(producer, 0, n % 2 == 0, NOW, leader_epoch=4)
            written.append(marker.appended[0])
    follower = open_log(SimulatedStorage(), replace(SMALL, segment_bytes=5000))
    stream = [bytes(one) for one in written]
    for begin in range(0, len(stream), 7):
        chunk = b"".join(stream[max(0, begin - 3) : begin + 7])
        result = follower.replay_append(None, chunk, now_ms=NOW)
        assert b"".join(result.appended) == b"".join(stream[begin : begin + 7])
    assert follower.append(stream[-1], origin=AppendOrigin.REPLICATION, leader_epoch=0, now_ms=NOW).duplicate
    assert follower.log_end_offset == leader.log_end_offset
    assert follower.producer_state == leader.producer_state
    assert follower.aborted_transactions(0, 1000) == leader.aborted_transactions(0, 1000)
    assert follower.epochs.entries() == leader.epochs.entries()
    stale = encode_batch([(NOW, b"k", b"v", ())], base_offset=follower.log_end_offset, producer_id=1, producer_epoch=2)
    follower.replay_append(follower.log_end_offset, stale, now_ms=NOW)  # P4: the leader decided
    with refused(ErrorCode.CORRUPT_MESSAGE):
        follower.replay_append(5, stale, now_ms=NOW)


def test_R3_what_replaced_a_cut_end_is_read_where_it_is_now() -> None:
    """A read remembers where the next one begins, for all who read the same records."""
    log = open_log(SimulatedStorage())
    for _ in range(3):
        append(log)
    size = log.size_bytes // 3
    for _ in range(2):
        assert log.read(0, size, 3).next_offset == 1
        assert log.read(1, size, 3).first_offset == 1
    log.truncate_to(0, now_ms=NOW)
    append(log, 5)
    assert log.read(1, 1 << 20, 5).first_offset == 0
    assert [record.offset for record in read_all(log, 1)] == [1, 2, 3, 4]


def test_R6_truncation_forgets_what_was_never_replicated() -> None:
    storage = SimulatedStorage()
    log = open_log(storage, SMALL)
    states = {}
    producer = ProducerIdAndEpoch(1, 0)
    for n in range(80):
        states[log.log_end_offset] = repr(log.producer_state)
        append(log, producer=producer, sequence=n, transactional=n % 10 < 5)
        if n % 10 == 4:
            states[log.log_end_offset] = repr(log.producer_state)
            log.append_marker(producer, 0, n % 20 == 4, NOW, leader_epoch=n // 20)
    aborted = log.aborted_transactions(0, 1000)
    data_offsets = [record.offset for record in read_all(log)]
    for offset in sorted(states, reverse=True):
        log.truncate_to(offset, now_ms=NOW)
        assert log.log_end_offset == offset
        # Only the last batches that the snapshot's replay saw need be the same as then.
        assert repr(log.producer_state) == states[offset]
        assert [record.offset for record in read_all(log)] == [one for one in data_offsets if one < offset]
        assert log.aborted_transactions(0, 1000) == [one for one in aborted if one.last_offset < offset]
        assert all(start < offset for _, start in log.epochs.entries())
        snapshots = [name for name in storage.list_folder(FOLDER) if name.endswith(".snapshot")]
        assert all(int(name.partition(".")[0]) <= offset for name in snapshots)
    assert log.log_end_offset == 0
    assert log.size_bytes == 0
    append(log, producer=producer, sequence=17)
    log.close()
    assert open_log(storage, SMALL, clean=True).log_end_offset == 1


def test_retention_by_age_size_and_start_never_beyond_the_high_watermark() -> None:
    storage = SimulatedStorage()
    log = open_log(storage, replace(SMALL, retention_ms=1000, file_delete_delay_ms=500))
    for n in range(100):
        append(log, timestamp_ms=NOW + n)
    bases = list(log.segments.base_offsets)
    assert log.delete_old_segments(NOW + 1000, log.log_end_offset) == 0
    assert log.delete_old_segments(NOW + 5000, bases[2] + 1) == 2
    assert log.log_start_offset == bases[2]
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.read(0, 1, 100)
    names = storage.list_folder(FOLDER)
    assert sum(name.endswith(".deleted") for name in names) >= 6
    log.delete_old_segments(NOW + 5499, bases[2] + 1)
    assert storage.list_folder(FOLDER) == names
    log.delete_old_segments(NOW + 5500, bases[2] + 1)
    assert not any(name.endswith(".deleted") for name in storage.list_folder(FOLDER))
    gone = log.delete_old_segments(NOW + 9000, log.log_end_offset)
    assert gone == len(bases) - 3, "the active segment is not on the disk yet"
    log.flush()
    assert log.delete_old_segments(NOW + 9000, log.log_end_offset) == 1
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (100, 100, 0)
    assert append(log).base_offset == 100

    log = PartitionLog.open(
        storage, "s", TP, TOPIC_ID, replace(SMALL, retention_ms=-1, retention_bytes=4000), now_ms=NOW
    )
    for _ in range(100):
        append(log)
    log.delete_old_segments(NOW, log.log_end_offset)
    assert 4000 <= log.size_bytes < 6000
    start = log.segments.base_offsets[1] + 1
    log.delete_records(start)
    count = len(log.segments)
    assert log.delete_old_segments(NOW, log.log_end_offset) == 1
    assert (len(log.segments), log.log_start_offset) == (count - 1, start)
    kept = PartitionLog.open(
        storage, "k", TP, TOPIC_ID, replace(SMALL, cleanup_policy=frozenset({CleanupPolicy.COMPACT}), retention_ms=0),
        now_ms=NOW,
    )  # fmt: skip
    for _ in range(100):
        append(kept)
    assert kept.delete_old_segments(NOW * 2, kept.log_end_offset) == 0


def test_a_read_outlives_the_deletion_of_its_segment() -> None:
    log = open_log(SimulatedStorage(), replace(SMALL, retention_ms=1))
    for _ in range(100):
        append(log)
    found = log.read(0, 500, 100)
    log.delete_old_segments(NOW + 100_000_000, log.log_end_offset)
    log.delete_old_segments(NOW + 200_000_000, log.log_end_offset)
    assert read_header(found.read()).base_offset == 0


def test_a_full_disk_refuses_and_keeps_everything() -> None:
    storage = SimulatedStorage(seed=4)
    log = open_log(storage, SMALL)
    for _ in range(30):
        append(log)
    state = repr(log.producer_state)
    for free in (0, 1, 30, 60):
        storage.set_free_bytes(free)
        for _ in range(3):
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                append(log, producer=ProducerIdAndEpoch(1, 0), sequence=0, size=200)
    assert (log.log_end_offset, repr(log.producer_state), log.offline_error) == (30, state, None)
    storage.set_free_bytes(None)
    append(log, producer=ProducerIdAndEpoch(1, 0), sequence=0)
    assert [record.offset for record in read_all(log)] == list(range(31))
    log.close()
    assert [record.offset for record in read_all(open_log(storage, SMALL, clean=True))] == list(range(31))


def test_a_disk_that_cannot_even_cut_takes_the_log_offline() -> None:
    storage = SimulatedStorage(seed=4)
    log = open_log(storage)
    append(log)
    broken = OSError(errno.EIO, "input/output error")
    storage.fail_next("append", broken, path_part=".log")
    storage.fail_next("truncate", broken, path_part=".log")
    with pytest.raises(SemelError, match="offline"):
        append(log)
    assert log.offline_error is not None
    for act in (lambda: append(log), log.flush, lambda: log.truncate_to(0, now_ms=NOW)):
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            act()
    assert len(read_all(log)) == 1, "what was acknowledged can still be read"
    log.close()
    assert open_log(storage).log_end_offset == 1


@pytest.mark.parametrize("replicated", [False, True])
def test_L3_an_abort_that_cannot_be_indexed_takes_the_log_offline(replicated: bool) -> None:
    """Without its entry readers of committed records would see the aborted ones."""
    producer = ProducerIdAndEpoch(1, 0)
    leader = open_log(SimulatedStorage())
    written = [append(leader, producer=producer, sequence=0, transactional=True).appended[0]]
    written += leader.append_marker(producer, 0, False, NOW, leader_epoch=0).appended
    storage = SimulatedStorage()
    log = open_log(storage)
    storage.fail_next("write_at", OSError(errno.EIO, "input/output error"), path_part=".txnindex")
    if replicated:
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            log.replay_append(None, b"".join(bytes(one) for one in written), now_ms=NOW)
    else:
        append(log, producer=producer, sequence=0, transactional=True)
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            log.append_marker(producer, 0, False, NOW, leader_epoch=0)
    assert log.offline_error is not None
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        append(log)
    log.close()
    again = open_log(storage, recovery_point=0)
    assert [one.producer_id for one in again.aborted_transactions(0, 2)] == [1], "recovery writes the entry"


def test_a_failed_sync_takes_the_log_offline() -> None:
    storage = SimulatedStorage()
    log = open_log(storage)
    append(log)
    storage.fail_next("sync", OSError(errno.EIO, "input/output error"), path_part=".log")
    with pytest.raises(SemelError, match="offline"):
        log.flush()
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        append(log)


def test_open_files_are_bounded() -> None:
    files = OpenFiles(8)
    storage = SimulatedStorage()
    logs = [
        PartitionLog.open(storage, f"t-{n}", TopicPartition("t", n), TOPIC_ID, SMALL, now_ms=NOW, files=files)
        for n in range(10)
    ]
    for n in range(300):
        append(logs[n % 10], timestamp_ms=NOW + n)
        assert len(files) <= 8
    for log in logs:
        assert [record.offset for record in read_all(log)] == list(range(30))
        log.flush()
        log.close()
    assert len(files) <= 8


def test_epochs_are_found_and_kept() -> None:
    storage = SimulatedStorage()
    log = open_log(storage)
    for epoch in (1, 1, 3, 4):
        log.append(batch(), leader_epoch=epoch, now_ms=NOW)
    assert [log.end_offset_for_epoch(epoch) for epoch in (0, 1, 2, 3, 4, 5)] == [
        (0, 0), (1, 2), (1, 2), (3, 3), (4, 4), None,
    ]  # fmt: skip
    log.close()
    log = open_log(storage, clean=True)
    assert log.epochs.entries() == [(1, 0), (3, 2), (4, 3)]
    log.delete_records(3)
    assert log.epochs.entries() == [(4, 3)]
    assert storage.open(f"{FOLDER}/leader-epoch-checkpoint").read_at(99, 0) == b"0\n3\n1 0\n3 2\n4 3\n"


@pytest.mark.parametrize("version", list(TransactionVersion))
def test_P10_through_the_log(version: TransactionVersion) -> None:
    log = open_log(SimulatedStorage())
    append(log, producer=ProducerIdAndEpoch(1, 0), sequence=0, transactional=True)
    log.append_marker(ProducerIdAndEpoch(1, 1), 0, True, NOW, leader_epoch=0, version=version)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        append(log, producer=ProducerIdAndEpoch(1, 0), sequence=1, transactional=True)
    append(log, producer=ProducerIdAndEpoch(1, 1), sequence=0, transactional=True)
