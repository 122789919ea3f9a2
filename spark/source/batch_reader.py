"""Batch queries: `spark.read.format("semel")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from semel.spark.clients import client_for
from semel.spark.source.offset_ranges import OffsetRange, split
from semel.spark.source.offsets import SourceOffsets
from semel.spark.source.options import SourceOptions
from semel.spark.source.reading import data_loss, read_rows
from semel.spark.source.schema import check_schema

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


class SemelBatchReader(DataSourceReader):
    """Plans on the driver what to read, up to the ends of partitions at that time, and reads it in tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.parse(options, is_stream=False)
        check_schema(schema, with_headers=self._options.include_headers)

    def __repr__(self) -> str:
        return f"SemelBatchReader({self._options.selection})"

    def partitions(self) -> list[InputPartition]:
        options = self._options
        offsets = SourceOffsets(options)
        partitions = offsets.partitions()
        start = offsets.resolve(options.start, partitions)
        end = offsets.resolve(options.end, partitions)
        for tp in partitions:
            if end[tp] < start[tp] and options.fail_on_data_loss:
                raise data_loss(f"{tp} ends at offset {end[tp]}, before the {start[tp]} at which to start")
        ranges = [OffsetRange(tp.topic, tp.partition, start[tp], end[tp]) for tp in partitions]
        return list(split(ranges, options.min_partitions, options.max_records_per_partition))

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if not isinstance(partition, OffsetRange):
            return iter(())  # Spark makes an empty partition of its own where there is none
        return read_rows(client_for(self._options.address), partition, self._options)
