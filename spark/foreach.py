"""`foreachBatch` that is exactly-once: several sinks in one query, and output modes that Spark gives no Python sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from semel.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY_ID: Final = "sql.streaming.queryId"
_RUN_ID: Final = "spark.jobGroup.id"


def write_batch(
    frame: DataFrame, batch_id: int, sink: str, options: Mapping[str, str], *, checkpoint: str = ""
) -> None:
    """Write a batch of `foreachBatch` into Semel, once: when Spark repeats the batch after a crash, nothing is written.

    sink:       tells this write apart from others of the same batch
    options:    of the sink, such as kafka.bootstrap.servers and topic
    checkpoint: the query's checkpoint, to commit the source's offsets with the output and to notice a rollback; empty:
                without both
    Raises what the write raises, and `UsageError` outside of foreachBatch.
    """
    if not sink:
        raise UsageError("give each sink of a batch a name of its own: write_batch(frame, batch_id, 'totals', options)")
    context = frame.sparkSession.sparkContext
    query_id = context.getLocalProperty(_QUERY_ID)
    if not query_id:
        raise UsageError("write_batch is for functions that foreachBatch calls: there is no streaming query here")
    writer = frame.write.format("semel").mode("append").options(**options)
    writer = writer.option("txnAppId", query_id).option("txnVersion", str(batch_id)).option("sinkName", sink)
    writer = writer.option("txnRunId", context.getLocalProperty(_RUN_ID) or "")
    if checkpoint:
        writer = writer.option("checkpointLocation", checkpoint)
    writer.save()


def foreach_batch(sink: str, options: Mapping[str, str], *, checkpoint: str = "") -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that writes each batch once; arguments as of `write_batch`.

    The way to write in update mode, which Spark does not offer to Python sinks:

        totals.writeStream.outputMode("update").foreachBatch(semel.spark.foreach_batch("totals", options)).start()
    """

    def write(frame: DataFrame, batch_id: int) -> None:
        write_batch(frame, batch_id, sink, options, checkpoint=checkpoint)

    return write
