"""Producer ids, adding partitions, and markers into ordinary partitions and into the groups' topic."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from held_executor import HeldExecutor
from kafka_node import FakeNode, turns, until
from running_node import batch, create_topic, run_with_node, running_node

from semel.broker.handlers.add_partitions import add_partitions
from semel.broker.handlers.offset_commit import commit_offsets
from semel.broker.handlers.produce.handler import ProduceHandler
from semel.broker.handlers.topics.changes import delete_topics
from semel.broker.handlers.write_txn_markers import LocalMarkerWriter
from semel.broker.log.journal import Journal, JournalConfig
from semel.broker.logs.commit_tracker import CommitTracker
from semel.broker.node import Node
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import OffsetCommitRequest, OffsetFetchRequest
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    TxnMarker,
)
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import OFFSETS_TOPIC, ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest
from semel.runtime.simulated_storage import SimulatedStorage

TP = TopicPartition("a", 0)

with_node = partial(run_with_node, topics={"a": 2})


async def begin(node: Node, transactional_id: str = "t") -> ProducerIdAndEpoch:
    await node.transactions.topic_ready()
    request = InitProducerIdRequest(transactional_id, 60_000)
    return (await node.transactions.init_producer_id(request)).producer


async def produce(node: Node, producer: ProducerIdAndEpoch, tp: TopicPartition = TP) -> None:
    data = batch(
        b"v",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    request = ProduceRequest([ProducePartition(tp.topic, tp.partition, data)], "t", -1, 5_000)
    response = await ProduceHandler(node).produce(request)
    assert response.partitions[0].error is ErrorCode.NONE, response


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    async def main() -> None:
        given: list[int] = []
        for _ in range(2):
            async with running_node(tmp_path) as node:
                request = InitProducerIdRequest(None, 0)
                # More than the block of the start, and one beyond it.
                answers = await asyncio.gather(*(node.transactions.init_producer_id(request) for _ in range(2500)))
                given += [answer.producer.producer_id for answer in answers]
        assert len(set(given)) == len(given) == 5000
        assert max(given) < 6000

    asyncio.run(main())


def test_all_partitions_join_or_none(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        producer = await begin(node)
        unknown = TopicPartition("nope", 0)
        internal = TopicPartition(OFFSETS_TOPIC, 0)
        response = await add_partitions(node, AddPartitionsToTxnRequest("t", producer, (TP, unknown, internal)))
        assert response.errors == {
            TP: ErrorCode.OPERATION_NOT_ATTEMPTED,
            unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            internal: ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert (await node.transactions.describe(DescribeTransactionRequest("t"))).partitions == ()
        response = await add_partitions(node, AddPartitionsToTxnRequest("t", producer, (TP,)))
        assert response.errors == {TP: ErrorCode.NONE}

    with_node(tmp_path, test)


@pytest.mark.parametrize("committed", [True, False])
def test_O1_markers_end_records_and_offsets_together(tmp_path: Path, committed: bool) -> None:
    async def test(node: Node) -> None:
        producer = await begin(node)
        await produce(node, producer)
        offsets = {TP: OffsetAndMetadata(9)}
        await commit_offsets(node, OffsetCommitRequest("g", -1, "", None, offsets, "t", producer))
        partition = node.partition(TP)
        assert partition is not None
        assert partition.last_stable_offset == 0
        await node.transactions.end_txn(EndTxnRequest("t", producer, committed))
        # The next transaction waits for the markers, so they are there when partitions can be added again.
        again = ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + 1)
        response = await add_partitions(node, AddPartitionsToTxnRequest("t", again, (TP,)))
        assert response.errors == {TP: ErrorCode.NONE}
        assert partition.last_stable_offset == 2
        found = (await node.groups.fetch_offsets(OffsetFetchRequest("g", (TP,)))).offsets[TP]
        assert (found.error, found.offset) == (ErrorCode.NONE, 9 if committed else -1)

    with_node(tmp_path, test)


def test_T11_a_transaction_ends_though_a_topic_in_it_was_deleted(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "b")
        producer = await begin(node)
        await produce(node, producer, TopicPartition("b", 0))
        await produce(node, producer)
        await delete_topics(node, ["b"])
        await node.transactions.end_txn(EndTxnRequest("t", producer, True))
        again = ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + 1)
        await add_partitions(node, AddPartitionsToTxnRequest("t", again, (TP,)))
        partition = node.partition(TP)
        assert partition is not None
        assert partition.last_stable_offset == 2

    with_node(tmp_path, test)


def test_markers_say_for_each_partition_how_it_went(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        writer = LocalMarkerWriter(node)
        missing = TopicPartition("nope", 0)
        marker = TxnMarker(ProducerIdAndEpoch(7, 0), 3, True, (TP, missing, TopicPartition("a", 1)))
        assert await writer.write_markers(marker) == {
            TP: ErrorCode.NONE,
            missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            TopicPartition("a", 1): ErrorCode.NONE,
        }
        assert await writer.deleted((TP, missing), {}) == {missing}

    with_node(tmp_path, test)


def test_O1_T3_a_repeated_marker_counts_when_the_first_one_is_durable() -> None:
    """The coordinator records Complete by this word, and then nobody would write the marker again."""

    async def test() -> None:
        node = FakeNode("/n", storage=SimulatedStorage())
        executor = HeldExecutor()
        node.storage.make_folder("/n")
        node.journal = Journal.open(
            node.storage,
            "/n/journal",
            clock=node.clock,
            config=JournalConfig(journal_inline_sync_max_bytes=0),
            executor=executor,
        )
        node.commits = CommitTracker(node.journal)
        (partition,) = node.create("a")
        writer = LocalMarkerWriter(node)  # type: ignore[arg-type]
        marker = TxnMarker(ProducerIdAndEpoch(7, 1), 3, True, (TP,))
        first = asyncio.create_task(writer.write_markers(marker))
        await until(lambda: bool(executor.held))
        repeated = asyncio.create_task(writer.write_markers(marker))
        await turns(10)
        assert partition.log_end_offset == 1, "it is appended once (P9)"
        assert not first.done()
        assert not repeated.done()
        executor.run()
        assert await first == await repeated == {TP: ErrorCode.NONE}
        node.close()

    asyncio.run(test())


def test_P9_a_marker_of_an_older_coordinator_is_refused(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        writer = LocalMarkerWriter(node)
        producer = ProducerIdAndEpoch(7, 0)
        assert (await writer.write_markers(TxnMarker(producer, 3, True, (TP,))))[TP] is ErrorCode.NONE
        old = await writer.write_markers(TxnMarker(producer, 2, True, (TP,)))
        assert old[TP] is ErrorCode.TRANSACTION_COORDINATOR_FENCED

    with_node(tmp_path, test)


def test_P9_a_repeated_marker_succeeds_and_adds_nothing(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        writer = LocalMarkerWriter(node)
        producer = await begin(node)
        await produce(node, producer)
        marker = TxnMarker(ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + 1), 0, True, (TP,))
        partition = node.partition(TP)
        assert partition is not None
        for _ in range(2):
            assert (await writer.write_markers(marker))[TP] is ErrorCode.NONE
            assert partition.log_end_offset == 2

    with_node(tmp_path, test)
