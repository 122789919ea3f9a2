"""A test's broker for coroutines: every method of `Broker` that waits, awaited instead."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record

if TYPE_CHECKING:
    from semel.sdk.testing.broker import Broker, Unsynced


class AioBroker:
    """What `async with semel.testing.Broker()` gives, and `Broker.aio`. Arguments and errors are those of `Broker`.

    Faults are planted and taken back within a millisecond or so, so they are not here: `sync` is the `Broker` itself,
    and `with broker.sync.drop_commit_answer() as dropped:` is right in a coroutine, too.
    """

    def __init__(self, broker: Broker) -> None:
        self.sync = broker

    @property
    def bootstrap(self) -> str:
        return self.sync.bootstrap

    @property
    def kafka(self) -> str:
        return self.sync.kafka

    async def start(self) -> None:
        await asyncio.to_thread(self.sync.start)

    async def stop(self) -> None:
        await asyncio.to_thread(self.sync.stop)

    async def kill(self, unsynced: Unsynced | None = None) -> None:
        """`None`: what was not synced is lost."""
        await (asyncio.to_thread(self.sync.kill) if unsynced is None else asyncio.to_thread(self.sync.kill, unsynced))

    async def restart(self, unsynced: Unsynced | None = None) -> None:
        await self.kill(unsynced)
        await self.start()

    async def reset(self) -> None:
        await asyncio.to_thread(self.sync.reset)

    async def close(self) -> None:
        await asyncio.to_thread(self.sync.close)

    async def create_topic(
        self, name: str | None = None, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        return await asyncio.to_thread(self.sync.create_topic, name, partitions=partitions, configs=configs)

    async def delete_topic(self, name: str) -> None:
        await asyncio.to_thread(self.sync.delete_topic, name)

    async def records(
        self,
        topic: str,
        *,
        uncommitted: bool = False,
        partition: int | None = None,
        at_least: int = 0,
        timeout: float = 10.0,  # noqa: ASYNC109  (it is `Broker`'s)
    ) -> list[Record]:
        return await asyncio.to_thread(
            self.sync.records,
            topic,
            uncommitted=uncommitted,
            partition=partition,
            at_least=at_least,
            timeout=timeout,
        )

    async def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        return await asyncio.to_thread(self.sync.committed_offsets, group)

    async def advance(self, seconds: float) -> None:
        await asyncio.to_thread(self.sync.advance, seconds)

    async def fence_producer(self, transactional_id: str) -> None:
        await asyncio.to_thread(self.sync.fence_producer, transactional_id)

    async def disconnect(self) -> None:
        await asyncio.to_thread(self.sync.disconnect)
