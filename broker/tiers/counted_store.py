"""Counts what is asked of an object store: requests and bytes are what it costs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

from semel.broker.tiers.object_store import PIECE_BYTES, Level, ObjectStore
from semel.runtime.storage import Buffer

PUT: Final = "put"
GET: Final = "get"
DELETE: Final = "delete"
LIST: Final = "list"
_KEYS_PER_LIST: Final = 1_000
"""So many keys one answer to a list has in S3."""


def puts_of(size_bytes: int) -> int:
    """Return how many puts an upload of so many bytes is."""
    return 1 if size_bytes < PIECE_BYTES else 2 + -(-size_bytes // PIECE_BYTES)


class CountedStore:
    """An object store with counts by kind, as S3 counts. Failed requests are among them; what the library repeats is
    not.

    An upload in pieces is several puts: one that begins it, one for each piece, and one that completes it.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.requests: Final = dict.fromkeys((PUT, GET, DELETE, LIST), 0)
        self.sent_bytes = 0
        self.read_bytes = 0

    @property
    def location(self) -> str:
        return self._store.location

    async def put(self, key: str, data: Iterator[Buffer], size_bytes: int) -> None:
        self.requests[PUT] += 1
        sent = _Sent(data)
        try:
            await self._store.put(key, iter(sent), size_bytes)
        finally:
            self.sent_bytes += sent.size_bytes
            if size_bytes >= PIECE_BYTES:
                self.requests[PUT] += -(-sent.size_bytes // PIECE_BYTES)
        if size_bytes >= PIECE_BYTES:
            self.requests[PUT] += 1

    async def read(self, key: str, position: int, size_bytes: int) -> bytes:
        self.requests[GET] += 1
        data = await self._store.read(key, position, size_bytes)
        self.read_bytes += len(data)
        return data

    async def size(self, key: str) -> int:
        self.requests[GET] += 1
        return await self._store.size(key)

    async def delete(self, key: str) -> None:
        self.requests[DELETE] += 1
        await self._store.delete(key)

    async def list(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        self.requests[LIST] += 1
        count = 0
        async for one in self._store.list(prefix):
            if count and count % _KEYS_PER_LIST == 0:
                self.requests[LIST] += 1
            count += 1
            yield one

    async def level(self, prefix: str) -> Level:
        self.requests[LIST] += 1
        return await self._store.level(prefix)

    def close(self) -> None:
        self._store.close()


class _Sent:
    """Buffers as they are taken, and how large they were."""

    def __init__(self, data: Iterator[Buffer]) -> None:
        self._data = data
        self.size_bytes = 0

    def __iter__(self) -> Iterator[Buffer]:
        for piece in self._data:
            self.size_bytes += memoryview(piece).nbytes
            yield piece
