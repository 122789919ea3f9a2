"""What clients ask the coordinator about shared transactions and commits, as gRPC carries it (T12, T13)."""

from __future__ import annotations

from semel.protocol.api.commit_decisions import NO_SEQUENCE
from semel.protocol.api.shared_transactions import (
    AbortSharedRequest,
    CommitOutcome,
    CommitSharedRequest,
    CommitSharedResponse,
    LeaveSharedRequest,
    OpenSharedRequest,
    OpenSharedResponse,
    SharedDescription,
    SharedWriter,
)
from semel.protocol.proto_conversions import decision_of, producer_message, producer_of
from semel.protocol.v1 import shared_pb2
from semel.sdk.transport.control import Control
from semel.sdk.transport.rpcs import ABORT_SHARED, COMMIT_SHARED, DESCRIBE_SHARED, LEAVE_SHARED, OPEN_SHARED


async def open_shared(control: Control, request: OpenSharedRequest) -> OpenSharedResponse:
    response = await control.call(
        OPEN_SHARED,
        shared_pb2.OpenSharedTransactionRequest(
            key=request.key,
            attempt=request.attempt,
            token=request.token,
            sequence=_optional(request.sequence),
            timeout_ms=request.timeout_ms,
            writer=request.writer,
            one_off=request.one_off,
            run=request.run,
        ),
    )
    return OpenSharedResponse(
        response.transactional_id,
        producer_of(response.producer) if response.HasField("producer") else None,
        decision_of(response.committed) if response.HasField("committed") else None,
    )


async def commit_shared(control: Control, request: CommitSharedRequest) -> CommitSharedResponse:
    response = await control.call(
        COMMIT_SHARED,
        shared_pb2.CommitSharedTransactionRequest(
            key=request.key,
            attempt=request.attempt,
            token=request.token,
            sequence=_optional(request.sequence),
            writers=[producer_message(writer) for writer in request.writers],
            payload=request.payload,
            one_off=request.one_off,
            run=request.run,
        ),
    )
    outcome = CommitOutcome.ALREADY_COMMITTED if response.already_committed else CommitOutcome.COMMITTED
    return CommitSharedResponse(outcome, decision_of(response.decision))


async def abort_shared(control: Control, request: AbortSharedRequest) -> None:
    message = shared_pb2.AbortSharedTransactionRequest(
        key=request.key, attempt=request.attempt, one_off=request.one_off
    )
    await control.call(ABORT_SHARED, message)


async def leave_shared(control: Control, request: LeaveSharedRequest, timeout_ms: float) -> None:
    message = shared_pb2.LeaveSharedTransactionRequest(
        key=request.key, attempt=request.attempt, producer=producer_message(request.producer)
    )
    await control.call(LEAVE_SHARED, message, timeout_ms=timeout_ms)


async def describe_shared(control: Control, key: str) -> SharedDescription:
    found = await control.call(DESCRIBE_SHARED, shared_pb2.DescribeSharedTransactionRequest(key=key))
    return SharedDescription(
        found.key,
        found.attempt,
        found.token,
        found.sequence,
        tuple(
            SharedWriter(writer.transactional_id, producer_of(writer.producer), writer.state, writer.start_time_ms)
            for writer in found.writers
        ),
        tuple(decision_of(decision) for decision in found.decisions),
    )


def _optional(sequence: int) -> int | None:
    return None if sequence == NO_SEQUENCE else sequence
