# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
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
- A client that has to look for the leader is sent it, with its address, from version 16 on (KIP-951).
- Where the reader has used up a quota, the answer has no partitions, and says for how long it has to wait (KIP-219).
- A follower serves readers, too, from version 11 on (KIP-392): what is committed as far as it knows, while it is in
  sync and hears from the leader. A reader that says its rack is sent to a follower there, where
  `replica.selector.class` is set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from semel.broker.acls.rights import ALL_RIGHTS, Rights
from semel.broker.handlers.fetch.awaited import answer_of
from semel.broker.handlers.fetch.call import Done, FetchCall, FetchUsage, Found, WaitingFetch
from semel.broker.handlers.fetch.large import PART, FetchRoom, LargeFetch
from semel.broker.handlers.fetch.nearest import NEAREST_IS_LEADER, nearest_replica
from semel.broker.handlers.fetch.partitions import (
    TOPIC_ID_MIN_VERSION,
    diverges,
    find_partition,
    known_code,
    topic_name,
)
from semel.broker.handlers.fetch.sessions import FetchSessions
from semel.broker.handlers.partitions.leader_hints import HINTED, current_leader, leader_endpoints
from semel.protocol.acls import ResourceType
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import NodeEndpoint
from semel.protocol.kafka.fetch import (
    FETCH_MAX_VERSION,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
)
from semel.protocol.listener_names import DEFAULT_LISTENER
from semel.runtime.storage import FileRange

if TYPE_CHECKING:
    from semel.broker.log.log_types import LogRange
    from semel.broker.logs.partition import Partition
    from semel.broker.services import Services
    from semel.broker.telemetry.tracing import FetchSpans

_log = logging.getLogger("semel.fetch")

_NO_ERROR: Final = ErrorCode.NONE
_READ_COMMITTED: Final = IsolationLevel.READ_COMMITTED
"""At hand for compiled code: a member of an enum costs it more than anything else that it looks up."""

ENDPOINTS_MIN_VERSION: Final = 16
FOLLOWERS_MIN_VERSION: Final = 11

INLINE_READ_BYTES_MAX: Final = 256 << 10
"""Ranges up to this are read at once and sent with the fields around them; larger ones stay ranges of their file."""


class FetchLimits(Protocol):
    """The bounds that a fetch needs of a listener's limits."""

    @property
    def fetch_max_bytes(self) -> int: ...

    @property
    def max_incremental_fetch_session_cache_slots(self) -> int: ...

    @property
    def fetch_session_max_partitions(self) -> int: ...

    @property
    def fetch_session_min_idle_ms(self) -> int: ...


class FetchHandler:
    """Fetch for one node, with its sessions and all fetches that wait."""

    def __init__(self, node: Services, limits: FetchLimits, spans: FetchSpans | None = None) -> None:
        """`spans`: where fetches are traced."""
        self.node = node
        self.spans = spans
        self._fetch_max_bytes = limits.fetch_max_bytes
        self.sessions = FetchSessions(
            sessions_max=limits.max_incremental_fetch_session_cache_slots,
            partitions_max=limits.fetch_session_max_partitions,
            min_idle_ms=limits.fetch_session_min_idle_ms,
        )
        self._waiting: dict[WaitingFetch, None] = {}
        self._stopping = False
        self.fetched_bytes = 0
        self.fetched_records = 0

    @property
    def waiting(self) -> int:
        """How many fetches wait for records."""
        return len(self._waiting)

    async def fetch(self, request: FetchRequest, version: int = FETCH_MAX_VERSION) -> FetchResponse:
        """Return the answer when it is there. Cancelling stops the wait."""
        return await answer_of(lambda done: self.begin(request, version, done))

    def begin(
        self,
        request: FetchRequest,
        version: int,
        done: Done,
        room: FetchRoom | None = None,
        *,
        only_leader: bool = False,
        rights: Rights = ALL_RIGHTS,
        usage: FetchUsage | None = None,
        listener_name: str = DEFAULT_LISTENER,
    ) -> FetchResponse | WaitingFetch | LargeFetch:
        """Return the answer, or the fetch that will call `done` with it unless it is cancelled.

        `room` is what the caller has taken for the answer. A large fetch uses it; otherwise it stays the caller's.
        only_leader: whether partitions that this node follows are refused
        rights:      of the reader
        usage:       what the answer counts for
        listener_name: of the listener that the reader came by
        """
        call = self._call(request, version, done, only_leader, rights, usage, listener_name)
        if call.context.error is not _NO_ERROR:
            return self.response(call, Found(0))
        if len(call.context.partitions) > PART:
            return LargeFetch(self, call, room)
        found = self._read_all(call)
        if self.is_enough(call, found):
            return self.response(call, found)
        return self.wait(call, found.responses, lambda: self._complete(call))

    def _call(
        self,
        request: FetchRequest,
        version: int,
        done: Done,
        only_leader: bool,
        rights: Rights,
        usage: FetchUsage | None,
        listener_name: str,
    ) -> FetchCall:
        now_ms = self.node.clock.now_ms()
        context = self.sessions.open(
            request, uses_topic_ids=version >= TOPIC_ID_MIN_VERSION, now_ms=now_ms, owner=rights.who
        )
        bytes_max = self._fetch_max_bytes
        if usage is not None:
            bytes_max = min(bytes_max, usage.bytes_max() or bytes_max)
        call = FetchCall(request, version, context, done, bytes_max, rights)
        call.usage = usage
        call.listener_name = listener_name
        if version >= FOLLOWERS_MIN_VERSION and not only_leader:
            call.silent_max_s = self.node.config.replica_lag_time_max_ms / 1000
        call.begun_ms = now_ms
        return call

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
            partition = self.node.partition(
                TopicPartition(topic_name(self.node, item, call.version) or "", item.partition)
            )
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
        call.done(self.response(call, self._read_all(call)))

    def forget(self, waiting: WaitingFetch) -> None:
        self._waiting.pop(waiting, None)

    def finish(self) -> None:
        """Answer all waiting fetches with what there is, and let none wait any more: the node stops."""
        self._stopping = True
        for waiting in tuple(self._waiting):
            waiting.complete_now()

    def response(self, call: FetchCall, found: Found) -> FetchResponse:
        """Return the answer of a fetch, which is finished with it."""
        call.finished = True
        responses = found.responses
        context = call.context
        if call.usage is not None and context.error is _NO_ERROR:
            size = sum([len(each.records) for each in responses if each.records is not None])
            throttle_ms = call.usage.fetched(size)
            if throttle_ms:
                return FetchResponse([], *context.withhold(), throttle_ms)
        self.fetched_records += call.records
        if self.spans is not None and responses:
            names = [topic_name(self.node, asked, call.version) or "" for asked in call.context.partitions]
            self.spans.answered(responses, names, call.begun_ms)
        error, session_id, told = context.answer(responses, self.node.clock.now_ms())
        endpoints: list[NodeEndpoint] = []
        if call.version >= ENDPOINTS_MIN_VERSION:
            leaders = [each.leader_id for each in told]
            endpoints = leader_endpoints(self.node, leaders, call.listener_name)
        if error is _NO_ERROR:
            # Here, and not where it was read: a fetch that waited has read twice, and is answered once.
            for partition, item in found.sources:
                if item.records is not None:
                    size = len(item.records)
                    self.fetched_bytes += size
                    partition.fetched_bytes += size
        return FetchResponse(told, error, session_id, 0, endpoints)

    # --- Reading ------------------------------------------------------------------------------------------------------

    def _read_all(self, call: FetchCall) -> Found:
        found = self.begin_reading(call)
        self.read(call, found, call.context.partitions)
        return found

    def begin_reading(self, call: FetchCall) -> Found:
        """Return what `read` fills. Reading may begin again from the first partition on."""
        call.records = 0
        return Found(min(max(call.request.max_bytes, 0), call.bytes_max))

    def read(self, call: FetchCall, found: Found, partitions: Sequence[FetchPartition]) -> None:
        """Read these partitions of a fetch."""
        for item in partitions:
            response = self._read_partition(item, call, found)
            if response.error is not _NO_ERROR:
                self._hint(item, response, call.version)
            records = response.records
            if records is not None:
                assert isinstance(records, FileRange)
                size = records.size
                found.read_bytes += size
                found.left = max(found.left - size, 0)
                if size <= INLINE_READ_BYTES_MAX and size <= found.inline_left:
                    found.inline_left -= size
                    self._read_inline(response, records, call.version)
            if (
                response.error is not _NO_ERROR
                or response.diverging_epoch != -1
                or response.preferred_read_replica != NEAREST_IS_LEADER
            ):
                found.answer_now = True
            found.responses.append(response)

    def _hint(self, item: FetchPartition, response: FetchPartitionResponse, version: int) -> None:
        """Name the leader to a client that has to look for it (KIP-951)."""
        if version >= ENDPOINTS_MIN_VERSION and response.error in HINTED:
            tp = TopicPartition(topic_name(self.node, item, version) or "", item.partition)
            response.leader_id, response.leader_epoch = current_leader(self.node, tp)

    def _read_inline(self, response: FetchPartitionResponse, records: FileRange, version: int) -> None:
        try:
            response.records = records.read()
        except OSError as error:
            _log.error("read failed: partition=%s-%d error=%s", response.topic, response.partition, error)
            response.records = None
            response.error = known_code(ErrorCode.KAFKA_STORAGE_ERROR, version)

    def _read_partition(self, item: FetchPartition, call: FetchCall, so_far: Found) -> FetchPartitionResponse:
        response = FetchPartitionResponse(item.topic, item.topic_id, item.partition, _NO_ERROR)
        try:
            if not call.rights.are_all and not self._may_read(item, call):
                response.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                return response
            partition = find_partition(self.node, item, call.version, response)
            if response.error is not _NO_ERROR or partition is None:
                return response
            self._check_readable(partition, call)
            if diverges(partition, item, response):
                return response
            if call.request.rack_id and call.silent_max_s is not None:
                nearest = nearest_replica(self.node, partition, call.request.rack_id, item.fetch_offset)
                if nearest != NEAREST_IS_LEADER:
                    response.preferred_read_replica = nearest
                    _fill(response, partition, None, call.request.isolation)
                    return response
            max_bytes = min(max(item.max_bytes, 0), so_far.left)
            found = partition.read(
                item.fetch_offset,
                max_bytes=max_bytes,
                isolation=call.request.isolation,
                min_one_batch=so_far.read_bytes == 0,
                silent_max_s=call.silent_max_s,
            )
        except SemelError as error:
            response.error = known_code(error.code, call.version)
            return response
        except Exception:
            _log.exception("read failed: topic=%s partition=%d", item.topic or item.topic_id, item.partition)
            response.error = ErrorCode.UNKNOWN_SERVER_ERROR
            return response
        next_offset = found.next_offset
        if next_offset > item.fetch_offset:
            call.records += next_offset - item.fetch_offset
        if found.records is not None:
            so_far.sources.append((partition, response))
        _fill(response, partition, found, call.request.isolation)
        return response

    def _check_readable(self, partition: Partition, call: FetchCall) -> None:
        """Refuse readers of what is not led here, unless this follower is in sync: others may be far behind."""
        silent_max_s = call.silent_max_s
        if partition.leader is None and silent_max_s is not None:
            state = self.node.metadata.image.partition(partition.tp)
            if state is None or self.node.config.node_id not in state.isr:
                silent_max_s = None
        partition.check_readable(silent_max_s)

    def _may_read(self, item: FetchPartition, call: FetchCall) -> bool:
        """Whether the reader may read a partition (S7). Of an unknown id he hears just that, without any right."""
        name = topic_name(self.node, item, call.version)
        return name is None or call.rights.may(ResourceType.TOPIC, name)

    def readable_bytes(self, partition: Partition, item: FetchPartition, call: FetchCall) -> int:
        """Return how much of a partition a waiting fetch could read now. Raises `SemelError` where it should answer."""
        end = (
            partition.last_stable_offset
            if call.request.isolation is IsolationLevel.READ_COMMITTED
            else partition.high_watermark
        )
        self._check_readable(partition, call)
        if not call.rights.are_all:
            call.rights.check(ResourceType.TOPIC, partition.tp.topic)
        if item.fetch_offset >= end:
            return 0
        if call.min_bytes <= 1 and (partition.tier is None or item.fetch_offset >= partition.log.local_start_offset):
            return 1
        return partition.read(
            item.fetch_offset,
            max_bytes=max(item.max_bytes, 0),
            isolation=call.request.isolation,
            min_one_batch=True,
            silent_max_s=call.silent_max_s,
        ).size


def _fill(
    response: FetchPartitionResponse, partition: Partition, found: LogRange | None, isolation: IsolationLevel
) -> None:
    response.high_watermark = partition.high_watermark
    response.last_stable_offset = partition.last_stable_offset
    response.log_start_offset = partition.log_start_offset
    if isolation is _READ_COMMITTED:
        aborted = () if found is None else found.aborted_transactions
        response.aborted = [(each.producer_id, each.first_offset) for each in aborted]
    if found is not None:
        response.records = found.records
