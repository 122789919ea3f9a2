"""The metadata's SQLite database, read without touching it: SQLite itself would write beside the file it reads."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from semel.broker.inspection.overlay import open_to_read
from semel.broker.metadata.applied_position import Applied
from semel.broker.metadata.chain import MetadataWentBackError, Position
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.store import METADATA_FILE, MetadataStore, sqlite_url
from semel.protocol.ids import TopicId

_WAL_SUFFIX: Final = "-wal"
_COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LoadedMetadata:
    """The metadata, and the topics that are known to have been deleted.

    lacks: what the node had applied and is not there, or something else in its place (R10)
    """

    image: MetadataImage
    deleted_topics: frozenset[TopicId]
    lacks: Position | None = None


@contextmanager
def copied(path: str) -> Iterator[str]:
    """Copy the database with its write-ahead log, in which the last changes may be, and yield the copy's path."""
    with tempfile.TemporaryDirectory(prefix="semel-metadata-") as folder:
        copy = os.path.join(folder, METADATA_FILE)
        for suffix in ("", _WAL_SUFFIX):
            if suffix and not os.path.exists(path + suffix):
                continue
            descriptor = open_to_read(path + suffix)
            with open(descriptor, "rb") as source, open(copy + suffix, "wb") as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)
        yield copy


def load_image(path: str, applied: Applied | None) -> LoadedMetadata:
    """Return the metadata. Raises `SemelError` or `MetadataCorruptError` for what a node would not start with.

    applied: what the node had applied, read before this: a node that runs applies more
    """
    with copied(path) as copy:
        return load_from(sqlite_url(copy), applied)


def load_from(url: str, applied: Applied | None) -> LoadedMetadata:
    """Return the metadata in a database. Raises as `load_image`, and `ConfigError` for no URL."""
    store = MetadataStore(url)
    try:
        image, deleted_topics = store.load(), store.deleted_topics()
        if applied is not None and applied.cluster_id == image.cluster_id and image.digest:
            try:
                store.check(applied.position)
            except MetadataWentBackError:
                return LoadedMetadata(image, deleted_topics, applied.position)
        return LoadedMetadata(image, deleted_topics)
    finally:
        store.close()


def integrity_fault(path: str) -> str | None:
    """Return what SQLite finds wrong with the file, or None."""
    with copied(path) as copy:
        try:
            with closing(sqlite3.connect(copy)) as connection:
                (first,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            return str(error)
    return None if first == "ok" else str(first)


@dataclass(frozen=True, slots=True)
class MetadataRow:
    """A row of one of the tables, as stored."""

    table: str
    values: dict[str, Any]


_QUERIES: Final = (
    ("schema", "SELECT version FROM semel_schema"),
    ("lease", "SELECT name, holder, epoch, expires_at_ms FROM semel_leases"),
    (
        "node",
        "SELECT node_id, broker_epoch, incarnation, directory_id, heartbeat_at_ms, seen_sequence"
        " FROM semel_nodes ORDER BY node_id",
    ),
    ("snapshot", "SELECT sequence, written_at_ms, payload FROM semel_metadata_snapshots ORDER BY sequence"),
    (
        "change",
        "SELECT sequence, kind AS change, controller_epoch, written_at_ms, payload"
        " FROM semel_metadata_changes ORDER BY sequence",
    ),
)


_ADDED: Final = {"node": "semel_nodes"}
"""Tables that databases of older versions do not have."""


def rows(path: str) -> Iterator[MetadataRow]:
    """Yield what the database holds, in order. Raises `sqlite3.DatabaseError` where it is damaged."""
    with copied(path) as copy, closing(sqlite3.connect(copy)) as connection:
        connection.row_factory = sqlite3.Row
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table, query in _QUERIES:
            if table in _ADDED and _ADDED[table] not in there:
                continue
            for row in connection.execute(query):
                yield MetadataRow(table, dict(row))
