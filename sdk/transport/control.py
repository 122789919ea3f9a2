"""The control plane as a client sees it: gRPC calls with deadlines, retries, and errors of the one tree.

gRPC's own asyncio is not used: a sync channel's futures, bridged to the IO thread's loop, serve sync and asyncio alike.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from semel.protocol.api.clients import CLIENT_METADATA
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError, error_for
from semel.protocol.v1 import (
    common_pb2,
    diagnostics_pb2,
    groups_pb2,
    metadata_pb2,
    shared_pb2,
    topics_pb2,
    transactions_pb2,
)
from semel.runtime.retrying import attempted
from semel.sdk.telemetry import tracing
from semel.sdk.transport.options import ClientOptions
from semel.sdk.transport.unreachable import Trouble, UnreachableError, speaks_kafka, trouble_at, unreachable

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

ERROR_TRAILER = "semel-error"

_MAX_MESSAGE_BYTES = 64 << 20
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    # A node that was killed is back within a second or two: gRPC's own minute-long pauses would outlast it.
    ("grpc.initial_reconnect_backoff_ms", 50),
    # Called a pause, this is how long one attempt to connect may take: a busy or distant node needs its time.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    # Channels to one address share a connection by default, also with clients that have other settings.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class Rpc(Generic[Request, Response]):
    """One call of the gRPC API."""

    path: str
    request: type[Request]
    response: type[Response]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


_METADATA = "/semel.v1.MetadataService/"
_TOPICS = "/semel.v1.TopicService/"
_TRANSACTIONS = "/semel.v1.TransactionService/"
_SHARED = "/semel.v1.SharedTransactionService/"
_GROUPS = "/semel.v1.GroupService/"
_DIAGNOSTICS = "/semel.v1.DiagnosticsService/"

GET_METADATA = Rpc(_METADATA + "GetMetadata", metadata_pb2.GetMetadataRequest, metadata_pb2.GetMetadataResponse)

CREATE_TOPICS = Rpc(_TOPICS + "CreateTopics", topics_pb2.CreateTopicsRequest, topics_pb2.CreateTopicsResponse)
DELETE_TOPICS = Rpc(_TOPICS + "DeleteTopics", topics_pb2.DeleteTopicsRequest, topics_pb2.DeleteTopicsResponse)
CREATE_PARTITIONS = Rpc(
    _TOPICS + "CreatePartitions", topics_pb2.CreatePartitionsRequest, topics_pb2.CreatePartitionsResponse
)
DESCRIBE_CONFIGS = Rpc(
    _TOPICS + "DescribeConfigs", topics_pb2.DescribeConfigsRequest, topics_pb2.DescribeConfigsResponse
)
ALTER_CONFIGS = Rpc(_TOPICS + "AlterConfigs", topics_pb2.AlterConfigsRequest, topics_pb2.AlterConfigsResponse)
LIST_OFFSETS = Rpc(_TOPICS + "ListOffsets", topics_pb2.ListOffsetsRequest, topics_pb2.ListOffsetsResponse)
DELETE_RECORDS = Rpc(_TOPICS + "DeleteRecords", topics_pb2.DeleteRecordsRequest, topics_pb2.DeleteRecordsResponse)

INIT_PRODUCER_ID = Rpc(
    _TRANSACTIONS + "InitProducerId", transactions_pb2.InitProducerIdRequest, transactions_pb2.InitProducerIdResponse
)
ADD_PARTITIONS = Rpc(
    _TRANSACTIONS + "AddPartitions", transactions_pb2.AddPartitionsRequest, transactions_pb2.AddPartitionsResponse
)
TXN_COMMIT_OFFSETS = Rpc(
    _TRANSACTIONS + "CommitOffsets", transactions_pb2.TxnCommitOffsetsRequest, transactions_pb2.TxnCommitOffsetsResponse
)
END_TRANSACTION = Rpc(
    _TRANSACTIONS + "EndTransaction", transactions_pb2.EndTransactionRequest, transactions_pb2.EndTransactionResponse
)
LIST_TRANSACTIONS = Rpc(
    _TRANSACTIONS + "ListTransactions",
    transactions_pb2.ListTransactionsRequest,
    transactions_pb2.ListTransactionsResponse,
)
DESCRIBE_TRANSACTION = Rpc(
    _TRANSACTIONS + "DescribeTransaction",
    transactions_pb2.DescribeTransactionRequest,
    transactions_pb2.TransactionDescription,
)
ABORT_TRANSACTION = Rpc(
    _TRANSACTIONS + "AbortTransaction",
    transactions_pb2.AbortTransactionRequest,
    transactions_pb2.AbortTransactionResponse,
)

OPEN_SHARED = Rpc(
    _SHARED + "OpenSharedTransaction",
    shared_pb2.OpenSharedTransactionRequest,
    shared_pb2.OpenSharedTransactionResponse,
)
COMMIT_SHARED = Rpc(
    _SHARED + "CommitSharedTransaction",
    shared_pb2.CommitSharedTransactionRequest,
    shared_pb2.CommitSharedTransactionResponse,
)
ABORT_SHARED = Rpc(
    _SHARED + "AbortSharedTransaction",
    shared_pb2.AbortSharedTransactionRequest,
    shared_pb2.AbortSharedTransactionResponse,
)
LEAVE_SHARED = Rpc(
    _SHARED + "LeaveSharedTransaction",
    shared_pb2.LeaveSharedTransactionRequest,
    shared_pb2.LeaveSharedTransactionResponse,
)
DESCRIBE_SHARED = Rpc(
    _SHARED + "DescribeSharedTransaction",
    shared_pb2.DescribeSharedTransactionRequest,
    shared_pb2.SharedTransactionDescription,
)

JOIN_GROUP = Rpc(_GROUPS + "JoinGroup", groups_pb2.JoinGroupRequest, groups_pb2.JoinGroupResponse)
SYNC_GROUP = Rpc(_GROUPS + "SyncGroup", groups_pb2.SyncGroupRequest, groups_pb2.SyncGroupResponse)
HEARTBEAT = Rpc(_GROUPS + "Heartbeat", groups_pb2.HeartbeatRequest, groups_pb2.HeartbeatResponse)
LEAVE_GROUP = Rpc(_GROUPS + "LeaveGroup", groups_pb2.LeaveGroupRequest, groups_pb2.LeaveGroupResponse)
COMMIT_OFFSETS = Rpc(_GROUPS + "CommitOffsets", groups_pb2.CommitOffsetsRequest, groups_pb2.CommitOffsetsResponse)
FETCH_OFFSETS = Rpc(_GROUPS + "FetchOffsets", groups_pb2.FetchOffsetsRequest, groups_pb2.FetchOffsetsResponse)
DELETE_OFFSETS = Rpc(_GROUPS + "DeleteOffsets", groups_pb2.DeleteOffsetsRequest, groups_pb2.DeleteOffsetsResponse)
LIST_GROUPS = Rpc(_GROUPS + "ListGroups", groups_pb2.ListGroupsRequest, groups_pb2.ListGroupsResponse)
DESCRIBE_GROUP = Rpc(_GROUPS + "DescribeGroup", groups_pb2.DescribeGroupRequest, groups_pb2.GroupDescription)
DELETE_GROUP = Rpc(_GROUPS + "DeleteGroup", groups_pb2.DeleteGroupRequest, groups_pb2.DeleteGroupResponse)

GET_SNAPSHOT = Rpc(_DIAGNOSTICS + "GetSnapshot", diagnostics_pb2.SnapshotRequest, diagnostics_pb2.NodeSnapshot)
GET_TRANSACTION_HISTORY = Rpc(
    _DIAGNOSTICS + "GetTransactionHistory",
    diagnostics_pb2.TransactionHistoryRequest,
    diagnostics_pb2.TransactionHistory,
)
ABORT_HANGING_TRANSACTION = Rpc(
    _DIAGNOSTICS + "AbortHangingTransaction",
    diagnostics_pb2.AbortHangingRequest,
    diagnostics_pb2.AbortHangingResponse,
)


def check_item(error: common_pb2.Error, what: str) -> None:
    """Raise the exception for the error of one item of an answer, if it has one. `what` names the item."""
    if error.code:
        raise item_error(error, what)


def item_error(error: common_pb2.Error, what: str) -> SemelError:
    """Return the exception for the error of one item of an answer."""
    try:
        code = ErrorCode(error.code)
    except ValueError:
        return FatalError(f"{what}: unknown error {error.code} {error.name}: {error.message}")
    return error_for(code, f"{what}: {error.message or error.name or code.name}")


class Control:
    """Calls the nodes' gRPC API. All methods but `close` run on the IO thread."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._metadata = ((CLIENT_METADATA, options.client_id.encode()),)
        self._channels: dict[str, grpc.Channel] = {}
        self._calls: dict[tuple[str, str], Any] = {}
        self._address_index = 0
        self._has_reached = False
        self._unreachable: dict[str, UnreachableError] = {}
        self._closed = False

    async def call(
        self,
        rpc: Rpc[Request, Response],
        request: Request,
        *,
        timeout_ms: float | None = None,
        attempt_timeout_ms: float | None = None,
        address: str | None = None,
        retry: bool = True,
        final: Container[ErrorCode] = (),
    ) -> Response:
        """Call `rpc` and return its answer.

        Attempts that fail with a `RetriableError`, or because the node can't be reached, are repeated with growing
        pauses until `timeout_ms` (None: the client's api_timeout_ms) has passed; one attempt lasts `attempt_timeout_ms`
        at most (None: the client's request_timeout_ms). With `retry` False there is one attempt.
        `address` names a node ("host:port") in place of any of the bootstrap ones. What is refused with a code of
        `final` is not tried again, and raised as a `FatalError`.
        Raises `SemelError` of the kind that the node's error code says. As long as no node has ever been reached, the
        address is more likely wrong than the node away: then `connect_timeout_ms` bounds the attempts.
        """
        budget_s = (self._options.api_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        attempt_s = (self._options.request_timeout_ms if attempt_timeout_ms is None else attempt_timeout_ms) / 1000
        if not retry:
            return await self._attempt(rpc, request, min(attempt_s, budget_s), address)
        started = time.monotonic()
        deadline = started + budget_s
        contact_deadline = min(deadline, started + self._options.connect_timeout_ms / 1000)

        def left_s() -> float:
            return max(deadline - time.monotonic(), 0.001)

        async def attempt() -> Response:
            try:
                return await self._attempt(rpc, request, min(attempt_s, left_s()), address)
            except RetriableError as error:
                if error.code in final:
                    raise FatalError(error.message, error.code) from None
                raise

        def is_over(state: RetryCallState) -> bool:
            error = state.outcome.exception() if state.outcome is not None else None
            is_first_contact = isinstance(error, UnreachableError) and not self._has_reached
            return time.monotonic() + state.upcoming_sleep >= (contact_deadline if is_first_contact else deadline)

        def retrying() -> AsyncRetrying:
            return AsyncRetrying(
                retry=retry_if_exception_type(RetriableError),
                stop=is_over,
                wait=self._pause_s,
                sleep=asyncio.sleep,
                reraise=True,
            )

        try:
            return await attempted(attempt, RetriableError, retrying)
        except UnreachableError as error:
            if self._has_reached or len(self._unreachable) < 2:
                raise
            each = "; ".join(str(one.message) for one in self._unreachable.values())
            raise UnreachableError(f"none of the nodes can be reached: {each}", error.code) from None

    def close(self) -> None:
        """Close the channels; calls under way fail."""
        self._closed = True
        channels, self._channels = self._channels, {}
        self._calls.clear()
        for channel in channels.values():
            channel.close()

    def _pause_s(self, state: RetryCallState) -> float:
        """How long to wait after a failed attempt: twice as long each time, with jitter."""
        first_s = self._options.retry_backoff_ms / 1000
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, SemelError) and error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            first_s = 0.001  # the end of the last transaction is a matter of its markers, about to be written
        longest_s = self._options.retry_backoff_max_ms / 1000
        pause_s: float = min(first_s * 2 ** min(state.attempt_number - 1, 20), longest_s)
        return pause_s + random.uniform(0, first_s)  # noqa: S311

    async def _attempt(
        self, rpc: Rpc[Request, Response], request: Request, timeout_s: float, address: str | None
    ) -> Response:
        addresses: Sequence[str] = self._options.addresses
        target = address or addresses[self._address_index % len(addresses)]
        metadata = (*self._metadata, *tracing.metadata())
        call = self._callable(rpc, target).future(request, timeout=timeout_s, metadata=metadata)
        try:
            response: Response = await _settled(call)
        except grpc.RpcError as error:
            if address is None and error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                self._address_index += 1  # the next attempt asks another node
            failure = to_semel_error(error, rpc.name, target, timeout_s)
            if isinstance(failure, UnreachableError):
                failure = await self._explained(target, failure)
            elif error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                self._has_reached = True
            raise failure from None
        self._has_reached = True
        return response

    async def _explained(self, target: str, error: UnreachableError) -> SemelError:
        """Return what to raise for a node that was not reached. Where all are Kafka listeners, no retry will help."""
        if self._has_reached:
            return error
        known = self._unreachable.get(target)
        if known is not None and known.trouble is Trouble.KAFKA:
            error = known
        elif known is None and error.trouble.may_be_another_protocol and await speaks_kafka(target):
            error = trouble_at(target, Trouble.KAFKA)
        self._unreachable[target] = error
        troubles = [self._unreachable.get(address) for address in self._options.addresses]
        if all(one is not None and one.trouble is Trouble.KAFKA for one in troubles):
            return FatalError(error.message, ErrorCode.NETWORK_EXCEPTION)
        return error

    def _callable(self, rpc: Rpc[Request, Response], target: str) -> Any:
        key = (target, rpc.path)
        call = self._calls.get(key)
        if call is None:
            if self._closed:
                raise FatalError("the client is closed")
            channel = self._channels.get(target)
            if channel is None:
                channel = self._channels[target] = grpc.insecure_channel(target, options=_CHANNEL_OPTIONS)
            call = self._calls[key] = channel.unary_unary(
                rpc.path,
                request_serializer=rpc.request.SerializeToString,
                response_deserializer=rpc.response.FromString,
            )
        return call


def to_semel_error(error: grpc.RpcError, name: str, target: str, timeout_s: float) -> SemelError:
    """Return the exception for a failed call: by the node's own error code, else by gRPC's status."""
    status, details = error.code(), error.details() or ""
    trailers: Any = error.trailing_metadata()  # typed as something that can't be iterated
    for key, value in trailers or ():
        if key == ERROR_TRAILER:
            with suppress(KeyError):
                return error_for(ErrorCode[value], details)
    if status is grpc.StatusCode.UNAVAILABLE:
        return unreachable(target, details)
    if status is grpc.StatusCode.CANCELLED:
        # Not by this client, which hears of that in another way: the node went away with the call in its hands.
        return RetriableError(f"the node at {target} ended before it answered {name}", ErrorCode.NETWORK_EXCEPTION)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RetriableError(
            f"the node at {target} did not answer {name} within {timeout_s * 1000:.0f} ms", ErrorCode.REQUEST_TIMED_OUT
        )
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED or status is grpc.StatusCode.ABORTED:
        return RetriableError(f"the node at {target} refused {name} for now: {details}")
    if status is grpc.StatusCode.UNIMPLEMENTED and "http2 header" in details:
        return FatalError(
            f"{target} is an HTTP/2 server, but no node of Semel ({details})", ErrorCode.UNSUPPORTED_VERSION
        )
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return FatalError(
            f"the node at {target} has no {name}: it is older than this client", ErrorCode.UNSUPPORTED_VERSION
        )
    return FatalError(f"{name} at {target} failed: {details} ({status.name})")


async def _settled(call: Any) -> Any:
    """Wait for a gRPC future on the running loop. Cancelling the waiter cancels the call."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not done.done():
            done.set_result(None)

    def finished(_: object) -> None:  # on one of gRPC's threads
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle)

    call.add_done_callback(finished)
    try:
        await done
    except asyncio.CancelledError:
        call.cancel()
        raise
    try:
        return call.result(timeout=0)
    except grpc.FutureCancelledError:
        raise FatalError("the client was closed while a call was under way") from None
