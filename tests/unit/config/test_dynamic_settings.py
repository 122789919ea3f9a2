"""Every setting that is called dynamic takes effect while the node runs, as one node's and as all nodes' (KIP-226)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from kafka_calls import call
from kafka_node import batch, until
from running_node import create_topic, run_with_node

from semel.broker.config.node_config import SETTINGS, TOPIC_DEFAULTS
from semel.broker.handlers.acls import create_acls
from semel.broker.handlers.client_quotas import alter_client_quotas
from semel.broker.handlers.configs import alter_configs
from semel.broker.handlers.metadata import topics_by_name
from semel.broker.handlers.topics.changes import create_topics
from semel.broker.handlers.users import alter_users
from semel.broker.log.config import AppendOrigin
from semel.broker.logs.maintenance import LogMaintenance
from semel.broker.logs.replication_quota import ReplicationQuota
from semel.broker.node import Node
from semel.broker.tiers.store_quotas import StoreQuotas
from semel.protocol.acls import Acl, AclOperation, AclPermission, PatternType
from semel.protocol.acls import ResourceType as AclResourceType
from semel.protocol.api.metadata import ALL_NODES, AlterConfigsRequest, ResourceType
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.kafka.api import ApiKey
from semel.protocol.quotas import QuotaAlteration, QuotaEntity
from semel.protocol.scram import Alteration, make_verifier
from semel.runtime.setting import ValueType

A = TopicPartition("a", 0)
IDLE = ProducerIdAndEpoch(9, 0)
Set = Callable[[str | None], Awaitable[None]]
"""Sets the setting in question to a text; None puts it back."""


async def looks_for_logs_to_compact(node: Node, change: Set) -> None:
    looked = asyncio.Event()

    async def compact_logs() -> int:
        looked.set()
        return 0

    node.logs.maintenance.compact_logs = compact_logs  # type: ignore[method-assign]
    await change("1")
    await looked.wait()
    await change(None)
    assert node.logs.config.log_cleaner_backoff_ms == INT32_MAX


async def flushes(node: Node, change: Set) -> None:
    assert node.logs.maintenance.flushes == 0
    await change("100")
    await until(lambda: node.logs.maintenance.flushes > 1)


async def forgets_producers(node: Node, change: Set) -> None:
    def append(tp: TopicPartition) -> None:
        partition = node.partition(tp)
        assert partition is not None
        partition.append(bytearray(batch(b"x", producer=IDLE, sequence=0)), origin=AppendOrigin.COORDINATOR)

    def known(tp: TopicPartition) -> bool:
        partition = node.partition(tp)
        assert partition is not None
        return partition.log.producer_state.entry(IDLE.producer_id) is not None

    append(A)
    await node.logs.maintenance.expire_producers()
    assert known(A)
    await change("1")
    await create_topic(node, "later")
    later = TopicPartition("later", 0)
    append(later)
    while known(A) or known(later):  # the clock moves in milliseconds
        await node.logs.maintenance.expire_producers()


async def bounds_producers(node: Node, change: Set) -> None:
    partition = node.partition(A)
    assert partition is not None
    partition.append(bytearray(batch(b"x", producer=IDLE, sequence=0)))
    await change("1")
    other = ProducerIdAndEpoch(IDLE.producer_id + 1, 0)
    with pytest.raises(SemelError, match=r"producer\.ids\.[a-z.]*max=1"):
        partition.append(bytearray(batch(b"x", producer=other, sequence=0)))
    await change(None)
    partition.append(bytearray(batch(b"x", producer=other, sequence=0)))


def counts_connections(few: str, many: str) -> Callable[[Node, Set], Awaitable[None]]:
    async def counts(node: Node, change: Set) -> None:
        await _count_connections(node, change, few, many)

    return counts


async def _count_connections(node: Node, change: Set, few: str, many: str) -> None:
    async def is_let_in() -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.kafka_address.port)
        held.append(writer)
        writer.write(b"\0\0\0\x0e\0\x12\0\0\0\0\0\x01\0\x04test")  # ApiVersions 0
        try:
            return len(await reader.read(4)) == 4
        except ConnectionError:
            return False

    held: list[asyncio.StreamWriter] = []
    try:
        assert await is_let_in()
        await change(few)
        assert not await is_let_in()
        await change(many)
        assert await is_let_in()
    finally:
        for writer in held:
            writer.close()


async def creates_topics(node: Node, change: Set) -> None:
    await change("false")
    await topics_by_name(node, ["b"], allow_auto_create=True)
    assert node.metadata.topic("b") is None
    await change("true")
    await topics_by_name(node, ["b"], allow_auto_create=True)
    assert node.metadata.topic("b") is not None


async def gives_partitions(node: Node, change: Set) -> None:
    await change("3")
    await create_topic(node, "b", -1)
    found = node.metadata.topic("b")
    assert found is not None
    assert len(found.partitions) == 3


async def bounds_partitions(node: Node, change: Set) -> None:
    await change("1")
    with pytest.raises(AssertionError, match=r"max\.partitions is 1"):
        await create_topic(node, "b")
    await change("5")
    await create_topic(node, "b")


async def bounds_users(node: Node, change: Set) -> None:
    async def add(name: str) -> SemelError | None:
        wanted = Alteration(name, (make_verifier("SCRAM-SHA-256", "secret"),))
        return (await alter_users(node, [(name, wanted)]))[name]

    await change("1")
    assert [await add(name) is None for name in "ab"] == [True, False]
    await change("2")
    assert await add("b") is None


async def bounds_acls(node: Node, change: Set) -> None:
    node.authorizer.is_on = True
    acls = [
        Acl(AclResourceType.TOPIC, name, PatternType.LITERAL, "User:a", "*", AclOperation.READ, AclPermission.ALLOW)
        for name in "ab"
    ]
    await change("1")
    with pytest.raises(SemelError, match=r"acls\.max is 1"):
        await create_acls(node, acls)
    await change("2")
    await create_acls(node, acls)


async def bounds_quotas(node: Node, change: Set) -> None:
    quotas = [QuotaAlteration(QuotaEntity(name), {"producer_byte_rate": 1.0}) for name in "ab"]
    await change("1")
    with pytest.raises(SemelError, match=r"client\.quotas\.max is 1"):
        await alter_client_quotas(node, quotas)
    await change("2")
    await alter_client_quotas(node, quotas)


async def bounds_answers(node: Node, change: Set) -> None:
    async def described() -> int:
        answer = await call(
            node.kafka_address.port,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[{"name": "wide"}],
            response_partition_limit=100,
            cursor=None,
        )
        return sum(len(topic.partitions) for topic in answer.topics)

    await create_topic(node, "wide", 4)
    await change("2")
    assert await described() == 2
    await change(None)
    assert await described() == 4


async def waits_at_the_end(node: Node, change: Set) -> None:
    await change("7")
    assert node.config.shutdown_grace_ms == 7, "the stop reads it when it begins"


async def throttles_as_leader(node: Node, change: Set) -> None:
    await _throttle(node.replication_quotas.leader, change)


async def throttles_as_follower(node: Node, change: Set) -> None:
    await _throttle(node.replication_quotas.follower, change)


async def _throttle(quota: ReplicationQuota, change: Set) -> None:
    quota.record(1_000, 0.0)
    assert not quota.is_exceeded(0.0)
    await change("100")
    assert quota.is_exceeded(0.0)
    await change(None)
    assert not quota.is_exceeded(0.0)


async def gets_no_replicas(node: Node, change: Set) -> None:
    (before,) = await create_topics(node, [NewTopic("before")])
    await change("*")
    (meanwhile,) = await create_topics(node, [NewTopic("meanwhile")])
    await change(None)
    (after,) = await create_topics(node, [NewTopic("after")])
    assert [one.error is ErrorCode.NONE for one in (before, meanwhile, after)] == [True, False, True]
    assert "only 0 nodes may get replicas (none): start more nodes" in meanwhile.message


async def bounds_copies(node: Node, change: Set) -> None:
    quotas = StoreQuotas(lambda: node.config, node.clock)
    quotas.copies(10_000)
    await asyncio.wait_for(quotas.wait_to_copy(), 10)
    await change("1")
    quotas.copies(10_000)
    assert quotas._copy_wait_s() > 5_000
    await change(None)
    await asyncio.wait_for(quotas.wait_to_copy(), 10)


async def bounds_reads(node: Node, change: Set) -> None:
    quotas = StoreQuotas(lambda: node.config, node.clock)
    await asyncio.wait_for(quotas.fetch(10_000, lambda: True), 10)
    await change("1")
    for _ in range(3):
        quotas._gets.take(1, node.config.remote_storage_get_requests_per_second, node.clock.monotonic())
    quotas._fetched.take(10_000, node.config.remote_log_manager_fetch_max_bytes_per_second, node.clock.monotonic())
    assert quotas._fetch_wait_s() > 0
    await change(None)
    await asyncio.wait_for(quotas.fetch(10_000, lambda: True), 10)


async def bounds_puts(node: Node, change: Set) -> None:
    quotas = StoreQuotas(lambda: node.config, node.clock)
    assert quotas.put_wait_s() == 0
    await change("1")
    quotas.puts(1 << 30)
    assert quotas.put_wait_s() > 50
    await change(None)
    assert quotas.put_wait_s() == 0


EFFECTS: dict[str, Callable[[Node, Set], Awaitable[None]]] = {
    "log.cleaner.backoff.ms": looks_for_logs_to_compact,
    "log.flush.interval.ms": flushes,
    "producer.id.expiration.ms": forgets_producers,
    "producer.ids.per.partition.max": bounds_producers,
    "producer.ids.max": bounds_producers,
    "max.connections": counts_connections("1", "10"),
    "kafka.max.connections.per.ip": counts_connections("1", "10"),
    "kafka.max.connections.overrides": counts_connections("127.0.0.1:1", "127.0.0.1:10,127.0.0.2:0"),
    "auto.create.topics.enable": creates_topics,
    "num.partitions": gives_partitions,
    "max.partitions": bounds_partitions,
    "users.max": bounds_users,
    "acls.max": bounds_acls,
    "client.quotas.max": bounds_quotas,
    "max.request.partition.size.limit": bounds_answers,
    "shutdown.grace.ms": waits_at_the_end,
    "leader.replication.throttled.rate": throttles_as_leader,
    "follower.replication.throttled.rate": throttles_as_follower,
    "remote.log.manager.copy.max.bytes.per.second": bounds_copies,
    "remote.log.manager.fetch.max.bytes.per.second": bounds_reads,
    "remote.storage.put.requests.per.second": bounds_puts,
    "remote.storage.get.requests.per.second": bounds_reads,
}
OF_ONE_NODE = {"cordoned.log.dirs": gets_no_replicas}

AS_STARTED = {"log_cleaner_backoff_ms": INT32_MAX, "log_flush_interval_ms": INT32_MAX}


def changes(node: Node, name: str, whose: str) -> Set:
    async def change(text: str | None) -> None:
        values, remove = ({}, (name,)) if text is None else ({name: text}, ())
        await alter_configs(node, AlterConfigsRequest(ResourceType.BROKER, whose, values, remove))

    return change


@pytest.mark.parametrize("whose", ["1", ALL_NODES])
@pytest.mark.parametrize("name", EFFECTS)
def test_a_dynamic_setting_takes_effect_at_once(tmp_path: Path, name: str, whose: str) -> None:
    takes_effect(tmp_path, name, whose, EFFECTS[name])


@pytest.mark.parametrize("name", OF_ONE_NODE)
def test_a_dynamic_setting_of_one_node_takes_effect_at_once_and_is_not_for_all(tmp_path: Path, name: str) -> None:
    takes_effect(tmp_path, name, "1", OF_ONE_NODE[name])

    async def for_all(node: Node) -> None:
        with pytest.raises(SemelError, match=f"{name} is of one node: name it"):
            await changes(node, name, ALL_NODES)("*")

    run_with_node(tmp_path / "all", for_all)


def takes_effect(tmp_path: Path, name: str, whose: str, effect: Callable[[Node, Set], Awaitable[None]]) -> None:
    async def test(node: Node) -> None:
        async with asyncio.timeout(60):
            await effect(node, changes(node, name, whose))

    run_with_node(tmp_path, test, topics={"a": 1}, **AS_STARTED)


OTHER = {
    ValueType.BOOLEAN: "true",
    ValueType.INT: "12345",
    ValueType.LONG: "12345",
    ValueType.DOUBLE: "0.25",
}


@pytest.mark.parametrize("whose", ["1", ALL_NODES])
def test_dynamic_defaults_of_topics_reach_the_logs_that_there_are(tmp_path: Path, whose: str) -> None:
    async def test(node: Node) -> None:
        partition = node.partition(A)
        assert partition is not None
        for topic_name, name in TOPIC_DEFAULTS.items():
            setting = SETTINGS[name]
            assert setting.dynamic, name
            before = partition.config
            text = setting.choices[-1] if setting.choices else OTHER[setting.type]
            await changes(node, name, whose)(text)
            assert partition.config != before, f"{topic_name} of the topic"
            await changes(node, name, whose)(None)
            assert partition.config == before

    run_with_node(tmp_path, test, topics={"a": 1})


def test_every_dynamic_setting_is_tried() -> None:
    dynamic = {setting.name for setting in SETTINGS.values() if setting.dynamic}
    assert dynamic == {*EFFECTS, *OF_ONE_NODE, *TOPIC_DEFAULTS.values()}


KAFKAS = (
    *("log.cleaner.backoff.ms", "log.flush.interval.ms", "producer.id.expiration.ms", "max.connections"),
    *("message.max.bytes", "log.retention.ms", "log.retention.bytes", "log.roll.ms", "log.segment.bytes"),
    *("log.cleanup.policy", "log.cleaner.min.cleanable.ratio", "log.cleaner.delete.retention.ms"),
    *("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms", "log.index.interval.bytes"),
    *("log.index.size.max.bytes", "log.segment.delete.delay.ms", "log.message.timestamp.type"),
    *("log.message.timestamp.before.max.ms", "log.message.timestamp.after.max.ms", "compression.type"),
    "min.insync.replicas",
)
"""What Kafka 4 calls cluster-wide dynamic, of the settings that are here, too."""


def test_what_kafka_calls_dynamic_is_dynamic() -> None:
    assert [name for name in KAFKAS if not SETTINGS[name].dynamic] == []


def test_a_dynamic_change_is_there_after_a_restart(tmp_path: Path) -> None:
    async def change(node: Node) -> None:
        for name, text in (("log.cleaner.backoff.ms", "777"), ("max.connections", "77")):
            await changes(node, name, ALL_NODES)(text)

    async def look(node: Node) -> None:
        assert isinstance(node.logs.maintenance, LogMaintenance)
        assert node.logs.config.log_cleaner_backoff_ms == node.config.log_cleaner_backoff_ms == 777
        listener = node.kafka_listener
        assert listener is not None
        assert listener.limits == node.config
        assert listener.limits.max_connections == 77

    run_with_node(tmp_path, change)
    run_with_node(tmp_path, look)
