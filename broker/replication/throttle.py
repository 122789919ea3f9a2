"""What a follower leaves out of its fetches while its quota for throttled replicas is used up (KIP-73)."""

from __future__ import annotations

from collections.abc import Callable

from semel.broker.logs.partition import Partition
from semel.broker.logs.replication_quota import ReplicationQuota
from semel.protocol.ids import TopicPartition
from semel.runtime.clock import Clock


class FollowerThrottle:
    """The quota of a node as its fetchers use it, all together.

    is_in_sync: says whether this node is in the in-sync set of a partition, by the metadata
    """

    def __init__(
        self, node_id: int, quota: ReplicationQuota, clock: Clock, is_in_sync: Callable[[TopicPartition], bool]
    ) -> None:
        self._node_id = node_id
        self._quota = quota
        self._clock = clock
        self._is_in_sync = is_in_sync

    def applies(self, partition: Partition, lag: int | None) -> bool:
        """Say whether what is fetched of a partition counts for the quota, and may have to wait for it.

        Never where the leader may wait for it (R1): of a replica in sync, and of one that has all that is committed,
        because it may be in sync before the metadata says so here.

        lag: how many committed offsets it lacks, None where that is not known
        """
        throttled = partition.config.follower_replication_throttled_replicas
        return throttled.has(partition.tp.partition, self._node_id) and lag != 0 and not self._is_in_sync(partition.tp)

    def left_bytes(self) -> int:
        return self._quota.left_bytes(self._clock.monotonic())

    def free_in_s(self) -> float:
        return self._quota.free_in_s(self._clock.monotonic())

    def record(self, size_bytes: int) -> None:
        self._quota.record(size_bytes, self._clock.monotonic())
