# cython: annotation_typing=False
"""Produce, versions 3 to 13, for both sides. Record sets are never copied on the way in, nor joined on the way out.

Version 5 adds the log start offset, 8 record errors and messages (KIP-467), 9 the flexible forms, 10 the current leader
(KIP-951), 11 TRANSACTION_ABORTABLE, and 12 lets the broker add the partition to the transaction (both KIP-890). Version
13 names topics by their ids (KIP-516), so that no producer writes into another topic that was made under the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID, TopicId
from semel.protocol.kafka.api import NodeEndpoint, error_code_of
from semel.protocol.kafka.wire import ANY_NUMBER, Buffer, Part, WireFormatError, WireReader, WireWriter, join_parts

if TYPE_CHECKING:
    from semel.protocol.trace_context import TraceContext

PRODUCE = 0
PRODUCE_MIN_VERSION = 3
PRODUCE_MAX_VERSION = 12
"""The last that names topics, which is what is spoken where names are all that is known."""
PRODUCE_TOPIC_ID_VERSION = 13

_TOPIC_ID_CACHE_MAX = 4096
_topic_ids: dict[bytes, TopicId] = {bytes(16): ZERO_TOPIC_ID}

ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1


def _check_version(version: int) -> None:
    if not 3 <= version <= 13:
        raise WireFormatError(
            f"Produce version {version} is not one of {PRODUCE_MIN_VERSION} to {PRODUCE_TOPIC_ID_VERSION}",
            ErrorCode.UNSUPPORTED_VERSION,
        )


def read_topic_id(reader: WireReader) -> TopicId:
    """Read a topic id. Making a UUID costs more than the rest of a partition, so known ones are kept."""
    data = reader.read_fixed(16)
    known = _topic_ids.get(data)
    if known is None:
        if len(_topic_ids) >= _TOPIC_ID_CACHE_MAX:
            _topic_ids.clear()
        known = TopicId(UUID(bytes=data))
        _topic_ids[data] = known
    return known


class ProducePartition:
    """The record set for one partition: whole v2 batches, or None where a client sent a null.

    Up to version 12 it is named by `topic`, from 13 on by `topic_id`. `trace` is the context that it was sent in, where
    the node traces; it is no part of the message's body.
    """

    def __init__(self, topic: str, partition: int, records: Buffer | None, topic_id: TopicId = ZERO_TOPIC_ID) -> None:
        self.topic: str = topic
        self.partition: int = partition
        self.records: Buffer | None = records
        self.topic_id: TopicId = topic_id
        self.trace: TraceContext | None = None

    def __repr__(self) -> str:
        size = "null" if self.records is None else f"{len(self.records)} bytes"
        return f"ProducePartition({self.topic}-{self.partition}, {size})"


class ProduceRequest:
    """Append record sets. `acks` is 0, 1 or -1 for all in-sync replicas; `timeout_ms` bounds the wait for them.

    `trace` is what the request's header carries of trace contexts (protocol/trace_context.py), one for each partition.
    Partitions are kept in the order of the request. Those of one topic should stand together: each run of the same
    topic is one entry on the wire.
    """

    def __init__(
        self, partitions: list[ProducePartition], transactional_id: str | None, acks: int, timeout_ms: int
    ) -> None:
        self.partitions: list[ProducePartition] = partitions
        self.transactional_id: str | None = transactional_id
        self.acks: int = acks
        self.timeout_ms: int = timeout_ms
        self.trace: memoryview | None = None

    def __repr__(self) -> str:
        return (
            f"ProduceRequest({self.partitions!r}, transactional_id={self.transactional_id!r}, acks={self.acks}, "
            f"timeout_ms={self.timeout_ms})"
        )

    @staticmethod
    def parse(buffer: Buffer, version: int, position: int = 0, entries_max: int = ANY_NUMBER) -> ProduceRequest:
        """Read the body at `position`. Records are views of `buffer`.

        entries_max: of all its arrays and tagged fields together. Raises `WireFormatError`.
        """
        return _parse_request(WireReader(buffer, position, entries_max), version)

    def build_parts(self, version: int) -> list[Part]:
        """Return the body as parts; large record sets are parts of their own, not copied."""
        writer = WireWriter()
        _write_request(self, writer, version)
        return writer.finish()

    def build(self, version: int) -> bytes:
        return join_parts(self.build_parts(version))

    def frame(self, version: int, correlation_id: int, client_id: str | None) -> list[Part]:
        """Return the whole request, from the frame's size on, as parts."""
        writer = WireWriter()
        writer.begin_request(PRODUCE, version, correlation_id, client_id, version >= 9)
        _write_request(self, writer, version)
        return writer.finish_frame()


def _parse_request(reader: WireReader, version: int) -> ProduceRequest:
    _check_version(version)
    flexible = version >= 9
    transactional_id = reader.read_nullable_string(flexible)
    acks = reader.read_int16()
    timeout_ms = reader.read_int32()
    partitions = []
    topic = ""
    topic_id = ZERO_TOPIC_ID
    topics = reader.read_count(flexible, 2)
    while topics > 0:
        topics = topics - 1
        if version >= 13:
            topic_id = read_topic_id(reader)
        else:
            topic = reader.read_string(flexible)
        count = reader.read_count(flexible, 5)
        while count > 0:
            count = count - 1
            item = ProducePartition.__new__(ProducePartition)
            item.topic = topic
            item.topic_id = topic_id
            item.partition = reader.read_int32()
            item.records = reader.read_records(flexible)
            item.trace = None
            if flexible:
                reader.skip_tagged_fields()
            partitions.append(item)
        if flexible:
            reader.skip_tagged_fields()
    if flexible:
        reader.skip_tagged_fields()
    reader.expect_end()
    return ProduceRequest(partitions, transactional_id, acks, timeout_ms)


def _run_of_topic(partitions: list[ProducePartition], start: int) -> int:
    """Return the end of the run of partitions that name the same topic as the one at `start`."""
    first = partitions[start]
    end = start + 1
    while end < len(partitions):
        item = partitions[end]
        if item.topic != first.topic or item.topic_id is not first.topic_id:
            break
        end = end + 1
    return end


def _write_request(request: ProduceRequest, writer: WireWriter, version: int) -> None:
    _check_version(version)
    flexible = version >= 9
    writer.write_string(request.transactional_id, flexible)
    writer.write_int16(request.acks)
    writer.write_int32(request.timeout_ms)
    partitions = request.partitions
    runs = []
    at = 0
    while at < len(partitions):
        at = _run_of_topic(partitions, at)
        runs.append(at)
    writer.write_count(len(runs), flexible)
    at = 0
    for end in runs:
        first = partitions[at]
        if version >= 13:
            writer.write_fixed(first.topic_id.bytes)
        else:
            writer.write_string(first.topic, flexible)
        writer.write_count(end - at, flexible)
        while at < end:
            item = partitions[at]
            writer.write_int32(item.partition)
            writer.write_records(item.records, flexible)
            if flexible:
                writer.write_int8(0)
            at = at + 1
        if flexible:
            writer.write_int8(0)
    if flexible:
        writer.write_int8(0)


class ProducePartitionResponse:
    """What became of one partition's record set.

    `base_offset` is -1 after an error, unless the batch was appended and it is in doubt whether it stays (as with
    NOT_LEADER_OR_FOLLOWER, where another node leads before it is committed). `log_append_time_ms` is -1 where the topic
    keeps the producer's timestamps.
    `record_errors` are (index in the batch, message) of records for which the batch was refused. `leader_id` and
    `leader_epoch` are -1, or where to go instead (KIP-951). From version 13 on it is named by `topic_id`.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        error: ErrorCode,
        base_offset: int = -1,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        record_errors: Sequence[tuple[int, str | None]] = (),
        error_message: str | None = None,
        leader_id: int = -1,
        leader_epoch: int = -1,
        topic_id: TopicId = ZERO_TOPIC_ID,
    ) -> None:
        self.topic: str = topic
        self.partition: int = partition
        self.error: ErrorCode = error
        self.base_offset: int = base_offset
        self.log_append_time_ms: int = log_append_time_ms
        self.log_start_offset: int = log_start_offset
        self.record_errors: Sequence[tuple[int, str | None]] = record_errors
        self.error_message: str | None = error_message
        self.leader_id: int = leader_id
        self.leader_epoch: int = leader_epoch
        self.topic_id: TopicId = topic_id

    def __repr__(self) -> str:
        return (
            f"ProducePartitionResponse({self.topic}-{self.partition}, {self.error!r}, base_offset={self.base_offset}, "
            f"message={self.error_message!r})"
        )


class ProduceResponse:
    """The answer to a `ProduceRequest`, partitions in the order of the request."""

    def __init__(
        self,
        partitions: list[ProducePartitionResponse],
        throttle_time_ms: int = 0,
        node_endpoints: Sequence[NodeEndpoint] = (),
    ) -> None:
        self.partitions: list[ProducePartitionResponse] = partitions
        self.throttle_time_ms: int = throttle_time_ms
        self.node_endpoints: Sequence[NodeEndpoint] = node_endpoints

    def __repr__(self) -> str:
        return f"ProduceResponse({self.partitions!r}, throttle_time_ms={self.throttle_time_ms})"

    @staticmethod
    def parse(buffer: Buffer, version: int, position: int = 0) -> ProduceResponse:
        """Read the body at `position`. Raises `WireFormatError`."""
        return _parse_response(WireReader(buffer, position), version)

    def build(self, version: int) -> bytes:
        writer = WireWriter()
        _write_response(self, writer, version)
        return join_parts(writer.finish())

    def frame(self, version: int, correlation_id: int) -> list[Part]:
        """Return the whole response, from the frame's size on, as parts."""
        writer = WireWriter()
        writer.begin_response(correlation_id, version >= 9)
        _write_response(self, writer, version)
        return writer.finish_frame()


def _parse_response(reader: WireReader, version: int) -> ProduceResponse:
    _check_version(version)
    flexible = version >= 9
    partitions = []
    endpoints: Sequence[NodeEndpoint] = ()
    topic = ""
    topic_id = ZERO_TOPIC_ID
    topics = reader.read_count(flexible, 2)
    while topics > 0:
        topics = topics - 1
        if version >= 13:
            topic_id = read_topic_id(reader)
        else:
            topic = reader.read_string(flexible)
        count = reader.read_count(flexible, 22)
        while count > 0:
            count = count - 1
            item = ProducePartitionResponse(topic, reader.read_int32(), error_code_of(reader.read_int16()))
            item.topic_id = topic_id
            item.base_offset = reader.read_int64()
            item.log_append_time_ms = reader.read_int64()
            if version >= 5:
                item.log_start_offset = reader.read_int64()
            if version >= 8:
                item.record_errors = _read_record_errors(reader, flexible)
                item.error_message = reader.read_nullable_string(flexible)
            if flexible:
                _read_partition_tags(reader, item, version)
            partitions.append(item)
        if flexible:
            reader.skip_tagged_fields()
    throttle_time_ms = reader.read_int32()
    if flexible:
        endpoints = read_endpoint_tags(reader, version >= 10)
    reader.expect_end()
    return ProduceResponse(partitions, throttle_time_ms, endpoints)


def _read_record_errors(reader: WireReader, flexible: bool) -> Sequence[tuple[int, str | None]]:
    count = reader.read_count(flexible, 5)
    if count <= 0:
        return ()
    errors = []
    while count > 0:
        count = count - 1
        index = reader.read_int32()
        errors.append((index, reader.read_nullable_string(flexible)))
        if flexible:
            reader.skip_tagged_fields()
    return tuple(errors)


def _read_partition_tags(reader: WireReader, item: ProducePartitionResponse, version: int) -> None:
    tags = reader.read_tag_count()
    while tags > 0:
        tags = tags - 1
        tag = reader.read_uvarint()
        size = reader.read_uvarint()
        if tag == 0 and version >= 10:
            end = reader.position + size
            item.leader_id = reader.read_int32()
            item.leader_epoch = reader.read_int32()
            reader.skip_tagged_fields()
            check_tag_end(reader, tag, end)
        else:
            reader.need(size)


def check_tag_end(reader: WireReader, tag: int, end: int) -> None:
    """Refuse a tagged field whose size is not that of what it holds."""
    if reader.position != end:
        raise WireFormatError(f"tagged field {tag} ends at {reader.position}, not at {end} as it says")


def read_endpoint_tags(reader: WireReader, known: bool) -> Sequence[NodeEndpoint]:
    """Read a response's last tagged fields, of which tag 0 lists node endpoints in the versions that know it."""
    endpoints: list[NodeEndpoint] = []
    tags = reader.read_tag_count()
    while tags > 0:
        tags = tags - 1
        tag = reader.read_uvarint()
        size = reader.read_uvarint()
        if tag == 0 and known:
            end = reader.position + size
            count = reader.read_count(True, 11)
            while count > 0:
                count = count - 1
                node_id = reader.read_int32()
                host = reader.read_string(True)
                port = reader.read_int32()
                endpoints.append(NodeEndpoint(node_id, host, port, reader.read_nullable_string(True)))
                reader.skip_tagged_fields()
            check_tag_end(reader, tag, end)
        else:
            reader.need(size)
    return endpoints


def write_endpoint_tags(writer: WireWriter, endpoints: Sequence[NodeEndpoint], known: bool) -> None:
    """Write a response's last tagged fields: the endpoints under tag 0, where there are any and they are known."""
    if not endpoints or not known:
        writer.write_int8(0)
        return
    field = WireWriter()
    field.write_count(len(endpoints), True)
    for endpoint in endpoints:
        field.write_int32(endpoint.node_id)
        field.write_string(endpoint.host, True)
        field.write_int32(endpoint.port)
        field.write_string(endpoint.rack, True)
        field.write_int8(0)
    data = join_parts(field.finish())
    writer.write_int8(1)
    writer.write_uvarint(0)
    writer.write_uvarint(len(data))
    writer.write_fixed(data)


def _response_run_of_topic(partitions: list[ProducePartitionResponse], start: int) -> int:
    first = partitions[start]
    end = start + 1
    while end < len(partitions):
        item = partitions[end]
        if item.topic != first.topic or item.topic_id is not first.topic_id:
            break
        end = end + 1
    return end


def _write_response(response: ProduceResponse, writer: WireWriter, version: int) -> None:
    _check_version(version)
    flexible = version >= 9
    partitions = response.partitions
    runs = []
    at = 0
    while at < len(partitions):
        at = _response_run_of_topic(partitions, at)
        runs.append(at)
    writer.write_count(len(runs), flexible)
    at = 0
    for end in runs:
        first = partitions[at]
        if version >= 13:
            writer.write_fixed(first.topic_id.bytes)
        else:
            writer.write_string(first.topic, flexible)
        writer.write_count(end - at, flexible)
        while at < end:
            item = partitions[at]
            writer.write_int32(item.partition)
            writer.write_int16(item.error)
            writer.write_int64(item.base_offset)
            writer.write_int64(item.log_append_time_ms)
            if version >= 5:
                writer.write_int64(item.log_start_offset)
            if version >= 8:
                _write_record_errors(writer, item.record_errors, flexible)
                writer.write_string(item.error_message, flexible)
            if flexible:
                if version >= 10 and (item.leader_id != -1 or item.leader_epoch != -1):
                    write_leader_tag(writer, 0, item.leader_id, item.leader_epoch)
                else:
                    writer.write_int8(0)
            at = at + 1
        if flexible:
            writer.write_int8(0)
    writer.write_int32(response.throttle_time_ms)
    if flexible:
        write_endpoint_tags(writer, response.node_endpoints, version >= 10)


def _write_record_errors(writer: WireWriter, errors: Sequence[tuple[int, str | None]], flexible: bool) -> None:
    writer.write_count(len(errors), flexible)
    for index, message in errors:
        writer.write_int32(index)
        writer.write_string(message, flexible)
        if flexible:
            writer.write_int8(0)


def write_leader_tag(writer: WireWriter, tag: int, leader_id: int, leader_epoch: int) -> None:
    """Write tagged fields that hold just the current leader (KIP-951)."""
    writer.write_int8(1)
    writer.write_uvarint(tag)
    writer.write_uvarint(9)
    writer.write_int32(leader_id)
    writer.write_int32(leader_epoch)
    writer.write_int8(0)
