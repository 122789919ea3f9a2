"""The transaction coordinator in a world that delays, repeats, loses and crashes, and a model of what must come out.

The world: producers of one transactional id (instances that replace each other, of both protocols), three partitions
that apply P4, P9 and P10, and a shard that commits when it is told to. The model: each value belongs to one transaction
of one producer; whatever happens, a transaction's values share one fate, and the fate is the one that was answered.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.transactions import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TransactionVersion,
    TxnMarker,
)
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import MAX_PRODUCER_EPOCH, NO_PRODUCER, ProducerIdAndEpoch, TopicPartition, new_topic_id
from semel.runtime.machine import TICK, CoordinatorRecord, Ticket
from semel.txn_coordinator.effects import PRODUCER_ID_NEEDED, MarkersWritten, SendMarkers, WithProducerId
from semel.txn_coordinator.machine import TransactionMachine
from semel.txn_coordinator.schemas import decode_value, encode_key, encode_value
from semel.txn_coordinator.state import (
    COMPLETED,
    OPEN,
    PREPARED,
    TransactionMetadata,
    TransactionState,
    is_legal,
)

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
ID = "enrich-0"
TOPIC_ID = new_topic_id()
PARTITIONS = [TopicPartition("enriched", number) for number in range(3)]
START_MS = 1_700_000_000_000
TIMEOUT_MS = 1_000

Transaction = tuple[int, int]
"""A producer's number and the number of its transaction."""


@dataclass
class Partition:
    """What the log of a partition makes of producers: P4, P9, P10, and V2's word on markers."""

    epochs: dict[int, int] = field(default_factory=dict)
    coordinator_epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[tuple[Transaction, int]]] = field(default_factory=lambda: defaultdict(list))

    def append(self, producer: ProducerIdAndEpoch, value: tuple[Transaction, int]) -> bool:
        if producer.producer_epoch < self.epochs.get(producer.producer_id, -1):
            return False
        self.epochs[producer.producer_id] = producer.producer_epoch
        self.open[producer.producer_id].append(value)
        return True

    def write_marker(self, marker: TxnMarker) -> tuple[ErrorCode, list[tuple[Transaction, int]]]:
        producer_id, epoch = marker.producer
        if marker.coordinator_epoch < self.coordinator_epochs.get(producer_id, -1):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED, []
        known = self.epochs.get(producer_id, -1)
        if epoch < known or (epoch == known and self.open[producer_id] and marker.version >= V2):
            return ErrorCode.INVALID_PRODUCER_EPOCH, []
        self.coordinator_epochs[producer_id] = marker.coordinator_epoch
        self.epochs[producer_id] = epoch
        return ErrorCode.NONE, self.open.pop(producer_id, [])


@dataclass
class Producer:
    number: int
    version: TransactionVersion
    producer: ProducerIdAndEpoch = NO_PRODUCER
    transaction: int = 0
    wrote: bool = False
    busy: bool = False
    ending: bool | None = None
    """The outcome asked for, until it is answered: it may only be repeated."""
    refused: bool = False
    """A call was refused: it can only ask whether it may continue, by what it holds (KIP-360, KIP-588)."""
    fenced: bool = False
    undisturbed_since: int = -1
    """How much had happened that may refuse a producer, when this one got its identity."""
    unreplaced_since: int = -1
    """How much of that was more than the passing of time: what may fence it for good."""

    @property
    def current(self) -> Transaction:
        return (self.number, self.transaction)

    @property
    def ready(self) -> bool:
        return self.producer != NO_PRODUCER and not self.busy and not self.fenced and not self.refused

    @property
    def may_write(self) -> bool:
        return self.ready and self.ending is None


@dataclass
class Sent:
    """A request as it went over the wire, to be delivered again at any time."""

    request: Any
    producer: Producer
    transaction: Transaction
    partition: TopicPartition | None = None
    value: int = -1
    disturbances: int = -1
    replacements: int = -1


@dataclass
class Sending:
    """Markers under way, with the partitions that have them."""

    effect: SendMarkers
    written: set[TopicPartition] = field(default_factory=set)


class TransactionWorld(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = START_MS
        self.coordinator_epoch = 0
        self.log: list[CoordinatorRecord] = []
        self.committed = 0
        self.commits_at_once = True
        self.boundaries: list[int] = []
        """Where uncommitted batches end: a crash keeps some of them, whole."""
        self.parked: list[tuple[int, Callable[[], None]]] = []
        self.machine = TransactionMachine(0, 0)
        self.sending: list[Sending] = []
        self.old_sendings: list[SendMarkers] = []
        self.partitions = {tp: Partition() for tp in PARTITIONS}
        self.producers: list[Producer] = []
        self.sent: list[Sent] = []
        self.owners: dict[ProducerIdAndEpoch, int] = {}
        self.answers: dict[Transaction, bool] = {}
        self.fates: dict[tuple[Transaction, int], bool] = {}
        self.reopened: set[Transaction] = set()
        """Ended in the older protocol and begun again by a late request: to the coordinator, that is another one."""
        self.next_id = 100
        self.next_value = 0
        self.disturbances = 0
        self.replacements = 0
        self.last_owner = -1

    @initialize(epoch=st.sampled_from([None, MAX_PRODUCER_EPOCH - 3, MAX_PRODUCER_EPOCH - 1, MAX_PRODUCER_EPOCH]))
    def begin_near_the_end_of_the_epochs(self, epoch: int | None) -> None:
        if epoch is not None:
            txn = TransactionMetadata(ID, 7, epoch, TIMEOUT_MS, TransactionState.EMPTY, START_MS)
            self.log.append(CoordinatorRecord(encode_key(ID), encode_value(txn)))
            self.machine.replay(self.log[0], 0, None, START_MS)
            self.committed = 1

    # --- The shard ----------------------------------------------------------------------------------------------------

    def submit(self, request: Any, on_answer: Callable[[Any], None]) -> None:
        """Handle, append, replay; the answer comes with the commit. As ShardRuntime does."""
        result = self.machine.handle(request, self.now_ms, Ticket(1))
        self.check_come_again(request, result.response)
        self.append(result.records)

        def release() -> None:
            for effect in result.effects:
                if isinstance(effect, SendMarkers):
                    self.start_sending(effect)
            if result.response is PRODUCER_ID_NEEDED:
                self.next_id += 1
                self.submit(WithProducerId(request, self.next_id), on_answer)
            else:
                on_answer(result.response)

        self.parked.append((len(self.log), release))
        if self.commits_at_once:
            self.committed = len(self.log)
            self.boundaries.clear()
        if self.committed == len(self.log):
            self.release()

    def check_come_again(self, request: Any, response: Any) -> None:
        """No fenced producer is told to retry, whatever comes of what is pending (T7)."""
        txn = self.stored()
        if not isinstance(request, AddPartitionsToTxnRequest | EndTxnRequest) or not isinstance(response, SemelError):
            return
        if response.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            assert txn is not None
            assert txn.state in PREPARED
            left = ProducerIdAndEpoch(txn.producer_id, txn.last_producer_epoch)
            may = {txn.next_producer, left} if isinstance(request, EndTxnRequest) else {txn.next_producer}
            assert request.producer in may, f"{request.producer} waits for nothing"

    def append(self, records: Any) -> None:
        for record in records:
            before = self.stored()
            self.log.append(record)
            self.machine.replay(record, len(self.log) - 1, None, self.now_ms)
            self.check_move(before, self.stored())
        if records:
            self.boundaries.append(len(self.log))

    def stored(self) -> TransactionMetadata | None:
        return self.machine._transactions.get(ID)

    def check_move(self, before: TransactionMetadata | None, after: TransactionMetadata | None) -> None:
        """T1, T3, T10, on every record as it is written."""
        assert before is None or after is not None or before.state not in OPEN
        if before is None or after is None:
            return
        assert is_legal(before.state, after.state, after.version)
        assert after.last_update_ms >= before.last_update_ms
        if after.state in COMPLETED and before.partitions:
            for tp in before.partitions:
                assert not self.partitions[tp].open.get(before.producer_id), f"{tp} has no marker yet (T3)"
        if after.producer_epoch > MAX_PRODUCER_EPOCH:
            assert after.state not in (TransactionState.EMPTY, TransactionState.ONGOING), "nobody's epoch"

    def release(self) -> None:
        while self.parked and self.parked[0][0] <= self.committed:
            self.parked.pop(0)[1]()

    @rule(at_once=st.booleans())
    def commit(self, at_once: bool) -> None:
        self.commits_at_once = at_once
        self.committed = len(self.log)
        self.boundaries.clear()
        self.release()

    @rule(keep=st.integers(0, 5), takeover=st.booleans())
    def crash(self, keep: int, takeover: bool) -> None:
        """Lose the machine, every answer and effect that was not let out, and some of what was not committed."""
        end = ([self.committed, *self.boundaries])[: keep + 1][-1]
        self.log = self.log[:end]
        self.committed = end
        self.boundaries.clear()
        self.parked.clear()
        for producer in self.producers:
            producer.busy = False
        if takeover:
            self.coordinator_epoch += 1
            self.old_sendings += [sending.effect for sending in self.sending]
            self.sending.clear()
        self.machine = TransactionMachine(0, self.coordinator_epoch)
        for offset, record in enumerate(self.log):
            self.machine.replay(CoordinatorRecord(record.key, record.value), offset, None, self.now_ms)
        for effect in self.machine.loaded(self.now_ms).effects:
            self.start_sending(effect)

    # --- Markers ------------------------------------------------------------------------------------------------------

    def start_sending(self, effect: SendMarkers) -> None:
        assert any(
            txn.last_update_ms == effect.decided_ms and txn.state in PREPARED
            for txn in (decode_value(ID, record.value) for record in self.log[: self.committed] if record.value)
        ), "the decision is committed before any marker (T3)"
        if all(sending.effect != effect for sending in self.sending):
            self.sending.append(Sending(effect))

    def write(self, marker: TxnMarker, tp: TopicPartition) -> ErrorCode:
        error, ended = self.partitions[tp].write_marker(marker)
        for value in ended:
            assert len({transaction for transaction, _ in ended}) == 1, "two transactions ended as one (T6)"
            self.fates[value] = marker.committed
        return error

    @precondition(lambda self: self.sending)
    @rule(data=st.data(), answered=st.booleans())
    def deliver_marker(self, data: st.DataObject, answered: bool) -> None:
        sending = data.draw(st.sampled_from(self.sending))
        left = [tp for tp in sending.effect.marker.partitions if tp not in sending.written]
        if left:
            tp = data.draw(st.sampled_from(left))
            error = self.write(sending.effect.marker, tp)
            if error is ErrorCode.INVALID_PRODUCER_EPOCH:
                assert not self.pending(sending.effect), "a pending decision's marker is never too late"
            if answered and error is not ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                sending.written.add(tp)

    @precondition(lambda self: self.sending)
    @rule(data=st.data(), lost=st.booleans())
    def report_markers(self, data: st.DataObject, lost: bool) -> None:
        sending = data.draw(st.sampled_from(self.sending))
        effect = sending.effect
        if sending.written != set(effect.marker.partitions):
            return
        report = MarkersWritten(ID, effect.decided_ms, effect.marker.producer, frozenset(sending.written))

        def heard(answer: Any) -> None:
            if not lost and sending in self.sending:
                self.sending.remove(sending)
                self.old_sendings.append(effect)

        self.submit(report, heard)

    def complete_all(self) -> None:
        """Deliver and report every marker under way, without trouble."""
        for sending in list(self.sending):
            effect = sending.effect
            for tp in effect.marker.partitions:
                self.write(effect.marker, tp)
            written = frozenset(effect.marker.partitions)
            self.sending.remove(sending)
            self.old_sendings.append(effect)
            self.submit(MarkersWritten(ID, effect.decided_ms, effect.marker.producer, written), lambda answer: None)

    @precondition(lambda self: self.old_sendings)
    @rule(data=st.data())
    def deliver_old_marker_or_report_again(self, data: st.DataObject) -> None:
        """A late marker of a completed decision. With the older protocol only a deposed coordinator may send one."""
        effect = data.draw(st.sampled_from(self.old_sendings))
        if effect.marker.version >= V2 or self.pending(effect):
            for tp in effect.marker.partitions:
                self.write(effect.marker, tp)
        if not self.pending(effect):
            report = MarkersWritten(ID, effect.decided_ms, effect.marker.producer, frozenset(effect.marker.partitions))
            self.submit(report, self.expect_ignored)

    @staticmethod
    def expect_ignored(answer: Any) -> None:
        assert answer is False, "a report about an earlier decision completes nothing"

    def pending(self, effect: SendMarkers) -> bool:
        txn = self.stored()
        return txn is not None and txn.state in PREPARED and txn.last_update_ms == effect.decided_ms

    # --- Producers ----------------------------------------------------------------------------------------------------

    @rule(version=st.sampled_from([V1, V2]))
    def start_producer(self, version: TransactionVersion) -> None:
        producer = Producer(len(self.producers), version)
        self.producers.append(producer)
        self.send_init(producer)

    @precondition(lambda self: any(p.producer == NO_PRODUCER and not p.busy for p in self.producers))
    @rule(data=st.data())
    def initialise_again(self, data: st.DataObject) -> None:
        waiting = [p for p in self.producers if p.producer == NO_PRODUCER and not p.busy]
        self.send_init(data.draw(st.sampled_from(waiting)))

    @precondition(lambda self: any(p.ready for p in self.producers))
    @rule(data=st.data(), heard=st.booleans())
    def bump_own_epoch(self, data: st.DataObject, heard: bool) -> None:
        self.send_init(data.draw(st.sampled_from([p for p in self.producers if p.ready])), heard)

    @precondition(lambda self: any(p.refused and not p.busy and not p.fenced for p in self.producers))
    @rule(data=st.data(), heard=st.booleans())
    def ask_to_go_on(self, data: st.DataObject, heard: bool) -> None:
        """What the SDK does after a refusal: a timeout has ended its transaction, or another instance has come."""
        waiting = [p for p in self.producers if p.refused and not p.busy and not p.fenced]
        self.send_init(data.draw(st.sampled_from(waiting)), heard)

    def send_init(self, producer: Producer, heard: bool = True) -> None:
        producer.busy = True
        self.disturbances += 1
        self.replacements += 1
        request = InitProducerIdRequest(ID, TIMEOUT_MS, producer.producer)
        if producer.unreplaced_since == self.replacements - 1:
            producer.unreplaced_since = self.replacements  # nobody can replace itself
        sent = Sent(request, producer, producer.current, disturbances=self.disturbances, replacements=self.replacements)
        self.send(sent, heard=heard)

    @precondition(lambda self: any(p.may_write for p in self.producers))
    @rule(data=st.data(), tp=st.sampled_from(PARTITIONS), delayed=st.booleans())
    def write_value(self, data: st.DataObject, tp: TopicPartition, delayed: bool) -> None:
        self.write_to(data.draw(st.sampled_from([p for p in self.producers if p.may_write])), tp, delayed)

    def write_to(self, producer: Producer, tp: TopicPartition, delayed: bool = False) -> None:
        self.next_value += 1
        topic_ids = {tp.topic: TOPIC_ID} if self.next_value % 3 else {}  # some come from nodes that know none
        request = AddPartitionsToTxnRequest(ID, producer.producer, (tp,), version=producer.version, topic_ids=topic_ids)
        sent = Sent(request, producer, producer.current, tp, self.next_value)
        if delayed and producer.version is V2:
            # Given up by its producer, it arrives whenever it does. (In the older protocol sequence numbers see to it.)
            self.sent.append(sent)
            return
        producer.busy = True
        self.send(sent)

    @precondition(lambda self: any(p.ready for p in self.producers))
    @rule(data=st.data(), commit=st.booleans(), heard=st.booleans())
    def end_transaction(self, data: st.DataObject, commit: bool, heard: bool) -> None:
        self.end(data.draw(st.sampled_from([p for p in self.producers if p.ready])), commit, heard)

    def end(self, producer: Producer, commit: bool, heard: bool = True) -> None:
        if producer.ending is not None:
            commit = producer.ending
        elif not producer.wrote and (commit or producer.version < V2):
            return
        producer.busy = True
        producer.ending = commit
        request = EndTxnRequest(ID, producer.producer, commit, producer.version)
        self.send(Sent(request, producer, producer.current), heard=heard)

    @rule(
        data=st.data(),
        version=st.sampled_from([V1, V2]),
        tps=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3),
        commit=st.booleans(),
        ends=st.booleans(),
        heard=st.booleans(),
        dawdles=st.booleans(),
        completes=st.booleans(),
    )
    def work(
        self,
        data: st.DataObject,
        version: TransactionVersion,
        tps: list[TopicPartition],
        commit: bool,
        ends: bool,
        heard: bool,
        dawdles: bool,
        completes: bool,
    ) -> None:
        """Get on with the job for a while, so that there is something to disturb."""
        for refused in [p for p in self.producers if p.refused and not p.busy and not p.fenced]:
            self.complete_all()
            self.send_init(refused)
        ready = [p for p in self.producers if p.ready]
        if not ready:
            ready = [Producer(len(self.producers), version)]
            self.producers += ready
            for _ in range(2):
                if ready[0].producer == NO_PRODUCER and not ready[0].busy:
                    self.complete_all()
                    self.send_init(ready[0])
        producer = data.draw(st.sampled_from(ready))
        for tp in tps:
            if producer.may_write:
                self.write_to(producer, tp)
        if dawdles:
            self.time_passes(TIMEOUT_MS)
        if ends and producer.ready:
            self.end(producer, commit, heard)
        if completes:
            self.complete_all()

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def deliver_again(self, data: st.DataObject) -> None:
        """Any request, once more, any time later; its answer goes nowhere."""
        sent = data.draw(st.sampled_from(self.sent))
        older = sent.producer.version < V2
        if older and isinstance(sent.request, EndTxnRequest) and sent.producer.current != sent.transaction:
            return  # nothing in the older protocol tells this from the next transaction's end
        if older and isinstance(sent.request, AddPartitionsToTxnRequest) and self.has_ended(sent):
            self.reopened.add(sent.transaction)
        is_init = isinstance(sent.request, InitProducerIdRequest)
        self.disturbances += is_init
        self.replacements += is_init
        self.deliver(sent, lambda answer: None)

    @staticmethod
    def has_ended(sent: Sent) -> bool:
        return sent.producer.ending is not None or sent.producer.current != sent.transaction

    @precondition(lambda self: any(isinstance(sent.request, EndTxnRequest) for sent in self.sent))
    @rule(data=st.data())
    def ask_for_the_opposite(self, data: st.DataObject) -> None:
        """A producer that wants to have it both ways."""
        ends = [sent for sent in self.sent if isinstance(sent.request, EndTxnRequest)]
        sent = data.draw(st.sampled_from(ends))
        if sent.producer.version < V2 and (
            sent.producer.current != sent.transaction or sent.transaction in self.reopened
        ):
            return
        opposite = dataclasses.replace(sent.request, committed=not sent.request.committed)
        self.disturbances += 1
        self.replacements += 1
        self.deliver(dataclasses.replace(sent, request=opposite), lambda answer: None)

    def send(self, sent: Sent, *, heard: bool = True) -> None:
        self.sent.append(sent)

        def answered(answer: Any) -> None:
            sent.producer.busy = False
            if heard:
                self.learn(sent, answer)

        self.deliver(sent, answered)

    def deliver(self, sent: Sent, on_answer: Callable[[Any], None]) -> None:
        def released(answer: Any) -> None:
            self.check_answer(sent, answer)
            if sent.partition is not None and not isinstance(answer, SemelError):
                self.append_value(sent)
            on_answer(answer)

        self.submit(sent.request, released)

    def append_value(self, sent: Sent) -> None:
        """The broker appends with the coordinator's word (T8), unless it has the batch already (P1)."""
        assert sent.partition is not None
        value = (sent.transaction, sent.value)
        partition = self.partitions[sent.partition]
        if value in self.fates or any(value in values for values in partition.open.values()):
            return
        txn = self.stored()
        if txn is None or txn.state is not TransactionState.ONGOING or sent.partition not in txn.partitions:
            return  # decided since: the verification guard of the log refuses (T8)
        if partition.append(sent.request.producer, value):
            assert sent.transaction not in self.answers, "a batch joined after the end (T6)"

    def check_answer(self, sent: Sent, answer: Any) -> None:
        """What may be answered at all, and to whom."""
        if isinstance(answer, SemelError):
            assert answer.code in {
                ErrorCode.CONCURRENT_TRANSACTIONS,
                ErrorCode.PRODUCER_FENCED,
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                ErrorCode.INVALID_TXN_STATE,
                ErrorCode.TRANSACTION_ABORTABLE,
            }
            return
        if isinstance(sent.request, EndTxnRequest):
            before = self.answers.setdefault(sent.transaction, sent.request.committed)
            assert before == sent.request.committed, "committed and aborted (T7)"
        if hasattr(answer, "producer"):
            assert 0 <= answer.producer.producer_epoch <= MAX_PRODUCER_EPOCH, "T10"
            owner = self.owners.setdefault(answer.producer, sent.producer.number)
            assert owner == sent.producer.number, "two producers have one identity (T5)"
            if sent.request.producer != NO_PRODUCER and answer.producer.producer_epoch > 0:
                assert self.last_owner == sent.producer.number, "a fenced producer came back (T5)"
            self.last_owner = sent.producer.number

    def learn(self, sent: Sent, answer: Any) -> None:
        producer = sent.producer
        if isinstance(answer, SemelError):
            if answer.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                assert producer.undisturbed_since != self.disturbances, f"refused without a cause: {answer}"
                if isinstance(sent.request, InitProducerIdRequest):
                    assert producer.unreplaced_since != self.replacements, f"fenced by time alone: {answer} (T9)"
                    producer.fenced = True
                producer.refused = True
            return
        if isinstance(sent.request, InitProducerIdRequest):
            producer.producer = answer.producer
            producer.refused = False
            producer.undisturbed_since = sent.disturbances
            producer.unreplaced_since = sent.replacements
            self.next_transaction(producer)
        elif isinstance(sent.request, AddPartitionsToTxnRequest):
            producer.wrote = True
        elif isinstance(sent.request, EndTxnRequest):
            if producer.version is V2:
                assert answer.producer != producer.producer, "every transaction has an epoch of its own (T6)"
                producer.producer = answer.producer
            self.next_transaction(producer)

    @staticmethod
    def next_transaction(producer: Producer) -> None:
        producer.transaction += 1
        producer.wrote = False
        producer.ending = None

    # --- Time and operators -------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([0, 1, TIMEOUT_MS // 2, TIMEOUT_MS, 8 * 24 * 3600 * 1000]))
    def wait(self, ms: int) -> None:
        self.time_passes(ms)

    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.disturbances += 1
            txn = self.stored()
            self.replacements += txn is not None and txn.state not in OPEN  # it expires: its holder begins again
            self.submit(TICK, lambda answer: None)

    @rule()
    def operator_aborts(self) -> None:
        def answered(answer: Any) -> None:
            assert answer is None or answer.code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)

        self.disturbances += 1
        self.replacements += 1
        self.submit(AbortTransactionRequest(ID), answered)

    # --- What must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def state_is_what_replay_gives(self) -> None:
        again = TransactionMachine(0, self.coordinator_epoch)
        for offset, record in enumerate(self.log):
            again.replay(CoordinatorRecord(record.key, record.value), offset, None, self.now_ms)
        assert again._transactions == self.machine._transactions
        assert again.held.sum() == self.machine.held.sum()

    @invariant()
    def a_transaction_has_one_fate(self) -> None:
        fates: defaultdict[Transaction, set[bool]] = defaultdict(set)
        for (transaction, _), fate in self.fates.items():
            fates[transaction].add(fate)
        for transaction, found in fates.items():
            assert len(found) == 1, f"transaction {transaction} is torn"
            if transaction in self.answers:
                assert found == {self.answers[transaction]}, "the answer was another one"

    def teardown(self) -> None:
        """Once the faults end, what is decided completes, and nothing hangs on a partition (KAFKA-12671)."""
        self.commit(True)
        self.complete_all()
        txn = self.stored()
        assert txn is None or txn.state not in PREPARED
        for tp, partition in self.partitions.items():
            for producer_id, values in partition.open.items():
                if values:
                    assert txn is not None
                    assert (txn.state, txn.producer_id) == (TransactionState.ONGOING, producer_id)
                    assert tp in txn.partitions
        self.a_transaction_has_one_fate()
        self.state_is_what_replay_gives()


TestTransactionWorld = TransactionWorld.TestCase
TestTransactionWorld.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_model_knows_every_field() -> None:
    """A field that the record forgets would be lost by every crash above without being looked at."""
    names = set(TransactionMetadata._fields)
    txn = TransactionMetadata(ID, 1, 2, 3, TransactionState.PREPARE_ABORT, 4, frozenset(PARTITIONS), 5, V2, 6, 7, 8)
    again = decode_value(ID, encode_value(txn))
    assert {name for name in names if getattr(again, name) == getattr(txn, name)} == names
