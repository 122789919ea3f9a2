"""Committed offsets, and those that wait for their transaction's marker (O1).

Everything here is a function of the log, and of its compacted form alike: of two values for one partition the one that
stands later in the log wins, whenever its marker comes, because compaction would keep that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from semel.group_coordinator.held_bytes import OFFSET_GROUP_BYTES, HeldBytes, offset_bytes
from semel.group_coordinator.records.schemas import OffsetCommitKey, OffsetCommitValue
from semel.protocol.api.groups import FetchedOffset
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import NO_LEADER_EPOCH, ProducerIdAndEpoch, TopicPartition


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A value with its place in the log."""

    value: OffsetCommitValue
    record_offset: int


_Partitions = dict[int, StoredOffset]
_Topics = dict[str, _Partitions]

NOTHING_COMMITTED = FetchedOffset(-1, NO_LEADER_EPOCH, "")
UNSTABLE = FetchedOffset(-1, NO_LEADER_EPOCH, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)


class _OpenTransaction:
    """What one producer's open transaction has committed, by group."""

    __slots__ = ("groups", "producer_epoch")

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        self.groups: dict[str, _Topics] = {}


class OffsetTable:
    """All offsets of one partition of `__consumer_offsets`. Changed by the `replay` methods alone."""

    def __init__(self, held: HeldBytes | None = None) -> None:
        """`held`: where what all offsets take is counted."""
        self._held = held or HeldBytes()
        self._committed: dict[str, _Topics] = {}
        self._open: dict[int, _OpenTransaction] = {}
        self._open_by_group: dict[str, set[int]] = {}
        # How many transactions have each partition pending, so that a fetch does not look into every transaction.
        self._pending_counts: dict[str, dict[TopicPartition, int]] = {}

    # --- Replay -------------------------------------------------------------------------------------------------------

    def replay_commit(
        self, key: OffsetCommitKey, value: OffsetCommitValue, record_offset: int, producer: ProducerIdAndEpoch | None
    ) -> None:
        stored = StoredOffset(value, record_offset)
        topic, partition = key.partition
        if producer is None:
            self._put(self._committed, key.group_id, topic, partition, stored)
            return
        transaction = self._open.setdefault(producer.producer_id, _OpenTransaction(producer.producer_epoch))
        transaction.producer_epoch = producer.producer_epoch
        if partition not in transaction.groups.get(key.group_id, {}).get(topic, {}):
            counts = self._pending_counts.setdefault(key.group_id, {})
            counts[key.partition] = counts.get(key.partition, 0) + 1
        self._put(transaction.groups, key.group_id, topic, partition, stored)
        self._open_by_group.setdefault(key.group_id, set()).add(producer.producer_id)

    def replay_delete(self, key: OffsetCommitKey) -> None:
        """Drop an offset, pending ones of the partition too: the tombstone stands later in the log than they do."""
        group_id = key.group_id
        self._discard(self._committed, group_id, key.partition)
        if not self.is_pending(group_id, key.partition):
            return
        for producer_id in self._open_by_group[group_id]:
            if self._discard(self._open[producer_id].groups, group_id, key.partition):
                self._count_down(group_id, key.partition)
        self._forget_closed(group_id)

    def replay_marker(self, producer_id: int, committed: bool) -> set[str]:
        """Publish or drop what a transaction holds; return the groups it held offsets of."""
        transaction = self._open.pop(producer_id, None)
        if transaction is None:
            return set()
        for group_id, topics in transaction.groups.items():
            self._held.offsets -= OFFSET_GROUP_BYTES
            for topic, partitions in topics.items():
                for partition, stored in partitions.items():
                    self._held.offsets -= offset_bytes(stored.value.metadata)
                    self._count_down(group_id, TopicPartition(topic, partition))
                    if committed:
                        self._publish(group_id, topic, partition, stored)
            producers = self._open_by_group[group_id]
            producers.discard(producer_id)
            if not producers:
                del self._open_by_group[group_id]
        return set(transaction.groups)

    def _publish(self, group_id: str, topic: str, partition: int, stored: StoredOffset) -> None:
        current = self._committed.get(group_id, {}).get(topic, {}).get(partition)
        if current is None or stored.record_offset > current.record_offset:
            self._put(self._committed, group_id, topic, partition, stored)

    def _put(self, groups: dict[str, _Topics], group_id: str, topic: str, partition: int, stored: StoredOffset) -> None:
        topics = groups.get(group_id)
        if topics is None:
            topics = groups[group_id] = {}
            self._held.offsets += OFFSET_GROUP_BYTES
        partitions = topics.setdefault(topic, {})
        before = partitions.get(partition)
        self._held.offsets += offset_bytes(stored.value.metadata)
        if before is not None:
            self._held.offsets -= offset_bytes(before.value.metadata)
        partitions[partition] = stored

    def _discard(self, groups: dict[str, _Topics], group_id: str, partition: TopicPartition) -> bool:
        """Remove one partition's offset, and what is left empty by that. Returns whether it was there."""
        topics = groups.get(group_id)
        partitions = None if topics is None else topics.get(partition.topic)
        stored = None if partitions is None else partitions.pop(partition.partition, None)
        if topics is None or stored is None:
            return False
        self._held.offsets -= offset_bytes(stored.value.metadata)
        if not partitions:
            del topics[partition.topic]
            if not topics:
                del groups[group_id]
                self._held.offsets -= OFFSET_GROUP_BYTES
        return True

    def _count_down(self, group_id: str, partition: TopicPartition) -> None:
        counts = self._pending_counts[group_id]
        counts[partition] -= 1
        if counts[partition] == 0:
            del counts[partition]
            if not counts:
                del self._pending_counts[group_id]

    def _forget_closed(self, group_id: str) -> None:
        """Forget transactions that have nothing of the group left after a deletion."""
        producers = self._open_by_group[group_id]
        for producer_id in [number for number in producers if group_id not in self._open[number].groups]:
            producers.discard(producer_id)
            if not self._open[producer_id].groups:
                del self._open[producer_id]
        if not producers:
            del self._open_by_group[group_id]

    # --- Questions ----------------------------------------------------------------------------------------------------

    def more_bytes(
        self, group_id: str, partition: TopicPartition, value: OffsetCommitValue, producer: ProducerIdAndEpoch | None
    ) -> int:
        """Return how much more memory a commit takes; what a transaction holds comes to what is committed."""
        known = self.get(group_id, partition)
        if known is not None and producer is None:
            return offset_bytes(value.metadata) - offset_bytes(known.metadata)
        if known is not None and len(value.metadata) <= len(known.metadata):
            return 0  # pending for as long as its transaction is open
        group_bytes = 0 if self.has_group(group_id) else OFFSET_GROUP_BYTES
        return group_bytes + offset_bytes(value.metadata)

    def has_group(self, group_id: str) -> bool:
        return group_id in self._committed or group_id in self._open_by_group

    def has_open_transaction(self, group_id: str) -> bool:
        return group_id in self._open_by_group

    def is_in_transaction(self, producer: ProducerIdAndEpoch) -> bool:
        """Return whether this producer has offsets pending here under this epoch, so its transaction is known open."""
        transaction = self._open.get(producer.producer_id)
        return transaction is not None and transaction.producer_epoch == producer.producer_epoch

    def is_pending(self, group_id: str, partition: TopicPartition) -> bool:
        return partition in self._pending_counts.get(group_id, ())

    def is_pending_by_another(self, group_id: str, partition: TopicPartition, producer_id: int) -> bool:
        """Return whether a transaction of another producer has an offset of the partition pending."""
        count = self._pending_counts.get(group_id, {}).get(partition, 0)
        return count > self._has_pending(group_id, partition, producer_id)

    def _has_pending(self, group_id: str, partition: TopicPartition, producer_id: int) -> bool:
        transaction = self._open.get(producer_id)
        topics = {} if transaction is None else transaction.groups.get(group_id, {})
        return partition.partition in topics.get(partition.topic, {})

    def get(self, group_id: str, partition: TopicPartition) -> OffsetCommitValue | None:
        stored = self._committed.get(group_id, {}).get(partition.topic, {}).get(partition.partition)
        return None if stored is None else stored.value

    def fetch(
        self, group_id: str, partitions: Iterable[TopicPartition] | None, *, require_stable: bool
    ) -> dict[TopicPartition, FetchedOffset]:
        """Return what is committed; None asks for all that have something committed or pending (O2)."""
        topics = self._committed.get(group_id, {})
        pending = self._pending_counts.get(group_id, {}) if require_stable else {}
        if partitions is None:
            partitions = dict.fromkeys((*self._partitions(topics), *pending))
        fetched: dict[TopicPartition, FetchedOffset] = {}
        for partition in partitions:
            stored = topics.get(partition.topic, {}).get(partition.partition)
            if partition in pending:
                fetched[partition] = UNSTABLE
            elif stored is None:
                fetched[partition] = NOTHING_COMMITTED
            else:
                value = stored.value
                fetched[partition] = FetchedOffset(value.offset, value.leader_epoch, value.metadata)
        return fetched

    def numbers(
        self, group_id: str, *, require_stable: bool
    ) -> tuple[list[tuple[str, tuple[int, ...]]], tuple[TopicPartition, ...]]:
        """Return what `fetch` returns for all: committed by topic, and pending. Fast, for it is not split (S3)."""
        committed = [(topic, tuple(held)) for topic, held in self._committed.get(group_id, {}).items()]
        return committed, tuple(self._pending_counts.get(group_id, ())) if require_stable else ()

    def some_partitions(self, group_id: str, count: int) -> list[TopicPartition]:
        """Return up to `count` partitions that the group has offsets for, committed or pending: all if they are fewer.

        What is both stands there once. It does not look at more than it returns twice over (S3).
        """
        committed = islice(self._partitions(self._committed.get(group_id, {})), count)
        pending = islice(self._pending_counts.get(group_id, ()), count)
        return list(dict.fromkeys((*committed, *pending)))[:count]

    def committed(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield all that is committed: group, topic, partition, offset. Commits may come in between."""
        for group_id, topics in list(self._committed.items()):
            for topic, partitions in list(topics.items()):
                for partition, stored in list(partitions.items()):
                    yield group_id, topic, partition, stored.value.offset

    def of_group(self, group_id: str) -> Iterator[tuple[TopicPartition, OffsetCommitValue]]:
        """Yield what one group has committed."""
        for partition, stored in _items(self._committed.get(group_id, {})):
            yield partition, stored.value

    def topics(self) -> set[str]:
        """Return every topic that a group has an offset for, committed or pending."""
        found = {topic for held in self._committed.values() for topic in held}
        return found.union(partition.topic for counts in self._pending_counts.values() for partition in counts)

    def of_topics(self, topics: Iterable[str]) -> Iterator[tuple[str, TopicPartition]]:
        """Yield every group's offsets for partitions of these topics, committed or pending; what is both, twice.

        Offsets may be deleted and published in between. The pending ones come first, so that none of them is passed
        over because it is published meanwhile.
        """
        topics = frozenset(topics)
        for group_id in list(self._pending_counts):
            for partition in list(self._pending_counts.get(group_id, ())):
                if partition.topic in topics:
                    yield group_id, partition
        for group_id in list(self._committed):
            for topic in topics & self._committed.get(group_id, {}).keys():
                for number in list(self._committed.get(group_id, {}).get(topic, ())):
                    yield group_id, TopicPartition(topic, number)

    def expired(
        self,
        group_id: str,
        is_subscribed_to: Callable[[str], bool],
        base_timestamp_ms: int | None,
        retention_ms: int,
        now_ms: int,
        at_most: int,
    ) -> tuple[Sequence[TopicPartition], int | None]:
        """Return the partitions whose offsets have expired, and when the next of the others does (KIP-211, O3).

        `base_timestamp_ms` is what the retention counts from, None for each offset's own commit. Offsets of topics
        that the group is subscribed to, and those with a pending commit, do not expire. The search ends with `at_most`.
        """
        expired: list[TopicPartition] = []
        next_ms: int | None = None
        for topic, partitions in self._committed.get(group_id, {}).items():
            if is_subscribed_to(topic):
                continue
            for number, stored in partitions.items():
                deadline_ms = _deadline_ms(stored.value, base_timestamp_ms, retention_ms)
                partition = TopicPartition(topic, number)
                if deadline_ms <= now_ms and not self.is_pending(group_id, partition):
                    expired.append(partition)
                    if len(expired) >= at_most:
                        return expired, next_ms
                elif next_ms is None or deadline_ms < next_ms:
                    next_ms = deadline_ms
        return expired, next_ms

    def snapshot(self) -> dict[str, object]:
        """Return the whole state as plain values, for comparing one replay with another (O1)."""
        return {
            "committed": {
                (group_id, partition): stored
                for group_id, topics in self._committed.items()
                for partition, stored in _items(topics)
            },
            "pending": {
                (producer_id, group_id, partition): stored
                for producer_id, transaction in self._open.items()
                for group_id, topics in transaction.groups.items()
                for partition, stored in _items(topics)
            },
            "pending counts": {
                (group_id, partition): count
                for group_id, counts in self._pending_counts.items()
                for partition, count in counts.items()
            },
        }

    @staticmethod
    def _partitions(topics: _Topics) -> Iterator[TopicPartition]:
        return (partition for partition, _ in _items(topics))


def _items(topics: _Topics) -> Iterator[tuple[TopicPartition, StoredOffset]]:
    for topic, partitions in topics.items():
        for partition, stored in partitions.items():
            yield TopicPartition(topic, partition), stored


def _deadline_ms(value: OffsetCommitValue, base_timestamp_ms: int | None, retention_ms: int) -> int:
    if value.expire_timestamp_ms != -1:
        return value.expire_timestamp_ms
    return (value.commit_timestamp_ms if base_timestamp_ms is None else base_timestamp_ms) + retention_ms
