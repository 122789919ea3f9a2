"""Who reads on: a read remembers where the next one begins. That never shows, whatever happens to the log between."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from semel.broker.log.config import AppendOrigin, LogConfig
from semel.broker.log.index_search import last_at_most
from semel.broker.log.offset_index import OffsetIndex
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.partition_log import PartitionLog
from semel.broker.log.time_index import TimeIndex
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import iter_batches, set_base_offset
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicPartition, new_topic_id
from semel.runtime.simulated_storage import SimulatedStorage

TP = TopicPartition("t", 0)
NOW = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=4000, index_interval_bytes=300)


def open_log(config: LogConfig = SMALL) -> PartitionLog:
    return PartitionLog.open(SimulatedStorage(), "data/t-0", TP, new_topic_id(), config, now_ms=NOW)


class Model:
    """The batches that a log has: (base offset, last offset, bytes)."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.batches: list[tuple[int, int, bytes]] = []

    def append(self, count: int, size: int, gap: int = 0) -> None:
        """Append as a follower does, with offsets that may have a gap before them, as compaction leaves it."""
        data = bytearray(encode_batch([(NOW, None, b"v" * size, ())] * count))
        base = self.log.log_end_offset + gap
        set_base_offset(data, 0, base, 0)
        self.log.append(data, origin=AppendOrigin.REPLICATION, leader_epoch=0, now_ms=NOW)
        self.batches.append((base, base + count - 1, bytes(data)))

    def truncate(self, offset: int) -> None:
        self.log.truncate_to(offset, now_ms=NOW)
        self.batches = [one for one in self.batches if one[1] < offset]

    def check_read(self, offset: int, max_bytes: int, upto: int, *, min_one_batch: bool) -> int:
        """Read, and check that it is what the batches say. Returns the offset to read from next."""
        found = self.log.read(offset, max_bytes, upto, min_one_batch)
        number = next((n for n, one in enumerate(self.batches) if one[1] >= offset), len(self.batches))
        expected: list[tuple[int, int, bytes]] = []
        bases = self.log.segments.base_offsets
        for one in self.batches[number:]:
            size = sum(len(each[2]) for each in expected) + len(one[2])
            is_too_large = size > max_bytes and not (min_one_batch and not expected)
            is_next_segment = bool(expected) and any(expected[0][0] < base <= one[0] for base in bases)
            if one[1] >= upto or is_too_large or is_next_segment:
                break
            expected.append(one)
        assert found.read() == b"".join(one[2] for one in expected), (offset, max_bytes, upto)
        if not expected:
            assert (found.records, found.next_offset) == (None, offset)
            return offset
        assert found.first_offset <= max(offset, expected[0][0])
        behind = self.batches[number + len(expected) :]
        assert expected[-1][1] < found.next_offset <= (behind[0][0] if behind else self.log.log_end_offset)
        return found.next_offset


@pytest.mark.parametrize("seed", range(40))
def test_L2_R3_D6_what_is_read_is_what_the_log_has_wherever_the_read_before_it_ended(seed: int) -> None:
    rng = random.Random(seed)
    log = open_log(replace(SMALL, segment_bytes=rng.choice([1500, 4000, 100_000])))
    model = Model(log)
    readers = [0] * 5
    for _ in range(300):
        what = rng.random()
        if what < 0.35 or not model.batches:
            model.append(rng.randint(1, 5), rng.choice([1, 50, 300, 900]), gap=rng.choice([0, 0, 0, 0, 3]))
        elif what < 0.4:
            ends = [last + 1 for _, last, _ in model.batches[-8:] if last + 1 >= log.log_start_offset]
            model.truncate(rng.choice([*ends, log.log_end_offset]))
        elif what < 0.42:
            log.delete_records(rng.randint(log.log_start_offset, log.log_end_offset))
        elif what < 0.44:
            log.flush()
            log.delete_old_segments(NOW, log.log_end_offset)
            model.batches = [one for one in model.batches if one[1] >= log.segments.first.base_offset]
        elif what < 0.46:
            log.release_files()
        else:
            number = rng.randrange(len(readers))
            offset = min(max(readers[number], log.log_start_offset), log.log_end_offset)
            upto = log.log_end_offset if rng.random() < 0.5 else rng.randint(log.log_start_offset, log.log_end_offset)
            max_bytes = rng.choice([1, 400, 1000, 3000, 1 << 20])
            readers[number] = model.check_read(offset, max_bytes, upto, min_one_batch=rng.random() < 0.8)
            if rng.random() < 0.1:
                readers[number] = rng.randint(log.log_start_offset, log.log_end_offset)


def test_who_has_read_a_whole_segment_reads_on_in_the_next() -> None:
    log = open_log()
    model = Model(log)
    model.append(1, 3000)
    assert log.read(0, 1 << 20, 1).next_offset == 1
    model.append(1, 3000)
    assert log.segments.base_offsets == [0, 1]
    assert log.read(1, 1 << 20, 2).next_offset == 2


def test_who_reads_at_the_end_reads_on_where_more_is_appended() -> None:
    log = open_log()
    model = Model(log)
    for n in range(10):
        model.append(1, 10)
        found = log.read(n, 1 << 20, n + 1)
        assert (found.first_offset, found.next_offset, found.size) == (n, n + 1, len(model.batches[n][2]))


def test_D6_who_reads_on_where_records_were_deleted_meanwhile_is_told_so() -> None:
    log = open_log()
    model = Model(log)
    for _ in range(20):
        model.append(1, 500)
    size = len(model.batches[0][2])
    assert log.read(0, 2 * size, 20).next_offset == 2
    log.delete_records(3)
    with pytest.raises(SemelError, match=ErrorCode.OFFSET_OUT_OF_RANGE.name):
        log.read(2, size, 20)
    assert log.read(3, size, 20).read() == model.batches[3][2]
    log.flush()
    log.delete_records(15)
    assert log.delete_old_segments(NOW, 20) > 0
    with pytest.raises(SemelError, match=ErrorCode.OFFSET_OUT_OF_RANGE.name):
        log.read(4, size, 20)
    assert log.read(15, size, 20).read() == model.batches[15][2]


def test_L2_a_batch_that_reaches_beyond_what_may_be_seen_is_not_read() -> None:
    """Whether the end that may be seen, or what fits, comes first."""
    log = open_log(LogConfig())
    model = Model(log)
    for _ in range(6):
        model.append(3, 100)
    size = len(model.batches[0][2])
    for begin in (0, 3, 9):
        for upto in range(begin, 19):
            for max_bytes in (1, size, 2 * size, 100 * size):
                for min_one_batch in (True, False):
                    model.check_read(begin, max_bytes, upto, min_one_batch=min_one_batch)


@pytest.mark.parametrize("written", [0, 1, 250, 511, 512, 513, 700])
def test_the_last_entry_that_is_not_beyond_is_found_in_the_file_and_in_memory(written: int) -> None:
    storage = SimulatedStorage()
    storage.make_folder("data")
    offsets = OffsetIndex(storage, "data/o", 1000, OpenFiles(), empty=True)
    times = TimeIndex(storage, "data/t", 1000, OpenFiles(), empty=True)
    for n in range(700):
        if n == written:
            offsets.write_pending()
            times.write_pending()
        offsets.add(1000 + 10 * n, 100 * n)
        times.add(NOW + 10 * n, 1000 + 10 * n)
    for n in (0, 1, 249, 250, 255, 256, 511, 512, 698, 699):
        for beyond in (0, 1, 9):
            assert offsets.floor(0, 10 * n + beyond) == (n, 10 * n, 100 * n)
            assert offsets.floor(1, 100 * n + beyond) == (n, 10 * n, 100 * n)
            assert times.floor(0, NOW + 10 * n + beyond) == (n, NOW + 10 * n, 10 * n)
    assert offsets.floor(0, -1)[0] == times.floor(0, NOW - 1)[0] == -1
    assert (offsets.place_for(999), offsets.position_before(-1)) == ((1000, 0), 0)
    assert times.offset_before(-(1 << 63)) == times.offset_before(NOW) == 1000
    offsets.truncate_to(1000 + 10 * 255)
    assert offsets.last() == (1000 + 10 * 254, 100 * 254)
    assert offsets.place_for(1 << 40) == (1000 + 10 * 254, 100 * 254)


def test_an_empty_index_has_no_entry() -> None:
    storage = SimulatedStorage()
    storage.make_folder("data")
    assert OffsetIndex(storage, "data/o", 7, OpenFiles()).floor(0, 5) == (-1, 0, 0)
    assert OffsetIndex(storage, "data/p", 7, OpenFiles(), empty=True).place_for(9) == (7, 0)


def test_entries_that_are_not_there_are_not_searched() -> None:
    with pytest.raises(ValueError, match="3 entries of 8 bytes are not in 16 bytes"):
        last_at_most(memoryview(bytes(16)), 3, 8, 4, 0, 1)


def test_numbers_in_an_index_have_signs() -> None:
    entries = memoryview(b"".join(n.to_bytes(8, "big", signed=True) + bytes(4) for n in (-(1 << 63), -1, 0, 1 << 40)))
    assert [last_at_most(entries, 4, 12, 8, 0, n)[1] for n in (-2, -1, 5, (1 << 62))] == [-(1 << 63), -1, 0, 1 << 40]


def test_the_batches_read_are_whole_ones() -> None:
    log = open_log()
    model = Model(log)
    for _ in range(5):
        model.append(2, 20)
    found = log.read(0, 1 << 20, 10)
    assert [header.base_offset for header in iter_batches(found.read())] == [0, 2, 4, 6, 8]


def test_R3_a_cut_in_a_gap_of_compaction_leaves_nothing_to_read_there_until_more_is_appended() -> None:
    log = open_log()
    model = Model(log)
    model.append(1, 10)
    model.append(1, 10, gap=4)
    model.truncate(3)
    assert log.log_end_offset == 3
    for offset in (1, 2):
        assert log.read(offset, 1000, 3).size == 0
        assert log.bytes_from(offset, 1000) == b""
    assert log.read(0, 1000, 3).next_offset == 3
    model.append(2, 10)
    for offset in (1, 2, 3):
        assert log.read(offset, 1000, 5).first_offset == 3


def test_R3_a_cut_in_a_gap_behind_a_roll_leaves_nothing_to_read_there() -> None:
    log = open_log()
    model = Model(log)
    model.append(1, 10)
    model.append(1, 10, gap=4)
    log.roll(NOW)
    model.truncate(3)
    log.roll(NOW)
    assert log.read(2, 1000, 3).size == 0
