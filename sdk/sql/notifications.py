"""PostgreSQL's LISTEN and NOTIFY, so that a relay need not wait for its next look. Losing one costs a pause, no row."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from semel.sdk.sql.database import first_line
from semel.sdk.sql.outbox_table import Executes

_log = logging.getLogger("semel.sql")


def channel_of(table: str) -> str:
    """Return the channel of a table: a plain name, which LISTEN takes without quotes."""
    return f"semel_outbox_{zlib.crc32(table.encode()):08x}"


def notify(connection: Executes, table: str) -> None:
    """Notify when the caller's transaction commits; once for each transaction, however often it is called."""
    connection.execute(sa.text("SELECT pg_notify(:channel, '')"), {"channel": channel_of(table)})


class Notifications:
    """A connection that listens. Any failure makes it a plain pause, and the next wait tries to listen again."""

    def __init__(self, engine: Engine, table: str) -> None:
        self._engine = engine
        self._channel = channel_of(table)
        self._connection: Any = None

    def wait(self, seconds: float, pause: Callable[[float], None]) -> None:
        """Return when somebody has notified, or after so long; `pause` waits where this can't listen."""
        try:
            if self._connection is None:
                connection = self._engine.raw_connection()
                self._connection = connection.driver_connection
                connection.detach()  # not back into the pool: it listens
                self._connection.autocommit = True
                self._connection.execute(f"LISTEN {self._channel}")
                return  # what was notified before it listened
            for _ in self._connection.notifies(timeout=seconds, stop_after=1):
                pass
        except Exception as error:
            _log.info("not listening for rows of the outbox, looking for them: %s", first_line(error))
            self.close()
            pause(seconds)

    def close(self) -> None:
        """Stop listening."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:
                return
