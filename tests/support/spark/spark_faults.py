"""A driver of Spark on a cluster whose source and sink stop where they are told, until let continue, or killed.

Run as a program: an order by line of JSON, an answer by line. Arguments: the master, a node's address, and settings
as JSON. What stands here is pickled by value to the executors, which don't have this file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_semel import DefaultSource
from semel.protocol.errors import SemelError
from semel.spark.sink.batch_writer import SemelBatchWriter
from semel.spark.sink.stream_writer import SemelStreamWriter
from semel.spark.sink.write import SinkMessage
from semel.spark.source.stream_reader import SemelStreamReader


class Faults:
    """Stops attempts at tasks at places, and notes in a folder what becomes of every attempt.

    An attempt is named BATCH-PARTITION-NUMBER. It stops at `reading` (after the first rows), `joining` (before it
    writes), `writing` (after the first rows) and `written` (before its message is on its way), where `holds` says so.
    """

    HELD_S_MAX = 300

    def __init__(self, folder: str, holds: list[str]) -> None:
        self._folder = Path(folder)
        self._holds = holds

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = self._attempt()
        for number, batch in enumerate(batches):
            if number == 1:
                self._hold(attempt, "reading")
            yield batch

    def write(
        self, write: Callable[[Iterator[pa.RecordBatch]], WriterCommitMessage], batches: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        attempt = self._attempt()
        if any(f"{attempt}-{place}" in self._holds for place in ("joining", "writing")):
            batches = iter(list(batches))  # so that it can continue without its executor
        self._hold(attempt, "joining")
        try:
            message = write(self._signed(attempt, batches))
        except SemelError as error:
            self._note(f"{attempt}.outcome", error=error.code.name, message=str(error))
            raise
        assert isinstance(message, SinkMessage)
        self._note(f"{attempt}.outcome", rows=message.rows, has_written=message.member is not None)
        self._hold(attempt, "written")
        return message

    def _signed(self, attempt: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Put the attempt's name into the column of keys, so that the log tells who has written what."""
        for number, batch in enumerate(batches):
            if number == 1:
                self._hold(attempt, "writing")
            key = batch.schema.get_field_index("key")
            names = pa.array([attempt.encode()] * batch.num_rows, batch.schema.field(key).type)
            yield batch.set_column(key, batch.schema.field(key), names)

    def _attempt(self) -> str:
        task = TaskContext.get()
        assert task is not None
        batch_id = task.getLocalProperty("streaming.sql.batchId") or "0"
        return f"{batch_id}-{task.partitionId()}-{task.attemptNumber()}"

    def _hold(self, attempt: str, place: str) -> None:
        name = f"{attempt}-{place}"
        if name not in self._holds:
            return
        self._note(f"{name}.held")
        until = time.monotonic() + self.HELD_S_MAX
        while not (self._folder / f"{name}.go").exists():
            if time.monotonic() > until:
                raise TimeoutError(f"nobody let {name} continue")
            time.sleep(0.01)

    def _note(self, name: str, **what: Any) -> None:
        daemon = os.getppid()
        executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
        temporary = self._folder / f".{name}.{os.getpid()}"
        temporary.write_text(json.dumps({"worker": os.getpid(), "daemon": daemon, "executor": executor, **what}))
        temporary.rename(self._folder / name)


class FaultyStreamReader(SemelStreamReader):
    faults: Faults

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return self.faults.read(super().read(partition))


class FaultyStreamWriter(SemelStreamWriter):
    faults: Faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.faults.write(super().write, iterator)


class FaultyBatchWriter(SemelBatchWriter):
    faults: Faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.faults.write(super().write, iterator)


Part = TypeVar("Part", FaultyStreamReader, FaultyStreamWriter, FaultyBatchWriter)


class FaultySource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "semel_faulty"

    def streamReader(self, schema: Any) -> SemelStreamReader:
        return self._with_faults(FaultyStreamReader(self._others(), schema))

    def streamWriter(self, schema: Any, overwrite: bool) -> SemelStreamWriter:
        return self._with_faults(FaultyStreamWriter(self._others(), schema))

    def writer(self, schema: Any, overwrite: bool) -> SemelBatchWriter:
        return self._with_faults(FaultyBatchWriter(self._others(), schema, overwrite))

    def _others(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if not name.startswith("faults.")}

    def _with_faults(self, part: Part) -> Part:
        part.faults = Faults(self.options["faults.folder"], json.loads(self.options["faults.holds"]))
        return part


class Driver:
    """What the program does with its orders."""

    def __init__(self, session: SparkSession, bootstrap: str, more: Mapping[str, str] | None = None) -> None:
        """`more` are further options of source and sink."""
        self._session = session
        self._bootstrap = bootstrap
        self._more = dict(more or {})

    def copy(self, read: str, write: str, folder: str, holds: list[str], rows_per_batch: int) -> dict[str, Any]:
        """Copy a topic, batch by batch, up to its end."""
        query = (
            self._session.readStream.format("semel_faulty")
            .options(**self._options(folder, holds))
            .option("subscribe", read)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", rows_per_batch)
            .option("kafka.max.partition.fetch.bytes", 1_000)
            .load()
            .select("key", "value")
            .writeStream.format("semel_faulty")
            .options(**self._options(folder, holds))
            .option("topic", write)
            .option("kafka.batch.size", 500)
            .option("kafka.group.id", f"copy-{write}")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return {"batches": len(query.recentProgress)}

    def write(self, rows: int, write: str, folder: str, holds: list[str], shuffled: bool) -> dict[str, Any]:
        """Write numbers as one batch query, in two tasks; `shuffled`: what they write, an earlier stage has made."""
        numbers = self._session.range(0, rows, 1, 2)
        frame = (numbers.repartition(2) if shuffled else numbers).selectExpr("'' AS key", "concat('row-', id) AS value")
        writer = frame.write.format("semel_faulty").options(**self._options(folder, holds))
        writer.option("topic", write).option("kafka.batch.size", 500).mode("append").save()
        return {}

    def _options(self, folder: str, holds: list[str]) -> dict[str, str]:
        faults = {"faults.folder": folder, "faults.holds": json.dumps(holds)}
        return {"bootstrap": self._bootstrap, **self._more, **faults}


def main(master: str, bootstrap: str, settings: str) -> None:
    builder = SparkSession.builder.master(master).appName("semel-faults")
    for name, value in json.loads(settings).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.dataSource.register(FaultySource)
    driver = Driver(session, bootstrap)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(driver, order.pop("do"))(**order)
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
