# cython: annotation_typing=False
"""Fetch, versions 4 to 18, for both sides. Records go through as views, or as ranges of files that a transport sends.

Version 5 adds the log start offset, 7 fetch sessions (KIP-227), 9 the leader epoch (KIP-320), 11 rack and preferred
replica (KIP-392), 12 the flexible forms and divergence (KIP-595), 13 topic ids in place of names (KIP-516), 15 the
replica's state (KIP-903), 16 node endpoints (KIP-951), 17 the replica's directory (KIP-853), 18 its high watermark
(KIP-1166), which nothing here asks for.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.protocol.api.topics import IsolationLevel
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID, TopicId
from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.kafka.api import NodeEndpoint, error_code_of
from semel.protocol.kafka.produce import check_tag_end, read_endpoint_tags, read_topic_id, write_endpoint_tags
from semel.protocol.kafka.wire import ANY_NUMBER, Buffer, Part, WireFormatError, WireReader, WireWriter, join_parts

FETCH = 1
FETCH_MIN_VERSION = 4
FETCH_MAX_VERSION = 18

NO_SESSION_ID = 0
INITIAL_SESSION_EPOCH = 0
"""Asks for a full fetch that begins a session (KIP-227)."""
FINAL_SESSION_EPOCH = -1
"""Asks for a full fetch without a session, ending the one it names."""

_READ_COMMITTED = IsolationLevel.READ_COMMITTED
_READ_UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED
"""At hand for compiled code: a member of an enum costs it more than anything else that it looks up."""


def _check_version(version: int) -> None:
    if not 4 <= version <= 18:
        raise WireFormatError(
            f"Fetch version {version} is not one of {FETCH_MIN_VERSION} to {FETCH_MAX_VERSION}",
            ErrorCode.UNSUPPORTED_VERSION,
        )


class FetchPartition:
    """One partition to read from. Up to version 12 it is named by `topic`, from 13 on by `topic_id`.

    `current_leader_epoch` and `last_fetched_epoch` are -1 where unknown. `log_start_offset` and `replica_directory_id`
    are a follower's.
    """

    def __init__(
        self,
        topic: str,
        topic_id: TopicId,
        partition: int,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        log_start_offset: int = -1,
        replica_directory_id: bytes | None = None,
    ) -> None:
        self.topic: str = topic
        self.topic_id: TopicId = topic_id
        self.partition: int = partition
        self.fetch_offset: int = fetch_offset
        self.max_bytes: int = max_bytes
        self.current_leader_epoch: int = current_leader_epoch
        self.last_fetched_epoch: int = last_fetched_epoch
        self.log_start_offset: int = log_start_offset
        self.replica_directory_id: bytes | None = replica_directory_id

    def __repr__(self) -> str:
        return (
            f"FetchPartition({self.topic or self.topic_id}-{self.partition}, fetch_offset={self.fetch_offset}, "
            f"max_bytes={self.max_bytes}, current_leader_epoch={self.current_leader_epoch})"
        )


class ForgottenPartition:
    """One partition that leaves a fetch session."""

    def __init__(self, topic: str, topic_id: TopicId, partition: int) -> None:
        self.topic: str = topic
        self.topic_id: TopicId = topic_id
        self.partition: int = partition

    def __repr__(self) -> str:
        return f"ForgottenPartition({self.topic or self.topic_id}-{self.partition})"


class FetchRequest:
    """Read from partitions, in the order given. Waits up to `max_wait_ms` until `min_bytes` are there.

    `session_id` 0 with `session_epoch` 0 begins a session, -1 does without; later epochs carry only what changed.
    Partitions of one topic should stand together: each run of the same topic is one entry on the wire.
    """

    def __init__(
        self,
        partitions: list[FetchPartition],
        max_wait_ms: int,
        min_bytes: int = 1,
        max_bytes: int = INT32_MAX,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        session_id: int = 0,
        session_epoch: int = -1,
        forgotten: list[ForgottenPartition] | None = None,
        rack_id: str = "",
        replica_id: int = -1,
        replica_epoch: int = -1,
        cluster_id: str | None = None,
    ) -> None:
        self.partitions: list[FetchPartition] = partitions
        self.max_wait_ms: int = max_wait_ms
        self.min_bytes: int = min_bytes
        self.max_bytes: int = max_bytes
        self.isolation: IsolationLevel = isolation
        self.session_id: int = session_id
        self.session_epoch: int = session_epoch
        self.forgotten: list[ForgottenPartition] = [] if forgotten is None else forgotten
        self.rack_id: str = rack_id
        self.replica_id: int = replica_id
        self.replica_epoch: int = replica_epoch
        self.cluster_id: str | None = cluster_id

    def __repr__(self) -> str:
        return (
            f"FetchRequest({self.partitions!r}, max_wait_ms={self.max_wait_ms}, min_bytes={self.min_bytes}, "
            f"max_bytes={self.max_bytes}, isolation={self.isolation!r}, session_id={self.session_id}, "
            f"session_epoch={self.session_epoch}, forgotten={self.forgotten!r})"
        )

    @staticmethod
    def parse(buffer: Buffer, version: int, position: int = 0, entries_max: int = ANY_NUMBER) -> FetchRequest:
        """Read the body at `position`.

        entries_max: of all its arrays and tagged fields together. Raises `WireFormatError`.
        """
        return _parse_request(WireReader(buffer, position, entries_max), version)

    def build(self, version: int) -> bytes:
        writer = WireWriter()
        _write_request(self, writer, version)
        return join_parts(writer.finish())

    def frame(self, version: int, correlation_id: int, client_id: str | None) -> list[Part]:
        """Return the whole request, from the frame's size on, as parts."""
        writer = WireWriter()
        writer.begin_request(FETCH, version, correlation_id, client_id, version >= 12)
        _write_request(self, writer, version)
        return writer.finish_frame()


def _parse_request(reader: WireReader, version: int) -> FetchRequest:
    _check_version(version)
    flexible = version >= 12
    request = FetchRequest([], 0)
    if version < 15:
        request.replica_id = reader.read_int32()
    request.max_wait_ms = reader.read_int32()
    request.min_bytes = reader.read_int32()
    request.max_bytes = reader.read_int32()
    # Kafka takes 1 for read_committed and everything else for read_uncommitted.
    isolation = reader.read_int8()
    request.isolation = _READ_COMMITTED if isolation == 1 else _READ_UNCOMMITTED
    if version >= 7:
        request.session_id = reader.read_int32()
        request.session_epoch = reader.read_int32()
    _read_fetch_topics(reader, request.partitions, version)
    if version >= 7:
        _read_forgotten_topics(reader, request.forgotten, version)
    if version >= 11:
        request.rack_id = reader.read_string(flexible)
    if flexible:
        _read_request_tags(reader, request, version)
    reader.expect_end()
    return request


def _read_fetch_topics(reader: WireReader, partitions: list[FetchPartition], version: int) -> None:
    flexible = version >= 12
    topic = ""
    topic_id = ZERO_TOPIC_ID
    topics = reader.read_count(flexible, 2)
    while topics > 0:
        topics = topics - 1
        if version >= 13:
            topic_id = read_topic_id(reader)
        else:
            topic = reader.read_string(flexible)
        count = reader.read_count(flexible, 16)
        while count > 0:
            count = count - 1
            item = FetchPartition.__new__(FetchPartition)
            item.topic = topic
            item.topic_id = topic_id
            item.partition = reader.read_int32()
            item.current_leader_epoch = reader.read_int32() if version >= 9 else -1
            item.fetch_offset = reader.read_int64()
            item.last_fetched_epoch = reader.read_int32() if version >= 12 else -1
            item.log_start_offset = reader.read_int64() if version >= 5 else -1
            item.max_bytes = reader.read_int32()
            item.replica_directory_id = None
            if flexible:
                _read_fetch_partition_tags(reader, item, version)
            partitions.append(item)
        if flexible:
            reader.skip_tagged_fields()


def _read_fetch_partition_tags(reader: WireReader, item: FetchPartition, version: int) -> None:
    tags = reader.read_tag_count()
    while tags > 0:
        tags = tags - 1
        tag = reader.read_uvarint()
        size = reader.read_uvarint()
        if tag == 0 and version >= 17:
            end = reader.position + size
            item.replica_directory_id = reader.read_fixed(16)
            check_tag_end(reader, tag, end)
        else:
            reader.need(size)


def _read_forgotten_topics(reader: WireReader, forgotten: list[ForgottenPartition], version: int) -> None:
    flexible = version >= 12
    topic = ""
    topic_id = ZERO_TOPIC_ID
    topics = reader.read_count(flexible, 2)
    while topics > 0:
        topics = topics - 1
        if version >= 13:
            topic_id = read_topic_id(reader)
        else:
            topic = reader.read_string(flexible)
        count = reader.read_count(flexible, 4)
        while count > 0:
            count = count - 1
            forgotten.append(ForgottenPartition(topic, topic_id, reader.read_int32()))
        if flexible:
            reader.skip_tagged_fields()


def _read_request_tags(reader: WireReader, request: FetchRequest, version: int) -> None:
    tags = reader.read_tag_count()
    while tags > 0:
        tags = tags - 1
        tag = reader.read_uvarint()
        size = reader.read_uvarint()
        end = reader.position + size
        if tag == 0:
            request.cluster_id = reader.read_nullable_string(True)
        elif tag == 1 and version >= 15:
            request.replica_id = reader.read_int32()
            request.replica_epoch = reader.read_int64()
            reader.skip_tagged_fields()
        else:
            reader.need(size)
        check_tag_end(reader, tag, end)


def _write_request(request: FetchRequest, writer: WireWriter, version: int) -> None:
    _check_version(version)
    flexible = version >= 12
    if version < 15:
        writer.write_int32(request.replica_id)
    writer.write_int32(request.max_wait_ms)
    writer.write_int32(request.min_bytes)
    writer.write_int32(request.max_bytes)
    writer.write_int8(request.isolation)
    if version >= 7:
        writer.write_int32(request.session_id)
        writer.write_int32(request.session_epoch)
    _write_fetch_topics(writer, request.partitions, version)
    if version >= 7:
        _write_forgotten_topics(writer, request.forgotten, version)
    if version >= 11:
        writer.write_string(request.rack_id, flexible)
    if flexible:
        _write_request_tags(writer, request, version)


def _write_fetch_topics(writer: WireWriter, partitions: list[FetchPartition], version: int) -> None:
    flexible = version >= 12
    runs = []
    at = 0
    while at < len(partitions):
        first = partitions[at]
        at = at + 1
        while at < len(partitions):
            item = partitions[at]
            if (item.topic_id != first.topic_id) if version >= 13 else (item.topic != first.topic):
                break
            at = at + 1
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
            at = at + 1
            writer.write_int32(item.partition)
            if version >= 9:
                writer.write_int32(item.current_leader_epoch)
            writer.write_int64(item.fetch_offset)
            if version >= 12:
                writer.write_int32(item.last_fetched_epoch)
            if version >= 5:
                writer.write_int64(item.log_start_offset)
            writer.write_int32(item.max_bytes)
            if flexible:
                directory = item.replica_directory_id
                if version >= 17 and directory is not None:
                    if len(directory) != 16:
                        raise WireFormatError(f"a directory id has 16 bytes, not {len(directory)}")
                    writer.write_int8(1)
                    writer.write_uvarint(0)
                    writer.write_uvarint(16)
                    writer.write_fixed(directory)
                else:
                    writer.write_int8(0)
        if flexible:
            writer.write_int8(0)


def _write_forgotten_topics(writer: WireWriter, forgotten: list[ForgottenPartition], version: int) -> None:
    flexible = version >= 12
    runs = []
    at = 0
    while at < len(forgotten):
        first = forgotten[at]
        at = at + 1
        while at < len(forgotten):
            item = forgotten[at]
            if (item.topic_id != first.topic_id) if version >= 13 else (item.topic != first.topic):
                break
            at = at + 1
        runs.append(at)
    writer.write_count(len(runs), flexible)
    at = 0
    for end in runs:
        first = forgotten[at]
        if version >= 13:
            writer.write_fixed(first.topic_id.bytes)
        else:
            writer.write_string(first.topic, flexible)
        writer.write_count(end - at, flexible)
        while at < end:
            item = forgotten[at]
            at = at + 1
            writer.write_int32(item.partition)
        if flexible:
            writer.write_int8(0)


def _write_request_tags(writer: WireWriter, request: FetchRequest, version: int) -> None:
    has_state = version >= 15 and (request.replica_id != -1 or request.replica_epoch != -1)
    writer.write_uvarint((1 if request.cluster_id is not None else 0) + (1 if has_state else 0))
    if request.cluster_id is not None:
        field = WireWriter()
        field.write_string(request.cluster_id, True)
        data = join_parts(field.finish())
        writer.write_uvarint(0)
        writer.write_uvarint(len(data))
        writer.write_fixed(data)
    if has_state:
        writer.write_uvarint(1)
        writer.write_uvarint(13)
        writer.write_int32(request.replica_id)
        writer.write_int64(request.replica_epoch)
        writer.write_int8(0)


class FetchPartitionResponse:
    """What one partition gave.

    `aborted` are the (producer id, first offset) of aborted transactions that overlap the records (L3); None where the
    fetch was not read_committed. `records` is a view of whole batches of which the last may be cut short, something
    with a length that the transport sends on its own, or None. `diverging_epoch` and `diverging_end_offset` tell a
    follower where its log parts from the leader's, and are -1 otherwise; so are `leader_id` and `leader_epoch`
    (KIP-951).
    """

    def __init__(
        self,
        topic: str,
        topic_id: TopicId,
        partition: int,
        error: ErrorCode,
        high_watermark: int = -1,
        last_stable_offset: int = -1,
        log_start_offset: int = -1,
        aborted: Sequence[tuple[int, int]] | None = None,
        records: Part | None = None,
        preferred_read_replica: int = -1,
        leader_id: int = -1,
        leader_epoch: int = -1,
        diverging_epoch: int = -1,
        diverging_end_offset: int = -1,
    ) -> None:
        self.topic: str = topic
        self.topic_id: TopicId = topic_id
        self.partition: int = partition
        self.error: ErrorCode = error
        self.high_watermark: int = high_watermark
        self.last_stable_offset: int = last_stable_offset
        self.log_start_offset: int = log_start_offset
        self.aborted: Sequence[tuple[int, int]] | None = aborted
        self.records: Part | None = records
        self.preferred_read_replica: int = preferred_read_replica
        self.leader_id: int = leader_id
        self.leader_epoch: int = leader_epoch
        self.diverging_epoch: int = diverging_epoch
        self.diverging_end_offset: int = diverging_end_offset

    def __repr__(self) -> str:
        return (
            f"FetchPartitionResponse({self.topic or self.topic_id}-{self.partition}, {self.error!r}, "
            f"high_watermark={self.high_watermark}, last_stable_offset={self.last_stable_offset}, "
            f"log_start_offset={self.log_start_offset}, "
            f"records={'null' if self.records is None else len(self.records)})"
        )


class FetchResponse:
    """The answer to a `FetchRequest`. In a session, only partitions with something new are in it."""

    def __init__(
        self,
        partitions: list[FetchPartitionResponse],
        error: ErrorCode = ErrorCode.NONE,
        session_id: int = 0,
        throttle_time_ms: int = 0,
        node_endpoints: Sequence[NodeEndpoint] = (),
    ) -> None:
        self.partitions: list[FetchPartitionResponse] = partitions
        self.error: ErrorCode = error
        self.session_id: int = session_id
        self.throttle_time_ms: int = throttle_time_ms
        self.node_endpoints: Sequence[NodeEndpoint] = node_endpoints

    def __repr__(self) -> str:
        return f"FetchResponse({self.partitions!r}, {self.error!r}, session_id={self.session_id})"

    @staticmethod
    def parse(buffer: Buffer, version: int, position: int = 0) -> FetchResponse:
        """Read the body at `position`. Records are views of `buffer`. Raises `WireFormatError`."""
        return _parse_response(WireReader(buffer, position), version)

    def build_parts(self, version: int) -> list[Part]:
        """Return the body as parts; large record sets are parts of their own, as they were given."""
        writer = WireWriter()
        _write_response(self, writer, version)
        return writer.finish()

    def build(self, version: int) -> bytes:
        return join_parts(self.build_parts(version))

    def frame(self, version: int, correlation_id: int) -> list[Part]:
        """Return the whole response, from the frame's size on, as parts."""
        writer = WireWriter()
        writer.begin_response(correlation_id, version >= 12)
        _write_response(self, writer, version)
        return writer.finish_frame()


def _parse_response(reader: WireReader, version: int) -> FetchResponse:
    _check_version(version)
    flexible = version >= 12
    topic = ""
    topic_id = ZERO_TOPIC_ID
    response = FetchResponse([])
    response.throttle_time_ms = reader.read_int32()
    if version >= 7:
        response.error = error_code_of(reader.read_int16())
        response.session_id = reader.read_int32()
    partitions = response.partitions
    topics = reader.read_count(flexible, 2)
    while topics > 0:
        topics = topics - 1
        if version >= 13:
            topic_id = read_topic_id(reader)
        else:
            topic = reader.read_string(flexible)
        count = reader.read_count(flexible, 24)
        while count > 0:
            count = count - 1
            item = FetchPartitionResponse(topic, topic_id, reader.read_int32(), error_code_of(reader.read_int16()))
            item.high_watermark = reader.read_int64()
            item.last_stable_offset = reader.read_int64()
            if version >= 5:
                item.log_start_offset = reader.read_int64()
            item.aborted = _read_aborted(reader, flexible)
            if version >= 11:
                item.preferred_read_replica = reader.read_int32()
            item.records = reader.read_records(flexible)
            if flexible:
                _read_partition_tags(reader, item)
            partitions.append(item)
        if flexible:
            reader.skip_tagged_fields()
    if flexible:
        response.node_endpoints = read_endpoint_tags(reader, version >= 16)
    reader.expect_end()
    return response


def _read_aborted(reader: WireReader, flexible: bool) -> Sequence[tuple[int, int]] | None:
    count = reader.read_count(flexible, 16)
    if count == -1:
        return None
    if count == 0:
        return ()
    aborted = []
    while count > 0:
        count = count - 1
        producer_id = reader.read_int64()
        aborted.append((producer_id, reader.read_int64()))
        if flexible:
            reader.skip_tagged_fields()
    return aborted


def _read_partition_tags(reader: WireReader, item: FetchPartitionResponse) -> None:
    tags = reader.read_tag_count()
    while tags > 0:
        tags = tags - 1
        tag = reader.read_uvarint()
        size = reader.read_uvarint()
        end = reader.position + size
        if tag == 0:
            item.diverging_epoch = reader.read_int32()
            item.diverging_end_offset = reader.read_int64()
            reader.skip_tagged_fields()
        elif tag == 1:
            item.leader_id = reader.read_int32()
            item.leader_epoch = reader.read_int32()
            reader.skip_tagged_fields()
        else:
            reader.need(size)
        check_tag_end(reader, tag, end)


def _write_response(response: FetchResponse, writer: WireWriter, version: int) -> None:
    _check_version(version)
    flexible = version >= 12
    partitions = response.partitions
    writer.write_int32(response.throttle_time_ms)
    if version >= 7:
        writer.write_int16(response.error)
        writer.write_int32(response.session_id)
    runs = []
    at = 0
    while at < len(partitions):
        first = partitions[at]
        at = at + 1
        while at < len(partitions):
            item = partitions[at]
            if (item.topic_id != first.topic_id) if version >= 13 else (item.topic != first.topic):
                break
            at = at + 1
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
            _write_partition_response(writer, partitions[at], version)
            at = at + 1
        if flexible:
            writer.write_int8(0)
    if flexible:
        write_endpoint_tags(writer, response.node_endpoints, version >= 16)


def _write_partition_response(writer: WireWriter, item: FetchPartitionResponse, version: int) -> None:
    flexible = version >= 12
    writer.write_int32(item.partition)
    writer.write_int16(item.error)
    writer.write_int64(item.high_watermark)
    writer.write_int64(item.last_stable_offset)
    if version >= 5:
        writer.write_int64(item.log_start_offset)
    aborted = item.aborted
    if aborted is None:
        writer.write_count(-1, flexible)
    else:
        writer.write_count(len(aborted), flexible)
        for producer_id, first_offset in aborted:
            writer.write_int64(producer_id)
            writer.write_int64(first_offset)
            if flexible:
                writer.write_int8(0)
    if version >= 11:
        writer.write_int32(item.preferred_read_replica)
    if item.records is None:
        # Null would be legal, but Java consumers before 2.0 and some others fail on it; Kafka sends an empty set.
        writer.write_count(0, flexible)
    else:
        writer.write_records(item.records, flexible)
    if flexible:
        _write_partition_tags(writer, item)


def _write_partition_tags(writer: WireWriter, item: FetchPartitionResponse) -> None:
    diverging = item.diverging_epoch != -1 or item.diverging_end_offset != -1
    leader = item.leader_id != -1 or item.leader_epoch != -1
    writer.write_uvarint((1 if diverging else 0) + (1 if leader else 0))
    if diverging:
        writer.write_uvarint(0)
        writer.write_uvarint(13)
        writer.write_int32(item.diverging_epoch)
        writer.write_int64(item.diverging_end_offset)
        writer.write_int8(0)
    if leader:
        writer.write_uvarint(1)
        writer.write_uvarint(9)
        writer.write_int32(item.leader_id)
        writer.write_int32(item.leader_epoch)
        writer.write_int8(0)
