"""`Sink` and `Outbox` for asyncio: the same ones, each at work in a thread of its own, so that no loop is blocked.

SQLAlchemy's drivers block, and one thread at a time may use a sink's consumer and its connection. So all that waits
runs in that thread, one call after the other. A call that is cancelled waits until what it began there has ended, and
then raises `CancelledError`: nothing continues behind the caller's back.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar

import sqlalchemy as sa

from semel.protocol.errors import SemelError, UsageError
from semel.sdk.consumer.batch import Batch
from semel.sdk.pipeline.stopping import stopped_by_signals
from semel.sdk.producer.serialization import HeadersArgument
from semel.sdk.sql import outbox, sink
from semel.sdk.sql.outbox_table import Executes
from semel.sdk.sql.sink import BATCH_RECORDS
from semel.sdk.transport.border import async_context_edge, ends_tracebacks
from semel.sdk.transport.options import NotPicklable, check_bool

P = ParamSpec("P")
T = TypeVar("T")
Made = TypeVar("Made", bound=type)

_END: Final = object()


class RunsSync(Protocol):
    """A SQLAlchemy `AsyncConnection` or `AsyncSession`, or the `Connection` of a sink's transaction."""

    async def run_sync(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...


class _Thread:
    """The one thread in which a sink or an outbox works."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"semel-sql-{owner.lower()}")
        self._is_closing = False
        self._is_closed = False

    async def call(self, function: Callable[..., T], *args: Any, context: contextvars.Context | None = None) -> T:
        """Call a function there, in the caller's context. A caller that is cancelled waits for its end all the same."""
        if self._is_closed:
            raise UsageError(f"this {self._owner} is closed; make a new one")
        context = context or contextvars.copy_context()
        work = asyncio.get_running_loop().run_in_executor(self._executor, context.run, function, *args)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await _ended(work)
            raise

    async def run(
        self, run: Callable[[float | None], None], stop: Callable[[], None], idle_timeout_s: float | None
    ) -> None:
        """Call `run` there. Where the caller is cancelled, `stop` ends it first."""
        running = asyncio.ensure_future(self.call(run, idle_timeout_s))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            stop()
            await _ended(running)
            raise

    async def close(self, close: Callable[[], None]) -> None:
        """Call `close` there, the first time, and end the thread."""
        if self._is_closing:
            return
        self._is_closing = True
        try:
            await self.call(close)
        finally:
            self._is_closed = True
            self._executor.shutdown(wait=False)


async def _ended(work: asyncio.Future[Any]) -> None:
    """Wait for the end of what runs in the thread, however often the caller is cancelled. Its error is nobody's now."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    if not work.cancelled():
        work.exception()


class Connection:
    """The connection of `Sink.transaction`. Its statements run in the sink's thread, as SQLAlchemy's `run_sync` has it:

    rows = await connection.run_sync(lambda connection: connection.execute(statement).all())
    """

    def __init__(self, thread: _Thread, connection: sa.Connection, context: contextvars.Context) -> None:
        self._thread = thread
        self._connection = connection
        self._context = context

    async def run_sync(
        self, function: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call `function` with the connection and `args`, in the sink's thread, and return what it returns.

        Results that are fetched later would be fetched in the loop: return `.all()`, `.scalar()` or the like of them.
        """
        call = functools.partial(function, self._connection, *args, **kwargs)
        return await self._thread.call(call, context=self._context)


def _made_like(
    original: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Decorate a constructor that passes its arguments on: it has those of `original`."""

    def decorate(function: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        function.__doc__ = original.__doc__
        function.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        return function

    return decorate


def _documented_like(original: type) -> Callable[[Made], Made]:
    """Decorate a class whose methods without a docstring have that of the same method in `original`."""

    def decorate(made: Made) -> Made:
        for name, member in vars(made).items():
            if not name.startswith("_") and not member.__doc__:
                member.__doc__ = inspect.getdoc(getattr(original, name))
        return made

    return decorate


@ends_tracebacks
@_documented_like(sink.Sink)
class Sink(NotPicklable):
    """`semel.sql.Sink` for asyncio: the same options, which see, and the same methods.

        async with semel.aio.Sink("localhost:9094", "sqlite:///shop.db", group="totals", topics=["orders"]) as sink:
            async for batch in sink.batches():
                async with sink.transaction(batch) as connection:
                    await connection.run_sync(lambda connection: connection.execute(...))

    It works in a thread of its own: there `run`, the mapping, and the statements of a transaction block nobody. The
    database is given as for `semel.sql.Sink`, with a driver that blocks. A `run` that is cancelled stops the sink, as
    `stop` does, and ends after the transaction under way.
    """

    _in_place_of_pickling = sink.Sink._in_place_of_pickling

    @_made_like(sink.Sink.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        self._sink = sink.Sink(*args, **options)
        self._thread = _Thread("Sink")
        self._unread: deque[Batch] = deque()

    async def create_tables(self) -> None:
        await self._thread.call(self._sink.create_tables)

    def ddl(self) -> str:
        return self._sink.ddl()

    async def batches(self, max_records: int = BATCH_RECORDS, timeout_s: float | None = None) -> AsyncIterator[Batch]:
        polls = sink.polls(self._sink, max_records, timeout_s)
        while (batch := await self._read(lambda: next(polls, _END))) is not _END:
            if isinstance(batch, Batch):
                yield batch

    async def poll(self, timeout_s: float, max_records: int = BATCH_RECORDS) -> Batch | None:
        batch = await self._read(lambda: self._sink.poll(timeout_s, max_records))
        return batch if isinstance(batch, Batch) else None

    async def _read(self, read: Callable[[], object]) -> object:
        """Return what `read` returns; what it read for a caller that was cancelled is for the next one."""
        if self._unread:
            return self._unread.popleft()
        found: list[object] = []
        try:
            await self._thread.call(lambda: found.append(read()))
        except asyncio.CancelledError:
            self._unread += [batch for batch in found if isinstance(batch, Batch)]
            raise
        return found[0]

    @async_context_edge
    async def transaction(self, batch: Batch) -> AsyncIterator[Connection]:
        block = self._sink.transaction(batch)
        context = contextvars.copy_context()  # one for all of the block: its span is current in the statements
        entered: list[sa.Connection] = []
        try:
            await self._thread.call(lambda: entered.append(block.__enter__()), context=context)
            yield Connection(self._thread, entered[0], context)
        except BaseException as error:
            if not entered:
                raise
            told = type(error), error, error.__traceback__
            if not await self._thread.call(block.__exit__, *told, context=context):
                raise
        else:
            await self._thread.call(block.__exit__, None, None, None, context=context)

    async def run(self, idle_timeout_s: float | None = None, *, handle_signals: bool = True) -> None:
        # Here, because the thread that it runs in gets no signals.
        with stopped_by_signals(lambda _: self.stop(), is_wanted=check_bool("handle_signals", handle_signals)):
            await self._thread.run(self._sink.run, self._sink.stop, idle_timeout_s)

    @property
    def is_stopped(self) -> bool:
        return self._sink.is_stopped

    def stop(self) -> None:
        self._sink.stop()

    def statistics(self) -> dict[str, int]:
        return self._sink.statistics()

    async def close(self) -> None:
        self._sink.stop()  # a `run` in another task ends first
        await self._thread.close(self._sink.close)

    async def __aenter__(self) -> Self:
        await self._thread.call(self._sink.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except SemelError as while_closing:
            if error is None:
                raise
            error.add_note(f"and closing the sink failed: {while_closing}")

    def __repr__(self) -> str:
        return repr(self._sink)


@ends_tracebacks
@_documented_like(outbox.Outbox)
class Outbox(NotPicklable):
    """`semel.sql.Outbox` for asyncio: the same options, which see, and the same methods.

        outbox = semel.aio.Outbox("localhost:9094", "postgresql://shop@/shop")
        async with engine.begin() as connection:  # an `AsyncEngine`: the application's own transaction
            await connection.execute(...)
            await outbox.add(connection, "orders", value, key=order_id)

    The relay works in a thread of its own, with a driver that blocks, also where the application's does not. A `run`
    that is cancelled stops the relay, as `stop` does, and ends after the transaction under way.
    """

    _in_place_of_pickling = outbox.Outbox._in_place_of_pickling

    @_made_like(outbox.Outbox.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        self._outbox = outbox.Outbox(*args, **options)
        self._thread = _Thread("Outbox")

    @property
    def transactional_id(self) -> str | None:
        """Under which the relay commits: `semel txn commits ID` shows what. None: not known before it works."""
        return self._outbox.transactional_id

    @property
    def table(self) -> sa.Table:
        """The outbox's table, for queries and for inserts of your own."""
        return self._outbox.table

    async def create_tables(self) -> None:
        await self._thread.call(self._outbox.create_tables)

    def ddl(self) -> str:
        return self._outbox.ddl()

    async def add(
        self,
        connection: RunsSync,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersArgument | None = None,
        partition: int | None = None,
    ) -> None:
        def add(blocking: Executes) -> None:
            self._outbox.add(blocking, topic, value, key=key, headers=headers, partition=partition)

        await connection.run_sync(add)

    def row(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersArgument | None = None,
        partition: int | None = None,
    ) -> dict[str, Any]:
        return self._outbox.row(topic, value, key=key, headers=headers, partition=partition)

    async def run(self, idle_timeout_s: float | None = None, *, handle_signals: bool = True) -> None:
        with stopped_by_signals(lambda _: self.stop(), is_wanted=check_bool("handle_signals", handle_signals)):
            await self._thread.run(self._outbox.run, self._outbox.stop, idle_timeout_s)

    def stop(self) -> None:
        self._outbox.stop()

    @property
    def is_working(self) -> bool:
        """Whether this relay is the one that works."""
        return self._outbox.is_working

    def statistics(self) -> dict[str, int]:
        return self._outbox.statistics()

    async def close(self) -> None:
        self._outbox.stop()
        await self._thread.close(self._outbox.close)

    async def __aenter__(self) -> Self:
        await self._thread.call(self._outbox.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
