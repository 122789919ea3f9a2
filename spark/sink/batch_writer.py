"""Batch writes: `df.write.format("semel").mode("append")`. All rows of a write appear at the same moment, or none.

With the options txnAppId and txnVersion a write is one of a line, and repeating it writes nothing: that is what makes
`foreachBatch` exactly-once (see `semel.spark.foreach_batch`). Any other write has a key of its own that nobody can
repeat, and the node forgets it a while after. `write` runs in a task, all else on the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from semel.protocol.errors import UsageError
from semel.spark.sink.checkpoint import Checkpoint
from semel.spark.sink.decide import abort_batch, commit_batch
from semel.spark.sink.decision_payload import BatchRecord
from semel.spark.sink.identity import BatchIdentity, attempt_name, batch_identity, fresh_nonce
from semel.spark.sink.limits import check_transaction_timeout
from semel.spark.sink.options import SinkOptions
from semel.spark.sink.schema import check_sink_schema
from semel.spark.sink.write import write_rows
from semel.spark.telemetry import BatchTrace

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


class SemelBatchWriter(DataSourceArrowWriter):
    """One write. Spark keeps this object, pickled, from the planning to the commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = SinkOptions.parse(options)
        if overwrite:
            raise UsageError("a log can't be overwritten: use .mode('append')")
        if self._options.group and not (self._options.app_id and self._options.checkpoint):
            raise UsageError(
                "kafka.group.id commits what a stream's batch has read, as its checkpoint says, and this write "
                "has none: use semel.spark.write_batch(..., checkpoint=...) in foreachBatch, or leave the option out"
            )
        self._shape = check_sink_schema(schema, self._options.topic)
        check_transaction_timeout(self._options)
        nonce = fresh_nonce()
        self._trace = BatchTrace.fresh()
        self._attempt = attempt_name(self._options.run_id, nonce)
        options_ = self._options
        self._is_one_of_many = bool(options_.app_id)
        self._identity = (
            batch_identity(options_.app_id, options_.sink_name, options_.version)
            if self._is_one_of_many
            else BatchIdentity(f"spark-write/{nonce}", "write", None)
        )

    def __repr__(self) -> str:
        return f"SemelBatchWriter({self._identity.key!r}, {self._identity.token!r})"

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task is not None
        return write_rows(
            iterator,
            self._identity,
            self._attempt,
            self._options,
            task_partition=task.partitionId(),
            trace=self._trace.in_task(task),
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        source = None
        if self._is_one_of_many and self._options.checkpoint and self._options.wants_source_range:
            checkpoint = Checkpoint(self._options.checkpoint)
            if self._options.run_id:  # of foreachBatch: then it is the query's id
                checkpoint.check_query(self._options.app_id)
            source = checkpoint.source_range(self._options.version)
        record = BatchRecord(self._shape, source)
        commit_batch(messages, self._identity, self._attempt, self._options, record, self._trace)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_batch(messages, self._identity, self._options, {self._attempt: self._trace})
