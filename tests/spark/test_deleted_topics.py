"""Topics that are deleted under a query: what is lost is passed over where that was asked for, and said."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from spark_copy import Copy, produce
from spark_query import Query, settled_values

import semel
from semel.protocol.errors import FatalError
from semel.protocol.ids import TopicPartition
from semel.sdk.arrow.range_reader import DataLossError

NewTopic = Callable[..., str]


@pytest.mark.parametrize("start", ["earliest", "committed", "offsets"])
@pytest.mark.parametrize("batch_id", [0, 1])
def test_a_topic_deleted_after_a_batch_was_planned_is_passed_over_and_the_others_go_on(
    batch_id: int,
    start: str,
    tmp_path: Path,
    bootstrap: str,
    new_topic: NewTopic,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each replay of the batch failed, with the advice to set the very option that was set."""
    kept, deleted, write = new_topic(), new_topic(), new_topic()
    if start == "offsets":
        start = json.dumps({kept: {"0": 0}, deleted: {"0": 0}})

    def run(lenient: str) -> Copy:
        return Copy(tmp_path / "query", bootstrap, f"{kept},{deleted}", write, start, failOnDataLoss=lenient)

    query = run("false")
    if batch_id:
        produce(bootstrap, kept, "earlier")
        query.run(0)
    produce(bootstrap, kept, "a")
    produce(bootstrap, deleted, "lost")
    query.plan(batch_id)
    with semel.Admin(bootstrap) as admin:
        admin.delete_topic(deleted)

    with pytest.raises((DataLossError, FatalError), match=f"{deleted}.*(gone|to read)"):
        run("true").write(batch_id)
    again = run("false")
    with caplog.at_level(logging.WARNING, "semel.spark"):
        again.query.commit(again.write(batch_id), batch_id)
    assert f"{deleted}-0 is gone" in caplog.text
    produce(bootstrap, kept, "b")
    again.run(batch_id + 1)
    assert settled_values(bootstrap, write) == [*(["earlier"] if batch_id else []), "a", "b"]
    with semel.Admin(bootstrap) as admin:
        assert admin.group_offsets(again.group).keys() == {TopicPartition(kept, 0)}


def test_a_topic_that_was_new_in_a_batch_and_deleted_before_its_replay_is_passed_over(
    tmp_path: Path, bootstrap: str, new_topic: NewTopic
) -> None:
    kept, deleted, write = new_topic(), new_topic(), new_topic()
    produce(bootstrap, kept, "a")
    Copy(tmp_path / "query", bootstrap, kept, write, "earliest").run(0)
    query = Copy(tmp_path / "query", bootstrap, f"{kept},{deleted}", write, "earliest", failOnDataLoss="false")
    produce(bootstrap, deleted, "lost")
    query.plan(1)
    with semel.Admin(bootstrap) as admin:
        admin.delete_topic(deleted)
    query.query.commit(query.write(1), 1)
    produce(bootstrap, kept, "b")
    query.run(2)
    assert settled_values(bootstrap, write) == ["a", "b"]


def test_a_topic_made_again_with_fewer_partitions_is_passed_over_where_it_has_none(
    tmp_path: Path, bootstrap: str, new_topic: NewTopic
) -> None:
    """The partition was taken for one that has no leader for now, and asked for until the poll's time was over."""
    read, write = new_topic(2), new_topic()
    with semel.Producer(bootstrap) as producer:
        for partition in (0, 1):
            producer.send(read, "lost", partition=partition)
    query = Copy(tmp_path / "query", bootstrap, read, write, "earliest", failOnDataLoss="false")
    query.plan(0)
    with semel.Admin(bootstrap) as admin:
        admin.delete_topic(read)
        admin.create_topic(read, partitions=1)
    produce(bootstrap, read, "new")
    with pytest.raises(DataLossError, match=f"{read}-1 is gone, offsets 0 to 1 with it"):
        Copy(tmp_path / "query", bootstrap, read, write, "earliest").rows(0)
    query.query.commit(query.write(0), 0)
    assert settled_values(bootstrap, write) == ["new"]


def test_a_query_that_reads_another_topic_too_and_then_that_alone_reads_each_row_once(
    tmp_path: Path, bootstrap: str, new_topic: NewTopic
) -> None:
    """A topic that is left out is one that is gone, to a source: told, or passed over where that was asked for."""
    first, second, write = new_topic(), new_topic(), new_topic()

    def run(batch_id: int, topics: str, **options: str) -> None:
        for topic in (first, second):
            produce(bootstrap, topic, f"{topic} {batch_id}")
        Copy(tmp_path / "query", bootstrap, topics, write, "earliest", **options).run(batch_id)

    run(0, first)
    run(1, f"{first},{second}")
    query = Copy(tmp_path / "query", bootstrap, second, write, "earliest")
    query.plan(2)
    with pytest.raises(DataLossError, match=f"{first}-0 is gone, from offset 2 on"):
        query.write(2)
    run(2, second, failOnDataLoss="false")
    expected = [f"{first} 0", f"{first} 1", *(f"{second} {batch_id}" for batch_id in range(3))]
    assert sorted(settled_values(bootstrap, write)) == sorted(expected)


# --- The sink's topic -------------------------------------------------------------------------------------------------


def test_a_sink_topic_that_was_deleted_between_batches_was_made_again_without_a_word(
    tmp_path: Path, bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"t-{uuid.uuid4().hex[:12]}"
    query = Query(tmp_path, bootstrap=bootstrap, topic=topic, kafka__client__id=topic)
    with semel.Admin(bootstrap) as admin, caplog.at_level(logging.WARNING, "semel.spark"):
        query.run_batch(0, ["a"], ["b"])  # the first batch makes it, as for any producer
        query.run_batch(1, ["c"], ["d"])
        assert "was missing" not in caplog.text
        admin.delete_topic(topic)
        again = Query(tmp_path, bootstrap=bootstrap, topic=topic, kafka__client__id=f"{topic}-of-another-run")
        again.run_batch(2, ["e"], ["f"])
    assert caplog.text.count(f"batch-2 has made topic '{topic}', which was missing, with 1 partitions") == 1
    assert sorted(settled_values(bootstrap, topic)) == ["e", "f"]
