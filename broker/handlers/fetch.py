"""Fetch: reads committed batches, and waits for them where there are too few yet.

Behaviour, by version of the request where it matters:
- Readers see what is below the high watermark, read_committed what is below the last stable offset (L2), with every
  aborted transaction that overlaps it (L3).
- Partitions are read in the order of the request (of the session, KIP-227), up to `max_bytes` in all and each one's own
  limit. The first batch found is returned even where it is larger than both (KIP-74).
- With fewer than `min_bytes` and no error the answer waits up to `max_wait_ms`. A waiting fetch is woken by its
  partitions; nothing polls. An append costs it one wake; in a turn of the loop it looks at the partitions that woke
  it, once.
- Topics are named by id from version 13 on: UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID.
- A leader epoch that the client knows (version 9 on) must be the current one: FENCED_LEADER_EPOCH,
  UNKNOWN_LEADER_EPOCH. With the epoch it last read (version 12 on) it is told where its log parts from this one.
- KAFKA_STORAGE_ERROR is sent from version 6 on, before it NOT_LEADER_OR_FOLLOWER.
- Whoever has to look for the leader is told it from version 16 on, with its address (KIP-951).
- The preferred read replica is always -1: there is nothing nearer than the leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from semel.broker.handlers.fetch_sessions import FetchContext, FetchSessions
from semel.broker.handlers.large_fetch import PART, FetchRoom, LargeFetch
from semel.broker.handlers.leader_hints import HINTED, current_leader, leader_endpoints, not_here
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ZERO_TOPIC_ID, TopicPartition
from semel.protocol.kafka.api import NodeEndpoint
from semel.protocol.kafka.fetch import (
    FETCH_MAX_VERSION,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
)

if TYPE_CHECKING:
    from semel.broker.logs.partition import FetchedRange, Partition
    from semel.broker.services import Services
    from semel.broker.telemetry.tracing import FetchSpans
    from semel.runtime.storage import StorageFile

_log = logging.getLogger("semel.fetch")

TOPIC_ID_MIN_VERSION: Final = 13
STORAGE_ERROR_MIN_VERSION: Final = 6
ENDPOINTS_MIN_VERSION: Final = 16

INLINE_READ_BYTES_MAX: Final = 256 << 10
"""Ranges up to this are read at once and sent with the fields around them; larger ones stay ranges of their file."""
INLINE_READ_BYTES_TOTAL_MAX: Final = 1 << 20
"""The most that one answer holds in memory that way."""

Done = Callable[[FetchResponse], None]


class FetchLimits(Protocol):
    """The bounds that a fetch needs of a listener's limits."""

    @property
    def fetch_max_bytes(self) -> int: ...

    @property
    def fetch_sessions_max(self) -> int: ...

    @property
    def fetch_session_partitions_max(self) -> int: ...

    @property
    def fetch_session_min_idle_ms(self) -> int: ...


class FileRange:
    """Bytes `position` to `position + size` of a file: records that a listener can send from the page cache."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: StorageFile, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"FileRange(position={self.position}, size={self.size})"

    def read(self) -> bytes:
        """Return the bytes. Raises `OSError` where the file has become shorter than the range."""
        data = self.file.read_at(self.size, self.position)
        if len(data) != self.size:
            raise OSError(f"a range of {self.size} bytes at {self.position} has only {len(data)} bytes left")
        return data


class WaitingFetch:
    """A fetch with too little to answer yet, listening to its partitions. `cancel` when nobody waits for it any
    more."""

    __slots__ = ("_available", "_check_scheduled", "_dirty", "_enough", "_items", "_loop", "_timer", "call", "handler")

    def __init__(
        self, handler: FetchHandler, call: FetchCall, items: dict[Partition, FetchPartition], enough: Callable[[], None]
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

    __slots__ = ("begun_ms", "context", "done", "finished", "min_bytes", "records", "request", "version")

    def __init__(
        self, request: FetchRequest, version: int, context: FetchContext, done: Done, fetch_max_bytes: int
    ) -> None:
        self.request = request
        # More than an answer may hold would never come.
        self.min_bytes = min(request.min_bytes, fetch_max_bytes, max(request.max_bytes, 1))
        self.version = version
        self.context = context
        self.done = done
        self.finished = False
        self.begun_ms = 0
        self.records = 0
        """Offsets that the last reading of its partitions covered."""


class Found:
    """What reading the partitions of a fetch has brought so far, and how much more may be read."""

    __slots__ = ("answer_now", "inline_left", "left", "read_bytes", "responses")

    def __init__(self, bytes_max: int) -> None:
        self.responses: list[FetchPartitionResponse] = []
        self.read_bytes = 0
        self.left = bytes_max
        self.inline_left = INLINE_READ_BYTES_TOTAL_MAX
        self.answer_now = False
        """Whether a partition has something that should not wait: an error."""


class FetchHandler:
    """Fetch for one node, with its sessions and all fetches that wait."""

    def __init__(self, node: Services, limits: FetchLimits) -> None:
        self.node = node
        self._fetch_max_bytes = limits.fetch_max_bytes
        self.sessions = FetchSessions(
            sessions_max=limits.fetch_sessions_max,
            partitions_max=limits.fetch_session_partitions_max,
            min_idle_ms=limits.fetch_session_min_idle_ms,
        )
        self._waiting: dict[WaitingFetch, None] = {}
        self._stopping = False
        self.fetched_bytes = 0
        self.fetched_records = 0
        self.spans: FetchSpans | None = None
        """Where fetches are traced."""

    @property
    def waiting(self) -> int:
        """How many fetches wait for records."""
        return len(self._waiting)

    async def fetch(self, request: FetchRequest, version: int = FETCH_MAX_VERSION) -> FetchResponse:
        """Return the answer when it is there. Cancelling stops the wait."""
        answered: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()

        def done(response: FetchResponse) -> None:
            if not answered.done():
                answered.set_result(response)

        begun = self.begin(request, version, done)
        if isinstance(begun, FetchResponse):
            return begun
        try:
            return await answered
        finally:
            begun.cancel()

    def begin(
        self, request: FetchRequest, version: int, done: Done, room: FetchRoom | None = None
    ) -> FetchResponse | WaitingFetch | LargeFetch:
        """Return the answer, or the fetch that will call `done` with it unless it is cancelled.

        `room` is what the caller has taken for the answer. A large fetch uses it; otherwise it stays the caller's.
        """
        now_ms = self.node.clock.now_ms()
        context = self.sessions.open(request, uses_topic_ids=version >= TOPIC_ID_MIN_VERSION, now_ms=now_ms)
        call = FetchCall(request, version, context, done, self._fetch_max_bytes)
        call.begun_ms = now_ms
        if context.error is not ErrorCode.NONE:
            return self.response(call, [])
        if len(context.partitions) > PART:
            return LargeFetch(self, call, room)
        found = self._read_all(call)
        if self.is_enough(call, found):
            return self.response(call, found.responses)
        return self.wait(call, found.responses, lambda: self._complete(call))

    def is_enough(self, call: FetchCall, found: Found) -> bool:
        """Return whether a fetch is to be answered with what was found, and does not wait for more."""
        return (
            found.answer_now
            or self._stopping
            or call.request.max_wait_ms <= 0
            or not found.responses
            or found.read_bytes >= call.min_bytes
        )

    def wait(
        self, call: FetchCall, responses: list[FetchPartitionResponse], enough: Callable[[], None]
    ) -> WaitingFetch:
        """Listen to a fetch's partitions, and call `enough` when there is enough to answer or the time is over."""
        items: dict[Partition, FetchPartition] = {}
        sizes: list[tuple[Partition, int]] = []
        for item, response in zip(call.context.partitions, responses, strict=True):
            partition = self.node.partition(TopicPartition(self._name(item, call.version) or "", item.partition))
            if partition is not None:
                items[partition] = item
                if response.records is not None:
                    sizes.append((partition, len(response.records)))
        waiting = WaitingFetch(self, call, items, enough)
        for partition, size in sizes:
            waiting.note_available(partition, size)
        self._waiting[waiting] = None
        return waiting

    def _complete(self, call: FetchCall) -> None:
        """Read again and answer a fetch that waited."""
        call.done(self.response(call, self._read_all(call).responses))

    def forget(self, waiting: WaitingFetch) -> None:
        self._waiting.pop(waiting, None)

    def finish(self) -> None:
        """Answer all waiting fetches with what there is, and let none wait any more: the node stops."""
        self._stopping = True
        for waiting in tuple(self._waiting):
            waiting.complete_now()

    def response(self, call: FetchCall, responses: list[FetchPartitionResponse]) -> FetchResponse:
        """Return the answer of a fetch, which is finished with it."""
        call.finished = True
        self.fetched_records += call.records
        if self.spans is not None and responses:
            names = [self._name(item, call.version) or "" for item in call.context.partitions]
            self.spans.answered(responses, names, call.begun_ms)
        error, session_id, told = call.context.answer(responses, self.node.clock.now_ms())
        endpoints: list[NodeEndpoint] = []
        if call.version >= ENDPOINTS_MIN_VERSION:
            endpoints = leader_endpoints(self.node, {response.leader_id for response in told})
        for response in told:
            if response.records is not None:
                self.fetched_bytes += len(response.records)
        return FetchResponse(told, error, session_id, 0, endpoints)

    # --- Reading ------------------------------------------------------------------------------------------------------

    def _read_all(self, call: FetchCall) -> Found:
        found = self.begin_reading(call)
        self.read(call, found, call.context.partitions)
        return found

    def begin_reading(self, call: FetchCall) -> Found:
        """Return what `read` fills. Reading may begin again from the first partition on."""
        call.records = 0
        return Found(min(max(call.request.max_bytes, 0), self._fetch_max_bytes))

    def read(self, call: FetchCall, found: Found, partitions: Sequence[FetchPartition]) -> None:
        """Read these partitions of a fetch."""
        for item in partitions:
            response = self._read_partition(item, call, min(max(item.max_bytes, 0), found.left), found.read_bytes == 0)
            if response.error is not ErrorCode.NONE:
                self._hint(item, response, call.version)
            records = response.records
            if records is not None:
                assert isinstance(records, FileRange)
                found.read_bytes += records.size
                found.left = max(found.left - records.size, 0)
                if records.size <= min(INLINE_READ_BYTES_MAX, found.inline_left):
                    found.inline_left -= records.size
                    self._read_inline(response, records, call.version)
            if response.error is not ErrorCode.NONE or response.diverging_epoch != -1:
                found.answer_now = True
            found.responses.append(response)

    def _hint(self, item: FetchPartition, response: FetchPartitionResponse, version: int) -> None:
        """Name the leader to a client that has to look for it (KIP-951)."""
        if version >= ENDPOINTS_MIN_VERSION and response.error in HINTED:
            tp = TopicPartition(self._name(item, version) or "", item.partition)
            response.leader_id, response.leader_epoch = current_leader(self.node, tp)

    def _read_inline(self, response: FetchPartitionResponse, records: FileRange, version: int) -> None:
        try:
            response.records = records.read()
        except OSError as error:
            _log.error("read failed: partition=%s-%d error=%s", response.topic, response.partition, error)
            response.records = None
            response.error = self._code(ErrorCode.KAFKA_STORAGE_ERROR, version)

    def _read_partition(
        self, item: FetchPartition, call: FetchCall, max_bytes: int, min_one_batch: bool
    ) -> FetchPartitionResponse:
        response = FetchPartitionResponse(item.topic, item.topic_id, item.partition, ErrorCode.NONE)
        try:
            partition = self._partition(item, call.version, response)
            if response.error is not ErrorCode.NONE or partition is None or self._diverges(partition, item, response):
                return response
            found = partition.read(
                item.fetch_offset, max_bytes=max_bytes, isolation=call.request.isolation, min_one_batch=min_one_batch
            )
        except SemelError as error:
            response.error = self._code(error.code, call.version)
            return response
        except Exception:
            _log.exception("read failed: topic=%s partition=%d", item.topic or item.topic_id, item.partition)
            response.error = ErrorCode.UNKNOWN_SERVER_ERROR
            return response
        call.records += max(found.next_offset - item.fetch_offset, 0)
        self._fill(response, found, call.request.isolation)
        return response

    @staticmethod
    def _fill(response: FetchPartitionResponse, found: FetchedRange, isolation: IsolationLevel) -> None:
        response.high_watermark = found.high_watermark
        response.last_stable_offset = found.last_stable_offset
        response.log_start_offset = found.log_start_offset
        if isolation is IsolationLevel.READ_COMMITTED:
            response.aborted = [(each.producer_id, each.first_offset) for each in found.aborted_transactions]
        if found.file is not None and found.size > 0:
            response.records = FileRange(found.file, found.position, found.size)

    def readable_bytes(self, partition: Partition, item: FetchPartition, call: FetchCall) -> int:
        """Return how much of a partition a waiting fetch could read now. Raises `SemelError` where it should answer."""
        end = (
            partition.last_stable_offset
            if call.request.isolation is IsolationLevel.READ_COMMITTED
            else partition.high_watermark
        )
        if partition.offline_error is not None:
            raise partition.offline_error
        if item.fetch_offset >= end:
            return 0
        if call.min_bytes <= 1:
            return 1
        return partition.read(
            item.fetch_offset, max_bytes=max(item.max_bytes, 0), isolation=call.request.isolation, min_one_batch=True
        ).size

    def _name(self, item: FetchPartition, version: int) -> str | None:
        if version < TOPIC_ID_MIN_VERSION:
            return item.topic
        return self.node.metadata.topic_name(item.topic_id)

    def _partition(self, item: FetchPartition, version: int, response: FetchPartitionResponse) -> Partition | None:
        """Return the partition, or put into `response` why there is none to be read."""
        by_id = version >= TOPIC_ID_MIN_VERSION
        name = self._name(item, version)
        if name is None:
            response.error = ErrorCode.UNKNOWN_TOPIC_ID
            return None
        partition = self.node.partition(TopicPartition(name, item.partition))
        if partition is None:
            response.error = self._code(not_here(self.node, TopicPartition(name, item.partition)).code, version)
        elif by_id and item.topic_id != ZERO_TOPIC_ID and partition.topic_id != item.topic_id:
            response.error = ErrorCode.INCONSISTENT_TOPIC_ID
        elif item.current_leader_epoch >= 0 and item.current_leader_epoch != partition.leader_epoch:
            is_over = item.current_leader_epoch < partition.leader_epoch
            response.error = ErrorCode.FENCED_LEADER_EPOCH if is_over else ErrorCode.UNKNOWN_LEADER_EPOCH
        return partition

    @staticmethod
    def _diverges(partition: Partition, item: FetchPartition, response: FetchPartitionResponse) -> bool:
        """Tell a reader whose last epoch ended earlier here where the logs part (KIP-595)."""
        if item.last_fetched_epoch < 0:
            return False
        end = partition.end_offset_for_epoch(item.last_fetched_epoch)
        if end is None:
            response.error = ErrorCode.OFFSET_OUT_OF_RANGE
            return True
        if end.leader_epoch >= item.last_fetched_epoch and end.end_offset >= item.fetch_offset:
            return False
        response.diverging_epoch = end.leader_epoch
        response.diverging_end_offset = end.end_offset
        response.high_watermark = partition.high_watermark
        response.last_stable_offset = partition.last_stable_offset
        response.log_start_offset = partition.log_start_offset
        return True

    @staticmethod
    def _code(code: ErrorCode, version: int) -> ErrorCode:
        if code is ErrorCode.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_MIN_VERSION:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return code
