"""The table that a sink writes: what it takes is known from the database at the start, and checked row by row."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from enum import Enum
from itertools import groupby
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import mysql, postgresql, sqlite

from semel.protocol.errors import UsageError
from semel.protocol.record_decoder import Record
from semel.sdk.sql.database import MYSQL, POSTGRESQL, SQLITE, Database, Verdict, first_line
from semel.sdk.transport.options import nearest

STATEMENT_ROWS_MAX: Final = 1_000
"""How many rows go to the database in one call of the driver."""


class Mode(Enum):
    """What becomes of a row whose key is there already."""

    APPEND = "append"
    UPSERT = "upsert"


@dataclass(frozen=True, slots=True)
class Delete:
    """What a mapping returns to delete the row of a key, in mode "upsert".

    >>> Delete({"id": 7})
    Delete(key={'id': 7})
    """

    key: Mapping[str, Any]


Row = Mapping[str, Any]
Change = Row | Delete
MappingFunction = Callable[[Record], "Change | Iterable[Change] | None"]


class PoisonError(Exception):
    """A record that can't become rows; the text is the reason."""


@dataclass(slots=True)
class Mapped:
    """A record with what it changes in the table; or with the reason why it can't."""

    record: Record
    changes: list[Change]
    poison: str | None = None


_PYTHON: Final[dict[type[Any], tuple[type[Any], ...]]] = {
    str: (str,),
    bytes: (bytes, bytearray, memoryview),
    int: (int,),
    bool: (bool, int),
    float: (float, int, decimal.Decimal),
    decimal.Decimal: (decimal.Decimal, int, float),
    datetime: (datetime,),
    date: (date,),
    time: (time,),
    timedelta: (timedelta,),
    UUID: (UUID, str),
}
"""What values a column of a Python type takes; of other types, the database judges."""


class TargetTable:
    """The table, as the database has it. `columns` is what the mapping says it gives, if it says so."""

    def __init__(
        self,
        database: Database,
        name: str,
        schema: str | None,
        mode: Mode,
        key: Sequence[str],
        columns: Mapping[str, type[Any]] | None,
    ) -> None:
        """Look at the table. Raises `UsageError` where it is not there or does not fit."""
        self._database = database
        self._mode = mode
        # Whether the driver makes one statement of many rows, as psycopg2 does; psycopg sends one for each.
        self._joins_rows = bool(getattr(database.engine.dialect, "use_insertmanyvalues_wo_returning", False))
        with database.begin() as connection:
            try:
                self.table = sa.Table(name, sa.MetaData(), schema=schema, autoload_with=connection)
            except exc.NoSuchTableError:
                raise UsageError(
                    f"there is no table {name!r} in {database.location}: create it first; a sink guesses no types"
                ) from None
            database.require_transactions(connection, self.table)
        self.key = self._check_key(key)
        self._types = {column.name: _python_types(column) for column in self.table.columns}
        self._required = frozenset(column.name for column in self.table.columns if _is_required(column))
        self._not_null = frozenset(column.name for column in self.table.columns if not column.nullable)
        self._lengths = {
            column.name: column.type.length
            for column in self.table.columns
            if isinstance(column.type, sa.String) and column.type.length is not None
        }
        if columns is not None:
            self._check_declared(columns)

    # --- The schema ---------------------------------------------------------------------------------------------------

    def _check_key(self, key: Sequence[str]) -> tuple[str, ...]:
        named = self.table.fullname
        if self._mode is Mode.APPEND:
            if key:
                raise UsageError('option key is for mode="upsert"; append writes every row as a new one')
            return ()
        chosen = tuple(key) or tuple(column.name for column in self.table.primary_key)
        if not chosen:
            raise UsageError(f"table {named!r} has no primary key: say key=[...], columns with a unique constraint")
        for name in chosen:
            self._require_column(name, "key")
        uniques = self._uniques()
        if frozenset(chosen) not in uniques:
            raise UsageError(
                f"no primary key and no unique constraint of {named!r} is on exactly {', '.join(chosen)}: add one, or "
                "name another key"
            )
        others = uniques - {frozenset(chosen)}
        if others and self._database.kind == MYSQL:
            raise UsageError(
                f"{named!r} has further unique columns ({', '.join(sorted(next(iter(others))))}): ON DUPLICATE KEY "
                "UPDATE would change whichever row has any of them. Drop that constraint, or use sink.transaction() "
                "and your own SQL"
            )
        return chosen

    def _uniques(self) -> set[frozenset[str]]:
        found = {frozenset(column.name for column in self.table.primary_key)}
        for constraint in self.table.constraints:
            if isinstance(constraint, sa.UniqueConstraint):
                found.add(frozenset(column.name for column in constraint.columns))
        for index in self.table.indexes:
            is_partial = index.dialect_options["postgresql"]["where"] is not None
            if index.unique and not is_partial and len(index.columns) == len(index.expressions):
                found.add(frozenset(column.name for column in index.columns))
        return found - {frozenset()}

    def _require_column(self, name: str, what: str) -> None:
        if name not in self.table.columns:
            there = [column.name for column in self.table.columns]
            raise UsageError(
                f"{what} names {name!r}, which table {self.table.fullname!r} lacks; {nearest(name, there)}"
            )

    def _check_declared(self, columns: Mapping[str, type[Any]]) -> None:
        for name, kind in columns.items():
            self._require_column(name, "columns")
            takes = self._types[name]
            if takes is not None and isinstance(kind, type) and not issubclass(kind, takes):
                raise UsageError(
                    f"column {name!r} of {self.table.fullname!r} is {self.table.columns[name].type!r}, and columns "
                    f"says that the mapping gives {kind.__name__}: convert it there"
                )
        missing = sorted(self._required - columns.keys())
        if missing:
            raise UsageError(
                f"table {self.table.fullname!r} needs {', '.join(missing)} (NOT NULL, without a default), which "
                "columns does not have"
            )

    # --- Rows ---------------------------------------------------------------------------------------------------------

    def mapped(self, record: Record, mapping: MappingFunction) -> Mapped:
        """Return what a record changes, checked; a record that can't be mapped or does not fit comes as poison."""
        try:
            result: Any = mapping(record)
        except Exception as error:
            return Mapped(record, [], f"the mapping raised {first_line(error)}")
        if result is None:
            return Mapped(record, [])
        try:
            if isinstance(result, (Mapping, Delete)):
                changes: list[Change] = [result]
            elif isinstance(result, Iterable) and not isinstance(result, (str, bytes)):
                changes = list(result)
            else:
                changes = [result]
            for change in changes:
                self._check(change)
        except Exception as error:
            reason = str(error) if isinstance(error, PoisonError) else f"the mapping raised {first_line(error)}"
            return Mapped(record, [], reason)
        return Mapped(record, changes)

    def _check(self, change: object) -> None:
        if isinstance(change, Delete):
            if self._mode is not Mode.UPSERT:
                raise PoisonError("the mapping returned a Delete, which is for mode 'upsert'")
            if set(change.key) != set(self.key):
                raise PoisonError(f"a Delete names {sorted(change.key)}, and the key is {list(self.key)}")
            return
        if not isinstance(change, Mapping):
            raise PoisonError(f"the mapping returned {type(change).__name__}; it returns rows as dicts, or None")
        types = self._types
        for name, value in change.items():
            if name not in types:
                raise PoisonError(f"a row has {name!r}, which table {self.table.fullname!r} lacks")
            if value is None:
                if name in self._not_null:
                    raise PoisonError(f"column {name!r} is NOT NULL, and the row has None")
                continue
            takes = types[name]
            if takes is not None and not isinstance(value, takes):
                raise PoisonError(f"column {name!r} takes {takes[0].__name__}, not {type(value).__name__}")
            if name in self._lengths and len(value) > self._lengths[name]:
                raise PoisonError(f"column {name!r} takes {self._lengths[name]} characters, not {len(value)}")
        missing = self._required - change.keys() or frozenset(self.key) - change.keys()
        if missing:
            raise PoisonError(f"the row lacks {', '.join(sorted(missing))}, which are NOT NULL or the key")

    # --- Writing ------------------------------------------------------------------------------------------------------

    def write(self, connection: sa.Connection, items: Sequence[Mapped]) -> None:
        """Write the changes of records, in order. Raises what the driver raises."""
        changes = [change for item in items for change in item.changes]
        for shape, run in groupby(changes, _shape):
            rows = [change.key if isinstance(change, Delete) else change for change in run]
            if shape[0] is Delete:
                self._execute(connection, self._deletion(), rows, prefix="key_")
            elif self._mode is Mode.UPSERT:
                statement = self._upsert(shape[1])
                for part in self._without_repeated_keys(rows) if self._joins_rows else [rows]:
                    self._execute(connection, statement, part)
            else:
                self._execute(connection, self.table.insert(), rows)

    def write_what_fits(self, connection: sa.Connection, items: Sequence[Mapped]) -> list[tuple[Record, str]]:
        """Write records in order, by halves until those are found that the database refuses; return these, with why."""
        if not items:
            return []
        try:
            with connection.begin_nested():
                self.write(connection, items)
            return []
        except Exception as error:
            if self._database.verdict(error) is not Verdict.ROW:
                raise
            if len(items) == 1:
                return [(items[0].record, f"the database refused the row: {first_line(error)}")]
        middle = len(items) // 2
        return [
            *self.write_what_fits(connection, items[:middle]),
            *self.write_what_fits(connection, items[middle:]),
        ]

    def _without_repeated_keys(self, rows: list[Row]) -> Iterator[list[Row]]:
        """Cut rows so that no key comes twice in a part: PostgreSQL refuses that in one statement of many rows."""
        part: list[Row] = []
        keys: set[tuple[Any, ...]] = set()
        for row in rows:
            key = tuple(_hashable(row[name]) for name in self.key)
            if key in keys:
                yield part
                part, keys = [], set()
            part.append(row)
            keys.add(key)
        yield part

    @staticmethod
    def _execute(connection: sa.Connection, statement: Any, rows: list[Row], prefix: str = "") -> None:
        for chunk in _chunks(rows):
            connection.execute(statement, [{f"{prefix}{name}": value for name, value in row.items()} for row in chunk])

    def _upsert(self, names: tuple[str, ...]) -> Any:
        others = [name for name in names if name not in self.key]
        if self._database.kind == MYSQL:
            statement = mysql.insert(self.table)
            # With nothing else to set, the key is set to itself: IGNORE would swallow other errors, too.
            given = {name: statement.inserted[name] for name in others or self.key[:1]}
            return statement.on_duplicate_key_update(given)
        make = {SQLITE: sqlite.insert, POSTGRESQL: postgresql.insert}[self._database.kind]
        insert: Any = make(self.table)
        if not others:
            return insert.on_conflict_do_nothing(index_elements=list(self.key))
        return insert.on_conflict_do_update(
            index_elements=list(self.key), set_={name: insert.excluded[name] for name in others}
        )

    def _deletion(self) -> Any:
        columns = self.table.columns
        return self.table.delete().where(*[columns[name] == sa.bindparam(f"key_{name}") for name in self.key])


def _shape(change: Change) -> tuple[type[Any], tuple[str, ...]]:
    """Changes of one shape that follow each other can be written by one statement."""
    if isinstance(change, Delete):
        return Delete, ()
    return dict, tuple(sorted(change))


def _chunks(rows: list[Row]) -> Iterator[list[Row]]:
    for start in range(0, len(rows), STATEMENT_ROWS_MAX):
        yield rows[start : start + STATEMENT_ROWS_MAX]


def _hashable(value: Any) -> Any:
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def _is_required(column: sa.Column[Any]) -> bool:
    if (
        column.nullable
        or column.server_default is not None
        or column.computed is not None
        or column.identity is not None
    ):
        return False
    is_counted = column.table is not None and column is column.table.autoincrement_column
    return not is_counted


def _python_types(column: sa.Column[Any]) -> tuple[type[Any], ...] | None:
    """Return what values a column takes; None where only the database can tell."""
    if isinstance(column.type, (sa.JSON, sa.ARRAY, sa.types.NullType)):
        return None
    try:
        return _PYTHON.get(column.type.python_type)
    except NotImplementedError:
        return None
