"""Producer ids and transactions, for who may write with the transactional id.

A writer of a shared transaction has an id of its own: its rights are those of the key.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from semel.broker.acls.rights import Rights
from semel.broker.audit.log import Event
from semel.broker.handlers.add_partitions import add_partitions, refusal_to_add
from semel.broker.handlers.offset_commit import commit_offsets
from semel.broker.services import Services
from semel.protocol.acls import AclOperation, ResourceType
from semel.protocol.api.groups import OffsetCommitRequest, OffsetCommitResponse
from semel.protocol.api.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from semel.protocol.api.shared_transactions import (
    AbortSharedRequest,
    CommitSharedRequest,
    CommitSharedResponse,
    DescribeSharedRequest,
    LeaveSharedRequest,
    ListSharedRequest,
    ListSharedResponse,
    OpenSharedRequest,
    OpenSharedResponse,
    SharedDescription,
    key_of_member,
)
from semel.protocol.api.transactions import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionRequest,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionDescription,
    TransactionVersion,
)
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import INTERNAL_TOPICS, ProducerIdAndEpoch
from semel.runtime.completion import done_to_its_end

_TOPIC: Final = ResourceType.TOPIC
_GROUP: Final = ResourceType.GROUP
_TRANSACTION: Final = ResourceType.TRANSACTIONAL_ID
_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def name_of_transaction(transactional_id: str) -> str:
    """Return what ACLs call a transactional id: that of a writer of a shared transaction is its key."""
    return key_of_member(transactional_id) or transactional_id


def check_transaction(rights: Rights, transactional_id: str, operation: AclOperation | None = None) -> None:
    """Raise TRANSACTIONAL_ID_AUTHORIZATION_FAILED where the caller may not use a transactional id as he asks for."""
    if not rights.are_all:
        rights.check(_TRANSACTION, name_of_transaction(transactional_id), operation)


async def init_producer_id(node: Services, rights: Rights, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Give a producer id to who may write: with the transactional id, or to any topic."""
    if request.transactional_id is not None:
        check_transaction(rights, request.transactional_id, AclOperation.WRITE)
        if request.two_phase:
            check_transaction(rights, request.transactional_id, AclOperation.TWO_PHASE_COMMIT)
    elif not rights.may_with_cluster(told=False) and not rights.may_some(_TOPIC, AclOperation.WRITE):
        rights.check_cluster()
    return await node.transactions.init_producer_id(request)


async def add_to_transaction(
    node: Services, rights: Rights, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Add partitions to the caller's own transaction, all or none. Raises `SemelError` for all of them."""
    check_transaction(rights, request.transactional_id)
    denied = await rights.denied(_TOPIC, [tp.topic for tp in request.partitions if tp.topic not in INTERNAL_TOPICS])
    if not denied:
        return await add_partitions(node, request)
    return AddPartitionsToTxnResponse(
        {
            tp: _DENIED if tp.topic in denied else refusal_to_add(node, tp) or ErrorCode.OPERATION_NOT_ATTEMPTED
            for tp in request.partitions
        }
    )


async def add_group_to_transaction(
    node: Services, rights: Rights, transactional_id: str, producer: ProducerIdAndEpoch, group_id: str
) -> None:
    """Add the partition of a group's offsets to the caller's transaction (AddOffsetsToTxn). Raises `SemelError`."""
    check_transaction(rights, transactional_id)
    rights.check(_GROUP, group_id)
    await node.groups.add_to_transaction(transactional_id, producer, group_id)


async def commit_offsets_in_transaction(
    node: Services, rights: Rights, request: OffsetCommitRequest, version: TransactionVersion = TransactionVersion.V2
) -> OffsetCommitResponse:
    """Commit offsets in the caller's transaction, of topics that he may read. Raises `SemelError` for all of them."""
    if request.transactional_id is not None:
        check_transaction(rights, request.transactional_id)
    return await commit_readable(node, rights, request, version)


async def commit_readable(
    node: Services, rights: Rights, request: OffsetCommitRequest, version: TransactionVersion = TransactionVersion.V2
) -> OffsetCommitResponse:
    """Commit offsets of a group and of topics that the caller may read; each of the others gets its error."""
    rights.check(_GROUP, request.group_id)
    denied = await rights.denied(_TOPIC, [tp.topic for tp in request.offsets])
    if not denied:
        return await commit_offsets(node, request, version)
    errors = {tp: _DENIED for tp in request.offsets if tp.topic in denied}
    allowed = {tp: offset for tp, offset in request.offsets.items() if tp not in errors}
    if not allowed:
        return OffsetCommitResponse(errors)
    expected = {tp: offset for tp, offset in request.expected.items() if tp not in errors}
    response = await commit_offsets(node, replace(request, offsets=allowed, expected=expected), version)
    return OffsetCommitResponse({**response.errors, **errors})


async def end_transaction(node: Services, rights: Rights, request: EndTxnRequest) -> EndTxnResponse:
    """See `TransactionCoordinator.end_txn`."""
    check_transaction(rights, request.transactional_id)
    return await node.transactions.end_txn(request)


@done_to_its_end
async def abort_transaction(node: Services, rights: Rights, request: AbortTransactionRequest) -> None:
    """See `TransactionCoordinator.abort`."""
    check_transaction(rights, request.transactional_id)
    await node.transactions.abort(request)
    node.audit.changed(rights.who, Event.TRANSACTION_ABORTED, transactional_id=request.transactional_id)


async def list_transactions(
    node: Services, rights: Rights, request: ListTransactionsRequest, *, partial: bool = False
) -> ListTransactionsResponse:
    """Return the transactional ids that the caller may describe."""
    found = await node.transactions.list(request, partial=partial)
    visible = await rights.visible(
        _TRANSACTION, found.transactions, lambda one: name_of_transaction(one.transactional_id)
    )
    return replace(found, transactions=tuple(visible))


async def describe_transaction(
    node: Services, rights: Rights, request: DescribeTransactionRequest
) -> TransactionDescription:
    """Describe a transaction, with those of its partitions whose topics the caller may describe."""
    check_transaction(rights, request.transactional_id)
    found = await node.transactions.describe(request)
    return replace(found, partitions=tuple(await rights.visible(_TOPIC, found.partitions, lambda tp: tp.topic)))


# --- Shared transactions ----------------------------------------------------------------------------------------------


async def open_shared(node: Services, rights: Rights, request: OpenSharedRequest) -> OpenSharedResponse:
    """See `TransactionCoordinator.open_shared`."""
    check_transaction(rights, request.key)
    return await node.transactions.open_shared(request)


async def commit_shared(node: Services, rights: Rights, request: CommitSharedRequest) -> CommitSharedResponse:
    """See `TransactionCoordinator.commit_shared`."""
    check_transaction(rights, request.key)
    return await node.transactions.commit_shared(request)


async def abort_shared(node: Services, rights: Rights, request: AbortSharedRequest) -> None:
    """See `TransactionCoordinator.abort_shared`."""
    check_transaction(rights, request.key)
    await node.transactions.abort_shared(request)


async def leave_shared(node: Services, rights: Rights, request: LeaveSharedRequest) -> None:
    """See `TransactionCoordinator.leave_shared`."""
    check_transaction(rights, request.key)
    await node.transactions.leave_shared(request)


async def describe_shared(node: Services, rights: Rights, request: DescribeSharedRequest) -> SharedDescription:
    """See `TransactionCoordinator.describe_shared`."""
    check_transaction(rights, request.key)
    return await node.transactions.describe_shared(request)


async def list_shared(node: Services, rights: Rights, request: ListSharedRequest) -> ListSharedResponse:
    """Return the keys that the caller may describe."""
    found = await node.transactions.list_shared(request)
    return replace(found, keys=tuple(await rights.visible(_TRANSACTION, found.keys, lambda one: one.key)))
