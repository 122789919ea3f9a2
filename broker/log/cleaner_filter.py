"""What compaction keeps of a batch (D4). No IO: key map, transactions on the way, and the decision for each batch.

Sources: Kafka's LogCleaner, KIP-98 (transactions), KIP-534 (how long tombstones and markers stay).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from semel.broker.log.log_types import AbortedTransaction
from semel.protocol.batch_builder import rewrite_batch
from semel.protocol.batch_header import BatchHeader
from semel.protocol.compression import Compression
from semel.protocol.control_records import ControlType, decode_control
from semel.protocol.record_decoder import Record, decode_records

_SHORT_KEY_BYTES: Final = 15
_DIGEST_BYTES: Final = 16


class KeyMap:
    """The last offset of each key in the dirty part of a log. Long keys are kept as 16 bytes of BLAKE2b.

    Bounded: once `keys_max` are in, the round ends after the batch that was being read, and another one continues from
    there.
    """

    __slots__ = ("_offsets", "end_offset", "keys_max")

    def __init__(self, keys_max: int) -> None:
        self._offsets: dict[bytes, int] = {}
        self.keys_max = keys_max
        self.end_offset = 0
        """All committed records below it are in the map, or were older than those that are."""

    @staticmethod
    def _short(key: bytes) -> bytes:
        return key if len(key) <= _SHORT_KEY_BYTES else hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()

    def put(self, key: bytes, offset: int) -> None:
        self._offsets[self._short(key)] = offset

    def get(self, key: bytes) -> int:
        """Return the last offset of a key, or -1."""
        return self._offsets.get(self._short(key), -1)

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self.keys_max

    def __len__(self) -> int:
        return len(self._offsets)


class TransactionsOnTheWay:
    """Which transactions are open, and how they will end, at the batch that a walk through the log has come to."""

    __slots__ = ("_aborted", "_coming", "_committed", "retained")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = deque(sorted(aborted, key=lambda one: one.first_offset))
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        """By producer id: the transaction, and whether one of its batches was met."""
        self._committed: set[int] = set()
        self.retained: list[AbortedTransaction] = []
        """Aborted ones whose data was met before their marker: the transaction index keeps them."""

    def _advance(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            one = self._coming.popleft()
            self._aborted.setdefault(one.producer_id, (one, False))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Take in a data batch. Says whether it belongs to a transaction that was aborted."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        found = self._aborted.get(header.producer_id)
        if found is None:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = (found[0], True)
        return True

    def ends_nothing(self, header: BatchHeader, batch: memoryview) -> bool:
        """Take in a control batch. Says whether no data of its transaction is left before it, so that it may go."""
        self._advance(header.last_offset)
        if header.record_count == 0:
            return True
        marker = decode_control(decode_records(batch, check_crc=False)[0])
        if marker.type is ControlType.ABORT:
            found = self._aborted.pop(header.producer_id, None)
            if found is None or not found[1]:
                return True
            self.retained.append(found[0])
            return False
        met = header.producer_id in self._committed
        self._committed.discard(header.producer_id)
        return not met

    def take_retained(self) -> list[AbortedTransaction]:
        """Return what is to be written to the transaction index since the last call."""
        retained, self.retained = self.retained, []
        return retained


class BatchFilter:
    """Decides about one batch after the other, in the order of the log."""

    __slots__ = ("_delete_retention_ms", "_keys", "_last_records", "_now_ms", "transactions")

    def __init__(
        self,
        keys: KeyMap,
        transactions: TransactionsOnTheWay,
        last_records: Mapping[int, tuple[int, int]],
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        """`last_records`: by active producer id, the offset of its last record (-1: a marker came last) and its
        epoch.
        """
        self._keys = keys
        self.transactions = transactions
        self._last_records = last_records
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms

    def keep(self, header: BatchHeader, batch: memoryview, *, must_stay: bool) -> bytes | bytearray | memoryview | None:
        """Return the batch as it is to be, the same `batch` where nothing changes, or None if it goes.

        `must_stay`: it continues to stand for its offsets, even if no record of it is left.
        """
        must_stay = must_stay or self._is_last_of_producer(header)
        if header.is_control:
            return self._keep_marker(header, batch, must_stay)
        if self.transactions.is_aborted(header):
            return rewrite_batch(header, (), compression=Compression.NONE) if must_stay else None
        if header.base_offset >= self._keys.end_offset:
            return batch
        records = decode_records(batch)
        kept = [record for record in records if self._stays(header, record)]
        if not kept:
            return rewrite_batch(header, (), compression=Compression.NONE) if must_stay else None
        horizon = None
        if not header.has_delete_horizon and any(record.value is None for record in kept):
            horizon = self._now_ms + self._delete_retention_ms
        if horizon is None and len(kept) == len(records):
            return batch
        return rewrite_batch(header, kept, delete_horizon_ms=horizon)

    def _keep_marker(self, header: BatchHeader, batch: memoryview, must_stay: bool) -> bytearray | memoryview | None:
        """A marker without data stays for `delete.retention.ms` more, so that slow readers see how it ended."""
        if not self.transactions.ends_nothing(header, batch):
            return batch
        if header.has_delete_horizon:
            return batch if must_stay or self._now_ms < header.base_timestamp_ms else None
        if header.record_count == 0:
            return batch if must_stay else None
        horizon = self._now_ms + self._delete_retention_ms
        return rewrite_batch(header, decode_records(batch), delete_horizon_ms=horizon)

    def _stays(self, header: BatchHeader, record: Record) -> bool:
        if record.offset >= self._keys.end_offset:
            return True
        if record.key is None or record.offset < self._keys.get(record.key):
            return False
        return record.value is not None or not (header.has_delete_horizon and self._now_ms >= header.base_timestamp_ms)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether an active producer's sequence, or its epoch, can be told from this batch alone (P7)."""
        last = self._last_records.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        offset, epoch = last
        if offset >= 0:
            return header.last_offset == offset
        return header.is_control and header.producer_epoch == epoch
