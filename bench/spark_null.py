"""A source and a sink for Spark that do nothing, for batches and streams: what PySpark itself can do.

The source gives Arrow batches with Semel's columns from memory, made again in each task; the sink counts its rows.
"""

# ruff: noqa: N802 - Spark names the methods

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from semel.protocol.arrow import arrow_schema
from semel.spark.source.schema import source_schema

BATCH_ROWS = 10_000
BATCH_BYTES = 2 << 20


class Rows(InputPartition):
    def __init__(self, number: int, rows: int, size: int) -> None:
        self.number, self.rows, self.size = number, rows, size


def made_up(rows: Rows) -> Iterator[pa.RecordBatch]:
    """Give as many rows, the same few again and again."""
    if not rows.rows:
        return
    count = max(1, min(BATCH_ROWS, BATCH_BYTES // (rows.size + 60), rows.rows))
    columns = {
        "key": [b"%08d" % row for row in range(count)],
        "value": [os.urandom(rows.size) for _ in range(count)],
        "topic": ["bench"] * count,
        "partition": [rows.number] * count,
        "offset": list(range(count)),
        "timestamp": [0] * count,
        "timestampType": [0] * count,
    }
    batch = pa.RecordBatch.from_pydict(columns, schema=arrow_schema())
    for start in range(0, rows.rows, count):
        yield batch.slice(0, min(count, rows.rows - start))


def passed_over(batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    for _ in batches:
        pass
    return WriterCommitMessage()


class NullReader(DataSourceReader):
    def __init__(self, rows: int, size: int, parts: int) -> None:
        self._rows, self._size, self._parts = rows, size, parts

    def partitions(self) -> list[InputPartition]:
        return [Rows(number, self._rows // self._parts, self._size) for number in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        return made_up(partition)


class NullWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return passed_over(iterator)


class NullStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Has `rows` rows, and gives `per_batch` of them a batch."""

    def __init__(self, rows: int, per_batch: int, size: int, parts: int) -> None:
        self._rows, self._per_batch, self._size, self._parts = rows, per_batch, size, parts

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"row": min(start["row"] + self._per_batch, self._rows)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        rows = (end["row"] - start["row"]) // self._parts
        return [Rows(number, rows, self._size) for number in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        return made_up(partition)

    def commit(self, end: dict[str, int]) -> None:
        pass


class NullStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return passed_over(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass


class NullDataSource(DataSource):
    """Options: rows, size (of a value, in bytes), parts, and perBatch for streams."""

    @classmethod
    def name(cls) -> str:
        return "null"

    def schema(self) -> Any:
        return source_schema(with_headers=False)

    def _number(self, name: str) -> int:
        return int(self.options[name])

    def reader(self, schema: Any) -> NullReader:
        return NullReader(self._number("rows"), self._number("size"), self._number("parts"))

    def writer(self, schema: Any, overwrite: bool) -> NullWriter:
        return NullWriter()

    def streamReader(self, schema: Any) -> NullStreamReader:
        numbers = (self._number(name) for name in ("rows", "perBatch", "size", "parts"))
        return NullStreamReader(*numbers)

    def streamWriter(self, schema: Any, overwrite: bool) -> NullStreamWriter:
        return NullStreamWriter()
