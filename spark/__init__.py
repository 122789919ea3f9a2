"""Semel as a source and a sink of PySpark: `format("semel")`, with the options of Spark's own Kafka connector."""

from semel.spark.sink.foreach import foreach_batch, write_batch
from semel.spark.source.lag import LagListener

__all__ = ["LagListener", "foreach_batch", "write_batch"]
