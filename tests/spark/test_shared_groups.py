"""Who may move a group: of two queries that have read the same records one alone commits (O5, E2)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from spark_copy import Copy, produce
from spark_query import VALUES, Query, settled_values, task, values

import semel
from semel.protocol.api.group_offsets import GroupMetadata
from semel.protocol.errors import FatalError, RetriableError
from semel.protocol.ids import TopicPartition
from semel.spark.sink.batch_writer import SemelBatchWriter

NewTopic = Callable[..., str]


@pytest.fixture
def read(new_topic: NewTopic) -> str:
    return new_topic()


@pytest.fixture
def write(new_topic: NewTopic) -> str:
    return new_topic()


@pytest.mark.parametrize("batch_id", [0, 1])
def test_O5_E2_a_driver_that_wakes_up_after_another_query_has_taken_its_place_commits_nothing(
    batch_id: int, tmp_path: Path, bootstrap: str, read: str, write: str
) -> None:
    """Frozen before its decision; its checkpoint lost, a new one began where the group stood. Rows were there twice."""
    frozen = Copy(tmp_path / "old", bootstrap, read, write)
    if batch_id:
        produce(bootstrap, read, "earlier")
        frozen.run(0)
    produce(bootstrap, read, "a", "b")
    frozen.plan(batch_id)
    messages = frozen.write(batch_id)

    successor = Copy(tmp_path / "new", bootstrap, read, write)
    successor.run(0)
    with pytest.raises(FatalError, match=r"another query has committed what this one has read.*semel group delete"):
        frozen.query.commit(messages, batch_id)
    restarted = Copy(tmp_path / "old", bootstrap, read, write)  # nor does its next run
    messages = restarted.write(batch_id)
    with pytest.raises(FatalError, match="does not stand where this batch starts"):
        restarted.query.commit(messages, batch_id)
    restarted.query.abort(messages, batch_id)

    produce(bootstrap, read, "c")
    successor.run(1)
    assert settled_values(bootstrap, write) == [*(["earlier"] if batch_id else []), "a", "b", "c"]


def test_O5_E2_a_second_query_that_shares_the_group_is_refused_before_its_rows_count(
    tmp_path: Path, bootstrap: str, read: str, write: str
) -> None:
    first = Copy(tmp_path / "first", bootstrap, read, write)
    second = Copy(tmp_path / "second", bootstrap, read, write, start="earliest")
    produce(bootstrap, read, "a")
    for query in (first, second):
        query.plan(0)
    late = second.write(0)
    first.query.commit(first.write(0), 0)
    with pytest.raises(FatalError, match="need groups of their own"):
        second.query.commit(late, 0)
    second.query.abort(late, 0)
    assert settled_values(bootstrap, write) == ["a"]
    with semel.Admin(bootstrap) as admin:  # the error's advice: to have the group follow the second one
        admin.delete_group(first.group)
    second.query.commit(second.write(0), 0)
    assert settled_values(bootstrap, write) == ["a", "a"]


def test_O5_E2_a_repeated_batch_finds_itself_committed_though_the_group_has_moved(
    tmp_path: Path, bootstrap: str, read: str, write: str
) -> None:
    """The answer of its decision was lost, or the driver died after it: its own commit is what has moved the group."""
    query = Copy(tmp_path / "query", bootstrap, read, write)
    for batch_id, text in enumerate("abc"):
        produce(bootstrap, read, text)
        query.run(batch_id)
        again = Copy(tmp_path / "query", bootstrap, read, write)
        again.query.commit(again.write(batch_id), batch_id)
    assert settled_values(bootstrap, write) == ["a", "b", "c"]


def test_O5_E2_a_batch_that_died_before_its_decision_leaves_the_group_to_its_next_run(
    tmp_path: Path, bootstrap: str, read: str, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets of the run that died are pending: the next one aborts it, and waits until they are dropped."""
    from semel.sdk.shared import transaction

    query = Copy(tmp_path / "query", bootstrap, read, write, start="earliest")
    produce(bootstrap, read, "a")
    query.plan(0)

    async def dies(*_: object) -> None:
        raise RetriableError("the driver is gone")

    with monkeypatch.context() as patch:
        patch.setattr(transaction, "commit_shared", dies)
        with pytest.raises(RetriableError, match="driver is gone"):
            query.query.commit(query.write(0), 0)
    again = Copy(tmp_path / "query", bootstrap, read, write, start="earliest")
    again.query.commit(again.write(0), 0)
    assert settled_values(bootstrap, write) == ["a"]


def test_O5_a_group_that_another_transaction_holds_is_waited_for_and_then_named(
    tmp_path: Path, bootstrap: str, read: str, write: str
) -> None:
    group = f"group-{write}"
    query = Query(tmp_path, bootstrap=bootstrap, topic=write, kafka__group__id=group, kafka__max__block__ms="2000")
    query.log_offsets(0, {read: {"0": 1}})
    messages = query.run_tasks(0, ["a"])
    with semel.Producer(bootstrap, transactional_id=f"holds-{group}") as holder:
        holder.begin_transaction()
        holder.send_offsets({TopicPartition(read, 0): 5}, GroupMetadata(group))
        with pytest.raises(RetriableError, match=r"another transaction was about to move group.*semel txn list"):
            query.commit(messages, 0)
        holder.abort_transaction()
    again = Query(tmp_path, bootstrap=bootstrap, topic=write, kafka__group__id=group)
    again.commit(again.run_tasks(0, ["a"]), 0)
    assert settled_values(bootstrap, write) == ["a"]


def test_O5_two_sinks_of_one_batch_move_the_same_group(tmp_path: Path, bootstrap: str, new_topic: NewTopic) -> None:
    """Both commit what the batch has read: the second finds the group where the batch ends, moved by its own batch."""
    read, topics = new_topic(), {"first": new_topic(), "second": new_topic()}
    query = Query(tmp_path, bootstrap=bootstrap, topic="none")
    group = f"group-{topics['first']}"
    written: dict[str, list[str]] = {name: [] for name in topics}
    for batch_id in range(3):
        query.log_offsets(batch_id, {read: {"0": batch_id + 1}})
        for name, topic in topics.items():
            options = {
                "bootstrap": bootstrap,
                "topic": topic,
                "sinkName": name,
                "txnAppId": query.query_id,
                "txnVersion": str(batch_id),
                "txnRunId": query.run_id,
                "checkpointLocation": str(tmp_path),
                "kafka.group.id": group,
            }
            writer = SemelBatchWriter(options, VALUES, overwrite=False)
            with task():
                message = writer.write(iter([values(f"{name} {batch_id}")]))
            writer.commit([message])
            written[name].append(f"{name} {batch_id}")
    for name, topic in topics.items():
        assert settled_values(bootstrap, topic) == written[name]
    with semel.Admin(bootstrap) as admin:
        assert admin.group_offsets(group)[TopicPartition(read, 0)].offset == 3


@pytest.mark.parametrize("what", ["deleted", "has a live member"])
def test_O5_a_group_that_was_deleted_or_has_a_live_member_is_committed_for(
    what: str, tmp_path: Path, bootstrap: str, read: str, write: str
) -> None:
    query = Copy(tmp_path / "query", bootstrap, read, write, start="earliest")
    produce(bootstrap, read, "a")
    query.run(0)
    with semel.Admin(bootstrap) as admin, ExitStack() as stack:
        if what == "deleted":
            admin.delete_group(query.group)
        else:
            consumer = stack.enter_context(semel.Consumer(bootstrap, group=query.group))
            consumer.subscribe([read])
            while not consumer.assignment():
                consumer.poll(timeout_s=0.1)
        produce(bootstrap, read, "b")
        query.run(1)
        assert admin.group_offsets(query.group)[TopicPartition(read, 0)].offset == 2
    assert settled_values(bootstrap, write) == ["a", "b"]


def test_a_first_batch_that_is_repeated_starts_where_it_started(
    tmp_path: Path, bootstrap: str, read: str, write: str
) -> None:
    """Spark asks the source again where the first batch starts, and by then the latest offset was another."""
    produce(bootstrap, read, "before")
    query = Copy(tmp_path / "query", bootstrap, read, write, start="latest")
    start = query.reader.initialOffset()
    produce(bootstrap, read, "a", "b")
    query.query.log_offsets(0, query.reader.latestOffset(start, ReadAllAvailable()))
    produce(bootstrap, read, "c")
    again = Copy(tmp_path / "query", bootstrap, read, write, start="latest")
    again.query.commit(again.write(0), 0)
    again.run(1)
    assert settled_values(bootstrap, write) == ["a", "b", "c"]


def test_a_batch_without_news_after_the_first_reads_nothing_again(
    tmp_path: Path, bootstrap: str, read: str, write: str
) -> None:
    """Stateful queries run batches for time alone: such a batch ends where the first one did, start and all."""
    query = Copy(tmp_path / "query", bootstrap, read, write, start="earliest")
    produce(bootstrap, read, "a")
    query.run(0)
    query.run(1)
    assert query.logged(1) == query.logged(0)
    assert query.rows(1) == []
    assert settled_values(bootstrap, write) == ["a"]
