"""Produce, Fetch and ApiVersions on the wire: every version, against codecs generated from Kafka's schemas (kio)."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import importlib.util
import io
import struct
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted import interpreted
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_writer

from semel.protocol.api.topics import IsolationLevel
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID, TopicId
from semel.protocol.kafka import api, fetch, produce, wire
from semel.protocol.kafka.api import ApiKey, ApiVersionsRequest, ApiVersionsResponse, NodeEndpoint, WireFormatError

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
TOPIC_ID = TopicId(uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8"))
OTHER_ID = TopicId(uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8"))
BATCH = bytes(range(256)) * 30
SMALL = b"a small batch"


def kio_bytes(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def made(cls: Any, **values: Any) -> Any:
    """Make a kio entity with those of `values` that its version has."""
    names = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in values.items() if name in names})


def schema(name: str, version: int, kind: str) -> ModuleType:
    return importlib.import_module(f"kio.schema.{name}.v{version}.{kind}")


# --- Requests and responses, with the same content in kio's classes and in ours ---------------------------------------


def kio_produce_request(version: int) -> Any:
    kio = schema("produce", version, "request")
    return made(
        kio.ProduceRequest,
        transactional_id="träns",
        acks=-1,
        timeout=datetime.timedelta(milliseconds=30_000),
        topic_data=(
            made(
                kio.TopicProduceData,
                name="orders",
                topic_id=TOPIC_ID,
                partition_data=(
                    kio.PartitionProduceData(index=0, records=BATCH),
                    kio.PartitionProduceData(index=7, records=SMALL),
                ),
            ),
            made(
                kio.TopicProduceData,
                name="other",
                topic_id=OTHER_ID,
                partition_data=(kio.PartitionProduceData(index=1, records=None),),
            ),
        ),
    )


def our_produce_request() -> produce.ProduceRequest:
    return produce.ProduceRequest(
        [
            produce.ProducePartition("orders", 0, BATCH, TOPIC_ID),
            produce.ProducePartition("orders", 7, memoryview(SMALL), TOPIC_ID),
            produce.ProducePartition("other", 1, None, OTHER_ID),
        ],
        "träns",
        -1,
        30_000,
    )


def kio_produce_response(version: int) -> Any:
    kio = schema("produce", version, "response")
    record_errors: tuple[Any, ...] = ()
    leader = endpoints = None
    if version >= 8:
        record_errors = (
            kio.BatchIndexAndErrorMessage(batch_index=3, batch_index_error_message="bad"),
            kio.BatchIndexAndErrorMessage(batch_index=4, batch_index_error_message=None),
        )
    if version >= 10:
        leader = kio.LeaderIdAndEpoch(leader_id=2, leader_epoch=9)
        endpoints = (kio.NodeEndpoint(node_id=2, host="h", port=9092, rack=None),)
    good = made(
        kio.PartitionProduceResponse,
        index=0,
        error_code=KioErrorCode.none,
        base_offset=1 << 40,
        log_append_time=datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
        log_start_offset=17,
        record_errors=(),
        error_message=None,
    )
    refused = made(
        kio.PartitionProduceResponse,
        index=1,
        error_code=KioErrorCode.not_leader_or_follower,
        base_offset=-1,
        log_append_time=None,
        log_start_offset=-1,
        record_errors=record_errors,
        error_message="go there",
        **({"current_leader": leader} if leader is not None else {}),
    )
    return made(
        kio.ProduceResponse,
        responses=(
            made(kio.TopicProduceResponse, name="orders", topic_id=TOPIC_ID, partition_responses=(good, refused)),
        ),
        throttle_time=datetime.timedelta(milliseconds=12),
        **({"node_endpoints": endpoints} if endpoints is not None else {}),
    )


def our_produce_response() -> produce.ProduceResponse:
    good = produce.ProducePartitionResponse(
        "orders", 0, ErrorCode.NONE, 1 << 40, 1_704_067_200_000, 17, topic_id=TOPIC_ID
    )
    refused = produce.ProducePartitionResponse(
        "orders",
        1,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        record_errors=((3, "bad"), (4, None)),
        error_message="go there",
        leader_id=2,
        leader_epoch=9,
        topic_id=TOPIC_ID,
    )
    return produce.ProduceResponse([good, refused], 12, [NodeEndpoint(2, "h", 9092)])


def kio_fetch_request(version: int) -> Any:
    kio = schema("fetch", version, "request")

    def partition(index: int) -> Any:
        return made(
            kio.FetchPartition,
            partition=index,
            current_leader_epoch=5,
            fetch_offset=1 << 33,
            last_fetched_epoch=4,
            log_start_offset=3,
            partition_max_bytes=1 << 20,
            replica_directory_id=OTHER_ID if index == 1 else None,
        )

    values: dict[str, Any] = {}
    if version >= 12:
        values["cluster_id"] = "cluster"
    if version >= 15:
        values["replica_state"] = kio.ReplicaState(replica_id=-1, replica_epoch=8)
    if version >= 7:
        values["forgotten_topics_data"] = (made(kio.ForgottenTopic, topic="b", topic_id=OTHER_ID, partitions=(2, 3)),)
    return made(
        kio.FetchRequest,
        replica_id=-1,
        max_wait=datetime.timedelta(milliseconds=500),
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=1,
        session_id=77,
        session_epoch=3,
        topics=(
            made(kio.FetchTopic, topic="a", topic_id=TOPIC_ID, partitions=(partition(0), partition(1))),
            made(kio.FetchTopic, topic="b", topic_id=OTHER_ID, partitions=(partition(0),)),
        ),
        rack_id="rack",
        **values,
    )


def our_fetch_request(version: int) -> fetch.FetchRequest:
    def partition(topic: str, topic_id: TopicId, index: int, directory: bytes | None = None) -> fetch.FetchPartition:
        return fetch.FetchPartition(topic, topic_id, index, 1 << 33, 1 << 20, 5, 4, 3, directory)

    return fetch.FetchRequest(
        [
            partition("a", TOPIC_ID, 0),
            partition("a", TOPIC_ID, 1, OTHER_ID.bytes),
            partition("b", OTHER_ID, 0),
        ],
        500,
        1,
        50 << 20,
        IsolationLevel.READ_COMMITTED,
        77,
        3,
        [fetch.ForgottenPartition("b", OTHER_ID, 2), fetch.ForgottenPartition("b", OTHER_ID, 3)],
        "rack",
        -1,
        8,
        "cluster",
    )


def kio_fetch_response(version: int) -> Any:
    kio = schema("fetch", version, "response")
    tags: dict[str, Any] = {}
    if version >= 12:
        tags["diverging_epoch"] = kio.EpochEndOffset(epoch=6, end_offset=44)
        tags["current_leader"] = kio.LeaderIdAndEpoch(leader_id=2, leader_epoch=9)
    good = made(
        kio.PartitionData,
        partition_index=0,
        error_code=KioErrorCode.none,
        high_watermark=1 << 40,
        last_stable_offset=1 << 39,
        log_start_offset=5,
        aborted_transactions=(
            kio.AbortedTransaction(producer_id=9, first_offset=11),
            kio.AbortedTransaction(producer_id=10, first_offset=12),
        ),
        preferred_read_replica=-1,
        records=BATCH,
    )
    odd = made(
        kio.PartitionData,
        partition_index=1,
        error_code=KioErrorCode.fenced_leader_epoch,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=b"",
        **tags,
    )
    values: dict[str, Any] = {}
    if version >= 7:
        values = {"error_code": KioErrorCode.none, "session_id": 77}
    if version >= 16:
        values["node_endpoints"] = (kio.NodeEndpoint(node_id=2, host="h", port=9092, rack="r"),)
    return made(
        kio.FetchResponse,
        throttle_time=datetime.timedelta(milliseconds=3),
        responses=(made(kio.FetchableTopicResponse, topic="a", topic_id=TOPIC_ID, partitions=(good, odd)),),
        **values,
    )


def our_fetch_response() -> fetch.FetchResponse:
    good = fetch.FetchPartitionResponse(
        "a", TOPIC_ID, 0, ErrorCode.NONE, 1 << 40, 1 << 39, 5, [(9, 11), (10, 12)], BATCH
    )
    odd = fetch.FetchPartitionResponse(
        "a",
        TOPIC_ID,
        1,
        ErrorCode.FENCED_LEADER_EPOCH,
        leader_id=2,
        leader_epoch=9,
        diverging_epoch=6,
        diverging_end_offset=44,
    )
    return fetch.FetchResponse([good, odd], ErrorCode.NONE, 77, 3, [NodeEndpoint(2, "h", 9092, "r")])


# --- The same bytes as kio's ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_request_has_the_bytes_of_kafkas_schema(version: int) -> None:
    expected = kio_bytes(kio_produce_request(version))
    assert our_produce_request().build(version) == expected
    parsed = produce.ProduceRequest.parse(expected, version)
    assert (parsed.transactional_id, parsed.acks, parsed.timeout_ms) == ("träns", -1, 30_000)
    orders, other = (TOPIC_ID, OTHER_ID) if version >= 13 else ("orders", "other")
    named = [(item.topic_id if version >= 13 else item.topic, item.partition) for item in parsed.partitions]
    assert named == [(orders, 0), (orders, 7), (other, 1)]
    assert {item.topic_id for item in parsed.partitions} == ({orders, other} if version >= 13 else {ZERO_TOPIC_ID})
    assert [item.records for item in parsed.partitions] == [BATCH, SMALL, None]
    assert parsed.build(version) == expected


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_response_has_the_bytes_of_kafkas_schema(version: int) -> None:
    expected = kio_bytes(kio_produce_response(version))
    assert our_produce_response().build(version) == expected
    parsed = produce.ProduceResponse.parse(expected, version)
    assert parsed.build(version) == expected
    good, refused = parsed.partitions
    assert (good.partition, good.error, good.base_offset) == (0, ErrorCode.NONE, 1 << 40)
    assert (good.topic, good.topic_id) == (("", TOPIC_ID) if version >= 13 else ("orders", ZERO_TOPIC_ID))
    assert good.log_append_time_ms == 1_704_067_200_000
    assert good.log_start_offset == (17 if version >= 5 else -1)
    assert refused.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused.error_message == ("go there" if version >= 8 else None)
    assert tuple(refused.record_errors) == (((3, "bad"), (4, None)) if version >= 8 else ())
    assert (refused.leader_id, refused.leader_epoch) == ((2, 9) if version >= 10 else (-1, -1))
    assert list(parsed.node_endpoints) == ([NodeEndpoint(2, "h", 9092)] if version >= 10 else [])


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_request_has_the_bytes_of_kafkas_schema(version: int) -> None:
    expected = kio_bytes(kio_fetch_request(version))
    assert our_fetch_request(version).build(version) == expected
    parsed = fetch.FetchRequest.parse(expected, version)
    assert parsed.build(version) == expected
    assert (parsed.max_wait_ms, parsed.min_bytes, parsed.max_bytes) == (500, 1, 50 << 20)
    assert parsed.isolation is IsolationLevel.READ_COMMITTED
    first = parsed.partitions[0]
    assert (first.topic, first.topic_id) == (("", TOPIC_ID) if version >= 13 else ("a", ZERO_TOPIC_ID))
    assert (first.partition, first.fetch_offset, first.max_bytes) == (0, 1 << 33, 1 << 20)
    assert first.current_leader_epoch == (5 if version >= 9 else -1)
    assert len(parsed.forgotten) == (2 if version >= 7 else 0)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_response_has_the_bytes_of_kafkas_schema(version: int) -> None:
    expected = kio_bytes(kio_fetch_response(version))
    assert our_fetch_response().build(version) == expected
    parsed = fetch.FetchResponse.parse(expected, version)
    assert parsed.build(version) == expected
    good, odd = parsed.partitions
    assert good.records == BATCH
    assert good.aborted is not None
    assert list(good.aborted) == [(9, 11), (10, 12)]
    assert odd.aborted is None
    assert (good.high_watermark, good.last_stable_offset) == (1 << 40, 1 << 39)
    assert (odd.diverging_epoch, odd.diverging_end_offset) == ((6, 44) if version >= 12 else (-1, -1))


@pytest.mark.parametrize("version", range(5))
def test_api_versions_has_the_bytes_of_kafkas_schema(version: int) -> None:
    kio = schema("api_versions", version, "response")
    tags: dict[str, Any] = {}
    if version >= 3:
        tags = {
            "supported_features": (kio.SupportedFeatureKey(name="transaction.version", min_version=1, max_version=2),),
            "finalized_features_epoch": 4,
            "finalized_features": (
                kio.FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=2),
            ),
        }
    expected = kio_bytes(
        made(
            kio.ApiVersionsResponse,
            error_code=KioErrorCode.none,
            api_keys=(made(kio.ApiVersion, api_key=0, min_version=0, max_version=12),),
            throttle_time=datetime.timedelta(milliseconds=5),
            **tags,
        )
    )
    ours = ApiVersionsResponse(
        [api.ApiVersionRange(0, 0, 12)],
        ErrorCode.NONE,
        5,
        [api.SupportedFeature("transaction.version", 1, 2)],
        4,
        [api.FinalizedFeature("transaction.version", 2, 2)],
    )
    assert ours.build(version) == expected
    assert ApiVersionsResponse.parse(expected, version).build(version) == expected
    request = made(
        schema("api_versions", version, "request").ApiVersionsRequest,
        client_software_name="semel",
        client_software_version="0.1",
    )
    assert ApiVersionsRequest("semel", "0.1").build(version) == kio_bytes(request)
    assert ApiVersionsRequest.parse(kio_bytes(request), version).build(version) == kio_bytes(request)


def test_a_feature_from_level_0_is_hidden_before_version_4() -> None:
    response = ApiVersionsResponse([], supported_features=[api.SupportedFeature("transaction.version", 0, 2)])
    assert ApiVersionsResponse.parse(response.build(3), 3).supported_features == []
    assert len(ApiVersionsResponse.parse(response.build(4), 4).supported_features) == 1


# --- Headers, frames, parts -------------------------------------------------------------------------------------------


def test_flexible_versions_are_those_of_kafkas_schemas() -> None:
    for key in ApiKey:
        name = key.name.lower()
        if importlib.util.find_spec(f"kio.schema.{name}") is None:
            continue
        package = importlib.import_module(f"kio.schema.{name}")
        assert package.__file__ is not None
        for folder in Path(package.__file__).parent.glob("v*"):
            version = int(folder.name[1:])
            request = schema(name, version, "request")
            entity = next(
                value
                for value in vars(request).values()
                if dataclasses.is_dataclass(value)
                and getattr(value, "__type__", None) is not None
                and value.__type__.name == "request"
            )
            assert api.is_flexible(key, version) is entity.__flexible__, (key, version)


@pytest.mark.parametrize("version", [3, 9])
@pytest.mark.parametrize("client_id", [None, "", "clïent"])
def test_request_header_round_trip(version: int, client_id: str | None) -> None:
    data = api.build_request_header(ApiKey.PRODUCE, version, 2**31 - 1, client_id)
    header = api.parse_request_header(b"xxxx" + data + b"rest", 4)
    assert (header.api_key, header.api_version, header.correlation_id) == (0, version, 2**31 - 1)
    assert header.client_id == client_id
    assert header.body == 4 + len(data)


def test_frames_carry_their_size_and_large_records_as_they_were_given() -> None:
    request = our_produce_request()
    parts = request.frame(9, 5, "client")
    assert any(part is BATCH for part in parts), "a large record set is not copied"
    data = api.join_parts(parts)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    header = api.parse_request_header(data, 4)
    assert header.correlation_id == 5
    assert produce.ProduceRequest.parse(data, 9, header.body).build(9) == request.build(9)

    answer = api.join_parts(our_fetch_response().frame(13, 6))
    assert int.from_bytes(answer[:4], "big") == len(answer) - 4
    correlation_id, body = api.parse_response_header(answer, ApiKey.FETCH, 13, 4)
    assert correlation_id == 6
    assert fetch.FetchResponse.parse(answer, 13, body).build(13) == our_fetch_response().build(13)


def test_the_response_of_api_versions_has_header_v0() -> None:
    data = api.join_parts(ApiVersionsResponse([]).frame(4, 1))
    assert api.parse_response_header(data, ApiKey.API_VERSIONS, 4, 4) == (1, 8)


def test_records_are_views_of_the_received_buffer() -> None:
    frame = bytearray(our_produce_request().build(9))
    parsed = produce.ProduceRequest.parse(memoryview(frame), 9)
    records = parsed.partitions[0].records
    assert isinstance(records, memoryview)
    records[0] = 0xFF
    assert frame.count(b"\xff" + BATCH[1:10]) == 1


def test_unsupported_versions_are_refused() -> None:
    for version in (2, 14):
        with pytest.raises(WireFormatError) as refused:
            produce.ProduceRequest.parse(b"", version)
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
    for version in (3, 19):
        with pytest.raises(WireFormatError):
            our_fetch_response().build(version)


def test_unknown_tagged_fields_are_skipped() -> None:
    data = bytearray(produce.ProduceRequest([], None, 1, 0).build(9))
    assert data[-1] == 0
    data[-1:] = b"\x02\x05\x03abc\x86\x01\x00"
    assert produce.ProduceRequest.parse(data, 9).acks == 1


# --- Hostile bytes ----------------------------------------------------------------------------------------------------


def messages() -> list[tuple[Any, int, bytes]]:
    found: list[tuple[Any, int, bytes]] = []
    for version in PRODUCE_VERSIONS:
        found.append((produce.ProduceRequest, version, our_produce_request().build(version)))
        found.append((produce.ProduceResponse, version, our_produce_response().build(version)))
    for version in FETCH_VERSIONS:
        found.append((fetch.FetchRequest, version, our_fetch_request(version).build(version)))
        found.append((fetch.FetchResponse, version, our_fetch_response().build(version)))
    versions = ApiVersionsResponse([api.ApiVersionRange(0, 0, 1)])
    found.extend((ApiVersionsResponse, version, versions.build(version)) for version in range(5))
    return found


MESSAGES = messages()


def parse_or_refuse(cls: Any, version: int, data: bytes) -> None:
    try:
        parsed = cls.parse(data, version)
    except WireFormatError:
        return
    parsed.build(version)


@pytest.mark.parametrize(("cls", "version", "data"), MESSAGES, ids=[f"{c.__name__}-{v}" for c, v, _ in MESSAGES])
def test_every_truncation_is_refused(cls: Any, version: int, data: bytes) -> None:
    for end in (*range(min(len(data), 400)), len(data) - 1):
        with pytest.raises(WireFormatError):
            cls.parse(data[:end], version)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(MESSAGES), st.data())
def test_changed_bytes_are_parsed_or_refused(message: tuple[Any, int, bytes], data: st.DataObject) -> None:
    cls, version, original = message
    changed = bytearray(original)
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, min(len(changed) - 1, 300)))
        changed[position] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]) | st.integers(0, 255))
    parse_or_refuse(cls, version, bytes(changed))


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(MESSAGES), st.binary(max_size=200))
def test_random_bytes_are_parsed_or_refused(message: tuple[Any, int, bytes], data: bytes) -> None:
    cls, version, _ = message
    parse_or_refuse(cls, version, data)


@pytest.mark.parametrize("count", [2**31 - 1, 2**20, -2, -(2**31)])
def test_a_count_beyond_the_message_allocates_nothing(count: int) -> None:
    body = struct.pack(">hhii", -1, 1, 1000, count)
    with pytest.raises(WireFormatError):
        produce.ProduceRequest.parse(body, 3)
    fetch_body = struct.pack(">iiiibiii", -1, 0, 0, 0, 0, 0, -1, count)
    with pytest.raises(WireFormatError):
        fetch.FetchRequest.parse(fetch_body, 7)


KINDS = {"built": wire, "interpreted": interpreted("semel.protocol.kafka.wire")[0]}
BELOW_MINUS_ONE = (-2, -3, -100, -(2**15))


@pytest.fixture(params=sorted(KINDS))
def reader_of(request: pytest.FixtureRequest) -> Any:
    """Makes readers, of the installed module and of its source."""
    return KINDS[request.param].WireReader


def refused_length(message: str) -> Any:
    # Each module has an error of its own.
    return pytest.raises(Exception, match=message)


def test_lengths_below_minus_one_are_refused(reader_of: Any) -> None:
    """Compiled, a reader that went back by one would go below the beginning of the buffer."""
    body = b"\x00" * 8
    for length in BELOW_MINUS_ONE:
        for read in ("read_string", "read_nullable_string"):
            reader = reader_of(struct.pack(">h", length) + body)
            with refused_length(f"a string of {length} bytes"):
                getattr(reader, read)(False)
            assert reader.position == 2
    for length in (*BELOW_MINUS_ONE, -(2**31)):
        reader = reader_of(struct.pack(">i", length) + body)
        with refused_length(f"{length} bytes were expected at 4"):
            reader.read_records(False)
        reader = reader_of(struct.pack(">i", length) + body)
        with refused_length(f"an array of {length} elements"):
            reader.read_count(False, 1)
        reader = reader_of(body)
        for read in (reader.need, reader.read_fixed):
            with refused_length(f"{length} bytes were expected at 0"):
                read(length)
        assert reader.position == 0
    reader = reader_of(struct.pack(">h", -1))
    with refused_length("a string of -1 bytes"):
        reader.read_string(False)
    assert reader_of(struct.pack(">h", -1)).read_nullable_string(False) is None
    assert reader_of(struct.pack(">i", -1)).read_records(False) is None
    assert reader_of(struct.pack(">i", -1)).read_count(False, 1) == -1


def test_compact_lengths_are_null_or_fit_into_the_message(reader_of: Any) -> None:
    largest = b"\xff\xff\xff\xff\x0f"  # 2^32 - 1, a length of 2^32 - 2
    with refused_length("a string of -1 bytes"):
        reader_of(b"\x00").read_string(True)
    with refused_length("a string of 4294967294 bytes"):
        reader_of(largest).read_string(True)
    with refused_length("4294967294 bytes were expected at 5"):
        reader_of(largest).read_records(True)
    with refused_length("an array of 4294967294 elements"):
        reader_of(largest).read_count(True, 1)
    with refused_length("4294967295 tagged fields"):
        reader_of(largest).read_tag_count()
    assert reader_of(b"\x00").read_nullable_string(True) is None
    assert reader_of(b"\x00").read_records(True) is None


@pytest.mark.parametrize(("count", "element_bytes_min", "fits"), [(2, 4, True), (3, 4, False), (9, 1, False)])
def test_an_array_has_no_more_elements_than_the_message_could_hold(
    reader_of: Any, count: int, element_bytes_min: int, fits: bool
) -> None:
    """Before one of them is read: a list for all that a message promises is memory for the asking."""
    for flexible, head in ((False, struct.pack(">i", count)), (True, bytes([count + 1]))):
        reader = reader_of(head + bytes(8))
        if fits:
            assert reader.read_count(flexible, element_bytes_min) == count
        else:
            with refused_length(f"an array of {count} elements before {len(head)} does not fit"):
                reader.read_count(flexible, element_bytes_min)


def test_an_endless_varint_is_refused() -> None:
    reader = wire.WireReader(b"\xff" * 10)
    with pytest.raises(WireFormatError, match="32 bits"):
        reader.read_uvarint()


@given(st.integers(0, 2**32 - 1))
def test_uvarints_round_trip(value: int) -> None:
    writer = wire.WireWriter()
    writer.write_uvarint(value)
    assert wire.WireReader(wire.join_parts(writer.finish())).read_uvarint() == value


@given(
    st.integers(-(2**7), 2**7 - 1),
    st.integers(-(2**15), 2**15 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
)
def test_integers_have_the_bytes_of_struct(a: int, b: int, c: int, d: int) -> None:
    writer = wire.WireWriter()
    writer.write_int8(a)
    writer.write_int16(b)
    writer.write_int32(c)
    writer.write_int64(d)
    data = wire.join_parts(writer.finish())
    assert data == struct.pack(">bhiq", a, b, c, d)
    reader = wire.WireReader(data)
    assert (reader.read_int8(), reader.read_int16(), reader.read_int32(), reader.read_int64()) == (a, b, c, d)


def test_invalid_utf8_is_refused() -> None:
    with pytest.raises(WireFormatError, match="UTF-8"):
        wire.WireReader(b"\x00\x02\xff\xfe").read_string(False)


# --- The interpreted twin ---------------------------------------------------------------------------------------------


def _attributes(made: type) -> set[str]:
    """The names that a class's constructor gives its objects."""
    return {name for name in made.__init__.__code__.co_names if not name[0].isupper()}  # type: ignore[misc]


def test_the_interpreted_twin_reads_and_writes_the_same() -> None:
    names = ("wire", "produce", "fetch")
    twin_wire, twin_produce, twin_fetch = interpreted(*(f"semel.protocol.kafka.{name}" for name in names))
    assert str(twin_wire.__file__).endswith(".py")
    for cls, version, data in MESSAGES:
        module = {"ProduceRequest": twin_produce, "ProduceResponse": twin_produce}.get(cls.__name__, twin_fetch)
        twin = getattr(module, cls.__name__, None)
        if twin is None:
            continue
        assert twin.parse(data, version).build(version) == data
        for item in getattr(twin.parse(data, version), "partitions", ()):
            # The compiled one has them all from the start.
            assert vars(item).keys() == _attributes(type(item))
        for end in range(0, min(len(data), 300), 7):
            with pytest.raises(twin_wire.WireFormatError):
                twin.parse(data[:end], version)
    header = twin_wire.parse_request_header(api.build_request_header(1, 13, -5, "c"))
    assert (header.api_key, header.correlation_id, header.client_id) == (1, -5, "c")
