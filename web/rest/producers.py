"""Producers outside transactions: one for each user, which all requests share."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from semel.aio import Producer
from semel.web.rest.background import Background, close_quietly
from semel.web.rest.bounds import PRODUCERS_MAX

if TYPE_CHECKING:
    from semel.web.gateway import Caller, Gateway

_BUFFER_BYTES = 32 << 20
_PATIENCE_MS = 20_000


class Producers:
    """Makes producers as they are needed; those that were not used for the longest are closed where they are many."""

    def __init__(self, gateway: Gateway, background: Background) -> None:
        self._gateway = gateway
        self._background = background
        self._by_caller: OrderedDict[Caller, Producer] = OrderedDict()

    def of(self, caller: Caller) -> Producer:
        """Return the producer of a caller. Do not close it."""
        producer = self._by_caller.get(caller)
        if producer is None:
            producer = self._by_caller[caller] = self._gateway.clients(caller).producer(
                linger_ms=1,
                buffer_memory_bytes=_BUFFER_BYTES,
                max_block_ms=_PATIENCE_MS,
                delivery_timeout_ms=_PATIENCE_MS,
                request_timeout_ms=_PATIENCE_MS // 2,
            )
        self._by_caller.move_to_end(caller)
        while len(self._by_caller) > PRODUCERS_MAX:
            _, oldest = self._by_caller.popitem(last=False)
            self._background.start(close_quietly(oldest))
        return producer

    async def close(self) -> None:
        while self._by_caller:
            _, producer = self._by_caller.popitem()
            await close_quietly(producer)
