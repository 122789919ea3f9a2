"""An object store in memory whose requests can be held, fail, or do their work and lose the answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

from semel.broker.tiers.object_store import Level, ObjectMissingError, ObjectStoreError
from semel.runtime.storage import Buffer

Fault = Callable[[str, str], str]
"""Is asked with the kind of a request and its key, and answers "", "fail" or "lose" (done, and the answer lost)."""


class MemoryObjects:
    """Objects by key; `requests` counts what was asked for."""

    location = "memory://"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.read_bytes = 0
        self.fault: Fault = lambda kind, key: ""
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Let no request come back until `let_go`."""
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    async def _ask(self, kind: str, key: str) -> str:
        self.requests[kind] += 1
        await asyncio.sleep(0)
        await self._open.wait()
        planned = self.fault(kind, key)
        if planned == "fail":
            raise ObjectStoreError(f"the store failed to {kind} {key}, as planned")
        return planned

    async def put(self, key: str, data: Iterator[Buffer], size_bytes: int) -> None:
        planned = await self._ask("put", key)
        self.objects[key] = b"".join(bytes(piece) for piece in data)
        if planned == "lose":
            raise ObjectStoreError(f"the answer to put {key} is lost, as planned")

    async def read(self, key: str, position: int, size_bytes: int) -> bytes:
        await self._ask("read", key)
        if key not in self.objects:
            raise ObjectMissingError(f"there is no {key}")
        data = self.objects[key][position : position + size_bytes]
        self.read_bytes += len(data)
        return data

    async def size(self, key: str) -> int:
        await self._ask("size", key)
        if key not in self.objects:
            raise ObjectMissingError(f"there is no {key}")
        return len(self.objects[key])

    async def delete(self, key: str) -> None:
        planned = await self._ask("delete", key)
        self.objects.pop(key, None)
        if planned == "lose":
            raise ObjectStoreError(f"the answer to delete {key} is lost, as planned")

    async def level(self, prefix: str) -> Level:
        await self._ask("list", prefix)
        below = [key[len(prefix) :].partition("/") for key in self.objects if key.startswith(prefix)]
        folders = {prefix + name + slash for name, slash, _ in below if slash}
        return Level(sorted(folders), sorted(prefix + name for name, slash, _ in below if not slash))

    def close(self) -> None:
        """They stay."""

    async def list(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        await self._ask("list", prefix)
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield key, len(self.objects[key])
