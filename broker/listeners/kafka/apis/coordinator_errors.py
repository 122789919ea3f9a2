"""What a client of the Kafka protocol is told when a coordinator refuses, or its log does."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from semel.protocol.errors import ErrorCode, SemelError

_OF_THE_LOG: Mapping[ErrorCode, ErrorCode] = MappingProxyType(
    {
        ErrorCode.NONE: ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
        ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Errors of the coordinator's own log, as Kafka's coordinators pass them on: clients know these from a coordinator."""


def coordinator_code(error: SemelError) -> ErrorCode:
    """Return the error code that stands for a refusal of a whole request by a coordinator."""
    return _OF_THE_LOG.get(error.code, error.code)


def client_host(peer: str) -> str:
    """Return a peer's address in the form that Kafka's tools show: `/127.0.0.1`."""
    return "/" + peer.rpartition(":")[0]
