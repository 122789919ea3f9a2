"""The ETL job's driver for the demo: tasks die, and it is killed with SIGKILL after a batch's output is written.

Two ways to write: Semel's sink, and what one does without it, a producer in each partition of `foreachBatch`.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import semel
from pyspark_semel import DefaultSource
from semel.spark.examples.flights_etl import LATE, late_flights, session, start
from semel.spark.sink.stream_writer import SemelStreamWriter

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, Row

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"


class KilledAfterDecision(SemelStreamWriter):
    """Semel's writer, whose driver does not live to tell Spark that the batch is written."""

    processes: tuple[int, ...] = ()
    at_batch = -1

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        if batchId == self.at_batch:
            kill(self.processes)


class KilledSink(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "semel_killed"

    def streamWriter(self, schema: Any, overwrite: bool) -> SemelStreamWriter:
        return KilledAfterDecision(self.options, schema)


def kill(processes: Iterable[int]) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)


def die_once(rows: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """The first attempt at partition 0 dies once its rows are on their way to be written."""
    from pyspark import TaskContext

    yield from rows
    task = TaskContext.get()
    if task is not None and task.partitionId() == 0 and task.attemptNumber() == 0:
        raise OSError("this attempt dies")


def send_all(grpc: str, topic: str, rows: Iterable[Row]) -> None:
    """What a task does without Semel's sink: a producer of its own. That it sends each record once does not help."""
    with semel.Producer(grpc) as producer:
        for row in rows:
            producer.send(topic, row.value.encode(), key=row.key.encode())
        producer.flush()
        from pyspark import TaskContext

        task = TaskContext.get()
        if task is not None and task.partitionId() == 0 and task.attemptNumber() == 0:
            raise OSError("this attempt dies")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grpc", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--way", choices=(EXACTLY_ONCE, AT_LEAST_ONCE), required=True)
    parser.add_argument("--kill-at-batch", type=int, default=-1)
    arguments = parser.parse_args()
    spark = session(f"flights-{arguments.way}")
    java: Any = spark.sparkContext._jvm
    processes = (java.java.lang.ProcessHandle.current().pid(), os.getpid())
    options = {"bootstrap": arguments.grpc}
    frame = late_flights(spark, options)
    if arguments.way == EXACTLY_ONCE:
        KilledAfterDecision.processes, KilledAfterDecision.at_batch = processes, arguments.kill_at_batch
        spark.dataSource.register(KilledSink)
        frame = frame.mapInArrow(die_once, "key STRING, value STRING")
        query = start(frame, options, arguments.checkpoint, "semel_killed")
    else:

        def write(batch: DataFrame, batch_id: int) -> None:
            grpc = arguments.grpc
            batch.foreachPartition(lambda rows: send_all(grpc, f"{LATE}-{AT_LEAST_ONCE}", rows))
            if batch_id == arguments.kill_at_batch:
                kill(processes)

        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", arguments.checkpoint)
        query = writer.trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
