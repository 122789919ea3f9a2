"""R8: a marker is given up only for a topic that was deleted, by its id; never for one that is not known here yet."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from kafka_node import until
from running_node import batch, create_topic, run_with_node

from semel.broker.handlers.add_partitions import add_partitions
from semel.broker.handlers.produce.handler import ProduceHandler
from semel.broker.handlers.topics.changes import delete_topics
from semel.broker.handlers.write_txn_markers import LocalMarkerWriter
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import PartitionState, TopicCreated
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.metadata.image import MetadataImage
from semel.broker.node import Node
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    TransactionVersion,
    TxnMarker,
)
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TRANSACTIONS_TOPIC, ProducerIdAndEpoch, TopicId, TopicPartition, new_topic_id
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest
from semel.txn_coordinator.prepare import prepare_add_partitions, prepare_end
from semel.txn_coordinator.schemas import encode_key, encode_value

ID = "t"
KEPT, MADE = TopicPartition("kept", 0), TopicPartition("made", 0)

with_node = partial(run_with_node, topics={"kept": 1})


async def begin(node: Node) -> ProducerIdAndEpoch:
    await node.transactions.topic_ready()
    return (await node.transactions.init_producer_id(InitProducerIdRequest(ID, 60_000))).producer


async def produce(
    node: Node, producer: ProducerIdAndEpoch, tp: TopicPartition, sequence: int = 0, version: int = 12
) -> ErrorCode:
    data = batch(
        b"v",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )
    request = ProduceRequest([ProducePartition(tp.topic, tp.partition, data)], ID, -1, 5_000)
    response = await ProduceHandler(node).produce(request, version=version)
    return response.partitions[0].error


def log_of(node: Node, tp: TopicPartition) -> Partition:
    partition = node.partition(tp)
    assert partition is not None
    return partition


async def state(node: Node) -> str:
    return (await node.transactions.describe(DescribeTransactionRequest(ID))).state


async def made_by_another_node(node: Node, tp: TopicPartition) -> TopicId:
    """Create a topic in the metadata's database alone: this node has not read that yet."""
    metadata, node_id = node.metadata, node.config.node_id
    created = TopicCreated(tp.topic, new_topic_id(), (PartitionState(node_id, 0, (node_id,), (node_id,)),))
    write = partial(metadata._store.append, [created], after=metadata.image.position, writer=metadata._writer, now_ms=0)
    await metadata._off_loop(write)
    assert metadata.topic(tp.topic) is None
    return created.topic_id


async def take_over(node: Node, topic_ids: dict[str, TopicId], *partitions: TopicPartition) -> None:
    """Have the coordinator find a commit in its log that another one has decided."""
    number = node.transactions.partition_for(ID)
    [txn] = [found for each in node.transactions.machines() if (found := each._transactions.get(ID)) is not None]
    now_ms, version = node.clock.now_ms(), TransactionVersion.V2
    ongoing = prepare_add_partitions(txn, partitions, version, now_ms, topic_ids=topic_ids)
    decided = prepare_end(ongoing, committed=True, version=version, now_ms=now_ms)
    log = log_of(node, TopicPartition(TRANSACTIONS_TOPIC, number))
    log.append_batch(bytearray(encode_batch([(now_ms, encode_key(ID), encode_value(decided), ())])))
    await node.transactions.load(number, 1)


@pytest.mark.parametrize("has_id", [True, False], ids=["with its id", "a record from before ids"])
def test_R8_T3_a_coordinator_whose_metadata_lags_writes_the_marker_all_the_same(tmp_path: Path, has_id: bool) -> None:
    """It has taken a transaction over whose topic it does not know: to give up would leave data that nobody decides."""

    async def test(node: Node) -> None:
        await begin(node)
        topic_id = await made_by_another_node(node, MADE)
        await take_over(node, {MADE.topic: topic_id} if has_id else {}, KEPT, MADE)
        await until(lambda: node.transactions.pending_markers() == 0)
        assert await state(node) == "CompleteCommit"
        assert [log_of(node, tp).log_end_offset for tp in (KEPT, MADE)] == [1, 1]
        assert log_of(node, MADE).topic_id == topic_id

    with_node(tmp_path, test)


def test_R8_while_the_metadata_can_not_be_read_no_marker_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, MADE.topic)
        producer = await begin(node)
        assert await produce(node, producer, MADE) is ErrorCode.NONE
        await delete_topics(node, [MADE.topic])
        asked = 0

        async def unreadable() -> MetadataImage:
            nonlocal asked
            asked += 1
            raise MetadataUnavailableError("the database is away")

        with monkeypatch.context() as patch:
            patch.setattr(node.metadata, "refresh", unreadable)
            await node.transactions.end_txn(EndTxnRequest(ID, producer, True))
            await until(lambda: asked >= 3)
            assert await state(node) == "PrepareCommit"
            assert "the database is away" in node.transactions.marker_trouble(ID)[1]
        await until(lambda: node.transactions.pending_markers() == 0)
        assert await state(node) == "CompleteCommit"

    with_node(tmp_path, test, transaction_marker_retry_backoff_ms=1, transaction_marker_retry_backoff_max_ms=1)


@pytest.mark.parametrize("commit", [True, False])
def test_R8_a_topic_that_is_made_again_gets_no_marker_of_the_one_that_was_written_to(
    tmp_path: Path, commit: bool
) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, MADE.topic)
        producer = await begin(node)
        assert await produce(node, producer, MADE) is ErrorCode.NONE
        assert await produce(node, producer, KEPT) is ErrorCode.NONE
        await delete_topics(node, [MADE.topic])
        await create_topic(node, MADE.topic)
        await node.transactions.end_txn(EndTxnRequest(ID, producer, commit))
        await until(lambda: node.transactions.pending_markers() == 0)
        assert await state(node) == ("CompleteCommit" if commit else "CompleteAbort")
        assert log_of(node, MADE).log_end_offset == 0
        assert log_of(node, KEPT).last_stable_offset == 2

    with_node(tmp_path, test)


@pytest.mark.parametrize("version", [11, 12], ids=["the older protocol verifies", "the newer one adds"])
def test_R8_T8_a_transaction_does_not_continue_in_a_topic_that_was_made_again(tmp_path: Path, version: int) -> None:
    """Its marker would go to the topic that is gone, and the data in the new one would hang."""

    async def test(node: Node) -> None:
        await create_topic(node, MADE.topic)
        producer = await begin(node)
        response = await add_partitions(node, AddPartitionsToTxnRequest(ID, producer, (MADE,)))
        assert response.errors == {MADE: ErrorCode.NONE}
        assert await produce(node, producer, MADE, version=version) is ErrorCode.NONE
        await delete_topics(node, [MADE.topic])
        await create_topic(node, MADE.topic)
        assert await produce(node, producer, MADE, version=version) is ErrorCode.TRANSACTION_ABORTABLE
        with pytest.raises(SemelError, match="was deleted and made again") as caught:
            await add_partitions(node, AddPartitionsToTxnRequest(ID, producer, (KEPT, MADE)))
        assert caught.value.code is ErrorCode.TRANSACTION_ABORTABLE
        assert log_of(node, MADE).log_end_offset == 0

        await node.transactions.end_txn(EndTxnRequest(ID, producer, False))
        await until(lambda: node.transactions.pending_markers() == 0)
        again = ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + 1)
        assert await produce(node, again, MADE) is ErrorCode.NONE
        await node.transactions.end_txn(EndTxnRequest(ID, again, True))
        await until(lambda: node.transactions.pending_markers() == 0)
        assert log_of(node, MADE).last_stable_offset == 2

    with_node(tmp_path, test)


def test_R8_what_is_deleted_is_said_by_the_id(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        writer, known = LocalMarkerWriter(node), log_of(node, KEPT).topic_id
        gone, beyond = new_topic_id(), TopicPartition(KEPT.topic, 7)
        assert await writer.deleted((KEPT,), {KEPT.topic: known}) == frozenset()
        assert await writer.deleted((KEPT,), {}) == frozenset()
        assert await writer.deleted((KEPT, MADE), {KEPT.topic: gone}) == {KEPT, MADE}
        assert await writer.deleted((KEPT, beyond), {KEPT.topic: known}) == {beyond}
        marker = TxnMarker(ProducerIdAndEpoch(7, 0), 3, True, (KEPT,), topic_ids={KEPT.topic: gone})
        assert await writer.write_markers(marker) == {KEPT: ErrorCode.UNKNOWN_TOPIC_ID}
        assert log_of(node, KEPT).log_end_offset == 0

    with_node(tmp_path, test)
