"""Spark with Semel, beside Spark's own connector to Kafka, and a source and a sink that do nothing.

    python -P bench/spark.py                            everything
    python -P bench/spark.py --rows 100000 --rounds 1   short: does it still run?
    python -P bench/spark.py --only memory              some of: throughput, batches, memory

Rows have a key of 8 bytes and a value of the given size. Variants take turns within a round; medians count. The
do-nothing source gives the same Arrow batches, with the same columns, from memory; the do-nothing sink counts rows.
"Rows of Spark" are rows that Spark itself makes, as when it reads Parquet: they need no Python before the sink.

Spark's connector is measured through a node's Kafka listener and against Apache Kafka. It needs Maven to fetch its jars
once, and Apache Kafka a Java 17; what can't be had is left out, and said.

`--durability os` (default) runs Apache Kafka as it comes, beside a node that does not sync before it answers either;
with `--durability disk` both do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import apache_kafka
import harness
import kafka_jars
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from spark_batches import micro_batches
from spark_memory import task_memory
from spark_targets import PARTITIONS, Target, java_version, null_rows, of_spark, session

import semel

SIZES = {100: 1, 1024: 8}
"""Bytes of a value, and by how much fewer rows there are of them."""
KEY_BYTES = 8
HAND_SHARE = 10
"""A producer in each partition gets a tenth of the rows: it is so much slower."""
PARTS = ("throughput", "batches", "memory")


class Variant:
    """One way to read or write: `run` does it with a fresh topic, where it needs one, which goes away unmeasured."""

    def __init__(self, base: str, run: Callable[[str], object], rows: int, into: Target | None = None) -> None:
        self.base, self.run, self.rows, self.into = base, run, rows, into
        self.rates: list[float] = []
        self.failures: list[str] = []

    def once(self) -> float:
        """Return rows a second."""
        topic = self.into.new_topic("out") if self.into else ""
        start = time.perf_counter()
        self.run(topic)
        took = time.perf_counter() - start
        if self.into:
            self.into.drop(topic)
        return self.rows / took


def variants_of(spark: SparkSession, grpc: str, targets: Sequence[Target], size: int, rows: int) -> dict[str, Variant]:
    """Fill the topics to be read, and return all there is to measure."""
    made = {
        "do-nothing source": null_rows(spark, rows, size).select("key", "value"),
        "rows of Spark": of_spark(spark, rows, size),
    }
    reading, writing = "read, do-nothing source", "write {}, do-nothing sink"

    def pass_over(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    found = {reading: Variant(reading, lambda _: pass_over(null_rows(spark, rows, size)), rows)}
    brokers = {target.broker: target for target in targets}
    filled: dict[tuple[str, str], str] = {}
    for writer in targets:
        filled[writer.format, writer.broker] = writer.new_topic("filled")
        writer.write(made["do-nothing source"], filled[writer.format, writer.broker])
    for (writer_format, broker), topic in filled.items():
        by = "Semel's sink" if writer_format == "semel" else "the connector"
        for target in targets:
            if target.broker == broker:
                run = lambda _, target=target, topic=topic: pass_over(target.read(spark, topic))  # noqa: E731
                found[f"read what {by} wrote, {target.name}"] = Variant(reading, run, rows)
    for source, frame in made.items():
        base = writing.format(source)
        into_null = lambda _, frame=frame: frame.write.format("null").mode("append").save()  # noqa: E731
        found[base] = Variant(base, into_null, rows)
        for target in targets:
            run = lambda topic, target=target, frame=frame: target.write(frame, topic)  # noqa: E731
            found[f"write {source}, {target.name}"] = Variant(base, run, rows, target)

    def by_hand(topic: str) -> None:
        def send(part: Any) -> None:
            with semel.Producer(grpc) as producer:
                for row in part:
                    producer.send(topic, bytes(row.value), key=bytes(row.key))
                producer.flush()

        null_rows(spark, rows // HAND_SHARE, size).select("key", "value").foreachPartition(send)

    base = writing.format("do-nothing source")
    found["write, a producer in foreachPartition"] = Variant(base, by_hand, rows // HAND_SHARE, brokers["Semel"])
    return found


def throughput(
    spark: SparkSession, grpc: str, targets: Sequence[Target], size: int, rows: int, rounds: int
) -> dict[str, list[float]]:
    """Read and write `rows` rows in every way, in turns; return rows a second by variant."""
    variants = variants_of(spark, grpc, targets, size, rows)
    for number in range(rounds + 1):
        for variant in variants.values():
            try:
                rate = variant.once()
            except Py4JJavaError as error:  # a peer may fail: the others' figures stand
                variant.failures.append(str(error.java_exception.getMessage()).splitlines()[0][:300])
                continue
            if number:  # the first round warms up
                variant.rates.append(rate)
    print(f"\n{size} B values, {rows:,} rows")
    for name, variant in variants.items():
        for failure in variant.failures:
            print(f"    {name}: a run failed: {failure}")
        if not variant.rates:
            continue
        median = statistics.median(variant.rates)
        share = median / statistics.median(variants[variant.base].rates)
        every = " ".join(f"{sample / 1e6:.2f}" for sample in variant.rates)
        print(
            f"    {name:65} {median / 1e6:5.2f} M rows/s {median * (size + KEY_BYTES) / 1e6:6.0f} MB/s "
            f"{share:5.0%} of doing nothing  ({every})",
            flush=True,
        )
    return {name: variant.rates for name, variant in variants.items()}


def targets_of(stack: ExitStack, node: harness.NodeProcess, arguments: argparse.Namespace) -> list[Target]:
    """Return where to read and write; what can't be had is said and left out."""

    def at(peer: harness.Peer) -> str:
        return f"{peer.address[0]}:{peer.address[1]}"

    targets = [Target("semel", "Semel", at(node), node.grpc)]
    if not connector_jars(arguments):
        return targets
    targets.append(Target("kafka", "Semel", at(node)))
    if not arguments.without_kafka:
        try:
            kafka = stack.enter_context(apache_kafka.running_kafka(fsync=arguments.durability == "disk"))
        except kafka_jars.JavaMissingError as error:
            print(f"without Apache Kafka: {error}")
        else:
            targets.append(Target("kafka", f"Apache Kafka {kafka_jars.NEWEST}", at(kafka)))
    return targets


def connector_jars(arguments: argparse.Namespace) -> list[Path]:
    if arguments.without_connector:
        return []
    try:
        return kafka_jars.connector_jars()
    except kafka_jars.JavaMissingError as error:
        print(f"without Spark's connector to Kafka: {error}")
        arguments.without_connector = True
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of 100 B; an eighth of 1 KiB (default 2,000,000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=20, help="of a streaming query, in each round")
    parser.add_argument("--megabytes", type=int, default=1024, help="that the tasks whose memory is measured share")
    parser.add_argument("--durability", choices=["os", "disk"], default="os", help="of the node, and of Apache Kafka")
    parser.add_argument("--without-connector", action="store_true", help="leave out Spark's own connector")
    parser.add_argument("--without-kafka", action="store_true", help="leave out Apache Kafka")
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be given again")
    parser.add_argument("--json", type=Path, help="write all samples there")
    arguments = parser.parse_args()
    parts = arguments.only or PARTS
    apache_kafka.end_on_sigterm()
    results: dict[str, Any] = {"machine": harness.machine(), "arguments": {**vars(arguments), "json": None}}
    with ExitStack() as stack:
        node = stack.enter_context(harness.running_node({"durability": arguments.durability}))
        targets = targets_of(stack, node, arguments)
        spark = session(connector_jars(arguments))
        load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
        connector = "without its connector" if arguments.without_connector else f"connector {kafka_jars.CONNECTOR}"
        print(f"Spark {spark.version}, {connector}, Java {java_version(spark)}, durability {arguments.durability}")
        print(f"load {load}", flush=True)
        if "throughput" in parts:
            for size, fewer in SIZES.items():
                results[f"{size} B, rows/s"] = throughput(
                    spark,
                    node.grpc,
                    targets,
                    size,
                    arguments.rows // fewer // PARTITIONS * PARTITIONS,
                    arguments.rounds,
                )
        if "batches" in parts:
            results["a batch, ms"] = micro_batches(spark, targets, arguments.batches, arguments.rounds)
        spark.stop()
        if "memory" in parts:
            spark = session(reuse_workers=False)
            for size in SIZES:
                results[f"{size} B, MB of a task"] = task_memory(spark, targets[0], size, arguments.megabytes)
            spark.stop()
    print(f"\nload at the end {', '.join(f'{one:.1f}' for one in os.getloadavg())}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
