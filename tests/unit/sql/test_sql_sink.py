"""The sink at its single steps: schema, mapping, poison, positions, fencing, back-pressure, lost answers."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sink_kit import PATIENCE_S, Kit, wait_until

import semel
import semel.sql
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, UsageError

# --- Rows -------------------------------------------------------------------------------------------------------------


def test_rows_are_appended_and_the_group_is_told_where_the_database_stands(kit: Kit) -> None:
    kit.send({"id": 1, "n": 1}, {"id": 2, "name": "two", "n": 2})
    statistics = kit.write()
    assert kit.rows() == [(1, None, 1), (2, "two", 2)]
    assert (statistics["records"], statistics["rows"], statistics["dead_letters"]) == (2, 2, 0)
    assert kit.position() == 2
    offsets = kit.admin.group_offsets(kit.group)
    told = offsets[semel.TopicPartition(kit.topic, 0)]
    assert told.offset == 2
    assert told.metadata.startswith("written to sqlite ")
    assert "/" not in told.metadata, "those who may see the group need not see where the database is"


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


# --- Poison -----------------------------------------------------------------------------------------------------------


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


# --- The schema -------------------------------------------------------------------------------------------------------


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
        ({"topics": ["a", "b"], "dead_letter_topic": "b"}, "'b' is among the topics that are read"),
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
    assert other._state.dead_letters is not None
    with kit.engine.begin() as connection:
        other._state.dead_letters.outbox.add(connection, "nope-dead", "theirs")
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
    assert sink._state.dead_letters is not None
    with kit.engine.begin() as connection:
        sink._state.dead_letters.outbox.add(connection, f"{kit.topic}-dead", "ours")
        sink._state.dead_letters.outbox.add(connection, "nope-dead", "theirs")
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


# --- Positions --------------------------------------------------------------------------------------------------------


def test_E3_the_database_says_where_to_go_on_whatever_the_group_says(kit: Kit) -> None:
    kit.send({"id": 1, "n": 1}, {"id": 2, "n": 2})
    kit.write()
    with semel.Consumer(kit.node.bootstrap, group=kit.group) as other:
        other.assign([semel.TopicPartition(kit.topic, 0)])
        other.commit({semel.TopicPartition(kit.topic, 0): 0})
    kit.send({"id": 3, "n": 3})
    assert kit.write()["records"] == 1
    assert [row[0] for row in kit.rows()] == [1, 2, 3]


def test_a_new_database_gets_everything_though_the_group_has_offsets(kit: Kit) -> None:
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
