"""The rows that say which segments are in the remote storage, in the metadata's database.

One row a partition has its `version`; each change of what the partition has there changes it, from the one that its
writer knew to the next (compare and set). So segments never overlap and never leave a gap, whichever node copies: of
two leaders, one of which does not know yet that it is none, one finds that it is late. What an object holds was
committed before, so it does not matter which of them it was.

A segment's row is there before its object (`copying`) and after it is wanted, so that no object is forgotten:
`deleting` until readers are done with it; `given_up` until no upload of it can be under way any more.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from semel.broker.metadata.database import Database
from semel.broker.metadata.tables import DISKLESS_LOGS, REMOTE_LOGS, REMOTE_SEGMENTS, REMOTE_TABLES
from semel.broker.tiers.remote_log import Piece, RemoteLog, RemoteSegment
from semel.protocol.errors import ErrorCode, FatalError, RetriableError
from semel.protocol.ids import TopicId, format_topic_id

_COPYING: Final = "copying"
_COPIED: Final = "copied"
_DELETING: Final = "deleting"
_GIVEN_UP: Final = "given_up"
_KEYS_AT_ONCE: Final = 500
GARBAGE_MAX: Final = 1_000
"""So many rows one look for garbage returns at most."""


class LateError(RetriableError):
    """Another node has changed what the partition has in the remote storage: look it up again."""

    def __init__(self, key: PartitionKey) -> None:
        super().__init__(
            f"partition {key[1]} of topic {format_topic_id(key[0])}: another node has changed what the remote storage "
            "has of it",
            ErrorCode.KAFKA_STORAGE_ERROR,
        )


PartitionKey = tuple[TopicId, int]


class Garbage(NamedTuple):
    """A segment whose object is to be deleted, and then its row."""

    topic_id: str
    partition: int
    segment_id: str
    key: str
    size_bytes: int
    since_ms: int
    """Since when it is not wanted."""
    is_given_up: bool
    """Whether it may still be being written."""


class RemoteRows(Database):
    """The rows. Use from one thread at a time. Each call raises `MetadataUnavailableError`."""

    def create(self) -> None:
        """Create the tables where they are missing."""
        with self._transaction() as connection:
            self._create_tables(connection, REMOTE_TABLES)

    def versions(self, keys: Collection[PartitionKey]) -> dict[PartitionKey, int]:
        """Return the version of each partition that has one."""
        wanted = {(format_topic_id(topic_id), partition): (topic_id, partition) for topic_id, partition in keys}
        found: dict[PartitionKey, int] = {}
        with self._transaction() as connection:
            for part in _parts(keys):
                for row in connection.execute(sa.select(REMOTE_LOGS).where(_is_one_of(REMOTE_LOGS, part))):
                    found[wanted[row.topic_id, row.partition]] = row.version
        return found

    def load(self, key: PartitionKey) -> RemoteLog:
        """Return what the remote storage has of a partition."""
        segments = (
            sa.select(REMOTE_SEGMENTS)
            .where(_is_of(REMOTE_SEGMENTS, key), REMOTE_SEGMENTS.c.state == _COPIED)
            .order_by(REMOTE_SEGMENTS.c.start_offset)
        )
        with self._transaction() as connection:
            head = connection.execute(sa.select(REMOTE_LOGS).where(_is_of(REMOTE_LOGS, key))).one_or_none()
            rows = connection.execute(segments).all()
        if head is None:
            return RemoteLog()
        return RemoteLog.of(head.version, head.start_offset, head.end_offset, [_segment(row) for row in rows])

    def begin_copy(self, key: PartitionKey, segment: RemoteSegment, now_ms: int) -> None:
        """Note that an object is about to be written."""
        with self._transaction() as connection:
            connection.execute(REMOTE_SEGMENTS.insert().values(**_row(key, segment, _COPYING, now_ms)))

    def finish_copy(
        self, key: PartitionKey, segment: RemoteSegment, known: RemoteLog, *, log_start_offset: int, now_ms: int
    ) -> RemoteLog:
        """Note that a segment is there, behind those that are `known`, and return what there is now.

        log_start_offset: of the log, which counts for the first segment
        Raises `LateError`, also where the row of the copy is gone.
        """
        start_offset = known.start_offset if known.version else log_start_offset
        head = known.with_segment(replace(segment, copied_at_ms=now_ms), start_offset=start_offset)
        with self._transaction() as connection:
            self._move(connection, key, known, head)
            done = connection.execute(
                REMOTE_SEGMENTS.update()
                .where(
                    _is_of(REMOTE_SEGMENTS, key),
                    REMOTE_SEGMENTS.c.segment_id == segment.segment_id,
                    REMOTE_SEGMENTS.c.state == _COPYING,
                )
                .values(**_row(key, segment, _COPIED, now_ms))
            )
            if done.rowcount != 1:
                raise LateError(key)
        return head

    def replace_copies(
        self,
        key: PartitionKey,
        segments: Sequence[RemoteSegment],
        known: RemoteLog,
        *,
        first: int,
        count: int,
        claim: str,
        now_ms: int,
    ) -> RemoteLog:
        """Note that segments are there in place of `count` of those that are `known`, from the index `first` on, which
        are to be deleted.

        claim: that of the leader whose log they are. Segments of two replicas must not meet: what one of them has
            compacted away deletes records that the other one still has
        Returns what there is now. Raises `LateError`, also where another claim counts, or the row of a copy is gone.
        """
        made = [replace(one, copied_at_ms=now_ms) for one in segments]
        head = known.with_replaced(first, count, made)
        gone = [one.segment_id for one in known.segments[first : first + count]]
        with self._transaction() as connection:
            claims = sa.select(DISKLESS_LOGS.c.claim).where(_is_of(DISKLESS_LOGS, key)).with_for_update()
            if connection.execute(claims).scalar_one_or_none() != claim:
                raise LateError(key)
            self._move(connection, key, known, head)
            for ids, before, after in (
                ([one.segment_id for one in made], _COPYING, _COPIED),
                (gone, _COPIED, _DELETING),
            ):
                for segment_id in ids:
                    done = connection.execute(
                        REMOTE_SEGMENTS.update()
                        .where(
                            _is_of(REMOTE_SEGMENTS, key),
                            REMOTE_SEGMENTS.c.segment_id == segment_id,
                            REMOTE_SEGMENTS.c.state == before,
                        )
                        .values(state=after, changed_at_ms=now_ms)
                    )
                    if done.rowcount != 1:
                        raise LateError(key)
            for one in made:
                connection.execute(
                    REMOTE_SEGMENTS.update()
                    .where(_is_of(REMOTE_SEGMENTS, key), REMOTE_SEGMENTS.c.segment_id == one.segment_id)
                    .values(**_row(key, one, _COPIED, now_ms))
                )
        return head

    def move_start(
        self, key: PartitionKey, known: RemoteLog, start_offset: int, now_ms: int, *, keeps_last: bool = False
    ) -> RemoteLog:
        """Note that the log begins at an offset now, and that the segments before it are to be deleted.

        keeps_last: see `RemoteLog.from_start`
        Returns what there is now. Raises `LateError`.
        """
        head = known.from_start(start_offset, keeps_last=keeps_last)
        kept = [one.segment_id for one in head.segments if one.end_offset <= start_offset]
        with self._transaction() as connection:
            self._move(connection, key, known, head)
            connection.execute(
                REMOTE_SEGMENTS.update()
                .where(
                    _is_of(REMOTE_SEGMENTS, key),
                    REMOTE_SEGMENTS.c.state == _COPIED,
                    REMOTE_SEGMENTS.c.end_offset <= start_offset,
                    REMOTE_SEGMENTS.c.segment_id.not_in(kept),
                )
                .values(state=_DELETING, changed_at_ms=now_ms)
            )
        return head

    def give_up_copies(self, keys: Collection[PartitionKey], *, busy: Collection[str], now_ms: int) -> None:
        """Have unfinished copies of these partitions deleted, but for those that are `busy` here.

        Who tries to finish one of them finds that it is given up.
        """
        with self._transaction() as connection:
            for part in _parts(keys):
                where = sa.and_(_is_one_of(REMOTE_SEGMENTS, part), REMOTE_SEGMENTS.c.state == _COPYING)
                for row in connection.execute(sa.select(REMOTE_SEGMENTS).where(where).limit(GARBAGE_MAX)).all():
                    if row.segment_id not in busy:
                        connection.execute(
                            REMOTE_SEGMENTS.update()
                            .where(*_is_row(row), REMOTE_SEGMENTS.c.state == _COPYING)
                            .values(state=_GIVEN_UP, changed_at_ms=now_ms)
                        )

    def garbage(self, keys: Collection[PartitionKey], *, given_up_before_ms: int) -> list[Garbage]:
        """Return the segments of these partitions that were given up before a time."""
        found: list[Garbage] = []
        with self._transaction() as connection:
            for part in _parts(keys):
                query = sa.select(REMOTE_SEGMENTS).where(
                    _is_one_of(REMOTE_SEGMENTS, part),
                    REMOTE_SEGMENTS.c.state.in_((_DELETING, _GIVEN_UP)),
                    REMOTE_SEGMENTS.c.changed_at_ms <= given_up_before_ms,
                )
                found += [_garbage(row) for row in connection.execute(query.limit(GARBAGE_MAX)).all()]
        return found

    def retire_topic(self, topic_id: str, now_ms: int) -> list[Garbage]:
        """Give up all segments of a topic that was deleted, and return them, whatever their state."""
        with self._transaction() as connection:
            for before, after in ((_COPYING, _GIVEN_UP), (_COPIED, _DELETING)):
                connection.execute(
                    REMOTE_SEGMENTS.update()
                    .where(REMOTE_SEGMENTS.c.topic_id == topic_id, REMOTE_SEGMENTS.c.state == before)
                    .values(state=after, changed_at_ms=now_ms)
                )
            query = sa.select(REMOTE_SEGMENTS).where(REMOTE_SEGMENTS.c.topic_id == topic_id)
            return [_garbage(row) for row in connection.execute(query.limit(GARBAGE_MAX)).all()]

    def object_keys(self) -> set[str]:
        """Return the keys of all objects that are known, whatever their state."""
        with self._transaction() as connection:
            return {row.object_key for row in connection.execute(sa.select(REMOTE_SEGMENTS.c.object_key))}

    def topic_ids(self) -> set[str]:
        """Return the topics, by the text of their ids, of which there is anything."""
        with self._transaction() as connection:
            found = {row.topic_id for row in connection.execute(sa.select(REMOTE_SEGMENTS.c.topic_id).distinct())}
            return found | {row.topic_id for row in connection.execute(sa.select(REMOTE_LOGS.c.topic_id).distinct())}

    def forget(self, garbage: Sequence[Garbage]) -> None:
        """Remove the rows of objects that are gone."""
        with self._transaction() as connection:
            for one in garbage:
                connection.execute(
                    REMOTE_SEGMENTS.delete().where(*_is_row(one), REMOTE_SEGMENTS.c.state.in_((_DELETING, _GIVEN_UP)))
                )

    def forget_topic(self, topic_id: str) -> None:
        """Remove what is left of a topic that was deleted and has no segments any more."""
        with self._transaction() as connection:
            connection.execute(REMOTE_LOGS.delete().where(REMOTE_LOGS.c.topic_id == topic_id))

    @staticmethod
    def _move(connection: sa.Connection, key: PartitionKey, known: RemoteLog, head: RemoteLog) -> None:
        values = {"version": head.version, "start_offset": head.start_offset, "end_offset": head.end_offset}
        if known.version:
            moved = connection.execute(
                REMOTE_LOGS.update()
                .where(_is_of(REMOTE_LOGS, key), REMOTE_LOGS.c.version == known.version)
                .values(**values)
            )
            if moved.rowcount != 1:
                raise LateError(key)
            return
        try:
            with connection.begin_nested():
                connection.execute(REMOTE_LOGS.insert().values(**_columns_of(key), **values))
        except sa.exc.IntegrityError:
            raise LateError(key) from None


class WholeLog(NamedTuple):
    """A log of which all is on a leader's disk, at a time."""

    start_offset: int
    end_offset: int
    now_ms: int


def drop_segments(connection: sa.Connection, key: PartitionKey, whole: WholeLog) -> None:
    """Have all segments of a partition deleted, of all leaders, within a transaction of the caller.

    Where it begins by the word of a leader before counts if the log goes so far: otherwise that one had more, which is
    lost, and other records will be at these offsets.
    """
    starts = sa.select(REMOTE_LOGS.c.start_offset).where(_is_of(REMOTE_LOGS, key)).with_for_update()
    noted = connection.execute(starts).scalar_one_or_none()
    if noted is None:
        return  # nothing was ever copied
    start = noted if whole.start_offset <= noted <= whole.end_offset else whole.start_offset
    values = {"version": REMOTE_LOGS.c.version + 1, "start_offset": start, "end_offset": 0}
    connection.execute(REMOTE_LOGS.update().where(_is_of(REMOTE_LOGS, key)).values(**values))
    now_ms = whole.now_ms
    connection.execute(
        REMOTE_SEGMENTS.update()
        .where(_is_of(REMOTE_SEGMENTS, key), REMOTE_SEGMENTS.c.state == _COPIED)
        .values(state=_DELETING, changed_at_ms=now_ms)
    )


def _garbage(row: sa.Row[Any]) -> Garbage:
    return Garbage(
        row.topic_id,
        row.partition,
        row.segment_id,
        row.object_key,
        row.size_bytes,
        row.changed_at_ms,
        row.state == _GIVEN_UP,
    )


def _parts(keys: Collection[PartitionKey]) -> Iterator[list[PartitionKey]]:
    """Yield the keys, as many together as one statement may name."""
    listed = list(keys)
    for first in range(0, len(listed), _KEYS_AT_ONCE):
        yield listed[first : first + _KEYS_AT_ONCE]


def _is_one_of(table: sa.Table, keys: Collection[PartitionKey]) -> sa.ColumnElement[bool]:
    names = [(format_topic_id(topic_id), partition) for topic_id, partition in keys]
    return sa.tuple_(table.c.topic_id, table.c.partition).in_(names)


def _is_row(row: Garbage | sa.Row[Any]) -> list[sa.ColumnElement[bool]]:
    return [
        REMOTE_SEGMENTS.c.topic_id == row.topic_id,
        REMOTE_SEGMENTS.c.partition == row.partition,
        REMOTE_SEGMENTS.c.segment_id == row.segment_id,
    ]


def _columns_of(key: PartitionKey) -> dict[str, Any]:
    return {"topic_id": format_topic_id(key[0]), "partition": key[1]}


def _is_of(table: sa.Table, key: PartitionKey) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.topic_id == format_topic_id(key[0]), table.c.partition == key[1])


_PIECES: Final = ("index", "aborted", "producers")


def _row(key: PartitionKey, segment: RemoteSegment, state: str, now_ms: int) -> dict[str, Any]:
    details = {
        "epochs": [list(one) for one in segment.epochs],
        **{name: list(getattr(segment, name)) for name in _PIECES},
    }
    return {
        **_columns_of(key),
        "segment_id": segment.segment_id,
        "state": state,
        "object_key": segment.key,
        "base_offset": segment.base_offset,
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "size_bytes": segment.size_bytes,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "leader_epoch": segment.leader_epoch,
        "node_id": segment.node_id,
        "changed_at_ms": now_ms,
        "details": json.dumps(details, separators=(",", ":")),
    }


def _segment(row: sa.Row[Any]) -> RemoteSegment:
    try:
        details = json.loads(row.details)
        return RemoteSegment(
            row.segment_id,
            row.object_key,
            row.base_offset,
            row.start_offset,
            row.end_offset,
            row.size_bytes,
            row.max_timestamp_ms,
            row.changed_at_ms,
            row.leader_epoch,
            row.node_id,
            tuple((int(epoch), int(begins)) for epoch, begins in details["epochs"]),
            *(Piece(*map(int, details[name])) for name in _PIECES),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FatalError(
            f"the row of the remote segment {row.object_key} in the metadata's database can't be read: {error}",
            ErrorCode.KAFKA_STORAGE_ERROR,
        ) from error
