"""What a reader is given of fetched bytes: rule L3 on the client's side."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable

import pytest
from lying_batches import LIES

from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import read_header, set_base_offset
from semel.protocol.compression import Compression
from semel.protocol.control_records import ControlType, encode_control_batch
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.sdk.consumer.fetched import FetchedChunk, UnreadableBatchError, whole_batches

TP = TopicPartition("orders", 3)


class Log:
    """Builds a partition's bytes, offset by offset."""

    def __init__(self, start: int = 0) -> None:
        self.data = bytearray()
        self.end = start

    def put(self, *values: str, producer_id: int = -1) -> Log:
        epoch = 0 if producer_id >= 0 else -1
        sequence = 0 if producer_id >= 0 else -1
        batch = bytearray(
            encode_batch(
                [(1, None, value.encode(), ()) for value in values],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=producer_id >= 0,
            )
        )
        return self._append(batch, len(values))

    def end_transaction(self, producer_id: int, *, commit: bool) -> Log:
        marker = ControlType.COMMIT if commit else ControlType.ABORT
        batch = encode_control_batch(
            marker, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1
        )
        return self._append(bytearray(batch), 1)

    def _append(self, batch: bytearray, count: int) -> Log:
        set_base_offset(batch, 0, self.end, 0)
        self.data += batch
        self.end += count
        return self

    def put_raw(self, batch: bytearray) -> Log:
        """Put a batch as it is, with as many offsets as its header says."""
        return self._append(batch, read_header(batch).last_offset_delta + 1)

    def chunk(
        self,
        aborted: list[tuple[int, int]] | None,
        from_offset: int = 0,
        on_unreadable: Callable[[UnreadableBatchError], None] | None = None,
    ) -> FetchedChunk:
        return FetchedChunk(TP, memoryview(bytes(self.data)), from_offset, aborted, on_unreadable)


def values(chunk: FetchedChunk, max_records: int = 1000) -> list[str]:
    found = []
    while records := chunk.take(max_records):
        found += [(record.value or b"").decode() for record in records]
    return found


def interleaved() -> Log:
    """Producer 7 aborts, commits; producer 8 commits around it; 9 is plain."""
    return (
        Log()
        .put("a7", producer_id=7)
        .put("c8", producer_id=8)
        .put("plain")
        .put("b7", producer_id=7)
        .end_transaction(7, commit=False)
        .put("d7", producer_id=7)
        .end_transaction(8, commit=True)
        .end_transaction(7, commit=True)
        .put("e7", "f7", producer_id=7)
        .end_transaction(7, commit=False)
    )


ABORTED = [(7, 0), (7, 8)]


@pytest.mark.parametrize("aborted", list(itertools.permutations(ABORTED)))
def test_L3_aborted_records_and_markers_are_left_out_in_any_order_of_the_list(
    aborted: tuple[tuple[int, int], ...],
) -> None:
    assert values(interleaved().chunk(list(aborted))) == ["c8", "plain", "d7"]


def test_L3_a_read_uncommitted_reader_sees_all_but_markers() -> None:
    assert values(interleaved().chunk(None)) == ["a7", "c8", "plain", "b7", "d7", "e7", "f7"]


def test_L3_a_transaction_that_was_aborted_in_an_earlier_fetch_is_known_from_the_list() -> None:
    log = Log(100).put("tail7", producer_id=7).end_transaction(7, commit=False).put("next7", producer_id=7)
    assert values(log.chunk([(7, 40)], from_offset=100)) == ["next7"]


def test_the_position_moves_past_what_is_not_for_readers() -> None:
    log = interleaved()
    chunk = log.chunk(ABORTED)
    values(chunk)
    assert chunk.next_offset == log.end


def test_records_before_the_offset_asked_for_are_left_out() -> None:
    chunk = Log(10).put("a", "b", "c").chunk([], from_offset=11)
    assert values(chunk) == ["b", "c"]
    assert chunk.next_offset == 13


@pytest.mark.parametrize("max_records", [1, 2, 3, 7])
def test_taking_bit_by_bit_gives_the_same_and_the_right_positions(max_records: int) -> None:
    chunk = Log().put("a", "b", "c").put("d").put("e", "f").chunk([])
    found = []
    while records := chunk.take(max_records):
        assert len(records) <= max_records
        found += records
        assert chunk.next_offset == records[-1].offset + 1
    assert [record.value for record in found] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert [(record.topic, record.partition) for record in found] == [TP] * 6


def test_a_batch_that_is_cut_short_is_not_read() -> None:
    log = Log().put("a").put("b")
    data = memoryview(bytes(log.data[:-1]))
    end, next_offset = whole_batches(data)
    assert (end, next_offset) == (len(Log().put("a").data), 1)
    assert values(FetchedChunk(TP, data, 0, [])) == ["a"]


@pytest.mark.parametrize("data", [b"", b"\x00" * 60, b"\x00" * 200, b"\xff" * 200])
def test_bytes_that_are_no_batches_have_no_whole_batch(data: bytes) -> None:
    assert whole_batches(memoryview(data)) == (0, -1)


UNREADABLE = sorted(
    set(LIES) - {"offset delta that begins at one", "count of one for 40 offsets", "time of the year 300,000"}
)
"""What an older node took and a reader can't read. The others are read, or are errors of columns alone."""


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD], ids=lambda codec: codec.name)
@pytest.mark.parametrize("lie", UNREADABLE)
def test_S4_an_unreadable_batch_of_an_older_log_is_named_and_can_be_passed_over(lie: str, codec: Compression) -> None:
    batch = LIES[lie].build(codec)
    offsets = read_header(batch).last_offset_delta + 1
    log = Log(start=5).put("a", "b").put_raw(batch).put("c")
    chunk = log.chunk(None, 5)
    assert [record.offset for record in chunk.take(10)] == [5, 6]
    for _ in range(2):
        with pytest.raises(
            UnreadableBatchError, match=f"{TP} can't be read at offset 7: the batch of offsets 7 to "
        ) as at:
            chunk.take(10)
        assert (at.value.tp, at.value.first_offset, at.value.last_offset) == (TP, 7, 6 + offsets)
        assert at.value.code is ErrorCode.CORRUPT_MESSAGE
        assert f"or to {7 + offsets} to leave it out" in str(at.value)
        assert chunk.next_offset == 7
    passed: list[UnreadableBatchError] = []
    for aborted in (None, []):
        assert values(log.chunk(aborted, 5, passed.append)) == ["a", "b", "c"]
    assert [(one.first_offset, one.last_offset) for one in passed] == [(7, 6 + offsets)] * 2


def test_S4_passing_over_the_last_batch_moves_past_it() -> None:
    passed: list[UnreadableBatchError] = []
    chunk = Log().put("a").put_raw(LIES["random bytes"].build(Compression.NONE)).chunk([], 0, passed.append)
    assert values(chunk) == ["a"]
    assert (chunk.next_offset, chunk.is_used_up, len(passed)) == (2, True, 1)
    again = pickle.loads(pickle.dumps(passed[0]))
    assert (again.tp, again.first_offset, again.last_offset, str(again)) == (TP, 1, 1, str(passed[0]))


def test_S4_a_wrong_checksum_is_passed_over_too() -> None:
    log = Log().put("a").put("b").put("c")
    log.data[log.data.find(b"b")] ^= 1
    passed: list[UnreadableBatchError] = []
    assert values(log.chunk([], 0, passed.append)) == ["a", "c"]
    assert "CRC" in str(passed[0])
