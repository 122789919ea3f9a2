"""What is common to all messages of the Kafka protocol: API keys, headers, frames, ApiVersions (KIP-35, KIP-511)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.wire import (
    FIRST_FLEXIBLE_VERSION,
    Buffer,
    Part,
    RequestHeader,
    WireFormatError,
    WireReader,
    WireWriter,
    is_flexible,
    join_parts,
    parse_request_header,
)

__all__ = [
    "FIRST_FLEXIBLE_VERSION",
    "ApiKey",
    "ApiVersionRange",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "Buffer",
    "FinalizedFeature",
    "NodeEndpoint",
    "Part",
    "RequestHeader",
    "SupportedFeature",
    "WireFormatError",
    "build_request_header",
    "build_response_header",
    "error_code_of",
    "frame_response",
    "is_flexible",
    "join_parts",
    "parse_request_header",
    "parse_response_header",
]


class ApiKey(IntEnum):
    """Kafka's requests, by the protocol's names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79


_ERROR_CODES = {int(code): code for code in ErrorCode}


def error_code_of(value: int) -> ErrorCode:
    """Return the error code for a number from the wire. One that a newer peer invented is UNKNOWN_SERVER_ERROR."""
    return _ERROR_CODES.get(value, ErrorCode.UNKNOWN_SERVER_ERROR)


class NodeEndpoint(NamedTuple):
    """Where a node listens: named in answers that send a client to another leader (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def build_request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Return request header v1, or v2 for flexible versions, without the frame's size before it."""
    writer = WireWriter()
    writer.begin_request(api_key, api_version, correlation_id, client_id, is_flexible(api_key, api_version))
    return join_parts(writer.finish())[4:]


def response_header_is_flexible(api_key: int, api_version: int) -> bool:
    """Return whether responses have header v1. ApiVersions never has: a client reads it before it knows versions."""
    return api_key != ApiKey.API_VERSIONS and is_flexible(api_key, api_version)


def build_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """Return response header v0, or v1 for flexible versions, without the frame's size before it."""
    writer = WireWriter()
    writer.begin_response(correlation_id, response_header_is_flexible(api_key, api_version))
    return join_parts(writer.finish())[4:]


def parse_response_header(buffer: Buffer, api_key: int, api_version: int, position: int = 0) -> tuple[int, int]:
    """Read a response header at `position`, just after the frame's size.

    Returns the correlation id and the position where the body begins. Raises `WireFormatError`.
    """
    reader = WireReader(buffer, position)
    correlation_id = reader.read_int32()
    if response_header_is_flexible(api_key, api_version):
        reader.skip_tagged_fields()
    return correlation_id, reader.position


def frame_response(api_key: int, api_version: int, correlation_id: int, body: Buffer) -> list[Part]:
    """Return size, response header and `body` as parts to be sent."""
    writer = WireWriter()
    writer.begin_response(correlation_id, response_header_is_flexible(api_key, api_version))
    writer.write_fixed(body)
    return writer.finish_frame()


API_VERSIONS_MIN = 0
API_VERSIONS_MAX = 4


_TAGS_MAX = 100
"""Unknown tagged fields of a request that are passed over. No client sends any."""


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest:
    """Ask what the peer speaks. Always the first request on a connection."""

    client_software_name: str = ""
    client_software_version: str = ""

    @staticmethod
    def parse(buffer: Buffer, version: int, position: int = 0) -> ApiVersionsRequest:
        if version < 3:
            return ApiVersionsRequest()
        reader = WireReader(buffer, position, _TAGS_MAX)
        name = reader.read_string(True)
        software_version = reader.read_string(True)
        reader.skip_tagged_fields()
        return ApiVersionsRequest(name, software_version)

    def _write(self, writer: WireWriter, version: int) -> None:
        if version >= 3:
            writer.write_string(self.client_software_name, True)
            writer.write_string(self.client_software_version, True)
            writer.write_no_tags()

    def build(self, version: int) -> bytes:
        writer = WireWriter()
        self._write(writer, version)
        return join_parts(writer.finish())

    def frame(self, version: int, correlation_id: int, client_id: str | None) -> list[Part]:
        """Return the whole request, from the frame's size on."""
        writer = WireWriter()
        writer.begin_request(ApiKey.API_VERSIONS, version, correlation_id, client_id, version >= 3)
        self._write(writer, version)
        return writer.finish_frame()


class ApiVersionRange(NamedTuple):
    """The versions of one API that a node serves, both ends included."""

    api_key: int
    min_version: int
    max_version: int


class SupportedFeature(NamedTuple):
    name: str
    min_version: int
    max_version: int


class FinalizedFeature(NamedTuple):
    """A feature level in force in the cluster, such as `transaction.version` 2 (KIP-890)."""

    name: str
    max_version_level: int
    min_version_level: int


@dataclass(frozen=True, slots=True)
class ApiVersionsResponse:
    """What a node speaks. `finalized_features_epoch` is -1 where unknown."""

    apis: Sequence[ApiVersionRange]
    error: ErrorCode = ErrorCode.NONE
    throttle_time_ms: int = 0
    supported_features: Sequence[SupportedFeature] = ()
    finalized_features_epoch: int = -1
    finalized_features: Sequence[FinalizedFeature] = ()

    @staticmethod
    def parse(buffer: Buffer, version: int, position: int = 0) -> ApiVersionsResponse:
        reader = WireReader(buffer, position)
        flexible = version >= 3
        error = error_code_of(reader.read_int16())
        apis = []
        for _ in range(reader.read_count(flexible, 6)):
            apis.append(ApiVersionRange(reader.read_int16(), reader.read_int16(), reader.read_int16()))
            if flexible:
                reader.skip_tagged_fields()
        throttle_time_ms = reader.read_int32() if version >= 1 else 0
        supported: list[SupportedFeature] = []
        finalized: list[FinalizedFeature] = []
        finalized_epoch = -1
        for _ in range(reader.read_tag_count() if flexible else 0):
            tag, size = reader.read_uvarint(), reader.read_uvarint()
            end = reader.position + size
            if tag == 0:
                for _ in range(reader.read_count(True, 6)):
                    supported.append(
                        SupportedFeature(reader.read_string(True), reader.read_int16(), reader.read_int16())
                    )
                    reader.skip_tagged_fields()
            elif tag == 1:
                finalized_epoch = reader.read_int64()
            elif tag == 2:
                for _ in range(reader.read_count(True, 6)):
                    finalized.append(
                        FinalizedFeature(reader.read_string(True), reader.read_int16(), reader.read_int16())
                    )
                    reader.skip_tagged_fields()
            else:
                reader.need(size)
            if reader.position != end:
                raise WireFormatError(f"tagged field {tag} ends at {reader.position}, not at {end} as it says")
        return ApiVersionsResponse(apis, error, throttle_time_ms, supported, finalized_epoch, finalized)

    def _write(self, writer: WireWriter, version: int) -> None:
        flexible = version >= 3
        writer.write_int16(self.error)
        writer.write_count(len(self.apis), flexible)
        for api in self.apis:
            writer.write_int16(api.api_key)
            writer.write_int16(api.min_version)
            writer.write_int16(api.max_version)
            if flexible:
                writer.write_no_tags()
        if version >= 1:
            writer.write_int32(self.throttle_time_ms)
        if flexible:
            self._write_tags(writer, version)

    def _write_tags(self, writer: WireWriter, version: int) -> None:
        # Before version 4, Java clients fail on a feature whose lowest level is 0 (KAFKA-17011).
        supported = [feature for feature in self.supported_features if version >= 4 or feature.min_version > 0]
        fields: list[tuple[int, WireWriter]] = []
        if supported:
            field = WireWriter()
            field.write_count(len(supported), True)
            for feature in supported:
                field.write_string(feature.name, True)
                field.write_int16(feature.min_version)
                field.write_int16(feature.max_version)
                field.write_no_tags()
            fields.append((0, field))
        if self.finalized_features_epoch != -1:
            field = WireWriter()
            field.write_int64(self.finalized_features_epoch)
            fields.append((1, field))
        if self.finalized_features:
            field = WireWriter()
            field.write_count(len(self.finalized_features), True)
            for level in self.finalized_features:
                field.write_string(level.name, True)
                field.write_int16(level.max_version_level)
                field.write_int16(level.min_version_level)
                field.write_no_tags()
            fields.append((2, field))
        writer.write_uvarint(len(fields))
        for tag, field in fields:
            data = join_parts(field.finish())
            writer.write_uvarint(tag)
            writer.write_uvarint(len(data))
            writer.write_fixed(data)

    def build(self, version: int) -> bytes:
        writer = WireWriter()
        self._write(writer, version)
        return join_parts(writer.finish())

    def frame(self, version: int, correlation_id: int) -> list[Part]:
        """Return the whole response, from the frame's size on."""
        writer = WireWriter()
        writer.begin_response(correlation_id, False)
        self._write(writer, version)
        return writer.finish_frame()
