"""The remote storage of one node: looks up, copies, retains and cleans up, in the background (KIP-405).

Whoever leads a partition looks up what is in the remote storage before he serves it, copies its closed segments, and
deletes there what retention says. Each node lets go of what it has of them on its disk by the local retention. What is
to be deleted is deleted a while later, so that readers can finish.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from semel.broker.logs.partition import Partition
from semel.broker.tiers.copying import Copier
from semel.broker.tiers.partition_tier import PartitionTier
from semel.broker.tiers.remote_log import RemoteSegment
from semel.broker.tiers.remote_storage import RemoteStorage
from semel.broker.tiers.rows import Garbage
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition, format_topic_id

_log = logging.getLogger("semel.tiers")

_COPIES_AT_ONCE: Final = 4
_DELETES_AT_ONCE: Final = 8
_AGAIN_S: Final = 1.0
_TELL_EVERY_S: Final = 60.0
_UNLIMITED: Final = -1


class Tier:
    """What a node does with its remote storage. `run` until it is cancelled, then `close`."""

    def __init__(
        self, storage: RemoteStorage, take_parts: Callable[[Collection[TopicPartition]], Awaitable[None]]
    ) -> None:
        """take_parts: has partitions take their parts again whose logs were begun again."""
        self.storage = storage
        self.copier = Copier(storage)
        self._node = storage.node
        self._rows = storage.rows
        self._take_parts = take_parts
        self._wake = asyncio.Event()
        self._told: dict[str, float] = {}
        self.error = ""
        """Why the last attempt failed to reach the rows or to clean up; empty where it did not."""

    # --- For those who look at it -------------------------------------------------------------------------------------

    @property
    def location(self) -> str:
        return self.storage.store.location

    @property
    def copied_segments(self) -> int:
        return self.copier.copied_segments

    @property
    def copied_bytes(self) -> int:
        return self.copier.copied_bytes

    @property
    def read_bytes(self) -> int:
        return self.storage.reader.read_bytes

    @property
    def failed_reads(self) -> int:
        return self.storage.reader.failures

    @property
    def cached_bytes(self) -> int:
        return self.storage.reader.cached_bytes

    def requests(self) -> dict[str, int]:
        counted = self.storage.requests
        return {"read": self.storage.reader.requests, "put": counted["put"], "delete": counted["delete"]}

    def troubles(self) -> dict[TopicPartition, str]:
        return {one.partition.tp: why for one in self.parts() if (why := one.error or one.read_error)}

    def bytes_to_copy(self) -> int:
        return sum(one.bytes_to_copy for one in self.parts() if one.partition.leader is not None)

    # --- Partitions ---------------------------------------------------------------------------------------------------

    def part_of(self, partition: Partition) -> PartitionTier:
        """Return what a partition asks of the remote storage, to be attached to it."""
        return PartitionTier(self.storage, partition, self.wake)

    def parts(self) -> list[PartitionTier]:
        """Return those of all partitions that are here and have any."""
        return [
            one.tier
            for one in self._node.logs.partitions()
            if isinstance(one.tier, PartitionTier) and one.offline_error is None
        ]

    def wake(self) -> None:
        """Look up now what is not known."""
        self._wake.set()

    # --- What is done in the background -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do all of it until cancelled. What fails is told, and tried again."""
        what, prepare = "prepare the rows of the remote storage", lambda: self.storage.ask(self._rows.create)
        while not await self._guard(what, prepare):  # noqa: ASYNC110  # nothing says when the database is back
            await asyncio.sleep(_AGAIN_S)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_looking_up())
            group.create_task(self._keep_working())

    async def close(self) -> None:
        await self.storage.close()

    async def _keep_looking_up(self) -> None:
        while True:
            self._wake.clear()
            unknown = [one for one in self.parts() if not one.is_known]
            unknown.sort(key=lambda one: one.partition.leader is None)
            failed = False
            for part in unknown:
                failed |= not await self._guard_part(part, "look up what the remote storage has", self._look_up(part))
            try:
                async with asyncio.timeout(_AGAIN_S if failed else None):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _keep_working(self) -> None:
        while True:
            await asyncio.sleep(self._node.config.remote_log_manager_task_interval_ms / 1000)
            await self._guard("look for changes of other nodes", self.follow_others)
            slots = asyncio.Semaphore(_COPIES_AT_ONCE)
            await asyncio.gather(*(self._work_on(part, slots) for part in self.parts()))
            await self._guard("clean up the remote storage", self.clean_up)

    async def _work_on(self, part: PartitionTier, slots: asyncio.Semaphore) -> None:
        if part.partition.leader is None or not part.is_known:
            return
        async with slots:
            if await self._guard_part(part, "apply the retention", self.retain(part)):
                await self._guard_part(part, "copy a segment", self.copier.copy_all(part))

    # --- One step each ------------------------------------------------------------------------------------------------

    async def _look_up(self, part: PartitionTier) -> None:
        async with part.changing:
            remote = await self.storage.ask(lambda: self._rows.load(part.key))
            partition = part.partition
            if not part.is_current:
                return
            if partition.leader is not None and partition.log_end_offset < remote.end_offset:
                await self._restore(part, remote.segments[-1] if remote.segments else None, remote.end_offset)
                return
            part.take(remote)

    async def _restore(self, part: PartitionTier, last: RemoteSegment | None, end_offset: int) -> None:
        """Let a leader's log continue where the remote storage ends: what this disk had of it before is gone (D3)."""
        partition = part.partition
        producers = b""
        if last is not None and last.producers.size_bytes:
            producers = await self.storage.store.read(last.key, last.producers.position, last.producers.size_bytes)
        _log.warning(
            "%s: the log on this disk ends at %d, and the remote storage has it up to %d: it continues there",
            partition.tp, partition.log_end_offset, end_offset,
        )  # fmt: skip
        if await self._node.logs.continue_at(partition, end_offset, producers):
            await self._take_parts([partition.tp])

    async def follow_others(self) -> None:
        """Learn what other nodes have copied of the partitions that are followed here, for the local retention."""
        followed = [one for one in self.parts() if one.is_known and one.partition.leader is None]
        if not followed:
            return
        versions = await self.storage.ask(lambda: self._rows.versions([one.key for one in followed]))
        for part in followed:
            if versions.get(part.key, 0) != part.remote.version:
                part.look_up()

    async def retain(self, part: PartitionTier) -> None:
        """Delete in the remote storage what retention says, or what is below the start of the log (D6)."""
        partition, log, config = part.partition, part.partition.log, part.partition.config
        async with part.changing:
            excess = None
            if config.is_deleted and config.retention_bytes != _UNLIMITED:
                here_alone = sum(one.size for one in log.segments if one.base_offset >= part.remote.end_offset)
                excess = part.remote.size_bytes + here_alone - config.retention_bytes
            due = part.remote.due(
                log_start_offset=log.log_start_offset,
                retention_ms=config.retention_ms if config.is_deleted else _UNLIMITED,
                excess_bytes=excess,
                now_ms=self.storage.now_ms,
            )
            start = max(log.log_start_offset, due[-1].end_offset if due else 0)
            if not part.remote.version or start <= part.remote.start_offset:
                return
            await part.change(lambda known: self._rows.move_start(part.key, known, start, self.storage.now_ms))
            if part.is_current and partition.leader is not None and start > log.log_start_offset:
                partition.delete_records(start)

    async def clean_up(self) -> None:
        """Delete the objects that nobody wants any more, and then their rows."""
        led = [one.key for one in self.parts() if one.partition.leader is not None and one.is_known]
        now_ms = self.storage.now_ms
        if led:
            await self.storage.ask(
                lambda: self._rows.give_up_copies(led, busy=frozenset(self.copier.busy), now_ms=now_ms)
            )
            before_ms = now_ms - self._node.config.log_segment_delete_delay_ms
            await self._delete(await self.storage.ask(lambda: self._rows.garbage(led, deleted_before_ms=before_ms)))
        if self._node.metadata.is_controller:
            await self._clean_up_topics()

    async def _clean_up_topics(self) -> None:
        """Delete what is left of topics that were deleted: the newest metadata, read after the rows, lacks them."""
        noted = await self.storage.ask(self._rows.topic_ids)
        if not noted:
            return
        image = await self._node.metadata.refresh()
        there = {format_topic_id(topic.topic_id) for topic in image.topics.values()}
        for topic_id in sorted(noted - there):
            while garbage := await self.storage.ask(lambda topic_id=topic_id: self._rows.of_topic(topic_id)):  # type: ignore[misc]
                await self._delete_objects(garbage)
                await self.storage.ask(lambda garbage=garbage: self._rows.forget(garbage, copied_too=True))  # type: ignore[misc]
            await self.storage.ask(lambda topic_id=topic_id: self._rows.forget_topic(topic_id))  # type: ignore[misc]
            _log.info("what the remote storage had of topic %s is deleted, as the topic is", topic_id)

    async def _delete(self, garbage: list[Garbage]) -> None:
        if garbage:
            await self._delete_objects(garbage)
            await self.storage.ask(lambda: self._rows.forget(garbage))

    async def _delete_objects(self, garbage: list[Garbage]) -> None:
        slots = asyncio.Semaphore(_DELETES_AT_ONCE)

        async def delete(one: Garbage) -> None:
            async with slots:
                self.storage.requests["delete"] += 1
                await self.storage.store.delete(one.key)

        outcomes = await asyncio.gather(*(delete(one) for one in garbage), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # --- When it fails ------------------------------------------------------------------------------------------------

    async def _guard(self, what: str, step: Callable[[], Awaitable[object]]) -> bool:
        """Take a step, and tell why it failed. Returns whether it did not."""
        self.error = await self._failure(what, step())
        return not self.error

    async def _guard_part(self, part: PartitionTier, what: str, step: Awaitable[object]) -> bool:
        part.error = await self._failure(f"{what} of {part.partition.tp}", step)
        return not part.error

    async def _failure(self, what: str, step: Awaitable[object]) -> str:
        try:
            await step
        except (SemelError, OSError) as error:
            message = error.message if isinstance(error, SemelError) else str(error)
            now_s = self._node.clock.monotonic()
            if now_s - self._told.get(what, float("-inf")) >= _TELL_EVERY_S:
                self._told[what] = now_s
                _log.error("could not %s, and it is tried again: %s", what, message)
            return f"could not {what}: {message}"
        except Exception as error:
            _log.exception("could not %s", what)
            return f"could not {what}: {error!r}"
        self._told.pop(what, None)
        return ""
