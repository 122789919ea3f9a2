"""The streaming sink: `df.writeStream.format("semel")`. Each batch is one shared transaction with one decision.

`write` runs in a task, `commit` and `abort` on the driver, and the constructor in both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from semel.protocol.errors import FatalError, UsageError
from semel.spark.sink.checkpoint import Checkpoint
from semel.spark.sink.decide import abort_batch, abort_of_this_driver, commit_batch
from semel.spark.sink.decision_payload import BatchRecord
from semel.spark.sink.identity import A_QUERY_ID, BatchIdentity, app_of, attempt_name, batch_identity, fresh_nonce
from semel.spark.sink.limits import check_transaction_timeout
from semel.spark.sink.options import SinkOptions
from semel.spark.sink.schema import check_sink_schema
from semel.spark.sink.write import SinkMessage, write_rows
from semel.spark.telemetry import BatchTrace

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

_log = logging.getLogger("semel.spark")

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"


class SemelStreamWriter(DataSourceStreamArrowWriter):
    """One execution of one batch. Spark makes it again for the tasks, and once more for the commit or the abort.

    So the identity of an execution travels with the tasks' messages, and nothing here asks anybody before it must.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SinkOptions.parse(options)
        if self._options.app_id:
            raise UsageError("options txnAppId and txnVersion are for batch writes: a stream's batches have numbers")
        if not self._options.checkpoint and not self._options.goes_by_number:
            raise UsageError(
                "the sink reads from the query's checkpoint what a batch covers, and a checkpoint in the session's "
                "configuration is not shown to it: give .option('checkpointLocation', ...) on the query itself; or "
                "set option sourceRange to 'none' to do without (then a checkpoint that was rolled back by one batch "
                "is not noticed)"
            )
        self._shape = check_sink_schema(schema, self._options.topic)
        check_transaction_timeout(self._options)
        batch_identity(A_QUERY_ID, self._options.sink_name, 0)  # a name that is too long is told before any task runs
        self._nonce = fresh_nonce()
        self._trace = BatchTrace.fresh()

    def __repr__(self) -> str:
        return f"SemelStreamWriter({self._options.sink_name!r})"

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task is not None
        query_id, batch_id = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if not query_id or not batch_id:
            raise FatalError(f"Spark has not said which batch of which query a task is of ({_QUERY_ID}, {_BATCH_ID})")
        return write_rows(
            iterator,
            batch_identity(query_id, self._options.sink_name, int(batch_id)),
            attempt_name(task.getLocalProperty(_RUN_ID) or "", self._nonce),
            self._options,
            task_partition=task.partitionId(),
            trace=self._trace.in_task(task),
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        source = None
        identity = self._identity(messages, batchId)
        if self._options.wants_source_range:
            checkpoint = Checkpoint(self._options.checkpoint)
            if identity is not None:
                checkpoint.check_query(app_of(identity, self._options.sink_name))
            source = checkpoint.source_range(batchId)
        if identity is not None:
            record = BatchRecord(self._shape, source)
            commit_batch(messages, identity, attempt_name("", self._nonce), self._options, record, self._trace)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        try:
            identity = self._identity(messages, batchId)
        except FatalError as error:
            identity = None
            _log.warning("which query this is can't be read: %s", error)
        if identity is None:
            _log.warning(
                "what batch %s has written is not known here; it stays open, and readers of committed records wait, "
                "until the next run's first task, or for %s ms (kafka.transaction.timeout.ms)",
                batchId,
                self._options.transaction_timeout_ms,
            )
        elif any(isinstance(message, SinkMessage) for message in messages):
            abort_batch(messages, identity, self._options)
        else:
            abort_of_this_driver(identity, self._options)

    def _identity(self, messages: list[WriterCommitMessage | None], batch_id: int) -> BatchIdentity | None:
        """Return the batch's identity: by the query's id from a task's message, else from the checkpoint.

        None where neither is there: then nobody has asked for offsets to be committed.
        """
        batch = batch_identity("", self._options.sink_name, batch_id)
        for message in messages:
            if isinstance(message, SinkMessage):
                return BatchIdentity(message.key, batch.token, batch.sequence)
        if not self._options.checkpoint:
            return None
        try:
            query_id = Checkpoint(self._options.checkpoint).query_id()
        except FatalError:
            if self._options.wants_source_range:
                raise
            return None  # a checkpoint that pyarrow can't reach, and sourceRange is 'none'
        return batch_identity(query_id, self._options.sink_name, batch_id)
