"""Confluent's own client of a schema registry, and its serializers, unchanged against ours; and ours against theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from http_gateway import HttpGateway
from proto_messages import messages_of

from semel.schemas import SchemaRegistry
from semel.testing import Broker

AVRO = '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"long"}]}'
JSON = '{"title":"Order","type":"object","properties":{"id":{"type":"integer"}},"additionalProperties":false}'
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "shop/money.proto";
message Order { int64 id = 1; google.protobuf.Timestamp at = 2; Money price = 3; message Line { string sku = 1; } }
"""
MONEY = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
NEW = {"use.deprecated.format": False}


@pytest.fixture(scope="module")
def gateway() -> Iterator[HttpGateway]:
    with Broker() as broker, HttpGateway(broker.bootstrap) as gateway:
        yield gateway


@pytest.fixture
def theirs(gateway: HttpGateway) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": gateway.url}) as client:
        yield client


@pytest.fixture
def ours(gateway: HttpGateway) -> SchemaRegistry:
    return SchemaRegistry(gateway.url)


def value_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def test_avro(theirs: SchemaRegistryClient, ours: SchemaRegistry) -> None:
    written = AvroSerializer(theirs, AVRO)({"id": 7}, value_of("avro"))
    assert ours.avro_serializer(AVRO, topic="avro")({"id": 7}) == written
    assert AvroDeserializer(theirs)(written, value_of("avro")) == ours.avro_deserializer()(written) == {"id": 7}


def test_json_schema(theirs: SchemaRegistryClient, ours: SchemaRegistry) -> None:
    written = JSONSerializer(JSON, theirs)({"id": 7}, value_of("json"))
    assert ours.json_serializer(JSON, topic="json")({"id": 7}) == written
    assert JSONDeserializer(JSON)(written, value_of("json")) == ours.json_deserializer()(written) == {"id": 7}


@pytest.mark.parametrize("name", ["shop.Order", "shop.Order.Line"])
def test_protobuf(theirs: SchemaRegistryClient, ours: SchemaRegistry, name: str) -> None:
    """With a message in a file that is imported, and one in another message."""
    kind = messages_of({"shop/money.proto": MONEY, "shop/order.proto": PROTO})[name]
    value = kind(id=7) if name == "shop.Order" else kind(sku="x")
    topic = f"protobuf-{name}"
    written = ProtobufSerializer(kind, theirs, NEW)(value, value_of(topic))
    assert ours.protobuf_serializer(kind, topic=topic)(value) == written
    read = ProtobufDeserializer(kind, NEW, schema_registry_client=theirs)(written, value_of(topic))
    assert read == ours.protobuf_deserializer(kind)(written) == value
    assert theirs.get_subjects_by_schema_id(theirs.get_latest_version("shop/money.proto").schema_id) == [
        "shop/money.proto"
    ]


def test_a_text_that_java_registers_is_found_by_the_descriptor_of_python(theirs: SchemaRegistryClient) -> None:
    text = 'syntax = "proto3"; package java; message Order { int64 id = 1; }'
    schema_id = theirs.register_schema("java-value", Schema(text, "PROTOBUF"))
    kind = messages_of({"java.proto": text})["java.Order"]
    written = ProtobufSerializer(kind, theirs, {**NEW, "auto.register.schemas": False})(kind(id=1), value_of("java"))
    assert written is not None
    assert int.from_bytes(written[1:5], "big") == schema_id


def test_the_latest_version_can_be_used_to_write(theirs: SchemaRegistryClient) -> None:
    theirs.register_schema("latest-value", Schema(AVRO, "AVRO"))
    options = {"auto.register.schemas": False, "use.latest.version": True}
    assert AvroSerializer(theirs, None, conf=options)({"id": 1}, value_of("latest"))


def test_references(theirs: SchemaRegistryClient) -> None:
    theirs.register_schema("order", Schema(AVRO, "AVRO"))
    outer = '{"type":"record","name":"Shop","fields":[{"name":"order","type":"shop.Order"}]}'
    schema = Schema(outer, "AVRO", [SchemaReference("shop.Order", "order", 1)])
    value = {"order": {"id": 1}}
    written = AvroSerializer(theirs, schema)(value, value_of("shop"))
    assert AvroDeserializer(theirs)(written, value_of("shop")) == value
    (user,) = theirs.get_referenced_by("order", 1)
    assert theirs.get_schema(user).references == schema.references


def test_administration(theirs: SchemaRegistryClient) -> None:
    subject = "admin-value"
    schema_id = theirs.register_schema(subject, Schema(AVRO, "AVRO"))
    incompatible = Schema(AVRO.replace("long", "string"), "AVRO")
    assert not theirs.test_compatibility(subject, incompatible)
    with pytest.raises(SchemaRegistryError) as caught:
        theirs.register_schema(subject, incompatible)
    assert (caught.value.http_status_code, caught.value.error_code) == (409, 409)
    theirs.set_compatibility(subject, "NONE")
    assert theirs.get_compatibility(subject) == "NONE"
    assert theirs.register_schema(subject, incompatible) != schema_id
    assert theirs.get_versions(subject) == [1, 2]
    assert theirs.lookup_schema(subject, incompatible).version == 2
    assert theirs.delete_version(subject, 1) == 1
    assert theirs.delete_subject(subject) == [2]
    assert theirs.delete_subject(subject, permanent=True) == [1, 2]
    assert theirs.update_mode(subject, "READONLY") == "READONLY" == theirs.get_mode(subject)
    assert theirs.get_global_mode() == "READWRITE"
    assert theirs.get_contexts() == ["."]


def test_a_consumer_of_theirs_reads_what_a_producer_of_ours_writes(
    gateway: HttpGateway, theirs: Any, ours: Any
) -> None:
    from confluent_kafka import DeserializingConsumer

    import semel

    with Broker() as broker:
        broker.create_topic("orders")
        with semel.Producer(broker.bootstrap, value_serializer=ours.avro_serializer(AVRO, topic="orders")) as producer:
            producer.send("orders", {"id": 7})
        settings = {
            "bootstrap.servers": broker.kafka,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "value.deserializer": AvroDeserializer(theirs),
        }
        consumer = DeserializingConsumer(settings)
        try:
            consumer.subscribe(["orders"])
            message = consumer.poll(60)
            assert message is not None
            assert message.value() == {"id": 7}
        finally:
            consumer.close()
