"""Members that subscribe by a regular expression get only topics that they may describe (KIP-848)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kafka_calls import call
from permitted_node import PERMITTED, only
from running_node import create_topic, running_node

from semel.broker.node import Node
from semel.group_coordinator.consumer.viewers import Viewer, split_viewer, with_viewer, without_viewer
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey


async def beat(node: Node, epoch: int, **more: Any) -> Any:
    values = {"group_id": "g", "member_id": "m", "member_epoch": epoch, **more}
    for _ in range(50):
        found = await call(node.kafka_address.port, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **values)
        if found.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(found)


def assigned(node: Node, found: Any) -> set[str]:
    ids = {topic.topic_id: topic.name for topic in node.metadata.image.topics.values()}
    return {ids[each.topic_id] for each in found.assignment.topic_partitions}


def test_S7_an_expression_matches_what_its_member_may_describe_and_follows_the_acls(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {**PERMITTED, "group_consumer_heartbeat_interval_ms": 100}
        async with running_node(tmp_path, **settings) as node:
            for name in ("t-1", "t-2", "u"):
                await create_topic(node, name)
            await only(node, [("READ", "group:g"), ("DESCRIBE", "topic:t-1")])
            joined = await beat(node, 0, subscribed_topic_regex="[tu].*", rebalance_timeout=10_000, topic_partitions=())
            assert joined.error_code == 0
            assert assigned(node, joined) == {"t-1"}
            described = await call(node.kafka_address.port, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=("g",))
            assert described.groups[0].members[0].subscribed_topic_regex == "[tu].*"
            await only(node, [("READ", "group:g"), ("DESCRIBE", "topic:t-*")])
            later = await beat(node, joined.member_epoch)
            assert assigned(node, later) == {"t-1", "t-2"}
            await only(node, [("READ", "group:g")])
            hidden = await call(node.kafka_address.port, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=("g",))
            assert (hidden.groups[0].error_code, hidden.groups[0].members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ())

    asyncio.run(main())


def test_what_is_written_has_the_viewer_and_what_is_told_has_not() -> None:
    viewer = Viewer("User:CN=a,O=b", "10.0.0.1")
    written = with_viewer("a|b", viewer)
    assert split_viewer(written) == (viewer, "a|b")
    assert (without_viewer(written), without_viewer("a|b"), without_viewer(None)) == ("a|b", "a|b", None)
    assert split_viewer(with_viewer(written, Viewer("User:c", "h"))) == (Viewer("User:c", "h"), written)
    assert split_viewer("\0x") == (None, "\0x")
    with pytest.raises(ValueError, match="zero"):
        with_viewer("a", Viewer("User:a\0", "h"))
