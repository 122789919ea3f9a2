"""Sorts the rows of Arrow batches by topic and partition, and makes record batches of them, column by column.

Rows wait until their partition has enough for a record batch, where there is room. Sorted rows lie together in blocks,
and a block's memory is taken as long as one of its rows waits: so blocks are what is counted, and once they fill the
room, the longest partitions are handed on and the few rows that still wait are copied out of their blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from semel.protocol.arrow import encode_batches_from_arrow
from semel.protocol.compression import Compression
from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Headers
from semel.sdk.producer.partitioner import partitions_for_keys

if TYPE_CHECKING:
    import pyarrow

_RECORD_COLUMNS: Final = ("key", "value", "headers")
_LARGE_SHARE: Final = 4
"""A row that takes more than this part of a batch gets one of its own, so that no batch grows past a node's bound."""


_RUN_BYTES: Final = 300
"""What it takes in Python to remember where the rows of a partition lie in a block; matters where rows are tiny."""
_BLOCK_BYTES: Final = 2_000
"""What Arrow's objects of a block take beside its columns."""
_ROOM_MAX_BYTES: Final = 1 << 30
"""Arrow's plain columns hold less than twice as much."""


class _Block:
    """Rows in Arrow columns, sorted by partition. `rows_waiting` of them are not handed on yet."""

    __slots__ = ("records", "rows_waiting", "size_bytes")

    def __init__(self, records: pyarrow.RecordBatch, size_bytes: int) -> None:
        self.records = records
        self.size_bytes = size_bytes
        self.rows_waiting = records.num_rows


class RowSorter:
    """Collects rows by where they go. Rows without a key or a partition go, batch by batch, to one after another.

    topic: where all rows go; empty: the column says it.
    partition_count: of a topic; raises where there is none.
    room_bytes: what all waiting rows may take; half as much more for a moment, while rows are copied together.
    """

    def __init__(
        self, topic: str, partition_count: Callable[[str], int], first_partition: int, room_bytes: int
    ) -> None:
        self._topic = topic
        self._partition_count = partition_count
        self._turn = first_partition
        self._room_bytes = min(room_bytes, _ROOM_MAX_BYTES)
        self._counts: dict[str, int] = {}
        self._runs: dict[TopicPartition, list[tuple[_Block, int, int]]] = {}
        self._sizes: dict[TopicPartition, int] = {}
        self._waiting_bytes = 0
        """The sum of `_sizes`."""
        self._held_bytes = 0
        """The sum of all blocks in which a row waits."""

    def add(self, batch: pyarrow.RecordBatch) -> None:
        """Take in the rows of a batch."""
        if batch.num_rows == 0:
            return
        self._turn += 1
        if self._topic:
            self._add(self._topic, batch)
            return
        import pyarrow.compute as pc

        topics = batch.column(batch.schema.get_field_index("topic"))
        if topics.null_count:
            raise UsageError(
                f"{topics.null_count} rows have null in the column 'topic': fill it, or give option topic for all rows"
            )
        names = pc.unique(topics).to_pylist()
        for name in names:
            self._add(name, batch if len(names) == 1 else batch.filter(pc.equal(topics, name)))

    def take_full(self, size_bytes: int) -> Iterator[tuple[TopicPartition, pyarrow.Table]]:
        """Yield what has come to at least `size_bytes`, and forget it. Tables hold the rows where they are.

        Where room is short, the longest of the rest are yielded too.
        """
        for tp in [tp for tp, size in self._sizes.items() if size >= size_bytes]:
            yield tp, self._pop(tp)
        if self._held_bytes <= self._room_bytes:
            return
        half = self._room_bytes // 2
        if self._waiting_bytes > half:
            for tp in sorted(self._sizes, key=self._sizes.__getitem__, reverse=True):
                yield tp, self._pop(tp)
                if self._waiting_bytes <= half:
                    break
        if self._held_bytes > self._room_bytes:
            self._copy_together()
            if self._held_bytes > self._room_bytes // 4 * 3:  # a copy must pay: the estimate of sizes was far off
                yield from self.take_all()

    def take_all(self) -> Iterator[tuple[TopicPartition, pyarrow.Table]]:
        """Yield everything, and forget it."""
        for tp in list(self._sizes):
            yield tp, self._pop(tp)

    def _pop(self, tp: TopicPartition) -> pyarrow.Table:
        import pyarrow as pa

        self._waiting_bytes -= self._sizes.pop(tp)
        runs = self._runs.pop(tp)
        for block, start, end in runs:
            block.rows_waiting -= end - start
            if block.rows_waiting == 0:
                self._held_bytes -= block.size_bytes
        return pa.Table.from_batches([block.records.slice(start, end - start) for block, start, end in runs])

    def _copy_together(self) -> None:
        """Copy what waits into one block, so that nothing else stays in memory for its sake."""
        import pyarrow as pa

        pieces: list[pyarrow.RecordBatch] = []
        spans: list[tuple[TopicPartition, int, int]] = []
        start = end = 0
        for tp, runs in self._runs.items():
            for block, first, last in runs:
                pieces.append(block.records.slice(first, last - first))
                end += last - first
            spans.append((tp, start, end))
            start = end
        self._runs, self._sizes, self._waiting_bytes, self._held_bytes = {}, {}, 0, 0
        if pieces:
            schema = pieces[0].schema
            columns = [pa.concat_arrays([piece.column(at) for piece in pieces]) for at in range(len(schema))]
            self._put(pa.RecordBatch.from_arrays(columns, schema=schema), spans)

    def _add(self, topic: str, batch: pyarrow.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        partitions = self._partitions(topic, batch)
        records = batch.select([name for name in _RECORD_COLUMNS if name in batch.schema.names])
        bounds = pc.min_max(partitions).as_py()
        if bounds["min"] == bounds["max"]:  # not copied: the columns that are left out stay in memory with it
            self._put(records, [(TopicPartition(topic, bounds["min"]), 0, batch.num_rows)], batch.nbytes)
            return
        order = pc.array_sort_indices(partitions)  # stable: rows of a partition keep their order
        runs = pc.run_end_encode(partitions.take(order), run_end_type=pa.int32())
        ends = runs.run_ends.to_pylist()
        numbers = runs.values.to_pylist()
        spans = zip((TopicPartition(topic, number) for number in numbers), [0, *ends], ends, strict=False)
        self._put(records.take(order), spans)

    def _put(
        self, records: pyarrow.RecordBatch, spans: Iterable[tuple[TopicPartition, int, int]], size_bytes: int = 0
    ) -> None:
        """Take a block in. spans: of each partition's rows; size_bytes: what it takes, if more than its columns."""
        row_bytes = _RowBytes(records)
        block = _Block(records, max(size_bytes, row_bytes.total) + _BLOCK_BYTES)
        for tp, start, end in spans:
            size = row_bytes.between(start, end) + _RUN_BYTES
            block.size_bytes += _RUN_BYTES
            self._runs.setdefault(tp, []).append((block, start, end))
            self._sizes[tp] = self._sizes.get(tp, 0) + size
            self._waiting_bytes += size
        self._held_bytes += block.size_bytes

    def _partitions(self, topic: str, batch: pyarrow.RecordBatch) -> Any:
        """Return each row's partition: what its column says, else its key's, else the one whose turn it is."""
        import pyarrow as pa
        import pyarrow.compute as pc

        count = self._count(topic)
        found = self._by_key(batch, count)
        at = batch.schema.get_field_index("partition")
        if at >= 0:
            given = batch.column(at)
            bounds = pc.min_max(given).as_py()
            if bounds["min"] is not None and (bounds["min"] < 0 or bounds["max"] >= count):
                wrong = bounds["min"] if bounds["min"] < 0 else bounds["max"]
                raise UsageError(
                    f"a row names partition {wrong} of topic {topic!r}, which has {count}, numbered from 0"
                )
            found = given if found is None else pc.coalesce(given, found)
        turn = pa.scalar(self._turn % count, pa.int32())
        if found is None:
            return pa.repeat(turn, batch.num_rows)
        return pc.fill_null(found, turn) if found.null_count else found

    def _by_key(self, batch: pyarrow.RecordBatch, count: int) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        at = batch.schema.get_field_index("key")
        if at < 0:
            return None
        keys = batch.column(at).cast(pa.binary())
        if keys.null_count == len(keys):
            return None
        out = bytearray(4 * len(keys))
        valid, offsets, data = keys.buffers()
        partitions_for_keys(
            memoryview(offsets),
            memoryview(b"") if data is None else memoryview(data),
            None if keys.null_count == 0 or valid is None else memoryview(valid),
            keys.offset,
            count,
            memoryview(out),
        )
        numbers = pa.Array.from_buffers(pa.int32(), len(keys), [None, pa.py_buffer(out)], 0)
        return numbers if keys.null_count == 0 else pc.if_else(pc.is_valid(keys), numbers, pa.scalar(None, pa.int32()))

    def _count(self, topic: str) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._partition_count(topic)
        return count


class _RowBytes:
    """Tells what rows of a block take, without a look at each: keys and values exactly, the rest on an average."""

    def __init__(self, records: pyarrow.RecordBatch) -> None:
        import pyarrow as pa

        self.total: int = records.nbytes
        rest = self.total
        self._ends: list[tuple[memoryview, int]] = []
        for column in records.columns:
            if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
                ends = memoryview(column.buffers()[1]).cast("i")
                self._ends.append((ends, column.offset))
                rest -= ends[column.offset + len(column)] - ends[column.offset]
        self._rest_per_row: int = rest // records.num_rows

    def between(self, start: int, end: int) -> int:
        """Return the bytes of rows from `start` up to `end`."""
        size = (end - start) * self._rest_per_row
        for ends, first in self._ends:
            size += ends[first + end] - ends[first + start]
        return size


def record_batches(
    rows: pyarrow.Table,
    *,
    batch_bytes: int,
    compression: Compression,
    timestamp_ms: int,
    default_headers: Headers = (),
) -> Iterator[bytearray]:
    """Yield record batches of rows, about `batch_bytes` each; a large row is alone in its own.

    default_headers: of rows that have none of these names
    """
    import pyarrow.compute as pc

    longest = 0
    for name in ("key", "value"):
        at = rows.schema.get_field_index(name)
        if at >= 0:
            longest += pc.max(pc.binary_length(rows.column(at))).as_py() or 0
    yield from encode_batches_from_arrow(
        rows,
        max_batch_bytes=1 if longest > batch_bytes // _LARGE_SHARE else batch_bytes,
        default_timestamp_ms=timestamp_ms,
        default_headers=default_headers,
        compression=compression,
    )
