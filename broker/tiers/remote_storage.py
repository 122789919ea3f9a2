"""What all work with a node's remote storage shares: the store, the rows, the reader, and the threads beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from typing import Final, TypeVar

from semel.broker.metadata.off_loop import call_off_loop
from semel.broker.services import Services
from semel.broker.tiers.counted_store import CountedStore
from semel.broker.tiers.object_store import ObjectStore
from semel.broker.tiers.reading import RemoteReader
from semel.broker.tiers.rows import RemoteRows
from semel.broker.tiers.store_quotas import StoreQuotas
from semel.runtime.threads import Threads

T = TypeVar("T")

_DELETES_AT_ONCE: Final = 8


class RemoteStorage:
    """One of a node. `close` when it stops."""

    def __init__(self, node: Services, store: ObjectStore, rows: RemoteRows, executor: Executor | None = None) -> None:
        """`executor` runs what waits for the database or the disk, in place of threads of its own."""
        self.node = node
        self.store = CountedStore(store)
        self.since_ms = node.clock.now_ms()
        """Since when its requests are counted."""
        self.rows = rows
        self.quotas = StoreQuotas(lambda: node.config, node.clock)
        self.reader = RemoteReader(
            self.store,
            node.clock,
            cache_bytes=node.config.remote_log_reader_cache_bytes,
            executor=executor,
            admit=self.quotas.fetch,
        )
        self._database: Executor = executor or Threads(1, "semel-remote-rows")
        self._files: Executor = executor or Threads(1, "semel-remote-files")

    @property
    def cluster_id(self) -> str:
        return self.node.metadata.image.cluster_id

    @property
    def node_id(self) -> int:
        return self.node.config.node_id

    @property
    def now_ms(self) -> int:
        return self.node.clock.now_ms()

    async def ask(self, call: Callable[[], T]) -> T:
        """Ask the database. Raises `SemelError`."""
        return await call_off_loop(self._database, self.rows, call)

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Read files of the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._files, call)

    async def delete(self, keys: Collection[str]) -> None:
        """Delete objects. Raises `SemelError`; then some of them may be there still."""
        slots = asyncio.Semaphore(_DELETES_AT_ONCE)

        async def delete(key: str) -> None:
            async with slots:
                await self.store.delete(key)

        outcomes = await asyncio.gather(*map(delete, keys), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def close(self) -> None:
        await self.reader.close()
        self._database.shutdown()
        self._files.shutdown(wait=False)
        self.rows.close()
        self.store.close()
