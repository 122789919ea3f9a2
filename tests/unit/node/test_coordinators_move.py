"""Coordinators lead, read and give up each partition of an internal topic for itself, and say whose the others are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka_calls import call
from running_node import run_with_node

from semel.broker import coordinators as coordinators_module
from semel.broker.coordinators import Coordinators
from semel.broker.handlers.topics.changes import create_internal_topic, create_topics, delete_topics
from semel.broker.metadata.changes import BrokerFenced, BrokerRegistered, Change, PartitionState, TopicCreated
from semel.broker.node import Node
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import DescribeGroupRequest, ListGroupsRequest, OffsetCommitRequest, OffsetFetchRequest
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.topics import NewTopic
from semel.protocol.api.transactions import DescribeTransactionRequest, ListTransactionsRequest
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import (
    NO_LEADER,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    TopicPartition,
    new_topic_id,
)
from semel.protocol.kafka.api import ApiKey
from semel.runtime.keys import partition_for_key

OTHER, THIRD = 9, 10
INPUT = TopicPartition("input", 0)


def registered(node_id: int) -> BrokerRegistered:
    return BrokerRegistered(node_id, f"run of {node_id}", "d", f"host{node_id}", 9092, "h", 2, "", "h", 7)


def led_by(*leaders: int) -> tuple[PartitionState, ...]:
    return tuple(PartitionState(leader, 0, (leader,), (leader,)) for leader in leaders)


async def tell(node: Node, *changes: Change) -> None:
    await node.metadata.change(lambda _: changes)
    await node.caught_up()


async def share(node: Node, name: str = OFFSETS_TOPIC, *leaders: int) -> None:
    """Let another node have made an internal topic, of which this one leads partition 0 (or as said)."""
    await tell(node, registered(OTHER), TopicCreated(name, new_topic_id(), led_by(*(leaders or (1, OTHER))), {}))


def coordinators(node: Node) -> Coordinators:
    assert node._coordinators is not None
    return node._coordinators


def name_on(number: int, count: int = 2) -> str:
    return next(name for name in (f"name-{n}" for n in range(100)) if partition_for_key(name, count) == number)


async def commit(node: Node, group: str, offset: int = 7) -> object:
    asked = OffsetCommitRequest(group, -1, "", None, {INPUT: OffsetAndMetadata(offset)})
    return (await node.groups.commit_offsets(asked)).errors[INPUT]


async def fetched(node: Node, group: str) -> int:
    response = await node.groups.fetch_offsets(OffsetFetchRequest(group, (INPUT,)))
    return response.offsets[INPUT].offset


async def code_of(call: Any) -> object:
    try:
        return await call
    except SemelError as error:
        return error.code


def machine(node: Node, number: int = 0) -> object:
    return node.groups._runtime._shards[number].machine


class SlowLog:
    """The log of a partition whose reading does not end before `may_end`."""

    def __init__(self, log: Any, may_end: asyncio.Event) -> None:
        self._log = log
        self._may_end = may_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def wait_committed(self, offset: int) -> None:
        await self._may_end.wait()
        await self._log.wait_committed(offset)


def slow(node: Node, number: int) -> asyncio.Event:
    """Have a partition's next reading last until the test says so."""
    runtime, may_end = node.groups._runtime, asyncio.Event()
    open_log: Callable[[int], Any] = runtime._open_log
    runtime._open_log = lambda one: SlowLog(open_log(one), may_end) if one == number else open_log(one)
    return may_end


def test_what_another_node_coordinates_is_refused_at_once_and_what_lives_here_is_served(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await share(node)
        await share(node, TRANSACTIONS_TOPIC)
        here, there = name_on(0), name_on(1)
        assert await commit(node, here) is ErrorCode.NONE
        assert await code_of(commit(node, there)) is ErrorCode.NOT_COORDINATOR
        init = node.transactions.init_producer_id
        await init(InitProducerIdRequest(here, 60_000))
        assert await code_of(init(InitProducerIdRequest(there, 60_000))) is ErrorCode.NOT_COORDINATOR
        described = await call(node.kafka_address.port, ApiKey.DESCRIBE_GROUPS, 5, groups=[here, there])
        assert [each.error_code for each in described.groups] == [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]
        describe = node.transactions.describe
        assert (await describe(DescribeTransactionRequest(here))).state == "Empty"
        assert await code_of(describe(DescribeTransactionRequest(there))) is ErrorCode.NOT_COORDINATOR
        assert [each.group_id for each in (await node.groups.list(ListGroupsRequest())).groups] == [here]
        listed = await node.transactions.list(ListTransactionsRequest())
        assert [each.transactional_id for each in listed.transactions] == [here]

    run_with_node(tmp_path, test)


def test_a_node_that_coordinates_nothing_lists_nothing_and_waits_for_nothing(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            await share(node, name, OTHER, OTHER)
        assert await coordinators(node).all_loaded(0)
        assert (await node.groups.list(ListGroupsRequest())).groups == ()
        assert (await node.transactions.list(ListTransactionsRequest())).transactions == ()
        asked = DescribeTransactionRequest("x")
        assert await code_of(node.transactions.describe(asked)) is ErrorCode.NOT_COORDINATOR
        assert await code_of(node.groups.describe(DescribeGroupRequest("x"))) is ErrorCode.NOT_COORDINATOR
        assert node.coordinator_load_seconds == {}
        await create_topics(node, [NewTopic("input")])
        await delete_topics(node, ["input"])

    run_with_node(tmp_path, test)


def test_R9_what_is_given_up_is_refused_and_led_again_it_is_read_again(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await share(node, OFFSETS_TOPIC, 1, 1)
        await create_topics(node, [NewTopic("input")])
        one, two = name_on(0), name_on(1)
        for group in (one, two):
            await commit(node, group)
        both, tp = coordinators(node), TopicPartition(OFFSETS_TOPIC, 0)
        before = machine(node)
        both.lead(tp, 0)
        assert machine(node) is before, "it is led under this epoch already"
        log = node.partition(tp)
        assert log is not None
        log.pause()
        waiting = asyncio.ensure_future(code_of(commit(node, one, 8)))
        await asyncio.sleep(0)
        assert not waiting.done()
        both.give_up(tp)
        assert await waiting is ErrorCode.NOT_COORDINATOR
        assert await code_of(fetched(node, one)) is ErrorCode.NOT_COORDINATOR
        assert await fetched(node, two) == 7
        log.resume()
        both.lead(tp, 4)
        assert await both.all_loaded(60)
        assert await fetched(node, one) == 8, "it was written, and may have been committed"
        assert node.groups._runtime._shards[0]._leader_epoch == 4
        again = machine(node)
        both.lead(tp, 3)
        assert machine(node) is again
        both.lead(tp, 5)
        assert await both.all_loaded(60)
        assert machine(node) is not again
        assert await fetched(node, one) == 8

    run_with_node(tmp_path, test)


def test_one_partition_that_is_read_slowly_keeps_no_other_from_being_used(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await share(node, OFFSETS_TOPIC, 1, 1)
        await create_topics(node, [NewTopic("input")])
        one, two = name_on(0), name_on(1)
        for group in (one, two):
            await commit(node, group)
        both = coordinators(node)
        before = dict(node.coordinator_load_seconds)
        assert list(before) == [OFFSETS_TOPIC]
        may_end = slow(node, 0)
        for number in (0, 1):
            both.lead(TopicPartition(OFFSETS_TOPIC, number), 1)
        assert not await both.all_loaded(0)
        assert await code_of(fetched(node, one)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        for _ in range(10_000):
            if await code_of(fetched(node, two)) is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                break
            await asyncio.sleep(0.001)
        assert await fetched(node, two) == 7
        assert node.groups.shard_states() == {"active": 1, "loading": 1, "unreadable": 0}
        assert await code_of(node.groups.list(ListGroupsRequest())) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert node.coordinator_load_seconds == before, "not all was read"
        may_end.set()
        assert await both.all_loaded(60)
        await asyncio.sleep(0)
        assert await fetched(node, one) == 7
        assert node.coordinator_load_seconds != before
        assert len((await node.groups.list(ListGroupsRequest())).groups) == 2

    run_with_node(tmp_path, test)


def test_what_is_given_up_while_it_is_read_is_waited_for_no_more(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await share(node, OFFSETS_TOPIC, 1, 1)
        await commit(node, name_on(0))
        both, tp = coordinators(node), TopicPartition(OFFSETS_TOPIC, 0)
        slow(node, 0)
        both.lead(tp, 1)
        assert not await both.all_loaded(0)
        both.give_up(tp)
        assert await both.all_loaded(60)
        assert await code_of(fetched(node, name_on(0))) is ErrorCode.NOT_COORDINATOR

    run_with_node(tmp_path, test)


def test_a_partition_without_its_log_is_refused_and_read_when_it_is_led_with_it(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await share(node, OFFSETS_TOPIC, 1, 1)
        await create_topics(node, [NewTopic("input")])
        one, two = name_on(0), name_on(1)
        await commit(node, one)
        both, tp = coordinators(node), TopicPartition(OFFSETS_TOPIC, 0)
        both.give_up(tp)
        log = node.logs._partitions.pop(tp)
        both.lead(tp, 1)
        assert await code_of(fetched(node, one)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await commit(node, two) is ErrorCode.NONE
        node.logs._partitions[tp] = log
        both.lead(tp, 1)
        assert await both.all_loaded(60)
        assert await fetched(node, one) == 7

    run_with_node(tmp_path, test)


def test_a_deletion_of_topics_holds_the_metadata_up_for_a_moment_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What commits them may be another node, of which the metadata tells that waits behind the deletion."""
    monkeypatch.setattr(coordinators_module, "FORGET_PATIENCE_S", 0.001)

    async def test(node: Node) -> None:
        await share(node, OFFSETS_TOPIC, 1, 1)
        await create_topics(node, [NewTopic("input")])
        one, two = name_on(0), name_on(1)
        for group in (one, two):
            await commit(node, group)
        log = node.partition(TopicPartition(OFFSETS_TOPIC, 0))
        assert log is not None
        log.pause()
        async with asyncio.timeout(60):
            await delete_topics(node, ["input"])
        assert await fetched(node, two) == -1, "the other partition has forgotten them"
        log.resume()
        assert await fetched(node, one) == -1

    run_with_node(tmp_path, test)


def test_R8_what_is_forgotten_at_a_takeover_is_missing_in_metadata_that_was_read_since(tmp_path: Path) -> None:
    """The leader before may have known topics of which this node has not heard yet."""

    async def test(node: Node) -> None:
        await share(node)
        await create_topics(node, [NewTopic("input")])
        await commit(node, name_on(0))
        read: list[int] = []
        refresh = node.metadata.refresh

        async def failing_once() -> Any:
            read.append(1)
            if len(read) == 1:
                raise RetriableError("the database is away")
            return await refresh()

        node.metadata.refresh = failing_once  # type: ignore[method-assign]
        both, tp = coordinators(node), TopicPartition(OFFSETS_TOPIC, 0)
        both.lead(tp, 1)
        assert await both.all_loaded(60)
        assert len(read) == 2
        assert await fetched(node, name_on(0)) == 7

    run_with_node(tmp_path, test)


# --- Internal topics of several nodes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alive", "setting", "replicas"), [((), 3, 1), ((OTHER,), 3, 2), ((OTHER, THIRD), 3, 3), ((OTHER, THIRD), 2, 2)]
)
def test_internal_topics_have_as_many_replicas_as_is_set_and_nodes_are_alive(
    tmp_path: Path, alive: tuple[int, ...], setting: int, replicas: int
) -> None:
    async def test(node: Node) -> None:
        await tell(node, registered(OTHER), registered(THIRD))
        brokers = node.metadata.image.brokers
        await tell(node, *(BrokerFenced(one, brokers[one].epoch) for one in (OTHER, THIRD) if one not in alive))
        for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            await create_internal_topic(node, name)
            states = node.metadata.image.topics[name].partitions
            assert {len(state.replicas) for state in states} == {replicas}
            assert {one for state in states for one in state.replicas} <= {1, *alive}
        configs = node.metadata.image.topics[TRANSACTIONS_TOPIC].configs
        assert configs.get("min.insync.replicas") == (None if replicas == 1 else "2")

    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)
    settings = {"peer_listen": "127.0.0.1:0", "cluster_secret_file": str(secret)}
    run_with_node(
        tmp_path,
        test,
        offsets_topic_replication_factor=setting,
        transaction_state_log_replication_factor=setting,
        **settings,
    )


def test_find_coordinator_names_the_leader_of_the_keys_partition_if_there_is_one(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        fenced = registered(THIRD)
        await tell(node, fenced)
        await tell(node, BrokerFenced(THIRD, node.metadata.image.brokers[THIRD].epoch))
        await share(node, OFFSETS_TOPIC, 1, OTHER, NO_LEADER, THIRD)
        keys = [name_on(number, 4) for number in range(4)]
        answer = await call(node.kafka_address.port, ApiKey.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=keys)
        none = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [(each.error_code, each.node_id) for each in answer.coordinators] == [
            (ErrorCode.NONE, 1),
            (ErrorCode.NONE, OTHER),
            (none, -1),
            (none, -1),
        ]
        assert (answer.coordinators[1].host, answer.coordinators[1].port) == ("host9", 9092)

    run_with_node(tmp_path, test)
