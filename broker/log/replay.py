"""Taking batches from a log into the producers' state: one path for recovery, truncation and followers (P7)."""

from __future__ import annotations

from semel.broker.log.producer_state import CompletedTransaction, ProducerState
from semel.protocol.batch_header import BatchHeader
from semel.protocol.control_records import ControlType, decode_control
from semel.protocol.ids import ProducerIdAndEpoch
from semel.protocol.record_decoder import decode_records
from semel.runtime.storage import Buffer


def apply_batch(state: ProducerState, header: BatchHeader, batch: Buffer, now_ms: int) -> CompletedTransaction | None:
    """Take one batch in, at the offset in its header. `batch` begins with it, and is looked into for markers alone.

    Returns the transaction that it ended, if it did. Raises `CorruptBatchError` for a control batch that is none.
    """
    completed = None
    if not header.is_control:
        state.apply_run([header], 0, now_ms)
    elif header.producer_id >= 0:
        completed = _apply_control(state, header, batch, now_ms)
    state.end_offset = header.next_offset
    return completed


def apply_run(
    state: ProducerState, headers: list[BatchHeader], data: memoryview, now_ms: int
) -> list[CompletedTransaction]:
    """Take batches in as `apply_batch` does each of them, whose headers have their positions in `data`. Returns the
    transactions that they ended.
    """
    found = []
    number = 0
    while (number := state.apply_run(headers, number, now_ms)) < len(headers):
        header = headers[number]
        completed = apply_batch(state, header, data[header.position : header.position + header.size_bytes], now_ms)
        if completed is not None:
            found.append(completed)
        number += 1
    state.end_offset = headers[-1].next_offset
    return found


def _apply_control(
    state: ProducerState, header: BatchHeader, batch: Buffer, now_ms: int
) -> CompletedTransaction | None:
    producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
    offset, timestamp_ms = header.base_offset, header.max_timestamp_ms
    if header.record_count > 0:
        marker = decode_control(decode_records(batch, check_crc=False)[0])
        committed = marker.type is ControlType.COMMIT
        return state.apply_marker(producer, marker.coordinator_epoch, committed, offset, timestamp_ms, now_ms)
    # Compaction by Kafka may empty a marker: the transaction is gone, its epoch still fences.
    return state.apply_marker(producer, -1, True, offset, timestamp_ms, now_ms)
