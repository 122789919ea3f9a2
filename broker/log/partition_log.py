"""One partition's log: appends and reads. No waiting, no threads, no clock: time is handed in.

Everything is called on one thread, except `FlushWork.run` and `Compaction.run`, which touch only what they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeVar

from semel.broker.log.append_validation import (
    CheckedBatch,
    check_batch,
    check_client_batch,
    is_plain,
    open_batch,
    read_plain,
)
from semel.broker.log.config import INT32_MAX, AppendOrigin, TimestampType
from semel.broker.log.disk_errors import remedy
from semel.broker.log.log_types import (
    NOTHING_OPENED,
    AbortedTransaction,
    AppendResult,
    EpochEndOffset,
    LogRange,
    Opened,
    TimestampOffset,
)
from semel.broker.log.producer_state import NO_COORDINATOR_EPOCH, MarkerVerdict
from semel.broker.log.recovery import note_completed
from semel.broker.log.replay import apply_batch
from semel.broker.log.stored_log import StoredLog
from semel.broker.log.verification import VerificationGuard, Verifications
from semel.protocol.api.topics import MAX_TIMESTAMP
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.batch_header import BatchHeader, set_append_time, set_base_offset, validate_batches
from semel.protocol.control_records import ControlType, encode_control_batch
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import NO_TIMESTAMP, ProducerIdAndEpoch
from semel.runtime.storage import Buffer

T = TypeVar("T")


def writable(buffer: Buffer) -> bytearray | memoryview:
    """Return a buffer that can be patched: the same, or a copy of one that can not."""
    if isinstance(buffer, bytearray) or (isinstance(buffer, memoryview) and not buffer.readonly):
        return buffer
    return bytearray(buffer)


class PartitionLog(StoredLog):
    """The log of one partition, in its folder. `open` makes one; `StoredLog` has what concerns its files."""

    __slots__ = ()

    # --- Appending -------------------------------------------------------------------------------------------------

    def append(
        self,
        buffer: Buffer,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        leader_epoch: int,
        now_ms: int,
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
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        self._write(buffer, header.size_bytes, base_offset, last_offset, max_timestamp_ms, leader_epoch, now_ms)
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
        state.end_offset = self.log_end_offset = last_offset + 1
        return AppendResult(base_offset, last_offset, append_time_ms, False, max_timestamp_ms, (memoryview(buffer),))

    def _check_producer(
        self, header: BatchHeader, client: bool, verified: bool | VerificationGuard, now_ms: int
    ) -> AppendResult | None:
        producer_id, epoch, first_sequence = header.producer_id, header.producer_epoch, header.base_sequence
        if client:
            known = self.producer_state.find_duplicate(producer_id, epoch, first_sequence, header.last_sequence)
            if known is not None:
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
            check_sequence=client,
            verified=confirmed,
        )
        if client and self.producer_state.entry(producer_id) is None:
            waits = self._verifications
            # A producer that is known here is held to its next sequence anyway; one that is not may start anywhere.
            if waits is not None and header.is_transactional:
                waits.check_sequence(self.tp, producer_id, epoch, first_sequence)
            if self._producer_ids is not None:
                self._producer_ids.admit(self.tp, len(self.producer_state), now_ms)
        return None

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
        self._write(batch, len(batch), offset, offset, now_ms, leader_epoch, now_ms)
        completed = self.producer_state.apply_marker(producer, coordinator_epoch, committed, offset, now_ms, now_ms)
        self.producer_state.end_offset = self.log_end_offset = offset + 1
        if completed is not None:
            try:
                note_completed(self._segments.active, completed)
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
    ) -> None:
        """Patch the batch and write it to the active segment, or raise with the file as it was."""
        config = self.config
        if size > config.segment_bytes:
            raise self._too_large(size)
        set_base_offset(buffer, 0, base_offset, leader_epoch)
        try:
            segment = self._segments.active
            if segment.should_roll(size, last_offset, max_timestamp_ms, now_ms, config):
                segment = self.roll(now_ms, base_offset)
            segment.append((buffer,), size, last_offset, max_timestamp_ms, config.index_interval_bytes)
        except OSError as error:
            self._undo_append(error)
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)

    def _too_large(self, size: int) -> SemelError:
        return error_for(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{self.tp}: {size} bytes to append do not fit in a segment of segment.bytes={self.config.segment_bytes}",
        )

    def replay_append(self, base_offset: int | None, buffer: Buffer, *, now_ms: int) -> AppendResult:
        """Append batches that have their offsets and epochs: from a leader, or from the journal after a crash (P5).

        What the log has already is skipped, so repeating is harmless; offsets may leave gaps, as compaction does.
        `duplicate` says that nothing was new. `base_offset`, where known, must be the first batch's.
        Raises `SemelError`: CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE for a batch that the log has a part of,
        KAFKA_STORAGE_ERROR.
        """
        if self.offline_error is not None or self._closed:
            self._refuse_offline()
        headers = validate_batches(buffer, max_batch_bytes=INT32_MAX, strict_count=False)
        if base_offset is not None and headers[0].base_offset != base_offset:
            raise CorruptBatchError(
                f"{self.tp}: batches said to begin at offset {base_offset} begin at {headers[0].base_offset}"
            )
        new = [header for header in headers if header.last_offset >= self.log_end_offset]
        if not new:
            last = headers[-1]
            return AppendResult(headers[0].base_offset, last.last_offset, -1, True, last.max_timestamp_ms, ())
        expected = self.log_end_offset
        for header in new:
            if header.base_offset < expected:
                raise error_for(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{self.tp}: a batch to be replayed has offsets {header.base_offset} to {header.last_offset}, but "
                    f"offset {expected} is next",
                )
            expected = header.next_offset
        view = memoryview(buffer)[new[0].position : new[-1].position + new[-1].size_bytes]
        written = []
        for run in self._runs(new):
            written.append(view[run[0].position - new[0].position :][: sum(header.size_bytes for header in run)])
            self._replay_run(run, written[-1], now_ms)
        return AppendResult(
            new[0].base_offset, new[-1].last_offset, NO_TIMESTAMP, False,
            max(header.max_timestamp_ms for header in new), tuple(written),
        )  # fmt: skip

    def _runs(self, headers: Sequence[BatchHeader]) -> list[list[BatchHeader]]:
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

    def _replay_run(self, run: Sequence[BatchHeader], view: memoryview, now_ms: int) -> None:
        newest = max(header.max_timestamp_ms for header in run)
        last = run[-1]
        try:
            segment = self._segments.active
            if segment.should_roll(view.nbytes, last.last_offset, newest, now_ms, self.config):
                # A gap larger than a segment can span begins the new one at the batch itself.
                near = last.last_offset - self.log_end_offset <= INT32_MAX
                segment = self.roll(now_ms, self.log_end_offset if near else run[0].base_offset)
            segment.append_run(view, run, self.config.index_interval_bytes)
        except OSError as error:
            self._undo_append(error)
        first_position = run[0].position
        try:
            for header in run:
                batch = view[header.position - first_position :][: header.size_bytes]
                self.epochs.assign(header.leader_epoch, header.base_offset)
                completed = apply_batch(self.producer_state, header, batch, now_ms)
                if completed is not None:
                    note_completed(segment, completed)
        except OSError as error:
            self._go_offline("writing the transaction index", error)
        self.log_end_offset = last.next_offset

    def _undo_append(self, error: OSError) -> NoReturn:
        """Cut what a failed write left behind, or take the log offline. Offsets and state are still as before."""
        segment = self._segments.active
        try:
            end = segment.size
            located = segment.locate(self.log_end_offset) if end else None
            keep = end if located is None else located[0]
            segment.cut(keep)
            segment.offsets.truncate_positions(keep)
        except (OSError, CorruptBatchError) as second:
            self._go_offline("cutting off a failed write", second)
        raise error_for(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self.tp}: nothing was appended, because writing in {self._folder} failed ({error}): {remedy(error)}; "
            "producers may try again meanwhile",
        ) from error

    # --- Transactions and producers --------------------------------------------------------------------------------

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

    def cancel_verification(self, producer: ProducerIdAndEpoch) -> None:
        """Take up that the producer's batch will not come again: nothing waits for it any more."""
        if self._verifications is not None:
            self._verifications.finish(producer.producer_id)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return what holds the last stable offset below `high_watermark`, or None (L1)."""
        return self.producer_state.first_unstable_offset(high_watermark)

    def aborted_transactions(self, first_offset: int, upto_offset: int) -> list[AbortedTransaction]:
        """Return every aborted transaction that overlaps [first_offset, upto_offset) (L3)."""
        try:
            return self._segments.aborted_transactions(first_offset, upto_offset)
        except CorruptBatchError as error:
            # Without it readers would see aborted records (L3); recovery writes it again.
            self._go_offline("reading the transaction index", error)
        except OSError as error:
            raise self._unreadable(error) from error

    def expire_producers(self, now_ms: int) -> Iterator[int]:
        """Forget idle producers (P8), a few milliseconds at a time (S3). Yields how many."""
        if self._verifications is not None:
            self._verifications.expire(now_ms, self.producer_id_expiration_ms)
            if not self._verifications:
                self._verifications = None
        yield from self.producer_state.expire_in_parts(now_ms, self.producer_id_expiration_ms)

    # --- Reading ---------------------------------------------------------------------------------------------------

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
        end = self.log_end_offset
        try:
            return self._segments.read(offset, max_bytes, min(upto_offset, end), end, min_one_batch=min_one_batch)
        except CorruptBatchError as error:
            return self._again(
                offset, error,
                lambda: self._segments.read(offset, max_bytes, min(upto_offset, end), end, min_one_batch=min_one_batch),
            )  # fmt: skip
        except OSError as error:
            raise self._unreadable(error) from error

    def offset_for_timestamp(self, timestamp_ms: int, opened: Opened = NOTHING_OPENED) -> TimestampOffset | None:
        """Return the first record with this timestamp or a later one; for MAX_TIMESTAMP, the first with the largest.

        None where there is none. Raises `SemelError` (KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE), and `LargeBatch` where a
        batch is to be opened elsewhere first (S3): look up again then, with what it had to say in `opened`.
        """
        try:
            return self._find_timestamp(timestamp_ms, opened)
        except CorruptBatchError as error:
            return self._again(self.log_start_offset, error, lambda: self._find_timestamp(timestamp_ms, opened))
        except OSError as error:
            raise self._unreadable(error) from error

    def _find_timestamp(self, timestamp_ms: int, opened: Opened) -> TimestampOffset | None:
        if timestamp_ms == MAX_TIMESTAMP:
            return self._segments.offset_of_max_timestamp(self.log_start_offset, opened)
        return self._segments.offset_for_timestamp(timestamp_ms, self.log_start_offset, opened)

    def _again(self, offset: int, error: CorruptBatchError, look_up: Callable[[], T]) -> T:
        """Look up once more, after the indexes from `offset` on were built again, or raise what can't be fixed."""
        try:
            self.rebuild_misleading_indexes(offset, error)
            return look_up()
        except CorruptBatchError as second:
            raise self.report_broken(offset, second) from second
        except OSError as second:
            raise self._unreadable(second) from second

    def _unreadable(self, error: OSError) -> SemelError:
        return error_for(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp}: the log cannot be read: {error}")

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset | None:
        """Return where a leader epoch ended in this log (KIP-101), or None if it is unknown."""
        return self.epochs.end_offset_for(leader_epoch, self.log_end_offset)
