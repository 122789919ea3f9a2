"""Messages that the network kept too long, repeated, or delivered over another connection, against a whole node.

Every test speaks the wire itself, raw Produce and Fetch over TCP and gRPC for the coordinator, so that it can send what
no client would send on its own. What must come out is always the same: no torn transaction, no hanging one, nothing
twice, nothing lost.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from kafka_node import KafkaClient, close_clients, until
from kafka_node import batch as batch_of
from running_node import channel_to, create_topic, running_node

import semel
from semel.broker.handlers.topics import delete_topics
from semel.broker.handlers.write_txn_markers import LocalMarkerWriter
from semel.broker.node import Node
from semel.cli.demo.processes import NodeProcess
from semel.protocol.api.groups import OffsetFetchRequest
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TransactionVersion,
    TxnMarker,
)
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import AbortTransactionError, ErrorCode, RetriableError, SemelError
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest
from semel.protocol.record_decoder import decode_records
from semel.protocol.v1 import common_pb2, groups_pb2, groups_pb2_grpc, transactions_pb2, transactions_pb2_grpc
from semel.runtime.shard import ShardState
from semel.txn_coordinator.schemas import encode_key, encode_value
from semel.txn_coordinator.state import TransactionMetadata, TransactionState

ID, GROUP = "t", "readers"
A, B = TopicPartition("a", 0), TopicPartition("a", 1)
OLDER, NEWER = 11, 12
"""Versions of Produce: partitions added by the client and verified, or added by the node (KIP-890)."""


class Wire:
    """A producer without any sense of its own: sends what it is told, on as many connections as it is told."""

    def __init__(self, node: Node, kafka: KafkaClient, channel: grpc.aio.Channel) -> None:
        self.node = node
        self.kafka = kafka
        self.calls = transactions_pb2_grpc.TransactionServiceStub(channel)

    async def init(self, held: ProducerIdAndEpoch | None = None, name: str = ID) -> ProducerIdAndEpoch | ErrorCode:
        request = transactions_pb2.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        if held is not None:
            request.producer.CopyFrom(message(held))
        return await outcome(self.calls.InitProducerId(request))

    async def begin(self, name: str = ID) -> ProducerIdAndEpoch:
        """`init` until nothing is pending any more, as a client does."""
        while True:
            producer = await self.init(name=name)
            if isinstance(producer, ProducerIdAndEpoch):
                return producer
            assert producer is ErrorCode.CONCURRENT_TRANSACTIONS

    async def end(
        self, producer: ProducerIdAndEpoch, commit: bool = True, name: str = ID
    ) -> ProducerIdAndEpoch | ErrorCode:
        request = transactions_pb2.EndTransactionRequest(
            transactional_id=name, producer=message(producer), commit=commit
        )
        return await outcome(self.calls.EndTransaction(request))

    async def end_for_sure(
        self, producer: ProducerIdAndEpoch, commit: bool = True, name: str = ID
    ) -> ProducerIdAndEpoch | ErrorCode:
        while True:
            ended = await self.end(producer, commit, name)
            if ended is not ErrorCode.CONCURRENT_TRANSACTIONS:
                return ended

    async def add(self, producer: ProducerIdAndEpoch, *tps: TopicPartition) -> ErrorCode | None:
        topics = [common_pb2.TopicPartitions(topic=tp.topic, partitions=[tp.partition]) for tp in tps]
        request = transactions_pb2.AddPartitionsRequest(transactional_id=ID, producer=message(producer), topics=topics)
        try:
            response = await self.calls.AddPartitions(request)
        except grpc.aio.AioRpcError as error:
            return code_of(error)
        return next((ErrorCode(item.error.code) for item in response.items if item.error.code), None)

    async def commit_offset(
        self, producer: ProducerIdAndEpoch, offset: int, *, generation: int = -1, member: str = ""
    ) -> ErrorCode | None:
        request = transactions_pb2.TxnCommitOffsetsRequest(
            transactional_id=ID,
            producer=message(producer),
            group_id=GROUP,
            generation_id=generation,
            member_id=member,
            items=[transactions_pb2.TxnCommitOffsetsRequest.Item(topic=A.topic, partition=0, offset=offset)],
        )
        try:
            response = await self.calls.CommitOffsets(request)
        except grpc.aio.AioRpcError as error:
            return code_of(error)
        return next((ErrorCode(item.error.code) for item in response.items if item.error.code), None)

    async def send(
        self,
        producer: ProducerIdAndEpoch,
        *values: bytes,
        tp: TopicPartition = A,
        sequence: int = 0,
        version: int = NEWER,
        transactional: bool = True,
        name: str = ID,
    ) -> tuple[ErrorCode, int]:
        """Send one batch; return the error and the offset that are answered."""
        data = batch_of(*values, producer=producer, sequence=sequence, transactional=transactional)
        request = ProduceRequest(
            [ProducePartition(tp.topic, tp.partition, data)], name if transactional else None, -1, 5_000
        )
        (answer,) = (await self.kafka.produce(request, version)).partitions
        return answer.error, answer.base_offset

    async def send_for_sure(
        self, producer: ProducerIdAndEpoch, *values: bytes, tp: TopicPartition = A, **more: Any
    ) -> None:
        while (found := await self.send(producer, *values, tp=tp, **more))[0] is ErrorCode.CONCURRENT_TRANSACTIONS:
            pass
        assert found[0] is ErrorCode.NONE, found

    def partition(self, tp: TopicPartition) -> Any:
        partition = self.node.partition(tp)
        assert partition is not None
        return partition

    def end_of(self, tp: TopicPartition) -> int:
        return int(self.partition(tp).log_end_offset)

    async def read(self, tp: TopicPartition = A) -> list[bytes]:
        """What a reader of committed records is sent, decoded as one would."""
        values: list[bytes] = []
        offset = 0
        while offset < self.partition(tp).last_stable_offset:
            item = FetchPartition(tp.topic, self.partition(tp).topic_id, tp.partition, offset, 1 << 20)
            request = FetchRequest([item], 0, isolation=IsolationLevel.READ_COMMITTED)
            (answer,) = (await self.kafka.fetch(request)).partitions
            assert answer.error is ErrorCode.NONE
            aborted = {(producer, first) for producer, first in answer.aborted or ()}
            position, data = 0, memoryview(bytes(answer.records or b""))  # type: ignore[arg-type]
            for header in iter_batches(data):
                if not header.is_control and not any(
                    producer == header.producer_id and first <= header.base_offset for producer, first in aborted
                ):
                    values += [record.value or b"" for record in decode_records(data[position:])]
                if header.is_control:
                    aborted = {one for one in aborted if one[0] != header.producer_id or one[1] > header.base_offset}
                position += header.size_bytes
                offset = header.next_offset
        return values

    async def committed(self) -> int:
        """Where the group stands, once nothing is pending."""
        answer = await self.node.groups.fetch_offsets(OffsetFetchRequest(GROUP, (A,), require_stable=True))
        assert answer.offsets[A].error is ErrorCode.NONE, "offsets are pending"
        return answer.offsets[A].offset

    async def settled(self) -> None:
        """Wait until nothing is open on any partition; a transaction that hangs never lets this end."""
        await until(lambda: self.node.transactions.pending_markers() == 0)
        for partition in self.node.logs.partitions():
            await until(lambda partition=partition: partition.last_stable_offset == partition.log_end_offset)  # type: ignore[misc]


def message(producer: ProducerIdAndEpoch) -> common_pb2.Producer:
    return common_pb2.Producer(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)


def code_of(error: grpc.aio.AioRpcError) -> ErrorCode:
    return ErrorCode[str(dict(error.trailing_metadata() or ())["semel-error"])]


async def outcome(call: Awaitable[Any]) -> ProducerIdAndEpoch | ErrorCode:
    try:
        response = await call
    except grpc.aio.AioRpcError as error:
        return code_of(error)
    return ProducerIdAndEpoch(response.producer.producer_id, response.producer.producer_epoch)


def attack(folder: Path, test: Callable[[Wire], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(120), running_node(folder, **settings) as node:
            if node.metadata.topic("a") is None:
                await create_topic(node, "a", 2)
            kafka = await KafkaClient.connect(node.kafka_address.port)
            try:
                async with channel_to(node) as channel:
                    wire = Wire(node, kafka, channel)
                    await test(wire)
                    await wire.settled()
            finally:
                await close_clients()

    asyncio.run(main())


def next_of(producer: ProducerIdAndEpoch, by: int = 1) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + by)


# -- the end of a transaction


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_T7_an_end_that_is_replayed_gives_the_same_answer_and_its_opposite_is_refused(
    tmp_path: Path, commit: bool
) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        await wire.send_for_sure(producer, b"x")
        async with channel_to(wire.node) as channel:
            other = Wire(wire.node, wire.kafka, channel)
            answers = await asyncio.gather(
                *(place.end_for_sure(producer, commit) for place in (wire, other, wire, other))
            )
            assert set(answers) == {next_of(producer)}
            assert await other.end_for_sure(producer, not commit) is ErrorCode.INVALID_TXN_STATE
        await wire.settled()
        assert await wire.read() == ([b"x"] if commit else [])
        assert wire.end_of(A) == 2  # one record, one marker

    attack(tmp_path, test)


@pytest.mark.parametrize("first", [True, False], ids=["after a commit", "after an abort"])
@pytest.mark.parametrize("late", [True, False], ids=["commit", "abort"])
def test_T6_an_end_that_arrives_in_the_next_transaction_does_not_touch_it(
    tmp_path: Path, first: bool, late: bool
) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        await wire.send_for_sure(producer, b"first")
        following = await wire.end_for_sure(producer, first)
        assert isinstance(following, ProducerIdAndEpoch)
        await wire.send_for_sure(following, b"second")
        assert await wire.end(producer, late) is ErrorCode.PRODUCER_FENCED
        assert await wire.read() == ([b"first"] if first else [])
        await wire.send_for_sure(following, b"third", sequence=1)
        await wire.end_for_sure(following)
        await wire.settled()
        assert await wire.read() == ([b"first"] if first else []) + [b"second", b"third"]

    attack(tmp_path, test)


def test_T11_T6_an_abort_of_nothing_shuts_out_a_batch_that_is_still_on_its_way(tmp_path: Path) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        following = await wire.end_for_sure(producer, commit=False)
        assert following == next_of(producer)
        for version in (OLDER, NEWER):
            error, _ = await wire.send(producer, b"late", version=version)
            assert error is ErrorCode.INVALID_PRODUCER_EPOCH
        assert wire.end_of(A) == 0

    attack(tmp_path, test)


# -- batches after the end


@pytest.mark.parametrize("version", [OLDER, NEWER])
@pytest.mark.parametrize("goes_on", [False, True], ids=["between transactions", "in the next one"])
def test_T8_a_batch_that_arrives_after_its_transaction_opens_nothing(
    tmp_path: Path, version: int, goes_on: bool
) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        if version == OLDER:
            assert await wire.add(producer, A, B) is None
        await wire.send_for_sure(producer, b"x", version=version)
        following = await wire.end_for_sure(producer)
        assert isinstance(following, ProducerIdAndEpoch)
        if goes_on:
            await wire.send_for_sure(following, b"y")
        else:
            await wire.settled()  # while markers are on their way, all are told to come again
        for tp, sequence in ((A, 1), (A, 0), (B, 0)):
            error, _ = await wire.send(producer, b"late", tp=tp, sequence=sequence, version=version)
            assert error is ErrorCode.INVALID_PRODUCER_EPOCH, (tp, sequence)
        if goes_on:
            await wire.end_for_sure(following)
        await wire.settled()
        assert await wire.read(A) == [b"x", b"y"][: 1 + goes_on]
        assert await wire.read(B) == []

    attack(tmp_path, test)


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
def test_T8_with_the_older_protocol_a_late_batch_is_kept_out_by_verification(tmp_path: Path, committed: bool) -> None:
    """The epoch stays the same there, so it can't tell (KAFKA-12671, hanging transactions)."""

    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        for _ in range(2):
            await old_add(wire.node, producer, A, B)
            await wire.send_for_sure(producer, b"x", sequence=wire.end_of(A) // 2, version=OLDER)
            await old_end(wire.node, producer, committed)
            await wire.settled()
            for tp, sequence in ((A, wire.end_of(A) // 2), (B, 0)):
                error, _ = await wire.send(producer, b"late", tp=tp, sequence=sequence, version=OLDER)
                assert error is ErrorCode.TRANSACTION_ABORTABLE
            await wire.settled()
        # In the next transaction, on a partition that is not in it.
        await old_add(wire.node, producer, A)
        error, _ = await wire.send(producer, b"late", tp=B, version=OLDER)
        assert error is ErrorCode.TRANSACTION_ABORTABLE
        await old_end(wire.node, producer, committed)
        assert await wire.read(A) == [b"x", b"x"] * committed
        assert await wire.read(B) == []

    attack(tmp_path, test)


def test_T8_a_batch_that_meets_the_end_of_its_transaction_hangs_nothing(tmp_path: Path) -> None:
    """Batches and ends at the same moment, many times over: whatever wins, nothing stays open or is torn."""

    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        others = [await KafkaClient.connect(wire.node.kafka_address.port) for _ in range(3)]
        async with channel_to(wire.node) as channel:
            racers = [Wire(wire.node, kafka, channel) for kafka in others]
            expected: list[list[bytes]] = [[], []]
            for number in range(150):
                version = OLDER if number % 3 == 0 else NEWER
                commit = number % 2 == 0
                value = b"%d" % number
                if version == OLDER:
                    assert await wire.add(producer, A, B) is None
                await wire.send_for_sure(producer, value, tp=A, version=version)
                (late, _), following, (again, _), (other, _) = await asyncio.gather(
                    racers[0].send(producer, b"late " + value, tp=B, version=version),
                    wire.end_for_sure(producer, commit),
                    racers[1].send(producer, value, tp=A, version=version),
                    racers[2].send(producer, b"more " + value, tp=A, sequence=1, version=version),
                )
                assert isinstance(following, ProducerIdAndEpoch)
                await wire.settled()
                assert again in (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.CONCURRENT_TRANSACTIONS), (
                    again
                )
                if commit:
                    expected[0].append(value)
                    if other is ErrorCode.NONE:
                        expected[0].append(b"more " + value)
                    if late is ErrorCode.NONE:
                        expected[1].append(b"late " + value)
                producer = following
            assert [await wire.read(A), await wire.read(B)] == expected

    attack(tmp_path, test)


def test_T8_partitions_added_again_after_the_end_are_refused(tmp_path: Path) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        assert await wire.add(producer, A) is None
        await wire.send_for_sure(producer, b"x")
        following = await wire.end_for_sure(producer)
        assert isinstance(following, ProducerIdAndEpoch)
        await wire.settled()
        assert await wire.add(producer, A, B) is ErrorCode.PRODUCER_FENCED
        await wire.send_for_sure(following, b"y")
        assert await wire.add(producer, B) is ErrorCode.PRODUCER_FENCED
        await wire.end_for_sure(following, commit=False)
        await wire.settled()
        assert await wire.read() == [b"x"]

    attack(tmp_path, test)


# -- offsets


def test_T6_O1_offsets_that_arrive_after_their_transaction_are_refused_and_nothing_stays_pending(
    tmp_path: Path,
) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        assert await wire.commit_offset(producer, 5) is None
        following = await wire.end_for_sure(producer)
        assert isinstance(following, ProducerIdAndEpoch)
        await wire.settled()
        assert await wire.commit_offset(producer, 3) is ErrorCode.PRODUCER_FENCED
        await wire.send_for_sure(following, b"y")
        assert await wire.commit_offset(producer, 3) is ErrorCode.PRODUCER_FENCED
        assert await wire.committed() == 5
        await wire.end_for_sure(following)
        await wire.settled()
        assert await wire.committed() == 5

    attack(tmp_path, test)


def test_O1_offsets_that_meet_the_end_of_their_transaction_are_in_it_or_refused(tmp_path: Path) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        expected = -1
        for number in range(150):
            commit = number % 2 == 0
            await wire.send_for_sure(producer, b"x")
            refusal, following = await asyncio.gather(
                wire.commit_offset(producer, number), wire.end_for_sure(producer, commit)
            )
            assert isinstance(following, ProducerIdAndEpoch)
            await wire.settled()
            if refusal is None and commit:
                expected = number
            assert await wire.committed() == expected
            producer = following

    attack(tmp_path, test)


@pytest.mark.parametrize("pending", [False, True], ids=["committed", "pending"])
def test_O1_offsets_of_a_topic_whose_deletion_a_crash_cut_short_do_not_count_for_its_successor(
    tmp_path: Path, pending: bool
) -> None:
    """Or a group would pass over the first records of a topic that is made again under the name."""

    async def commit_and_delete(wire: Wire) -> None:
        producer = await wire.begin()
        assert await wire.commit_offset(producer, 5) is None
        if not pending:
            await wire.end_for_sure(producer)
            await wire.settled()
            assert await wire.committed() == 5
        # The metadata says so, and then nothing more happens.
        wire.node.metadata._listeners.clear()
        (result,) = await delete_topics(wire.node, ["a"])
        assert result.error is ErrorCode.NONE
        if pending:
            raise CrashError

    async def read_anew(wire: Wire) -> None:
        assert await wire.committed() == -1
        if pending:
            await wire.begin()  # ends what was open
            await wire.settled()
            assert await wire.committed() == -1

    if pending:
        with pytest.raises(CrashError):
            attack(tmp_path, commit_and_delete)
    else:
        attack(tmp_path, commit_and_delete)
    attack(tmp_path, read_anew)


class CrashError(Exception):
    """The test ends here: what is open stays open."""


def test_O4_a_member_that_was_given_up_cannot_commit_as_if_it_were_nobody(tmp_path: Path) -> None:
    """Its successor may have processed the records: as an anonymous committer it would repeat them (E1)."""
    node = NodeProcess(
        tmp_path / "data", settings=["offsets.topic.num.partitions=2", "group.initial.rebalance.delay.ms=0"]
    )
    node.start()
    try:
        with semel.Admin(node.bootstrap) as admin, semel.Producer(node.bootstrap) as producer:
            admin.create_topic("a", partitions=1)
            producer.send("a", b"x")
        options = {"group": GROUP, "topics": ["a"], "heartbeat_interval_ms": 20}
        with (
            semel.Consumer(node.bootstrap, **options) as zombie,
            semel.Consumer(node.bootstrap, **options) as successor,
        ):
            assert zombie.poll(20)
            joined = zombie.group_metadata()
            assert joined is not None
            with grpc.insecure_channel(node.bootstrap) as channel:
                leaving = groups_pb2.LeaveGroupRequest.Member(member_id=joined.member_id)
                request = groups_pb2.LeaveGroupRequest(group_id=GROUP, members=[leaving])
                groups_pb2_grpc.GroupServiceStub(channel).LeaveGroup(request)
            assert successor.poll(20)
            member = zombie._core._member
            assert member is not None
            while member.membership.metadata.generation_id >= 0:  # until its heartbeat tells it
                time.sleep(0.01)
            said = zombie.group_metadata()
            assert said is not None
            with semel.Producer(node.bootstrap, transactional_id=ID) as producer:
                producer.begin_transaction()
                with pytest.raises(AbortTransactionError) as refused:
                    producer.send_offsets({A: 1}, said)
                assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
                producer.abort_transaction()
            assert successor.committed() == {A: None}
    finally:
        node.kill()


# -- markers


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("epochs_back", [0, 1])
def test_P9_T6_a_marker_that_is_replayed_in_the_next_transaction_does_not_end_it(
    tmp_path: Path, committed: bool, epochs_back: int
) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        await wire.send_for_sure(producer, b"first")
        assert await wire.commit_offset(producer, 1) is None
        following = await wire.end_for_sure(producer)
        assert isinstance(following, ProducerIdAndEpoch)
        await wire.settled()
        offsets = wire.node.groups.offsets_partition(GROUP)
        await wire.send_for_sure(following, b"second")
        assert await wire.commit_offset(following, 2) is None
        old = TxnMarker(next_of(following, -epochs_back), 0, committed, (A, offsets))
        errors = await LocalMarkerWriter(wire.node).write_markers(old)
        assert set(errors.values()) == {ErrorCode.INVALID_PRODUCER_EPOCH}
        assert await wire.read() == [b"first"]
        assert wire.partition(offsets).last_stable_offset < wire.end_of(offsets), "the offsets are pending still"
        await wire.end_for_sure(following, commit=False)
        await wire.settled()
        assert await wire.read() == [b"first"]
        assert await wire.committed() == 1

    attack(tmp_path, test)


@pytest.mark.parametrize("made_anew", [False, True])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_T3_T11_a_transaction_whose_topic_is_deleted_ends_and_leaves_its_successor_clean(
    tmp_path: Path, made_anew: bool, commit: bool
) -> None:
    async def test(wire: Wire) -> None:
        await create_topic(wire.node, "b")
        other = TopicPartition("b", 0)
        producer = await wire.begin()
        await wire.send_for_sure(producer, b"old", tp=A)
        await wire.send_for_sure(producer, b"kept", tp=other)
        assert await wire.commit_offset(producer, 7) is None
        (result,) = await delete_topics(wire.node, ["a"])
        assert result.error is ErrorCode.NONE
        await wire.node.caught_up()
        if made_anew:
            await create_topic(wire.node, "a", 2)
            await wire.node.caught_up()
            # A sequence in the middle, as of a client that did not notice: the partition is in the transaction still.
            await wire.send_for_sure(producer, b"new", tp=A, sequence=1)
            await wire.send_for_sure(producer, b"new", tp=A, sequence=1)
        following = await wire.end_for_sure(producer, commit)
        assert isinstance(following, ProducerIdAndEpoch)
        await wire.settled()
        assert await wire.read(other) == [b"kept"] * commit
        assert await wire.committed() == -1, "what was pending for the deleted topic went with it"
        if made_anew:
            assert await wire.read(A) == [b"new"] * commit
            assert (await wire.send(producer, b"late", tp=B))[0] is ErrorCode.INVALID_PRODUCER_EPOCH
        else:
            assert (await wire.send(producer, b"late", tp=A))[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    attack(tmp_path, test)


# -- duplicates and sequences


def test_P1_P2_a_batch_repeated_late_is_answered_from_memory_or_refused_never_appended(tmp_path: Path) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.init(name="")
        assert isinstance(producer, ProducerIdAndEpoch)
        for number in range(8):
            assert await wire.send(producer, b"%d" % number, sequence=number, transactional=False) == (
                ErrorCode.NONE,
                number,
            )
        for number in range(8):
            error, offset = await wire.send(producer, b"%d" % number, sequence=number, transactional=False)
            if number >= 3:
                assert (error, offset) == (ErrorCode.NONE, number)
            else:
                assert error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await wire.read() == [b"%d" % number for number in range(8)]

    attack(tmp_path, test)


@pytest.mark.parametrize("size", [1, 3], ids=["between batches", "within a batch"])
def test_P2_sequences_go_on_at_zero_after_their_last(tmp_path: Path, size: int) -> None:
    async def test(wire: Wire) -> None:
        producer = await wire.init(name="")
        assert isinstance(producer, ProducerIdAndEpoch)
        first = 2**31 - 1 - (size == 3)
        values = [b"v"] * size
        assert await wire.send(producer, *values, sequence=first, transactional=False) == (ErrorCode.NONE, 0)
        wrapped = (first + size) % 2**31
        assert wrapped == size // 2
        error, _ = await wire.send(producer, *values, sequence=wrapped + 1, transactional=False)
        assert error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        for _ in range(2):
            assert await wire.send(producer, *values, sequence=wrapped, transactional=False) == (ErrorCode.NONE, size)
            assert await wire.send(producer, *values, sequence=first, transactional=False) == (ErrorCode.NONE, 0)
        assert wire.end_of(A) == 2 * size

    attack(tmp_path, test)


# -- epochs


async def set_epoch(node: Node, epoch: int, state: TransactionState = TransactionState.EMPTY) -> ProducerIdAndEpoch:
    """Write into the coordinator's log that the transactional id stands at an epoch, for the next start to read."""
    await node.internal_topic_ready(TRANSACTIONS_TOPIC)
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


# -- several at once


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


PASSING = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
"""What a client tries again after."""


def test_T2_T4_O1_coordinators_that_start_again_from_their_logs_all_the_time_lose_and_tear_nothing(
    tmp_path: Path,
) -> None:
    """With decisions, markers, verifications and answers under way: what was told is what is read."""

    async def again(call: Callable[[], Awaitable[Any]]) -> Any:
        while (found := await call()) in PASSING or (isinstance(found, tuple) and found[0] in PASSING):
            pass
        return found

    async def test(wire: Wire) -> None:
        producer = await wire.begin()
        await wire.commit_offset(producer, 0)
        producer = await again(lambda: wire.end(producer))
        expected: list[bytes] = []
        offset = 0
        restarts = 0
        draw = random.Random(7)
        done = asyncio.Event()

        async def restart() -> None:
            nonlocal restarts
            while not done.is_set():
                await asyncio.sleep(draw.uniform(0, 0.004))
                service = draw.choice([wire.node.transactions, wire.node.groups])
                shard = service._runtime._shards[draw.randrange(2)]
                restarts += shard.state is ShardState.ACTIVE
                shard._reload(RetriableError("the test says so", ErrorCode.KAFKA_STORAGE_ERROR))

        restarting = asyncio.ensure_future(restart())
        for number in range(50):
            value, commit, mine = b"%d" % number, number % 3 != 1, producer
            for tp in (A, B):
                error, _ = await again(lambda tp=tp, value=value, mine=mine: wire.send(mine, value, tp=tp))  # type: ignore[misc]
                assert error is ErrorCode.NONE
            assert await again(lambda number=number, mine=mine: wire.commit_offset(mine, number)) is None  # type: ignore[misc]
            producer = await again(lambda commit=commit, mine=mine: wire.end(mine, commit))  # type: ignore[misc]
            assert producer == next_of(mine), "one bump, however often it was asked for"
            if commit:
                expected.append(value)
                offset = number
        done.set()
        await restarting
        await wire.settled()
        assert restarts > 20
        assert await wire.read(A) == await wire.read(B) == expected
        assert await wire.committed() == offset

    attack(tmp_path, test)


# -- the older protocol, which only the Kafka listener will speak


async def old_add(node: Node, producer: ProducerIdAndEpoch, *tps: TopicPartition) -> None:
    request = AddPartitionsToTxnRequest(ID, producer, tps, version=TransactionVersion.V1)
    answer = await node.transactions.add_partitions(request)
    assert set(answer.errors.values()) == {ErrorCode.NONE}


async def old_end(node: Node, producer: ProducerIdAndEpoch, committed: bool) -> None:
    request = EndTxnRequest(ID, producer, committed, TransactionVersion.V1)
    pending = True
    while pending:
        await asyncio.sleep(0)
        try:
            await node.transactions.end_txn(request)
            pending = False
        except SemelError as error:
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                raise


def test_T7_the_older_protocols_end_may_be_repeated_until_the_next_transaction(tmp_path: Path) -> None:
    async def test(wire: Wire) -> None:
        node = wire.node
        await node.internal_topic_ready(TRANSACTIONS_TOPIC)
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


# -- the node dies


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
