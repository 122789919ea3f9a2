"""A driver of Spark that copies a topic, and is killed with SIGKILL at the decision of a batch. Run as a program.

Arguments: bootstrap, checkpoint, topic to read, topic to write, "before" or "after", number of the batch.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pyspark.sql import SparkSession

from pyspark_semel import DefaultSource
from semel.spark.sink.stream_writer import SemelStreamWriter


class CrashingWriter(SemelStreamWriter):
    """Kills the driver, and with it its JVM and everything else, right before or after a decision."""

    when = ""
    at_batch = -1
    processes: tuple[int, ...] = ()

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        if batchId == self.at_batch and self.when == "before":
            self._kill()
        super().commit(messages, batchId)
        if batchId == self.at_batch and self.when == "after":
            self._kill()

    def _kill(self) -> None:
        for process in self.processes:
            os.kill(process, signal.SIGKILL)
        os._exit(1)


class CrashingSink(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "semel_crashing"

    def streamWriter(self, schema: Any, overwrite: bool) -> SemelStreamWriter:
        return CrashingWriter(self.options, schema)


def main(bootstrap: str, checkpoint: str, read: str, write: str, when: str, at_batch: str) -> None:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )
    java = session.sparkContext._jvm
    CrashingWriter.processes = (java.java.lang.ProcessHandle.current().pid(), os.getpid())
    CrashingWriter.when, CrashingWriter.at_batch = when, int(at_batch)
    session.dataSource.register(CrashingSink)
    query = copy(session, "semel_crashing", bootstrap, checkpoint, read, write)
    query.awaitTermination()


def copy(session: SparkSession, sink: str, bootstrap: str, checkpoint: str, read: str, write: str) -> Any:
    """Start the query that the driver runs."""
    return (
        session.readStream.format("semel")
        .option("bootstrap", bootstrap)
        .option("subscribe", read)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 40)
        .load()
        .select("key", "value")
        .writeStream.format(sink)
        .option("bootstrap", bootstrap)
        .option("topic", write)
        .option("kafka.group.id", f"copy-{write}")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
