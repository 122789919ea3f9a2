"""The asyncio API of the producer, on the same core."""

# ruff: noqa: PT012, ASYNC110 - a transaction raises at the end of its block

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fake_node import Action, FakeNode

import semel
from semel.protocol.errors import AbortTransactionError, ErrorCode, FatalError, FencedError, RetriableError, UsageError
from semel.protocol.ids import TopicPartition

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode({"orders": 1}) as node:
        yield node


def make(node: FakeNode, **options: Any) -> semel.aio.Producer:
    return semel.aio.Producer(node.bootstrap, **{"linger_ms": 0, "retry_backoff_ms": 1, **options})


def test_send_and_await(node: FakeNode) -> None:
    async def run() -> list[int]:
        async with make(node) as producer:
            deliveries = [await producer.send("orders", b"%d" % n) for n in range(100)]
            metadata = await asyncio.gather(*deliveries)
            await producer.flush()
            return [one.offset for one in metadata]

    assert asyncio.run(run()) == list(range(100))


def test_memory_makes_senders_wait_without_blocking_the_loop(node: FakeNode) -> None:
    node.produce_script.append(Action.HOLD)

    async def run() -> None:
        async with make(node, buffer_memory_bytes=1000) as producer:

            async def fill() -> None:
                for _ in range(50):
                    await producer.send("orders", b"x" * 200)

            task = asyncio.create_task(fill())
            while producer._core.accumulator.has_room(200):
                await asyncio.sleep(0)
            assert not task.done()
            node.release()
            await task

    asyncio.run(run())
    assert len(node.broker.partitions[ORDERS].values()) == 50


def test_flush_and_close_have_a_deadline(node: FakeNode) -> None:
    node.produce_script.append(Action.HOLD)

    async def run() -> None:
        producer = make(node)
        delivery = await producer.send("orders", b"x")
        for wrong in (-1, True, "5"):
            for call in (producer.flush, producer.close):
                with pytest.raises(UsageError, match="timeout_s must be seconds"):
                    await call(timeout_s=wrong)  # type: ignore[arg-type]
        with pytest.raises(RetriableError, match="no result within 50 ms"):
            await producer.flush(timeout_s=0.05)
        assert not delivery.done()
        with pytest.raises(RetriableError, match="no result within 50 ms"):
            await producer.close(timeout_s=0.05)
        with pytest.raises(FatalError, match="before the producer was closed: may be written"):
            await delivery

    asyncio.run(run())
    node.release()


def test_E1_what_a_closed_producer_had_not_sent_may_be_sent_again(node: FakeNode) -> None:
    node.produce_script.append(Action.HOLD)

    async def run() -> None:
        producer = make(node, max_in_flight=1, batch_size=1)
        sent = await producer.send("orders", b"x")
        waiting = await producer.send("orders", b"y")
        with pytest.raises(RetriableError, match="no result within 50 ms"):
            await producer.close(timeout_s=0.05)
        with pytest.raises(FatalError, match="may be written or not"):
            await sent
        with pytest.raises(RetriableError, match="before the producer was closed: not written"):
            await waiting

    asyncio.run(run())
    node.release()


def test_failures_are_raised_where_they_are_awaited(node: FakeNode) -> None:
    async def run() -> None:
        async with make(node) as producer:
            with pytest.raises(FatalError, match="there is no topic 'nope'"):
                await producer.send("nope", b"x")
            with pytest.raises(UsageError, match="can't be sent to topic"):
                await producer.send("orders", 5)
            node.produce_script.append(ErrorCode.INVALID_RECORD)
            delivery = await producer.send("orders", b"bad")
            with pytest.raises(FatalError):
                await delivery
            with pytest.raises(FatalError):
                await producer.flush()
        with pytest.raises(UsageError, match="closed"):
            await producer.send("orders", b"x")
        await producer.close()

    asyncio.run(run())


def test_transactions(node: FakeNode) -> None:
    async def run() -> None:
        async with make(node, transactional_id="a") as producer:
            async with producer.transaction() as txn:
                await txn.send("orders", b"x")
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction() as txn:
                    await (await txn.send("orders", b"y"))
                    _ = 1 / 0
            with pytest.raises(UsageError, match="this transaction is not open"):
                await txn.send("orders", b"z")
            node.produce_script.append(ErrorCode.INVALID_RECORD)
            with pytest.raises(AbortTransactionError):
                async with producer.transaction() as txn:
                    await txn.send("orders", b"bad")
            await producer.begin_transaction()
            await producer.send_offsets({ORDERS: 5}, semel.GroupMetadata("g"))
            await producer.commit_transaction()
            async with make(node, transactional_id="a"):
                with pytest.raises(FencedError):
                    async with producer.transaction() as txn:
                        await txn.send("orders", b"zombie")

    asyncio.run(run())
    assert node.broker.partitions[ORDERS].committed_values() == [b"x"]
    assert node.broker.offsets == {("g", ORDERS): 5}


def test_cancelling_a_send_loses_nothing_that_was_buffered(node: FakeNode) -> None:
    node.produce_script.append(Action.HOLD)

    async def run() -> None:
        async with make(node) as producer:
            delivery = await producer.send("orders", b"x")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.ensure_future(_await(delivery)), 0.01)
            node.release()
            assert (await delivery).offset == 0

    asyncio.run(run())


async def _await(delivery: semel.Delivery) -> semel.RecordMetadata:
    return await delivery
