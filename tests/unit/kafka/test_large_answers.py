"""S2, S3: short requests with long answers, and long ones with short answers: neither holds the loop or the memory."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counted_turns import every_look_takes_a_millisecond, rounds_of_the_loop
from handler_calls import api_of, context_of
from kafka_calls import request_body
from kio.serial import entity_reader
from running_node import create_topic, run_with_node

from semel.broker.diagnostics.history import read_history
from semel.broker.listeners.kafka import large_messages
from semel.broker.listeners.kafka.apis import consumer_group_describe
from semel.broker.listeners.kafka.registry import LARGE_BYTES
from semel.broker.log.producer_state import ProducerEntry
from semel.broker.node import Node
from semel.group_coordinator import coordinator as group_coordinator
from semel.group_coordinator.offsets.table import OffsetTable
from semel.protocol.errors import ErrorCode, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.entities import load_entity
from semel.runtime.keys import java_string_hash
from semel.runtime.turns import TURN_SECONDS
from semel.txn_coordinator import coordinator as txn_coordinator
from semel.txn_coordinator.config import TRANSACTIONAL_ID_BYTES_MAX

MANY = 200
ROUNDS = MANY // round(TURN_SECONDS * 1000) // 2


async def ask(node: Node, key: ApiKey, version: int, /, **values: Any) -> Any:
    """Have a request handled, and return kio's response."""
    handle = api_of(key).handle
    assert handle is not None
    answer = await handle(context_of(node, key, version), memoryview(request_body(key, version, **values)))
    response, _ = entity_reader(load_entity(key, version, "response"))(bytes(answer), 0)
    return response


def nothing_is_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have messages read and built at once: the loop would run on, and its rounds would say nothing of turns."""
    monkeypatch.setattr(large_messages, "LARGE_BYTES", 1 << 30)
    monkeypatch.setattr(large_messages, "LARGE_ENTRIES", 1 << 30)


async def join(node: Node, group: str) -> None:
    joined = await ask(
        node,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        group_id=group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout=30_000,
        subscribed_topic_names=("there",),
        topic_partitions=(),
    )
    assert joined.error_code == ErrorCode.NONE


async def describe(node: Node, *groups: str) -> Any:
    values = {"group_ids": groups, "include_authorized_operations": False}
    return (await ask(node, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, **values)).groups


def test_S2_a_consumer_group_is_described_once_however_often_it_is_named(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await join(node, "g")
        described = await describe(node, *["g", "h"] * 100)
        assert [(each.group_id, each.error_code, len(each.members)) for each in described] == [
            ("g", ErrorCode.NONE, 1),
            ("h", ErrorCode.GROUP_ID_NOT_FOUND, 0),
        ]

    run_with_node(tmp_path, test, topics={"there": 3})


def test_S2_one_answer_describes_a_bounded_number_of_members_and_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks again for the groups that had no room has all of them in the end."""
    monkeypatch.setattr(consumer_group_describe, "DESCRIBED_MAX", 15)

    async def test(node: Node) -> None:
        asked = [f"g{number}" for number in range(6)]
        for group in asked:
            await join(node, group)
        sizes = []
        while asked:
            described = await describe(node, *asked)
            done = [each.group_id for each in described if each.error_code == ErrorCode.NONE]
            assert all(each.members[0].assignment for each in described[: len(done)])
            later = described[len(done) :]
            assert all(each.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS for each in later)
            assert all("ask again" in each.error_message and not each.members for each in later)
            sizes.append(len(done))
            asked = asked[len(done) :]
        assert sizes == [2, 2, 2]

    run_with_node(tmp_path, test, topics={"there": 3})


def test_S3_many_consumer_groups_that_are_not_there_are_looked_for_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node) -> None:
        await describe(node, "g")
        nothing_is_beside_the_loop(monkeypatch)
        every_look_takes_a_millisecond(monkeypatch)
        found, rounds = await rounds_of_the_loop(describe(node, *(f"g{number}" for number in range(1_000))))
        assert len(found) == 1_000
        assert rounds >= 1_000 // 50

    run_with_node(tmp_path, test)


def test_S3_a_response_is_large_by_what_is_deep_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One group with one member, whose assignment has many partitions."""
    threads: list[str] = []
    build = large_messages.build_response

    def noted(*arguments: Any, **values: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return build(*arguments, **values)

    async def test(node: Node) -> None:
        await create_topic(node, "there", 2 * large_messages.LARGE_ENTRIES)
        await join(node, "g")
        monkeypatch.setattr(large_messages, "build_response", noted)
        await describe(node, "h")
        assert threads == [threading.current_thread().name]
        [group] = await describe(node, "g")
        assert sum(len(topic.partitions) for topic in group.members[0].target_assignment.topic_partitions) == 400
        assert threads[1] != threading.current_thread().name

    run_with_node(tmp_path, test)


NO_TOPIC = [{"topic_name": "there", "partitions": [{"partition_index": number} for number in range(MANY)]}]
MARKER = {"producer_id": 1, "producer_epoch": 0, "coordinator_epoch": 0, "transaction_result": True}
WORKED_ON_IN_TURNS: dict[str, tuple[ApiKey, int, dict[str, Any]]] = {
    "UPDATE_FEATURES": (
        ApiKey.UPDATE_FEATURES,
        1,
        {"feature_updates": [{"feature": f"f{number}", "max_version_level": 1} for number in range(MANY)]},
    ),
    "WRITE_TXN_MARKERS of many": (
        ApiKey.WRITE_TXN_MARKERS,
        1,
        {"markers": [{**MARKER, "topics": [{"name": "there", "partition_indexes": [0]}]}] * MANY},
    ),
    "WRITE_TXN_MARKERS of one": (
        ApiKey.WRITE_TXN_MARKERS,
        1,
        {"markers": [{**MARKER, "topics": [{"name": "there", "partition_indexes": list(range(MANY))}]}]},
    ),
    "DESCRIBE_QUORUM": (ApiKey.DESCRIBE_QUORUM, 0, {"topics": NO_TOPIC}),
    "LIST_GROUPS of states": (
        ApiKey.LIST_GROUPS,
        5,
        {"states_filter": [f"s{number}" for number in range(MANY)], "types_filter": []},
    ),
    "LIST_GROUPS of types": (
        ApiKey.LIST_GROUPS,
        5,
        {"states_filter": [], "types_filter": [f"t{number}" for number in range(MANY)]},
    ),
    "LIST_TRANSACTIONS": (
        ApiKey.LIST_TRANSACTIONS,
        0,
        {"state_filters": [f"s{number}" for number in range(MANY)], "producer_id_filters": []},
    ),
}


@pytest.mark.parametrize("asked", WORKED_ON_IN_TURNS)
def test_S3_a_request_with_many_entries_and_a_short_answer_is_worked_on_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    key, version, values = WORKED_ON_IN_TURNS[asked]

    async def test(node: Node) -> None:
        await node.groups.topic_ready()
        await node.transactions.topic_ready()
        await ask(node, key, version, **values)  # what is made or loaded on the way is there from now on
        nothing_is_beside_the_loop(monkeypatch)
        every_look_takes_a_millisecond(monkeypatch)
        _, rounds = await rounds_of_the_loop(ask(node, key, version, **values))
        assert rounds >= ROUNDS

    run_with_node(tmp_path, test)


READ_BESIDE: dict[ApiKey, tuple[int, dict[str, Any]]] = {
    ApiKey.UPDATE_FEATURES: (1, {"feature_updates": [{"feature": "f" * LARGE_BYTES, "max_version_level": 1}]}),
    ApiKey.WRITE_TXN_MARKERS: (1, {"markers": [{**MARKER, "topics": []}] * (LARGE_BYTES // 8)}),
    ApiKey.DESCRIBE_QUORUM: (0, {"topics": [{"topic_name": "t" * LARGE_BYTES, "partitions": []}]}),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (
        0,
        {"components": [{"entity_type": "e" * LARGE_BYTES, "match_type": 0, "match": None}], "strict": False},
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, {"topics": [{"name": "t" * LARGE_BYTES, "partition_indexes": []}]}),
}


@pytest.mark.parametrize("key", READ_BESIDE, ids=lambda key: key.name)
def test_S3_large_requests_of_seldom_apis_are_read_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: ApiKey
) -> None:
    threads: list[str] = []
    parse = large_messages.parse_request

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return parse(*arguments)

    async def test(node: Node) -> None:
        monkeypatch.setattr(large_messages, "parse_request", noted)
        version, values = READ_BESIDE[key]
        await ask(node, key, version, **values)
        assert threads
        assert threading.current_thread().name not in threads

    run_with_node(tmp_path, test)


def test_S3_filters_of_lists_are_looked_through_once_and_only_names_that_there_are_reach_the_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(txn_coordinator, "UNKNOWN_STATES_MAX", 3)
    submitted: list[Any] = []

    def noted(submit: Callable[..., Any]) -> Callable[..., Any]:
        async def noting(partition: int, request: Any) -> Any:
            submitted.append(request)
            return await submit(partition, request)

        return noting

    async def test(node: Node) -> None:
        await node.groups.topic_ready()
        await node.transactions.topic_ready()
        await join(node, "g")
        for runtime in (node.groups._runtime, node.transactions._runtime):
            monkeypatch.setattr(runtime, "submit", noted(runtime.submit))
        odd = tuple(f"odd{number}" for number in range(MANY))
        for states, types, found in (
            ((*odd, "sTABLE", "Reconciling"), (*odd, "CONSUMER"), ["g"]),
            (odd, (), []),
            ((), odd, []),
            ((), (), ["g"]),
        ):
            submitted.clear()
            listed = await ask(node, ApiKey.LIST_GROUPS, 5, states_filter=states, types_filter=types)
            assert [group.group_id for group in listed.groups] == found
            assert len(submitted) == 2
            assert all(len(request.states) <= 2 and len(request.types) <= 1 for request in submitted)
        submitted.clear()
        values = {"state_filters": (*odd, "Empty"), "producer_id_filters": ()}
        transactions = await ask(node, ApiKey.LIST_TRANSACTIONS, 0, **values)
        assert [request.states for request in submitted] == [frozenset({"Empty"})] * 2
        assert len(set(transactions.unknown_state_filters) & set(odd)) == 3

    run_with_node(tmp_path, test, topics={"there": 1})


def test_S3_all_offsets_of_a_group_are_fetched_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_coordinator, "FETCHED_AT_ONCE_MAX", 10)
    fetched: list[int] = []
    fetch = OffsetTable.fetch

    def noted(table: OffsetTable, group_id: str, partitions: Any, *, require_stable: bool) -> Any:
        found = fetch(table, group_id, partitions, require_stable=require_stable)
        fetched.append(len(found))
        return found

    async def test(node: Node) -> None:
        partitions = [
            {"partition_index": number, "committed_offset": number, "committed_metadata": ""} for number in range(MANY)
        ]
        await ask(
            node,
            ApiKey.OFFSET_COMMIT,
            5,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"name": "there", "partitions": partitions}],
        )
        nothing_is_beside_the_loop(monkeypatch)
        monkeypatch.setattr(OffsetTable, "fetch", noted)
        for version, stable in ((6, False), (7, True)):
            fetched.clear()
            every_look_takes_a_millisecond(monkeypatch)
            request = ask(node, ApiKey.OFFSET_FETCH, version, group_id="g", topics=None, require_stable=stable)
            found, rounds = await rounds_of_the_loop(request)
            [topic] = found.topics
            assert {each.partition_index: each.committed_offset for each in topic.partitions} == {
                number: number for number in range(MANY)
            }
            assert fetched == [10] * (MANY // 10)
            # Three times in turns: which there are, the topics of the answer, and its partitions.
            assert rounds >= 10 * ROUNDS

    run_with_node(tmp_path, test, topics={"there": MANY})


def test_S3_the_producers_of_one_partition_are_described_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node) -> None:
        partition = node.partition(TopicPartition("there", 0))
        assert partition is not None
        state = partition.log.producer_state
        state.restore([ProducerEntry(number) for number in range(MANY)], state.end_offset)
        nothing_is_beside_the_loop(monkeypatch)
        every_look_takes_a_millisecond(monkeypatch)
        topics = [{"name": "there", "partition_indexes": [0]}]
        found, rounds = await rounds_of_the_loop(ask(node, ApiKey.DESCRIBE_PRODUCERS, 0, topics=topics))
        assert len(found.topics[0].partitions[0].active_producers) == MANY
        assert rounds >= ROUNDS

    run_with_node(tmp_path, test, topics={"there": 1})


def test_S2_the_hashes_of_long_keys_are_not_kept() -> None:
    """What a table keeps of a key is one more reference to its text."""
    short, long = "".join(["s"] * 256), "".join(["l"] * 257)
    before = sys.getrefcount(short), sys.getrefcount(long)
    assert java_string_hash(short) == java_string_hash(str(short))
    assert java_string_hash(long) == java_string_hash(str(long))
    assert sys.getrefcount(short) > before[0]
    assert sys.getrefcount(long) == before[1]


def test_S2_a_history_is_not_looked_for_by_a_key_that_is_too_long(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.transactions.topic_ready()
        longest = "é" * (TRANSACTIONAL_ID_BYTES_MAX // 2) + "e"
        assert (await read_history(node, longest)).events == ()
        with pytest.raises(UsageError, match="at most 32767 bytes, not 32768"):
            await read_history(node, longest + "e")

    run_with_node(tmp_path, test)
