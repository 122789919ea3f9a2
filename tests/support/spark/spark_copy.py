"""Queries that copy a topic: planned by the source and written by the sink step by step without Spark, or run by it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.datasource import ReadAllAvailable
from spark_query import Messages, Query, source

import semel
from semel.spark.source.stream_reader import SemelStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Copy:
    """Its batches are planned, read, written and committed when the test says. With the same folder: its next run."""

    def __init__(
        self, folder: Path, bootstrap: str, read: str, write: str, start: str = "committed", **options: str
    ) -> None:
        """`read` may name several topics; `options` are the source's."""
        folder.mkdir(exist_ok=True)
        self.group = f"group-{write}"
        self.bootstrap = bootstrap
        self.read = read
        self.query = Query(folder, bootstrap=bootstrap, topic=write, kafka__group__id=self.group, sinkName="copy")
        if start == "committed":
            options["kafka__group__id"] = self.group
        data_source = source(bootstrap=bootstrap, subscribe=read, startingOffsets=start, **options)
        self.reader: SemelStreamReader = data_source.streamReader(data_source.schema())

    def logged(self, batch_id: int) -> dict[str, Any]:
        """What the checkpoint's log says where a batch ends."""
        text = (self.query.folder / "offsets" / str(batch_id)).read_text()
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found

    def start_of(self, batch_id: int) -> dict[str, Any]:
        """Where a batch starts; for the first one Spark asks the source, again when it repeats it."""
        return self.logged(batch_id - 1) if batch_id else self.reader.initialOffset()

    def plan(self, batch_id: int) -> None:
        """Find where the batch ends, and note it, as Spark does before anything is read."""
        self.query.log_offsets(batch_id, self.reader.latestOffset(self.start_of(batch_id), ReadAllAvailable()))

    def rows(self, batch_id: int) -> list[str]:
        """Read a batch that is planned."""
        copy = pickle.dumps(self.reader)
        parts = self.reader.partitions(self.start_of(batch_id), self.logged(batch_id))
        batches = [batch for part in parts for batch in pickle.loads(copy).read(pickle.loads(pickle.dumps(part)))]
        return [value.decode() for batch in batches for value in batch.column("value").to_pylist()]

    def write(self, batch_id: int) -> Messages:
        """Read it and write it, up to before its commit."""
        return self.query.run_tasks(batch_id, self.rows(batch_id))

    def run(self, batch_id: int) -> None:
        self.plan(batch_id)
        self.query.commit(self.write(batch_id), batch_id)


def produce(bootstrap: str, topic: str, *texts: str) -> None:
    with semel.Producer(bootstrap) as producer:
        for text in texts:
            producer.send(topic, text)


def copy_in_spark(
    spark: SparkSession, bootstrap: str, read: str, write: str, checkpoint: Path | str, tasks: int = 0, **options: Any
) -> None:
    """Copy a topic to its end with Spark. `tasks`: how many write; 0: as many as read. `options` are the sink's."""
    frame = (
        spark.readStream.format("semel")
        .options(bootstrap=bootstrap, subscribe=read, startingOffsets="earliest")
        .load()
        .select("key", "value")
    )
    writer = (frame.coalesce(tasks) if tasks else frame).writeStream.format("semel").options(bootstrap=bootstrap)
    writer = writer.options(topic=write, checkpointLocation=str(checkpoint), **options)
    writer.option("kafka.group.id", f"group-{write}").trigger(availableNow=True).start().awaitTermination()
