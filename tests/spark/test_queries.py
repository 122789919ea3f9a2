"""Queries of Spark itself, in the one session that all of them share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from spark_driver import copy
from spark_query import read_table, read_values, settled_values

import semel
from pyspark_semel import DefaultSource
from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.producer.partitioner import partition_for_key
from semel.spark import LagListener, foreach_batch, write_batch
from semel.spark.sink.stream_writer import SemelStreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

NewTopic = Callable[..., str]
DRIVER = Path(__file__).parent.parent / "support" / "spark" / "spark_driver.py"


def fill(bootstrap: str, topic: str, values: list[str], partitions: int = 2) -> None:
    with semel.Producer(bootstrap) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value.encode(), key=f"k{number % 7}".encode(), partition=number % partitions)
        producer.flush()


def forget_last_commit(checkpoint: Path) -> int:
    """Leave the checkpoint as a driver does that died between the sink's decision and Spark's own log."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    return last


def test_a_batch_is_written_as_one_by_key_column_and_option(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    topic, other = new_topic(3), new_topic(2)
    frame = spark.range(1_000).selectExpr("cast(id as string) key", "concat('v', id) value")
    frame.write.format("semel").option("bootstrap", bootstrap).option("topic", topic).mode("append").save()
    settled_values(bootstrap, topic)
    table = read_table(bootstrap=bootstrap, subscribe=topic).to_pylist()
    assert Counter(row["value"].decode() for row in table) == Counter(f"v{number}" for number in range(1_000))
    assert all(row["partition"] == partition_for_key(row["key"], 3) for row in table)
    columns = spark.sql(
        f"SELECT 'a' AS value, '{topic}' AS topic, 2 AS partition, NULL AS key, "
        "array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers "
        f"UNION ALL SELECT 'b', '{other}', 1, 'k', NULL"
    )
    columns.write.format("semel").option("bootstrap", bootstrap).mode("append").save()
    settled_values(bootstrap, topic)
    settled_values(bootstrap, other)
    (row,) = [
        row
        for row in read_table(bootstrap=bootstrap, subscribe=topic, includeHeaders="true").to_pylist()
        if row["value"] == b"a"
    ]
    assert (row["partition"], row["key"], row["headers"]) == (2, None, [{"key": "h", "value": b"x"}])
    (row,) = read_table(bootstrap=bootstrap, subscribe=other).to_pylist()
    assert (row["partition"], row["key"], row["value"]) == (1, b"k", b"b")


def test_a_batch_whose_task_fails_for_good_leaves_nothing(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    frame = spark.range(0, 100, 1, 2).selectExpr("if(id = 99, raise_error('bad row'), concat('v', id)) AS value")
    with pytest.raises(Exception, match="bad row"):
        frame.write.format("semel").option("bootstrap", bootstrap).option("topic", topic).mode("append").save()
    assert settled_values(bootstrap, topic) == []
    with pytest.raises(Exception, match="can't be overwritten"):
        spark.range(1).selectExpr("'v' AS value").write.format("semel").option("bootstrap", bootstrap).option(
            "topic", topic
        ).mode("overwrite").save()


def test_a_frame_is_read_with_sparks_types(spark: SparkSession, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, [str(number) for number in range(100)])
    options = {"bootstrap": bootstrap, "subscribe": topic, "includeHeaders": "true", "minPartitions": "4"}
    frame = spark.read.format("semel").options(**options).load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    row = frame.selectExpr(
        "count(*) n", "sum(cast(cast(value AS string) AS int)) total", "max(offset) last", "count(headers) h"
    ).collect()[0]
    assert (row.n, row.total, row.last, row.h) == (100, 4950, 49, 0)
    assert frame.where("partition = 1 AND offset >= 48").selectExpr("cast(value AS string) v").collect() == [
        ("97",),
        ("99",),
    ]


@pytest.mark.drawn(3, "kills under Spark")
def test_E2_a_stream_whose_tasks_die_and_whose_batch_is_repeated_writes_each_row_once(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, target = new_topic(2), new_topic(2)
    values = [f"row-{number}" for number in range(100)]
    fill(bootstrap, topic, values)

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        task = TaskContext.get()
        if task is not None and task.attemptNumber() == 0:
            raise OSError("this attempt dies after its rows are on their way")

    lags: list[Mapping[TopicPartition, int]] = []
    listener = LagListener(lambda name, lag: lags.append(lag))
    spark.streams.addListener(listener)

    def run() -> StreamingQuery:
        query = (
            spark.readStream.format("semel")
            .options(bootstrap=bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="60")
            .load()
            .select("key", "value")
            .mapInArrow(die_once, "key binary, value binary")
            .writeStream.format("semel")
            .options(bootstrap=bootstrap, topic=target)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    query = run()
    ends = [json.loads(progress["sources"][0]["endOffset"]) for progress in query.recentProgress]
    assert [end.get(topic) for end in ends] == [{"0": 30, "1": 30}, {"0": 50, "1": 50}]
    assert [len(end) for end in ends] == [2, 1], "the first one says where the batch began, too"
    assert Counter(settled_values(bootstrap, target)) == Counter(values)
    assert forget_last_commit(tmp_path) == 1
    run()
    assert Counter(settled_values(bootstrap, target)) == Counter(values)
    spark.streams.removeListener(listener)
    assert {TopicPartition(topic, 0): 20, TopicPartition(topic, 1): 20} in lags


def test_E2_a_batch_whose_tasks_are_killed_is_aborted_at_once_and_written_from_offset_log_v2(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, target = new_topic(), new_topic()
    group = f"copy-{target}"
    values = [f"row-{number}" * 100 for number in range(1_000)]
    fill(bootstrap, topic, values, partitions=1)

    class Dying(SemelStreamWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            super().write(iterator)
            os.kill(os.getpid(), signal.SIGKILL)

    class DyingSink(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "semel_dying"

        def streamWriter(self, schema: Any, overwrite: bool) -> SemelStreamWriter:
            return Dying(self.options, schema)

    spark.dataSource.register(DyingSink)

    def start(frame: DataFrame, sink: str) -> StreamingQuery:
        writer = frame.writeStream.format(sink).options(bootstrap=bootstrap, topic=target)
        writer = writer.option("kafka.group.id", group).option("checkpointLocation", str(tmp_path))
        return writer.trigger(availableNow=True).start()

    version = "spark.sql.streaming.offsetLog.formatVersion"
    spark.conf.set(version, "2")
    try:
        frame = spark.readStream.format("semel").options(bootstrap=bootstrap, subscribe=topic)
        rows = frame.option("startingOffsets", "earliest").load().select("value")
        with pytest.raises(Exception, match=r"SparkException|crashed|Job aborted"):
            start(rows, "semel_dying").awaitTermination()
        assert (tmp_path / "offsets" / "0").read_text().startswith("v2")
        with semel.Admin(bootstrap) as admin:
            query_id = json.loads((tmp_path / "metadata").read_text())["id"]
            left = admin.shared_transaction(f"spark/{query_id}/{target}")
            assert (left.attempt, left.decisions) == ("", ())
            start(rows, "semel").awaitTermination()
            assert Counter(settled_values(bootstrap, target)) == Counter(values)
            assert {tp: place.offset for tp, place in admin.group_offsets(group).items()} == {
                TopicPartition(topic, 0): len(values)
            }
    finally:
        spark.conf.unset(version)


def test_E2_foreach_batch_in_update_mode_and_with_two_sinks_is_exactly_once(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, totals, raw = new_topic(2), new_topic(), new_topic()
    fill(bootstrap, topic, [str(number) for number in range(14)])
    to_totals = foreach_batch("totals", {"bootstrap": bootstrap, "topic": totals}, checkpoint=str(tmp_path))
    to_keys = foreach_batch("keys", {"bootstrap": bootstrap, "topic": raw}, source_range="none")

    def both(frame: DataFrame, batch_id: int) -> None:
        to_totals(frame.selectExpr("key", "concat(cast(key AS string), '=', count) AS value"), batch_id)
        to_keys(frame.selectExpr("key AS value"), batch_id)

    def run() -> None:
        (
            spark.readStream.format("semel")
            .options(bootstrap=bootstrap, subscribe=topic, startingOffsets="earliest")
            .load()
            .groupBy("key")
            .count()
            .writeStream.outputMode("update")
            .foreachBatch(both)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    run()
    forget_last_commit(tmp_path)
    run()
    assert sorted(settled_values(bootstrap, totals)) == [f"k{number}=2" for number in range(7)]
    assert sorted(settled_values(bootstrap, raw)) == [f"k{number}" for number in range(7)]


def test_O5_E2_a_batch_whose_second_sink_fails_is_in_both_once_after_its_next_run(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """The first sink is committed, with the group's offsets; the batch is repeated for the second one's sake."""
    read, first, second = new_topic(), new_topic(), new_topic()
    group = f"group-{read}"
    fill(bootstrap, read, ["a", "b" * 2_000], partitions=1)
    runs: list[int] = []

    def both(frame: DataFrame, batch_id: int) -> None:
        runs.append(batch_id)
        for name, topic in (("first", first), ("second", second)):
            options = {"bootstrap": bootstrap, "topic": topic, "kafka.group.id": group}
            write_batch(frame, batch_id, name, options, checkpoint=str(tmp_path))
        if len(runs) == 2:
            raise OSError("the function fails after both")

    def run() -> None:
        (
            spark.readStream.format("semel")
            .options(bootstrap=bootstrap, subscribe=read, startingOffsets="earliest")
            .load()
            .select("value")
            .writeStream.foreachBatch(both)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    with semel.Admin(bootstrap) as admin:
        admin.alter_topic_configs(second, changes={"max.message.bytes": "1000"})
        with pytest.raises(Exception, match=rf"(?s){second}.*max\.message\.bytes"):
            run()
        assert (len(settled_values(bootstrap, first)), settled_values(bootstrap, second)) == (2, [])
        assert admin.group_offsets(group)[TopicPartition(read, 0)].offset == 2
        admin.alter_topic_configs(second, remove=["max.message.bytes"])
    with pytest.raises(Exception, match="fails after both"):
        run()
    fill(bootstrap, read, ["c"], partitions=1)
    run()
    assert runs == [0, 0, 0, 1]
    for topic in (first, second):
        assert sorted(settled_values(bootstrap, topic)) == ["a", "b" * 2_000, "c"]


def test_a_query_moves_here_with_the_checkpoint_of_the_kafka_source(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, [str(number) for number in range(20)])
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    (tmp_path / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    conf = {"spark.sql.shuffle.partitions": "2"}
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000, "conf": conf})
    offsets = f'{{"{topic}":{{"1":4,"0":9}}}}'  # as Spark's Kafka source writes them
    (tmp_path / "offsets" / "0").write_text(f"v1\n{metadata}\n{offsets}")
    (tmp_path / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    name = f"moved_{uuid.uuid4().hex[:8]}"
    query = (
        spark.readStream.format("semel")
        .options(bootstrap=bootstrap, subscribe=topic)
        .load()
        .selectExpr("cast(value AS string) value")
        .writeStream.foreachBatch(lambda frame, _: frame.write.mode("append").saveAsTable(name))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = sorted(int(row.value) for row in spark.table(name).collect())
    assert found == sorted([18, *range(9, 20, 2)])
    spark.sql(f"DROP TABLE {name}")


@pytest.mark.drawn(1, "long runs of Spark")
def test_E2_the_driver_is_killed_before_and_after_a_decision(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopic,
    tmp_path: Path,
    spark_environment: Mapping[str, str],
) -> None:
    topic, target = new_topic(2), new_topic(2)
    values = [f"row-{number}" for number in range(100)]
    fill(bootstrap, topic, values)
    for when in ("before", "after"):
        driver = subprocess.run(
            [sys.executable, "-P", str(DRIVER), bootstrap, str(tmp_path), topic, target, when, "1"],
            env={**os.environ, **spark_environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert driver.returncode == -signal.SIGKILL, driver.stderr[-3_000:]
        assert not (tmp_path / "commits" / "1").exists()
        # What the driver left open stays so until the next run; what was decided shows once it has its markers.
        expected = 40 if when == "before" else 80
        while len(read_values(bootstrap, target)) < expected:
            time.sleep(0.1)
        assert len(read_values(bootstrap, target)) == expected
    copy(spark, "semel", bootstrap, str(tmp_path), topic, target).awaitTermination()
    assert Counter(settled_values(bootstrap, target)) == Counter(values)
    with semel.Admin(bootstrap) as admin:
        committed = {tp.partition: place.offset for tp, place in admin.group_offsets(f"copy-{target}").items()}
    assert committed == {0: 50, 1: 50}


def test_what_can_not_be_is_said_with_the_way_round(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    def start(**options: Any) -> None:
        frame = spark.readStream.format("rate").load().selectExpr("cast(value AS string) value")
        writer = frame.writeStream.format("semel").options(bootstrap=bootstrap, topic="t", **options)
        query = writer.option("checkpointLocation", str(tmp_path / uuid.uuid4().hex)).start()
        query.awaitTermination(120)

    frame = spark.range(1).selectExpr("'v' AS value")
    with pytest.raises(UsageError, match="foreachBatch"):
        write_batch(frame, 0, "sink", {"bootstrap": bootstrap, "topic": "t"})
    with pytest.raises(UsageError, match="a name of its own"):
        write_batch(frame, 0, "", {"bootstrap": bootstrap, "topic": "t"})
    with pytest.raises(Exception, match="did you mean 'topic'"):
        start(topics="t")
    with pytest.raises(Exception, match=r"no offsets to commit.*leave kafka\.group\.id out"):
        start(**{"kafka.group.id": "g"})
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        frame = spark.readStream.format("rate").load().selectExpr("cast(value AS string) value")
        with pytest.raises(Exception, match="in the session's configuration is not shown to it"):
            frame.writeStream.format("semel").options(bootstrap=bootstrap, topic="t").start().awaitTermination(120)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    with pytest.raises(Exception, match="does not support async progress tracking"):
        start(asyncProgressTrackingEnabled="true")


def test_the_example_copies_late_flights_and_reports_them(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    from semel.spark.examples import flights_etl

    with semel.Admin(bootstrap) as admin:
        for topic in (flights_etl.FLIGHTS, flights_etl.LATE, flights_etl.REPORT):
            admin.create_topic(topic, partitions=flights_etl.PARTITIONS)
    late = flights_etl.load(bootstrap, 2_000)
    options = {"bootstrap": bootstrap}
    frame = flights_etl.late_flights(spark, options)
    flights_etl.start(frame, options, str(tmp_path / "checkpoint")).awaitTermination()
    assert len(settled_values(bootstrap, flights_etl.LATE)) == late > 0
    lines = flights_etl.report(spark, options, str(tmp_path / "late.parquet"))
    assert sum(count for _, count, _ in lines) == late
    assert len(settled_values(bootstrap, flights_etl.REPORT)) == len(lines)
