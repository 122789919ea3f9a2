"""The administrative calls, as coroutines on the IO thread, for the sync and the asyncio `Admin`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from semel.protocol.api.commit_decisions import NAME_BYTES_MAX
from semel.protocol.api.group_offsets import NO_GENERATION
from semel.protocol.api.topics import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    IsolationLevel,
    ListOffset,
    TopicDescription,
)
from semel.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, decode_assignment
from semel.protocol.errors import AbortTransactionError, ErrorCode, FatalError, SemelError, UsageError, error_for
from semel.protocol.ids import NO_TIMESTAMP, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ProducerIdAndEpoch, TopicPartition
from semel.protocol.int_bounds import INT16_MAX, INT32_MAX, INT64_MAX
from semel.protocol.proto_conversions import by_topic, partition_of, told_topic_id
from semel.protocol.v1 import groups_pb2, metadata_pb2, topics_pb2, transactions_pb2
from semel.sdk.admin import acl_calls, cluster_calls, quota_calls, user_calls
from semel.sdk.transport import rpcs as rpc
from semel.sdk.transport.arguments import as_offsets, check_partitions
from semel.sdk.transport.coordinator_calls import ask_coordinators
from semel.sdk.transport.item_errors import check_item, item_error
from semel.sdk.transport.leader_calls import ask_leaders
from semel.sdk.transport.offset_lookup import list_offsets, look_up_offsets
from semel.sdk.transport.offset_parts import in_parts, offset_items
from semel.sdk.transport.options import check_int, check_name, check_text

if TYPE_CHECKING:
    from semel.protocol.acls import Acl, AclFilter
    from semel.protocol.api.cluster import NodeState, Reassignment
    from semel.protocol.api.commit_decisions import CommitDecision
    from semel.protocol.api.diagnostics import HangingEnd, Thresholds, TransactionHistory
    from semel.protocol.api.group_offsets import OffsetAndMetadata
    from semel.protocol.api.groups import FetchedOffset, GroupDescription, GroupListing  # noqa: F401 (in a string)
    from semel.protocol.api.metadata import ClusterDescription
    from semel.protocol.api.shared_transactions import SharedDescription, SharedListing  # noqa: F401 (likewise)
    from semel.protocol.api.transactions import TransactionDescription, TransactionListing  # noqa: F401 (likewise)
    from semel.protocol.quotas import ClientQuota, QuotaAlteration, QuotaFilter
    from semel.protocol.scram import UserDescription
    from semel.protocol.v1 import shared_pb2
    from semel.sdk.admin.cluster_calls import ReplicasOfNodes
    from semel.sdk.diagnosis.findings import Diagnosis
    from semel.sdk.transport.client import ClientCore
    from semel.sdk.transport.rpcs import Request, Response

Listing = TypeVar("Listing")

_PATIENCE_MS: Final = 5_000
"""How long to try where a leader is away, for what may be missing: about as long as others take to lead instead."""
_NO_TOPIC: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


def _check_quota(items: Iterable[metadata_pb2.Topic | topics_pb2.TopicResult]) -> None:
    """Raise what has the call tried again later where a quota of changes is used up (KIP-599)."""
    for each in items:
        if each.error.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            check_item(each.error, "the change")


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting. `source` says where its value is from; `value` is empty for a sensitive one."""

    name: str
    value: str
    source: str
    is_read_only: bool
    is_sensitive: bool
    documentation: str
    type: str


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in a partition. `committed` is -1 where it has committed nothing."""

    committed: int
    end_offset: int
    lag: int
    error: SemelError | None = None
    """Why the partition's end is not known; `end_offset` and `lag` are -1 then. Only `look_up_lag` returns such."""


class _Listings(list[Listing]):
    """What coordinators know. `unreadable` says why some of it is missing: what of their logs can't be read."""

    def __init__(self, listed: Iterable[Listing] = (), unreadable: tuple[str, ...] = ()) -> None:
        super().__init__(listed)
        self.unreadable = unreadable


class TransactionListings(_Listings["TransactionListing"]):
    """Transactional ids. `unreadable` says why some are missing."""


class SharedListings(_Listings["SharedListing"]):
    """Keys of shared transactions. `unreadable` says why some are missing."""


class GroupListings(_Listings["GroupListing"]):
    """Groups. `unreadable` says why some are missing."""


class AdminCore:
    """Every method raises `SemelError` of the kind that says what to do."""

    def __init__(self, client: ClientCore) -> None:
        self.client = client
        self._control = client.control

    # --- Topics -------------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        validate_only: bool,
    ) -> TopicDescription:
        new = topics_pb2.NewTopic(
            name=_topic_name(name),
            num_partitions=check_int("partitions", partitions, -1),
            replication_factor=check_int("replication_factor", replication_factor, -1, INT16_MAX),
            configs=_texts(configs),
        )
        request = topics_pb2.CreateTopicsRequest(topics=[new], validate_only=validate_only)
        response = await self._control.call(rpc.CREATE_TOPICS, request, check=lambda told: _check_quota(told.topics))
        (topic,) = response.topics
        check_item(topic.error, f"topic {name!r}")
        return _topic(topic)

    async def delete_topic(self, name: str) -> None:
        _topic_name(name)
        request = topics_pb2.DeleteTopicsRequest(topics=[name])
        response = await self._control.call(rpc.DELETE_TOPICS, request, check=lambda told: _check_quota(told.results))
        for result in response.results:
            check_item(result.error, f"topic {name!r}")

    async def cluster(self) -> ClusterDescription:
        from semel.protocol.api.metadata import ClusterDescription, NodeDescription

        told = await self._control.call(rpc.GET_METADATA, metadata_pb2.GetMetadataRequest())
        nodes = (
            NodeDescription(node.node_id, node.kafka_host, node.kafka_port, node.grpc_host, node.grpc_port, node.rack)
            for node in told.nodes
        )
        return ClusterDescription(told.cluster_id, told.controller_id, tuple(nodes))

    async def topics(self, include_internal: bool) -> list[TopicDescription]:
        request = metadata_pb2.GetMetadataRequest(all_topics=True, include_internal=include_internal)
        response = await self._control.call(rpc.GET_METADATA, request)
        return [_topic(topic) for topic in response.topics if not topic.error.code]

    async def topic(self, name: str) -> TopicDescription:
        request = metadata_pb2.GetMetadataRequest(topics=[_topic_name(name)])
        response = await self._control.call(rpc.GET_METADATA, request)
        for topic in response.topics:
            if topic.error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                break
            check_item(topic.error, f"topic {name!r}")
            return _topic(topic)
        raise await self._no_topic(name)

    async def _no_topic(self, name: str) -> FatalError:
        close = difflib.get_close_matches(name, [topic.name for topic in await self.topics(False)], n=1)
        advice = f"did you mean {close[0]!r}?" if close else "`semel topic list` shows those that are"
        return FatalError(f"there is no topic {name!r}; {advice}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def _call_of_topic(self, name: str, method: rpc.Rpc[Request, Response], request: Request) -> Response:
        """Make a call about a topic that must exist: to wait for one that is not there would take all the time."""
        try:
            return await self._control.call(method, request, final=_NO_TOPIC)
        except FatalError as error:
            if error.code in _NO_TOPIC:
                raise await self._no_topic(name) from None
            raise

    async def add_partitions(self, topic: str, total_count: int, validate_only: bool) -> None:
        request = topics_pb2.CreatePartitionsRequest(
            topic=_topic_name(topic),
            total_count=check_int("total_count", total_count, 1),
            validate_only=validate_only,
        )
        await self._call_of_topic(topic, rpc.CREATE_PARTITIONS, request)

    async def topic_configs(self, topic: str, names: Sequence[str]) -> list[ConfigEntry]:
        return await self._configs(topics_pb2.TOPIC, _topic_name(topic), names)

    async def node_configs(self, node_id: int, names: Sequence[str]) -> list[ConfigEntry]:
        return await self._configs(topics_pb2.BROKER, str(check_int("node_id", node_id, 0)), names)

    async def _configs(self, kind: topics_pb2.ResourceType, name: str, names: Sequence[str]) -> list[ConfigEntry]:
        request = topics_pb2.DescribeConfigsRequest(resource_type=kind, resource_name=name, names=names)
        response = await self._call_of_topic(name, rpc.DESCRIBE_CONFIGS, request)
        return [
            ConfigEntry(
                entry.name,
                entry.value,
                entry.source,
                entry.is_read_only,
                entry.is_sensitive,
                entry.documentation,
                entry.type,
            )
            for entry in response.entries
        ]

    async def alter_topic_configs(
        self, topic: str, changes: Mapping[str, str], remove: Iterable[str], validate_only: bool
    ) -> None:
        await self._alter_configs(topics_pb2.TOPIC, _topic_name(topic), changes, remove, validate_only)

    async def alter_node_configs(
        self, node_id: int, changes: Mapping[str, str], remove: Iterable[str], validate_only: bool
    ) -> None:
        name = str(check_int("node_id", node_id, 0))
        await self._alter_configs(topics_pb2.BROKER, name, changes, remove, validate_only)

    async def _alter_configs(
        self,
        kind: topics_pb2.ResourceType,
        name: str,
        changed: Mapping[str, str],
        removed: Iterable[str],
        validate_only: bool,
    ) -> None:
        request = topics_pb2.AlterConfigsRequest(
            resource_type=kind,
            resource_name=name,
            set=_texts(changed),
            remove=check_names("remove", removed),
            validate_only=validate_only,
        )
        await self._call_of_topic(name, rpc.ALTER_CONFIGS, request)

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, ListOffset]:
        return await list_offsets(self.client, timestamps, isolation)

    async def look_up_offsets(
        self, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, ListOffset | SemelError]:
        return await look_up_offsets(self.client, timestamps, isolation, patience_ms=_PATIENCE_MS)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        checked = {tp: check_int(f"offset of {tp}", offset, -1, INT64_MAX) for tp, offset in before.items()}

        async def ask(tps: list[TopicPartition], address: str | None) -> dict[TopicPartition, int | SemelError]:
            items = [
                topics_pb2.DeleteRecordsRequest.Item(topic=tp.topic, partition=tp.partition, before_offset=checked[tp])
                for tp in tps
            ]
            request = topics_pb2.DeleteRecordsRequest(items=items)
            response = await self._control.call(rpc.DELETE_RECORDS, request, address=address, retry=address is None)
            found: dict[TopicPartition, int | SemelError] = {
                tp: FatalError(f"the node said nothing about {tp}") for tp in tps
            }
            for item in response.items:
                tp = TopicPartition(item.topic, item.partition)
                found[tp] = item_error(item.error, str(tp)) if item.error.code else item.log_start_offset
            return found

        starts = {}
        for tp, start in (
            await ask_leaders(self.client, checked, ask, patience_ms=self.client.options.api_timeout_ms)
        ).items():
            if isinstance(start, SemelError):
                raise start
            starts[tp] = start
        return starts

    # --- Groups -------------------------------------------------------------------------------------------------------

    async def groups(self, states: Iterable[str]) -> GroupListings:
        from semel.protocol.api.groups import GroupListing

        request = groups_pb2.ListGroupsRequest(states=states)

        async def ask(address: str | None, timeout_ms: float) -> groups_pb2.ListGroupsResponse:
            return await self._control.call(
                rpc.LIST_GROUPS, request, address=address, timeout_ms=timeout_ms, retry=address is None
            )

        answers, missing = await ask_coordinators(self.client, OFFSETS_TOPIC, ask)
        listed = {
            item.group_id: GroupListing(item.group_id, item.protocol_type, item.state, item.group_type)
            for answer in answers
            for item in answer.items
        }
        return GroupListings(listed.values(), _all_unreadable(answers, missing))

    async def group(self, group: str) -> GroupDescription:
        from semel.protocol.api.groups import GroupDescription, GroupMemberDescription

        check_text("group", group)
        found = await self._control.call(rpc.DESCRIBE_GROUP, groups_pb2.DescribeGroupRequest(group_id=group))
        members = tuple(
            GroupMemberDescription(
                member.member_id,
                member.group_instance_id or None,
                member.client_id,
                member.client_host,
                member.metadata,
                member.assignment,
            )
            for member in found.members
        )
        return GroupDescription(
            found.group_id,
            found.state,
            found.protocol_type,
            found.protocol_name,
            found.generation_id,
            found.leader_id,
            members,
        )

    async def group_offsets(self, group: str, stable: bool) -> dict[TopicPartition, FetchedOffset]:
        return await self._group_offsets(group, groups_pb2.FetchOffsetsRequest(all=True, require_stable=stable))

    async def stable_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, FetchedOffset]:
        """Raises `RetriableError` (UNSTABLE_OFFSET_COMMIT) while an open transaction holds one of them (O2)."""
        topics = by_topic(partitions)
        return await self._group_offsets(group, groups_pb2.FetchOffsetsRequest(topics=topics, require_stable=True))

    async def _group_offsets(
        self, group: str, request: groups_pb2.FetchOffsetsRequest
    ) -> dict[TopicPartition, FetchedOffset]:
        from semel.protocol.api.groups import FetchedOffset

        request.group_id = check_text("group", group)
        response = await self._control.call(rpc.FETCH_OFFSETS, request)
        found = {}
        for item in response.items:
            tp = TopicPartition(item.topic, item.partition)
            check_item(item.error, f"offset of group {group!r} in {tp}")
            found[tp] = FetchedOffset(item.offset, item.leader_epoch, item.metadata)
        return found

    async def group_lag(self, group: str) -> dict[TopicPartition, PartitionLag]:
        lags = await self.look_up_lag(group)
        for lag in lags.values():
            if lag.error is not None:
                raise lag.error
        return lags

    async def look_up_lag(self, group: str) -> dict[TopicPartition, PartitionLag]:
        offsets = await self.group_offsets(group, stable=False)
        committed = {tp: place.offset for tp, place in offsets.items() if place.offset >= 0}
        # Where members read and nothing is committed yet, all that is there is still before them.
        uncommitted = {*group_owners(await self.group(group)), *offsets} - committed.keys()
        ends = await self.look_up_offsets(
            dict.fromkeys([*committed, *uncommitted], LATEST_TIMESTAMP), IsolationLevel.READ_COMMITTED
        )
        starts = await self.look_up_offsets(
            dict.fromkeys(uncommitted, EARLIEST_TIMESTAMP), IsolationLevel.READ_COMMITTED
        )
        return {tp: _lag(committed.get(tp, -1), end, starts.get(tp)) for tp, end in ends.items()}

    async def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        check_text("group", group)
        items = offset_items(as_offsets(offsets))
        try:
            for part in list(in_parts(items, group)) or [[]]:
                request = groups_pb2.CommitOffsetsRequest(group_id=group, generation_id=NO_GENERATION, items=part)
                response = await self._control.call(rpc.COMMIT_OFFSETS, request)
                for item in response.items:
                    check_item(item.error, f"offset of group {group!r} in {TopicPartition(item.topic, item.partition)}")
        except AbortTransactionError as error:
            if error.code is not ErrorCode.UNKNOWN_MEMBER_ID:
                raise
            raise FatalError(
                f"group {group!r} has members, whose next commit would undo this; stop them first, then try again",
                ErrorCode.NON_EMPTY_GROUP,
            ) from error

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        check_text("group", group)
        request = groups_pb2.DeleteOffsetsRequest(group_id=group, topics=by_topic(check_partitions(partitions)))
        response = await self._control.call(rpc.DELETE_OFFSETS, request)
        for item in response.items:
            check_item(item.error, f"offset of group {group!r} in {TopicPartition(item.topic, item.partition)}")

    async def delete_group(self, group: str) -> None:
        check_text("group", group)
        await self._control.call(rpc.DELETE_GROUP, groups_pb2.DeleteGroupRequest(group_id=group))

    # --- Transactions -------------------------------------------------------------------------------------------------

    async def transactions(
        self, states: Iterable[str], producer_ids: Iterable[int], min_duration_ms: int, pattern: str
    ) -> TransactionListings:
        from semel.protocol.api.transactions import TransactionListing

        request = transactions_pb2.ListTransactionsRequest(
            states=states,
            producer_ids=producer_ids,
            min_duration_ms=max(0, min_duration_ms),
            transactional_id_pattern=pattern,
        )

        async def ask(address: str | None, timeout_ms: float) -> transactions_pb2.ListTransactionsResponse:
            return await self._control.call(
                rpc.LIST_TRANSACTIONS, request, address=address, timeout_ms=timeout_ms, retry=address is None
            )

        answers, missing = await ask_coordinators(self.client, TRANSACTIONS_TOPIC, ask)
        unknown = next((answer.unknown_states for answer in answers if answer.unknown_states), ())
        if unknown:
            raise FatalError(
                f"there is no transaction state {', '.join(unknown)}; the states are Empty, Ongoing, "
                "PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort and Dead",
                ErrorCode.INVALID_REQUEST,
            )
        listed = {
            item.transactional_id: TransactionListing(
                item.transactional_id,
                item.producer_id,
                item.state,
                item.last_token,
                item.last_commit_ms if item.last_token else NO_TIMESTAMP,
            )
            for answer in answers
            for item in answer.items
        }
        return TransactionListings(listed.values(), _all_unreadable(answers, missing))

    async def transaction(self, transactional_id: str) -> TransactionDescription:
        from semel.protocol.api.transactions import TransactionDescription, TransactionListing  # noqa: F401 (likewise)

        check_text("transactional_id", transactional_id)
        request = transactions_pb2.DescribeTransactionRequest(transactional_id=transactional_id)
        found = await self._control.call(rpc.DESCRIBE_TRANSACTION, request)
        return TransactionDescription(
            found.transactional_id,
            found.state,
            ProducerIdAndEpoch(found.producer.producer_id, found.producer.producer_epoch),
            found.timeout_ms,
            found.start_time_ms,
            found.last_update_ms,
            found.coordinator_epoch,
            tuple(TopicPartition(topic.topic, number) for topic in found.topics for number in topic.partitions),
        )

    async def commits(self, key: str) -> list[CommitDecision]:
        return list((await self.shared_transaction(key)).decisions)

    async def shared_transaction(self, key: str) -> SharedDescription:
        from semel.sdk.shared.calls import describe_shared

        return await describe_shared(self._control, check_name("key", key, NAME_BYTES_MAX))

    async def shared_transactions(self) -> SharedListings:
        from semel.protocol.api.shared_transactions import SharedListing
        from semel.protocol.v1 import shared_pb2
        from semel.sdk.transport.rpcs import LIST_SHARED

        async def ask(address: str | None, timeout_ms: float) -> shared_pb2.ListSharedTransactionsResponse:
            request = shared_pb2.ListSharedTransactionsRequest()
            return await self._control.call(
                LIST_SHARED, request, address=address, timeout_ms=timeout_ms, retry=address is None
            )

        answers, missing = await ask_coordinators(self.client, TRANSACTIONS_TOPIC, ask)
        listed = {
            item.key: SharedListing(item.key, item.open_token, item.last_token, item.last_commit_ms)
            for answer in answers
            for item in answer.items
        }
        return SharedListings(listed.values(), _all_unreadable(answers, missing))

    async def abort_shared_transaction(self, key: str) -> SharedDescription:
        from semel.protocol.api.shared_transactions import AbortSharedRequest
        from semel.sdk.shared.calls import abort_shared

        found = await self.shared_transaction(key)
        if not found.attempt:
            raise error_for(
                ErrorCode.INVALID_TXN_STATE,
                f"nothing is open under the key {key!r} of shared transactions: there is nothing to abort",
            )
        await abort_shared(self._control, AbortSharedRequest(key, found.attempt))
        return found

    async def abort_transaction(self, transactional_id: str) -> None:
        check_text("transactional_id", transactional_id)
        request = transactions_pb2.AbortTransactionRequest(transactional_id=transactional_id)
        await self._control.call(rpc.ABORT_TRANSACTION, request)

    # --- The cluster's nodes ------------------------------------------------------------------------------------------

    async def nodes(self) -> list[NodeState]:
        return await cluster_calls.describe_nodes(self._control)

    async def replicas(self) -> ReplicasOfNodes:
        return await cluster_calls.describe_replicas(self._control)

    async def reassign_partitions(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, SemelError | None]:
        nodes: dict[TopicPartition, list[int]] = {}
        for tp in check_partitions(wanted):
            replicas = wanted[tp]
            if replicas is not None and not replicas:
                raise UsageError(f"the replicas of {tp} are at least one node; None cancels a move")
            nodes[tp] = [check_int(f"a replica of {tp}", each, 0, INT32_MAX) for each in replicas or ()]
        return await cluster_calls.reassign_partitions(self._control, nodes)

    async def reassignments(self) -> list[Reassignment]:
        return await cluster_calls.list_reassignments(self._control)

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition], unclean: bool
    ) -> dict[TopicPartition, SemelError | None]:
        return await cluster_calls.elect_leaders(self._control, check_partitions(partitions), unclean)

    async def cordon_node(self, node_id: int, cordoned: bool) -> None:
        await cluster_calls.cordon_node(self._control, check_int("node_id", node_id, 0, INT32_MAX), cordoned)

    async def unregister_node(self, node_id: int) -> None:
        await cluster_calls.unregister_node(self._control, check_int("node_id", node_id, 0, INT32_MAX))

    # --- ACLs ---------------------------------------------------------------------------------------------------------

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        await acl_calls.create_acls(self._control, acls)

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        return await acl_calls.delete_acls(self._control, filters)

    async def acls(self, wanted: AclFilter) -> list[Acl]:
        return await acl_calls.describe_acls(self._control, wanted)

    # --- Client quotas ------------------------------------------------------------------------------------------------

    async def alter_client_quotas(self, wanted: Iterable[QuotaAlteration], validate_only: bool) -> None:
        await quota_calls.alter_client_quotas(self._control, wanted, validate_only)

    async def client_quotas(self, wanted: QuotaFilter) -> list[ClientQuota]:
        return await quota_calls.describe_client_quotas(self._control, wanted)

    async def set_password(self, user: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
        await user_calls.set_password(self._control, user, password, mechanisms, iterations)

    async def remove_user(self, user: str) -> None:
        await user_calls.remove_user(self._control, user)

    async def users(self, names: Iterable[str]) -> list[UserDescription]:
        return await user_calls.describe_users(self._control, names)

    # --- Looking into trouble -----------------------------------------------------------------------------------------

    async def diagnose(self, thresholds: Thresholds | None, limit: int) -> Diagnosis:
        from semel.protocol.api.diagnostic_limits import SNAPSHOT_LIMIT_MAX
        from semel.sdk.diagnosis.calls import take_snapshots
        from semel.sdk.diagnosis.rules import diagnose

        return diagnose(
            await take_snapshots(self._control, check_int("limit", limit, 1, SNAPSHOT_LIMIT_MAX)), thresholds
        )

    async def transaction_history(self, key: str, limit: int) -> TransactionHistory:
        from semel.protocol.api.diagnostic_limits import HISTORY_LIMIT_MAX
        from semel.sdk.diagnosis.calls import read_history

        return await read_history(
            self._control, check_text("key", key), check_int("limit", limit, 1, HISTORY_LIMIT_MAX)
        )

    async def abort_hanging_transaction(self, partition: TopicPartition, start_offset: int) -> ProducerIdAndEpoch:
        from semel.protocol.api.diagnostics import HangingEnd

        producer, _ = await self._end_hanging(partition, start_offset, HangingEnd.ABORT)
        return producer

    async def finish_hanging_transaction(
        self, partition: TopicPartition, start_offset: int, outcome: Literal["commit", "abort"] | None
    ) -> bool:
        from semel.protocol.api.diagnostics import HangingEnd

        ends = {None: HangingEnd.AS_DECIDED, "commit": HangingEnd.AS_COMMIT, "abort": HangingEnd.AS_ABORT}
        if outcome not in ends:
            raise UsageError(f"outcome is 'commit' or 'abort', or left out, not {outcome!r}")
        _, committed = await self._end_hanging(partition, start_offset, ends[outcome])
        return committed

    async def _end_hanging(
        self, partition: TopicPartition, start_offset: int, end: HangingEnd
    ) -> tuple[ProducerIdAndEpoch, bool]:
        from semel.sdk.diagnosis.calls import end_hanging

        (tp,) = check_partitions([partition])
        check_int("start_offset", start_offset, 0, INT64_MAX)
        # Asked first: the call itself is tried again for long where the partition might be about to come.
        count = len((await self.topic(tp.topic)).partitions)
        if tp.partition >= count:
            raise FatalError(
                f"there is no partition {tp.partition}: {tp.topic} has partitions 0 to {count - 1}",
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
        return await end_hanging(self._control, tp, start_offset, end)


def _lag(committed: int, end: ListOffset | SemelError, start: ListOffset | SemelError | None) -> PartitionLag:
    """Return how far a group is behind; `start` is where it would begin, where it has committed nothing."""
    for found in (end, start):
        if isinstance(found, SemelError):
            return PartitionLag(committed, -1, -1, found)
    assert isinstance(end, ListOffset)
    begin = start.offset if isinstance(start, ListOffset) else committed
    return PartitionLag(committed, end.offset, max(0, end.offset - begin))


def _all_unreadable(
    answers: Iterable[
        groups_pb2.ListGroupsResponse
        | transactions_pb2.ListTransactionsResponse
        | shared_pb2.ListSharedTransactionsResponse
    ],
    missing: Iterable[str],
) -> tuple[str, ...]:
    """Return why listings lack something: what each coordinator could not read, and coordinators that are away."""
    return (*dict.fromkeys(why for answer in answers for why in answer.unreadable), *missing)


def _topic_name(name: object) -> str:
    if name == "":
        raise UsageError("a topic's name must not be empty; `semel topic list` shows the topics that there are")
    return check_text("topic", name)


def group_owners(group: GroupDescription) -> dict[TopicPartition, str]:
    """Return which member each partition is assigned to, for a group of consumers."""
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return {}
    return {
        tp: member.member_id
        for member in group.members
        if member.assignment
        for tp in decode_assignment(member.assignment).partitions
    }


def _topic(topic: metadata_pb2.Topic) -> TopicDescription:
    return TopicDescription(
        topic.name,
        told_topic_id(topic),
        topic.is_internal,
        tuple(map(partition_of, topic.partitions)),
    )


def _texts(configs: Mapping[str, object]) -> dict[str, str]:
    """Return settings as text, as Kafka has them: True as true. Raises `UsageError`."""
    texts = {}
    for name, value in configs.items():
        if isinstance(value, bool):
            texts[name] = "true" if value else "false"
        elif isinstance(value, (str, int, float)):
            texts[name] = str(value)
        else:
            raise UsageError(f"setting {name} must be text or a number, not {type(value).__name__}")
    return texts


def check_names(option: str, names: object) -> list[str]:
    """Return names as a list. Raises `UsageError`: a single text would be taken for its letters."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise UsageError(f"{option} takes a list of names, not {names!r}")
    return [check_text(option, name) for name in names]
