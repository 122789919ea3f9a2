"""An application of Spark whose queries are traced: a batch, one more, and the second one again. Run as a program.

Arguments: bootstrap, checkpoint, topic to read, topic to write, traceparent. It sets an SDK for itself, as applications
do; what Spark's own processes do is up to the environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from pyspark.sql import SparkSession

import semel
from semel.spark import LagListener

FIRST, SECOND = 60, 40


def main(bootstrap: str, checkpoint: str, read: str, write: str, traceparent: str) -> None:
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    set_meter_provider(meters)
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )
    session.streams.addListener(LagListener())
    session.sparkContext.setLocalProperty("traceparent", traceparent)
    fill(bootstrap, read, FIRST)
    copy(session, bootstrap, checkpoint, read, write)
    fill(bootstrap, read, SECOND)
    copy(session, bootstrap, checkpoint, read, write)
    for name in ("1", ".1.crc"):  # as if the driver had died before it could note the second batch as done
        (Path(checkpoint) / "commits" / name).unlink()
    copy(session, bootstrap, checkpoint, read, write)
    session.stop()
    meters.force_flush()


def fill(bootstrap: str, topic: str, count: int) -> None:
    with semel.Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, f"row-{number}".encode(), partition=number % 2)


def copy(session: SparkSession, bootstrap: str, checkpoint: str, read: str, write: str) -> None:
    query = (
        session.readStream.format("semel")
        .options(bootstrap=bootstrap, subscribe=read, startingOffsets="earliest")
        .load()
        .select("value", "partition")
        .writeStream.format("semel")
        .queryName("copy")
        .options(bootstrap=bootstrap, topic=write, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
