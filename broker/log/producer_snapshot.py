"""`<offset>.snapshot`: the producers' state with all before `offset` taken in, so that recovery replays only what
follows (P7).

Kafka's format (ProducerSnapshot version 1): int16 version, uint32 CRC-32C of the rest, int32 count, then for each
producer its id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch and open transaction's
first offset. It holds one batch of each producer; P1 needs five. The other batches follow behind, where Kafka's
reader, whose checksum covers the whole file, looks no further. A file that Kafka wrote simply has none.
"""

from __future__ import annotations

import logging
import struct
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from semel.broker.log.disk_errors import is_full
from semel.broker.log.losses import UNSYNCED
from semel.broker.log.producer_state import (
    FIELDS,
    HEAD,
    MAX_SEQUENCE,
    REMEMBERED_BATCHES,
    PackedEntry,
    ProducerEntry,
    ProducerState,
)
from semel.protocol.crc32c import crc32c
from semel.protocol.ids import NO_SEQUENCE
from semel.runtime.storage import Storage, read_whole, write_whole

_log = logging.getLogger(__name__)

SNAPSHOT_SUFFIX: Final = ".snapshot"

SNAPSHOT_BYTES_MAX: Final = 1 << 30
AT_ONCE_MAX: Final = 1_000
"""The snapshot of more producers is not written where somebody waits for it (S3): see `SnapshotWork`."""
LOG_BYTES_PER_BYTE: Final = 8
"""Of large snapshots, those with less of the log than this between their neighbours go: what is left takes at most a
quarter of the log's size, besides the newest and the oldest one."""
_GIVE_WAY_EVERY: Final = 256
_VERSION: Final = 1
_PREFIX: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_EXTENSION_MAGIC: Final = b"SEML\x01"
_EXTENDED: Final = struct.Struct(">qqb")
"""Producer id, when the broker last heard of it, number of batches."""
_BATCH: Final = struct.Struct(">iiqqq")
_BATCHES: Final = [struct.Struct(">" + "iiqqq" * count) for count in range(REMEMBERED_BATCHES + 1)]


class CorruptSnapshotError(Exception):
    """The file is no whole snapshot: an older one, or the log, is to be used."""


def encode_packed(entries: Iterable[PackedEntry]) -> bytes:
    """Return the file's bytes. May be called in any thread."""
    body = bytearray(_COUNT.size)
    extension = bytearray(_EXTENSION_MAGIC)
    count = 0
    for entry in entries:
        count += 1
        if count % _GIVE_WAY_EVERY == 0:
            time.sleep(0)  # in a thread: lets the event loop have the interpreter within a millisecond
        active_ms, producer_id, epoch, coordinator_epoch, last_timestamp_ms, transaction_first_offset = entry[:HEAD]
        fields = entry[HEAD:]
        _, last_sequence, first_offset, last_offset, _ = fields[-FIELDS:] or (NO_SEQUENCE, NO_SEQUENCE, -1, -1, -1)
        body += _ENTRY.pack(
            producer_id,
            epoch,
            last_sequence,
            last_offset,
            last_offset - first_offset,
            last_timestamp_ms,
            coordinator_epoch,
            transaction_first_offset,
        )
        extension += _EXTENDED.pack(producer_id, active_ms, len(fields) // FIELDS)
        for n in range(0, len(fields), FIELDS):
            extension += _BATCH.pack(*fields[n : n + FIELDS])
    _COUNT.pack_into(body, 0, count)
    body += extension
    body[:0] = _PREFIX.pack(_VERSION, crc32c(body))
    return bytes(body)


def decode_snapshot(data: bytes, *, now_ms: int) -> list[ProducerEntry]:
    """Return the producers, as `decode_packed` does, to look at. Raises `CorruptSnapshotError`."""
    return list(map(ProducerEntry.unpacked, decode_packed(data, now_ms=now_ms)))


def decode_packed(data: bytes, *, now_ms: int) -> list[PackedEntry]:
    """Return the producers. Those of a file that Kafka wrote count as active now.

    Raises `CorruptSnapshotError`.
    """
    view = memoryview(data)
    if len(view) < _PREFIX.size + _COUNT.size:
        raise CorruptSnapshotError(f"it has {len(view)} bytes")
    version, crc = _PREFIX.unpack_from(view)
    if version != _VERSION:
        raise CorruptSnapshotError(f"its version is {version}")
    body = view[_PREFIX.size :]
    if crc32c(body) != crc:
        raise CorruptSnapshotError("its checksum is wrong")
    (count,) = _COUNT.unpack_from(body)
    end = _COUNT.size + count * _ENTRY.size
    if count < 0 or end > len(body):
        raise CorruptSnapshotError(f"it names {count} producers in {len(body)} bytes")
    entries: dict[int, PackedEntry] = {}
    for fields in _ENTRY.iter_unpack(body[_COUNT.size : end]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator_epoch, first_offset = fields
        entry = (now_ms, producer_id, epoch, coordinator_epoch, timestamp_ms, first_offset)
        if last_offset >= 0:
            first_sequence = _first_sequence(last_sequence, delta)
            entry = (*entry, first_sequence, last_sequence, last_offset - delta, last_offset, timestamp_ms)  # type: ignore[assignment]
        entries[producer_id] = entry
    _read_extension(body[end:], entries)
    return list(entries.values())


def _first_sequence(last_sequence: int, delta: int) -> int:
    if last_sequence < 0:
        return NO_SEQUENCE
    first = last_sequence - delta
    return first if first >= 0 else first + MAX_SEQUENCE + 1


def _read_extension(view: memoryview, entries: dict[int, PackedEntry]) -> None:
    if bytes(view[: len(_EXTENSION_MAGIC)]) != _EXTENSION_MAGIC:
        return
    position = len(_EXTENSION_MAGIC)
    while position < len(view):
        try:
            producer_id, active_ms, count = _EXTENDED.unpack_from(view, position)
            position += _EXTENDED.size
            if not 0 <= count <= REMEMBERED_BATCHES or producer_id not in entries:
                raise CorruptSnapshotError(f"it names {count} batches of producer {producer_id}")
            batches = _BATCHES[count]
            end = position + batches.size
            if end > len(view):
                raise CorruptSnapshotError(f"the batches of producer {producer_id} are cut off")
            # All that is known of the producer but when it was active, which comes first.
            entries[producer_id] = (active_ms, *entries[producer_id][1:HEAD], *batches.unpack_from(view, position))
            position = end
        except struct.error as error:
            raise CorruptSnapshotError("its last producer is cut off") from error


class SnapshotWork:
    """A snapshot of many producers, as they were at `offset`. `run` may be called in any thread."""

    __slots__ = ("_entries", "_path", "_storage", "no_room", "offset", "size_bytes")

    def __init__(self, storage: Storage, path: str, offset: int, entries: Sequence[PackedEntry]) -> None:
        self._storage = storage
        self._path = path
        self._entries = entries
        self.offset = offset
        self.size_bytes = 0
        """Of the file, once it is written."""
        self.no_room: OSError | None = None
        """Why it could not be written on a full disk. It can be run again."""

    def run(self) -> None:
        """Write it, durably, under its name only when it is whole. Raises `OSError`, except for want of room."""
        data = encode_packed(self._entries)
        self.no_room = None
        try:
            write_whole(self._storage, self._path, data)
        except OSError as error:
            if not is_full(error):
                raise
            self.no_room = error
        else:
            self.size_bytes = len(data)


class SnapshotFiles:
    """The snapshots in a partition's folder, by offset."""

    __slots__ = ("_folder", "_storage", "offsets")

    def __init__(self, storage: Storage, folder: str, offsets: Iterable[int]) -> None:
        self._storage = storage
        self._folder = folder
        self.offsets = sorted(offsets)

    def path(self, offset: int) -> str:
        return f"{self._folder}/{offset:020d}{SNAPSHOT_SUFFIX}"

    def write(self, state: ProducerState, *, sync: bool) -> None:
        """Write the state at its end offset, unless that is there. Raises `OSError`.

        Unsynced, a power cut may leave it broken: then its checksum says so, and an older one serves (P7).
        """
        offset = state.end_offset
        if offset in self.offsets:
            if sync:
                self.sync(offset)
            return
        file = self._storage.open(self.path(offset), create=True)
        try:
            file.truncate(0)
            file.append([encode_packed(state.packed())])
            if sync:
                file.sync()
        finally:
            file.close()
        insort(self.offsets, offset)

    def work_for(self, state: ProducerState) -> SnapshotWork | None:
        """Return what writes the state at its end offset elsewhere, as it is now, or None where `write` may do it."""
        if len(state) <= AT_ONCE_MAX or state.end_offset in self.offsets:
            return None
        return SnapshotWork(self._storage, self.path(state.end_offset), state.end_offset, state.packed())

    def written(self, work: SnapshotWork) -> None:
        """Take note of what `SnapshotWork.run` wrote."""
        if work.offset not in self.offsets:
            insort(self.offsets, work.offset)

    def crowding(self, size_bytes: int, first_offset: int, log_bytes: Callable[[int, int], int]) -> list[int]:
        """Return the snapshots that can go because their neighbours are near, for how large they are.

        After the newest one was written, of `size_bytes`. That of the log's first segment stays: without it nobody
        knows what was in the segments that retention took. log_bytes(from, to): what the log has between two offsets.
        """
        if len(self.offsets) < 3:
            return []
        older, middle, newest = self.offsets[-3:]
        if middle <= first_offset or log_bytes(older, newest) >= LOG_BYTES_PER_BYTE * size_bytes:
            return []
        return [middle]

    def sync(self, offset: int) -> None:
        """Bring what a snapshot says to the disk. Its name is the folder's. Raises `OSError`."""
        file = self._storage.open(self.path(offset))
        try:
            file.sync()
        finally:
            file.close()

    def restore(self, state: ProducerState, *, at_most: int, at_least: int, now_ms: int) -> int | None:
        """Restore the newest whole snapshot with an offset from `at_least` to `at_most`; broken ones are removed.

        Returns its offset, or None, with `state` unchanged.
        """
        for offset in reversed(self.offsets[bisect_left(self.offsets, at_least) : bisect_right(self.offsets, at_most)]):
            try:
                data = read_whole(self._storage, self.path(offset), size_bytes_max=SNAPSHOT_BYTES_MAX)
                entries = decode_packed(data, now_ms=now_ms)
            except (CorruptSnapshotError, ValueError, FileNotFoundError) as error:
                _log.warning(
                    "the producer snapshot %s cannot be used: %s", self.path(offset), error, extra={UNSYNCED: True}
                )
                self.remove([offset])
                continue
            state.restore_packed(entries, offset)
            return offset
        return None

    def remove(self, offsets: Iterable[int]) -> None:
        """Delete snapshots. One that is gone already is no error."""
        for offset in offsets:
            if offset in self.offsets:
                self.offsets.remove(offset)
            try:
                self._storage.remove(self.path(offset))
            except FileNotFoundError:
                continue

    def beyond(self, offset: int) -> list[int]:
        """Return the offsets of snapshots above `offset`."""
        return self.offsets[bisect_right(self.offsets, offset) :]

    def strays(self, base_offsets: Iterable[int], before: int) -> list[int]:
        """Return those below `before` that no segment begins at: left by a clean close, and no longer of use."""
        bases = set(base_offsets)
        return [offset for offset in self.offsets if offset < before and offset not in bases]
