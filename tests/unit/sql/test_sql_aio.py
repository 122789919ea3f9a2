"""The sink and the outbox from asyncio: the loop is not blocked, and who is cancelled leaves nothing half done."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import semel
import semel.sql
from semel.protocol.errors import UsageError
from semel.testing import Broker

_numbers = itertools.count()
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        yield node


class Kit:
    """A topic, a database with a table, and sinks between them."""

    def __init__(self, node: Broker, folder: Path) -> None:
        self.node = node
        self.topic = node.create_topic()
        self.group = f"g{next(_numbers)}"
        self.engine = sa.create_engine(f"sqlite:///{folder}/database.db", poolclass=sa.NullPool)
        self.sql("CREATE TABLE items (id INTEGER NOT NULL PRIMARY KEY)")

    def sink(self, **options: Any) -> semel.aio.Sink:
        consumer = {"heartbeat_interval_ms": 20, "max_wait_ms": 50}
        chosen: dict[str, Any] = {"group": self.group, "topics": [self.topic], "consumer": consumer, "linger_ms": 0}
        return semel.aio.Sink(self.node.bootstrap, self.engine, **{**chosen, **options})

    def send(self, *values: int) -> None:
        with semel.Producer(self.node.bootstrap, linger_ms=0) as producer:
            for value in values:
                producer.send(self.topic, str(value), partition=0)

    def sql(self, text: str) -> list[Any]:
        with self.engine.begin() as connection:
            result = connection.execute(sa.text(text))
            return [row[0] for row in result] if result.returns_rows else []

    def items(self) -> list[Any]:
        return self.sql("SELECT id FROM items ORDER BY id")


@pytest.fixture
def kit(node: Broker, tmp_path: Path) -> Iterator[Kit]:
    made = Kit(node, tmp_path)
    yield made
    made.engine.dispose()


def insert(connection: sa.Connection, batch: semel.Batch) -> int:
    rows = [{"id": json.loads(record.value or b"")} for record in batch]
    return connection.execute(sa.text("INSERT INTO items VALUES (:id)"), rows).rowcount


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.005)


def test_run_blocks_nobody_and_stops(kit: Kit) -> None:
    kit.send(1, 2, 3)
    seen_by_the_loop = threading.Event()

    def mapping(record: semel.Record) -> dict[str, int]:
        assert seen_by_the_loop.wait(PATIENCE_S), "the loop stands while a record is mapped"
        return {"id": json.loads(record.value or b"")}

    async def run() -> dict[str, int]:
        sink = kit.sink(table="items", mapping=mapping)
        await sink.create_tables()
        async with sink:
            running = asyncio.create_task(sink.run())
            await asyncio.sleep(0)
            seen_by_the_loop.set()
            await until(lambda: sink.statistics()["rows"] == 3)
            sink.stop()
            await running
            assert sink.is_stopped
            return sink.statistics()

    assert asyncio.run(run())["records"] == 3
    assert kit.items() == [1, 2, 3]


def test_a_run_that_is_cancelled_stops_the_sink_first(kit: Kit) -> None:
    kit.send(1, 2)

    async def run() -> None:
        sink = kit.sink(table="items", mapping=lambda record: {"id": json.loads(record.value)})
        await sink.create_tables()
        async with sink:
            running = asyncio.create_task(sink.run())
            await until(kit.items)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert sink.is_stopped
            assert sink._sink._running is None, "it has ended in its thread, too"

    asyncio.run(run())
    assert kit.items() == [1, 2]


def test_sql_of_ones_own_commits_with_the_offsets_or_not_at_all(kit: Kit) -> None:
    kit.send(1, 2)

    async def run() -> None:
        sink = kit.sink()
        await sink.create_tables()
        failed = 0
        async with sink:
            async for batch in sink.batches(timeout_s=PATIENCE_S):
                try:
                    async with sink.transaction(batch) as connection:
                        assert await connection.run_sync(insert, batch=batch) == len(batch)
                        if not failed:
                            raise LookupError
                except LookupError:
                    failed += 1
                    assert kit.items() == []
                if kit.items() == [1, 2]:
                    break
        assert failed == 1

    asyncio.run(run())
    assert kit.sql("SELECT position FROM semel_offsets") == [2]


def test_what_was_read_for_a_caller_that_was_cancelled_is_for_the_next_one(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.send(1)
    has_read, may_return = threading.Event(), threading.Event()
    poll = semel.sql.Sink.poll

    def slow(sink: semel.sql.Sink, timeout_s: float, max_records: int) -> semel.Batch | None:
        batch = poll(sink, timeout_s, max_records)
        if batch is not None:
            has_read.set()
            assert may_return.wait(PATIENCE_S)
        return batch

    async def run() -> None:
        sink = kit.sink()
        await sink.create_tables()
        async with sink:

            async def read() -> semel.Batch:
                async for batch in sink.batches(timeout_s=PATIENCE_S):
                    return batch
                raise AssertionError

            monkeypatch.setattr(semel.sql.Sink, "poll", slow)
            reading = asyncio.create_task(read())
            await until(has_read.is_set)
            reading.cancel()
            await asyncio.sleep(0)
            assert not reading.done(), "it waits for what it began"
            may_return.set()
            with pytest.raises(asyncio.CancelledError):
                await reading
            batch = await read()
            async with sink.transaction(batch) as connection:
                await connection.run_sync(insert, batch)

    asyncio.run(run())
    assert kit.items() == [1]


def test_a_transaction_whose_caller_is_cancelled_while_it_begins_is_rolled_back(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.send(1)
    begins, may_begin = threading.Event(), threading.Event()

    async def run() -> None:
        sink = kit.sink()
        await sink.create_tables()
        take_steps = sink._sink._take_steps

        def slow(batch: semel.Batch) -> Any:
            begins.set()
            assert may_begin.wait(PATIENCE_S)
            return take_steps(batch)

        async def write(batch: semel.Batch) -> None:
            async with sink.transaction(batch) as connection:
                await connection.run_sync(insert, batch)

        async with sink:
            batches = sink.batches()
            with monkeypatch.context() as patch:
                patch.setattr(sink._sink, "_take_steps", slow)
                writing = asyncio.create_task(write(await anext(batches)))
                await until(begins.is_set)
                writing.cancel()
                may_begin.set()
                with pytest.raises(asyncio.CancelledError):
                    await writing
            assert kit.items() == []
            assert sink.statistics()["refused"] == 1
            await write(await anext(batches))

    asyncio.run(run())
    assert kit.items() == [1]


def test_use_after_close_and_wrong_options(kit: Kit) -> None:
    async def run() -> None:
        with pytest.raises(UsageError, match="Sink has no option 'tabel'; did you mean 'table'"):
            kit.sink(tabel="items")
        sink = kit.sink()
        with pytest.raises(UsageError, match="use the sink in a with-block"):
            await sink.poll(0)
        await sink.close()
        await sink.close()
        with pytest.raises(UsageError, match="this Sink is closed; make a new one"):
            await sink.poll(0)
        outbox = semel.aio.Outbox(kit.node.bootstrap, kit.engine)
        await outbox.close()
        await outbox.close()
        with pytest.raises(UsageError, match="this Outbox is closed; make a new one"):
            await outbox.run()

    asyncio.run(run())


class AsyncConnection:
    """As SQLAlchemy's: it calls with the blocking connection that it stands for."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    async def run_sync(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return function(self._connection, *args, **kwargs)


def test_an_outbox_is_added_to_and_relayed(kit: Kit) -> None:
    out = kit.node.create_topic()
    kit.send(1)

    async def run() -> None:
        outbox = semel.aio.Outbox(kit.node.bootstrap, kit.engine, lease_ms=200)
        await outbox.create_tables()
        with kit.engine.begin() as connection:
            await outbox.add(AsyncConnection(connection), out, "one", key="k", headers={"a": "b"})
        sink = kit.sink()
        await sink.create_tables()
        async with sink:
            batch = await anext(sink.batches())
            async with sink.transaction(batch) as connection:
                await outbox.add(connection, out, "two")
        async with outbox:
            assert outbox.transactional_id is None
            assert not outbox.is_working
            await outbox.run(idle_timeout_s=0.05)
            assert outbox.is_working
            assert outbox.statistics()["rows"] == 2
            running = asyncio.create_task(outbox.run())
            await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(run())
    records = kit.node.records(out, at_least=2)
    assert [record.value for record in records] == [b"one", b"two"]
    assert (records[0].key, records[0].headers) == (b"k", (("a", b"b"),))
