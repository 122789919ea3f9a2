"""The metadata of a running node: the current image for everybody, and the one way to change it.

Reads are of the immutable image and cost nothing. Changes are decided on the image, written by compare-and-set off the
event loop, and only then applied, by the function that also replays them. A node that has registered changes what it
likes; what only the controller may do needs its lease too. What others change is followed, by polls, and by the
database's word where it has one. Each look at the database checks that its log still has what was applied here (R10);
once it has not, or the node was started again elsewhere, nothing is read from it or written any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from semel.broker.metadata.chain import MetadataWentBackError, Position
from semel.broker.metadata.changes import BrokerRegistered, Change
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage, TopicImage
from semel.broker.metadata.off_loop import call_off_loop
from semel.broker.metadata.runs import LeftBehindError, NodeDeposedError, Writer
from semel.broker.metadata.store import (
    Alone,
    Lease,
    MetadataConflictError,
    MetadataStore,
    NodeSession,
    NotControllerError,
    NotRegisteredError,
    positions_of,
    registration_of,
)
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.randomness import source
from semel.runtime.clock import Clock
from semel.runtime.completion import to_its_end
from semel.runtime.refusals import Refusals
from semel.runtime.threads import Threads

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 12
_BACK_OFF_S: Final = 0.002
_BACK_OFF_MAX_S: Final = 0.2
_REGISTRATION_PATIENCE_S: Final = 10.0
"""So long a change waits for the registration of a node that is starting."""
_POLL_S: Final = 0.1
_POLL_MAX_S: Final = 2.0
"""Between polls of a database that does not answer."""
_TELL_EVERY_S: Final = 60.0
"""So often it is said again that the lease can't be taken or renewed."""
_Result = TypeVar("_Result")

Decision = Callable[[MetadataImage], Sequence[Change]]
Listener = Callable[[Change, MetadataImage], None]
_Write = Callable[[Sequence[Change], Position, int], list[Position]]
"""Writes changes after a position, at a time: a call of the store."""


class Metadata:
    """Holds the image, follows and changes the log, and holds the controller's lease where it can have it."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        *,
        holder: str,
        lease_ms: int,
        snapshot_changes: int,
        is_shared: bool = False,
        heartbeat_ms: int | None = None,
        away_ms: int | None = None,
        on_went_back: Callable[[MetadataWentBackError], Awaitable[None]] | None = None,
        on_deposed: Callable[[NodeDeposedError], None] | None = None,
    ) -> None:
        """`holder` names this node in the lease; nobody else may use the same name at the same time.

        is_shared:    whether other nodes may use the store too: only then it is polled, and has heartbeats
        heartbeat_ms: how often; without it as often as the lease is renewed, three times in its length
        away_ms:      the database counts as away after so long without an answer, also where none has failed
        on_went_back: awaited once, when the database turns out to lack what was applied here, before a caller hears it
        on_deposed:   called once, when this node was started again elsewhere
        """
        self.image: MetadataImage = EMPTY_IMAGE
        self._store = store
        self._clock = clock
        self._holder = holder
        self._lease_ms = lease_ms
        self._snapshot_changes = snapshot_changes
        self._is_shared = is_shared
        self._heartbeat_s = (lease_ms / 3 if heartbeat_ms is None else heartbeat_ms) / 1000
        self._away_s = float("inf") if away_ms is None else away_ms / 1000
        self._on_went_back = on_went_back
        self._on_deposed = on_deposed
        self._over: MetadataWentBackError | NodeDeposedError | None = None
        self._snapshot_sequence = 0
        self._lease: Lease | None = None
        self._writer: Writer | None = None
        self._registered = asyncio.Event()
        self._listeners: list[Listener] = []
        self._waiting: list[tuple[int, asyncio.Future[MetadataImage]]] = []
        self._wake = asyncio.Event()
        self._telling: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._executor = Threads(1, "semel-metadata")
        self._is_silent = False
        self._is_candidate = True
        self._told_of_lease_at: float | None = None
        self.reached_since: float | None = None
        """Since when the database has answered, by the monotonic clock; None while it does not."""
        self.reached_at = clock.monotonic()
        """When a look at the database succeeded last, by the monotonic clock."""
        self.complete_until = float("-inf")
        """All that others had changed until then is in the image, by the monotonic clock."""
        self._reads = 0  # attempts to read what others have changed
        self._last_read_failed: str | None = None
        self.failed_heartbeats = 0
        self.refusals = Refusals()  # for there being too much of something in the metadata

    @property
    def away_ms(self) -> int:
        """For how long the database has not answered, in milliseconds; 0 while it does.

        A database that hangs counts from its first call that was given up, and then since it was last reached.
        """
        if self.reached_since is not None:
            return 0
        return max(1, round((self._clock.monotonic() - self.reached_at) * 1000))

    async def open(self) -> None:
        """Connect, and read everything. Takes the controller's lease if it is free.

        Tables of an older version wait for the lease: their node may still run. Raises `SemelError` saying what is
        wrong.
        """
        if await self._off_loop(self._store.create):
            self._lease = await self._wait_for_lease()
            await self._off_loop(partial(self._store.upgrade, self._lease))
        else:
            with suppress(NotControllerError):
                self._lease = await self._acquire()
        self.image = await self._off_loop(self._store.load)
        self._snapshot_sequence = await self._off_loop(self._store.last_snapshot_sequence)

    async def wait_until_alone(self, node_id: int) -> None:
        """Wait until no other node runs, and take the lease. Raises `NotControllerError` where one continues to."""
        if self._lease is None:
            self._lease = await self._wait_for_lease()
        if self._is_shared:
            await self._wait_for(partial(self._check_alone, node_id))

    async def register(
        self, registration: BrokerRegistered, further: Decision = lambda _: (), *, alone: bool = False
    ) -> MetadataImage:
        """Write the registration of this node, and what `further` decides from the image before it, in one transaction.

        From then on this node may change the metadata, and an earlier run of it can't. Its broker epoch is the number
        of the registration. `alone`: raises `NotControllerError` where another node runs. Raises otherwise as `change`.
        """
        return await to_its_end(self._register(registration, further, alone=alone))

    async def confirm(self, known: Position) -> None:
        """Raises `MetadataWentBackError` where the log lacks what this node had applied in an earlier run."""
        await self._in_thread(partial(self._store.check, known))

    async def close(self) -> None:
        """Finish the change that is being written, and give the lease back."""
        async with self._writing:
            if self._telling is not None:
                await asyncio.gather(self._telling, return_exceptions=True)
            try:
                writer = self._writer if self._is_shared else None
                if writer is not None or self._lease is not None:
                    await self._in_thread(partial(self._store.sign_off, writer, self._lease))
            except SemelError as error:
                _log.warning("the controller's lease was not given back: %s", error)
            finally:
                self._lease = self._writer = None
                self._end_waits(NotRegisteredError("this node is stopping"))
                self._store.close()
                self._executor.shutdown()  # its one thread has nothing to do any more

    def abandon(self) -> None:
        """Let everything go as a killed process does: the lease is not given back."""
        self._lease = self._writer = None
        if self._telling is not None:
            self._telling.cancel()
        self._executor.shutdown(cancel_futures=True)
        self._store.close()

    @property
    def location(self) -> str:
        """Where the metadata is kept, without a password."""
        return self._store.location

    @property
    def is_controller(self) -> bool:
        """Whether this node is, as far as it knows: its lease may have run out."""
        return self._lease is not None

    @property
    def controller_epoch(self) -> int:
        """The epoch of this node's lease, -1 without one."""
        return -1 if self._lease is None else self._lease.epoch

    @property
    def broker_epoch(self) -> int:
        """The number of this run's registration, -1 before it."""
        return -1 if self._writer is None else self._writer.epoch

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

    async def change(self, decide: Decision, *, as_controller: bool = False) -> MetadataImage:
        """Make the changes that `decide` finds right for the current image, and return the image after them.

        `decide` may run more than once, and may raise to refuse. The caller going away does not stop a write that has
        begun. A change that comes while the node starts waits for its registration. `as_controller`: only while this
        node holds the controller's lease, which is checked in the transaction. Raises `NotControllerError`,
        `NotRegisteredError`, `NodeDeposedError`, `MetadataUnavailableError` (the change may have been written),
        `MetadataWentBackError`.
        """
        return await to_its_end(self._change(decide, as_controller=as_controller))

    async def refresh(self) -> MetadataImage:
        """Read what others have changed until now, and return the image with it: what it lacks was not there then.

        Raises `MetadataUnavailableError`, `MetadataConflictError`, `MetadataWentBackError`.
        """
        return await to_its_end(self._refresh())

    async def at(self, sequence: int) -> MetadataImage:
        """Wait until the image has the change numbered `sequence`, and return it. Raises what ends the following."""
        if self.image.sequence >= sequence:
            return self.image
        if self._over is not None:
            raise self._over
        reached: asyncio.Future[MetadataImage] = asyncio.get_running_loop().create_future()
        waiting = (sequence, reached)
        self._waiting.append(waiting)
        self._wake.set()
        try:
            return await reached
        finally:
            with suppress(ValueError):
                self._waiting.remove(waiting)

    async def heartbeat(self) -> None:
        """Tell the controller that this node lives, and how far it has applied the log.

        Raises `NodeDeposedError`, `MetadataUnavailableError`, `MetadataWentBackError`.
        """
        writer = self._writer
        if writer is not None:
            beat = partial(self._store.heartbeat, writer, seen=self.image.position, now_ms=self._clock.now_ms())
            await self._off_loop(beat)

    async def silent_nodes(self, session_ms: int) -> list[NodeSession]:
        """Return the nodes that have not been heard of for `session_ms`, by the database's time."""
        return await self._off_loop(partial(self._store.silent_nodes, session_ms, now_ms=self._clock.now_ms()))

    async def run(self) -> None:
        """Keep the lease until cancelled, and take it when it is free. Where the store is shared, follow and tell."""
        async with asyncio.TaskGroup() as duties:
            duties.create_task(self._keep_leases(), name="keep the controller's lease")
            if self._is_shared:
                duties.create_task(self._keep_beating(), name="tell the controller that this node lives")
                duties.create_task(self._follow(), name="follow the metadata's database")
                listening = self._store.notifications(self._wake.set)
                if listening is not None:
                    duties.create_task(listening.run(), name="listen for changes of the metadata")

    def stand_down(self) -> None:
        """Take the controller's lease no more: this node is about to stop, and would judge the others by old news."""
        self._is_candidate = False

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            async with self._writing:
                await self._keep_lease()

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            await self._beat()

    async def _keep_lease(self) -> None:
        if self._over is not None:
            return
        now_ms = self._clock.now_ms()
        try:
            if self._lease is None:
                if not self._is_candidate:
                    return
                self._lease = await self._acquire()
                await self._catch_up()
                _log.info("this node is the controller now, epoch %d", self._lease.epoch)
            else:
                renew = partial(self._store.renew_lease, self._lease, duration_ms=self._lease_ms, now_ms=now_ms)
                self._lease = await self._off_loop(partial(renew, known=self.image.position, writer=self._writer))
            self._told_of_lease_at = None
        except NotControllerError as error:
            self._told_of_lease_at = None
            if self._lease is not None:
                _log.error("this node is not the controller any more: %s", error.message)
            self._lease = None
        except MetadataUnavailableError as error:
            self._tell_of_lease(error)
        except (MetadataWentBackError, NodeDeposedError):
            pass  # `_off_loop` has told of it

    def _tell_of_lease(self, error: MetadataUnavailableError) -> None:
        """Say that the database does not answer: when that begins, and then once a minute until it does again."""
        now = self._clock.monotonic()
        if self._told_of_lease_at is not None and now - self._told_of_lease_at < _TELL_EVERY_S:
            return
        self._told_of_lease_at = now
        if self._lease is None:
            what = "this node is not the controller, and can't see whether another one is"
        else:
            what = "this node is the controller, and its lease can't be renewed"
        _log.error("%s; it is tried again: %s", what, error.message)

    async def _beat(self) -> None:
        if self._over is not None:
            return
        try:
            await self.heartbeat()
            self._is_silent = False
        except MetadataUnavailableError as error:
            self.failed_heartbeats += 1
            if not self._is_silent:
                _log.warning("heartbeats can't be written, and are tried again: %s", error.message)
            self._is_silent = True
        except (MetadataWentBackError, NodeDeposedError):
            pass  # `_off_loop` has told of it

    async def _follow(self) -> None:
        """Apply what others write: soon where the database tells of it, by polls in any case."""
        pause_s = _POLL_S
        while True:
            with suppress(TimeoutError):
                # Not `wait_for`, which may lose a cancellation (until Python 3.12).
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            self._wake.clear()
            if self._over is not None:
                continue
            try:
                await self.refresh()
            except MetadataUnavailableError as error:
                if pause_s == _POLL_S:
                    _log.warning("changes of other nodes can't be read, and are tried again: %s", error.message)
                pause_s = min(2 * pause_s, _POLL_MAX_S)
            except (MetadataWentBackError, NodeDeposedError):
                pass  # `_off_loop` has told of it
            except MetadataConflictError as error:
                raise LeftBehindError(
                    f"this node was away for too many changes of the metadata ({error.message}). Start it again"
                ) from error
            else:
                pause_s = _POLL_S

    async def _wait_for_lease(self) -> Lease:
        """A lease that nobody renews is free when it ends; one that is renewed belongs to a living node."""
        return await self._wait_for(self._acquire)

    async def _wait_for(self, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        deadline = self._clock.monotonic() + self._lease_ms / 1000 * 1.1
        told = False
        while True:
            try:
                return await attempt()
            except NotControllerError as error:
                if self._clock.monotonic() >= deadline:
                    raise
                if not told:
                    _log.info("waiting until this node may start: %s", error.message)
                    told = True
            await asyncio.sleep(self._lease_ms / 20_000)

    async def _check_alone(self, node_id: int) -> None:
        await self._off_loop(partial(self._store.check_alone, node_id, self._alone, now_ms=self._clock.now_ms()))

    @property
    def _alone(self) -> Alone:
        return Alone(self._holder, self._lease_ms if self._is_shared else 0)

    async def _acquire(self) -> Lease:
        acquire = partial(self._store.acquire_lease, self._holder, known=self.image.position, writer=self._writer)
        return await self._off_loop(partial(acquire, duration_ms=self._lease_ms, now_ms=self._clock.now_ms()))

    async def _register(self, registration: BrokerRegistered, further: Decision, *, alone: bool) -> MetadataImage:
        alone_as = self._alone if alone else None

        def write(changes: Sequence[Change], after: Position, now_ms: int) -> list[Position]:
            return self._store.register(registration, changes[1:], after=after, now_ms=now_ms, alone=alone_as)

        async with self._writing:
            after = await self._make(
                lambda image: [registration, *further(image)],
                write,
                lambda after: (registration_of(registration, after), None),
            )
            self._writer = registration_of(registration, after)
            self._registered.set()
            return self.image

    async def _change(self, decide: Decision, *, as_controller: bool) -> MetadataImage:
        if self._writer is None and self.image.cluster_id and not self._registered.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_REGISTRATION_PATIENCE_S):
                    await self._registered.wait()
        async with self._writing:
            lease = self._lease
            if as_controller and lease is None:
                raise NotControllerError("this node is not the controller now: try again shortly")
            names = (self._writer, lease if as_controller else None)

            def write(changes: Sequence[Change], after: Position, now_ms: int) -> list[Position]:
                return self._store.append(changes, after=after, writer=names[0], lease=names[1], now_ms=now_ms)

            try:
                await self._make(decide, write, lambda _: names)
            except NotControllerError:
                if as_controller:
                    self._lease = None
                raise
            return self.image

    async def _make(
        self,
        decide: Decision,
        write: _Write,
        names: Callable[[Position], tuple[Writer | None, Lease | None]],
    ) -> Position:
        """Decide and write until nobody else comes first. Returns the position after which it was written."""
        for attempt in range(_ATTEMPTS):
            after = self.image.position
            try:
                changes = list(decide(self.image))
            except SemelError:
                if await self._is_newest():
                    raise
                continue
            if not changes:
                if await self._is_newest():
                    return after
                continue
            try:
                await self._write(changes, after, write, names(after))
            except MetadataConflictError:
                # Not all who came too late try again at the same moment.
                await asyncio.sleep(source().random() * min(_BACK_OFF_S * 2**attempt, _BACK_OFF_MAX_S))
                await self._catch_up()
                continue
            self._tell_others()
            await self._snapshot()
            return after
        raise MetadataConflictError("the metadata keeps changing under this change: try again")

    async def _is_newest(self) -> bool:
        """Say whether nobody else has changed anything: a refusal must not rest on an older image."""
        before = self.image.sequence
        if self._is_shared:
            await self._catch_up()
        return self.image.sequence == before

    async def _write(
        self,
        changes: Sequence[Change],
        after: Position,
        write: _Write,
        names: tuple[Writer | None, Lease | None],
    ) -> None:
        now_ms = self._clock.now_ms()
        try:
            positions = await self._off_loop(partial(write, changes, after, now_ms))
        except MetadataUnavailableError:
            # The connection may have gone after the commit: what is in the log decides.
            writer, lease = names
            wanted = positions_of(changes, after=after, writer=writer, lease=lease, now_ms=now_ms)
            written = await self._off_loop(partial(self._store.changes_after, after))
            if [position for position, _ in written[: len(wanted)]] != wanted:
                raise
            self._apply(written)
        else:
            self._apply(list(zip(positions, changes, strict=True)))

    async def _refresh(self) -> MetadataImage:
        asked_after = self._reads
        async with self._writing:
            # What was read while this one waited is new enough. Where it could not be read, others would wait in a row
            # for the same answer, each as long as the database lets them.
            if self._reads == asked_after or self._over is not None:
                await self._catch_up()
            elif self._last_read_failed is not None:
                raise MetadataUnavailableError(self._last_read_failed)
            return self.image

    async def _catch_up(self) -> None:
        """Apply what somebody else has written. Listeners hear of it before `complete_until` changes."""
        begun = self._clock.monotonic()
        self._reads += 1
        self._last_read_failed = "the last attempt to read it did not end"
        try:
            changes = await self._off_loop(partial(self._store.changes_after, self.image.position))
        except MetadataUnavailableError as error:
            self._last_read_failed = error.message
            raise
        self._last_read_failed = None
        if changes:
            self._apply(changes)
        self.complete_until = begun
        if changes:
            await self._snapshot()

    def _apply(self, changes: Sequence[tuple[Position, Change]]) -> None:
        self.image = self.image.apply_all(changes)
        for _, change in changes:
            for listener in self._listeners:
                listener(change, self.image)
        for sequence, reached in self._waiting:
            if sequence <= self.image.sequence and not reached.done():
                reached.set_result(self.image)

    def _end_waits(self, error: SemelError) -> None:
        for _, reached in self._waiting:
            if not reached.done():
                reached.set_exception(error)

    def _tell_others(self) -> None:
        """Wake the nodes that listen. Nobody waits for that."""
        if self._is_shared and self._store.can_notify and (self._telling is None or self._telling.done()):
            self._telling = asyncio.get_running_loop().create_task(self._in_thread(self._store.notify))

    async def _snapshot(self) -> None:
        """A snapshot only makes the next start shorter, so a failure to write one is no failure of the change."""
        if self.image.sequence - self._snapshot_sequence < self._snapshot_changes or self._lease is None:
            return
        image = self.image
        write = partial(self._store.write_snapshot, image, lease=self._lease, now_ms=self._clock.now_ms())
        try:
            await self._off_loop(partial(write, writer=self._writer))
            self._snapshot_sequence = image.sequence
        except SemelError as error:
            _log.warning("no snapshot of the metadata was written: %s", error.message)

    async def _off_loop(self, call: Callable[[], _Result]) -> _Result:
        if self._over is not None:
            raise type(self._over)(self._over.message)
        try:
            result = await self._in_thread(call)
        except MetadataUnavailableError:
            self.reached_since = None
            raise
        except MetadataWentBackError as error:
            if self._end(error) and self._on_went_back is not None:
                await self._on_went_back(error)
            raise
        except NodeDeposedError as error:
            if self._end(error) and self._on_deposed is not None:
                self._on_deposed(error)
            raise
        now_s = self._clock.monotonic()
        if self.reached_since is None or now_s - self.reached_at > self._away_s:
            self.reached_since = now_s
        self.reached_at = now_s
        return result

    def _end(self, error: MetadataWentBackError | NodeDeposedError) -> bool:
        """Use the database no more. Returns whether this is news."""
        if self._over is not None:
            return False
        self._over = error
        self._end_waits(error)
        return True

    async def _in_thread(self, call: Callable[[], _Result]) -> _Result:
        return await call_off_loop(self._executor, self._store, call)
