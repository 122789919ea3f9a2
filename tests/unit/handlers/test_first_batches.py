"""Produce: nothing overtakes the first batch of a new producer that was refused and comes later (P2)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kafka_node import FakeNode, KafkaClient, batch, run_with_listener

from semel.broker.handlers.produce import handler as produce_module
from semel.broker.handlers.produce.overtaking import WITHIN_S
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.broker.log.refused_batches import REMEMBERED_MS
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import TopicCreated
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID, ProducerIdAndEpoch, TopicId, TopicPartition
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest, ProduceResponse

TP = TopicPartition("t", 0)
OVERTAKES = ErrorCode.NOT_LEADER_OR_FOLLOWER
"""What a batch is refused with whose predecessor is sent again: after it, so is this one."""
_NOT_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR)


@pytest.fixture(params=["at once", "in turns"], autouse=True)
def _size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test meets a request as it is, and as a large one: both must do the same."""
    if request.param == "in turns":
        monkeypatch.setattr(produce_module, "PART", 0)


def request(data: bytes, topic_id: TopicId = ZERO_TOPIC_ID) -> ProduceRequest:
    """From version 13 on the topic is named by its id."""
    topic = "t" if topic_id == ZERO_TOPIC_ID else ""
    return ProduceRequest([ProducePartition(topic, 0, data, topic_id)], None, -1, 30_000)


def codes(response: ProduceResponse) -> list[ErrorCode]:
    return [item.error for item in response.partitions]


def lose_a_replica(partition: Partition) -> None:
    """Have too few replicas in sync, as when the other one of two is away."""
    leader = partition.leader
    assert leader is not None
    leader.replicas = (leader.node_id, leader.node_id + 1)
    leader.replication_factor = 2
    partition.update_config(replace(partition.config, min_insync_replicas=2))


def have_enough_replicas(partition: Partition) -> None:
    partition.update_config(replace(partition.config, min_insync_replicas=1))


async def send_numbered(client: KafkaClient, number: int, epoch: int) -> ErrorCode:
    """Send a batch of one record with this sequence, and return the answer."""
    (code,) = codes(await client.produce(request(batch(b"v", producer=ProducerIdAndEpoch(7, epoch), sequence=number))))
    return code


def test_P2_no_batch_overtakes_the_first_of_a_new_producer_that_was_refused_for_now(tmp_path: Path) -> None:
    """A partition takes any first sequence of a producer that it does not know: the second batch would have been it."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)

        async def send(number: int, epoch: int = 0) -> ErrorCode:
            return await send_numbered(client, number, epoch)

        lose_a_replica(partition)
        assert await send(1) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await send(0) is ErrorCode.NOT_ENOUGH_REPLICAS
        have_enough_replicas(partition)
        assert await send(1) is OVERTAKES
        assert await send(0) is ErrorCode.NONE
        assert await send(1) is ErrorCode.NONE
        assert partition.log_end_offset == 2

    run_with_listener(test, str(tmp_path))


def test_P2_what_overtakes_a_batch_that_was_refused_a_moment_ago_is_sent_again_like_that_one(tmp_path: Path) -> None:
    """As out of order it would make librdkafka renumber all that is under way, also what was appended (P1)."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)

        async def send(number: int, epoch: int = 0) -> ErrorCode:
            return await send_numbered(client, number, epoch)

        assert await send(0) is ErrorCode.NONE
        for numbers in ((1, 2), (2, 1)):
            lose_a_replica(partition)
            assert [await send(number) for number in numbers] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
        have_enough_replicas(partition)
        assert [await send(number) for number in (2, 3, 2)] == [OVERTAKES] * 3
        assert await send(2, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        node.clock.advance(ms=int(1_000 * WITHIN_S) + 1)  # type: ignore[attr-defined]
        assert await send(3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        lose_a_replica(partition)
        assert await send(1) is ErrorCode.NOT_ENOUGH_REPLICAS
        have_enough_replicas(partition)
        assert [await send(number) for number in (1, 2)] == [ErrorCode.NONE] * 2
        assert await send(4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "what was refused is here by now"
        assert await send(3) is ErrorCode.NONE

    run_with_listener(test, str(tmp_path))


def test_P2_a_producer_that_gives_its_first_batch_up_is_not_held_to_it(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        for producer_id in (7, 8):
            lose_a_replica(partition)
            first = batch(b"v", producer=ProducerIdAndEpoch(producer_id, 0), sequence=0)
            assert codes(await client.produce(request(first))) == [ErrorCode.NOT_ENOUGH_REPLICAS]
            have_enough_replicas(partition)
            epoch = 1 if producer_id == 7 else 0
            if producer_id == 8:
                node.clock.advance(ms=REMEMBERED_MS)  # type: ignore[attr-defined]
            later = batch(b"v", producer=ProducerIdAndEpoch(producer_id, epoch), sequence=3 if epoch == 0 else 0)
            assert codes(await client.produce(request(later))) == [ErrorCode.NONE]

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize("version", [12, 13])
def test_P2_no_batch_overtakes_one_that_came_before_its_partition(tmp_path: Path, version: int) -> None:
    """In a cluster a client may know a new topic before the node that leads it has made its log."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)

        async def send(number: int) -> ErrorCode:
            data = batch(b"v", producer=ProducerIdAndEpoch(7, 0), sequence=number)
            asked = request(data, partition.topic_id) if version == 13 else request(data)
            (code,) = codes(await client.produce(asked, version))
            return code

        topics, node.metadata.topics = node.metadata.topics, {}
        del node.partitions[TP]
        node.metadata.topics = topics if version == 13 else {}
        assert await send(0) in _NOT_YET
        node.metadata.topics = topics
        node.partitions[TP] = partition
        assert await send(1) is OVERTAKES
        assert [await send(number) for number in (0, 1)] == [ErrorCode.NONE] * 2

    run_with_listener(test, str(tmp_path))


def test_P2_R8_a_batch_that_was_refused_in_a_deleted_topic_holds_up_none_in_the_next_one_of_its_name(
    tmp_path: Path,
) -> None:
    """It was delivered where the topic was led; here it was only refused, and nobody will send it a second time."""
    assert _after_it_was_made_again(tmp_path, 13) == [
        ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.NONE
    ]  # fmt: skip


def test_P2_no_batch_overtakes_one_that_named_a_topic_which_was_made_again(tmp_path: Path) -> None:
    """A name may mean the next topic, of which the node that refused the batch did not know yet."""
    assert _after_it_was_made_again(tmp_path, 12) == [
        OVERTAKES, ErrorCode.NONE, ErrorCode.NONE
    ]  # fmt: skip


def test_P2_R8_a_batch_that_named_a_topic_before_the_one_of_that_name_was_made_holds_up_none_there(
    tmp_path: Path,
) -> None:
    """It was delivered to the topic before, elsewhere; the next one of the name was made when it had been refused."""
    assert _after_it_was_made_again(tmp_path, 12, complete_after_s=0.5) == [
        ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.NONE
    ]  # fmt: skip
    # The metadata had last been read before the batch came: the topic may have been there by then.
    assert _after_it_was_made_again(tmp_path / "other", 12, complete_after_s=-0.5) == [
        OVERTAKES, ErrorCode.NONE, ErrorCode.NONE
    ]  # fmt: skip


def _after_it_was_made_again(tmp_path: Path, version: int, complete_after_s: float | None = None) -> list[ErrorCode]:
    """Have sequence 0 refused, make the topic again, and return the answers to sequences 1, 0 and 1.

    complete_after_s: how long after the refusal the metadata was read once more, before the topic was in it
    """
    found: list[ErrorCode] = []

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)

        async def send(number: int, topic_id: TopicId) -> ErrorCode:
            data = batch(b"v", producer=ProducerIdAndEpoch(7, 0), sequence=number)
            asked = request(data, topic_id) if version == 13 else request(data)
            (code,) = codes(await client.produce(asked, version))
            return code

        del node.partitions[TP]  # led by another node
        assert await send(0, partition.topic_id) in _NOT_YET
        partition.log.close()
        (made_again,) = node.create("t")
        assert made_again.topic_id != partition.topic_id
        if complete_after_s is not None:
            node.metadata.complete_until = node.clock.monotonic() + complete_after_s
            made = TopicCreated("t", made_again.topic_id, ())
            listener.produce.early_refusals.follow(made, node.metadata.image)
        found.extend([await send(number, made_again.topic_id) for number in (1, 0, 1)])

    run_with_listener(test, str(tmp_path))
    return found
