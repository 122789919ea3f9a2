"""`semel.schemas` against our own registry: the client, serializers and deserializers, in both APIs."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from http_gateway import HttpGateway
from proto_messages import messages_of

import semel
from semel.protocol.errors import RetriableError, UsageError
from semel.schemas import (
    Schema,
    SchemaDataError,
    SchemaReference,
    SchemaRegistry,
    SchemaRegistryError,
    record_name,
    topic_record_name,
)
from semel.testing import Broker

V1 = '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"long"}]}'
V2 = V1.replace("]}", ',{"name":"note","type":"string","default":"none"}]}')
JSON = '{"title":"Order","type":"object","properties":{"id":{"type":"integer"}},"additionalProperties":false}'
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def gateway(broker: Broker) -> Iterator[HttpGateway]:
    with HttpGateway(broker.bootstrap) as gateway:
        yield gateway


@pytest.fixture
def registry(gateway: HttpGateway) -> SchemaRegistry:
    return SchemaRegistry(gateway.url)


@pytest.fixture
def topic() -> str:
    return f"topic_{next(_numbers)}"


def test_the_client(registry: SchemaRegistry, topic: str) -> None:
    schema_id = registry.register(topic, Schema(V1))
    assert registry.register(topic, Schema(V1)) == schema_id
    assert registry.schema(schema_id).text == V1
    assert registry.lookup(topic, Schema(V1)).version == 1
    assert registry.check(topic, Schema(V2)) == []
    (message, *_) = registry.check(topic, Schema(V1.replace("long", "string")))
    assert "TYPE_MISMATCH" in message
    assert registry.check(topic, Schema(V1.replace("long", "string")), None)
    registry.set_compatibility("NONE", topic)
    assert registry.compatibility(topic) == "NONE"
    assert registry.compatibility() == "BACKWARD"
    registry.register(topic, Schema(V2))
    assert registry.version(topic).version == 2
    assert registry.delete_version(topic, 1) == 1
    assert registry.versions(topic) == [2]
    assert registry.versions(topic, with_deleted=True) == [1, 2]
    assert registry.delete_subject(topic) == [2]
    assert topic not in registry.subjects(topic)
    assert topic in registry.subjects(topic, with_deleted=True)


def test_a_refusal_says_what_the_registry_says(registry: SchemaRegistry) -> None:
    with pytest.raises(SchemaRegistryError, match="not found") as caught:
        registry.version("nothing")
    assert (caught.value.status, caught.value.error_code) == (404, 40401)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.error_code) == (str(caught.value), 40401)


def test_avro_records_through_a_topic(broker: Broker, registry: SchemaRegistry, topic: str) -> None:
    """A reader that knows the newer schema reads what was written with the older one."""
    broker.create_topic(topic)
    with semel.Producer(broker.bootstrap, value_serializer=registry.avro_serializer(V1, topic=topic)) as producer:
        producer.send(topic, {"id": 7})
    reader = registry.avro_deserializer(reader=V2)
    with semel.Consumer(broker.bootstrap, topics=[topic], group="g", value_deserializer=reader) as consumer:
        batch = consumer.poll(60)
    assert batch is not None
    assert [record.value for record in batch] == [{"id": 7, "note": "none"}]


def test_asyncio(broker: Broker, gateway: HttpGateway, topic: str) -> None:
    broker.create_topic(topic)

    async def run() -> list[object]:
        registry = semel.aio.SchemaRegistry(gateway.url)
        serializer = await registry.json_serializer(JSON, topic=topic)
        async with semel.aio.Producer(broker.bootstrap, value_serializer=serializer) as producer:
            await producer.send(topic, {"id": 7})
        deserializer = await registry.json_deserializer(subjects=[f"{topic}-value"])
        consumer = semel.aio.Consumer(broker.bootstrap, topics=[topic], group="a", value_deserializer=deserializer)
        async with consumer:
            batch = await consumer.poll(60)
            return [record.value for record in batch or ()]

    assert asyncio.run(run()) == [{"id": 7}]


def test_prepared_deserializers_ask_nothing_later(registry: SchemaRegistry, topic: str) -> None:
    data = registry.avro_serializer(V1, topic=topic)({"id": 1})
    assert data is not None
    with Broker() as other, HttpGateway(other.bootstrap) as gateway:
        gone = SchemaRegistry(gateway.url, timeout_s=0.5)
        same = gone.avro_serializer(V1, topic=topic)({"id": 1})
        ready = gone.avro_deserializer(subjects=[f"{topic}-value", "nothing"])
        late = gone.avro_deserializer()
    assert same is not None
    assert ready(same) == {"id": 1}
    with pytest.raises(RetriableError, match="does not answer"):
        late(b"\0\0\0\0\x99" + same[5:])


def test_values_that_do_not_fit(registry: SchemaRegistry, topic: str) -> None:
    avro = registry.avro_serializer(V1, topic=f"{topic}-avro")
    for value in ({}, {"id": "x"}, 7):
        with pytest.raises(SchemaDataError, match="does not fit"):
            avro(value)
    checked = registry.json_serializer(JSON, topic=f"{topic}-json")
    with pytest.raises(SchemaDataError, match="at 'id'"):
        checked({"id": "x"})
    assert avro(None) is checked(None) is None


def test_bytes_that_do_not_fit(registry: SchemaRegistry, topic: str) -> None:
    data = registry.avro_serializer(V1, topic=topic)({"id": 1 << 40})
    assert data is not None
    read = registry.avro_deserializer()
    for damaged in (data[:6], data[:5], b"\1" + data[1:]):
        with pytest.raises(SchemaDataError):
            read(damaged)
    with pytest.raises(SchemaDataError, match="of the type AVRO"):
        registry.json_deserializer()(data)
    with pytest.raises(SchemaRegistryError):
        read(b"\0\0\0\xff\xff")


EMPTY = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}
_OF_EMPTY = {"name": "e", "type": EMPTY}


@pytest.mark.parametrize(
    ("items", "is_read"),
    [
        ("null", False),
        ({"type": "null", "doc": "x"}, False),
        ({"type": "fixed", "name": "F", "size": 0}, False),
        (EMPTY, False),
        ({"type": "record", "name": "O", "fields": [_OF_EMPTY]}, False),
        (["null", "int"], True),
        ({"type": "array", "items": "int"}, True),
        ({"type": "record", "name": "O", "fields": [_OF_EMPTY, {"name": "i", "type": "int"}]}, True),
    ],
)
@pytest.mark.parametrize("is_inside", [False, True])
def test_S2_arrays_of_nothing_are_not_read(
    registry: SchemaRegistry, topic: str, items: object, is_read: bool, is_inside: bool
) -> None:
    """Ten bytes claimed billions of nulls, and the reader made them all."""
    schema: object = {"type": "array", "items": items}
    record = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
    if is_inside:
        union = ["null", {"type": "map", "values": schema}]
        schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": union}]}
        record = b"\x02\x02\x02k" + record
    schema_id = registry.register(f"{topic}-value", Schema(json.dumps(schema)))
    with pytest.raises(SchemaDataError, match="can't be read" if is_read else "take no bytes"):
        registry.avro_deserializer()(b"\0" + schema_id.to_bytes(4, "big") + record)


def test_protobuf(registry: SchemaRegistry, topic: str) -> None:
    kinds = messages_of(
        {f"{topic}.proto": f'syntax = "proto3"; package {topic}; message A {{ int32 x = 1; }} message B {{ }}'}
    )
    serializer = registry.protobuf_serializer(kinds[f"{topic}.A"], topic=topic)
    data = serializer(kinds[f"{topic}.A"](x=5))
    assert data is not None
    assert registry.protobuf_deserializer(kinds[f"{topic}.A"])(data).x == 5
    with pytest.raises(SchemaDataError, match="must be a"):
        serializer(kinds[f"{topic}.B"]())
    with pytest.raises(UsageError, match="protoc"):
        registry.protobuf_serializer(int, topic=topic)  # type: ignore[arg-type]


def test_references(registry: SchemaRegistry, topic: str) -> None:
    registry.register(topic, Schema(V1))
    outer = '{"type":"record","name":"Shop","fields":[{"name":"order","type":"shop.Order"}]}'
    references = [SchemaReference("shop.Order", topic, 1)]
    data = registry.avro_serializer(outer, subject=f"{topic}-shop", references=references)({"order": {"id": 3}})
    assert data is not None
    assert registry.avro_deserializer()(data) == {"order": {"id": 3}}
    inner = f"{topic}-json"
    registry.register(inner, Schema(JSON, "JSON"))
    whole = json.dumps({"properties": {"order": {"$ref": "order.json"}}})
    checked = registry.json_serializer(
        whole, subject=f"{topic}-whole", references=[SchemaReference("order.json", inner, 1)]
    )
    assert checked({"order": {"id": 1}})
    with pytest.raises(SchemaDataError):
        checked({"order": {"id": "x"}})


def test_names_of_subjects(registry: SchemaRegistry, topic: str) -> None:
    assert registry.avro_serializer(V1, topic=topic).subject == f"{topic}-value"
    assert registry.avro_serializer(V1, topic=topic, is_key=True).subject == f"{topic}-key"
    assert registry.avro_serializer(V1, topic=topic, strategy=record_name).subject == "shop.Order"
    assert registry.json_serializer(JSON, topic=topic, strategy=topic_record_name).subject == f"{topic}-Order"
    with pytest.raises(UsageError, match="no name"):
        registry.avro_serializer('"int"', topic=topic, strategy=record_name)
    with pytest.raises(UsageError, match="give a topic"):
        registry.avro_serializer(V1)


def test_a_schema_that_must_be_there_already(registry: SchemaRegistry, topic: str) -> None:
    with pytest.raises(SchemaRegistryError, match="not found"):
        registry.avro_serializer(V1, topic=topic, register=False)
    schema_id = registry.register(f"{topic}-value", Schema(V1))
    assert registry.avro_serializer(V1, topic=topic, register=False).schema_id == schema_id


@pytest.mark.parametrize("url", ["", [], "localhost:8080", "ftp://localhost", "http://", "http://a:b@localhost", 5])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match="url"):
        SchemaRegistry(url)


def test_a_password_does_not_cross_a_network_in_plain_text() -> None:
    with pytest.raises(UsageError, match="https"):
        SchemaRegistry("http://registry.example.com", username="me", password="secret")
    assert "secret" not in repr(SchemaRegistry("https://registry.example.com", username="me", password="secret"))


def test_several_addresses_are_tried_in_turn(gateway: HttpGateway, topic: str) -> None:
    registry = SchemaRegistry(["http://127.0.0.1:1", gateway.url])
    assert registry.register(topic, Schema('"int"')) > 0


def test_what_is_no_registry() -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404 if "ids" in self.path else 200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    server = HTTPServer(("127.0.0.1", 0), Other)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        registry = SchemaRegistry(f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(SchemaRegistryError, match="no schema registry"):
            registry.schema(1)
        with pytest.raises(SchemaRegistryError, match="not a schema registry's"):
            registry.subjects()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
