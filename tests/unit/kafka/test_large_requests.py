"""S3: the largest requests of the control plane neither hold the event loop nor become objects without end."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counted_turns import every_look_takes_a_millisecond, rounds_of_the_loop
from handler_calls import Peer, api_of, context_of
from running_node import create_topic, run_with_node

from semel.broker.handlers.write_txn_markers import LocalMarkerWriter
from semel.broker.listeners.kafka import all_apis, large_messages
from semel.broker.listeners.kafka.registry import LARGE_BYTES, LARGE_REQUESTS_MAX, Api, RequestContext
from semel.broker.node import Node
from semel.protocol.api.transactions import TxnMarker
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka import messages
from semel.protocol.kafka.api import ApiKey, RequestHeader, WireFormatError
from semel.protocol.kafka.entities import load_entity
from semel.protocol.kafka.messages import parse_request, prepare
from semel.runtime.turns import TURN_SECONDS, CallerGoneError, set_is_gone

LOOKS_PER_TURN = round(TURN_SECONDS * 1000)
MANY = 40 * LOOKS_PER_TURN


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def names(count: int = MANY) -> bytes:
    return struct.pack(">i", count) + b"".join(text(f"n{number}") for number in range(count))


def numbers(count: int = MANY) -> bytes:
    return struct.pack(f">i{count}i", count, *range(count))


ONE_TOPIC = struct.pack(">i", 1) + text("there")
REQUESTS: dict[tuple[ApiKey, int], Callable[[], bytes]] = {
    (ApiKey.METADATA, 4): lambda: names() + b"\0",
    (ApiKey.LIST_OFFSETS, 1): lambda: (
        struct.pack(">i", -1)
        + ONE_TOPIC
        + struct.pack(">i", MANY)
        + b"".join(struct.pack(">iq", number, -1) for number in range(MANY))
    ),
    (ApiKey.OFFSET_FETCH, 1): lambda: text("group") + ONE_TOPIC + numbers(),
    (ApiKey.OFFSET_COMMIT, 2): lambda: (
        text("group")
        + struct.pack(">i", -1)
        + text("")
        + struct.pack(">q", -1)
        + ONE_TOPIC
        + struct.pack(">i", MANY)
        + b"".join(struct.pack(">iq", number, 1) + text("") for number in range(MANY))
    ),
    (ApiKey.DELETE_RECORDS, 0): lambda: (
        ONE_TOPIC
        + struct.pack(">i", MANY)
        + b"".join(struct.pack(">iq", number, 0) for number in range(MANY))
        + struct.pack(">i", 1_000)
    ),
    (ApiKey.DESCRIBE_CONFIGS, 1): lambda: (
        struct.pack(">i", MANY)
        + b"".join(b"\2" + text(f"n{number}") + struct.pack(">i", -1) for number in range(MANY))
        + b"\0"
    ),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 2): lambda: (
        ONE_TOPIC + struct.pack(">i", MANY) + b"".join(struct.pack(">iii", number, -1, 0) for number in range(MANY))
    ),
    (ApiKey.ADD_PARTITIONS_TO_TXN, 0): lambda: text("t") + struct.pack(">qh", 1, 0) + ONE_TOPIC + numbers(),
    (ApiKey.DELETE_TOPICS, 1): lambda: names() + struct.pack(">i", 60_000),
    (ApiKey.DESCRIBE_LOG_DIRS, 1): lambda: ONE_TOPIC + numbers(),
    (ApiKey.ELECT_LEADERS, 0): lambda: ONE_TOPIC + numbers() + struct.pack(">i", 1_000),
}


@pytest.mark.parametrize(("key", "version"), REQUESTS, ids=lambda value: getattr(value, "name", None))
def test_S3_a_request_about_many_things_is_worked_on_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: ApiKey, version: int
) -> None:
    """Each look at the clock takes a millisecond, and there is one for each thing: turns are counted, not timed."""

    async def test(node: Node) -> None:
        await create_topic(node, "there")
        handle, body = api_of(key).handle, memoryview(REQUESTS[key, version]())
        assert handle is not None
        await handle(context_of(node, key, version), body)  # what is made or loaded on the way is there from now on
        every_look_takes_a_millisecond(monkeypatch)
        _, rounds = await rounds_of_the_loop(_awaited(handle(context_of(node, key, version), body)))
        assert rounds >= MANY // LOOKS_PER_TURN // 2

    run_with_node(tmp_path, test, auto_create_topics_enable=False)


async def _awaited(answer: Any) -> Any:
    return await answer


def test_S3_work_for_a_connection_that_is_gone_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(node: Node) -> None:
        every_look_takes_a_millisecond(monkeypatch)
        handle = api_of(ApiKey.METADATA).handle
        assert handle is not None
        looks = 0

        def is_gone() -> bool:
            nonlocal looks
            looks += 1
            return looks > 3

        set_is_gone(is_gone)
        with pytest.raises(CallerGoneError):
            await handle(context_of(node, ApiKey.METADATA, 4), memoryview(names() + b"\0"))
        assert looks == 4

    run_with_node(tmp_path, test)


def test_S3_large_messages_are_read_and_built_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*arguments: Any, **values: Any) -> Any:
            threads.append(threading.current_thread().name)
            return call(*arguments, **values)

        return noting

    monkeypatch.setattr(large_messages, "parse_request", noted(large_messages.parse_request))
    monkeypatch.setattr(large_messages, "build_response", noted(large_messages.build_response))

    async def test(node: Node) -> None:
        handle = api_of(ApiKey.DESCRIBE_CONFIGS).handle
        assert handle is not None
        here = threading.current_thread().name
        for count, beside in ((1, False), (large_messages.LARGE_BYTES // 8, True)):
            threads.clear()
            resources = b"".join(b"\2" + text(f"n{number}") + struct.pack(">i", -1) for number in range(count))
            body = memoryview(struct.pack(">i", count) + resources + b"\0")
            await handle(context_of(node, ApiKey.DESCRIBE_CONFIGS, 1), body)
            assert len(threads) == 2
            assert all((name != here) is beside for name in threads)

    run_with_node(tmp_path, test)


def test_S2_the_entries_of_a_request_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_ENTRIES", 100)
    assert len(parse_request(ApiKey.METADATA, 4, names(100) + b"\0").topics) == 100
    with pytest.raises(WireFormatError, match="more than 100 entries"):
        parse_request(ApiKey.METADATA, 4, names(101) + b"\0")
    # Those of nested arrays count together, and so do tagged fields, known or not.
    ten_of_ten = struct.pack(">i", 10) + b"".join(text(f"t{number}") + numbers(10) for number in range(10))
    with pytest.raises(WireFormatError, match="more than 100 entries"):
        parse_request(ApiKey.OFFSET_FETCH, 1, text("group") + ten_of_ten)
    tags = b"".join(bytes([number, 0]) for number in range(20, 121))
    with pytest.raises(WireFormatError, match="more than 100 entries"):
        parse_request(ApiKey.LIST_GROUPS, 5, b"\1\1" + bytes([len(tags) // 2]) + tags)
    # The next message may have its own.
    assert len(parse_request(ApiKey.METADATA, 4, names(100) + b"\0").topics) == 100


def test_S3_the_first_request_of_an_api_does_not_hold_the_loop_for_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The modules of one version take some 50 ms, which is longer than any turn of the loop may be."""
    threads: list[threading.Thread] = []

    def load(key: ApiKey, version: int, kind: str) -> type[Any]:
        threads.append(threading.current_thread())
        return load_entity(key, version, kind)

    async def test(node: Node) -> None:
        answered = asyncio.get_running_loop().create_future()
        peer = Peer()
        monkeypatch.setattr(peer, "answered", answered.set_result, raising=False)
        context = RequestContext(node, peer, RequestHeader(int(ApiKey.LIST_GROUPS), 3, 1, "test", 0), True, 0)
        monkeypatch.setattr(messages, "load_entity", load)
        monkeypatch.setattr(messages, "_prepared", set())
        messages._request_reader.cache_clear()
        messages._response.cache_clear()
        api_of(ApiKey.LIST_GROUPS).start(context, memoryview(b"\0"), 0)
        await answered
        assert context.parts is not None
        assert threads
        assert threading.current_thread() not in threads

    run_with_node(tmp_path, test)


def begun_at_once(api: Api, body: memoryview, answered: int = 0) -> int:
    """Begin many requests, answer some, and return how many are in work then."""
    in_work: list[asyncio.Future[bytes]] = []

    async def handle(context: RequestContext, body: memoryview) -> bytes:
        in_work.append(asyncio.get_running_loop().create_future())
        return await in_work[-1]

    async def run() -> int:
        held = dataclasses.replace(api, handle=handle)
        contexts = [
            RequestContext(None, Peer(), RequestHeader(int(api.key), 0, 1, "test", 0), True, 0)  # type: ignore[arg-type]
            for _ in range(10)
        ]
        for context in contexts:
            held.start(context, body, 0)
        for number in range(answered + 1):
            for _ in range(20):
                await asyncio.sleep(0)
            if number < answered:
                in_work[number].set_result(b"")
        begun = len(in_work)
        for context in contexts:
            assert context.on_close is not None
            context.on_close()  # those that wait are not begun any more
        for each in in_work:
            if not each.done():
                each.set_result(b"")
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(in_work) == begun
        return begun

    prepare(api.key, 0)
    return asyncio.run(run())


def test_S2_few_large_requests_of_one_api_are_in_work_at_once() -> None:
    """Each becomes many times its bytes in objects; the others wait as the bytes that they came in."""
    large, small = memoryview(bytes(LARGE_BYTES + 1)), memoryview(bytes(LARGE_BYTES))
    describe = api_of(ApiKey.DESCRIBE_CONFIGS)
    assert begun_at_once(describe, large) == LARGE_REQUESTS_MAX
    assert begun_at_once(describe, large, answered=3) == LARGE_REQUESTS_MAX + 3
    assert begun_at_once(describe, small) == 10


@pytest.mark.parametrize("key", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT])
def test_what_waits_for_other_members_does_not_keep_them_out(key: ApiKey) -> None:
    """A rebalance is over when the last member has joined: those before it must not hold all places."""
    assert begun_at_once(api_of(key), memoryview(bytes(LARGE_BYTES + 1))) == 10


def test_S2_a_request_may_name_every_partition_that_there_may_be(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        context = context_of(node, ApiKey.METADATA, 4)
        count = 2 * node.config.max_partitions
        read = await large_messages.read_request(context, memoryview(names(count) + b"\0"))
        assert len(read.topics) == count
        with pytest.raises(WireFormatError, match=f"more than {count} entries"):
            await large_messages.read_request(context, memoryview(names(count + 1) + b"\0"))

    run_with_node(tmp_path, test, max_partitions=30_000)


def test_the_tests_above_are_of_apis_that_are_served() -> None:
    assert {key for key, _ in REQUESTS} <= {api.key for api in all_apis.ALL_APIS}
    assert asyncio.iscoroutinefunction(large_messages.read_request)


def test_S3_markers_of_a_wide_transaction_are_written_in_turns_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8,000 partitions held the loop for seconds. The client that asked for the end may be gone meanwhile."""

    async def test(node: Node) -> None:
        await create_topic(node, "wide", MANY)
        partitions = tuple(TopicPartition("wide", number) for number in range(MANY))
        every_look_takes_a_millisecond(monkeypatch)
        set_is_gone(lambda: True)
        marker = TxnMarker(ProducerIdAndEpoch(7, 0), 0, committed=True, partitions=partitions)
        errors, rounds = await rounds_of_the_loop(LocalMarkerWriter(node).write_markers(marker))
        assert errors == dict.fromkeys(partitions, ErrorCode.NONE)
        assert rounds >= MANY // LOOKS_PER_TURN

    run_with_node(tmp_path, test)
