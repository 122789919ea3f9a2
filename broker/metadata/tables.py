"""The tables of the metadata's database, and how those of an older version become this one's."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from semel.broker.metadata.chain import START, Position, digest_of, digest_of_snapshot

SCHEMA_VERSION: Final = 3
_UNCHAINED_VERSION: Final = 1
"""The tables of this version have no digests."""
_WITHOUT_WRITERS: Final = 2
"""The tables up to this version do not say which node wrote a change."""

TABLES: Final = sa.MetaData()
SCHEMA: Final = sa.Table(
    "semel_schema", TABLES, sa.Column("version", sa.Integer, primary_key=True, autoincrement=False)
)
CHANGES: Final = sa.Table(
    "semel_metadata_changes",
    TABLES,
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(64), nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("controller_epoch", sa.BigInteger, nullable=False),
    sa.Column("written_at_ms", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    # Empty in what an older version wrote, and in the change that creates the cluster.
    sa.Column("writer_node", sa.Integer),
    sa.Column("writer_epoch", sa.BigInteger),
)
SNAPSHOTS: Final = sa.Table(
    "semel_metadata_snapshots",
    TABLES,
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("written_at_ms", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
)
LOGS: Final = (CHANGES, SNAPSHOTS)
"""What has numbers and digests. The changes up to a snapshot may have been dropped, so snapshots count as well."""
LAST_POSITIONS: Final = tuple(
    sa.select(table.c.sequence, table.c.digest).order_by(table.c.sequence.desc()).limit(1) for table in LOGS
)
"""The queries for the last position of each. Every read and every heartbeat asks, so they are made once."""
DIGESTS_AT: Final = tuple(
    sa.select(table.c.digest).where(table.c.sequence == sa.bindparam("at", type_=sa.BigInteger)) for table in LOGS
)
"""The queries for the digest of a change `at` a number."""
LEASES: Final = sa.Table(
    "semel_leases",
    TABLES,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("holder", sa.String(255), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
)
NODES: Final = sa.Table(
    "semel_nodes",
    TABLES,
    sa.Column("node_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("broker_epoch", sa.BigInteger, nullable=False),
    sa.Column("incarnation", sa.String(64), nullable=False),
    sa.Column("directory_id", sa.String(64), nullable=False),
    sa.Column("heartbeat_at_ms", sa.BigInteger, nullable=False),
    sa.Column("seen_sequence", sa.BigInteger, nullable=False),
)
# What is in the remote storage. Made when a node first uses one, so that they change nothing for older versions.
REMOTE_TABLES: Final = sa.MetaData()
REMOTE_LOGS: Final = sa.Table(
    "semel_remote_logs",
    REMOTE_TABLES,
    sa.Column("topic_id", sa.String(32), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("start_offset", sa.BigInteger, nullable=False),
    sa.Column("end_offset", sa.BigInteger, nullable=False),
)
REMOTE_SEGMENTS: Final = sa.Table(
    "semel_remote_segments",
    REMOTE_TABLES,
    sa.Column("topic_id", sa.String(32), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("segment_id", sa.String(32), primary_key=True),
    sa.Column("state", sa.String(8), nullable=False),
    sa.Column("object_key", sa.Text, nullable=False),
    sa.Column("base_offset", sa.BigInteger, nullable=False),
    sa.Column("start_offset", sa.BigInteger, nullable=False),
    sa.Column("end_offset", sa.BigInteger, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("max_timestamp_ms", sa.BigInteger, nullable=False),
    sa.Column("leader_epoch", sa.BigInteger, nullable=False),
    sa.Column("node_id", sa.Integer, nullable=False),
    sa.Column("changed_at_ms", sa.BigInteger, nullable=False),
    sa.Column("details", sa.Text, nullable=False),
)
DISKLESS_LOGS: Final = sa.Table(
    "semel_diskless_logs",
    REMOTE_TABLES,
    sa.Column("topic_id", sa.String(32), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("claim", sa.String(32), nullable=False),
    sa.Column("leader_epoch", sa.BigInteger, nullable=False),
    sa.Column("node_id", sa.Integer, nullable=False),
    sa.Column("end_offset", sa.BigInteger, nullable=False),
)
DISKLESS_ENTRIES: Final = sa.Table(
    "semel_diskless_entries",
    REMOTE_TABLES,
    sa.Column("topic_id", sa.String(32), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("base_offset", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("end_offset", sa.BigInteger, nullable=False),
    sa.Column("object_key", sa.Text, nullable=False, index=True),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("checksum", sa.BigInteger, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
DISKLESS_OBJECTS: Final = sa.Table(
    "semel_diskless_objects",
    REMOTE_TABLES,
    sa.Column("object_key", sa.Text, primary_key=True),
    sa.Column("run", sa.String(64), nullable=False, index=True),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String(8), nullable=False),
    sa.Column("changed_at_ms", sa.BigInteger, nullable=False),
)


def version_of(connection: sa.Connection) -> int:
    """Return the version of the tables."""
    return int(connection.execute(sa.select(sa.func.max(SCHEMA.c.version))).scalar_one())


def select_changes(known: Position, version: int = SCHEMA_VERSION) -> sa.Select[Any]:
    """Return the query for the changes after `known`, from tables of a version: what it does not have is empty."""
    missing = {"digest": ""} if version <= _UNCHAINED_VERSION else {}
    if version <= _WITHOUT_WRITERS:
        missing |= {"writer_node": None, "writer_epoch": None}  # type: ignore[dict-item]
    columns = [
        sa.literal(missing[column.name]).label(column.name) if column.name in missing else column
        for column in CHANGES.c
    ]
    return sa.select(*columns).where(CHANGES.c.sequence > known.sequence).order_by(CHANGES.c.sequence)


def is_chained(version: int) -> bool:
    """Return whether changes have digests in tables of a version."""
    return version > _UNCHAINED_VERSION


def position_of(before: str, row: sa.Row[Any]) -> Position:
    """Return the position of a stored change that comes after one with the digest `before`."""
    values = (row.kind, row.payload, row.controller_epoch, row.written_at_ms, row.writer_node, row.writer_epoch)
    return Position(row.sequence, digest_of(before, row.sequence, *values))


def upgrade(connection: sa.Connection, *, is_sqlite: bool) -> None:
    """Bring tables of an older version to this one's."""
    version = version_of(connection)
    if version == SCHEMA_VERSION:
        return
    if not is_chained(version):
        _add_digests(connection, is_sqlite=is_sqlite)
    connection.exec_driver_sql(f"ALTER TABLE {CHANGES.name} ADD COLUMN writer_node INTEGER")
    connection.exec_driver_sql(f"ALTER TABLE {CHANGES.name} ADD COLUMN writer_epoch BIGINT")
    connection.execute(SCHEMA.update().values(version=SCHEMA_VERSION))


def _add_digests(connection: sa.Connection, *, is_sqlite: bool) -> None:
    """The chain begins before the first change; where that one is gone, with the oldest snapshot there is."""
    logged = connection.execute(select_changes(START, _UNCHAINED_VERSION)).all()
    kept = connection.execute(sa.select(SNAPSHOTS.c.sequence, SNAPSHOTS.c.payload).order_by(SNAPSHOTS.c.sequence)).all()
    if kept and not (logged and logged[0].sequence == 1):
        root = Position(kept[0].sequence, digest_of_snapshot(*kept[0]))
    else:
        root = START
    digests = {root.sequence: root.digest}
    last = root
    for row in logged:
        last = position_of(last.digest, row)
        digests[last.sequence] = last.digest
    for table, rows in ((CHANGES, logged), (SNAPSHOTS, kept)):
        connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN digest VARCHAR(64)")
        values = [{"at": row.sequence, "new": digests.get(row.sequence) or digest_of_snapshot(*row)} for row in rows]
        if values:
            fill = table.update().where(table.c.sequence == sa.bindparam("at"))
            connection.execute(fill.values(digest=sa.bindparam("new")), values)
        if not is_sqlite:  # which can't do that; a new database has it
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ALTER COLUMN digest SET NOT NULL")
