"""One partition's part in the remote storage, as its replica here knows it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from semel.broker.log.log_types import LogRange, TimestampOffset
from semel.broker.logs.partition import Partition
from semel.broker.tiers.reading import Waiting
from semel.broker.tiers.remote_log import RemoteLog, RemoteSegment, is_whole
from semel.broker.tiers.remote_storage import RemoteStorage
from semel.broker.tiers.rows import LateError, PartitionKey
from semel.protocol.api.topics import MAX_TIMESTAMP
from semel.protocol.errors import ErrorCode, SemelError, error_for

_log = logging.getLogger("semel.tiers")

_ATTEMPTS: Final = 5


class PartitionTier:
    """What a `Partition` asks of the remote storage (`RemotePart`). Changes to it are made one at a time."""

    def __init__(self, storage: RemoteStorage, partition: Partition, wake: Callable[[], None]) -> None:
        """`wake`: has what is not known looked up."""
        self._storage = storage
        self._wake = wake
        self.partition = partition
        self.key: PartitionKey = (partition.topic_id, partition.tp.partition)
        self.remote = RemoteLog()
        self.is_known = False
        self.asked = 0
        """How often it was to be looked up: what was asked before the last time does not count."""
        self._waiting = Waiting(partition.wake_readers, lambda: partition.has_waiting_readers)
        self.changing = asyncio.Lock()
        """Held while what is in the remote storage is changed."""
        self.failures = 0
        """How often in a row copying, or retaining, has failed."""
        self.proves_end: Callable[[PartitionTier], bool] | None = None
        """Says whether no other node can have appended, by a recent word; None where no other node could."""
        self.again_s = 0.0
        """When it is tried again, by the monotonic clock."""
        self.error = ""
        """Why the last copy, deletion or look-up failed; empty where it did not."""
        self.read_error = ""
        """Why the last read failed; empty where it did not."""

    @property
    def is_diskless(self) -> bool:
        return self.partition.config.diskless_enable

    @property
    def is_switching(self) -> bool:
        """Whether it is to become diskless, and its leader copies what is on the disks."""
        found = self._storage.node.metadata.image.partition_by_id(*self.key)
        return found is not None and found[1].is_switching

    @property
    def keeps_producers(self) -> bool:
        """Whether the last segment stays in the remote storage where retention would remove it: what it says of the
        producers is nowhere else (P7). The metadata says so before the log here is another.
        """
        found = self._storage.node.metadata.image.partition_by_id(*self.key)
        return self.is_diskless or (found is not None and found[0].is_diskless)

    @property
    def end_offset(self) -> int:
        return self.remote.end_offset

    @property
    def is_current(self) -> bool:
        """Whether the partition is still here, and its log the same."""
        return self.partition.tier is self and self.partition.offline_error is None

    @property
    def bytes_to_copy(self) -> int:
        """How large the closed segments are that the remote storage lacks."""
        log = self.partition.log
        return log.segments.bytes_between(self.remote.end_offset, log.segments.active.base_offset)

    def look_up(self) -> None:
        self.is_known = False
        self.asked += 1
        self._wake()

    def is_end_proven(self) -> bool:
        return self.proves_end is None or self.proves_end(self)

    # --- Reading ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, upto: int, min_one_batch: bool, committed_only: bool) -> LogRange:
        reader, local_start = self._storage.reader, self.partition.log.local_start_offset
        try:
            while offset < local_start:
                segment = self.remote.find(offset)
                if segment is None:
                    raise self._missing(offset)
                found = reader.read(segment, offset, max_bytes, upto, min_one_batch, committed_only, self._waiting)
                if found is not None:
                    break
                offset = segment.end_offset
            else:
                return LogRange(None, offset, offset)
        except SemelError as error:
            self.read_error = error.message
            raise
        if found.records is not None:
            self.read_error = ""
            following = self.remote.find(found.next_offset)
            if following is not None and following is not segment:
                reader.fetch_ahead(following)
        return found

    async def record_at(self, timestamp_ms: int) -> TimestampOffset | None:
        log = self.partition.log
        upto = log.local_start_offset
        segments = [one for one in self.remote.segments if one.start_offset < upto]
        if timestamp_ms == MAX_TIMESTAMP:
            largest = max(segments, key=_newest, default=None)
            local_ms = max((one.max_timestamp[0] for one in log.segments), default=-1)
            if largest is None or largest.max_timestamp_ms < max(local_ms, 0):
                return None
            segments, timestamp_ms = [largest], largest.max_timestamp_ms
        for segment in segments:
            if segment.max_timestamp_ms >= timestamp_ms:
                start = max(segment.start_offset, log.log_start_offset)
                found = await self._storage.reader.record_at(segment, timestamp_ms, start)
                if found is not None:
                    return found if found.offset < upto else None
        return None

    def _missing(self, offset: int) -> SemelError:
        remote, log = self.remote, self.partition.log
        return error_for(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"offset {offset} of {self.partition.tp} is missing: this disk has the log from {log.local_start_offset} "
            f"on, and the remote storage from {remote.first_offset} to {remote.end_offset}. Restore the metadata's "
            "database and the objects from a backup; or, to continue without these records: semel topic delete-records "
            f"{self.partition.tp.topic}:{self.partition.tp.partition} --before {log.local_start_offset}",
        )

    # --- What is there ------------------------------------------------------------------------------------------------

    def take(self, remote: RemoteLog) -> None:
        """Take over what the remote storage has, and serve clients where this node leads. Raises `SemelError`.

        The log begins where its rows say. A leader's log that ends before they do has lost records, which it gets back
        otherwise: see `Tier`.
        """
        partition, log = self.partition, self.partition.log
        if not is_whole(one for one in remote.segments if one.end_offset > remote.start_offset):
            _log.error("%s: the rows of its segments in the remote storage leave a gap", partition.tp)
        self._know(remote)
        start = remote.start_offset
        if log.segments.first.base_offset > remote.end_offset:
            start = max(start, log.log_start_offset)  # between the two is nothing: it was deleted, and that not noted
        if partition.config.becomes_diskless and partition.config.is_compacted:
            if partition.leader is not None and log.log_start_offset < start <= log.log_end_offset:
                partition.tier_begins_at(start, ())  # the rest is what this node copies, or another has copied
        elif remote.version and (partition.leader is not None or start < log.log_start_offset):
            partition.tier_begins_at(min(start, log.log_end_offset), list(remote.epochs()))
        self.is_known = True
        partition.tier_is_known()

    def _know(self, remote: RemoteLog) -> None:
        self.remote = remote
        log = self.partition.log
        log.tiered_end = remote.end_offset
        log.tiered_start = remote.start_offset if remote.version else None

    async def note_start(self, offset: int) -> None:
        now_ms = self._storage.now_ms
        async with self.changing:
            for _ in range(_ATTEMPTS):
                # What is on the disk alone says itself where it begins; of a diskless topic nothing else does.
                if offset <= self.remote.start_offset or (self.remote.version == 0 and not self.keeps_producers):
                    return
                try:
                    await self.change(
                        partial(
                            self._storage.rows.move_start,
                            self.key,
                            start_offset=offset,
                            now_ms=now_ms,
                            keeps_last=self.keeps_producers,
                        )
                    )
                except LateError:
                    continue
                return
        raise LateError(self.key)

    async def change(self, write: Callable[[RemoteLog], RemoteLog]) -> None:
        """Make one change, with `changing` held. Raises `LateError`, after which the newest is known.

        The log begins where the rows say, whichever node moved that.
        """
        known = self.remote
        try:
            remote = await self._storage.ask(lambda: write(known))
        except SemelError:
            # Whether it was made is looked up: an answer may have been lost.
            self.follow(await self._storage.ask(lambda: self._storage.rows.load(self.key)))
            raise
        self.follow(remote)

    def follow(self, remote: RemoteLog) -> None:
        """Take over a change of what is there."""
        for one in self.remote.segments:
            if one.end_offset > remote.start_offset:
                break
            self._storage.reader.forget(one)
        self._know(remote)
        log = self.partition.log
        if self.is_current and self.partition.leader is not None and remote.start_offset > log.log_start_offset:
            self.partition.tier_begins_at(min(remote.start_offset, log.log_end_offset), ())


def _newest(segment: RemoteSegment) -> tuple[int, int]:
    return segment.max_timestamp_ms, -segment.start_offset
