"""ConsumerGroupHeartbeat and ConsumerGroupDescribe on the Kafka listener, in both versions of each (KIP-848)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka_calls import call
from running_node import create_topic, running_node

from semel.broker.node import Node
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey

GROUP = "enrich"
NONE = ErrorCode.NONE


def with_node(folder: Path, test: Callable[[Node], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with running_node(folder, **settings) as node, asyncio.timeout(60):
            await create_topic(node, "orders", 2)
            await test(node)

    asyncio.run(main())


async def beat(node: Node, version: int = 1, /, **values: Any) -> Any:
    """Join, unless told otherwise."""
    request: dict[str, Any] = {
        "group_id": GROUP,
        "member_id": "m-1",
        "member_epoch": 0,
        "rebalance_timeout": 30_000,
        "subscribed_topic_names": ("orders",),
        "topic_partitions": (),
        **values,
    }
    return await call(node.kafka_address.port, ApiKey.CONSUMER_GROUP_HEARTBEAT, version, **request)


async def describe(node: Node, version: int, *groups: str) -> Any:
    values = {"group_ids": groups, "include_authorized_operations": True}
    return (await call(node.kafka_address.port, ApiKey.CONSUMER_GROUP_DESCRIBE, version, **values)).groups


def topic_id(node: Node) -> UUID:
    found = node.metadata.topic("orders")
    assert found is not None
    return found.topic_id


def held(response: Any) -> dict[UUID, tuple[int, ...]]:
    return {topic.topic_id: topic.partitions for topic in response.assignment.topic_partitions}


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_stays_and_leaves(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        joined = await beat(node, version)
        assert (int(joined.error_code), joined.member_id, joined.member_epoch) == (NONE, "m-1", 1)
        assert joined.heartbeat_interval.total_seconds() == 3
        assert held(joined) == {topic_id(node): (0, 1)}
        owned = ({"topic_id": topic_id(node).bytes, "partitions": (0, 1)},)
        stayed = await beat(
            node, version, member_epoch=1, rebalance_timeout=-1, subscribed_topic_names=None, topic_partitions=owned
        )
        assert (int(stayed.error_code), stayed.member_epoch, stayed.assignment) == (NONE, 1, None)
        left = await beat(node, version, member_epoch=-1)
        assert (int(left.error_code), left.member_epoch) == (NONE, -1)
        [group] = await describe(node, version, GROUP)
        assert (group.group_state, group.members) == ("Empty", ())

    with_node(tmp_path, test, group_consumer_heartbeat_interval_ms=3_000)


def test_a_member_of_the_first_version_is_given_an_id(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        joined = await beat(node, 0, member_id="")
        assert int(joined.error_code) == NONE
        assert UUID(joined.member_id)
        assert int((await beat(node, 1, member_id="")).error_code) == ErrorCode.INVALID_REQUEST

    with_node(tmp_path, test)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 5}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_epoch": -1, "member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout": -1}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": ({"topic_id": bytes([1] * 16), "partitions": (0,)},)}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "m" * 5_000}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": ("t" * 30_000,) * 9}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "(orders"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_what_is_refused_says_why(tmp_path: Path, values: dict[str, Any], code: ErrorCode) -> None:
    async def test(node: Node) -> None:
        response = await beat(node, **values)
        assert int(response.error_code) == code
        assert response.error_message

    with_node(tmp_path, test)


def test_groups_are_described_with_their_members(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await beat(node, rack_id="r-1", instance_id="i-1", subscribed_topic_names=None, subscribed_topic_regex="ord.*")
        found, missing = await describe(node, 1, GROUP, "other")
        assert int(missing.error_code) == ErrorCode.GROUP_ID_NOT_FOUND
        assert missing.error_message
        assert (int(found.error_code), found.group_id, found.group_state) == (NONE, GROUP, "Stable")
        assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (1, 1, "uniform")
        assert found.authorized_operations > 0
        [member] = found.members
        assert (member.member_id, member.instance_id, member.rack_id) == ("m-1", "i-1", "r-1")
        assert (member.member_epoch, member.client_id, member.client_host) == (1, "test", "/127.0.0.1")
        assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ((), "ord.*")
        assert member.member_type == 1
        for given in (member.assignment, member.target_assignment):
            [topic] = given.topic_partitions
            assert (topic.topic_id, topic.topic_name, topic.partitions) == (topic_id(node), "orders", (0, 1))

    with_node(tmp_path, test)


def test_topics_made_and_deleted_reach_the_group(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        names = ("orders", "later")
        assert len(held(await beat(node, subscribed_topic_names=names))) == 1
        await create_topic(node, "later", 1)
        more = await beat(node, member_epoch=1, subscribed_topic_names=names)
        assert more.member_epoch == 2
        assert sorted(held(more).values()) == [(0,), (0, 1)]

    with_node(tmp_path, test)


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.UNSUPPORTED_VERSION), (9, ErrorCode.STALE_MEMBER_EPOCH)])
def test_a_stale_epoch_is_told_in_a_code_that_the_version_knows(tmp_path: Path, version: int, code: ErrorCode) -> None:
    async def test(node: Node) -> None:
        await beat(node)
        partition = {
            "partition_index": 0,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        response = await call(
            node.kafka_address.port,
            ApiKey.OFFSET_COMMIT,
            version,
            group_id=GROUP,
            generation_id_or_member_epoch=7,
            member_id="m-1",
            topics=({"name": "orders", "partitions": (partition,)},),
        )
        assert int(response.topics[0].partitions[0].error_code) == code

    with_node(tmp_path, test)
