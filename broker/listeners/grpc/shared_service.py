"""semel.v1.SharedTransactionService (T12, T13)."""

from __future__ import annotations

from semel.broker.acls.rights import rights_of_call
from semel.broker.listeners.grpc.convert import filled
from semel.broker.listeners.grpc.edge import Context
from semel.broker.permitted import transactions
from semel.broker.services import Services
from semel.protocol.api.commit_decisions import NO_SEQUENCE, CommitDecision
from semel.protocol.api.shared_transactions import (
    AbortSharedRequest,
    CommitOutcome,
    CommitSharedRequest,
    DescribeSharedRequest,
    LeaveSharedRequest,
    ListSharedRequest,
    OpenSharedRequest,
)
from semel.protocol.proto_conversions import producer_message, producer_of
from semel.protocol.v1 import shared_pb2


class SharedTransactionService:
    """Shared transactions and the history of commits."""

    def __init__(self, node: Services) -> None:
        self._node = node

    async def open_shared_transaction(
        self, request: shared_pb2.OpenSharedTransactionRequest, _context: Context
    ) -> shared_pb2.OpenSharedTransactionResponse:
        response = await transactions.open_shared(
            self._node,
            rights_of_call(),
            OpenSharedRequest(
                request.key,
                request.attempt,
                request.token,
                request.timeout_ms,
                request.sequence if request.HasField("sequence") else NO_SEQUENCE,
                request.writer,
                request.one_off,
                request.run,
            ),
        )
        return shared_pb2.OpenSharedTransactionResponse(
            transactional_id=response.transactional_id,
            producer=None if response.producer is None else producer_message(response.producer),
            committed=None if response.committed is None else _decision_message(response.committed),
        )

    async def commit_shared_transaction(
        self, request: shared_pb2.CommitSharedTransactionRequest, _context: Context
    ) -> shared_pb2.CommitSharedTransactionResponse:
        response = await transactions.commit_shared(
            self._node,
            rights_of_call(),
            CommitSharedRequest(
                request.key,
                request.attempt,
                request.token,
                tuple(producer_of(writer) for writer in request.writers),
                request.payload,
                request.sequence if request.HasField("sequence") else NO_SEQUENCE,
                request.one_off,
                request.run,
            ),
        )
        return shared_pb2.CommitSharedTransactionResponse(
            decision=_decision_message(response.decision),
            already_committed=response.outcome is CommitOutcome.ALREADY_COMMITTED,
        )

    async def abort_shared_transaction(
        self, request: shared_pb2.AbortSharedTransactionRequest, _context: Context
    ) -> shared_pb2.AbortSharedTransactionResponse:
        await transactions.abort_shared(
            self._node, rights_of_call(), AbortSharedRequest(request.key, request.attempt, request.one_off)
        )
        return shared_pb2.AbortSharedTransactionResponse()

    async def leave_shared_transaction(
        self, request: shared_pb2.LeaveSharedTransactionRequest, _context: Context
    ) -> shared_pb2.LeaveSharedTransactionResponse:
        await transactions.leave_shared(
            self._node,
            rights_of_call(),
            LeaveSharedRequest(request.key, request.attempt, producer_of(request.producer)),
        )
        return shared_pb2.LeaveSharedTransactionResponse()

    async def describe_shared_transaction(
        self, request: shared_pb2.DescribeSharedTransactionRequest, _context: Context
    ) -> shared_pb2.SharedTransactionDescription:
        found = await transactions.describe_shared(self._node, rights_of_call(), DescribeSharedRequest(request.key))
        return shared_pb2.SharedTransactionDescription(
            key=found.key,
            attempt=found.attempt,
            token=found.token,
            sequence=found.sequence,
            writers=[
                shared_pb2.SharedTransactionDescription.Writer(
                    transactional_id=writer.transactional_id,
                    producer=producer_message(writer.producer),
                    state=writer.state,
                    start_time_ms=writer.start_ms,
                )
                for writer in found.writers
            ],
            decisions=[_decision_message(decision) for decision in found.decisions],
        )

    async def list_shared_transactions(
        self, _request: shared_pb2.ListSharedTransactionsRequest, _context: Context
    ) -> shared_pb2.ListSharedTransactionsResponse:
        found = await transactions.list_shared(self._node, rights_of_call(), ListSharedRequest())
        message = shared_pb2.ListSharedTransactionsResponse(unreadable=found.unreadable)
        return await filled(
            message,
            message.items,
            (
                shared_pb2.ListSharedTransactionsResponse.Item(
                    key=one.key,
                    open_token=one.open_token,
                    last_token=one.last_token,
                    last_commit_ms=one.last_commit_ms,
                )
                for one in found.keys
            ),
        )


def _decision_message(decision: CommitDecision) -> shared_pb2.CommitDecision:
    return shared_pb2.CommitDecision(
        token=decision.token,
        sequence=decision.sequence,
        payload=decision.payload,
        attempt=decision.attempt,
        decided_ms=decision.decided_ms,
        writers=decision.writers,
    )
