# cython: annotation_typing=False, boundscheck=True, wraparound=True
"""What one partition knows of its producers: the machine behind P1 to P10 and L1. No IO, clock or randomness.

`check_*` judges something that is about to be appended and changes nothing; `apply_*` takes in what the log now holds,
live, replicated and on recovery alike, so the state is a function of the log (P7). Sources: KIP-98, 360, 664, 890.
Compiled with the C types of producer_state.pxd, because a start after a crash may find a million batches.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.batch_header import BatchHeader
from semel.protocol.errors import ErrorCode, error_for
from semel.protocol.ids import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, ProducerIdAndEpoch, TopicPartition
from semel.protocol.int_bounds import INT32_MAX

_EXPIRED_AT_ONCE: Final = 2_000
REMEMBERED_BATCHES: Final = 5
"""How many batches of a producer are remembered for duplicates (P1): a client has at most five requests in flight."""

MAX_SEQUENCE: Final = INT32_MAX
NO_TRANSACTION: Final = -1
NO_COORDINATOR_EPOCH: Final = -1


class RememberedBatch(NamedTuple):
    """Where one of a producer's last batches went, so that its repetition can be answered (P1)."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int
    """The batch's largest timestamp: the append time, where the broker stamps."""


PackedEntry: TypeAlias = tuple[int, ...]
"""What is known of a producer id: when the broker last heard of it, the id, its epoch, the coordinator's epoch, the
last timestamp, the open transaction's first offset, and the fields of each remembered batch, the oldest first.

Numbers in one tuple, because hundreds of thousands of these take the least memory so, the garbage collector does not
look at them (S3), and one that changes is another: who has the tuples has the state as it was.
"""
FIELDS: Final = len(RememberedBatch._fields)
HEAD: Final = 6
"""What comes before the fields of the batches."""
_PACKED_MAX: Final = HEAD + FIELDS * REMEMBERED_BATCHES
_ACTIVE_MS, _EPOCH, _COORDINATOR_EPOCH, _FIRST_OFFSET = 0, 2, 3, 5
_LAST_SEQUENCE: Final = RememberedBatch._fields.index("last_sequence") - FIELDS


class CompletedTransaction(NamedTuple):
    """A transaction that its marker, at `last_offset`, has just ended on this partition."""

    producer_id: int
    first_offset: int
    last_offset: int
    committed: bool
    last_stable_offset: int
    """The first offset still undecided after this marker (the transaction index keeps it)."""


class MarkerVerdict(Enum):
    """What is to be done with a marker that was not refused."""

    APPEND = "append"
    ALREADY_APPLIED = "already applied"
    """Nothing is open and this epoch is in: succeed, append nothing (P9, KAFKA-19999)."""


class ProducerEntry:
    """One producer id. `active_ms` is when the broker last heard of it; everything else is a function of the log."""

    __slots__ = (
        "active_ms",
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp_ms",
        "producer_id",
        "transaction_first_offset",
    )

    def __init__(
        self,
        producer_id: int,
        epoch: int = NO_PRODUCER_EPOCH,
        coordinator_epoch: int = NO_COORDINATOR_EPOCH,
        last_timestamp_ms: int = NO_TIMESTAMP,
        transaction_first_offset: int = NO_TRANSACTION,
        batches: Iterable[RememberedBatch] = (),
        active_ms: int = 0,
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp_ms = last_timestamp_ms
        self.transaction_first_offset = transaction_first_offset
        self.batches: tuple[RememberedBatch, ...] = tuple(batches)
        self.active_ms = active_ms

    @classmethod
    def unpacked(cls, packed: PackedEntry) -> ProducerEntry:
        active_ms, producer_id, epoch, coordinator_epoch, last_timestamp_ms, first_offset, *fields = packed
        batches = [RememberedBatch(*fields[n : n + FIELDS]) for n in range(0, len(fields), FIELDS)]
        return cls(producer_id, epoch, coordinator_epoch, last_timestamp_ms, first_offset, batches, active_ms)

    def packed(self) -> PackedEntry:
        return (
            self.active_ms,
            self.producer_id,
            self.epoch,
            self.coordinator_epoch,
            self.last_timestamp_ms,
            self.transaction_first_offset,
            *(field for batch in self.batches for field in batch),
        )

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        """The offset of the last record that is remembered, or -1."""
        return self.batches[-1].last_offset if self.batches else -1

    def _key(self) -> tuple[object, ...]:
        return (
            self.producer_id,
            self.epoch,
            self.coordinator_epoch,
            self.last_timestamp_ms,
            self.transaction_first_offset,
            self.batches,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerEntry) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"ProducerEntry{self._key()}"


def next_sequence(last_sequence: int) -> int:
    """Return the sequence that follows: 0 after 2^31-1 (P2)."""
    return 0 if last_sequence == MAX_SEQUENCE else last_sequence + 1


class ProducerState:
    """All producers of one partition, its open transactions, and those decided but not yet below the high watermark."""

    __slots__ = ("_decided", "_entries", "_open", "_tp", "coordinator_epoch_max", "end_offset")

    def __init__(self, tp: TopicPartition, end_offset: int = 0) -> None:
        self._tp = tp
        self._entries: dict[int, PackedEntry] = {}
        # First offset -> producer id. Transactions open at growing offsets, so insertion order is offset order.
        self._open: OrderedDict[int, int] | None = None
        # (marker offset, first offset), both growing from left to right: see `_remember_decided`.
        self._decided: deque[tuple[int, int]] | None = None
        self.end_offset = end_offset
        """The offset up to which (exclusive) the log is reflected here."""
        self.coordinator_epoch_max = NO_COORDINATOR_EPOCH
        """No entry has a higher one: a bound, so that nobody has to go through all of them."""

    # --- Judging ------------------------------------------------------------------------------------------------------

    def follows(self, producer_id: int, epoch: int, first_sequence: int, transactional: bool) -> bool:
        """Say, at the price that every append can pay, that a client's batch is the next one and nothing is wrong.

        False says nothing: then `find_duplicate` and `check_batch` judge.
        """
        entry = self._entries.get(producer_id)
        if entry is None or entry[_EPOCH] != epoch or len(entry) == HEAD:
            return False
        return first_sequence == entry[_LAST_SEQUENCE] + 1 and transactional is (entry[_FIRST_OFFSET] >= 0)

    def find_duplicate(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int
    ) -> RememberedBatch | None:
        """Return the remembered batch that this one repeats, if any (P1)."""
        entry = self._entries.get(producer_id)
        if entry is None or entry[_EPOCH] != epoch:
            return None
        for n in range(HEAD, len(entry), FIELDS):
            if entry[n] == first_sequence and entry[n + 1] == last_sequence:
                return RememberedBatch(*entry[n : n + FIELDS])
        return None

    def check_repetition(self, producer_id: int, repeated: RememberedBatch) -> None:
        """Judge a transactional batch that repeats a remembered one: both must be of the transaction that is open (P1).

        A producer ends a transaction once all of its batches are answered, so what repeats one of an ended transaction
        is a late copy that nobody waits for, or another batch under a number that was used: librdkafka gives a number
        again after an abort that found its batch unanswered. "Is in already" would lose that batch in silence.
        Raises `SemelError`: INVALID_TXN_STATE, after which producers abort and go on.
        """
        entry = self._entries[producer_id]
        if not 0 <= entry[_FIRST_OFFSET] <= repeated.first_offset:
            raise error_for(
                ErrorCode.INVALID_TXN_STATE,
                f"{self._tp}: producer {producer_id} (epoch {entry[_EPOCH]}) sent sequence {repeated.first_sequence} "
                f"again, which is at offset {repeated.first_offset} in a transaction that has ended: nothing was "
                "appended; abort this transaction and repeat it",
            )

    def check_batch(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        transactional: bool,
        *,
        check_sequence: bool,
        verified: bool,
    ) -> None:
        """Judge a data batch of a client or coordinator that is no duplicate.

        Raises `SemelError`: INVALID_PRODUCER_EPOCH (P4), OUT_OF_ORDER_SEQUENCE_NUMBER (P2, P3), INVALID_TXN_STATE
        (P6, or a first transactional batch that nobody verified with the coordinator, T8).
        """
        entry = self.entry(producer_id)
        if entry is None:
            if transactional and not verified:
                raise self._unverified(producer_id, epoch)
            return
        if epoch < entry.epoch:
            raise error_for(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"{self._tp}: producer {producer_id} appends with epoch {epoch}, but epoch {entry.epoch} is in use: "
                "a newer instance, or an ended transaction, has fenced this one",
            )
        if check_sequence:
            if epoch != entry.epoch:
                expected = 0
            elif entry.batches:
                expected = next_sequence(entry.batches[-1][1])
            else:
                expected = 0
            if first_sequence != expected and entry.epoch != NO_PRODUCER_EPOCH:
                raise error_for(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"{self._tp}: producer {producer_id} (epoch {epoch}) sent sequence {first_sequence}, "
                    f"where {expected} is next",
                )
        if entry.transaction_first_offset >= 0:
            if not transactional:
                raise error_for(
                    ErrorCode.INVALID_TXN_STATE,
                    f"{self._tp}: producer {producer_id} sent a batch outside its transaction, which is open here "
                    f"since offset {entry.transaction_first_offset}",
                )
            if epoch != entry.epoch:
                # Its marker is still to come, and would end this batch's transaction with it (T6).
                raise error_for(
                    ErrorCode.INVALID_TXN_STATE,
                    f"{self._tp}: producer {producer_id} sent epoch {epoch} while its transaction of epoch "
                    f"{entry.epoch}, from offset {entry.transaction_first_offset}, has no marker yet",
                )
        elif transactional and not verified:
            raise self._unverified(producer_id, epoch)

    def check_marker(
        self,
        producer: ProducerIdAndEpoch,
        coordinator_epoch: int,
        version: TransactionVersion,
        *,
        forged_epoch: int = NO_COORDINATOR_EPOCH,
    ) -> MarkerVerdict:
        """Judge a transaction marker (P9, P10).

        forged_epoch: a coordinator epoch recorded here that no coordinator ever had, by the metadata's word: it fences
        nobody, and where nothing is open, the producer epoch that came with it does not count either.
        Raises `SemelError`: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        entry = self.entry(producer.producer_id)
        if entry is None:
            return MarkerVerdict.APPEND
        open_here = entry.transaction_first_offset >= 0
        is_forged = forged_epoch != NO_COORDINATOR_EPOCH and entry.coordinator_epoch == forged_epoch
        if is_forged and not open_here:
            return MarkerVerdict.APPEND  # also where it repeats the forged one: its own epoch is to be in the log
        # With an epoch of its own for each transaction, the marker's epoch is above its data's (KIP-890): an equal
        # one belongs to an earlier transaction and must not end this one.
        stale = version >= TransactionVersion.V2 and open_here and producer.producer_epoch == entry.epoch
        if producer.producer_epoch < entry.epoch or stale:
            raise error_for(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"{self._tp}: a marker for producer {producer.producer_id} has epoch {producer.producer_epoch}, but "
                f"the partition is at epoch {entry.epoch}",
            )
        if coordinator_epoch < entry.coordinator_epoch and not is_forged:
            raise error_for(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"{self._tp}: a marker for producer {producer.producer_id} comes from coordinator epoch "
                f"{coordinator_epoch}, but epoch {entry.coordinator_epoch} has taken over",
            )
        if (
            not open_here
            and producer.producer_epoch == entry.epoch
            and (is_forged or coordinator_epoch <= entry.coordinator_epoch)
        ):
            # A later coordinator's is appended though it repeats one: its epoch is to be in the log, or a marker of the
            # former one that is still on its way would end the producer's next transaction.
            return MarkerVerdict.ALREADY_APPLIED
        return MarkerVerdict.APPEND

    def _unverified(self, producer_id: int, epoch: int) -> Exception:
        return error_for(
            ErrorCode.INVALID_TXN_STATE,
            f"{self._tp}: producer {producer_id} (epoch {epoch}) has no transaction open here, and the transaction "
            "coordinator has not confirmed that this partition is in one (T8)",
        )

    # --- Taking in what the log holds ---------------------------------------------------------------------------------

    def apply_batch(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        last_sequence: int,
        first_offset: int,
        last_offset: int,
        timestamp_ms: int,
        transactional: bool,
        now_ms: int,
    ) -> None:
        """Take in a data batch of a producer id. `end_offset` is moved by the caller, for batches without one too."""
        _apply_batch(
            self, producer_id, epoch, first_sequence, last_sequence, first_offset, last_offset, timestamp_ms,
            transactional, now_ms,
        )  # fmt: skip

    def apply_run(self, headers: list[BatchHeader], begin: int, now_ms: int) -> int:
        """Take in the data batches from number `begin` on, as `apply_batch` does each of them, and return the number of
        the first control batch. `end_offset` is moved by the caller.
        """
        return _apply_run(self, headers, begin, now_ms)

    def apply_marker(
        self,
        producer: ProducerIdAndEpoch,
        coordinator_epoch: int,
        committed: bool,
        offset: int,
        timestamp_ms: int,
        now_ms: int,
    ) -> CompletedTransaction | None:
        """Take in the marker at `offset`. Returns the transaction that it ended, if one was open here."""
        entry = self.entry(producer.producer_id) or ProducerEntry(producer.producer_id, producer.producer_epoch)
        if entry.epoch != producer.producer_epoch:
            entry.epoch = producer.producer_epoch
            entry.batches = ()  # P10: the next batch has sequence 0
        if coordinator_epoch != NO_COORDINATOR_EPOCH:
            entry.coordinator_epoch = coordinator_epoch  # lower than before only where that one was forged
            self.coordinator_epoch_max = max(self.coordinator_epoch_max, coordinator_epoch)
        entry.last_timestamp_ms = timestamp_ms
        entry.active_ms = now_ms
        first_offset = entry.transaction_first_offset
        entry.transaction_first_offset = NO_TRANSACTION
        self._entries[producer.producer_id] = entry.packed()
        if first_offset < 0:
            return None
        assert self._open is not None
        del self._open[first_offset]
        self._remember_decided(first_offset, offset)
        stable = next(iter(self._open)) if self._open else offset + 1
        return CompletedTransaction(producer.producer_id, first_offset, offset, committed, stable)

    def _remember_decided(self, first_offset: int, marker_offset: int) -> None:
        """Keep the transaction until its marker is below the high watermark (L1), in a queue that is its own minimum.

        One that began later and was decided earlier goes: it leaves before this one and holds back less.
        """
        if self._decided is None:
            self._decided = deque()
        while self._decided and self._decided[-1][1] > first_offset:
            self._decided.pop()
        self._decided.append((marker_offset, first_offset))

    def take_decided(self, replayed: ProducerState) -> None:
        """Take over what another state knows of decided transactions: snapshots don't have them."""
        self._decided = replayed._decided

    def forget_below(self, log_start_offset: int) -> None:
        """Forget the decided transactions whose markers were deleted with the start of the log. Producers stay (P3)."""
        while self._decided and self._decided[0][0] < log_start_offset:
            self._decided.popleft()
        self.end_offset = max(self.end_offset, log_start_offset)

    # --- Asking -------------------------------------------------------------------------------------------------------

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of the earliest transaction that is open or whose marker is not yet below
        `high_watermark`, or None (L1). `high_watermark` never goes back between calls, except over a truncation."""
        decided = self._decided
        while decided and decided[0][0] < high_watermark:
            decided.popleft()
        first_open = next(iter(self._open)) if self._open else None
        if not decided:
            return first_open
        return decided[0][1] if first_open is None else min(first_open, decided[0][1])

    def has_ongoing_transaction(self, producer: ProducerIdAndEpoch) -> bool:
        """Say whether this producer, at this epoch, has a transaction open here: then nothing need be verified (T8)."""
        entry = self.entry(producer.producer_id)
        return entry is not None and entry.transaction_first_offset >= 0 and entry.epoch == producer.producer_epoch

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """Return what is known of a producer id. To change it changes nothing here."""
        packed = self._entries.get(producer_id)
        return None if packed is None else ProducerEntry.unpacked(packed)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return map(ProducerEntry.unpacked, self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def open_transactions(self) -> dict[int, int]:
        """First offset -> producer id of each open transaction, in order of offset."""
        return dict(self._open or ())

    def packed(self) -> Sequence[PackedEntry]:
        """Return all entries as they are now, and stay: for other threads. A hundred thousand take a millisecond."""
        return list(self._entries.values())

    # --- Expiry and restoring -----------------------------------------------------------------------------------------

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers of which nothing was heard for `expiration_ms`, never one with an open transaction (P8).

        The broker's clock counts, not the records' timestamps: old data written today is not idle.
        """
        return sum(self.expire_in_parts(now_ms, expiration_ms))

    def expire_in_parts(self, now_ms: int, expiration_ms: int) -> Iterator[int]:
        """Do what `expire` does, a few milliseconds at a time (S3); yields how many went in each part.

        The state may change between two parts.
        """
        entries = self._entries
        ids = list(entries)
        for first in range(0, len(ids), _EXPIRED_AT_ONCE):
            before = len(entries)
            for producer_id in ids[first : first + _EXPIRED_AT_ONCE]:
                entry = entries.get(producer_id)
                if entry is not None and entry[_FIRST_OFFSET] < 0 and now_ms - entry[_ACTIVE_MS] >= expiration_ms:
                    del entries[producer_id]
            yield before - len(entries)

    def clock_jumped(self, ahead_ms: int, now_ms: int) -> Iterator[None]:
        """Keep the time for which producers have been idle, over a jump of the clock that times were taken from (P8).

        Of those that were active since the jump, or before one back, that time starts again. A few milliseconds at a
        time (S3): the state may change between two parts.
        """
        entries = self._entries
        ids = list(entries)
        for first in range(0, len(ids), _EXPIRED_AT_ONCE):
            for producer_id in ids[first : first + _EXPIRED_AT_ONCE]:
                entry = entries.get(producer_id)
                if entry is not None:
                    active_ms = min(entry[_ACTIVE_MS] + max(ahead_ms, 0), now_ms)
                    entries[producer_id] = (active_ms, *entry[_ACTIVE_MS + 1 :])
            yield

    def restore(self, entries: Iterable[ProducerEntry], end_offset: int) -> None:
        """Start again from what was known at `end_offset`."""
        self.restore_packed((entry.packed() for entry in entries), end_offset)

    def restore_packed(self, entries: Iterable[PackedEntry], end_offset: int) -> None:
        """Do what `restore` does, with entries as they are kept here."""
        self._entries = {entry[1]: entry for entry in entries}
        self.coordinator_epoch_max = max(
            (entry[_COORDINATOR_EPOCH] for entry in self._entries.values()), default=NO_COORDINATOR_EPOCH
        )
        opened = sorted(
            (entry[_FIRST_OFFSET], producer_id)
            for producer_id, entry in self._entries.items()
            if entry[_FIRST_OFFSET] >= 0
        )
        self._open = OrderedDict(opened) if opened else None
        self._decided = None
        self.end_offset = end_offset

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ProducerState)
            and self.end_offset == other.end_offset
            and {one.producer_id: one for one in self} == {one.producer_id: one for one in other}
            and self.open_transactions == other.open_transactions
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"ProducerState({self._tp}, end_offset={self.end_offset}, {list(self)})"


def _apply_batch(
    state: ProducerState,
    producer_id: int,
    epoch: int,
    first_sequence: int,
    last_sequence: int,
    first_offset: int,
    last_offset: int,
    timestamp_ms: int,
    transactional: bool,
    now_ms: int,
) -> None:
    entries = state._entries
    entry = entries.get(producer_id)
    fields: tuple[int, ...] = ()
    coordinator_epoch, open_offset = NO_COORDINATOR_EPOCH, NO_TRANSACTION
    if entry is not None:
        coordinator_epoch, open_offset = entry[_COORDINATOR_EPOCH], entry[_FIRST_OFFSET]
        if epoch == entry[_EPOCH] and len(entry) > HEAD:
            last = entry[_LAST_SEQUENCE]
            # A batch that does not follow was let in because the id had expired meanwhile (P3, P8), and
            # coordinators' batches have no sequence: what came before can no longer be repeated.
            if first_sequence == (0 if last == MAX_SEQUENCE else last + 1) and first_sequence >= 0:
                fields = entry[HEAD:] if len(entry) < _PACKED_MAX else entry[HEAD + FIELDS :]
    if transactional and open_offset < 0:
        open_offset = first_offset
        if state._open is None:
            state._open = OrderedDict()
        state._open[first_offset] = producer_id
    entries[producer_id] = (
        now_ms, producer_id, epoch, coordinator_epoch, timestamp_ms, open_offset, *fields,
        first_sequence, last_sequence, first_offset, last_offset, timestamp_ms,
    )  # fmt: skip


def _apply_run(state: ProducerState, headers: list[BatchHeader], begin: int, now_ms: int) -> int:
    number = begin
    count = len(headers)
    while number < count:
        header = headers[number]
        if header.is_control:
            break
        if header.producer_id >= 0:
            _apply_batch(
                state,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp_ms,
                header.is_transactional and header.record_count > 0,
                now_ms,
            )
        number += 1
    return number
