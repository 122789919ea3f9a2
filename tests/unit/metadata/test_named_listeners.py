"""Registrations of nodes with several listeners, and of older nodes, which know no names."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from chained_changes import chained

from semel.broker.metadata.changes import (
    LISTENERS_VERSION,
    METADATA_VERSION,
    BrokerRegistered,
    Endpoint,
    MetadataVersionRaised,
    decode_change,
    encode_change,
)
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage, decode_image, encode_image
from semel.broker.start_errors import NodeStartError
from semel.broker.told_addresses import check_may_name_listeners, named_endpoints

INSIDE, OUTSIDE = Endpoint("internal", "10.0.0.1", 9092), Endpoint("external", "log1.example.com", 19092)
GRPC = (Endpoint("internal", "10.0.0.1", 9094), Endpoint("external", "log1.example.com", 19094))
PLAIN = BrokerRegistered(1, "start", "dir", "10.0.0.1", 9092, "10.0.0.1", 9094, metadata_version=METADATA_VERSION)
NAMED = replace(PLAIN, kafka_listeners=(INSIDE, OUTSIDE), grpc_listeners=GRPC)


def image_of(*changes: BrokerRegistered | MetadataVersionRaised) -> MetadataImage:
    return EMPTY_IMAGE.apply_all(chained(list(changes)))


def test_names_and_addresses_are_read_as_they_were_written() -> None:
    assert decode_change(*encode_change(NAMED)) == NAMED
    image = image_of(MetadataVersionRaised(METADATA_VERSION), NAMED)
    again = decode_image(encode_image(image), image.digest)
    assert again == image
    assert again.brokers[1].kafka_at("external") == OUTSIDE
    assert again.brokers[1].kafka_at("other") is None
    assert again.brokers[1].grpc_at("external") == GRPC[1]


def test_a_registration_without_names_is_the_one_of_before_and_has_the_default_listener() -> None:
    kind, payload = encode_change(PLAIN)
    assert not {"kafka_listeners", "grpc_listeners"} & json.loads(payload).keys()
    assert "listeners" not in encode_image(image_of(PLAIN))
    broker = image_of(decode_change(kind, payload)).brokers[1]  # type: ignore[arg-type]
    assert broker.kafka_at("default") == Endpoint("default", "10.0.0.1", 9092)
    assert broker.grpc_at("default") == Endpoint("default", "10.0.0.1", 9094)
    assert broker.kafka_at("external") is None


def test_the_only_listener_with_the_default_name_needs_no_names() -> None:
    alone = (Endpoint("default", "h", 1),)
    assert named_endpoints(alone) == ()
    assert named_endpoints((Endpoint("internal", "h", 1),)) == (Endpoint("internal", "h", 1),)
    assert named_endpoints((*alone, OUTSIDE)) == (*alone, OUTSIDE)


def test_the_other_protocol_is_reached_by_the_same_name_or_the_main_listener() -> None:
    broker = image_of(replace(NAMED, grpc_listeners=())).brokers[1]
    assert broker.kafka_beside("external") == OUTSIDE
    assert broker.kafka_beside("default") == INSIDE
    assert broker.grpc_beside("external") == Endpoint("default", "10.0.0.1", 9094)


def test_listeners_get_names_when_all_nodes_read_them() -> None:
    older = replace(PLAIN, node_id=2, metadata_version=LISTENERS_VERSION - 1)
    agreed = MetadataVersionRaised(LISTENERS_VERSION - 1)
    check_may_name_listeners(image_of(agreed, older), PLAIN)
    with pytest.raises(NodeStartError, match=r"older ones run on 2: start this node with kafka\.listen"):
        check_may_name_listeners(image_of(agreed, older), NAMED)
    check_may_name_listeners(image_of(agreed, replace(older, metadata_version=METADATA_VERSION)), NAMED)
    check_may_name_listeners(image_of(), NAMED)
