"""Spark's own connector to Kafka, unchanged, through a node's Kafka listener, and beside Semel's source and sink."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kafka_jars
import pyarrow as pa
import pytest
from jvm_start import start_without_fork
from spark_query import settled_values

import semel
from semel.cli.demo.processes import NodeProcess
from semel.protocol.errors import UsageError
from semel.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # PySpark's own are none of ours
]

NewTopic = Callable[..., str]
START_MS = int(time.time()) * 1_000 - 3_600_000
"""When the records were made: an hour ago, since retention deletes what is old."""
CONNECTOR, SEMEL = "kafka", "semel"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PLACES = ("topic", "partition", "offset")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session in which tasks are tried three times."""
    try:
        jars = kafka_jars.connector_jars()
        home = java_home(tmp_path_factory.mktemp("java"))
    except (kafka_jars.JavaMissingError, UsageError) as error:
        pytest.skip(str(error))
    from pyspark.sql import SparkSession

    os.environ.update(PYSPARK_PYTHON=sys.executable, PYTHONSAFEPATH="1", SPARK_LOCAL_IP="127.0.0.1")
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    with pytest.MonkeyPatch.context() as patch:
        start_without_fork(patch)
        session = (
            SparkSession.builder.master("local[2,3]")
            .appName("semel-connector")
            .config("spark.ui.enabled", "false")
            .config("spark.jars", ",".join(map(str, jars)))
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .config("spark.driver.memory", "1g")
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def new_topic(node: NodeProcess) -> NewTopic:
    """Makes a topic with a name of its own; `of` begins it."""

    def make(partitions: int = 2, of: str = "t") -> str:
        name = f"{of}-{uuid.uuid4().hex[:12]}"
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic(name, partitions=partitions)
        return name

    return make


def fill(node: NodeProcess, topic: str, values: list[str], partitions: int = 2) -> None:
    """Write values in turns to the partitions, a second between them."""
    with semel.Producer(node.bootstrap) as producer:
        for number, value in enumerate(values):
            headers = [("n", str(number)), ("empty", None)] if number % 3 == 0 else None
            key = f"k{number % 7}" if number % 5 else None
            timestamp_ms = START_MS + 1_000 * number
            producer.send(
                topic, value, key=key, headers=headers, partition=number % partitions, timestamp_ms=timestamp_ms
            )
        producer.flush()


def read(spark: SparkSession, node: NodeProcess, source: str, **options: object) -> DataFrame:
    """A batch query; "__" in an option's name stands for a dot."""
    return _with(spark.read.format(source), node, options).load()


def read_stream(spark: SparkSession, node: NodeProcess, source: str, **options: object) -> DataFrame:
    return _with(spark.readStream.format(source), node, options).load()


def write(frame: DataFrame, node: NodeProcess, sink: str, **options: object) -> None:
    _with(frame.write.format(sink), node, options).mode("append").save()


def _with(builder: Any, node: NodeProcess, options: Mapping[str, object]) -> Any:
    named = {name.replace("__", "."): str(value) for name, value in options.items()}
    return builder.options(**{"kafka.bootstrap.servers": node.kafka_address, **named})


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """All columns, in the log's order."""
    return [row.asDict(recursive=True) for row in frame.orderBy(*PLACES).collect()]


def values_of(found: list[dict[str, Any]]) -> list[str]:
    return [bytes(row["value"]).decode() for row in found]


def run_to_table(frame: DataFrame, table: str, checkpoint: Path) -> StreamingQuery:
    """Append what there is to a table, and note the number of its batch."""

    def append(part: DataFrame, batch_id: int) -> None:
        part.selectExpr("cast(value AS string) value", f"{batch_id} AS batch").write.mode("append").saveAsTable(table)

    query = (
        frame.writeStream.foreachBatch(append)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def table_rows(spark: SparkSession, table: str) -> dict[int, Counter[str]]:
    """The table's values by the number of the batch that wrote them."""
    found: dict[int, Counter[str]] = {}
    spark.catalog.refreshTable(table)  # streams write to it with a session of their own
    for row in spark.table(table).collect():
        found.setdefault(row.batch, Counter())[row.value] += 1
    return found


def forget_last_commit(checkpoint: Path) -> int:
    """Leave the checkpoint as a driver does that died before it could note its last batch as done."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    return last


@pytest.mark.parametrize("codec", CODECS)
def test_what_the_connector_writes_both_sources_read(
    spark: SparkSession, node: NodeProcess, new_topic: NewTopic, codec: str
) -> None:
    topic, other = new_topic(3), new_topic(2)
    frame = spark.sql(
        f"SELECT 'a' AS value, '{topic}' AS topic, 2 AS partition, cast(NULL AS string) AS key, "
        "array(named_struct('key', 'h', 'value', CAST('x' AS BINARY)), named_struct('key', 'h', 'value', NULL)) headers"
        f" UNION ALL SELECT NULL, '{other}', 1, 'k', NULL "
        f"UNION ALL SELECT repeat('long', 50000), '{other}', 0, '', NULL"
    )
    write(frame, node, CONNECTOR, kafka__compression__type=codec)
    many = spark.range(500).selectExpr("concat('k', id % 9) AS key", "concat('v', id) AS value")
    write(many, node, CONNECTOR, topic=topic, kafka__compression__type=codec)
    options = {"subscribe": f"{topic},{other}", "includeHeaders": "true"}
    found = rows(read(spark, node, CONNECTOR, **options))
    assert found == rows(read(spark, node, SEMEL, **options))
    assert len(found) == 503
    (row,) = [row for row in found if row["value"] == b"a"]
    headers = [{"key": "h", "value": b"x"}, {"key": "h", "value": None}]
    assert (row["partition"], row["key"], row["headers"]) == (2, None, headers)
    assert {(row["partition"], row["key"], row["value"]) for row in found if row["topic"] == other} == {
        (1, b"k", None),
        (0, b"", b"long" * 50_000),
    }


def test_a_key_goes_to_the_same_partition_from_both_sinks(
    spark: SparkSession, node: NodeProcess, new_topic: NewTopic
) -> None:
    topic = new_topic(7)
    frame = spark.range(300).selectExpr("concat('key ', id) AS key", "'v' AS value")
    for sink in (CONNECTOR, SEMEL):
        write(frame, node, sink, topic=topic)
    assert len(settled_values(node.bootstrap, topic)) == 600
    places: dict[bytes, list[int]] = {}
    for row in rows(read(spark, node, CONNECTOR, subscribe=topic, kafka__isolation__level="read_committed")):
        places.setdefault(bytes(row["key"]), []).append(row["partition"])
    assert len(places) == 300
    assert all(len(found) == 2 and len(set(found)) == 1 for found in places.values())


OPTIONS: Mapping[str, tuple[dict[str, object], int]] = {
    "everything": ({}, 100),
    "by pattern": ({"subscribe": None, "subscribePattern": "TOPIC.*"}, 100),
    "assigned": ({"subscribe": None, "assign": {"TOPIC": [1]}}, 50),
    "offsets": (
        {"startingOffsets": {"TOPIC": {"0": 10, "1": -2}}, "endingOffsets": {"TOPIC": {"0": -1, "1": 20}}},
        60,
    ),
    "since a time": ({"startingTimestamp": START_MS + 90_500}, 9),
    "up to a time": ({"endingTimestamp": START_MS + 10_000}, 10),
    "times by partition": (
        {
            "startingOffsetsByTimestamp": {"TOPIC": {"0": START_MS + 50_000, "1": START_MS + 90_000}},
            "endingOffsetsByTimestamp": {"TOPIC": {"0": START_MS + 60_000, "1": START_MS + 99_000}},
        },
        9,
    ),
    "later than all there is": (
        {"startingTimestamp": START_MS + 1_000_000, "startingOffsetsByTimestampStrategy": "latest"},
        0,
    ),
    "in many parts": ({"minPartitions": 9}, 100),
    "in small parts": ({"maxRecordsPerPartition": 7}, 100),  # the connector's batch queries don't heed it
    "with a group": ({"kafka.group.id": "TOPIC-group"}, 100),
    "with a prefix of groups": ({"groupIdPrefix": "TOPIC-prefix"}, 100),
}
"""Options of a batch query, and how many of the hundred rows it gives."""


@pytest.mark.parametrize("case", OPTIONS)
def test_options_mean_the_same_to_both_sources(
    spark: SparkSession, node: NodeProcess, new_topic: NewTopic, case: str
) -> None:
    topic = new_topic(2, of="options")
    fill(node, topic, [str(number) for number in range(100)])
    special, count = OPTIONS[case]
    options = {"subscribe": topic, "includeHeaders": "true"}
    for name, value in special.items():
        text = value if isinstance(value, str) else json.dumps(value)
        options[name] = text.replace("TOPIC", topic)
        if value is None:
            del options[name]
    theirs, ours = read(spark, node, CONNECTOR, **options), read(spark, node, SEMEL, **options)
    assert theirs.schema == ours.schema
    found = rows(theirs)
    assert found == rows(ours)
    assert len(found) == count
    assert ours.rdd.getNumPartitions() >= {"in many parts": 9, "in small parts": 100 // 7}.get(case, 1)
    assert theirs.rdd.getNumPartitions() >= {"in many parts": 9}.get(case, 1)


def test_T5_the_connector_reads_what_is_committed(spark: SparkSession, node: NodeProcess, new_topic: NewTopic) -> None:
    """Aborted transactions in the middle and at the end, and one that is still open."""
    topic = new_topic(2)
    expected = []
    with semel.Producer(node.bootstrap, transactional_id=f"{topic}-writer") as producer:
        producer.init_transactions()
        for turn in range(8):
            producer.begin_transaction()
            for number in range(10):
                producer.send(topic, f"{turn}-{number}", partition=number % 2)
            producer.flush()
            if turn % 2 or turn == 6:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                expected += [f"{turn}-{number}" for number in range(10)]
    assert sorted(settled_values(node.bootstrap, topic)) == sorted(expected)
    with semel.Producer(node.bootstrap, transactional_id=f"{topic}-open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(10):
            producer.send(topic, f"open-{number}", partition=number % 2)
        producer.flush()
        for source in (CONNECTOR, SEMEL):
            committed = rows(read(spark, node, source, subscribe=topic, kafka__isolation__level="read_committed"))
            assert sorted(values_of(committed)) == sorted(expected)
            all_there_is = read(spark, node, source, subscribe=topic, kafka__isolation__level="read_uncommitted")
            assert len(rows(all_there_is)) == 90
        producer.abort_transaction()


@pytest.mark.parametrize("by", [CONNECTOR, SEMEL])
def test_what_was_deleted_fails_a_stream_or_is_passed_over_as_told(
    spark: SparkSession, node: NodeProcess, new_topic: NewTopic, tmp_path: Path, by: str
) -> None:
    topic = new_topic(2)
    table = f"loss_{uuid.uuid4().hex[:8]}"
    fill(node, topic, [str(number) for number in range(20)])
    run_to_table(read_stream(spark, node, by, subscribe=topic, startingOffsets="earliest"), table, tmp_path)
    fill(node, topic, [str(number) for number in range(20, 60)])
    with semel.Admin(node.bootstrap) as admin:
        admin.delete_records({semel.TopicPartition(topic, 0): 25})
    with pytest.raises(Exception, match=r"(?i)data.?loss|data may have been lost|are gone|no longer"):
        run_to_table(read_stream(spark, node, by, subscribe=topic), table, tmp_path)
    run_to_table(read_stream(spark, node, by, subscribe=topic, failOnDataLoss="false"), table, tmp_path)
    found = sum(table_rows(spark, table).values(), Counter())
    assert found == Counter(str(number) for number in range(60) if number % 2 or number < 20 or number >= 50)


def test_a_pattern_finds_topics_that_are_made_later(
    spark: SparkSession, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    name = f"later{uuid.uuid4().hex[:8]}"
    table = f"table_{name}"
    options = {
        "subscribePattern": f"{name}.*",
        "startingOffsets": "latest",
        "includeHeaders": "true",
        "minPartitions": 5,
    }
    fill(node, new_topic(2, of=name), ["before"] * 10)
    run_to_table(read_stream(spark, node, CONNECTOR, **options), table, tmp_path)
    fill(node, new_topic(2, of=name), ["new"] * 10)
    run_to_table(read_stream(spark, node, CONNECTOR, **options), table, tmp_path)
    assert sum(table_rows(spark, table).values(), Counter()) == Counter({"new": 10})


@pytest.mark.parametrize(("first", "then"), [(CONNECTOR, SEMEL), (SEMEL, CONNECTOR)])
@pytest.mark.parametrize("offsets_of_a_batch", [40, 1_000], ids=["several batches", "the first batch alone"])
def test_a_query_goes_on_with_the_other_source_from_its_checkpoint(
    spark: SparkSession,
    node: NodeProcess,
    new_topic: NewTopic,
    tmp_path: Path,
    first: str,
    then: str,
    offsets_of_a_batch: int,
) -> None:
    """The last batch of the first source is repeated by the other, with the same rows, as after a driver's death.

    Semel's source notes where the first batch starts, in a way that Kafka's passes over.
    """
    topic = new_topic(3)
    table = f"moved_{uuid.uuid4().hex[:8]}"
    fill(node, topic, [str(number) for number in range(100)], partitions=3)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": offsets_of_a_batch}
    run_to_table(read_stream(spark, node, first, **options), table, tmp_path)
    before = table_rows(spark, table)
    assert sum(before.values(), Counter()) == Counter(str(number) for number in range(100))
    last = forget_last_commit(tmp_path)
    fill(node, topic, [str(number) for number in range(100, 200)], partitions=3)
    run_to_table(read_stream(spark, node, then, **options), table, tmp_path)
    after = table_rows(spark, table)
    assert after[last] == before[last] + before[last], "repeated exactly"
    after[last] = before[last]
    assert sum(after.values(), Counter()) == Counter(str(number) for number in range(200))
    assert all(after[number] == before[number] for number in before)


def test_E2_a_checkpoint_goes_from_the_connector_to_semel_and_back_and_to_semel_again(
    spark: SparkSession, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Source and sink change under one checkpoint; with Semel's the last batch is repeated. Each row is there once."""
    topic, target = new_topic(2), new_topic(2)
    group = f"group-{target}"

    def run(form: str) -> None:
        limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 60}
        frame = read_stream(spark, node, form, subscribe=topic, includeHeaders="true", **limits)
        options = {"topic": target, "checkpointLocation": tmp_path}
        if form == SEMEL:
            options["kafka.group.id"] = group
        query = _with(frame.select("key", "value", "headers").writeStream.format(form), node, options)
        query.trigger(availableNow=True).start().awaitTermination()

    def content(row: dict[str, Any]) -> str:
        return json.dumps([repr(row["key"]), repr(row["value"]), repr(row["headers"])])

    def compare(count: int) -> None:
        settled_values(node.bootstrap, target)
        written = rows(read(spark, node, SEMEL, subscribe=target, includeHeaders="true"))
        original = rows(read(spark, node, SEMEL, subscribe=topic, includeHeaders="true"))
        assert Counter(map(content, written)) == Counter(map(content, original))
        assert len(written) == count

    with semel.Admin(node.bootstrap) as admin:
        for turn, form in enumerate((CONNECTOR, SEMEL, CONNECTOR, SEMEL)):
            fill(node, topic, [str(number) for number in range(100 * turn, 100 * turn + 100)])
            if turn == 3:
                # Kafka's sink has moved no group: where it took over, Semel's stands behind, and the error says so.
                with pytest.raises(Exception, match=f"does not stand where this batch starts.*group delete {group}"):
                    run(form)
                assert len(settled_values(node.bootstrap, target)) == 300
                admin.delete_group(group)
            run(form)
            if form == SEMEL:
                forget_last_commit(tmp_path)
                run(form)
                places = {tp.partition: place.offset for tp, place in admin.group_offsets(group).items()}
                assert places == dict.fromkeys(range(2), 50 * (turn + 1))
            compare(100 * (turn + 1))


def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    yield from batches
    task = TaskContext.get()
    if task is not None and task.attemptNumber() == 0:
        raise OSError("this attempt dies after its rows are on their way")


def test_E2_a_task_that_is_tried_again_repeats_rows_with_the_connector_and_not_with_semel(
    spark: SparkSession, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Spark's Kafka sink promises each row at least once; the same query with Semel's has each once."""
    topic = new_topic(2)
    values = [str(number) for number in range(100)]
    fill(node, topic, values)
    held = {}
    for form in (CONNECTOR, SEMEL):
        target = new_topic(2)
        frame = read_stream(spark, node, form, subscribe=topic, startingOffsets="earliest").select("key", "value")
        dying = frame.mapInArrow(_by_value(die_once), "key binary, value binary")
        options = {"topic": target, "checkpointLocation": tmp_path / form}
        _with(dying.writeStream.format(form), node, options).trigger(availableNow=True).start().awaitTermination()
        deadline = time.monotonic() + 60
        while True:  # the connector's producer outlives the attempt, and sends what it still has
            held[form] = Counter(settled_values(node.bootstrap, target))
            if form == SEMEL or held[form].total() == 200 or time.monotonic() > deadline:
                break
            time.sleep(0.1)
    assert held[SEMEL] == Counter(values)
    assert held[CONNECTOR] == Counter(2 * values)


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that travels with its code: this file is no module of the workers."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
    return function
