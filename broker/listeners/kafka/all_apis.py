"""All APIs of the Kafka listener but the data plane's and ApiVersions."""

from __future__ import annotations

from collections.abc import Sequence

from semel.broker.listeners.kafka.apis.delete_records import DELETE_RECORDS
from semel.broker.listeners.kafka.apis.describe_cluster import DESCRIBE_CLUSTER
from semel.broker.listeners.kafka.apis.describe_topic_partitions import DESCRIBE_TOPIC_PARTITIONS
from semel.broker.listeners.kafka.apis.list_offsets import LIST_OFFSETS
from semel.broker.listeners.kafka.apis.metadata import METADATA
from semel.broker.listeners.kafka.apis.offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from semel.broker.listeners.kafka.registry import Api

ALL_APIS: Sequence[Api] = (
    DELETE_RECORDS,
    DESCRIBE_CLUSTER,
    DESCRIBE_TOPIC_PARTITIONS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
)
