"""The table of offsets: how far the rows of a database have come in each partition, and who may continue (E3, O4).

A row belongs to the instance that claimed it last: a claim raises its `epoch`. What is written with an older epoch,
or does not begin where the row says, is refused by one UPDATE, which also locks the row until its transaction ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import mysql

from semel.protocol.api.group_offsets import GroupMetadata
from semel.protocol.errors import AbortTransactionError, ErrorCode, FatalError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.sql.database import Database

OFFSETS_TABLE: Final = "semel_offsets"
NAME_CHARS_MAX: Final = 249
"""Of a topic's name, as Kafka has it; a group's may be as long here. Together they fit every database's index."""


def _name(length: int) -> sa.types.TypeEngine[str]:
    """Text for keys: compared byte by byte, which in MySQL takes a word."""
    text = sa.String(length)
    return text.with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """What the database knows of a partition.

    position:   the offset of the next record to write.
    epoch:      how often the row was claimed.
    generation, member_id: the claimant's place in its group.
    """

    position: int
    epoch: int
    generation: int
    member_id: str


@dataclass(frozen=True, slots=True)
class Step:
    """From where to where a transaction brings a partition, under which claim."""

    epoch: int
    position: int
    next_position: int


class OffsetsTable:
    """The table of one group's offsets."""

    def __init__(self, group: str, name: str = OFFSETS_TABLE, schema: str | None = None) -> None:
        if len(group) > NAME_CHARS_MAX:
            raise UsageError(f"option group has at most {NAME_CHARS_MAX} characters here, not {len(group)}")
        self.group = group
        self.table = sa.Table(
            name,
            sa.MetaData(),
            sa.Column("consumer_group", _name(NAME_CHARS_MAX), primary_key=True),
            sa.Column("topic", _name(NAME_CHARS_MAX), primary_key=True),
            sa.Column("partition_number", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("position", sa.BigInteger, nullable=False),
            sa.Column("epoch", sa.BigInteger, nullable=False),
            sa.Column("generation", sa.Integer, nullable=False),
            sa.Column("member_id", sa.String(512), nullable=False),
            sa.Column("updated_at", sa.DateTime, nullable=False),
            schema=schema,
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        )

    def check(self, database: Database, connection: sa.Connection) -> None:
        """Raise `UsageError` where the table is not there, or is another one."""
        check_columns(connection, self.table, "call sink.create_tables() once, or sink.ddl() for your own migrations")
        database.require_transactions(connection, self.table)

    def read(self, connection: sa.Connection, tp: TopicPartition) -> OffsetRow | None:
        """Return the row of a partition; None where there is none."""
        columns = self.table.c
        found = connection.execute(
            sa.select(columns.position, columns.epoch, columns.generation, columns.member_id).where(self._is(tp))
        ).one_or_none()
        return None if found is None else OffsetRow(*found)

    def claim(
        self,
        connection: sa.Connection,
        tp: TopicPartition,
        seen: OffsetRow | None,
        first_position: int,
        member: GroupMetadata,
    ) -> OffsetRow | None:
        """Take a partition over from its owner when `seen` was read; None where another was quicker.

        The position is read once more, under the lock: until now its former owner could write.
        `first_position` is where to begin with a partition that has no row.
        """
        values = {
            "generation": member.generation_id,
            "member_id": member.member_id[:512],
            "updated_at": _now(),
        }
        if seen is None:
            try:
                connection.execute(
                    self.table.insert().values(
                        consumer_group=self.group,
                        topic=tp.topic,
                        partition_number=tp.partition,
                        position=first_position,
                        epoch=1,
                        **values,
                    )
                )
            except exc.IntegrityError:
                return None
            return OffsetRow(first_position, 1, member.generation_id, member.member_id)
        columns = self.table.c
        taken = connection.execute(
            self.table.update().where(self._is(tp), columns.epoch == seen.epoch).values(epoch=seen.epoch + 1, **values)
        )
        return self.read(connection, tp) if taken.rowcount == 1 else None

    def advance(self, connection: sa.Connection, steps: Mapping[TopicPartition, Step]) -> bool:
        """Move positions on, and lock their rows until the transaction ends. To come first in the transaction.

        Returns False where all of it has happened before: an answer to a commit was lost, and it is not to be done
        again. Raises `AbortTransactionError` (ILLEGAL_GENERATION) where another member has claimed a partition since,
        and `UsageError` where the batch does not begin where the database stands.
        """
        columns = self.table.c
        done_before: list[TopicPartition] = []
        for tp in sorted(steps):  # in one order, so that no two wait for each other
            step = steps[tp]
            moved = connection.execute(
                self.table.update()
                .where(self._is(tp), columns.epoch == step.epoch, columns.position == step.position)
                .values(position=step.next_position, updated_at=_now())
            )
            if moved.rowcount != 1:
                self._judge(tp, step, self.read(connection, tp))
                done_before.append(tp)
        if not done_before:
            return True
        if len(done_before) < len(steps):
            raise FatalError(
                f"{', '.join(map(str, done_before))} of this batch are in {self.table.fullname} and others are not, "
                "though both are one transaction: somebody else has changed the table"
            )
        return False

    def _judge(self, tp: TopicPartition, step: Step, row: OffsetRow | None) -> None:
        """Return where the step was taken before, raise otherwise."""
        where = f"{tp} in {self.table.fullname}"
        if row is None:
            raise FatalError(
                f"the row of {where} is gone: somebody has deleted it while group {self.group!r} was at work. Without "
                "it, a restart begins again and writes every record again"
            )
        if row.epoch != step.epoch:
            raise AbortTransactionError(
                f"nothing was written: {where} was claimed by member {row.member_id!r} in generation {row.generation} "
                "since; poll to get the partitions that are yours now",
                ErrorCode.ILLEGAL_GENERATION,
            )
        if row.position != step.next_position:
            raise UsageError(
                f"nothing was written: {where} stands at {row.position}, and this batch begins at {step.position}; "
                "write batches in the order in which they were returned, and leave none out"
            )

    def _is(self, tp: TopicPartition) -> sa.ColumnElement[bool]:
        columns = self.table.c
        return sa.and_(
            columns.consumer_group == self.group, columns.topic == tp.topic, columns.partition_number == tp.partition
        )


def check_columns(connection: sa.Connection, table: sa.Table, advice: str) -> None:
    """Raise `UsageError` unless a table of Semel's own is there with all of its columns."""
    inspector = sa.inspect(connection)
    if not inspector.has_table(table.name, schema=table.schema):
        raise UsageError(f"there is no table {table.fullname!r} in {_where(connection)}: {advice}")
    there = {column["name"] for column in inspector.get_columns(table.name, schema=table.schema)}
    missing = [column.name for column in table.columns if column.name not in there]
    if missing:
        raise UsageError(
            f"table {table.fullname!r} in {_where(connection)} lacks {', '.join(missing)}: it is not one of Semel's, "
            "or of another version; name another table"
        )


def _where(connection: sa.Connection) -> str:
    return connection.engine.url.render_as_string(hide_password=True)


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None, microsecond=0)
