"""The transaction coordinator's shell, over the real shard runtime and a log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from coordinator_node import ID, P0, P1, TIMEOUT_MS, Log, Node, code_of, spin
from counted_turns import every_look_takes_a_millisecond, rounds_of_the_loop
from ready_topic import NoTopic

from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.shared_transactions import (
    AbortSharedRequest,
    CommitSharedRequest,
    DescribeSharedRequest,
    LeaveSharedRequest,
    OpenSharedRequest,
)
from semel.protocol.api.transactions import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TransactionVersion,
    TxnMarker,
)
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch
from semel.protocol.record_decoder import decode_records
from semel.txn_coordinator import coordinator as txn_coordinator
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.coordinator import TransactionCoordinator
from semel.txn_coordinator.schemas import decode_value, encode_key, encode_value
from semel.txn_coordinator.state import TransactionMetadata

CALLS: dict[str, Callable[[TransactionCoordinator, ProducerIdAndEpoch], Coroutine[Any, Any, Any]]] = {
    "init": lambda service, _: service.init_producer_id(InitProducerIdRequest(ID, TIMEOUT_MS, NO_PRODUCER)),
    "add": lambda service, producer: service.add_partitions(AddPartitionsToTxnRequest(ID, producer, (P0,))),
    "verify": lambda service, producer: service.verify(AddPartitionsToTxnRequest(ID, producer, (P0,))),
    "end": lambda service, producer: service.end_txn(EndTxnRequest(ID, producer, True)),
    "abort": lambda service, _: service.abort(AbortTransactionRequest(ID)),
    "open shared": lambda service, _: service.open_shared(OpenSharedRequest("k", "a", "t", TIMEOUT_MS)),
    "commit shared": lambda service, _: service.commit_shared(CommitSharedRequest("k", "a", "t", ())),
    "abort shared": lambda service, _: service.abort_shared(AbortSharedRequest("k", "a")),
    "leave shared": lambda service, producer: service.leave_shared(LeaveSharedRequest("k", "a", producer)),
    "describe shared": lambda service, _: service.describe_shared(DescribeSharedRequest("k")),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_its_topic_made_before_a_machine_is_asked(name: str) -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        written = len(node.log.states())
        topic = node.service.topic_ready = NoTopic()
        assert await code_of(CALLS[name](node.service, producer)) is ErrorCode.NOT_COORDINATOR
        assert topic.creations == 1
        assert len(node.log.states()) == written
        await node.service.close()

    asyncio.run(scenario())


def test_lists_descriptions_ids_without_a_name_and_batches_make_no_topic() -> None:
    async def scenario() -> None:
        node = await Node().load()
        producer = await node.init()
        topic = node.service.topic_ready = NoTopic()
        listed = await node.service.list(ListTransactionsRequest(frozenset({"Ongoing", "Nonsense"})))
        assert (listed.transactions, listed.unknown_states) == ((), ("Nonsense",))
        described = node.service.describe(DescribeTransactionRequest(ID))
        assert await code_of(described) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        await node.service.init_producer_id(InitProducerIdRequest(None, TIMEOUT_MS, NO_PRODUCER))
        adding = AddPartitionsToTxnRequest(ID, producer, (P0,))
        assert (await node.service.check_batches(adding)).errors == {P0: ErrorCode.NONE}
        found = await node.service.check_batches(replace(adding, partitions=(P0, P1), verify_only=True))
        assert found.errors == {P0: ErrorCode.NONE, P1: ErrorCode.TRANSACTION_ABORTABLE}
        assert topic.creations == 0
        await node.service.close()

    asyncio.run(scenario())


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


# --- Producer ids -----------------------------------------------------------------------------------------------------


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
        await put(node, from_log._replace(producer_epoch=32766))
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


async def put(node: Node, txn: TransactionMetadata) -> None:
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


# --- Waiting for the previous transaction -----------------------------------------------------------------------------


def test_adding_partitions_waits_for_the_previous_transaction_to_complete() -> None:
    async def scenario() -> None:
        node = await Node(config=TransactionConfig(add_partitions_to_txn_retry_backoff_max_ms=60_000)).load()
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
        node = await Node(config=TransactionConfig(add_partitions_to_txn_retry_backoff_max_ms=1)).load()
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
        node = await Node(config=TransactionConfig(add_partitions_to_txn_retry_backoff_max_ms=60_000)).load()
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


# --- Routing and validation -------------------------------------------------------------------------------------------


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
        monkeypatch.setattr(txn_coordinator, "EFFORT_MAX", 10_000)
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
        assert (node.service.counts.fencings_taken, node.service.counts.timeouts) == (1, 1)
        assert await code_of(node.end(producer)) is ErrorCode.TRANSACTION_ABORTABLE
        node.clock.advance(ms=8 * 24 * 3600 * 1000)
        node.service.run_due_timers()
        await spin()
        assert node.log.states()[-1] == "-"
        await node.service.close()

    asyncio.run(scenario())


def test_T12_losers_that_a_decision_had_no_room_for_are_aborted_without_waiting_for_anything() -> None:
    async def scenario() -> None:
        node = await Node(config=TransactionConfig(transaction_record_max_bytes=1_000)).load()
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
