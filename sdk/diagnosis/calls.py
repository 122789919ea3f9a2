"""Asking nodes for their facts, as gRPC carries them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

from semel.protocol.acl_messages import acl_message, acl_of
from semel.protocol.acls import Acl, AclFilter
from semel.protocol.api.diagnostic_limits import SNAPSHOT_LIMIT
from semel.protocol.api.diagnostics import HangingEnd, NodeSnapshot, TransactionHistory
from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.plain_messages import from_message
from semel.protocol.v1 import acls_pb2, common_pb2, diagnostics_pb2, metadata_pb2
from semel.sdk.diagnosis.acl_rules import AUTHORIZER
from semel.sdk.diagnosis.findings import Cluster
from semel.sdk.diagnosis.rules import unresolved_producers
from semel.sdk.transport.control import Control
from semel.sdk.transport.known_nodes import addresses_of
from semel.sdk.transport.rpcs import (
    ABORT_HANGING_TRANSACTION,
    DESCRIBE_ACLS,
    GET_METADATA,
    GET_SNAPSHOT,
    GET_TRANSACTION_HISTORY,
)

_OTHER_NODE_TIMEOUT_MS = 5_000


async def take_snapshots(control: Control, limit: int = SNAPSHOT_LIMIT) -> Cluster:
    """Return the facts of all nodes. Raises `SemelError` where no node can be reached, or the one asked is too old."""
    cluster = await _snapshots(control, limit, (), {})
    unresolved = unresolved_producers(cluster)
    if unresolved and len(cluster.nodes) > 1:
        cluster = await _snapshots(control, limit, unresolved, cluster.unreachable)
    return replace(cluster, acls=await _acls(control, cluster))


async def _acls(control: Control, cluster: Cluster) -> tuple[Acl, ...] | None:
    """Return all ACLs; None where no node asks what clients may do."""
    settings = [one for node in cluster.nodes for one in node.settings]
    if not any(one.name == AUTHORIZER and one.value for one in settings):
        return None
    try:
        request = acls_pb2.DescribeAclsRequest(filter=acl_message(AclFilter()))
        return tuple(map(acl_of, (await control.call(DESCRIBE_ACLS, request)).acls))
    except FatalError as error:
        if error.code is ErrorCode.SECURITY_DISABLED:
            return None  # by a node with other settings, which is a finding of its own
        raise


async def _snapshots(
    control: Control, limit: int, producer_ids: Iterable[int], unreachable: Mapping[int, str]
) -> Cluster:
    """Ask all nodes but those that are known to be unreachable."""
    request = diagnostics_pb2.SnapshotRequest(limit=limit, producer_ids=producer_ids)
    addresses = await _addresses(control)
    if len(addresses) <= 1:
        # A single node may be known under an address that can't be reached from here: a container's, a tunnel's.
        return Cluster((await _snapshot(control, request, None),))
    asked = [node_id for node_id in addresses if node_id not in unreachable]
    outcomes = await asyncio.gather(
        *(_snapshot(control, request, addresses[node_id]) for node_id in asked), return_exceptions=True
    )
    nodes: list[NodeSnapshot] = []
    unreachable = dict(unreachable)
    for node_id, outcome in zip(asked, outcomes, strict=True):
        if isinstance(outcome, SemelError):
            unreachable[node_id] = outcome.message
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            nodes.append(outcome)
    return Cluster(tuple(nodes), unreachable, addresses)


async def _snapshot(control: Control, request: diagnostics_pb2.SnapshotRequest, address: str | None) -> NodeSnapshot:
    if address is None:
        found = await control.call(GET_SNAPSHOT, request)
        return from_message(found, NodeSnapshot)
    # That a node can't be reached is itself a finding, so nobody waits until it can.
    final = (ErrorCode.NETWORK_EXCEPTION,)
    found = await control.call(GET_SNAPSHOT, request, address=address, timeout_ms=_OTHER_NODE_TIMEOUT_MS, final=final)
    return from_message(found, NodeSnapshot)


async def read_history(control: Control, key: str, limit: int) -> TransactionHistory:
    """Return what the log has about a transactional id or a key, from the node that has its log."""
    request = diagnostics_pb2.TransactionHistoryRequest(key=key, limit=limit)
    found = await control.call(GET_TRANSACTION_HISTORY, request)
    return from_message(found, TransactionHistory)


async def end_hanging(
    control: Control, tp: TopicPartition, start_offset: int, end: HangingEnd
) -> tuple[ProducerIdAndEpoch, bool]:
    """End a transaction that hangs on one partition. Returns whose it was, and whether it is committed.

    Raises INVALID_TXN_STATE where none hangs there, or it is to end otherwise.
    """
    addresses = await _addresses(control)
    is_alone = len(addresses) <= 1
    address = None if is_alone else await _leader_address(control, tp)
    if not is_alone:
        _check_unknown(await take_snapshots(control), tp, start_offset)
    request = diagnostics_pb2.AbortHangingRequest(
        partition=common_pb2.TopicPartition(topic=tp.topic, partition=tp.partition),
        start_offset=start_offset,
        unknown_elsewhere=not is_alone,
        end=f"HANGING_END_{end.name}",
    )
    done = await control.call(ABORT_HANGING_TRANSACTION, request, address=address)
    return ProducerIdAndEpoch(done.producer_id, done.producer_epoch), done.committed


def _check_unknown(cluster: Cluster, tp: TopicPartition, start_offset: int) -> None:
    """Raise what keeps the transaction from being called a hanging one, by the word of all nodes."""
    if cluster.unreachable or any(node.coordinators_away for node in cluster.nodes):
        raise FatalError(
            "not all coordinators can be asked whether they know the transaction; `semel doctor` says which",
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        )
    for node in cluster.nodes:
        for one in node.held:
            if one.partition == tp and one.first_offset == start_offset:
                for other in cluster.nodes:
                    for txn in other.transactions:
                        if txn.producer_id == one.producer_id:
                            raise FatalError(
                                f"the transaction at offset {start_offset} of {tp} is that of "
                                f"{txn.transactional_id!r}; `semel txn abort` takes that name",
                                ErrorCode.INVALID_TXN_STATE,
                            )
                return
    raise FatalError(
        f"no transaction that begins at offset {start_offset} holds the last stable offset of {tp}",
        ErrorCode.INVALID_TXN_STATE,
    )


async def _leader_address(control: Control, tp: TopicPartition) -> str | None:
    response = await control.call(GET_METADATA, metadata_pb2.GetMetadataRequest(topics=[tp.topic]))
    leaders = {partition.partition: partition.leader_id for topic in response.topics for partition in topic.partitions}
    return addresses_of(response).get(leaders.get(tp.partition, -1))


async def _addresses(control: Control) -> Mapping[int, str]:
    return addresses_of(await control.call(GET_METADATA, metadata_pb2.GetMetadataRequest()))
