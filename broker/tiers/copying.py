"""Copying closed segments to the remote storage, oldest first, and each once (KIP-405)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from semel.broker.log.producer_snapshot import SNAPSHOT_SUFFIX, CorruptSnapshotError, decode_packed
from semel.broker.log.segment import Segment, segment_path
from semel.broker.logs.partition import Partition
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.tiers.object_store import ObjectStoreError
from semel.broker.tiers.partition_tier import PartitionTier
from semel.broker.tiers.remote_log import Piece, RemoteLog, RemoteSegment, Stretch, changed_stretch
from semel.broker.tiers.remote_storage import RemoteStorage
from semel.broker.tiers.segment_object import DESCRIPTION_VERSION, SegmentUpload, first_epochs
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import format_topic_id
from semel.protocol.int_bounds import INT64_MAX
from semel.protocol.randomness import new_token
from semel.runtime.storage import read_whole

_log = logging.getLogger("semel.tiers")

_SNAPSHOT_BYTES_MAX: Final = 256 << 20
_SEGMENT_ID_BYTES: Final = 12
_NOTHING: Final = Piece(0, 0, 0)
COPIES_AT_ONCE: Final = 4


class Copier:
    """Copies the segments of the partitions that a node leads."""

    def __init__(self, storage: RemoteStorage, claim_of: Callable[[PartitionTier], str]) -> None:
        """claim_of: gives the claim under which the segments of a compacted log are replaced; "" where there is none"""
        self._storage = storage
        self._claim_of = claim_of
        self._slots = asyncio.Semaphore(COPIES_AT_ONCE)
        self.busy: set[str] = set()
        """The segments that are being copied."""
        self.copied_segments = 0

    def next_segment(self, part: PartitionTier) -> Segment | None:
        """Return the oldest segment that is to be copied now, where there is one.

        It is closed, its records are committed and their transactions decided (L1). Whether the disk has synced it does
        not matter: the store has it then. What is below the start of the log is not wanted any more.
        """
        partition, log = part.partition, part.partition.log
        if partition.leader is None or partition.refused is not None or not part.is_known:
            return None
        upto = min(partition.last_stable_offset, partition.high_watermark)
        for segment in log.segments.from_offset(max(part.remote.end_offset, log.log_start_offset)):
            end = log.segments.end_of(segment, log.log_end_offset)
            if segment is log.segments.active or end > upto:
                return None
            if end > part.remote.end_offset and end > log.log_start_offset:
                return segment if _has_snapshot(part, end) else None
        return None

    async def copy(self, part: PartitionTier, segment: Segment) -> None:
        """Copy one segment. Raises `SemelError`; then it is tried again later, from the beginning."""
        log = part.partition.log
        start = max(segment.base_offset, part.remote.end_offset)
        if part.remote.version == 0 or part.remote.end_offset < log.log_start_offset:
            start = max(segment.base_offset, log.log_start_offset)
        self._check_follows(part, start)
        wanted = self._wanted(part, segment, start)
        self.busy.add(wanted.segment_id)
        try:
            await self._finish(part, await self._upload(part, segment, wanted))
        finally:
            self.busy.discard(wanted.segment_id)

    def _wanted(self, part: PartitionTier, segment: Segment, start: int) -> RemoteSegment:
        """Return what is to be in the remote storage of a segment, from an offset on."""
        storage, partition, log = self._storage, part.partition, part.partition.log
        wanted = RemoteSegment(
            segment_id=new_token(_SEGMENT_ID_BYTES),
            key="",
            base_offset=segment.base_offset,
            start_offset=start,
            end_offset=log.segments.end_of(segment, log.log_end_offset),
            size_bytes=segment.size,
            max_timestamp_ms=segment.max_timestamp[0],
            copied_at_ms=storage.now_ms,
            leader_epoch=partition.leader_epoch,
            node_id=storage.node_id,
            epochs=tuple(first_epochs(log.epochs.entries(), segment.base_offset, log.segments.end_of(segment, 0))),
            index=_NOTHING,
            aborted=_NOTHING,
            producers=_NOTHING,
        )
        return replace(wanted, key=self._key_of(partition, wanted))

    async def _upload(self, part: PartitionTier, segment: Segment, wanted: RemoteSegment) -> RemoteSegment:
        """Write an object, and return what it has where. Nobody finds it yet. Raises `SemelError`."""
        storage, partition, log = self._storage, part.partition, part.partition.log
        aborted = log.aborted_transactions(wanted.base_offset, wanted.end_offset)
        description = {
            "version": DESCRIPTION_VERSION,
            "cluster_id": storage.cluster_id,
            "topic": partition.tp.topic,
            "topic_id": format_topic_id(partition.topic_id),
            "partition": partition.tp.partition,
            "segment_id": wanted.segment_id,
            "base_offset": wanted.base_offset,
            "start_offset": wanted.start_offset,
            "end_offset": wanted.end_offset,
            "size_bytes": wanted.size_bytes,
            "max_timestamp_ms": wanted.max_timestamp_ms,
            "leader_epoch": wanted.leader_epoch,
            "node_id": wanted.node_id,
            "epochs": [list(one) for one in wanted.epochs],
        }
        producers = await storage.in_thread(lambda: self._producers(part, wanted.end_offset))
        upload = SegmentUpload(
            segment.file, wanted.size_bytes, wanted.base_offset, wanted.end_offset, aborted, producers, description
        )
        await storage.ask(lambda: storage.rows.begin_copy(part.key, wanted, storage.now_ms))
        await self._put(wanted, upload)
        return replace(wanted, index=upload.index, aborted=upload.aborted, producers=upload.producers)

    def _key_of(self, partition: Partition, segment: RemoteSegment) -> str:
        """Return the key of a segment's object: no two attempts have the same."""
        tp = partition.tp
        return (
            f"{self._storage.cluster_id}/{tp.topic}-{format_topic_id(partition.topic_id)}/{tp.partition}/"
            f"{segment.base_offset:020d}-{segment.end_offset:020d}-{segment.segment_id}"
        )

    async def _put(self, wanted: RemoteSegment, upload: SegmentUpload) -> None:
        try:
            await self._storage.store.put(wanted.key, iter(upload), wanted.size_bytes)
        except ObjectStoreError:
            if upload.fault is None:
                raise
        except CorruptBatchError as error:
            upload.fault = error
        if upload.fault is not None:
            raise error_for(
                ErrorCode.CORRUPT_MESSAGE,
                f"the segment from offset {wanted.base_offset} on is not copied, because it is damaged on this disk: "
                f"{upload.fault.message}. `semel log verify` says more",
            )

    async def _finish(self, part: PartitionTier, done: RemoteSegment) -> None:
        """Let readers find the copy. Where it comes too late, nobody will want its object, and it is deleted."""
        storage = self._storage

        def write(known: RemoteLog) -> RemoteLog:
            return storage.rows.finish_copy(
                part.key, done, known, log_start_offset=part.partition.log_start_offset, now_ms=storage.now_ms
            )

        async with part.changing:
            try:
                self._check_follows(part, done.start_offset)
            except SemelError:
                await self._delete(done)  # nobody will ever want it
                raise
            await self._change(part, [done], write)

    async def _change(
        self, part: PartitionTier, made: Sequence[RemoteSegment], write: Callable[[RemoteLog], RemoteLog]
    ) -> None:
        try:
            await part.change(write)
        except MetadataUnavailableError:
            if not any(one.segment_id == made[0].segment_id for one in part.remote.segments):
                raise  # else the answer was lost, and not the change
        except SemelError:
            for one in made:
                await self._delete(one)  # nobody will ever want it
            raise
        for one in made:
            self.copied_segments += 1
            _log.info(
                "%s: offsets %d to %d are in the remote storage",
                part.partition.tp, one.start_offset, one.end_offset - 1,
            )  # fmt: skip

    # --- Compacted logs -----------------------------------------------------------------------------------------------

    @staticmethod
    def _to_copy(part: PartitionTier) -> list[tuple[int, int, int]]:
        """Return (first offset, end offset, size in bytes) of the segments that may be copied."""
        partition = part.partition
        if partition.leader is None or partition.refused is not None or not part.is_known:
            return []
        return list(itertools.takewhile(lambda one: _has_snapshot(part, one[1]), decided_segments(part)))

    async def copy_compacted(self, part: PartitionTier) -> bool:
        """Have in the remote storage what a compacted log has on the disk: new segments, and those that compaction has
        rewritten in place of what they were. See `copy_all`. Raises `SemelError`.
        """
        while (
            part.is_current and self._claim_of(part) and changed_stretch(self._to_copy(part), part.remote) is not None
        ):
            async with self._slots:
                had_to_wait = await self._storage.quotas.wait_to_copy()
                stretch = changed_stretch(self._to_copy(part), part.remote)
                if stretch is None or not await self._copy_stretch(part, stretch):
                    return False
                if had_to_wait:
                    return True
        return False

    async def _copy_stretch(self, part: PartitionTier, stretch: Stretch) -> bool:
        """Copy the segments of a stretch, in place of those that are there. False: they are not what they were."""
        known, log, storage, claim = part.remote, part.partition.log, self._storage, self._claim_of(part)
        here = {one.base_offset: one for one in log.segments}
        made: list[RemoteSegment] = []
        ids: list[str] = []
        try:
            for base_offset, end_offset, size in stretch.local:
                segment = here.get(base_offset)
                if segment is None or segment.size != size:
                    return False  # it was compacted since: looked at again later
                wanted = self._wanted(part, segment, base_offset)
                if wanted.end_offset != end_offset:
                    return False
                self.busy.add(wanted.segment_id)
                ids.append(wanted.segment_id)
                storage.quotas.copies(size)
                made.append(await self._upload(part, segment, wanted))

            def write(_: RemoteLog) -> RemoteLog:
                return storage.rows.replace_copies(
                    part.key,
                    made,
                    known,
                    first=stretch.first,
                    count=stretch.replaced,
                    claim=claim,
                    now_ms=storage.now_ms,
                )

            async with part.changing:
                if part.remote is not known:
                    return False  # what was uploaded is given up, and deleted later
                await self._change(part, made, write)
            return True
        finally:
            self.busy.difference_update(ids)

    @staticmethod
    def _check_follows(part: PartitionTier, start_offset: int) -> None:
        """Raises `SemelError` where what is to be copied leaves a gap: what was there between is lost."""
        tp, remote = part.partition.tp, part.remote
        is_deleted = start_offset == remote.start_offset > remote.end_offset  # what was between
        if remote.segments and remote.end_offset != start_offset and not is_deleted:
            raise error_for(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the remote storage has the log up to {part.remote.end_offset}, and this disk from {start_offset} on: "
                "what was between is lost. Restore the metadata's database from a backup; or, to continue without "
                f"these records: semel topic delete-records {tp.topic}:{tp.partition} --before {start_offset}",
            )

    async def _delete(self, segment: RemoteSegment) -> None:
        try:
            await self._storage.store.delete(segment.key)
        except ObjectStoreError as error:
            _log.warning(
                "an object that nobody wants could not be deleted, and is looked after later: %s", error.message
            )

    def _producers(self, part: PartitionTier, offset: int) -> bytes:
        """Return the snapshot of the producers at an offset; b"" where there is none, or a power cut has broken it."""
        log = part.partition.log
        path = segment_path(log.folder, offset, SNAPSHOT_SUFFIX)
        try:
            data = read_whole(log.storage, path, size_bytes_max=_SNAPSHOT_BYTES_MAX)
            decode_packed(data, now_ms=self._storage.now_ms)
            return data
        except (OSError, ValueError, CorruptSnapshotError) as error:
            _log.debug("%s: no snapshot of its producers at offset %d: %s", part.partition.tp, offset, error)
            return b""

    async def copy_all(self, part: PartitionTier) -> bool:
        """Copy all segments of a partition that are to be copied now. Others have their turns. Raises `SemelError`.

        True: a quota held it up, so it copied one alone, and there may be more. What retention says comes first then.

        Of one that is to become diskless those that there are, and not those that come meanwhile: there is more to do.
        """
        if part.partition.config.is_compacted:
            return await self.copy_compacted(part)
        ends = part.partition.log_end_offset if part.is_switching else INT64_MAX
        while part.is_current and part.remote.end_offset < ends and self.next_segment(part) is not None:
            async with self._slots:
                had_to_wait = await self._storage.quotas.wait_to_copy()
                segment = self.next_segment(part)
                if segment is not None:
                    self._storage.quotas.copies(segment.size)
                    await self.copy(part, segment)
                if had_to_wait:
                    return True
        return False


def decided_segments(part: PartitionTier) -> list[tuple[int, int, int]]:
    """Return (first offset, end offset, size in bytes) of the closed segments whose records are committed, and their
    transactions decided.
    """
    partition, log = part.partition, part.partition.log
    upto = min(partition.last_stable_offset, partition.high_watermark)
    found = []
    for segment in log.segments.from_offset(log.log_start_offset):
        end = log.segments.end_of(segment, log.log_end_offset)
        if segment is log.segments.active or end > upto:
            break
        found.append((segment.base_offset, end, segment.size))
    return found


def is_as_copied(part: PartitionTier) -> bool:
    """Say whether the remote storage has all segments of a compacted log that compaction may rewrite, as they are."""
    decided = decided_segments(part)
    if changed_stretch(decided, part.remote) is not None:
        return False
    return not decided or decided[-1][1] <= part.remote.end_offset


def _has_snapshot(part: PartitionTier, offset: int) -> bool:
    """Say whether there is a snapshot of the producers at an offset, or never will be: a large one is written by the
    next flush (P7).
    """
    log = part.partition.log
    return offset in log.local.snapshots.offsets or not log.needs_flush
