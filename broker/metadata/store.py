"""Where the metadata is kept: an ordered change log with snapshots and the controller's lease, in a SQL database.

Synchronous; `Metadata` (metadata.py) runs it off the event loop. Every write names the sequence that it follows and the
epoch of the lease that it is made under, and both are checked in its own transaction, so a deposed controller or one
that missed a change can't write, whatever clocks say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import URL, make_url

from semel.broker.config.setting import ConfigError
from semel.broker.metadata.changes import Change, MetadataCorruptError, decode_change, encode_change
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage, decode_image, encode_image
from semel.protocol.errors import ErrorCode, FatalError, RetriableError

SCHEMA_VERSION: Final = 1
CONTROLLER_LEASE: Final = "controller"
SNAPSHOTS_KEPT: Final = 2

_CREATION_LOCK: Final = 0x53656D656C  # "Semel": PostgreSQL's advisory lock for creating the tables

_tables = sa.MetaData()
_schema = sa.Table("semel_schema", _tables, sa.Column("version", sa.Integer, primary_key=True, autoincrement=False))
_changes = sa.Table(
    "semel_metadata_changes",
    _tables,
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(64), nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("controller_epoch", sa.BigInteger, nullable=False),
    sa.Column("written_at_ms", sa.BigInteger, nullable=False),
)
_snapshots = sa.Table(
    "semel_metadata_snapshots",
    _tables,
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("written_at_ms", sa.BigInteger, nullable=False),
)
_leases = sa.Table(
    "semel_leases",
    _tables,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("holder", sa.String(255), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
)


class MetadataUnavailableError(RetriableError):
    """The metadata's database does not answer."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.BROKER_NOT_AVAILABLE) -> None:
        super().__init__(message, code)


class MetadataConflictError(RetriableError):
    """Somebody else changed the metadata first: read what is new, and decide again."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.STALE_CONTROLLER_EPOCH) -> None:
        super().__init__(message, code)


class NotControllerError(RetriableError):
    """This node does not hold the controller's lease (any more)."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.NOT_CONTROLLER) -> None:
        super().__init__(message, code)


@dataclass(frozen=True, slots=True)
class Lease:
    """Who may write. `epoch` grows with every holder and fences the earlier ones."""

    holder: str
    epoch: int
    expires_at_ms: int


class MetadataStore:
    """The metadata's database. Use from one thread at a time."""

    def __init__(self, url: str, *, timeout_ms: int = 10_000) -> None:
        """`url` is a SQLAlchemy URL of SQLite or PostgreSQL; any other is a `ConfigError`. Connects on first use."""
        parsed = _supported(url)
        self.location: Final = parsed.render_as_string(hide_password=True)
        """The URL without its password, for messages."""
        self._is_sqlite = parsed.get_backend_name() == "sqlite"
        options: dict[str, Any]
        if self._is_sqlite:
            options = {"connect_args": {"timeout": timeout_ms / 1000, "check_same_thread": False}}
        else:
            seconds = max(1, timeout_ms // 1000)
            limits = f"-c statement_timeout={timeout_ms} -c lock_timeout={timeout_ms}"
            options = {
                "connect_args": {"connect_timeout": seconds, "options": limits, "application_name": "semel"},
                "pool_pre_ping": True,
            }
        try:
            self._engine = sa.create_engine(parsed, pool_size=1, max_overflow=0, poolclass=sa.QueuePool, **options)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"metadata.url needs the Python package {error.name}: pip install 'semel[postgresql]'"
            ) from None
        if self._is_sqlite:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_immediate)

    def close(self) -> None:
        self._engine.dispose()

    def create(self) -> None:
        """Create what is missing. Raises `FatalError` where a newer version of Semel made the tables."""
        with self._transaction() as connection:
            if not self._is_sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
            _tables.create_all(connection)
            found = connection.execute(sa.select(sa.func.max(_schema.c.version))).scalar()
            if found is None:
                connection.execute(_schema.insert().values(version=SCHEMA_VERSION))
            elif found > SCHEMA_VERSION:
                raise FatalError(
                    f"the metadata in {self.location} was made by a newer semel (format {found}, this one "
                    f"reads {SCHEMA_VERSION}): install that version"
                )

    def load(self) -> MetadataImage:
        """Return the image of the whole log: the newest snapshot that can be read, and the changes after it."""
        with self._transaction() as connection:
            statement = sa.select(_snapshots.c.payload).order_by(_snapshots.c.sequence.desc())
            image, corrupt = EMPTY_IMAGE, None
            for (payload,) in connection.execute(statement).all():
                try:
                    image = decode_image(payload)
                    break
                except MetadataCorruptError as error:
                    corrupt = error
            try:
                return image.apply_all(self._changes_after(connection, image.sequence))
            except MetadataCorruptError as error:
                raise corrupt or error from None

    def changes_after(self, sequence: int) -> list[tuple[int, Change]]:
        """Return the numbered changes after `sequence`, in order. Raises `MetadataConflictError` where they are cut."""
        with self._transaction() as connection:
            found = self._changes_after(connection, sequence)
            if found and found[0][0] != sequence + 1:
                raise MetadataConflictError(
                    f"the changes after {sequence} are only in a snapshot: load the metadata again"
                )
            return found

    def append(self, changes: Sequence[Change], *, after: int, lease: Lease, now_ms: int) -> None:
        """Write changes as the entries right after `after`, all or none.

        Raises `NotControllerError` where `lease` is not the current one, `MetadataConflictError` where the log goes on
        after `after` already, `MetadataUnavailableError` where the database fails (the changes may have been written).
        """
        rows = [
            {
                "sequence": after + position,
                "kind": kind,
                "payload": payload,
                "controller_epoch": lease.epoch,
                "written_at_ms": now_ms,
            }
            for position, (kind, payload) in enumerate(map(encode_change, changes), start=1)
        ]
        conflict = MetadataConflictError(f"the metadata has changed since {after}")
        try:
            with self._transaction() as connection:
                self._check_lease(connection, lease)
                if self._last_sequence(connection) != after:
                    raise conflict
                connection.execute(_changes.insert(), rows)
        except exc.IntegrityError:
            raise conflict from None

    def write_snapshot(self, image: MetadataImage, *, lease: Lease, now_ms: int) -> None:
        """Keep a snapshot, and drop older ones and the changes that no kept one needs."""
        try:
            with self._transaction() as connection:
                self._check_lease(connection, lease)
                connection.execute(
                    _snapshots.insert().values(
                        sequence=image.sequence, payload=encode_image(image), written_at_ms=now_ms
                    )
                )
                newest = sa.select(_snapshots.c.sequence).order_by(_snapshots.c.sequence.desc()).limit(SNAPSHOTS_KEPT)
                kept = list(connection.execute(newest).scalars())
                if len(kept) == SNAPSHOTS_KEPT:
                    connection.execute(_snapshots.delete().where(_snapshots.c.sequence < kept[-1]))
                    connection.execute(_changes.delete().where(_changes.c.sequence <= kept[-1]))
        except exc.IntegrityError:
            raise MetadataConflictError(f"there is a snapshot of change {image.sequence} already") from None

    def last_snapshot_sequence(self) -> int:
        with self._transaction() as connection:
            return connection.execute(sa.select(sa.func.max(_snapshots.c.sequence))).scalar() or 0

    def acquire_lease(self, holder: str, *, duration_ms: int, now_ms: int) -> Lease:
        """Take the controller's lease, under a new epoch. Raises `NotControllerError` while another holder has it."""
        try:
            with self._transaction() as connection:
                row = connection.execute(self._lease_row().with_for_update()).one_or_none()
                lease = Lease(holder, 1 if row is None else row.epoch + 1, now_ms + duration_ms)
                values = {"holder": lease.holder, "epoch": lease.epoch, "expires_at_ms": lease.expires_at_ms}
                if row is None:
                    connection.execute(_leases.insert().values(name=CONTROLLER_LEASE, **values))
                elif row.holder == holder or row.expires_at_ms <= now_ms:
                    connection.execute(_leases.update().where(_leases.c.name == CONTROLLER_LEASE).values(**values))
                else:
                    raise NotControllerError(
                        f"{row.holder} is the controller, for {row.expires_at_ms - now_ms} ms more unless it renews"
                    )
                return lease
        except exc.IntegrityError:
            raise NotControllerError("another node has just become the controller") from None

    def renew_lease(self, lease: Lease, *, duration_ms: int, now_ms: int) -> Lease:
        """Make the lease last longer. Raises `NotControllerError` where it was lost."""
        renewed = Lease(lease.holder, lease.epoch, now_ms + duration_ms)
        with self._transaction() as connection:
            self._check_lease(connection, lease)
            connection.execute(
                _leases.update().where(_leases.c.name == CONTROLLER_LEASE).values(expires_at_ms=renewed.expires_at_ms)
            )
        return renewed

    def release_lease(self, lease: Lease) -> None:
        """Let another node take the lease at once. Does nothing where it was lost."""
        with self._transaction() as connection:
            connection.execute(
                _leases.update()
                .where(_leases.c.name == CONTROLLER_LEASE, _leases.c.epoch == lease.epoch)
                .values(expires_at_ms=0)
            )

    @staticmethod
    def _lease_row() -> sa.Select[Any]:
        return sa.select(_leases.c.holder, _leases.c.epoch, _leases.c.expires_at_ms).where(
            _leases.c.name == CONTROLLER_LEASE
        )

    def _check_lease(self, connection: sa.Connection, lease: Lease) -> None:
        """The row stays locked until the transaction ends, so nobody takes the lease between check and write."""
        row = connection.execute(self._lease_row().with_for_update()).one_or_none()
        if row is None or row.epoch != lease.epoch:
            held = "nobody" if row is None else f"{row.holder}, epoch {row.epoch}"
            raise NotControllerError(f"this node's controller epoch {lease.epoch} is over: the controller is {held}")

    @staticmethod
    def _changes_after(connection: sa.Connection, sequence: int) -> list[tuple[int, Change]]:
        statement = (
            sa.select(_changes.c.sequence, _changes.c.kind, _changes.c.payload)
            .where(_changes.c.sequence > sequence)
            .order_by(_changes.c.sequence)
        )
        return [(number, decode_change(kind, payload)) for number, kind, payload in connection.execute(statement)]

    @staticmethod
    def _last_sequence(connection: sa.Connection) -> int:
        """The changes up to a snapshot may have been dropped, so the snapshot counts as well."""
        last_change = connection.execute(sa.select(sa.func.max(_changes.c.sequence))).scalar() or 0
        last_snapshot = connection.execute(sa.select(sa.func.max(_snapshots.c.sequence))).scalar() or 0
        return max(last_change, last_snapshot)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except exc.IntegrityError:
            raise
        except exc.SQLAlchemyError as error:
            # The driver's own text, without SQLAlchemy's: that one shows statements and may show the URL.
            reason = str(getattr(error, "orig", None) or error).strip().splitlines()
            raise MetadataUnavailableError(
                f"the metadata database {self.location} failed: {reason[0] if reason else type(error).__name__}"
            ) from error


def sqlite_url(path: str) -> str:
    """Return the URL of a SQLite file."""
    return URL.create("sqlite", database=path).render_as_string()


def _supported(url: str) -> URL:
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (exc.ArgumentError, ValueError):
        raise ConfigError("metadata.url is not a SQLAlchemy URL such as postgresql+psycopg://user@host/semel") from None
    if backend == "postgresql" and parsed.drivername == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise ConfigError(
            f"metadata.url names {parsed.drivername}: use sqlite:///PATH or postgresql+psycopg://user@host/database"
        )
    return parsed


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # SQLAlchemy begins transactions itself, below
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin_immediate(connection: sa.Connection) -> None:
    # The check and the write of a compare-and-set must be under one write lock.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
