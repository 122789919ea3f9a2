"""Semel as a source and a sink of PySpark: `format("semel")`, with the options of Spark's own Kafka connector."""

from semel.protocol.extras import imports_of_extra

with imports_of_extra("spark", "semel.spark"):
    from semel.spark.delegation import delegated
    from semel.spark.session import use_session
    from semel.spark.sink.foreach import foreach_batch, write_batch
    from semel.spark.source.lag import LagListener

__all__ = ["LagListener", "delegated", "foreach_batch", "use_session", "write_batch"]
