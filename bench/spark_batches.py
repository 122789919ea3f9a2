"""What a small batch of a stream costs: 20 rows from topic to topic, whichever source and sink."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from spark_targets import Target

ROWS = 20
PARTS = 2
WARM_UP_BATCHES = 2


def micro_batches(spark: SparkSession, targets: Sequence[Target], batches: int, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of every batch by variant, printed as medians. Variants take turns."""
    count = batches + WARM_UP_BATCHES
    topics = {target: (target.new_topic("small", PARTS), target.new_topic("small-out", PARTS)) for target in targets}
    for target, (read, _) in topics.items():
        target.produce(read, ROWS * count, PARTS)
    variants: dict[str, Callable[[], list[float]]] = {
        "Spark's own: rows by rate, to noop": lambda: _rate(spark, count),
        "do-nothing source to do-nothing sink": lambda: _null(spark, count),
    }
    for target, (read, written) in topics.items():
        variants[f"{target.name}: topic to topic"] = lambda target=target, read=read, written=written: _copied(
            spark, target, read, written
        )
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            taken[name] += run()
    for target, names in topics.items():
        for topic in names:
            target.drop(topic)
    print(f"\na batch of {ROWS} rows; the first {WARM_UP_BATCHES} of each query do not count")
    base = statistics.median(taken["do-nothing source to do-nothing sink"])
    for name, samples in taken.items():
        median = statistics.median(samples)
        print(
            f"    {name:55} {median:6.0f} ms  {median - base:+6.0f} ms to doing nothing  "
            f"(median of {len(samples)}; {min(samples):.0f} to {max(samples):.0f})",
            flush=True,
        )
    return taken


def _rate(spark: SparkSession, count: int) -> list[float]:
    options = {"rowsPerBatch": str(ROWS), "numPartitions": str(PARTS)}
    frame = spark.readStream.format("rate-micro-batch").options(**options).load()
    return _run(frame.selectExpr("cast(cast(value AS string) AS binary) AS value"), "noop", {}, batches=count)


def _null(spark: SparkSession, count: int) -> list[float]:
    options = {"rows": str(ROWS * count), "perBatch": str(ROWS), "size": "1", "parts": str(PARTS)}
    frame = spark.readStream.format("null").options(**options).load()
    return _run(frame.select("key", "value"), "null", {})


def _copied(spark: SparkSession, target: Target, read: str, written: str) -> list[float]:
    options = target.options(subscribe=read, startingOffsets="earliest", maxOffsetsPerTrigger=ROWS)
    frame = spark.readStream.format(target.format).options(**options).load()
    return _run(frame.select("key", "value"), target.format, target.options(topic=written))


def _run(frame: DataFrame, sink: str, options: dict[str, str], *, batches: int | None = None) -> list[float]:
    """Run a query over what there is, or for so many batches, and return what each took in milliseconds."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format(sink).options(**options).option("checkpointLocation", checkpoint)
        if batches is None:
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
        else:
            query = writer.trigger(processingTime="0 seconds").start()
            while (query.lastProgress or {}).get("batchId", -1) < batches and query.isActive:
                query.awaitTermination(1)
            query.stop()
        progress: list[dict[str, Any]] = [one for one in query.recentProgress if "addBatch" in one["durationMs"]]
        return [float(one["durationMs"]["triggerExecution"]) for one in progress][WARM_UP_BATCHES:batches]
