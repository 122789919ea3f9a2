"""Where the metadata is kept: an ordered change log with snapshots, who may write it, and the controller's lease.

Synchronous; `Metadata` (metadata.py) runs it off the event loop. Any node changes the metadata: each write names the
change that it follows and the registration of its writer, and both are checked in its own transaction, so an earlier
run of a node, or one that missed a change, can't write, whatever clocks say. What only the controller may do names its
lease too. The digest of the change that it follows is checked as well (`chain.py`), by reads too: a database that went
back to an older copy is found out by the first transaction after that.

Rows are locked in one order: the node's, then the lease.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import URL

from semel.broker.metadata.chain import START, ChainBrokenError, MetadataWentBackError, Position, digest_of
from semel.broker.metadata.changes import (
    BrokerRegistered,
    BrokerUnregistered,
    Change,
    ClusterCreated,
    MetadataCorruptError,
    TopicDeleted,
    decode_change,
    encode_change,
)
from semel.broker.metadata.database import Database
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage, decode_image, encode_image
from semel.broker.metadata.runs import NodeDeposedError, NodeRemovedError, Writer
from semel.broker.metadata.tables import (
    CHANGES,
    DIGESTS_AT,
    LAST_POSITIONS,
    LEASES,
    LOGS,
    NODES,
    SCHEMA,
    SCHEMA_VERSION,
    SNAPSHOTS,
    TABLES,
    is_chained,
    position_of,
    select_changes,
    upgrade,
    version_of,
)
from semel.protocol.errors import ErrorCode, FatalError, RetriableError
from semel.protocol.ids import TopicId
from semel.runtime.regular_files import special_kind

METADATA_FILE: Final = "metadata.sqlite"
"""The database in the data folder, where no other is named."""
_BESIDE: Final = ("", "-wal", "-shm", "-journal")
"""What SQLite's names of its files end in."""
_NUMBER_LEASE: Final = "node.id "
"""What the names of reserved numbers of nodes begin with."""
CONTROLLER_LEASE: Final = "controller"
SNAPSHOTS_KEPT: Final = 2
NO_CONTROLLER_EPOCH: Final = 0
"""Of changes that any node may make: leases begin with 1."""


class MetadataConflictError(RetriableError):
    """Somebody else changed the metadata first: read what is new, and decide again."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.STALE_CONTROLLER_EPOCH) -> None:
        super().__init__(message, code)


class NotControllerError(RetriableError):
    """This node does not hold the controller's lease (any more)."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.NOT_CONTROLLER) -> None:
        super().__init__(message, code)


class NotRegisteredError(RetriableError):
    """This node has not registered yet, so it can't change the metadata."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.NOT_CONTROLLER) -> None:
        super().__init__(message, code)


@dataclass(frozen=True, slots=True)
class Lease:
    """Who is the controller. `epoch` grows with every holder and fences the earlier ones."""

    holder: str
    epoch: int
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class NodeSession:
    """What the database knows of a registered node.

    silent_ms:     how long it has not been heard of, by the database's time; very long where it has signed off
    seen_sequence: the last change that it had applied then
    has_left:      whether it has signed off
    """

    node_id: int
    broker_epoch: int
    incarnation: str
    directory_id: str
    silent_ms: int
    seen_sequence: int
    has_left: bool = False

    @property
    def writer(self) -> Writer:
        return Writer(self.node_id, self.broker_epoch)


@dataclass(frozen=True, slots=True)
class Alone:
    """What a registration asks for where only one node may run: that no other holds the lease, or has been heard of.

    session_ms: after so long a silent node is taken for dead; 0 where heartbeats do not count
    """

    holder: str
    session_ms: int


def misplaced_file(data_dir: str) -> tuple[str, str] | None:
    """Return a file of the database in a data folder in whose place is something else, and what; None: all is well.

    SQLite says "disk I/O error" of it, or waits for ever.
    """
    for suffix in _BESIDE:
        path = f"{data_dir}/{METADATA_FILE}{suffix}"
        kind = "a directory" if os.path.isdir(path) else special_kind(path)
        if kind:
            return path, kind
    return None


class MetadataStore(Database):
    """The metadata's database. Use from one thread at a time."""

    def create(self) -> bool:
        """Create what is missing, and return whether the tables are an older version's.

        Those stay as they are until `upgrade`: their node may still run. Raises `FatalError` where a newer version of
        Semel made the tables.
        """
        with self._transaction() as connection:
            self._create_tables(connection, TABLES)
            found = connection.execute(sa.select(sa.func.max(SCHEMA.c.version))).scalar()
            if found is None:
                connection.execute(SCHEMA.insert().values(version=SCHEMA_VERSION))
                return False
            if found > SCHEMA_VERSION:
                raise FatalError(
                    f"the metadata in {self.location} was made by a newer semel (format {found}, this one "
                    f"reads {SCHEMA_VERSION}): install that version"
                )
            return bool(found < SCHEMA_VERSION)

    def upgrade(self, lease: Lease) -> None:
        """Bring the tables of an older version to this one's, in one transaction, while nobody else can write."""
        with self._transaction() as connection:
            self._check_lease(connection, lease)
            upgrade(connection, is_sqlite=self._is_sqlite)

    def load(self) -> MetadataImage:
        """Return the image of the whole log: the newest snapshot that can be read, and the changes after it.

        Raises `MetadataCorruptError` for what can't be read, and where a change does not continue the one before it.
        """
        with self._transaction() as connection:
            version = version_of(connection)
            columns = (SNAPSHOTS.c.payload, SNAPSHOTS.c.digest if is_chained(version) else sa.literal(""))
            statement = sa.select(*columns).order_by(SNAPSHOTS.c.sequence.desc())
            image, corrupt = EMPTY_IMAGE, None
            for payload, digest in connection.execute(statement).all():
                try:
                    image = decode_image(payload, digest)
                    break
                except MetadataCorruptError as error:
                    corrupt = error
            try:
                return image.apply_all(self._changes_after(connection, image.position, version))
            except MetadataCorruptError as error:
                raise corrupt or error from None

    def deleted_topics(self) -> frozenset[TopicId]:
        """Return the topics that were deleted lately: changes are kept until two snapshots have them."""
        with self._transaction() as connection:
            changes = self._changes_after(connection, START, version=1)
        return frozenset(change.topic_id for _, change in changes if isinstance(change, TopicDeleted))

    def check(self, known: Position) -> None:
        """Raises `MetadataWentBackError` where the log does not have `known`, which this node has applied (R10).

        What lies so far back that only a snapshot has it can't be compared, and passes.
        """
        with self._transaction() as connection:
            self._check_chain(connection, known)

    def changes_after(self, known: Position) -> list[tuple[Position, Change]]:
        """Return the changes after `known`, in order.

        Raises `MetadataConflictError` where they are cut, and `MetadataWentBackError` where they do not continue it.
        """
        with self._transaction() as connection:
            if self._check_chain(connection, known) == known.sequence:
                return []
            first = connection.execute(
                sa.select(sa.func.min(CHANGES.c.sequence)).where(CHANGES.c.sequence > known.sequence)
            ).scalar()
            if first != known.sequence + 1:
                raise MetadataConflictError(
                    f"the changes after {known.sequence} are only in a snapshot: load the metadata again"
                )
            try:
                return self._changes_after(connection, known)
            except ChainBrokenError as error:
                raise self._went_back(known, str(error)) from error

    def append(
        self,
        changes: Sequence[Change],
        *,
        after: Position,
        writer: Writer | None,
        now_ms: int,
        lease: Lease | None = None,
    ) -> list[Position]:
        """Write changes as the entries right after `after`, all or none (R5), and return where they are.

        `writer` is None for the change that creates the cluster alone. `lease` is of what only the controller may do.
        Raises `NodeDeposedError` where `writer` is not the node's current run, `NotControllerError` where `lease` is
        not the current one, `MetadataConflictError` where the log has more after `after`, `MetadataWentBackError` where
        it does not have `after`, and `MetadataUnavailableError` where the database fails (the changes may have been
        written).
        """
        if writer is None and not all(isinstance(change, ClusterCreated) for change in changes):
            raise NotRegisteredError("this node has not registered yet: try again shortly")
        rows = _rows_of(changes, after=after, writer=writer, now_ms=now_ms, lease=lease)
        conflict = MetadataConflictError(f"the metadata has changed since {after.sequence}")
        try:
            with self._transaction() as connection:
                self._check_writer(connection, writer, after)
                if lease is not None:
                    self._check_lease(connection, lease)
                for change in changes:
                    # A process that runs as this node is deposed. Before the changes, as registrations lock its row.
                    if isinstance(change, BrokerUnregistered):
                        connection.execute(NODES.delete().where(NODES.c.node_id == change.node_id))
                if self._check_chain(connection, after) != after.sequence:
                    raise conflict
                connection.execute(CHANGES.insert(), rows)
        except exc.IntegrityError:
            raise conflict from None
        return _positions(rows)

    def register(
        self,
        registered: BrokerRegistered,
        further: Sequence[Change],
        *,
        after: Position,
        now_ms: int,
        alone: Alone | None = None,
    ) -> list[Position]:
        """Write the registration of a node with what follows from it, and return where they are, all or none.

        From then on the node's writer is `registration_of` it, and earlier runs can't write. Raises as `append`, and
        `NotControllerError` where the node is not `alone`.
        """
        writer = registration_of(registered, after)
        rows = _rows_of([registered, *further], after=after, writer=writer, now_ms=now_ms)
        conflict = MetadataConflictError(f"the metadata has changed since {after.sequence}")
        values = {
            "broker_epoch": writer.epoch,
            "incarnation": registered.incarnation,
            "directory_id": registered.directory_id,
            "heartbeat_at_ms": self._now(now_ms),
            "seen_sequence": after.sequence,
        }
        try:
            with self._transaction() as connection:
                renewed = connection.execute(NODES.update().where(NODES.c.node_id == writer.node_id).values(**values))
                if renewed.rowcount == 0:
                    connection.execute(NODES.insert().values(node_id=writer.node_id, **values))
                if alone is not None:
                    self._check_alone(connection, writer.node_id, alone, now_ms)
                if self._check_chain(connection, after) != after.sequence:
                    raise conflict
                connection.execute(CHANGES.insert(), rows)
        except exc.IntegrityError:
            raise conflict from None
        return _positions(rows)

    def heartbeat(self, writer: Writer, *, seen: Position, now_ms: int) -> None:
        """Note that a node lives, and how far it has applied the log.

        Raises `NodeDeposedError` where that run of it is not the current one, and `MetadataWentBackError` where the log
        does not have `seen`.
        """
        with self._transaction() as connection:
            beaten = connection.execute(
                NODES.update()
                .where(NODES.c.node_id == writer.node_id, NODES.c.broker_epoch == writer.epoch)
                .values(heartbeat_at_ms=self._now(now_ms), seen_sequence=seen.sequence)
            )
            if beaten.rowcount == 0:
                self._check_writer(connection, writer, seen)
            self._check_chain(connection, seen)

    def sign_off(self, writer: Writer | None, lease: Lease | None) -> None:
        """Let others act at once, without waiting for the node's session and lease to end. Does nothing if deposed."""
        with self._transaction() as connection:
            if writer is not None:
                connection.execute(
                    NODES.update()
                    .where(NODES.c.node_id == writer.node_id, NODES.c.broker_epoch == writer.epoch)
                    .values(heartbeat_at_ms=0)
                )
            if lease is not None:
                self._release(connection, lease)

    def sessions(self, *, now_ms: int) -> list[NodeSession]:
        """Return all nodes that have ever registered, in the order of their ids."""
        with self._transaction() as connection:
            return self._sessions(connection, now_ms)

    def silent_nodes(self, session_ms: int, *, now_ms: int) -> list[NodeSession]:
        """Return the nodes that have not been heard of for `session_ms`, by the database's time."""
        return [each for each in self.sessions(now_ms=now_ms) if each.silent_ms >= session_ms]

    def check_alone(self, node_id: int, alone: Alone, *, now_ms: int) -> None:
        """Raises `NotControllerError` where another node holds the lease, or has been heard of lately."""
        with self._transaction() as connection:
            self._check_alone(connection, node_id, alone, now_ms)

    def write_snapshot(self, image: MetadataImage, *, lease: Lease, now_ms: int, writer: Writer | None = None) -> None:
        """Keep a snapshot, and drop older ones and the changes that no kept one needs."""
        try:
            with self._transaction() as connection:
                self._check_writer(connection, writer, image.position)
                self._check_lease(connection, lease, image.position)
                connection.execute(
                    SNAPSHOTS.insert().values(
                        sequence=image.sequence,
                        payload=encode_image(image),
                        written_at_ms=now_ms,
                        digest=image.digest,
                    )
                )
                newest = sa.select(SNAPSHOTS.c.sequence).order_by(SNAPSHOTS.c.sequence.desc()).limit(SNAPSHOTS_KEPT)
                kept = list(connection.execute(newest).scalars())
                if len(kept) == SNAPSHOTS_KEPT:
                    connection.execute(SNAPSHOTS.delete().where(SNAPSHOTS.c.sequence < kept[-1]))
                    connection.execute(CHANGES.delete().where(CHANGES.c.sequence <= kept[-1]))
        except exc.IntegrityError:
            raise MetadataConflictError(f"there is a snapshot of change {image.sequence} already") from None

    def last_snapshot_sequence(self) -> int:
        with self._transaction() as connection:
            return connection.execute(sa.select(sa.func.max(SNAPSHOTS.c.sequence))).scalar() or 0

    def acquire_lease(
        self, holder: str, *, duration_ms: int, now_ms: int, known: Position = START, writer: Writer | None = None
    ) -> Lease:
        """Take the controller's lease, under a new epoch.

        `writer` is None before the node has registered. Raises `NotControllerError` while another holder has it,
        `NodeDeposedError` where `writer` is not the node's current run, and `MetadataWentBackError` where the log does
        not have `known`.
        """
        try:
            with self._transaction() as connection:
                self._check_writer(connection, writer, known)
                row, time_ms = self._read_lease(connection, now_ms)
                self._check_chain(connection, known)
                lease = Lease(holder, 1 if row is None else row.epoch + 1, time_ms + duration_ms)
                values = {"holder": lease.holder, "epoch": lease.epoch, "expires_at_ms": lease.expires_at_ms}
                if row is None:
                    connection.execute(LEASES.insert().values(name=CONTROLLER_LEASE, **values))
                elif row.holder == holder or row.expires_at_ms <= time_ms:
                    connection.execute(LEASES.update().where(LEASES.c.name == CONTROLLER_LEASE).values(**values))
                else:
                    raise _another_is_controller(row.holder, row.expires_at_ms - time_ms)
                return lease
        except exc.IntegrityError:
            raise NotControllerError("another node has just become the controller") from None

    def reserve_number(
        self, holder: str, *, first: int, taken: Collection[int], session_ms: int, duration_ms: int, now_ms: int
    ) -> int:
        """Return the smallest number from `first` on for a new node, which nobody else gets for so long.

        taken: numbers that are not to be given
        session_ms: a node that was silent for so long, or has left, has its number no more
        Raises `MetadataUnavailableError`.
        """
        while True:
            try:
                with self._transaction() as connection:
                    time_ms = int(connection.execute(sa.select(self._now(now_ms))).scalar_one())
                    used = {
                        one.node_id
                        for one in self._sessions(connection, now_ms)
                        if not one.has_left and one.silent_ms < session_ms
                    }
                    names = LEASES.c.name.like(f"{_NUMBER_LEASE}%")
                    reserved = {row.name: row for row in connection.execute(sa.select(LEASES).where(names))}
                    number = first
                    while (
                        number in taken
                        or number in used
                        or ((row := reserved.get(f"{_NUMBER_LEASE}{number}")) and row.expires_at_ms > time_ms)
                    ):
                        number += 1
                    name = f"{_NUMBER_LEASE}{number}"
                    values = {"holder": holder, "expires_at_ms": time_ms + duration_ms}
                    before = reserved.get(name)
                    if before is None:
                        connection.execute(LEASES.insert().values(name=name, epoch=1, **values))
                        return number
                    moved = connection.execute(
                        LEASES.update()
                        .where(LEASES.c.name == name, LEASES.c.epoch == before.epoch)
                        .values(epoch=before.epoch + 1, **values)
                    )
                    if moved.rowcount == 1:
                        return number
            except exc.IntegrityError:
                continue  # another node has just reserved it

    def renew_lease(
        self, lease: Lease, *, duration_ms: int, now_ms: int, known: Position = START, writer: Writer | None = None
    ) -> Lease:
        """Make the lease last longer.

        Raises `NotControllerError` where it was lost, and otherwise as `acquire_lease`.
        """
        with self._transaction() as connection:
            self._check_writer(connection, writer, known)
            self._check_lease(connection, lease, known)
            _, time_ms = self._read_lease(connection, now_ms)
            renewed = Lease(lease.holder, lease.epoch, time_ms + duration_ms)
            connection.execute(
                LEASES.update().where(LEASES.c.name == CONTROLLER_LEASE).values(expires_at_ms=renewed.expires_at_ms)
            )
        return renewed

    def release_lease(self, lease: Lease) -> None:
        """Let another node take the lease at once. Does nothing where it was lost."""
        self.sign_off(None, lease)

    @staticmethod
    def _release(connection: sa.Connection, lease: Lease) -> None:
        connection.execute(
            LEASES.update()
            .where(
                LEASES.c.name == CONTROLLER_LEASE,
                LEASES.c.holder == lease.holder,
                LEASES.c.epoch == lease.epoch,
            )
            .values(expires_at_ms=0)
        )

    @staticmethod
    def _lease_row() -> sa.Select[Any]:
        return sa.select(LEASES.c.holder, LEASES.c.epoch, LEASES.c.expires_at_ms).where(
            LEASES.c.name == CONTROLLER_LEASE
        )

    def _read_lease(self, connection: sa.Connection, now_ms: int) -> tuple[sa.Row[Any] | None, int]:
        """Return the lease, and the time once its row was locked."""
        row = connection.execute(self._lease_row().with_for_update()).one_or_none()
        return row, int(connection.execute(sa.select(self._now(now_ms))).scalar_one())

    def _check_lease(self, connection: sa.Connection, lease: Lease, known: Position = START) -> None:
        """Check the lease and the chain.

        The row stays locked until the transaction ends, so nobody takes the lease between check and write. The holder
        counts too: after a fail-over that lost a lease, the next holder may get the same epoch.
        """
        row = connection.execute(self._lease_row().with_for_update()).one_or_none()
        self._check_chain(connection, known)
        if row is None or (row.epoch, row.holder) != (lease.epoch, lease.holder):
            held = "nobody" if row is None else f"{row.holder}, epoch {row.epoch}"
            raise NotControllerError(f"this node's controller epoch {lease.epoch} is over: the controller is {held}")

    def _check_writer(self, connection: sa.Connection, writer: Writer | None, known: Position) -> None:
        """Check that a node's run is its current one. Its row stays locked, so nobody registers before the write.

        known: what that run has applied. A database that went back has an older run's row, or none of that node
        """
        if writer is None:
            return
        current = connection.execute(
            sa.select(NODES.c.broker_epoch).where(NODES.c.node_id == writer.node_id).with_for_update()
        ).scalar()
        if current == writer.epoch:
            return
        self._check_chain(connection, known)
        run = f"this run of node {writer.node_id}, broker epoch {writer.epoch}, is over"
        if current is None:
            raise NodeRemovedError(f"{run}: it was removed from the cluster. Started again, it joins as a new node")
        raise NodeDeposedError(
            f"{run}: it was started again, with broker epoch {current}. Stop one of the two processes, or give one of "
            "them another node.id and data directory"
        )

    def _check_alone(self, connection: sa.Connection, node_id: int, alone: Alone, now_ms: int) -> None:
        row, time_ms = self._read_lease(connection, now_ms)
        if row is not None and row.holder != alone.holder and row.expires_at_ms > time_ms:
            raise _another_is_controller(row.holder, row.expires_at_ms - time_ms)
        for other in self._sessions(connection, now_ms):
            if other.node_id != node_id and other.silent_ms < alone.session_ms:
                raise NotControllerError(
                    f"node {other.node_id} runs on this metadata: it was heard of {other.silent_ms} ms ago"
                )

    def _sessions(self, connection: sa.Connection, now_ms: int) -> list[NodeSession]:
        rows = connection.execute(
            sa.select(
                NODES.c.node_id,
                NODES.c.broker_epoch,
                NODES.c.incarnation,
                NODES.c.directory_id,
                (self._now(now_ms) - NODES.c.heartbeat_at_ms).label("silent_ms"),
                NODES.c.seen_sequence,
                (NODES.c.heartbeat_at_ms == 0).label("has_left"),
            ).order_by(NODES.c.node_id)
        )
        # SQLite's time is that of who asks, from before it waited for its turn. A heartbeat may have come since.
        return [NodeSession(**{**row._mapping, "silent_ms": max(0, row.silent_ms)}) for row in rows]

    def _check_chain(self, connection: sa.Connection, known: Position) -> int:
        """Return the number of the last change. Raises `MetadataWentBackError` where the log lacks `known` (R10)."""
        if known == START:  # where nothing is known nothing can be missing, and an older version has no digests
            return max(connection.execute(sa.select(sa.func.max(one.c.sequence))).scalar() or 0 for one in LOGS)
        head = self._head(connection)
        if head.sequence < known.sequence:
            raise self._went_back(known, f"the database has changes up to {head.sequence} only")
        found = head.digest if head.sequence == known.sequence else self._digest_at(connection, known.sequence)
        if found is not None and found != known.digest:
            raise self._went_back(known, f"the database has another change {known.sequence}")
        return head.sequence

    def _went_back(self, known: Position, what: str) -> MetadataWentBackError:
        return MetadataWentBackError(
            f"the metadata in {self.location} went back: this node has applied its changes up to {known.sequence}, and "
            f"{what}. The database was restored from an older copy, or a fail-over lost its last changes"
        )

    @staticmethod
    def _head(connection: sa.Connection) -> Position:
        """Return the last change's position: a snapshot's, where only that is left."""
        for last in LAST_POSITIONS:
            row = connection.execute(last).one_or_none()
            if row is not None:
                return Position(*row)
        return START

    @staticmethod
    def _digest_at(connection: sa.Connection, sequence: int) -> str | None:
        """Return the digest of a change, or None where it is gone: then two snapshots have it."""
        for digest_at in DIGESTS_AT:
            digest = connection.execute(digest_at, {"at": sequence}).scalar()
            if digest is not None:
                return str(digest)
        return None

    @staticmethod
    def _changes_after(
        connection: sa.Connection, known: Position, version: int = SCHEMA_VERSION
    ) -> list[tuple[Position, Change]]:
        """Return the changes after `known`. Raises `ChainBrokenError` where one does not continue the one before."""
        found: list[tuple[Position, Change]] = []
        last = known
        for row in connection.execute(select_changes(known, version)):
            is_next = bool(found) or row.sequence == last.sequence + 1
            if is_chained(version) and is_next and row.digest != position_of(last.digest, row).digest:
                raise ChainBrokenError(f"change {row.sequence} there does not continue change {last.sequence}")
            last = Position(row.sequence, row.digest)
            found.append((last, decode_change(row.kind, row.payload)))
        return found


def sqlite_url(path: str) -> str:
    """Return the URL of a SQLite file."""
    return URL.create("sqlite", database=path).render_as_string()


def registration_of(registered: BrokerRegistered, after: Position) -> Writer:
    """Return who a node is once its registration is written right after `after`."""
    return Writer(registered.node_id, after.sequence + 1)


def positions_of(
    changes: Sequence[Change], *, after: Position, writer: Writer | None, now_ms: int, lease: Lease | None = None
) -> list[Position]:
    """Return where `append` with the same arguments writes changes.

    Nobody else's changes have these digests, so they tell a write whose answer was lost from somebody else's.
    """
    return _positions(_rows_of(changes, after=after, writer=writer, now_ms=now_ms, lease=lease))


def _rows_of(
    changes: Sequence[Change], *, after: Position, writer: Writer | None, now_ms: int, lease: Lease | None = None
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    last = after
    for kind, payload in map(encode_change, changes):
        row: dict[str, Any] = {
            "sequence": last.sequence + 1,
            "kind": kind,
            "payload": payload,
            "controller_epoch": NO_CONTROLLER_EPOCH if lease is None else lease.epoch,
            "written_at_ms": now_ms,
            "writer_node": None if writer is None else writer.node_id,
            "writer_epoch": None if writer is None else writer.epoch,
        }
        last = Position(last.sequence + 1, digest_of(last.digest, **row))
        rows.append({**row, "digest": last.digest})
    return rows


def _positions(rows: Sequence[dict[str, Any]]) -> list[Position]:
    return [Position(row["sequence"], row["digest"]) for row in rows]


def _another_is_controller(holder: str, left_ms: int) -> NotControllerError:
    return NotControllerError(f"{holder} is the controller, for {left_ms} ms more unless it renews")
