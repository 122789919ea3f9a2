"""Queries of Spark with much of something. `make test-spark` runs them: together they take many minutes."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from longer_runs import given
from spark_copy import copy_in_spark
from spark_query import settled_values

import semel
from semel.protocol.ids import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(2_000),
    pytest.mark.skipif(given("SEMEL_SPARK_LONG", "0") != "1", reason="takes minutes: `make test-spark` runs it"),
]

NewTopic = Callable[..., str]


def test_E2_values_of_10_mib_are_copied_whole(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    size = 10 << 20
    read, write = (f"t-{uuid.uuid4().hex[:12]}" for _ in range(2))
    with semel.Admin(bootstrap) as admin:
        for topic in (read, write):
            admin.create_topic(topic, partitions=2, configs={"max.message.bytes": str(size + 4_096)})
    values = [f"{number}".ljust(size, chr(ord("a") + number)) for number in range(6)]
    with semel.Producer(bootstrap, record_bytes_max=size + 4_096, buffer_memory_bytes=8 * size) as producer:
        for number, value in enumerate(values):
            producer.send(read, value, partition=number % 2)
    copy_in_spark(spark, bootstrap, read, write, tmp_path, **{"kafka.batch.size": str(16 << 20)})
    assert Counter(settled_values(bootstrap, write)) == Counter(values)


def test_E2_2000_partitions_of_a_source_are_read_in_one_batch(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    count = 2_000
    read, write = new_topic(count), new_topic(2)
    with semel.Producer(bootstrap) as producer:
        for partition in range(count):
            producer.send(read, f"row-{partition}", partition=partition)
    copy_in_spark(spark, bootstrap, read, write, tmp_path, tasks=4)
    assert Counter(settled_values(bootstrap, write)) == Counter(f"row-{number}" for number in range(count))
    with semel.Admin(bootstrap) as admin:
        places = admin.group_offsets(f"group-{write}")
    assert {tp: place.offset for tp, place in places.items()} == {TopicPartition(read, at): 1 for at in range(count)}


def test_E2_1001_tasks_with_rows_are_refused_with_what_to_do_and_1000_commit(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()

    def write(tasks: int) -> None:
        frame = spark.range(0, tasks, 1, tasks).selectExpr("cast(id AS string) value")
        frame.write.format("semel").options(bootstrap=bootstrap, topic=topic).mode("append").save()

    with pytest.raises(Exception, match=r"shared\.transaction\.max\.writers.*coalesce"):
        write(1_001)
    assert settled_values(bootstrap, topic) == []
    write(1_000)
    assert Counter(settled_values(bootstrap, topic)) == Counter(str(number) for number in range(1_000))
