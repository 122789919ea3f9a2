"""Every crash that Spark and its sink can meet, at the very place: the sink's topics hold each row once (E2)."""

from __future__ import annotations

import json
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from everything_diskless import diskless_options
from node_processes import node_processes
from opentelemetry import trace
from spark_query import VALUES, Query, held, read_values, restarted, settled_values, source, task, values

import semel
from semel.cli.demo.processes import NodeProcess
from semel.protocol.errors import FatalError, FencedError, RetriableError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.shared.api import SharedTransaction
from semel.spark.sink.identity import handle
from semel.spark.sink.write import SinkMessage

NewTopic = Callable[..., str]


@pytest.fixture(scope="module", params=["one node", "three nodes"])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "one node":
        yield request.getfixturevalue("bootstrap")
        return
    with node_processes(tmp_path_factory.mktemp("cluster")) as running:
        yield running.bootstrap


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    return new_topic(2)


@pytest.fixture
def query(tmp_path: Path, bootstrap: str, topic: str) -> Query:
    return Query(tmp_path, bootstrap=bootstrap, topic=topic)


def test_E2_rows_of_all_tasks_appear_with_the_decision_and_not_before(query: Query, bootstrap: str, topic: str) -> None:
    query.log_offsets(0, 10)
    messages = query.run_tasks(0, ["a", "b"], ["c"], [])
    assert read_values(bootstrap, topic) == []
    query.commit(messages, 0)
    assert held(bootstrap, topic) == ["a", "b", "c"]


def test_a_missing_topic_is_made_as_for_any_kafka_producer(tmp_path: Path, bootstrap: str) -> None:
    missing = f"t-{uuid.uuid4().hex[:12]}"
    query = Query(tmp_path, bootstrap=bootstrap, topic=missing)
    query.log_offsets(0, 10)
    query.commit(query.run_tasks(0, ["a"]), 0)
    assert held(bootstrap, missing) == ["a"]


def test_E2_a_task_dies_in_write_and_its_retry_counts_alone(query: Query, bootstrap: str, topic: str) -> None:
    query.log_offsets(0, 10)
    plan = query.planned()

    def dying() -> Iterator[pa.RecordBatch]:
        yield values(*(f"lost-{number}" for number in range(50_000)))
        raise OSError("the executor's disk is full")

    with pytest.raises(OSError, match="disk is full"):
        query.run_task(plan, 0, dying())
    retry = query.run_task(plan, 0, [values("kept")])
    query.commit([retry], 0)
    assert held(bootstrap, topic) == ["kept"]


def test_E2_a_task_that_was_retried_after_write_ended_is_aborted_at_the_decision(
    query: Query, bootstrap: str, topic: str
) -> None:
    query.log_offsets(0, 10)
    plan = query.planned()
    query.run_task(plan, 0, [values("row")])  # its message never reached the driver: lost, or a speculative loser
    winner = query.run_task(plan, 0, [values("row")])
    query.commit([winner], 0)
    assert held(bootstrap, topic) == ["row"]


def test_E2_a_zombie_that_writes_on_after_the_decision_is_refused(query: Query, bootstrap: str, topic: str) -> None:
    query.log_offsets(0, 10)
    plan = query.planned()
    has_begun, may_go_on = threading.Event(), threading.Event()

    def cut_off() -> Iterator[pa.RecordBatch]:
        yield values(*("zombie" * 100 for _ in range(2_000)))
        has_begun.set()
        assert may_go_on.wait(60)
        yield values(*("late zombie" * 100 for _ in range(2_000)))

    failures: list[BaseException] = []

    def live_on() -> None:
        try:
            query.run_task(plan, 0, cut_off())
        except semel.SemelError as error:
            failures.append(error)

    zombie = threading.Thread(target=live_on)
    zombie.start()
    assert has_begun.wait(60)
    winner = query.run_task(plan, 0, [values("row")])
    query.commit([winner], 0)
    may_go_on.set()
    zombie.join(60)
    assert len(failures) == 1
    assert held(bootstrap, topic) == ["row"]
    later = query.run_task(plan, 0, [values("later still")])
    assert isinstance(later, SinkMessage)
    assert later.member is None
    assert held(bootstrap, topic) == ["row"]


def test_a_task_that_is_refused_while_it_still_sends_hears_who_has_ended_its_part(
    query: Query, bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was told to call InitProducerId, as a node answers, in its log too: nothing that a user of Spark can do."""
    query.source = source(bootstrap=bootstrap, topic=topic, sourceRange="none", kafka__batch__size="1")
    query.commit(query.run_tasks(0, ["earlier"]), 0)
    plan = query.planned()

    def goes_on_and_on() -> Iterator[pa.RecordBatch]:
        yield values("zombie")
        query.commit([query.run_task(plan, 1, [values("row")])], 1)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            yield values("late zombie")

    with pytest.raises(FencedError, match="committed without this writer"):
        query.run_task(plan, 1, goes_on_and_on())
    assert held(bootstrap, topic) == ["earlier", "row"]
    assert "InitProducerId" not in caplog.text
    said = [record.getMessage() for record in caplog.records if "not delivered" in record.getMessage()]
    assert len(said) == 1
    assert "committed without this writer" in said[0]


def test_E2_an_execution_that_fails_is_aborted_and_the_next_run_writes_the_batch(
    query: Query, bootstrap: str, topic: str
) -> None:
    query.log_offsets(0, 10)
    (done,) = query.run_tasks(0, ["a"])
    query.abort([done, None], 0)
    assert held(bootstrap, topic) == []
    again = restarted(query)
    again.commit(again.run_tasks(0, ["a"], ["b"]), 0)
    assert held(bootstrap, topic) == ["a", "b"]


def test_E2_a_missing_message_commits_nothing(query: Query, bootstrap: str, topic: str) -> None:
    """A task whose message is lost may have written rows that would be aborted as nobody's."""
    query.log_offsets(0, 10)
    messages = query.run_tasks(0, ["a"], ["b"])
    with pytest.raises(FatalError, match="1 of 2 tasks have sent no message: nothing committed"):
        query.commit([messages[0], None], 0)
    query.abort([messages[0], None], 0)
    assert settled_values(bootstrap, topic) == []
    query.commit(query.run_tasks(0, ["a"], ["b"]), 0)
    assert sorted(settled_values(bootstrap, topic)) == ["a", "b"]


def test_E2_messages_of_two_executions_commit_nothing(query: Query, bootstrap: str, topic: str) -> None:
    query.log_offsets(0, 10)
    first, second = query.run_tasks(0, ["a"], ["b"]), query.run_tasks(0, ["a"], ["b"])
    for mixed in ([first[0], second[1]], [second[0], first[1]]):
        with pytest.raises(FatalError, match="of 2 executions: nothing committed"):
            query.commit(mixed, 0)
    query.commit(second, 0)
    assert sorted(settled_values(bootstrap, topic)) == ["a", "b"]


def test_E2_an_empty_execution_ends_the_open_one(query: Query, bootstrap: str, topic: str) -> None:
    """None of its tasks has opened anything; readers would wait for the older one until its timeout."""
    query.log_offsets(0, 10)
    query.run_tasks(0, ["left open by a driver that died"])
    key = f"spark/{query.query_id}/{topic}"
    with semel.Admin(bootstrap) as admin:
        assert admin.shared_transaction(key).attempt
        query.commit(query.run_tasks(0, [], []), 0)
        assert admin.shared_transaction(key).attempt == ""
        assert [each.token for each in admin.commits(key)] == ["batch-0"]
    assert settled_values(bootstrap, topic) == []


def test_E2_an_execution_of_which_no_task_has_told_is_aborted_by_the_next(
    query: Query, bootstrap: str, topic: str
) -> None:
    query.log_offsets(0, 10)
    query.run_tasks(0, ["a"])
    query.abort([None], 0)
    again = restarted(query)
    again.commit(again.run_tasks(0, ["a"]), 0)
    assert held(bootstrap, topic) == ["a"]


def test_E2_the_driver_dies_before_the_decision(query: Query, bootstrap: str, topic: str) -> None:
    query.log_offsets(0, 10)
    query.run_tasks(0, ["a", "b"], ["c"])
    again = restarted(query)
    again.commit(again.run_tasks(0, ["a"], ["b", "c"]), 0)
    assert held(bootstrap, topic) == ["a", "b", "c"]


def test_E2_the_driver_dies_after_the_decision_and_before_sparks_log(query: Query, bootstrap: str, topic: str) -> None:
    query.log_offsets(0, 10)
    query.commit(query.run_tasks(0, ["a"], ["b"]), 0)
    again = restarted(query)
    messages = again.run_tasks(0, ["a"], ["b"])
    assert [message.member for message in messages if isinstance(message, SinkMessage)] == [None, None]
    again.commit(messages, 0)
    again.run_batch(1, ["c"])
    assert held(bootstrap, topic) == ["a", "b", "c"]


def test_E2_the_reply_of_the_decision_is_lost_and_the_abort_that_follows_changes_nothing(
    query: Query, bootstrap: str, topic: str
) -> None:
    query.log_offsets(0, 10)
    messages = query.run_tasks(0, ["a"])
    commit = SharedTransaction.commit

    def commit_and_lose_the_answer(*args: object, **options: object) -> None:
        commit(*args, **options)  # type: ignore[arg-type]
        raise RetriableError("the connection is gone")

    with (
        mock.patch.object(SharedTransaction, "commit", commit_and_lose_the_answer),
        pytest.raises(RetriableError, match="connection is gone"),
    ):
        query.commit(messages, 0)
    query.abort(messages, 0)
    assert held(bootstrap, topic) == ["a"]
    again = restarted(query)
    again.commit(again.run_tasks(0, ["a"]), 0)
    assert held(bootstrap, topic) == ["a"]


def test_E2_a_commit_that_comes_after_the_next_run_has_begun_is_refused(
    query: Query, bootstrap: str, topic: str
) -> None:
    query.log_offsets(0, 10)
    in_flight = query.run_tasks(0, ["a"])
    again = restarted(query)
    messages = again.run_tasks(0, ["a"])
    with pytest.raises(FencedError, match="another run of this query"):
        query.commit(in_flight, 0)
    again.commit(messages, 0)
    assert held(bootstrap, topic) == ["a"]


def test_E2_two_live_drivers_cost_progress_and_nothing_else(query: Query, bootstrap: str, topic: str) -> None:
    """Whichever of two ran its tasks last has the say; once another run has, the older one is out for good."""
    older, newer = query, restarted(query)
    for batch_id in range(3):
        rows = [f"{batch_id}-a", f"{batch_id}-b"]
        older.log_offsets(batch_id, 10 * (batch_id + 1))
        late = older.run_tasks(batch_id, rows)
        newer.commit(newer.run_tasks(batch_id, rows), batch_id)
        older.commit(late, batch_id)  # finds it committed
        late_to_know = older.run_tasks(batch_id, rows)
        assert all(message.member is None for message in late_to_know), "nothing is written twice"
        older.log_offsets(batch_id + 1, 10 * (batch_id + 2))
        with pytest.raises(FencedError, match="has taken the place of its run"):
            older.run_tasks(batch_id + 1, [f"{batch_id + 1}-a"])
        older, newer = newer, restarted(query)
    assert held(bootstrap, topic) == [f"{batch_id}-{name}" for batch_id in range(3) for name in "ab"]


def test_E2_a_task_of_an_older_run_that_wakes_up_before_it_ever_wrote_does_not_end_the_live_run(
    query: Query, bootstrap: str, topic: str
) -> None:
    """It took over, and the live run's commit was refused as fenced."""
    query.run_batch(0, ["a"])
    query.log_offsets(1, 20)
    again = restarted(query)
    messages = again.run_tasks(1, ["b"])
    with pytest.raises(FencedError, match="has taken the place of its run"):
        query.run_tasks(1, ["b"])
    again.commit(messages, 1)
    assert held(bootstrap, topic) == ["a", "b"]


def test_E2_a_checkpoint_that_was_rolled_back_is_refused_loudly(query: Query, bootstrap: str, topic: str) -> None:
    for batch_id in range(3):
        query.run_batch(batch_id, [f"row-{batch_id}"])
    again = restarted(query)
    again.log_offsets(1, 17)  # the batch again, but with what has come since
    messages = again.run_tasks(1, ["row-1", "more"])
    with pytest.raises(FatalError, match="rolled back"):
        again.commit(messages, 1)
    assert held(bootstrap, topic) == ["row-0", "row-1", "row-2"]


def test_E2_a_new_checkpoint_is_a_new_query(query: Query, tmp_path: Path, bootstrap: str, topic: str) -> None:
    query.run_batch(0, ["a"])
    Query(tmp_path / "other", bootstrap=bootstrap, topic=topic).run_batch(0, ["a"])
    assert held(bootstrap, topic) == ["a", "a"]


def test_E2_sinks_of_one_batch_have_decisions_of_their_own_and_equal_names_are_refused(
    query: Query, bootstrap: str, new_topic: NewTopic
) -> None:
    from semel.spark.sink.batch_writer import SemelBatchWriter

    topics = new_topic(), new_topic()

    def write(name: str, topic: str, run: Query) -> None:
        options = {
            "bootstrap": bootstrap,
            "topic": topic,
            "sinkName": name,
            "txnAppId": run.query_id,
            "txnVersion": "0",
            "txnRunId": run.run_id,
        }
        writer = SemelBatchWriter(options, run.schema, overwrite=False)
        with task():
            message = writer.write(iter([values("row")]))
        writer.commit([message])

    again = restarted(query)
    for run in (query, again):
        write("first", topics[0], run)
        write("second", topics[1], run)
    for run in (query, restarted(query)):
        with pytest.raises(UsageError, match="sinkName"):
            write("second", topics[0], run)
    assert [held(bootstrap, topic) for topic in topics] == [["row"], ["row"]]


def settled_offsets(admin: semel.Admin, group: str) -> dict[TopicPartition, int]:
    """The offsets of a group, which may be on another node: that hears a moment later that a transaction is decided."""
    while True:
        try:
            return {tp: place.offset for tp, place in admin.group_offsets(group, stable=True).items()}
        except semel.RetriableError:
            time.sleep(0.02)


def test_E2_the_sources_offsets_are_committed_with_the_output_and_only_then(
    tmp_path: Path, bootstrap: str, topic: str, new_topic: NewTopic
) -> None:
    read = new_topic(2)
    query = Query(tmp_path, bootstrap=bootstrap, topic=topic, kafka__group__id=f"group-{topic}")
    with semel.Admin(bootstrap) as admin:
        for batch_id, offset in enumerate((4, 9)):
            query.log_offsets(batch_id, {read: {"0": offset, "1": 1}})
            messages = query.run_tasks(batch_id, ["row"] if batch_id else [])
            before = admin.group_offsets(f"group-{topic}") if batch_id else {}
            query.commit(messages, batch_id)
            assert settled_offsets(admin, f"group-{topic}") == {
                TopicPartition(read, 0): offset,
                TopicPartition(read, 1): 1,
            }
            assert batch_id == 0 or before[TopicPartition(read, 0)].offset == 4
    assert held(bootstrap, topic) == ["row"]


def test_E2_without_the_checkpoints_place_batches_are_told_apart_by_their_numbers(
    query: Query, bootstrap: str, topic: str
) -> None:
    query.source = source(bootstrap=bootstrap, topic=topic, sourceRange="none")
    query.commit(query.run_tasks(0, ["a"]), 0)
    query.commit([], 1)  # nothing was read, nothing is written
    query.commit(query.run_tasks(2, ["b"]), 2)
    again = restarted(query)
    again.commit(again.run_tasks(2, ["b"]), 2)
    assert held(bootstrap, topic) == ["a", "b"]
    with pytest.raises(FatalError, match=r"INVALID_TXN_STATE|rolled back"):
        again.run_tasks(1, ["rolled back"])


def test_E5_which_batches_are_committed_can_be_asked_after_any_crash(query: Query, bootstrap: str, topic: str) -> None:
    query.run_batch(0, ["a"])
    query.run_batch(1, [])
    query.log_offsets(2, 30)
    query.run_tasks(2, ["never decided"])
    with semel.Admin(bootstrap) as admin:
        decisions = admin.commits(f"spark/{query.query_id}/{topic}")
    assert [(each.token, each.sequence, each.writers) for each in decisions] == [("batch-0", 0, 1), ("batch-1", 1, 0)]
    recorded = json.loads(decisions[1].payload)
    assert (recorded["start"], recorded["end"]) == (['{"in":{"0":10}}'], ['{"in":{"0":20}}'])
    assert recorded["sink"]["topic"] == topic
    assert decisions[0].attempt.startswith(f"{query.run_id}/")


def test_E4_a_trace_reaches_the_tasks_and_the_decision(query: Query) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    seen: list[str] = []

    def noted(method: Callable[..., Any]) -> Callable[..., Any]:
        def note(*args: Any, **options: Any) -> Any:
            seen.append(f"{trace.get_current_span().get_span_context().trace_id:032x}")
            return method(*args, **options)

        return note

    query.log_offsets(0, 10)
    with (
        mock.patch.object(SharedTransaction, "join", noted(SharedTransaction.join)),
        mock.patch.object(SharedTransaction, "commit", noted(SharedTransaction.commit)),
    ):
        query.commit(query.run_tasks(0, ["a"], traceparent=f"00-{trace_id}-b7ad6b7169203331-01"), 0)
    assert seen == [trace_id, trace_id]


def test_E2_the_node_is_killed_in_each_phase_of_a_batch(tmp_path: Path) -> None:
    node = NodeProcess(
        tmp_path / "data",
        settings=("transaction.state.log.num.partitions=2", "disk.min.free.bytes=0", *diskless_options()),
    )
    node.start()
    try:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("out", partitions=2)
        query = Query(tmp_path / "checkpoint", bootstrap=node.bootstrap, topic="out")

        def kill() -> None:
            node.kill()
            node.start()

        def in_the_middle() -> Iterator[pa.RecordBatch]:
            yield values(*("a" * 2_000 for _ in range(300)))
            kill()
            yield values("end of 0")

        query.log_offsets(0, 10)
        message = query.run_task(query.planned(), 0, in_the_middle())  # while a task writes
        query.commit([message], 0)
        query.log_offsets(1, 20)
        messages = query.run_tasks(1, ["1"])
        kill()  # between the tasks and the decision
        query.commit(messages, 1)
        kill()  # after the decision: its markers are finished from the record
        query.run_batch(2, ["2"])
        found = held(node.bootstrap, "out")
        assert (found.count("a" * 2_000), [value for value in found if len(value) < 2_000]) == (
            300,
            ["1", "2", "end of 0"],
        )
        assert len(found) == 303
    finally:
        node.stop()


def test_a_batch_write_of_which_no_task_ended_is_aborted_and_holds_up_no_reader(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    writer = source(bootstrap=bootstrap, topic=topic).writer(VALUES, False)
    cut_off = handle(writer._identity, writer._attempt, writer._options).join(linger_ms=0)
    cut_off.send(topic, b"of a task that Spark killed")
    cut_off.flush()
    pickle.loads(pickle.dumps(writer)).abort(messages=[None, None])
    assert settled_values(bootstrap, topic) == []
    cut_off.close()
