"""The tables of an outbox: rows to be relayed, and one row that says who relays them and how far it has come.

Rows are not read by "id > the last one": ids are drawn before their transactions commit, so a lower id may appear after
a higher one. Whatever is visible and not relayed is next, and what was relayed is told by a number: commit n of the
relay names exactly the ids of its rows (`encode_ids`), and `settled` = n says that these are deleted, or marked.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import mysql

from semel.protocol.errors import UsageError
from semel.sdk.producer.serialization import header_pairs, serialized
from semel.sdk.sql.database import Database
from semel.sdk.sql.offsets import check_columns
from semel.sdk.transport.options import check_int, check_text

IDS_IN_STATEMENT: Final = 500
ROWS_MAX: Final = 5_000
"""The most rows of one relayed transaction: their ids fit its token's payload, however scattered (64 KiB)."""

ROW_BYTES: Final = 100
"""What a row takes beside its key, value and headers."""

_BIG_BINARY = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_BIG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class Executes(Protocol):
    """A SQLAlchemy `Connection` or ORM `Session`."""

    def execute(self, statement: Any, parameters: Any = None, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A row to relay."""

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None


@dataclass(frozen=True, slots=True)
class Lease:
    """Who relays. `epoch` grows with every holder, `beats` while it lives; `settled` commits are deleted or marked."""

    name: str
    owner: str
    epoch: int
    beats: int
    settled: int


class OutboxTable:
    """The two tables: the outbox `name`, and `<name>_relay` with its one row."""

    def __init__(self, name: str, schema: str | None = None, *, keep: bool = False) -> None:
        self._keep = keep
        metadata = sa.MetaData()
        self.rows = sa.Table(
            name,
            metadata,
            sa.Column("id", _ID, primary_key=True, autoincrement=True),
            sa.Column("topic", sa.String(249), nullable=False),
            sa.Column("record_key", _BIG_BINARY),
            sa.Column("value", _BIG_BINARY),
            sa.Column("headers", _BIG_TEXT),
            sa.Column("partition_number", sa.Integer),
            sa.Column("created_at", sa.DateTime, nullable=False),
            sa.Column("relayed_at", sa.DateTime),
            sa.Column("refused", sa.String(500)),
            sa.Index(f"ix_{name}_waiting", "relayed_at", "refused", "id"),
            schema=schema,
            sqlite_autoincrement=True,  # an id is never used twice
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        )
        self.relay = sa.Table(
            f"{name}_relay",
            metadata,
            sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("name", sa.String(249), nullable=False),
            sa.Column("owner", sa.String(249), nullable=False),
            sa.Column("epoch", sa.BigInteger, nullable=False),
            sa.Column("beats", sa.BigInteger, nullable=False),
            sa.Column("settled", sa.BigInteger, nullable=False),
            schema=schema,
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        )

    @property
    def tables(self) -> tuple[sa.Table, sa.Table]:
        return self.rows, self.relay

    def check(self, database: Database, connection: sa.Connection) -> None:
        """Raise `UsageError` where the tables are not there, or are others."""
        for table in self.tables:
            check_columns(connection, table, "call create_tables() once, or ddl() for your own migrations")
            database.require_transactions(connection, table)

    # --- The application's side ---------------------------------------------------------------------------------------

    def add(self, connection: Executes, rows: Sequence[dict[str, Any]]) -> None:
        """Insert rows as `as_row` makes them."""
        if rows:
            connection.execute(self.rows.insert(), rows)

    # --- The relay's side ---------------------------------------------------------------------------------------------

    def read(self, connection: sa.Connection, rows_max: int, bytes_max: int) -> list[OutboxRow]:
        """Return the next rows to relay, in the order of ids: at least one where there is one, whatever its size.

        The ids come from one statement, that is one snapshot: with a row comes every row of its key that was committed
        before it.
        """
        c = self.rows.c
        waiting = c.relayed_at.is_(None) & c.refused.is_(None)
        sizes = [sa.func.coalesce(sa.func.length(column), 0) for column in (c.record_key, c.value, c.headers)]
        size = sizes[0] + sizes[1] + sizes[2] + ROW_BYTES
        found = connection.execute(sa.select(c.id, size).where(waiting).order_by(c.id).limit(rows_max)).all()
        ids: list[int] = []
        total = 0
        for row_id, row_bytes in found:
            total += row_bytes
            if ids and total > bytes_max:
                break
            ids.append(row_id)
        rows: list[OutboxRow] = []
        for some in _split(ids):
            statement = sa.select(c.id, c.topic, c.record_key, c.value, c.headers, c.partition_number)
            rows += [
                OutboxRow(row[0], row[1], row[2], row[3], _headers(row[4]), row[5])
                for row in connection.execute(statement.where(c.id.in_(some)).order_by(c.id))
            ]
        return rows

    def lease(self, connection: sa.Connection) -> Lease | None:
        """Return the relay's row; None before the first relay has come."""
        c = self.relay.c
        found = connection.execute(sa.select(c.name, c.owner, c.epoch, c.beats, c.settled)).one_or_none()
        return None if found is None else Lease(*found)

    def create_lease(self, connection: sa.Connection, name: str) -> None:
        """Make the relay's row, with nobody as its owner."""
        try:
            with connection.begin_nested():
                connection.execute(self.relay.insert().values(one=1, name=name, owner="", epoch=0, beats=0, settled=0))
        except exc.IntegrityError:
            return  # another relay was quicker

    def take(self, connection: sa.Connection, seen: Lease, owner: str) -> bool:
        """Become the owner, unless there was a sign of life of any since `seen`."""
        return self._change(connection, seen, owner=owner, epoch=seen.epoch + 1, beats=seen.beats + 1)

    def beat(self, connection: sa.Connection, epoch: int) -> bool:
        """Show that the owner lives; False where it is another one by now."""
        c = self.relay.c
        done = connection.execute(self.relay.update().where(c.epoch == epoch).values(beats=c.beats + 1))
        return done.rowcount == 1

    def release(self, connection: sa.Connection, epoch: int) -> None:
        """Let another one take over at once."""
        c = self.relay.c
        connection.execute(self.relay.update().where(c.epoch == epoch).values(owner="", beats=c.beats + 1))

    def _change(self, connection: sa.Connection, seen: Lease, **values: object) -> bool:
        c = self.relay.c
        done = connection.execute(
            self.relay.update().where(c.epoch == seen.epoch, c.beats == seen.beats).values(**values)
        )
        return done.rowcount == 1

    def settle(self, connection: sa.Connection, number: int, ids: Sequence[int]) -> bool:
        """Delete, or mark, the rows of commit `number`, once; False where that was done before."""
        c = self.relay.c
        done = connection.execute(
            self.relay.update().where(c.settled == number - 1).values(settled=number, beats=c.beats + 1)
        )
        if done.rowcount != 1:
            return False
        for some in _split(ids):
            chosen = self.rows.c.id.in_(some)
            if self._keep:
                connection.execute(self.rows.update().where(chosen).values(relayed_at=utc_now()))
            else:
                connection.execute(self.rows.delete().where(chosen))
        return True

    def set_aside(self, connection: sa.Connection, row_id: int, reason: str) -> None:
        """Leave a row out from now on, and say why."""
        connection.execute(self.rows.update().where(self.rows.c.id == row_id).values(refused=reason[:500]))

    def take_back(self, connection: sa.Connection, topic: str) -> None:
        """Let the rows for a topic that were set aside be relayed after all."""
        c = self.rows.c
        chosen = (c.topic == topic) & c.refused.is_not(None) & c.relayed_at.is_(None)
        # Looked at first: a statement that changes nothing would wait for SQLite's lock all the same.
        if connection.execute(sa.select(c.id).where(chosen).limit(1)).first() is not None:
            connection.execute(self.rows.update().where(chosen).values(refused=None))


def as_row(topic: str, value: Any, key: Any, headers: Any, partition: int | None) -> dict[str, Any]:
    """Return the columns of a row, checked as `Producer.send` checks its arguments. Raises `UsageError`."""
    check_text("topic", topic)
    if len(topic) > 249:
        raise UsageError(f"a topic's name has at most 249 characters, not {len(topic)}")
    pairs = header_pairs(headers) if headers else ()
    return {
        "topic": topic,
        "record_key": serialized(key, None, "key", topic),
        "value": serialized(value, None, "value", topic),
        "headers": json.dumps([[name, _text(data)] for name, data in pairs]) if pairs else None,
        "partition_number": None if partition is None else check_int("partition", partition, 0),
        "created_at": utc_now(),
    }


def utc_now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


def encode_ids(ids: Sequence[int]) -> bytes:
    """Return ascending ids as the payload of a commit: gaps and runs, as varints.

    >>> len(encode_ids(range(1, 1001)))
    3
    >>> decode_ids(encode_ids([3, 4, 5, 9]))
    [3, 4, 5, 9]
    """
    out = bytearray()
    after = 0
    for first, count in _runs(ids):
        for number in (first - after, count):
            while number > 0x7F:
                out.append(number & 0x7F | 0x80)
                number >>= 7
            out.append(number)
        after = first + count
    return bytes(out)


def decode_ids(payload: bytes) -> list[int]:
    """Return what `encode_ids` was given. Raises `ValueError` for anything else."""
    numbers: list[int] = []
    number = shift = 0
    for byte in payload:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70:
            break
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    if shift or len(numbers) % 2:
        raise ValueError("not the ids of an outbox's rows")
    ids: list[int] = []
    after = 0
    for gap, count in zip(numbers[::2], numbers[1::2], strict=True):
        if not 0 < count <= ROWS_MAX - len(ids):
            raise ValueError("not the ids of an outbox's rows")
        ids += range(after + gap, after + gap + count)
        after += gap + count
    return ids


def _runs(ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = count = 0
    for one in ids:
        if count and one == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = one, 1
    if count:
        yield first, count


def _split(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), IDS_IN_STATEMENT):
        yield ids[start : start + IDS_IN_STATEMENT]


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _headers(text: str | None) -> tuple[tuple[str, bytes | None], ...]:
    if not text:
        return ()
    return tuple((name, None if data is None else base64.b64decode(data)) for name, data in json.loads(text))
