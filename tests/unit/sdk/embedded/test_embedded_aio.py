"""`semel.aio.open`: the same log for asyncio, whose loop it never blocks."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

import semel
import semel.aio
from semel.broker.node import Node
from semel.broker.start_errors import NodeStartError
from semel.sdk.embedded.core import EmbeddedCore

SMALL = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "disk.min.free.bytes": 0,
}
WAIT_S = 60.0


def hosts() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "semel-embedded"]


def test_transactions_and_groups_work_in_coroutines(tmp_path: Path) -> None:
    async def main() -> None:
        async with semel.aio.open(tmp_path, settings=SMALL) as log:
            await log.create_topic("orders", partitions=2)
            async with (
                log.producer(transactional_id="load-1") as producer,
                log.consumer(group="readers", topics=["orders"]) as consumer,
            ):
                async with producer.transaction():
                    await producer.send("orders", b"1")
                batch = await consumer.poll(WAIT_S)
                assert batch is not None
                assert [record.value for record in batch] == [b"1"]
                async with producer.transaction(commits=batch):
                    pass
            async with log.admin() as admin:
                assert len(await admin.group_offsets("readers")) == 1
            shared = await log.shared_transaction("key", token="t")
            async with await shared.join() as writer:
                await writer.send("orders", b"2")
                member = await writer.finish()
            assert not (await shared.commit([member])).already_committed

    asyncio.run(main())


def test_a_log_is_opened_by_await_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        log = await semel.aio.open(tmp_path, settings=SMALL)
        async with log:
            assert await log.topics() == []
        await log.close()
        with pytest.raises(semel.UsageError, match="was closed"):
            await log.topics()

    asyncio.run(main())


def test_one_that_was_not_awaited_says_so(tmp_path: Path) -> None:
    log = semel.aio.open(tmp_path, settings=SMALL)
    with pytest.raises(semel.UsageError, match=r"is not open yet: .* awaited"):
        log.producer()
    asyncio.run(log.close())
    assert list(tmp_path.iterdir()) == []


def test_the_callers_loop_runs_while_it_is_opened_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits in its thread until the loop has had turns meanwhile: it would never end if it held the loop."""
    turns = threading.Semaphore(0)

    def waiting(name: str) -> None:
        original = getattr(EmbeddedCore, name)

        def slow(core: EmbeddedCore) -> None:
            for _ in range(5):
                assert turns.acquire(timeout=WAIT_S), "the loop is blocked"
            original(core)

        monkeypatch.setattr(EmbeddedCore, name, slow)

    waiting("start")
    waiting("stop")

    async def tick() -> None:
        while True:
            turns.release()
            await asyncio.sleep(0.001)

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        async with semel.aio.open(tmp_path, settings=SMALL) as log:
            assert await log.topics() == []
        ticking.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("times", [1, 2])
def test_opening_that_is_cancelled_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    begun, gate = threading.Event(), threading.Event()
    start = Node.start

    async def held(*arguments: object, **options: object) -> Node:
        begun.set()
        await asyncio.to_thread(gate.wait, WAIT_S)
        return await start(*arguments, **options)  # type: ignore[arg-type]

    async def main() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Node, "start", held)

            async def opening() -> None:
                async with semel.aio.open(tmp_path, settings=SMALL):
                    raise AssertionError("it was cancelled before")

            task = asyncio.create_task(opening())
            assert await asyncio.to_thread(begun.wait, WAIT_S)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            gate.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert hosts() == []
        async with semel.aio.open(tmp_path, settings=SMALL) as log:
            assert await log.topics() == []

    asyncio.run(main())


def test_an_exception_aborts_what_is_open_and_a_second_open_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with semel.aio.open(tmp_path, settings=SMALL) as log:
                await log.create_topic("orders")
                with pytest.raises(NodeStartError, match="in use by this process"):
                    await semel.aio.open(tmp_path)
                producer = log.producer(transactional_id="t")
                await producer.begin_transaction()
                await (await producer.send("orders", b"never"))
                raise ZeroDivisionError
        async with semel.aio.open(tmp_path, settings=SMALL) as log, log.admin() as admin:
            assert (await admin.transaction("t")).state == "CompleteAbort"

    asyncio.run(main())


def test_logs_on_several_loops_and_threads(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    async def main(name: str) -> None:
        async with semel.aio.open(tmp_path / name, settings=SMALL) as log, log.producer() as producer:
            await log.create_topic("orders")
            for _ in range(10):
                await (await producer.send("orders", b"x"))

    def work(name: str) -> None:
        try:
            asyncio.run(main(name))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"log-{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert errors == []
    deadline = time.monotonic() + WAIT_S
    while hosts():
        assert time.monotonic() < deadline
