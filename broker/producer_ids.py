"""Producer ids: drawn one by one from blocks that the metadata gives this node, so no id is ever given twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from semel.broker.metadata.changes import Change, ProducerIdsAllocated
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.int_bounds import INT64_MAX

BLOCK_SIZE: Final = 1000
SKIPPED: Final = 1_000_000_000
"""More than the changes that a database can have lost have given."""


def beyond_lost(next_producer_id: int) -> int:
    """Return the first id that no lost change can have given, where `next_producer_id` was the next that was known."""
    return min(next_producer_id + SKIPPED, INT64_MAX)


def skipped_up_to(end: int, image: MetadataImage, node_id: int) -> list[Change]:
    """Leave out the ids below `end`: logs and clients still have what lost changes gave (P1)."""
    first = image.next_producer_id
    return [ProducerIdsAllocated(node_id, first, end - first)] if end > first else []


class ProducerIds:
    """Gives producer ids. What is left of a block is lost at a restart, as in Kafka."""

    def __init__(self, metadata: Metadata, node_id: int) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._next = 0
        self._end = 0
        self._chosen: int | None = None
        """Where the first block begins, until the registration is written."""
        self._allocating = asyncio.Lock()

    def first_block(self, image: MetadataImage, before: Sequence[Change]) -> list[Change]:
        """Return the block that a start takes with its registration; nothing where too few ids are left.

        So new producers are served from the beginning, also while the database is away. `registered` says that it is
        written. Each start uses a block up, and may: there are 2^63 ids.

        image: the one before the registration; before: what it changes besides
        """
        given = (change.first + change.count for change in before if isinstance(change, ProducerIdsAllocated))
        first = max(image.next_producer_id, *given, 0)
        self._chosen = first if first <= INT64_MAX - BLOCK_SIZE else None
        return [] if self._chosen is None else [ProducerIdsAllocated(self._node_id, first, BLOCK_SIZE)]

    def registered(self) -> None:
        """Give ids of the block that `first_block` chose last."""
        if self._chosen is not None:
            self._next, self._end = self._chosen, self._chosen + BLOCK_SIZE
            self._chosen = None

    async def next_producer_id(self) -> int:
        """Return a producer id that nobody else has or had. Raises `SemelError` where the metadata can't be written."""
        while self._next >= self._end:
            async with self._allocating:
                if self._next >= self._end:
                    await self._allocate()
        self._next += 1
        return self._next - 1

    async def _allocate(self) -> None:
        first = 0

        def decide(image: MetadataImage) -> list[Change]:
            nonlocal first
            first = image.next_producer_id
            if first > INT64_MAX - BLOCK_SIZE:
                raise FatalError("all producer ids have been given out", ErrorCode.UNKNOWN_SERVER_ERROR)
            return [ProducerIdsAllocated(self._node_id, first, BLOCK_SIZE)]

        await self._metadata.change(decide)
        self._next, self._end = first, first + BLOCK_SIZE
