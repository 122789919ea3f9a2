"""Spark with Semel, beside a source and a sink that do nothing: what is left of what PySpark itself can do.

Rows have a key of 8 bytes and a value of the given size. Variants take turns within a round; medians count. The
do-nothing source gives the same Arrow batches, with the same columns, from memory; the do-nothing sink counts rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

import semel
from semel.protocol.arrow import arrow_schema
from semel.spark.java import java_home
from semel.spark.source_schema import source_schema

sys.path.insert(0, str(Path(__file__).parent))

import harness

PARTITIONS = 4
BATCH_ROWS = 10_000


class Rows(InputPartition):
    def __init__(self, number: int, rows: int, size: int) -> None:
        self.number, self.rows, self.size = number, rows, size


class NothingReader(DataSourceReader):
    def __init__(self, rows: int, size: int) -> None:
        self._rows, self._size = rows, size

    def partitions(self) -> list[InputPartition]:
        return [Rows(number, self._rows // PARTITIONS, self._size) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        count = max(1, min(BATCH_ROWS, (2 << 20) // (partition.size + 60), partition.rows))
        columns = {
            "key": [b"%08d" % row for row in range(count)],
            "value": [os.urandom(partition.size) for _ in range(count)],
            "topic": ["bench"] * count,
            "partition": [partition.number] * count,
            "offset": list(range(count)),
            "timestamp": [0] * count,
            "timestampType": [0] * count,
        }
        batch = pa.RecordBatch.from_pydict(columns, schema=arrow_schema())
        for start in range(0, partition.rows, count):
            yield batch.slice(0, min(count, partition.rows - start))


class NothingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Nothing(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> Any:
        return source_schema(with_headers=False)

    def reader(self, schema: Any) -> NothingReader:
        return NothingReader(int(self.options["rows"]), int(self.options["size"]))

    def writer(self, schema: Any, overwrite: bool) -> NothingWriter:
        return NothingWriter()


def session() -> SparkSession:
    home = java_home(Path(tempfile.gettempdir()) / "semel-spark-java")
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    built = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )
    built.sparkContext.setLogLevel("OFF")
    built.dataSource.register(Nothing)
    return built


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(spark: SparkSession, grpc: str, size: int, rows: int, rounds: int) -> dict[str, list[float]]:
    """Read and write `rows` rows in every way, in turns; return seconds by variant."""
    source = spark.read.format("nothing").options(rows=str(rows), size=str(size)).load()
    filled = f"filled-{size}"
    with semel.Admin(grpc) as admin:
        admin.create_topic(filled, partitions=PARTITIONS)
    out = 0

    def into_semel(topic: str) -> None:
        source.select("key", "value").write.format("semel").option("bootstrap", grpc).option("topic", topic).mode(
            "append"
        ).save()

    def write_semel() -> None:
        nonlocal out
        out += 1
        into_semel(target)

    def by_hand(parts: Iterator[Any]) -> None:
        with semel.Producer(grpc) as producer:
            for row in parts:
                producer.send(f"out-{size}-hand", bytes(row.value), key=bytes(row.key))
            producer.flush()

    few = spark.read.format("nothing").options(rows=str(rows // 10), size=str(size)).load().select("key", "value")
    stored = spark.read.format("semel").option("bootstrap", grpc).option("subscribe", filled).load()
    variants: dict[str, tuple[Callable[[], object], int]] = {
        "read, do-nothing source": (lambda: source.write.format("noop").mode("overwrite").save(), rows),
        "read, Semel": (lambda: stored.write.format("noop").mode("overwrite").save(), rows),
        "write, do-nothing sink": (
            lambda: source.select("key", "value").write.format("nothing").mode("append").save(),
            rows,
        ),
        "write, Semel in a transaction": (write_semel, rows),
        "write, a producer in foreachPartition": (lambda: few.foreachPartition(by_hand), rows // 10),
    }
    into_semel(filled)
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, (run, count) in variants.items():
            target = f"out-{size}-{number}"
            with semel.Admin(grpc) as admin:
                if name.startswith("write"):
                    for topic in (target, f"out-{size}-hand"):
                        if topic not in {each.name for each in admin.topics()}:
                            admin.create_topic(topic, partitions=PARTITIONS)
            took = timed(run)
            if number:  # the first round warms up
                rates[name].append(count / took)
            with semel.Admin(grpc) as admin:
                for topic in (target, f"out-{size}-hand"):
                    if topic in {each.name for each in admin.topics()}:
                        admin.delete_topic(topic)
    print(f"\n{size} B values, {rows:,} rows")
    for name, samples in rates.items():
        median = statistics.median(samples)
        base = rates[f"{name.split(',')[0]}, do-nothing {'source' if name.startswith('read') else 'sink'}"]
        every = " ".join(f"{sample / 1e6:.2f}" for sample in samples)
        print(
            f"    {name:40} {median / 1e6:5.2f} M rows/s {median * (size + 8) / 1e6:6.0f} MB/s "
            f"{median / statistics.median(base):5.0%} of doing nothing  ({every})",
            flush=True,
        )
    return rates


def micro_batches(spark: SparkSession, grpc: str, count: int) -> float:
    """Return the median milliseconds of a small batch from topic to topic."""
    with semel.Admin(grpc) as admin:
        admin.create_topic("small", partitions=2)
        admin.create_topic("small-out", partitions=2)
    with semel.Producer(grpc) as producer:
        for number in range(20 * count):
            producer.send("small", b"x", partition=number % 2)
        producer.flush()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            spark.readStream.format("semel")
            .options(bootstrap=grpc, subscribe="small", startingOffsets="earliest", maxOffsetsPerTrigger="20")
            .load()
            .select("key", "value")
            .writeStream.format("semel")
            .options(bootstrap=grpc, topic="small-out", checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        took = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress][2:]
    median = statistics.median(took)
    print(
        f"\na batch of 20 rows from topic to topic: {median:.0f} ms (median of {len(took)}; {min(took)} to {max(took)})"
    )
    return median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    spark = session()
    with harness.running_node() as node:
        results: dict[str, Any] = {
            "100 B": compare(spark, node.grpc, 100, arguments.rows, arguments.rounds),
            "1 KiB": compare(spark, node.grpc, 1024, arguments.rows // 8, arguments.rounds),
            "micro-batch ms": micro_batches(spark, node.grpc, arguments.batches),
        }
    spark.stop()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
