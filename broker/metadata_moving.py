"""Moves a node's metadata from the file in its data directory to a database that other nodes can use, too."""

from __future__ import annotations

import os
from typing import Final

import sqlalchemy as sa

from semel.broker.logs.data_folder import NODE_LOCK_FILE
from semel.broker.metadata.chain import Position
from semel.broker.metadata.store import METADATA_FILE, MetadataStore, sqlite_url
from semel.broker.metadata.tables import CHANGES, NODES, REMOTE_TABLES, SNAPSHOTS
from semel.protocol.errors import UsageError
from semel.runtime.storage import Storage

MOVED_FILE: Final = f"{METADATA_FILE}.moved"
"""What is left of the file: a copy that no node uses."""
_ROWS: Final = 1_000
"""Rows that are copied together."""


class _Copy(MetadataStore):
    """A store whose tables can be copied as they are."""

    def create_remote(self) -> None:
        """Create the tables of the remote storage where they are missing."""
        with self._transaction() as connection:
            REMOTE_TABLES.create_all(connection)

    def rows(self, table: sa.Table) -> list[dict[str, object]]:
        with self._transaction() as connection:
            return [dict(row._mapping) for row in connection.execute(sa.select(table))]

    def take_over(self, tables: dict[sa.Table, list[dict[str, object]]]) -> None:
        """Write all rows, or none."""
        with self._transaction() as connection:
            for table, rows in tables.items():
                for first in range(0, len(rows), _ROWS):
                    connection.execute(table.insert(), rows[first : first + _ROWS])


def move_metadata(storage: Storage, data_dir: str, url: str) -> Position:
    """Copy a stopped node's metadata to the database at `url`, which must be empty, and set its own file aside.

    Can be repeated after a crash. Returns the position of the last change. Raises `UsageError` where the node runs, the
    file is not there or of an older version, or the database has other metadata; `MetadataUnavailableError`.
    """
    path = f"{data_dir}/{METADATA_FILE}"
    if not os.path.exists(path):
        moved = os.path.exists(f"{data_dir}/{MOVED_FILE}")
        raise UsageError(
            f"there is no {path}: the metadata was moved before; start the node with metadata.url"
            if moved
            else f"there is no {path}: name a node's data directory, whose metadata is in it"
        )
    try:
        lock = storage.lock(f"{data_dir}/{NODE_LOCK_FILE}")
    except BlockingIOError:
        raise UsageError(f"the node in {data_dir} is running: stop it first") from None
    try:
        source, target = _Copy(sqlite_url(path)), _Copy(url)
        try:
            position = _copy(source, target)
        finally:
            source.close()
            target.close()
        os.rename(path, f"{data_dir}/{MOVED_FILE}")
        storage.sync_folder(data_dir)
        return position
    finally:
        lock.release()


def _copy(source: _Copy, target: _Copy) -> Position:
    if source.create():
        raise UsageError(
            f"the metadata in {source.location} is of an older version of semel: start the node once with this version"
        )
    image = source.load()
    if not image.cluster_id:
        raise UsageError(f"the metadata in {source.location} is empty: the node was never started")
    source.create_remote()
    target.create()
    target.create_remote()
    there = target.load()
    if there.position == image.position:
        return image.position  # an earlier attempt had got so far
    if there.sequence:
        raise UsageError(
            f"the database {target.location} has metadata of the cluster {there.cluster_id}: name an empty one"
        )
    tables = (CHANGES, SNAPSHOTS, NODES, *REMOTE_TABLES.tables.values())
    target.take_over({table: source.rows(table) for table in tables})
    if target.load().position != image.position:
        raise UsageError(f"the copy in {target.location} is not what {source.location} has: empty it, and try again")
    return image.position
