"""Does to the data source what Spark does, in the same order and with the same copies, so that a crash can be anywhere.

What Spark does is in docs/spark.md. A writer is made again for the tasks and again for the commit, and travels pickled.
"""

from __future__ import annotations

import json
import pickle
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, WriterCommitMessage
from pyspark.sql.types import StringType, StructType

import pyspark_semel
import semel
from semel.protocol.api.topics import LATEST_TIMESTAMP, IsolationLevel
from semel.spark.sink import batch_writer, stream_writer

VALUES = StructType().add("value", StringType())
Messages = list[WriterCommitMessage | None]


def source(**options: str) -> pyspark_semel.DefaultSource:
    """The data source with options; "__" in a name stands for a dot."""
    return pyspark_semel.DefaultSource(
        CaseInsensitiveDict({name.replace("__", "."): value for name, value in options.items()})
    )


def values(*texts: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(texts)})


def read_table(**options: str) -> pa.Table:
    """What a batch query reads."""
    data_source = source(**options)
    schema = data_source.schema()
    reader = pickle.loads(pickle.dumps(data_source.reader(schema)))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.Table.from_batches(batches, schema=to_arrow_schema(schema, timezone="UTC"))


def read_values(bootstrap: str, topic: str, **options: str) -> list[str]:
    """The values of a topic, as a read_committed batch query sees them."""
    table = read_table(bootstrap=bootstrap, subscribe=topic, **options)
    return [value.decode() for value in table.column("value").to_pylist()]


def settled_values(bootstrap: str, topic: str) -> list[str]:
    """The same once every transaction has its markers: they follow the decision, which is what a commit waits for."""
    deadline = time.monotonic() + 60
    with semel.Admin(bootstrap, connect_timeout_ms=30_000) as admin:
        tps = [semel.TopicPartition(topic, each.partition) for each in admin.topic(topic).partitions]
        latest = dict.fromkeys(tps, LATEST_TIMESTAMP)
        while True:
            stable = admin.list_offsets(latest, isolation=IsolationLevel.READ_COMMITTED)
            ends = admin.list_offsets(latest, isolation=IsolationLevel.READ_UNCOMMITTED)
            if all(stable[tp].offset == ends[tp].offset for tp in tps):
                return read_values(bootstrap, topic)
            assert time.monotonic() < deadline, f"a transaction is still open in {topic}"
            time.sleep(0.02)


@contextmanager
def task(partition: int = 0, **properties: str) -> Iterator[None]:
    """Be in a task of Spark, as far as the writers look."""
    names = {"query_id": "sql.streaming.queryId", "batch_id": "streaming.sql.batchId", "run_id": "spark.jobGroup.id"}
    local = {names.get(name, name): value for name, value in properties.items()}
    context = mock.Mock()
    context.partitionId.return_value = partition
    context.getLocalProperty.side_effect = local.get
    with (
        mock.patch.object(stream_writer.TaskContext, "get", return_value=context),
        mock.patch.object(batch_writer.TaskContext, "get", return_value=context),
    ):
        yield


class Query:
    """A streaming query with a checkpoint, as its sink sees it. Another object with the folder is its next run."""

    def __init__(self, folder: Path, schema: StructType = VALUES, **options: str) -> None:
        self.folder = folder
        self.schema = schema
        self.run_id = str(uuid.uuid4())
        (folder / "offsets").mkdir(parents=True, exist_ok=True)
        metadata = folder / "metadata"
        if not metadata.exists():
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
        self.query_id = json.loads(metadata.read_text())["id"]
        self.source = source(checkpointLocation=f"file:{folder}", **options)

    def log_offsets(self, batch_id: int, end: dict[str, Any] | int) -> None:
        """Write the log of a batch, as Spark does before its tasks."""
        line = json.dumps({"in": {"0": end}} if isinstance(end, int) else end)
        (self.folder / "offsets" / str(batch_id)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{line}')

    def planned(self) -> bytes:
        """The writer that all tasks of one execution get a copy of."""
        return pickle.dumps(self.source.streamWriter(self.schema, False))

    def run_task(
        self, plan: bytes, batch_id: int, batches: Iterable[pa.RecordBatch], partition: int = 0, **properties: str
    ) -> WriterCommitMessage:
        """Run one attempt at one task."""
        with task(partition, query_id=self.query_id, batch_id=str(batch_id), run_id=self.run_id, **properties):
            message = pickle.loads(plan).write(iterator=iter(batches))
        return pickle.loads(pickle.dumps(message))

    def run_tasks(self, batch_id: int, *parts: Sequence[str], **properties: str) -> Messages:
        """Run one execution of a batch, up to before its commit."""
        plan = self.planned()
        return [
            self.run_task(plan, batch_id, [values(*part)] if part else [], number, **properties)
            for number, part in enumerate(parts)
        ]

    def commit(self, messages: Messages, batch_id: int) -> None:
        self.source.streamWriter(self.schema, False).commit(messages=messages, batchId=batch_id)

    def abort(self, messages: Messages, batch_id: int) -> None:
        self.source.streamWriter(self.schema, False).abort(messages=messages, batchId=batch_id)

    def run_batch(self, batch_id: int, *parts: Sequence[str]) -> None:
        self.log_offsets(batch_id, 10 * (batch_id + 1))
        self.commit(self.run_tasks(batch_id, *parts), batch_id)


def restarted(query: Query) -> Query:
    """The query's next run, with the same checkpoint."""
    again = Query(query.folder, query.schema)
    again.source = query.source
    return again


def held(bootstrap: str, topic: str) -> list[str]:
    """The settled values of a topic, sorted."""
    return sorted(settled_values(bootstrap, topic))
