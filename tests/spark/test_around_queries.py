"""What is around a query of Spark: its checkpoint's place, how rows travel, how a job is started and stopped.

`make test-spark` runs them: together they take minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from everything_diskless import diskless_options
from longer_runs import given
from spark_cluster import wait_until
from spark_copy import copy_in_spark, produce
from spark_query import settled_values

import semel
from semel.cli.demo.processes import NodeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(given("SEMEL_SPARK_LONG", "0") != "1", reason="takes minutes: `make test-spark` runs it"),
]

NewTopic = Callable[..., str]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
PLACES = [
    ("a b", "{}"),
    ("\u00fcml\u00e4ut", "file:{}"),
    ("a+b#c", "{}"),
    ("what?", "{}"),
    ("ck%20b", "file://{}"),
    ("100%", "{}"),
    ("a//b/./c", "{}"),
]
"""Where a checkpoint lies, and how it is given."""


def check_copied_once(spark: SparkSession, bootstrap: str, new_topic: NewTopic, given_as: str, folder: Path) -> None:
    """Copy, repeat the last batch, and copy more. `folder`: where the checkpoint must be, given as `given_as`."""
    read, write = new_topic(), new_topic()
    for text, batch_id in (("a", 0), ("b", 1)):
        produce(bootstrap, read, text)
        copy_in_spark(spark, bootstrap, read, write, given_as)
        (folder / "commits" / str(batch_id)).unlink()
        (folder / "commits" / f".{batch_id}.crc").unlink(missing_ok=True)
        copy_in_spark(spark, bootstrap, read, write, given_as)
    assert settled_values(bootstrap, write) == ["a", "b"]
    assert (folder / "semel-query-id").exists()


@pytest.mark.parametrize(("name", "form"), PLACES)
def test_E2_a_checkpoint_may_lie_in_an_odd_place(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path, name: str, form: str
) -> None:
    check_copied_once(spark, bootstrap, new_topic, form.format(f"{tmp_path}/{name}"), tmp_path / name)


def test_E2_a_checkpoint_may_be_given_by_a_link_and_relative_to_where_the_driver_runs(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    check_copied_once(spark, bootstrap, new_topic, os.path.relpath(tmp_path / "link" / "one"), tmp_path / "real/one")


def test_E2_rows_travel_one_by_one_with_large_types_and_compressed(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    settings = {"maxRecordsPerBatch": "1", "useLargeVarTypes": "true", "compression.codec": "zstd"}
    named = {f"spark.sql.execution.arrow.{name}": value for name, value in settings.items()}
    before = {name: spark.conf.get(name, None) for name in named}
    read, write = new_topic(2), new_topic(2)
    values = [f"row-{number}" for number in range(200)]
    try:
        for name, value in named.items():
            spark.conf.set(name, value)
        rows = spark.createDataFrame([(value,) for value in values], "value string")
        rows.write.format("semel").options(bootstrap=bootstrap, topic=read).mode("append").save()
        copy_in_spark(spark, bootstrap, read, write, tmp_path)
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
    assert Counter(settled_values(bootstrap, write)) == Counter(values)


ROWS = [f"row-{number}" for number in range(400)]


def start_copy_in_small_batches(
    spark: SparkSession, bootstrap: str, read: str, write: str, checkpoint: Path
) -> StreamingQuery:
    return (
        spark.readStream.format("semel")
        .options(bootstrap=bootstrap, subscribe=read, startingOffsets="earliest", maxOffsetsPerTrigger="20")
        .load()
        .select("value")
        .writeStream.format("semel")
        .options(bootstrap=bootstrap, topic=write, checkpointLocation=str(checkpoint))
        .option("kafka.group.id", f"group-{write}")
        .start()
    )


def fill(bootstrap: str, topic: str) -> None:
    with semel.Producer(bootstrap) as producer:
        for number, value in enumerate(ROWS):
            producer.send(topic, value, partition=number % 2)


def wait_within_a_new_batch(checkpoint: Path) -> None:
    """Wait until a batch is planned that was not when this was called, and is not committed."""

    def count(of: str) -> int:
        return len(list(checkpoint.glob(f"{of}/[0-9]*")))

    already = count("offsets")
    wait_until(lambda: count("offsets") > max(already, count("commits")), "a new batch is under way")


def test_E2_a_query_that_is_stopped_in_the_middle_of_batches_leaves_nothing_open_and_continues(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    read, write = new_topic(2), new_topic(2)
    fill(bootstrap, read)
    for _ in range(4):
        query = start_copy_in_small_batches(spark, bootstrap, read, write, tmp_path)
        wait_within_a_new_batch(tmp_path)
        query.stop()
        found = Counter(settled_values(bootstrap, write))  # waits for what is open, much less long than its timeout
        assert max(found.values(), default=1) == 1
        assert found.total() < len(ROWS)
    copy_in_spark(spark, bootstrap, read, write, tmp_path)
    assert Counter(settled_values(bootstrap, write)) == Counter(ROWS)


def test_E2_a_node_is_killed_again_and_again_under_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """In whatever phase of a batch it is. The query continues, or is started again where it has failed."""
    checkpoint = tmp_path / "checkpoint"
    node = NodeProcess(
        tmp_path / "data", settings=("offsets.topic.num.partitions=2", "disk.min.free.bytes=0", *diskless_options())
    )
    node.start()
    try:
        with semel.Admin(node.bootstrap) as admin:
            for topic in ("read", "write"):
                admin.create_topic(topic, partitions=2)
        fill(node.bootstrap, "read")
        query = start_copy_in_small_batches(spark, node.bootstrap, "read", "write", checkpoint)
        for turn in range(6):
            wait_within_a_new_batch(checkpoint)
            time.sleep(0.15 * turn)  # another phase each time
            node.kill()
            node.start()
            if not query.isActive:
                query = start_copy_in_small_batches(spark, node.bootstrap, "read", "write", checkpoint)
        while True:
            try:
                query.processAllAvailable()
                break
            except Exception:
                assert not query.isActive
                query = start_copy_in_small_batches(spark, node.bootstrap, "read", "write", checkpoint)
        query.stop()
        assert Counter(settled_values(node.bootstrap, "write")) == Counter(ROWS)
        with semel.Admin(node.bootstrap) as admin:
            places = admin.group_offsets("group-write")
        assert {tp.partition: place.offset for tp, place in places.items()} == {0: 200, 1: 200}
    finally:
        node.stop()


# --- docs/spark.md, by spark-submit -----------------------------------------------------------------------------------

JOB = """
import threading
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("page").getOrCreate()


def finish():
    (query,) = spark.streams.active
    query.processAllAvailable()
    query.stop()


{stream}
finish()
{batch}
checkpoint = "CHECKPOINTS/totals"
totals = large.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) value")
{foreach}
finish()
options = {{"bootstrap": "localhost:9094", "topic": "from-a-thread"}}
others = set(threading.enumerate())
{thread}
for thread in set(threading.enumerate()) - others:
    thread.join()
options = {{"bootstrap": "localhost:9094", "topic": "traced", "checkpointLocation": "CHECKPOINTS/traced"}}
{trace}
finish()
"""


def test_E2_the_programs_of_the_page_run_by_spark_submit(spark_environment: Mapping[str, str], tmp_path: Path) -> None:
    """With the environment activated, which is how PySpark finds the Python that has Semel. Writes make the topics."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    of = dict(zip(("stream", "batch", "foreach", "thread", "token", "trace"), blocks, strict=True))
    node = NodeProcess(
        tmp_path / "data", settings=("offsets.topic.num.partitions=2", "disk.min.free.bytes=0", *diskless_options())
    )
    node.start()
    try:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("orders", partitions=2)
        with semel.Producer(node.bootstrap) as producer:
            for number in range(20):
                producer.send("orders", f'{{"total": {100 * number}}}', key=f"order-{number}")
        job = JOB.format(**of)
        for name, value in (("/data/checkpoints", "CHECKPOINTS"), ("CHECKPOINTS", str(tmp_path / "checkpoints"))):
            job = job.replace(name, value)
        job = job.replace("localhost:9092", node.kafka_address).replace("localhost:9094", node.bootstrap)
        (tmp_path / "job.py").write_text(job)
        settings = ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"]
        folder = Path(sys.executable).parent
        environment = {**os.environ, **spark_environment, "PATH": f"{folder}:{os.environ['PATH']}"}
        del environment["PYSPARK_PYTHON"]
        done = subprocess.run(
            [folder / "spark-submit", "--master", "local[2]", *settings, tmp_path / "job.py"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4_000:]
        large = [f'{{"total": {100 * number}}}' for number in range(11, 20)]
        assert sorted(settled_values(node.bootstrap, "large-orders")) == sorted([*large, '{"total": 1200}'])
        assert settled_values(node.bootstrap, "totals") == ["1"] * 9
        assert settled_values(node.bootstrap, "from-a-thread") == ['{"total": 1200}']
        assert sorted(settled_values(node.bootstrap, "traced")) == large
    finally:
        node.stop()
