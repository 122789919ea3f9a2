"""What a node does for the diskless partitions that it leads: takes them over, commits their appends, and lets go of
rows and objects once their records are in segments of the remote storage, as those of others are (`broker.tiers`).

A leader has the log on its own disk as well, as a cache: what it begins with it has read from the database and the
store, and what it appends counts once it is there. So it serves, coordinates and compacts as the leader of any log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from concurrent.futures import Executor
from typing import Final, TypeVar

from semel.broker.config.node_config import NodeConfig
from semel.broker.diskless.claiming import Claiming
from semel.broker.diskless.commits import DisklessCommits
from semel.broker.diskless.reading import EntryReader, first_expected, follow_each_other
from semel.broker.diskless.rows import DisklessRows, Entry, Log, NewClaim, PartitionKey
from semel.broker.diskless.switching import Switching
from semel.broker.diskless.writer import Writer
from semel.broker.log.partition_log import PartitionLog
from semel.broker.logs.commit_tracker import CommitTracker
from semel.broker.logs.partition import Partition
from semel.broker.metadata.off_loop import call_off_loop
from semel.broker.services import Commits
from semel.broker.tiers.object_store import ObjectStore, longest_upload_ms
from semel.broker.tiers.partition_tier import PartitionTier
from semel.broker.tiers.remote_log import RemoteLog, RemoteSegment
from semel.broker.tiers.remote_storage import RemoteStorage
from semel.broker.tiers.restoring import batches_of, beginning_of, beginning_of_compacted
from semel.broker.tiers.store_quotas import StoreQuotas
from semel.protocol.errors import ErrorCode, RetriableError, SemelError, error_for
from semel.protocol.ids import TopicPartition
from semel.protocol.randomness import new_token
from semel.runtime.clock import Clock
from semel.runtime.storage import Buffer
from semel.runtime.threads import Threads

_log = logging.getLogger("semel.diskless")

T = TypeVar("T")

_CLAIM_BYTES: Final = 12
_TAKEN_OVER_AT_ONCE: Final = 4
_PROOF_LASTS_S: Final = 1.0
"""A word of the database that is as old says that nobody else leads, to a consumer that asks for what is not there."""
ENTRIES_MAX: Final = 500
BYTES_MAX: Final = 12 << 20
"""With more entries, or bytes in them, a partition's records go to a segment, and the entries away. Mostly a segment
with its indexes is one PUT then: a piece of an object has `PIECE_BYTES`, and an entry some MB."""
_INLINE_ENTRIES_MAX: Final = 4_000
_INLINE_BYTES_MAX: Final = 64 << 20
"""With so many, small appends become objects, too."""
_READ_BEFORE_BYTES_MAX: Final = 64 << 20
"""Up to so much is read into memory before a log is begun again; more is read meanwhile."""


class _Claim:
    """That of a partition that is led here, and what of its log is in entries alone."""

    __slots__ = ("entries", "id", "log", "proof", "proven_s", "size_bytes")

    def __init__(self, claim_id: str, log: PartitionLog, entries: list[Entry]) -> None:
        self.id = claim_id
        self.log = log
        """The log that has all that was committed under claims before."""
        self.entries: deque[tuple[int, int]] = deque((one.end_offset, one.size_bytes) for one in entries)
        """(end offset, size in bytes) of each."""
        self.size_bytes = sum(size for _, size in self.entries)
        self.proven_s = float("-inf")
        """When the database said last that no other claim counts."""
        self.proof: asyncio.Task[None] | None = None

    @property
    def has_many(self) -> bool:
        return len(self.entries) >= ENTRIES_MAX or self.size_bytes >= BYTES_MAX

    def has_many_from(self, offset: int) -> bool:
        """Whether much of what begins at an offset or behind it is in entries."""
        count = size_bytes = 0
        for end_offset, size in reversed(self.entries):
            if end_offset <= offset or count >= ENTRIES_MAX or size_bytes >= BYTES_MAX:
                break
            count += 1
            size_bytes += size
        return count >= ENTRIES_MAX or size_bytes >= BYTES_MAX

    def trimmed(self, before_offset: int) -> None:
        while self.entries and self.entries[0][0] <= before_offset:
            self.size_bytes -= self.entries.popleft()[1]


class Diskless:
    """The diskless partitions of one node (`Tail` of `broker.tiers`)."""

    def __init__(
        self,
        storage: RemoteStorage,
        rows: DisklessRows,
        run: str,
        take_parts: Callable[[Collection[TopicPartition]], Awaitable[None]],
        executor: Executor | None = None,
    ) -> None:
        """run: the node's incarnation. take_parts: has partitions take their parts again whose logs were begun again

        executor: runs what waits for the database, in place of a thread of its own
        """
        self._take_parts = take_parts
        self._storage = storage
        self.rows = rows
        self.run = run
        self.writer = Writer(self)
        self._switching = Switching(
            storage, self, self.writer, lambda tp: self.on_lost(tp), lambda tp: self.on_ready(tp)
        )
        self._reader = EntryReader(storage)
        self._database: Executor = executor or Threads(1, "semel-diskless-rows")
        self._claims: dict[PartitionKey, _Claim] = {}
        self._claiming = Claiming(lambda wanted: self.ask(lambda: rows.claim_all(wanted)))
        self._taking_over = asyncio.Semaphore(_TAKEN_OVER_AT_ONCE)
        """So many partitions have in memory what they begin with."""
        self.on_many: Callable[[PartitionTier], None] = _nobody
        """Is called with a partition that has many entries: they are to go to a segment."""
        self.on_ready: Callable[[TopicPartition], None] = _pass_over
        """Is called with each partition that is served from now on."""
        self.on_lost: Callable[[TopicPartition], None] = _pass_over
        """Is called with each partition that is not served any more, until it was read again."""

    # --- What the writer asks -----------------------------------------------------------------------------------------

    @property
    def config(self) -> NodeConfig:
        return self._storage.node.config

    @property
    def clock(self) -> Clock:
        return self._storage.node.clock

    @property
    def store(self) -> ObjectStore:
        return self._storage.store

    @property
    def quotas(self) -> StoreQuotas:
        return self._storage.quotas

    @property
    def key_prefix(self) -> str:
        return f"{self._storage.cluster_id}/diskless/{self._storage.node_id}/{self.run}/"

    async def ask(self, call: Callable[[], T]) -> T:
        return await call_off_loop(self._database, self.rows, call)

    @property
    def error(self) -> str:
        return self.writer.error

    def committed(self) -> Commits:
        return Commits(self.writer.commits, self.writer.entries, self.writer.waiting_bytes)

    def claim_of(self, partition: Partition) -> str:
        claim = self._claims.get((partition.topic_id, partition.tp.partition))
        return claim.id if claim is not None and claim.log is partition.log else ""

    def may_be_inline(self, partition: Partition) -> bool:
        """Say whether the database may take more of a partition: not where far too much is in no segment yet, because
        the store is away.
        """
        claim = self._claims.get((partition.topic_id, partition.tp.partition))
        return claim is None or (claim.size_bytes < _INLINE_BYTES_MAX and len(claim.entries) < _INLINE_ENTRIES_MAX)

    def entry_committed(self, partition: Partition, entry: Entry) -> None:
        claim = self._claims.get((partition.topic_id, partition.tp.partition))
        if claim is None or claim.log is not partition.log:
            return
        claim.entries.append((entry.end_offset, entry.size_bytes))
        claim.size_bytes += entry.size_bytes
        if claim.has_many and isinstance(partition.tier, PartitionTier):
            self.on_many(partition.tier)

    def lost(self, partition: Partition, end_offset: int | None = None) -> None:
        """What was appended here behind what is committed is not: the log has to be read again."""
        if self.claim_of(partition):
            del self._claims[partition.topic_id, partition.tp.partition]
            if self.writer.is_closed:
                return  # this node stops, and what is given up is no news
            if end_offset is not None:
                error = _went_back(partition, end_offset)
                _log.critical("%s", error.message)
                self.on_lost(partition.tp)
                partition.go_offline(error)
            elif partition.offline_error is None:
                _log.warning(
                    "%s: another node has taken over, or a commit was given up: it is read again", partition.tp
                )
                self.on_lost(partition.tp)
                partition.look_up_again()

    def commits_for(self, local: CommitTracker) -> CommitTracker:
        """Return what tracks the appends of the node's diskless partitions."""
        return DisklessCommits(local, self.writer)

    def _is_end_proven(self, part: PartitionTier) -> bool:
        claim = self._claims.get(part.key)
        if claim is None or claim.log is not part.partition.log:
            return False
        if self.clock.monotonic() - claim.proven_s <= _PROOF_LASTS_S:
            return True
        if claim.proof is None:
            claim.proof = asyncio.get_running_loop().create_task(self._prove(part, claim), name="prove a claim")
        return False

    async def _prove(self, part: PartitionTier, claim: _Claim) -> None:
        """Learn whether a claim still counts."""
        asked_s = self.clock.monotonic()
        try:
            current = await self.ask(lambda: self.rows.claim_of(part.key))
        except SemelError:
            return
        finally:
            claim.proof = None
        if current == claim.id:
            claim.proven_s = asked_s
        else:
            self.lost(part.partition)

    # --- Taking partitions over ---------------------------------------------------------------------------------------

    async def look_up(self, part: PartitionTier) -> None:
        """Take a partition over: claim it, read what was committed, and serve it. Raises `SemelError`.

        It is begun again with what was read, and then looked up a second time, when nothing but the claim is checked.
        """
        asked, partition, key = part.asked, part.partition, part.key
        if partition.leader is None:
            raise RetriableError(f"{partition.tp} is not led here", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        claim = self.claim_of(partition)
        is_new = not claim
        claim = claim or new_token(_CLAIM_BYTES)
        asked_s = self.clock.monotonic()
        # Also where it is known: under a later epoch than before it fences those in between, too.
        wanted = NewClaim(key, claim, partition.leader_epoch, self._storage.node_id, continues=not is_new)
        claimed = await self._claiming.claim(wanted)
        if claimed is None:
            self.lost(partition)
            raise _led_elsewhere(partition)
        async with self._taking_over, part.changing:
            # The entries first: what leaves them between the two is in the segments by then.
            found, remote = Log(claim, claimed.end_offset, []), RemoteLog()
            if is_new and claimed.end_offset:
                found = await self.ask(lambda: self.rows.load(key))
            if claimed.is_in_store:
                remote = await self._storage.ask(lambda: self._storage.rows.load(key))
            if not part.is_current or part.asked != asked:
                return  # it is to be looked up again
            if found.claim != claim or (not is_new and self.claim_of(partition) != claim):
                self.lost(partition)
                raise _led_elsewhere(partition)
            if is_new and not (partition.log_end_offset == found.end_offset == remote.end_offset == 0):
                await self._begin_again(part, remote, found)
                return
            if is_new:
                self._claims[key] = _Claim(claim, partition.log, [])  # nothing was ever written to it
            self._claims[key].proven_s = asked_s
            part.proves_end = self._is_end_proven
            part.take(remote)
            self.on_ready(partition.tp)

    async def _begin_again(self, part: PartitionTier, remote: RemoteLog, found: Log) -> None:
        partition, node = part.partition, self._storage.node
        # Entries of deleted records count as well: what they say of producers is in no segment yet.
        entries = [one for one in found.entries if one.end_offset > remote.end_offset]
        behind = first_expected(remote, entries)
        follow_each_other(partition.tp, behind, entries, found.end_offset)
        begin = beginning_of_compacted if partition.config.is_compacted else beginning_of
        begins = await begin(self._storage, remote)
        if not begins.segments:
            begins = begins._replace(offset=behind)
        batches = self._batches(partition, begins.segments, entries)
        size = sum(one.size_bytes for one in begins.segments) + sum(one.size_bytes for one in entries)
        if size <= _READ_BEFORE_BYTES_MAX:
            batches = _each([piece async for piece in batches])  # so that nothing is begun that can't be finished
        self.on_lost(partition.tp)  # nobody coordinates what the log before had
        end_offset = max(behind, found.end_offset)
        if not await node.logs.continue_at(partition, begins.offset, begins.producers, batches, end_offset):
            raise RetriableError(f"{partition.tp} is not led here any more", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        again = node.partition(partition.tp)
        if again is None or again.topic_id != partition.topic_id:
            return
        self._claims[part.key] = _Claim(found.claim, again.log, entries)
        _log.info(
            "%s is led here from offset %d to %d: %d entries behind %d segments",
            partition.tp, again.log_start_offset, again.log_end_offset, len(entries), len(remote.segments),
        )  # fmt: skip
        await self._take_parts([partition.tp])

    async def _batches(
        self, partition: Partition, segments: Sequence[RemoteSegment], entries: list[Entry]
    ) -> AsyncIterator[Buffer | int]:
        """Yield what a log begins with, in segments as they are in the store, and then what is in none yet."""
        for segment in segments:
            yield segment.start_offset
            async for piece in batches_of(self._storage, segment):
                yield piece
        if segments:
            yield segments[-1].end_offset
        async for data in self._reader.entries(partition.tp, entries):
            yield data

    # --- Letting go ---------------------------------------------------------------------------------------------------

    async def before_copying(self, part: PartitionTier) -> None:
        """Close the active segment where much of it is in entries. What is in closed ones waits to be copied, for as
        long as a transaction is open, or the store is away.
        """
        if self._switching.is_wanted(part):
            await self._switching.before_copying(part)
            return
        claim, log = self._claims.get(part.key), part.partition.log
        if claim is not None and claim.log is log and claim.has_many_from(log.segments.active.base_offset):
            log.roll(self._storage.now_ms)

    async def begin_to_copy(self, part: PartitionTier) -> None:
        await self._switching.begin(part)

    def served(self, part: PartitionTier) -> None:
        self.on_ready(part.partition.tp)

    def claim_to_copy(self, part: PartitionTier) -> str:
        return self._switching.claim_of(part) if part.is_switching else self.claim_of(part.partition)

    def doing(self, part: PartitionTier) -> str:
        return "make a diskless partition" if self._switching.is_wanted(part) else "let go of what was copied"

    async def after_copying(self, part: PartitionTier) -> None:
        """Remove the entries of what is in segments; go on to make a partition diskless. Raises `SemelError`."""
        if self._switching.is_wanted(part):
            await self._switching.go_on(part)
            return
        claim, before = self._claims.get(part.key), part.remote.end_offset
        if claim is not None and claim.entries and claim.entries[0][0] <= before:
            await self.ask(lambda: self.rows.trim(part.key, before))
            claim.trimmed(before)

    async def clean_up(self) -> None:
        """Delete the objects that no entry needs any more. Raises `SemelError`."""
        now_ms, metadata = self._storage.now_ms, self._storage.node.metadata
        self._forget_others()
        busy = frozenset(self.writer.busy)
        await self.ask(lambda: self.rows.retire_run(self.run, now_ms, but=busy))
        if not metadata.is_controller:
            return
        runs = await self.ask(self.rows.runs)
        if runs:
            image = await metadata.refresh()
            for run in sorted(runs - {broker.incarnation for broker in image.brokers.values()}):
                await self.ask(lambda run=run: self.rows.retire_run(run, now_ms))  # type: ignore[misc]
        while garbage := await self._garbage(now_ms):
            await self._storage.delete(garbage)
            await self.ask(lambda: self.rows.forget(garbage))

    async def _garbage(self, now_ms: int) -> list[str]:
        before_ms, timeout_ms = now_ms - self.config.log_segment_delete_delay_ms, self.config.remote_storage_timeout_ms
        return [
            one.key
            for one in await self.ask(lambda: self.rows.garbage(before_ms=before_ms))
            # The upload of a node that is gone may still be under way: its object is deleted after that.
            if now_ms - one.since_ms >= longest_upload_ms(one.size_bytes, timeout_ms)
        ]

    def _forget_others(self) -> None:
        """Forget the claims of partitions that are not here any more."""
        here = {id(one.log) for one in self._storage.node.logs.partitions()}
        for key in [key for key, claim in self._claims.items() if id(claim.log) not in here]:
            del self._claims[key]

    async def topic_ids(self) -> set[str]:
        """Return the topics, by the text of their ids, of which there is anything. Raises `SemelError`."""
        return await self.ask(self.rows.topic_ids)

    async def forget_topic(self, topic_id: str) -> None:
        """Remove all of a topic that was deleted. Raises `SemelError`."""
        await self.ask(lambda: self.rows.forget_topic(topic_id))

    def cancel(self) -> None:
        """Commit nothing more."""
        self.writer.cancel()
        self._claiming.cancel()
        for claim in self._claims.values():
            if claim.proof is not None:
                claim.proof.cancel()

    def close(self) -> None:
        self.cancel()
        self._database.shutdown()
        self.rows.close()


async def _each(pieces: list[Buffer | int]) -> AsyncIterator[Buffer | int]:
    for piece in pieces:
        yield piece


def _went_back(partition: Partition, end_offset: int) -> SemelError:
    return error_for(
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"{partition.tp} is offline: the metadata's database has it up to offset {end_offset}, and had it up to "
        f"{partition.high_watermark}, so it was put back to an older state. Restore what it has lost; or, to continue "
        "without these records, start this node again",
    )


def _led_elsewhere(partition: Partition) -> RetriableError:
    return RetriableError(
        f"{partition.tp} was claimed by a later leader: this node waits for the metadata to say so",
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )


def _nobody(part: PartitionTier) -> None:
    """Nothing follows."""


def _pass_over(tp: TopicPartition) -> None:
    """Nothing follows."""
