"""What batches that lie one behind the other have in common: where a run of them ends, what an index notes of it."""

from __future__ import annotations

import pytest

from semel.broker.log.batch_runs import (
    first_beyond_epoch,
    first_overlapping,
    first_reaching,
    following,
    largest_timestamp,
    stretch,
)
from semel.broker.log.batch_scan import scan_runs
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import BatchHeader, leading_batches, set_base_offset, validate_batches
from semel.protocol.control_records import ControlType, encode_control_batch
from semel.protocol.corruption import CorruptBatchError
from semel.runtime.simulated_storage import SimulatedStorage

MARKER = -1


def batches(*where: tuple[int, int], epochs: tuple[int, ...] = (), times: tuple[int, ...] = ()) -> bytearray:
    """Return batches with these base offsets and counts of records; MARKER instead of a count makes a marker."""
    data = bytearray()
    for number, (offset, count) in enumerate(where):
        if count == MARKER:
            one = bytearray(
                encode_control_batch(
                    ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=5
                )
            )
        else:
            time = times[number] if times else 1000
            one = bytearray(encode_batch([(time, b"k", b"v", ())] * count))
        set_base_offset(one, 0, offset, epochs[number] if epochs else 0)
        data += one
    return data


def headers(*where: tuple[int, int], epochs: tuple[int, ...] = (), times: tuple[int, ...] = ()) -> list[BatchHeader]:
    return validate_batches(batches(*where, epochs=epochs, times=times), max_batch_bytes=1 << 20)


@pytest.mark.parametrize(
    ("where", "begin", "end", "upto", "count"),
    [
        ([(0, 2), (2, 1), (3, 1)], 0, 0, 100, 3),
        ([(0, 2), (2, 1), (3, 1)], 1, 2, 100, 2),
        ([(0, 2), (9, 1), (10, 1)], 0, 0, 100, 3),  # compaction leaves gaps
        ([(5, 2), (7, 1)], 0, 6, 100, 0),  # begins before the end
        ([(0, 2), (1, 1), (3, 1)], 0, 0, 100, 1),  # goes back
        ([(0, 2), (2, MARKER), (3, 1)], 0, 0, 100, 1),
        ([(0, MARKER), (1, 1)], 0, 0, 100, 0),
        ([(0, 2), (2, 3), (5, 1)], 0, 0, 5, 2),
        ([(0, 2), (2, 3), (5, 1)], 0, 0, 4, 1),  # ends behind the limit
        ([(0, 2)], 1, 2, 100, 0),
    ],
)
def test_a_run_ends_where_a_batch_is_to_be_judged_by_itself(
    where: list[tuple[int, int]], begin: int, end: int, upto: int, count: int
) -> None:
    assert following(headers(*where), begin, end, upto) == count


def test_batches_that_are_known_and_batches_that_overlap_are_found() -> None:
    some = headers((0, 2), (2, 3), (7, 1))
    assert [first_reaching(some, offset) for offset in (0, 1, 2, 4, 5, 7, 8)] == [0, 0, 1, 1, 2, 2, 3]
    assert first_overlapping(some, 0) == 3
    assert first_overlapping(some, 1) == 0
    assert first_overlapping(headers((0, 2), (2, 3), (4, 1)), 0) == 2


def test_a_leader_epoch_ends_with_another_one_and_with_an_offset_before_its_beginning() -> None:
    some = headers((0, 1), (1, 1), (2, 1), epochs=(3, 3, 4))
    assert first_beyond_epoch(some, 0, 3, 0) == 2
    assert first_beyond_epoch(some, 2, 4, 2) == 3
    assert first_beyond_epoch(some, 0, 3, 1) == 0
    assert first_beyond_epoch(some, 0, 4, 0) == 0


def test_an_index_notes_batches_together_up_to_the_one_that_needs_an_entry() -> None:
    some = headers((0, 1), (1, 1), (2, 1), times=(1000, 3000, 2000))
    size = some[0].size_bytes
    assert stretch(some, 0, -1) == (1, size, 1000, 0)
    assert stretch(some, 0, size - 1) == (1, size, 1000, 0)
    assert stretch(some, 0, size) == (2, 2 * size, 3000, 1)
    assert stretch(some, 0, 100 * size) == (3, 3 * size, 3000, 1)
    assert stretch(some, 2, 100 * size) == (1, size, 2000, 2)
    assert largest_timestamp(some) == 3000
    same = headers((0, 1), (1, 1), times=(1000, 1000))
    assert stretch(same, 0, 100 * size) == (2, 2 * size, 1000, 0), "the first that has it"


def test_D2_right_batches_end_at_the_first_that_is_not() -> None:
    data = batches((0, 1), (1, 1), (2, 1))
    size = len(data) // 3
    assert [one.base_offset for one in leading_batches(data)] == [0, 1, 2]
    assert [one.base_offset for one in leading_batches(data, size)] == [1, 2]
    assert leading_batches(data, len(data)) == []
    assert [one.base_offset for one in leading_batches(data[:-1])] == [0, 1]
    data[2 * size - 1] ^= 1
    assert [one.base_offset for one in leading_batches(data)] == [0]
    assert leading_batches(data, size) == []


@pytest.mark.parametrize("chunk_bytes", [61, 100, 200, 1 << 20])
def test_D2_a_file_is_read_in_runs_and_a_broken_batch_comes_alone(chunk_bytes: int) -> None:
    data = batches((0, 1), (1, 50), (51, 1), (52, 1), (53, 1))
    expected = validate_batches(bytes(data), max_batch_bytes=1 << 20)
    broken = expected[3]
    data[broken.position + broken.size_bytes - 1] ^= 1
    file = SimulatedStorage().open("log", create=True)
    file.append([data])
    found = []
    for position, run, chunk, are_right in scan_runs(file, 0, len(data), chunk_bytes=chunk_bytes):
        assert are_right or len(run) == 1
        for header in run:
            batch = chunk[header.position : header.position + header.size_bytes]
            assert batch == data[position + header.position :][: len(batch)]
            found.append((position + header.position, header.base_offset, are_right))
    assert found == [(one.position, one.base_offset, one.position != broken.position) for one in expected]
    with pytest.raises(CorruptBatchError, match="reaches beyond"):
        list(scan_runs(file, 0, len(data) - 1, chunk_bytes=chunk_bytes))
