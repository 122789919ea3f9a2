"""The producer machine against a model that keeps nothing but the history and reads the rules off it (P1 to P10,
L1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from semel.broker.log.producer_snapshot import decode_snapshot, encode_packed
from semel.broker.log.producer_state import MAX_SEQUENCE, MarkerVerdict, ProducerEntry, ProducerState
from semel.broker.log.producers_before import producers_before
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition

TP = TopicPartition("t", 0)
EXPIRATION_MS = 1000
SEQUENCES = MAX_SEQUENCE + 1


@dataclass(frozen=True)
class Batch:
    producer_id: int
    epoch: int
    first: int
    count: int
    offset: int
    transactional: bool
    at_ms: int

    @property
    def last(self) -> int:
        return self.first if self.first < 0 else (self.first + self.count - 1) % SEQUENCES

    @property
    def last_offset(self) -> int:
        return self.offset + self.count - 1


@dataclass(frozen=True)
class Marker:
    producer_id: int
    epoch: int
    coordinator_epoch: int
    committed: bool
    offset: int
    at_ms: int


class Model:
    """The whole history. Every question is answered by reading it from the beginning."""

    def __init__(self) -> None:
        self.log: list[Batch | Marker] = []
        self.forgotten: dict[int, int] = {}
        """Producer id -> how much of the log had been written when it expired last."""
        self.end = 0

    def of(self, producer_id: int) -> list[Batch | Marker]:
        known = self.log[self.forgotten.get(producer_id, 0) :]
        return [event for event in known if event.producer_id == producer_id]

    def epoch(self, producer_id: int) -> int | None:
        events = self.of(producer_id)
        return events[-1].epoch if events else None

    def current(self, producer_id: int) -> list[Batch]:
        """The batches since the epoch last changed."""
        found: list[Batch] = []
        epoch: int | None = None
        for event in self.of(producer_id):
            if event.epoch != epoch:
                found, epoch = [], event.epoch
            if isinstance(event, Batch):
                if event.first < 0:
                    found = []
                found.append(event)
        return found

    def transactions(self) -> list[tuple[int, int, int | None]]:
        """(producer id, first offset, marker's offset or None) of each transaction."""
        found: list[tuple[int, int, int | None]] = []
        for event in self.log:
            number = next((n for n, one in enumerate(found) if one[0] == event.producer_id and one[2] is None), None)
            if isinstance(event, Marker):
                if number is not None:
                    found[number] = (*found[number][:2], event.offset)
            elif event.transactional and number is None:
                found.append((event.producer_id, event.offset, None))
        return found

    def open_since(self, producer_id: int) -> int | None:
        return next((first for one, first, end in self.transactions() if one == producer_id and end is None), None)

    def judge(self, new: Batch, *, client: bool, verified: bool) -> ErrorCode | Batch | None:
        """None: append it. A batch: it repeats this one."""
        epoch, batches = self.epoch(new.producer_id), self.current(new.producer_id)
        opened = self.open_since(new.producer_id)
        if client and epoch == new.epoch:
            for known in batches[-5:]:
                if (known.first, known.last) == (new.first, new.last):
                    ended = opened is None or known.offset < opened
                    return ErrorCode.INVALID_TXN_STATE if new.transactional and ended else known
        if epoch is not None:
            if new.epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            if client:
                follows = 0 if new.epoch > epoch or not batches else (batches[-1].last + 1) % SEQUENCES
                if new.first != follows:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if opened is not None and (not new.transactional or new.epoch != epoch):
            return ErrorCode.INVALID_TXN_STATE
        if new.transactional and opened is None and not verified:
            return ErrorCode.INVALID_TXN_STATE
        return None

    def judge_marker(self, new: Marker, version: TransactionVersion) -> ErrorCode | MarkerVerdict:
        epoch = self.epoch(new.producer_id)
        if epoch is None:
            return MarkerVerdict.APPEND
        opened = self.open_since(new.producer_id) is not None
        if new.epoch < epoch or (version is TransactionVersion.V2 and opened and new.epoch == epoch):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        coordinators = [one.coordinator_epoch for one in self.of(new.producer_id) if isinstance(one, Marker)]
        if coordinators and new.coordinator_epoch < max(coordinators):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if new.epoch == epoch and not opened and new.coordinator_epoch in coordinators:
            return MarkerVerdict.ALREADY_APPLIED  # one of a later coordinator is written: its epoch fences from then on
        return MarkerVerdict.APPEND

    def first_unstable(self, high_watermark: int) -> int | None:
        return min(
            (first for _, first, end in self.transactions() if end is None or end >= high_watermark), default=None
        )

    def expire(self, now_ms: int) -> None:
        for producer_id in {event.producer_id for event in self.log}:
            events = self.of(producer_id)
            idle = bool(events) and now_ms - events[-1].at_ms >= EXPIRATION_MS
            if idle and self.open_since(producer_id) is None:
                self.forgotten[producer_id] = len(self.log)


def take_in(state: ProducerState, event: Batch | Marker) -> None:
    if isinstance(event, Marker):
        producer = ProducerIdAndEpoch(event.producer_id, event.epoch)
        state.apply_marker(
            producer, event.coordinator_epoch, event.committed, event.offset, 10 + event.offset, event.at_ms
        )
        state.end_offset = event.offset + 1
    else:
        state.apply_batch(
            event.producer_id,
            event.epoch,
            event.first,
            event.last,
            event.offset,
            event.offset + event.count - 1,
            10 + event.offset,
            event.transactional,
            event.at_ms,
        )
        state.end_offset = event.offset + event.count


def all_pages(state: ProducerState, offset: int) -> Iterator[ProducerEntry]:
    """Ask as a replica does: one page after the other."""
    after_id = -1
    while True:
        page, has_more = producers_before(state.packed(), offset, after_id, page=2)
        yield from decode_snapshot(encode_packed(page), now_ms=0)
        if not has_more:
            return
        after_id = page[-1][1]


producer_ids = st.integers(1, 3)
epochs = st.integers(0, 3)


class ProducerStateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = ProducerState(TP)
        self.model = Model()
        self.now_ms = 0
        self.high_watermark = 0

    def sequence(self, producer_id: int, choice: int) -> int:
        """Mostly what is right; else a repetition, or nearly one."""
        batches = self.model.current(producer_id)
        if not batches:
            return [0, 5, MAX_SEQUENCE, MAX_SEQUENCE - 1][choice % 4]
        if choice < 8:
            return (batches[-1].last + 1) % SEQUENCES
        return [0, 7, *(one.first for one in batches[-7:])][choice % (2 + len(batches[-7:]))]

    @rule(
        steps=st.lists(
            st.tuples(producer_ids, st.integers(0, 15), st.integers(1, 2), st.sampled_from([0, 0, 0, 0, 0, 1])),
            min_size=5,
            max_size=25,
        ),
        transactional=st.booleans(),
    )
    def clients_are_busy(self, steps: list[tuple[int, int, int, int]], transactional: bool) -> None:
        """Long histories, which single steps rarely add up to."""
        for producer_id, choice, count, end in steps:
            opened = self.model.open_since(producer_id) is not None
            if opened and end:
                self.mark(producer_id, choice % 2, 2, choice % 3 > 0, TransactionVersion.V1)
            else:
                first = self.sequence(producer_id, choice)
                self.append(producer_id, 0, first, count, opened or transactional, True, True)

    @rule(
        producer_id=producer_ids,
        epoch_step=st.sampled_from([0, 0, 0, 0, 1, -1]),
        choice=st.integers(0, 15),
        count=st.integers(1, 3),
        transactional=st.booleans(),
        verified=st.sampled_from([True, True, False]),
    )
    def client_appends(
        self, producer_id: int, epoch_step: int, choice: int, count: int, transactional: bool, verified: bool
    ) -> None:
        self.append(producer_id, epoch_step, self.sequence(producer_id, choice), count, transactional, True, verified)

    @rule(producer_id=producer_ids, epoch_step=st.sampled_from([0, 0, 1, -1]), transactional=st.booleans())
    def coordinator_appends(self, producer_id: int, epoch_step: int, transactional: bool) -> None:
        """P5"""
        self.append(producer_id, epoch_step, -1, 1, transactional, False, True)

    def append(
        self,
        producer_id: int,
        epoch_step: int,
        first: int,
        count: int,
        transactional: bool,
        client: bool,
        verified: bool,
    ) -> None:
        epoch = max(0, (self.model.epoch(producer_id) or 0) + epoch_step)
        new = Batch(producer_id, epoch, first, count, self.model.end, transactional, self.now_ms)
        expected = self.model.judge(new, client=client, verified=verified)
        known = self.state.find_duplicate(producer_id, epoch, first, new.last) if client else None
        if client and self.state.follows(producer_id, epoch, first, transactional):
            assert expected is None, "the short way never says yes to what would be judged otherwise"
        before = repr(self.state)
        verdict = None
        try:
            if known is None:
                self.state.check_batch(
                    producer_id, epoch, first, transactional, check_sequence=client, verified=verified
                )
            elif transactional:
                self.state.check_repetition(producer_id, known)
        except SemelError as error:
            verdict = error.code
        if isinstance(expected, Batch):
            assert known is not None
            assert (known.first_offset, known.timestamp_ms) == (expected.offset, 10 + expected.offset)
            assert verdict is None
            return
        assert verdict is expected
        assert repr(self.state) == before, "judging changes nothing"
        if expected is None:
            take_in(self.state, new)
            self.model.log.append(new)
            self.model.end += count

    @rule(
        producer_id=producer_ids,
        epoch_step=st.sampled_from([0, 0, 1, 1, 2, -1]),
        coordinator_epoch=st.integers(0, 2),
        committed=st.booleans(),
        version=st.sampled_from(TransactionVersion),
    )
    def coordinator_marks(
        self, producer_id: int, epoch_step: int, coordinator_epoch: int, committed: bool, version: TransactionVersion
    ) -> None:
        """P9, P10"""
        self.mark(producer_id, epoch_step, coordinator_epoch, committed, version)

    def mark(
        self, producer_id: int, epoch_step: int, coordinator_epoch: int, committed: bool, version: TransactionVersion
    ) -> None:
        epoch = max(0, (self.model.epoch(producer_id) or 0) + epoch_step)
        new = Marker(producer_id, epoch, coordinator_epoch, committed, self.model.end, self.now_ms)
        expected = self.model.judge_marker(new, version)
        verdict: MarkerVerdict | ErrorCode
        try:
            verdict = self.state.check_marker(ProducerIdAndEpoch(producer_id, epoch), coordinator_epoch, version)
        except SemelError as error:
            verdict = error.code
        assert verdict is expected
        if verdict is MarkerVerdict.APPEND:
            take_in(self.state, new)
            self.model.log.append(new)
            self.model.end += 1

    @rule(ms=st.integers(1, 700))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def idle_producers_expire(self) -> None:
        """P8"""
        self.state.expire(self.now_ms, EXPIRATION_MS)
        self.model.expire(self.now_ms)

    @precondition(lambda self: self.high_watermark < self.model.end)
    @rule(part=st.floats(0, 1))
    def high_watermark_advances(self, part: float) -> None:
        self.high_watermark += int((self.model.end - self.high_watermark) * part)

    @rule()
    def restart_from_a_snapshot(self) -> None:
        """P7: nothing is lost on the way through the file. What was decided is below the high watermark then."""
        restored = ProducerState(TP)
        restored.restore(
            decode_snapshot(encode_packed(each.packed() for each in self.state), now_ms=0), self.state.end_offset
        )
        assert restored == self.state
        assert [entry.active_ms for entry in restored] == [entry.active_ms for entry in self.state]
        self.state = restored
        self.high_watermark = self.model.end

    @precondition(lambda self: self.model.end > 0)
    @rule(start=st.floats(0, 1), cut=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.0]))
    def another_replica_begins_at_an_offset(self, start: float, cut: float) -> None:
        """P2, P7: with what this one knows now of what came before, and with all that follows, or a part of it.

        Whatever of its last batches a client may still repeat is known, and what comes next is let in.
        """
        begins = round(start * self.model.end)
        ends = [event.offset + getattr(event, "count", 1) for event in self.model.log]
        upto = min((end for end in ends if end >= begins + cut * (self.model.end - begins)), default=0)
        replica = ProducerState(TP)
        pages = list(all_pages(self.state, begins))
        replica.restore(pages, begins)
        for event, end in zip(self.model.log, ends, strict=True):
            if begins < end <= upto:
                take_in(replica, event)
        for entry in self.state:
            other = replica.entry(entry.producer_id)
            never_expired = entry.producer_id not in self.model.forgotten
            missing = [one.offset for one in self.model.of(entry.producer_id) if one.offset >= upto]
            for batch in entry.batches:
                if batch.last_offset < max(begins, upto):
                    assert batch.first_sequence < 0 or replica.find_duplicate(
                        entry.producer_id, entry.epoch, *batch[:2]
                    )
                elif never_expired and batch.first_offset == missing[0]:  # what a client repeats first
                    opened = other is not None and other.transaction_first_offset >= 0
                    is_client = batch.first_sequence >= 0
                    replica.check_batch(
                        entry.producer_id, entry.epoch, batch.first_sequence, opened,
                        check_sequence=is_client, verified=True,
                    )  # fmt: skip
            if upto == self.model.end and never_expired:
                assert other is not None
                assert (other.epoch, other.coordinator_epoch, other.batches) == (
                    entry.epoch,
                    entry.coordinator_epoch,
                    entry.batches,
                )
                assert (other.transaction_first_offset < 0) >= (entry.transaction_first_offset < 0)
                if entry.transaction_first_offset >= begins:
                    assert other.transaction_first_offset == entry.transaction_first_offset
        if upto == self.model.end:
            undecided = [
                event.offset
                for event in self.model.log
                if isinstance(event, Batch) and event.transactional and event.last_offset >= begins
                for opened in (self.model.open_since(event.producer_id),)
                if opened is not None and event.offset >= opened
            ]
            unstable = replica.first_unstable_offset(self.model.end)
            assert not undecided or (unstable is not None and unstable <= min(undecided))

    @invariant()
    def unstable_offset_is_the_models(self) -> None:
        """L1"""
        assert self.state.first_unstable_offset(self.high_watermark) == self.model.first_unstable(self.high_watermark)

    @invariant()
    def known_producers_are_the_models(self) -> None:
        events = {event.producer_id for event in self.model.log}
        for producer_id in events:
            entry, epoch = self.state.entry(producer_id), self.model.epoch(producer_id)
            assert (entry is None) == (epoch is None)
            if entry is not None:
                assert entry.epoch == epoch
                opened = self.model.open_since(producer_id)
                assert entry.transaction_first_offset == (-1 if opened is None else opened)

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        """P7: exactly, for every id that never expired; one that did is at least as well known."""
        replayed = ProducerState(TP)
        for event in self.model.log:
            take_in(replayed, event)
        assert replayed.end_offset == self.state.end_offset
        assert replayed.open_transactions == self.state.open_transactions
        for entry in self.state:
            other = replayed.entry(entry.producer_id)
            assert other is not None
            if entry.producer_id not in self.model.forgotten:
                assert other == entry
            else:
                assert (other.epoch, other.last_timestamp_ms) == (entry.epoch, entry.last_timestamp_ms)
                assert other.batches[len(other.batches) - len(entry.batches) :] == entry.batches


ProducerStateMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestProducerState = ProducerStateMachine.TestCase
