"""Rows to partitions: where they go, in which order, and what they take in memory while they wait."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from semel.protocol.batch_header import read_header
from semel.protocol.compression import Compression
from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import decode_records
from semel.sdk.producer.partitioner import partition_for_key
from semel.spark.arrow_rows import RowSorter, record_batches


def batch(**columns: Any) -> pa.RecordBatch:
    types = {"partition": pa.int32(), "key": pa.binary(), "value": pa.binary(), "topic": pa.string()}
    return pa.RecordBatch.from_pydict({name: pa.array(column, types[name]) for name, column in columns.items()})


def sorted_rows(sorter: RowSorter) -> dict[str, list[bytes]]:
    return {str(TopicPartition(*tp)): rows.column("value").to_pylist() for tp, rows in sorter.take_all()}


def test_rows_go_by_partition_then_key_then_in_turns_and_keep_their_order() -> None:
    sorter = RowSorter("t", lambda topic: 4, first_partition=0, room_bytes=1 << 20)
    keys = [b"a", b"b", None, b"", b"a"]
    sorter.add(batch(key=keys, value=[b"1", b"2", b"3", b"4", b"5"], partition=[3, None, None, None, None]))
    expected: dict[str, list[bytes]] = {"t-3": [b"1"]}
    for key, value in zip(keys[1:], [b"2", b"3", b"4", b"5"], strict=True):
        number = 1 if key is None else partition_for_key(key, 4)
        expected.setdefault(f"t-{number}", []).append(value)
    assert sorted_rows(sorter) == expected
    for turn in (2, 3, 0, 1):  # a batch without keys goes to one partition, the next to another
        sorter.add(batch(value=[b"x", b"y"]))
        assert sorted_rows(sorter) == {f"t-{turn}": [b"x", b"y"]}


def test_rows_of_a_slice_of_a_batch_go_where_they_belong() -> None:
    keys = [str(number).encode() for number in range(100)]
    whole = batch(key=keys, value=keys)
    sorter = RowSorter("t", lambda topic: 5, first_partition=0, room_bytes=1 << 20)
    sorter.add(whole.slice(13, 50))
    found = sorted_rows(sorter)
    assert sorted(key for rows in found.values() for key in rows) == sorted(keys[13:63])
    assert all(f"t-{partition_for_key(key, 5)}" == tp for tp, rows in found.items() for key in rows)


def test_rows_go_by_a_column_of_topics() -> None:
    sorter = RowSorter("", {"a": 1, "b": 2}.__getitem__, first_partition=0, room_bytes=1 << 20)
    sorter.add(batch(topic=["a", "b", "a"], value=[b"1", b"2", b"3"], partition=[0, 1, 0]))
    assert sorted_rows(sorter) == {"a-0": [b"1", b"3"], "b-1": [b"2"]}
    with pytest.raises(UsageError, match="1 rows have null in the column 'topic'"):
        sorter.add(batch(topic=["a", None], value=[b"1", b"2"]))


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_row_that_names_a_partition_that_is_not_there_is_refused(wrong: int) -> None:
    sorter = RowSorter("t", lambda topic: 2, first_partition=0, room_bytes=1 << 20)
    with pytest.raises(UsageError, match=f"partition {wrong} of topic 't', which has 2"):
        sorter.add(batch(value=[b"1", b"2"], partition=[1, wrong]))


def held_at_most(sorter: RowSorter, batches: Iterator[pa.RecordBatch], *, batch_bytes: int) -> tuple[int, int]:
    """Return the most that Arrow held while rows waited, in bytes, and how many tables were handed on."""
    before, most, tables, rows_in, rows_out = pa.total_allocated_bytes(), 0, 0, 0, 0
    for each in batches:
        rows_in += each.num_rows
        sorter.add(each)
        del each
        for _, table in sorter.take_full(batch_bytes):
            most = max(most, pa.total_allocated_bytes() - before)
            tables, rows_out = tables + 1, rows_out + table.num_rows
            del table
        most = max(most, pa.total_allocated_bytes() - before)
    for _, table in sorter.take_all():
        tables, rows_out = tables + 1, rows_out + table.num_rows
        del table
    assert rows_out == rows_in
    assert pa.total_allocated_bytes() <= before
    return most, tables


def made_for(count: int, rows: int, size: int, partition_of: Callable[[int], int]) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        yield batch(
            value=[bytes(size)] * rows, partition=list(map(partition_of, range(number * rows, (number + 1) * rows)))
        )


def test_a_row_that_waits_for_its_partition_does_not_keep_a_whole_batch_in_memory() -> None:
    sorter = RowSorter("t", lambda topic: 2, first_partition=0, room_bytes=8 << 20)
    # 100 MB, of which 100 KB go to partition 1: less than a batch of it.
    made = made_for(100, 1000, 1000, lambda row: int(row % 1000 == 0))
    most, tables = held_at_most(sorter, made, batch_bytes=512 << 10)
    assert most < 13 << 20
    assert tables < 110  # partition 1 is handed on once, at the end


@pytest.mark.parametrize(("partitions", "rows", "size"), [(1000, 2000, 1000), (7, 10, 300_000), (20_000, 5_000, 10)])
def test_what_waits_is_bounded_however_many_partitions_there_are(partitions: int, rows: int, size: int) -> None:
    room = 4 << 20
    sorter = RowSorter("t", lambda topic: partitions, first_partition=0, room_bytes=room)
    incoming = rows * (size + 8)
    count = max(12, (24 << 20) // incoming) if size > 100 else 12
    tracemalloc.start()
    try:
        most, tables = held_at_most(
            sorter, made_for(count, rows, size, lambda row: row * 7919 % partitions), batch_bytes=512 << 10
        )
        python_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 1.5 * room + 4 * incoming
    assert python_bytes < 2 * room + 200 * rows  # the numbers of the rows themselves are made here
    assert tables <= partitions + count * rows * (size + 600) / (room / partitions)


def test_a_column_that_is_not_written_does_not_stay_in_memory() -> None:
    sorter = RowSorter("t", lambda topic: 1, first_partition=0, room_bytes=1 << 20)
    schema = pa.schema([("value", pa.binary()), ("more", pa.binary())])

    def as_spark_gives_it() -> pa.RecordBatch:
        """All columns lie in one message."""
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, schema) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays([[b"x"] * 100, [bytes(10_000)] * 100], schema=schema))
        return pa.ipc.open_stream(out.getvalue()).read_next_batch()

    wide = (as_spark_gives_it() for _ in range(30))
    most, tables = held_at_most(sorter, wide, batch_bytes=512 << 10)
    assert most < 4 << 20
    assert tables == 1


@pytest.mark.parametrize("room_bytes", [1, 20_000, 100_000])
def test_rows_keep_their_order_and_none_is_lost_where_room_is_short(room_bytes: int) -> None:
    sorter = RowSorter("", {"a": 3, "b": 40}.__getitem__, first_partition=0, room_bytes=room_bytes)
    random_ = random.Random(room_bytes)
    expected: dict[TopicPartition, list[tuple[bytes | None, bytes]]] = {}
    found: dict[TopicPartition, list[tuple[bytes | None, bytes]]] = {}

    def take(parts: Iterator[tuple[TopicPartition, pa.Table]]) -> None:
        for tp, table in parts:
            pairs = zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True)
            found.setdefault(tp, []).extend(pairs)

    for number in range(60):
        rows = []
        for row in range(random_.randrange(60)):
            topic = random_.choice("aab")
            partition = random_.randrange({"a": 3, "b": 40}[topic]) if random_.random() < 0.9 else 0
            key = random_.choice([None, b"", random_.randbytes(9)])
            rows.append((topic, partition, key, b"%d/%d" % (number, row) + bytes(random_.choice([0, 3, 500]))))
            expected.setdefault(TopicPartition(topic, partition), []).append(rows[-1][2:])
        topics, partitions, keys, values_ = zip(*rows, strict=True) if rows else ((), (), (), ())
        sorter.add(batch(topic=topics, partition=partitions, key=keys, value=values_))
        take(sorter.take_full(5_000))
    take(sorter.take_all())
    assert found == expected


def test_a_large_row_is_alone_in_its_batch() -> None:
    rows = pa.Table.from_batches([batch(value=[b"x" * 100, b"y" * 900, b"z"])])
    encoded = list(record_batches(rows, batch_bytes=1_000, compression=Compression.NONE, timestamp_ms=7))
    assert [read_header(data).record_count for data in encoded] == [1, 1, 1]
    small = pa.Table.from_batches([batch(value=[b"x"] * 25)] * 4)
    (together,) = record_batches(small, batch_bytes=10_000, compression=Compression.GZIP, timestamp_ms=7)
    records = decode_records(together)
    assert [(record.value, record.timestamp_ms) for record in records] == [(b"x", 7)] * 100
