"""Transactions of the sink's database: SQL of one's own, lost answers, slow and absent databases (E3)."""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any

import opentelemetry.trace
import pytest
import sqlalchemy as sa
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sink_kit import PATIENCE_S, Kit, fail_after, wait_until

import semel
import semel.sql
from semel.protocol.errors import AbortTransactionError, RetriableError, UsageError
from semel.sdk.sql.target import TargetTable


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "give a file"),
        ("oracle://x/y", "is not supported|needs the Python package"),
        ("no url", "takes a URL such as"),
        ("sqlite+aiosqlite:///x.db", "is for asyncio|needs the Python package"),
        ("postgresql+asyncpg://x/y", "is for asyncio|needs the Python package"),
    ],
)
def test_a_database_that_cant_be_used_is_told(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        semel.sql.Outbox("localhost:9094", url)


# --- SQL of one's own -------------------------------------------------------------------------------------------------


def test_sql_of_ones_own_commits_with_the_offsets(kit: Kit) -> None:
    kit.send(1, 2, 3)
    with kit.own() as sink:
        for batch in kit.batches(sink):
            with sink.transaction(batch) as connection:
                for record in batch:
                    connection.execute(sa.text("INSERT INTO log VALUES (:place)"), {"place": record.offset})
    assert kit.rows("SELECT place FROM log") == [(0,), (1,), (2,)]
    assert kit.position() == 3


def test_an_exception_rolls_back_and_the_records_come_again(kit: Kit) -> None:
    kit.send(1, 2)
    seen: list[int] = []
    with kit.own() as sink:
        batches = kit.batches(sink)
        batch = next(batches)
        with pytest.raises(ZeroDivisionError), sink.transaction(batch) as connection:
            fail_after(connection, "INSERT INTO log VALUES (1)")
        with pytest.raises(UsageError, match="returned, once"), sink.transaction(batch):
            pass
        for again in batches:
            with sink.transaction(again):
                seen += [record.offset for record in again]
    assert seen == [0, 1]
    assert kit.rows("SELECT place FROM log") == []
    assert kit.position() == 2


def test_a_batch_that_is_left_out_is_refused_with_the_next_one(kit: Kit) -> None:
    kit.send(1, 2)
    with kit.own() as sink:
        batches = sink.batches(max_records=1)
        next(batches)
        second = next(batches)
        with pytest.raises(UsageError, match="stands at 0, and this batch begins at 1"), sink.transaction(second):
            pass
        first = next(batches)
        assert [record.offset for record in first] == [0]


def test_a_commit_inside_of_the_block_is_told(kit: Kit) -> None:
    kit.send(1)
    with kit.own() as sink:
        batch = next(sink.batches())
        with pytest.raises(UsageError, match="leave commit"), sink.transaction(batch) as connection:
            connection.commit()


def test_E3_a_commit_whose_answer_is_lost_is_asked_for_and_not_done_again(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.send(1)
    with kit.own() as sink:
        lost = lose_answers(monkeypatch, kit.engine, 1)
        for batch in kit.batches(sink):
            with sink.transaction(batch) as connection:
                connection.execute(sa.text("INSERT INTO log VALUES (1)"))
        assert sink.statistics()["refused"] == 0
    assert len(lost) == 1
    assert kit.rows("SELECT place FROM log") == [(1,)]


def test_E3_a_table_is_not_written_twice_when_answers_to_commits_are_lost(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.send("garbage", {"id": 1, "n": 1})
    with kit.sink(mapping=lambda record: {"place": len(json.loads(record.value))}, table="log") as sink:
        lost = lose_answers(monkeypatch, kit.engine, 1)
        kit.drain(sink)
        statistics = sink.statistics()
        assert len(kit.dead()) == 1
    assert kit.rows("SELECT place FROM log") == [(2,)]
    assert len(lost) == 1
    assert statistics["retries"] == 1
    assert (statistics["rows"], statistics["dead_letters"]) == (1, 1)


def test_E3_a_commit_that_failed_gives_its_records_again(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection dies before the COMMIT: nothing is in the database, and the answer looks like a lost one."""
    kit.send(1, 2)
    with kit.own() as sink:
        died = lose_answers(monkeypatch, kit.engine, 1, commits=False)
        written: list[int] = []
        refused: list[tuple[str, list[Any], int]] = []
        for batch in kit.batches(sink, max_records=1):
            try:
                with sink.transaction(batch) as connection:
                    connection.execute(sa.text("INSERT INTO log VALUES (:place)"), {"place": batch[0].offset})
            except AbortTransactionError as error:
                refused.append((error.message, kit.rows("SELECT place FROM log"), kit.position()))
            else:
                written.append(batch[0].offset)
    assert len(died) == 1
    ((message, rows, position),) = refused
    assert "records will be read again" in message
    assert (rows, position) == ([], 0)
    assert written == [0, 1]
    assert kit.rows("SELECT place FROM log") == [(0,), (1,)]


def test_E3_a_table_gets_the_rows_of_a_commit_that_failed(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.send({"id": 1, "n": 1})
    died = lose_answers(monkeypatch, kit.engine, 1, commits=False)
    statistics = kit.write()
    assert len(died) == 1
    assert kit.rows() == [(1, None, 1)]
    assert (statistics["rows"], statistics["retries"]) == (1, 1)


def lose_answers(monkeypatch: pytest.MonkeyPatch, engine: sa.Engine, count: int, *, commits: bool = True) -> list[int]:
    """Let commits that moved offsets take effect and raise, as where the connection breaks before their answer.

    Without `commits` it breaks before the commit.
    """
    left = itertools.chain([True] * count, itertools.repeat(False))
    dialect = engine.dialect
    commit = dialect.do_commit
    writes: set[int] = set()
    lost: list[int] = []

    def note(connection: Any, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE semel_offsets SET position"):
            writes.add(id(connection.connection.dbapi_connection))

    def lose(connection: Any) -> None:
        number = id(connection.dbapi_connection)
        is_lost = number in writes and next(left)
        writes.discard(number)
        if commits or not is_lost:
            commit(connection)
        if is_lost:
            lost.append(number)
            raise broken()

    sa.event.listen(engine, "before_cursor_execute", note)
    monkeypatch.setattr(dialect, "do_commit", lose)
    return lost


def broken() -> Exception:
    import sqlite3

    error = sqlite3.OperationalError("the connection broke")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


# --- A slow database --------------------------------------------------------------------------------------------------


def test_a_slow_database_holds_reading_back_and_the_member_stays(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.send(*({"id": n, "n": n} for n in range(500)))
    slow = threading.Event()
    write = TargetTable.write

    def wait_and_write(*arguments: Any) -> None:
        slow.wait(PATIENCE_S)
        write(*arguments)

    monkeypatch.setattr(TargetTable, "write", wait_and_write)
    with kit.sink(rows_max=20) as sink:
        thread = threading.Thread(target=kit.drain, args=(sink,))
        thread.start()
        wait_until(lambda: sink.statistics()["buffered_records"] >= 40)
        member = sink._state.consumer._core._member
        assert member is not None
        most = 0
        for _ in range(3):
            polled_at = member.polled_at
            wait_until(lambda: member.polled_at > polled_at)  # noqa: B023  # else the group would give it up
            most = max(most, sink.statistics()["buffered_records"])
        slow.set()
        thread.join(PATIENCE_S)
        assert most <= 60, "more was read than the bounds say"
        assert sink.statistics()["claims"] == 1, "the member was given up"
        assert sink.statistics()["refused"] == 0
    assert len(kit.rows()) == 500


def test_a_database_that_is_away_is_waited_for(kit: Kit) -> None:
    kit.send({"id": 1, "n": 1})
    with kit.sink() as sink:
        holder = kit.engine.connect()
        holder.exec_driver_sql("BEGIN EXCLUSIVE")
        asked = threading.Event()
        sa.event.listen(kit.engine, "before_cursor_execute", lambda *_: asked.set())
        thread = threading.Thread(target=kit.drain, args=(sink,))
        thread.start()
        assert asked.wait(PATIENCE_S)
        assert thread.is_alive()
        assert sink.statistics()["records"] == 0
        holder.rollback()
        holder.close()
        thread.join(PATIENCE_S)
    assert kit.rows() == [(1, None, 1)]


def test_a_database_that_stays_away_ends_the_run_with_the_reason(kit: Kit) -> None:
    kit.send({"id": 1, "n": 1})
    engine = sa.create_engine(kit.engine.url, connect_args={"timeout": 0.05}, poolclass=sa.NullPool)
    sink = semel.sql.Sink(
        kit.node.bootstrap,
        engine,
        group=kit.group,
        topics=[kit.topic],
        table="items",
        mapping=lambda record: json.loads(record.value or b""),
        retry_timeout_ms=300,
    )
    with sink, kit.engine.connect() as holder:
        holder.exec_driver_sql("BEGIN EXCLUSIVE")
        with pytest.raises(RetriableError, match=r"did not take the transaction: .*locked"):
            sink.run()


def test_E4_each_transaction_of_the_database_is_a_span_that_links_to_its_records(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)
    with opentelemetry.trace.get_tracer("shop").start_as_current_span("order") as order:
        kit.send({"id": 1, "n": 1})
    kit.write()
    with kit.own(group=f"{kit.group}-own") as sink:
        batch = next(sink.batches())
        with sink.transaction(batch):
            inside = opentelemetry.trace.get_current_span()
    spans = [span for span in exporter.get_finished_spans() if span.name == f"process {kit.topic}"]
    assert len(spans) == 2
    assert inside.get_span_context() == spans[1].get_span_context()
    for span in spans:
        assert [link.context.trace_id for link in span.links] == [order.get_span_context().trace_id]
        assert span.attributes is not None
        assert span.attributes["messaging.batch.message_count"] == 1


def test_stop_ends_a_run_and_what_was_not_written_is_read_again(kit: Kit) -> None:
    kit.send(*({"id": n, "n": n} for n in range(50)))
    with kit.sink(rows_max=10) as sink:
        thread = threading.Thread(target=sink.run)
        thread.start()
        wait_until(lambda: sink.statistics()["records"] > 0)
        sink.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    kit.write()
    assert len(kit.rows()) == 50


def test_a_sink_outside_of_its_block_is_told(kit: Kit) -> None:
    sink = kit.sink()
    with pytest.raises(UsageError, match="with-block"):
        sink.run()
    sink.close()
    with pytest.raises(UsageError, match="closed"), sink:
        pass
