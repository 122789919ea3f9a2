"""Large requests and responses are read and built in a thread beside the event loop, small ones at once (S3).

Python gives the loop its turn every few milliseconds meanwhile. There is one such thread, so that many large messages
at once take no more of the machine than one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from semel.broker.listeners.kafka.limits import entries_max
from semel.broker.listeners.kafka.registry import LARGE_BYTES, RequestContext
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.entities import response_names
from semel.protocol.kafka.messages import build_response, parse_request
from semel.runtime.threads import Threads
from semel.runtime.turns import Turns

_Result = TypeVar("_Result")

FREED_AT_ONCE: Final = 500

LARGE_ENTRIES: Final = 200
"""The same of a response, in entries of its arrays."""

_THROTTLE_TIME: Final = "throttle_time"

_beside: Final = Threads(1, "semel-large-messages")


async def read_request(context: RequestContext, body: memoryview) -> Any:
    """Return kio's request entity, as `parse_request` does. Raises `WireFormatError`."""
    key, version = ApiKey(context.api_key), context.api_version
    return await beside_if(len(body) > LARGE_BYTES, parse_request, key, version, body, entries_max(context.node))


async def write_response(context: RequestContext, **values: Any) -> bytes:
    """Return the body of a response, as `build_response` does, with the time that the client has to wait."""
    key, version = ApiKey(context.api_key), context.api_version
    if context.usage is not None and _THROTTLE_TIME in response_names(key):
        values[_THROTTLE_TIME] = context.throttle_ms()
    return await beside_if(_is_large(values), partial(build_response, key, version, **values))


async def beside_if(is_large: bool, call: Callable[..., _Result], *arguments: Any) -> _Result:
    """Return what `call` returns; run it beside the event loop if it is long. It must not look at the node."""
    if not is_large:
        return call(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_beside, partial(call, *arguments))


async def let_go(items: list[Any]) -> None:
    """Empty a list in turns: to free very many objects at once takes long, too."""
    turns = Turns()
    while items:
        del items[-FREED_AT_ONCE:]
        await turns.give_way()


def _is_large(values: Mapping[str, Any]) -> bool:
    """Count entries at every level of arrays: groups, their members, and the members' topics and partitions."""
    entries = 0
    left: list[Any] = [values]
    while left and entries <= LARGE_ENTRIES:
        value = left.pop()
        if isinstance(value, Mapping):
            left.extend(inner for inner in value.values() if isinstance(inner, (Mapping, list, tuple)))
            continue
        entries += len(value)
        if entries <= LARGE_ENTRIES:
            left.extend(inner for inner in value if isinstance(inner, (Mapping, list, tuple)))
    return entries > LARGE_ENTRIES
