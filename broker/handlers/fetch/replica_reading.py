"""What the leader answers a follower's fetch, and what it notes of the follower meanwhile (R1, R9, KIP-73)."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from semel.broker.handlers.fetch.partitions import diverges, find_partition
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.kafka.fetch import FetchPartition, FetchPartitionResponse, FetchRequest

if TYPE_CHECKING:
    from semel.broker.logs.leader_state import Follower
    from semel.broker.logs.partition import Partition
    from semel.broker.logs.replication_quota import ReplicationQuota
    from semel.broker.services import Services

_log = logging.getLogger("semel.fetch")

ANSWER_BYTES_MAX: Final = 16 << 20
"""So much one answer holds in memory."""


class Reading:
    """The answers about a fetch's partitions, as far as they were read."""

    __slots__ = (
        "_commits_are_urgent",
        "_has_records",
        "_left",
        "_node",
        "_request",
        "_told",
        "_version",
        "again",
        "has_commits",
        "is_news",
        "partitions",
        "responses",
        "withheld",
    )

    def __init__(self, node: Services, request: FetchRequest, version: int, *, commits_are_urgent: bool) -> None:
        self.responses: list[FetchPartitionResponse] = []
        self.partitions: list[Partition | None] = []
        """Those that the answers are about; None: it is not here."""
        self.again: dict[Partition, None] = {}
        """Those that the follower is to fetch once more: with news and without records, or without room for them."""
        self.is_news = False
        """Whether there is anything to tell the follower, which should not wait then."""
        self.has_commits = False
        """Whether more is committed than it was told. It is no news unless that is urgent."""
        self._told: list[tuple[Follower, tuple[int, int]]] = []
        self.withheld: list[Partition] = []
        """Of which there are records for the follower that it does not get now: the quota is used up."""
        self._node = node
        self._request = request
        self._version = version
        self._commits_are_urgent = commits_are_urgent
        self._left = min(max(request.max_bytes, 0), ANSWER_BYTES_MAX)
        self._has_records = False

    def read(self, items: list[FetchPartition], *, notes: bool = True) -> None:
        """Read these partitions of the fetch. `notes`: note what it says of the follower."""
        for item in items:
            partition, response = self._one(item, notes=notes)
            self.partitions.append(partition)
            self.responses.append(response)

    def read_again(self, changed: Collection[Partition] | None) -> None:
        """Read what has changed since it was read, or all (None). What the fetch says of the follower was noted."""
        for index, partition in enumerate(self.partitions):
            if changed is None or partition in changed or partition in self.withheld:
                _, self.responses[index] = self._one(self._request.partitions[index], notes=False)

    def _one(self, item: FetchPartition, *, notes: bool) -> tuple[Partition | None, FetchPartitionResponse]:
        response = FetchPartitionResponse(item.topic, item.topic_id, item.partition, ErrorCode.NONE)
        partition: Partition | None = None
        is_withheld = False
        try:
            partition = find_partition(self._node, item, self._version, response)
            if partition is not None and response.error is ErrorCode.NONE:
                is_withheld = self._read(partition, item, response, notes=notes)
                if is_withheld:
                    self.withheld.append(partition)
        except SemelError as error:
            response.error = error.code
        except Exception:
            _log.exception("a follower's read failed: topic=%s partition=%d", item.topic, item.partition)
            response.error = ErrorCode.UNKNOWN_SERVER_ERROR
        moved = not is_withheld and self._has_moved(partition, response)
        has_records = response.records is not None
        is_told = (
            moved
            or response.error is not ErrorCode.NONE
            or response.diverging_epoch != -1
            or self._is_awaited(partition)
        )
        self.is_news |= is_told or has_records
        if partition is not None:
            left_out = not (has_records or is_withheld) and item.fetch_offset < partition.log_end_offset
            if (is_told or left_out) and not has_records:
                self.again[partition] = None
            else:
                self.again.pop(partition, None)
        return partition, response

    def note_told(self) -> None:
        """Note what the follower learns by the answer, which is on its way: its high watermarks and log starts."""
        for follower, told in self._told:
            follower.told = told

    def _is_awaited(self, partition: Partition | None) -> bool:
        """Say whether a barrier waits for the next fetch of this follower."""
        leader = None if partition is None else partition.leader
        return leader is not None and leader.awaits(self._request.replica_id)

    def _has_moved(self, partition: Partition | None, response: FetchPartitionResponse) -> bool:
        """Say whether the follower is to hear at once of a high watermark or log start that it was not told yet."""
        leader = None if partition is None else partition.leader
        follower = None if leader is None else leader.follower(self._request.replica_id)
        told = response.high_watermark, response.log_start_offset
        if follower is None or follower.told == told:
            return False
        self._told.append((follower, told))
        self.has_commits = True
        return self._commits_are_urgent or follower.told[1] != response.log_start_offset

    def withheld_for_s(self) -> float:
        """Return in how long some of what was withheld may go."""
        return self._node.replication_quotas.leader.free_in_s(self._node.clock.monotonic())

    def _read(
        self, partition: Partition, item: FetchPartition, response: FetchPartitionResponse, *, notes: bool
    ) -> bool:
        """Fill one partition's answer. Returns whether there are records that are withheld."""
        if partition.refused is not None:
            raise partition.refused
        response.high_watermark = partition.high_watermark
        response.log_start_offset = partition.log_start_offset
        if diverges(partition, item, response):
            return False
        if item.fetch_offset < partition.log.local_start_offset:
            # Of what the remote storage alone has, a replica needs no copy: it begins where the leader's disk does.
            response.log_start_offset = partition.log.local_start_offset
        max_bytes = min(item.max_bytes, self._left)
        found = partition.read_for_replica(item.fetch_offset, max_bytes=max_bytes, min_one_batch=not self._has_records)
        if notes:
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
