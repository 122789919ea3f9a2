"""Markers: not before the decision is committed, until all are written, and by one coordinator only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest
from coordinator_node import ID, P0, P1, Node, Partitions, code_of, spin
from ready_topic import topic_is_ready

from semel.protocol.api.transactions import (
    TransactionVersion,
    TxnMarker,
)
from semel.protocol.errors import ErrorCode, FatalError, RetriableError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition, new_topic_id
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.coordinator import TransactionCoordinator
from semel.txn_coordinator.effects import MarkersWritten, SendMarkers
from semel.txn_coordinator.markers import MarkerSender

TOPIC_ID = new_topic_id()
DISK_IS_GONE = RetriableError("the disk is gone", ErrorCode.KAFKA_STORAGE_ERROR)


# --- T3: nothing leaves before the decision is committed --------------------------------------------------------------


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
    """And so is the caller for the state: nobody learns of it of what a power cut could take."""

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


@pytest.mark.parametrize("at", ["append", "commit"])
def test_T5_a_fence_that_the_log_did_not_take_is_not_counted(at: str) -> None:
    async def scenario() -> None:
        node = await Node().load()
        await node.add(await node.init(), P0)
        if at == "append":
            node.log.refuse = DISK_IS_GONE
        else:
            node.log.auto_commit = False
        taken_over = asyncio.ensure_future(node.init())
        await spin()
        if at == "commit":
            await node.log.break_commit(DISK_IS_GONE)
        assert await code_of(asyncio.wait_for(taken_over, 10)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        node.log.auto_commit = True
        await spin()
        assert await node.state() == "Ongoing"
        assert (node.service.counts.fencings_taken, node.service.counts.timeouts) == (0, 0)
        assert await code_of(node.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
        await node.settled()
        assert (node.service.counts.fencings_taken, node.service.counts.timeouts) == (1, 0)
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


# --- T4: takeover -----------------------------------------------------------------------------------------------------


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
    """They would go out under an epoch that is over, beside the current ones."""

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
        later.service = TransactionCoordinator(
            partition_count=lambda: 1,
            open_log=node.logs.__getitem__,
            topic_ready=topic_is_ready,
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


# --- The sender -------------------------------------------------------------------------------------------------------


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
        node.partitions.gone = {P1}
        await node.end(producer)
        await node.settled()
        assert len(node.partitions.calls) == 1
        assert node.log.states()[-1] == "CompleteCommit"
        await node.service.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID])
def test_R8_a_marker_is_retried_until_the_deletion_of_its_topic_is_shown(error: ErrorCode) -> None:
    async def scenario() -> None:
        node = await Node(topics={P0.topic: TOPIC_ID}).load()
        producer = await node.init()
        await node.add(producer, P0, P1)
        node.partitions.answers[P1] = [error] * 9
        node.partitions.unreadable = RetriableError("no metadata", ErrorCode.BROKER_NOT_AVAILABLE)
        pause, pauses = node.service._sender._sleep, 0

        async def look_at(seconds: float) -> None:
            nonlocal pauses
            pauses += 1
            assert node.log.states()[-1] == "PrepareCommit"
            node.partitions.unreadable = None if pauses >= 3 else node.partitions.unreadable
            node.partitions.gone = {P1} if pauses >= 6 else set()
            await pause(seconds)

        node.service._sender._sleep = look_at
        await node.end(producer)
        await node.settled()
        assert [marker.partitions for marker in node.partitions.calls] == [(P0, P1)] + [(P1,)] * 6
        assert node.partitions.asked == [(frozenset({P1}), {P0.topic: TOPIC_ID})] * 7
        assert node.log.states()[-1] == "CompleteCommit"
        await node.service.close()

    asyncio.run(scenario())


def test_R8_the_ids_of_a_transactions_topics_survive_a_change_of_its_coordinator() -> None:
    async def scenario() -> None:
        node = await Node(topics={P0.topic: TOPIC_ID}).load()
        producer = await node.init()
        await node.add(producer, P0)
        await node.load(epoch=4)
        node.partitions.answers[P0] = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        await node.end(producer)
        await node.load(epoch=5)
        await node.settled()
        assert {str(marker.topic_ids) for marker in node.partitions.calls} == {str({P0.topic: TOPIC_ID})}
        assert {marker.coordinator_epoch for marker in node.partitions.calls} >= {5}
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

        sender = MarkerSender(partitions, report, TransactionConfig(transaction_markers_max_in_flight=2))
        marker = TxnMarker(ProducerIdAndEpoch(1, 0), 3, True, (P0,))
        for number in range(5):
            sender.send(0, SendMarkers(f"id-{number}", 7, marker))
        await spin()
        assert len(partitions.calls) == 2
        partitions.gate.set()
        await spin()
        assert len(partitions.calls) == 5

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
