"""What each request asks for: the one table of permissions, of the Kafka APIs and of the calls of semel.v1.

Who answers a request asks by this table (`Rights`): a right that is not in it can't be asked for. Where a row of a
request is `instead` of those before it with the same resource, one of them is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from semel.protocol.acls import AclOperation, ResourceType
from semel.protocol.kafka.api import ApiKey

_OP: TypeAlias = AclOperation
_TYPE: TypeAlias = ResourceType


class Asked(NamedTuple):
    """One right that a request asks for.

    when:    in which case, where not in all
    refused: what becomes of the request without it
    """

    operation: AclOperation
    resource_type: ResourceType
    when: str = ""
    refused: str = "refused"


Asks: TypeAlias = Sequence[Asked]

_HIDDEN: Final = "left out of the answer"
_EACH: Final = "refused for this one"

_READ_GROUP: Final = (Asked(_OP.READ, _TYPE.GROUP),)
_JOIN_GROUP: Final = (*_READ_GROUP, Asked(_OP.DESCRIBE, _TYPE.TOPIC, "subscribed to", "not subscribed to"))
_DESCRIBE_GROUP: Final = (Asked(_OP.DESCRIBE, _TYPE.GROUP),)
_DELETE_GROUP: Final = (Asked(_OP.DELETE, _TYPE.GROUP, refused=_EACH),)
_DESCRIBE_CLUSTER: Final = (Asked(_OP.DESCRIBE, _TYPE.CLUSTER),)
_ALTER_CLUSTER: Final = (Asked(_OP.ALTER, _TYPE.CLUSTER),)
_WRITE_TXN: Final = (Asked(_OP.WRITE, _TYPE.TRANSACTIONAL_ID),)
_DESCRIBE_TXN: Final = (Asked(_OP.DESCRIBE, _TYPE.TRANSACTIONAL_ID),)

_PRODUCE: Final = (
    Asked(_OP.WRITE, _TYPE.TOPIC, refused=_EACH),
    Asked(_OP.WRITE, _TYPE.TRANSACTIONAL_ID, "of a transaction"),
)
_FETCH: Final = (Asked(_OP.READ, _TYPE.TOPIC, refused=_EACH),)
_METADATA: Final = (
    Asked(_OP.DESCRIBE, _TYPE.TOPIC, "named", _EACH),
    Asked(_OP.DESCRIBE, _TYPE.TOPIC, "asked for all", _HIDDEN),
    Asked(_OP.CREATE, _TYPE.TOPIC, "missing topics that are to be made", _EACH),
    Asked(_OP.CREATE, _TYPE.CLUSTER, "instead: missing topics that are to be made", _EACH),
)
_CREATE_TOPICS: Final = (
    Asked(_OP.CREATE, _TYPE.TOPIC, refused=_EACH),
    Asked(_OP.CREATE, _TYPE.CLUSTER, "instead", _EACH),
)
_DELETE_TOPICS: Final = (
    Asked(_OP.DELETE, _TYPE.TOPIC, refused=_EACH),
    Asked(_OP.DELETE, _TYPE.CLUSTER, "instead", _EACH),
    Asked(_OP.DESCRIBE, _TYPE.TOPIC, "to hear of its name, or that it is missing", "neither is told"),
)
_CREATE_PARTITIONS: Final = (Asked(_OP.ALTER, _TYPE.TOPIC, refused=_EACH),)
_DESCRIBE_CONFIGS: Final = (
    Asked(_OP.DESCRIBE_CONFIGS, _TYPE.TOPIC, "of topics", _EACH),
    Asked(_OP.DESCRIBE_CONFIGS, _TYPE.CLUSTER, "of nodes", _EACH),
    Asked(_OP.DESCRIBE_CONFIGS, _TYPE.GROUP, "of groups", _EACH),
)
_ALTER_CONFIGS: Final = (
    Asked(_OP.ALTER_CONFIGS, _TYPE.TOPIC, "of topics", _EACH),
    Asked(_OP.ALTER_CONFIGS, _TYPE.CLUSTER, "of nodes", _EACH),
    Asked(_OP.ALTER_CONFIGS, _TYPE.GROUP, "of groups", _EACH),
)
_DESCRIBE_QUOTAS: Final = (Asked(_OP.DESCRIBE_CONFIGS, _TYPE.CLUSTER),)
_ALTER_QUOTAS: Final = (Asked(_OP.ALTER_CONFIGS, _TYPE.CLUSTER),)
_LIST_OFFSETS: Final = (Asked(_OP.DESCRIBE, _TYPE.TOPIC, refused=_EACH),)
_DELETE_RECORDS: Final = (Asked(_OP.DELETE, _TYPE.TOPIC, refused=_EACH),)
_COMMIT_OFFSETS: Final = (*_READ_GROUP, Asked(_OP.READ, _TYPE.TOPIC, refused=_EACH))
_FETCH_OFFSETS: Final = (
    *_DESCRIBE_GROUP,
    Asked(_OP.DESCRIBE, _TYPE.TOPIC, "named", _EACH),
    Asked(_OP.DESCRIBE, _TYPE.TOPIC, "asked for all", _HIDDEN),
)
_DELETE_OFFSETS: Final = (
    Asked(_OP.DELETE, _TYPE.GROUP),
    Asked(_OP.READ, _TYPE.TOPIC, refused=_EACH),
)
_LIST_GROUPS: Final = (
    Asked(_OP.DESCRIBE, _TYPE.CLUSTER),
    Asked(_OP.DESCRIBE, _TYPE.GROUP, "instead", _HIDDEN),
)
_INIT_PRODUCER_ID: Final = (
    Asked(_OP.WRITE, _TYPE.TRANSACTIONAL_ID, "with a transactional id"),
    Asked(_OP.TWO_PHASE_COMMIT, _TYPE.TRANSACTIONAL_ID, "for two-phase commit"),
    Asked(_OP.IDEMPOTENT_WRITE, _TYPE.CLUSTER, "without a transactional id"),
    Asked(_OP.WRITE, _TYPE.TOPIC, "instead, of any topic: without a transactional id"),
)
_ADD_PARTITIONS: Final = (*_WRITE_TXN, Asked(_OP.WRITE, _TYPE.TOPIC, refused="none is added"))
_TXN_COMMIT_OFFSETS: Final = (*_WRITE_TXN, *_READ_GROUP, Asked(_OP.READ, _TYPE.TOPIC, refused=_EACH))
_LIST_TRANSACTIONS: Final = (Asked(_OP.DESCRIBE, _TYPE.TRANSACTIONAL_ID, refused=_HIDDEN),)
_DESCRIBE_TRANSACTIONS: Final = (*_DESCRIBE_TXN, Asked(_OP.DESCRIBE, _TYPE.TOPIC, refused=_HIDDEN))
_CREATE_TOKEN: Final = (Asked(_OP.CREATE_TOKENS, _TYPE.USER, "for another owner"),)
_DESCRIBE_TOKENS: Final = (
    Asked(_OP.DESCRIBE, _TYPE.DELEGATION_TOKEN, "of which the caller is no owner, requester or renewer", _HIDDEN),
    Asked(_OP.DESCRIBE_TOKENS, _TYPE.USER, "instead, of the owner", _HIDDEN),
)

KAFKA: Final[Mapping[ApiKey, Asks]] = {
    ApiKey.API_VERSIONS: (),
    ApiKey.SASL_HANDSHAKE: (),
    ApiKey.SASL_AUTHENTICATE: (),
    ApiKey.PRODUCE: _PRODUCE,
    ApiKey.FETCH: _FETCH,
    ApiKey.LIST_OFFSETS: _LIST_OFFSETS,
    ApiKey.METADATA: (*_METADATA, Asked(_OP.DESCRIBE, _TYPE.CLUSTER, "what may be done with the cluster", "none")),
    ApiKey.OFFSET_COMMIT: _COMMIT_OFFSETS,
    ApiKey.OFFSET_FETCH: _FETCH_OFFSETS,
    ApiKey.FIND_COORDINATOR: (
        Asked(_OP.DESCRIBE, _TYPE.GROUP, "of groups", _EACH),
        Asked(_OP.DESCRIBE, _TYPE.TRANSACTIONAL_ID, "of transactional ids", _EACH),
    ),
    ApiKey.JOIN_GROUP: _JOIN_GROUP,
    ApiKey.HEARTBEAT: _READ_GROUP,
    ApiKey.LEAVE_GROUP: _READ_GROUP,
    ApiKey.SYNC_GROUP: _READ_GROUP,
    ApiKey.DESCRIBE_GROUPS: (Asked(_OP.DESCRIBE, _TYPE.GROUP, refused=_EACH),),
    ApiKey.LIST_GROUPS: _LIST_GROUPS,
    ApiKey.CREATE_TOPICS: (
        *_CREATE_TOPICS,
        Asked(_OP.DESCRIBE_CONFIGS, _TYPE.TOPIC, "to hear the settings", "they are left out"),
    ),
    ApiKey.DELETE_TOPICS: _DELETE_TOPICS,
    ApiKey.DELETE_RECORDS: _DELETE_RECORDS,
    ApiKey.INIT_PRODUCER_ID: _INIT_PRODUCER_ID,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        Asked(_OP.DESCRIBE, _TYPE.TOPIC, refused=_EACH),
        Asked(_OP.CLUSTER_ACTION, _TYPE.CLUSTER, "instead", _EACH),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        *_ADD_PARTITIONS,
        Asked(_OP.CLUSTER_ACTION, _TYPE.CLUSTER, "instead, from version 4 on: only nodes send it"),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (*_WRITE_TXN, *_READ_GROUP),
    ApiKey.END_TXN: _WRITE_TXN,
    ApiKey.WRITE_TXN_MARKERS: (
        Asked(_OP.ALTER, _TYPE.CLUSTER),
        Asked(_OP.CLUSTER_ACTION, _TYPE.CLUSTER, "instead"),
    ),
    ApiKey.TXN_OFFSET_COMMIT: _TXN_COMMIT_OFFSETS,
    ApiKey.DESCRIBE_ACLS: _DESCRIBE_CLUSTER,
    ApiKey.CREATE_ACLS: _ALTER_CLUSTER,
    ApiKey.DELETE_ACLS: _ALTER_CLUSTER,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _DESCRIBE_CLUSTER,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _ALTER_CLUSTER,
    ApiKey.CREATE_DELEGATION_TOKEN: _CREATE_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN: (),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _DESCRIBE_TOKENS,
    ApiKey.DESCRIBE_CONFIGS: _DESCRIBE_CONFIGS,
    ApiKey.ALTER_CONFIGS: _ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _ALTER_CONFIGS,
    ApiKey.DESCRIBE_LOG_DIRS: _DESCRIBE_CLUSTER,
    ApiKey.CREATE_PARTITIONS: _CREATE_PARTITIONS,
    ApiKey.DELETE_GROUPS: _DELETE_GROUP,
    ApiKey.ELECT_LEADERS: _ALTER_CLUSTER,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _ALTER_CLUSTER,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _DESCRIBE_CLUSTER,
    ApiKey.OFFSET_DELETE: _DELETE_OFFSETS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _DESCRIBE_QUOTAS,
    ApiKey.ALTER_CLIENT_QUOTAS: _ALTER_QUOTAS,
    ApiKey.DESCRIBE_QUORUM: _DESCRIBE_CLUSTER,
    ApiKey.UPDATE_FEATURES: _ALTER_CLUSTER,
    ApiKey.DESCRIBE_CLUSTER: (Asked(_OP.DESCRIBE, _TYPE.CLUSTER, "what may be done with the cluster", "none"),),
    ApiKey.DESCRIBE_PRODUCERS: (Asked(_OP.READ, _TYPE.TOPIC, refused=_EACH),),
    ApiKey.UNREGISTER_BROKER: _ALTER_CLUSTER,
    ApiKey.DESCRIBE_TRANSACTIONS: _DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS: _LIST_TRANSACTIONS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        *_READ_GROUP,
        Asked(_OP.DESCRIBE, _TYPE.TOPIC, "subscribed to by name"),
        Asked(_OP.DESCRIBE, _TYPE.TOPIC, "subscribed to by a regular expression", "not matched"),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (
        Asked(_OP.DESCRIBE, _TYPE.GROUP, refused=_EACH),
        Asked(_OP.DESCRIBE, _TYPE.TOPIC, "assigned to members of the group", _EACH),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: (Asked(_OP.DESCRIBE_CONFIGS, _TYPE.CLUSTER),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _METADATA[:2],
}
"""What the APIs of the Kafka listener ask for."""

GRPC: Final[Mapping[str, Asks]] = {
    "MetadataService/GetMetadata": _METADATA,
    "TopicService/CreateTopics": _CREATE_TOPICS,
    "TopicService/DeleteTopics": _DELETE_TOPICS,
    "TopicService/CreatePartitions": _CREATE_PARTITIONS,
    "TopicService/DescribeConfigs": _DESCRIBE_CONFIGS[:2],
    "TopicService/AlterConfigs": _ALTER_CONFIGS[:2],
    "TopicService/ListOffsets": _LIST_OFFSETS,
    "TopicService/DeleteRecords": _DELETE_RECORDS,
    "DataService/Produce": _PRODUCE,
    "DataService/Fetch": _FETCH,
    "GroupService/JoinGroup": _JOIN_GROUP,
    "GroupService/SyncGroup": (
        *_READ_GROUP,
        Asked(_OP.DESCRIBE, _TYPE.TOPIC, "where the node assigns topics", "not assigned"),
    ),
    "GroupService/Heartbeat": _READ_GROUP,
    "GroupService/LeaveGroup": _READ_GROUP,
    "GroupService/CommitOffsets": _COMMIT_OFFSETS,
    "GroupService/FetchOffsets": _FETCH_OFFSETS,
    "GroupService/DeleteOffsets": _DELETE_OFFSETS,
    "GroupService/ListGroups": _LIST_GROUPS,
    "GroupService/DescribeGroup": _DESCRIBE_GROUP,
    "GroupService/DeleteGroup": (Asked(_OP.DELETE, _TYPE.GROUP),),
    "TransactionService/InitProducerId": _INIT_PRODUCER_ID,
    "TransactionService/AddPartitions": _ADD_PARTITIONS,
    "TransactionService/CommitOffsets": _TXN_COMMIT_OFFSETS,
    "TransactionService/EndTransaction": _WRITE_TXN,
    "TransactionService/AbortTransaction": _WRITE_TXN,
    "TransactionService/ListTransactions": _LIST_TRANSACTIONS,
    "TransactionService/DescribeTransaction": _DESCRIBE_TRANSACTIONS,
    "SharedTransactionService/OpenSharedTransaction": _WRITE_TXN,
    "SharedTransactionService/CommitSharedTransaction": _WRITE_TXN,
    "SharedTransactionService/AbortSharedTransaction": _WRITE_TXN,
    "SharedTransactionService/LeaveSharedTransaction": _WRITE_TXN,
    "SharedTransactionService/DescribeSharedTransaction": _DESCRIBE_TXN,
    "SharedTransactionService/ListSharedTransactions": _LIST_TRANSACTIONS,
    "ClusterService/DescribeNodes": _DESCRIBE_CLUSTER,
    "ClusterService/DescribeReplicas": _DESCRIBE_CLUSTER,
    "ClusterService/ReassignPartitions": _ALTER_CLUSTER,
    "ClusterService/ListReassignments": _DESCRIBE_CLUSTER,
    "ClusterService/ElectLeaders": _ALTER_CLUSTER,
    "ClusterService/CordonNode": _ALTER_CLUSTER,
    "ClusterService/UnregisterNode": _ALTER_CLUSTER,
    "DiagnosticsService/GetSnapshot": _DESCRIBE_CLUSTER,
    "DiagnosticsService/GetTransactionHistory": (
        Asked(_OP.DESCRIBE, _TYPE.CLUSTER),
        Asked(_OP.DESCRIBE, _TYPE.TRANSACTIONAL_ID, "instead"),
        Asked(_OP.DESCRIBE, _TYPE.TOPIC, "of a transactional id", _HIDDEN),
        Asked(_OP.DESCRIBE, _TYPE.GROUP, "of a transactional id", _HIDDEN),
    ),
    "DiagnosticsService/AbortHangingTransaction": _ALTER_CLUSTER,
    "AclService/CreateAcls": _ALTER_CLUSTER,
    "AclService/DeleteAcls": _ALTER_CLUSTER,
    "AclService/DescribeAcls": _DESCRIBE_CLUSTER,
    "QuotaService/AlterClientQuotas": _ALTER_QUOTAS,
    "QuotaService/DescribeClientQuotas": _DESCRIBE_QUOTAS,
    "UserService/AlterUserCredentials": _ALTER_CLUSTER,
    "UserService/DescribeUserCredentials": _DESCRIBE_CLUSTER,
    "DelegationTokenService/CreateDelegationToken": _CREATE_TOKEN,
    "DelegationTokenService/RenewDelegationToken": (),
    "DelegationTokenService/ExpireDelegationToken": (),
    "DelegationTokenService/DescribeDelegationTokens": _DESCRIBE_TOKENS,
}
"""What the calls of semel.v1 ask for, by service and method."""
