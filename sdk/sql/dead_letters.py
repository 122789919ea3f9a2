"""Dead letters: records that can't become rows, on their way into a topic.

They are rows of an outbox, inserted in the very transaction that moves the offsets past their records. So a record is
written to the table or is a dead letter, never both and never neither, and the outbox relays each one exactly once.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

import sqlalchemy as sa

from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError, UsageError
from semel.protocol.record_decoder import Record
from semel.sdk.admin.api import Admin
from semel.sdk.pipeline.dead_letters import dead_letter_headers
from semel.sdk.sql.database import Database
from semel.sdk.sql.outbox import Outbox
from semel.sdk.sql.outbox_table import OutboxTable, as_row

_log = logging.getLogger("semel.sql")

CHECK_MS: Final = 5_000
"""How long the node is asked, at the start, whether the topic is there."""


class DeadLetters:
    """The dead letters of one group: puts them into their outbox, and relays it on a thread."""

    def __init__(
        self,
        bootstrap: str,
        database: Database,
        table: str,
        schema: str | None,
        topic: str,
        group: str,
        retry_timeout_ms: int,
    ) -> None:
        self.table = OutboxTable(table, schema)
        self.outbox = Outbox(bootstrap, database.engine, table=table, schema=schema, retry_timeout_ms=retry_timeout_ms)
        self.outbox.drains = True
        self.outbox.own_topic = topic
        self._topic = topic
        self._group = group
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def add(self, connection: sa.Connection, poison: list[tuple[Record, str]]) -> None:
        """Insert records with the reasons why they can't become rows."""
        rows: list[dict[str, Any]] = []
        for record, reason in poison:
            headers = dead_letter_headers(record, reason, self._group)
            rows.append(as_row(self._topic, record.value, record.key, headers, None))
        if rows:
            connection.execute(self.table.rows.insert(), rows)

    @property
    def set_aside(self) -> int:
        """How many dead letters of other groups the node has refused for good."""
        return self.outbox.statistics()["set_aside"]

    def take_back(self, connection: sa.Connection) -> None:
        """Let those be relayed that sinks of other groups have set aside, because this topic was not there."""
        self.table.take_back(connection, self._topic)

    def is_topic_there(self, bootstrap: str) -> bool:
        """Raise `UsageError` where the topic is not there. False: a node that is away is not waited for."""
        with Admin(
            bootstrap, api_timeout_ms=CHECK_MS, connect_timeout_ms=CHECK_MS, request_timeout_ms=CHECK_MS
        ) as admin:
            try:
                admin.topic(self._topic)
            except RetriableError as error:
                _log.warning("whether there is a topic %r for dead letters is not known: %s", self._topic, error)
                return False
            except FatalError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                raise UsageError(
                    f"dead_letter_topic {self._topic!r} does not exist; create it with Admin.create_topic, or "
                    f"`semel topic create {self._topic}`"
                ) from error
        return True

    def start(self) -> None:
        """Relay what there is, and what comes, until `close`."""
        self._thread = threading.Thread(target=self._relay, name="semel-sql-dead-letters", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error that has ended the relay, if one has."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _relay(self) -> None:
        try:
            self.outbox.run()
        except UsageError as error:
            self._error = error
        except SemelError as error:
            _log.error("dead letters are not relayed any more, they stay in the database: %s", error)
            self._error = error

    def close(self) -> None:
        """Let the relay end, once it has relayed what is there, if it is its turn."""
        self.outbox.stop()
        if self._thread is not None:
            self._thread.join()
        self.outbox.close()
