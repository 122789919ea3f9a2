"""Requests of the Kafka APIs that ask for rights, what refuses them, and which rights are enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from semel.protocol.errors import ErrorCode
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


def config_of(kind: int, name: str) -> dict[str, Any]:
    return {"resources": ({"resource_type": kind, "resource_name": name, "configuration_keys": None, "configs": ()},)}


_GROUP_MEMBER = {"group_id": "g", "member_id": "m", "generation_id": 1, "members": ({"member_id": "m"},)}
_ONE = {"topics": ({"name": "t", "topic": "t", "partitions": (0,), "partition_indexes": (0,)},)}
ONE_PARTITION = {"partition_index": 0, "partition": 0, "timestamp": -1, "leader_epoch": 0, "current_leader_epoch": -1}
_OF_PARTITION = {"topics": ({"name": "t", "topic": "t", "partitions": (ONE_PARTITION,)},)}
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
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, Case({"users": None}, CLUSTER, _DESCRIBE_CLUSTER)),
    (
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        Case(
            {
                "deletions": (),
                "upsertions": (
                    {
                        "name": "bob",
                        "mechanism": 1,
                        "iterations": 4096,
                        "salt": b"salt",
                        "salted_password": b"s" * 32,
                    },
                ),
            },
            CLUSTER,
            _ALTER_CLUSTER,
        ),
    ),
    (ApiKey.DESCRIBE_CONFIGS, Case(config_of(2, "t"), TOPIC, ([("DESCRIBE_CONFIGS", "topic:t")],))),
    (ApiKey.DESCRIBE_CONFIGS, Case(config_of(4, "1"), CLUSTER, ([("DESCRIBE_CONFIGS", "cluster")],))),
    (ApiKey.DESCRIBE_CONFIGS, Case(config_of(8, "1"), CLUSTER, ([("DESCRIBE_CONFIGS", "cluster")],))),
    (ApiKey.DESCRIBE_CONFIGS, Case(config_of(32, "g"), GROUP, ([("DESCRIBE_CONFIGS", "group:g")],))),
    (ApiKey.ALTER_CONFIGS, Case(config_of(2, "t"), TOPIC, ([("ALTER_CONFIGS", "topic:t")],))),
    (ApiKey.ALTER_CONFIGS, Case(config_of(4, "1"), CLUSTER, ([("ALTER_CONFIGS", "cluster")],))),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, Case(config_of(2, "t"), TOPIC, ([("ALTER_CONFIGS", "topic:t")],))),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, Case(config_of(4, "1"), CLUSTER, ([("ALTER_CONFIGS", "cluster")],))),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, Case(config_of(32, "g"), GROUP, ([("ALTER_CONFIGS", "group:g")],))),
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
        ApiKey.ALTER_CLIENT_QUOTAS,
        Case(
            {"entries": ({"entity": (), "ops": ()},), "validate_only": True}, CLUSTER, ([("ALTER_CONFIGS", "cluster")],)
        ),
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
        Case({"group_ids": ("h",), "include_authorized_operations": False}, GROUP, ([("DESCRIBE", "group:h")],)),
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
