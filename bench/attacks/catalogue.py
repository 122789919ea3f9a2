"""All attacks by name."""

from __future__ import annotations

from collections.abc import Callable

from harness import NodeProcess

from attacks.floods import (
    bombs,
    bombs_and_stop,
    garbage_over_grpc,
    long_ids,
    members_metadata,
    patterns,
    pipelined,
    producer_ids,
    promised_bytes,
)
from attacks.large_groups import large_group
from attacks.large_requests import (
    auto_created,
    fetch_offsets_call,
    fetch_partitions,
    large_call,
    list_offsets_call,
    metadata_call,
    metadata_names,
    numbered_partitions,
    one_large,
    produce_partitions,
)
from attacks.wide_topics import group_offsets, long_offsets, many_groups, wide_topic
from semel.protocol.kafka.api import ApiKey


def attacks(items: int, group_partitions: int = 1_000) -> dict[str, Callable[[NodeProcess], str]]:
    """Return all attacks by name; large requests have so many items, and large groups share out so many partitions."""
    return {
        "promised-bytes": promised_bytes,
        "bombs-plain": bombs("plain"),
        "bombs-compact": bombs("compact", cleanup_policy="compact"),
        "bombs-recode": bombs("recode", compression_type="gzip"),
        "bombs-and-stop": bombs_and_stop,
        "patterns": patterns,
        "metadata-names": lambda node: metadata_names(node, items),
        "auto-created": auto_created,
        "pipelined": pipelined,
        "members-metadata": members_metadata,
        "long-ids": long_ids,
        "large-group": lambda node: large_group(node, group_partitions),
        "unequal-group": lambda node: large_group(node, group_partitions, unequal=True),
        "fetch-partitions": lambda node: fetch_partitions(node, items),
        "produce-partitions": lambda node: produce_partitions(node, items),
        "grpc-garbage": garbage_over_grpc,
        "grpc-metadata": large_call("MetadataService/GetMetadata", lambda: metadata_call(items)),
        "grpc-list-offsets": large_call("TopicService/ListOffsets", lambda: list_offsets_call(items)),
        "grpc-fetch-offsets": large_call("GroupService/FetchOffsets", lambda: fetch_offsets_call(items)),
        "offset-fetch": one_large(
            ApiKey.OFFSET_FETCH, 5, group_id="g", topics=[{"name": "plain", "partition_indexes": list(range(items))}]
        ),
        "offset-commit": one_large(
            ApiKey.OFFSET_COMMIT,
            5,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[
                {"name": "plain", "partitions": numbered_partitions(items, committed_offset=1, committed_metadata="")}
            ],
        ),
        "list-offsets": one_large(
            ApiKey.LIST_OFFSETS,
            4,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": "plain", "partitions": numbered_partitions(items, current_leader_epoch=-1, timestamp=-1)}],
        ),
        "wide-topic": wide_topic,
        "group-offsets": group_offsets,
        "many-groups": many_groups,
        "long-offsets": long_offsets,
        "describe-groups": one_large(ApiKey.DESCRIBE_GROUPS, 4, groups=[f"g{n}" for n in range(items)]),
        "delete-groups": one_large(ApiKey.DELETE_GROUPS, 1, groups_names=[f"g{n}" for n in range(items)]),
        "describe-configs": one_large(
            ApiKey.DESCRIBE_CONFIGS,
            2,
            resources=[{"resource_type": 2, "resource_name": "plain", "configuration_keys": None}] * 3_000,
            include_synonyms=True,
        ),
        "create-topics": one_large(
            ApiKey.CREATE_TOPICS,
            4,
            topics=[
                {"name": f"c{n}", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
                for n in range(20_000)
            ],
            timeout=20_000,
            validate_only=True,
        ),
        "delete-records": one_large(
            ApiKey.DELETE_RECORDS,
            1,
            topics=[{"name": "plain", "partitions": numbered_partitions(items, offset=0)}],
            timeout=20_000,
        ),
        "leader-epochs": one_large(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            3,
            replica_id=-1,
            topics=[
                {
                    "topic": "plain",
                    "partitions": [
                        {"partition": number, "current_leader_epoch": -1, "leader_epoch": 0} for number in range(items)
                    ],
                }
            ],
        ),
        "describe-producers": one_large(
            ApiKey.DESCRIBE_PRODUCERS, 0, topics=[{"name": "plain", "partition_indexes": list(range(items))}]
        ),
        "add-partitions": one_large(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id="nobody",
            v3_and_below_producer_id=0,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[{"name": "plain", "partitions": list(range(items))}],
        ),
        "producer-ids": producer_ids(items),
        "describe-transactions": one_large(
            ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[f"t{n}" for n in range(items)]
        ),
    }
