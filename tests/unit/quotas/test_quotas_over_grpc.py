"""Quotas over gRPC: streams that pause, changes of topics that are refused, and calls that are answered later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from running_node import batch, channel_to, create_topic, run_with_node

import semel
from semel.broker.handlers.client_quotas import alter_client_quotas
from semel.broker.node import Node
from semel.broker.quotas.client_quotas import QuotaType
from semel.protocol.api.clients import CLIENT_METADATA
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.quotas import QuotaAlteration, QuotaEntity
from semel.protocol.v1 import data_pb2, data_pb2_grpc, topics_pb2, topics_pb2_grpc

ME = ((CLIENT_METADATA, b"me"),)
MINE = QuotaEntity(client_id="me")


async def quota(node: Node, **values: float) -> None:
    await alter_client_quotas(node, [QuotaAlteration(MINE, dict(values))])


def to_produce(size: int) -> data_pb2.ProduceRequest:
    item = data_pb2.ProduceRequest.Item(topic="t", partition=0, record_batches=batch(bytes(size)))
    return data_pb2.ProduceRequest(acks=1, timeout_ms=5_000, items=[item])


def end_of(node: Node) -> int:
    partition = node.partition(TopicPartition("t", 0))
    assert partition is not None
    return partition.log_end_offset


async def others_are_served(data: data_pb2_grpc.DataServiceAsyncStub) -> None:
    """Use streams of another client, so often that what was to happen on the first has happened."""
    for _ in range(20):
        async for _ in data.Produce(iter([data_pb2.ProduceRequest(acks=1)])):
            pass


def test_a_stream_of_a_producer_is_answered_and_then_not_read(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await quota(node, producer_byte_rate=1)
        async with channel_to(node) as channel:
            data: data_pb2_grpc.DataServiceAsyncStub = data_pb2_grpc.DataServiceStub(channel)
            stream = data.Produce(metadata=ME)
            await stream.write(to_produce(5_000))
            answer = await stream.read()
            assert answer.items[0].error.code == 0
            await stream.write(to_produce(10))
            await others_are_served(data)
            assert end_of(node) == 1
            assert node.client_quotas.throttled[QuotaType.PRODUCE] == 1
            stream.cancel()

    run_with_node(tmp_path, test, topics={"t": 1})


def test_a_stream_of_a_producer_goes_on_when_the_time_is_over(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await quota(node, producer_byte_rate=1_000)
        async with channel_to(node) as channel:
            data: data_pb2_grpc.DataServiceAsyncStub = data_pb2_grpc.DataServiceStub(channel)
            requests = iter([to_produce(10_010), to_produce(10), to_produce(10)])
            offsets = [answer.items[0].base_offset async for answer in data.Produce(requests, metadata=ME)]
            assert offsets == [0, 1, 2]
            assert node.client_quotas.throttled[QuotaType.PRODUCE] >= 1

    run_with_node(tmp_path, test, topics={"t": 1})


def test_a_stream_of_a_reader_gets_nothing_while_its_quota_is_used_up(tmp_path: Path) -> None:
    async def asks() -> AsyncIterator[data_pb2.FetchRequest]:
        item = data_pb2.FetchRequest.Item(topic="t", partition=0, offset=0, max_bytes=1_000)
        yield data_pb2.FetchRequest(items=[item], credit_bytes=1 << 20, max_wait_ms=10)
        await asyncio.Event().wait()

    async def test(node: Node) -> None:
        async with channel_to(node) as channel:
            data: data_pb2_grpc.DataServiceAsyncStub = data_pb2_grpc.DataServiceStub(channel)
            async for _ in data.Produce(iter([to_produce(5_000)] * 3)):
                pass
            await quota(node, consumer_byte_rate=1)
            stream = data.Fetch(asks(), metadata=ME)
            assert (await stream.read()).items[0].record_batches
            while not node.client_quotas.throttled[QuotaType.FETCH]:  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0.01)
            await others_are_served(data)
            assert node.fetch.fetched_bytes < 6_000
            assert node.client_quotas.throttled[QuotaType.FETCH] == 1, "it is not read again and again meanwhile"
            await alter_client_quotas(node, [QuotaAlteration(MINE, {"consumer_byte_rate": None})])
            stream.cancel()
            more = data.Fetch(asks(), metadata=ME)
            for _ in range(3):
                assert (await more.read()).items[0].record_batches
            more.cancel()

    run_with_node(tmp_path, test, topics={"t": 1})


def test_changes_of_topics_beyond_the_quota_are_refused_and_the_sdk_tries_again(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "there")
        await quota(node, controller_mutation_rate=2)
        async with channel_to(node) as channel:
            stub: topics_pb2_grpc.TopicServiceAsyncStub = topics_pb2_grpc.TopicServiceStub(channel)
            many = topics_pb2.NewTopic(name="many", num_partitions=32, replication_factor=1)  # 5 s too many
            made = await stub.CreateTopics(topics_pb2.CreateTopicsRequest(topics=[many]), metadata=ME)
            assert not made.topics[0].error.code
            gone = await stub.DeleteTopics(topics_pb2.DeleteTopicsRequest(topics=["there"]), metadata=ME)
            assert gone.results[0].error.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
            assert "ask again in" in gone.results[0].error.message
        async with semel.aio.Admin(str(node.grpc_address), client_id="me") as admin:
            await admin.create_topic("later")
            await admin.delete_topic("there")
        assert set(node.metadata.image.topics) & {"there", "later"} == {"later"}

    run_with_node(tmp_path, test)


def test_the_time_of_calls_counts(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await quota(node, request_percentage=0.000_001)
        async with channel_to(node) as channel:
            stub: topics_pb2_grpc.TopicServiceAsyncStub = topics_pb2_grpc.TopicServiceStub(channel)
            await stub.CreateTopics(topics_pb2.CreateTopicsRequest(), metadata=ME)
            assert node.client_quotas.throttled[QuotaType.REQUEST] == 1
            assert node.client_quotas.throttled_s[QuotaType.REQUEST] == 1.0
            await stub.CreateTopics(topics_pb2.CreateTopicsRequest())
            assert node.client_quotas.throttled[QuotaType.REQUEST] == 1, "of another client"

    run_with_node(tmp_path, test)


def test_another_stream_of_the_same_client_waits_too(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await quota(node, producer_byte_rate=1)
        async with channel_to(node) as channel:
            data: data_pb2_grpc.DataServiceAsyncStub = data_pb2_grpc.DataServiceStub(channel)
            first = data.Produce(metadata=ME)
            await first.write(to_produce(5_000))
            await first.read()
            first.cancel()
            second = data.Produce(metadata=ME)
            await second.write(to_produce(10))
            await others_are_served(data)
            assert end_of(node) == 1
            second.cancel()

    run_with_node(tmp_path, test, topics={"t": 1})


def test_a_batch_larger_than_a_response_is_read_though_it_is_larger_than_the_quota(tmp_path: Path) -> None:
    async def asks() -> AsyncIterator[data_pb2.FetchRequest]:
        item = data_pb2.FetchRequest.Item(topic="t", partition=0, offset=0, max_bytes=1_000)
        yield data_pb2.FetchRequest(items=[item], credit_bytes=1 << 24, max_wait_ms=10)
        await asyncio.Event().wait()

    async def test(node: Node) -> None:
        async with channel_to(node) as channel:
            data: data_pb2_grpc.DataServiceAsyncStub = data_pb2_grpc.DataServiceStub(channel)
            async for answer in data.Produce(iter([to_produce((1 << 20) - 67)])):
                assert answer.items[0].error.code == 0
            await quota(node, consumer_byte_rate=100_000)
            stream = data.Fetch(asks(), metadata=ME)
            found = await stream.read()
            assert len(found.items[0].record_batches) > 1 << 20
            assert node.client_quotas.throttled[QuotaType.FETCH] == 0, "what was not sent does not count"
            stream.cancel()

    run_with_node(tmp_path, test, topics={"t": 1})


def test_a_call_that_is_cancelled_counts(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await quota(node, request_percentage=0.001)
        async with channel_to(node) as channel:
            topics: topics_pb2_grpc.TopicServiceAsyncStub = topics_pb2_grpc.TopicServiceStub(channel)
            while not node.client_quotas.throttled[QuotaType.REQUEST]:
                call = topics.CreateTopics(topics_pb2.CreateTopicsRequest(), metadata=ME)
                await asyncio.sleep(0.001)
                call.cancel()

    run_with_node(tmp_path, test, topics={"t": 1})
