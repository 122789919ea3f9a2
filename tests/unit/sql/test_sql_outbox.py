"""The outbox at its single steps: crashes between its two commits, take-overs, refused rows, bounds."""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import opentelemetry.trace
import pytest
import sqlalchemy as sa
from live_node import LiveNode
from opentelemetry.sdk.trace import TracerProvider

import semel
import semel.sql
from semel.protocol.errors import FatalError, UsageError
from semel.sdk.sql import outbox as outbox_module
from semel.sdk.sql.outbox_table import ROWS_MAX, OutboxTable, decode_ids, encode_ids

_numbers = itertools.count()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with LiveNode(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def topic(node: LiveNode) -> str:
    name = f"t{next(_numbers)}"
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic(name, partitions=1)
    return name


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    made = sa.create_engine(f"sqlite:///{tmp_path}/database.db", poolclass=sa.NullPool)
    semel.sql.Outbox("localhost:9094", made).create_tables()
    yield made
    made.dispose()


def add(engine: sa.Engine, topic: str, *values: str, **options: Any) -> None:
    outbox = semel.sql.Outbox("localhost:9094", engine)
    with engine.begin() as connection:
        for value in values:
            outbox.add(connection, topic, value, **options)


def test_E3_a_row_that_another_library_inserts_is_relayed_as_one_that_was_added(
    node: LiveNode, topic: str, engine: sa.Engine
) -> None:
    outbox = semel.sql.Outbox("localhost:9094", engine)
    given: dict[str, Any] = {"key": "k", "headers": {"h": b"\xff"}, "partition": 0}
    add(engine, topic, "v", **given)
    with engine.begin() as connection:
        connection.execute(sa.insert(outbox.table), outbox.row(topic, "v", **given))
    assert relay(node, engine)["rows"] == 2
    added, inserted = read(node, topic)
    assert (inserted.key, inserted.value, inserted.headers) == (added.key, added.value, added.headers)
    assert (inserted.key, inserted.value, inserted.headers) == (b"k", b"v", (("h", b"\xff"),))


def relay(node: LiveNode, engine: sa.Engine, **options: Any) -> dict[str, int]:
    with semel.sql.Outbox(node.bootstrap, engine, lease_ms=200, **options) as outbox:
        outbox.run(idle_timeout_s=0.05)
        return outbox.statistics()


def read(node: LiveNode, topic: str) -> list[semel.Record]:
    tp = semel.TopicPartition(topic, 0)
    records: list[semel.Record] = []
    with semel.Consumer(node.bootstrap, max_wait_ms=50) as consumer:
        consumer.assign([tp])
        end = consumer.end_offsets()[tp]
        while (consumer.position(tp) or 0) < end:
            records += consumer.poll(0.2) or ()
    return records


def values(node: LiveNode, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in read(node, topic)]


def count(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        found: int = connection.execute(sa.text("SELECT count(*) FROM semel_outbox")).scalar_one()
        return found


def test_rows_come_with_key_headers_and_partition_and_are_deleted(
    node: LiveNode, engine: sa.Engine, topic: str
) -> None:
    add(engine, topic, "one", key="k", headers={"a": b"\x00\xff", "b": None}, partition=0)
    assert relay(node, engine)["rows"] == 1
    (record,) = read(node, topic)
    assert (record.key, record.value) == (b"k", b"one")
    assert record.headers == (("a", b"\x00\xff"), ("b", None))
    assert count(engine) == 0


def test_a_row_of_a_transaction_that_is_rolled_back_is_not_relayed(
    node: LiveNode, engine: sa.Engine, topic: str
) -> None:
    outbox = semel.sql.Outbox("localhost:9094", engine)
    with engine.connect() as connection:
        outbox.add(connection, topic, "never")
        connection.rollback()
    assert relay(node, engine)["rows"] == 0


@pytest.mark.parametrize("keep", [False, True])
def test_E5_a_relay_that_dies_between_the_nodes_commit_and_the_databases_is_made_good(
    node: LiveNode, engine: sa.Engine, topic: str, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    add(engine, topic, "one", "two")

    class DiedError(BaseException):
        pass

    def die(*_: object) -> None:
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(semel.sql.Outbox, "_settle", die)
        with pytest.raises(DiedError):
            relay(node, engine, keep=keep)
    assert values(node, topic) == ["one", "two"]
    assert count(engine) == 2, "the rows are in the database still"
    add(engine, topic, "three")
    statistics = relay(node, engine, keep=keep)
    assert statistics["recovered"] == 1
    assert values(node, topic) == ["one", "two", "three"]
    assert count(engine) == (3 if keep else 0)


def test_ids_are_never_used_twice_or_a_row_would_pass_for_one_relayed_before(
    node: LiveNode, engine: sa.Engine, topic: str
) -> None:
    """SQLite gives the id of a deleted last row again, unless told otherwise."""
    for number in range(3):
        add(engine, topic, f"v{number}")
        relay(node, engine)
    with engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM semel_outbox"))
        semel.sql.Outbox("localhost:9094", engine).add(connection, topic, "next")
        assert connection.execute(sa.text("SELECT id FROM semel_outbox")).scalar_one() == 4


def test_rows_of_a_commit_are_settled_once_though_a_relay_comes_late(
    node: LiveNode, engine: sa.Engine, topic: str
) -> None:
    """A relay that was replaced wakes up and settles what its successor has settled: by now ids may name other rows."""
    table = OutboxTable("semel_outbox")
    add(engine, topic, "one", "two")
    with engine.begin() as connection:
        table.create_lease(connection, "name")
        assert table.settle(connection, 1, [1])
        assert not table.settle(connection, 1, [2])
        assert not table.settle(connection, 3, [2])
    assert count(engine) == 1


def test_E4_a_row_goes_on_the_trace_of_the_transaction_that_added_it(
    node: LiveNode, engine: sa.Engine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", TracerProvider())
    with opentelemetry.trace.get_tracer("shop").start_as_current_span("place an order") as span:
        add(engine, topic, "one", headers={"a": "b"})
        trace_id = f"{span.get_span_context().trace_id:032x}"
    relay(node, engine)
    (record,) = read(node, topic)
    headers = dict(record.headers)
    assert headers["a"] == b"b"
    assert trace_id in (headers["traceparent"] or b"").decode()


def test_a_database_that_does_not_belong_to_the_nodes_history_is_refused(
    node: LiveNode, engine: sa.Engine, topic: str
) -> None:
    for number in range(2):
        add(engine, topic, f"v{number}")
        relay(node, engine)
    with engine.begin() as connection:  # as a backup of before would be
        connection.execute(sa.text("UPDATE semel_outbox_relay SET settled = 0"))
    with pytest.raises(FatalError, match="do not belong together"):
        relay(node, engine)


def test_two_names_for_one_outbox_are_refused(node: LiveNode, engine: sa.Engine, topic: str) -> None:
    add(engine, topic, "one")
    relay(node, engine, name="shop")
    with pytest.raises(FatalError, match="is relayed under the name 'shop'"):
        relay(node, engine, name="other")


def test_one_relay_works_and_another_takes_over_when_it_falls_silent(
    node: LiveNode, engine: sa.Engine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = semel.sql.Outbox(node.bootstrap, engine, lease_ms=300)
    second = semel.sql.Outbox(node.bootstrap, engine, lease_ms=300)
    frozen = threading.Event()
    go_on = first._go_on

    def freeze() -> int | None:
        while frozen.is_set():
            time.sleep(0.01)
        return go_on()

    monkeypatch.setattr(first, "_go_on", freeze)
    threads = [threading.Thread(target=one.run, daemon=True) for one in (first, second)]
    threads[0].start()
    wait_until(lambda: first.is_working)
    threads[1].start()
    add(engine, topic, "one")
    wait_until(lambda: count(engine) == 0)
    assert not second.is_working
    frozen.set()
    wait_until(lambda: second.is_working)
    add(engine, topic, "two")
    wait_until(lambda: count(engine) == 0)
    frozen.clear()  # the zombie wakes up
    wait_until(lambda: not first.is_working)
    add(engine, topic, "three")
    wait_until(lambda: count(engine) == 0)
    for one in (first, second):
        one.stop()
    for thread in threads:
        thread.join(20)
    first.close()
    second.close()
    assert values(node, topic) == ["one", "two", "three"]


def test_a_relay_that_is_closed_lets_the_next_one_work_at_once(node: LiveNode, engine: sa.Engine, topic: str) -> None:
    add(engine, topic, "one")
    with semel.sql.Outbox(node.bootstrap, engine, lease_ms=60_000) as outbox:
        outbox.run(idle_timeout_s=0.05)
    add(engine, topic, "two")
    with semel.sql.Outbox(node.bootstrap, engine, lease_ms=60_000) as outbox:
        outbox.run(idle_timeout_s=0.05)
    assert values(node, topic) == ["one", "two"]


def test_a_relay_that_drains_relays_what_was_added_before_its_stop(
    node: LiveNode, engine: sa.Engine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "FIRST_POLL_S", 600.0)  # it does not look again on its own
    outbox = semel.sql.Outbox(node.bootstrap, engine, lease_ms=2_400_000, poll_interval_ms=600_000)
    outbox.drains = True
    waits = threading.Event()
    wait = outbox._wait
    monkeypatch.setattr(outbox, "_wait", lambda seconds: (waits.set(), wait(seconds)))
    thread = threading.Thread(target=outbox.run, daemon=True)
    thread.start()
    assert waits.wait(30)
    add(engine, topic, "one")
    outbox.stop()
    thread.join(30)
    outbox.close()
    assert values(node, topic) == ["one"]
    assert count(engine) == 0


def test_a_row_that_the_node_refuses_stops_the_relay_and_is_named(
    node: LiveNode, engine: sa.Engine, topic: str
) -> None:
    add(engine, topic, "one")
    add(engine, "no such topic!", "lost?")
    add(engine, topic, "three")
    with pytest.raises(FatalError, match="row 2 of semel_outbox, for topic 'no such topic!', can't be relayed"):
        relay(node, engine)
    assert values(node, topic) == ["one"]


def test_a_row_that_the_node_refuses_is_set_aside_on_request(node: LiveNode, engine: sa.Engine, topic: str) -> None:
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic(f"{topic}-small", partitions=1, configs={"max.message.bytes": "1000"})
    add(engine, topic, "one")
    add(engine, "no such topic!", "lost?")
    add(engine, f"{topic}-small", "x" * 5_000)
    add(engine, topic, "four")
    statistics = relay(node, engine, set_aside_refused=True)
    assert statistics["set_aside"] == 2
    assert values(node, topic) == ["one", "four"]
    with engine.connect() as connection:
        found = connection.execute(sa.text("SELECT id, refused FROM semel_outbox ORDER BY id")).all()
    assert [row.id for row in found] == [2, 3]
    assert all(row.refused for row in found)


def test_transactions_are_bounded_by_rows_and_bytes(node: LiveNode, engine: sa.Engine, topic: str) -> None:
    add(engine, topic, *(str(number) for number in range(10)))
    assert relay(node, engine, rows_max=3)["transactions"] == 4
    add(engine, topic, *("x" * 1_000 for _ in range(6)))
    assert relay(node, engine, bytes_max=2_500)["transactions"] == 3
    add(engine, topic, "y" * 5_000)
    assert relay(node, engine, bytes_max=1_000)["transactions"] == 1, "a large row goes alone"


def test_ids_of_the_largest_transaction_fit_the_payload_however_scattered() -> None:
    scattered = [number * (2**63 // ROWS_MAX - 1) for number in range(1, ROWS_MAX + 1)]
    payload = encode_ids(scattered)
    assert len(payload) <= 64 << 10
    assert decode_ids(payload) == scattered
    assert decode_ids(encode_ids([])) == []


@pytest.mark.parametrize(
    "payload", [b"\x80", b"\x01", b"\xff" * 20, b"\x00\x00", encode_ids([1]) + b"\x00\xff\xff\x7f"]
)
def test_a_payload_that_is_none_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="not the ids"):
        decode_ids(payload)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows_max": 6_000}, "between 1 and 5000"),
        ({"notify": True}, "notify is PostgreSQL's"),
        ({"producer": {"transactional_id": "x"}}, "can't set transactional_id"),
        ({"lease": 1}, "did you mean 'lease_ms'"),
        ({"compression": "zstd"}, r"give it to the producer: producer=\{'compression': \.\.\.\}"),
    ],
)
def test_wrong_options_are_told(engine: sa.Engine, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        semel.sql.Outbox("localhost:9094", engine, **options)


def test_what_cant_be_sent_is_refused_where_it_is_added(engine: sa.Engine) -> None:
    outbox = semel.sql.Outbox("localhost:9094", engine)
    with engine.begin() as connection:
        with pytest.raises(UsageError, match="a value of type dict can't be sent"):
            outbox.add(connection, "t", {"a": 1})
        with pytest.raises(UsageError, match="topic must not be empty"):
            outbox.add(connection, "", b"")


def test_adding_without_tables_is_told_with_the_next_step_and_without_values(tmp_path: Path) -> None:
    """SQLAlchemy's error had the statement, with key and value of the record."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/empty.db", poolclass=sa.NullPool)
    with (
        pytest.raises(UsageError, match=r"no table 'semel_outbox'.*create_tables\(\)") as raised,
        engine.begin() as connection,
    ):
        semel.sql.Outbox("localhost:9094", engine).add(connection, "t", "a secret", key="another")
    shown = "".join(traceback.format_exception(raised.value))
    assert "secret" not in shown.replace('"a secret"', "")
    assert "INSERT" not in shown


def test_missing_tables_are_told_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no table 'semel_outbox'.*create_tables\(\)"):
        semel.sql.Outbox("localhost:9094", f"sqlite:///{tmp_path}/empty.db").__enter__()


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
