"""The parts that need neither a node nor a session: the checkpoint and traces."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest

from semel.protocol.errors import FatalError
from semel.protocol.ids import TopicPartition
from semel.sdk.telemetry import tracing
from semel.spark.sink.checkpoint import Checkpoint, SourceRange
from semel.spark.sink.decision_payload import BatchRecord, Repeats, SinkShape
from semel.spark.sink.identity import BatchIdentity, attempt_name, batch_identity, fresh_nonce, handle
from semel.spark.sink.options import SinkOptions
from semel.spark.telemetry import BatchTrace

# --- The checkpoint ---------------------------------------------------------------------------------------------------


def write_offsets(folder: Path, batch_id: int, *lines: str) -> None:
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "offsets" / str(batch_id)).write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *lines]))


def test_a_range_is_told_by_offsets_and_not_by_how_they_are_written(tmp_path: Path) -> None:
    write_offsets(tmp_path, 0, '{"t":{"0":1}}', "7")
    write_offsets(tmp_path, 1, '{"t": {"1": 5, "0": 3}, "u": {"0": 9}}', "8")
    found = Checkpoint(f"file://{tmp_path}").source_range(1)
    assert (found.starts, found.ends) == (('{"t":{"0":1}}', "7"), ('{"t":{"0":3,"1":5},"u":{"0":9}}', "8"))
    assert found.group_offsets() == {
        TopicPartition("t", 0): 3,
        TopicPartition("t", 1): 5,
        TopicPartition("u", 0): 9,
    }
    write_offsets(tmp_path, 1, '{"u":{"0":9},"t":{"0":3,"1":5}}', "8")
    assert Checkpoint(str(tmp_path)).source_range(1) == found
    write_offsets(tmp_path, 1, '{"u":{"0":9},"t":{"0":3,"1":6}}', "8")
    assert Checkpoint(f"file:{tmp_path}").source_range(1) != found


@pytest.mark.parametrize("slower", [0, 1])
def test_E2_of_two_sources_of_a_topic_the_slower_counts(slower: int) -> None:
    """What the faster one has read is read again; by the larger offset the slower one's rest would be skipped."""
    ends = ['{"in":{"0":90,"1":7}}', '{"in":{"0":90,"1":7}}']
    ends[slower] = '{"in":{"0":20,"1":7}}'
    covered = SourceRange((), (*ends, '{"other":{"0":3}}', "-"))
    assert covered.group_offsets() == {
        TopicPartition("in", 0): 20,
        TopicPartition("in", 1): 7,
        TopicPartition("other", 0): 3,
    }


def test_a_range_of_very_many_partitions_is_recorded_by_its_digest(tmp_path: Path) -> None:
    write_offsets(tmp_path, 0, json.dumps({"t": {str(number): number for number in range(10_000)}}))
    shape = SinkShape.of("t", [("value", "string")])
    found = BatchRecord(shape, Checkpoint(str(tmp_path)).source_range(0))
    assert len(found.payload()) < 200
    assert found.repeats(found.payload()) is Repeats.SAME
    write_offsets(tmp_path, 0, json.dumps({"t": {str(number): number + 1 for number in range(10_000)}}))
    other = BatchRecord(shape, Checkpoint(str(tmp_path)).source_range(0))
    assert other.repeats(found.payload()) is Repeats.OTHER_RANGE


def test_a_checkpoint_that_can_not_be_read_is_said_with_the_way_round(tmp_path: Path) -> None:
    with pytest.raises(FatalError, match="sourceRange to 'none'"):
        Checkpoint(str(tmp_path)).source_range(0)
    with pytest.raises(FatalError, match="sourceRange"):
        Checkpoint("unknownfs://host/folder")
    (tmp_path / "metadata").write_text("{}")
    with pytest.raises(FatalError, match="query's id"):
        Checkpoint(str(tmp_path)).query_id()
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("something else")
    with pytest.raises(FatalError, match="no log of offsets"):
        Checkpoint(str(tmp_path)).source_range(0)


# --- Traces -----------------------------------------------------------------------------------------------------------


def test_a_trace_goes_on_where_the_application_began_it() -> None:
    from opentelemetry import trace

    task = mock.Mock()
    properties = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}
    task.getLocalProperty.side_effect = properties.get
    context = BatchTrace.fresh().in_task(task).context()
    assert trace.get_current_span(context).get_span_context().trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert dict(tracing.inject((), context)) == {name: value.encode() for name, value in properties.items()}
    properties.clear()
    assert BatchTrace.fresh().in_task(task).context() is None


# --- What a batch is called -------------------------------------------------------------------------------------------

RUN = "6e0b2f52-9a4b-4b44-9a1c-1f3a3f0c1c6a"


def test_txn_app_ids_and_sink_names_with_slashes_do_not_make_the_same_key() -> None:
    """x/y with sink z, and x with sink y/z, had one line of decisions: one was taken for the other's replay."""
    pairs = [("x/y", "z"), ("x", "y/z"), ("x%2Fy", "z"), ("/x", "y/z"), ("%2Fx", "y/z"), ("x/", "y/z"), ("x", "/y/z")]
    assert len({batch_identity(app_id, sink, 0).key for app_id, sink in pairs}) == len(pairs)
    assert batch_identity(RUN, "large-orders", 7).key == f"spark/{RUN}/large-orders", "as it always was"
    assert batch_identity("x", "y/z", 7).key == "spark/x/y/z"


def test_a_write_of_its_own_is_a_one_off_and_a_batch_says_its_run() -> None:
    options = SinkOptions.parse({"bootstrap": "127.0.0.1:1", "topic": "t"})
    attempt = attempt_name("", fresh_nonce())
    alone = handle(BatchIdentity("spark-write/1", "write", None), attempt, options)
    assert (alone.one_off, alone.run) == (True, None)
    batch = handle(batch_identity("q", "s", 3), attempt_name(RUN, fresh_nonce()), options)
    assert (batch.one_off, batch.run) == (False, RUN)
    # A job group that the application has set is no run: it may come back after another one.
    assert handle(batch_identity("q", "s", 3), attempt_name("my/jobs", fresh_nonce()), options).run is None
