"""The outbox: rows that an application inserts in its own transactions, relayed into topics exactly once (E3, E5).

Commit n of the relay is one transaction of the node: the rows, and a token with their ids. Only then the rows are
deleted (or marked) and `settled` becomes n, in one transaction of the database. So the next relay after a crash asks
for the last commit: it is settled, or its number is one more, and then its ids say what is to be deleted. A relay that
was replaced can't commit, because its successor has the same transactional id.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.schema import CreateIndex, CreateTable

from semel.protocol.api.commit_decisions import CommitDecision
from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FatalError,
    FencedError,
    RetriableError,
    SemelError,
    UsageError,
)
from semel.sdk.pipeline.stopping import stopped_by_signals
from semel.sdk.producer.api import Producer
from semel.sdk.producer.serialization import HeadersArgument, header_pairs
from semel.sdk.sql.database import (
    PAUSE_MAX_S,
    POSTGRESQL,
    Database,
    Verdict,
    failed,
    first_line,
    to_semel_error,
    unavailable,
)
from semel.sdk.sql.notifications import Notifications, notify
from semel.sdk.sql.outbox_table import (
    ROWS_MAX,
    Executes,
    Lease,
    OutboxRow,
    OutboxTable,
    as_row,
    decode_ids,
    encode_ids,
)
from semel.sdk.telemetry import tracing
from semel.sdk.transport.arguments import check_seconds
from semel.sdk.transport.border import ends_tracebacks
from semel.sdk.transport.kafka_names import in_our_names
from semel.sdk.transport.options import (
    NotPicklable,
    check_bool,
    check_int,
    check_name,
    check_text,
    checked_names,
    option_names,
    parse_bootstrap,
)

_log = logging.getLogger("semel.sql")

NAME_BYTES_MAX: Final = 200
FIRST_POLL_S: Final = 0.01
LOOK_S: Final = 0.05
"""How often a pause looks whether to stop."""
_REFUSED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_REQUEST,
    }
)
"""What a node, or the producer, says of a record that it will never take."""


PRODUCER_OPTIONS: Final = {
    name: f"give it to the producer: producer={{{name!r}: ...}}" for name in option_names(Producer)
}
"""How an outbox is given them."""


class _DeposedError(Exception):
    """Another relay has taken over."""


@ends_tracebacks
class Outbox(NotPicklable):
    """An outbox table, and its relay into topics.

        outbox = semel.sql.Outbox("localhost:9094", "postgresql://shop@/shop")
        with engine.begin() as connection:  # the application's own transaction
            connection.execute(...)
            outbox.add(connection, "orders", value, key=order_id)

    and in one process or several, of which one works while the others stand by:

        with semel.sql.Outbox("localhost:9094", "postgresql://shop@/shop") as outbox:
            outbox.run()

    bootstrap:         the address of a node, or several: its gRPC port (9094) or its Kafka port (9092); None:
                       what the environment variable SEMEL_BOOTSTRAP says, else localhost:9094
    database:          a URL, or a SQLAlchemy `Engine`
    table, schema:     where the rows are; `<table>_relay` is beside it
    name:              names this outbox on the node, whose transactional id is made of it; None: a name is drawn once,
                       and kept in `<table>_relay`
    keep:              mark relayed rows (relayed_at) and leave them there, in place of deleting them
    set_aside_refused: mark a row that the node refuses for good (refused: why), and leave it out; else `run` raises
    rows_max, bytes_max: of one transaction
    poll_interval_ms:  the longest pause between looks at the table while nothing comes
    notify:            PostgreSQL: `add` notifies (NOTIFY) and relays listen, so that rows need not wait for a look
    lease_ms:          after how long without a sign of life another relay takes over
    retry_timeout_ms:  for how long `run` retries when the database or the node does not answer
    producer:          further options of the `Producer`, such as {"compression": "zstd"}
    """

    _in_place_of_pickling = "it has connections; make one in each process, where it is used"
    _options_elsewhere = PRODUCER_OPTIONS

    @checked_names
    def __init__(
        self,
        bootstrap: str | Sequence[str] | None,
        database: str | sa.URL | Engine,
        *,
        table: str = "semel_outbox",
        schema: str | None = None,
        name: str | None = None,
        keep: bool = False,
        set_aside_refused: bool = False,
        rows_max: int = 1_000,
        bytes_max: int = 8 << 20,
        poll_interval_ms: int = 500,
        notify: bool = False,
        lease_ms: int = 5_000,
        retry_timeout_ms: int = 300_000,
        producer: Mapping[str, Any] | None = None,
    ) -> None:
        """Check the options; nothing connects yet. Raises `UsageError`."""
        self._bootstrap = str(parse_bootstrap(bootstrap))
        self._name = None if name is None else check_name("name", name, NAME_BYTES_MAX)
        self._set_aside = check_bool("set_aside_refused", set_aside_refused)
        self._rows_max = check_int("rows_max", rows_max, 1, ROWS_MAX)
        self._bytes_max = check_int("bytes_max", bytes_max, 1)
        self._poll_s = check_int("poll_interval_ms", poll_interval_ms, 1) / 1000
        self._lease_s = check_int("lease_ms", lease_ms, 100) / 1000
        self._timeout_s = check_int("retry_timeout_ms", retry_timeout_ms, 1) / 1000
        self._producer_options = _producer_options(producer)
        self._table = OutboxTable(check_text("table", table), schema, keep=check_bool("keep", keep))
        self._database = Database(database)
        self._notify = check_bool("notify", notify)
        if notify and self._database.kind != POSTGRESQL:
            raise UsageError(
                f"option notify is PostgreSQL's; {self._database.kind} is looked at every poll_interval_ms"
            )
        self._me = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._is_stopped = False
        self._notifications: Notifications | None = None
        self._producer: Producer | None = None
        self._epoch = 0
        self._settled = 0
        self._beat_due = 0.0
        self._limit = self._rows_max
        self._seen: tuple[Lease, float] | None = None
        self._closed = False
        self.drains = False
        """Whether `stop` lets `run` relay what was added before it."""
        self.own_topic: str | None = None
        """Where several share the table, each for a topic of its own: a refused row of another's is set aside."""
        self._counts = {"rows": 0, "transactions": 0, "set_aside": 0, "takeovers": 0, "recovered": 0, "retries": 0}

    @property
    def transactional_id(self) -> str | None:
        """Under which the relay commits: `semel txn commits ID` shows what. None: not known before it works."""
        return None if self._name is None else f"semel.outbox/{self._name}"

    @property
    def table(self) -> sa.Table:
        """The outbox's table, for queries and for inserts of your own."""
        return self._table.rows

    def create_tables(self) -> None:
        """Create the outbox's tables where they are missing."""
        create_tables(self._database, self._table.tables)

    def ddl(self) -> str:
        """Return the statements that create the tables, for migrations."""
        return ddl(self._database, self._table.tables)

    def add(
        self,
        connection: Executes,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersArgument | None = None,
        partition: int | None = None,
    ) -> None:
        """Add a record in the caller's transaction: it is relayed if that commits.

        connection: a `Connection` or `Session` of SQLAlchemy (asyncio: an `AsyncConnection`, an `AsyncSession`, or that
                    of a `Sink`), in the transaction of what the record tells of
        value, key, headers, partition: as for `Producer.send`

        Raises `UsageError` for what can't be sent and where there is no table, and what the database raises.
        """
        row = self.row(topic, value, key=key, headers=headers, partition=partition)
        try:
            self._table.add(connection, [row])
        except sa.exc.DBAPIError as error:
            if not self._database.misses(self._table.rows, error):
                raise
            # Without the cause, which shows the row.
            raise UsageError(
                f"there is no table {self._table.rows.fullname!r} in the database of this transaction: call "
                "create_tables() once, or ddl() for your own migrations"
            ) from None
        if self._notify:
            notify(connection, self._table.rows.fullname)

    def row(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersArgument | None = None,
        partition: int | None = None,
    ) -> dict[str, Any]:
        """Return the columns of a record's row, for a library that inserts it in place of `add`, such as Django's ORM.

        The arguments are those of `add`. A row that is committed is relayed, however it came into the table; id is the
        database's to give. With notify=True the relay finds it at its next look.

        >>> outbox = Outbox("localhost:9094", "sqlite:///shop.db")
        >>> sorted(outbox.row("orders", "sold", key="7"))
        ['created_at', 'headers', 'partition_number', 'record_key', 'topic', 'value']
        """
        pairs = header_pairs(headers) if headers else ()
        if tracing.active():
            pairs = tuple(tracing.inject(pairs))  # the record continues the trace of the transaction that adds it (E4)
        return as_row(topic, value, key, pairs, partition)

    # --- Relaying -----------------------------------------------------------------------------------------------------

    def run(self, idle_timeout_s: float | None = None, *, handle_signals: bool = True) -> None:
        """Relay until `stop`, SIGTERM or Ctrl-C; with `idle_timeout_s`, until nothing came for so long while it worked.

        handle_signals: stop for SIGTERM and SIGINT, where this is the main thread and they have no other handler

        Where it is stopped, the transaction under way is finished and committed, and this returns. While another relay
        works, this one waits. Raises `FatalError` for what repeating does not help, such
        as a row for a topic that does not exist, and `RetriableError` when retry_timeout_ms was not enough.
        """
        check_seconds("idle_timeout_s", idle_timeout_s)
        self._check_usable()
        with stopped_by_signals(lambda _: self.stop(), is_wanted=check_bool("handle_signals", handle_signals)):
            self._check_tables()
            self._run(idle_timeout_s)

    def _run(self, idle_timeout_s: float | None) -> None:
        failing_since: float | None = None
        idle_since = math.inf
        pause_s = FIRST_POLL_S
        while not self._is_stopped:
            try:
                relayed = self._go_on()
            except (_DeposedError, FencedError) as error:
                _log.info("outbox %s: another relay has taken over: %s", self.table.fullname, error)
                self._step_down()
                continue
            except Exception as error:
                since = failing_since or time.monotonic()
                self._judge(error, time.monotonic() - since)
                if failing_since is None:
                    _log.warning("outbox %s: retrying: %s", self.table.fullname, first_line(error))
                failing_since = since
                self._step_down()
                self._counts["retries"] += 1
                self._pause(min(PAUSE_MAX_S, max(0.1, (time.monotonic() - since) / 4)))
                continue
            failing_since = None
            now = time.monotonic()
            if relayed is None:  # standing by
                self._pause(min(self._lease_s / 4, 1.0))
                idle_since, pause_s = math.inf, FIRST_POLL_S
            elif relayed:
                idle_since, pause_s = math.inf, FIRST_POLL_S
            else:
                idle_since = min(idle_since, now)
                if idle_timeout_s is not None and now - idle_since >= idle_timeout_s:
                    return
                self._wait(min(pause_s, self._lease_s / 4))
                pause_s = min(pause_s * 2, self._poll_s)
        if self.drains and failing_since is None:
            self._drain()

    def _drain(self) -> None:
        """Relay what was added until now, if it is our turn; what fails waits for the next relay."""
        try:
            while self._producer is not None and self._go_on():
                pass
        except Exception as error:
            _log.info("outbox %s: the rest waits for the next relay: %s", self.table.fullname, first_line(error))
            self._step_down()

    def stop(self) -> None:
        """Let `run` return once the transaction under way has ended. From any thread, or a signal handler."""
        self._is_stopped = True

    @property
    def is_working(self) -> bool:
        """Whether this relay is the one that works."""
        return self._producer is not None

    def statistics(self) -> dict[str, int]:
        """Return what this relay has done: rows, transactions, set_aside, takeovers, recovered, retries."""
        return dict(self._counts)

    def _check_tables(self) -> None:
        """Once, and without trying again: a wrong address or a missing table shall be told at once."""
        try:
            with self._database.begin() as connection:
                self._table.check(self._database, connection)
        except sa.exc.SQLAlchemyError as error:
            raise to_semel_error(self._database, error) from error

    def _judge(self, error: Exception, failing_s: float) -> None:
        """Raise an error that is not to be tried again, or not any more."""
        if isinstance(error, (RetriableError, AbortTransactionError)):
            is_transient = True
        elif isinstance(error, SemelError):
            is_transient = False
        else:
            is_transient = self._database.verdict(error) is Verdict.TRANSIENT
        if is_transient and failing_s < self._timeout_s:
            return
        if isinstance(error, SemelError):
            raise error
        raise (unavailable if is_transient else failed)(self._database, error) from error

    def _go_on(self) -> int | None:
        """Relay once, or look whether it is our turn; return how many rows were relayed, None where we stand by."""
        if self._producer is None and not self._take_over():
            return None
        assert self._producer is not None
        with self._database.begin() as connection:
            if time.monotonic() >= self._beat_due:
                if not self._table.beat(connection, self._epoch):
                    raise _DeposedError
                self._beat_due = time.monotonic() + self._lease_s / 4
            rows = self._table.read(connection, self._limit, self._bytes_max)
        if not rows:
            return 0
        try:
            self._send(rows)
        except (SemelError, ValueError) as error:
            if not self._is_refused(error, rows):
                raise
            return 1
        self._limit = min(self._limit * 2, self._rows_max)
        self._counts["rows"] += len(rows)
        self._counts["transactions"] += 1
        return len(rows)

    def _send(self, rows: list[OutboxRow]) -> None:
        assert self._producer is not None
        number, ids = self._settled + 1, [row.id for row in rows]
        with self._producer.transaction(token=str(number), payload=encode_ids(ids), sequence=number) as txn:
            for row in rows:
                txn.send(row.topic, row.value, key=row.key, headers=row.headers, partition=row.partition)
        if txn.already_committed:
            raise _DeposedError  # only a relay of the same name can have done that
        self._settle(number, ids)

    def _settle(self, number: int, ids: list[int]) -> None:
        """Delete or mark what commit `number` has relayed. A failure is made good by the next one."""
        with self._database.begin() as connection:
            if not self._table.settle(connection, number, ids):
                raise _DeposedError
        self._settled = number
        self._beat_due = time.monotonic() + self._lease_s / 4

    def _is_refused(self, error: SemelError | ValueError, rows: list[OutboxRow]) -> bool:
        """Whether a row is to blame: it is looked for by halves, and then set aside, or told."""
        code = getattr(error, "code", ErrorCode.INVALID_REQUEST)
        if isinstance(error, (RetriableError, FencedError)) or code not in _REFUSED:
            return False
        if len(rows) > 1:
            self._limit = max(1, len(rows) // 2)
            return True
        row = rows[0]
        if not self._set_aside and self.own_topic in (None, row.topic):
            advice = (
                "fix or delete it, or make the Outbox with set_aside_refused=True"
                if self.own_topic is None
                else "it stays there, and is relayed once the topic takes it and the sink is started again"
            )
            raise FatalError(
                f"row {row.id} of {self._table.rows.fullname}, for topic {row.topic!r}, can't be relayed: {error}; "
                f"{advice}",
                code,
            ) from error
        with self._database.begin() as connection:
            self._table.set_aside(connection, row.id, str(error))
        _log.error("outbox %s: row %d, for topic %r, is set aside: %s", self.table.fullname, row.id, row.topic, error)
        self._counts["set_aside"] += 1
        self._limit = self._rows_max
        return True

    # --- Whose turn it is ---------------------------------------------------------------------------------------------

    def _take_over(self) -> bool:
        """Become the relay if there is no other; settle what the one before has left."""
        with self._database.begin() as connection:
            lease = self._table.lease(connection)
            if lease is None:
                self._table.create_lease(connection, self._name or secrets.token_hex(12))
                lease = self._table.lease(connection)
                assert lease is not None
        self._name = self._name or lease.name
        if lease.name != self._name:
            raise FatalError(
                f"{self._table.rows.fullname} is relayed under the name {lease.name!r}, and this relay is named "
                f"{self._name!r}: two names would relay each row twice"
            )
        now = time.monotonic()
        if self._seen is None or (self._seen[0].epoch, self._seen[0].beats) != (lease.epoch, lease.beats):
            self._seen = (lease, now)
        if lease.owner not in ("", self._me) and now - self._seen[1] < self._lease_s:
            return False
        with self._database.begin() as connection:
            if not self._table.take(connection, lease, self._me):
                return False
        self._epoch = lease.epoch + 1
        self._beat_due = now + self._lease_s / 4
        self._seen = None
        producer = Producer(self._bootstrap, transactional_id=self.transactional_id, **self._producer_options)
        try:
            producer.init_transactions()  # fences the relay before this one, and ends what it had open
            self._recover(producer.last_commit())
        except BaseException:
            _close(producer)
            raise
        self._producer = producer
        self._counts["takeovers"] += 1
        _log.info("outbox %s: relaying, epoch=%d settled=%d", self.table.fullname, self._epoch, self._settled)
        return True

    def _recover(self, last: CommitDecision | None) -> None:
        with self._database.begin() as connection:
            lease = self._table.lease(connection)
        if lease is None or lease.epoch != self._epoch:
            raise _DeposedError
        self._settled = lease.settled
        # Forgotten after 30 days without a commit (or never made): then everything was settled long ago.
        number = self._settled if last is None else last.sequence
        if last is not None and number == self._settled + 1:
            self._settle(number, decode_ids(last.payload))
            self._counts["recovered"] += 1
        elif number != self._settled:
            raise FatalError(
                f"{self._table.rows.fullname} in {self._database.location} knows of {self._settled} commits, and the "
                f"node of {number} under {self.transactional_id!r}: they do not belong together. Was one of them "
                "restored, or made again? Give the outbox a new name and a new table"
            )

    def _step_down(self) -> None:
        producer, self._producer = self._producer, None
        self._seen = None
        if producer is not None:
            _close(producer)

    def _pause(self, seconds: float) -> None:
        """Wait so long, or until it is to stop: a handler of a signal can't wake who waits."""
        end = time.monotonic() + seconds
        while not self._is_stopped and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_S))

    def _wait(self, seconds: float) -> None:
        if self._notify and self._notifications is None:
            self._notifications = Notifications(self._database.engine, self._table.rows.fullname)
        if self._notifications is not None:
            self._notifications.wait(seconds, self._pause)
        else:
            self._pause(seconds)

    # --- Life ---------------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError("this Outbox is closed; make a new one")

    def close(self) -> None:
        """Let another relay take over at once, and close. Call it when `run` has returned."""
        if self._closed:
            return
        self._closed = True
        self.stop()
        was_working = self.is_working
        self._step_down()
        if self._notifications is not None:
            self._notifications.close()
        if was_working:
            try:
                with self._database.begin() as connection:
                    self._table.release(connection, self._epoch)
            except sa.exc.SQLAlchemyError as error:
                _log.info("outbox %s: the lease runs out on its own: %s", self.table.fullname, first_line(error))
        self._database.dispose()

    def __enter__(self) -> Self:
        self._check_usable()
        self._check_tables()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def create_tables(database: Database, tables: tuple[sa.Table, ...]) -> None:
    """Create tables where they are missing; harmless where several processes do it at once.

    Raises `RetriableError` where the database can't be reached, `FatalError` where it refuses.
    """
    try:
        for table in tables:
            _create_table(database, table)
    except sa.exc.SQLAlchemyError as error:
        raise to_semel_error(database, error) from error


def _create_table(database: Database, table: sa.Table) -> None:
    try:
        with database.begin() as connection:
            table.create(connection, checkfirst=True)
    except sa.exc.SQLAlchemyError:
        with database.begin() as connection:
            if not sa.inspect(connection).has_table(table.name, schema=table.schema):
                raise
            table.create(connection, checkfirst=True)  # another process was first: its indexes, too, shall be there


def ddl(database: Database, tables: tuple[sa.Table, ...]) -> str:
    """Return CREATE TABLE and CREATE INDEX, each with a semicolon."""
    statements: list[Any] = []
    for table in tables:
        statements += [CreateTable(table), *(CreateIndex(index) for index in sorted(table.indexes, key=str))]
    return "".join(f"{str(one.compile(dialect=database.engine.dialect)).strip()};\n" for one in statements)


def _producer_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    given = in_our_names("producer", option_names(Producer), options or {}, {})
    for name in ("transactional_id", "two_phase", "acks", "idempotent", "key_serializer", "value_serializer"):
        if name in given:
            raise UsageError(f"option producer can't set {name}: the outbox needs it as it is")
    return {"client_id": "semel-outbox", **given}


def _close(producer: Producer) -> None:
    try:
        producer.close(1.0)
    except SemelError as error:
        _log.debug("closing the relay's producer: %s", error)
