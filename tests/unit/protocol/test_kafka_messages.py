"""Requests and responses of the Kafka protocol through kio's classes: every API, every version."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from kafka_fuzz import RequestMaker
from kio.serial import entity_reader, entity_writer

from semel.protocol.errors import ErrorCode
from semel.protocol.kafka import messages
from semel.protocol.kafka.api import ApiKey, WireFormatError
from semel.protocol.kafka.entities import fields_of, known_versions, load_entity
from semel.protocol.kafka.entity_reader import entity_reader as own_reader
from semel.protocol.kafka.messages import build_response, parse_request, to_topic_id
from semel.protocol.kafka.wire import WireReader


def values_of(entity: type[Any]) -> dict[str, Any]:
    """Two of each array of structures, so that nothing is left out because it is empty."""
    found: dict[str, Any] = {}
    for field in fields_of(entity):
        if field.nested is not None:
            found[field.name] = [values_of(field.nested)] * 2 if field.is_array else values_of(field.nested)
    return found


@pytest.mark.parametrize("key", [key for key in ApiKey if known_versions(key)])
def test_every_version_of_a_response_is_built_from_plain_values(key: ApiKey) -> None:
    for version in known_versions(key):
        entity = load_entity(key, version, "response")
        body = build_response(key, version, **values_of(entity))
        assert entity_reader(entity)(body, 0)[1] == len(body)


def test_values_that_a_version_lacks_are_left_out_and_unknown_names_are_refused() -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": 3, "error_code": ErrorCode.ILLEGAL_GENERATION}]}]
    body = build_response(ApiKey.OFFSET_COMMIT, 2, throttle_time=5, topics=topics)
    read = entity_reader(load_entity(ApiKey.OFFSET_COMMIT, 2, "response"))
    assert read(body, 0)[0].topics[0].partitions[0].error_code == ErrorCode.ILLEGAL_GENERATION
    with pytest.raises(KeyError, match="nmae"):
        build_response(ApiKey.OFFSET_COMMIT, 2, topics=[{"nmae": "t"}])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xfe",
        b"\x00\x00\x00\x01\x00\x05ab",
        b"\x00\x00\x00\x01\x00\x02\xff\xff",
    ],
)
def test_bytes_that_are_no_request_are_a_wire_format_error(body: bytes) -> None:
    with pytest.raises(WireFormatError, match="METADATA version 1"):
        parse_request(ApiKey.METADATA, 1, body)


def test_a_null_array_is_refused_where_the_protocol_has_none() -> None:
    """kio reads it as None, and handlers fell over it."""
    with pytest.raises(WireFormatError, match="partition_indexes must not be null"):
        parse_request(ApiKey.OFFSET_FETCH, 1, b"\x00\x01g\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff")
    assert parse_request(ApiKey.METADATA, 1, b"\xff\xff\xff\xff").topics is None


def test_a_request_beyond_the_bound_is_refused_before_it_is_read() -> None:
    with pytest.raises(WireFormatError, match="larger"):
        parse_request(ApiKey.METADATA, 1, bytes(messages.MAX_MESSAGE_BYTES + 1))


def test_a_topic_id_of_zeros_and_none_are_the_same() -> None:
    entity = load_entity(ApiKey.METADATA, 12, "request")
    topic = next(field.nested for field in fields_of(entity) if field.name == "topics")
    assert topic is not None
    request = entity(topics=(topic(topic_id=None, name="t"),), include_topic_authorized_operations=False)
    sink = messages.Sink()
    entity_writer(entity)(sink, request)  # type: ignore[arg-type]
    assert to_topic_id(parse_request(ApiKey.METADATA, 12, b"".join(sink.parts)).topics[0].topic_id) == bytes(16)


def test_a_request_is_read_from_memory_that_may_be_written_to() -> None:
    frame = bytearray(b"\x00\x00\x00\x01\x00\x01t")
    request = parse_request(ApiKey.METADATA, 1, memoryview(frame))
    frame[-1:] = b"x"
    assert request.topics[0].name == "t"


@pytest.mark.parametrize("key", [key for key in ApiKey if known_versions(key)])
def test_requests_are_read_as_kio_reads_them(key: ApiKey) -> None:
    maker = RequestMaker(int(key), [])
    for version in known_versions(key):
        entity = load_entity(key, version, "request")
        for _ in range(20):
            body = maker.body(key, version)
            assert parse_request(key, version, body) == entity_reader(entity)(body, 0)[0]


def test_the_bytes_that_librdkafka_leaves_behind_a_request_for_all_topics_are_passed_over() -> None:
    """Its version 13 has a null array of four bytes in place of one: its AdminClient could not list topics."""
    request = parse_request(ApiKey.METADATA, 13, b"\x00\x00\x00\x00\x01\x00\x00")
    assert (request.topics, request.allow_auto_topic_creation) == (None, False)


def test_a_length_that_kio_dies_of_is_refused() -> None:
    """2^32 - 1 elements, as a varint: kio's own reader ends the process."""
    with pytest.raises(WireFormatError, match="does not fit"):
        parse_request(ApiKey.METADATA, 9, b"\xff\xff\xff\xff\x0f" + bytes(10))


def test_unknown_tagged_fields_are_stepped_over_as_newer_clients_send_them() -> None:
    body = b"\x00" + b"\x00\x00\x00" + b"\x02" + b"\x07\x03abc" + b"\x63\x00"
    assert parse_request(ApiKey.METADATA, 9, body).topics is None
    with pytest.raises(WireFormatError):
        parse_request(ApiKey.METADATA, 9, b"\x00\x00\x00\x00\x01\x07\xff\xff\xff\xff\x0f")


def test_a_tagged_field_that_lies_about_its_size_is_refused() -> None:
    entity = load_entity(ApiKey.FETCH, 12, "request")
    body = bytearray(RequestMaker(1, []).body(ApiKey.FETCH, 12))
    # The cluster id, tag 0, is the last thing in the message.
    body[-1:] = b"\x01\x00\x09\x03ab"
    with pytest.raises(WireFormatError, match="tagged field 0"):
        own_reader(entity)(WireReader(bytes(body)))


@pytest.mark.parametrize(("milliseconds", "read"), [(-1, -1), (1, 1), (2**63 - 1, None), (-(2**63), None)])
def test_a_duration_for_ever_is_the_longest_that_there_is(milliseconds: int, read: int | None) -> None:
    """Tools send the largest number for it, as `kafka-delegation-tokens.sh` may."""
    entity = load_entity(ApiKey.RENEW_DELEGATION_TOKEN, 2, "request")
    body = b"\x01" + milliseconds.to_bytes(8, "big", signed=True) + b"\x00"
    found = own_reader(entity)(WireReader(body)).renew_period
    expected = datetime.timedelta.max if milliseconds > 0 else datetime.timedelta.min
    assert found == (expected if read is None else datetime.timedelta(milliseconds=read))
