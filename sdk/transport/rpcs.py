"""The calls of semel.v1 that clients make, and which node answers each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

from google.protobuf.message import Message

from semel.protocol.v1 import (
    acls_pb2,
    cluster_pb2,
    delegation_tokens_pb2,
    diagnostics_pb2,
    groups_pb2,
    metadata_pb2,
    quotas_pb2,
    shared_pb2,
    topics_pb2,
    transactions_pb2,
    users_pb2,
)

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Place(Enum):
    """Which node answers a call. Any other one refuses it, or answers for its own part."""

    ANY = "any node; what is about a node's own settings, that node, which others name"
    TRANSACTION = "the coordinator of a transactional id, or of the key of a shared transaction"
    GROUP = "the coordinator of a group"
    LEADERS = "the leader of each partition"
    COORDINATORS = "every node that coordinates, each for its own"
    EVERY = "every node, each for itself"


Key: TypeAlias = tuple[Place, str]
"""What one coordinator answers for: where it is may be remembered."""


@dataclass(frozen=True, slots=True)
class Rpc(Generic[Request, Response]):
    """One call of the gRPC API. `key`: the field of its request that says which coordinator answers."""

    path: str
    request: type[Request]
    response: type[Response]
    place: Place
    key: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def key_of(self, request: Request) -> Key | None:
        """Return what the coordinator of a request is found by; None where any node will do."""
        name = getattr(request, self.key) if self.key else ""
        return (self.place, name) if name else None


_METADATA = "/semel.v1.MetadataService/"
_ACLS = "/semel.v1.AclService/"
_QUOTAS = "/semel.v1.QuotaService/"
_USERS = "/semel.v1.UserService/"
_TOKENS = "/semel.v1.DelegationTokenService/"
_TOPICS = "/semel.v1.TopicService/"
_TRANSACTIONS = "/semel.v1.TransactionService/"
_SHARED = "/semel.v1.SharedTransactionService/"
_GROUPS = "/semel.v1.GroupService/"
_DIAGNOSTICS = "/semel.v1.DiagnosticsService/"
_CLUSTER = "/semel.v1.ClusterService/"

GET_METADATA = Rpc(
    _METADATA + "GetMetadata", metadata_pb2.GetMetadataRequest, metadata_pb2.GetMetadataResponse, Place.ANY
)
CREATE_TOPICS = Rpc(
    _TOPICS + "CreateTopics", topics_pb2.CreateTopicsRequest, topics_pb2.CreateTopicsResponse, Place.ANY
)
DELETE_TOPICS = Rpc(
    _TOPICS + "DeleteTopics", topics_pb2.DeleteTopicsRequest, topics_pb2.DeleteTopicsResponse, Place.ANY
)
CREATE_PARTITIONS = Rpc(
    _TOPICS + "CreatePartitions", topics_pb2.CreatePartitionsRequest, topics_pb2.CreatePartitionsResponse, Place.ANY
)
DESCRIBE_CONFIGS = Rpc(
    _TOPICS + "DescribeConfigs", topics_pb2.DescribeConfigsRequest, topics_pb2.DescribeConfigsResponse, Place.ANY
)
ALTER_CONFIGS = Rpc(
    _TOPICS + "AlterConfigs", topics_pb2.AlterConfigsRequest, topics_pb2.AlterConfigsResponse, Place.ANY
)
LIST_OFFSETS = Rpc(
    _TOPICS + "ListOffsets", topics_pb2.ListOffsetsRequest, topics_pb2.ListOffsetsResponse, Place.LEADERS
)
DELETE_RECORDS = Rpc(
    _TOPICS + "DeleteRecords", topics_pb2.DeleteRecordsRequest, topics_pb2.DeleteRecordsResponse, Place.LEADERS
)
INIT_PRODUCER_ID = Rpc(
    _TRANSACTIONS + "InitProducerId",
    transactions_pb2.InitProducerIdRequest,
    transactions_pb2.InitProducerIdResponse,
    Place.TRANSACTION,
    "transactional_id",
)
TXN_COMMIT_OFFSETS = Rpc(
    _TRANSACTIONS + "CommitOffsets",
    transactions_pb2.TxnCommitOffsetsRequest,
    transactions_pb2.TxnCommitOffsetsResponse,
    Place.GROUP,
    "group_id",
)
END_TRANSACTION = Rpc(
    _TRANSACTIONS + "EndTransaction",
    transactions_pb2.EndTransactionRequest,
    transactions_pb2.EndTransactionResponse,
    Place.TRANSACTION,
    "transactional_id",
)
LIST_TRANSACTIONS = Rpc(
    _TRANSACTIONS + "ListTransactions",
    transactions_pb2.ListTransactionsRequest,
    transactions_pb2.ListTransactionsResponse,
    Place.COORDINATORS,
)
DESCRIBE_TRANSACTION = Rpc(
    _TRANSACTIONS + "DescribeTransaction",
    transactions_pb2.DescribeTransactionRequest,
    transactions_pb2.TransactionDescription,
    Place.TRANSACTION,
    "transactional_id",
)
ABORT_TRANSACTION = Rpc(
    _TRANSACTIONS + "AbortTransaction",
    transactions_pb2.AbortTransactionRequest,
    transactions_pb2.AbortTransactionResponse,
    Place.TRANSACTION,
    "transactional_id",
)
OPEN_SHARED = Rpc(
    _SHARED + "OpenSharedTransaction",
    shared_pb2.OpenSharedTransactionRequest,
    shared_pb2.OpenSharedTransactionResponse,
    Place.TRANSACTION,
    "key",
)
COMMIT_SHARED = Rpc(
    _SHARED + "CommitSharedTransaction",
    shared_pb2.CommitSharedTransactionRequest,
    shared_pb2.CommitSharedTransactionResponse,
    Place.TRANSACTION,
    "key",
)
ABORT_SHARED = Rpc(
    _SHARED + "AbortSharedTransaction",
    shared_pb2.AbortSharedTransactionRequest,
    shared_pb2.AbortSharedTransactionResponse,
    Place.TRANSACTION,
    "key",
)
LEAVE_SHARED = Rpc(
    _SHARED + "LeaveSharedTransaction",
    shared_pb2.LeaveSharedTransactionRequest,
    shared_pb2.LeaveSharedTransactionResponse,
    Place.TRANSACTION,
    "key",
)
DESCRIBE_SHARED = Rpc(
    _SHARED + "DescribeSharedTransaction",
    shared_pb2.DescribeSharedTransactionRequest,
    shared_pb2.SharedTransactionDescription,
    Place.TRANSACTION,
    "key",
)
LIST_SHARED = Rpc(
    _SHARED + "ListSharedTransactions",
    shared_pb2.ListSharedTransactionsRequest,
    shared_pb2.ListSharedTransactionsResponse,
    Place.COORDINATORS,
)
JOIN_GROUP = Rpc(
    _GROUPS + "JoinGroup", groups_pb2.JoinGroupRequest, groups_pb2.JoinGroupResponse, Place.GROUP, "group_id"
)
SYNC_GROUP = Rpc(
    _GROUPS + "SyncGroup", groups_pb2.SyncGroupRequest, groups_pb2.SyncGroupResponse, Place.GROUP, "group_id"
)
HEARTBEAT = Rpc(
    _GROUPS + "Heartbeat", groups_pb2.HeartbeatRequest, groups_pb2.HeartbeatResponse, Place.GROUP, "group_id"
)
LEAVE_GROUP = Rpc(
    _GROUPS + "LeaveGroup", groups_pb2.LeaveGroupRequest, groups_pb2.LeaveGroupResponse, Place.GROUP, "group_id"
)
COMMIT_OFFSETS = Rpc(
    _GROUPS + "CommitOffsets",
    groups_pb2.CommitOffsetsRequest,
    groups_pb2.CommitOffsetsResponse,
    Place.GROUP,
    "group_id",
)
FETCH_OFFSETS = Rpc(
    _GROUPS + "FetchOffsets", groups_pb2.FetchOffsetsRequest, groups_pb2.FetchOffsetsResponse, Place.GROUP, "group_id"
)
DELETE_OFFSETS = Rpc(
    _GROUPS + "DeleteOffsets",
    groups_pb2.DeleteOffsetsRequest,
    groups_pb2.DeleteOffsetsResponse,
    Place.GROUP,
    "group_id",
)
LIST_GROUPS = Rpc(
    _GROUPS + "ListGroups", groups_pb2.ListGroupsRequest, groups_pb2.ListGroupsResponse, Place.COORDINATORS
)
DESCRIBE_GROUP = Rpc(
    _GROUPS + "DescribeGroup", groups_pb2.DescribeGroupRequest, groups_pb2.GroupDescription, Place.GROUP, "group_id"
)
DELETE_GROUP = Rpc(
    _GROUPS + "DeleteGroup", groups_pb2.DeleteGroupRequest, groups_pb2.DeleteGroupResponse, Place.GROUP, "group_id"
)
GET_SNAPSHOT = Rpc(
    _DIAGNOSTICS + "GetSnapshot", diagnostics_pb2.SnapshotRequest, diagnostics_pb2.NodeSnapshot, Place.EVERY
)
GET_TRANSACTION_HISTORY = Rpc(
    _DIAGNOSTICS + "GetTransactionHistory",
    diagnostics_pb2.TransactionHistoryRequest,
    diagnostics_pb2.TransactionHistory,
    Place.TRANSACTION,
    "key",
)
ABORT_HANGING_TRANSACTION = Rpc(
    _DIAGNOSTICS + "AbortHangingTransaction",
    diagnostics_pb2.AbortHangingRequest,
    diagnostics_pb2.AbortHangingResponse,
    Place.LEADERS,
)
DESCRIBE_NODES = Rpc(
    _CLUSTER + "DescribeNodes", cluster_pb2.DescribeNodesRequest, cluster_pb2.DescribeNodesResponse, Place.ANY
)
DESCRIBE_REPLICAS = Rpc(
    _CLUSTER + "DescribeReplicas",
    cluster_pb2.DescribeReplicasRequest,
    cluster_pb2.DescribeReplicasResponse,
    Place.EVERY,
)
REASSIGN_PARTITIONS = Rpc(
    _CLUSTER + "ReassignPartitions",
    cluster_pb2.ReassignPartitionsRequest,
    cluster_pb2.ReassignPartitionsResponse,
    Place.ANY,
)
LIST_REASSIGNMENTS = Rpc(
    _CLUSTER + "ListReassignments",
    cluster_pb2.ListReassignmentsRequest,
    cluster_pb2.ListReassignmentsResponse,
    Place.ANY,
)
ELECT_LEADERS = Rpc(
    _CLUSTER + "ElectLeaders", cluster_pb2.ElectLeadersRequest, cluster_pb2.ElectLeadersResponse, Place.ANY
)
CREATE_ACLS = Rpc(_ACLS + "CreateAcls", acls_pb2.CreateAclsRequest, acls_pb2.CreateAclsResponse, Place.ANY)
DELETE_ACLS = Rpc(_ACLS + "DeleteAcls", acls_pb2.DeleteAclsRequest, acls_pb2.DeleteAclsResponse, Place.ANY)
DESCRIBE_ACLS = Rpc(_ACLS + "DescribeAcls", acls_pb2.DescribeAclsRequest, acls_pb2.DescribeAclsResponse, Place.ANY)
ALTER_CLIENT_QUOTAS = Rpc(
    _QUOTAS + "AlterClientQuotas",
    quotas_pb2.AlterClientQuotasRequest,
    quotas_pb2.AlterClientQuotasResponse,
    Place.ANY,
)
DESCRIBE_CLIENT_QUOTAS = Rpc(
    _QUOTAS + "DescribeClientQuotas",
    quotas_pb2.DescribeClientQuotasRequest,
    quotas_pb2.DescribeClientQuotasResponse,
    Place.ANY,
)
ALTER_USER_CREDENTIALS = Rpc(
    _USERS + "AlterUserCredentials",
    users_pb2.AlterUserCredentialsRequest,
    users_pb2.AlterUserCredentialsResponse,
    Place.ANY,
)
DESCRIBE_USER_CREDENTIALS = Rpc(
    _USERS + "DescribeUserCredentials",
    users_pb2.DescribeUserCredentialsRequest,
    users_pb2.DescribeUserCredentialsResponse,
    Place.ANY,
)
CREATE_DELEGATION_TOKEN = Rpc(
    _TOKENS + "CreateDelegationToken",
    delegation_tokens_pb2.CreateDelegationTokenRequest,
    delegation_tokens_pb2.CreateDelegationTokenResponse,
    Place.ANY,
)
RENEW_DELEGATION_TOKEN = Rpc(
    _TOKENS + "RenewDelegationToken",
    delegation_tokens_pb2.RenewDelegationTokenRequest,
    delegation_tokens_pb2.RenewDelegationTokenResponse,
    Place.ANY,
)
EXPIRE_DELEGATION_TOKEN = Rpc(
    _TOKENS + "ExpireDelegationToken",
    delegation_tokens_pb2.ExpireDelegationTokenRequest,
    delegation_tokens_pb2.ExpireDelegationTokenResponse,
    Place.ANY,
)
DESCRIBE_DELEGATION_TOKENS = Rpc(
    _TOKENS + "DescribeDelegationTokens",
    delegation_tokens_pb2.DescribeDelegationTokensRequest,
    delegation_tokens_pb2.DescribeDelegationTokensResponse,
    Place.ANY,
)
CORDON_NODE = Rpc(_CLUSTER + "CordonNode", cluster_pb2.CordonNodeRequest, cluster_pb2.CordonNodeResponse, Place.ANY)
UNREGISTER_NODE = Rpc(
    _CLUSTER + "UnregisterNode", cluster_pb2.UnregisterNodeRequest, cluster_pb2.UnregisterNodeResponse, Place.ANY
)
