"""All APIs of the Kafka listener but the data plane's and ApiVersions."""

from __future__ import annotations

from collections.abc import Sequence

from semel.broker.listeners.kafka.apis.delete_groups import DELETE_GROUPS
from semel.broker.listeners.kafka.apis.delete_records import DELETE_RECORDS
from semel.broker.listeners.kafka.apis.describe_cluster import DESCRIBE_CLUSTER
from semel.broker.listeners.kafka.apis.describe_groups import DESCRIBE_GROUPS
from semel.broker.listeners.kafka.apis.describe_topic_partitions import DESCRIBE_TOPIC_PARTITIONS
from semel.broker.listeners.kafka.apis.find_coordinator import FIND_COORDINATOR
from semel.broker.listeners.kafka.apis.heartbeat import HEARTBEAT
from semel.broker.listeners.kafka.apis.join_group import JOIN_GROUP
from semel.broker.listeners.kafka.apis.leave_group import LEAVE_GROUP
from semel.broker.listeners.kafka.apis.list_groups import LIST_GROUPS
from semel.broker.listeners.kafka.apis.list_offsets import LIST_OFFSETS
from semel.broker.listeners.kafka.apis.metadata import METADATA
from semel.broker.listeners.kafka.apis.offset_commit import OFFSET_COMMIT
from semel.broker.listeners.kafka.apis.offset_delete import OFFSET_DELETE
from semel.broker.listeners.kafka.apis.offset_fetch import OFFSET_FETCH
from semel.broker.listeners.kafka.apis.offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from semel.broker.listeners.kafka.apis.sync_group import SYNC_GROUP
from semel.broker.listeners.kafka.registry import Api

ALL_APIS: Sequence[Api] = (
    DELETE_GROUPS,
    DELETE_RECORDS,
    DESCRIBE_CLUSTER,
    DESCRIBE_GROUPS,
    DESCRIBE_TOPIC_PARTITIONS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    SYNC_GROUP,
)
