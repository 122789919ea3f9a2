"""Checkpoints as Spark leaves them: in odd places, and with a file that is lost."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from spark_query import VALUES, Query, settled_values, source, task, values

from semel.protocol.errors import FatalError
from semel.spark.sink import checkpoint as checkpoints
from semel.spark.sink.batch_writer import SemelBatchWriter
from semel.spark.sink.checkpoint import Checkpoint

NewTopic = Callable[..., str]


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    return new_topic()


def lose_metadata(query: Query) -> str:
    """Leave the checkpoint as Spark does that finds no metadata: with a new id. Returns the old one."""
    (query.folder / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    return query.query_id


def next_run(query: Query, *, in_a_new_process: bool = True) -> Query:
    if in_a_new_process:
        checkpoints._checked.clear()
    again = Query(query.folder, query.schema)
    again.source = query.source
    return again


def test_E2_a_checkpoint_whose_metadata_was_lost_wrote_its_last_batch_again(
    tmp_path: Path, bootstrap: str, topic: str
) -> None:
    query = Query(tmp_path, bootstrap=bootstrap, topic=topic)
    query.run_batch(0, ["a"])
    query.run_batch(1, ["b"])
    old = lose_metadata(query)
    for in_a_new_process in (False, True):
        again = next_run(query, in_a_new_process=in_a_new_process)
        messages = again.run_tasks(1, ["b"])
        with pytest.raises(FatalError, match=rf'checkpoint of query {old}.*write {{"id":"{old}"}} into .*/metadata'):
            again.commit(messages, 1)
        again.abort(messages, 1)
        with pytest.raises(FatalError, match="was lost"):
            again.commit([], 1)  # nor where no task has told of the query

    (tmp_path / "metadata").write_text(f'{{"id":"{old}"}}')  # as the error says
    again = next_run(query)
    again.commit(again.run_tasks(1, ["b"]), 1)
    again.run_batch(2, ["c"])
    assert settled_values(bootstrap, topic) == ["a", "b", "c"]


def test_E2_foreach_batch_notices_the_lost_metadata_too(tmp_path: Path, bootstrap: str, topic: str) -> None:
    query = Query(tmp_path, bootstrap=bootstrap, topic=topic)
    query.log_offsets(0, 10)

    def write(run: Query) -> None:
        options = {"bootstrap": bootstrap, "topic": topic, "sinkName": "s", "checkpointLocation": str(tmp_path)}
        names = {"txnAppId": run.query_id, "txnVersion": "0", "txnRunId": run.run_id}
        writer = SemelBatchWriter({**options, **names}, VALUES, overwrite=False)
        with task():
            message = writer.write(iter([values("row")]))
        try:
            writer.commit([message])
        except FatalError:
            writer.abort([message])
            raise

    write(query)
    lose_metadata(query)
    with pytest.raises(FatalError, match="was lost"):
        write(next_run(query))
    assert settled_values(bootstrap, topic) == ["row"]


def test_a_checkpoint_that_the_sink_can_not_write_to_is_continued(
    tmp_path: Path, bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_OWN_FILE", "no-such-folder/semel-query-id")
    query = Query(tmp_path, bootstrap=bootstrap, topic=topic)
    query.run_batch(0, ["a"])
    assert "can't be written" in caplog.text
    assert settled_values(bootstrap, topic) == ["a"]


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "{}"])
@pytest.mark.parametrize("name", ["ck%20b", "100%", "a b", "a+b#c"])
def test_a_percent_sign_in_a_checkpoints_path_stands_for_itself_as_in_spark(
    tmp_path: Path, bootstrap: str, topic: str, name: str, form: str
) -> None:
    """Decoded, it was another folder, and the first commit failed, and every one after it."""
    query = Query(tmp_path / name, bootstrap=bootstrap, topic=topic)
    query.source = source(bootstrap=bootstrap, topic=topic, checkpointLocation=form.format(tmp_path / name))
    query.run_batch(0, ["a"])
    assert settled_values(bootstrap, topic) == ["a"]


def test_a_percent_sign_stands_for_itself_in_other_file_systems_too() -> None:
    found = Checkpoint("s3a://KEY:SEC%2FRET@bucket/ck%20b/100%?region=us-east-1")
    assert found._folder == "bucket/ck%20b/100%"
