"""A metadata database that goes back to an older copy, as after a fail-over that lost a tail, or a restore."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

_TABLES: Final = ("semel_schema", "semel_metadata_changes", "semel_metadata_snapshots", "semel_leases", "semel_nodes")

Copy = dict[str, list[dict[str, Any]]]


def engine_of(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)


def run_sql(url: str, *statements: str) -> None:
    with engine_of(url).begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def read_sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    with engine_of(url).begin() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(statement)]


def copy_of(url: str) -> Copy:
    """Return all that the database holds."""
    with engine_of(url).begin() as connection:
        return {
            table: [dict(row) for row in connection.exec_driver_sql(f"SELECT * FROM {table}").mappings()]
            for table in _TABLES
        }


def restore(url: str, copy: Copy) -> None:
    """Make the database what it was when the copy was taken. A process that has it open notices nothing."""
    with engine_of(url).begin() as connection:
        for name, rows in copy.items():
            table = sa.Table(name, sa.MetaData(), autoload_with=connection)
            connection.execute(table.delete())
            if rows:
                connection.execute(table.insert(), rows)
