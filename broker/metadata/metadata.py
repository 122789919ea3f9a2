"""The metadata of a running node: the current image for everybody, and the one way to change it.

Reads are of the immutable image and cost nothing. Changes are decided on the image, written by compare-and-set off the
event loop, and only then applied, by the function that also replays them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from semel.broker.metadata.changes import Change
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage, TopicImage
from semel.broker.metadata.store import (
    Lease,
    MetadataConflictError,
    MetadataStore,
    MetadataUnavailableError,
    NotControllerError,
)
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.runtime.clock import Clock

logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
_Result = TypeVar("_Result")

Decision = Callable[[MetadataImage], Sequence[Change]]
Listener = Callable[[Change, MetadataImage], None]


class Metadata:
    """Holds the image and the controller's lease, and writes changes one at a time."""

    def __init__(
        self, store: MetadataStore, clock: Clock, *, holder: str, lease_ms: int, snapshot_changes: int
    ) -> None:
        """`holder` names this node in the lease; nobody else may use the same name at the same time."""
        self.image: MetadataImage = EMPTY_IMAGE
        self._store = store
        self._clock = clock
        self._holder = holder
        self._lease_ms = lease_ms
        self._snapshot_changes = snapshot_changes
        self._snapshot_sequence = 0
        self._lease: Lease | None = None
        self._listeners: list[Listener] = []
        self._writing = asyncio.Lock()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="semel-metadata")

    async def open(self) -> None:
        """Connect, take the controller's lease, and read everything. Raises `SemelError` saying what is wrong."""
        await self._off_loop(self._store.create)
        self._lease = await self._wait_for_lease()
        self.image = await self._off_loop(self._store.load)
        self._snapshot_sequence = await self._off_loop(self._store.last_snapshot_sequence)

    async def close(self) -> None:
        """Finish the change that is being written, and give the lease back."""
        async with self._writing:
            try:
                if self._lease is not None:
                    await self._off_loop(partial(self._store.release_lease, self._lease))
            except SemelError as error:
                logger.warning("the controller's lease was not given back: %s", error)
            finally:
                self._lease = None
                self._store.close()
                self._executor.shutdown()  # its one thread has nothing to do any more

    def abandon(self) -> None:
        """Let everything go as a killed process does: the lease is not given back."""
        self._lease = None
        self._executor.shutdown(cancel_futures=True)
        self._store.close()

    @property
    def location(self) -> str:
        """Where the metadata is kept, without a password."""
        return self._store.location

    @property
    def controller_epoch(self) -> int:
        """The epoch of this node's lease, -1 without one."""
        return -1 if self._lease is None else self._lease.epoch

    def topic(self, name: str) -> TopicImage | None:
        return self.image.topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        return self.image.topic_by_id(topic_id)

    def topic_name(self, topic_id: TopicId) -> str | None:
        return self.image.topic_names.get(topic_id)

    def topic_id(self, name: str) -> TopicId | None:
        topic = self.image.topics.get(name)
        return None if topic is None else topic.topic_id

    def leader_epoch(self, tp: TopicPartition) -> int | None:
        partition = self.image.partition(tp)
        return None if partition is None else partition.leader_epoch

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` with every change, in order, right after it was applied.

        The image that it gets is the one after all changes that were written together, so it may be further on.
        """
        self._listeners.append(listener)

    async def change(self, decide: Decision) -> MetadataImage:
        """Make the changes that `decide` finds right for the current image, and return the image after them.

        `decide` may run more than once, and may raise to refuse. The caller going away does not stop a write that has
        begun. Raises `NotControllerError`, `MetadataUnavailableError`.
        """
        return await asyncio.shield(asyncio.ensure_future(self._change(decide)))

    async def run(self) -> None:
        """Keep the lease until cancelled; take it again when it was lost and is free."""
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            async with self._writing:
                await self._keep_lease()

    async def _keep_lease(self) -> None:
        now_ms = self._clock.now_ms()
        try:
            if self._lease is None:
                self._lease = await self._acquire()
                await self._catch_up()
                logger.info("this node is the controller again, epoch %d", self._lease.epoch)
            else:
                renew = partial(self._store.renew_lease, self._lease, duration_ms=self._lease_ms, now_ms=now_ms)
                self._lease = await self._off_loop(renew)
        except NotControllerError as error:
            if self._lease is not None:
                logger.error("this node is not the controller any more: %s", error.message)
            self._lease = None
        except MetadataUnavailableError as error:
            logger.error("the controller's lease could not be renewed: %s", error.message)

    async def _wait_for_lease(self) -> Lease:
        """A lease that nobody renews is free when it ends; one that is renewed belongs to a living node."""
        deadline = self._clock.monotonic() + self._lease_ms / 1000 * 1.1
        told = False
        while True:
            try:
                return await self._acquire()
            except NotControllerError as error:
                if self._clock.monotonic() >= deadline:
                    raise
                if not told:
                    logger.info("waiting for the controller's lease: %s", error.message)
                    told = True
            await asyncio.sleep(self._lease_ms / 20_000)

    async def _acquire(self) -> Lease:
        now_ms = self._clock.now_ms()
        return await self._off_loop(
            partial(self._store.acquire_lease, self._holder, duration_ms=self._lease_ms, now_ms=now_ms)
        )

    async def _change(self, decide: Decision) -> MetadataImage:
        async with self._writing:
            for _ in range(_ATTEMPTS):
                changes = list(decide(self.image))
                if not changes:
                    return self.image
                if self._lease is None:
                    raise NotControllerError("this node is not the controller now: try again shortly")
                try:
                    await self._append(changes)
                except MetadataConflictError:
                    await self._catch_up()
                    continue
                except NotControllerError:
                    self._lease = None
                    raise
                await self._snapshot()
                return self.image
            raise MetadataConflictError("the metadata keeps changing under this change: try again")

    async def _append(self, changes: Sequence[Change]) -> None:
        lease = self._lease
        assert lease is not None
        after = self.image.sequence
        write = partial(self._store.append, changes, after=after, lease=lease, now_ms=self._clock.now_ms())
        try:
            await self._off_loop(write)
        except MetadataUnavailableError:
            # The connection may have gone after the commit: what is in the log decides.
            written = await self._off_loop(partial(self._store.changes_after, after))
            if [change for _, change in written[: len(changes)]] != list(changes):
                raise
        self._apply(list(enumerate(changes, start=after + 1)))

    async def _catch_up(self) -> None:
        """Apply what somebody else has written."""
        self._apply(await self._off_loop(partial(self._store.changes_after, self.image.sequence)))

    def _apply(self, changes: Sequence[tuple[int, Change]]) -> None:
        self.image = self.image.apply_all(changes)
        for _, change in changes:
            for listener in self._listeners:
                listener(change, self.image)

    async def _snapshot(self) -> None:
        """A snapshot only makes the next start shorter, so a failure to write one is no failure of the change."""
        if self.image.sequence - self._snapshot_sequence < self._snapshot_changes or self._lease is None:
            return
        image = self.image
        write = partial(self._store.write_snapshot, image, lease=self._lease, now_ms=self._clock.now_ms())
        try:
            await self._off_loop(write)
            self._snapshot_sequence = image.sequence
        except SemelError as error:
            logger.warning("no snapshot of the metadata was written: %s", error.message)

    async def _off_loop(self, call: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)
