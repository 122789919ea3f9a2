"""The object store of a simulated world: it is slow, fails, and does what it says has failed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Final

from semel.broker.tiers.object_store import Level, ObjectMissingError, ObjectStoreError
from semel.runtime.storage import Buffer
from simulation.loop import Process, Scheduler

_LONGEST_S: Final = 0.4


class SimulatedObjects:
    """Outlives every node. What fails is drawn for each request."""

    def __init__(self, scheduler: Scheduler, chance: random.Random) -> None:
        self.chance = chance
        self.objects: dict[str, bytes] = {}
        self.is_away = False
        self.failed_share = 0.0
        """How many requests fail before they have an effect."""
        self.lost_share = 0.0
        """How many take effect, and say that they failed."""
        self._scheduler = scheduler

    def of(self, process: Process) -> NodesObjects:
        """Return the way of a node's process to the store."""
        return NodesObjects(self, process)


class NodesObjects:
    """One process's way to the store (`ObjectStore`)."""

    location = "simulated://"

    def __init__(self, store: SimulatedObjects, process: Process) -> None:
        self._store = store
        self._process = process

    async def _ask(self, what: str) -> bool:
        """Wait a while, and return whether the answer will be lost. Raises `ObjectStoreError`."""
        store = self._store
        await asyncio.sleep(_LONGEST_S * store.chance.random() ** 3)
        fate = store.chance.random()
        if store.is_away or fate < store.failed_share:
            raise ObjectStoreError(f"the simulated store did not {what}")
        return fate > 1 - store.lost_share

    async def _answer(self, is_lost: bool, what: str) -> None:
        await asyncio.sleep(_LONGEST_S * self._store.chance.random() ** 3)
        if is_lost:
            raise ObjectStoreError(f"the simulated store's answer to {what} was lost")

    async def put(self, key: str, data: Iterator[Buffer], size_bytes: int) -> None:
        body = b"".join(bytes(piece) for piece in data)
        is_lost = await self._ask(f"put {key}")
        self._store.objects[key] = body
        await self._answer(is_lost, f"put {key}")

    async def read(self, key: str, position: int, size_bytes: int) -> bytes:
        await self._ask(f"read {key}")
        if key not in self._store.objects:
            raise ObjectMissingError(f"there is no {key}")
        return self._store.objects[key][position : position + size_bytes]

    async def size(self, key: str) -> int:
        await self._ask(f"find {key}")
        if key not in self._store.objects:
            raise ObjectMissingError(f"there is no {key}")
        return len(self._store.objects[key])

    async def level(self, prefix: str) -> Level:
        await self._ask(f"list {prefix}")
        rest = {key[len(prefix) :] for key in self._store.objects if key.startswith(prefix)}
        folders = sorted({f"{prefix}{one.split('/')[0]}/" for one in rest if "/" in one})
        return Level(folders, sorted(f"{prefix}{one}" for one in rest if "/" not in one))

    async def delete(self, key: str) -> None:
        is_lost = await self._ask(f"delete {key}")
        self._store.objects.pop(key, None)
        await self._answer(is_lost, f"delete {key}")

    async def list(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        await self._ask(f"list {prefix}")
        for key in sorted(self._store.objects):
            if key.startswith(prefix):
                yield key, len(self._store.objects[key])

    def look(self, key: str) -> bytes:
        """Return an object at once, for the judge."""
        return self._store.objects[key]

    def close(self) -> None:
        """The objects stay."""
