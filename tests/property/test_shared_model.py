"""Shared transactions in a world that delays, loses and crashes, and a model of what must come out (T12, T13).

The world: drivers that each try to commit the next batch of one key, perhaps several at once and perhaps again after it
was decided; tasks that join, write, and write on as zombies; partitions that apply P4, P9 and P10. The model: a batch
is decided at most once, and then readers see exactly what the writers named in its decision had written. Drivers are of
runs, of which one that was replaced has no say any more; and a batch of records may hold little, so that a decision
leaves some of its losers to later ones.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from txn_shard import TxnShard

from semel.protocol.api.commit_decisions import CommitDecision
from semel.protocol.api.shared_transactions import (
    AbortSharedRequest,
    CommitSharedRequest,
    DescribeSharedRequest,
    LeaveSharedRequest,
    OpenSharedRequest,
    member_id,
)
from semel.protocol.api.transactions import AddPartitionsToTxnRequest
from semel.protocol.errors import SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.effects import SendMarkers
from semel.txn_coordinator.state import IllegalTransitionError

KEY = "job"
PARTITIONS = [TopicPartition("out", number) for number in range(3)]
TIMEOUT_MS = 1_000


@dataclass
class Partition:
    """What a partition makes of writers: P4, P9, P10."""

    epochs: dict[int, int] = field(default_factory=dict)
    open: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    visible: list[int] = field(default_factory=list)

    def append(self, writer: ProducerIdAndEpoch, value: int) -> bool:
        if writer.producer_epoch < self.epochs.get(writer.producer_id, -1):
            return False
        self.epochs[writer.producer_id] = writer.producer_epoch
        self.open[writer.producer_id].append(value)
        return True

    def mark(self, writer: ProducerIdAndEpoch, committed: bool) -> None:
        if writer.producer_epoch < self.epochs.get(writer.producer_id, -1):
            return
        self.epochs[writer.producer_id] = writer.producer_epoch
        values = self.open.pop(writer.producer_id, [])
        if committed:
            self.visible += values


@dataclass
class Writer:
    attempt: Attempt
    producer: ProducerIdAndEpoch
    acknowledged: list[int] = field(default_factory=list)
    broken: bool = False
    named: bool = False


@dataclass
class Attempt:
    name: str
    batch: int
    run: str = ""
    writers: list[Writer] = field(default_factory=list)
    named: list[Writer] | None = None


@dataclass
class Delayed:
    """An append that was let through by the coordinator, and not by the partition yet."""

    writer: Writer
    tp: TopicPartition
    value: int


class SharedWorld(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shard = TxnShard()
        self.partitions = {tp: Partition() for tp in PARTITIONS}
        self.attempts: list[Attempt] = []
        self.delayed: list[Delayed] = []
        self.decided: dict[str, CommitDecision] = {}
        self.names = (f"attempt-{number}" for number in itertools.count())
        self.values = itertools.count()
        self.runs = [""]
        self.last_run = ""
        self.runs_over: set[str] = set()

    @initialize(record_bytes_max=st.sampled_from([700, 900_000]))
    def a_batch_of_records_holds_so_much(self, record_bytes_max: int) -> None:
        self.shard = TxnShard(config=TransactionConfig(transaction_record_max_bytes=record_bytes_max))

    def _has_opened(self, attempt: Attempt) -> None:
        """Something was opened or committed for this attempt: its run was not over, and the one before is now."""
        assert attempt.run not in self.runs_over, "T12: a run that was replaced has no say"
        if attempt.run and attempt.run != self.last_run:
            self.runs_over.update({self.last_run} - {""})
            self.last_run = attempt.run

    # --- Drivers ------------------------------------------------------------------------------------------------------

    @rule(again=st.booleans(), new_run=st.booleans(), data=st.data())
    def a_driver_starts(self, again: bool, new_run: bool, data: st.DataObject) -> None:
        """The next batch, or the last one once more: the driver died before it noted the decision."""
        batch = len(self.decided) - (1 if again and self.decided else 0)
        if new_run:
            self.runs.append(f"run-{len(self.runs)}")
        self.attempts.append(Attempt(next(self.names), batch, data.draw(st.sampled_from(self.runs[::-1]), "run")))

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), answered=st.booleans())
    def a_task_joins(self, data: st.DataObject, answered: bool) -> None:
        self._join(data.draw(st.sampled_from(self.attempts), "attempt"), answered)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def many_tasks_join_and_write(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.attempts), "attempt")
        before = len(attempt.writers)
        for _ in range(6):
            self._join(attempt, answered=True)
        for writer in attempt.writers[before:]:
            self._write(writer, PARTITIONS[0], delay=False)

    def _join(self, attempt: Attempt, answered: bool) -> None:
        try:
            response = self.shard.submit(
                OpenSharedRequest(KEY, attempt.name, str(attempt.batch), TIMEOUT_MS, attempt.batch, run=attempt.run)
            )
        except SemelError:
            return
        if response.committed is not None:
            assert self.decided[str(attempt.batch)] == response.committed
            return
        self._has_opened(attempt)
        if answered:
            assert response.producer is not None
            attempt.writers.append(Writer(attempt, response.producer))

    @precondition(lambda self: any(attempt.writers for attempt in self.attempts))
    @rule(data=st.data(), delay=st.booleans())
    def a_task_writes(self, data: st.DataObject, delay: bool) -> None:
        writers = [writer for attempt in self.attempts for writer in attempt.writers if not writer.named]
        if not writers:
            return
        writer = data.draw(st.sampled_from(writers), "writer")
        self._write(writer, data.draw(st.sampled_from(PARTITIONS), "partition"), delay)

    def _write(self, writer: Writer, tp: TopicPartition, delay: bool) -> None:
        name = member_id(KEY, writer.producer.producer_id)
        try:
            self.shard.submit(AddPartitionsToTxnRequest(name, writer.producer, (tp,)))
        except SemelError:
            writer.broken = True
            return
        item = Delayed(writer, tp, next(self.values))
        if delay:
            writer.broken = True  # it died without an answer, and what it sent is still on its way
            self.delayed.append(item)
        else:
            self._append(item)

    def _append(self, item: Delayed) -> None:
        if self.partitions[item.tp].append(item.writer.producer, item.value):
            item.writer.acknowledged.append(item.value)
        else:
            item.writer.broken = True

    @precondition(lambda self: self.delayed)
    @rule(data=st.data())
    def a_delayed_write_arrives(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.delayed), "write")
        self.delayed.remove(item)
        self._append(item)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def a_driver_commits(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.attempts), "attempt")
        if attempt.named is None:
            able = [writer for writer in attempt.writers if not writer.broken]
            if data.draw(st.integers(0, 9), "confused") == 0:  # it also names what belongs to others
                able = [writer for each in self.attempts for writer in each.writers if not writer.broken]
            attempt.named = [writer for writer in able if data.draw(st.booleans(), "named")]
            for writer in attempt.named:
                writer.named = True
        token = str(attempt.batch)
        request = CommitSharedRequest(
            KEY,
            attempt.name,
            token,
            tuple(writer.producer for writer in attempt.named),
            f"range {token}".encode(),
            attempt.batch,
            run=attempt.run,
        )
        before = self.decided.get(token)
        try:
            response = self.shard.submit(request)
        except IllegalTransitionError:
            raise
        except SemelError:
            assert before is None, "T13: a question about a decided batch is answered"
            return
        assert before in (None, response.decision), "a batch is decided once"
        self.decided[token] = response.decision
        if before is None:
            assert all(writer.attempt is attempt for writer in attempt.named), "T12: of this attempt"
            states = {writer.state for writer in self.shard.submit(DescribeSharedRequest(KEY)).writers}
            if self.shard.machine.next_deadline_ms() != 0:  # otherwise the next tick continues, crash or not
                assert states <= {"PrepareCommit", "PrepareAbort"}, "T12: nobody stays open under a decision"
            self._has_opened(attempt)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def a_driver_aborts(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.attempts), "attempt")
        self.shard.submit(AbortSharedRequest(KEY, attempt.name))

    @precondition(lambda self: any(attempt.writers for attempt in self.attempts))
    @rule(data=st.data())
    def a_task_leaves(self, data: st.DataObject) -> None:
        writers = [writer for attempt in self.attempts for writer in attempt.writers if not writer.named]
        if writers:
            writer = data.draw(st.sampled_from(writers), "writer")
            writer.broken = True
            self.shard.submit(LeaveSharedRequest(KEY, writer.attempt.name, writer.producer))

    # --- The world ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.shard.effects)
    @rule(data=st.data())
    def some_markers_are_written(self, data: st.DataObject) -> None:
        effect = data.draw(st.sampled_from(self.shard.effects), "markers")
        if not isinstance(effect, SendMarkers):
            self.shard.effects.remove(effect)
            return
        for tp in effect.marker.partitions:
            if data.draw(st.booleans(), f"to {tp}"):
                self.partitions[tp].mark(effect.marker.producer, effect.marker.committed)

    @precondition(lambda self: self.shard.effects)
    @rule(data=st.data())
    def all_markers_of_a_writer_are_written(self, data: st.DataObject) -> None:
        self._finish(data.draw(st.sampled_from(self.shard.effects), "markers"))

    def _finish(self, effect: object) -> None:
        self.shard.effects.remove(effect)
        if isinstance(effect, SendMarkers):
            for tp in effect.marker.partitions:
                self.partitions[tp].mark(effect.marker.producer, effect.marker.committed)
            self.shard.report(effect)

    @rule(milliseconds=st.sampled_from([0, 1, TIMEOUT_MS // 2, TIMEOUT_MS, 2 * TIMEOUT_MS]))
    def time_passes(self, milliseconds: int) -> None:
        self.shard.now_ms += milliseconds
        self.shard.tick()

    @rule()
    def the_coordinator_crashes(self) -> None:
        self.shard.reload(epoch=self.shard.epoch + 1)

    # --- What must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def history_is_what_was_answered(self) -> None:
        found = self.shard.submit(DescribeSharedRequest(KEY)).decisions
        assert list(found) == list(self.decided.values())

    @invariant()
    def readers_see_nothing_of_what_was_not_named(self) -> None:
        committed = set(self._committed())
        for partition in self.partitions.values():
            assert committed.issuperset(partition.visible)

    def _committed(self) -> list[int]:
        by_name = {attempt.name: attempt for attempt in self.attempts}
        return [
            value
            for decision in self.decided.values()
            for writer in by_name[decision.attempt].named or ()
            for value in writer.acknowledged
        ]

    def _undisturbed_batch(self) -> None:
        """Whatever happened before, the next batch goes through when nothing disturbs it."""
        attempt = Attempt(next(self.names), len(self.decided), "the last run")
        self.attempts.append(attempt)
        for tp in PARTITIONS[:2]:
            open_request = OpenSharedRequest(
                KEY, attempt.name, str(attempt.batch), TIMEOUT_MS, attempt.batch, run=attempt.run
            )
            writer = Writer(attempt, self.shard.submit(open_request).producer)
            attempt.writers.append(writer)
            name = member_id(KEY, writer.producer.producer_id)
            self.shard.submit(AddPartitionsToTxnRequest(name, writer.producer, (tp,)))
            self._append(Delayed(writer, tp, next(self.values)))
            assert not writer.broken
        attempt.named = attempt.writers
        producers = tuple(writer.producer for writer in attempt.writers)
        token = str(attempt.batch)
        request = CommitSharedRequest(KEY, attempt.name, token, producers, b"", attempt.batch, run=attempt.run)
        self.decided[token] = self.shard.submit(request).decision
        while self.shard.effects:
            self._finish(self.shard.effects[0])

    def teardown(self) -> None:
        """The faults end: every writer's end comes to its partitions, and what was decided is there exactly once."""
        for item in self.delayed:
            self._append(item)
        while self.shard.effects:
            self._finish(self.shard.effects[0])
        self.shard.now_ms += 2 * TIMEOUT_MS
        self.shard.tick()
        while self.shard.effects:
            self._finish(self.shard.effects[0])
        self.shard.config = TransactionConfig()
        self.shard.reload()
        self._undisturbed_batch()
        visible = [value for partition in self.partitions.values() for value in partition.visible]
        assert sorted(visible) == sorted(self._committed())
        assert self.shard.submit(DescribeSharedRequest(KEY)).writers == ()
        assert {effect for effect in self.shard.effects if isinstance(effect, SendMarkers)} == set()
        for partition in self.partitions.values():
            assert not any(partition.open.values()), "no transaction is left hanging (T8)"


TestSharedWorld = SharedWorld.TestCase
TestSharedWorld.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
