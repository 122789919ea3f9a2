"""Transactions over partitions and coordinators of two nodes: markers and verifications find the node they are for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from compiled_classes import set_method
from kafka_node import until
from two_nodes import ONE, TWO, TwoNodes, led_by, produce, registration, run_with_two, secret_file, tell

from semel.broker.handlers.topics.changes import delete_topics
from semel.broker.handlers.write_txn_markers import LocalMarkerWriter
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.listeners.peers.listener import PeerListener
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import PartitionChanged, TopicDeleted
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.metadata.image import MetadataImage
from semel.broker.node import Node
from semel.broker.peers.secret import read_secret
from semel.broker.routing.verification import VerificationRouter
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import OffsetCommitRequest
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    TransactionVersion,
    TxnMarker,
)
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.api import ApiKey

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def begin(node: Node, transactional_id: str) -> ProducerIdAndEpoch:
    return (await node.transactions.init_producer_id(InitProducerIdRequest(transactional_id, 60_000))).producer


async def end(node: Node, transactional_id: str, producer: ProducerIdAndEpoch, committed: bool = True) -> None:
    await node.transactions.end_txn(EndTxnRequest(transactional_id, producer, committed))


async def state(node: Node, transactional_id: str) -> str:
    return (await node.transactions.describe(DescribeTransactionRequest(transactional_id))).state


def log_of(node: Node, tp: TopicPartition) -> Partition:
    partition = node.partition(tp)
    assert partition is not None
    return partition


def stand_before(listener: PeerListener, key: ApiKey, before: Callable[[Api], Api]) -> None:
    """Put something in front of one API of a listener."""
    listener.registry.replace(lambda api: before(api) if api.key is key else api)


class Counted:
    """Counts the requests of one API, and may lose their answers."""

    def __init__(self, node: Node, key: ApiKey, *, loses: int = 0) -> None:
        self.requests = 0
        self.loses = loses
        self.gate = asyncio.Event()
        self.gate.set()
        listener = node.peer_listener
        assert listener is not None
        self.listener = listener
        stand_before(listener, key, self._before)

    def _before(self, api: Api) -> Api:
        handle = api.handle
        assert handle is not None

        async def counted(context: RequestContext, body: memoryview) -> bytes:
            self.requests += 1
            await self.gate.wait()
            answer = bytes(await handle(context, body))
            if self.loses:
                self.loses -= 1
                self.listener.disconnect()
            return answer

        return replace(api, handle=counted)


# --- Markers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("coordinator", [ONE, TWO])
def test_T3_a_decision_reaches_the_partitions_of_both_nodes(tmp_path: Path, coordinator: int, committed: bool) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE, TWO)
        name = both.coordinated_by(coordinator)
        node = both.one if coordinator == ONE else both.two
        producer = await begin(node, name)
        assert await produce(both.one, name, producer, T0) is ErrorCode.NONE
        assert await produce(both.two, name, producer, T1) is ErrorCode.NONE
        assert log_of(both.one, T0).last_stable_offset == 0
        assert log_of(both.two, T1).last_stable_offset == 0
        await end(node, name, producer, committed)
        await until(lambda: node.transactions.pending_markers() == 0)
        assert await state(node, name) == ("CompleteCommit" if committed else "CompleteAbort")
        assert log_of(both.one, T0).last_stable_offset == 2
        assert log_of(both.two, T1).last_stable_offset == 2

    run_with_two(tmp_path, test)


def test_T3_offsets_on_another_node_are_visible_before_the_transaction_is_complete(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        name = both.coordinated_by(ONE)
        group = next(
            text
            for text in (f"group-{number}" for number in range(1_000))
            if both.two.groups.offsets_partition(text) == TopicPartition(OFFSETS_TOPIC, 1)
        )
        producer = await begin(both.one, name)
        commit = OffsetCommitRequest(
            group, -1, "", None, {T0: OffsetAndMetadata(1)}, transactional_id=name, producer=producer
        )
        assert list((await both.two.groups.commit_offsets(commit)).errors.values()) == [ErrorCode.NONE]
        await end(both.one, name, producer)
        await until(lambda: both.one.transactions.pending_markers() == 0)
        assert await state(both.one, name) == "CompleteCommit"
        assert log_of(both.two, TopicPartition(OFFSETS_TOPIC, 1)).last_stable_offset == 2

    run_with_two(tmp_path, test)


def test_T3_D5_a_marker_whose_answer_was_lost_is_sent_again_and_is_there_once(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE, TWO)
        sent = Counted(both.two, ApiKey.WRITE_TXN_MARKERS, loses=2)
        name = both.coordinated_by(ONE)
        producer = await begin(both.one, name)
        assert await produce(both.two, name, producer, T1) is ErrorCode.NONE
        await end(both.one, name, producer)
        await until(lambda: both.one.transactions.pending_markers() == 0)
        assert await state(both.one, name) == "CompleteCommit"
        assert sent.requests == 3
        assert log_of(both.two, T1).log_end_offset == 2

    run_with_two(tmp_path, test)


def test_T3_a_partition_that_does_not_commit_in_time_is_asked_again_and_the_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE, TWO)
        name = both.coordinated_by(ONE)
        producer = await begin(both.one, name)
        assert await produce(both.one, name, producer, T0) is ErrorCode.NONE
        assert await produce(both.two, name, producer, T1) is ErrorCode.NONE
        stuck, wait = log_of(both.one, T0), Partition.wait_committed
        waits: list[int] = []

        async def wait_or_hang(partition: Partition, offset: int) -> None:
            if partition is stuck:
                waits.append(offset)
                await asyncio.get_running_loop().create_future()
            await wait(partition, offset)

        sent = Counted(both.two, ApiKey.WRITE_TXN_MARKERS)
        set_method(monkeypatch, Partition, "wait_committed", wait_or_hang)
        monkeypatch.setattr(both.one.transactions._sender._writer._here, "_wait_s", 0.01)  # type: ignore[attr-defined]
        await end(both.one, name, producer)
        await until(lambda: both.one.transactions.pending_markers() == 0)
        assert await state(both.one, name) == "CompleteCommit"
        assert waits == [1]
        assert sent.requests == 1
        assert stuck.log_end_offset == 2

    run_with_two(tmp_path, test)


def test_T3_a_partition_that_moved_gets_its_marker_where_it_is_led_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator's metadata lags: the node that it asks does not lead the partition any more."""

    async def test(both: TwoNodes) -> None:
        topic_id = await both.create("t", TWO)
        name = both.coordinated_by(ONE)
        producer = await begin(both.one, name)
        await both.one.transactions.add_partitions(AddPartitionsToTxnRequest(name, producer, (T0,)))
        moved = PartitionChanged("t", topic_id, 0, replace(led_by(ONE, epoch=1)[0], partition_epoch=1))
        partition = both.two.logs._partitions.pop(T0)
        await tell(both.two, moved)
        sent = Counted(both.two, ApiKey.WRITE_TXN_MARKERS)
        read = 0

        async def refresh() -> MetadataImage:
            nonlocal read
            read += 1
            if read == 2:
                both.one.logs._partitions[T0] = partition
                await tell(both.one, moved)
            return both.one.metadata.image

        monkeypatch.setattr(both.one.metadata, "refresh", refresh)
        try:
            await end(both.one, name, producer)
            await until(lambda: both.one.transactions.pending_markers() == 0)
            assert await state(both.one, name) == "CompleteCommit"
            assert partition.log_end_offset == 1
            assert sent.requests == read == 2
        finally:
            both.one.logs._partitions.pop(T0, None)
            both.two.logs._partitions[T0] = partition

    run_with_two(tmp_path, test)


def test_T3_a_node_that_comes_back_at_another_address_gets_its_markers_there(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE, TWO)
        name = both.coordinated_by(ONE)
        producer = await begin(both.one, name)
        assert await produce(both.two, name, producer, T1) is ErrorCode.NONE
        old = both.two.peer_listener
        assert old is not None
        await old.cut_off()
        await end(both.one, name, producer)
        await until(lambda: both.one.transactions.marker_trouble(name)[0] >= 2)
        moved = PeerListener(both.two, "127.0.0.1", 0, read_secret(secret_file(tmp_path)))
        await moved.start()
        await tell(both.one, replace(registration(both.two), incarnation="later", peer_port=moved.port))
        await until(lambda: both.one.transactions.pending_markers() == 0)
        assert await state(both.one, name) == "CompleteCommit"
        assert log_of(both.two, T1).last_stable_offset == 2
        await moved.stop(0)

    run_with_two(tmp_path, test)


def test_T4_a_coordinator_that_takes_over_sends_the_markers_to_other_nodes_again(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE, TWO)
        name = both.coordinated_by(ONE)
        producer = await begin(both.one, name)
        assert await produce(both.two, name, producer, T1) is ErrorCode.NONE
        listener = both.two.peer_listener
        assert listener is not None
        await listener.cut_off()
        await end(both.one, name, producer)
        number = both.one.transactions.partition_for(name)
        await until(lambda: both.one.transactions.marker_trouble(name)[0] >= 1)
        both.one.transactions.unload(number)
        assert both.one.transactions.pending_markers() == 0
        await listener.listen()
        await both.one.transactions.load(number, 1)
        await until(lambda: both.one.transactions.pending_markers() == 0)
        assert await state(both.one, name) == "CompleteCommit"
        assert log_of(both.two, T1).last_stable_offset == 2

    run_with_two(tmp_path, test)


def test_P9_T3_the_marker_of_a_deposed_coordinator_is_refused_and_it_stops(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE, TWO)
        name = both.coordinated_by(ONE)
        producer = await begin(both.one, name)
        assert await produce(both.two, name, producer, T1) is ErrorCode.NONE
        place = TopicPartition(TRANSACTIONS_TOPIC, both.one.transactions.partition_for(name))
        topic_id = both.two.metadata.topic_id(TRANSACTIONS_TOPIC)
        assert topic_id is not None
        successor = replace(led_by(TWO, epoch=5)[0], partition_epoch=1)
        await tell(both.two, PartitionChanged(TRANSACTIONS_TOPIC, topic_id, place.partition, successor))
        later = TxnMarker(producer, 5, False, (T1,), TransactionVersion.V1, place.partition)
        assert await LocalMarkerWriter(both.two).write_markers(later) == {T1: ErrorCode.NONE}
        sent = Counted(both.two, ApiKey.WRITE_TXN_MARKERS)
        await end(both.one, name, producer)
        await until(lambda: both.one.transactions.pending_markers() == 0)
        assert sent.requests == 1
        assert await state(both.one, name) == "PrepareCommit"
        assert log_of(both.two, T1).log_end_offset == 2

    run_with_two(tmp_path, test)


def test_R8_a_marker_is_not_given_up_for_a_topic_that_the_other_node_does_not_know_yet(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE, TWO)
        name = both.coordinated_by(ONE)
        producer = await begin(both.one, name)
        assert await produce(both.two, name, producer, T1) is ErrorCode.NONE
        known, partition = both.two.metadata.image, both.two.logs._partitions.pop(T1)
        topics = {topic: image for topic, image in known.topics.items() if topic != "t"}
        both.two.metadata.image = replace(known, topics=topics)
        sent = Counted(both.two, ApiKey.WRITE_TXN_MARKERS)
        await end(both.one, name, producer)
        await until(lambda: sent.requests >= 3)
        assert await state(both.one, name) == "PrepareCommit"
        both.two.metadata.image = known
        both.two.logs._partitions[T1] = partition
        await until(lambda: both.one.transactions.pending_markers() == 0)
        assert await state(both.one, name) == "CompleteCommit"
        assert log_of(both.two, T1).last_stable_offset == 2

    run_with_two(tmp_path, test)


def test_R8_a_marker_for_a_topic_that_was_deleted_is_given_up_once_the_metadata_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(both: TwoNodes) -> None:
        topic_id = await both.create("t", ONE, TWO)
        name = both.coordinated_by(ONE)
        producer = await begin(both.one, name)
        assert await produce(both.two, name, producer, T1) is ErrorCode.NONE
        await delete_topics(both.two, ["t"])
        asked = 0

        async def unreadable() -> MetadataImage:
            nonlocal asked
            asked += 1
            raise MetadataUnavailableError("the database is away")

        await tell(both.one, TopicDeleted("t", topic_id))
        with monkeypatch.context() as patch:
            patch.setattr(both.one.metadata, "refresh", unreadable)
            await end(both.one, name, producer)
            await until(lambda: asked >= 3)
            assert await state(both.one, name) == "PrepareCommit"
        await until(lambda: both.one.transactions.pending_markers() == 0)
        assert await state(both.one, name) == "CompleteCommit"

    run_with_two(tmp_path, test)


async def written_and_made_again(both: TwoNodes) -> tuple[str, ProducerIdAndEpoch, MetadataImage]:
    """Write to a topic in a transaction, then delete it and make another of its name.

    Returns the transactional id, the producer, and what the coordinator's node knew before the deletion.
    """
    old_id = await both.create("t", ONE, TWO)
    name = both.coordinated_by(ONE)
    producer = await begin(both.one, name)
    assert await produce(both.two, name, producer, T1) is ErrorCode.NONE
    await delete_topics(both.two, ["t"])
    behind = both.one.metadata.image
    await tell(both.one, TopicDeleted("t", old_id))
    await both.create("t", ONE, TWO)
    return name, producer, behind


def test_R8_another_topic_of_the_name_on_the_other_node_gets_no_marker(tmp_path: Path) -> None:
    """The coordinator's metadata lags behind the deletion: the topic's id goes with the marker."""

    async def test(both: TwoNodes) -> None:
        name, producer, behind = await written_and_made_again(both)
        now, both.one.metadata.image = both.one.metadata.image, behind
        sent = Counted(both.two, ApiKey.WRITE_TXN_MARKERS)
        await end(both.one, name, producer)
        await until(lambda: sent.requests >= 1)
        both.one.metadata.image = now
        await until(lambda: both.one.transactions.pending_markers() == 0)
        assert await state(both.one, name) == "CompleteCommit"
        assert log_of(both.two, T1).log_end_offset == 0

    run_with_two(tmp_path, test)


# --- Verification -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [11, 12], ids=["the older protocol verifies", "the newer one adds"])
def test_T8_a_batch_enters_by_the_word_of_the_coordinator_on_the_other_node(tmp_path: Path, version: int) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE, TWO)
        name = both.coordinated_by(ONE)
        producer = await begin(both.one, name)
        if version == 11:
            refused = await produce(both.two, name, producer, T1, version=version)
            assert refused in {ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE}
            assert log_of(both.two, T1).log_end_offset == 0
            await both.one.transactions.add_partitions(
                AddPartitionsToTxnRequest(name, producer, (T1,), version=TransactionVersion.V1)
            )
        assert await produce(both.two, name, producer, T1, version=version) is ErrorCode.NONE
        zombie = producer._replace(producer_epoch=producer.producer_epoch - 1)
        assert await produce(both.two, name, zombie, T1, version=version) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert log_of(both.two, T1).log_end_offset == 1

    run_with_two(tmp_path, test)


def test_T8_questions_that_come_meanwhile_go_together(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", *([TWO] * 20))
        asked = Counted(both.one, ApiKey.ADD_PARTITIONS_TO_TXN)
        name = both.coordinated_by(ONE)
        producer = await begin(both.one, name)
        asked.gate.clear()
        partitions = [TopicPartition("t", number) for number in range(20)]
        first = asyncio.ensure_future(produce(both.two, name, producer, partitions[0]))
        await until(lambda: asked.requests == 1)
        others = [asyncio.ensure_future(produce(both.two, name, producer, tp)) for tp in partitions[1:]]
        await until(lambda: both.two.produce.gate.waiting == 20)
        asked.gate.set()
        assert set(await asyncio.gather(first, *others)) == {ErrorCode.NONE}
        assert asked.requests == 2

    run_with_two(tmp_path, test)


def test_T8_a_question_whose_answer_is_lost_lets_nothing_in(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE, TWO)
        Counted(both.one, ApiKey.ADD_PARTITIONS_TO_TXN, loses=1)
        name = both.coordinated_by(ONE)
        producer = await begin(both.one, name)
        # Retriable for every client, and does not make it look for another leader.
        assert await produce(both.two, name, producer, T1) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert log_of(both.two, T1).log_end_offset == 0
        assert await produce(both.two, name, producer, T1) is ErrorCode.NONE

    run_with_two(tmp_path, test)


def test_T8_the_transaction_that_ended_meanwhile_is_not_entered_by_a_late_answer(tmp_path: Path) -> None:
    """KAFKA-12671, with the marker and the answer from another node."""

    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE, TWO)
        name = both.coordinated_by(ONE)
        producer = await begin(both.one, name)
        await both.one.transactions.add_partitions(
            AddPartitionsToTxnRequest(name, producer, (T1,), version=TransactionVersion.V1)
        )
        asked = Counted(both.one, ApiKey.ADD_PARTITIONS_TO_TXN)
        answered = asyncio.Event()
        listener = both.one.peer_listener
        assert listener is not None

        def held(api: Api) -> Api:
            handle = api.handle
            assert handle is not None

            async def later(context: RequestContext, body: memoryview) -> bytes:
                answer = bytes(await handle(context, body))
                await answered.wait()
                return answer

            return replace(api, handle=later)

        stand_before(listener, ApiKey.ADD_PARTITIONS_TO_TXN, held)
        late = asyncio.ensure_future(produce(both.two, name, producer, T1, version=11))
        await until(lambda: asked.requests == 1)
        await both.one.transactions.end_txn(EndTxnRequest(name, producer, False, version=TransactionVersion.V1))
        await until(lambda: both.one.transactions.pending_markers() == 0)
        answered.set()
        assert await late is not ErrorCode.NONE
        assert log_of(both.two, T1).last_stable_offset == log_of(both.two, T1).log_end_offset == 1

    run_with_two(tmp_path, test)


def test_R9_a_node_that_does_not_coordinate_any_more_gives_no_word(tmp_path: Path) -> None:
    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE, TWO)
        name = both.coordinated_by(ONE)
        producer = await begin(both.one, name)
        assert await produce(both.two, name, producer, T1) is ErrorCode.NONE
        number = both.one.transactions.partition_for(name)
        both.one.transactions.unload(number)
        router = VerificationRouter(both.two, both.two.peers, both.two._coordinators.verification._fresh)  # type: ignore[union-attr]
        question = AddPartitionsToTxnRequest(name, producer, (T1,), verify_only=True, version=TransactionVersion.V1)
        assert (await router.verify(question)).errors == {T1: ErrorCode.NOT_COORDINATOR}
        await both.one.transactions.load(number, 1)
        assert (await router.verify(question)).errors == {T1: ErrorCode.NONE}

    run_with_two(tmp_path, test)


def test_R8_T8_a_transaction_does_not_continue_in_another_topic_of_the_name(tmp_path: Path) -> None:
    """The coordinator's node has not heard yet that the topic was made again: the question carries its id."""

    async def test(both: TwoNodes) -> None:
        name, producer, behind = await written_and_made_again(both)
        both.one.metadata.image = behind
        assert await produce(both.two, name, producer, T1) is ErrorCode.TRANSACTION_ABORTABLE
        assert log_of(both.two, T1).log_end_offset == 0

    run_with_two(tmp_path, test)


def test_a_node_that_is_alone_asks_nobody(tmp_path: Path) -> None:
    """What does not leave the node takes none of the ways between nodes."""

    async def test(both: TwoNodes) -> None:
        await both.create("t", ONE, TWO)
        name = both.coordinated_by(ONE)
        producer = await begin(both.one, name)
        assert await produce(both.one, name, producer, T0) is ErrorCode.NONE
        await end(both.one, name, producer)
        await until(lambda: both.one.transactions.pending_markers() == 0)
        for node in (both.one, both.two):
            assert node.peer_listener is not None
            assert not node.peer_listener._connections
            assert not node.peers._peers

    run_with_two(tmp_path, test)
