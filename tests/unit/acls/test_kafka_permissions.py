"""What each API of the Kafka listener asks for: refused without it, in every version, and answered with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from kafka_calls import answer_to, call
from permitted_node import PERMITTED, acl, allow, only
from running_node import create_topic, run_with_node

from semel.broker.acls.requirements import KAFKA
from semel.broker.listeners.kafka.all_apis import ALL_APIS
from semel.broker.node import Node
from semel.protocol.api.groups import OffsetAndMetadata, OffsetCommitRequest
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, InitProducerIdRequest
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey

TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
DENIALS = frozenset({TOPIC, GROUP, CLUSTER, TRANSACTION})

Rights = Sequence[tuple[str, str]]


class Case(NamedTuple):
    """A request; what refuses it without rights; and the rights that are enough, one set or the other."""

    values: dict[str, Any]
    refused: ErrorCode
    enough: Sequence[Rights]
    versions: range | None = None
    all_codes: bool = True
    """Whether without rights each of its items is refused with that."""


def _offsets(**more: Any) -> dict[str, Any]:
    partition = {"partition_index": 0, "committed_offset": 3, "commit_timestamp": -1, **more}
    return {"topics": ({"name": "t", "partitions": (partition,)},), "group_id": "g"}


def _txn(**more: Any) -> dict[str, Any]:
    return {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0, **more}


def _config(kind: int, name: str) -> dict[str, Any]:
    return {"resources": ({"resource_type": kind, "resource_name": name, "configuration_keys": None, "configs": ()},)}


_GROUP_MEMBER = {"group_id": "g", "member_id": "m", "generation_id": 1, "members": ({"member_id": "m"},)}
_ONE = {"topics": ({"name": "t", "topic": "t", "partitions": (0,), "partition_indexes": (0,)},)}
_PARTITION = {"partition_index": 0, "partition": 0, "timestamp": -1, "leader_epoch": 0, "current_leader_epoch": -1}
_OF_PARTITION = {"topics": ({"name": "t", "topic": "t", "partitions": (_PARTITION,)},)}
_ALTER_CLUSTER: Sequence[Rights] = ([("ALTER", "cluster")],)
_DESCRIBE_CLUSTER: Sequence[Rights] = ([("DESCRIBE", "cluster")],)
_READ_GROUP: Sequence[Rights] = ([("READ", "group:g")],)

CASES: Sequence[tuple[ApiKey, Case]] = (
    (ApiKey.LIST_OFFSETS, Case({**_OF_PARTITION, "replica_id": -1}, TOPIC, ([("DESCRIBE", "topic:t")],))),
    (ApiKey.METADATA, Case({"topics": ({"name": "t"},)}, TOPIC, ([("DESCRIBE", "topic:t")], [("READ", "topic:t")]))),
    (
        ApiKey.METADATA,
        Case(
            {"topics": ({"name": "new"},), "allow_auto_topic_creation": True},
            TOPIC,
            (
                [("DESCRIBE", "topic:new"), ("CREATE", "topic:new")],
                [("DESCRIBE", "topic:new"), ("CREATE", "cluster")],
            ),
        ),
    ),
    (
        ApiKey.OFFSET_COMMIT,
        Case(
            {**_offsets(), "generation_id_or_member_epoch": -1, "member_id": "", "retention_time": -1},
            GROUP,
            ([("READ", "group:g"), ("READ", "topic:t")],),
            range(2, 10),
        ),
    ),
    (
        ApiKey.OFFSET_FETCH,
        Case(
            {"group_id": "g", **_ONE},
            GROUP,
            ([("DESCRIBE", "group:g"), ("DESCRIBE", "topic:t")], [("READ", "group:g"), ("READ", "topic:t")]),
            range(1, 8),
        ),
    ),
    (
        ApiKey.OFFSET_FETCH,
        Case(
            {"groups": ({"group_id": "g", "member_id": None, "member_epoch": -1, **_ONE},)},
            GROUP,
            ([("DESCRIBE", "group:g"), ("DESCRIBE", "topic:t")],),
            range(8, 10),
        ),
    ),
    (
        ApiKey.FIND_COORDINATOR,
        Case({"key": "g", "key_type": 0, "coordinator_keys": ("g",)}, GROUP, ([("DESCRIBE", "group:g")],)),
    ),
    (
        ApiKey.FIND_COORDINATOR,
        Case(
            {"key": "x", "key_type": 1, "coordinator_keys": ("x",)},
            TRANSACTION,
            ([("DESCRIBE", "transactional-id:x")], [("WRITE", "transactional-id:x")]),
            range(1, 7),
        ),
    ),
    (
        ApiKey.JOIN_GROUP,
        Case(
            {
                "group_id": "g",
                "session_timeout": 10_000,
                "rebalance_timeout": 100,
                "member_id": "",
                "protocol_type": "consumer",
                "protocols": ({"name": "range", "metadata": b""},),
            },
            GROUP,
            _READ_GROUP,
        ),
    ),
    (ApiKey.HEARTBEAT, Case(_GROUP_MEMBER, GROUP, _READ_GROUP)),
    (ApiKey.LEAVE_GROUP, Case(_GROUP_MEMBER, GROUP, _READ_GROUP)),
    (
        ApiKey.SYNC_GROUP,
        Case(
            {**_GROUP_MEMBER, "protocol_type": "consumer", "protocol_name": "range", "assignments": ()},
            GROUP,
            _READ_GROUP,
        ),
    ),
    (ApiKey.DESCRIBE_GROUPS, Case({"groups": ("g",)}, GROUP, ([("DESCRIBE", "group:g")],))),
    (
        ApiKey.CREATE_TOPICS,
        Case(
            {
                "topics": (
                    {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()},
                ),
                "timeout": 10_000,
                "validate_only": True,
            },
            TOPIC,
            (
                [("CREATE", "topic:new")],
                [("CREATE", "cluster")],
            ),
        ),
    ),
    (
        ApiKey.DELETE_TOPICS,
        Case(
            {"topic_names": ("t",), "topics": ({"name": "t", "topic_id": None},), "timeout": 10_000},
            TOPIC,
            ([("DELETE", "topic:t")], [("DELETE", "cluster")]),
        ),
    ),
    (
        ApiKey.DELETE_RECORDS,
        Case(
            {"topics": ({"name": "t", "partitions": ({"partition_index": 0, "offset": -1},)},), "timeout": 10_000},
            TOPIC,
            ([("DELETE", "topic:t")],),
        ),
    ),
    (
        ApiKey.INIT_PRODUCER_ID,
        Case(
            {"transactional_id": "x", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1},
            TRANSACTION,
            ([("WRITE", "transactional-id:x")],),
        ),
    ),
    (
        ApiKey.INIT_PRODUCER_ID,
        Case(
            {
                "transactional_id": "x",
                "transaction_timeout": 60_000,
                "producer_id": -1,
                "producer_epoch": -1,
                "enable2_pc": True,
            },
            TRANSACTION,
            ([("WRITE", "transactional-id:x"), ("TWO_PHASE_COMMIT", "transactional-id:x")],),
            range(6, 7),
        ),
    ),
    (
        ApiKey.INIT_PRODUCER_ID,
        Case(
            {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1},
            CLUSTER,
            ([("IDEMPOTENT_WRITE", "cluster")], [("WRITE", "topic:whichever")], [("WRITE", "topic:some-*")]),
        ),
    ),
    (
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        Case(
            {**_OF_PARTITION, "replica_id": -1},
            TOPIC,
            ([("DESCRIBE", "topic:t")], [("CLUSTER_ACTION", "cluster")]),
        ),
    ),
    (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        Case(
            {
                "v3_and_below_transactional_id": "x",
                "v3_and_below_producer_id": 1,
                "v3_and_below_producer_epoch": 0,
                "v3_and_below_topics": ({"name": "t", "partitions": (0,)},),
            },
            TRANSACTION,
            ([("WRITE", "transactional-id:x"), ("WRITE", "topic:t")],),
            range(4),
        ),
    ),
    (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        Case(
            {
                "transactions": (
                    _txn(verify_only=False, topics=({"name": "t", "partitions": (0,)},)),
                    _txn(transactional_id="y", verify_only=True, topics=({"name": "t", "partitions": (0,)},)),
                )
            },
            CLUSTER,
            ([("CLUSTER_ACTION", "cluster")],),
            range(4, 6),
        ),
    ),
    (
        ApiKey.ADD_OFFSETS_TO_TXN,
        Case(_txn(group_id="g"), TRANSACTION, ([("WRITE", "transactional-id:x"), ("READ", "group:g")],)),
    ),
    (ApiKey.END_TXN, Case(_txn(committed=True), TRANSACTION, ([("WRITE", "transactional-id:x")],))),
    (
        ApiKey.WRITE_TXN_MARKERS,
        Case(
            {
                "markers": (
                    {
                        "producer_id": 1,
                        "producer_epoch": 0,
                        "transaction_result": False,
                        "topics": ({"name": "t", "partition_indexes": (0,)},),
                        "coordinator_epoch": 0,
                        "transaction_version": 1,
                    },
                )
            },
            CLUSTER,
            ([("ALTER", "cluster")], [("CLUSTER_ACTION", "cluster")]),
        ),
    ),
    (
        ApiKey.TXN_OFFSET_COMMIT,
        Case(
            {**_txn(), **_offsets(), "generation_id": -1, "member_id": ""},
            TRANSACTION,
            ([("WRITE", "transactional-id:x"), ("READ", "group:g"), ("READ", "topic:t")],),
        ),
    ),
    (
        ApiKey.DESCRIBE_ACLS,
        Case(
            {
                "resource_type_filter": 1,
                "resource_name_filter": None,
                "pattern_type_filter": 1,
                "principal_filter": None,
                "host_filter": None,
                "operation": 1,
                "permission_type": 1,
            },
            CLUSTER,
            _DESCRIBE_CLUSTER,
        ),
    ),
    (
        ApiKey.CREATE_ACLS,
        Case(
            {
                "creations": (
                    {
                        "resource_type": 2,
                        "resource_name": "other",
                        "resource_pattern_type": 3,
                        "principal": "User:bob",
                        "host": "*",
                        "operation": 3,
                        "permission_type": 3,
                    },
                )
            },
            CLUSTER,
            _ALTER_CLUSTER,
        ),
    ),
    (
        ApiKey.DELETE_ACLS,
        Case(
            {
                "filters": (
                    {
                        "resource_type_filter": 2,
                        "resource_name_filter": "other",
                        "pattern_type_filter": 3,
                        "principal_filter": None,
                        "host_filter": None,
                        "operation": 1,
                        "permission_type": 1,
                    },
                )
            },
            CLUSTER,
            _ALTER_CLUSTER,
        ),
    ),
    (ApiKey.DESCRIBE_CONFIGS, Case(_config(2, "t"), TOPIC, ([("DESCRIBE_CONFIGS", "topic:t")],))),
    (ApiKey.DESCRIBE_CONFIGS, Case(_config(4, "0"), CLUSTER, ([("DESCRIBE_CONFIGS", "cluster")],))),
    (ApiKey.DESCRIBE_CONFIGS, Case(_config(8, "0"), CLUSTER, ([("DESCRIBE_CONFIGS", "cluster")],))),
    (ApiKey.DESCRIBE_CONFIGS, Case(_config(32, "g"), GROUP, ([("DESCRIBE_CONFIGS", "group:g")],))),
    (ApiKey.ALTER_CONFIGS, Case(_config(2, "t"), TOPIC, ([("ALTER_CONFIGS", "topic:t")],))),
    (ApiKey.ALTER_CONFIGS, Case(_config(4, "0"), CLUSTER, ([("ALTER_CONFIGS", "cluster")],))),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, Case(_config(2, "t"), TOPIC, ([("ALTER_CONFIGS", "topic:t")],))),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, Case(_config(4, "0"), CLUSTER, ([("ALTER_CONFIGS", "cluster")],))),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, Case(_config(32, "g"), GROUP, ([("ALTER_CONFIGS", "group:g")],))),
    (ApiKey.DESCRIBE_LOG_DIRS, Case({"topics": None}, CLUSTER, _DESCRIBE_CLUSTER, range(3, 6))),
    (
        ApiKey.CREATE_PARTITIONS,
        Case(
            {
                "topics": ({"name": "t", "count": 3, "assignments": None},),
                "timeout": 10_000,
                "validate_only": True,
            },
            TOPIC,
            ([("ALTER", "topic:t")],),
        ),
    ),
    (ApiKey.DELETE_GROUPS, Case({"groups_names": ("g",)}, GROUP, ([("DELETE", "group:g")],))),
    (
        ApiKey.ELECT_LEADERS,
        Case(
            {"election_type": 0, "topic_partitions": ({"topic": "t", "partitions": (0,)},), "timeout": 10_000},
            CLUSTER,
            _ALTER_CLUSTER,
        ),
    ),
    (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        Case(
            {
                "timeout": 10_000,
                "allow_replication_factor_change": True,
                "topics": ({"name": "t", "partitions": ({"partition_index": 0, "replicas": None},)},),
            },
            CLUSTER,
            _ALTER_CLUSTER,
        ),
    ),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, Case({"topics": None, "timeout": 10_000}, CLUSTER, _DESCRIBE_CLUSTER)),
    (
        ApiKey.OFFSET_DELETE,
        Case(
            {"group_id": "g", "topics": ({"name": "t", "partitions": ({"partition_index": 0},)},)},
            GROUP,
            ([("DELETE", "group:g"), ("READ", "topic:t")],),
        ),
    ),
    (
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        Case({"components": (), "strict": False}, CLUSTER, ([("DESCRIBE_CONFIGS", "cluster")],)),
    ),
    (
        ApiKey.DESCRIBE_QUORUM,
        Case(
            {"topics": ({"topic_name": "__cluster_metadata", "partitions": ({"partition_index": 0},)},)},
            CLUSTER,
            _DESCRIBE_CLUSTER,
        ),
    ),
    (
        ApiKey.UPDATE_FEATURES,
        Case({"timeout": 10_000, "feature_updates": (), "validate_only": True}, CLUSTER, _ALTER_CLUSTER),
    ),
    (
        ApiKey.DESCRIBE_PRODUCERS,
        Case({"topics": ({"name": "t", "partition_indexes": (0,)},)}, TOPIC, ([("READ", "topic:t")],)),
    ),
    (ApiKey.UNREGISTER_BROKER, Case({"broker_id": 77}, CLUSTER, _ALTER_CLUSTER)),
    (
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        Case(
            {
                "group_id": "g",
                "member_id": "m",
                "member_epoch": 0,
                "rebalance_timeout": 1_000,
                "subscribed_topic_names": ("t",),
                "topic_partitions": (),
            },
            GROUP,
            ([("READ", "group:g"), ("DESCRIBE", "topic:t")],),
        ),
    ),
    (
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        Case({"group_ids": ("g",), "include_authorized_operations": False}, GROUP, ([("DESCRIBE", "group:g")],)),
    ),
    (ApiKey.LIST_CONFIG_RESOURCES, Case({"resource_types": ()}, CLUSTER, ([("DESCRIBE_CONFIGS", "cluster")],))),
    (
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        Case(
            {"topics": ({"name": "t"},), "response_partition_limit": 10, "cursor": None},
            TOPIC,
            ([("DESCRIBE", "topic:t")],),
        ),
    ),
)
ELSEWHERE = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_GROUPS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.DESCRIBE_CLUSTER,
    }
)
"""These have tests of their own below: they are read by other code, or filter."""


def codes(response: Any) -> Iterator[int]:
    """All error codes of a response, at every depth."""
    if dataclasses.is_dataclass(response):
        for field in dataclasses.fields(response):
            value = getattr(response, field.name)
            if field.name in ("error_code", "partition_error_code"):
                yield int(value)
            else:
                yield from codes(value)
    elif isinstance(response, tuple):
        for item in response:
            yield from codes(item)


def versions_of(key: ApiKey, case: Case) -> Sequence[int]:
    (api,) = [each for each in ALL_APIS if each.key is key]
    return case.versions or range(api.min_version, api.max_version + 1)


@pytest.mark.parametrize(("key", "case"), CASES, ids=lambda value: value.name if isinstance(value, ApiKey) else "")
def test_S7_an_api_is_refused_without_its_rights_and_answered_with_them(
    tmp_path: Path, key: ApiKey, case: Case
) -> None:
    async def test(node: Node) -> None:
        async def ask(version: int) -> set[int]:
            return set(codes(await call(node.kafka_address.port, key, version, **case.values)))

        if key is ApiKey.OFFSET_DELETE:
            offsets = {TopicPartition("t", 0): OffsetAndMetadata(3)}
            await node.groups.commit_offsets(OffsetCommitRequest("g", -1, "", None, offsets))
        unrelated = [("ALL", "topic:other"), ("ALL", "group:other"), ("ALL", "transactional-id:other")]
        unrelated = [] if case.refused is CLUSTER else unrelated
        versions = versions_of(key, case)
        await only(node, unrelated)
        for version in versions:
            assert (await ask(version)) - {0} == {case.refused}, version
        for enough in case.enough:
            for missing in enough if len(enough) > 1 else ():
                await only(node, [*unrelated, *(right for right in enough if right != missing)])
                for version in versions:
                    assert (await ask(version)) & DENIALS, (version, missing)
            await only(node, [*unrelated, *enough])
            for version in versions:
                assert not (await ask(version)) & DENIALS, (version, enough)
            if key in (ApiKey.DELETE_TOPICS, ApiKey.METADATA):
                await make_anew(node)

    run_with_node(tmp_path, test, topics={"t": 1}, transaction_two_phase_commit_enable=True, **PERMITTED)


async def make_anew(node: Node) -> None:
    """Let there be the topic t, and no topic that was made on the way."""
    from semel.broker.handlers.topics.changes import delete_topics

    await delete_topics(node, [name for name in node.metadata.image.topics if name == "new"])
    if node.metadata.topic("t") is None:
        await create_topic(node, "t")


def test_each_api_that_asks_for_rights_has_a_case() -> None:
    asking = {key for key, asks in KAFKA.items() if asks}
    assert asking == {key for key, _ in CASES} | ELSEWHERE


def test_what_a_listener_serves_is_in_the_table() -> None:
    from semel.broker.listeners.kafka.authentication import AUTHENTICATION_APIS

    served = {api.key for api in (*ALL_APIS, *AUTHENTICATION_APIS)} | {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.API_VERSIONS,
    }
    assert served == set(KAFKA)


async def ask(node: Node, key: ApiKey, version: int, **values: Any) -> Any:
    return await call(node.kafka_address.port, key, version, **values)


def test_S7_lists_of_groups_have_those_that_the_caller_may_describe(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        for group in ("a", "b"):
            await node.groups.commit_offsets(
                OffsetCommitRequest(group, -1, "", None, {TopicPartition("t", 0): OffsetAndMetadata(3)})
            )
        for version in range(6):
            for rights, seen in (
                ([], []),
                ([("DESCRIBE", "group:b")], ["b"]),
                ([("READ", "group:*")], ["a", "b"]),
                ([("DESCRIBE", "cluster")], ["a", "b"]),
            ):
                await only(node, rights)
                found = await ask(node, ApiKey.LIST_GROUPS, version, states_filter=(), types_filter=())
                assert [group.group_id for group in found.groups] == seen, (version, rights)

    run_with_node(tmp_path, test, topics={"t": 1}, **PERMITTED)


def test_S7_of_transactions_only_ids_and_topics_are_told_that_the_caller_may_describe(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        for name in ("x", "y"):
            producer = (await node.transactions.init_producer_id(InitProducerIdRequest(name, 60_000))).producer
            await node.transactions.add_partitions(
                AddPartitionsToTxnRequest(name, producer, (TopicPartition("t", 0), TopicPartition("u", 0)))
            )
        for version in range(3):
            for rights, seen in (([], []), ([("DESCRIBE", "transactional-id:y")], ["y"])):
                await only(node, rights)
                found = await ask(node, ApiKey.LIST_TRANSACTIONS, version, duration_filter=-1)
                assert [each.transactional_id for each in found.transaction_states] == seen
        await only(node, [("DESCRIBE", "transactional-id:y"), ("DESCRIBE", "topic:u")])
        found = await ask(node, ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=("y",))
        assert [topic.topic for topic in found.transaction_states[0].topics] == ["u"]
        body = await answer_to(node.kafka_address.port, ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=("x",))
        throttled_ms_and_count = 5
        code = int.from_bytes(body[throttled_ms_and_count : throttled_ms_and_count + 2], "big")
        assert code == TRANSACTION

    run_with_node(tmp_path, test, topics={"t": 1, "u": 1}, **PERMITTED)


def test_what_may_be_done_is_told_as_the_caller_may(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.groups.commit_offsets(
            OffsetCommitRequest("g", -1, "", None, {TopicPartition("t", 0): OffsetAndMetadata(3)})
        )
        await only(node, [("READ", "topic:t"), ("DESCRIBE", "group:g")])
        of_topic = await ask(
            node, ApiKey.METADATA, 8, topics=({"name": "t"},), include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )  # fmt: skip
        read_and_describe = 1 << 3 | 1 << 8
        assert of_topic.topics[0].topic_authorized_operations == read_and_describe
        assert of_topic.cluster_authorized_operations == 0
        pages = await ask(
            node, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=({"name": "t"},), response_partition_limit=10, cursor=None
        )
        assert pages.topics[0].topic_authorized_operations == read_and_describe
        (group,) = (
            await ask(node, ApiKey.DESCRIBE_GROUPS, 3, groups=("g",), include_authorized_operations=True)
        ).groups
        assert group.authorized_operations == 1 << 8
        for version in range(3):
            cluster = await ask(node, ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True)
            assert (cluster.cluster_authorized_operations, len(cluster.brokers)) == (0, 1)
        await only(node, [("DESCRIBE", "cluster")])
        cluster = await ask(node, ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=True)
        assert cluster.cluster_authorized_operations == 1 << 8

    run_with_node(tmp_path, test, topics={"t": 1}, **PERMITTED)


def test_S5_nobody_hears_of_topics_that_he_may_not_describe(tmp_path: Path) -> None:
    """Whether there are topics, their ids and their partitions: what is and what is not are answered the same."""

    async def test(node: Node) -> None:
        await only(node, [("DESCRIBE", "topic:seen")])
        for version in range(14):
            told = await ask(node, ApiKey.METADATA, version, topics=() if version == 0 else None)
            assert [topic.name for topic in told.topics] == ["seen"], version
            told = await ask(
                node, ApiKey.METADATA, version, topics=({"name": "hidden"}, {"name": "missing"}),
                allow_auto_topic_creation=False,
            )  # fmt: skip
            hidden, missing = sorted(told.topics, key=lambda topic: topic.name)
            assert dataclasses.replace(hidden, name="") == dataclasses.replace(missing, name="")
            assert (hidden.error_code, hidden.partitions) == (TOPIC, ())
        topic_id = node.metadata.image.topics["hidden"].topic_id.bytes
        (by_id,) = (await ask(node, ApiKey.METADATA, 12, topics=({"name": None, "topic_id": topic_id},))).topics
        assert (by_id.error_code, by_id.name, by_id.topic_id) == (TOPIC, None, UUID(bytes=topic_id))
        pages = await ask(
            node, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=(), response_partition_limit=10, cursor=None
        )
        assert [topic.name for topic in pages.topics] == ["seen"]
        for key, version, values in (
            (ApiKey.DELETE_TOPICS, 6, lambda name: {"topics": ({"name": name, "topic_id": None},)}),
            (ApiKey.DESCRIBE_CONFIGS, 4, lambda name: _config(2, name)),
            (
                ApiKey.LIST_OFFSETS,
                5,
                lambda name: {"topics": ({"name": name, "partitions": (_PARTITION,)},), "replica_id": -1},
            ),
            (ApiKey.CREATE_PARTITIONS, 3, lambda name: {"topics": ({"name": name, "count": 9, "assignments": None},)}),
        ):
            hidden, missing = [
                set(codes(await ask(node, key, version, timeout=10_000, **values(name))))
                for name in ("hidden", "missing")
            ]
            assert hidden == missing == {TOPIC}, key
        (deleted,) = (
            await ask(node, ApiKey.DELETE_TOPICS, 6, topics=({"name": None, "topic_id": topic_id},), timeout=10_000)
        ).responses
        assert (deleted.error_code, deleted.name) == (TOPIC, None)

    run_with_node(tmp_path, test, topics={"seen": 1, "hidden": 1}, auto_create_topics_enable=True, **PERMITTED)


def test_S7_a_missing_topic_is_not_made_for_who_may_only_describe_it(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await only(node, [("DESCRIBE", "topic:*")])
        (told,) = (
            await ask(node, ApiKey.METADATA, 4, topics=({"name": "new"},), allow_auto_topic_creation=True)
        ).topics
        assert told.error_code == TOPIC
        assert node.metadata.topic("new") is None
        (told,) = (
            await ask(node, ApiKey.METADATA, 4, topics=({"name": "new"},), allow_auto_topic_creation=False)
        ).topics
        assert told.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run_with_node(tmp_path, test, auto_create_topics_enable=True, **PERMITTED)


def test_the_settings_of_a_new_topic_are_told_to_who_may_describe_them(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        new = {"name": "new", "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()}
        for rights, told in (
            ([("CREATE", "topic:new")], (TOPIC, -1, 0)),
            ([("CREATE", "topic:new"), ("DESCRIBE_CONFIGS", "topic:new")], (0, 2, 1)),
        ):
            await only(node, rights)
            (topic,) = (
                await ask(node, ApiKey.CREATE_TOPICS, 5, topics=(new,), timeout=10_000, validate_only=True)
            ).topics
            assert topic.error_code == 0
            assert (topic.topic_config_error_code, topic.num_partitions, min(1, len(topic.configs or ()))) == told

    run_with_node(tmp_path, test, **PERMITTED)


def test_offsets_of_topics_that_may_not_be_described_are_left_out_or_refused(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        offsets = {TopicPartition(name, 0): OffsetAndMetadata(3) for name in ("t", "u")}
        await node.groups.commit_offsets(OffsetCommitRequest("g", -1, "", None, offsets))
        await only(node, [("DESCRIBE", "group:g"), ("DESCRIBE", "topic:t")])
        for version in range(2, 8):
            everything = await ask(node, ApiKey.OFFSET_FETCH, version, group_id="g", topics=None)
            assert [topic.name for topic in everything.topics] == ["t"]
        both = tuple({"name": name, "partition_indexes": (0,)} for name in ("t", "u"))
        named = await ask(node, ApiKey.OFFSET_FETCH, 5, group_id="g", topics=both)
        told = {topic.name: topic.partitions[0] for topic in named.topics}
        assert (told["t"].committed_offset, told["t"].error_code) == (3, 0)
        assert (told["u"].committed_offset, told["u"].error_code) == (-1, TOPIC)

    run_with_node(tmp_path, test, topics={"t": 1, "u": 1}, **PERMITTED)


def test_other_partitions_are_not_added_to_a_transaction_where_one_may_not_be(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        producer = (await node.transactions.init_producer_id(InitProducerIdRequest("x", 60_000))).producer
        await only(node, [("WRITE", "transactional-id:x"), ("WRITE", "topic:t")])
        answer = await ask(
            node,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=tuple({"name": name, "partitions": (0,)} for name in ("t", "u")),
        )
        told = {
            topic.name: topic.results_by_partition[0].partition_error_code
            for topic in answer.results_by_topic_v3_and_below
        }
        assert told == {"t": ErrorCode.OPERATION_NOT_ATTEMPTED, "u": TOPIC}

    run_with_node(tmp_path, test, topics={"t": 1, "u": 1}, **PERMITTED)


def test_S7_a_denial_takes_back_what_is_allowed(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await only(node, [("ALL", "topic:*")])
        await allow(node, acl("READ", "topic:t-*", denies=True))
        asked = {"topics": tuple({"name": name, "partition_indexes": (0,)} for name in ("t", "t-1"))}
        told = {
            topic.name: topic.partitions[0].error_code
            for topic in (await ask(node, ApiKey.DESCRIBE_PRODUCERS, 0, **asked)).topics
        }
        assert told == {"t": 0, "t-1": TOPIC}

    run_with_node(tmp_path, test, topics={"t": 1, "t-1": 1}, **PERMITTED)


def test_S7_a_writer_of_a_shared_transaction_has_the_rights_of_its_key(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await only(node, [("DESCRIBE", "transactional-id:job")])
        for name, code in (("__semel.shared/job/17", 0), ("__semel.shared/other/17", TRANSACTION)):
            found = await ask(node, ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=(name,))
            assert found.coordinators[0].error_code == code

    run_with_node(tmp_path, test, **PERMITTED)


def test_a_denied_request_is_told_to_the_operator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(node: Node) -> None:
        await ask(node, ApiKey.LIST_GROUPS, 1)
        assert "denied" not in caplog.text
        await ask(node, ApiKey.DESCRIBE_GROUPS, 1, groups=("g",))

    with caplog.at_level("WARNING", "semel.audit"):
        run_with_node(tmp_path, test, **PERMITTED)
    denied = "denied: principal='User:ANONYMOUS' host=127.0.0.1 operation=DESCRIBE resource=GROUP:'g'"
    assert f"{denied} request=DESCRIBE_GROUPS" in caplog.text


def test_the_page_of_permissions_is_made_from_the_table() -> None:
    """Write it again with: .venv/bin/python -P -m semel.broker.acls.page > docs/reference/permissions.md"""
    from semel.broker.acls.page import permissions_page

    page = Path(__file__).parents[3] / "docs" / "reference" / "permissions.md"
    assert page.read_text() == permissions_page()
