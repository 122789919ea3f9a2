"""Produce and Fetch as gRPC streams: order, bounds, credit, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from compiled_classes import set_method
from running_node import batch, channel_to, create_topic, running_node

from semel.broker.listeners.grpc.data_service import UNANSWERED_MAX
from semel.broker.listeners.grpc.errors import ERROR_METADATA
from semel.broker.node import Node
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.transactions import AbortTransactionRequest
from semel.protocol.batch_header import iter_batches
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import decode_records
from semel.protocol.v1 import common_pb2, data_pb2, data_pb2_grpc

Test = Callable[[Node, "data_pb2_grpc.DataServiceAsyncStub"], Awaitable[None]]
COMMITTED = common_pb2.READ_COMMITTED


def with_data(folder: Path, test: Test, **settings: Any) -> None:
    async def main() -> None:
        async with running_node(folder, **settings) as node, channel_to(node) as channel:
            await create_topic(node, "a", 2)
            await test(node, data_pb2_grpc.DataServiceStub(channel))

    asyncio.run(main())


def to_produce(*values: bytes, partition: int = 0, topic: str = "a", acks: int = -1) -> data_pb2.ProduceRequest:
    item = data_pb2.ProduceRequest.Item(topic=topic, partition=partition, record_batches=batch(*values))
    return data_pb2.ProduceRequest(acks=acks, timeout_ms=5_000, items=[item])


async def produce(data: data_pb2_grpc.DataServiceAsyncStub, *requests: data_pb2.ProduceRequest) -> list[Any]:
    return [response.items[0] async for response in data.Produce(iter(requests))]


def to_fetch(credit_bytes: int, offset: int | None = 0, **fields: Any) -> data_pb2.FetchRequest:
    items = [] if offset is None else [data_pb2.FetchRequest.Item(topic="a", offset=offset)]
    return data_pb2.FetchRequest(items=items, credit_bytes=credit_bytes, max_wait_ms=100, **fields)


def values(response: data_pb2.FetchResponse) -> list[bytes | None]:
    return [record.value for item in response.items for record in decode_records_of(item.record_batches)]


def decode_records_of(data: bytes) -> list[Any]:
    records, position = [], 0
    for header in iter_batches(data):
        if not header.is_control:
            records += decode_records(data[position : position + header.size_bytes])
        position += header.size_bytes
    return records


def test_batches_are_appended_and_answered_in_order(tmp_path: Path) -> None:
    async def test(node: Node, data: data_pb2_grpc.DataServiceAsyncStub) -> None:
        requests = [to_produce(b"%d" % number, b"x", acks=number % 2 - 1) for number in range(UNANSWERED_MAX * 3)]
        answers = await produce(data, *requests)
        assert [answer.base_offset for answer in answers] == [number * 2 for number in range(UNANSWERED_MAX * 3)]
        assert {answer.error.name for answer in answers} == {""}

    with_data(tmp_path, test)


def test_each_batch_has_its_own_error(tmp_path: Path) -> None:
    async def test(node: Node, data: data_pb2_grpc.DataServiceAsyncStub) -> None:
        broken = to_produce(b"x")
        broken.items[0].record_batches = broken.items[0].record_batches[:-1] + b"!"
        answers = await produce(
            data, to_produce(b"x"), to_produce(b"x", topic="zz"), broken, to_produce(b"x", acks=7), to_produce(b"y")
        )
        assert [answer.error.name for answer in answers] == [
            "",
            "UNKNOWN_TOPIC_OR_PARTITION",
            "CORRUPT_MESSAGE",
            "INVALID_REQUIRED_ACKS",
            "",
        ]
        assert answers[4].base_offset == 1
        assert all(answer.error.message for answer in answers[1:4])

    with_data(tmp_path, test)


def test_a_stream_of_produce_has_a_bound_of_unanswered_requests(tmp_path: Path) -> None:
    """The client continues sending while the disk is stuck: what is not begun stays unread."""

    async def test(node: Node, data: data_pb2_grpc.DataServiceAsyncStub) -> None:
        sent = 0

        async def requests() -> AsyncIterator[data_pb2.ProduceRequest]:
            nonlocal sent
            for number in range(UNANSWERED_MAX + 50):
                sent = number
                yield to_produce(b"x")

        partition = node.partition(TopicPartition("a", 0))
        assert partition is not None
        full = asyncio.Event()
        stuck: list[Callable[[], None]] = []
        when_committed = type(partition).when_committed

        def never_yet(self: object, offset: int, callback: Any) -> None:
            stuck.append(lambda: when_committed(self, offset, callback))  # type: ignore[arg-type]
            if len(stuck) == UNANSWERED_MAX:
                full.set()

        with pytest.MonkeyPatch.context() as patch:
            set_method(patch, type(partition), "when_committed", never_yet)
            set_method(patch, type(partition), "high_watermark", property(lambda self: 0))
            call = data.Produce(requests())
            await full.wait()
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(stuck) == UNANSWERED_MAX
        for release in stuck:
            release()
        answers = [response async for response in call]
        assert len(answers) == UNANSWERED_MAX + 50 == sent + 1

    with_data(tmp_path, test)


def test_fetch_sends_what_is_there_and_goes_on(tmp_path: Path) -> None:
    async def test(node: Node, data: data_pb2_grpc.DataServiceAsyncStub) -> None:
        await produce(data, to_produce(b"1"), to_produce(b"2", b"3"))
        call = data.Fetch(iter([to_fetch(1_000_000)]))
        first = await call.read()
        assert values(first) == [b"1", b"2", b"3"]
        assert first.items[0].high_watermark == first.items[0].last_stable_offset == 3
        reading = asyncio.ensure_future(call.read())
        await produce(data, to_produce(b"4"))
        assert values(await reading) == [b"4"]
        call.cancel()

    with_data(tmp_path, test)


def test_fetch_stops_when_the_credit_is_used_up_and_goes_on_with_more(tmp_path: Path) -> None:
    async def test(node: Node, data: data_pb2_grpc.DataServiceAsyncStub) -> None:
        for number in range(4):
            await produce(data, to_produce(b"%d" % number * 1000))
        call = data.Fetch()
        await call.write(to_fetch(1))
        assert len(values(await call.read())) == 1
        await call.write(to_fetch(1, None))
        # The first batch overdrew the credit, so one byte more gives nothing yet.
        reading = asyncio.ensure_future(call.read())
        done, _ = await asyncio.wait([reading], timeout=0.2)
        assert not done
        await call.write(to_fetch(2_500, None))
        received = values(await reading)
        await call.done_writing()
        while (response := await call.read()) is not grpc.aio.EOF:
            received += values(response)
        assert [value[:1] for value in received if value is not None] == [b"1", b"2"]

    with_data(tmp_path, test)


def test_a_later_request_replaces_the_positions(tmp_path: Path) -> None:
    async def test(node: Node, data: data_pb2_grpc.DataServiceAsyncStub) -> None:
        await produce(data, to_produce(b"1"), to_produce(b"2"), to_produce(b"p1", partition=1))
        call = data.Fetch()
        await call.write(to_fetch(1_000_000, 2))
        await call.write(to_fetch(0, 1))
        assert values(await call.read()) == [b"2"]
        other = data_pb2.FetchRequest.Item(topic="a", partition=1)
        await call.write(data_pb2.FetchRequest(items=[other]))
        assert values(await call.read()) == [b"p1"]
        call.cancel()

    with_data(tmp_path, test)


def test_a_partition_with_an_error_is_told_once(tmp_path: Path) -> None:
    async def test(node: Node, data: data_pb2_grpc.DataServiceAsyncStub) -> None:
        await produce(data, to_produce(b"1"))
        missing = data_pb2.FetchRequest.Item(topic="zz")
        request = to_fetch(1_000_000, 77)
        request.items.append(missing)
        call = data.Fetch(iter([request]))
        answers = [item async for response in call for item in response.items]
        assert {(item.topic, item.error.name) for item in answers} == {
            ("a", "OFFSET_OUT_OF_RANGE"),
            ("zz", "UNKNOWN_TOPIC_OR_PARTITION"),
        }
        assert len(answers) == 2

    with_data(tmp_path, test)


def test_a_wrong_request_ends_the_stream(tmp_path: Path) -> None:
    async def test(node: Node, data: data_pb2_grpc.DataServiceAsyncStub) -> None:
        twice = to_fetch(1_000_000)
        twice.items.append(twice.items[0])
        call = data.Fetch(iter([twice]))
        with pytest.raises(grpc.aio.AioRpcError, match="more than once") as error:
            await call.read()
        assert dict(error.value.trailing_metadata())[ERROR_METADATA] == "INVALID_REQUEST"

    with_data(tmp_path, test)


def test_L3_an_aborted_transaction_is_named(tmp_path: Path) -> None:
    async def test(node: Node, data: data_pb2_grpc.DataServiceAsyncStub) -> None:
        await node.transactions.topic_ready()
        producer = (await node.transactions.init_producer_id(InitProducerIdRequest("t", 60_000))).producer
        request = to_produce(b"aborted")
        request.transactional_id = "t"
        request.items[0].record_batches = batch(
            b"aborted",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        (answer,) = await produce(data, request)
        assert answer.error.name == ""
        partition = node.partition(TopicPartition("a", 0))
        assert partition is not None
        await produce(data, to_produce(b"plain"))
        call = data.Fetch(iter([to_fetch(1_000_000, isolation=COMMITTED)]))
        reading = asyncio.ensure_future(call.read())
        done, _ = await asyncio.wait([reading], timeout=0.2)
        assert not done, "L2: nothing at or beyond the last stable offset"
        await node.transactions.abort(AbortTransactionRequest("t"))
        item = (await reading).items[0]
        assert [(each.producer_id, each.first_offset) for each in item.aborted_transactions] == [
            (producer.producer_id, 0)
        ]
        assert partition.last_stable_offset == 3
        call.cancel()

    with_data(tmp_path, test)


def test_streams_end_when_the_node_stops_and_what_was_begun_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node, channel_to(node) as channel:
            data = data_pb2_grpc.DataServiceStub(channel)
            await create_topic(node, "a")
            producing, fetching = data.Produce(), data.Fetch()
            await producing.write(to_produce(b"1"))
            await fetching.write(to_fetch(1_000_000))
            answer = await producing.read()
            assert answer.items[0].base_offset == 0
            assert values(await fetching.read()) == [b"1"]
            ends = [asyncio.ensure_future(call.read()) for call in (producing, fetching)]
            await asyncio.wait_for(node.stop(grace_ms=60_000), 30)
            for end in ends:
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await end
                assert error.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(main())
