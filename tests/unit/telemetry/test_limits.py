"""Every bound of what clients can make: it is in the metrics, what it refuses is counted, and the error names it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from typing import Any, Final, NamedTuple

import grpc
import pytest
from live_node import LiveNode
from metrics_scrape import Scrape
from passing_numbers import PATIENCE_S

import semel
from semel.broker.acls.rights import ALL_RIGHTS
from semel.broker.config.permissions import STANDARD_AUTHORIZER
from semel.broker.handlers.acls import create_acls
from semel.broker.handlers.client_quotas import alter_client_quotas
from semel.broker.metrics.limits import limits_of
from semel.broker.node import Node
from semel.broker.permitted.users import alter_users
from semel.protocol.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType
from semel.protocol.api.consumer_groups import ConsumerGroupHeartbeatRequest
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import GroupProtocol, JoinGroupRequest, OffsetCommitRequest
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.shared_transactions import OpenSharedRequest
from semel.protocol.batch_builder import encode_batch
from semel.protocol.compression import Compression
from semel.protocol.errors import SemelError
from semel.protocol.ids import ZERO_TOPIC_ID, TopicPartition
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest
from semel.protocol.quotas import QuotaAlteration, QuotaEntity
from semel.protocol.scram import Alteration, make_verifier

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "limits.md"
Provoke = Callable[[Node], Awaitable[Any]]
SILENT: Final = "nobody hears of it"
"""A client that finds no room for a session, or for a request, is served without it, or later."""


class Case(NamedTuple):
    """What reaches a bound: settings, and a call that is refused, or returns what the refused one hears."""

    settings: dict[str, Any]
    provoke: Provoke


async def told_by(*calls: Awaitable[Any]) -> str:
    """Return what the last of several calls is refused with; those before it succeed."""
    for call in calls[:-1]:
        answer = await call
        assert not getattr(answer, "message", ""), answer
    try:
        answer = await calls[-1]
    except SemelError as error:
        return str(error)
    return str(answer)


def more_topics(node: Node) -> Awaitable[Any]:
    def work() -> str:
        with semel.Admin(str(node.grpc_address)) as admin:
            admin.create_topic("orders", partitions=1)
            with pytest.raises(SemelError) as refused:
                admin.create_topic("more", partitions=1)
            return str(refused.value)

    return asyncio.to_thread(work)


def more_users(node: Node) -> Awaitable[Any]:
    verifier = make_verifier("SCRAM-SHA-256", "secret")
    return alter_users(node, ALL_RIGHTS, [(name, Alteration(name, (verifier,))) for name in ("a", "b")])


def more_acls(node: Node) -> Awaitable[Any]:
    acls = [
        Acl(ResourceType.TOPIC, name, PatternType.LITERAL, "User:a", "*", AclOperation.READ, AclPermission.ALLOW)
        for name in ("a", "b")
    ]
    return told_by(create_acls(node, acls))


def more_quotas(node: Node) -> Awaitable[Any]:
    wanted = [QuotaAlteration(QuotaEntity(name), {"producer_byte_rate": 1.0}) for name in ("a", "b")]
    return told_by(alter_client_quotas(node, wanted))


async def joining(node: Node, member_id: str) -> Any:
    """A member that joins, and waits for the others for no longer than it takes to be refused."""
    request = JoinGroupRequest(
        "readers", "", None, "consumer", (GroupProtocol("range", b"x"),), 6_000, 60_000, "c", "/h", member_id, False
    )
    return await node.groups.join(request)


async def many_members(node: Node) -> str:
    first = await joining(node, "m1")
    assert first.error.value == 0
    return await told_by(joining(node, "m2"))


async def one_member(node: Node) -> str:
    return await told_by(joining(node, "m1"))


async def many_consumers(node: Node) -> str:
    def beat(member: str) -> Awaitable[Any]:
        request = ConsumerGroupHeartbeatRequest(
            "readers", member, 0, rebalance_timeout_ms=1_000, topic_names=("orders",), owned={}
        )
        return node.groups.consumer_heartbeat(request)

    return await told_by(beat("m1"), beat("m2"))


def an_offset(node: Node) -> Awaitable[str]:
    commit = OffsetCommitRequest("others", -1, "", None, {TopicPartition("orders", 0): OffsetAndMetadata(1)})
    return told_by(node.groups.commit_offsets(commit))


def an_id(node: Node) -> Awaitable[str]:
    return told_by(node.transactions.init_producer_id(InitProducerIdRequest("writer", 60_000)))


def more_writers(node: Node) -> Awaitable[str]:
    opening = OpenSharedRequest("table", "try", "token", 60_000)
    return told_by(node.transactions.open_shared(opening), node.transactions.open_shared(opening))


def to_orders(batch: bytes) -> ProduceRequest:
    return ProduceRequest([ProducePartition("orders", 0, bytearray(batch))], None, 1, 30_000)


async def with_orders(node: Node) -> None:
    def work() -> None:
        with semel.Admin(str(node.grpc_address)) as admin:
            admin.create_topic("orders", partitions=1)

    await asyncio.to_thread(work)


async def more_producers(node: Node) -> str:
    await with_orders(node)
    answers = [
        await node.produce.produce(
            to_orders(
                encode_batch(
                    [(1_700_000_000_000, None, b"v", ())], producer_id=number, producer_epoch=0, base_sequence=0
                )
            )
        )
        for number in (801, 802)
    ]
    assert answers[0].partitions[0].error.value == 0
    return str(answers[1].partitions[0].error_message)


async def more_checks(node: Node) -> str:
    """Three requests in one turn: one in the thread, one that waits, one too many."""
    await with_orders(node)
    records = [(1_700_000_000_000, None, b"%d" % number * 500, ()) for number in range(1_000)]
    large = encode_batch(records, compression=Compression.GZIP)
    larger = encode_batch(records * 3, compression=Compression.GZIP)
    answers = await asyncio.gather(*(node.produce.produce(to_orders(each)) for each in (larger, large, large)))
    return str(answers[2].partitions[0].error_message)


async def more_sessions(node: Node) -> str:
    await with_orders(node)
    await fetch_in_a_new_session(node)
    await fetch_in_a_new_session(node)
    return SILENT


async def fetch_in_a_new_session(node: Node) -> None:
    wanted = FetchPartition("orders", ZERO_TOPIC_ID, 0, 0, 1_000)
    await node.fetch.fetch(FetchRequest([wanted], 0, 0, 1_000, session_id=0, session_epoch=0), 11)


async def more_connections(node: Node) -> str:
    """The second is closed, which its client can see."""
    address = node.kafka_address
    assert address is not None
    with socket.create_connection((address.host, address.port)):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        assert await reader.read(1) == b""
        writer.close()
    return "closed"


class Owner:
    """Somebody who holds room for requests."""

    unfinished_bytes = 0

    def room_made(self) -> None: ...

    def describe_room(self, now: float) -> str:
        return "a test"

    def leave_room_to_others(self) -> None: ...


async def more_memory(node: Node) -> str:
    assert node.kafka_listener is not None
    room = node.kafka_listener.room
    claims = [room.enter(Owner(), 0.0) for _ in range(2)]
    given = [room.take(claim, 4_096, 0.0, last=False) for claim in claims]
    assert given == [True, False]
    for claim in claims:
        room.leave(claim, 0.0)
    return SILENT


CASES: Final[dict[str, Case]] = {
    "max.partitions": Case({"max_partitions": 1}, more_topics),
    "users.max": Case({"users_max": 1}, more_users),
    "acls.max": Case(
        {"acls_max": 1, "authorizer_class_name": STANDARD_AUTHORIZER, "allow_everyone_if_no_acl_found": True}, more_acls
    ),
    "client.quotas.max": Case({"client_quotas_max": 1}, more_quotas),
    "group.max.size": Case({"group_max_size": 1}, many_members),
    "group.consumer.max.size": Case({"group_consumer_max_size": 1}, many_consumers),
    "group.max.bytes": Case({"group_max_bytes": 1}, one_member),
    "group.members.max.bytes": Case({"group_members_max_bytes": 1}, one_member),
    "offsets.max.bytes": Case({"offsets_max_bytes": 1}, an_offset),
    "transactional.ids.max.bytes": Case({"transactional_ids_max_bytes": 1}, an_id),
    "shared.transaction.max.writers": Case({"shared_transaction_max_writers": 1}, more_writers),
    "producer.ids.max": Case({"producer_ids_max": 1}, more_producers),
    "producer.ids.per.partition.max": Case({"producer_ids_per_partition_max": 1}, more_producers),
    "produce.check.queue.max": Case({"produce_check_threads": 1, "produce_check_queue_max": 1}, more_checks),
    "max.incremental.fetch.session.cache.slots": Case({"max_incremental_fetch_session_cache_slots": 1}, more_sessions),
    "fetch.session.max.partitions": Case({"fetch_session_max_partitions": 1}, more_sessions),
    "max.connections": Case({"max_connections": 1}, more_connections),
    "kafka.max.connections.per.ip": Case({"kafka_max_connections_per_ip": 1}, more_connections),
    "queued.max.request.bytes": Case(
        {"socket_request_max_bytes": 4_096, "queued_max_request_bytes": 4_096}, more_memory
    ),
}


UNCOUNTED = {"grpc.max.concurrent.rpcs", "grpc.max.concurrent.streams"}
"""gRPC's library does not tell how often it refuses."""


@pytest.mark.parametrize("setting", CASES)
def test_S2_what_a_bound_refuses_is_counted_and_told_by_its_setting(
    setting: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings, provoke = CASES[setting]
    with LiveNode(tmp_path, metrics_listen="127.0.0.1:0", **settings) as live:
        assert live.node.metrics_address is not None
        before = Scrape.of(live.node.metrics_address)
        assert before.value("semel_limit_refusals_total", semel_setting=setting) == 0
        configured = getattr(live.node.config, setting.replace(".", "_"))
        assert before.value("semel_limit_max", semel_setting=setting) == configured
        told = live.run(lambda: provoke(live.node))
        after = Scrape.of(live.node.metrics_address)
        assert after.value("semel_limit_refusals_total", semel_setting=setting) == 1
        used = {limit.setting: limit.used for limit in live.run(lambda: [*filter(None, limits_of(live.node))])}
        assert after.value("semel_limit_used", semel_setting=setting) == used[setting]
    if told == "closed":
        told = caplog.text
    if told != SILENT:
        assert setting in str(told)


def test_every_bound_in_the_metrics_is_tried_and_documented(tmp_path: Path) -> None:
    with LiveNode(tmp_path) as live:
        limits = live.run(lambda: [*filter(None, limits_of(live.node))])
    known = [limit.setting for limit in limits]
    assert sorted(known) == sorted([*CASES, *UNCOUNTED])
    assert {limit.setting for limit in limits if limit.refusals is None} == UNCOUNTED
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    for setting in known:
        assert any(f"`{setting}`" in row for row in rows), f"{setting} is not in {PAGE}"


def test_calls_under_way_are_told_in_all_and_of_the_connection_with_the_most(tmp_path: Path) -> None:
    settings = {"grpc_listeners": ("a=127.0.0.1:0", "b=127.0.0.1:0"), "grpc_max_concurrent_rpcs": 9}
    with ExitStack() as stack:
        live = stack.enter_context(LiveNode(tmp_path, metrics_listen="127.0.0.1:0", **settings))
        assert live.node.client_listeners is not None
        assert live.node.metrics_address is not None
        at_metrics = live.node.metrics_address

        def used(name: str) -> float:
            return Scrape.of(at_metrics).value("semel_limit_used", semel_setting=f"grpc.max.concurrent.{name}")

        def wait_for(rpcs: int, streams: int) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while (used("rpcs"), used("streams")) != (rpcs, streams):
                assert time.monotonic() < deadline, (used("rpcs"), used("streams"))
                time.sleep(0.02)

        streams = []
        for listener, count in zip(live.node.client_listeners.grpc, (2, 1), strict=True):
            channel = stack.enter_context(grpc.insecure_channel(str(listener.address)))
            method = channel.stream_stream("/semel.v1.DataService/Produce", bytes, bytes)
            streams += [method(iter(Queue().get, None)) for _ in range(count)]
        wait_for(3, 2)
        scrape = Scrape.of(at_metrics)
        assert scrape.value("semel_limit_max", semel_setting="grpc.max.concurrent.rpcs") == 8, "4 for each listener"
        assert scrape.values("semel_limit_refusals_total", semel_setting="grpc.max.concurrent.rpcs") == []
        for stream in streams:
            stream.cancel()
        wait_for(0, 0)


def test_what_there_is_of_each_kind_is_told(tmp_path: Path) -> None:
    """A bound for each group or partition tells of the largest."""

    async def make(node: Node) -> None:
        await with_orders(node)
        assert (await joining(node, "m1")).error.value == 0
        await an_offset(node)
        await an_id(node)
        await more_producers_than_none(node)
        await fetch_in_a_new_session(node)
        await node.transactions.open_shared(OpenSharedRequest("table", "try", "token", 60_000))
        await more_users(node)
        await more_quotas(node)

    with LiveNode(tmp_path) as live:
        live.run(lambda: make(live.node))
        used = {limit.setting: limit.used for limit in live.run(lambda: [*filter(None, limits_of(live.node))])}
    assert used["max.partitions"] > 1
    assert (used["users.max"], used["client.quotas.max"], used["group.max.size"]) == (2, 2, 1)
    assert 0 < used["group.max.bytes"] == used["group.members.max.bytes"]
    assert (used["shared.transaction.max.writers"], used["max.incremental.fetch.session.cache.slots"]) == (1, 1)
    assert (used["producer.ids.max"], used["producer.ids.per.partition.max"]) == (2, 2)
    assert min(used["offsets.max.bytes"], used["transactional.ids.max.bytes"]) > 0
    assert used["acls.max"] == 0


async def more_producers_than_none(node: Node) -> None:
    for number in (801, 802):
        batch = encode_batch(
            [(1_700_000_000_000, None, b"v", ())], producer_id=number, producer_epoch=0, base_sequence=0
        )
        assert (await node.produce.produce(to_orders(batch))).partitions[0].error.value == 0
