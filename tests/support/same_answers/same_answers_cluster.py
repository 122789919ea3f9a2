"""Scenarios about clusters of three nodes: what is asked of a node that does not lead, or does not coordinate, and how
replicas are placed and moved. Topics are placed by hand, so that both sides have the same leaders.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from same_answers import CLUSTER_SCENARIOS, COORDINATOR_LOADS, RETRY_S, RETRY_TIMEOUT_S, Side, batch, scenario
from same_answers_groups import SUBSCRIPTION
from same_answers_topics import assigned, new_topic

from semel.protocol.kafka.api import ApiKey

NODES = (1, 2, 3)
GROUP, TRANSACTION = 0, 1
SPREAD = ([1, 2], [2, 3], [3, 1])
"""Each node leads the partition before its number, follows in another, and does not have the third."""


async def placed(at: Side, what: str, *replicas: Sequence[int], **configs: str) -> str:
    """Make a topic with these replicas, wait until all of them are in sync everywhere, and return its name."""
    name, beside = at.name(what), Side.beside(at)
    configs = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in configs.items()}}
    topic = new_topic(name, -1, -1, assignments=assigned(*map(list, replicas)), configs=configs)
    try:
        made = await beside.ask("make", ApiKey.CREATE_TOPICS, topics=[topic], timeout=60_000, validate_only=False)
        assert made.topics[0].error_code == 0, made
        for node in NODES:
            await settled(beside, name, [list(each) for each in replicas], node)
        for number, each in enumerate(replicas):  # the leader knows that it leads
            await read_end(beside, name, number, each[0], until_not=(3, 6, 78))
    finally:
        await beside.close()
    return name


async def settled(beside: Side, name: str, replicas: list[list[int]], node: int = 1) -> None:
    """Wait until a node says that all of these replicas are in sync, and that the first of each partition leads."""
    deadline = time.monotonic() + RETRY_TIMEOUT_S
    while True:
        topics = [{"name": name, "topic_id": bytes(16)}]
        answer = await beside.ask("see", ApiKey.METADATA, version=12, node=node, topics=topics)
        found = sorted(answer.topics[0].partitions, key=lambda one: one.partition_index)
        seen = [(one.leader_id, list(one.replica_nodes), sorted(one.isr_nodes)) for one in found]
        if seen == [(each[0], each, sorted(each)) for each in replicas]:
            return
        assert time.monotonic() < deadline, f"{name} did not settle: {seen}"
        await asyncio.sleep(RETRY_S)


async def read_end(at: Side, topic: str, partition: int, node: int, what: str = "end", **more: Any) -> None:
    one = {"partition_index": partition, "current_leader_epoch": more.pop("epoch", -1), "timestamp": -1}
    topics = [{"name": topic, "partitions": [one]}]
    await at.ask(what, ApiKey.LIST_OFFSETS, node=node, replica_id=-1, isolation_level=0, topics=topics, **more)


async def coordinator(at: Side, kind: int, key: str) -> tuple[int, int]:
    """Return who coordinates, and somebody who does not."""
    beside = Side.beside(at)
    try:
        answer = await beside.ask("find", ApiKey.FIND_COORDINATOR, version=3, key_type=kind, key=key)
    finally:
        await beside.close()
    return answer.node_id, next(node for node in NODES if node != answer.node_id)


# --- What all nodes say -----------------------------------------------------------------------------------------------


@scenario(ApiKey.METADATA, CLUSTER_SCENARIOS)
async def metadata(at: Side, version: int) -> None:
    topic = await placed(at, "one", *SPREAD)
    for node in NODES:
        topics = [{"name": topic, "topic_id": bytes(16)}]
        await at.ask(f"at {node}", ApiKey.METADATA, node=node, topics=topics, allow_auto_topic_creation=False)


@scenario(ApiKey.DESCRIBE_TOPIC_PARTITIONS, CLUSTER_SCENARIOS)
async def describe_topic_partitions(at: Side, version: int) -> None:
    topic = await placed(at, "one", *SPREAD)
    for node in NODES:
        await at.ask(
            f"at {node}",
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            node=node,
            topics=[{"name": topic}],
            response_partition_limit=100,
            cursor=None,
        )


@scenario(ApiKey.DESCRIBE_CLUSTER, CLUSTER_SCENARIOS)
async def describe_cluster(at: Side, version: int) -> None:
    for node in NODES:
        values = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": True}
        names = {1: "endpoint_type", 2: "include_fenced_brokers"}
        values = {name: value for name, value in values.items() if version >= _since(name, names)}
        await at.ask(f"at {node}", ApiKey.DESCRIBE_CLUSTER, node=node, **values)


def _since(name: str, names: dict[int, str]) -> int:
    return next((version for version, each in names.items() if each == name), 0)


@scenario(ApiKey.FIND_COORDINATOR, CLUSTER_SCENARIOS)
async def find_coordinator(at: Side, version: int) -> None:
    for kind in (GROUP, TRANSACTION):
        found = set()
        for node in NODES:
            beside = Side.beside(at)
            many = {"key_type": kind, "coordinator_keys": [at.name("key")]}
            values = many if version >= 4 else {"key": at.name("key"), **({"key_type": kind} if version else {})}
            if version == 0 and kind == TRANSACTION:
                continue
            answer = await beside.ask("find", ApiKey.FIND_COORDINATOR, node=node, **values)
            found.add(answer.coordinators[0].node_id if version >= 4 else answer.node_id)
            await beside.close()
        at.answers.append((f"all nodes name the same for kind {kind}", "FIND_COORDINATOR", version, len(found)))


@scenario(ApiKey.DESCRIBE_CONFIGS, CLUSTER_SCENARIOS)
async def settings_of_nodes(at: Side, version: int) -> None:
    for node in NODES:
        for name in ("1", "2", "9", ""):
            resource = {"resource_type": 4, "resource_name": name, "configuration_keys": ["min.insync.replicas"]}
            values = {"include_synonyms": False, "include_documentation": False}
            if version < 3:
                del values["include_documentation"]
            await at.ask(f"of {name!r} at {node}", ApiKey.DESCRIBE_CONFIGS, node=node, resources=[resource], **values)


# --- Where somebody else leads ----------------------------------------------------------------------------------------


@scenario(ApiKey.PRODUCE, CLUSTER_SCENARIOS)
async def produce(at: Side, version: int) -> None:
    topic = await placed(at, "one", *SPREAD)
    for node in NODES:
        for partition in range(len(SPREAD)):
            await at.produce(f"{partition} at {node}", topic, batch(b"a"), partition, node=node, until_not=())
    await at.produce("acks=1 elsewhere", topic, batch(b"a"), 1, acks=1, until_not=())
    strict = await placed(at, "strict", [1, 2], min_insync_replicas="3")
    await at.produce("min.insync.replicas=3 of two", strict, batch(b"a"), until_not=())


@scenario(ApiKey.FETCH, CLUSTER_SCENARIOS)
async def fetch(at: Side, version: int) -> None:
    topic = await placed(at, "one", *SPREAD)
    await at.produce("data", topic, batch(b"a", b"b"))
    await _until_followed(at, topic, node=2, end=2)
    for node in NODES:
        for epoch in (-1, 0, 5):
            one: dict[str, Any] = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
            if version >= 9:
                one["current_leader_epoch"] = epoch
            elif epoch >= 0:
                continue
            named = {"topic_id": await at.topic_id(topic)} if version >= 13 else {"topic": topic}
            values: dict[str, Any] = {"max_wait": 100, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0}
            if version < 15:
                values["replica_id"] = -1
            if version >= 7:
                values |= {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": []}
            what = f"epoch {epoch} at {node}"
            await at.ask(what, ApiKey.FETCH, node=node, topics=[{**named, "partitions": [one]}], until_not=(), **values)


async def _until_followed(at: Side, topic: str, node: int, end: int) -> None:
    """Wait until a follower of partition 0 knows that all up to `end` is committed: it hears it with a later fetch."""
    beside = Side.beside(at)
    deadline = time.monotonic() + RETRY_TIMEOUT_S
    one = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    values = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0}
    session = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
    asked = [{"topic": topic, "partitions": [one]}]
    try:
        while True:
            answer = await beside.ask("see", ApiKey.FETCH, version=11, node=node, topics=asked, **values, **session)
            if answer.responses[0].partitions[0].high_watermark == end:
                return
            assert time.monotonic() < deadline, f"node {node} did not follow: {answer}"
            await asyncio.sleep(RETRY_S)
    finally:
        await beside.close()


@scenario(ApiKey.LIST_OFFSETS, CLUSTER_SCENARIOS)
async def list_offsets(at: Side, version: int) -> None:
    topic = await placed(at, "one", *SPREAD)
    for node in NODES:
        for partition in range(len(SPREAD)):
            await read_end(at, topic, partition, node, f"{partition} at {node}", until_not=())
            for epoch in (0, 5) if version >= 4 else ():
                what = f"{partition} at {node}, epoch {epoch}"
                await read_end(at, topic, partition, node, what, epoch=epoch, until_not=())


@scenario(ApiKey.OFFSET_FOR_LEADER_EPOCH, CLUSTER_SCENARIOS)
async def offset_for_leader_epoch(at: Side, version: int) -> None:
    topic = await placed(at, "one", *SPREAD)
    for node in NODES:
        for partition in range(len(SPREAD)):
            for current in (-1, 0, 5):
                one = {"partition": partition, "current_leader_epoch": current, "leader_epoch": 0}
                topics = [{"topic": topic, "partitions": [one]}]
                key = ApiKey.OFFSET_FOR_LEADER_EPOCH
                await at.ask(f"{partition} at {node}, {current}", key, node=node, replica_id=-1, topics=topics)


@scenario(ApiKey.DELETE_RECORDS, CLUSTER_SCENARIOS)
async def delete_records(at: Side, version: int) -> None:
    topic = await placed(at, "one", *SPREAD)
    await at.produce("data", topic, batch(b"a", b"b"))
    for node in (3, 2, 1):
        topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 1}]}]
        await at.ask(f"at {node}", ApiKey.DELETE_RECORDS, node=node, topics=topics, timeout=30_000, until_not=())


@scenario(ApiKey.DESCRIBE_PRODUCERS, CLUSTER_SCENARIOS)
async def describe_producers(at: Side, version: int) -> None:
    topic = await placed(at, "one", *SPREAD)
    for node in NODES:
        topics = [{"name": topic, "partition_indexes": [0, 1, 2]}]
        await at.ask(f"at {node}", ApiKey.DESCRIBE_PRODUCERS, node=node, topics=topics, until_not=())


@scenario(ApiKey.DESCRIBE_LOG_DIRS, CLUSTER_SCENARIOS)
async def describe_log_dirs(at: Side, version: int) -> None:
    topic = await placed(at, "one", *SPREAD)
    for node in NODES:
        topics = [{"topic": topic, "partitions": [0, 1, 2]}]
        await at.ask(f"at {node}", ApiKey.DESCRIBE_LOG_DIRS, node=node, topics=topics)


# --- Where somebody else coordinates ----------------------------------------------------------------------------------


@scenario(ApiKey.JOIN_GROUP, CLUSTER_SCENARIOS)
async def groups_elsewhere(at: Side, version: int) -> None:
    group = at.name("group")
    _, other = await coordinator(at, GROUP, group)
    member = {"group_id": group, "member_id": "m", "group_instance_id": None}
    protocols = [{"name": "range", "metadata": SUBSCRIPTION}]
    timeouts = {"session_timeout": 30_000, "rebalance_timeout": 30_000}
    kind = {"protocol_type": "consumer"}
    beside = {"node": other, "until_not": ()}
    await at.ask(
        "join", ApiKey.JOIN_GROUP, **{**member, **timeouts, **kind}, protocols=protocols, reason=None, **beside
    )
    sync = {**member, **kind, "protocol_name": "range", "generation_id": 1, "assignments": []}
    await at.ask("sync", ApiKey.SYNC_GROUP, **sync, **beside)
    await at.ask("heartbeat", ApiKey.HEARTBEAT, **member, generation_id=1, **beside)
    leaving = [{"member_id": "m", "group_instance_id": None, "reason": None}]
    await at.ask("leave", ApiKey.LEAVE_GROUP, group_id=group, members=leaving, **beside)
    await at.ask("describe", ApiKey.DESCRIBE_GROUPS, groups=[group], include_authorized_operations=False, **beside)
    await at.ask("delete", ApiKey.DELETE_GROUPS, groups_names=[group], **beside)
    topic = await placed(at, "one", [1])
    offsets = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    commit = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    await at.ask("commit", ApiKey.OFFSET_COMMIT, version=8, topics=offsets, **commit, **beside)
    places = [{"name": topic, "partition_indexes": [0]}]
    asked = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": places}]
    await at.ask("fetch", ApiKey.OFFSET_FETCH, version=9, groups=asked, require_stable=False, **beside)
    deleted = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    await at.ask("delete offsets", ApiKey.OFFSET_DELETE, group_id=group, topics=deleted, **beside)


@scenario(ApiKey.CONSUMER_GROUP_HEARTBEAT, CLUSTER_SCENARIOS)
async def consumer_groups_elsewhere(at: Side, version: int) -> None:
    group = at.name("group")
    _, other = await coordinator(at, GROUP, group)
    values = {
        "group_id": group,
        "member_id": "m" * 22,
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 30_000,
        "subscribed_topic_names": [at.name("topic")],
        "server_assignor": None,
        "topic_partitions": [],
    }
    await at.ask("heartbeat", ApiKey.CONSUMER_GROUP_HEARTBEAT, node=other, until_not=(), **values)
    described = {"group_ids": [group], "include_authorized_operations": False}
    await at.ask("describe", ApiKey.CONSUMER_GROUP_DESCRIBE, node=other, until_not=(), **described)


@scenario(ApiKey.INIT_PRODUCER_ID, CLUSTER_SCENARIOS)
async def transactions_elsewhere(at: Side, version: int) -> None:
    txn, topic = at.name("txn"), await placed(at, "one", *SPREAD)
    here, other = await coordinator(at, TRANSACTION, txn)
    new = {"transactional_id": txn, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    if version < 3:
        del new["producer_id"], new["producer_epoch"]
    await at.ask("init elsewhere", ApiKey.INIT_PRODUCER_ID, node=other, until_not=(), **new)
    made = await at.ask("init", ApiKey.INIT_PRODUCER_ID, node=here, until_not={*COORDINATOR_LOADS} - {16}, **new)
    await at.ask("init without a name", ApiKey.INIT_PRODUCER_ID, node=other, **{**new, "transactional_id": None})
    owner = {"transactional_id": txn, "producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
    beside: dict[str, Any] = {"node": other, "until_not": ()}
    older = {f"v3_and_below_{name}": value for name, value in owner.items()}
    topics = [{"name": topic, "partitions": [0]}]
    await at.ask("add", ApiKey.ADD_PARTITIONS_TO_TXN, version=3, v3_and_below_topics=topics, **older, **beside)
    group = at.name("group")
    await at.ask("add offsets", ApiKey.ADD_OFFSETS_TO_TXN, **owner, group_id=group, **beside)
    await at.ask("end", ApiKey.END_TXN, **owner, committed=True, **beside)
    await at.ask("describe", ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[txn], **beside)
    _, not_of_group = await coordinator(at, GROUP, group)
    offsets = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}]
    member = {"group_id": group, "generation_id": -1, "member_id": "", "group_instance_id": None}
    commit = {**owner, **member, "topics": offsets, "node": not_of_group, "until_not": ()}
    await at.ask("commit offsets", ApiKey.TXN_OFFSET_COMMIT, **commit)


@scenario(ApiKey.END_TXN, CLUSTER_SCENARIOS)
async def a_transaction_over_three_nodes(at: Side, version: int) -> None:
    """Its coordinator and the leaders of what it writes are asked where they are."""
    txn, topic = at.name("txn"), await placed(at, "one", [1, 2], [2, 3], [3, 1])
    here, _ = await coordinator(at, TRANSACTION, txn)
    for outcome in (True, False):
        new = {"transactional_id": txn, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        key = ApiKey.INIT_PRODUCER_ID
        made = await at.ask("init", key, version=4, node=here, until_not=(14, 15, 51), **new)
        owner = {"transactional_id": txn, "producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
        older = {f"v3_and_below_{name}": value for name, value in owner.items()}
        topics = [{"name": topic, "partitions": [0, 1, 2]}]
        key = ApiKey.ADD_PARTITIONS_TO_TXN
        await at.ask("add", key, version=3, node=here, until_not=(51,), v3_and_below_topics=topics, **older)
        for partition in range(3):
            data = batch(
                b"%d" % partition, producer=(made.producer_id, made.producer_epoch), sequence=0, transactional=True
            )
            await at.produce(f"write {partition}", topic, data, partition, transactional_id=txn, node=partition + 1)
        await at.ask("end", ApiKey.END_TXN, node=here, until_not=(51,), **owner, committed=outcome)
        await at.ask("end again", ApiKey.END_TXN, node=here, until_not=(51,), **owner, committed=outcome)
    for partition in range(3):
        await _until_decided(at, topic, partition)
        one = {"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
        asked = [{"topic": topic, "partitions": [one]}]
        values = {"replica_id": -1, "max_wait": 100, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 1}
        session = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": []}
        what = f"read {partition}"
        await at.ask(what, ApiKey.FETCH, version=11, node=partition + 1, topics=asked, rack_id="", **values, **session)


async def _until_decided(at: Side, topic: str, partition: int) -> None:
    """Wait until both markers are in the log."""
    beside = Side.beside(at)
    deadline = time.monotonic() + RETRY_TIMEOUT_S
    try:
        while True:
            one = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}
            topics = [{"name": topic, "partitions": [one]}]
            values = {"replica_id": -1, "isolation_level": 1, "topics": topics}
            answer = await beside.ask("end", ApiKey.LIST_OFFSETS, version=6, node=partition + 1, **values)
            if answer.topics[0].partitions[0].offset == 4:
                return
            assert time.monotonic() < deadline, f"no markers: {answer}"
            await asyncio.sleep(RETRY_S)
    finally:
        await beside.close()


# --- Placing and moving replicas --------------------------------------------------------------------------------------


@scenario(ApiKey.CREATE_TOPICS, CLUSTER_SCENARIOS)
async def create_topics(at: Side, version: int) -> None:
    async def create(what: str, partitions: int, replicas: int, node: int = 2, **more: Any) -> None:
        topics = [new_topic(at.name(what.replace(" ", "-")), partitions, replicas, **more)]
        await at.ask(what, ApiKey.CREATE_TOPICS, node=node, topics=topics, timeout=60_000, validate_only=False)

    for replicas in (1, 2, 3, 4, 0, -2):
        await create(f"{replicas} replicas", 3, replicas)
    for what, chosen in (
        ("all", ([1, 2, 3], [3, 2, 1])),
        ("numbers that differ", ([1, 2], [3])),
        ("a stranger", ([1, 9],)),
        ("one twice", ([1, 1],)),
        ("nobody", ([],)),
        ("negative", ([-1, 1],)),
    ):
        await create(what, -1, -1, assignments=assigned(*chosen))
    await create("min isr above the replicas", 1, 2, configs={"min.insync.replicas": "3"})


@scenario(ApiKey.CREATE_PARTITIONS, CLUSTER_SCENARIOS)
async def create_partitions(at: Side, version: int) -> None:
    topic = await placed(at, "one", [1, 2])
    for what, count, chosen in (
        ("replicas that differ", 2, [[1, 2, 3]]),
        ("too few replicas", 2, [[1]]),
        ("a stranger", 2, [[1, 9]]),
        ("one twice", 2, [[2, 2]]),
        ("too many assignments", 2, [[1, 2], [2, 1]]),
        ("good", 2, [[2, 3]]),
        ("by itself", 3, None),
    ):
        wanted = None if chosen is None else [{"broker_ids": each} for each in chosen]
        topics = [{"name": topic, "count": count, "assignments": wanted}]
        await at.ask(what, ApiKey.CREATE_PARTITIONS, node=3, topics=topics, timeout=60_000, validate_only=False)


@scenario(ApiKey.ALTER_PARTITION_REASSIGNMENTS, CLUSTER_SCENARIOS)
async def alter_partition_reassignments(at: Side, version: int) -> None:
    topic = await placed(at, "one", [1, 2], [2, 3])
    for what, number, replicas in (
        ("cancel none", 0, None),
        ("as they are", 0, [1, 2]),
        ("a stranger", 0, [1, 2, 9]),
        ("negative", 0, [1, 2, -1]),
        ("one twice", 0, [1, 2, 2]),
        ("nobody", 0, []),
        ("absent partition", 7, [1, 2, 3]),
        ("one more", 0, [1, 2, 3]),
    ):
        topics = [{"name": topic, "partitions": [{"partition_index": number, "replicas": replicas}]}]
        key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
        more = {"allow_replication_factor_change": True} if version else {}
        await at.ask(what, key, node=3, topics=topics, timeout=30_000, **more)
    beside = Side.beside(at)
    try:
        await settled(beside, topic, [[1, 2, 3], [2, 3]])
    finally:
        await beside.close()
    listed = [{"name": topic, "partition_indexes": [0, 1]}]
    await at.ask("list", ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=listed, timeout=30_000)


@scenario(ApiKey.ELECT_LEADERS, CLUSTER_SCENARIOS)
async def elect_leaders(at: Side, version: int) -> None:
    topic = await placed(at, "one", [1, 2, 3], [2, 3, 1])
    for kind in (0, 1) if version else (0,):
        for what, partitions in (("all lead already", [0, 1]), ("absent", [9])):
            chosen = [{"topic": topic, "partitions": partitions}]
            more = {"election_type": kind} if version else {}
            key = ApiKey.ELECT_LEADERS
            await at.ask(f"{what}, {kind}", key, node=2, topic_partitions=chosen, timeout=30_000, **more)


@scenario(ApiKey.UNREGISTER_BROKER, CLUSTER_SCENARIOS)
async def unregister_broker(at: Side, version: int) -> None:
    await at.ask("no such node", ApiKey.UNREGISTER_BROKER, node=2, broker_id=77)
