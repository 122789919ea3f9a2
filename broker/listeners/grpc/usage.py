"""What calls take of their clients' quotas.

A call that took too much of request_percentage is answered later, by no more than a window (quota.window.size.seconds).
While its client is beyond the quota, a call is not begun for as long: who does not wait for answers gets no further
either, and what is cancelled midway counts. On a stream the answer comes at once, and nothing more is read of it, or
sent, for the time that its quota asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from semel.broker.acls.principals import USER
from semel.broker.listeners.acceptor import IN_PROCESS
from semel.broker.listeners.grpc.callers import principal_of
from semel.broker.listeners.grpc.edge import Context, client_id_of
from semel.broker.quotas.client_quotas import UNBOUNDED, ClientUsage, Mutations
from semel.broker.quotas.request_usage import Measured, RequestUsage
from semel.broker.services import Services
from semel.protocol.errors import FatalError, SemelError

_Result = TypeVar("_Result")
Lookup: TypeAlias = Callable[[], ClientUsage | None]
"""Finds the quotas that count for a client now; None where none does."""

_CALL: Final[ContextVar[RequestUsage | None]] = ContextVar("usage", default=None)


def look_up(node: Services, context: Context) -> Lookup:
    """Return what finds the quotas of who calls. A program in the node's own process is no client."""
    if context.peer() == IN_PROCESS:
        return _no_quota
    return partial(_found, node, context)


def _found(node: Services, context: Context) -> ClientUsage | None:
    quotas = node.client_quotas
    if not quotas.is_on:
        return None
    try:
        principal = principal_of(node, context)
    except FatalError:
        return None  # who has no name is served nothing
    return quotas.of(principal.removeprefix(USER), client_id_of(context))


def _no_quota() -> None:
    return None


def mutations_of_call() -> Mutations:
    """Return what counts the partitions that the current call makes or deletes. What is beyond the quota is refused."""
    usage = _CALL.get()
    return UNBOUNDED if usage is None else usage.counted_mutations(strict=True)


class _Held:
    """An answer that is held back."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def mute(self, seconds: float) -> None:
        self.seconds = max(self.seconds, seconds)


async def counted_call(node: Services, coroutine: Coroutine[Any, Any, _Result], context: Context) -> _Result:
    """Await what answers a call, count its time on the event loop, and hold its answer back as its quota asks for."""
    client = look_up(node, context)()
    if client is None:
        return await coroutine
    wait_s = client.request_wait_s()
    if wait_s > 0:
        try:
            await asyncio.sleep(wait_s)
        except BaseException:
            coroutine.close()
            raise
    held = _Held()
    usage = RequestUsage(client, held, 0)
    _CALL.set(usage)
    try:
        result = await Measured(coroutine, usage.begin, usage.pause)
    except SemelError:
        usage.answered()
        await asyncio.sleep(held.seconds)
        raise
    finally:
        usage.answered()  # also what was cancelled
    if held.seconds:
        await asyncio.sleep(held.seconds)
    return result
