"""How refusals look on gRPC: a status code, a message with the next step, and Kafka's name of the error.

The status says what kind of thing went wrong to tools that know only gRPC; programs should go by "semel-error".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc

from semel.protocol.errors import ErrorCode, FencedError, RetriableError, SemelError
from semel.protocol.v1 import common_pb2

ERROR_METADATA: Final = "semel-error"
"""The trailing metadata that names the error as the Kafka protocol does."""

_MESSAGE_LENGTH_MAX: Final = 2_000  # trailing metadata share 8 KiB of HTTP/2 headers, and bytes may be escaped

_STATUS: Final[Mapping[ErrorCode, grpc.StatusCode]] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: grpc.StatusCode.INTERNAL,
    ErrorCode.REQUEST_TIMED_OUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: grpc.StatusCode.NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_ID: grpc.StatusCode.NOT_FOUND,
    ErrorCode.GROUP_ID_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.RESOURCE_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.TOPIC_ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.DUPLICATE_RESOURCE: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.OFFSET_OUT_OF_RANGE: grpc.StatusCode.OUT_OF_RANGE,
    ErrorCode.UNSUPPORTED_VERSION: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.GROUP_MAX_SIZE_REACHED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.RECORD_LIST_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.MESSAGE_TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.SASL_AUTHENTICATION_FAILED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorCode.CONCURRENT_TRANSACTIONS: grpc.StatusCode.ABORTED,
    ErrorCode.REBALANCE_IN_PROGRESS: grpc.StatusCode.ABORTED,
    ErrorCode.TRANSACTION_ABORTABLE: grpc.StatusCode.ABORTED,
    ErrorCode.ILLEGAL_GENERATION: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.UNKNOWN_MEMBER_ID: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INVALID_TXN_STATE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.NON_EMPTY_GROUP: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.TOPIC_DELETION_DISABLED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.POLICY_VIOLATION: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INVALID_UPDATE_VERSION: grpc.StatusCode.FAILED_PRECONDITION,
}

_MESSAGES: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition: create it, or check its name",
    ErrorCode.UNKNOWN_TOPIC_ID: "there is no topic with this id: it may have been deleted; ask for the metadata again",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the log does not have this offset: ask for its earliest and latest",
    ErrorCode.KAFKA_STORAGE_ERROR: "the partition's log is offline: `semel doctor` says why, and what to do",
    ErrorCode.MESSAGE_TOO_LARGE: "a batch is larger than the topic's max.message.bytes: send smaller batches",
    ErrorCode.CORRUPT_MESSAGE: "a batch's checksum or structure is wrong: it was damaged on its way, send it again",
    ErrorCode.INVALID_RECORD: "a batch has records that the topic does not take (a compacted topic needs keys)",
    ErrorCode.INVALID_TIMESTAMP: "a record's time is outside of what the topic takes (message.timestamp.*.max.ms)",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "a batch before this one is missing: abort, or begin with a new producer",
    ErrorCode.INVALID_PRODUCER_EPOCH: "a newer producer has taken over: this one must stop",
    ErrorCode.PRODUCER_FENCED: "a newer producer with the same transactional id has taken over: this one must stop",
    ErrorCode.INVALID_TXN_STATE: "the transaction does not allow this now",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "a transaction with an offset of this partition is open: ask again shortly",
    ErrorCode.INVALID_UPDATE_VERSION: "the group stands elsewhere than this commit expects: somebody else moved it",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the metadata text is longer than offset.metadata.max.bytes",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group does not know this member: join again",
    ErrorCode.FENCED_INSTANCE_ID: "another member with the same group.instance.id has taken over: this one must stop",
    ErrorCode.MEMBER_ID_REQUIRED: "join again with the member id of this answer",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "members of the group read this topic: stop them first",
    ErrorCode.REQUEST_TIMED_OUT: "it took longer than allowed: it may still happen",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "an ACL is missing for the topic: an operator adds it with `semel acl add`",
    ErrorCode.OPERATION_NOT_ATTEMPTED: "another item of the request failed, so this one was not tried",
}


def status_of(error: SemelError) -> grpc.StatusCode:
    """Return the gRPC status that comes nearest to an error."""
    if (status := _STATUS.get(error.code)) is not None:
        return status
    if isinstance(error, RetriableError):
        return grpc.StatusCode.UNAVAILABLE
    if isinstance(error, FencedError):
        return grpc.StatusCode.FAILED_PRECONDITION
    # What is left is a fixed property of the request: a wrong value, name or size.
    return grpc.StatusCode.INVALID_ARGUMENT


def status_message(error: SemelError) -> str:
    """Return the message of an error, bounded, since it travels in a header."""
    text = error.message
    return text if len(text) <= _MESSAGE_LENGTH_MAX else text[: _MESSAGE_LENGTH_MAX - 3] + "..."


def message_of(code: ErrorCode) -> str:
    """Return what to tell about an error that came without a message."""
    return _MESSAGES.get(code) or code.name.lower().replace("_", " ")


def item_error(code: ErrorCode, message: str | None = None) -> common_pb2.Error | None:
    """Return the error of one item of an answer; None, which leaves the field out, for none."""
    if code is ErrorCode.NONE:
        return None
    return common_pb2.Error(code=int(code), name=code.name, message=message or message_of(code))
