"""What a log that continues behind the remote storage knows of its producers (P1, P7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from semel.broker.log.producer_snapshot import CorruptSnapshotError, decode_packed
from semel.broker.log.producer_state import NO_TRANSACTION, PackedEntry, ProducerEntry
from semel.broker.log.producers_before import entry_before
from semel.broker.tiers.remote_log import RemoteLog, RemoteSegment
from semel.broker.tiers.remote_storage import RemoteStorage
from semel.protocol.batch_header import leading_batches
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import ErrorCode, error_for

_PIECE_BYTES: Final = 4 << 20
_BATCH_BYTES_MAX: Final = 256 << 20


class Beginning(NamedTuple):
    """Where a log can begin whose records before are in the remote storage.

    producers: what is known of those who had written before
    segments: those behind it, whose batches have to be read: at their ends nothing is known of producers
    """

    offset: int
    producers: list[PackedEntry]
    segments: list[RemoteSegment]


async def beginning_of(storage: RemoteStorage, remote: RemoteLog) -> Beginning:
    """Return where a log can begin: behind the last segment that says what its producers are (P7).

    A leader that rolls twice before it has flushed has no snapshot of many producers for the first of the two.
    Raises `SemelError` (CORRUPT_MESSAGE).
    """
    known = next((at for at in range(len(remote.segments) - 1, -1, -1) if remote.segments[at].producers.size_bytes), -1)
    behind = remote.segments[known + 1 :]
    if known >= 0:
        last = remote.segments[known]
        return Beginning(last.end_offset, await _read_producers(storage, last), behind)
    return Beginning(remote.first_offset if behind else remote.end_offset, [], behind)


async def beginning_of_compacted(storage: RemoteStorage, remote: RemoteLog) -> Beginning:
    """Return where a compacted log begins, which the disk has to have whole. Below its start a segment may be left, for
    what it says of producers, and a gap behind it.

    What is known of producers whose records were deleted is in the snapshots alone (P7). Raises `SemelError`
    (CORRUPT_MESSAGE).
    """
    left = [one for one in remote.segments if one.end_offset > remote.start_offset]
    if not left:
        return await beginning_of(storage, remote)
    begins = left[0].start_offset
    told = next((one for one in (*left, *reversed(remote.segments)) if one.producers.size_bytes), None)
    known = await _read_producers(storage, told) if told is not None else []
    before = (entry_before(entry, begins) for entry in known)
    return Beginning(begins, [entry for entry in before if entry is not None], left)


async def _read_producers(storage: RemoteStorage, last: RemoteSegment) -> list[PackedEntry]:
    data = await storage.store.read(last.key, last.producers.position, last.producers.size_bytes)
    if crc32c(data) != last.producers.checksum:
        raise error_for(ErrorCode.CORRUPT_MESSAGE, f"the producers in {last.key} are damaged")
    return producers_at_the_end(data, storage.now_ms)


async def batches_of(storage: RemoteStorage, segment: RemoteSegment) -> AsyncIterator[bytes]:
    """Yield all batches of a segment, in pieces of whole ones. Raises `SemelError`."""
    position, size_bytes = 0, _PIECE_BYTES
    while position < segment.size_bytes:
        wanted = min(size_bytes, segment.size_bytes - position)
        data = await storage.store.read(segment.key, position, wanted)
        headers = leading_batches(data)
        if not headers:
            if wanted == segment.size_bytes - position or size_bytes >= _BATCH_BYTES_MAX:
                raise error_for(
                    ErrorCode.CORRUPT_MESSAGE, f"the batch at position {position} of {segment.key} is damaged"
                )
            size_bytes *= 2  # it is larger
            continue
        ends = headers[-1].position + headers[-1].size_bytes
        yield data[:ends]
        position += ends
        size_bytes = _PIECE_BYTES


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
