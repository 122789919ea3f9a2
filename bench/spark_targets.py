"""Where the Spark bench reads and writes: a session with or without Spark's connector, a node, and Apache Kafka."""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from spark_null import NullDataSource

from semel.spark.java import java_home

BENCH = Path(__file__).resolve().parent
PARTITIONS = 4
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Target:
    """A broker, and the data source by which Spark reaches it."""

    format: str
    broker: str
    address: str
    """Of its Kafka listener."""
    grpc: str = ""
    """Of a node's gRPC listener, for Semel's data source."""

    @property
    def name(self) -> str:
        return "Semel" if self.format == "semel" else f"Spark's connector, {self.broker}"

    def new_topic(self, prefix: str, partitions: int = PARTITIONS) -> str:
        topic = f"{prefix}-{uuid.uuid4().hex[:12]}"
        admin = self._admin()
        admin.create_topics([NewTopic(topic, partitions, 1)], operation_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)
        return topic

    def drop(self, topic: str) -> None:
        admin = self._admin()  # its answers come while it lives
        admin.delete_topics([topic], operation_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)

    def produce(self, topic: str, rows: int, partitions: int) -> None:
        """Write small rows, in turns to the partitions, without Spark."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.address})
        for number in range(rows):
            producer.produce(topic, b"x", partition=number % partitions)
            producer.poll(0)
        assert producer.flush(TIMEOUT_S) == 0

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 4})

    def options(self, **more: object) -> dict[str, str]:
        """The options of its data source."""
        address = ("bootstrap", self.grpc) if self.grpc else ("kafka.bootstrap.servers", self.address)
        return dict([address]) | {name: str(value) for name, value in more.items()}

    def read(self, spark: SparkSession, topic: str) -> DataFrame:
        options = self.options(subscribe=topic) | {"kafka.isolation.level": "read_committed"}  # Semel's default
        return spark.read.format(self.format).options(**options).load()

    def write(self, frame: DataFrame, topic: str) -> None:
        frame.write.format(self.format).options(**self.options(topic=topic)).mode("append").save()


def session(jars: Sequence[Path] = (), *, reuse_workers: bool = True) -> SparkSession:
    """Start Spark with two cores, the do-nothing source, and these jars. Raises `UsageError` where there is no Java."""
    home = java_home(Path(tempfile.gettempdir()) / "semel-spark-java")
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # So that workers find spark_null.
    paths = [str(BENCH), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
        .config("spark.python.worker.reuse", str(reuse_workers).lower())
    )
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    built = builder.getOrCreate()
    built.sparkContext.setLogLevel("OFF")
    built.dataSource.register(NullDataSource)
    return built


def null_rows(spark: SparkSession, rows: int, size: int) -> DataFrame:
    """Rows from the do-nothing source."""
    options = {"rows": str(rows), "size": str(size), "parts": str(PARTITIONS)}
    return spark.read.format("null").options(**options).load()


def of_spark(spark: SparkSession, rows: int, size: int) -> DataFrame:
    """Keys and values that Spark itself makes, in its JVM, as when it reads Parquet."""
    value = f"cast(rpad(hex(hash(id)), {size}, hex(xxhash64(id))) AS binary) AS value"
    return spark.range(0, rows, 1, PARTITIONS).selectExpr("cast(lpad(id, 8, '0') AS binary) AS key", value)


def java_version(spark: SparkSession) -> Any:
    assert spark.sparkContext._jvm is not None
    return spark.sparkContext._jvm.System.getProperty("java.runtime.version")
