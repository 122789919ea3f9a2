"""Where Semel's code ends for the reader of a traceback: at the public method that the program called.

A `SemelError` says in its message what is wrong and what to do. The frames of the IO thread, of futures and of retries
below the method say nothing more, so they are cut away at the outer edge, the same for the sync and the asyncio API.
Errors that are bugs, which are no `SemelError`, keep all of their frames; so does everything where the environment
variable SEMEL_TRACEBACK is "full".
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar, cast

from semel.protocol.errors import SemelError
from semel.sdk.transport.options import misnamed

P = ParamSpec("P")
R = TypeVar("R")
Class = TypeVar("Class", bound=type)

VARIABLE: Final = "SEMEL_TRACEBACK"
_INNER: Final = ("semel.", "asyncio.", "concurrent.", "contextlib", "tenacity", "grpc", "threading", "contextvars")
_PER_RECORD: Final = frozenset({"send", "send_batch", "processing", "traced"})
"""What is called for each record: a call in between would cost more than the call itself."""
_SPECIAL: Final = frozenset({"__init__", "__enter__", "__exit__", "__aenter__", "__aexit__"})


def ends_tracebacks(kind: Class) -> Class:
    """Decorate a class: what its public methods raise shows the method and what the program itself did, and no more.

    Generators are left alone, or each record would pass through one more: mark what they call with `edge`.
    """
    for name, member in list(vars(kind).items()):
        if name in _PER_RECORD or (name.startswith("_") and name not in _SPECIAL):
            continue
        if isinstance(member, classmethod):
            setattr(kind, name, classmethod(edge(member.__func__)))
        elif inspect.isfunction(member) and not (
            inspect.isgeneratorfunction(member) or inspect.isasyncgenfunction(member)
        ):
            setattr(kind, name, edge(member))
    return kind


def edge(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate one function, or coroutine function, in the same way."""
    return _guarded(function, _cut)


def unseen(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate what a public method calls: what it raises shows the method, and not the function."""
    return _guarded(function, bare)


def _guarded(function: Callable[P, R], shorten: Callable[[SemelError, BaseException | None], object]) -> Callable[P, R]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            handled = sys.exception()
            try:
                return await function(*args, **kwargs)
            except SemelError as error:
                shorten(error, handled)
                raise  # which adds no entry for this frame: the traceback is as `shorten` leaves it
            except TypeError:
                if (refused := misnamed(function, args, kwargs)) is not None:
                    raise refused from None
                raise

        return cast(Callable[P, R], awaited)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        handled = sys.exception()
        try:
            return function(*args, **kwargs)
        except SemelError as error:
            shorten(error, handled)
            raise
        except TypeError:
            if (refused := misnamed(function, args, kwargs)) is not None:
                raise refused from None
            raise

    return called


def cut_here(error: SemelError) -> None:
    """Leave of a traceback the frame whose `except` calls this, and those of the program."""
    if _is_on():
        error.__traceback__ = _shortened(error.__traceback__)
        _unchain(error, None)


def bare(error: SemelError, handled: BaseException | None = None) -> SemelError:
    """Return an error without where it came from, to be raised here."""
    if _is_on():
        error.__traceback__ = None
        _unchain(error, handled)
    return error


def with_frames_of_the_program(error: SemelError) -> SemelError:
    """Return an error with only the program's frames of its traceback, to be raised where the program called."""
    if _is_on():
        kept = [trace for trace in _entries(error.__traceback__) if not _is_inner(trace)]
        error.__traceback__ = _linked(kept)
    return error


def _is_on() -> bool:
    return os.environ.get(VARIABLE) != "full"


def _cut(error: SemelError, handled: BaseException | None) -> None:
    """Leave of a traceback, which begins in the frame that calls this, the next frame and those of the program."""
    if _is_on():
        trace = error.__traceback__
        error.__traceback__ = None if trace is None else _shortened(trace.tb_next)
        _unchain(error, handled)


def _unchain(error: SemelError, handled: BaseException | None) -> None:
    """Show of the errors that led to this one what the program was handling, or a cause that is none of ours."""
    if isinstance(error.__cause__, SemelError) and error.__cause__ is not handled:
        error.__cause__ = None
    error.__context__ = None if handled is error else handled
    error.__suppress_context__ = error.__cause__ is not None


def _shortened(trace: TracebackType | None) -> TracebackType | None:
    """Keep what is the program's, and of ours each first frame that it called."""
    kept: list[TracebackType] = []
    was_inner = False
    for entry in _entries(trace):
        is_inner = _is_inner(entry)
        if not is_inner or not was_inner:
            kept.append(entry)
        was_inner = is_inner
    return _linked(kept)


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_inner(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__", "")).startswith(_INNER)


def _linked(kept: list[TracebackType]) -> TracebackType | None:
    linked = None
    for entry in reversed(kept):
        entry.tb_next = linked
        linked = entry
    return linked


class EdgedContext(AbstractContextManager[R]):
    """A context manager that ends tracebacks at its own methods. Make it with `context_edge`."""

    def __init__(self, inner: AbstractContextManager[R]) -> None:
        self._inner = inner

    @edge
    def __enter__(self) -> R:
        return self._inner.__enter__()

    @edge
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._inner.__exit__(kind, error, trace)


class AsyncEdgedContext(AbstractAsyncContextManager[R]):
    """The same for asyncio. Make it with `async_context_edge`."""

    def __init__(self, inner: AbstractAsyncContextManager[R]) -> None:
        self._inner = inner

    @edge
    async def __aenter__(self) -> R:
        return await self._inner.__aenter__()

    @edge
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


def context_edge(function: Callable[P, Iterator[R]]) -> Callable[P, AbstractContextManager[R]]:
    """Decorate as `contextlib.contextmanager` does, with an edge."""
    made = contextmanager(function)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[R]:
        return EdgedContext(made(*args, **kwargs))

    return called


def async_context_edge(function: Callable[P, AsyncIterator[R]]) -> Callable[P, AbstractAsyncContextManager[R]]:
    """Decorate as `contextlib.asynccontextmanager` does, with an edge."""
    made = asynccontextmanager(function)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[R]:
        return AsyncEdgedContext(made(*args, **kwargs))

    return called
