"""Epochs that run out, instances that take an id from each other, coordinators and nodes that end in the middle."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from delayed_wire import (
    GROUP,
    ID,
    OLDER,
    A,
    B,
    Wire,
    attack,
    code_of,
    old_add,
    old_end,
)
from kafka_node import KafkaClient
from running_node import channel_to

import semel
from semel.broker.node import Node
from semel.cli.demo.processes import NodeProcess
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.transactions import EndTxnRequest, TransactionVersion
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ProducerIdAndEpoch, TopicPartition
from semel.protocol.v1 import transactions_pb2
from semel.txn_coordinator.schemas import encode_key, encode_value
from semel.txn_coordinator.state import TransactionMetadata, TransactionState

# --- Epochs -----------------------------------------------------------------------------------------------------------


async def set_epoch(node: Node, epoch: int, state: TransactionState = TransactionState.EMPTY) -> ProducerIdAndEpoch:
    """Write into the coordinator's log that the transactional id stands at an epoch, for the next start to read."""
    await node.transactions.topic_ready()
    producer = ProducerIdAndEpoch(await node.transactions._producer_ids.next_producer_id(), epoch)
    txn = TransactionMetadata(ID, producer.producer_id, epoch, 60_000, state, node.clock.now_ms())
    log = node.partition(TopicPartition(TRANSACTIONS_TOPIC, node.transactions.partition_for(ID)))
    assert log is not None
    record = (node.clock.now_ms(), encode_key(ID), encode_value(txn), ())
    await log.wait_committed(log.append_batch(bytearray(encode_batch([record]))))
    return producer


def test_T10_epochs_run_out_over_the_wire_in_commits_and_aborts(tmp_path: Path) -> None:
    async def prepare(wire: Wire) -> None:
        await set_epoch(wire.node, 32_760)

    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        assert producer.producer_epoch == 32_761
        ids = {producer.producer_id}
        expected = []
        former = producer
        for number in range(12):
            commit = number % 3 != 1
            await wire.send_for_sure(producer, b"%d" % number)
            assert await wire.commit_offset(producer, number) is None
            following = await wire.end_for_sure(producer, commit)
            assert isinstance(following, ProducerIdAndEpoch)
            assert await wire.end_for_sure(producer, commit) == following, "repeated, also across the rotation (T7)"
            assert following.producer_epoch <= 32_766
            await wire.settled()
            if commit:
                expected.append(b"%d" % number)
                assert await wire.committed() == number
            former, producer = producer, following
            assert (await wire.send(former, b"late", sequence=1))[0] in (
                ErrorCode.INVALID_PRODUCER_EPOCH,
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            )
            assert await wire.commit_offset(former, 99) in (
                ErrorCode.PRODUCER_FENCED,
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            )
            ids.add(producer.producer_id)
        assert len(ids) == 2, "rotated exactly once"
        assert await wire.read() == expected

    attack(tmp_path, prepare)
    attack(tmp_path, test)


@pytest.mark.parametrize("how", ["admin", "init", "own init"])
def test_T10_the_last_epoch_is_fenced_and_the_id_rotates_once(tmp_path: Path, how: str) -> None:
    async def prepare(wire: Wire) -> None:
        await set_epoch(wire.node, 32_765)

    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        assert producer.producer_epoch == 32_766
        await wire.send_for_sure(producer, b"x")
        if how == "admin":
            await wire.calls.AbortTransaction(transactions_pb2.AbortTransactionRequest(transactional_id=ID))
        else:
            held = producer if how == "own init" else None
            assert await wire.init(held) is ErrorCode.CONCURRENT_TRANSACTIONS
        await wire.settled()
        assert await wire.end(producer) in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE)
        assert (await wire.send(producer, b"late", sequence=1))[0] is ErrorCode.INVALID_PRODUCER_EPOCH
        following = await (wire.init(producer) if how == "own init" else wire.begin())
        assert isinstance(following, ProducerIdAndEpoch)
        assert following.producer_epoch == 0
        assert following.producer_id != producer.producer_id
        await wire.send_for_sure(following, b"y")
        await wire.end_for_sure(following)
        await wire.settled()
        assert await wire.read() == [b"y"]

    attack(tmp_path, prepare)
    attack(tmp_path, test)


# --- Several at once --------------------------------------------------------------------------------------------------


def test_T5_of_instances_that_start_at_the_same_moment_only_the_last_can_write(tmp_path: Path) -> None:
    async def test(wire: Wire) -> None:
        async def instance() -> ProducerIdAndEpoch:
            return await wire.begin()

        found = await asyncio.gather(*(instance() for _ in range(8)))
        assert len(set(found)) == len(found), "no identity is given twice"
        assert len({producer.producer_id for producer in found}) == 1
        last = max(found, key=lambda producer: producer.producer_epoch)
        for producer in found:
            error, _ = await wire.send(producer, b"%d" % producer.producer_epoch)
            assert error is (ErrorCode.NONE if producer == last else ErrorCode.INVALID_PRODUCER_EPOCH)
        await wire.end_for_sure(last)
        await wire.settled()
        assert await wire.read() == [b"%d" % last.producer_epoch]

    attack(tmp_path, test)


def test_T5_E1_two_instances_that_take_the_id_from_each_other_tear_nothing(tmp_path: Path) -> None:
    """Each takes over, writes to two partitions, and ends, without any regard for the other."""

    async def test(wire: Wire) -> None:
        told: list[tuple[bytes, bool | None]] = []

        async def instance(name: str, mine: Wire) -> None:
            producer: ProducerIdAndEpoch | ErrorCode = ErrorCode.NONE
            for number in range(80):
                if not isinstance(producer, ProducerIdAndEpoch):
                    producer = await mine.begin()
                value = f"{name} {number}".encode()
                errors = []
                for tp in (A, B):
                    error = ErrorCode.CONCURRENT_TRANSACTIONS
                    while error is ErrorCode.CONCURRENT_TRANSACTIONS:
                        error, _ = await mine.send(producer, value, tp=tp)
                    errors.append(error)
                commit = set(errors) == {ErrorCode.NONE}
                ended = await mine.end_for_sure(producer, commit)
                if isinstance(ended, ProducerIdAndEpoch):
                    told.append((value, commit))
                else:
                    assert ended in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE), ended
                    told.append((value, None))
                # Now and then it forgets who it was, as after a crash.
                producer = ErrorCode.NONE if number % 7 == 0 else ended

        async with channel_to(wire.node) as channel:
            kafka = [await KafkaClient.connect(wire.node.kafka_address.port) for _ in range(2)]
            await asyncio.gather(
                *(instance(name, Wire(wire.node, mine, channel)) for name, mine in zip("xy", kafka, strict=True))
            )
        await wire.settled()
        first, second = await wire.read(A), await wire.read(B)
        assert first == second, "torn"
        assert len(set(first)) == len(first)
        assert {value for value, committed in told if committed} <= set(first)
        assert not {value for value, committed in told if committed is False} & set(first)
        assert any(committed is None for _, committed in told), "they never met"

    attack(tmp_path, test)


def test_T3_T7_an_operators_abort_in_the_midst_of_a_commit_ends_it_one_way_for_all(tmp_path: Path) -> None:
    async def test(wire: Wire) -> None:
        expected = []
        outcomes = set()
        for number in range(60):
            producer = await wire.begin()
            value = b"%d" % number
            for tp in (A, B):
                await wire.send_for_sure(producer, value, tp=tp)
            assert await wire.commit_offset(producer, number) is None

            async def abort() -> ErrorCode | None:
                try:
                    await wire.calls.AbortTransaction(transactions_pb2.AbortTransactionRequest(transactional_id=ID))
                except grpc.aio.AioRpcError as error:
                    return code_of(error)
                return None

            order = [wire.end_for_sure(producer), abort()]
            if number % 2:
                order.reverse()
            found = await asyncio.gather(*order)
            ended, refusal = reversed(found) if number % 2 else found
            committed = isinstance(ended, ProducerIdAndEpoch)
            assert committed == (refusal is ErrorCode.INVALID_TXN_STATE), (ended, refusal)
            assert committed or ended is ErrorCode.PRODUCER_FENCED
            await wire.settled()
            if committed:
                expected.append(value)
                assert await wire.committed() == number
            outcomes.add(committed)
        assert await wire.read(A) == await wire.read(B) == expected
        assert outcomes == {True, False}, "the race was never open"

    attack(tmp_path, test)


def test_T7_the_older_protocols_end_may_be_repeated_until_the_next_transaction(tmp_path: Path) -> None:
    async def test(wire: Wire) -> None:
        node = wire.node
        await node.transactions.topic_ready()
        producer = (await node.transactions.init_producer_id(InitProducerIdRequest(ID, 60_000))).producer
        await old_add(node, producer, A)
        await wire.send_for_sure(producer, b"x", version=OLDER)
        for _ in range(3):
            await old_end(node, producer, True)
        with pytest.raises(SemelError) as refused:
            await node.transactions.end_txn(EndTxnRequest(ID, producer, False, TransactionVersion.V1))
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
        await wire.settled()
        assert wire.end_of(A) == 2
        assert node.partition(TopicPartition(OFFSETS_TOPIC, 0)) is None, "nothing was made that nobody asked for"

    attack(tmp_path, test)


# --- The node dies ----------------------------------------------------------------------------------------------------


def test_T3_T4_a_decision_that_was_answered_survives_a_node_that_dies_before_its_markers(tmp_path: Path) -> None:
    """SIGKILL as soon as EndTransaction is answered, before, amid or after the markers, as it happens to come."""
    node = NodeProcess(tmp_path / "data", settings=["offsets.topic.num.partitions=2"])
    node.start()
    expected: list[bytes] = []
    offset = None

    async def transact(number: int, commit: bool, held: ProducerIdAndEpoch | None) -> ProducerIdAndEpoch:
        kafka = await KafkaClient.connect(int(node.kafka_address.rpartition(":")[2]))
        async with grpc.aio.insecure_channel(node.bootstrap) as channel:
            wire = Wire(None, kafka, channel)  # type: ignore[arg-type]  # another process's node is out of reach
            producer = held or await wire.begin()
            for tp in (A, B):
                await wire.send_for_sure(producer, b"%d" % number, tp=tp)
            assert await wire.commit_offset(producer, number) is None
            following = await wire.end(producer, commit)
            node.kill()
            assert isinstance(following, ProducerIdAndEpoch)
        await kafka.close()
        node.start()
        async with grpc.aio.insecure_channel(node.bootstrap) as channel:
            wire = Wire(None, kafka, channel)  # type: ignore[arg-type]
            answers = []
            while not answers or answers[-1] in (
                ErrorCode.CONCURRENT_TRANSACTIONS,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ):
                answers.append(await wire.end(producer, commit))
            assert answers[-1] == following, "the same answer, from the coordinator's next life (T7)"
            assert await wire.end(producer, not commit) is ErrorCode.INVALID_TXN_STATE
        return following

    try:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("a", partitions=2)
        producer = None
        for number in range(6):
            commit = number % 3 != 1
            producer = asyncio.run(transact(number, commit, producer))
            if commit:
                expected.append(b"%d" % number)
                offset = number
            with semel.Consumer(node.bootstrap, group=GROUP) as reader:
                reader.assign([A, B])
                place = reader.committed([A])[A]
                assert (None if place is None else place.offset) == offset
                reader.seek_to_beginning()
                ends, found = reader.end_offsets(), {A: [], B: []}
                while any((reader.position(tp) or 0) < end for tp, end in ends.items()):
                    for record in reader.poll(1.0) or ():
                        found[semel.TopicPartition(record.topic, record.partition)].append(record.value)
            assert found == {A: expected, B: expected}
        assert node.stop() == 0
    finally:
        node.kill()
