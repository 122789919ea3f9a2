"""`foreachBatch` that is exactly-once: several sinks in one query, and output modes that Spark gives no Python sink.

Runs on the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

from semel.protocol.errors import UsageError
from semel.spark.session import use_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY_ID: Final = "sql.streaming.queryId"
_RUN_ID: Final = "spark.jobGroup.id"


_lock = threading.Lock()
_writing: set[tuple[str, str]] = set()
_written: dict[tuple[str, str], tuple[str, int]] = {}
"""By query and sink: the last batch that this process has written, and in which run of the query."""


def write_batch(
    frame: DataFrame,
    batch_id: int,
    sink: str,
    options: Mapping[str, str],
    *,
    checkpoint: str = "",
    source_range: Literal["checkpoint", "none"] = "checkpoint",
) -> None:
    """Write a batch of `foreachBatch` into Semel, once: when Spark repeats the batch after a crash, nothing is written.

    sink:         tells this write apart from others of the same batch
    options:      of the sink, such as kafka.bootstrap.servers and topic
    checkpoint:   the query's checkpoint, which says what a batch has read: a checkpoint that was rolled back is noticed
                  by it, and the source's offsets are committed with the output
    source_range: "none" does without the checkpoint. A rollback is noticed then where batches are gone that came after
                  the one that runs again, and not where the last one alone is gone
    Raises what the write raises, and `UsageError` outside of foreachBatch, without a checkpoint, and for a second write
    of the same name in a batch; one that repeats a write which has failed is none.
    """
    if not sink:
        raise UsageError("give each sink of a batch a name of its own: write_batch(frame, batch_id, 'totals', options)")
    context = frame.sparkSession.sparkContext
    query_id = context.getLocalProperty(_QUERY_ID)
    if not query_id:
        raise UsageError("write_batch is for functions that foreachBatch calls: there is no streaming query here")
    _check_source_range(options, checkpoint, source_range)
    run_id = context.getLocalProperty(_RUN_ID) or ""
    writer = frame.write.format("semel").mode("append").options(**options)
    writer = writer.option("txnAppId", query_id).option("txnVersion", str(batch_id)).option("sinkName", sink)
    writer = writer.option("txnRunId", run_id).option("sourceRange", source_range)
    if checkpoint:
        writer = writer.option("checkpointLocation", checkpoint)
    use_session(frame.sparkSession)  # the function may write each sink in a thread of its own
    with _once_in_a_run(query_id, run_id, sink, batch_id):
        writer.save()


def foreach_batch(
    sink: str,
    options: Mapping[str, str],
    *,
    checkpoint: str = "",
    source_range: Literal["checkpoint", "none"] = "checkpoint",
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that writes each batch once; arguments as of `write_batch`.

    The way to write in update mode, which Spark does not offer to Python sinks:

        write = semel.spark.foreach_batch("totals", options, checkpoint=checkpoint)
        totals.writeStream.outputMode("update").foreachBatch(write).option("checkpointLocation", checkpoint).start()
    """
    _check_source_range(options, checkpoint, source_range)

    def write(frame: DataFrame, batch_id: int) -> None:
        write_batch(frame, batch_id, sink, options, checkpoint=checkpoint, source_range=source_range)

    return write


def _check_source_range(options: Mapping[str, str], checkpoint: str, source_range: str) -> None:
    for name in options:
        if name.lower() in ("checkpointlocation", "sourcerange"):
            raise UsageError(f"option {name} can't be given here: write_batch and foreach_batch have arguments for it")
    if source_range not in ("checkpoint", "none"):
        raise UsageError(f"source_range is {source_range!r}; it can be 'checkpoint' or 'none'")
    if not checkpoint and source_range == "checkpoint":
        raise UsageError(
            "the sink reads from the query's checkpoint what a batch covers: give checkpoint=..., the same as option "
            "checkpointLocation of the query; or source_range='none' to do without (then a checkpoint that was rolled "
            "back by one batch is not noticed)"
        )


@contextmanager
def _once_in_a_run(query_id: str, run_id: str, sink: str, batch_id: int) -> Iterator[None]:
    """Two writes of one name in a batch: the second would look like a replay of the first, and its rows be lost.

    What has failed may be repeated, and so may a batch in another run, which is how Spark repeats it.
    """
    key = (query_id, sink)
    with _lock:
        if key in _writing or _written.get(key) == (run_id, batch_id):
            raise UsageError(
                f"batch {batch_id} has a write named {sink!r} already, so this one would be taken for its repetition, "
                "and not be written: give each sink of a batch a name of its own"
            )
        _writing.add(key)
    try:
        yield
        with _lock:
            _written[key] = (run_id, batch_id)
    finally:
        with _lock:
            _writing.discard(key)
