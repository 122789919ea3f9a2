"""Making a client impatient for a while: for the call that is to be given up, and for none before or after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from semel.protocol.errors import ErrorCode, SemelError

HASTE_MS = 300


@contextmanager
def impatient(client: Any, *rpcs: str) -> Iterator[None]:
    """Let these calls of a Producer, Consumer or Admin take so long, retries included. Others wait as ever."""
    control = client._core.client.control
    call = control.call

    async def hasty(rpc: Any, request: Any, **options: Any) -> Any:
        if rpc.name in rpcs:
            options["timeout_ms"] = HASTE_MS
        return await call(rpc, request, **options)

    control.call = hasty
    try:
        yield
    finally:
        del control.call


def given_up(client: Any, call: Callable[[], object], code: ErrorCode) -> SemelError:
    """Let a call repeat until its time is over; return why it then says that it was given up.

    A busy machine gets more time, until the node has had its say.
    """
    core = client._core.client
    patient = core.options
    assert core.control._options == patient
    error: SemelError | None = None
    for timeout_ms in (HASTE_MS, 10 * HASTE_MS, 100 * HASTE_MS):
        core.options = core.control._options = replace(patient, api_timeout_ms=timeout_ms)
        try:
            call()
        except SemelError as refused:
            error = refused
        finally:
            core.options = core.control._options = patient
        assert error is not None, "it was to be given up"
        if error.code is code:
            return error
    raise AssertionError(error)
