"""Reading what was committed to a diskless partition and is in no segment yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from semel.broker.diskless.rows import Entry
from semel.broker.tiers.object_store import ObjectMissingError
from semel.broker.tiers.remote_log import RemoteLog
from semel.broker.tiers.remote_storage import RemoteStorage
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import TopicPartition

_AHEAD: Final = 8
"""So many entries are being read at once."""


def first_expected(remote: RemoteLog, entries: Sequence[Entry]) -> int:
    """Return the offset at which the entries behind the segments have to begin.

    Where none was ever copied to a segment, what was deleted may be in no entry either: it was gone from the disks when
    the topic became diskless.
    """
    if not entries:
        return max(remote.end_offset, remote.start_offset)
    return max(remote.end_offset, min(remote.start_offset, entries[0].base_offset))


def follow_each_other(tp: TopicPartition, begins: int, entries: Sequence[Entry], end_offset: int) -> None:
    """Raise `SemelError` where records are missing: behind the segments, between entries, or at the end.

    begins: see `first_expected`; end_offset: of what was ever committed
    """
    follows = begins
    for base_offset, ends in [*((one.base_offset, one.end_offset) for one in entries), (end_offset, end_offset)]:
        if base_offset > follows:
            raise error_for(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"offsets {follows} to {base_offset - 1} of {tp} are missing: the metadata's database has no entry for "
                "them. Restore it from a backup",
            )
        follows = max(follows, ends)


class EntryReader:
    """Reads entries."""

    def __init__(self, storage: RemoteStorage) -> None:
        self._storage = storage

    async def entries(self, tp: TopicPartition, entries: Sequence[Entry]) -> AsyncIterator[bytes]:
        """Yield the batches of each entry, in order. Raises `SemelError` for what is missing or damaged, by name."""
        loop = asyncio.get_running_loop()
        ahead: list[asyncio.Task[bytes]] = []
        following = iter(entries)
        try:
            while True:
                while len(ahead) < _AHEAD and (entry := next(following, None)) is not None:
                    ahead.append(loop.create_task(self._entry(tp, entry)))
                if not ahead:
                    return
                yield await ahead.pop(0)
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    async def _entry(self, tp: TopicPartition, entry: Entry) -> bytes:
        data, where = entry.data, "their row in the metadata's database"
        if entry.object_key:
            where = f"the object {entry.object_key}"
            try:
                data = await self._storage.store.read(entry.object_key, entry.position, entry.size_bytes)
            except ObjectMissingError as error:
                raise self._unreadable(tp, entry, f"{where} is missing ({error.message})") from error
        if len(data) != entry.size_bytes or crc32c(data) != entry.checksum:
            raise self._unreadable(tp, entry, f"{where} is damaged at {entry.position}")
        return data

    @staticmethod
    def _unreadable(tp: TopicPartition, entry: Entry, why: str) -> SemelError:
        return error_for(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"offsets {entry.base_offset} to {entry.end_offset - 1} of {tp} can't be read: {why}. Restore it from a "
            "backup, or another version of it in the bucket",
        )
