"""All APIs of the Kafka listener but the data plane's and ApiVersions."""

from __future__ import annotations

from collections.abc import Sequence

from semel.broker.listeners.kafka.apis.acls import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
from semel.broker.listeners.kafka.apis.add_offsets_to_txn import ADD_OFFSETS_TO_TXN
from semel.broker.listeners.kafka.apis.add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from semel.broker.listeners.kafka.apis.alter_configs import ALTER_CONFIGS
from semel.broker.listeners.kafka.apis.alter_partition_reassignments import ALTER_PARTITION_REASSIGNMENTS
from semel.broker.listeners.kafka.apis.client_quotas import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from semel.broker.listeners.kafka.apis.consumer_group_describe import CONSUMER_GROUP_DESCRIBE
from semel.broker.listeners.kafka.apis.consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from semel.broker.listeners.kafka.apis.create_partitions import CREATE_PARTITIONS
from semel.broker.listeners.kafka.apis.create_topics import CREATE_TOPICS
from semel.broker.listeners.kafka.apis.delegation_tokens import (
    CREATE_DELEGATION_TOKEN,
    DESCRIBE_DELEGATION_TOKEN,
    EXPIRE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN,
)
from semel.broker.listeners.kafka.apis.delete_groups import DELETE_GROUPS
from semel.broker.listeners.kafka.apis.delete_records import DELETE_RECORDS
from semel.broker.listeners.kafka.apis.delete_topics import DELETE_TOPICS
from semel.broker.listeners.kafka.apis.describe_cluster import DESCRIBE_CLUSTER
from semel.broker.listeners.kafka.apis.describe_configs import DESCRIBE_CONFIGS
from semel.broker.listeners.kafka.apis.describe_groups import DESCRIBE_GROUPS
from semel.broker.listeners.kafka.apis.describe_log_dirs import DESCRIBE_LOG_DIRS
from semel.broker.listeners.kafka.apis.describe_producers import DESCRIBE_PRODUCERS
from semel.broker.listeners.kafka.apis.describe_quorum import DESCRIBE_QUORUM
from semel.broker.listeners.kafka.apis.describe_topic_partitions import DESCRIBE_TOPIC_PARTITIONS
from semel.broker.listeners.kafka.apis.describe_transactions import DESCRIBE_TRANSACTIONS
from semel.broker.listeners.kafka.apis.elect_leaders import ELECT_LEADERS
from semel.broker.listeners.kafka.apis.end_txn import END_TXN
from semel.broker.listeners.kafka.apis.find_coordinator import FIND_COORDINATOR
from semel.broker.listeners.kafka.apis.heartbeat import HEARTBEAT
from semel.broker.listeners.kafka.apis.incremental_alter_configs import INCREMENTAL_ALTER_CONFIGS
from semel.broker.listeners.kafka.apis.init_producer_id import INIT_PRODUCER_ID
from semel.broker.listeners.kafka.apis.join_group import JOIN_GROUP
from semel.broker.listeners.kafka.apis.leave_group import LEAVE_GROUP
from semel.broker.listeners.kafka.apis.list_config_resources import LIST_CONFIG_RESOURCES
from semel.broker.listeners.kafka.apis.list_groups import LIST_GROUPS
from semel.broker.listeners.kafka.apis.list_offsets import LIST_OFFSETS
from semel.broker.listeners.kafka.apis.list_partition_reassignments import LIST_PARTITION_REASSIGNMENTS
from semel.broker.listeners.kafka.apis.list_transactions import LIST_TRANSACTIONS
from semel.broker.listeners.kafka.apis.metadata import METADATA
from semel.broker.listeners.kafka.apis.offset_commit import OFFSET_COMMIT
from semel.broker.listeners.kafka.apis.offset_delete import OFFSET_DELETE
from semel.broker.listeners.kafka.apis.offset_fetch import OFFSET_FETCH
from semel.broker.listeners.kafka.apis.offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from semel.broker.listeners.kafka.apis.sync_group import SYNC_GROUP
from semel.broker.listeners.kafka.apis.txn_offset_commit import TXN_OFFSET_COMMIT
from semel.broker.listeners.kafka.apis.unregister_broker import UNREGISTER_BROKER
from semel.broker.listeners.kafka.apis.update_features import UPDATE_FEATURES
from semel.broker.listeners.kafka.apis.users import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS
from semel.broker.listeners.kafka.apis.write_txn_markers import WRITE_TXN_MARKERS
from semel.broker.listeners.kafka.registry import Api

ALL_APIS: Sequence[Api] = (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_USER_SCRAM_CREDENTIALS,
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    CREATE_ACLS,
    CREATE_DELEGATION_TOKEN,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_GROUPS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    ALTER_CLIENT_QUOTAS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_DELEGATION_TOKEN,
    DESCRIBE_GROUPS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_QUORUM,
    DESCRIBE_TOPIC_PARTITIONS,
    DESCRIBE_TRANSACTIONS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    ELECT_LEADERS,
    END_TXN,
    EXPIRE_DELEGATION_TOKEN,
    FIND_COORDINATOR,
    HEARTBEAT,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_CONFIG_RESOURCES,
    LIST_GROUPS,
    LIST_OFFSETS,
    LIST_PARTITION_REASSIGNMENTS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    RENEW_DELEGATION_TOKEN,
    SYNC_GROUP,
    TXN_OFFSET_COMMIT,
    UNREGISTER_BROKER,
    UPDATE_FEATURES,
    WRITE_TXN_MARKERS,
)
