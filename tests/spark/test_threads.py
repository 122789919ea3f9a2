"""Writing from threads of one's own: Spark looks for sources in Python in the session that is active in the thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import InheritableThread
from spark_copy import produce
from spark_query import settled_values

import semel
from semel.protocol.ids import TopicPartition
from semel.spark import use_session, write_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NewTopic = Callable[..., str]
Thread = Callable[..., threading.Thread]


def begin(thread: Thread, work: Callable[[], None]) -> Future[None]:
    """Do it in a thread of this kind, and return what comes of it."""
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread(target=run).start()
    return outcome


@pytest.mark.parametrize("thread", [threading.Thread, InheritableThread])
def test_a_thread_writes_and_starts_a_query_once_it_uses_the_session(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path, thread: Thread
) -> None:
    """Each ended in ClassNotFoundException: semel.DefaultSource, though reading worked."""
    read, write = new_topic(), new_topic()

    def work() -> None:
        use_session(spark)
        frame = spark.createDataFrame([("a",), ("b",)], "value string")
        frame.write.format("semel").options(bootstrap=bootstrap, topic=read).mode("append").save()
        (
            spark.readStream.format("semel")
            .options(bootstrap=bootstrap, subscribe=read, startingOffsets="earliest")
            .load()
            .writeStream.format("semel")
            .options(bootstrap=bootstrap, topic=write, checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    begin(thread, work).result(300)
    assert sorted(settled_values(bootstrap, write)) == ["a", "b"]


def test_O5_E2_the_sinks_of_a_batch_write_at_the_same_time_and_move_one_group(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """A function that writes each sink in a thread. The later one finds the group moved, by its own batch."""
    read, topics = new_topic(), (new_topic(), new_topic())
    group = f"group-{read}"
    produce(bootstrap, read, "a", "b", "c")

    def both(frame: DataFrame, batch_id: int) -> None:
        def to(topic: str) -> Callable[[], None]:
            options = {"bootstrap": bootstrap, "topic": topic, "kafka.group.id": group}
            return lambda: write_batch(frame, batch_id, f"to {topic}", options, checkpoint=str(tmp_path))

        for outcome in [begin(InheritableThread, to(topic)) for topic in topics]:
            outcome.result(300)

    for _ in range(2):
        (
            spark.readStream.format("semel")
            .options(bootstrap=bootstrap, subscribe=read, startingOffsets="earliest", maxOffsetsPerTrigger="2")
            .load()
            .select("value")
            .writeStream.foreachBatch(both)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        produce(bootstrap, read, "d")
    for topic in topics:
        assert sorted(settled_values(bootstrap, topic)) == ["a", "b", "c", "d"]
    with semel.Admin(bootstrap) as admin:
        assert admin.group_offsets(group)[TopicPartition(read, 0)].offset == 4
