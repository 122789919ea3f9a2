"""A client that sends what no client would: late, repeated, or over another connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from kafka_node import KafkaClient, close_clients, until
from kafka_node import batch as batch_of
from running_node import channel_to, create_topic, running_node

from semel.broker.node import Node
from semel.protocol.api.groups import OffsetFetchRequest
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TransactionVersion,
)
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest
from semel.protocol.record_decoder import decode_records
from semel.protocol.v1 import common_pb2, transactions_pb2, transactions_pb2_grpc

ID, GROUP = "t", "readers"
A, B = TopicPartition("a", 0), TopicPartition("a", 1)
OLDER, NEWER = 11, 12
"""Versions of Produce: partitions added by the client and verified, or added by the node (KIP-890)."""


class Wire:
    """A producer without any sense of its own: sends what the test says, on as many connections as it says."""

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
