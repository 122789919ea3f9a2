"""What a log that continues behind the remote storage knows of its producers (P1, P7)."""

from __future__ import annotations

from semel.broker.log.producer_snapshot import CorruptSnapshotError, decode_packed
from semel.broker.log.producer_state import NO_TRANSACTION, PackedEntry, ProducerEntry
from semel.protocol.errors import ErrorCode, error_for


def producers_at_the_end(snapshot: bytes, now_ms: int) -> list[PackedEntry]:
    """Return the producers of the snapshot that was copied with the last segment.

    Their transactions have ended: a segment is copied once all that began in it, or before, are decided. The markers of
    some were behind it, and are lost with the records there (L1). Raises `SemelError` (CORRUPT_MESSAGE).
    """
    try:
        entries = [ProducerEntry.unpacked(entry) for entry in decode_packed(snapshot, now_ms=now_ms)]
    except CorruptSnapshotError as error:
        raise error_for(
            ErrorCode.CORRUPT_MESSAGE, f"the copied snapshot of producers can't be read: {error}"
        ) from error
    for entry in entries:
        entry.transaction_first_offset = NO_TRANSACTION
    return [entry.packed() for entry in entries]
