"""A coordinator's log in memory, for the shard runtime and what stands on it."""

from __future__ import annotations

import asyncio

from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.errors import SemelError
from semel.protocol.ids import ProducerIdAndEpoch
from semel.protocol.record_batch import ControlType, encode_control_batch, iter_batches, set_base_offset


class MemoryLog:
    """A log in memory. Appends are committed at once, or when the test says so."""

    def __init__(self, *, auto_commit: bool = True) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.auto_commit = auto_commit
        self.refuse: SemelError | None = None
        self.broken: SemelError | None = None
        self._changed = asyncio.Condition()

    def append_batch(self, batch: bytearray) -> int:
        if self.refuse is not None:
            error, self.refuse = self.refuse, None
            raise error
        set_base_offset(batch, 0, self.log_end_offset, 0)
        [header] = iter_batches(batch)
        self.batches.append((self.log_end_offset, bytes(batch)))
        base_offset, self.log_end_offset = self.log_end_offset, header.next_offset
        if self.auto_commit:
            self.high_watermark = self.log_end_offset
        return base_offset

    def append_marker(
        self, producer: ProducerIdAndEpoch, coordinator_epoch: int, committed: bool, version: TransactionVersion
    ) -> int | None:
        marker = ControlType.COMMIT if committed else ControlType.ABORT
        batch = encode_control_batch(
            marker,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=0,
        )
        return self.append_batch(bytearray(batch))

    def read_batches(self, offset: int, max_bytes: int) -> bytes:
        return b"".join(data for base, data in self.batches if base >= offset)

    async def wait_committed(self, offset: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.high_watermark > offset or self.broken is not None)
        if self.broken is not None:
            error, self.broken = self.broken, None
            raise error

    async def commit(self) -> None:
        async with self._changed:
            self.high_watermark = self.log_end_offset
            self._changed.notify_all()

    async def break_commit(self, error: SemelError) -> None:
        """Lose what is not committed, and tell those who wait for it."""
        async with self._changed:
            self.broken = error
            self.log_end_offset = self.high_watermark
            self.batches = [batch for batch in self.batches if batch[0] < self.high_watermark]
            self._changed.notify_all()
