"""Fetch for followers: batches up to the end of the log, and what the leader learns of a follower by it.

A follower's fetch offset is the end of what it has on its disk, where the cluster promises that; so the fetch after an
append is its acknowledgement. An offset counts only if the follower is in the leader's epoch and its log does not part
from the leader's (KAFKA-13141). A fetch waits until there is more to read, more is committed than it was told, or a
read barrier waits for the follower (R9). While the node's quota for throttled replicas is used up, one that is not in
sync gets nothing of such a partition, and its fetch waits until there is some left (KIP-73). The session id carries
rounds, for there are no fetch sessions here: a follower sends the one that it was told last, and 0 where it was told
none.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from semel.broker.handlers.fetch.awaited import answer_of
from semel.broker.handlers.fetch.call import Done
from semel.broker.handlers.fetch.partitions import diverges, find_partition, topic_name
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.fetch import (
    FETCH_MAX_VERSION,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
)
from semel.runtime.turns import Turns

if TYPE_CHECKING:
    from semel.broker.logs.partition import Partition
    from semel.broker.logs.replication_quota import ReplicationQuota
    from semel.broker.services import Services

_log = logging.getLogger("semel.fetch")

ANSWER_BYTES_MAX: Final = 16 << 20
"""So much one answer holds in memory."""
PART: Final = 200
"""Partitions that are read in one turn (S3); a fetch of no more is read at once."""
WAIT_MS_MAX: Final = 30_000
"""A follower is answered after that time, however long it says that it would wait."""


class ReplicaFetchHandler:
    """Fetch for the followers of what this node leads. Only nodes of the cluster may reach it."""

    def __init__(self, node: Services) -> None:
        self._node = node
        self._begun: dict[ReplicaFetch, None] = {}
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
        if len(request.partitions) <= PART:
            reading = self.begin_reading(request, version)
            reading.read(request.partitions)
            if reading.is_news or not self.may_wait(request):
                return self.answer(reading)
        begun = ReplicaFetch(self, request, version, done)
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
        return reading.responses, reading.is_news

    # --- For fetches that wait ----------------------------------------------------------------------------------------

    def begin_reading(self, request: FetchRequest, version: int) -> Reading:
        return Reading(self._node, request, version)

    def may_wait(self, request: FetchRequest) -> bool:
        return request.max_wait_ms > 0 and not self._stopping

    def answer(self, reading: Reading) -> FetchResponse:
        """Return what was read, with the round of now: what the follower sends next shows that it came after this."""
        return FetchResponse(reading.responses, session_id=self._node.logs.fetch_rounds.tell())

    def partition_of(self, item: FetchPartition, version: int) -> Partition | None:
        name = topic_name(self._node, item, version)
        return None if name is None else self._node.partition(TopicPartition(name, item.partition))

    def forget(self, begun: ReplicaFetch) -> None:
        """It has ended."""
        self._begun.pop(begun, None)


class ReplicaFetch:
    """A fetch of a follower that is not answered yet: it waits for news, or is read in turns with other work."""

    __slots__ = ("_done", "_handler", "_is_over", "_is_woken", "_listened", "_request", "_task", "_timer", "_version")

    def __init__(self, handler: ReplicaFetchHandler, request: FetchRequest, version: int, done: Done) -> None:
        self._handler = handler
        self._request = request
        self._version = version
        self._done = done
        self._listened: list[Partition] = []
        self._is_woken = False
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
        self._listen(self._request.partitions)
        self._await_news(reading)

    def answer_now(self) -> None:
        """Answer with what there is."""
        self._stop_listening()
        if self._is_over or self._task is not None:
            return
        if self._is_large:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._read_in_turns(may_wait=False), name="read a large fetch of a follower")
            return
        reading = self._handler.begin_reading(self._request, self._version)
        reading.read(self._request.partitions)
        self._answer(reading)

    def cancel(self) -> None:
        """Stop waiting and reading. No answer is given any more."""
        if self._is_over:
            return
        self._is_over = True
        self._stop_listening()
        if self._task is not None:
            self._task.cancel()
        self._handler.forget(self)

    def _await_news(self, reading: Reading) -> None:
        """Wait. More records are no news where even those that there are were withheld; that some may go is."""
        wait_s = min(self._request.max_wait_ms, WAIT_MS_MAX) / 1000
        if reading.withheld:
            for partition in reading.withheld:
                partition.remove_replica_listener(self._woken)
            wait_s = min(wait_s, reading.withheld_for_s())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.answer_now)

    def _listen(self, items: list[FetchPartition]) -> None:
        for item in items:
            partition = self._handler.partition_of(item, self._version)
            if partition is not None:
                partition.add_replica_listener(self._woken)
                self._listened.append(partition)

    def _stop_listening(self) -> None:
        for partition in self._listened:
            partition.remove_replica_listener(self._woken)
        self._listened.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _woken(self, _partition: Partition) -> None:
        """Answer in the next turn of the event loop, with all that comes in this one."""
        if not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self.answer_now)

    async def _read_in_turns(self, *, may_wait: bool) -> None:
        """Read in parts. It listens before it reads: something may come to a partition that was read already."""
        request = self._request
        reading = self._handler.begin_reading(request, self._version)
        turns = Turns(ends_with_caller=False)
        for start in range(0, len(request.partitions), PART):
            await turns.give_way()
            items = request.partitions[start : start + PART]
            if may_wait and not self._is_woken:
                self._listen(items)
            reading.read(items)
        self._task = None
        if may_wait and not reading.is_news and not self._is_woken and self._handler.may_wait(request):
            self._await_news(reading)
        else:
            self._stop_listening()
            self._answer(reading)

    def _answer(self, reading: Reading) -> None:
        self._is_over = True
        self._handler.forget(self)
        self._done(self._handler.answer(reading))


class Reading:
    """The answers about a fetch's partitions, as far as they were read."""

    __slots__ = ("_has_records", "_left", "_node", "_request", "_version", "is_news", "responses", "withheld")

    def __init__(self, node: Services, request: FetchRequest, version: int) -> None:
        self.responses: list[FetchPartitionResponse] = []
        self.is_news = False
        """Whether there is anything to tell the follower, which should not wait then."""
        self.withheld: list[Partition] = []
        """Of which there are records for the follower that it does not get now: the quota is used up."""
        self._node = node
        self._request = request
        self._version = version
        self._left = min(max(request.max_bytes, 0), ANSWER_BYTES_MAX)
        self._has_records = False

    def read(self, items: list[FetchPartition]) -> None:
        """Read these partitions of the fetch."""
        for item in items:
            response = FetchPartitionResponse(item.topic, item.topic_id, item.partition, ErrorCode.NONE)
            partition: Partition | None = None
            is_withheld = False
            try:
                partition = find_partition(self._node, item, self._version, response)
                if partition is not None and response.error is ErrorCode.NONE:
                    is_withheld = self._read(partition, item, response)
                    if is_withheld:
                        self.withheld.append(partition)
            except SemelError as error:
                response.error = error.code
            except Exception:
                _log.exception("a follower's read failed: topic=%s partition=%d", item.topic, item.partition)
                response.error = ErrorCode.UNKNOWN_SERVER_ERROR
            moved = not is_withheld and self._has_moved(partition, response)
            self.is_news |= (
                moved
                or response.error is not ErrorCode.NONE
                or response.diverging_epoch != -1
                or response.records is not None
                or self._is_awaited(partition)
            )
            self.responses.append(response)

    def _is_awaited(self, partition: Partition | None) -> bool:
        """Say whether a barrier waits for the next fetch of this follower."""
        leader = None if partition is None else partition.leader
        return leader is not None and leader.awaits(self._request.replica_id)

    def _has_moved(self, partition: Partition | None, response: FetchPartitionResponse) -> bool:
        """Say whether the follower was not told of this high watermark and log start yet, and note that it is now."""
        leader = None if partition is None else partition.leader
        follower = None if leader is None else leader.follower(self._request.replica_id)
        told = response.high_watermark, response.log_start_offset
        if follower is None or follower.told == told:
            return False
        follower.told = told
        return True

    def withheld_for_s(self) -> float:
        """Return in how long some of what was withheld may go."""
        return self._node.replication_quotas.leader.free_in_s(self._node.clock.monotonic())

    def _read(self, partition: Partition, item: FetchPartition, response: FetchPartitionResponse) -> bool:
        """Fill one partition's answer. Returns whether there are records that are withheld."""
        if partition.refused is not None:
            raise partition.refused
        response.high_watermark = partition.high_watermark
        response.log_start_offset = partition.log_start_offset
        if diverges(partition, item, response):
            return False
        max_bytes = min(item.max_bytes, self._left)
        found = partition.read_for_replica(item.fetch_offset, max_bytes=max_bytes, min_one_batch=not self._has_records)
        self._take_note(partition, item)
        response.high_watermark = partition.high_watermark
        response.last_stable_offset = partition.last_stable_offset
        if found.records is None or not found.records.size:
            return False
        quota = self._quota_for(partition, item)
        if quota is not None and quota.is_exceeded(self._node.clock.monotonic()):
            return True
        self._has_records = True
        response.records = found.read()
        self._left -= len(response.records)
        if quota is not None:
            quota.record(len(response.records), self._node.clock.monotonic())
        return False

    def _quota_for(self, partition: Partition, item: FetchPartition) -> ReplicationQuota | None:
        """Return what the records that are sent count for; None where they do not, and never wait."""
        leader, throttled = partition.leader, partition.config.leader_replication_throttled_replicas
        if (
            leader is not None
            and throttled.has(partition.tp.partition, leader.node_id)
            and leader.may_be_throttled(self._request.replica_id, item.fetch_offset, partition.high_watermark)
        ):
            return self._node.replication_quotas.leader
        return None

    def _take_note(self, partition: Partition, item: FetchPartition) -> None:
        """Let the leader know what this fetch says of the follower."""
        request = self._request
        counts = partition.fetched_by(
            request.replica_id, request.replica_epoch, item.fetch_offset, item.log_start_offset
        )
        leader = partition.leader
        if counts and leader is not None and item.current_leader_epoch == leader.leader_epoch:
            leader.heard(request.replica_id, request.session_id, self._node.logs.fetch_rounds)
