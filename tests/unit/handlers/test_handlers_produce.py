"""Produce: acknowledgements, refusals by version, and verification with the transaction coordinator (T8)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from compiled_classes import set_method
from kafka_node import FakeNode, KafkaClient, batch, run_with_listener, turns, until
from leader_states import of_two

from semel.broker.handlers.produce import handler as produce_module
from semel.broker.handlers.produce.gate import QUEUED_BATCHES_MAX
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.broker.log.config import CleanupPolicy, LogConfig, TimestampType
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, TransactionVersion
from semel.protocol.batch_builder import encode_batch
from semel.protocol.compression import Compression
from semel.protocol.control_records import ControlType, encode_control_batch
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, error_for
from semel.protocol.ids import (
    OFFSETS_TOPIC,
    ZERO_TOPIC_ID,
    ProducerIdAndEpoch,
    TopicId,
    TopicPartition,
    new_topic_id,
)
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest, ProduceResponse

PRODUCER = ProducerIdAndEpoch(4000, 0)
TP = TopicPartition("t", 0)


def request(
    *batches: bytes | None,
    acks: int = 1,
    txn: str | None = None,
    topic: str = "t",
    first: int = 0,
    timeout_ms: int = 30_000,
) -> ProduceRequest:
    """One batch for each partition from `first` on."""
    items = [ProducePartition(topic, first + number, data) for number, data in enumerate(batches)]
    return ProduceRequest(items, txn, acks, timeout_ms)


def in_txn(
    *values: bytes,
    sequence: int = 0,
    producer: ProducerIdAndEpoch = PRODUCER,
    compression: Compression = Compression.NONE,
) -> bytes:
    return batch(*values, producer=producer, sequence=sequence, transactional=True, compression=compression)


def codes(response: ProduceResponse) -> list[ErrorCode]:
    return [item.error for item in response.partitions]


def by_id(
    node: FakeNode,
    *batches: tuple[str, int, bytes],
    acks: int = 1,
    txn: str | None = None,
    topic_id: TopicId | None = None,
) -> ProduceRequest:
    """Version 13: one batch for each topic and partition, named by the topic's id."""
    items = [
        ProducePartition("", number, data, topic_id or node.metadata.topics[name].topic_id)
        for name, number, data in batches
    ]
    return ProduceRequest(items, txn, acks, 30_000)


@pytest.fixture(params=["at once", "in turns"], autouse=True)
def _size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test meets a request as it is, and as a large one: both must do the same."""
    if request.param == "in turns":
        monkeypatch.setattr(produce_module, "PART", 0)


@pytest.mark.parametrize("acks", [1, -1])
def test_topics_are_named_by_id_in_version_13(tmp_path: Path, acks: int) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t", 2)
        node.create("u")
        client = await KafkaClient.connect(listener.port)
        asked = (("t", 0, batch(b"a")), ("t", 1, batch(b"b")), ("u", 0, batch(b"c")), ("t", 2, batch(b"d")))
        answer = await client.produce(by_id(node, *asked, acks=acks), 13)
        assert codes(answer) == [ErrorCode.NONE] * 3 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        ids = {name: topic.topic_id for name, topic in node.metadata.topics.items()}
        assert [(item.topic_id, item.partition) for item in answer.partitions] == [
            (ids[name], number) for name, number, _ in asked
        ]
        assert [node.partitions[TopicPartition(*at)].log_end_offset for at in (("t", 0), ("t", 1), ("u", 0))] == [1] * 3

    run_with_listener(test, str(tmp_path), journaled=True)


@pytest.mark.parametrize("acks", [1, -1])
def test_a_batch_for_a_topic_that_was_created_again_is_refused(tmp_path: Path, acks: int) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (old,) = node.create("t")
        first = node.metadata.topics["t"]
        client = await KafkaClient.connect(listener.port)
        node.metadata.topics["t"] = replace(first, topic_id=new_topic_id())
        # By the old id, and by the new one while the old log is still here.
        for topic_id in (first.topic_id, node.metadata.topics["t"].topic_id, ZERO_TOPIC_ID):
            refused = await client.produce(by_id(node, ("t", 0, batch(b"a")), acks=acks, topic_id=topic_id), 13)
            assert codes(refused) == [ErrorCode.UNKNOWN_TOPIC_ID]
            assert refused.partitions[0].topic_id == topic_id
            assert "ask for the metadata" in (refused.partitions[0].error_message or "")
        assert old.log_end_offset == 0

    run_with_listener(test, str(tmp_path))


def test_T8_a_transaction_by_topic_id_adds_its_partitions(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        answer = await client.produce(by_id(node, ("t", 0, in_txn(b"a")), txn="tx", acks=-1), 13)
        assert codes(answer) == [ErrorCode.NONE]
        assert node.transactions.added == {TP}
        assert partition.log_end_offset == 1

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_appends(tmp_path: Path, version: int) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        partitions = node.create("t", 3)
        client = await KafkaClient.connect(listener.port)
        for acks in (1, -1):
            answer = await client.produce(request(batch(b"a"), batch(b"b", b"c"), batch(b"d"), acks=acks), version)
            assert codes(answer) == [ErrorCode.NONE] * 3
            assert [item.partition for item in answer.partitions] == [0, 1, 2]
        assert [item.base_offset for item in answer.partitions] == [1, 2, 1]
        assert [item.log_append_time_ms for item in answer.partitions] == [-1] * 3
        assert [item.log_start_offset for item in answer.partitions] == [0 if version >= 5 else -1] * 3
        assert [each.log_end_offset for each in partitions] == [2, 4, 2]

    run_with_listener(test, str(tmp_path), journaled=True)


def test_append_time_is_answered(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t", config=LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME))
        client = await KafkaClient.connect(listener.port)
        answer = await client.produce(request(batch(b"a")))
        assert answer.partitions[0].log_append_time_ms == node.clock.now_ms()

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acks_are_refused_and_nothing_is_appended(tmp_path: Path, acks: int) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition, _) = node.create("t", 2)
        client = await KafkaClient.connect(listener.port)
        answer = await client.produce(request(batch(b"a"), batch(b"a"), acks=acks))
        assert codes(answer) == [ErrorCode.INVALID_REQUIRED_ACKS] * 2
        assert partition.log_end_offset == 0

    run_with_listener(test, str(tmp_path))


def test_acks_all_waits_for_the_disk_and_holds_up_no_later_append(tmp_path: Path) -> None:
    """D1 at this level: the answer comes after the high watermark has passed the batch."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        assert node.journal is not None
        client = await KafkaClient.connect(listener.port)
        committed: list[tuple[int, int]] = []
        settled = listener.produce.begin

        def watch(
            produce_request: ProduceRequest, version: int, done: object, turn: object = None
        ) -> ProduceResponse | None:
            def answered(response: ProduceResponse) -> None:
                committed.append((response.partitions[0].base_offset, partition.high_watermark))
                done(response)  # type: ignore[operator]

            answer = settled(produce_request, version, answered)
            assert answer is None, "acks=all cannot be answered at once with a journal"
            return answer

        listener.produce.begin = watch  # type: ignore[method-assign]
        sent = [client.send(request(batch(b"x"), acks=-1), 9) for _ in range(10)]
        await until(lambda: partition.log_end_offset == 10)
        for number, each in enumerate(sent):
            assert client.produced(await client.receive(), 9, each).partitions[0].base_offset == number
        assert all(base < high_watermark for base, high_watermark in committed)
        assert len(committed) == 10

    run_with_listener(test, str(tmp_path), journaled=True)


def test_acks_all_times_out_and_the_batch_stays(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        never: list[object] = []
        partition_type = type(partition)
        with pytest.MonkeyPatch.context() as patch:
            set_method(patch, partition_type, "when_committed", lambda self, offset, callback: never.append(callback))
            set_method(patch, partition_type, "high_watermark", 0)
            client = await KafkaClient.connect(listener.port)
            answer = await client.produce(request(batch(b"a"), acks=-1, timeout_ms=5), 9)
        assert codes(answer) == [ErrorCode.REQUEST_TIMED_OUT]
        assert partition.log_end_offset == 1
        never[0](None)  # type: ignore[operator]  # a commit that comes later changes nothing

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize("leaves", [True, False])
def test_R2_a_time_out_says_that_too_few_replicas_are_in_sync_where_they_became_so(
    tmp_path: Path, leaves: bool
) -> None:
    """The batch stays, and is committed once there are enough again."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t", config=LogConfig(min_insync_replicas=2))
        leader = of_two(1, min_isr=2)
        partition.lead(leader)
        client = await KafkaClient.connect(listener.port)
        sent = client.send(request(batch(b"x"), acks=-1, timeout_ms=2_000), 9)
        await until(lambda: partition.log_end_offset == 1)
        if leaves:
            partition.isr_changed((leader.node_id,), leader.replicas, leader.partition_epoch + 1, (2,))
        [answer] = client.produced(await client.receive(), 9, sent).partitions
        wanted = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if leaves else ErrorCode.REQUEST_TIMED_OUT
        assert (answer.error, partition.log_end_offset, partition.high_watermark) == (wanted, 1, 0)
        if leaves:
            assert "t-0 has 1 replica in sync, fewer than min.insync.replicas=2" in (answer.error_message or "")

    run_with_listener(test, str(tmp_path))


def test_E1_who_waits_while_the_leader_moves_is_told_that_the_batch_was_appended(tmp_path: Path) -> None:
    """By the offset where it stands: the next leader may have it from here. One that is refused has no offset."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        partition.lead(of_two(1))
        client = await KafkaClient.connect(listener.port)
        sent = client.send(request(batch(b"x"), acks=-1), 9)
        await until(lambda: partition.log_end_offset == 1)
        partition.follow(2, 2)
        [waited] = client.produced(await client.receive(), 9, sent).partitions
        assert (waited.error, waited.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
        [refused] = (await client.produce(request(batch(b"x"), acks=-1))).partitions
        assert (refused.error, refused.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)

    run_with_listener(test, str(tmp_path))


def test_T3_a_transactional_batch_with_acks_1_waits_for_the_followers(tmp_path: Path) -> None:
    """At an election a leader that has the newest sequence would not notice that the last batch is gone."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        partition.lead(of_two(1))
        client = await KafkaClient.connect(listener.port)
        plain = await client.produce(request(batch(b"x")))
        assert codes(plain) == [ErrorCode.NONE], "it says that it does without"
        answer = asyncio.ensure_future(client.produce(request(in_txn(b"a"), txn="tx"), 12))
        await until(lambda: partition.log_end_offset == 2)
        await turns(20)
        assert not answer.done()
        assert partition.fetched_by(2, 5, 2)
        assert codes(await answer) == [ErrorCode.NONE]

    run_with_listener(test, str(tmp_path))


def test_a_failed_commit_is_answered(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        assert node.journal is not None
        node.journal.append = lambda *_: (_ for _ in ()).throw(  # type: ignore[assignment,method-assign]
            RetriableError("the disk is gone", ErrorCode.KAFKA_STORAGE_ERROR)
        )
        for version, code in ((9, ErrorCode.KAFKA_STORAGE_ERROR), (3, ErrorCode.NOT_LEADER_OR_FOLLOWER)):
            assert codes(await client.produce(request(batch(b"a"), acks=-1), version)) == [code]
        assert partition.high_watermark == 0

    run_with_listener(test, str(tmp_path), journaled=True)


def test_acks_0_has_no_answer_and_an_error_closes_the_connection(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        for _ in range(3):
            client.send(request(batch(b"a"), acks=0), 9)
        answer = await client.produce(request(batch(b"b")))
        assert answer.partitions[0].base_offset == 3, "the first answer is that of the fourth request"
        client.send(request(batch(b"a"), acks=0, topic="missing"), 9)
        assert await client.closed()
        assert partition.log_end_offset == 4
        assert listener.statistics().aborted_connections == 1

    run_with_listener(test, str(tmp_path))


def test_what_is_wrong_with_a_partition_is_answered_for_it_alone(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t", 8, LogConfig(max_message_bytes=500))
        node.create(OFFSETS_TOPIC)
        node.partitions[TopicPartition("t", 7)].go_offline(FatalError("gone", ErrorCode.KAFKA_STORAGE_ERROR))
        corrupt = bytearray(batch(b"a"))
        corrupt[-1] ^= 1
        old_magic = bytearray(batch(b"a"))
        old_magic[16] = 1
        client = await KafkaClient.connect(listener.port)
        answer = await client.produce(
            request(
                batch(b"good"),
                None,
                b"",
                batch(b"a") + batch(b"b"),
                bytes(corrupt),
                bytes(old_magic),
                batch(b"x" * 600),
                batch(b"offline"),
                batch(b"no such partition"),
            )
        )
        assert codes(answer) == [
            ErrorCode.NONE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.INVALID_RECORD,
            ErrorCode.INVALID_RECORD,
            ErrorCode.CORRUPT_MESSAGE,
            answer.partitions[5].error,
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert answer.partitions[5].error in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
        assert all(item.error_message for item in answer.partitions[1:])
        assert codes(await client.produce(request(batch(b"a"), topic=OFFSETS_TOPIC))) == [
            ErrorCode.INVALID_TOPIC_EXCEPTION
        ]
        assert codes(await client.produce(request(batch(b"a"), topic="missing"))) == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        assert listener.statistics().refused_batches == 10

    run_with_listener(test, str(tmp_path))


def test_a_client_cannot_append_a_control_batch(tmp_path: Path) -> None:
    """P6 at this level."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        control = encode_control_batch(
            ControlType.COMMIT,
            producer_id=PRODUCER.producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=node.clock.now_ms(),
        )
        client = await KafkaClient.connect(listener.port)
        node.transactions.added.add(TP)
        for txn in (None, "tx"):
            answer = await client.produce(request(bytes(control), txn=txn))
            assert answer.partitions[0].error is not ErrorCode.NONE
        assert partition.log_end_offset == 0

    run_with_listener(test, str(tmp_path))


def test_zstd_needs_version_7(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        client = await KafkaClient.connect(listener.port)
        compressed = batch(b"a" * 500, compression=Compression.ZSTD)
        assert codes(await client.produce(request(compressed), 6)) == [ErrorCode.UNSUPPORTED_COMPRESSION_TYPE]
        assert codes(await client.produce(request(compressed), 7)) == [ErrorCode.NONE]
        assert codes(await client.produce(request(batch(b"a" * 500, compression=Compression.LZ4)), 3)) == [
            ErrorCode.NONE
        ]

    run_with_listener(test, str(tmp_path))


def test_a_bug_in_an_append_is_one_error_and_the_connection_lives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        with pytest.MonkeyPatch.context() as patch:
            set_method(patch, type(partition), "append", lambda *_, **__: 1 / 0)
            assert codes(await client.produce(request(batch(b"secret")))) == [ErrorCode.UNKNOWN_SERVER_ERROR]
        assert codes(await client.produce(request(batch(b"a")))) == [ErrorCode.NONE]

    run_with_listener(test, str(tmp_path))
    assert "append failed: partition=t-0" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("acks", [1, -1])
def test_P1_a_repeated_batch_is_answered_with_the_original_offset(tmp_path: Path, acks: int) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client, other = await KafkaClient.connect(listener.port), await KafkaClient.connect(listener.port)
        batches = [batch(b"v%d" % n, producer=PRODUCER, sequence=n) for n in range(5)]
        sent = [client.send(request(data, acks=acks), 9) for data in batches]
        for number, each in enumerate(sent):
            assert client.produced(await client.receive(), 9, each).partitions[0].base_offset == number
        # Retried on another connection, as after a lost one, pipelined and in another order.
        sent = [other.send(request(data, acks=acks), 9) for data in reversed(batches)]
        for number, each in zip(reversed(range(5)), sent, strict=True):
            item = other.produced(await other.receive(), 9, each).partitions[0]
            assert (item.error, item.base_offset) == (ErrorCode.NONE, number)
        assert partition.log_end_offset == 5
        assert listener.statistics().duplicate_batches == 5

    run_with_listener(test, str(tmp_path), journaled=True)


def test_P1_D1_a_duplicate_is_answered_when_its_original_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut would else take a record whose repetition was acknowledged (D5)."""
    monkeypatch.setattr(produce_module, "PART", 1)  # appended within the call: the test depends on it

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        assert node.journal is not None
        data = batch(b"v", producer=PRODUCER, sequence=0)
        answers: list[ProduceResponse] = []
        for _ in range(3):
            # Not one turn of the loop goes by, so the journal has not been synced.
            assert listener.produce.begin(request(data, acks=-1), 9, answers.append) is None
        assert partition.log_end_offset == 1
        assert listener.statistics().duplicate_batches == 2
        assert answers == []
        node.journal.sync_now()
        assert [item.base_offset for answer in answers for item in answer.partitions] == [0] * 3
        assert listener.produce.begin(request(data, acks=-1), 9, answers.append) is not None, "it is durable by now"

    run_with_listener(test, str(tmp_path), journaled=True)


def test_P2_a_gap_in_pipelined_batches_refuses_what_follows(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        sent = [
            client.send(request(batch(b"v", producer=PRODUCER, sequence=sequence), acks=-1), 9)
            for sequence in (0, 1, 3, 4, 2)
        ]
        answers = [client.produced(await client.receive(), 9, each).partitions[0].error for each in sent]
        out_of_order = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert answers == [ErrorCode.NONE, ErrorCode.NONE, out_of_order, out_of_order, ErrorCode.NONE]
        assert partition.log_end_offset == 3

    run_with_listener(test, str(tmp_path), journaled=True)


# --- T8 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (3, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_T8_nothing_enters_that_was_not_added_to_the_transaction(tmp_path: Path, version: int, code: ErrorCode) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        first, second = node.create("t", 2)
        client = await KafkaClient.connect(listener.port)
        node.transactions.added.add(TopicPartition("t", 1))
        answer = await client.produce(request(in_txn(b"a"), in_txn(b"b"), txn="tx"), version)
        assert codes(answer) == [code, ErrorCode.NONE]
        assert (first.log_end_offset, second.log_end_offset) == (0, 1)
        asked = node.transactions.requests
        assert len(asked) == 1, "one question for all partitions of a request"
        assert asked[0] == AddPartitionsToTxnRequest(
            "tx",
            PRODUCER,
            (TP, TopicPartition("t", 1)),
            verify_only=True,
            version=TransactionVersion.V1,
            topic_ids={"t": first.topic_id},
        )
        # Once the transaction is open here nothing is asked again.
        answer = await client.produce(request(in_txn(b"c", sequence=1), txn="tx", first=1), version)
        assert codes(answer) == [ErrorCode.NONE]
        assert len(asked) == 1
        assert listener.statistics().verifications == 1

    run_with_listener(test, str(tmp_path))


def test_T8_from_version_12_on_the_partition_is_added_here(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition, _) = node.create("t", 2)
        client = await KafkaClient.connect(listener.port)
        answer = await client.produce(request(in_txn(b"a"), in_txn(b"b"), txn="tx", acks=-1), 12)
        assert codes(answer) == [ErrorCode.NONE] * 2
        assert node.transactions.added == {TP, TopicPartition("t", 1)}
        assert not node.transactions.requests[0].verify_only
        # The next transaction has the next epoch, and is asked about again.
        partition.append_marker(ProducerIdAndEpoch(4000, 1), 0, True, TransactionVersion.V2)
        again = in_txn(b"c", producer=ProducerIdAndEpoch(4000, 1))
        assert codes(await client.produce(request(again, txn="tx"), 12)) == [ErrorCode.NONE]
        assert len(node.transactions.requests) == 2

    run_with_listener(test, str(tmp_path), journaled=True)


def test_T8_a_transactional_batch_without_a_transactional_id_is_refused(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        assert codes(await client.produce(request(in_txn(b"a")), 9)) == [ErrorCode.INVALID_TXN_STATE]
        assert partition.log_end_offset == 0
        assert node.transactions.requests == []

    run_with_listener(test, str(tmp_path))


def test_T8_one_request_has_one_transactional_producer(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t", 2)
        client = await KafkaClient.connect(listener.port)
        other = in_txn(b"b", producer=ProducerIdAndEpoch(4001, 0))
        answer = await client.produce(request(in_txn(b"a"), other, txn="tx"), 9)
        assert codes(answer) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2

    run_with_listener(test, str(tmp_path))


def test_T8_later_batches_queue_behind_the_one_that_is_verified(tmp_path: Path) -> None:
    """Pipelined batches of one producer enter in order, with one question; others are not held up."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        first, second = node.create("t", 2)
        node.transactions.added.add(TP)
        node.transactions.gate.clear()
        client, other = await KafkaClient.connect(listener.port), await KafkaClient.connect(listener.port)
        sent = [client.send(request(in_txn(b"v%d" % n, sequence=n), txn="tx", acks=-1), 9) for n in range(5)]
        await until(lambda: len(node.transactions.requests) == 1)
        # Another partition on the same connection, and the same partition from another producer, go ahead.
        plain = client.send(request(batch(b"plain"), first=1), 9)
        await until(lambda: second.log_end_offset == 1)
        assert codes(await other.produce(request(batch(b"other")))) == [ErrorCode.NONE]
        assert first.log_end_offset == 1
        node.transactions.gate.set()
        for number, each in enumerate(sent):
            item = client.produced(await client.receive(), 9, each).partitions[0]
            assert (item.error, item.base_offset) == (ErrorCode.NONE, number + 1)
        client.produced(await client.receive(), 9, plain)
        assert len(node.transactions.requests) == 1
        assert listener.produce.gate.waiting == 0

    run_with_listener(test, str(tmp_path), journaled=True)


def test_T8_a_refused_batch_lets_no_later_one_overtake_it(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        answers = iter([ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NONE])

        def script(asked: AddPartitionsToTxnRequest) -> Mapping[TopicPartition, ErrorCode]:
            return dict.fromkeys(asked.partitions, next(answers))

        node.transactions.script = script
        client = await KafkaClient.connect(listener.port)
        batches = [in_txn(b"v%d" % n, sequence=n) for n in range(3)]
        sent = [client.send(request(data, txn="tx"), 9) for data in batches]
        got = [client.produced(await client.receive(), 9, each).partitions[0].error for each in sent]
        assert got[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        assert got[1:] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        # The client sends them again from the first one on.
        for number, data in enumerate(batches):
            item = (await client.produce(request(data, txn="tx"))).partitions[0]
            assert (item.error, item.base_offset) == (ErrorCode.NONE, number)
        assert partition.log_end_offset == 3

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize(
    ("refusal", "known"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, True),
        (ErrorCode.TRANSACTION_ABORTABLE, False),
        (ErrorCode.CONCURRENT_TRANSACTIONS, True),
    ],
)
def test_T8_a_late_batch_that_was_refused_does_not_keep_out_the_next_transaction(
    tmp_path: Path, refusal: ErrorCode, known: bool
) -> None:
    """Its sequence was taken for one that still waits, so a client of the older protocol stopped for good."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        if known:
            node.transactions.added.add(TP)
            for sequence in range(6):
                answer = await client.produce(request(in_txn(b"v", sequence=sequence), txn="tx"), 9)
                assert codes(answer) == [ErrorCode.NONE]
            partition.append_marker(PRODUCER, 0, True)
        node.transactions.script = lambda asked: dict.fromkeys(asked.partitions, refusal)
        late = codes(await client.produce(request(in_txn(b"v", sequence=0), txn="tx"), 9))
        assert late != [ErrorCode.NONE]
        node.transactions.script = lambda asked: dict.fromkeys(asked.partitions, ErrorCode.NONE)
        answer = await client.produce(request(in_txn(b"next", sequence=6), txn="tx"), 9)
        assert codes(answer) == [ErrorCode.NONE]

    run_with_listener(test, str(tmp_path))


def test_T8_a_marker_between_the_answer_and_the_append_voids_it(tmp_path: Path) -> None:
    """KAFKA-12671: a late produce after the end of its transaction leaves nothing hanging."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        node.transactions.added.add(TP)
        node.transactions.gate.clear()
        client = await KafkaClient.connect(listener.port)
        sent = client.send(request(in_txn(b"late"), txn="tx"), 9)
        await until(lambda: len(node.transactions.requests) == 1)
        # The coordinator has said yes, and its transaction ends before the append.
        node.transactions.gate.set()
        partition.append_marker(PRODUCER, 0, False)
        item = client.produced(await client.receive(), 9, sent).partitions[0]
        assert item.error is ErrorCode.INVALID_TXN_STATE
        assert partition.log_end_offset == 1, "the marker alone"
        assert partition.last_stable_offset == partition.high_watermark

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize(
    ("code", "version", "answered"),
    [
        (ErrorCode.INVALID_TXN_STATE, 9, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_TXN_STATE, 12, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.PRODUCER_FENCED, 9, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_EPOCH, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 9, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.TRANSACTION_ABORTABLE, 12, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 3, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
@pytest.mark.parametrize("raised", [False, True])
def test_T8_the_coordinators_refusal_is_answered_as_producers_understand_it(
    tmp_path: Path, code: ErrorCode, version: int, answered: ErrorCode, raised: bool
) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")

        def script(asked: AddPartitionsToTxnRequest) -> Mapping[TopicPartition, ErrorCode]:
            if raised:
                raise error_for(code, "refused")
            return dict.fromkeys(asked.partitions, code)

        node.transactions.script = script
        client = await KafkaClient.connect(listener.port)
        assert codes(await client.produce(request(in_txn(b"a"), txn="tx"), version)) == [answered]
        assert partition.log_end_offset == 0
        assert listener.produce.gate.waiting == 0

    run_with_listener(test, str(tmp_path))


def test_T8_a_coordinator_that_says_nothing_of_a_partition_refuses_it(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        node.transactions.script = lambda asked: {}
        client = await KafkaClient.connect(listener.port)
        assert codes(await client.produce(request(in_txn(b"a"), txn="tx"))) == [ErrorCode.INVALID_TXN_STATE]

    run_with_listener(test, str(tmp_path))


def test_T8_a_coordinator_that_crashes_opens_the_gate_again(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        node.transactions.script = lambda asked: 1 / 0  # type: ignore[return-value]
        client = await KafkaClient.connect(listener.port)
        assert codes(await client.produce(request(in_txn(b"a"), txn="tx"))) == [ErrorCode.NOT_ENOUGH_REPLICAS]
        node.transactions.script = None
        node.transactions.added.add(TP)
        assert codes(await client.produce(request(in_txn(b"a"), txn="tx"))) == [ErrorCode.NONE]

    run_with_listener(test, str(tmp_path))


def test_T8_the_queue_behind_a_gate_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.broker.handlers.produce.gate.QUEUED_BATCHES_MAX", 2)
    assert QUEUED_BATCHES_MAX > 5

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        node.transactions.added.add(TP)
        node.transactions.gate.clear()
        client = await KafkaClient.connect(listener.port)
        sent = [client.send(request(in_txn(b"v", sequence=n), txn="tx"), 9) for n in range(4)]
        await until(lambda: listener.statistics().refused_batches == 1)
        node.transactions.gate.set()
        got = [client.produced(await client.receive(), 9, each).partitions[0].error for each in sent]
        assert got == [ErrorCode.NONE] * 3 + [ErrorCode.NOT_ENOUGH_REPLICAS]

    run_with_listener(test, str(tmp_path))


def test_T8_who_waits_when_the_node_stops_is_told_to_try_again(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        node.create("t")
        node.transactions.gate.clear()
        client = await KafkaClient.connect(listener.port)
        sent = [client.send(request(in_txn(b"v", sequence=n), txn="tx"), 9) for n in range(2)]
        await until(lambda: len(node.transactions.requests) == 1)
        await turns(10)
        await listener.produce.close()
        for each in sent:
            got = client.produced(await client.receive(), 9, each).partitions[0].error
            assert got is ErrorCode.NOT_ENOUGH_REPLICAS

    run_with_listener(test, str(tmp_path))


def test_a_lost_connection_while_batches_wait_harms_nothing(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        node.transactions.added.add(TP)
        node.transactions.gate.clear()
        client = await KafkaClient.connect(listener.port)
        client.send(request(in_txn(b"a"), txn="tx", acks=-1), 9)
        await until(lambda: len(node.transactions.requests) == 1)
        client.writer.transport.abort()
        await until(lambda: listener.statistics().connections == 0)
        node.transactions.gate.set()
        await until(lambda: partition.high_watermark == 1)

    run_with_listener(test, str(tmp_path), journaled=True)


def test_other_listeners_await_the_same_handler(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        answers = await asyncio.gather(
            listener.produce.produce(request(batch(b"a"), acks=-1)),
            listener.produce.produce(request(in_txn(b"b"), txn="tx")),
            listener.produce.produce(request(batch(b"c"))),
        )
        assert [codes(each) for each in answers] == [[ErrorCode.NONE]] * 3
        assert partition.log_end_offset == 3
        found = partition.read(0, max_bytes=1 << 20, isolation=IsolationLevel.READ_COMMITTED)
        assert struct.unpack_from(">q", found.read())[0] == 0

    run_with_listener(test, str(tmp_path), journaled=True)


def test_records_without_a_key_are_named_where_the_topic_is_compacted(tmp_path: Path) -> None:
    """librdkafka told the application that all records of the batch were bad, where it was two of three (KIP-467)."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t", config=LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT})))
        client = await KafkaClient.connect(listener.port)
        records = [(1_000, None, b"a", ()), (1_000, b"key", b"b", ()), (1_000, None, b"c", ())]
        mixed = bytes(encode_batch(records))
        for acks in (1, -1):
            (answer,) = (await client.produce(request(mixed, acks=acks), 8)).partitions
            assert answer.error is ErrorCode.INVALID_RECORD
            assert [position for position, _ in answer.record_errors] == [0, 2]
            assert all("needs a key" in (message or "") for _, message in answer.record_errors)
        assert partition.log_end_offset == 0
        (answer,) = (await client.produce(request(mixed), 7)).partitions  # the versions before have no room for it
        assert answer.error is ErrorCode.INVALID_RECORD
        assert not answer.record_errors

    run_with_listener(test, str(tmp_path))
