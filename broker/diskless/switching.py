"""Makes a partition diskless that is on disks: its leader copies all of it, and then says so.

The closed segments are copied as those of any topic with remote storage. What is behind them is copied as entries,
first while producers go on. Then the partition is sealed, which producers see as a leader that is away for a moment;
the rest is copied; and one change of the metadata makes it diskless. From then on any node can lead it, and what
replicas have of it on their disks is deleted.

Until that change the log on the disks counts (R1, R3): what was copied under one claim is a beginning of what its
leader has committed, because within an epoch a log only grows. The next leader copies from the beginning. That change
is made for the leader of an epoch only, and only for the run of the node that asks for it; and while it is not known
whether it was made, the partition stays sealed: what it took then could be lost.

Of a compacted log the segments are copied under the claim, too, and those of another claim are dropped: each replica
has compacted its own, and one that lacks a deletion must not meet another one that still has what it deletes (D4). For
the same reason nothing may be newer than what stands before it. So compaction may go on while it is copied, but at the
end, when all else is there, the copied segments have to be as those on the disk are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from semel.broker.controller.diskless import switched
from semel.broker.diskless.rows import DisklessRows, Entry, NewEntry
from semel.broker.diskless.writer import Place, Writer
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import Change
from semel.broker.metadata.image import MetadataImage
from semel.broker.tiers.copying import is_as_copied
from semel.broker.tiers.partition_tier import PartitionTier
from semel.broker.tiers.remote_storage import RemoteStorage
from semel.broker.tiers.rows import WholeLog
from semel.protocol.batch_header import leading_batches
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.randomness import new_token

_log = logging.getLogger("semel.diskless")

BEHIND_MAX: Final = 64 << 20
"""With more behind the segments, copying waits until more is in them: a transaction is open for long."""
SEGMENT_BYTES: Final = 8 << 20
"""A larger active segment is closed, so that it is copied as a whole."""
_PIECE_BYTES: Final = 4 << 20
_LITTLE_BYTES: Final = 256 << 10
"""With so little left, producers can wait for it."""
_MUCH_BYTES: Final = 8 << 20
"""With more left, after all rounds, it is tried again later: producers would have to wait for long."""
_ROUNDS_MAX: Final = 10
"""So often what came meanwhile is copied before producers have to wait."""
_COMMITTED_WITHIN_S: Final = 1.0
_SEALED_MAX_S: Final = 5.0
"""So long producers wait at most for what is left to be copied."""
_COPIED_AT_ONCE: Final = 4
"""So many partitions have a piece of theirs in memory."""
_AGAIN_S: Final = 0.1
_AGAIN_S_MAX: Final = 2.0
_CLAIM_BYTES: Final = 12


@dataclass(slots=True)
class _Claim:
    """That under which a partition is copied here.

    is_begun: whether the database has it, and what others had copied is removed
    """

    id: str
    leader_epoch: int
    is_begun: bool = False


class Switching:
    """What one node does for the partitions that it leads and that are to become diskless."""

    def __init__(
        self,
        storage: RemoteStorage,
        place: Place,
        writer: Writer,
        on_sealed: Callable[[TopicPartition], None],
        on_unsealed: Callable[[TopicPartition], None],
    ) -> None:
        """on_sealed, on_unsealed: are called with a partition that takes nothing, and with one that does again"""
        self._on_sealed, self._on_unsealed = on_sealed, on_unsealed
        self._storage = storage
        self._place = place
        self._writer = writer
        self._slots = asyncio.Semaphore(_COPIED_AT_ONCE)
        self._claims: dict[Partition, _Claim] = {}

    @property
    def _rows(self) -> DisklessRows:
        return self._place.rows

    def is_wanted(self, part: PartitionTier) -> bool:
        """Say whether a partition is to become diskless, and this node leads it."""
        return part.partition.leader is not None and part.is_switching

    def claim_of(self, part: PartitionTier) -> str:
        """Return the claim under which a partition is copied; "" where it has not begun."""
        claim = self._claims.get(part.partition)
        is_current = claim is not None and claim.is_begun and claim.leader_epoch == part.partition.leader_epoch
        return claim.id if claim is not None and is_current else ""

    async def begin(self, part: PartitionTier) -> None:
        """Claim a compacted partition before it is served: what others have copied of it must not count, nor where it
        begins by their word, once anything is appended. Raises `SemelError`.
        """
        if self.is_wanted(part) and part.partition.config.is_compacted and not self.claim_of(part):
            await self._claim(part, part.partition.leader_epoch)

    async def before_copying(self, part: PartitionTier) -> None:
        """Close the active segment where it is large, or where it has to be copied as one. Raises `SemelError`."""
        log = part.partition.log
        if part.partition.config.is_compacted:
            await self.begin(part)
            await self._note_start(part)
        active = log.segments.active
        is_due = active.size >= SEGMENT_BYTES or (not part.bytes_to_copy and not self._is_told(part))
        if log.log_end_offset > active.base_offset and is_due:
            log.roll(self._storage.now_ms)

    @staticmethod
    def _is_told(part: PartitionTier) -> bool:
        """Say whether the remote storage has all that is known of producers, but for what follows its segments (P7)."""
        remote, log = part.remote, part.partition.log
        if not len(log.producer_state):
            return True
        if not remote.segments:
            return log.log_start_offset == 0
        if remote.end_offset < log.log_start_offset:
            return False  # what follows them was deleted
        return remote.segments[0].base_offset == 0 or any(one.producers.size_bytes for one in remote.segments)

    async def go_on(self, part: PartitionTier) -> None:
        """Make a partition diskless, if that can be done now. Raises `SemelError`; then it is tried again later."""
        partition, log = part.partition, part.partition.log
        if not self.is_wanted(part) or not part.is_known or partition.refused is not None:
            return
        epoch, is_compacted = partition.leader_epoch, partition.config.is_compacted
        if partition.is_sealed:
            await self._say_so(part, epoch)
            return
        if is_compacted and not (self.claim_of(part) and is_as_copied(part)):
            return  # segments are copied first, or again
        behind = log.segments.bytes_between(_begins(part), log.log_end_offset)
        if not self._is_told(part) or behind > BEHIND_MAX:
            self._check_not_blocked(partition)
            return
        await self._note_start(part)
        for _ in range(_ROUNDS_MAX):
            at = await self._claim_told(part, epoch)
            if (copied := await self._copy(part, epoch, at, partition.high_watermark)) <= _LITTLE_BYTES:
                break
        if copied > _MUCH_BYTES:
            raise _not_now(partition, "records come faster than they are copied")
        if partition.leader is not None and not partition.leader.has_min_isr:
            raise _not_now(partition, "too few replicas are in sync")
        partition.seal(_switching(partition))
        self._on_sealed(partition.tp)
        is_asked = False
        try:
            await self._all_committed(partition)
            async with asyncio.timeout(_SEALED_MAX_S):
                await self._copy(part, epoch, await self._claim_told(part, epoch), log.log_end_offset)
                await self._note_start(part)
            if is_compacted and not is_as_copied(part):
                raise _not_now(partition, "segments were closed or compacted meanwhile")
            is_asked = True
        except TimeoutError:
            raise _not_now(partition, "the store, or the metadata's database, is too slow") from None
        finally:
            if not is_asked:
                self._unseal(partition)
        # From here on it takes nothing before the metadata says whether it is diskless: that would be lost.
        await self._say_so(part, epoch)

    @staticmethod
    def _check_not_blocked(partition: Partition) -> None:
        """Raise `SemelError` where something else than the next copies blocks the partition, so that it can be seen."""
        if partition.last_stable_offset < partition.high_watermark:
            raise _not_now(
                partition, f"a transaction is open from offset {partition.last_stable_offset} on (semel txn list)"
            )
        if partition.log_start_offset == partition.log_end_offset:
            raise _not_now(
                partition,
                "all its records were deleted, and what is known of their producers goes with the next record",
            )

    async def _note_start(self, part: PartitionTier) -> None:
        """Have the rows say where the log begins. What is below is in no segment, or is not wanted any more."""
        start, now_ms = part.partition.log_start_offset, self._storage.now_ms
        async with part.changing:
            if start > part.remote.start_offset:
                rows, has_producers = self._storage.rows, bool(len(part.partition.log.producer_state))
                await part.change(
                    lambda known: rows.move_start(part.key, known, start, now_ms, keeps_last=has_producers)
                )

    async def _claim_told(self, part: PartitionTier, epoch: int) -> int:
        """See `_claim`. Raises `SemelError` also where what tells of producers was deleted meanwhile."""
        if not self._is_told(part):
            raise _not_now(part.partition, "its first records were deleted meanwhile")
        return await self._claim(part, epoch)

    async def _claim(self, part: PartitionTier, epoch: int) -> int:
        """Return the offset to copy from. Raises `SemelError` where another node leads."""
        partition, node_id = part.partition, self._storage.node_id
        self._check_led(partition, epoch)
        claim = self._claims.get(partition)
        if claim is None or claim.leader_epoch != epoch:
            self._forget_others()
            claim = self._claims[partition] = _Claim(new_token(_CLAIM_BYTES), epoch)
        claim_id, whole, begins = claim.id, None, _begins(part)
        if partition.config.is_compacted:
            whole = WholeLog(partition.log_start_offset, partition.log_end_offset, self._storage.now_ms)
            begins = begins if claim.is_begun else partition.log_start_offset  # no segment counts yet
        begins = self._first_batch(partition, begins)
        at = await self._place.ask(
            lambda: self._rows.claim_copy(part.key, claim_id, epoch, node_id, begins, whole=whole)
        )
        if at is None:
            raise _led_elsewhere(partition)
        if whole is not None and not claim.is_begun:
            async with part.changing:
                part.follow(await self._storage.ask(lambda: self._storage.rows.load(part.key)))
        claim.is_begun = True
        return at

    def _forget_others(self) -> None:
        """Forget the claims of what is not here any more."""
        here = {id(one) for one in self._storage.node.logs.partitions()}
        for partition in [one for one in self._claims if id(one) not in here]:
            del self._claims[partition]

    @staticmethod
    def _first_batch(partition: Partition, begins: int) -> int:
        """Return the first offset of the batch in which an offset is: what was deleted may end within it."""
        log = partition.log
        if begins >= log.log_end_offset:
            return begins
        return min(begins, log.read(begins, 1, log.log_end_offset).first_offset)

    async def _copy(self, part: PartitionTier, epoch: int, at: int, upto: int) -> int:
        """Copy batches as entries, from an offset up to another, between batches. Returns how many bytes these were.

        Raises `SemelError`.
        """
        partition, copied = part.partition, 0
        claim = self._claims[partition].id
        while at < upto:
            async with self._slots:
                self._check_led(partition, epoch)
                start = partition.log_start_offset
                found = partition.log.read(max(at, start), _PIECE_BYTES, upto)
                data = await self._storage.in_thread(found.read)
                headers = leading_batches(data)
                # Compaction may have left gaps: what follows one continues the entry from before it.
                if not headers or headers[0].base_offset > at < start:
                    raise _not_now(partition, f"its records from offset {at} on were deleted meanwhile")
                data = data[headers[0].position : headers[-1].position + headers[-1].size_bytes]
                await self._commit(part, claim, at, headers[-1].next_offset, data)
                at = headers[-1].next_offset
                copied += len(data)
        return copied

    async def _commit(self, part: PartitionTier, claim: str, at: int, next_offset: int, data: bytes) -> None:
        place, rows, key = self._place, self._rows, ""
        checksum, size = crc32c(data), len(data)
        if size <= place.config.diskless_inline_max_bytes:
            await self._commit_entry(part, claim, Entry(at, next_offset, "", 0, size, checksum, data))
            return
        key = f"{place.key_prefix}{new_token(_CLAIM_BYTES)}"
        self._writer.busy.add(key)
        try:
            await place.ask(lambda: rows.begin_object(key, place.run, size, place.clock.now_ms()))
            place.quotas.puts(size)  # counted, and not waited for: producers may have to wait for this
            await place.store.put(key, iter((data,)), size)
            await self._commit_entry(part, claim, Entry(at, next_offset, key, 0, size, checksum, b""))
        finally:
            self._writer.busy.discard(key)

    async def _commit_entry(self, part: PartitionTier, claim: str, entry: Entry) -> None:
        found = await self._place.ask(lambda: self._rows.commit([NewEntry(part.key, claim, entry)]))
        if part.key not in found.led:
            raise _led_elsewhere(part.partition)

    async def _all_committed(self, partition: Partition) -> None:
        end = partition.log_end_offset
        if partition.high_watermark >= end:
            return
        try:
            async with asyncio.timeout(_COMMITTED_WITHIN_S):
                await partition.wait_committed(end - 1)
        except TimeoutError:
            raise _not_now(partition, "its replicas lack what was appended last") from None

    async def _say_so(self, part: PartitionTier, epoch: int) -> None:
        """Make the partition diskless in the metadata, however long that takes, while this node leads it."""
        partition, metadata, node_id = part.partition, self._storage.node.metadata, self._storage.node_id
        broker_epoch, pause_s = metadata.broker_epoch, _AGAIN_S

        def decide(image: MetadataImage) -> list[Change]:
            return [*switched(image, partition.topic_id, partition.tp.partition, node_id, broker_epoch, epoch)]

        while partition.leader is not None and partition.leader_epoch == epoch and partition.offline_error is None:
            try:
                await metadata.change(decide)
            except SemelError as error:
                if not part.error:
                    _log.warning("%s waits to become diskless, and takes nothing: %s", partition.tp, error.message)
                part.error = f"could not make {partition.tp} diskless, and it takes nothing meanwhile: {error.message}"
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _AGAIN_S_MAX)
            else:
                found = metadata.image.partition_by_id(*part.key)
                state = None if found is None else found[1]
                if state is not None and state.is_switching and state.leader_epoch == epoch:
                    self._unseal(partition)  # this node has registered again since, and asks with its new epoch
                elif state is not None and not state.is_switching:
                    _log.info("%s is diskless from offset %d on", partition.tp, partition.log_end_offset)
                return

    def _unseal(self, partition: Partition) -> None:
        if partition.is_sealed:
            partition.unseal()
            self._on_unsealed(partition.tp)

    @staticmethod
    def _check_led(partition: Partition, epoch: int) -> None:
        if partition.leader is None or partition.leader_epoch != epoch or partition.offline_error is not None:
            raise _led_elsewhere(partition)


def _begins(part: PartitionTier) -> int:
    """Return where what is in no segment begins."""
    return max(part.remote.end_offset, part.partition.log_start_offset)


def _switching(partition: Partition) -> SemelError:
    return RetriableError(
        f"{partition.tp} becomes diskless at this moment; try again shortly", ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def _not_now(partition: Partition, why: str) -> SemelError:
    return RetriableError(
        f"{partition.tp} can't become diskless now: {why}. It is tried again", ErrorCode.KAFKA_STORAGE_ERROR
    )


def _led_elsewhere(partition: Partition) -> SemelError:
    return RetriableError(f"{partition.tp} is not led here any more", ErrorCode.NOT_LEADER_OR_FOLLOWER)
