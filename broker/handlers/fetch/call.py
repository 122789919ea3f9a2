# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""One Fetch request on its way: what belongs to it, what was read for it, and how it waits for more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from semel.broker.acls.rights import ALL_RIGHTS, Rights
from semel.broker.handlers.fetch.sessions import FetchContext
from semel.protocol.errors import SemelError
from semel.protocol.kafka.fetch import FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse
from semel.protocol.listener_names import DEFAULT_LISTENER

if TYPE_CHECKING:
    from semel.broker.logs.partition import Partition

INLINE_READ_BYTES_TOTAL_MAX: Final = 1 << 20
"""The most that one answer holds in memory that way."""

Done = Callable[[FetchResponse], None]


class WaitsFor(Protocol):
    """What a waiting fetch needs of the handler."""

    def readable_bytes(self, partition: Partition, item: FetchPartition, call: FetchCall) -> int:
        """Return how much could be read now. Raises `SemelError` for an error that should not wait."""
        ...

    def forget(self, waiting: WaitingFetch) -> None:
        """It has ended."""
        ...


class FetchUsage(Protocol):
    """What an answer counts for: its client's quotas."""

    def bytes_max(self) -> int | None:
        """Return the most that an answer should have of records; None for any number."""
        ...

    def fetched(self, size: int) -> int:
        """Count the bytes of records of an answer. Returns 0, or for how many milliseconds they are not sent."""
        ...


class WaitingFetch:
    """A fetch with too little to answer yet, listening to its partitions. `cancel` when nobody waits for it any
    more."""

    __slots__ = ("_available", "_check_scheduled", "_dirty", "_enough", "_items", "_loop", "_timer", "call", "handler")

    def __init__(
        self, handler: WaitsFor, call: FetchCall, items: dict[Partition, FetchPartition], enough: Callable[[], None]
    ) -> None:
        """`enough` is called once, when there is enough to answer or the time is over."""
        self.handler = handler
        self.call = call
        self._enough = enough
        self._items = items
        self._available: dict[Partition, int] = {}
        self._dirty: dict[Partition, None] = {}
        self._check_scheduled = False
        self._loop = asyncio.get_running_loop()
        for partition in items:
            partition.add_append_listener(self._woken)
        self._timer = self._loop.call_later(call.request.max_wait_ms / 1000, self._complete)

    def _woken(self, partition: Partition) -> None:
        self._dirty[partition] = None
        if not self._check_scheduled:
            self._check_scheduled = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        """Look at the partitions that woke this fetch; answer where enough has come, or an error."""
        self._check_scheduled = False
        if self.call.finished:
            return
        dirty, self._dirty = self._dirty, {}
        for partition in dirty:
            try:
                self._available[partition] = self.handler.readable_bytes(partition, self._items[partition], self.call)
            except SemelError:
                self._complete()
                return
        if sum(self._available.values()) >= self.call.min_bytes:
            self._complete()

    def note_available(self, partition: Partition, size: int) -> None:
        """Say what could be read when the fetch began to wait."""
        self._available[partition] = size

    def _complete(self) -> None:
        if self.call.finished:
            return
        self.cancel()
        self._enough()

    def complete_now(self) -> None:
        """Answer with what there is."""
        self._complete()

    def cancel(self) -> None:
        """Stop listening. No answer is given any more."""
        if self.call.finished:
            return
        self.call.finished = True
        self._timer.cancel()
        for partition in self._items:
            partition.remove_append_listener(self._woken)
        self.handler.forget(self)


class FetchCall:
    """One fetch request with what belongs to it."""

    __slots__ = (
        "begun_ms",
        "bytes_max",
        "context",
        "done",
        "finished",
        "listener_name",
        "min_bytes",
        "records",
        "request",
        "rights",
        "silent_max_s",
        "usage",
        "version",
    )

    def __init__(
        self,
        request: FetchRequest,
        version: int,
        context: FetchContext,
        done: Done,
        fetch_max_bytes: int,
        rights: Rights = ALL_RIGHTS,
    ) -> None:
        self.request = request
        self.rights = rights
        """What the reader may read: looked at whenever a partition is read."""
        # More than an answer may hold would never come.
        self.min_bytes = min(request.min_bytes, fetch_max_bytes, max(request.max_bytes, 1))
        self.bytes_max = fetch_max_bytes
        self.version = version
        self.context = context
        self.done = done
        self.finished = False
        self.begun_ms = 0
        self.silent_max_s: float | None = None
        """How long a follower may not have heard from its leader, and is read from; None: only leaders are."""
        self.usage: FetchUsage | None = None
        """What the answer counts for; None where it counts for nothing."""
        self.listener_name = DEFAULT_LISTENER
        """Of the listener that the reader came by."""
        self.records = 0
        """Offsets that the last reading of its partitions covered."""


class Found:
    """What reading the partitions of a fetch has brought so far, and how much more may be read."""

    __slots__ = ("answer_now", "inline_left", "left", "read_bytes", "responses", "sources")

    def __init__(self, bytes_max: int) -> None:
        self.responses: list[FetchPartitionResponse] = []
        self.sources: list[tuple[Partition, FetchPartitionResponse]] = []
        """Those of the responses that have records, with where they are from."""
        self.read_bytes = 0
        self.left = bytes_max
        self.inline_left = INLINE_READ_BYTES_TOTAL_MAX
        self.answer_now = False
        """Whether a partition has something that should not wait: an error."""
