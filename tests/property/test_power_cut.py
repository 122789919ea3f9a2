"""Crashes at any point, with all that a disk may lose: what was acknowledged is there, once, byte for byte.

Hypothesis draws what producers, coordinators, an operator and the node do on a simulated disk, and where the process is
killed or the power fails, also in the middle of recoveries. What waits for the disk in a thread is done at a later
turn, so that appends come while a flush runs. The model is what was appended and what was acknowledged.
Proves D1, D2, D3, P1, P7, P9, P10 and L1 over crashes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

import pytest
from held_executor import HeldExecutor
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from longer_runs import examples

from semel.broker.log.config import LogConfig
from semel.broker.log.producer_state import REMEMBERED_BATCHES
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.manager import LogManager
from semel.broker.logs.partition import Partition
from semel.protocol.api.topics import LATEST_TIMESTAMP, IsolationLevel
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import iter_batches
from semel.protocol.control_records import decode_control
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicId, TopicPartition
from semel.protocol.record_decoder import decode_records
from semel.runtime.clock import ManualClock
from semel.runtime.simulated_storage import SimulatedCrash, SimulatedStorage

PARTITIONS = 3
PRODUCERS = 3
DELETED = -2
ROUNDS_MAX = 1_000
TOPIC_ID = TopicId(UUID(int=77))
LOG_CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=200, file_delete_delay_ms=0, retention_ms=-1)
CONFIG = LogManagerConfig(
    journal_file_bytes=1000,
    journal_buffer_max_bytes=1500,
    journal_direct_write_bytes=700,
    journal_inline_sync_max_bytes=2500,
    disk_min_free_bytes=0,
)

Op: TypeAlias = tuple[Any, ...]


@dataclass
class Batch:
    """One batch that the model knows of. `sequence` is -1 for markers, DELETED for one sent once more after it."""

    offset: int
    last_offset: int
    data: bytes
    producer: ProducerIdAndEpoch
    sequence: int
    transactional: bool
    acknowledged: bool = False
    coordinator_epoch: int = -1
    """Of a marker."""


@dataclass
class Sent:
    """What a producer is about to send, or to send again, because nobody told it that it arrived."""

    sequence: int
    count: int
    transactional: bool


@dataclass
class PartitionModel:
    history: list[Batch] = field(default_factory=list)
    start: int = 0
    """The log start offset that was asked for last."""
    sequences: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    """What each producer uses: one that a marker has bumped, once the marker is acknowledged."""
    ending: set[int] = field(default_factory=set)
    """Producers with such a marker on its way: they wait for it."""
    unanswered: dict[int, Sent] = field(default_factory=dict)
    attempt: tuple[int, int] | None = None
    """Producer id and sequence of an append that has not returned: a crash in it may leave the batch in the log."""
    refused: tuple[int, int] | None = None
    """The same of one that was taken back since, as long as nothing has been written over it."""

    def open_transactions(self, below: int) -> dict[int, int]:
        """Producer ids with a transaction open at offset `below`, and where it begins."""
        found: dict[int, int] = {}
        for batch in self.history:
            if batch.offset >= below:
                break
            if batch.sequence == -1:
                found.pop(batch.producer.producer_id, None)
            elif batch.transactional:
                found.setdefault(batch.producer.producer_id, batch.offset)
        return found

    def producer(self, producer_id: int) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(producer_id, self.epochs.get(producer_id, 0))

    def last_marker(self, producer_id: int) -> Batch | None:
        """The marker with the latest coordinator epoch; of several, the last."""
        mine = [one for one in self.history if one.sequence == -1 and one.producer.producer_id == producer_id]
        return max(mine, key=lambda one: (one.coordinator_epoch, one.offset), default=None)

    def marker_is_known(self, marker: Batch) -> None:
        """A marker is acknowledged, or was found by a recovery: its epoch is the producer's from now on (P10)."""
        marker.acknowledged = True
        producer_id, epoch = marker.producer
        self.ending.discard(producer_id)
        if epoch > self.epochs.get(producer_id, 0):
            self.epochs[producer_id] = epoch
            self.sequences[producer_id] = 0

    def last_stable_offset(self, high_watermark: int) -> int:
        """L1: the start of a transaction that is open, or whose marker is not below the high watermark."""
        return min(self.open_transactions(high_watermark).values(), default=high_watermark)


class World:
    """A node on a simulated disk, its clients, and the model."""

    def __init__(self, seed: int) -> None:
        self.storage = SimulatedStorage(seed)
        self.storage.make_folder("/n")
        self.storage.sync_folder("/")
        self.clock = ManualClock()
        self.models = [PartitionModel() for _ in range(PARTITIONS)]
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._loop_error)
        self.errors: list[BaseException] = []
        self.executor = HeldExecutor()
        self.flushing: asyncio.Task[None] | None = None
        self.logs = self._new_manager()
        self.logs.open(lambda tp, topic_id: LOG_CONFIG)
        for number in range(PARTITIONS):
            self.logs.create_partition(TopicPartition("t", number), TOPIC_ID, LOG_CONFIG)
        self.storage_failed = False

    def _loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, SimulatedCrash):
            self.errors.append(error or RuntimeError(context["message"]))

    def _new_manager(self) -> LogManager:
        return LogManager(self.storage, "/n/data", self.clock, CONFIG, executor=self.executor)

    def partition(self, number: int) -> Partition:
        partition = self.logs.partition(TopicPartition("t", number))
        assert partition is not None
        return partition

    def turns(self) -> None:
        async def turns() -> None:
            for _ in range(4):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def turn(self) -> None:
        """Let the event loop go round, and the disk finish one call."""
        self.turns()
        if self.executor.held:
            self.executor.run()
            self.turns()
        if self.flushing is not None and self.flushing.done():
            flushing, self.flushing = self.flushing, None
            if not isinstance(flushing.exception(), SimulatedCrash):
                flushing.result()

    def settle(self) -> None:
        """Let everything that is under way come to its end."""
        self.turn()
        for _ in range(ROUNDS_MAX):
            if not self.executor.held and self.flushing is None:
                return
            self.turn()
            if self.storage.crashed:
                raise SimulatedCrash("the machine went down under its own work")
        raise AssertionError("what is under way never ends")

    def drive(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        for _ in range(ROUNDS_MAX):
            if task.done():
                return task.result()
            self.turn()
        raise AssertionError("it never ends")

    # --- What can happen ----------------------------------------------------------------------------------------------

    def append(self, number: int, producer_id: int, size: int, count: int, transactional: bool) -> None:
        """Send the producer's next batch, or again what it got no answer for (P1)."""
        model = self.models[number]
        if producer_id in model.ending:
            return
        if self.flushing is not None:
            event("appended while a flush ran")
        sent = model.unanswered.get(producer_id)
        if sent is None:
            opened = producer_id in model.open_transactions(1 << 60)
            sent = Sent(model.sequences.get(producer_id, 0), count, transactional or opened)
        model.unanswered[producer_id] = sent
        producer = model.producer(producer_id)
        batch = bytearray(
            encode_batch(
                [(1, b"%d" % sent.sequence, bytes([65 + n % 26]) * size, ()) for n in range(sent.count)],
                producer_id=producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=sent.sequence,
                transactional=sent.transactional,
            )
        )

        async def append() -> None:
            model.attempt = (producer_id, sent.sequence)
            try:
                result = self.partition(number).append(batch, verified=True)
            except SemelError as error:
                self.check_refusal(error)
                model.refused = (producer_id, sent.sequence)
                return
            finally:
                if not self.storage.crashed:
                    model.attempt = None
            if result.duplicate:
                (known,) = [one for one in model.history if one.offset == result.base_offset]
                assert (known.producer, known.sequence) == (producer, sent.sequence), "P1: the original's offset"
            else:
                for one in model.history:
                    if (one.producer, one.sequence) == (producer, sent.sequence):
                        start = self.partition(number).log_start_offset
                        assert one.last_offset < start, "nothing is appended twice, unless the first was deleted"
                        one.sequence = DELETED
                known = Batch(
                    result.base_offset,
                    result.last_offset,
                    b"".join(result.appended),
                    producer,
                    sent.sequence,
                    sent.transactional,
                )
                model.history.append(known)
                model.refused = None
            self.partition(number).when_committed(result.last_offset, lambda error: answered(known, error))

        def answered(known: Batch, error: SemelError | None) -> None:
            if error is None:
                known.acknowledged = True
                model.sequences[producer_id] = sent.sequence + sent.count
                if model.unanswered.get(producer_id) is sent:
                    del model.unanswered[producer_id]

        self.loop.run_until_complete(append())

    def marker(self, number: int, producer_id: int, committed: bool, bumps: bool, newer: bool) -> None:
        """End a transaction: under the next epoch where it `bumps`, by a `newer` coordinator or the one before."""
        model = self.models[number]
        if producer_id in model.unanswered or producer_id in model.ending:
            return
        now = model.producer(producer_id)
        producer = ProducerIdAndEpoch(producer_id, now.producer_epoch + bumps)
        last = model.last_marker(producer_id)
        coordinator_epoch = newer + (0 if last is None else last.coordinator_epoch)
        version = TransactionVersion.V2 if bumps else TransactionVersion.V1

        async def mark() -> None:
            partition = self.partition(number)
            end = partition.log_end_offset
            model.attempt = (producer_id, -1)
            try:
                offset = partition.append_marker(producer, coordinator_epoch, committed, version)
                if offset is None:
                    return
                assert offset == end
                # A crash may come here, too: the first read of a log opens its file.
                data = partition.read_batches(offset, 1 << 20)
            except SemelError as error:
                self.check_refusal(error)
                model.refused = (producer_id, -1)
                return
            finally:
                if not self.storage.crashed:
                    model.attempt = None
            known = Batch(offset, offset, data, producer, -1, True, coordinator_epoch=coordinator_epoch)
            model.history.append(known)
            model.refused = None
            if bumps:
                model.ending.add(producer_id)
            partition.when_committed(offset, lambda error: None if error else model.marker_is_known(known))

        self.loop.run_until_complete(mark())

    def old_marker(self, number: int, producer_id: int, committed: bool, bumps: bool) -> None:
        """P9: a coordinator that was replaced ends nothing, though the node has forgotten all but its log since."""
        model = self.models[number]
        last = model.last_marker(producer_id)
        partition = self.partition(number)
        if last is None or last.coordinator_epoch == 0 or last.offset < partition.log_start_offset:
            return
        end = partition.log_end_offset
        epoch = max(one.producer.producer_epoch for one in model.history if one.producer.producer_id == producer_id)
        producer = ProducerIdAndEpoch(producer_id, epoch + bumps)
        version = TransactionVersion.V2 if bumps else TransactionVersion.V1
        with pytest.raises(SemelError) as refused:
            partition.append_marker(producer, last.coordinator_epoch - 1, committed, version)
        assert refused.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert partition.log_end_offset == end
        event("an old coordinator was refused")

    def transaction(self, number: int, producer_id: int, committed: bool, bumps: bool, newer: bool) -> None:
        self.append(number, producer_id, 40, 1, True)
        self.turn()
        self.marker(number, producer_id, committed, bumps, newer)
        self.old_marker(number, producer_id, not committed, bumps)

    def burst(self, number: int, producer_id: int) -> None:
        """Send more than the partition remembers of a producer."""
        for _ in range(REMEMBERED_BATCHES + 1):
            self.append(number, producer_id, 1, 1, False)
            self.turn()

    def busy_flush(self, number: int, producer_id: int, steps: int, rest: int) -> None:
        """Append to all, append again while the flush of that has come `steps` far, and let it run for the `rest`."""
        for each in range(PARTITIONS):
            self.append(each, producer_id, 40, 1, False)
        self.turn()
        self.flush()
        for _ in range(steps):
            self.turn()
        self.append(number, producer_id, 40, 1, False)
        self.turns()
        for _ in range(rest):
            self.turn()

    def check_refusal(self, error: SemelError) -> None:
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert self.storage_failed, "only a disk that fails refuses"

    def fill_disk(self) -> None:
        """Let the next write to a log fail after a part of it: the log takes it back."""
        self.storage_failed = True
        self.storage.fail_next("append", OSError(errno.ENOSPC, "No space left on device"), path_part=".log")

    def delete_records(self, number: int, part: int) -> None:
        partition = self.partition(number)
        before = partition.log_start_offset + (partition.high_watermark - partition.log_start_offset) * part // 4
        model = self.models[number]
        model.start = max(model.start, before)
        assert partition.delete_records(before) == before

    def retain(self) -> None:
        self.loop.run_until_complete(self.logs.maintenance.check_retention())
        self.clock.advance(ms=10)

    def flush(self) -> None:
        """Begin to flush; later turns continue with it."""
        if self.flushing is None:
            self.flushing = self.loop.create_task(self.logs.maintenance.flush())
        self.turns()

    def restart(self) -> None:
        self.settle()
        self.drive(self.logs.close())
        self.settle()
        self.logs = self._new_manager()
        report = self.logs.open(lambda tp, topic_id: LOG_CONFIG)
        assert report.clean
        assert report.journal_entries == 0
        self.check_recovered(lost_power=False)

    def crash(self, power: bool, crash_points: list[tuple[int, bool]]) -> None:
        """Stop, and start again; the recoveries themselves crash where told to."""
        lost_power = power
        self.storage.crash(power=power)
        self.executor.drop(SimulatedCrash("the machine is down"))
        self.turns()
        if self.flushing is not None:
            assert isinstance(self.flushing.exception(), SimulatedCrash)
            self.flushing = None
        for point, power_again in crash_points:
            self.storage.crash_at(point)
            self.logs = self._new_manager()
            with contextlib.suppress(SimulatedCrash):
                self.logs.open(lambda tp, topic_id: LOG_CONFIG)
            if self.storage.crashed:
                event("crashed while recovering")
            lost_power = lost_power or power_again
            self.storage.crash(power=power_again)
        self.logs = self._new_manager()
        self.logs.open(lambda tp, topic_id: LOG_CONFIG)
        self.check_recovered(lost_power=lost_power)

    # --- What must hold -----------------------------------------------------------------------------------------------

    def check_recovered(self, *, lost_power: bool) -> None:
        for number, model in enumerate(self.models):
            partition = self.partition(number)
            start, end = partition.log_start_offset, partition.log_end_offset
            assert start <= max(model.start, 0), "nothing is deleted that nobody asked to"
            assert partition.high_watermark == end, "one replica: all that was recovered is committed"
            found = dict(self.read_all(partition))
            self.adopt_attempt(model, found, lost_power=lost_power)
            kept = [batch for batch in model.history if batch.offset < end]
            lost = [batch for batch in model.history if batch.offset >= end]
            assert not [batch for batch in lost if batch.acknowledged], "D1: what was acknowledged survives"
            if not lost_power:
                assert not lost, "D1: what was appended survives a killed process"
            assert end == (kept[-1].last_offset + 1 if kept else 0) or (end == start and not kept), (
                "D3: offsets never go back"
            )
            expected = {batch.offset: batch.data for batch in kept if batch.last_offset >= start}
            assert found == expected, "D3: the same bytes at the same offsets"
            model.history = kept
            model.ending.clear()
            for batch in kept:
                batch.acknowledged = True
                if batch.sequence == -1:
                    model.marker_is_known(batch)
            self.check_state(partition, model)

    def adopt_attempt(self, model: PartitionModel, found: dict[int, bytes], *, lost_power: bool) -> None:
        """Note the batch whose append was cut short, if it reached the log.

        One that was refused and taken back is there again where the power went before that was on the disk: its error,
        KAFKA_STORAGE_ERROR, promises nothing, and a producer that repeats it finds a duplicate.
        """
        attempts = [model.attempt]
        model.attempt = None
        if lost_power:
            attempts.append(model.refused)
            model.refused = None
        end = model.history[-1].last_offset + 1 if model.history else 0
        if not any(attempts) or end not in found:
            return
        (header,) = iter_batches(found[end])
        attempt = (header.producer_id, header.base_sequence)
        assert attempt in attempts
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        coordinator_epoch = decode_control(decode_records(found[end])[0]).coordinator_epoch if header.is_control else -1
        model.history.append(
            Batch(
                end,
                header.last_offset,
                found[end],
                producer,
                attempt[1],
                header.is_transactional,
                coordinator_epoch=coordinator_epoch,
            )
        )

    def check_state(self, partition: Partition, model: PartitionModel) -> None:
        """P7, P1, P10, L1: the state is what the log says."""
        start = partition.log_start_offset
        state = partition.log.producer_state
        for producer_id in range(PRODUCERS):
            mine = [one for one in model.history if one.producer.producer_id == producer_id and one.offset >= start]
            if not mine:
                continue
            current = mine[-1].producer
            entry = state.entry(producer_id)
            assert entry is not None
            assert entry.epoch == current.producer_epoch, "P10: also where only a marker has it"
            assert entry.coordinator_epoch >= max(one.coordinator_epoch for one in mine), "P9"
            data = [one for one in mine if one.sequence >= 0]
            for one in data:
                is_known = one.producer == current and one in data[-REMEMBERED_BATCHES:]
                last = one.sequence + one.last_offset - one.offset
                known = state.find_duplicate(producer_id, one.producer.producer_epoch, one.sequence, last)
                assert (known is not None) is is_known, "P7: the last five of its epoch are known again, and no others"
                assert known is None or known.first_offset == one.offset, "P1"
        opened = {pid: first for pid, first in model.open_transactions(1 << 60).items() if first >= start}
        for producer_id, first in opened.items():
            epoch = next(one.producer.producer_epoch for one in model.history if one.offset == first)
            assert state.has_ongoing_transaction(ProducerIdAndEpoch(producer_id, epoch)), first
        if not [first for first in model.open_transactions(1 << 60).values() if first < start]:
            assert partition.last_stable_offset == model.last_stable_offset(partition.high_watermark), "L1"

    def check_visible(self) -> None:
        """L1, L2: a reader sees what is committed, and no more."""
        for number, model in enumerate(self.models):
            partition = self.partition(number)
            mark = partition.high_watermark
            shown = [batch for batch in model.history if batch.last_offset < mark]
            assert all(batch.acknowledged for batch in shown)
            assert not [batch for batch in model.history if batch.offset < mark <= batch.last_offset]
            if not [first for first in model.open_transactions(1 << 60).values() if first < partition.log_start_offset]:
                assert partition.last_stable_offset == model.last_stable_offset(mark)
            latest = partition.list_offset(LATEST_TIMESTAMP, IsolationLevel.READ_COMMITTED)
            assert latest.offset == partition.last_stable_offset
            for isolation, end in (
                (IsolationLevel.READ_UNCOMMITTED, mark),
                (IsolationLevel.READ_COMMITTED, partition.last_stable_offset),
            ):
                offset = partition.log_start_offset
                while offset < end:
                    found = partition.read(offset, max_bytes=1000, isolation=isolation)
                    assert found.size > 0
                    for header in iter_batches(found.read()):
                        assert header.last_offset < end
                    assert found.next_offset > offset
                    offset = found.next_offset

    def read_all(self, partition: Partition) -> Iterator[tuple[int, bytes]]:
        offset = partition.log_start_offset
        while offset < partition.log_end_offset:
            data = partition.read_batches(offset, 2000)
            position = 0
            for header in iter_batches(data):
                yield header.base_offset, data[position : position + header.size_bytes]
                position += header.size_bytes
                offset = header.next_offset
            assert position == len(data) > 0

    def finish(self) -> None:
        """Every producer gets its answer in the end, the sequences in the log have no gap and no repetition."""
        self.settle()
        for number, model in enumerate(self.models):
            for producer_id in list(model.unanswered):
                # Twice, where the disk is still to fail once.
                self.append(number, producer_id, 1, 1, False)
                if producer_id in model.unanswered:
                    self.append(number, producer_id, 1, 1, False)
        self.settle()
        self.flush()
        self.settle()
        for model in self.models:
            assert not model.unanswered
            assert not model.ending
            assert all(batch.acknowledged for batch in model.history)
            expected: dict[ProducerIdAndEpoch, int] = {}
            for batch in model.history:
                if batch.sequence >= 0:
                    assert batch.sequence == expected.get(batch.producer, 0), "nothing is lost and nothing repeated"
                    expected[batch.producer] = batch.sequence + batch.last_offset - batch.offset + 1
        self.check_visible()
        self.restart()
        self.drive(self.logs.close())
        self.settle()
        assert not self.errors, self.errors

    def do(self, op: Op) -> None:
        getattr(self, op[0])(*op[1:])


partitions = st.integers(0, PARTITIONS - 1)
producers = st.integers(0, PRODUCERS - 1)
operations: st.SearchStrategy[Op] = st.one_of(
    st.tuples(
        st.just("append"), partitions, producers, st.sampled_from([1, 40, 300, 900]), st.integers(1, 3), st.booleans()
    ),
    st.tuples(
        st.just("append"), partitions, producers, st.sampled_from([1, 40, 300, 900]), st.integers(1, 3), st.booleans()
    ),
    st.tuples(st.just("marker"), partitions, producers, st.booleans(), st.booleans(), st.booleans()),
    st.tuples(st.just("old_marker"), partitions, producers, st.booleans(), st.booleans()),
    st.tuples(st.just("turn")),
    st.tuples(st.just("turn")),
    st.tuples(st.just("flush")),
    st.tuples(st.just("burst"), partitions, producers),
    st.tuples(st.just("busy_flush"), partitions, producers, st.integers(0, 4), st.sampled_from([0, 1, 3, 8])),
    st.tuples(st.just("transaction"), partitions, producers, st.booleans(), st.booleans(), st.booleans()),
    st.tuples(st.just("delete_records"), partitions, st.integers(0, 4)),
    st.tuples(st.just("retain")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("fill_disk")),
    st.tuples(st.just("check_visible")),
)
crashes = st.tuples(
    st.one_of(st.integers(1, 40), st.integers(40, 200)),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 25), st.booleans()), max_size=2),
)
"""The mutating operation at which to stop, whether the power goes too, and where recoveries are to be stopped."""


@settings(
    deadline=None, max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    seed=st.integers(0, 1 << 32),
    chapters=st.lists(st.tuples(st.lists(operations, max_size=25), crashes), min_size=1, max_size=4),
)
def test_D1_D2_D3_P7_L1_acknowledged_records_survive_any_crash_once(
    seed: int, chapters: list[tuple[list[Op], tuple[int, bool, list[tuple[int, bool]]]]]
) -> None:
    world = World(seed)
    try:
        for ops, (point, power, in_recovery) in chapters:
            world.storage.crash_at(point)
            try:
                for op in ops:
                    world.do(op)
                    if world.storage.crashed:
                        break
            except SimulatedCrash:
                pass
            event("crashed in the middle" if world.storage.crashed else "crashed after a chapter")
            world.crash(power, in_recovery)
        world.finish()
    finally:
        world.loop.close()
