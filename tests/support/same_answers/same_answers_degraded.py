"""Scenarios of a cluster whose third node is gone: what has no leader, too few replicas, or nowhere to be placed.

The topics were made, and the node killed, before.
"""

from __future__ import annotations

from typing import Any

from same_answers import DEGRADED_SCENARIOS, Side, batch, scenario
from same_answers_cluster import read_end
from same_answers_topics import new_topic

from semel.protocol.kafka.api import ApiKey

GONE = 3
TOPIC = "degraded"
"""It has the replicas of `SPREAD`."""
ALONE = "degraded-alone"
"""Its one partition is on node 3 alone."""
STRICT = "degraded-strict"
"""Its one partition is on nodes 1, 2 and 3, with min.insync.replicas=3."""


@scenario(ApiKey.METADATA, DEGRADED_SCENARIOS)
async def metadata_without_a_node(at: Side, version: int) -> None:
    for node in (1, 2):
        topics = [{"name": name, "topic_id": bytes(16)} for name in (TOPIC, ALONE)]
        await at.ask(f"at {node}", ApiKey.METADATA, node=node, topics=topics, allow_auto_topic_creation=False)


@scenario(ApiKey.DESCRIBE_TOPIC_PARTITIONS, DEGRADED_SCENARIOS)
async def describe_topic_partitions_without_a_node(at: Side, version: int) -> None:
    topics = [{"name": TOPIC}, {"name": STRICT}, {"name": ALONE}]
    key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    await at.ask("all", key, topics=topics, response_partition_limit=100, cursor=None)


@scenario(ApiKey.PRODUCE, DEGRADED_SCENARIOS)
async def produce_without_a_node(at: Side, version: int) -> None:
    for node in (1, 2):
        await at.produce(f"no leader, at {node}", ALONE, batch(b"a"), node=node, until_not=())
    await at.produce("too few in sync", STRICT, batch(b"a"), until_not=())
    await at.produce("too few in sync, acks=1", STRICT, batch(b"a"), acks=1, until_not=())


@scenario(ApiKey.LIST_OFFSETS, DEGRADED_SCENARIOS)
async def list_offsets_without_a_node(at: Side, version: int) -> None:
    for node in (1, 2):
        await read_end(at, ALONE, 0, node, f"no leader, at {node}", until_not=())


@scenario(ApiKey.CREATE_TOPICS, DEGRADED_SCENARIOS)
async def create_topics_without_a_node(at: Side, version: int) -> None:
    for replicas in (2, 3, 4):
        topics = [new_topic(at.name(f"r{replicas}"), 1, replicas)]
        await at.ask(f"{replicas} replicas", ApiKey.CREATE_TOPICS, topics=topics, timeout=60_000, validate_only=False)


@scenario(ApiKey.ELECT_LEADERS, DEGRADED_SCENARIOS)
async def elect_leaders_without_a_node(at: Side, version: int) -> None:
    for kind in (0, 1) if version else (0,):
        chosen = [{"topic": TOPIC, "partitions": [0, 1, 2]}, {"topic": ALONE, "partitions": [0]}]
        more: dict[str, Any] = {"election_type": kind} if version else {}
        await at.ask(f"kind {kind}", ApiKey.ELECT_LEADERS, topic_partitions=chosen, timeout=30_000, **more)


@scenario(ApiKey.DESCRIBE_CLUSTER, DEGRADED_SCENARIOS)
async def describe_cluster_without_a_node(at: Side, version: int) -> None:
    for fenced in (False, True) if version >= 2 else (False,):
        more: dict[str, Any] = {"endpoint_type": 1} if version else {}
        more |= {"include_fenced_brokers": fenced} if version >= 2 else {}
        what = f"fenced too: {fenced}"
        await at.ask(what, ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=False, **more)
