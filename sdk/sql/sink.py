"""The sink: rows and offsets in one transaction of a database, so that each record takes effect in it once (E3)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FatalError,
    RetriableError,
    SemelError,
    UsageError,
)
from semel.protocol.ids import TopicPartition
from semel.sdk.consumer.api import Consumer
from semel.sdk.consumer.batch import Batch
from semel.sdk.pipeline.dead_letters import check_dead_letter_topic
from semel.sdk.pipeline.stopping import stopped_by_signals
from semel.sdk.sql.database import IDLE_TIMEOUT_MS, Database, Verdict, first_line, to_semel_error
from semel.sdk.sql.dead_letters import DeadLetters
from semel.sdk.sql.offsets import OFFSETS_TABLE, OffsetsTable, Step
from semel.sdk.sql.outbox import create_tables, ddl
from semel.sdk.sql.partition_claims import PartitionClaims
from semel.sdk.sql.sink_options import OPTIONS_ELSEWHERE, SinkOptions, consumer_options
from semel.sdk.sql.sink_run import SinkRun
from semel.sdk.sql.sink_state import SinkState
from semel.sdk.sql.target import MappingFunction, TargetTable
from semel.sdk.telemetry import tracing
from semel.sdk.transport.arguments import check_seconds, check_topics
from semel.sdk.transport.border import context_edge, ends_tracebacks
from semel.sdk.transport.options import NotPicklable, check_bool, check_int, check_text, checked_names, parse_bootstrap

_log = logging.getLogger("semel.sql")

POLL_S: Final = 0.1
"""How long a poll waits at most while something else may become due."""
BATCH_RECORDS: Final = 5_000
ASK_S: Final = 30.0
"""How long the loop of a user's own waits to learn whether a commit took effect."""


@ends_tracebacks
class Sink(NotPicklable):
    """Writes the records of topics into a database, each exactly once, as a member of a group.

    To write a table:

        def to_row(record):
            order = json.loads(record.value)
            return {"id": order["id"], "amount": order["amount"]}

        with semel.sql.Sink("localhost:9094", "postgresql://shop@/shop", group="orders-to-shop", topics=["orders"],
                            table="orders", mapping=to_row, mode="upsert", dead_letter_topic="orders-dead") as sink:
            sink.run()

    With SQL of your own, whatever it does:

        with semel.sql.Sink("localhost:9094", "sqlite:///shop.db", group="totals", topics=["orders"]) as sink:
            for batch in sink.batches():
                with sink.transaction(batch) as connection:
                    connection.execute(...)

    bootstrap:         the address of a node, or several: its gRPC port (9094) or its Kafka port (9092); None:
                       what the environment variable SEMEL_BOOTSTRAP says, else localhost:9094
    database:          a URL, or a SQLAlchemy `Engine`
    group, topics:     what to read, shared with the group's other sinks
    table, schema:     what to write to
    mapping:           record -> a row (dict), several, `Delete(key)`, or None for no row
    mode:              "append" inserts; "upsert" updates the row of the same key where there is one
    key:               the columns of a unique constraint, for "upsert"; None: the primary key
    columns:           what the mapping gives, {"id": int, ...}: checked against the table at the start
    dead_letter_topic: where records go that can't become rows, with the reason in their headers; None: `run` raises
    offset_reset:      where to begin with a partition that the database does not know: "earliest" (default), "latest",
                       or "error". The group's offsets are never read
    rows_max, bytes_max, linger_ms: a transaction is written when it has so many rows or bytes, or after so long.
                       Twice as much is buffered, then the sink stops reading until the database has caught up
    retry_timeout_ms:  for how long to retry when the database does not answer
    idle_timeout_ms:   after how long without a statement PostgreSQL and MariaDB end a transaction, so that a frozen
                       process does not hold its locks for ever; longer than what you do between statements
    offsets_table, dead_letters_table: the sink's own tables, beside `table`; see `create_tables`
    consumer:          further options of the `Consumer`, such as {"instance_id": "sink-1", "max_wait_ms": 100}
    """

    _in_place_of_pickling = "it has connections; make one in each process, where it is used"
    _options_elsewhere = OPTIONS_ELSEWHERE

    @checked_names
    def __init__(
        self,
        bootstrap: str | Sequence[str] | None,
        database: str | sa.URL | Engine,
        *,
        group: str,
        topics: Iterable[str],
        table: str | None = None,
        schema: str | None = None,
        mapping: MappingFunction | None = None,
        mode: str = "append",
        key: Sequence[str] | None = None,
        columns: Mapping[str, type[Any]] | None = None,
        dead_letter_topic: str | None = None,
        offset_reset: str = "earliest",
        rows_max: int = 5_000,
        bytes_max: int = 8 << 20,
        linger_ms: int = 200,
        retry_timeout_ms: int = 300_000,
        idle_timeout_ms: int = IDLE_TIMEOUT_MS,
        offsets_table: str = OFFSETS_TABLE,
        dead_letters_table: str = "semel_dead_letters",
        consumer: Mapping[str, Any] | None = None,
    ) -> None:
        """Check the options; nothing connects yet. Raises `UsageError`."""
        options = SinkOptions.checked(
            table=table,
            schema=schema,
            mapping=mapping,
            mode=mode,
            key=key,
            columns=columns,
            rows_max=rows_max,
            bytes_max=bytes_max,
            linger_ms=linger_ms,
            retry_timeout_ms=retry_timeout_ms,
            offset_reset=offset_reset,
        )
        further = consumer_options(consumer)
        topics = check_topics(topics)
        target = Database(database, check_int("idle_timeout_ms", idle_timeout_ms, 1_000))
        offsets = OffsetsTable(check_text("group", group), check_text("offsets_table", offsets_table), schema)
        self._bootstrap = str(parse_bootstrap(bootstrap))
        dead_letters = None
        if dead_letter_topic is not None:
            if mapping is None:
                raise UsageError("dead_letter_topic is for run(): give table and mapping, too")
            dead_letter_topic = check_dead_letter_topic(dead_letter_topic, topics)
            dead_letters = DeadLetters(
                self._bootstrap,
                target,
                check_text("dead_letters_table", dead_letters_table),
                schema,
                dead_letter_topic,
                group,
                retry_timeout_ms,
            )
        self._running: SinkRun | None = None
        claims = PartitionClaims(target, offsets, offset_reset, options.retry_timeout_s, self._before_going)
        # Where its own lookup begins does not matter, the database decides: but it must not fail for "error".
        reset = "latest" if offset_reset == "latest" else "earliest"
        reading = Consumer(bootstrap, group=group, topics=topics, listener=claims, offset_reset=reset, **further)
        claims.consumer = reading
        self._state = SinkState(options, target, offsets, dead_letters, claims, reading)
        self._target: TargetTable | None = None
        self._entered = False
        self._closed = False

    # --- Tables -------------------------------------------------------------------------------------------------------

    def create_tables(self) -> None:
        """Create the sink's own tables where they are missing: offsets, and dead letters if it has a topic for them."""
        create_tables(self._state.database, self._tables)

    def ddl(self) -> str:
        """Return the statements that create the sink's own tables, for migrations."""
        return ddl(self._state.database, self._tables)

    @property
    def _tables(self) -> tuple[sa.Table, ...]:
        state = self._state
        return (state.offsets.table, *(() if state.dead_letters is None else state.dead_letters.table.tables))

    # --- Your own SQL -------------------------------------------------------------------------------------------------

    def batches(self, max_records: int = BATCH_RECORDS, timeout_s: float | None = None) -> Iterator[Batch]:
        """Yield batch after batch; ends after `stop`, or when none comes for `timeout_s` seconds (None: never).

        Raises what `Consumer.batches` raises, `RetriableError` when the database could not be asked for positions
        within retry_timeout_ms, and `FatalError` where it and the topic do not fit together.
        """
        for batch in polls(self, max_records, timeout_s):
            if batch is not None:
                yield batch

    def poll(self, timeout_s: float, max_records: int = BATCH_RECORDS) -> Batch | None:
        """Return the next records, or None. Also where partitions come and go, and are claimed in the database."""
        self._check_usable()
        return self._state.poll(timeout_s, max_records)

    @context_edge
    def transaction(self, batch: Batch) -> Iterator[sa.Connection]:
        """Give a connection in a transaction that holds the offsets of `batch`: what is executed commits with them.

        The block's end commits, an exception rolls back, and the records are returned again. Raises
        `AbortTransactionError` when nothing took effect: another member has the partitions, or the database gave up on
        the transaction (deadlock, restart). Raises `RetriableError` when the commit was not answered and the database
        could not be asked. After either, continue with the loop: the records are returned
        again if, and only if, they are not in the database.
        """
        self._check_usable()
        steps = self._take_steps(batch)
        state = self._state
        span = state.span(batch)
        is_committing = False
        try:
            with (
                tracing.attached(None if span is None else tracing.context_with(span)),
                state.database.begin() as connection,
            ):
                if not state.offsets.advance(connection, steps):
                    raise FatalError(f"{batch!r} is in the database already, and nobody here has written it")
                yield connection
                is_committing = True
        except BaseException as error:
            if span is not None:
                tracing.end_span(span, error)
            self._settle(batch, steps, error, is_committing=is_committing)
        else:
            if span is not None:
                tracing.end_span(span)
            state.wrote(steps, len(batch))

    def _take_steps(self, batch: Batch) -> dict[TopicPartition, Step]:
        """Return what writing a batch does to the positions. Raises where it may not be written any more."""
        steps = self._state.steps.pop(batch, None) if isinstance(batch, Batch) else None
        if steps is None:
            raise UsageError(
                "transaction() takes a batch that this sink returned, once: for batch in sink.batches(): ..."
            )
        if not all(self._state.claims.is_ours(tp, step) for tp, step in steps.items()):
            self._give_back(batch, steps)
            raise AbortTransactionError(
                f"nothing was written: partitions of {batch!r} have gone to another member, or were claimed again; go "
                "on with the next batch",
                ErrorCode.ILLEGAL_GENERATION,
            )
        batch.begin()
        return steps

    def _settle(
        self, batch: Batch, steps: Mapping[TopicPartition, Step], error: BaseException, *, is_committing: bool
    ) -> None:
        """A transaction has raised: find out what came of it, and raise what the caller is to know."""
        state = self._state
        is_transient = isinstance(error, Exception) and state.database.verdict(error) is Verdict.TRANSIENT
        if is_committing and is_transient:
            try:
                has_committed = state.database.retried(
                    lambda: self._has_committed(steps),
                    timeout_s=min(state.options.retry_timeout_s, ASK_S),
                    is_over=lambda: False,
                    on_retry=state.note_retry,
                )
            except SemelError as unknown:
                self._give_back(batch, steps)
                is_moved = isinstance(unknown, AbortTransactionError)
                reason = "another member has claimed its partitions since" if is_moved else unknown.message
                raise RetriableError(
                    f"whether the transaction committed is not known: {reason}. Stay in the loop: its records are "
                    "read again, here or elsewhere, if and only if they are not in the database"
                ) from error
            if has_committed:
                state.wrote(steps, len(batch))
                return
        self._give_back(batch, steps)
        if is_transient:
            raise AbortTransactionError(
                f"nothing was written, and the records will be read again: {first_line(error)}",
                ErrorCode.TRANSACTION_ABORTABLE,
            ) from error
        raise error

    def _has_committed(self, steps: Mapping[TopicPartition, Step]) -> bool:
        """Ask under the rows' locks, so that a commit that is still under way has ended."""
        with self._state.database.engine.connect() as connection:
            # A run that can take the steps now has not taken them before; the end of the connection rolls them back.
            return not self._state.offsets.advance(connection, steps)

    def _give_back(self, batch: Batch, steps: Mapping[TopicPartition, Step]) -> None:
        """The database says where reading continues, for this batch and for later ones of its partitions."""
        batch.rewind()
        self._state.refused(steps)

    # --- A table ------------------------------------------------------------------------------------------------------

    def run(self, idle_timeout_s: float | None = None, *, handle_signals: bool = True) -> None:
        """Write the table until `stop`, SIGTERM or Ctrl-C; or, with `idle_timeout_s`, until nothing came for so long.

        handle_signals: stop for SIGTERM and SIGINT, where this is the main thread and they have no other handler

        Where it is stopped, the transaction under way is finished and committed, and this returns. While no node
        answers it waits, with a warning each few seconds. Raises `FatalError` for a record that can't become a row,
        where there is no dead_letter_topic, and for what repeating does not help; `RetriableError` when
        retry_timeout_ms was not enough; `UnreachableError` where idle_timeout_s was over before any node had answered;
        `FencedError` when another instance has this static member's place. What was written is written once, whatever
        is raised.
        """
        check_seconds("idle_timeout_s", idle_timeout_s)
        self._check_usable()
        if self._target is None:
            raise UsageError(
                "run() writes a table: give table and mapping, and use the sink in a with-block; for SQL of your own, "
                "loop over sink.batches()"
            )
        mapping = self._state.options.mapping
        assert mapping is not None
        with stopped_by_signals(lambda _: self.stop(), is_wanted=check_bool("handle_signals", handle_signals)):
            self._running = SinkRun(self._state, self._target, mapping)
            try:
                self._running.run(idle_timeout_s)
            finally:
                current, self._running = self._running, None
                current.close()

    @property
    def is_stopped(self) -> bool:
        return self._state.is_stopped

    def stop(self) -> None:
        """Let `run`, or `batches`, end after the transaction under way. From any thread, or a signal handler.

        What was read and is not written is read again by the next run.
        """
        self._state.is_stopped = True

    def statistics(self) -> dict[str, int]:
        """Return what was done, and what is buffered.

        records, rows, transactions; dead_letters: records put there; dead_letters_set_aside: those of other groups
        that this sink was to relay, and the node refused (the table's column `refused` says why); skipped: records
        mapped to nothing; retries: of the database; refused: transactions that came to nothing; claims: partitions
        taken over; buffered_records and buffered_bytes: read, and not written yet.
        """
        state = self._state
        records, size = (0, 0) if self._running is None else self._running.buffered()
        return {
            **state.counts,
            "dead_letters_set_aside": 0 if state.dead_letters is None else state.dead_letters.set_aside,
            "claims": state.claims.claims,
            "buffered_records": records,
            "buffered_bytes": size,
        }

    def _before_going(self, going: frozenset[TopicPartition]) -> None:
        if self._running is not None:
            self._running.let_go(going)

    # --- Life ---------------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError("this Sink is closed; make a new one")
        if not self._entered:
            raise UsageError("use the sink in a with-block: with semel.sql.Sink(...) as sink: ...")

    def _open(self) -> None:
        """Look at everything once, so that what is wrong is told before anything is read."""
        options, letters = self._state.options, self._state.dead_letters
        database, offsets = self._state.database, self._state.offsets
        try:
            with database.begin() as connection:
                offsets.check(database, connection)
                if letters is not None:
                    letters.table.check(database, connection)
            if options.table is not None:
                self._target = TargetTable(
                    database, options.table, options.schema, options.mode, options.key, options.columns
                )
            if letters is not None and letters.is_topic_there(self._bootstrap):
                with database.begin() as connection:
                    letters.take_back(connection)
        except sa.exc.SQLAlchemyError as error:
            raise to_semel_error(database, error) from error
        if letters is not None:
            letters.start()

    def close(self) -> None:
        """Leave the group, after telling it where the database stands, and close. Does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        state = self._state
        state.is_stopped = True
        try:
            if self._entered:
                state.tell_group(at_once=True)
        except SemelError as error:
            _log.debug("the group was not told: %s", error)
        state.claims.close()
        try:
            state.consumer.close()
        finally:
            if state.dead_letters is not None:
                state.dead_letters.close()
            state.database.dispose()

    def __enter__(self) -> Self:
        if self._closed:
            raise UsageError("this Sink is closed; make a new one")
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except SemelError as while_closing:
            if error is None:
                raise
            error.add_note(f"and closing the sink failed: {while_closing}")

    def __repr__(self) -> str:
        return f"<Sink of group {self._state.offsets.group!r} into {self._state.database.location}>"


def polls(sink: Sink, max_records: int, timeout_s: float | None) -> Iterator[Batch | None]:
    """Yield what each poll returns. None takes up to POLL_S: so long an asyncio caller that is cancelled waits."""
    check_int("max_records", max_records, 1)
    check_seconds("timeout_s", timeout_s)
    claims = sink._state.claims
    idle_since = time.monotonic()
    while not sink.is_stopped:
        batch = sink.poll(POLL_S if timeout_s is None else min(POLL_S, timeout_s), max_records)
        yield batch
        if batch is not None or claims.is_waiting:
            idle_since = time.monotonic()
        elif timeout_s is not None and time.monotonic() - idle_since >= timeout_s:
            sink._state.check_found()
            return
