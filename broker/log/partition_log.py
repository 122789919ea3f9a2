# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""One partition's log: its offsets, producers and leader epochs, and whether the disk can be trusted with it.

What is in files is a `LocalLog`'s, which this holds. No waiting, no threads, no clock: time is handed in. Everything is
called on one thread, except `FlushWork.run` and `Compaction.run`, which touch only what they were given.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn, Self, TypeVar

from semel.broker.log.append_validation import (
    CheckedBatch,
    check_batch,
    check_client_batch,
    is_plain,
    open_batch,
    read_plain,
)
from semel.broker.log.batch_runs import first_overlapping, first_reaching, largest_timestamp
from semel.broker.log.config import UNLIMITED, AppendOrigin, LogConfig, TimestampType
from semel.broker.log.disk_errors import is_full, remedy
from semel.broker.log.epochs_file import EpochsWrite
from semel.broker.log.flushing import FlushWork
from semel.broker.log.local_log import LocalLog
from semel.broker.log.log_types import (
    NOTHING_OPENED,
    AbortedTransaction,
    AppendResult,
    EpochEndOffset,
    LogRange,
    Opened,
    PartlyAppendedError,
    TimestampOffset,
)
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.producer_id_bound import ProducerIdBound
from semel.broker.log.producer_state import NO_COORDINATOR_EPOCH, MarkerVerdict, ProducerState
from semel.broker.log.recovery import LoadedLog, LogLoader, headers_between, replay_headers
from semel.broker.log.refused_batches import RefusedBatches
from semel.broker.log.replay import apply_run
from semel.broker.log.retention import segments_to_delete
from semel.broker.log.segment import Segment
from semel.broker.log.segments import Segments
from semel.broker.log.verification import VerificationGuard, Verifications
from semel.protocol.api.topics import MAX_TIMESTAMP
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.batch_header import BatchHeader, set_append_time, set_base_offset, validate_batches
from semel.protocol.control_records import ControlType, encode_control_batch
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import NO_TIMESTAMP, ProducerIdAndEpoch, TopicId, TopicPartition
from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.named_tuples import new_tuple
from semel.runtime.invariants import BrokenInvariantError, check
from semel.runtime.storage import Buffer, Storage

_log = logging.getLogger(__name__)

T = TypeVar("T")

_BROKEN_PLACES_MAX: Final = 100
DEFAULT_PRODUCER_ID_EXPIRATION_MS: Final = 24 * 60 * 60 * 1000


def writable(buffer: Buffer) -> bytearray | memoryview:
    """Return a buffer that can be patched: the same, or a copy of one that can not."""
    if isinstance(buffer, bytearray) or (isinstance(buffer, memoryview) and not buffer.readonly):
        return buffer
    return bytearray(buffer)


class PartitionLog:
    """The log of one partition, in its folder. `open` makes one."""

    __slots__ = (
        "_broken",
        "_closed",
        "_producer_ids",
        "_refused",
        "_verifications",
        "config",
        "epochs",
        "is_only_replica",
        "local",
        "log_end_offset",
        "log_start_offset",
        "offline_error",
        "producer_id_expiration_ms",
        "producer_state",
        "recovered_bytes_cut",
        "recovered_damage",
        "recovered_damage_from",
        "replayed_cut",
        "segments",
        "tiered_end",
        "tiered_start",
        "topic_id",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        local: LocalLog,
        loaded: LoadedLog,
        producer_id_expiration_ms: int,
        producer_ids: ProducerIdBound | None = None,
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.config = config
        """The topic's settings, the same as the `LocalLog`'s: see `update_config`."""

        # Where it begins and ends.
        self.log_start_offset = loaded.log_start_offset
        """The first offset that may be read."""
        self.log_end_offset = loaded.log_end_offset
        """The offset of the next record."""

        # What it holds, as state and as files.
        self.producer_state = loaded.producers
        """Sequences and transactions, of all up to the end of the log."""
        self.epochs = loaded.epochs
        """Which leader epoch began where."""
        self.local = local
        """The files. Not to be changed from outside."""
        self.segments: Segments = local.segments
        """The `LocalLog`'s, here for appends and reads. Not to be changed from outside."""
        self.tiered_end = 0
        """Up to here the remote storage has the log, as far as this node knows. Of a topic with
        remote.storage.enable.
        """
        self.tiered_start: int | None = None
        """Where the log begins by what is noted beside the remote storage; None where nothing is noted, or known."""

        # Producers that are not in the log yet.
        self.producer_id_expiration_ms = producer_id_expiration_ms
        """For so long an idle producer is remembered (P8)."""
        self._producer_ids = producer_ids
        """Bounds how many producers are remembered. Shared by all logs of a node; None: nothing bounds them."""
        self._refused: RefusedBatches | None = None
        self._verifications: Verifications | None = None
        """Producers whose coordinator is being asked (T8). None: there are none."""

        # What is wrong with it.
        self.offline_error: SemelError | None = None
        """Set for good once this log can no longer be trusted, or its disk: a restart, which validates it, is the way
        back.
        """
        self._closed = False
        self.recovered_bytes_cut = loaded.truncated_bytes
        """What the recovery had to cut when this was opened."""
        self.recovered_damage = loaded.damage
        """Which records opening found lost or unreadable, in words; "" for none."""
        self.recovered_damage_from = loaded.damaged_from
        """The first of their offsets; None for none."""
        self.replayed_cut: int | None = None
        """The lowest offset that the journal says it was cut to before the crash. All it had from there on when the
        crash came is in the journal as well; what was synced there before is none of its records any more.
        """
        self.is_only_replica = True
        """Whether nobody else has its records. What a replica lacks, its leader has."""
        self._broken: set[str] = set()
        """Broken places that readers met, as the operator was told of them."""
        self._check_ends()

    @classmethod
    def open(
        cls,
        storage: Storage,
        folder: str,
        tp: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        *,
        now_ms: int,
        log_start_offset: int | None = None,
        recovery_point: int = 0,
        clean: bool = False,
        start_is_final: bool | None = None,
        is_untouched: bool = False,
        is_only_replica: bool = True,
        high_watermark: int = 0,
        on_loss: Callable[[int], None] = lambda first: None,
        max_producer_id_expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS,
        files: OpenFiles | None = None,
        producer_ids: ProducerIdBound | None = None,
    ) -> Self:
        """Open the log in `folder`, creating it if it is not there.

        log_start_offset: where it starts, as far as that was noted; without it, with its first segment
        start_is_final:   that was noted by a clean stop, so that a first segment behind it means loss (D6); without it,
                          as `clean`
        is_untouched:     nothing was cut or written since the last clean close but what starts have repaired
        is_only_replica:  nobody else has what is lost of what was synced (D3). Where others have it, this replica may
                          have been cut just before, to follow its leader
        high_watermark:   up to where it is noted as committed; nothing below that is cut to follow
        on_loss:          is called with the first offset of each stretch that is lost, before the log is whole again

        `clean`: the last close was a clean one, so only the last batches of each segment are looked at. Otherwise all
        from `recovery_point` on is validated and what follows the first broken batch is cut (D2). `files` bounds the
        open files and `producer_ids` the producers, both shared by all logs of a node. Raises `OSError`, or
        `SemelError` for a log that cannot be made sense of.
        """
        files = files if files is not None else OpenFiles()
        loader = LogLoader(
            storage, folder, tp, config, files,
            now_ms=now_ms, log_start_offset=log_start_offset, recovery_point=recovery_point, clean=clean,
            start_is_final=clean or is_untouched if start_is_final is None else start_is_final,
            is_untouched=is_untouched, is_only_replica=is_only_replica, high_watermark=high_watermark,
            on_loss=on_loss,
        )  # fmt: skip
        loaded = loader.load()
        local = LocalLog(storage, folder, tp, config, loaded, files)
        log = cls(tp, topic_id, config, local, loaded, max_producer_id_expiration_ms, producer_ids)
        log.is_only_replica = is_only_replica
        return log

    @property
    def storage(self) -> Storage:
        return self.local.storage

    @property
    def folder(self) -> str:
        return self.local.folder

    @property
    def size_bytes(self) -> int:
        """Bytes of batches in all segments."""
        return self.local.size_bytes

    @property
    def recovery_point(self) -> int:
        """All below this offset is on the disk."""
        return self.local.recovery_point

    @property
    def local_start_offset(self) -> int:
        """The first offset that can be read from this disk. It is above the log's start where the records before it are
        in the remote storage alone.
        """
        first: int = self.segments.first.base_offset
        return max(self.log_start_offset, first)

    def update_config(self, config: LogConfig) -> None:
        """Take new settings from the next append on."""
        self.config = self.local.config = config

    # --- Appending ----------------------------------------------------------------------------------------------------

    def append(
        self,
        buffer: Buffer,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verified: bool | VerificationGuard = False,
        checked: CheckedBatch | None = None,
    ) -> AppendResult:
        """Append the one batch in `buffer`, which is patched in place (`bytes` are copied first).

        A buffer of REPLICATION has its offsets already, and may hold several batches: see `replay_append`.
        `verified`: the coordinator confirmed that this partition is in the producer's transaction (T8): True, or
        better the guard that `start_verification` gave before asking, which a marker in between makes void.
        `checked`: what `check_batch` found of a client's batch, where that was done before; it goes in place of
        `buffer`.

        Raises `SemelError`: CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_RECORD,
        INVALID_TIMESTAMP, what P1 to P6 and T8 say, KAFKA_STORAGE_ERROR. Nothing was appended then.
        """
        if origin is AppendOrigin.REPLICATION:
            return self.replay_append(None, buffer, now_ms=now_ms)
        config = self.config
        if self.offline_error is not None or self._closed:
            self._refuse_offline()
        client = origin is AppendOrigin.CLIENT
        buffer = writable(buffer)
        if not client:
            header = open_batch(self.tp, buffer, config)
            max_timestamp_ms = header.max_timestamp_ms
        elif checked is None and (plain := read_plain(buffer, config)) is not None:
            header = plain
            max_timestamp_ms = header.max_timestamp_ms
        else:
            if checked is None:
                checked = check_batch(self.tp, buffer, config)
            buffer, header, max_timestamp_ms = checked[:3]
            if not is_plain(header, config):
                check_client_batch(self.tp, checked, config, now_ms)
        producer_id, transactional = header.producer_id, header.is_transactional
        if producer_id >= 0 and not (
            client
            and self._verifications is None
            and self.producer_state.follows(producer_id, header.producer_epoch, header.base_sequence, transactional)
        ):
            duplicate = self._check_producer(header, client, verified, now_ms)
            if duplicate is not None:
                return duplicate
        append_time_ms = NO_TIMESTAMP
        if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            set_append_time(buffer, 0, now_ms)
            max_timestamp_ms = append_time_ms = now_ms
        base_offset = self.log_end_offset  # D3: never an offset that was used
        delta = header.last_offset_delta
        last_offset = base_offset + delta
        segment = self._write(
            buffer, header.size_bytes, base_offset, last_offset, max_timestamp_ms, leader_epoch, now_ms
        )
        state = self.producer_state
        if producer_id >= 0:
            state.apply_batch(
                producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_sequence,
                base_offset,
                last_offset,
                max_timestamp_ms,
                transactional,
                now_ms,
            )
            if transactional and self._verifications is not None:
                self._verifications.finish(producer_id)
                if not self._verifications:
                    self._verifications = None
        # Each of the three counts on its own, so that a difference shows, before anybody hears of the append.
        state.end_offset += delta + 1
        self.log_end_offset = end = last_offset + 1
        if not state.end_offset == end == segment.end_offset:
            self._check_ends()
        return new_tuple(
            AppendResult, (base_offset, last_offset, append_time_ms, False, max_timestamp_ms, (memoryview(buffer),))
        )

    def _check_producer(
        self, header: BatchHeader, client: bool, verified: bool | VerificationGuard, now_ms: int
    ) -> AppendResult | None:
        producer_id, epoch, first_sequence = header.producer_id, header.producer_epoch, header.base_sequence
        if client:
            known = self.producer_state.find_duplicate(producer_id, epoch, first_sequence, header.last_sequence)
            if known is not None:
                if header.is_transactional:
                    self.producer_state.check_repetition(producer_id, known)
                return AppendResult(
                    known.first_offset, known.last_offset, known.timestamp_ms, True, known.timestamp_ms, ()
                )
            if isinstance(verified, VerificationGuard):
                confirmed = self._verifications is not None and self._verifications.holds(verified, producer_id)
            else:
                confirmed = verified
        else:
            confirmed = True
        self.producer_state.check_batch(
            producer_id,
            epoch,
            first_sequence,
            header.is_transactional,
            check_sequence=client,  # P5
            verified=confirmed,
        )
        if client and self.producer_state.entry(producer_id) is None:
            if self._refused is not None:
                self._refused.check(self.tp, producer_id, epoch, first_sequence, now_ms)
            waits = self._verifications
            # A producer that is known here is held to its next sequence anyway; one that is not may start anywhere.
            if waits is not None and header.is_transactional:
                waits.check_sequence(self.tp, producer_id, epoch, first_sequence)
            if self._producer_ids is not None:
                self._producer_ids.admit(self.tp, len(self.producer_state), now_ms)
        return None

    def note_refused(self, header: BatchHeader, now_ms: int) -> None:
        """Remember a client's batch that was refused and will be sent again: no later one may overtake it (P2)."""
        if header.producer_id >= 0 and self.producer_state.entry(header.producer_id) is None:
            if self._refused is None:
                self._refused = RefusedBatches()
            self._refused.note(header.producer_id, header.producer_epoch, header.base_sequence, now_ms)

    def append_marker(
        self,
        producer: ProducerIdAndEpoch,
        coordinator_epoch: int,
        committed: bool,
        now_ms: int,
        *,
        leader_epoch: int,
        version: TransactionVersion = TransactionVersion.V1,
        forged_epoch: int = NO_COORDINATOR_EPOCH,
    ) -> AppendResult:
        """End the producer's transaction here. `version` V2: the marker's epoch is above its data's.

        forged_epoch: see `ProducerState.check_marker`.

        A repeated marker succeeds and appends nothing: `duplicate`, and `last_offset` is one at or behind which the
        first one stands, to wait for. Raises `SemelError`: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED (P9),
        KAFKA_STORAGE_ERROR.
        """
        if self.offline_error is not None or self._closed:
            self._refuse_offline()
        verdict = self.producer_state.check_marker(producer, coordinator_epoch, version, forged_epoch=forged_epoch)
        if self._verifications is not None:
            self._verifications.finish(producer.producer_id)
        offset = self.log_end_offset
        if verdict is MarkerVerdict.ALREADY_APPLIED:
            return AppendResult(offset - 1, offset - 1, NO_TIMESTAMP, True, NO_TIMESTAMP, ())
        batch = bytearray(
            encode_control_batch(
                ControlType.COMMIT if committed else ControlType.ABORT,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                coordinator_epoch=coordinator_epoch,
                timestamp_ms=now_ms,
            )
        )
        append_time_ms = NO_TIMESTAMP
        if self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            set_append_time(batch, 0, now_ms)
            append_time_ms = now_ms
        segment = self._write(batch, len(batch), offset, offset, now_ms, leader_epoch, now_ms)
        completed = self.producer_state.apply_marker(producer, coordinator_epoch, committed, offset, now_ms, now_ms)
        self.producer_state.end_offset += 1
        self.log_end_offset = offset + 1
        self._check_ends()
        if completed is not None:
            try:
                segment.transactions.note_completed(completed)
            except OSError as error:
                # Without this entry readers would see aborted records (L3); recovery writes it.
                self._go_offline("writing the transaction index", error)
        return AppendResult(offset, offset, append_time_ms, False, now_ms, (memoryview(batch),))

    def _write(
        self,
        buffer: bytearray | memoryview,
        size: int,
        base_offset: int,
        last_offset: int,
        max_timestamp_ms: int,
        leader_epoch: int,
        now_ms: int,
    ) -> Segment:
        """Patch the batch and write it to the active segment, which is returned, or raise with the file as it was."""
        config = self.config
        if size > config.segment_bytes:
            raise self._too_large(size)
        set_base_offset(buffer, 0, base_offset, leader_epoch)
        try:
            segment = self.segments.active
            if segment.should_roll(size, last_offset, max_timestamp_ms, now_ms, config):
                segment = self.roll(now_ms, base_offset)
            segment.append((buffer,), size, last_offset, max_timestamp_ms, config.index_interval_bytes)
        except OSError as error:
            self._undo_append(error)
        except BrokenInvariantError as error:
            raise self.stop(error) from error
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        return segment

    def _too_large(self, size: int) -> SemelError:
        return error_for(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{self.tp}: {size} bytes to append do not fit in a segment of segment.bytes={self.config.segment_bytes}",
        )

    def replay_append(
        self, base_offset: int | None, buffer: Buffer, *, now_ms: int, one_by_one: bool = False
    ) -> AppendResult:
        """Append batches that have their offsets and epochs: from a leader, or from the journal after a crash (P5).

        What the log has already is skipped, so repeating is harmless; offsets may leave gaps, as compaction does.
        `duplicate` says that nothing was new. `base_offset`, where known, must be the first batch's. With `one_by_one`
        each batch comes to the segment that it would come to alone; those before one that fails are appended.
        Raises `SemelError`: CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE for a batch that the log has a part of,
        KAFKA_STORAGE_ERROR; without `one_by_one` `PartlyAppendedError` where the disk did not take a later segment.
        """
        if self.offline_error is not None or self._closed:
            self._refuse_offline()
        headers = validate_batches(buffer, max_batch_bytes=INT32_MAX, strict_count=False)
        if base_offset is not None and headers[0].base_offset != base_offset:
            raise CorruptBatchError(
                f"{self.tp}: batches said to begin at offset {base_offset} begin at {headers[0].base_offset}"
            )
        end = self.log_end_offset
        new = headers[first_reaching(headers, end) :]
        if not new:
            last = headers[-1]
            return AppendResult(headers[0].base_offset, last.last_offset, -1, True, last.max_timestamp_ms, ())
        overlapping = first_overlapping(new, end)
        if overlapping < len(new):
            header = new[overlapping]
            expected = new[overlapping - 1].next_offset if overlapping else end
            raise error_for(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.tp}: a batch to be replayed has offsets {header.base_offset} to {header.last_offset}, but "
                f"offset {expected} is next",
            )
        view = memoryview(buffer)
        written: list[memoryview] = []
        for run in self._single_runs(new, now_ms) if one_by_one else self._runs(new):
            part = view[run[0].position : run[-1].position + run[-1].size_bytes]
            try:
                self._replay_run(run, view, part, now_ms)
            except SemelError as error:
                cause = error.__cause__
                is_over = one_by_one or self.offline_error is not None or not isinstance(cause, OSError)
                if is_over or not written:
                    raise
                assert isinstance(cause, OSError)
                there = new[: first_reaching(new, self.log_end_offset)]
                raise PartlyAppendedError(
                    f"{self.tp}: only what comes before offset {self.log_end_offset} was appended, because writing in "
                    f"{self.folder} failed ({cause}): {remedy(cause)}",
                    _appended(there, written),
                ) from cause
            written.append(part)
        return _appended(new, written)

    def _single_runs(self, headers: list[BatchHeader], now_ms: int) -> Iterator[list[BatchHeader]]:
        """Cut batches into runs, each to be appended before the next is asked for, in which only the first batch may
        begin a new segment.
        """
        waiting = [headers]
        while waiting:
            run = waiting.pop()
            if len(run) == 1 or self.segments.active.has_room_for(run, now_ms, self.config):
                yield run
            else:
                middle = len(run) // 2
                waiting += [run[middle:], run[:middle]]

    def _runs(self, headers: list[BatchHeader]) -> list[list[BatchHeader]]:
        """Cut batches into runs that each fit into one segment."""
        runs: list[list[BatchHeader]] = [[]]
        size = 0
        for header in headers:
            run = runs[-1]
            if run and (
                size + header.size_bytes > self.config.segment_bytes
                or header.last_offset - run[0].base_offset > INT32_MAX
            ):
                runs.append([])
                size = 0
            runs[-1].append(header)
            size += header.size_bytes
        return runs

    def _replay_run(self, run: list[BatchHeader], buffer: memoryview, view: memoryview, now_ms: int) -> None:
        """Append the batches of `view`, whose headers have their positions in `buffer`, to one segment."""
        newest = largest_timestamp(run)
        last = run[-1]
        try:
            segment = self.segments.active
            if segment.should_roll(view.nbytes, last.last_offset, newest, now_ms, self.config):
                # A gap larger than a segment can span begins the new one at the batch itself.
                near = last.last_offset - self.log_end_offset <= INT32_MAX
                segment = self.roll(now_ms, self.log_end_offset if near else run[0].base_offset)
            segment.append_run(view, run, self.config.index_interval_bytes)
        except OSError as error:
            self._undo_append(error)
        except BrokenInvariantError as error:
            raise self.stop(error) from error
        try:
            self.epochs.assign_run(run)
            for completed in apply_run(self.producer_state, run, buffer, now_ms):
                segment.transactions.note_completed(completed)
        except OSError as error:
            self._go_offline("writing the transaction index", error)
        self.log_end_offset = last.next_offset
        self._check_ends()

    def roll(self, now_ms: int, base_offset: int | None = None) -> Segment:
        """Begin a new active segment: at the end of the log, or at `base_offset` behind a gap. Raises `OSError`."""
        self._check_ends()
        end, state = self.log_end_offset, self.producer_state
        base = state.end_offset = end if base_offset is None else base_offset
        try:
            return self.local.roll(base, state, now_ms)
        except OSError:
            state.end_offset = end
            raise
        except BrokenInvariantError as error:
            raise self.stop(error) from error

    # --- Transactions and producers -----------------------------------------------------------------------------------

    def has_ongoing_transaction(self, producer: ProducerIdAndEpoch) -> bool:
        """Say whether this producer, at this epoch, has a transaction open here: then nothing need be verified (T8)."""
        return self.producer_state.has_ongoing_transaction(producer)

    def start_verification(self, producer: ProducerIdAndEpoch, sequence: int, now_ms: int) -> VerificationGuard | None:
        """Return a guard to ask the coordinator under and to append with, or None where a transaction is open
        already.
        """
        if self.producer_state.has_ongoing_transaction(producer):
            return None
        if self._verifications is None:
            self._verifications = Verifications()
        return self._verifications.start(producer, sequence, now_ms)

    def holds_verification(self, guard: VerificationGuard) -> bool:
        """Say whether no marker has made the guard void."""
        return self._verifications is not None and self._verifications.holds(guard, guard.producer_id)

    def cancel_verification(self, producer: ProducerIdAndEpoch) -> None:
        """Note that the producer's batch will not be repeated: nothing waits for it any more."""
        if self._verifications is not None:
            self._verifications.finish(producer.producer_id)

    def void_verifications(self) -> None:
        """Forget which producers were verified, or are being verified: the partition is led by another from here on."""
        self._verifications = None

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return what holds the last stable offset below `high_watermark`, or None (L1).

        Raises `SemelError` (KAFKA_STORAGE_ERROR), offline, where the log does not reach so far.
        """
        if high_watermark > self.log_end_offset:
            self._check_committed(high_watermark)
        return self.producer_state.first_unstable_offset(high_watermark)

    def aborted_transactions(self, first_offset: int, upto_offset: int) -> list[AbortedTransaction]:
        """Return every aborted transaction that overlaps [first_offset, upto_offset) (L3)."""
        try:
            return self.segments.aborted_transactions(first_offset, upto_offset)
        except CorruptBatchError as error:
            # Without it readers would see aborted records (L3); recovery writes it again.
            self._go_offline("reading the transaction index", error)
        except OSError as error:
            raise self._unreadable(error) from error

    def clock_jumped(self, ahead_ms: int, now_ms: int) -> Iterator[None]:
        """Take note that the clock has jumped, back where `ahead_ms` is negative, a few milliseconds at a time (P8)."""
        yield from self.producer_state.clock_jumped(ahead_ms, now_ms)

    def expire_producers(self, now_ms: int) -> Iterator[int]:
        """Forget idle producers (P8), a few milliseconds at a time (S3). Yields how many."""
        if self._verifications is not None:
            self._verifications.expire(now_ms, self.producer_id_expiration_ms)
            if not self._verifications:
                self._verifications = None
        yield from self.producer_state.expire_in_parts(now_ms, self.producer_id_expiration_ms)

    # --- Reading ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, upto_offset: int, min_one_batch: bool = True) -> LogRange:
        """Return whole batches of one segment from the one that holds `offset`, with offsets below `upto_offset`.

        At most `max_bytes`; with `min_one_batch` the first batch even if it is larger. Raises `SemelError`:
        OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise error_for(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.tp}: offset {offset} is not within {self.log_start_offset} to {self.log_end_offset}",
            )
        if offset < self.segments.first.base_offset:
            raise error_for(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.tp}: offset {offset} is not on this disk, which has it from {self.local_start_offset} on",
            )
        end = self.log_end_offset
        if upto_offset > end:
            upto_offset = end
        try:
            return self.segments.read(offset, max_bytes, upto_offset, end, min_one_batch=min_one_batch)
        except CorruptBatchError as error:
            return self._retry_with_rebuilt_indexes(
                offset, error,
                lambda: self.segments.read(offset, max_bytes, upto_offset, end, min_one_batch=min_one_batch),
            )  # fmt: skip
        except OSError as error:
            raise self._unreadable(error) from error

    def bytes_from(self, offset: int, max_bytes: int) -> bytes:
        """Return at most `max_bytes` of one segment from the batch on that begins at `offset`; b"" where none does.

        Raises `SemelError` as `read`.
        """
        readable = max(offset, self.log_start_offset)  # records may have been deleted up to the middle of the batch
        if readable >= self.log_end_offset:
            return b""
        try:
            begins, found = self.segments.bytes_from(readable, max_bytes)
        except CorruptBatchError as error:
            begins, found = self._retry_with_rebuilt_indexes(
                offset, error, lambda: self.segments.bytes_from(readable, max_bytes)
            )
        except OSError as error:
            raise self._unreadable(error) from error
        return found if begins == offset else b""

    def headers(self, offset: int, upto: int) -> Iterator[BatchHeader]:
        """Yield the headers of the batches in [offset, upto). Not to be continued after a change of the log.

        Raises `CorruptBatchError` and `OSError`.
        """
        for _, _, header in headers_between(self.segments, offset, upto):
            yield header

    def offset_for_timestamp(self, timestamp_ms: int, opened: Opened = NOTHING_OPENED) -> TimestampOffset | None:
        """Return the first record with this timestamp or a later one; for MAX_TIMESTAMP, the first with the largest.

        None where there is none. Raises `SemelError` (KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE), and `LargeBatch` where a
        batch is to be opened elsewhere first (S3): look up again then, with what it had to say in `opened`.
        """
        try:
            return self._find_timestamp(timestamp_ms, opened)
        except CorruptBatchError as error:
            return self._retry_with_rebuilt_indexes(
                self.log_start_offset, error, lambda: self._find_timestamp(timestamp_ms, opened)
            )
        except OSError as error:
            raise self._unreadable(error) from error

    def _find_timestamp(self, timestamp_ms: int, opened: Opened) -> TimestampOffset | None:
        if timestamp_ms == MAX_TIMESTAMP:
            return self.segments.offset_of_max_timestamp(self.log_start_offset, opened)
        return self.segments.offset_for_timestamp(timestamp_ms, self.log_start_offset, opened)

    def _retry_with_rebuilt_indexes(self, offset: int, error: CorruptBatchError, look_up: Callable[[], T]) -> T:
        """Look up once more, after the indexes from `offset` on were built again, or raise what can't be fixed."""
        try:
            self.local.rebuild_misleading_indexes(offset, error)
            return look_up()
        except CorruptBatchError as second:
            raise self._report_broken(offset, second) from second
        except OSError as second:
            raise self._unreadable(second) from second

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset | None:
        """Return where a leader epoch ended in this log (KIP-101), or None if it is unknown."""
        return self.epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def begin_epoch(self, leader_epoch: int) -> EpochsWrite | None:
        """Note that `leader_epoch` begins at the end of this log (R7, KIP-279), also if nothing is ever written in it.

        Returns what has to be on the disk before it says where an epoch ended, None where nothing is to be written. An
        empty log needs no note: there is nothing before the epoch, and its first batch tells of it.
        """
        if not self.log_end_offset or leader_epoch < self.epochs.latest:
            return None
        self.epochs.assign(leader_epoch, self.log_end_offset)
        if not self.epochs.changed:
            return None
        self.epochs.changed = False
        return self._epochs_write()

    def forget_empty_epochs(self) -> None:
        """Forget epochs that were led here and have no record: a follower asks by what it has (KIP-279)."""
        self.epochs.truncate_from_end(self.log_end_offset)

    def epoch_not_noted(self, error: OSError) -> None:
        """Take note that what `begin_epoch` returned could not be written. On a full disk, the next flush writes it.

        Raises `SemelError` (KAFKA_STORAGE_ERROR), offline, for any other error.
        """
        self.epochs.changed = True
        if not is_full(error):
            self._go_offline("noting the leader epoch", error)

    def _epochs_write(self) -> EpochsWrite:
        return EpochsWrite(self.local.epochs_file, self.epochs.entries(), self.epochs.version)

    # --- Cutting ------------------------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Let the log begin at `before_offset` (KIP-107). Its segments go with the next retention. Returns the start.

        The caller has checked the high watermark. Raises `SemelError` (OFFSET_OUT_OF_RANGE).
        """
        if before_offset > self.log_end_offset:
            raise error_for(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.tp}: records before offset {before_offset} cannot be deleted: the log ends at "
                f"{self.log_end_offset}",
            )
        if before_offset > self.log_start_offset:
            self.log_start_offset = before_offset
            self.epochs.truncate_from_start(before_offset, self.log_end_offset)
            self.producer_state.forget_below(before_offset)
        return self.log_start_offset

    def begin_at(self, offset: int, epochs: Sequence[tuple[int, int]] = ()) -> None:
        """Let the log start where the remote storage says that it does, which may be before its files begin.

        epochs: (leader epoch, its first offset) of what is in the remote storage, which the files may lack
        Raises `SemelError` (OFFSET_OUT_OF_RANGE) behind the end.
        """
        if offset > self.log_start_offset:
            self.delete_records(offset)
        self.log_start_offset = offset
        self.epochs.put_before(epochs, offset)

    def roll_expired(self, now_ms: int) -> None:
        """Close the active segment where all of it is older than retention.ms says: only closed ones are copied.

        Raises `SemelError` (KAFKA_STORAGE_ERROR), offline.
        """
        active, kept_ms = self.segments.active, self.config.retention_ms
        newest_ms = active.max_timestamp[0]
        is_old = kept_ms != UNLIMITED and newest_ms >= 0 and now_ms - newest_ms > kept_ms
        if active.size == 0 or not is_old or not self.config.is_deleted or self.offline_error is not None:
            return
        try:
            self.roll(now_ms)
        except OSError as error:
            if is_full(error):
                raise self._no_room(error) from error
            self._go_offline("beginning a new segment", error)

    def delete_old_segments(self, now_ms: int, high_watermark: int, *, is_led_here: bool = True) -> int:
        """Apply retention by log start offset, and, for the leader, by size and age, and remove files renamed earlier.
        Returns the segments gone.

        Those stay whose end has no producer snapshot yet: it is all that tells of producers that have written nothing
        since (P7). Raises `SemelError` (KAFKA_STORAGE_ERROR), offline.
        """
        if self.offline_error is not None or self._closed:
            return 0
        self._check_committed(high_watermark)
        local = self.local
        due = segments_to_delete(
            self.segments,
            self.config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=high_watermark,
            recovery_point=local.recovery_point,
            is_led_here=is_led_here,
            tiered_end=self.tiered_end if self.config.leaves_disk else None,
            tiered_start=self.tiered_start,
        )
        try:
            if due and due[-1] is self.segments.active:
                try:
                    self.roll(now_ms)
                except OSError as error:
                    if is_full(error):
                        raise self._no_room(error) from error
                    raise
                local.sync_folder()  # or a crash could leave no segment to tell the end
            while due and len(self.producer_state) and local.end_of(due[-1]) not in local.snapshots.offsets:
                due.pop()
            if due:
                if len(self.producer_state):
                    local.keep_snapshot(local.end_of(due[-1]))
                if not self.config.leaves_disk:
                    self.delete_records(local.end_of(due[-1]))
                local.discard(due, now_ms)
            local.remove_deleted(now_ms)
        except OSError as error:
            self._go_offline("deleting old segments", error)
        except BrokenInvariantError as error:
            raise self.stop(error) from error
        return len(due)

    def replace_segments(self, sources: Sequence[Segment], cleaned: Segment, now_ms: int) -> None:
        """Let a compacted segment, synced under its `.cleaned` names, take the place of its sources (see `cleaner`).

        Raises `SemelError` (KAFKA_STORAGE_ERROR), offline: a restart finishes or undoes what was begun.
        """
        try:
            self.local.replace_segments(sources, cleaned, now_ms)
        except OSError as error:
            self._go_offline("compacting", error)
        except BrokenInvariantError as error:
            raise self.stop(error) from error

    def truncate_to(self, offset: int, *, now_ms: int) -> bool:
        """Remove all from `offset` on, and what the state learnt from it (R3, R6). Returns whether anything went.

        Raises `SemelError` (KAFKA_STORAGE_ERROR), offline.
        """
        if self.offline_error is not None or self._closed:
            self._refuse_offline()
        if offset >= self.log_end_offset:
            return False
        try:
            self.log_end_offset = end = self.local.truncate_to(offset, now_ms)
            self.log_start_offset = min(self.log_start_offset, end)
            self.epochs.truncate_from_end(end)
            self._verifications = None
            self._reload_producers(now_ms)
        except (OSError, CorruptBatchError) as error:
            self._go_offline("truncating", error)
        except BrokenInvariantError as error:
            raise self.stop(error) from error
        self._check_ends()
        return True

    def expect_cut(self, offset: int) -> int:
        """Count what a cut at `offset` will remove as not flushed, and return where that begins.

        What is written again there may be torn by a power cut, so a start must not take it for synced (D1).
        """
        try:
            begins = self.segments.batch_base(offset)
        except (OSError, CorruptBatchError):
            begins = self.log_start_offset  # the cut says what is wrong
        self.local.recovery_point = min(self.local.recovery_point, begins)
        return begins

    def replay_cut(self, offset: int, *, now_ms: int) -> None:
        """Cut the log as it was cut before the crash. What opening found lost from there on, it did not have then (R3).

        Raises `SemelError` (KAFKA_STORAGE_ERROR), offline.
        """
        # The log may have been begun again further on: what came then is in the journal behind this.
        self.truncate_to(max(offset, self.local_start_offset), now_ms=now_ms)
        self.replayed_cut = offset if self.replayed_cut is None else min(self.replayed_cut, offset)
        if self.recovered_damage_from is not None and offset <= self.recovered_damage_from:
            _log.warning(
                "%s: what was lost from offset %d on had been cut before the crash, so nothing is lost: the journal "
                "has what came then",
                self.tp, self.recovered_damage_from,
            )  # fmt: skip
            self.recovered_damage, self.recovered_damage_from = "", None

    def remember_decided(self, high_watermark: int, *, now_ms: int) -> None:
        """Find the transactions whose markers are not below the high watermark (L1): snapshots don't have them.

        For a log that was opened, or cut, and goes beyond it. Raises `SemelError` (KAFKA_STORAGE_ERROR), offline.
        """
        if high_watermark >= self.log_end_offset or not len(self.producer_state):
            return
        replayed = ProducerState(self.tp)
        try:
            self._replay_into(replayed, max(high_watermark, self.segments.first.base_offset), now_ms)
        except (OSError, CorruptBatchError) as error:
            self._go_offline("looking for transactions that are not committed yet", error)
        self.producer_state.take_decided(replayed)

    def _reload_producers(self, now_ms: int) -> None:
        end = self.log_end_offset
        self._replay_into(self.producer_state, end, now_ms)
        check(
            self.producer_state.end_offset <= end, self.tp, "the producers know of nothing behind the end of the log",
            producers_end_offset=self.producer_state.end_offset, log_end_offset=end,
        )  # fmt: skip
        self.producer_state.end_offset = end

    def _replay_into(self, state: ProducerState, at_most: int, now_ms: int) -> None:
        """Restore from the newest snapshot at or below `at_most`, and replay headers from there to the log's end."""
        first = self.segments.first.base_offset
        start = self.local.snapshots.restore(state, at_most=at_most, at_least=first, now_ms=now_ms)
        if start is None:
            start = first
            state.restore((), start)
        if start < self.log_end_offset:
            replay_headers(self.segments, state, start, self.log_end_offset, now_ms)

    # --- To the disk --------------------------------------------------------------------------------------------------

    @property
    def needs_flush(self) -> bool:
        """Whether a snapshot waits for the next flush."""
        return self.local.needs_flush

    def write_again(self) -> None:
        """See `LocalLog.write_again`. Raises `SemelError` (KAFKA_STORAGE_ERROR), offline."""
        try:
            self.local.write_again()
        except (OSError, CorruptBatchError) as error:
            self._go_offline("writing again what may not be on the disk", error)

    def begin_flush(self) -> FlushWork:
        """Return what is to be synced for all appended so far to survive a power cut: `run` it anywhere, then
        `end_flush`.

        Raises `SemelError` (KAFKA_STORAGE_ERROR), offline; on a full disk it stays online, and is flushed later.
        """
        if self.offline_error is not None or self._closed:
            self._refuse_offline()
        try:
            work = self.local.begin_flush(self._epochs_write() if self.epochs.changed else None)
        except OSError as error:
            if is_full(error):
                raise self._no_room(error) from error
            self._go_offline("writing indexes", error)
        self.epochs.changed = False
        return work

    def end_flush(self, work: FlushWork, error: OSError | None = None) -> int:
        """Take note of what `FlushWork.run` did. Returns the recovery point.

        With the error that it raised, the log goes offline: after a failed sync nobody knows what the disk holds.
        Raises `SemelError` (KAFKA_STORAGE_ERROR).
        """
        if error is not None:
            self._go_offline("syncing", error)
        try:
            self.local.end_flush(work)
        except OSError as second:
            self._go_offline("removing old producer snapshots", second)
        if work.no_room is not None:
            self.epochs.changed = True
            raise self._no_room(work.no_room) from work.no_room
        return self.local.recovery_point

    def flush(self) -> int:
        """Make all appended so far survive a power cut; returns the recovery point. Waits for the disk.

        Raises `SemelError` (KAFKA_STORAGE_ERROR), offline.
        """
        work = self.begin_flush()
        try:
            work.run()
        except OSError as error:
            return self.end_flush(work, error)
        return self.end_flush(work)

    def close(self) -> None:
        """Close cleanly: with a snapshot named for the end of the log, so that the next start reads no batches.

        Raises `SemelError` (KAFKA_STORAGE_ERROR); the files are closed even then.
        """
        if self._closed:
            return
        try:
            if self.offline_error is None and not self._is_blank:
                try:
                    self.local.write_closing(self.producer_state)
                except OSError as error:
                    self._go_offline("closing", error)
            if self.offline_error is None:
                self.flush()
        finally:
            self._closed = True
            self.release_files()

    @property
    def _is_blank(self) -> bool:
        """Whether there is nothing that a snapshot or an index could tell: many a partition is never used."""
        return len(self.segments) == 1 and self.segments.active.size == 0 and not len(self.producer_state)

    @property
    def is_unused(self) -> bool:
        """Whether nothing was ever written to it, nor deleted from it: it is as it was made."""
        return self._is_blank and not self.log_end_offset and not self.log_start_offset and self.epochs.latest < 0

    def release_files(self) -> None:
        """Close all files until they are needed again: for a log that is idle, or about to be deleted."""
        self.local.release_files()

    # --- When it fails ------------------------------------------------------------------------------------------------

    def _refuse_offline(self) -> NoReturn:
        if self.offline_error is not None:
            raise error_for(self.offline_error.code, self.offline_error.message) from self.offline_error
        raise error_for(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp}: the log is closed")

    def _check_ends(self) -> None:
        """Check that all who count the end of the log agree. Raises `SemelError` (KAFKA_STORAGE_ERROR), offline."""
        end, producers, segment = self.log_end_offset, self.producer_state.end_offset, self.segments.active.end_offset
        if not producers == end == segment:
            error = BrokenInvariantError(
                self.tp, "the log, its producers and its active segment end at the same offset",
                log_end_offset=end, producers_end_offset=producers, segment_end_offset=segment,
            )  # fmt: skip
            raise self.stop(error) from error

    def _check_committed(self, high_watermark: int) -> None:
        if high_watermark > self.log_end_offset:
            error = BrokenInvariantError(
                self.tp, "nothing is committed that is not in the log",
                high_watermark=high_watermark, log_end_offset=self.log_end_offset,
            )  # fmt: skip
            raise self.stop(error) from error

    def stop(self, broken: BrokenInvariantError) -> SemelError:
        """Go offline, because what must always hold does not. Returns the error to raise from it."""
        if self.offline_error is None:
            _log.critical("%s goes offline: %s", self.tp, broken, stack_info=True)
            self.offline_error = error_for(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.tp} is offline, because what must always hold does not: {broken}. That is a bug in Semel: "
                "please report it. What was acknowledged is kept; restart the node to validate and recover this log",
            )
            self.offline_error.__cause__ = broken
        return self.offline_error

    def _go_offline(self, doing: str, error: BaseException) -> NoReturn:
        """Trust the disk no more with this log: a restart, which validates it, is the way back."""
        if self.offline_error is None:
            _log.error("%s goes offline: %s failed: %s", self.tp, doing, error)
            self.offline_error = error_for(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.tp} is offline, because {doing} in {self.folder} failed ({error}). What was acknowledged is "
                f"kept; {remedy(error)}, and restart the node to recover",
            )
        raise self.offline_error from error

    def _no_room(self, error: OSError) -> SemelError:
        """Nothing is lost by what a full disk did not take: it is in memory, and done again."""
        return error_for(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp} could not be flushed now ({error}): {remedy(error)}"
        )

    def _undo_append(self, error: OSError) -> NoReturn:
        """Cut what a failed write left behind, or take the log offline. Offsets and state are still as before."""
        try:
            self.local.cut_failed_append(self.log_end_offset)
        except (OSError, CorruptBatchError) as second:
            self._go_offline("cutting off a failed write", second)
        raise error_for(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self.tp}: nothing was appended, because writing in {self.folder} failed ({error}): {remedy(error)}; "
            "producers may try again meanwhile",
        ) from error

    def _unreadable(self, error: OSError) -> SemelError:
        return error_for(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp}: the log cannot be read: {error}")

    def _report_broken(self, offset: int, error: CorruptBatchError) -> SemelError:
        """Return the error for a reader that met broken batches, and tell the operator once about each place."""
        message = (
            f"the records of {self.tp} at offset {offset} can't be read: {error.message}. Stop the node and restore "
            f"{self.folder} from a backup; or, to continue without them, let readers begin behind them"
        )
        if error.message not in self._broken and len(self._broken) < _BROKEN_PLACES_MAX:
            self._broken.add(error.message)
            _log.error("%s", message)
        return error_for(ErrorCode.CORRUPT_MESSAGE, message)


def _appended(headers: list[BatchHeader], written: list[memoryview]) -> AppendResult:
    """Say that batches are in the log that had their offsets."""
    first, last = headers[0].base_offset, headers[-1].last_offset
    return AppendResult(first, last, NO_TIMESTAMP, False, largest_timestamp(headers), tuple(written))
