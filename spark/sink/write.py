"""A task's rows go into the batch's shared transaction, under a producer id of the task's own. Runs in a task.

Spark retries tasks and tells nobody, runs some twice, and lets what it gave up continue to write. So a task hands what
it wrote to the driver, with the count of its rows, and what the driver does not name is aborted (`decide`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import WriterCommitMessage

from semel.protocol.compression import Compression
from semel.protocol.errors import AbortTransactionError, FencedError
from semel.sdk.shared.api import SharedWriter
from semel.sdk.shared.writer import SharedWriterId
from semel.spark.arrow_rows import RowSorter, record_batches
from semel.spark.clients import client_for, run
from semel.spark.sink.explain import explaining_to_a_task
from semel.spark.sink.identity import BatchIdentity, handle, names_of
from semel.spark.sink.options import SinkOptions
from semel.spark.telemetry import BatchTrace, Work, task_writing

if TYPE_CHECKING:
    import pyarrow

_LINGER_MS: Final = 0


@dataclass(frozen=True)
class SinkMessage(WriterCommitMessage):
    """What a task tells the driver. `member` is None where it had no rows, or the batch was committed before."""

    key: str
    attempt: str
    member: SharedWriterId | None
    rows: int
    size_bytes: int
    trace: BatchTrace
    made_topics: tuple[tuple[str, int], ...] = ()
    """Topics that were missing, and that this task's writing has made, with how many partitions they have."""


def write_rows(
    batches: Iterator[pyarrow.RecordBatch],
    identity: BatchIdentity,
    attempt: str,
    options: SinkOptions,
    *,
    task_partition: int,
    trace: BatchTrace,
) -> SinkMessage:
    """Write a task's rows under an identity of its own. What fails, or is not named by the driver, is aborted."""
    with task_writing(trace, names_of(identity, attempt, options), task_partition) as work:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            work.outcome = "empty"
            return SinkMessage(identity.key, attempt, None, 0, 0, trace)
        with explaining_to_a_task(identity, options), _joined(identity, attempt, options) as writer:
            if writer.committed is not None:
                for _ in batches:  # Spark's process for the task wants its input read
                    pass
                work.outcome = "replayed"
                return SinkMessage(identity.key, attempt, None, 0, 0, trace)
            topics = _Topics(writer, options)
            try:
                _send_all(first, batches, writer, topics, options, task_partition, work)
            except (AbortTransactionError, FencedError):
                writer.flush()  # asks who has ended this part, and raises that in place of what a node answered
                raise
            member = writer.finish()
        work.outcome = "written"
        return SinkMessage(identity.key, attempt, member, work.rows, work.size_bytes, trace, tuple(topics.made.items()))


class _Topics:
    """Knows the partitions of topics, and which of them its asking has made."""

    def __init__(self, writer: SharedWriter, options: SinkOptions) -> None:
        self._writer = writer
        self._client = client_for(options.address)
        self.made: dict[str, int] = {}

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has. One that is missing is made, where the node's settings allow it."""
        cluster = self._client.cluster
        was_there = topic in cluster.snapshot.topics or topic in run(self._client, cluster.refresh([topic])).topics
        count = self._writer.partition_count(topic)
        if not was_there:
            self.made[topic] = count
        return count


def _joined(identity: BatchIdentity, attempt: str, options: SinkOptions) -> SharedWriter:
    return handle(identity, attempt, options).join(
        linger_ms=_LINGER_MS,
        buffer_memory_bytes=options.writer_memory_bytes,
        delivery_timeout_ms=options.delivery_timeout_ms,
        auto_create_topics=True,  # as Kafka's producers do, where the node's settings allow it
    )


def _send_all(
    first: pyarrow.RecordBatch,
    rest: Iterator[pyarrow.RecordBatch],
    writer: SharedWriter,
    topics: _Topics,
    options: SinkOptions,
    task_partition: int,
    work: Work,
) -> None:
    sorter = RowSorter(options.topic, topics.partition_count, task_partition, options.rows_memory_bytes)
    compression = Compression[options.compression.upper()]

    def send(parts: Iterator[tuple[tuple[str, int], pyarrow.Table]]) -> None:
        for (topic, partition), records in parts:
            work.rows += records.num_rows
            for encoded in record_batches(
                records,
                batch_bytes=options.batch_bytes,
                compression=compression,
                timestamp_ms=time.time_ns() // 1_000_000,
                default_headers=tuple(work.headers),
            ):
                work.size_bytes += len(encoded)
                writer.send_batch(topic, partition, encoded)

    batch: pyarrow.RecordBatch | None = first
    while batch is not None:
        if batch.num_rows:
            sorter.add(batch)
            send(sorter.take_full(options.batch_bytes))
        batch = next(rest, None)
    send(sorter.take_all())
