"""A coordinator's log in memory, for the shard runtime and what stands on it."""

from __future__ import annotations

import asyncio

from semel.broker.log.producer_state import MarkerVerdict, ProducerState
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.batch_header import iter_batches, set_base_offset
from semel.protocol.control_records import ControlType, decode_control, encode_control_batch
from semel.protocol.errors import SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.record_decoder import decode_records

TP = TopicPartition("__memory", 0)


class MemoryLog:
    """A log in memory. Appends are committed at once, or as far as the test says.

    It judges producers and markers as a partition on a disk does (P4, P5, P9, P10).
    """

    def __init__(self, *, auto_commit: bool = True) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.auto_commit = auto_commit
        self.refuse: SemelError | None = None
        self.broken: SemelError | None = None
        self._producers = ProducerState(TP)
        self._changed = asyncio.Condition()

    def append_batch(self, batch: bytearray) -> int:
        self._refuse()
        [header] = iter_batches(batch)
        if header.producer_id >= 0:
            self._producers.check_batch(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.is_transactional,
                check_sequence=False,
                verified=True,
            )
        return self._append(batch)

    def append_marker(
        self,
        producer: ProducerIdAndEpoch,
        coordinator_epoch: int,
        committed: bool,
        version: TransactionVersion,
        *,
        forged_epoch: int,
    ) -> int | None:
        self._refuse()
        if self._producers.check_marker(producer, coordinator_epoch, version) is MarkerVerdict.ALREADY_APPLIED:
            return None
        marker = ControlType.COMMIT if committed else ControlType.ABORT
        batch = encode_control_batch(
            marker,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=0,
        )
        return self._append(bytearray(batch))

    def read_batches(self, offset: int, max_bytes: int) -> bytes:
        """Return whole batches: at least one, and no more of them than fit into `max_bytes`."""
        found: list[bytes] = []
        for base, data in self.batches:
            [header] = iter_batches(data)
            if base + header.last_offset_delta < offset:
                continue
            if found and sum(map(len, found)) + len(data) > max_bytes:
                break
            found.append(data)
        return b"".join(found)

    async def wait_committed(self, offset: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.high_watermark > offset or self.broken is not None)
        if self.broken is not None:
            error, self.broken = self.broken, None
            raise error

    async def commit(self, upto: int | None = None) -> None:
        """Commit what is below the offset `upto`; None: everything."""
        upto = self.log_end_offset if upto is None else upto
        assert self.high_watermark <= upto <= self.log_end_offset
        async with self._changed:
            self.high_watermark = upto
            self._changed.notify_all()

    async def break_commit(self, error: SemelError) -> None:
        """Lose what is not committed, and tell those who wait for it."""
        async with self._changed:
            self.broken = error
            kept = [data for base, data in self.batches if base < self.high_watermark]
            self.batches.clear()
            self.log_end_offset = 0
            self._producers = ProducerState(TP)
            for data in kept:
                self._keep(data)
            self._changed.notify_all()

    def _refuse(self) -> None:
        if self.refuse is not None:
            error, self.refuse = self.refuse, None
            raise error

    def _append(self, batch: bytearray) -> int:
        base_offset = self.log_end_offset
        set_base_offset(batch, 0, base_offset, 0)
        self._keep(bytes(batch))
        if self.auto_commit:
            self.high_watermark = self.log_end_offset
        return base_offset

    def _keep(self, batch: bytes) -> None:
        [header] = iter_batches(batch)
        self.batches.append((header.base_offset, batch))
        self.log_end_offset = header.next_offset
        if header.producer_id < 0:
            return
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        timestamp_ms = header.max_timestamp_ms
        if header.is_control:
            marker = decode_control(decode_records(batch)[0])
            self._producers.apply_marker(
                producer,
                marker.coordinator_epoch,
                marker.type is ControlType.COMMIT,
                header.base_offset,
                timestamp_ms,
                timestamp_ms,
            )
        else:
            self._producers.apply_batch(
                producer.producer_id,
                producer.producer_epoch,
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                timestamp_ms,
                header.is_transactional,
                timestamp_ms,
            )
