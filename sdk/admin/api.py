# Generated from aio.py beside it by `make sync-api`. Do not edit: change aio.py, and run that again.
"""The administrator's client: topics, settings, offsets, groups and transactions."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

from semel.protocol.acls import AclFilter
from semel.protocol.api.diagnostic_limits import HISTORY_LIMIT, SNAPSHOT_LIMIT
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.quotas import QuotaFilter
from semel.protocol.scram import ITERATIONS, SCRAM_MECHANISMS
from semel.sdk.admin import token_calls
from semel.sdk.admin.core import AdminCore, group_owners
from semel.sdk.transport.blocking import run, work
from semel.sdk.transport.border import ends_tracebacks
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.options import ClientOptions, NotPicklable, check_bool, checked_names

if TYPE_CHECKING:
    from semel.protocol.acls import Acl
    from semel.protocol.api.cluster import NodeState, Reassignment
    from semel.protocol.api.commit_decisions import CommitDecision
    from semel.protocol.api.diagnostics import Thresholds, TransactionHistory
    from semel.protocol.api.group_offsets import OffsetAndMetadata
    from semel.protocol.api.groups import FetchedOffset, GroupDescription
    from semel.protocol.api.metadata import ClusterDescription
    from semel.protocol.api.shared_transactions import SharedDescription
    from semel.protocol.api.topics import ListOffset, TopicDescription
    from semel.protocol.api.transactions import TransactionDescription
    from semel.protocol.delegation_tokens import DelegationToken, NewDelegationToken
    from semel.protocol.errors import SemelError
    from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
    from semel.protocol.quotas import ClientQuota, QuotaAlteration
    from semel.protocol.scram import UserDescription
    from semel.sdk.admin.cluster_calls import ReplicasOfNodes
    from semel.sdk.admin.core import ConfigEntry, GroupListings, PartitionLag, SharedListings, TransactionListings
    from semel.sdk.diagnosis.findings import Diagnosis
    from semel.sdk.transport.kafka_names import AdminKafkaNames

T = TypeVar("T")


@ends_tracebacks
class Admin(NotPicklable):
    """Creates, shows and changes what is on a cluster. May be used by several threads or tasks.

    bootstrap:          the address of a node, or several: its gRPC port (9094) or its Kafka port (9092); None:
                        what the environment variable SEMEL_BOOTSTRAP says, else localhost:9094
    api_timeout_ms:     how long one call may take, retries included
    request_timeout_ms: how long one attempt may take
    connect_timeout_ms: how long to try where no node has ever answered, to fail early; None: api_timeout_ms

    Every call raises `SemelError`: `RetriableError` where the cluster can't be reached in time, `FatalError` for what
    it refuses.
    """

    _in_place_of_pickling = "it owns a thread and connections; make one in each process or worker, where it is used"

    @checked_names
    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        client_id: str = "semel",
        api_timeout_ms: int = 30_000,
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int | None = None,
        **kafka: Unpack[AdminKafkaNames],  # `checked_names` has put them under the names above
    ) -> None:
        options = ClientOptions.checked(
            bootstrap,
            client_id=client_id,
            api_timeout_ms=api_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
        )
        self._core = AdminCore(self._make_client(options))

    def _make_client(self, options: ClientOptions) -> ClientCore:
        return ClientCore("Admin", options)

    # --- Topics -------------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Create a topic and return it. -1 takes the node's num.partitions and default.replication.factor.

        Raises `FatalError` TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_CONFIG ...
        """
        return self._run(self._core.create_topic(name, partitions, replication_factor, configs or {}, validate_only))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all of its records."""
        self._run(self._core.delete_topic(name))

    def topics(self, *, include_internal: bool = False) -> list[TopicDescription]:
        """Return all topics."""
        return self._run(self._core.topics(include_internal))

    def topic(self, name: str) -> TopicDescription:
        """Return one topic. Raises `FatalError` UNKNOWN_TOPIC_OR_PARTITION."""
        return self._run(self._core.topic(name))

    def add_partitions(self, topic: str, total_count: int, *, validate_only: bool = False) -> None:
        """Give a topic more partitions, `total_count` in all. Raises `FatalError` UNKNOWN_TOPIC_OR_PARTITION."""
        self._run(self._core.add_partitions(topic, total_count, validate_only))

    def topic_configs(self, topic: str, names: Sequence[str] = ()) -> list[ConfigEntry]:
        """Return a topic's settings by Kafka's names; all where none is named.

        Raises `FatalError` UNKNOWN_TOPIC_OR_PARTITION.
        """
        return self._run(self._core.topic_configs(topic, names))

    def node_configs(self, node_id: int, names: Sequence[str] = ()) -> list[ConfigEntry]:
        """Return a node's settings; all where none is named."""
        return self._run(self._core.node_configs(node_id, names))

    def alter_topic_configs(
        self,
        topic: str,
        *,
        changes: Mapping[str, str] | None = None,
        remove: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Change some of a topic's settings, and give others their default back.

        Raises `FatalError` UNKNOWN_TOPIC_OR_PARTITION.
        """
        self._run(self._core.alter_topic_configs(topic, changes or {}, remove, validate_only))

    def alter_node_configs(
        self,
        node_id: int,
        *,
        changes: Mapping[str, str] | None = None,
        remove: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Change some of a node's dynamic settings, and give others back what its configuration says."""
        self._run(self._core.alter_node_configs(node_id, changes or {}, remove, validate_only))

    def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, ListOffset]:
        """Return offsets by timestamp (ms since 1970), or by -2 earliest, -1 latest, -3 the largest timestamp.

        Raises the `SemelError` of the first partition that has one, for example because it is offline.
        """
        return self._run(self._core.list_offsets(timestamps, isolation))

    def look_up_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, ListOffset | SemelError]:
        """Return offsets as `list_offsets` does, and for a partition that has none the error that says why."""
        return self._run(self._core.look_up_offsets(timestamps, isolation))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Move the start of partitions forward to an offset (-1: to the end) and return where they start then."""
        return self._run(self._core.delete_records(before))

    # --- Groups -------------------------------------------------------------------------------------------------------

    def groups(self, *, states: Iterable[str] = ()) -> GroupListings:
        """Return the groups; with `states`, only those in one of them.

        What can't be read is left out, and `unreadable` of the answer says what that is.
        """
        return self._run(self._core.groups(states))

    def group(self, group: str) -> GroupDescription:
        """Return a group with its members. Raises `FatalError` GROUP_ID_NOT_FOUND."""
        return self._run(self._core.group(group))

    def group_owners(self, group: GroupDescription) -> dict[TopicPartition, str]:
        """Return which member each partition is assigned to."""
        return group_owners(group)

    def group_offsets(self, group: str, *, stable: bool = False) -> dict[TopicPartition, FetchedOffset]:
        """Return all that a group has committed.

        stable: raise `RetriableError` (UNSTABLE_OFFSET_COMMIT) while an open transaction is about to move the group
                (O2), for those who begin to work there
        """
        return self._run(self._core.group_offsets(group, check_bool("stable", stable)))

    def group_lag(self, group: str) -> dict[TopicPartition, PartitionLag]:
        """Return how far a group is behind the end of what read_committed readers may see.

        Raises the `SemelError` of the first partition that has one, for example because it is offline.
        """
        return self._run(self._core.group_lag(group))

    def look_up_lag(self, group: str) -> dict[TopicPartition, PartitionLag]:
        """Return the lag as `group_lag` does; a partition whose end is not known has the reason in `error`."""
        return self._run(self._core.look_up_lag(group))

    def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Move the committed offsets of a group that has no members."""
        self._run(self._core.alter_group_offsets(group, offsets))

    def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget committed offsets of partitions that no member of the group subscribes to."""
        self._run(self._core.delete_group_offsets(group, partitions))

    def delete_group(self, group: str) -> None:
        """Delete a group that has no members, with its committed offsets."""
        self._run(self._core.delete_group(group))

    # --- Transactions -------------------------------------------------------------------------------------------------

    def transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        min_duration_ms: int = -1,
        pattern: str = "",
    ) -> TransactionListings:
        """Return transactional ids with the state of their latest transaction; each filter narrows.

        What can't be read is left out, and `unreadable` of the answer says what that is.
        """
        return self._run(self._core.transactions(states, producer_ids, min_duration_ms, pattern))

    def transaction(self, transactional_id: str) -> TransactionDescription:
        """Return one transactional id. Raises `FatalError` TRANSACTIONAL_ID_NOT_FOUND."""
        return self._run(self._core.transaction(transactional_id))

    def commits(self, key: str) -> list[CommitDecision]:
        """Return what was committed under a key, the last 100 oldest first, also after any crash (T13).

        The key of a transaction of one producer is its transactional id; only commits with a token are remembered.
        Those have no `attempt`. Where a shared transaction's key is the same text, both kinds are returned.
        """
        return self._run(self._core.commits(key))

    def shared_transaction(self, key: str) -> SharedDescription:
        """Return the attempt that is open under a key, its writers, and what was committed."""
        return self._run(self._core.shared_transaction(key))

    def shared_transactions(self) -> SharedListings:
        """Return the keys of shared transactions, each with its last commit and what it has open.

        What can't be read is left out, and `unreadable` of the answer says what that is.
        """
        return self._run(self._core.shared_transactions())

    def abort_shared_transaction(self, key: str) -> SharedDescription:
        """Abort the attempt that is open under a key, with all its writers. Returns what was open.

        Raises `FatalError` INVALID_TXN_STATE where nothing is. What is decided stays so.
        """
        return self._run(self._core.abort_shared_transaction(key))

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort what a transactional id has open; its producer is fenced."""
        self._run(self._core.abort_transaction(transactional_id))

    # --- The cluster's nodes ------------------------------------------------------------------------------------------

    def cluster(self) -> ClusterDescription:
        """Return the cluster's id, which node controls it (-1: none now), and where clients reach its nodes."""
        return self._run(self._core.cluster())

    def nodes(self) -> list[NodeState]:
        """Return all registered nodes, dead ones too, by their numbers."""
        return self._run(self._core.nodes())

    def replicas(self) -> ReplicasOfNodes:
        """Ask each node which replicas are on its disk: their sizes, and what consumers have fetched of them."""
        return self._run(self._core.replicas())

    def reassign_partitions(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, SemelError | None]:
        """Move each partition's replicas to these nodes, the preferred leader first; None cancels a move (KIP-455).

        Returns for each None, or what is wrong with it: INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS, ...
        The moves have begun then, and continue: `reassignments` says which are not complete.
        """
        return self._run(self._core.reassign_partitions(wanted))

    def reassignments(self) -> list[Reassignment]:
        """Return the partitions whose replicas are being moved."""
        return self._run(self._core.reassignments())

    def elect_leaders(
        self, partitions: Iterable[TopicPartition], *, unclean: bool = False
    ) -> dict[TopicPartition, SemelError | None]:
        """Have the preferred replica of each partition lead, its first one.

        unclean: instead, where nobody leads, elect any replica that is alive. **Committed records may be lost.**

        Returns for each None, or why nothing was elected: ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, ...
        """
        return self._run(self._core.elect_leaders(partitions, unclean))

    def cordon_node(self, node_id: int, cordoned: bool = True) -> None:
        """Have a node get no new replicas (KIP-1066), or let it get some again. Those that it has stay there.

        Raises `FatalError` BROKER_ID_NOT_REGISTERED.
        """
        self._run(self._core.cordon_node(node_id, cordoned))

    def unregister_node(self, node_id: int) -> None:
        """Remove a node from the cluster that is dead and has no replicas.

        Raises `FatalError` BROKER_ID_NOT_REGISTERED; INVALID_REQUEST where it is alive or has replicas.
        """
        self._run(self._core.unregister_node(node_id))

    # --- ACLs ---------------------------------------------------------------------------------------------------------

    def create_acls(self, acls: Iterable[Acl]) -> None:
        """Add ACLs. Those that there are already stay.

        Raises `UsageError` for an ACL that could never decide anything, `FatalError` SECURITY_DISABLED where ACLs do
        not count, and CLUSTER_AUTHORIZATION_FAILED.
        """
        self._run(self._core.create_acls(acls))

    def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """Remove what the filters match, and return that. Raises as `create_acls`."""
        return self._run(self._core.delete_acls(filters))

    def acls(self, wanted: AclFilter | None = None) -> list[Acl]:
        """Return the ACLs that a filter matches; without one, all. Raises as `create_acls`."""
        return self._run(self._core.acls(wanted or AclFilter()))

    # --- Client quotas ------------------------------------------------------------------------------------------------

    def alter_client_quotas(self, wanted: Iterable[QuotaAlteration], *, validate_only: bool = False) -> None:
        """Set and remove quotas, for each entity all or none. Values are per second, and of each node.

        wanted:        entities with their quotas by name, such as {"producer_byte_rate": 1_000_000}; None removes one
        validate_only: only say whether it could be done
        Raises `UsageError` for a quota that an entity can't have, `FatalError` CLUSTER_AUTHORIZATION_FAILED.
        """
        self._run(self._core.alter_client_quotas(wanted, validate_only))

    def client_quotas(self, wanted: QuotaFilter | None = None) -> list[ClientQuota]:
        """Return the entities that a filter matches, with their quotas; without one, all.

        Raises `UsageError` for a filter that can never match, `FatalError` CLUSTER_AUTHORIZATION_FAILED.
        """
        return self._run(self._core.client_quotas(wanted or QuotaFilter()))

    # --- Users --------------------------------------------------------------------------------------------------------

    def set_password(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Sequence[str] = SCRAM_MECHANISMS,
        iterations: int = ITERATIONS,
    ) -> None:
        """Add a user to the cluster's metadata, or give one another password in place of all that he has.

        The password is hashed here and not sent (KIP-554): what is sent proves it, for these mechanisms. Connections
        that the user has with the password before are closed within some seconds.

        iterations: how often the password is hashed, 4096 to 16384
        Raises `UsageError`, `FatalError` UNACCEPTABLE_CREDENTIAL for what the cluster does not take, and
        CLUSTER_AUTHORIZATION_FAILED.
        """
        self._run(self._core.set_password(user, password, mechanisms, iterations))

    def remove_user(self, user: str) -> None:
        """Remove a user from the cluster's metadata; his connections are closed within some seconds.

        Raises `FatalError` RESOURCE_NOT_FOUND where there is none, and CLUSTER_AUTHORIZATION_FAILED.
        """
        self._run(self._core.remove_user(user))

    def users(self, names: Iterable[str] = ()) -> list[UserDescription]:
        """Return users of the cluster's metadata, those of these names or all, without what proves their passwords.

        Raises `FatalError` RESOURCE_NOT_FOUND for a name that there is not, and CLUSTER_AUTHORIZATION_FAILED.
        """
        return self._run(self._core.users(names))

    # --- Delegation tokens --------------------------------------------------------------------------------------------

    def create_delegation_token(
        self, *, owner: str | None = None, renewers: Iterable[str] = (), max_lifetime_ms: int | None = None
    ) -> NewDelegationToken:
        """Make a delegation token (KIP-48): who shows it is its owner, until it expires.

        owner:           as in "User:alice"; by default the user of this client. Somebody else takes the right
                         CREATE_TOKENS on that user (KIP-373)
        renewers:        who may renew it, and have it expire, besides the owner; up to 16
        max_lifetime_ms: how long it can be renewed; by default, and at most, as long as the nodes are set to
        Raises `FatalError` DELEGATION_TOKEN_AUTH_DISABLED, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED where this client is no
        user or has such a token itself, DELEGATION_TOKEN_AUTHORIZATION_FAILED, INVALID_PRINCIPAL_TYPE, INVALID_REQUEST,
        and POLICY_VIOLATION where there are too many.
        """
        return self._run(token_calls.create_token(self._core.client.control, owner, renewers, max_lifetime_ms))

    def renew_delegation_token(self, token_id: str, *, period_ms: int | None = None) -> int:
        """Have a token expire later: `period_ms` from now on, by default and at most what the nodes are set to.

        Returns when it expires, in milliseconds since 1970. Raises `FatalError` DELEGATION_TOKEN_NOT_FOUND,
        DELEGATION_TOKEN_EXPIRED, DELEGATION_TOKEN_OWNER_MISMATCH, and as `create_delegation_token`.
        """
        return self._run(token_calls.renew_token(self._core.client.control, token_id, period_ms))

    def expire_delegation_token(self, token_id: str, *, after_ms: int | None = None) -> int:
        """Take a token back, or have it expire `after_ms` from now on. What was begun with it ends within some seconds.

        Returns when it expires. Raises as `renew_delegation_token`.
        """
        return self._run(token_calls.expire_token(self._core.client.control, token_id, after_ms))

    def delegation_tokens(self, owners: Iterable[str] = ()) -> list[DelegationToken]:
        """Return the tokens that this client's user owns, has asked for or may renew, and those that he may hear of.

        owners: only tokens that one of these owns, has asked for or may renew; by default all
        Raises as `create_delegation_token`.
        """
        return self._run(token_calls.describe_tokens(self._core.client.control, owners))

    # --- Looking into trouble -----------------------------------------------------------------------------------------

    def diagnose(self, *, thresholds: Thresholds | None = None, limit: int = SNAPSHOT_LIMIT) -> Diagnosis:
        """Ask all nodes for their facts and return what is wrong, as `semel doctor` does.

        thresholds: how old or large something is before it is a warning
        limit:      how many transactions, held partitions, groups and topics each node tells of, the worst first
        """
        return self._run(self._core.diagnose(thresholds, limit))

    def transaction_history(self, key: str, *, limit: int = HISTORY_LIMIT) -> TransactionHistory:
        """Return what the log has about a transactional id, or a key: the newest `limit` steps.

        It is read from the log itself, so that it can be had too where the coordinator can't work.
        """
        return self._run(self._core.transaction_history(key, limit))

    def abort_hanging_transaction(self, partition: TopicPartition, start_offset: int) -> ProducerIdAndEpoch:
        """End a transaction on one partition that no coordinator knows, by an abort marker. Returns whose it was.

        start_offset: where it begins on the partition. Raises `FatalError` INVALID_TXN_STATE where there is none, or
        where a coordinator knows it: then `abort_transaction` is the call for it, or, where it was decided,
        `finish_hanging_transaction`.
        """
        return self._run(self._core.abort_hanging_transaction(partition, start_offset))

    def finish_hanging_transaction(
        self, partition: TopicPartition, start_offset: int, outcome: Literal["commit", "abort"] | None = None
    ) -> bool:
        """Write the marker that one partition lacks of a decided transaction. Returns whether that is a commit's.

        outcome: only where the coordinator's log does not tell any more how it was decided: by the caller's word.
        Raises `FatalError` INVALID_TXN_STATE where nothing begins at `start_offset`, or where `outcome` is given for
        what is known; TRANSACTIONAL_ID_NOT_FOUND where no coordinator knows it.
        """
        return self._run(self._core.finish_hanging_transaction(partition, start_offset, outcome))

    # --- Life ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close. Does nothing the second time."""
        work(self._core.client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return run(self._core.client, call)
