"""What a log that continues behind the remote storage knows of its producers (P1, P7)."""

from __future__ import annotations

from semel.broker.log.producer_snapshot import CorruptSnapshotError, decode_packed
from semel.broker.log.producer_state import NO_TRANSACTION, PackedEntry, ProducerEntry
from semel.broker.tiers.remote_log import RemoteSegment
from semel.broker.tiers.remote_storage import RemoteStorage
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import ErrorCode, error_for


async def read_producers(storage: RemoteStorage, last: RemoteSegment) -> list[PackedEntry]:
    """Return the producers at the end of the last segment. Raises `SemelError` (CORRUPT_MESSAGE)."""
    if not last.producers.size_bytes:
        return []
    data = await storage.store.read(last.key, last.producers.position, last.producers.size_bytes)
    if crc32c(data) != last.producers.checksum:
        raise error_for(ErrorCode.CORRUPT_MESSAGE, f"the producers in {last.key} are damaged")
    return producers_at_the_end(data, storage.now_ms)


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
