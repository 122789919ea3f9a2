"""The transaction coordinator's shell, over the real shard runtime and a log in memory."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

import pytest
from counted_turns import every_look_takes_a_millisecond, rounds_of_the_loop
from memory_log import MemoryLog

from semel.protocol.api.shared_transactions import CommitSharedRequest, DescribeSharedRequest, OpenSharedRequest
from semel.protocol.api.transactions import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TransactionVersion,
    TxnMarker,
)
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError
from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicPartition
from semel.protocol.record_decoder import decode_records
from semel.runtime.clock import ManualClock
from semel.txn_coordinator import service as txn_service
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.effects import MarkersWritten, SendMarkers
from semel.txn_coordinator.markers import MarkerSender
from semel.txn_coordinator.schemas import decode_value
from semel.txn_coordinator.service import TransactionService

ID = "enrich-0"
P0, P1 = TopicPartition("enriched", 0), TopicPartition("enriched", 1)
TIMEOUT_MS = 60_000
DISK_IS_GONE = RetriableError("the disk is gone", ErrorCode.KAFKA_STORAGE_ERROR)


class Log(MemoryLog):
    """A log of __transaction_state."""

    def append_marker(
        self,
        producer: ProducerIdAndEpoch,
        coordinator_epoch: int,
        committed: bool,
        version: TransactionVersion,
        *,
        forged_epoch: int,
    ) -> int | None:
        raise AssertionError("no transaction includes __transaction_state")

    def states(self) -> list[str]:
        """Return the states of all records, in order; a tombstone is '-'."""
        records = [record for _, batch in self.batches for record in decode_records(batch)]
        return [decode_value(ID, record.value).state.label if record.value is not None else "-" for record in records]


class Partitions:
    """A `MarkerWriter` that does as it is told."""

    def __init__(self) -> None:
        self.calls: list[TxnMarker] = []
        self.answers: defaultdict[TopicPartition, list[ErrorCode]] = defaultdict(list)
        self.deleted: set[TopicPartition] = set()
        self.raises: list[BaseException] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def write_markers(self, marker: TxnMarker) -> Mapping[TopicPartition, ErrorCode]:
        self.calls.append(marker)
        await self.gate.wait()
        if self.raises:
            raise self.raises.pop(0)
        return {tp: self.answers[tp].pop(0) if self.answers[tp] else ErrorCode.NONE for tp in marker.partitions}

    def partition_exists(self, tp: TopicPartition) -> bool:
        return tp not in self.deleted


class ProducerIds:
    def __init__(self) -> None:
        self.given = 1000
        self.fails: SemelError | None = None

    async def next_producer_id(self) -> int:
        await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails
        self.given += 1
        return self.given


class Node:
    """A service with all that it needs."""

    def __init__(self, *, partition_count: int = 1, config: TransactionConfig | None = None) -> None:
        self.clock = ManualClock()
        self.logs = [Log() for _ in range(partition_count)]
        self.partitions = Partitions()
        self.ids = ProducerIds()
        self.pauses: list[float] = []
        self.service = TransactionService(
            partition_count=partition_count,
            open_log=self.logs.__getitem__,
            markers=self.partitions,
            producer_ids=self.ids,
            clock=self.clock,
            config=config,
            sleep=self._pause,
        )

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    @property
    def log(self) -> Log:
        return self.logs[0]

    async def load(self, epoch: int = 3) -> Node:
        for partition in range(len(self.logs)):
            await self.service.load(partition, epoch)
        return self

    async def init(self, producer: ProducerIdAndEpoch = NO_PRODUCER, *, name: str = ID) -> ProducerIdAndEpoch:
        return (await self.service.init_producer_id(InitProducerIdRequest(name, TIMEOUT_MS, producer))).producer

    async def add(self, producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> None:
        response = await self.service.add_partitions(AddPartitionsToTxnRequest(ID, producer, partitions))
        assert set(response.errors.values()) == {ErrorCode.NONE}

    async def end(self, producer: ProducerIdAndEpoch, *, commit: bool = True) -> ProducerIdAndEpoch:
        return (await self.service.end_txn(EndTxnRequest(ID, producer, commit))).producer

    async def state(self) -> str:
        return (await self.service.describe(DescribeTransactionRequest(ID))).state

    async def settled(self) -> None:
        """Let everything run that can, until no marker is under way."""
        for _ in range(1000):
            await asyncio.sleep(0)
            if self.service.pending_markers() == 0:
                return
        raise AssertionError("markers never come to an end")


async def spin() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def code_of(call: Coroutine[Any, Any, object]) -> ErrorCode:
    with pytest.raises(SemelError) as caught:
        await call
    return caught.value.code


def test_a_transaction_from_begin_to_end() -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        assert producer == (1001, 0)
        await node.add(producer, P0, P1)
        assert await node.end(producer) == (1001, 1)
        await node.settled()
        assert node.log.states() == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
        [marker] = node.partitions.calls
        assert marker == TxnMarker(ProducerIdAndEpoch(1001, 1), 3, True, (P0, P1), TransactionVersion.V2, coordinator=0)
        await node.service.close()

    asyncio.run(scenario())


# -- T3: nothing leaves before the decision is committed


@pytest.mark.parametrize("commit", [True, False])
def test_T3_no_marker_and_no_answer_before_the_decision_is_committed(commit: bool) -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0)
        node.log.auto_commit = False
        answer = asyncio.ensure_future(node.end(producer, commit=commit))
        await spin()
        assert node.log.states()[-1] == ("PrepareCommit" if commit else "PrepareAbort")
        assert not answer.done()
        assert node.partitions.calls == []
        await node.log.commit()
        assert await answer == (1001, 1)
        await spin()
        assert [marker.committed for marker in node.partitions.calls] == [commit]
        await node.service.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("commit", [True, False])
def test_D5_T7_a_repeated_end_is_answered_when_the_decision_is_durable(commit: bool) -> None:
    """And so is whoever asks for the state: nobody is told of what a power cut could take."""

    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0)
        node.partitions.gate.clear()
        first = await node.end(producer, commit=commit)
        decided_at = node.log.log_end_offset
        node.log.auto_commit = False
        node.partitions.gate.set()
        while node.log.log_end_offset == decided_at:  # noqa: ASYNC110 - the markers are reported on this loop
            await asyncio.sleep(0)
        again = asyncio.ensure_future(node.end(producer, commit=commit))
        asked = asyncio.ensure_future(node.state())
        await spin()
        assert not again.done()
        assert not asked.done()
        await node.log.commit()
        assert await again == first
        assert await asked == ("CompleteCommit" if commit else "CompleteAbort")
        node.log.auto_commit = True
        await node.service.close()

    asyncio.run(scenario())


def test_T3_a_decision_that_is_lost_sends_no_marker_and_is_made_again() -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0)
        node.log.auto_commit = False
        answer = asyncio.ensure_future(node.end(producer))
        await spin()
        await node.log.break_commit(DISK_IS_GONE)
        assert await code_of(asyncio.wait_for(answer, 10)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        node.log.auto_commit = True
        await spin()
        assert node.partitions.calls == []
        assert await node.state() == "Ongoing"
        assert await node.end(producer) == (1001, 1)
        await node.settled()
        assert node.log.states()[-1] == "CompleteCommit"
        await node.service.close()

    asyncio.run(scenario())


def test_T3_complete_is_recorded_after_the_last_partition() -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0, P1)
        node.partitions.answers[P1] = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT]
        seen: list[str] = []
        write = node.partitions.write_markers

        async def spy(marker: TxnMarker) -> Mapping[TopicPartition, ErrorCode]:
            seen.append(node.log.states()[-1])
            return await write(marker)

        node.partitions.write_markers = spy  # type: ignore[method-assign]
        await node.end(producer)
        await node.settled()
        assert seen == ["PrepareCommit"] * 3
        assert [marker.partitions for marker in node.partitions.calls] == [(P0, P1), (P1,), (P1,)]
        assert await node.state() == "CompleteCommit"
        await node.service.close()

    asyncio.run(scenario())


def test_T8_verification_answers_from_what_is_committed() -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        node.log.auto_commit = False
        adding = asyncio.ensure_future(node.add(producer, P0))
        await spin()
        request = AddPartitionsToTxnRequest(ID, producer, (P0, P1), version=TransactionVersion.V1)
        asking = asyncio.ensure_future(node.service.verify(request))
        await spin()
        assert not asking.done(), "that the partition is in the transaction is not durable yet"
        await node.log.commit()
        await adding
        assert (await asking).errors == {P0: ErrorCode.NONE, P1: ErrorCode.TRANSACTION_ABORTABLE}
        await node.service.close()

    asyncio.run(scenario())


# -- T4: takeover


def test_T4_the_next_coordinator_sends_again_under_its_own_epoch() -> None:
    async def scenario() -> None:
        node = await Node().load(epoch=3)
        producer = await node.init()
        await node.add(producer, P0)
        node.partitions.gate.clear()
        await node.end(producer)
        await spin()
        node.service.unload(0)
        assert await code_of(node.state()) is ErrorCode.NOT_COORDINATOR
        await spin()
        assert node.service.pending_markers() == 0
        node.partitions.gate.set()
        await node.load(epoch=4)
        await node.settled()
        assert [marker.coordinator_epoch for marker in node.partitions.calls] == [3, 4]
        assert node.log.states()[-1] == "CompleteCommit"
        await node.service.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("unloads", [False, True])
def test_T4_P9_a_new_term_stops_the_markers_of_the_old_one(unloads: bool) -> None:
    """They would go out under an epoch that is over, beside those of today."""

    async def scenario() -> None:
        node = await Node().load(epoch=3)
        producer = await node.init()
        await node.add(producer, P0)
        node.partitions.answers[P0] = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 5
        node.partitions.gate.clear()
        await node.end(producer)
        await spin()
        assert node.service.pending_markers() == 1
        if unloads:
            node.service.unload(0)
            assert node.service.pending_markers() == 0
        await node.load(epoch=4)
        await spin()
        assert node.service.pending_markers() == 1, "only those of this term"
        node.partitions.gate.set()
        await node.settled()
        epochs = [marker.coordinator_epoch for marker in node.partitions.calls]
        assert epochs == [3] + [4] * (len(epochs) - 1)
        assert len(epochs) == 1 + 6
        await node.service.close()

    asyncio.run(scenario())


def test_T4_a_restart_needs_nothing_but_the_log() -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0)
        node.partitions.gate.clear()
        await node.end(producer, commit=False)
        await spin()
        await node.service.close()
        later = Node()
        later.logs = node.logs
        later.service = TransactionService(
            partition_count=1,
            open_log=node.logs.__getitem__,
            markers=later.partitions,
            producer_ids=later.ids,
            clock=later.clock,
        )
        await later.load(epoch=9)
        await later.settled()
        assert [(marker.committed, marker.coordinator_epoch) for marker in later.partitions.calls] == [(False, 9)]
        assert node.log.states()[-1] == "CompleteAbort"
        await later.service.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("at", ["append", "commit"])
def test_T4_a_completion_that_could_not_be_recorded_is_recorded_after_the_reload(at: str) -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0)
        node.partitions.gate.clear()
        await node.end(producer)
        await spin()
        if at == "append":
            node.log.refuse = RetriableError("the disk is full", ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            node.log.auto_commit = False
        node.partitions.gate.set()
        await spin()
        if at == "commit":
            await node.log.break_commit(DISK_IS_GONE)
            node.log.auto_commit = True
        await node.settled()
        assert node.log.states()[-1] == "CompleteCommit"
        await node.service.close()

    asyncio.run(scenario())


# -- the sender


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_markers_are_tried_again_until_written(error: ErrorCode) -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0, P1)
        node.partitions.answers[P0] = [error] * 8
        await node.end(producer)
        await node.settled()
        assert [marker.partitions for marker in node.partitions.calls] == [(P0, P1)] + [(P0,)] * 8
        assert len(node.pauses) == 8
        assert max(node.pauses) <= 5
        assert node.log.states()[-1] == "CompleteCommit"
        await node.service.close()

    asyncio.run(scenario())


def test_markers_are_tried_again_when_the_way_to_the_partition_breaks() -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0)
        node.partitions.raises = [
            RetriableError("no connection", ErrorCode.NETWORK_EXCEPTION),
            RuntimeError("a bug"),
            asyncio.CancelledError(),
        ]
        await node.end(producer)
        await node.settled()
        assert len(node.partitions.calls) == 4
        assert node.log.states()[-1] == "CompleteCommit"
        await node.service.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "error",
    [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION],
)
def test_some_refusals_leave_nothing_to_write(error: ErrorCode) -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0)
        node.partitions.answers[P0] = [error]
        await node.end(producer)
        await node.settled()
        assert node.log.states()[-1] == "CompleteCommit"
        await node.service.close()

    asyncio.run(scenario())


def test_a_partition_that_was_deleted_needs_no_marker() -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0, P1)
        node.partitions.answers[P1] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        node.partitions.deleted = {P1}
        await node.end(producer)
        await node.settled()
        assert len(node.partitions.calls) == 1
        assert node.log.states()[-1] == "CompleteCommit"
        await node.service.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("raised", [True, False])
def test_P9_a_coordinator_that_was_replaced_stops(raised: bool) -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0, P1)
        fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if raised:
            node.partitions.raises = [FatalError("replaced", fenced)]
        else:
            node.partitions.answers[P1] = [fenced]
        await node.end(producer)
        await node.settled()
        assert len(node.partitions.calls) == 1
        assert node.log.states()[-1] == "PrepareCommit"
        await node.service.close()

    asyncio.run(scenario())


def test_one_decision_is_sent_by_one_task() -> None:
    async def scenario() -> None:
        partitions = Partitions()
        partitions.gate.clear()
        reports: list[MarkersWritten] = []

        async def report(partition: int, written: MarkersWritten) -> None:
            reports.append(written)

        sender = MarkerSender(partitions, report, TransactionConfig())
        marker = TxnMarker(ProducerIdAndEpoch(1, 0), 3, True, (P0,), TransactionVersion.V1)
        effect = SendMarkers(ID, 7, marker)
        sender.send(0, effect)
        sender.send(0, effect)
        assert sender.pending() == 1
        sender.send(0, replace(effect, decided_ms=8))
        assert sender.pending() == 2
        partitions.gate.set()
        await spin()
        assert len(partitions.calls) == 2
        assert [written.decided_ms for written in reports] == [7, 8]
        assert sender.pending() == 0

    asyncio.run(scenario())


def test_marker_requests_under_way_are_bounded() -> None:
    async def scenario() -> None:
        partitions = Partitions()
        partitions.gate.clear()

        async def report(partition: int, written: MarkersWritten) -> None:
            pass

        sender = MarkerSender(partitions, report, TransactionConfig(marker_writes_in_flight_max=2))
        marker = TxnMarker(ProducerIdAndEpoch(1, 0), 3, True, (P0,))
        for number in range(5):
            sender.send(0, SendMarkers(f"id-{number}", 7, marker))
        await spin()
        assert len(partitions.calls) == 2
        partitions.gate.set()
        await spin()
        assert len(partitions.calls) == 5

    asyncio.run(scenario())


# -- producer ids


def test_producer_ids_are_drawn_only_where_one_is_needed() -> None:
    async def scenario() -> None:
        node = await Node().load()
        assert (await node.service.init_producer_id(InitProducerIdRequest(None, 0))).producer == (1001, 0)
        assert await node.init() == (1002, 0)
        for epoch in range(1, 4):
            assert await node.init() == (1002, epoch)
        assert node.ids.given == 1002
        await node.service.close()

    asyncio.run(scenario())


def test_T10_an_exhausted_producer_rotates_through_the_shell() -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0)
        # Set the stage: the machine's own log is the only way in.
        from_log = decode_value(ID, last_value(node.log))
        await put(node, replace(from_log, producer_epoch=32766))
        last = ProducerIdAndEpoch(1001, 32766)
        assert await node.end(last) == (1002, 0)
        await node.settled()
        assert await node.end(last) == (1002, 0)
        assert node.ids.given == 1002
        await node.service.close()

    asyncio.run(scenario())


def last_value(log: Log) -> bytes:
    [record] = decode_records(log.batches[-1][1])
    assert record.value is not None
    return record.value


async def put(node: Node, txn: Any) -> None:
    from semel.protocol.batch_builder import encode_batch
    from semel.txn_coordinator.schemas import encode_key, encode_value

    node.service.unload(0)
    node.log.append_batch(bytearray(encode_batch([(0, encode_key(ID), encode_value(txn), ())])))
    await node.load()


def test_a_source_without_producer_ids_is_the_callers_answer() -> None:
    async def scenario() -> None:
        node = await Node().load()
        node.ids.fails = RetriableError("no block of ids", ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for request in (InitProducerIdRequest(None, 0), InitProducerIdRequest(ID, TIMEOUT_MS)):
            assert await code_of(node.service.init_producer_id(request)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert node.log.states() == []
        await node.service.close()

    asyncio.run(scenario())


# -- waiting for the previous transaction


def test_adding_partitions_waits_for_the_previous_transaction_to_complete() -> None:
    async def scenario() -> None:
        node = await Node(config=TransactionConfig(add_partitions_wait_ms=60_000)).load()
        producer = await node.init()
        await node.add(producer, P0)
        node.partitions.gate.clear()
        following = await node.end(producer)
        adding = [asyncio.ensure_future(node.add(following, tp)) for tp in (P0, P1)]
        await spin()
        assert not any(task.done() for task in adding)
        node.partitions.gate.set()
        await asyncio.wait_for(asyncio.gather(*adding), 10)
        assert node.log.states()[-3:] == ["CompleteCommit", "Ongoing", "Ongoing"]
        assert node.service._completions == {}
        await node.service.close()

    asyncio.run(scenario())


def test_adding_partitions_does_not_wait_for_ever() -> None:
    async def scenario() -> None:
        node = await Node(config=TransactionConfig(add_partitions_wait_ms=1)).load()
        producer = await node.init()
        await node.add(producer, P0)
        node.partitions.gate.clear()
        following = await node.end(producer)
        request = AddPartitionsToTxnRequest(ID, following, (P0,))
        assert await code_of(node.service.add_partitions(request)) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert await code_of(node.service.verify(request)) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert node.service._completions == {}
        await node.service.close()

    asyncio.run(scenario())


def test_whoever_waits_is_told_when_it_was_fenced_meanwhile() -> None:
    async def scenario() -> None:
        node = await Node(config=TransactionConfig(add_partitions_wait_ms=60_000)).load()
        producer = await node.init()
        await node.add(producer, P0)
        node.partitions.gate.clear()
        await node.end(producer)
        late = asyncio.ensure_future(node.service.add_partitions(AddPartitionsToTxnRequest(ID, producer, (P0,))))
        await spin()
        node.partitions.gate.set()
        assert await code_of(asyncio.wait_for(late, 10)) is ErrorCode.PRODUCER_FENCED
        await node.service.close()

    asyncio.run(scenario())


# -- routing and validation


@pytest.mark.parametrize("name", ["", "x" * 32_768, "\N{GRINNING FACE}" * 8_192])
def test_transactional_ids_that_no_record_can_hold_are_refused(name: str) -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = ProducerIdAndEpoch(1, 0)
        service = node.service
        for call in (
            service.init_producer_id(InitProducerIdRequest(name, TIMEOUT_MS)),
            service.add_partitions(AddPartitionsToTxnRequest(name, producer, (P0,))),
            service.verify(AddPartitionsToTxnRequest(name, producer, (P0,))),
            service.end_txn(EndTxnRequest(name, producer, True)),
            service.describe(DescribeTransactionRequest(name)),
            service.abort(AbortTransactionRequest(name)),
        ):
            assert await code_of(call) is ErrorCode.INVALID_REQUEST
        await service.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("producer", [ProducerIdAndEpoch(5, -1), ProducerIdAndEpoch(-1, 5)])
def test_half_an_identity_is_refused(producer: ProducerIdAndEpoch) -> None:
    async def scenario() -> None:
        node = await Node().load()
        assert await code_of(node.init(producer)) is ErrorCode.INVALID_REQUEST
        await node.service.close()

    asyncio.run(scenario())


def test_ids_go_to_their_partitions_and_lists_come_from_all() -> None:
    async def scenario() -> None:
        node = await Node(partition_count=4).load()
        names = [f"enrich-{number}" for number in range(12)]
        for name in names:
            await node.init(name=name)
        for partition, log in enumerate(node.logs):
            assert len(log.batches) == sum(node.service.partition_for(name) == partition for name in names)
        response = await node.service.list(ListTransactionsRequest(states=frozenset({"Empty", "Lost"})))
        assert [item.transactional_id for item in response.transactions] == sorted(names)
        assert response.unknown_states == ("Lost",)
        node.service.unload(node.service.partition_for(names[0]))
        assert await code_of(node.init(name=names[0])) is ErrorCode.NOT_COORDINATOR
        await node.service.close()

    asyncio.run(scenario())


def test_a_list_with_holes_is_refused() -> None:
    async def scenario() -> None:
        node = await Node(partition_count=2).load()
        await node.init()
        held = next(log for log in node.logs if log.batches)
        held.high_watermark = 0
        loading = node.service.load(node.logs.index(held), 4)
        await spin()
        request = ListTransactionsRequest()
        assert await code_of(node.service.list(request)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await code_of(node.state()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await held.commit()
        await loading
        assert len((await node.service.list(request)).transactions) == 1
        await node.service.close()

    asyncio.run(scenario())


def test_a_list_has_the_ids_that_match_as_a_whole() -> None:
    async def scenario() -> None:
        node = await Node(partition_count=2).load()
        for name in ("a-1", "b-1", "a-2", "é-1"):
            await node.init(name=name)

        async def found(pattern: str) -> list[str]:
            response = await node.service.list(ListTransactionsRequest(transactional_id_pattern=pattern))
            return [item.transactional_id for item in response.transactions]

        assert await found("a-.*") == ["a-1", "a-2"]
        assert await found("a") == []
        assert await found(".-1") == ["a-1", "b-1", "é-1"]
        bad = ListTransactionsRequest(transactional_id_pattern="(a")
        assert await code_of(node.service.list(bad)) is ErrorCode.INVALID_REGULAR_EXPRESSION
        await node.service.close()

    asyncio.run(scenario())


def test_S3_no_pattern_takes_long_to_match_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """`.*.*.*x` looked through an id of 1,000 characters for seconds."""

    async def scenario() -> None:
        node = await Node().load()
        await node.init(name="a" * 1_000)
        hard = ListTransactionsRequest(transactional_id_pattern=".*.*.*.*.*.*x")
        assert (await node.service.list(hard)).transactions == ()
        every_look_takes_a_millisecond(monkeypatch)
        wide = ListTransactionsRequest(transactional_id_pattern="(a?){100}x")
        listed, rounds = await rounds_of_the_loop(node.service.list(wide))
        assert listed.transactions == ()
        assert rounds >= 20  # of a hundred characters
        monkeypatch.setattr(txn_service, "EFFORT_MAX", 10_000)
        assert await code_of(node.service.list(wide)) is ErrorCode.INVALID_REGULAR_EXPRESSION
        await node.service.close()

    asyncio.run(scenario())


def test_T9_time_runs_through_the_shell() -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0)
        node.clock.advance(ms=TIMEOUT_MS)
        node.service.run_due_timers()
        await node.settled()
        assert node.log.states()[-2:] == ["PrepareAbort", "CompleteAbort"]
        assert await code_of(node.end(producer)) is ErrorCode.TRANSACTION_ABORTABLE
        node.clock.advance(ms=8 * 24 * 3600 * 1000)
        node.service.run_due_timers()
        await spin()
        assert node.log.states()[-1] == "-"
        await node.service.close()

    asyncio.run(scenario())


def test_T12_losers_that_a_decision_had_no_room_for_are_aborted_without_waiting_for_anything() -> None:
    async def scenario() -> None:
        node = await Node(config=TransactionConfig(record_bytes_max=1_000)).load()
        opening = OpenSharedRequest("job", "a", "token", TIMEOUT_MS)
        writers = [await node.service.open_shared(opening) for _ in range(30)]
        for writer in writers:
            assert writer.producer is not None
            await node.service.add_partitions(
                AddPartitionsToTxnRequest(writer.transactional_id, writer.producer, (P0,))
            )
        assert writers[0].producer is not None
        await node.service.commit_shared(CommitSharedRequest("job", "a", "token", (writers[0].producer,)))
        for _ in range(100):
            node.service.run_due_timers()
            await spin()
        await node.settled()
        assert (await node.service.describe_shared(DescribeSharedRequest("job"))).writers == ()
        assert [call.committed for call in node.partitions.calls] == [True, *[False] * 29]
        await node.service.close()

    asyncio.run(scenario())


def test_an_operators_abort_goes_through() -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0)
        await node.service.abort(AbortTransactionRequest(ID))
        await node.settled()
        assert await node.state() == "CompleteAbort"
        assert await code_of(node.end(producer)) is ErrorCode.PRODUCER_FENCED
        await node.service.close()

    asyncio.run(scenario())


def test_closing_stops_markers_and_answers_callers() -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        await node.add(producer, P0)
        node.partitions.gate.clear()
        await node.end(producer)
        await spin()
        node.log.auto_commit = False
        node.service.unload(0)
        await node.service.close()
        assert node.service.pending_markers() == 0
        assert await code_of(node.init()) is ErrorCode.NOT_COORDINATOR

    asyncio.run(scenario())
