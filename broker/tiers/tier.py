"""The remote storage of one node: looks up, copies, retains and cleans up, in the background (KIP-405).

The leader of a partition looks up what is in the remote storage before it serves, copies its closed segments, and
deletes there what retention says. Each node lets go of what it has of them on its disk by the local retention. What is
to be deleted is deleted a while later, so that readers can finish.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol

from semel.broker.log.config import UNLIMITED
from semel.broker.logs.partition import Partition
from semel.broker.services import Commits
from semel.broker.tiers.copying import Copier
from semel.broker.tiers.object_store import longest_upload_ms
from semel.broker.tiers.partition_tier import PartitionTier
from semel.broker.tiers.remote_log import RemoteLog, RemoteSegment
from semel.broker.tiers.remote_storage import RemoteStorage
from semel.broker.tiers.restoring import batches_of, beginning_of
from semel.broker.tiers.rows import Garbage, PartitionKey
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import TopicPartition, format_topic_id
from semel.runtime.storage import Buffer
from semel.runtime.turns import in_turns

_log = logging.getLogger("semel.tiers")

_AGAIN_S: Final = 1.0
_AGAIN_S_MAX: Final = 8.0
_PAUSE_LOOKS: Final = 9
"""A look through very many partitions is repeated after so many times as long, though each of them asks for it."""
WORKED_S: Final = 0.25
"""A partition is not looked at again before so much time, however many records wait to be copied."""
SWITCHING_AGAIN_S: Final = 0.5
_PAUSES_MAX: Final = 5
"""So often the pause after a failure doubles."""
_TELL_EVERY_S: Final = 60.0
_TOLD_MAX: Final = 1_000


class Tail(Protocol):
    """What comes behind the segments of diskless topics: `broker.diskless`. Raises `SemelError`."""

    on_many: Callable[[PartitionTier], None]
    """Is called with a partition of which so much is there that it is to be copied now."""

    @property
    def error(self) -> str:
        """Why nothing is committed now; empty where it is."""
        ...

    def committed(self) -> Commits:
        """Return what was committed since the node's start, and what waits for that."""
        ...

    async def look_up(self, part: PartitionTier) -> None:
        """Take over a partition that this node leads from now on, and serve it."""
        ...

    async def begin_to_copy(self, part: PartitionTier) -> None:
        """Drop what others have copied of a partition that is to become diskless, where that does not count."""
        ...

    def served(self, part: PartitionTier) -> None:
        """Take note that a partition that is to become diskless is served from now on."""
        ...

    async def before_copying(self, part: PartitionTier) -> None:
        """Close the active segment where much is in it; drop what others have copied that does not count. Raises
        `OSError`, too.
        """
        ...

    def claim_to_copy(self, part: PartitionTier) -> str:
        """Return the claim under which the segments of a compacted log are replaced; "" where there is none."""
        ...

    def doing(self, part: PartitionTier) -> str:
        """Return what `after_copying` does, for the log: `<doing> of a partition`."""
        ...

    async def after_copying(self, part: PartitionTier) -> None:
        """Let go of what is in segments by now, or deleted."""
        ...

    async def clean_up(self) -> None:
        """Delete what nobody wants any more."""
        ...

    async def topic_ids(self) -> set[str]:
        """Return the topics, by the text of their ids, of which there is anything."""
        ...

    async def forget_topic(self, topic_id: str) -> None:
        """Let go of all that there is of a topic that was deleted."""
        ...

    def cancel(self) -> None:
        """Begin nothing more."""
        ...

    def close(self) -> None:
        """Ask for nothing more."""
        ...


class Tier:
    """What a node does with its remote storage. `run` until it is cancelled, then `close`."""

    def __init__(
        self,
        storage: RemoteStorage,
        take_parts: Callable[[Collection[TopicPartition]], Awaitable[None]],
        tail: Tail,
    ) -> None:
        """take_parts: has partitions take their parts again whose logs were begun again."""
        self.storage = storage
        self._tail = tail
        self._tail.on_many = self._work_now
        self.copier = Copier(storage, tail.claim_to_copy)
        self._node = storage.node
        self._rows = storage.rows
        self._take_parts = take_parts
        self._wake = asyncio.Event()
        self._looking_up: dict[PartitionTier, asyncio.Task[None]] = {}
        self._working: dict[PartitionTier, asyncio.Task[None]] = {}
        self._told: dict[str, float] = {}
        self._pauses_s: dict[PartitionKey, float] = {}
        """Before partitions are looked up again that could not be."""
        self._error = ""
        """Why the last attempt failed to reach the rows or to clean up; empty where it did not."""

    # --- For those who look at it -------------------------------------------------------------------------------------

    @property
    def error(self) -> str:
        return self._tail.error or self._error

    @property
    def location(self) -> str:
        return self.storage.store.location

    @property
    def copied_segments(self) -> int:
        return self.copier.copied_segments

    @property
    def counted_since_ms(self) -> int:
        return self.storage.since_ms

    @property
    def sent_bytes(self) -> int:
        return self.storage.store.sent_bytes

    @property
    def read_bytes(self) -> int:
        return self.storage.store.read_bytes

    @property
    def failed_reads(self) -> int:
        return self.storage.reader.failures

    @property
    def cached_bytes(self) -> int:
        return self.storage.reader.cached_bytes

    def requests(self) -> dict[str, int]:
        return dict(self.storage.store.requests)

    def throttled_s(self) -> dict[str, float]:
        return dict(self.storage.quotas.throttled_s)

    def stored_bytes(self) -> int:
        return sum(one.remote.stored_bytes for one in self.parts() if one.partition.leader is not None)

    async def stored_by_topic(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        async for part in in_turns(self.parts()):
            if part.partition.leader is not None and part.remote.segments:
                objects, size_bytes = found.get(part.partition.tp.topic, (0, 0))
                found[part.partition.tp.topic] = (
                    objects + len(part.remote.segments),
                    size_bytes + part.remote.stored_bytes,
                )
        return found

    def committed(self) -> Commits:
        return self._tail.committed()

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
        """Do all of it until cancelled. What fails is logged, and tried again."""
        what, prepare = "prepare the rows of the remote storage", lambda: self.storage.ask(self._rows.create)
        while not await self._guard(what, prepare):  # noqa: ASYNC110  # nothing says when the database is back
            await asyncio.sleep(_AGAIN_S)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_looking_up())
            group.create_task(self._keep_switching())
            group.create_task(self._keep_working())

    async def close(self) -> None:
        """Stop. What is being copied is not finished, and is copied again."""
        tasks = self._cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tail.close()
        await self.storage.close()

    def abandon(self) -> None:
        """End as a killed process does."""
        self._cancel()
        self._tail.cancel()
        self.storage.reader.cancel()

    def _cancel(self) -> list[asyncio.Task[None]]:
        tasks = [*self._looking_up.values(), *self._working.values()]
        for task in tasks:
            task.cancel()
        return tasks

    async def _keep_looking_up(self) -> None:
        """Look up what is not known: each partition for itself, since one may wait for the store."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            self._wake.clear()
            unknown = [one for one in self.parts() if not one.is_known and one not in self._looking_up]
            unknown.sort(key=lambda one: one.partition.leader is None)
            took_s = loop.time() - began_s
            async for part in in_turns(unknown):
                self._begin(self._looking_up, part, self._look_up_once(part))
            await self._wake.wait()
            await asyncio.sleep(_PAUSE_LOOKS * took_s)

    async def _look_up_once(self, part: PartitionTier) -> None:
        # After a failure the pause grows: each attempt may read much. It is the partition's, whose log may be another.
        await asyncio.sleep(self._pauses_s.get(part.key, 0.0))
        look_up = self._tail.look_up(part) if part.is_diskless else self._look_up(part)
        if await self._guard_part(part, "look up what the remote storage has", look_up):
            self._pauses_s.pop(part.key, None)
        else:
            if len(self._pauses_s) >= _TOLD_MAX:
                self._pauses_s.clear()
            self._pauses_s[part.key] = min(max(_AGAIN_S, 2 * self._pauses_s.get(part.key, 0.0)), _AGAIN_S_MAX)
            for one in self.parts():
                if one.key == part.key:
                    one.error = part.error  # also where the log was begun again before it failed

    def _begin(
        self, running: dict[PartitionTier, asyncio.Task[None]], part: PartitionTier, work: Coroutine[Any, Any, None]
    ) -> None:
        """Do something for a partition, beside all others."""
        task = running[part] = asyncio.get_running_loop().create_task(
            work, name=f"remote storage of {part.partition.tp}"
        )

        def done(_: object) -> None:
            del running[part]
            if not part.is_known:
                self._wake.set()  # it was asked for again meanwhile, or is to be tried again

        task.add_done_callback(done)

    async def _keep_working(self) -> None:
        while True:
            await asyncio.sleep(self._node.config.remote_log_manager_task_interval_ms / 1000)
            await self._guard("look for changes of other nodes", self.follow_others)
            now_s = self._node.clock.monotonic()
            for part in self.parts():
                is_led = part.partition.leader is not None and part.is_known
                if is_led and part not in self._working and now_s >= part.again_s:
                    self._begin(self._working, part, self._work_on(part))
            await self._guard("clean up the remote storage", self.clean_up)

    async def _keep_switching(self) -> None:
        """Look soon again after partitions that are to become diskless: somebody waits for that."""
        looked_at, is_any = None, False
        while True:
            await asyncio.sleep(SWITCHING_AGAIN_S)
            image = self._node.metadata.image
            if image is not looked_at:
                states = (state for topic in image.topics.values() if topic.is_diskless for state in topic.partitions)
                looked_at, is_any = image, any(state.is_switching for state in states)
            for part in self.parts() if is_any else ():
                if part.is_switching:
                    self._work_now(part)

    async def _work_on(self, part: PartitionTier) -> None:
        """Retain and copy. After a failure the pause grows: each attempt may upload most of a segment."""
        while await self._work_once(part):
            pass  # a quota holds copies up: what is due meanwhile is deleted, and not copied
        part.failures = min(part.failures + 1, _PAUSES_MAX) if part.error else 0
        interval_s = self._node.config.remote_log_manager_task_interval_ms / 1000
        if part.is_switching:
            interval_s = min(interval_s, SWITCHING_AGAIN_S)
        # Without a failure, too: while a transaction is open, each append asks for what can't be done.
        pause_s = interval_s * 2 ** (part.failures - 1) if part.failures else min(interval_s / 2, WORKED_S)
        part.again_s = self._node.clock.monotonic() + pause_s

    async def _work_once(self, part: PartitionTier) -> bool:
        """Retain and copy once. Returns whether a quota has held it up, so that there may be more to be done."""
        is_held_up = False

        async def copy() -> None:
            nonlocal is_held_up
            is_held_up = await self.copier.copy_all(part)

        if await self._guard_part(part, "apply the retention", self.retain(part)):
            has_tail = part.is_diskless or part.is_switching
            is_closed = not has_tail or await self._guard_part(part, "begin to copy", self._tail.before_copying(part))
            copied = is_closed and await self._guard_part(part, "copy a segment", copy())
            if has_tail and copied:
                await self._guard_part(part, self._tail.doing(part), self._tail.after_copying(part))
        return is_held_up and part.is_current and part.partition.leader is not None and not part.error

    def _work_now(self, part: PartitionTier) -> None:
        """Copy what there is of a partition, unless that is being done, was done just now, or has failed."""
        is_due = self._node.clock.monotonic() >= part.again_s
        if part.is_known and part not in self._working and is_due and part.partition.leader is not None:
            self._begin(self._working, part, self._work_on(part))

    # --- One step each ------------------------------------------------------------------------------------------------

    async def _look_up(self, part: PartitionTier) -> None:
        asked = part.asked
        await self._tail.begin_to_copy(part)
        async with part.changing:
            remote = await self.storage.ask(lambda: self._rows.load(part.key))
            partition = part.partition
            if not part.is_current or part.asked != asked:
                return  # it is to be looked up again: another may have led since
            end_offset = max(remote.end_offset, remote.start_offset)
            if partition.leader is not None and partition.log_end_offset < end_offset:
                await self._restore(part, remote, end_offset)
                return
            part.take(remote)
            if part.partition.config.becomes_diskless and part.partition.leader is not None:
                self._tail.served(part)

    async def _restore(self, part: PartitionTier, remote: RemoteLog, end_offset: int) -> None:
        """Let a leader's log continue where the remote storage ends: what this disk had of it before is gone (D3)."""
        partition = part.partition
        begins = await beginning_of(self.storage, remote)
        _log.warning(
            "%s: the log on this disk ends at %d, and the remote storage has it up to %d: it continues there",
            partition.tp, partition.log_end_offset, end_offset,
        )  # fmt: skip
        first, batches = end_offset, None
        if begins.segments and remote.start_offset < remote.end_offset:
            first, batches = begins.offset, self._batches(begins.segments)
        if not await self._node.logs.continue_at(partition, first, begins.producers, batches):
            if part.is_current:
                raise error_for(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.tp} is not led here any more")
            return
        await self._take_parts([partition.tp])

    async def _batches(self, segments: Sequence[RemoteSegment]) -> AsyncIterator[Buffer | int]:
        for segment in segments:
            async for piece in batches_of(self.storage, segment):
                yield piece

    async def follow_others(self) -> None:
        """Learn what other nodes have changed: those that lead, and those that do not know yet that they do not."""
        known = [one for one in self.parts() if one.is_known]
        if not known:
            return
        versions = await self.storage.ask(lambda: self._rows.versions([one.key for one in known]))
        for part in known:
            if versions.get(part.key, 0) > part.remote.version:
                part.look_up()

    async def retain(self, part: PartitionTier) -> None:
        """Delete in the remote storage what retention says, or what is below the start of the log (D6)."""
        log, config = part.partition.log, part.partition.config
        log.roll_expired(self.storage.now_ms)
        async with part.changing:
            excess = None
            if config.is_deleted and config.retention_bytes != UNLIMITED:
                segments = log.segments.from_offset(max(part.remote.end_offset, log.local_start_offset))
                here_alone = sum(one.size for one in segments if one.base_offset >= part.remote.end_offset)
                excess = part.remote.size_bytes + here_alone - config.retention_bytes
            due = part.remote.due(
                log_start_offset=log.log_start_offset,
                retention_ms=config.retention_ms if config.is_deleted else UNLIMITED,
                excess_bytes=excess,
                now_ms=self.storage.now_ms,
            )
            start = max(log.log_start_offset, due[-1].end_offset if due else 0)
            kept = part.remote.from_start(start, keeps_last=True).segments
            if part.keeps_producers and kept == part.remote.segments and start <= part.remote.start_offset:
                return  # what is due is kept for what it says of the producers
            if part.remote.version and (due or start > part.remote.start_offset):
                now_ms = self.storage.now_ms
                await part.change(
                    lambda known: self._rows.move_start(part.key, known, start, now_ms, keeps_last=part.keeps_producers)
                )

    async def clean_up(self) -> None:
        """Delete the objects that nobody wants any more, and then their rows."""
        led = [one.key for one in self.parts() if one.partition.leader is not None and one.is_known]
        now_ms = self.storage.now_ms
        if led:
            await self.storage.ask(
                lambda: self._rows.give_up_copies(led, busy=frozenset(self.copier.busy), now_ms=now_ms)
            )
            before_ms = now_ms - self._node.config.log_segment_delete_delay_ms
            garbage = await self.storage.ask(lambda: self._rows.garbage(led, given_up_before_ms=before_ms))
            await self._delete(garbage)
        await self._tail.clean_up()
        if self._node.metadata.is_controller:
            await self._clean_up_topics()

    async def _clean_up_topics(self) -> None:
        """Delete what is left of topics that were deleted: the newest metadata, read after the rows, lacks them."""
        noted = await self.storage.ask(self._rows.topic_ids) | await self._tail.topic_ids()
        if not noted:
            return
        image = await self._node.metadata.refresh()
        there = {format_topic_id(topic.topic_id) for topic in image.topics.values()}
        for topic_id in sorted(noted - there):
            now_ms = self.storage.now_ms
            retire = partial(self._rows.retire_topic, topic_id, now_ms)
            garbage = await self.storage.ask(retire)
            await self._delete(garbage)
            if not await self.storage.ask(retire):
                await self.storage.ask(partial(self._rows.forget_topic, topic_id))
                await self._tail.forget_topic(topic_id)
                _log.info("what the remote storage had of topic %s is deleted, as the topic is", topic_id)

    async def _delete(self, garbage: list[Garbage]) -> None:
        """Delete objects, and forget them. One whose upload may still be under way waits until none can be."""
        now_ms, timeout_ms = self.storage.now_ms, self._node.config.remote_storage_timeout_ms
        due = [
            one
            for one in garbage
            if not one.is_given_up or now_ms - one.since_ms > longest_upload_ms(one.size_bytes, timeout_ms)
        ]
        if due:
            await self.storage.delete([one.key for one in due])
            await self.storage.ask(lambda: self._rows.forget(due))

    # --- When it fails ------------------------------------------------------------------------------------------------

    async def _guard(self, what: str, step: Callable[[], Awaitable[object]]) -> bool:
        """Take a step, and tell why it failed. Returns whether it did not."""
        self._error = await self._failure(what, step())
        return not self._error

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
                if len(self._told) >= _TOLD_MAX:
                    self._told.clear()
                self._told[what] = now_s
                # A partition that another node has taken over is no failure: the metadata says so in a moment.
                is_led_elsewhere = getattr(error, "code", None) is ErrorCode.NOT_LEADER_OR_FOLLOWER
                level = logging.INFO if is_led_elsewhere else logging.ERROR
                _log.log(level, "could not %s, and it is tried again: %s", what, message)
            return f"could not {what}: {message}"
        except Exception as error:
            _log.exception("could not %s", what)
            return f"could not {what}: {error!r}"
        self._told.pop(what, None)
        return ""
