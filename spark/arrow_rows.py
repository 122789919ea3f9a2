"""Sorts the rows of Arrow batches by topic and partition, and makes record batches of them, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from semel.protocol.arrow import encode_batches_from_arrow
from semel.protocol.compression import Compression
from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_batch import Headers
from semel.sdk.partitioner import partitions_for_keys

if TYPE_CHECKING:
    import pyarrow

_RECORD_COLUMNS: Final = ("key", "value", "headers")
_LARGE_SHARE: Final = 4
"""A row that takes more than this part of a batch gets one of its own, so that no batch grows past a node's bound."""


class RowSorter:
    """Collects rows by where they go. Rows without a key or a partition go, batch by batch, to one after another.

    topic: where all rows go; empty: the column says it.
    partition_count: of a topic; raises where there is none.
    """

    def __init__(self, topic: str, partition_count: Callable[[str], int], first_partition: int) -> None:
        self._topic = topic
        self._partition_count = partition_count
        self._turn = first_partition
        self._counts: dict[str, int] = {}
        self._rows: dict[TopicPartition, list[pyarrow.RecordBatch]] = {}
        self._sizes: dict[TopicPartition, int] = {}

    def add(self, batch: pyarrow.RecordBatch) -> None:
        """Take in the rows of a batch."""
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
        """Yield what has come to at least `size_bytes`, and forget it. Tables hold the rows where they are."""
        import pyarrow as pa

        for tp in [tp for tp, size in self._sizes.items() if size >= size_bytes]:
            del self._sizes[tp]
            yield tp, pa.Table.from_batches(self._rows.pop(tp))

    def take_all(self) -> Iterator[tuple[TopicPartition, pyarrow.Table]]:
        """Yield everything, and forget it."""
        yield from self.take_full(0)

    def _add(self, topic: str, batch: pyarrow.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        partitions = self._partitions(topic, batch)
        records = batch.select([name for name in _RECORD_COLUMNS if name in batch.schema.names])
        bounds = pc.min_max(partitions).as_py()
        if bounds["min"] == bounds["max"]:
            self._put(TopicPartition(topic, bounds["min"]), records)
            return
        order = pc.array_sort_indices(partitions)  # stable: rows of a partition keep their order
        records = records.take(order)
        runs = pc.run_end_encode(partitions.take(order), run_end_type=pa.int32())
        start = 0
        for partition, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            self._put(TopicPartition(topic, partition), records.slice(start, end - start))
            start = end

    def _put(self, tp: TopicPartition, rows: pyarrow.RecordBatch) -> None:
        self._rows.setdefault(tp, []).append(rows)
        self._sizes[tp] = self._sizes.get(tp, 0) + rows.nbytes

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
