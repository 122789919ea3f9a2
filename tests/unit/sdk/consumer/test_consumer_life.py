"""How consumers begin and end, and what they do when the node goes: restarts, lost connections, damage, forks."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consumer_kit import FACES, Kit, nothing, poll_until, read

import semel
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka import fetch as fetch_protocol
from semel.runtime.kafka_client.connection import Connection
from semel.sdk.consumer.fetcher import SHORT_WAIT_MS, Fetcher
from semel.testing import Broker


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture(params=sorted(FACES))
def kit(node: Broker, request: pytest.FixtureRequest) -> Iterator[Kit]:
    kit = Kit(node, request.param)
    yield kit
    kit.close()


@pytest.fixture(params=sorted(FACES))
def own_kit(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """On a node that the test may stop."""
    with Broker() as node:
        kit = Kit(node, request.param)
        yield kit
        kit.close()


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("semel-consumer")}


STATES: dict[str, Callable[[Kit], Any]] = {
    "unused": lambda kit: kit.consumer(),
    "subscribed": lambda kit: kit.member(),
    "assigned": lambda kit: _assigned(kit),
    "joining": lambda kit: _polled(kit.member(), 0),
    "member": lambda kit: _polled(kit.member(), 10),
    "static member": lambda kit: _polled(kit.member(instance_id="i"), 10),
    "auto-committing": lambda kit: _polled(kit.member(auto_commit_interval_ms=5), 10),
    "rebalancing": lambda kit: _rebalancing(kit),
    "unsubscribed": lambda kit: _unsubscribed(kit),
}


def _assigned(kit: Kit) -> Any:
    reader = kit.consumer()
    reader.assign([TopicPartition(kit.topic, 0)])
    return _polled(reader, 10)


def _polled(consumer: Any, timeout_s: float) -> Any:
    consumer.poll(timeout_s)
    return consumer


def _rebalancing(kit: Kit) -> Any:
    first = _polled(kit.member(), 10)
    kit.member().poll(0.05)
    return _polled(first, 0)


def _unsubscribed(kit: Kit) -> Any:
    consumer = _polled(kit.member(), 10)
    consumer.unsubscribe()
    return consumer


@pytest.mark.parametrize("state", STATES)
def test_close_in_every_state_leaves_nothing_behind(kit: Kit, state: str) -> None:
    kit.create(2)
    kit.fill("a")
    before = threads()
    consumer = STATES[state](kit)
    consumer.close()
    consumer.close()
    for other in kit._consumers:
        other.close()
    assert threads() <= before
    if state not in ("unused", "subscribed", "assigned", "static member", "joining"):
        assert kit.admin.group(kit.group).members == ()
    with pytest.raises(UsageError, match="this Consumer is closed; make a new one"):
        consumer.poll(0)


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.poll(0),
        lambda c: next(iter(c.batches())),
        lambda c: c.subscribe(["t"]),
        lambda c: c.unsubscribe(),
        lambda c: c.assign([TopicPartition("t", 0)]),
        lambda c: c.seek(TopicPartition("t", 0), 1),
        lambda c: c.seek_to_beginning(),
        lambda c: c.seek_to_end(),
        lambda c: c.seek_to_timestamp(1),
        lambda c: c.pause(),
        lambda c: c.resume(),
        lambda c: c.position(TopicPartition("t", 0)),
        lambda c: c.commit(),
        lambda c: c.committed(),
        lambda c: c.beginning_offsets(),
        lambda c: c.end_offsets(),
        lambda c: c.offsets_for_times({}),
    ],
)
def test_use_after_close_says_so(call: Callable[[Any], object]) -> None:
    with semel.Consumer("localhost:1", group="g") as consumer:
        pass
    with pytest.raises(UsageError, match="this Consumer is closed; make a new one"):
        call(consumer)

    async def run() -> None:
        async with semel.aio.Consumer("localhost:1", group="g") as closed:
            pass
        with pytest.raises(UsageError, match="this Consumer is closed; make a new one"):
            await closed.poll(0)

    asyncio.run(run())


def test_closing_from_another_thread_ends_a_poll(node: Broker) -> None:
    kit = Kit(node, "sync")
    kit.create()
    reader = kit.member()
    poll_until(lambda: reader.assignment(), reader)
    closer = threading.Timer(0.1, reader.close)
    closer.start()
    with pytest.raises(UsageError, match="closed"):
        reader.poll()
    closer.join()
    kit.close()


def test_a_consumer_that_is_dropped_leaves_its_group(kit: Kit) -> None:
    kit.create()
    before = threads()
    dropped = _polled(kit.member(), 0)
    poll_until(dropped.assignment, dropped)
    if kit.face == "aio":
        dropped._loop.run_until_complete(dropped._loop.shutdown_default_executor())
        dropped._loop.close()
    kit._consumers.remove(dropped)
    del dropped
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "semel-close":
            thread.join(20)
    assert kit.admin.group(kit.group).members == ()
    assert threads() <= before


def test_a_consumer_can_not_be_used_in_a_forked_child(node: Broker) -> None:
    kit = Kit(node, "sync")
    kit.create()
    kit.fill("a")
    reader = kit.member()
    assert read(reader, 1) == ["a"]
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        message = "nothing was raised"
        try:
            reader.poll(0)
        except UsageError as error:
            message = str(error)
        reader.close()
        os.write(writable, message.encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(readable, 1000).decode()
    os.close(readable)
    os.close(writable)
    assert "can't be used in its forked child" in said
    kit.fill("b")
    assert read(reader, 1) == ["b"], "the child's close has not ended the membership"
    kit.close()


def test_cancelling_an_asyncio_poll_loses_nothing(node: Broker) -> None:
    kit = Kit(node, "sync")
    kit.create()

    async def run() -> list[bytes | None]:
        async with semel.aio.Consumer(node.bootstrap, group=kit.group, topics=[kit.topic], max_wait_ms=50) as consumer:
            found: list[bytes | None] = []
            for number in range(20):
                await asyncio.to_thread(kit.fill, str(number))
                for _ in range(3):
                    try:
                        async with asyncio.timeout(0.002):
                            batch = await consumer.poll()
                            found += [record.value for record in batch or ()]
                    except TimeoutError:
                        continue
            while len(found) < 20:
                found += [record.value for record in await consumer.poll(5) or ()]
            return found

    assert asyncio.run(run()) == [str(number).encode() for number in range(20)]
    kit.close()


def test_an_asyncio_listener_may_commit_inside_on_revoked(node: Broker) -> None:
    kit = Kit(node, "sync")
    kit.create(2)
    for partition in range(2):
        kit.fill(*"abc", partition=partition)
    told: list[str] = []

    async def run() -> None:
        class Committer(semel.aio.RebalanceListener):
            async def on_revoked(self, partitions: Any) -> None:
                await first.commit()
                told.append("revoked")

            async def on_assigned(self, partitions: Any) -> None:
                told.append("assigned")

        first = semel.aio.Consumer(
            node.bootstrap, group=kit.group, topics=[kit.topic], listener=Committer(), heartbeat_interval_ms=20
        )
        second = semel.aio.Consumer(node.bootstrap, group=kit.group, topics=[kit.topic], heartbeat_interval_ms=20)
        async with first, second:
            count = 0
            while count < 6:
                count += len(await first.poll(1) or ())
            while len(second.assignment()) != 1:
                batch, other = await asyncio.gather(first.poll(0.05), second.poll(0.05))
                assert batch is None
                assert other is None
            assert await second.poll(0.2) is None

    asyncio.run(run())
    assert told[:2] == ["assigned", "revoked"]
    kit.close()


def test_a_node_that_restarts_on_its_port_is_read_on_from_where_one_was(own_kit: Kit) -> None:
    kit = own_kit
    (a,) = kit.create()
    kit.fill("a", "b")
    book: list[str] = []

    class Listener(semel.RebalanceListener):
        def on_lost(self, partitions: Any) -> None:
            book.append("lost")

        def on_revoked(self, partitions: Any) -> None:
            book.append("revoked")

    reader = kit.member(listener=Listener())
    assert read(reader, 2) == ["a", "b"]
    for round_number in range(3):
        kit.node.stop()
        nothing(reader, 0.2)
        assert reader.assignment() == {a}
        kit.node.start()
        kit.fill(f"c{round_number}")
        assert read(reader, 1) == [f"c{round_number}"]
        reader.commit()
    assert reader.committed() == {a: semel.OffsetAndMetadata(5)}
    assert book == []


def test_a_node_that_is_gone_does_not_hold_up_poll_or_close(own_kit: Kit) -> None:
    kit = own_kit
    kit.create()
    kit.fill("a")
    reader = kit.member(api_timeout_ms=60_000, auto_commit_interval_ms=60_000)
    assert read(reader, 1) == ["a"]
    kit.node.stop()
    began = time.monotonic()
    nothing(reader, 0.1)
    reader.close(0.1)
    assert time.monotonic() - began < 20, "far below any timeout but LeaveGroup's own"


def test_poll_is_in_time_where_there_is_no_node_and_says_so_in_the_end() -> None:
    for face in FACES.values():
        with face("127.0.0.1:1", group="g", topics=["t"], connect_timeout_ms=400) as reader:
            assert reader.poll(0.05) is None
            with pytest.raises(RetriableError, match=r"nothing listens on 127.0.0.1:1: connection refused"):
                reader.poll(10)
            with pytest.raises(RetriableError, match="nothing listens on"):
                reader.poll()


def test_lost_connections_lose_and_repeat_nothing(kit: Kit) -> None:
    (a,) = kit.create()
    reader = kit.consumer(max_partition_bytes=300)
    reader.assign([a])
    found: list[str] = []
    core = reader._core if kit.face == "sync" else reader._consumer._core
    for number in range(30):
        kit.fill(f"{number}")
        if number % 3 == 0:
            for channel in list(core.client.connections._channels.values()):
                core.client.io.call_soon(channel.close, "cut by the test")
        found += read(reader, 1) if number % 2 else []
    found += read(reader, 30 - len(found))
    assert found == [str(number) for number in range(30)]


def test_damaged_bytes_are_an_error_each_time_and_nothing_is_skipped(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is before the damage, and other partitions, are returned; only a seek goes past it."""
    a, b = kit.create(2)
    for value in ("a0", "a1", "a2"):
        kit.fill(value)
    kit.fill("b0", partition=1)
    original = Fetcher._take_in_partition

    def damage(self: Fetcher, state: Any, answer: fetch_protocol.FetchPartitionResponse) -> bool:
        if state.tp == a and answer.records is not None and len(answer.records):
            data = bytearray(answer.records)
            spot = data.find(b"a1")
            if spot >= 0:
                data[spot] ^= 0xFF
            answer.records = memoryview(data)
        return original(self, state, answer)

    monkeypatch.setattr(Fetcher, "_take_in_partition", damage)
    reader = kit.consumer()
    reader.assign([a, b])
    found: list[str] = []
    errors: list[FatalError] = []
    while len(errors) < 3 or len(found) < 2:
        try:
            found += read(reader, 1, max_records=1)
        except FatalError as error:
            errors.append(error)
    assert sorted(found) == ["a0", "b0"]
    assert {error.code for error in errors} == {ErrorCode.CORRUPT_MESSAGE}
    assert f"{a} can't be read at offset 1: the batch" in str(errors[0])
    assert reader.position(a) == 1
    reader.seek(a, 2)
    assert read(reader, 1) == ["a2"]


def test_bytes_that_are_no_batch_are_an_error(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    (a,) = kit.create()
    kit.fill("a0")
    original = Fetcher._take_in_partition

    def garble(self: Fetcher, state: Any, answer: fetch_protocol.FetchPartitionResponse) -> bool:
        if answer.records is not None and len(answer.records):
            answer.records = memoryview(b"\xff" * 100)
        return original(self, state, answer)

    monkeypatch.setattr(Fetcher, "_take_in_partition", garble)
    reader = kit.consumer()
    reader.assign([a])
    with pytest.raises(FatalError, match="hold no whole record batch; the log is damaged there, seek past it"):
        reader.poll(10)


def test_an_answer_that_can_not_be_read_is_an_error_of_poll(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    (a,) = kit.create()
    original = Connection.request

    def garble(self: Connection, api_key: int, *args: Any, **options: Any) -> Any:
        answer = original(self, api_key, *args, **options)
        if api_key != fetch_protocol.FETCH:
            return answer

        async def short() -> memoryview:
            return (await answer)[:3]

        return short()

    monkeypatch.setattr(Connection, "request", garble)
    reader = kit.consumer()
    reader.assign([a])
    with pytest.raises(FatalError, match="answered a fetch with what can't be read"):
        reader.poll(10)


def test_a_poll_wakes_the_fetcher_only_where_that_waits_for_room(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    (a,) = kit.create()
    kit.fill(*("x" * 1_000 for _ in range(20)), batch_size_bytes=2_000)
    woken: list[Fetcher] = []
    wake = Fetcher.wake

    def noted(self: Fetcher) -> None:
        woken.append(self)
        wake(self)

    monkeypatch.setattr(Fetcher, "wake", noted)
    for options in ({}, {"max_partition_bytes": 1_000}):
        reader = kit.consumer(**options)
        reader.assign([a])
        assert len(reader.poll(10, 1)) == 1
        core = reader._core if kit.face == "sync" else reader._consumer._core
        deadline = time.monotonic() + 10
        while options and not core._fetcher.waits_for_room:
            assert time.monotonic() < deadline
            threading.Event().wait(0.001)
        core.client.io.run(_nothing())  # what it was to do before is done
        woken.clear()
        assert len(read(reader, 19)) == 19
        core.client.io.run(_nothing())
        assert (core._fetcher in woken) == bool(options)


def test_after_something_came_a_fetch_beside_a_full_partition_is_short_again(kit: Kit) -> None:
    """Such a fetch may wait longer the longer nothing came, and then holds up the partition that is full now."""
    (a,) = kit.create()
    reader = kit.consumer(max_wait_ms=50)
    reader.assign([a])
    assert reader.poll(0.01) is None
    core = reader._core if kit.face == "sync" else reader._consumer._core
    fetcher = core._fetcher
    deadline = time.monotonic() + 10
    while fetcher._short_wait_ms == SHORT_WAIT_MS:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    waits: list[int] = []
    ready = fetcher._on_ready

    def noted() -> None:
        waits.append(fetcher._short_wait_ms)
        ready()

    fetcher._on_ready = noted
    kit.fill("x")
    assert read(reader, 1) == ["x"]
    assert waits == [SHORT_WAIT_MS]


async def _nothing() -> None:
    return


def test_memory_stays_within_its_bound_where_nobody_polls(kit: Kit) -> None:
    tps = kit.create(4)
    for tp in tps:
        kit.fill(*("x" * 10_000 for _ in range(40)), partition=tp.partition, batch_size_bytes=20_000)
    reader = kit.consumer(max_partition_bytes=50_000, max_bytes=60_000, buffered_bytes_max=100_000)
    reader.assign(tps)
    first = reader.poll(0) or ()  # mostly nothing: this only begins to fetch
    core = reader._core if kit.face == "sync" else reader._consumer._core

    def buffered() -> int:
        return sum(state.buffered_bytes for state in core.subscription.partitions())

    deadline = time.monotonic() + 10
    while buffered() < 100_000 and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    for _ in range(20):
        assert buffered() <= 160_000
        threading.Event().wait(0.005)
    assert len(first) + len(read(reader, 160 - len(first))) == 160
