"""What tests of the SQL sink share: a topic, a database with a table, and sinks between them."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from live_node import LiveNode

import semel
import semel.sql
from semel.protocol.api.topics import LATEST_TIMESTAMP

numbers = itertools.count()
PATIENCE_S = 60.0


class Kit:
    """A topic, a database with a table, and sinks between them."""

    def __init__(self, node: LiveNode, folder: Path) -> None:
        self.node = node
        self.topic = f"t{next(numbers)}"
        self.group = f"g{next(numbers)}"
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
        group = sink._state.offsets.group
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


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def fail_after(connection: sa.Connection, statement: str) -> None:
    connection.execute(sa.text(statement))
    raise ZeroDivisionError
