# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""One partition on this node: its log, how far it is committed, and who waits for that.

An append is in the log at once. It counts here once it is durable: when the journal is synced, or, with durability
"os", at once. It is committed when it counts on all replicas in sync, as the leader knows (`LeaderState`); the only
replica commits what counts. The high watermark is the end of what is committed; readers see nothing beyond it (R1, D1).
A partition leads, follows, or has no part yet; clients are served where it leads. All calls are plain and synchronous,
on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from semel.broker.log.append_validation import CheckedBatch
from semel.broker.log.config import AppendOrigin, LogConfig
from semel.broker.log.epochs_file import EpochsWrite
from semel.broker.log.log_types import (
    NOTHING_OPENED,
    AppendResult,
    EpochEndOffset,
    LogRange,
    Opened,
    PartlyAppendedError,
    TimestampOffset,
)
from semel.broker.log.partition_log import PartitionLog
from semel.broker.log.producer_state import NO_COORDINATOR_EPOCH
from semel.broker.log.verification import VerificationGuard
from semel.broker.logs.commit_tracker import CommitTracker
from semel.broker.logs.leader_state import LeaderState
from semel.broker.logs.remote_part import RemotePart
from semel.broker.logs.sealed import Sealed
from semel.protocol.api.topics import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    IsolationLevel,
    ListOffset,
)
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError, error_for
from semel.protocol.ids import ProducerIdAndEpoch, TopicId, TopicPartition
from semel.protocol.kafka.produce import ACKS_ALL
from semel.protocol.wording import counted
from semel.runtime.clock import Clock
from semel.runtime.invariants import BrokenInvariantError
from semel.runtime.storage import Buffer

_log = logging.getLogger("semel.partition")

WAITING_BYTES_MAX: Final = 4 << 20
"""On a full disk coordinators' records and markers are taken until so much waits in memory for room."""
HIGH_WATERMARK: Final = -1
"""For `delete_records`: everything that is committed."""

CommitCallback = Callable[[SemelError | None], None]
"""Called once: with None when the offset is committed, with the error when it never will be here."""
ReplicaListener = Callable[["Partition", bool], None]
"""Called with a partition that has something for its followers, and whether that is more than a new high watermark."""


class Partition:
    """One partition. Made by the `LogManager`."""

    __slots__ = (
        "_before_cut",
        "_clock",
        "_commits",
        "_continued",
        "_durable_end",
        "_durable_waiter",
        "_epoch_note",
        "_heard_s",
        "_held_back",
        "_high_watermark",
        "_last_stable_offset",
        "_leader",
        "_listeners",
        "_offline_error",
        "_on_log_start_moved",
        "_refused",
        "_replica_listeners",
        "_unsealed",
        "_waiters",
        "fetched_bytes",
        "leader_epoch",
        "log",
        "tier",
        "topic_id",
        "tp",
    )

    _numbers = itertools.count()
    """Order waiters for the same offset."""

    def __init__(
        self,
        log: PartitionLog,
        commits: CommitTracker,
        clock: Clock,
        *,
        leader_epoch: int = 0,
        high_watermark: int | None = None,
        on_log_start_moved: Callable[[Partition], None] | None = None,
        before_cut: Callable[[Partition, int], None] | None = None,
    ) -> None:
        """Everything in `log` is durable: it was recovered and is on the disk.

        before_cut:     notes durably that the log counts as synced up to an offset at most; raises `SemelError`
        high_watermark: as far as is known, of one of several replicas, which has no part yet. Without it this is the
                        only replica, and leads; all in the log is committed.
        """
        self.log = log
        self.tp: TopicPartition = log.tp
        self.topic_id: TopicId = log.topic_id
        self.leader_epoch = leader_epoch
        self.fetched_bytes = 0
        """Records that consumers were sent since the node opened the partition; what followers fetch is not in it."""
        self.tier: RemotePart | None = None
        """What the remote storage has of it; None for a topic without remote.storage.enable."""
        self._epoch_note: EpochsWrite | None = None
        self._commits = commits
        self._unsealed: CommitTracker | None = None
        """Of a sealed partition, what it gets back when it takes records again."""
        self._clock = clock
        self._on_log_start_moved = on_log_start_moved
        self._before_cut = before_cut
        self._offline_error: SemelError | None = None
        self._refused: SemelError | None = None
        """Why clients are sent away: the log is offline, or does not lead."""
        self._leader: LeaderState | None = None
        self._heard_s: float | None = None
        self._continued: tuple[int, int, int] | None = None
        """The leader epoch and the log end at which the leader knows an older epoch than the log's last, and that."""
        self._durable_waiter: asyncio.Future[None] | None = None
        self._durable_end = self._high_watermark = log.log_end_offset
        if high_watermark is None:
            self._leader = LeaderState.alone(leader_epoch, log.log_end_offset)
        else:
            self._high_watermark = min(max(high_watermark, log.local_start_offset), log.log_end_offset)
            self._refused = self._not_leading("has no part yet: the node has just started")
        self._held_back: int | None = None
        self._last_stable_offset = self._high_watermark
        # Made when first needed: most partitions are idle.
        self._waiters: list[tuple[int, int, CommitCallback]] | None = None
        self._listeners: dict[Callable[[Partition], None], None] | None = None
        self._replica_listeners: dict[ReplicaListener, None] | None = None
        try:
            log.remember_decided(self._high_watermark, now_ms=clock.now_ms())
            self._last_stable_offset = self._find_last_stable_offset(self._high_watermark)
        except SemelError as error:
            self._look_after_log(error)

    # --- Where the log is ---------------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """The end of what is committed. Never goes back (R1)."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The end of what a read_committed reader may see (L1)."""
        # What is undecided may have been deleted from below.
        return max(self._last_stable_offset, self.log.log_start_offset)

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def config(self) -> LogConfig:
        return self.log.config

    @property
    def offline_error(self) -> SemelError | None:
        """Why this partition takes and gives nothing, or None."""
        return self._offline_error

    @property
    def refused(self) -> SemelError | None:
        """Why clients are sent away, or None: it is offline, or is not led here."""
        return self._refused

    @property
    def leader(self) -> LeaderState | None:
        """What this node knows as the leader; None where it does not lead."""
        return self._leader

    @property
    def heard_s(self) -> float | None:
        """When a follower last took in an answer of its leader, by the clock's monotonic time; None in this epoch."""
        return self._heard_s

    @property
    def durable_end(self) -> int:
        """The end of what counts of this replica: what a power cut leaves, where that is promised (D1)."""
        return self._durable_end

    def update_config(self, config: LogConfig) -> None:
        """Follow a change of the topic's settings."""
        self.log.update_config(config)
        if self._leader is not None:
            self._leader.min_isr = config.min_insync_replicas
            self._commit()

    # --- Leading and following ----------------------------------------------------------------------------------------

    def lead(self, leader: LeaderState) -> EpochsWrite | None:
        """Lead from now on; under a lower epoch than before, do nothing.

        What is returned has to be written, anywhere: until then no answer says where an epoch ended (R7). The epoch has
        its beginning at once, so that appends need not wait for that.
        """
        if leader.leader_epoch < self.leader_epoch or self._offline_error is not None:
            return None
        is_new = self._leader is None
        is_later = leader.leader_epoch > self.leader_epoch
        if is_later:
            self.unseal()
        if is_new or is_later:
            self.log.void_verifications()  # another leader may have had a marker since (T8)
        self.leader_epoch = leader.leader_epoch
        self._leader = leader
        self._refused = None
        is_claimed = not (is_later and self.log.config.diskless_enable)  # others may have led in between
        if self.tier is not None and (is_new or not self.tier.is_known or not is_claimed):
            self._look_up_tier(self.tier)
        self._end_durable_wait()
        note = self.log.begin_epoch(leader.leader_epoch)
        if note is not None:
            self._epoch_note = note
        self._commit()
        return note

    def attach_tier(self, tier: RemotePart) -> None:
        """From now on, the remote storage may have records that are not on this disk.

        Who leads serves nobody until it is known what is there: by then the log may begin elsewhere (D3).
        """
        self.tier = tier
        self._look_up_tier(tier)

    def _look_up_tier(self, tier: RemotePart) -> None:
        if self._leader is not None and self._offline_error is None:
            self._refused = self._not_leading("is looking up what the remote storage has of it; try again shortly")
        tier.look_up()

    def tier_is_missing(self, error: SemelError) -> None:
        """Refuse clients for the true reason: this node has no remote storage."""
        if self._leader is not None and self._offline_error is None:
            self._refused = error

    def look_up_again(self) -> None:
        """Serve nobody until it was looked up again what the remote storage has: another node may have led."""
        if self.tier is not None:
            self._look_up_tier(self.tier)

    def tier_begins_at(self, offset: int, epochs: Sequence[tuple[int, int]]) -> None:
        """Let the log begin where the remote storage does, and have that noted. Raises `SemelError`."""
        self.log.begin_at(offset, epochs)
        if self._on_log_start_moved is not None:
            self._on_log_start_moved(self)
        self._notify_replicas()

    def tier_is_known(self) -> None:
        """Serve clients, now that it is known what the remote storage has."""
        if self._leader is not None and self._offline_error is None and self._refused is not None:
            self._refused = None
        self._notify()

    @property
    def has_waiting_readers(self) -> bool:
        """Whether anybody waits for more to read."""
        return self._listeners is not None

    def wake_readers(self) -> None:
        """Have readers look again: what the remote storage was asked for is here, or an error is."""
        if self._listeners is not None:
            for listener in tuple(self._listeners):
                _call(listener, self)

    def follow(self, leader_epoch: int, leader_id: int) -> None:
        """Follow the leader of an epoch from now on, or nobody (-1); under a lower epoch than before, do nothing.

        Clients are sent away from here on, those who wait too: what they wait for may be cut (R3).
        """
        if leader_epoch < self.leader_epoch or self._offline_error is not None:
            return
        if leader_epoch > self.leader_epoch or self._leader is not None:
            self._heard_s = None
        self.unseal()
        self.leader_epoch = leader_epoch
        self._leader = None
        self.log.void_verifications()
        self.log.forget_empty_epochs()
        self._refused = self._not_leading("has no leader" if leader_id < 0 else f"is led by node {leader_id}")
        waiters, self._waiters = self._waiters, None
        for _, _, callback in sorted(waiters or ()):
            _call(callback, self._refusal())
        self._notify()

    def isr_changed(
        self,
        isr: Collection[int],
        replicas: Collection[int],
        partition_epoch: int,
        elr: Collection[int],
        replication_factor: int | None = None,
    ) -> None:
        """Take over other replicas, in sync or not, of the epoch that is led here."""
        if self._leader is not None:
            self._leader.changed(
                isr, replicas, partition_epoch,
                now_s=self._clock.monotonic(), elr=elr, replication_factor=replication_factor,
            )  # fmt: skip
            self._commit()

    def fetched_by(self, node: int, broker_epoch: int, offset: int, starts_at: int = 0) -> bool:
        """Take note that a follower has all below `offset`, and where its log starts.

        Returns whether that counts (see `LeaderState.fetched`).
        """
        leader = self._leader
        if leader is None:
            return False
        counts = leader.fetched(
            node,
            broker_epoch,
            offset,
            now_s=self._clock.monotonic(),
            log_end_offset=self.log.log_end_offset,
            log_start_offset=self.log.log_start_offset,
            starts_at=starts_at,
        )
        if counts:
            self._commit()  # not only where the offset is another: a proposal may have been refused since
        return counts

    def replicate(self, batches: Buffer) -> AppendResult:
        """Append what the leader has sent, with its offsets and epochs, skipping what is there. Raises `SemelError`."""
        assert self._leader is None, "a leader does not follow"
        return self.append(batches, origin=AppendOrigin.REPLICATION)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, as the leader knows it. -1 where there is none."""
        if self._continued is not None and self._continued[:2] == (self.leader_epoch, self.log.log_end_offset):
            return self._continued[2]
        return self.log.epochs.latest

    def continue_in_epoch(self, epoch: int) -> None:
        """Take `epoch` for that of the last record until more is appended: the leader has compacted newer ones away."""
        self._continued = self.leader_epoch, self.log.log_end_offset, epoch

    def leader_committed(self, high_watermark: int) -> None:
        """Take over how far the leader says that the partition is committed, as far as this log goes."""
        if self._leader is None:
            self._heard_s = self._clock.monotonic()
            self.advance_high_watermark(min(high_watermark, self.log.log_end_offset))

    def leader_deleted(self, before_offset: int) -> None:
        """Let the log start where the leader's does, which is committed here by now."""
        self.log.delete_records(before_offset)
        if self._on_log_start_moved is not None:
            self._on_log_start_moved(self)

    def made_durable(self, offset: int) -> None:
        """Take note that all below `offset` is on the disk, or counts as if it were. For the `CommitTracker` alone."""
        self._durable_end = offset
        leader = self._leader
        if leader is not None:
            self.advance_high_watermark(offset if leader.is_alone else leader.committed_end(offset))
        elif self._durable_waiter is not None:
            self._end_durable_wait()

    async def all_durable(self) -> None:
        """Wait until all in a follower's log counts, or it is no follower any more.

        Two may wait: who followed the leader before, and who follows the next one.
        """
        while self._leader is None and self._offline_error is None and self._durable_end < self.log.log_end_offset:
            if self._durable_waiter is None:
                self._durable_waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._durable_waiter)

    def _end_durable_wait(self) -> None:
        """Have those that wait look again."""
        waiter, self._durable_waiter = self._durable_waiter, None
        if waiter is not None:
            waiter.set_result(None)

    def _commit(self) -> None:
        leader = self._leader
        if leader is not None:
            self.advance_high_watermark(leader.committed_end(self._durable_end))

    def _not_leading(self, why: str) -> SemelError:
        return RetriableError(f"{self.tp} {why}", ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def epoch_not_noted(self, error: OSError) -> None:
        """Take note that what `lead` returned could not be written: tried again as there is room, or offline.

        Until then followers are refused, so nothing may be appended either that would bring a flush about.
        """
        try:
            self.log.epoch_not_noted(error)
        except SemelError as failure:
            self._look_after_log(failure)
        else:
            self._commits.dirty[self] = None
            self._commits.waits_for_room = True

    # --- Appending ----------------------------------------------------------------------------------------------------

    def append(
        self,
        buffer: Buffer,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        acks: int = ACKS_ALL,
        verified: bool | VerificationGuard = False,
        checked: CheckedBatch | None = None,
    ) -> AppendResult:
        """Append the whole batch in `buffer`, which is patched in place where it is writable.

        The append is committed when `when_committed(result.last_offset)` or `wait_committed` says so; with acks of 0
        or 1 the caller answers without. `verified`, `checked`: see `PartitionLog.append`. Raises `SemelError`: then
        nothing was appended, except for KAFKA_STORAGE_ERROR of a failed journal, after which the partition is offline.
        """
        commits, end_before = self._commits, self.log.log_end_offset
        if origin is AppendOrigin.CLIENT:
            self._check_led()
            if acks == ACKS_ALL and self.log.config.min_insync_replicas > 1:
                self._check_in_sync()
            commits.check_room(len(buffer))
        else:
            if origin is AppendOrigin.REPLICATION:
                self._check_online()
            else:
                self._check_may_coordinate()
            commits.check_journal(WAITING_BYTES_MAX)
        try:
            result = self.log.append(buffer, self.leader_epoch, self._clock.now_ms(), origin, verified, checked)
        except SemelError as error:
            if isinstance(error, PartlyAppendedError):
                commits.appended(self, end_before, error.result.last_offset + 1, error.result.appended)
            self._look_after_log(error)
            raise
        if result.appended:
            # Compaction may have left a gap before what a leader sends: the journal says what it follows.
            commits.appended(self, end_before, result.last_offset + 1, result.appended)
            if self._replica_listeners is not None:
                self._notify_replicas()
        return result

    def seal(self, why: SemelError) -> None:
        """Append and delete nothing more, for anybody, until `unseal`, or until another epoch begins."""
        if self._unsealed is None:
            self._unsealed, self._commits = self._commits, Sealed(self._commits, why)

    def unseal(self) -> None:
        """Take `seal` back."""
        if self._unsealed is not None:
            self._commits, self._unsealed = self._unsealed, None

    @property
    def is_sealed(self) -> bool:
        return self._unsealed is not None

    def append_batch(self, batch: bytearray) -> int:
        """Append a coordinator's batch and return its base offset (`semel.runtime.shard.ShardLog`)."""
        return self.append(batch, origin=AppendOrigin.COORDINATOR).base_offset

    def append_marker(
        self,
        producer: ProducerIdAndEpoch,
        coordinator_epoch: int,
        committed: bool,
        version: TransactionVersion = TransactionVersion.V1,
        *,
        forged_epoch: int = NO_COORDINATOR_EPOCH,
    ) -> int | None:
        """Append a transaction marker and return its offset, or None where it repeats an applied one (P9, P10).

        forged_epoch: see `ProducerState.check_marker`.

        The first one may still be on its way to the disk: an answer for it waits for `log_end_offset` - 1.
        """
        self._check_may_coordinate()
        self._commits.check_journal(WAITING_BYTES_MAX)
        try:
            result = self.log.append_marker(
                producer,
                coordinator_epoch,
                committed,
                self._clock.now_ms(),
                leader_epoch=self.leader_epoch,
                version=version,
                forged_epoch=forged_epoch,
            )
        except SemelError as error:
            self._look_after_log(error)
            raise
        if not result.appended:
            return None
        self._commits.appended(self, result.base_offset, result.last_offset + 1, result.appended)
        if self._replica_listeners is not None:
            self._notify_replicas()
        return result.base_offset

    def truncate_to(self, offset: int) -> bool:
        """Cut what is not committed from `offset` on (R3, D3). Returns whether there was anything to cut."""
        self._check_online()
        if offset < self._high_watermark:
            raise FatalError(
                f"{self.tp} is committed up to {self._high_watermark} here and cannot be cut at {offset}: its leader "
                "lacks what was acknowledged. To continue without that, stop this node, move the partition's directory "
                "out of the data directory, and start it again: it fetches all from the leader",
                ErrorCode.OFFSET_OUT_OF_RANGE,
            )
        try:
            if self._before_cut is not None and offset < self.log.log_end_offset:
                self._before_cut(self, self.log.expect_cut(offset))
            cut = self.log.truncate_to(offset, now_ms=self._clock.now_ms())
            if cut:
                self.log.remember_decided(self._high_watermark, now_ms=self._clock.now_ms())
        except SemelError as error:
            self._look_after_log(error)
            raise
        if self._high_watermark > self.log.log_end_offset:
            self._stop_uncommitted(self._high_watermark)
            raise self._refusal()
        if cut:
            self._end_durable_wait()
            self._durable_end = min(self._durable_end, self.log.log_end_offset)
            self._commits.truncated(self, offset)
            refusal = RetriableError(
                f"{self.tp} was cut at {offset} to follow its leader", ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
            waiters = self._waiters or []
            self._waiters = [waiter for waiter in waiters if waiter[0] < offset] or None
            for waiter in sorted(waiters):
                if waiter[0] >= offset:
                    _call(waiter[2], refusal)
        return cut

    # --- Waiting ------------------------------------------------------------------------------------------------------

    def when_committed(self, offset: int, callback: CommitCallback) -> None:
        """Call `callback` once: when the record at `offset` is committed (now, if it is), or never will be here."""
        if offset < self._high_watermark:
            callback(None)
        elif self._refused is not None:
            callback(self._refusal())
        else:
            if self._waiters is None:
                self._waiters = []
            heapq.heappush(self._waiters, (offset, next(self._numbers), callback))

    async def wait_committed(self, offset: int) -> None:
        """Wait until the high watermark is past `offset`. Raises `SemelError` where it never will be here."""
        if offset < self._high_watermark:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def committed(error: SemelError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.when_committed(offset, committed)
        await done

    def add_append_listener(self, callback: Callable[[Partition], None]) -> None:
        """Call `callback(partition)` each time more can be read, or the partition went offline, until it is removed."""
        if self._listeners is None:
            self._listeners = {}
        self._listeners[callback] = None

    def remove_append_listener(self, callback: Callable[[Partition], None]) -> None:
        """Stop calling `callback`. One that is not there is no error."""
        if self._listeners is not None:
            self._listeners.pop(callback, None)
            if not self._listeners:
                self._listeners = None

    def add_replica_listener(self, callback: ReplicaListener) -> None:
        """Call `callback` each time there is something for followers, until it is removed."""
        if self._replica_listeners is None:
            self._replica_listeners = {}
        self._replica_listeners[callback] = None

    def remove_replica_listener(self, callback: ReplicaListener) -> None:
        """Stop calling `callback`. One that is not there is no error."""
        if self._replica_listeners is not None:
            self._replica_listeners.pop(callback, None)
            if not self._replica_listeners:
                self._replica_listeners = None

    def ask_replicas(self) -> None:
        """Have followers that wait for more answered now, so that they fetch again (R9)."""
        self._notify_replicas()

    def _notify_replicas(self, *, has_more: bool = True) -> None:
        for listener in tuple(self._replica_listeners or ()):
            _call(listener, self, has_more)

    def advance_high_watermark(self, offset: int) -> None:
        """Commit everything below `offset` (R1)."""
        if offset <= self._high_watermark or self._offline_error is not None:
            return
        if self._held_back is not None:
            self._held_back = max(self._held_back, offset)
            return
        # Where something is wrong nothing is raised: the caller commits other partitions, too.
        if offset > self.log.log_end_offset:
            self._stop_uncommitted(offset)
            return
        try:
            last_stable_offset = self._find_last_stable_offset(offset)
        except SemelError as error:
            self._look_after_log(error)
            return
        self._high_watermark = offset
        self._last_stable_offset = last_stable_offset
        waiters = self._waiters
        if waiters is not None:
            while waiters and waiters[0][0] < offset:
                _call(heapq.heappop(waiters)[2], None)
            if not waiters:
                self._waiters = None
        self._notify(has_more=False)

    def pause(self) -> None:
        """Commit nothing and give readers nothing, until `resume`: waiters keep waiting. For tests of clients."""
        if self._held_back is None:
            self._held_back = self._high_watermark

    def resume(self) -> None:
        """Take `pause` back: commit what could have been committed since, and tell all who wait."""
        held_back, self._held_back = self._held_back, None
        if held_back is not None:
            self.advance_high_watermark(held_back)
            self._notify()

    @property
    def is_paused(self) -> bool:
        return self._held_back is not None

    def _notify(self, has_more: bool = True) -> None:
        if self._replica_listeners is not None:
            self._notify_replicas(has_more=has_more)
        if self._listeners is not None:
            for listener in tuple(self._listeners):
                _call(listener, self)

    def _find_last_stable_offset(self, high_watermark: int) -> int:
        unstable = self.log.first_unstable_offset(high_watermark)
        return high_watermark if unstable is None else min(unstable, high_watermark)

    # --- Reading ------------------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        min_one_batch: bool = True,
        silent_max_s: float | None = None,
    ) -> LogRange:
        """Return where the committed batches from `offset` on are, up to `max_bytes` of them.

        Nothing at or past the high watermark, under read_committed the last stable offset, is in the range (L2).
        silent_max_s: see `check_readable`
        Raises `SemelError` (OFFSET_OUT_OF_RANGE) for an offset that is not in the log nor at its end.
        """
        self.check_readable(silent_max_s)
        log = self.log
        tier = self.tier
        is_remote = tier is not None and offset < log.local_start_offset
        if is_remote and not tier.is_known:  # type: ignore[union-attr]
            raise self._not_looked_up()
        if not log.log_start_offset <= offset <= log.log_end_offset:
            if tier is not None and offset > log.log_end_offset and not tier.is_end_proven():
                # Another node may lead, and have that: a consumer must not begin elsewhere for this one's word.
                raise self._not_leading("may be led by another node by now, which has more; try again shortly")
            raise self._out_of_range(offset)
        committed_only = isolation is IsolationLevel.READ_COMMITTED
        upto = self._last_stable_offset if committed_only else self._high_watermark
        if offset >= upto or self._held_back is not None:
            return LogRange(None, offset, offset)
        if is_remote:
            remote = tier.read(offset, max_bytes, upto, min_one_batch, committed_only)  # type: ignore[union-attr]
            if remote.records is not None or remote.next_offset == offset:
                return remote
            offset = remote.next_offset  # there is nothing up to where this disk begins
        found = log.read(offset, max_bytes, upto, min_one_batch)
        if committed_only and found.records is not None:
            records, first, after, _ = found
            found = LogRange(records, first, after, log.aborted_transactions(first, after))
        return found

    def check_readable(self, silent_max_s: float | None = None) -> None:
        """Refuse readers where this is not the leader, nor a follower that may be read from (KIP-392).

        silent_max_s: a follower may be, where it has heard from its leader within that time; None: only the leader
        """
        if self._refused is None:
            return
        heard_s = self._heard_s
        is_follower = self._leader is None and self._offline_error is None
        if (
            silent_max_s is None
            or not is_follower
            or heard_s is None
            or self._clock.monotonic() - heard_s > silent_max_s
        ):
            raise self._refusal()

    def read_for_replica(self, offset: int, *, max_bytes: int, min_one_batch: bool = True) -> LogRange:
        """Return where the batches from `offset` on are, committed or not: for followers alone.

        Raises `SemelError` (OFFSET_OUT_OF_RANGE) for an offset that is not in the log nor at its end.
        """
        self._check_led()
        log = self.log
        if not log.local_start_offset <= offset <= log.log_end_offset:
            raise self._out_of_range(offset)
        if offset == log.log_end_offset:
            return LogRange(None, offset, offset)
        return log.read(offset, max_bytes, log.log_end_offset, min_one_batch)

    def _not_looked_up(self) -> SemelError:
        return RetriableError(
            f"{self.tp}: it is not known yet what the remote storage has of it; try again shortly",
            ErrorCode.OFFSET_NOT_AVAILABLE,
        )

    def _out_of_range(self, offset: int) -> SemelError:
        return FatalError(
            f"offset {offset} of {self.tp} is not within {self.log.log_start_offset} to {self.log.log_end_offset}",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )

    def read_batches(self, offset: int, max_bytes: int) -> bytes:
        """Return whole batches from the one with `offset` on, committed or not, for a coordinator that loads."""
        self._check_online()
        if offset >= self.log.log_end_offset:
            return b""
        return self.log.read(offset, max_bytes, self.log.log_end_offset, True).read()

    def list_offset(
        self,
        timestamp_ms: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        opened: Opened = NOTHING_OPENED,
        remote: TimestampOffset | None = None,
    ) -> ListOffset:
        """Return the offset for a timestamp or for one of the special ones.

        EARLIEST is the start of the log; LATEST the high watermark, under read_committed the last stable offset (L2);
        MAX_TIMESTAMP the record with the largest timestamp (KIP-734); a timestamp the first record at or after it, and
        -1 where no visible record is. EARLIEST_LOCAL is the first offset on this disk, LATEST_TIERED the last one in
        the remote storage, EARLIEST_PENDING_UPLOAD the one behind it; without remote storage the last two are -1
        (KIP-405, KIP-1005, KIP-1023). `opened` and what is raised: see `PartitionLog.offset_for_timestamp`.

        remote: the record that the remote storage has for the timestamp, see `RemotePart.record_at`
        """
        self._check_led()
        self._check_end_known()  # a reader may have seen more from the leader before: no offset must go back
        end = self._last_stable_offset if isolation is IsolationLevel.READ_COMMITTED else self._high_watermark
        end = max(end, self.log.log_start_offset)
        if timestamp_ms == EARLIEST_TIMESTAMP:
            return self._first_offset(self.log.log_start_offset)
        if timestamp_ms == EARLIEST_LOCAL_TIMESTAMP:
            return self._first_offset(self.log.local_start_offset)
        if timestamp_ms == LATEST_TIERED_TIMESTAMP:
            last = -1 if self.tier is None else self.tier.end_offset - 1
            return ListOffset(last, -1, self.log.epochs.epoch_for(last)) if last >= 0 else ListOffset(-1, -1)
        if timestamp_ms == EARLIEST_PENDING_UPLOAD_TIMESTAMP:
            if self.tier is None:
                return ListOffset(-1, -1)
            return self._first_offset(max(self.tier.end_offset, self.log.log_start_offset))
        if timestamp_ms == LATEST_TIMESTAMP:
            return ListOffset(end, -1, self.leader_epoch)
        found = remote or self.log.offset_for_timestamp(timestamp_ms, opened)
        if found is None or found.offset >= end:
            return ListOffset(-1, -1)
        return ListOffset(found.offset, found.timestamp_ms, found.leader_epoch)

    def _check_end_known(self) -> None:
        """Raises OFFSET_NOT_AVAILABLE while a new leader does not know yet of all that the one before had committed."""
        leader = self._leader
        if leader is not None and self._high_watermark < leader.begin_offset:
            raise RetriableError(
                f"{self.tp}: its new leader does not know yet how far it is committed; try again shortly",
                ErrorCode.OFFSET_NOT_AVAILABLE,
            )

    def _first_offset(self, start: int) -> ListOffset:
        """The epoch is that of the first record, because a reader that begins there asks where that one ended."""
        nothing_there = start == self.log.log_end_offset
        return ListOffset(start, -1, self.leader_epoch if nothing_there else self.log.epochs.epoch_for(start))

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset | None:
        """Return where a leader epoch ended (KIP-101): the largest at or below it that is known, None if none is.

        All that is below the leader's own epoch ended where that began, also before anything is written in it (R7).
        Raises NOT_LEADER_OR_FOLLOWER until that is durable.
        """
        self._check_led()
        if not 0 <= leader_epoch <= self.leader_epoch:
            return None
        if self._epoch_note is not None:
            if not self._epoch_note.is_durable:
                raise RetriableError(
                    f"leader epoch {self.leader_epoch} of {self.tp} is being noted on the disk; try again shortly",
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                )
            self._epoch_note = None
        return self.log.end_offset_for_epoch(leader_epoch) or EpochEndOffset(leader_epoch, self.log.log_end_offset)

    def delete_records(self, before_offset: int) -> int:
        """Let the log start at `before_offset`, or HIGH_WATERMARK, and return where it starts now.

        Raises `SemelError`: OFFSET_OUT_OF_RANGE beyond the high watermark, OFFSET_NOT_AVAILABLE until that is known.
        """
        self._check_led()
        self._check_end_known()
        if self.is_sealed:
            self._commits.check_journal()  # where the log starts was told already
        before = self._high_watermark if before_offset == HIGH_WATERMARK else before_offset
        if not 0 <= before <= self._high_watermark:
            raise FatalError(
                f"records of {self.tp} can be deleted up to the high watermark {self._high_watermark}, "
                f"not up to {before_offset}",
                ErrorCode.OFFSET_OUT_OF_RANGE,
            )
        start = self.log.delete_records(before)
        if self._on_log_start_moved is not None:
            self._on_log_start_moved(self)
        self._notify_replicas()
        return start

    # --- Going away ---------------------------------------------------------------------------------------------------

    def go_offline(self, error: SemelError) -> None:
        """Refuse everything from now on with `error`, and tell all who wait. The first error stays."""
        if self._offline_error is not None:
            return
        self._offline_error = self._refused = error
        self._end_durable_wait()
        waiters, self._waiters = self._waiters, None
        for _, _, callback in sorted(waiters or ()):
            _call(callback, self._refusal())
        self._notify()

    def _look_after_log(self, error: SemelError) -> None:
        if self.log.offline_error is not None:
            _log.critical("%s is offline: %s", self.tp, self.log.offline_error)
            self.go_offline(self.log.offline_error)
        elif error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            self._commits.write_failed(error)
            self._commits.failures.failed(self._clock.monotonic(), error.message)

    def _stop_uncommitted(self, high_watermark: int) -> None:
        """Take the partition and its log offline: what must always hold does not."""
        error = BrokenInvariantError(
            self.tp, "the high watermark is at the end of the log or before",
            high_watermark=high_watermark, log_end_offset=self.log.log_end_offset,
        )  # fmt: skip
        self.go_offline(self.log.stop(error))

    def _check_online(self) -> None:
        if self._offline_error is not None:
            raise self._refusal()

    def _check_led(self) -> None:
        if self._refused is not None:
            raise self._refusal()

    def _check_in_sync(self) -> None:
        """Refuse what could not be committed as the topic promises (R2)."""
        leader = self._leader
        assert leader is not None
        if len(leader.isr) < leader.effective_min_isr:
            raise RetriableError(
                f"{self.tp} has {counted(len(leader.isr), 'replica')} in sync, fewer than min.insync.replicas="
                f"{leader.effective_min_isr}; try again when more are. `semel doctor` names the nodes that are away",
                ErrorCode.NOT_ENOUGH_REPLICAS,
            )

    def _check_may_coordinate(self) -> None:
        """Refuse a coordinator's record or marker that could not be committed: it is tried again (R2)."""
        self._check_led()
        leader = self._leader
        if leader is not None and not leader.has_min_isr:
            raise RetriableError(
                f"{self.tp} has {counted(len(leader.isr), 'replica')} in sync, too few to commit anything; try again",
                ErrorCode.NOT_ENOUGH_REPLICAS,
            )

    def _refusal(self) -> SemelError:
        """A new exception each time: one that is raised again and again would collect every traceback."""
        assert self._refused is not None
        return error_for(self._refused.code, self._refused.message)


def _call(callback: Callable[..., None], *arguments: object) -> None:
    """Call back; the failure of one who waited must not keep the others waiting."""
    try:
        callback(*arguments)
    except Exception:
        _log.exception("a callback of a partition failed")
