"""Which client the call that is being answered came from: set where requests come in, read where it is recorded."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from semel.protocol.api.clients import ClientOrigin

_CALLER: Final[ContextVar[ClientOrigin | None]] = ContextVar("caller", default=None)


def set_caller(origin: ClientOrigin) -> None:
    """Say who the current task works for. A listener gives each request a task of its own."""
    _CALLER.set(origin)


def caller_origin() -> ClientOrigin | None:
    """Return whom the current task works for; None where nobody outside has called."""
    return _CALLER.get()
