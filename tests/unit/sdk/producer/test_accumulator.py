"""The accumulator, as installed (compiled) and interpreted from the same source."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from interpreted import interpreted

from semel.protocol.batch_builder import BatchBuilder
from semel.protocol.errors import ErrorCode, RetriableError, UsageError
from semel.protocol.record_decoder import decode_records
from semel.runtime.clock import Clock, ManualClock, SystemClock
from semel.sdk.producer import accumulator as installed_accumulator
from semel.sdk.producer import delivery as installed_delivery
from semel.sdk.producer.partitioner import partition_for_key

NEVER = 10**12


@pytest.fixture(params=["as installed", "interpreted"])
def sdk(request: pytest.FixtureRequest) -> Any:
    if request.param == "as installed":
        return SimpleNamespace(**{**vars(installed_delivery), **vars(installed_accumulator)})
    modules = interpreted(
        "semel.protocol.batch_builder",
        "semel.sdk.producer.partitioner",
        "semel.sdk.producer.delivery",
        "semel.sdk.producer.accumulator",
    )
    assert not modules[2].COMPILED
    return SimpleNamespace(**{**vars(modules[2]), **vars(modules[3])})


def make(sdk: Any, *, topics: dict[str, int] | None = None, clock: Clock | None = None, **options: Any) -> Any:
    own = {name: options.pop(name) for name in ("partitioner", "key_serializer", "value_serializer") if name in options}
    accumulator = sdk.Accumulator(sdk.AccumulatorOptions(**options), clock or ManualClock(), **own)
    known = topics or {"orders": 3}
    accumulator.open_topic = lambda topic: accumulator.add_topic(topic, known[topic])
    accumulator.wake = lambda: None
    return accumulator


def drain(accumulator: Any) -> dict[tuple[str, int], list[Any]]:
    """Take everything, as records by partition."""
    records: dict[tuple[str, int], list[Any]] = {}
    for buffer in accumulator.take_listed():
        while (batch := accumulator.take(buffer)) is not None:
            data = batch.builder.build()
            records.setdefault((batch.topic, batch.partition), []).append(decode_records(data))
            accumulator.release(batch)
            batch.succeed(100, -1)
        accumulator.unlist(buffer)
    return records


def refuse(message: str) -> Any:
    def refusing(*_: Any) -> None:
        raise UsageError(message)

    return refusing


def test_a_record_comes_out_as_it_went_in(sdk: Any) -> None:
    accumulator = make(sdk, clock=ManualClock(1_700_000_000_456))
    accumulator.send(
        "orders", b"value", key=b"key", headers={"a": b"1", "b": None}, partition=2, timestamp_ms=1_700_000_000_123
    )
    accumulator.send(
        "orders", "text", key="schlüssel", headers=[("c", "x")], partition=2, timestamp_ms=1_700_000_000_000
    )
    accumulator.send("orders", None, key=None, partition=2)
    ((first, second, third),) = drain(accumulator)["orders", 2]
    assert (first.key, first.value, first.timestamp_ms) == (b"key", b"value", 1_700_000_000_123)
    assert first.headers == (("a", b"1"), ("b", None))
    assert (second.key, second.value, second.timestamp_ms) == ("schlüssel".encode(), b"text", 1_700_000_000_000)
    assert second.headers == (("c", b"x"),)
    assert (third.key, third.value) == (None, None)
    assert third.timestamp_ms == 1_700_000_000_456


def test_records_have_the_machines_time_by_default(sdk: Any) -> None:
    clock = SystemClock()
    accumulator = make(sdk, clock=clock)
    before_ms = clock.now_ms()
    accumulator.send("orders", b"value", partition=0)
    ((record,),) = drain(accumulator)["orders", 0]
    assert before_ms <= record.timestamp_ms <= clock.now_ms()


def test_keys_decide_the_partition(sdk: Any) -> None:
    accumulator = make(sdk, topics={"orders": 7})
    deliveries = [(key, accumulator.send("orders", b"", key=key)) for key in (b"21", b"foobar", b"abc", b"")]
    for key, delivery in deliveries:
        assert delivery.partition == partition_for_key(key, 7)


def test_without_a_key_records_stay_with_one_partition_until_its_batch_ends(sdk: Any) -> None:
    accumulator = make(sdk, topics={"orders": 50}, batch_size_bytes=1000)
    partitions = [accumulator.send("orders", b"x" * 100).partition for _ in range(200)]
    runs = [1]
    for one, other in pairwise(partitions):
        if one == other:
            runs[-1] += 1
        else:
            runs.append(1)
    assert len(set(partitions)) > 10
    assert min(runs[:-1]) >= 5
    before = accumulator.send("orders", b"y").partition
    drain(accumulator)  # its batch was sent: the next goes elsewhere
    assert accumulator.send("orders", b"y").partition != before


def test_a_partitioner_of_ones_own_decides(sdk: Any) -> None:
    seen = []

    def choose(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        seen.append((topic, key, value, count))
        return 1 if value == b"one" else 7

    accumulator = make(sdk, partitioner=choose)
    assert accumulator.send("orders", b"one", key=b"k").partition == 1
    assert seen == [("orders", b"k", b"one", 3)]
    assert accumulator.send("orders", b"one", partition=2).partition == 2
    with pytest.raises(UsageError, match=r"the partitioner returned 7 .* 0 to 2"):
        accumulator.send("orders", b"other")


def test_batches_close_when_full_and_are_taken_in_order(sdk: Any) -> None:
    clock = ManualClock()
    accumulator = make(sdk, clock=clock, topics={"orders": 1}, batch_size_bytes=400)
    for number in range(20):
        accumulator.send("orders", b"%d" % (number % 10) * 50)
    (buffer,) = accumulator.take_listed()
    sizes = []
    while accumulator.ready_at_ms(buffer, NEVER, 0) == 0:
        sizes.append(accumulator.take(buffer).record_count)
    assert len(sizes) >= 2
    assert accumulator.ready_at_ms(buffer, 5, 0) == 5  # the one that still fills lingers, counted from its begin
    assert accumulator.ready_at_ms(buffer, 5, accumulator.last_serial) == 0  # unless a flush wants it
    last = accumulator.take(buffer)
    assert sum(sizes) + last.record_count == 20
    assert accumulator.ready_at_ms(buffer, 5, 0) == -1
    assert accumulator.take(buffer) is None
    assert accumulator.unlist(buffer)


def test_the_io_thread_is_woken_once_until_it_looks(sdk: Any) -> None:
    accumulator = make(sdk, topics={"orders": 1}, batch_size_bytes=300)
    wakes = []
    accumulator.wake = lambda: wakes.append(1)
    for _ in range(20):
        accumulator.send("orders", b"x" * 100)
    assert len(wakes) == 1
    assert len(accumulator.take_listed()) == 1
    for _ in range(20):
        accumulator.send("orders", b"x" * 100)
    assert len(wakes) == 2
    assert accumulator.take_listed() == []  # it is listed until it was found empty


def test_memory_is_bounded_and_given_back(sdk: Any) -> None:
    accumulator = make(sdk, topics={"orders": 1}, buffer_memory_bytes=1000, batch_size_bytes=400)
    waits = []

    def wait_room(size_bytes: int) -> None:
        waits.append(size_bytes)
        assert not accumulator.has_room(size_bytes)
        drain(accumulator)

    accumulator.wait_room = wait_room
    for _ in range(30):
        accumulator.send("orders", b"x" * 100)
        assert accumulator.buffered_bytes <= 1000
    assert len(waits) >= 3
    drain(accumulator)
    assert accumulator.buffered_bytes == 0
    assert accumulator.first_incomplete() is None
    # A record larger than all of it is still taken when it is alone.
    accumulator.send("orders", b"x" * 5000)


def test_waiting_for_memory_raises_what_the_producer_says(sdk: Any) -> None:
    accumulator = make(sdk, buffer_memory_bytes=200)
    accumulator.wait_room = refuse("no room")
    accumulator.send("orders", b"x" * 100, partition=0)
    with pytest.raises(UsageError, match="no room"):
        accumulator.send("orders", b"x" * 100, partition=0)


def test_nothing_passes_a_closed_gate(sdk: Any) -> None:
    accumulator = make(sdk)
    accumulator.refuse = refuse("shut")
    accumulator.gate_closed = True
    with pytest.raises(UsageError, match="shut"):
        accumulator.send("orders", b"")
    accumulator.gate_closed = False
    accumulator.send("orders", b"")


def test_a_gate_that_closes_while_waiting_for_memory_lets_nothing_through(sdk: Any) -> None:
    accumulator = make(sdk, buffer_memory_bytes=200)
    accumulator.refuse = refuse("shut")
    accumulator.send("orders", b"x" * 100, partition=0)

    def wait_room(size_bytes: int) -> None:
        drain(accumulator)
        accumulator.gate_closed = True

    accumulator.wait_room = wait_room
    with pytest.raises(UsageError, match="shut"):
        accumulator.send("orders", b"x" * 100, partition=0)
    assert accumulator.buffered_bytes == 0


def test_deliveries_tell_where_each_record_is(sdk: Any) -> None:
    accumulator = make(sdk)
    told: list[Any] = []
    deliveries = [
        accumulator.send(
            "orders", b"%d" % n, partition=1, timestamp_ms=1000 + n, on_delivery=lambda *args: told.append(args)
        )
        for n in range(3)
    ]
    assert not deliveries[0].done()
    assert "pending" in repr(deliveries[0])
    with pytest.raises(RetriableError, match="no acknowledgement"):
        deliveries[0].result(0)
    drain(accumulator)
    assert [delivery.result(0) for delivery in deliveries] == [("orders", 1, 100 + n, 1000 + n) for n in range(3)]
    assert told == [(delivery.result(0), None) for delivery in deliveries]
    late: list[Any] = []
    deliveries[2].add_done_callback(lambda *args: late.append(args))
    assert late == [(deliveries[2].result(0), None)]


def test_a_failed_batch_fails_its_records(sdk: Any, caplog: pytest.LogCaptureFixture) -> None:
    accumulator = make(sdk)
    told: list[Any] = []

    def failing(*args: Any) -> None:
        told.append(args)
        raise ValueError("a bug of the user")

    first = accumulator.send("orders", b"1", partition=0, on_delivery=failing)
    second = accumulator.send("orders", b"2", partition=0, on_delivery=lambda *args: told.append(args))
    (buffer,) = accumulator.take_listed()
    batch = accumulator.take(buffer)
    error = RetriableError("gone", ErrorCode.REQUEST_TIMED_OUT)
    accumulator.release(batch)
    batch.fail(error)
    assert first.exception(0) is error
    with pytest.raises(RetriableError, match="gone"):
        second.result(0)
    assert told == [(None, error), (None, error)]
    assert "a delivery callback for orders-0 failed" in caplog.text


def test_the_log_append_time_wins(sdk: Any) -> None:
    accumulator = make(sdk)
    delivery = accumulator.send("orders", b"1", partition=0, timestamp_ms=5)
    (buffer,) = accumulator.take_listed()
    accumulator.take(buffer).succeed(7, 1234)
    assert delivery.result(0) == ("orders", 0, 7, 1234)


def test_waiters_on_other_threads_wake_up(sdk: Any) -> None:
    accumulator = make(sdk)
    delivery = accumulator.send("orders", b"1", partition=0)
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(delivery.result(30))) for _ in range(3)]
    for thread in threads:
        thread.start()
    drain(accumulator)
    for thread in threads:
        thread.join(30)
    assert results == [delivery.result(0)] * 3


def test_many_threads_lose_nothing(sdk: Any) -> None:
    accumulator = make(sdk, topics={"orders": 4}, batch_size_bytes=500)
    count = 500

    def work(number: int) -> None:
        for n in range(count):
            accumulator.send("orders", b"%d-%d" % (number, n), partition=number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    records = drain(accumulator)
    for number in range(4):
        values = [record.value for batch in records["orders", number] for record in batch]
        assert values == [b"%d-%d" % (number, n) for n in range(count)]


def test_serializers_turn_anything_into_bytes(sdk: Any) -> None:
    accumulator = make(sdk, key_serializer=lambda it: str(it).encode(), value_serializer=lambda it: b"%d" % sum(it))
    accumulator.send("orders", [1, 2], key=7, partition=0)
    ((record,),) = drain(accumulator)["orders", 0]
    assert (record.key, record.value) == (b"7", b"3")
    with pytest.raises(UsageError, match=r"value_serializer failed on a value for topic 'orders': TypeError"):
        accumulator.send("orders", 5, key=7)
    bad = make(sdk, value_serializer=lambda it: it)
    with pytest.raises(UsageError, match="value_serializer returned float; it must return bytes or None"):
        bad.send("orders", 1.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": {"a": 1}}, r"a value of type dict can't be sent to topic 'orders'.*value_serializer="),
        ({"key": 5}, r"a key of type int can't be sent.*key_serializer="),
        ({"partition": 3}, r"topic 'orders' has partitions 0 to 2, not 3"),
        ({"partition": "1"}, r"has partitions 0 to 2, not '1'"),
        ({"timestamp_ms": 1.5}, r"timestamp_ms must be milliseconds since 1970 \(int\), not float 1.5"),
        ({"timestamp_ms": -5}, r"timestamp_ms must be milliseconds"),
        ({"headers": {"a": 1}}, r"header 'a' must be bytes, str or None, not int"),
        ({"headers": {1: b""}}, r"a header's name must be text \(str\), not int 1"),
        ({"headers": b"ab"}, r"headers must be a mapping or pairs"),
        ({"headers": 5}, r"headers must be a mapping or pairs, .*, not int 5"),
    ],
)
def test_bad_calls_say_what_to_do(sdk: Any, arguments: dict[str, Any], message: str) -> None:
    accumulator = make(sdk)
    with pytest.raises(UsageError, match=message):
        accumulator.send("orders", **arguments)
    assert accumulator.buffered_bytes == 0


def test_a_record_that_is_too_large_is_refused_at_once(sdk: Any) -> None:
    accumulator = make(sdk, record_bytes_max=1000)
    with pytest.raises(UsageError, match=r"above record_bytes_max, 1000.*max.message.bytes") as caught:
        accumulator.send("orders", b"x" * 1000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(UsageError, match="above record_bytes_max"):
        accumulator.send("orders", b"", headers={"h": b"x" * 2000})


def test_a_topic_is_named_by_text(sdk: Any) -> None:
    accumulator = make(sdk)
    with pytest.raises(UsageError, match="a topic is given by its name"):
        accumulator.send("")
    with pytest.raises(UsageError, match="a topic is given by its name"):
        accumulator.send(5)


def test_a_topic_can_grow(sdk: Any) -> None:
    accumulator = make(sdk)
    accumulator.send("orders", b"", partition=2)
    accumulator.add_topic("orders", 5)
    assert accumulator.send("orders", b"", partition=4).partition == 4
    accumulator.add_topic("orders", 2)  # an old answer
    assert accumulator.send("orders", b"", partition=4).partition == 4


def split_in_two(sdk: Any, accumulator: Any) -> list[Any]:
    """Split a batch of five records, and return the two batches in its place: of two records, and of three."""
    (buffer,) = accumulator.take_listed()
    batch = accumulator.take(buffer)
    parts = []
    for first, count in ((0, 2), (2, 3)):
        part = sdk.ProducerBatch(batch.serial, "orders", 0, BatchBuilder(), 0)
        part.record_count = count
        parts.append((first, part))
    accumulator.replaced(batch, [part for _, part in parts])
    batch.split(parts)
    return [part for _, part in parts]


def test_a_batch_that_is_split_keeps_its_promises(sdk: Any) -> None:
    accumulator = make(sdk)
    told: list[Any] = []
    deliveries = [
        accumulator.send("orders", b"%d" % n, partition=0, timestamp_ms=n, on_delivery=lambda *args: told.append(args))
        for n in range(5)
    ]
    parts = split_in_two(sdk, accumulator)
    assert accumulator.incomplete_count() == 2
    parts[0].succeed(10, -1)
    assert [delivery.done() for delivery in deliveries] == [True, True, False, False, False]
    late: list[Any] = []
    deliveries[4].add_done_callback(lambda *args: late.append(args))
    error = RetriableError("no")
    parts[1].fail(error)
    assert [delivery.exception(0) for delivery in deliveries] == [None, None, error, error, error]
    assert deliveries[1].result(0).offset == 11
    assert told == [(deliveries[0].result(0), None), (deliveries[1].result(0), None)] + [(None, error)] * 3
    assert late == [(None, error)]
    for part in parts:
        accumulator.release(part)
    assert accumulator.buffered_bytes == 0


async def _await(delivery: Any) -> Any:
    return await delivery


def test_tasks_that_await_records_of_a_batch_wake_their_loop_once(sdk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = make(sdk)

    async def run() -> tuple[list[int], int]:
        loop = asyncio.get_running_loop()
        deliveries = [accumulator.send("orders", b"", partition=0) for _ in range(50)]
        tasks = [asyncio.ensure_future(_await(delivery)) for delivery in deliveries]
        await asyncio.sleep(0)
        tasks[3].cancel()
        wakes = 0
        wake = loop.call_soon_threadsafe

        def counted(*arguments: Any) -> Any:
            nonlocal wakes
            wakes += 1
            return wake(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon_threadsafe", counted)
            drain(accumulator)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found.pop(3), asyncio.CancelledError)
        return [one.offset for one in found], wakes

    assert asyncio.run(run()) == ([100 + n for n in range(50) if n != 3], 1)


def test_tasks_that_await_records_of_a_batch_that_is_split_get_what_becomes_of_their_part(sdk: Any) -> None:
    accumulator = make(sdk)
    error = RetriableError("no")

    async def run() -> list[Any]:
        deliveries = [accumulator.send("orders", b"", partition=0, timestamp_ms=n) for n in range(5)]
        tasks = [asyncio.ensure_future(_await(delivery)) for delivery in deliveries]
        await asyncio.sleep(0)
        first, second = split_in_two(sdk, accumulator)
        second.fail(error)
        await asyncio.wait(tasks[2:])
        assert not any(task.done() for task in tasks[:2])
        first.succeed(10, -1)
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(run())
    assert [one.offset for one in found[:2]] == [10, 11]
    assert found[2:] == [error] * 3


def test_a_loop_that_is_closed_keeps_no_record_from_the_others(sdk: Any) -> None:
    accumulator = make(sdk)
    told: list[Any] = []
    delivery = accumulator.send("orders", b"", partition=0, on_delivery=lambda *args: told.append(args))

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_await(delivery), 0.001)

    asyncio.run(give_up())
    drain(accumulator)
    assert told == [(delivery.result(0), None)]


def ready_made(*values: bytes) -> tuple[bytearray, int]:
    builder = BatchBuilder()
    for value in values:
        builder.append(1_000, None, value, ())
    return builder.build(), len(values)


def test_a_ready_made_batch_keeps_its_place_between_records(sdk: Any) -> None:
    accumulator = make(sdk)
    accumulator.send("orders", b"before", partition=1)
    data, count = ready_made(b"a", b"b")
    accumulator.send_batch("orders", 1, data, count)
    accumulator.send("orders", b"after", partition=1)
    assert accumulator.incomplete_records() == 4
    (buffer,) = accumulator.take_listed()
    assert accumulator.ready_at_ms(buffer, NEVER, 0) == 0, "it has nothing to wait for"
    taken = [accumulator.take(buffer) for _ in range(3)]
    assert [batch.record_count for batch in taken] == [1, 2, 1]
    assert [batch.serial for batch in taken] == [1, 2, 3]
    assert taken[1].data is data
    assert taken[1].builder is None
    assert accumulator.take(buffer) is None


def test_a_ready_made_batch_counts_as_memory_until_it_is_done(sdk: Any) -> None:
    accumulator = make(sdk, buffer_memory_bytes=300)
    data, count = ready_made(bytes(150))
    delivery = accumulator.send_batch("orders", 0, data, count)
    assert accumulator.buffered_bytes == len(data)
    accumulator.wait_room = refuse("no room")
    with pytest.raises(UsageError, match="no room"):
        accumulator.send_batch("orders", 1, *ready_made(bytes(150)))
    (buffer,) = accumulator.take_listed()
    batch = accumulator.take(buffer)
    accumulator.release(batch)
    batch.succeed(70, -1)
    assert accumulator.buffered_bytes == 0
    assert delivery.result(0).offset == 70
    accumulator.send_batch("orders", 1, *ready_made(bytes(150)))


def test_a_ready_made_batch_is_refused_where_records_are(sdk: Any) -> None:
    accumulator = make(sdk)
    with pytest.raises(UsageError, match="has partitions 0 to 2, not 3"):
        accumulator.send_batch("orders", 3, *ready_made(b"a"))
    accumulator.gate_closed = True
    accumulator.refuse = refuse("closed")
    with pytest.raises(UsageError, match="closed"):
        accumulator.send_batch("orders", 0, *ready_made(b"a"))
    assert accumulator.take_listed() == []
