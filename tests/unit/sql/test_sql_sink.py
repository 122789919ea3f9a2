"""The sink at its single steps: schema, mapping, poison, positions, fencing, back-pressure, lost answers."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import opentelemetry.trace
import pytest
import sqlalchemy as sa
from live_node import LiveNode
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import semel
import semel.sql
from semel.protocol.api.topics import LATEST_TIMESTAMP
from semel.protocol.errors import AbortTransactionError, ErrorCode, FatalError, FencedError, RetriableError, UsageError
from semel.sdk.sql.offsets import Step
from semel.sdk.sql.places import Places
from semel.sdk.sql.pump import Pump
from semel.sdk.sql.target import TargetTable

_numbers = itertools.count()
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with LiveNode(tmp_path_factory.mktemp("node")) as running:
        yield running


class Kit:
    """A topic, a database with a table, and sinks between them."""

    def __init__(self, node: LiveNode, folder: Path) -> None:
        self.node = node
        self.topic = f"t{next(_numbers)}"
        self.group = f"g{next(_numbers)}"
        self.engine = sa.create_engine(f"sqlite:///{folder}/database.db", poolclass=sa.NullPool)
        self.admin = semel.Admin(node.bootstrap)
        self.admin.create_topic(self.topic, partitions=1)
        self.admin.create_topic(f"{self.topic}-dead", partitions=1)
        self.sql(
            "CREATE TABLE items (id INTEGER NOT NULL PRIMARY KEY, name VARCHAR(8), n INTEGER NOT NULL CHECK (n >= 0))"
        )
        self.sql("CREATE TABLE log (place INTEGER NOT NULL)")
        self.sink().create_tables()

    def sink(self, **options: Any) -> semel.sql.Sink:
        chosen: dict[str, Any] = {
            "group": self.group,
            "topics": [self.topic],
            "table": "items",
            "mapping": lambda record: json.loads(record.value),
            "dead_letter_topic": f"{self.topic}-dead",
            "linger_ms": 0,
        }
        chosen.update(options)
        chosen["consumer"] = {"heartbeat_interval_ms": 20, "max_wait_ms": 50, **chosen.get("consumer", {})}
        return semel.sql.Sink(self.node.bootstrap, self.engine, **chosen)

    def own(self, **options: Any) -> semel.sql.Sink:
        """A sink for SQL of one's own."""
        return self.sink(**{"table": None, "mapping": None, "dead_letter_topic": None, **options})

    def send(self, *values: object) -> None:
        with semel.Producer(self.node.bootstrap, linger_ms=0) as producer:
            for value in values:
                producer.send(self.topic, value if isinstance(value, str) else json.dumps(value))

    def sql(self, text: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text(text))

    def rows(self, text: str = "SELECT id, name, n FROM items ORDER BY id") -> list[Any]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(text))]

    def position(self) -> int:
        ((found,),) = self.rows("SELECT position FROM semel_offsets")
        assert isinstance(found, int)
        return found

    def write(self, **options: Any) -> dict[str, int]:
        """Run a sink until everything is written."""
        with self.sink(**options) as sink:
            self.drain(sink)
            return sink.statistics()

    def drain(self, sink: semel.sql.Sink) -> None:
        """Run a sink until the database stands at the topic's end, however long it takes to get there."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            sink.run(idle_timeout_s=0.1)
            if self.is_at_end(sink):
                return
            assert time.monotonic() < deadline

    def batches(self, sink: semel.sql.Sink, **options: Any) -> Iterator[semel.Batch]:
        """Yield batches until the database stands at the topic's end."""
        for batch in sink.batches(timeout_s=PATIENCE_S, **options):
            yield batch
            if self.is_at_end(sink):
                return

    def is_at_end(self, sink: semel.sql.Sink) -> bool:
        tp = semel.TopicPartition(self.topic, 0)
        end = self.admin.list_offsets({tp: LATEST_TIMESTAMP})[tp].offset
        group = sink.offsets.group
        return self.rows(f"SELECT position FROM semel_offsets WHERE consumer_group = '{group}'") == [(end,)]

    def dead(self) -> list[tuple[str, str, int]]:
        """Values, reasons and offsets of the dead letters, once all are relayed."""
        tp = semel.TopicPartition(f"{self.topic}-dead", 0)
        wait_until(lambda: self.rows("SELECT count(*) FROM semel_dead_letters") == [(0,)])
        found = []
        with semel.Consumer(self.node.bootstrap, max_wait_ms=50) as consumer:
            consumer.assign([tp])
            end = consumer.end_offsets()[tp]
            while (consumer.position(tp) or 0) < end:
                for record in consumer.poll(0.2) or ():
                    headers = dict(record.headers)
                    reason = (headers["semel.error.reason"] or b"").decode()
                    offset = int(headers["semel.source.offset"] or 0)
                    found.append(((record.value or b"").decode(), reason, offset))
        return found


@pytest.fixture
def kit(node: LiveNode, tmp_path: Path) -> Iterator[Kit]:
    made = Kit(node, tmp_path)
    yield made
    made.admin.close()
    made.engine.dispose()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# rows


def test_rows_are_appended_and_the_group_is_told_where_the_database_stands(kit: Kit) -> None:
    kit.send({"id": 1, "n": 1}, {"id": 2, "name": "two", "n": 2})
    statistics = kit.write()
    assert kit.rows() == [(1, None, 1), (2, "two", 2)]
    assert (statistics["records"], statistics["rows"], statistics["dead_letters"]) == (2, 2, 0)
    assert kit.position() == 2
    offsets = kit.admin.group_offsets(kit.group)
    assert offsets[semel.TopicPartition(kit.topic, 0)].offset == 2


def test_upserts_and_deletes_take_effect_in_order(kit: Kit) -> None:
    def mapping(record: semel.Record) -> Any:
        value = json.loads(record.value or b"")
        return semel.sql.Delete({"id": value["gone"]}) if "gone" in value else value

    kit.send({"id": 1, "n": 1}, {"id": 1, "n": 2}, {"gone": 1}, {"id": 1, "name": "back", "n": 3}, {"id": 2, "n": 1})
    kit.send({"id": 1, "n": 4}, {"gone": 2})
    kit.write(mapping=mapping, mode="upsert")
    assert kit.rows() == [(1, "back", 4)], "what an upsert does not name stays as it is"


def test_a_record_may_become_several_rows_or_none(kit: Kit) -> None:
    kit.send([1, 2, 3], [], "null")
    statistics = kit.write(
        mapping=lambda record: (
            None if record.value == b"null" else [{"id": n, "n": n} for n in json.loads(record.value)]
        )
    )
    assert [row[0] for row in kit.rows()] == [1, 2, 3]
    assert (statistics["rows"], statistics["skipped"]) == (3, 2)
    assert kit.position() == 3


# poison


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("garbage", "the mapping raised JSONDecodeError"),
        ([1], "the mapping returned int; it returns rows as dicts"),
        ('"text"', "the mapping returned str"),
        ({"id": 1}, "the row lacks n"),
        ({"id": 1, "n": None}, "column 'n' is NOT NULL"),
        ({"id": 1, "n": "many"}, "column 'n' takes int, not str"),
        ({"id": 1, "n": 1, "name": "much too long"}, "column 'name' takes 8 characters, not 13"),
        ({"id": 1, "n": 1, "nmae": "x"}, "a row has 'nmae', which table 'items' lacks"),
        ({"id": 1, "n": -1}, "the database refused the row: IntegrityError: CHECK constraint failed"),
        ({"id": 2**70, "n": 1}, "the database refused the row: OverflowError"),
        ({"id": 7, "n": 1}, "the database refused the row: IntegrityError: UNIQUE constraint failed"),
    ],
)
def test_a_record_that_cant_be_a_row_becomes_a_dead_letter_and_its_neighbours_rows(
    kit: Kit, value: object, reason: str
) -> None:
    kit.send({"id": 7, "n": 7}, value, {"id": 8, "n": 8})
    with kit.sink() as sink:
        kit.drain(sink)
        ((dead, why, offset),) = kit.dead()
    assert dead == (value if isinstance(value, str) else json.dumps(value))
    assert why.startswith(reason)
    assert offset == 1
    assert [row[0] for row in kit.rows()] == [7, 8]
    assert kit.position() == 3


def test_every_refused_row_is_found_among_many(kit: Kit) -> None:
    kit.send(*({"id": n, "n": -1 if n % 17 == 3 else n} for n in range(1, 200)))
    with kit.sink() as sink:
        kit.drain(sink)
        found = kit.dead()
    bad = [n for n in range(1, 200) if n % 17 == 3]
    assert [json.loads(value)["id"] for value, _, _ in found] == bad
    assert [row[0] for row in kit.rows()] == [n for n in range(1, 200) if n not in bad]


def test_an_upsert_that_is_refused_is_a_dead_letter_though_a_later_one_of_its_key_is_not(kit: Kit) -> None:
    """It was left out as superseded once, and was neither a row nor a dead letter then."""
    kit.send({"id": 1, "n": -1}, {"id": 1, "n": 5})
    with kit.sink(mode="upsert") as sink:
        kit.drain(sink)
        assert [offset for _, _, offset in kit.dead()] == [0]
    assert kit.rows() == [(1, None, 5)]


def test_without_a_topic_for_dead_letters_the_record_is_named_and_nothing_of_its_transaction_is_written(
    kit: Kit,
) -> None:
    kit.send({"id": 1, "n": 1}, "garbage")
    with pytest.raises(FatalError, match=rf"record {kit.topic}-0@1 can't become a row: the mapping raised JSONDecode"):
        kit.write(dead_letter_topic=None)
    assert kit.rows() == []
    assert kit.position() == 0


# the schema


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "itmes"}, "there is no table 'itmes'"),
        ({"columns": {"id": int, "m": int}}, "columns names 'm', which table 'items' lacks"),
        ({"columns": {"id": int}}, "needs n \\(NOT NULL, without a default\\)"),
        ({"columns": {"id": int, "n": str}}, "column 'n' of 'items' is INTEGER.*gives str"),
        ({"mode": "upsert", "key": ["name"]}, "no primary key and no unique constraint of 'items' is on exactly name"),
        ({"mode": "upsert", "key": ["nmae"]}, "key names 'nmae'.*did you mean 'name'"),
        ({"mode": "upsert", "table": "log"}, "table 'log' has no primary key"),
        ({"key": ["id"]}, 'key is for mode="upsert"'),
        ({"offsets_table": "items"}, "table 'items' .* lacks consumer_group"),
        ({"offsets_table": "none"}, r"no table 'none'.*create_tables\(\)"),
    ],
)
def test_a_table_that_does_not_fit_is_told_at_the_start(kit: Kit, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message), kit.sink(**options):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "replace"}, "mode can't be 'replace'"),
        ({"mapping": None}, "table and mapping belong together"),
        ({"topics": "t"}, "topics takes a list"),
        ({"key": "id"}, r"key takes a list of columns, such as \['id'\]"),
        ({"consumer": {"isolation": "read_uncommitted"}}, "can't set isolation: it writes committed records alone"),
        ({"consumer": {"auto_commit_interval_ms": 5}}, "the offsets are in the database"),
        ({"row_max": 1}, "did you mean 'rows_max'"),
        ({"offset_reset": "first"}, "use one of: earliest, latest, error"),
        ({"topics": ["a", "b"], "dead_letter_topic": "b"}, "'b' is among the topics that the sink reads"),
        ({"session_timeout_ms": 6_000}, r"give it to the consumer: consumer=\{'session_timeout_ms': \.\.\.\}"),
        ({"isolation": "read_uncommitted"}, "a sink decides it: it writes committed records alone"),
    ],
)
def test_wrong_options_are_told(kit: Kit, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kit.sink(**options)


def test_a_topic_for_dead_letters_that_is_missing_is_told_at_the_start(kit: Kit) -> None:
    """The sink started, and died at the first poison record."""
    with (
        pytest.raises(UsageError, match=r"'nope-dead' .* `semel topic create nope-dead`"),
        kit.sink(dead_letter_topic="nope-dead"),
    ):
        pass


def test_a_sink_starts_while_no_node_can_say_whether_its_topic_for_dead_letters_is_there(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(admin: semel.Admin, name: str) -> None:
        raise RetriableError("no node answers", ErrorCode.REQUEST_TIMED_OUT)

    monkeypatch.setattr(semel.Admin, "topic", away)
    kit.send({"id": 1, "n": 1})
    assert kit.write()["rows"] == 1


def test_dead_letters_of_another_group_that_are_refused_do_not_stop_a_sink(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    """One row for a topic that is no more stopped every sink of the database, whatever its group."""
    other = kit.sink(group="other", dead_letter_topic="nope-dead")
    assert other.dead_letters is not None
    with kit.engine.begin() as connection:
        other.dead_letters.outbox.add(connection, "nope-dead", "theirs")
    other.close()
    kit.send("no json", {"id": 1, "n": 1})
    with kit.sink() as sink:
        running = threading.Thread(target=sink.run)
        running.start()
        wait_until(lambda: sink.statistics()["dead_letters_set_aside"] == 1)
        remaining = "SELECT topic, refused IS NULL FROM semel_dead_letters"
        wait_until(
            lambda: (
                kit.rows("SELECT position FROM semel_offsets") == [(2,)] and kit.rows(remaining) == [("nope-dead", 0)]
            )
        )
        sink.stop()
        running.join()
    assert "for topic 'nope-dead', is set aside" in caplog.text
    end = semel.TopicPartition(f"{kit.topic}-dead", 0)
    with semel.Consumer(kit.node.bootstrap) as consumer:
        consumer.assign([end])
        assert consumer.poll(5.0) is not None


def test_dead_letters_that_others_set_aside_are_relayed_when_their_own_sink_starts(kit: Kit) -> None:
    sink = kit.sink()
    assert sink.dead_letters is not None
    with kit.engine.begin() as connection:
        sink.dead_letters.outbox.add(connection, f"{kit.topic}-dead", "ours")
        sink.dead_letters.outbox.add(connection, "nope-dead", "theirs")
        connection.execute(sa.text("UPDATE semel_dead_letters SET refused = 'there was no topic'"))
    with sink:
        kit.drain(sink)
        wait_until(lambda: kit.rows("SELECT topic FROM semel_dead_letters") == [("nope-dead",)])
    assert kit.rows("SELECT refused FROM semel_dead_letters") == [("there was no topic",)]


def test_a_topic_for_dead_letters_that_was_deleted_is_told_with_what_to_do(kit: Kit) -> None:
    """The advice was an option that no Sink has."""
    kit.send("no json")
    with kit.sink() as sink:
        kit.admin.delete_topic(f"{kit.topic}-dead")
        with pytest.raises(FatalError, match=f"`semel topic create {kit.topic}-dead`") as raised:
            sink.run(idle_timeout_s=PATIENCE_S)
    assert "set_aside_refused" not in str(raised.value)


def test_tables_are_not_created_in_a_database_that_is_away(tmp_path: Path) -> None:
    sink = semel.sql.Sink("localhost:9094", f"sqlite:///{tmp_path}/no/such/folder/x.db", group="g", topics=["t"])
    with pytest.raises(RetriableError, match="unable to open database file"):
        sink.create_tables()
    sink.close()


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


def test_passwords_stay_out_of_messages() -> None:
    outbox = semel.sql.Outbox("localhost:9094", "postgresql://me:geheim@127.0.0.1:1/x")
    with pytest.raises(RetriableError) as caught:
        outbox.__enter__()
    assert "geheim" not in str(caught.value)
    assert "me:***@" in str(caught.value)


def test_rows_stay_out_of_messages_and_logs(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    kit.send({"id": 1, "n": 1})
    kit.sql("DROP TABLE log")
    sink = semel.sql.Sink(kit.node.bootstrap, str(kit.engine.url), group=kit.group, topics=[kit.topic])
    with sink:
        batch = next(sink.batches())
        with pytest.raises(sa.exc.OperationalError) as caught, sink.transaction(batch) as connection:
            connection.execute(sa.text("INSERT INTO log VALUES (:secret)"), {"secret": "geheim"})
    assert "geheim" not in str(caught.value) + caplog.text


# positions


def test_E3_the_database_says_where_to_go_on_whatever_the_group_says(kit: Kit) -> None:
    kit.send({"id": 1, "n": 1}, {"id": 2, "n": 2})
    kit.write()
    with semel.Consumer(kit.node.bootstrap, group=kit.group) as other:
        other.assign([semel.TopicPartition(kit.topic, 0)])
        other.commit({semel.TopicPartition(kit.topic, 0): 0})
    kit.send({"id": 3, "n": 3})
    assert kit.write()["records"] == 1
    assert [row[0] for row in kit.rows()] == [1, 2, 3]


def test_a_database_made_anew_gets_everything_though_the_group_has_offsets(kit: Kit) -> None:
    kit.send({"id": 1, "n": 1})
    kit.write()
    kit.sql("DELETE FROM items")
    kit.sql("DELETE FROM semel_offsets")
    kit.write()
    assert kit.rows() == [(1, None, 1)]


def test_latest_is_kept_in_the_database_so_that_nothing_is_skipped_later(kit: Kit) -> None:
    kit.send({"id": 1, "n": 1})
    assert kit.write(offset_reset="latest")["records"] == 0
    kit.send({"id": 2, "n": 2})
    kit.write(offset_reset="latest")
    assert [row[0] for row in kit.rows()] == [2]


def test_a_topic_that_was_made_again_is_told(kit: Kit) -> None:
    kit.send({"id": 1, "n": 1}, {"id": 2, "n": 2})
    kit.write()
    kit.sql("UPDATE semel_offsets SET position = 100")
    with pytest.raises(FatalError, match="ends at 2, and the database stands at 100: the topic was made again"):
        kit.write()


def test_records_that_were_deleted_before_they_were_written_are_told_with_offset_reset_error(kit: Kit) -> None:
    kit.send(*({"id": n, "n": n} for n in range(4)))
    kit.write()
    kit.sql("UPDATE semel_offsets SET position = 0")
    kit.admin.delete_records({semel.TopicPartition(kit.topic, 0): 3})
    with pytest.raises(FatalError, match=r"records 0 to 2 of .* were deleted before they were written"):
        kit.write(offset_reset="error")


def test_offset_reset_error_asks_where_to_begin(kit: Kit) -> None:
    kit.send({"id": 1, "n": 1})
    with pytest.raises(FatalError, match="say where to begin"):
        kit.write(offset_reset="error")


# SQL of one's own


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


def fail_after(connection: sa.Connection, statement: str) -> None:
    connection.execute(sa.text(statement))
    raise ZeroDivisionError


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


# fencing


def test_E3_O4_a_zombie_that_wakes_up_is_refused_and_its_successor_begins_where_it_stood(kit: Kit) -> None:
    kit.send(1, 2)
    static = {"instance_id": "one"}
    with kit.own(consumer=static) as zombie:
        batch = next(zombie.batches(max_records=1))
        with zombie.transaction(batch) as connection:
            connection.execute(sa.text("INSERT INTO log VALUES (0)"))
        asleep = next(zombie.batches(max_records=1))
        with kit.own(consumer=static) as successor:
            fresh = next(successor.batches(max_records=1))
            assert [record.offset for record in fresh] == [1]
            with pytest.raises(AbortTransactionError, match="claimed by member") as caught, zombie.transaction(asleep):
                raise AssertionError("a zombie got a connection to write with")
            assert caught.value.code is ErrorCode.ILLEGAL_GENERATION
            with successor.transaction(fresh) as connection:
                connection.execute(sa.text("INSERT INTO log VALUES (1)"))
            with pytest.raises(FencedError):
                list(zombie.batches(timeout_s=5))
    assert kit.rows("SELECT place FROM log") == [(0,), (1,)]


def test_O4_a_member_of_an_older_generation_cannot_claim(kit: Kit) -> None:
    """It was assigned the partition, slept, and looks at the database only after its successor has claimed."""
    kit.send(1)
    static = {"instance_id": "one"}
    with kit.own(consumer=static) as zombie:
        next(zombie.batches())
        member = zombie.consumer._core.committer()
        with kit.own(consumer=static) as successor:
            batch = next(successor.batches())
            claim = zombie.places._claim_all([semel.TopicPartition(kit.topic, 0)], member)
            assert claim.granted == {}
            assert isinstance(claim.error, FencedError)
            with successor.transaction(batch):
                pass
    assert kit.position() == 1


def test_a_claim_is_lost_to_one_that_came_between(kit: Kit) -> None:
    kit.send(1)
    tp = semel.TopicPartition(kit.topic, 0)
    with kit.own() as sink:
        next(sink.batches())
        member = sink.consumer._core.committer()
        with sink.database.begin() as connection:
            seen = sink.offsets.read(connection, tp)
        assert seen is not None
        for expected in (seen.epoch + 1, None):
            with sink.database.begin() as connection:
                claimed = sink.offsets.claim(connection, tp, seen, 0, member)
            assert (claimed and claimed.epoch) == expected


def test_E3_a_claim_begins_where_the_former_owner_stood_when_it_lost_the_row(kit: Kit) -> None:
    """It could write until then, so a position that was read before says too little."""
    kit.send(1, 2)
    tp = semel.TopicPartition(kit.topic, 0)
    with kit.own() as sink:
        batch = next(sink.batches(max_records=1))
        with sink.database.begin() as connection:
            seen = sink.offsets.read(connection, tp)
        assert seen is not None
        assert seen.position == 0
        with sink.transaction(batch):
            pass
        member = sink.consumer._core.committer()
        with sink.database.begin() as connection:
            claimed = sink.offsets.claim(connection, tp, seen, 0, member)
        assert claimed is not None
        assert (claimed.position, claimed.epoch) == (1, seen.epoch + 1)


def test_E3_a_batch_of_an_older_claim_is_refused_before_the_database_is_asked(kit: Kit) -> None:
    kit.send(1, 2)
    tp = semel.TopicPartition(kit.topic, 0)
    with kit.own() as sink:
        batches = sink.batches(max_records=1)
        first, second = next(batches), next(batches)
        step = sink._steps[second][tp]
        with pytest.raises(ZeroDivisionError), sink.transaction(first) as connection:
            fail_after(connection, "INSERT INTO log VALUES (1)")
        again = next(batches)  # under a claim of its own
        assert [record.offset for record in again] == [0]
        assert sink.places.is_ours(tp, sink._steps[again][tp])
        assert not sink.places.is_ours(tp, step)
        with pytest.raises(AbortTransactionError, match="were claimed again"), sink.transaction(second):
            raise AssertionError("a batch of an older claim got a connection to write with")


def test_a_group_that_was_forgotten_and_made_again_is_no_zombie(kit: Kit) -> None:
    """Its generations begin at 1 again, which an order of generations alone would take for older ones."""
    kit.send({"id": 1, "n": 1})
    kit.write()
    kit.sql("UPDATE semel_offsets SET generation = 1000, member_id = 'somebody'")
    kit.send({"id": 2, "n": 2})
    kit.write()
    assert [row[0] for row in kit.rows()] == [1, 2]


def test_E3_rows_of_a_partition_that_has_gone_are_not_written_with_those_of_one_that_stayed(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are in what was read at once, and buffered."""
    topic = f"{kit.topic}-two"
    stays, gone = (semel.TopicPartition(topic, number) for number in (0, 1))
    kit.admin.create_topic(topic, partitions=2)
    kit.sql("CREATE TABLE written (source_partition INTEGER NOT NULL, source_offset INTEGER NOT NULL)")
    with semel.Producer(kit.node.bootstrap) as producer:
        for tp in (stays, gone, stays):
            producer.send(topic, "value", partition=tp.partition)

    def mapping(record: semel.Record) -> dict[str, int]:
        return {"source_partition": record.partition, "source_offset": record.offset}

    is_ours = Places.is_ours
    monkeypatch.setattr(Places, "is_ours", lambda places, tp, step: tp != gone and is_ours(places, tp, step))
    with kit.sink(topics=[topic], table="written", mapping=mapping) as sink:
        assert sink._target is not None
        pump = Pump(sink, sink._target, mapping)
        records: list[semel.Record] = []
        steps: dict[semel.TopicPartition, Step] = {}
        while len(records) < 3:
            if (batch := sink.poll(0.05, 1)) is not None:
                for tp, step in sink._steps.pop(batch).items():
                    steps[tp] = Step(step.epoch, steps.get(tp, step).position, step.next_position)
                records += batch
        pump._buffer.add(pump._mapped(records, steps))
        pump._begin()
        assert pump._writing is not None
        pump._writing.result(PATIENCE_S)
        pump.close()
    assert kit.rows("SELECT * FROM written ORDER BY source_offset") == [(0, 0), (0, 1)]


def test_E3_partitions_move_between_members_at_work_and_each_record_is_written_once(kit: Kit) -> None:
    topic = f"{kit.topic}-wide"
    kit.admin.create_topic(topic, partitions=4)
    kit.sql("CREATE TABLE written (source_partition INTEGER NOT NULL, source_offset INTEGER NOT NULL)")
    feeding = threading.Event()

    def feed() -> None:
        with semel.Producer(kit.node.bootstrap, linger_ms=0) as producer:
            for number in itertools.count():
                if feeding.wait(0.001):
                    return
                producer.send(topic, str(number), partition=number % 4)

    def member() -> semel.sql.Sink:
        def mapping(record: semel.Record) -> dict[str, int]:
            return {"source_partition": record.partition, "source_offset": record.offset}

        return kit.sink(topics=[topic], table="written", mapping=mapping, rows_max=20)

    def position() -> dict[int, int]:
        return dict(kit.rows("SELECT partition_number, position FROM semel_offsets"))

    feeder = threading.Thread(target=feed)
    feeder.start()
    sinks = [member() for _ in range(3)]
    threads = [threading.Thread(target=sink.run) for sink in sinks]
    for sink, thread in zip(sinks, threads, strict=True):
        sink.__enter__()
        thread.start()
        wait_until(lambda sink=sink: sink.statistics()["records"] > 50)
    sinks[0].stop()  # leaves in the middle
    threads[0].join(30)
    sinks[0].close()
    feeding.set()
    feeder.join(30)
    tps = [semel.TopicPartition(topic, number) for number in range(4)]
    with semel.Consumer(kit.node.bootstrap) as reader:
        reader.assign(tps)
        ends = {tp.partition: end for tp, end in reader.end_offsets().items()}
    wait_until(lambda: position() == ends)
    for sink, thread in zip(sinks[1:], threads[1:], strict=True):
        sink.stop()
        thread.join(PATIENCE_S)
        sink.close()
    rows = kit.rows("SELECT source_partition, source_offset FROM written ORDER BY rowid")
    for number, end in ends.items():
        assert [offset for partition, offset in rows if partition == number] == list(range(end))
    assert sum(sink.statistics()["records"] for sink in sinks) == len(rows)


# a slow database


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
        member = sink.consumer._core._member
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
