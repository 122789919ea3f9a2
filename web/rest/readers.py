"""Consumers for polls and streams of records: lent to one request at a time, and kept for the next."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from semel.aio import Consumer
from semel.web.problems import Problem
from semel.web.rest.background import Background, close_quietly
from semel.web.rest.bounds import IDLE_READERS_MAX, POLL_BYTES, POLL_BYTES_MAX, RETRY_AFTER_S

if TYPE_CHECKING:
    from semel.protocol.ids import TopicPartition
    from semel.web.gateway import Caller, Gateway

_PATIENCE_MS = 20_000


class Readers:
    """At most `at_most` consumers in use. They belong to no group: each reads one partition from a given offset."""

    def __init__(self, gateway: Gateway, background: Background, at_most: int) -> None:
        self._gateway = gateway
        self._background = background
        self._at_most = at_most
        self._in_use = 0
        self._idle: list[tuple[Caller, str, Consumer]] = []
        self._is_closed = False

    @asynccontextmanager
    async def at(
        self, caller: Caller, partition: TopicPartition, offset: int, isolation: str = "read_committed"
    ) -> AsyncIterator[Consumer]:
        """Lend a consumer that stands at an offset of a partition. Raises `Problem` 503 where all are in use."""
        if self._in_use >= self._at_most:
            raise Problem(
                503,
                f"{self._in_use} polls and streams are open: try again, or have fewer at a time",
                error_code=50301,
                retry_after_s=RETRY_AFTER_S,
            )
        self._in_use += 1
        consumer = self._taken(caller, isolation)
        try:
            consumer.assign({partition: offset})
            yield consumer
            await consumer.unsubscribe()
        except BaseException:
            self._background.start(close_quietly(consumer))
            raise
        else:
            self._give_back(caller, isolation, consumer)
        finally:
            self._in_use -= 1

    def _taken(self, caller: Caller, isolation: str) -> Consumer:
        for place, (owner, kind, consumer) in enumerate(self._idle):
            if (owner, kind) == (caller, isolation):
                del self._idle[place]
                return consumer
        return self._gateway.clients(caller).consumer(
            isolation=isolation,
            offset_reset="error",
            max_bytes=POLL_BYTES_MAX,
            max_partition_bytes=POLL_BYTES,
            buffered_bytes_max=POLL_BYTES_MAX,
            api_timeout_ms=_PATIENCE_MS,
            request_timeout_ms=_PATIENCE_MS,
        )

    def _give_back(self, caller: Caller, isolation: str, consumer: Consumer) -> None:
        self._idle.append((caller, isolation, consumer))
        while len(self._idle) > (0 if self._is_closed else IDLE_READERS_MAX):
            _, _, oldest = self._idle.pop(0)
            self._background.start(close_quietly(oldest))

    async def close(self) -> None:
        self._is_closed = True
        while self._idle:
            _, _, consumer = self._idle.pop()
            await close_quietly(consumer)
