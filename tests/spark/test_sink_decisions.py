"""What is recorded with a batch's decision, and what is found by it: second sinks, rollbacks, executions left open."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructType
from spark_query import VALUES, Query, settled_values, source, task, values

import semel
from semel.protocol.errors import AbortTransactionError, FatalError, RetriableError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.shared.api import SharedTransaction
from semel.spark import foreach_batch, write_batch
from semel.spark.options import redacted, without_secrets
from semel.spark.sink.checkpoint import Checkpoint, SourceRange
from semel.spark.sink.decision_payload import BatchRecord, Repeats, SinkShape
from semel.spark.sink.identity import driver_name
from semel.spark.sink.write import SinkMessage

NewTopic = Callable[..., str]
QUERY_ID, RUN_ID = "sql.streaming.queryId", "spark.jobGroup.id"


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    return new_topic()


@pytest.fixture
def query(tmp_path: Path, bootstrap: str, topic: str) -> Query:
    return Query(tmp_path, bootstrap=bootstrap, topic=topic)


def restarted(query: Query, **options: str) -> Query:
    """The query's next run, with the same checkpoint, and perhaps other options."""
    again = Query(query.folder, query.schema)
    again.source = source(**options) if options else query.source
    return again


def write_once(bootstrap: str, topic: str, app_id: str, version: int, schema: StructType = VALUES, **more: str) -> None:
    line = {"txnAppId": app_id, "txnVersion": str(version), "sinkName": "same", "txnRunId": "run", **more}
    writer = source(bootstrap=bootstrap, topic=topic, **line).writer(schema, False)
    with task():
        message = writer.write(iter([values("row")]))
    writer.commit([message])


# --- Two sinks of one name --------------------------------------------------------------------------------------------


def test_two_sinks_of_one_name_lost_the_seconds_rows_in_the_run_after_a_restart(
    query: Query, bootstrap: str, new_topic: NewTopic
) -> None:
    topics = new_topic(), new_topic()
    for run in ("first", "second", "third"):
        write_once(bootstrap, topics[0], query.query_id, 0, txnRunId=run)
        with pytest.raises(UsageError, match=r"(?s)same name that writes elsewhere.*sinkName"):
            write_once(bootstrap, topics[1], query.query_id, 0, txnRunId=run)
    other = StructType().add("value", StringType()).add("key", StringType())
    with pytest.raises(UsageError, match="has other columns"):
        write_once(bootstrap, topics[0], query.query_id, 0, other)
    assert [settled_values(bootstrap, topic) for topic in topics] == [["row"], []]


def test_an_identical_batch_write_that_was_repeated_in_one_run_was_taken_for_a_second_sink(
    bootstrap: str, topic: str
) -> None:
    for _ in range(3):
        write_once(bootstrap, topic, f"nightly-{topic}", 0)
    assert settled_values(bootstrap, topic) == ["row"]


class FakeBatch:
    """A frame in foreachBatch, as far as `write_batch` looks. `save` says what a write does."""

    def __init__(self, query_id: str, run_id: str, save: Callable[[], None] = lambda: None) -> None:
        self.sparkSession = mock.Mock(_jvm=None)
        self.sparkSession.sparkContext.getLocalProperty.side_effect = {QUERY_ID: query_id, RUN_ID: run_id}.get
        self.write = mock.Mock()
        for name in ("format", "mode", "options", "option"):
            getattr(self.write, name).return_value = self.write
        self.write.save.side_effect = save


def write_fake(frame: FakeBatch, batch_id: int, sink: str = "same") -> None:
    write_batch(frame, batch_id, sink, {"topic": "t"}, source_range="none")  # type: ignore[arg-type]


def test_a_second_write_of_a_name_in_a_batch_is_refused_in_every_run_and_what_has_failed_may_be_repeated() -> None:
    query_id = "a-query"

    def fail() -> None:
        raise OSError("the answer is lost")

    for run_id in ("first", "second"):
        with pytest.raises(OSError, match="answer is lost"):
            write_fake(FakeBatch(query_id, run_id, fail), 0)
        for _ in ("other sinks and other queries are of no concern",):
            write_fake(FakeBatch(query_id, run_id), 0, f"other-{run_id}")
            write_fake(FakeBatch(f"other-{run_id}", run_id), 0)
        write_fake(FakeBatch(query_id, run_id), 0)
        with pytest.raises(UsageError, match="a name of its own"):
            write_fake(FakeBatch(query_id, run_id), 0)
        write_fake(FakeBatch(query_id, run_id), 1)

    def write_again() -> None:
        with pytest.raises(UsageError, match="a name of its own"):  # from another thread, while the first is at it
            write_fake(FakeBatch(query_id, "third"), 2)

    write_fake(FakeBatch(query_id, "third", write_again), 2)


@pytest.mark.parametrize("recorded", ["range", "nothing"])
def test_a_query_goes_on_after_an_upgrade_from_a_version_that_recorded_less(
    query: Query, bootstrap: str, topic: str, recorded: str
) -> None:
    key = f"spark/{query.query_id}/{topic}"
    for batch_id, end in enumerate((10, 20)):
        query.log_offsets(batch_id, end)
        old = {"start": [f'{{"in":{{"0":{end - 10}}}}}'] if batch_id else [], "end": [f'{{"in":{{"0":{end}}}}}']}
        shared = SharedTransaction(bootstrap, key, token=f"batch-{batch_id}", sequence=batch_id)
        with shared.join() as writer:
            writer.send(topic, f"old-{batch_id}")
            payload = json.dumps(old, separators=(",", ":")).encode() if recorded == "range" else b""
            shared.commit([writer.finish()], payload=payload)
    again = restarted(query)
    again.commit(again.run_tasks(1, ["old-1"]), 1)
    if recorded == "range":
        again.log_offsets(1, 17)
        with pytest.raises(FatalError, match="rolled back"):
            again.commit(again.run_tasks(1, ["others"]), 1)
        again.log_offsets(1, 20)
    else:
        with pytest.raises(FatalError, match="batch-1 is committed already"):
            again.commit(again.run_tasks(0, ["old-0"]), 0)
    again.run_batch(2, ["new"])
    assert sorted(settled_values(bootstrap, topic)) == ["new", "old-0", "old-1"]


def test_what_is_recorded_is_compared_by_what_it_says(tmp_path: Path) -> None:
    shape = SinkShape.of("t", [("value", "string")])
    record = BatchRecord(shape, SourceRange(("1",), ('{"t":{"0":5}}', "7")))
    assert record.repeats(record.payload()) is Repeats.SAME
    assert record.repeats(b"") is Repeats.NUMBER_ALONE
    assert record.repeats(b"{}") is Repeats.NUMBER_ALONE
    assert record.repeats(b'{"start":["1"],"end":["{\\"t\\":{\\"0\\":5}}","7"]}') is Repeats.SAME
    assert record.repeats(b'{"start":["1"],"end":["{\\"t\\":{\\"0\\":6}}","7"]}') is Repeats.OTHER_RANGE
    assert record.repeats(b"no json") is Repeats.OTHER_RANGE
    assert record.repeats(b"[]") is Repeats.OTHER_RANGE
    assert BatchRecord(shape, None).repeats(record.payload()) is Repeats.NUMBER_ALONE
    assert record.repeats(BatchRecord(shape, None).payload()) is Repeats.NUMBER_ALONE
    for other in (SinkShape.of("u", [("value", "string")]), SinkShape.of("", []), SinkShape.of("t", [])):
        assert BatchRecord(other, record.source).repeats(record.payload()) is Repeats.OTHER_SINK
    # A log in format v2 was once recorded with the blanks in its file.
    new = BatchRecord(shape, SourceRange((), ('0:{"t":{"0":5}}', "a:7")))
    assert new.repeats(b'{"start":[],"end":["a:7","0:{\\"t\\": {\\"0\\": 5}}"]}') is Repeats.SAME
    assert new.repeats(b'{"start":[],"end":["a:8","0:{\\"t\\": {\\"0\\": 5}}"]}') is Repeats.OTHER_RANGE


# --- Sinks without a checkpoint ---------------------------------------------------------------------------------------


def test_a_sink_that_is_not_told_its_checkpoint_swallowed_a_rollback(bootstrap: str, topic: str) -> None:
    with pytest.raises(UsageError, match=r"(?s)checkpointLocation.*sourceRange to 'none'"):
        source(bootstrap=bootstrap, topic=topic).streamWriter(VALUES, False)
    with pytest.raises(UsageError, match=r"checkpointLocation"):
        source(bootstrap=bootstrap, topic=topic, sourceRange="checkpoint").streamWriter(VALUES, False)
    with pytest.raises(UsageError, match=r"(?s)checkpoint=.*source_range='none'"):
        foreach_batch("totals", {"topic": topic})
    with pytest.raises(UsageError, match="'checkpoint' or 'none'"):
        foreach_batch("totals", {"topic": topic}, source_range="number")  # type: ignore[arg-type]
    for name in ("checkpointLocation", "sourceRange"):
        with pytest.raises(UsageError, match="arguments for it"):
            foreach_batch("totals", {"topic": topic, name: "none"}, source_range="none")


def test_E2_without_the_source_range_a_rollback_is_found_where_later_batches_are_decided(
    query: Query, bootstrap: str, topic: str
) -> None:
    query.source = source(bootstrap=bootstrap, topic=topic, sourceRange="none")
    for batch_id in range(4):
        query.commit(query.run_tasks(batch_id, [f"row-{batch_id}"]), batch_id)
    again = restarted(query)
    again.commit(again.run_tasks(3, ["row-3"]), 3)  # as after any crash
    for batch_id in (2, 0):
        with pytest.raises(FatalError, match=r"(?s)rolled back.*batch-3 is committed already"):
            again.commit(again.run_tasks(batch_id, ["others"]), batch_id)
    again.commit(again.run_tasks(4, ["row-4"]), 4)
    assert sorted(settled_values(bootstrap, topic)) == [f"row-{batch_id}" for batch_id in range(5)]


def test_a_sink_without_source_range_needs_no_checkpoint_that_can_be_read(bootstrap: str, topic: str) -> None:
    options = {"bootstrap": bootstrap, "topic": topic, "sourceRange": "none"}
    sink = source(**options, checkpointLocation="unknownfs://host/folder")

    def write(batch_id: int, text: str) -> WriterCommitMessage:
        with task(query_id="a-query", batch_id=str(batch_id), run_id="run"):
            return sink.streamWriter(VALUES, False).write(iter([values(text)]))

    def end(ending: str, batch_id: int, messages: list[WriterCommitMessage | None]) -> None:
        getattr(sink.streamWriter(VALUES, False), ending)(messages, batch_id)

    for ending in ("commit", "abort"):
        end(ending, 0, [])  # whose batch this is nobody says: nothing is decided
    end("commit", 0, [write(0, "kept")])
    end("abort", 1, [write(1, "dropped")])
    with semel.Admin(bootstrap) as admin:
        assert admin.shared_transaction(f"spark/a-query/{topic}").attempt == ""
    end("commit", 1, [write(1, "again")])
    assert sorted(settled_values(bootstrap, topic)) == ["again", "kept"]


# --- Offsets of the group ---------------------------------------------------------------------------------------------


def log_v2(folder: Path, batch_id: int, *lines: str) -> None:
    (folder / "offsets" / str(batch_id)).write_text("\n".join(["v2", '{"sourceMetadataInfo":{}}', *lines]))


def test_E2_offset_log_v2_was_committed_without_the_groups_offsets(
    tmp_path: Path, bootstrap: str, topic: str, new_topic: NewTopic
) -> None:
    read, group = new_topic(), f"group-{topic}"
    query = Query(tmp_path, bootstrap=bootstrap, topic=topic, kafka__group__id=group)
    log_v2(tmp_path, 0, f'0:{{"{read}": {{"0": 2}}}}', "1:-")
    query.commit(query.run_tasks(0, ["a"]), 0)
    log_v2(tmp_path, 0, "1:-", f'0:{{"{read}":{{"0":2}}}}')  # a map's order says nothing
    again = restarted(query)
    again.commit(again.run_tasks(0, ["a"]), 0)
    with semel.Admin(bootstrap) as admin:
        assert {tp: place.offset for tp, place in admin.group_offsets(group).items()} == {TopicPartition(read, 0): 2}
        (decision,) = admin.commits(f"spark/{query.query_id}/{topic}")
    assert json.loads(decision.payload)["end"] == [f'0:{{"{read}":{{"0":2}}}}', "1:-"]
    assert settled_values(bootstrap, topic) == ["a"]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("v3\n{}\n0:5", "format v3, and this sink knows v1 and v2"),
        ("v2\n{}\n5", "no source's id"),
        ("very\n{}\n5", "no log of offsets"),
        ("v1", "no log of offsets"),
    ],
)
def test_a_log_of_offsets_in_an_unknown_format_is_refused(tmp_path: Path, text: str, advice: str) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text(text)
    with pytest.raises(FatalError, match=advice):
        Checkpoint(str(tmp_path)).source_range(0)


@pytest.mark.parametrize("line", ["7", '{"sourceVersion":1,"index":3}', "-"])
def test_a_group_for_which_there_are_no_offsets_was_only_warned_of(
    tmp_path: Path, bootstrap: str, topic: str, line: str
) -> None:
    query = Query(tmp_path, bootstrap=bootstrap, topic=topic, kafka__group__id="g")
    (tmp_path / "offsets" / "0").write_text(f"v1\n{{}}\n{line}")
    messages = query.run_tasks(0, ["row"])
    with pytest.raises(UsageError, match=r"(?s)kafka.group.id is 'g'.*no offsets to commit.*leave kafka.group.id out"):
        query.commit(messages, 0)
    query.abort(messages, 0)
    assert settled_values(bootstrap, topic) == []


# --- Executions that are left open ------------------------------------------------------------------------------------


def open_attempt(bootstrap: str, query: Query, topic: str) -> str:
    with semel.Admin(bootstrap) as admin:
        return admin.shared_transaction(f"spark/{query.query_id}/{topic}").attempt


def test_a_streams_batch_of_which_no_task_told_stayed_open_until_its_timeout(
    query: Query, bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.log_offsets(0, 10)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/somewhere/blockmgr-one")
    query.run_tasks(0, ["never told of"])
    left = open_attempt(bootstrap, query, topic)
    assert left.startswith(f"{query.run_id}/{driver_name()}.")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/somewhere/blockmgr-other")
    query.abort([None], 0)  # another driver, which runs the same query
    query.abort([None], 1)
    assert open_attempt(bootstrap, query, topic) == left
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    query.abort([None], 0)  # whose this is can't be known
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/somewhere/blockmgr-one")
    query.abort([], 1)  # another batch
    assert open_attempt(bootstrap, query, topic) == left
    query.abort([None], 0)
    assert open_attempt(bootstrap, query, topic) == ""
    assert settled_values(bootstrap, topic) == []


# --- Time -------------------------------------------------------------------------------------------------------------


def test_a_batch_that_takes_too_long_is_said_with_the_option_that_helps(
    query: Query, bootstrap: str, topic: str
) -> None:
    query.source = source(
        bootstrap=bootstrap, topic=topic, checkpointLocation=str(query.folder), kafka__transaction__timeout__ms="300"
    )
    query.log_offsets(0, 10)
    messages = query.run_tasks(0, ["row"])
    (message,) = messages
    assert isinstance(message, SinkMessage)
    assert message.member is not None
    deadline = time.monotonic() + 60
    with semel.Admin(bootstrap) as admin:
        while any(each.producer_id == message.member.producer_id for each in admin.transactions(states=["Ongoing"])):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    expected = r"(?s)kafka.transaction.timeout.ms \(300\).*transaction.max.timeout.ms.*maxOffsetsPerTrigger"
    with pytest.raises(AbortTransactionError, match=expected):
        query.commit(messages, 0)
    query.abort(messages, 0)
    assert settled_values(bootstrap, topic) == []


def test_a_timeout_that_the_node_does_not_allow_is_said_by_the_options_name(
    query: Query, bootstrap: str, topic: str
) -> None:
    options = {"bootstrap": bootstrap, "topic": topic, "kafka.transaction.timeout.ms": "900001"}
    expected = r"(?s)kafka.transaction.timeout.ms \(900001\) is more than.*900000.*transaction.max.timeout.ms"
    with pytest.raises(UsageError, match=expected):
        source(**options).writer(VALUES, False)
    query.source = source(**options, checkpointLocation=str(query.folder))
    with pytest.raises(UsageError, match=expected):
        query.planned()
    with mock.patch("semel.spark.sink.limits._limit_ms", side_effect=RetriableError("no node can be reached")):
        plan = query.planned()
    with pytest.raises(UsageError, match=r"(?s)kafka.transaction.timeout.ms \(900001\) is more than.*and 900000"):
        query.run_task(plan, 0, [values("row")])


# --- Secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri",
    [
        "s3a://KEY:SECRET@bucket/folder",
        "s3a://KEY:SEC/RET+SECRET@bucket/folder",
        "abfss://SECRET@account/folder",
        "s3://bucket/folder?access_key=KEY&secret_key=SECRET&region=x",
        "unknownfs://KEY:SECRET@bucket/folder",
    ],
)
def test_secrets_in_a_checkpoints_uri_show_in_no_message(uri: str) -> None:
    assert not {"KEY", "SECRET"} & set(without_secrets(f"it is at {uri}: gone").replace("/", " ").split())
    assert "SECRET" not in without_secrets(f"it is at {uri}: gone")
    assert "SECRET" not in repr(redacted({"checkpointLocation": uri}))
    options = {"bootstrap": "localhost:9094", "topic": "t", "checkpointLocation": uri}
    with pytest.raises(UsageError) as refused:
        source(**options, topics="t").streamWriter(VALUES, False)
    assert "SECRET" not in str(refused.value)
    assert "SECRET" not in repr(source(**options))
    with pytest.raises(FatalError) as caught:
        Checkpoint(uri.replace("s3a:", "nosuch:").replace("s3:", "nosuch:").replace("abfss:", "nosuch:"))
    assert "SECRET" not in str(caught.value)


def test_what_is_no_secret_is_left_as_it_is() -> None:
    for text in ("hdfs://name:8020/a@b", "s3a://bucket/folder", "localhost:9094,other:9094", "file:/a/b@c"):
        assert without_secrets(text) == text
