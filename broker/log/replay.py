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
    if header.producer_id >= 0:
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        if not header.is_control:
            state.apply_batch(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp_ms,
                header.is_transactional and header.record_count > 0,
                now_ms,
            )
        elif header.record_count > 0:
            record = decode_records(batch, check_crc=False)[0]
            marker = decode_control(record)
            completed = state.apply_marker(
                producer,
                marker.coordinator_epoch,
                marker.type is ControlType.COMMIT,
                header.base_offset,
                header.max_timestamp_ms,
                now_ms,
            )
        else:
            # Compaction by Kafka may empty a marker: the transaction is gone, its epoch still fences.
            state.apply_marker(producer, -1, True, header.base_offset, header.max_timestamp_ms, now_ms)
    state.end_offset = header.next_offset
    return completed
