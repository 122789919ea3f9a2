"""The rows in the metadata's database that say which records of diskless topics are committed, and in what order.

A partition's `claim` names the leader that may append to it. Each new leader sets one of its own, under its leader
epoch, before it reads what there is; what the leader before tries to commit after that is refused, however late it is
(R3). An entry is a run of batches that one commit has appended: small ones are in the row, others are a part of an
object, which has runs of many partitions. An entry is there or not: no half of a commit is ever seen.

An object's row is there before the object (`writing`), so that none is forgotten. While it is `writing` it may be
committed; a `retired` one never will be, and is deleted once no entry needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from semel.broker.metadata.database import Database
from semel.broker.metadata.tables import DISKLESS_ENTRIES, DISKLESS_LOGS, DISKLESS_OBJECTS, REMOTE_LOGS, REMOTE_TABLES
from semel.broker.tiers.rows import WholeLog, drop_segments
from semel.protocol.ids import TopicId, format_topic_id

_WRITING: Final = "writing"
_RETIRED: Final = "retired"
_ROWS_AT_ONCE: Final = 500
GARBAGE_MAX: Final = 1_000
"""So many objects one look for garbage returns at most."""

PartitionKey = tuple[TopicId, int]


class Entry(NamedTuple):
    """A run of batches that was committed together, from `base_offset` to before `end_offset`.

    object_key: "" where the batches are in `data`
    checksum: CRC-32C of the batches
    """

    base_offset: int
    end_offset: int
    object_key: str
    position: int
    size_bytes: int
    checksum: int
    data: bytes


class NewClaim(NamedTuple):
    """That of a partition's leader in an epoch.

    continues: whether it has the claim already, under an epoch before, and all that was committed: so nobody else may
        have claimed the partition in between
    """

    key: PartitionKey
    claim: str
    leader_epoch: int
    node_id: int
    continues: bool = False

    def columns(self) -> dict[str, Any]:
        """Return the values of its row, but for where the log ends."""
        return {
            **_columns_of(self.key),
            "claim": self.claim,
            "leader_epoch": self.leader_epoch,
            "node_id": self.node_id,
        }

    def may_follow(self, claim: str, leader_epoch: int) -> bool:
        """Say whether it may take the place of a claim."""
        return leader_epoch <= self.leader_epoch and (claim == self.claim or not self.continues)

    def bound(self) -> dict[str, Any]:
        """Return them as `_CLAIM` takes them."""
        return {f"new_{name}": value for name, value in self.columns().items()}


class Claimed(NamedTuple):
    """What there is of a partition that was claimed.

    end_offset: behind all that was ever committed
    is_in_store: whether there is a row of what the remote storage has of it
    """

    end_offset: int
    is_in_store: bool


class NewEntry(NamedTuple):
    """An entry to commit for the leader that has a claim."""

    key: PartitionKey
    claim: str
    entry: Entry


class Committed(NamedTuple):
    """What became of a commit.

    led: the partitions whose leaders had the claim: what was wanted of them is committed
    ends: of those among the others whose records the database has lost, the end of what it has
    """

    led: set[PartitionKey]
    ends: dict[PartitionKey, int]


class Log(NamedTuple):
    """What there is of a partition besides its segments.

    claim: the one that counts; "" where there is none
    end_offset: behind all that was ever committed
    """

    claim: str
    end_offset: int
    entries: list[Entry]


class Retired(NamedTuple):
    """An object that will never be committed by anybody any more, and since when."""

    key: str
    size_bytes: int
    since_ms: int


class ObjectGoneError(Exception):
    """An object was given up before it was committed: write another one."""


class DisklessRows(Database):
    """The rows. Use from one thread at a time. Each call raises `MetadataUnavailableError`."""

    def create(self) -> None:
        """Create the tables where they are missing."""
        with self._transaction() as connection:
            self._create_tables(connection, REMOTE_TABLES)

    # --- Leading ------------------------------------------------------------------------------------------------------

    def claim_all(self, wanted: Sequence[NewClaim]) -> dict[PartitionKey, Claimed]:
        """Let nobody but these leaders append to their partitions from now on. Returns those that nobody has claimed
        under a later epoch, nor at all since one that continues.
        """
        by_name = {(format_topic_id(one.key[0]), one.key[1]): one for one in wanted}
        found: dict[PartitionKey, Claimed] = {}
        columns = DISKLESS_LOGS.c.topic_id, DISKLESS_LOGS.c.partition
        with self._transaction() as connection:
            for names in _named_parts(sorted(by_name)):
                known = sa.select(DISKLESS_LOGS)
                known = known.where(sa.tuple_(*columns).in_(names)).order_by(*columns).with_for_update()
                rows = {(row.topic_id, row.partition): row for row in connection.execute(known)}
                ends = {name: int(row.end_offset) for name, row in rows.items()}
                if missing := [name for name in names if name not in rows]:
                    values = [{**by_name[name].columns(), "end_offset": 0} for name in missing]
                    # Not by `rowcount`: not every driver counts the rows of an INSERT.
                    made = self._insert(DISKLESS_LOGS).values(values).on_conflict_do_nothing().returning(*columns)
                    ends |= {(row.topic_id, row.partition): 0 for row in connection.execute(made)}
                claimed = [name for name, row in rows.items() if by_name[name].may_follow(row.claim, row.leader_epoch)]
                if claimed:
                    connection.execute(_CLAIM, [by_name[name].bound() for name in claimed])
                mine = {*claimed, *(name for name in ends if name not in rows)}
                there = sa.select(REMOTE_LOGS.c.topic_id, REMOTE_LOGS.c.partition).where(
                    sa.tuple_(REMOTE_LOGS.c.topic_id, REMOTE_LOGS.c.partition).in_(names)
                )
                in_store = {(row.topic_id, row.partition) for row in connection.execute(there)}
                found |= {by_name[name].key: Claimed(ends[name], name in in_store) for name in mine}
        return found

    def claim_copy(
        self,
        key: PartitionKey,
        claim: str,
        leader_epoch: int,
        node_id: int,
        end_offset: int,
        *,
        whole: WholeLog | None = None,
    ) -> int | None:
        """Let nobody but the leader of an epoch copy a log that is still on disks. None: a later epoch has a claim.

        whole: where all of the log is on the disk, what is there: the segments that others have copied are dropped, too
        Returns the offset to copy from: where this claim has come to already, or else `end_offset`. What others have
        copied is removed, because the log on the disks of the replicas counts, and may be another since; and so is what
        lies before `end_offset`.
        """
        values = {"claim": claim, "leader_epoch": leader_epoch, "node_id": node_id, "end_offset": end_offset}
        with self._transaction() as connection:
            known = connection.execute(
                sa.select(DISKLESS_LOGS).where(_is_of(DISKLESS_LOGS, key)).with_for_update()
            ).one_or_none()
            if known is None:
                insert = self._insert(DISKLESS_LOGS).values(**_columns_of(key), **values)
                made = insert.on_conflict_do_nothing().returning(DISKLESS_LOGS.c.claim)
                if connection.execute(made).one_or_none() is None:
                    return None
            else:
                if known.leader_epoch > leader_epoch:
                    return None
                if known.claim == claim and known.end_offset >= end_offset:
                    return int(known.end_offset)
                connection.execute(DISKLESS_LOGS.update().where(_is_of(DISKLESS_LOGS, key)).values(**values))
                connection.execute(DISKLESS_ENTRIES.delete().where(_is_of(DISKLESS_ENTRIES, key)))
            if whole is not None and (known is None or known.claim != claim):
                drop_segments(connection, key, whole)
            return end_offset

    def load(self, key: PartitionKey) -> Log:
        """Return the claim that counts, and the entries in order."""
        of_key = _columns_of(key)
        with self._transaction() as connection:
            rows = connection.execute(_ENTRIES_OF, of_key).all()
            head = connection.execute(_HEAD_OF, of_key).one_or_none()
        found = [_entry(row) for row in rows]
        return Log("", 0, found) if head is None else Log(head.claim, head.end_offset, found)

    def claim_of(self, key: PartitionKey) -> str:
        """Return the claim that counts; "" where there is none."""
        with self._transaction() as connection:
            return connection.execute(_CLAIM_OF, _columns_of(key)).scalar_one_or_none() or ""

    # --- Committing ---------------------------------------------------------------------------------------------------

    def begin_object(self, key: str, run: str, size_bytes: int, now_ms: int) -> None:
        """Note that an object is about to be written."""
        with self._transaction() as connection:
            connection.execute(
                self._insert(DISKLESS_OBJECTS)
                .values(object_key=key, run=run, size_bytes=size_bytes, state=_WRITING, changed_at_ms=now_ms)
                .on_conflict_do_nothing()
            )

    def commit(self, entries: Sequence[NewEntry]) -> Committed:
        """Commit entries of several partitions, at most one of each, where their leaders have the claim.

        Each follows what was committed before; where that is not there, the database was put back to an older state.
        It can be repeated with the same entries: where an answer was lost, they are there already.
        Raises `ObjectGoneError`.
        """
        try:
            return self._commit(entries)
        except sa.exc.IntegrityError:
            # One of them has an entry already where the next is to be: its rows are not as they are written.
            if len(entries) == 1:
                return Committed(set(), {entries[0].key: entries[0].entry.base_offset})
        found = Committed(set(), {})
        for one in entries:
            led, ends = self.commit([one])
            found.led.update(led)
            found.ends.update(ends)
        return found

    def _commit(self, entries: Sequence[NewEntry]) -> Committed:
        wanted = {one.key: one for one in entries}
        objects = {one.entry.object_key for one in entries if one.entry.object_key}
        led: set[PartitionKey] = set()
        ends: dict[PartitionKey, int] = {}
        new: list[NewEntry] = []
        with self._transaction() as connection:
            for object_key in sorted(objects):
                there = connection.execute(_OBJECT_STATE, {"object_key": object_key})
                if there.scalar_one_or_none() != _WRITING:
                    raise ObjectGoneError(object_key)
            for part in _parts(sorted(wanted)):
                names = {(format_topic_id(topic_id), partition): (topic_id, partition) for topic_id, partition in part}
                for topic_id, partition, claim, end_offset in connection.execute(_ENDS, {"names": list(names)}):
                    key = names[topic_id, partition]
                    one = wanted[key]
                    if claim != one.claim:
                        continue
                    if end_offset == one.entry.base_offset:
                        new.append(one)
                    elif end_offset < one.entry.end_offset:
                        ends[key] = end_offset
                        continue
                    led.add(key)
            if new:
                rows = [{**_columns_of(one.key), **one.entry._asdict()} for one in new]
                connection.execute(_NEW_ENTRIES, rows)
                moved = [
                    {"of": format_topic_id(one.key[0]), "number": one.key[1], "upto": one.entry.end_offset}
                    for one in new
                ]
                connection.execute(_MOVE_END, moved)
        return Committed(led, ends)

    # --- Letting go ---------------------------------------------------------------------------------------------------

    def trim(self, key: PartitionKey, before_offset: int) -> None:
        """Remove the entries that end at an offset or before it: their records are in segments by now, or deleted."""
        with self._transaction() as connection:
            connection.execute(_TRIM, {**_columns_of(key), "before_offset": before_offset})

    def runs(self) -> set[str]:
        """Return the runs of nodes that have objects which may still be committed."""
        query = sa.select(DISKLESS_OBJECTS.c.run).where(DISKLESS_OBJECTS.c.state == _WRITING).distinct()
        with self._transaction() as connection:
            return {row.run for row in connection.execute(query)}

    def retire_run(self, run: str, now_ms: int, *, but: Collection[str] = ()) -> None:
        """Let no object of a run be committed any more that is not already: those that are being written aside."""
        with self._transaction() as connection:
            connection.execute(
                DISKLESS_OBJECTS.update()
                .where(
                    DISKLESS_OBJECTS.c.run == run,
                    DISKLESS_OBJECTS.c.state == _WRITING,
                    DISKLESS_OBJECTS.c.object_key.not_in(list(but)),
                )
                .values(state=_RETIRED, changed_at_ms=now_ms)
            )

    def garbage(self, *, before_ms: int) -> list[Retired]:
        """Return the objects that were retired before a time, and that no entry needs, oldest first."""
        needed = sa.select(DISKLESS_ENTRIES.c.base_offset).where(
            DISKLESS_ENTRIES.c.object_key == DISKLESS_OBJECTS.c.object_key
        )
        query = sa.select(DISKLESS_OBJECTS).where(
            DISKLESS_OBJECTS.c.state == _RETIRED,
            DISKLESS_OBJECTS.c.changed_at_ms <= before_ms,
            ~needed.exists(),
        )
        with self._transaction() as connection:
            rows = connection.execute(query.order_by(DISKLESS_OBJECTS.c.changed_at_ms).limit(GARBAGE_MAX))
            return [Retired(row.object_key, row.size_bytes, row.changed_at_ms) for row in rows]

    def forget(self, keys: Sequence[str]) -> None:
        """Remove the rows of objects that are gone."""
        with self._transaction() as connection:
            for first in range(0, len(keys), _ROWS_AT_ONCE):
                part = list(keys[first : first + _ROWS_AT_ONCE])
                connection.execute(
                    DISKLESS_OBJECTS.delete().where(
                        DISKLESS_OBJECTS.c.object_key.in_(part), DISKLESS_OBJECTS.c.state == _RETIRED
                    )
                )

    def topic_ids(self) -> set[str]:
        """Return the topics, by the text of their ids, of which there is anything."""
        found: set[str] = set()
        with self._transaction() as connection:
            for table in (DISKLESS_LOGS, DISKLESS_ENTRIES):
                found |= {row.topic_id for row in connection.execute(sa.select(table.c.topic_id).distinct())}
        return found

    def forget_topic(self, topic_id: str) -> None:
        """Remove all entries of a topic that was deleted. Its claims go with them: nobody can commit any more."""
        with self._transaction() as connection:
            for table in (DISKLESS_LOGS, DISKLESS_ENTRIES):
                connection.execute(table.delete().where(table.c.topic_id == topic_id))

    def object_keys(self) -> set[str]:
        """Return the keys of all objects that are known, whatever their state."""
        with self._transaction() as connection:
            return {row.object_key for row in connection.execute(sa.select(DISKLESS_OBJECTS.c.object_key))}

    def _insert(self, table: sa.Table) -> Any:
        """Return an INSERT that can pass over what is there: both databases write it alike."""
        return sqlite.insert(table) if self._is_sqlite else postgresql.insert(table)


def _of(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return what says which partition a row is of, as `_columns_of` binds it."""
    return sa.and_(table.c.topic_id == sa.bindparam("topic_id"), table.c.partition == sa.bindparam("partition"))


# To build a statement costs as much as to run it, so those that each commit or each new leader needs are built once.
_ENTRIES_OF: Final = sa.select(DISKLESS_ENTRIES).where(_of(DISKLESS_ENTRIES)).order_by(DISKLESS_ENTRIES.c.base_offset)
_HEAD_OF: Final = sa.select(DISKLESS_LOGS).where(_of(DISKLESS_LOGS))
_CLAIM_OF: Final = sa.select(DISKLESS_LOGS.c.claim).where(_of(DISKLESS_LOGS))
_OBJECT_STATE: Final = (
    sa.select(DISKLESS_OBJECTS.c.state)
    .where(DISKLESS_OBJECTS.c.object_key == sa.bindparam("object_key"))
    .with_for_update(read=True)
)
_PLACE: Final = DISKLESS_LOGS.c.topic_id, DISKLESS_LOGS.c.partition
_ENDS: Final = (
    sa.select(*_PLACE, DISKLESS_LOGS.c.claim, DISKLESS_LOGS.c.end_offset)
    .where(sa.tuple_(*_PLACE).in_(sa.bindparam("names", expanding=True)))
    .order_by(*_PLACE)
    .with_for_update()
)
_NEW_ENTRIES: Final = sa.insert(DISKLESS_ENTRIES)
_TRIM: Final = DISKLESS_ENTRIES.delete().where(
    _of(DISKLESS_ENTRIES), DISKLESS_ENTRIES.c.end_offset <= sa.bindparam("before_offset")
)
_MOVE_END: Final = (
    DISKLESS_LOGS.update()
    .where(DISKLESS_LOGS.c.topic_id == sa.bindparam("of"), DISKLESS_LOGS.c.partition == sa.bindparam("number"))
    .values(end_offset=sa.bindparam("upto"))
)


_CLAIM: Final = (
    DISKLESS_LOGS.update()
    .where(
        DISKLESS_LOGS.c.topic_id == sa.bindparam("new_topic_id"),
        DISKLESS_LOGS.c.partition == sa.bindparam("new_partition"),
    )
    .values(
        claim=sa.bindparam("new_claim"),
        leader_epoch=sa.bindparam("new_leader_epoch"),
        node_id=sa.bindparam("new_node_id"),
    )
)


def _named_parts(names: Sequence[tuple[str, int]]) -> Iterator[Sequence[tuple[str, int]]]:
    for first in range(0, len(names), _ROWS_AT_ONCE):
        yield names[first : first + _ROWS_AT_ONCE]


def _parts(keys: Sequence[PartitionKey]) -> Iterator[Sequence[PartitionKey]]:
    for first in range(0, len(keys), _ROWS_AT_ONCE):
        yield keys[first : first + _ROWS_AT_ONCE]


def _columns_of(key: PartitionKey) -> dict[str, Any]:
    return {"topic_id": format_topic_id(key[0]), "partition": key[1]}


def _is_of(table: sa.Table, key: PartitionKey) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.topic_id == format_topic_id(key[0]), table.c.partition == key[1])


def _entry(row: sa.Row[Any]) -> Entry:
    return Entry(
        row.base_offset,
        row.end_offset,
        row.object_key,
        row.position,
        row.size_bytes,
        row.checksum,
        bytes(row.data),
    )
