"""Fetch for followers: batches up to the end of the log, and what the leader learns of a follower by it.

A follower's fetch offset is the end of what it has on its disk, where the cluster promises that; so the fetch after an
append is its acknowledgement. An offset counts only if the follower is in the leader's epoch and its log does not part
from the leader's (KAFKA-13141).

A fetch waits until there is more to read, or a read barrier waits for the follower (R9). What is committed since it was
told comes with that, or a little later alone: one fetch a record is enough, where consumers don't read from followers
(KAFKA-9731). While the node's quota for throttled replicas is used up, one that is not in sync gets nothing of such a
partition, and its fetch waits until there is some left (KIP-73).

There are no fetch sessions here. The session id carries rounds: a follower sends the one that it was told last, and 0
where it was told none. A session epoch of 0 says that it asks next for what an answer names, though it did not ask for
it (`Unasked`); it is -1 where it does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from semel.broker.handlers.fetch.awaited import answer_of
from semel.broker.handlers.fetch.call import Done
from semel.broker.handlers.fetch.replica_reading import Reading
from semel.broker.handlers.fetch.unasked import Unasked
from semel.protocol.kafka.fetch import (
    FETCH_MAX_VERSION,
    INITIAL_SESSION_EPOCH,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
)
from semel.runtime.turns import Turns

if TYPE_CHECKING:
    from semel.broker.logs.partition import Partition
    from semel.broker.services import Services

_log = logging.getLogger("semel.fetch")

PART: Final = 200
"""Partitions that are read in one turn (S3); a fetch of no more is read at once."""
WAIT_MS_MAX: Final = 30_000
"""A follower is answered after that time, however long it says that it would wait."""
COMMITTED_AFTER_S: Final = 0.02
"""A follower hears so much later that more is committed, where nothing else is to be said before."""


class ReplicaFetchHandler:
    """Fetch for the followers of what this node leads. Only nodes of the cluster may reach it."""

    def __init__(self, node: Services) -> None:
        self._node = node
        self._begun: dict[ReplicaFetch, None] = {}
        self._unasked: dict[int, Unasked] = {}
        self._stopping = False

    @property
    def waiting(self) -> int:
        """How many fetches are not answered yet."""
        return len(self._begun)

    async def fetch(self, request: FetchRequest, version: int = FETCH_MAX_VERSION) -> FetchResponse:
        """Return the answer once there is something to say, or `max_wait_ms` are over. Cancelling stops the wait."""
        return await answer_of(lambda done: self.begin(request, version, done))

    def begin(self, request: FetchRequest, version: int, done: Done) -> FetchResponse | ReplicaFetch:
        """Return the answer, or the fetch that will call `done` with it unless it is cancelled."""
        reading: Reading | None = None
        unasked = self.unasked(request)
        if unasked is not None and unasked.waiting is not None:
            unasked.waiting.give_up()
        if len(request.partitions) <= PART:
            reading = self.begin_reading(request, version)
            reading.read(request.partitions)
            if unasked is not None:
                unasked.asked(reading.partitions)
            if reading.is_news or self.may_name(request) or not self.may_wait(request):
                return self.answer(request, reading)
        begun = ReplicaFetch(self, request, version, done)
        if unasked is not None:
            unasked.waiting = begun
        self._begun[begun] = None
        begun.begin(reading)
        return begun

    def finish(self) -> None:
        """Answer all fetches that wait with what there is, and let none wait any more: the node stops."""
        self._stopping = True
        for begun in tuple(self._begun):
            begun.answer_now()

    def read(self, request: FetchRequest) -> tuple[list[FetchPartitionResponse], bool]:
        """Return the answers as they are now, and whether any of them is news to the follower."""
        reading = self.begin_reading(request, FETCH_MAX_VERSION)
        reading.read(request.partitions)
        reading.note_told()
        return reading.responses, reading.is_news

    # --- For fetches that wait ----------------------------------------------------------------------------------------

    def begin_reading(self, request: FetchRequest, version: int) -> Reading:
        return Reading(self._node, request, version, commits_are_urgent=self.commits_are_urgent)

    def may_wait(self, request: FetchRequest) -> bool:
        return request.max_wait_ms > 0 and not self._stopping

    @property
    def commits_are_urgent(self) -> bool:
        """Whether followers should hear at once of what is committed: consumers may read it from them (KIP-392)."""
        return bool(self._node.config.replica_selector_class)

    def unasked(self, request: FetchRequest) -> Unasked | None:
        """Return what is known of what the follower does not ask for; None where it would not ask for what is named."""
        if request.session_epoch < INITIAL_SESSION_EPOCH:
            return None
        return self._unasked.setdefault(request.replica_id, Unasked())

    def may_name(self, request: FetchRequest) -> bool:
        """Say whether an answer would name something that its fetch did not ask for."""
        unasked = self.unasked(request)
        return unasked is not None and bool(unasked.has_more)

    def answer(self, request: FetchRequest, reading: Reading) -> FetchResponse:
        """Return what was read, with the round of now: what the follower sends next shows that it came after this."""
        reading.note_told()
        unasked = self.unasked(request)
        if unasked is not None:
            reading.responses += unasked.named(reading.partitions)
            unasked.ask_again(reading.again)
        return FetchResponse(reading.responses, session_id=self._node.logs.fetch_rounds.tell())

    def forget(self, begun: ReplicaFetch, request: FetchRequest) -> None:
        """It has ended."""
        self._begun.pop(begun, None)
        unasked = self.unasked(request)
        if unasked is not None:
            unasked.waiting = None


class ReplicaFetch:
    """A fetch of a follower that is not answered yet: it waits for news, or is read in turns with other work."""

    __slots__ = (
        "_changed",
        "_done",
        "_handler",
        "_has_commits",
        "_is_over",
        "_is_woken",
        "_listened",
        "_reading",
        "_request",
        "_task",
        "_timer",
        "_version",
    )

    def __init__(self, handler: ReplicaFetchHandler, request: FetchRequest, version: int, done: Done) -> None:
        self._handler = handler
        self._request = request
        self._version = version
        self._done = done
        self._reading: Reading | None = None
        self._listened: dict[Partition, None] = {}
        self._changed: set[Partition] = set()
        """What has changed since it was read."""
        self._is_woken = False
        self._has_commits = False
        """Whether more is committed than the follower was told."""
        self._is_over = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _is_large(self) -> bool:
        return len(self._request.partitions) > PART

    def begin(self, reading: Reading | None) -> None:
        """Wait for news since `reading`. A large one has not been read yet, which comes first."""
        if reading is None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._read_in_turns(may_wait=True), name="read a large fetch of a follower")
            return
        self._reading = reading
        self._listen(reading.partitions)
        self._await_news(reading)

    def asks_for(self, partition: Partition) -> bool:
        """Say whether it will be answered with what comes to a partition, now or once that may go."""
        return partition in self._listened

    def waits_s(self) -> float:
        """Return for how long it waits at most; 0 while it is read."""
        return 0.0 if self._timer is None else self._timer.when() - asyncio.get_running_loop().time()

    def answer_soon(self) -> None:
        """Answer in the next turn of the event loop, with all that comes in this one."""
        if not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self.answer_now)

    def answer_now(self) -> None:
        """Answer with what there is."""
        self._stop_listening()
        if self._is_over or self._task is not None:
            return
        if self._is_large:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._read_in_turns(may_wait=False), name="read a large fetch of a follower")
            return
        assert self._reading is not None
        self._reading.read_again(self._changed if self._is_woken else None)
        self._answer(self._reading)

    def cancel(self) -> None:
        """Stop waiting and reading. No answer is given any more."""
        if self._is_over:
            return
        self._is_over = True
        self._stop_listening()
        if self._task is not None:
            self._task.cancel()
        self._handler.forget(self, self._request)

    def give_up(self) -> None:
        """Answer with nothing, and leave what comes to the fetch that the follower has sent since.

        It sends one at a time: the connection of this one is gone, and that has not been noticed here.
        """
        if not self._is_over:
            self.cancel()
            self._done(FetchResponse([]))

    def _await_news(self, reading: Reading) -> None:
        """Wait. More records are no news where even those that there are were withheld; that some may go is."""
        wait_s = min(self._request.max_wait_ms, WAIT_MS_MAX) / 1000
        if reading.withheld:
            for partition in reading.withheld:
                partition.remove_replica_listener(self._woken)
            wait_s = min(wait_s, reading.withheld_for_s())
        if self._has_commits or reading.has_commits:
            self._has_commits = True
            wait_s = min(wait_s, COMMITTED_AFTER_S)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.answer_now)

    def _listen(self, partitions: Iterable[Partition | None]) -> None:
        for partition in partitions:
            if partition is not None:
                partition.add_replica_listener(self._woken)
                self._listened[partition] = None

    def _stop_listening(self) -> None:
        for partition in self._listened:
            partition.remove_replica_listener(self._woken)
        self._listened.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _woken(self, partition: Partition, has_more: bool) -> None:
        """Answer in the next turn of the event loop; for what is committed alone a little later."""
        self._changed.add(partition)
        if has_more or self._handler.commits_are_urgent:
            self.answer_soon()
        elif not self._has_commits:
            self._has_commits = True
            if self._timer is not None and self.waits_s() > COMMITTED_AFTER_S:
                self._timer.cancel()
                self._timer = asyncio.get_running_loop().call_later(COMMITTED_AFTER_S, self.answer_now)

    async def _read_in_turns(self, *, may_wait: bool) -> None:
        """Read in parts. It listens to each that was read: something may come to it while the others are read."""
        request = self._request
        reading = self._handler.begin_reading(request, self._version)
        unasked = self._handler.unasked(request)
        turns = Turns(ends_with_caller=False)
        for start in range(0, len(request.partitions), PART):
            await turns.give_way()
            items = request.partitions[start : start + PART]
            reading.read(items, notes=may_wait)
            read = reading.partitions[start:]
            if unasked is not None:
                unasked.asked(read)
            if may_wait and not self._is_woken:
                self._listen(read)
        self._task = None
        is_news = reading.is_news or self._is_woken or self._handler.may_name(request)
        if may_wait and not is_news and self._handler.may_wait(request):
            self._await_news(reading)
        else:
            self._stop_listening()
            reading.again.update(dict.fromkeys(self._changed if may_wait else ()))  # since they were read
            self._answer(reading)

    def _answer(self, reading: Reading) -> None:
        self._is_over = True
        self._handler.forget(self, self._request)
        self._done(self._handler.answer(self._request, reading))
