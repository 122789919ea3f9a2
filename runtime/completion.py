"""Work that is done to its end, also where nobody waits for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


async def to_its_end(call: Coroutine[Any, Any, _Result]) -> _Result:
    """Wait for a call that continues where its caller is canceled, or gone. Then nobody hears of its failure.

    A caller that is gone has room for others: so what may take long does not belong into such a call.
    """
    task = asyncio.ensure_future(call)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


def done_to_its_end(
    function: Callable[_Parameters, Coroutine[Any, Any, _Result]],
) -> Callable[_Parameters, Coroutine[Any, Any, _Result]]:
    """Have each call of a function be done `to_its_end`."""

    @wraps(function)
    async def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        return await to_its_end(function(*args, **kwargs))

    return call
