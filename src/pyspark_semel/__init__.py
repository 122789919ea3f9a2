"""Registers format("semel") with PySpark, which imports every top-level package named pyspark_* to look for sources.

So this one is tiny: gRPC, pyarrow and the rest of Semel are imported when a query uses the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from semel.spark.sink.batch_writer import SemelBatchWriter
    from semel.spark.sink.stream_writer import SemelStreamWriter
    from semel.spark.source.batch_reader import SemelBatchReader
    from semel.spark.source.stream_reader import SemelStreamReader


class DefaultSource(DataSource):
    """The data source. `semel.spark` documents the options."""

    @classmethod
    def name(cls) -> str:
        return "semel"

    def __repr__(self) -> str:
        from semel.spark.options import redacted

        return f"{type(self).__name__}({redacted(self.options)})"

    def schema(self) -> StructType:
        from semel.spark.source.options import SourceOptions
        from semel.spark.source.schema import source_schema

        return source_schema(with_headers=SourceOptions.wants_headers(self.options))

    def reader(self, schema: StructType) -> SemelBatchReader:
        from semel.spark.source.batch_reader import SemelBatchReader

        return SemelBatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> SemelStreamReader:
        from semel.spark.source.stream_reader import SemelStreamReader

        return SemelStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> SemelBatchWriter:
        from semel.spark.sink.batch_writer import SemelBatchWriter

        return SemelBatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> SemelStreamWriter:
        from semel.spark.sink.stream_writer import SemelStreamWriter

        # Complete mode asks to replace what is there; to a log, as to Kafka, the whole result is appended.
        return SemelStreamWriter(self.options, schema)
