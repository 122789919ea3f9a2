"""Schemas of records: a client of a schema registry, and serializers in Confluent's wire format.

    registry = semel.schemas.SchemaRegistry("http://localhost:8080")
    producer = semel.Producer(value_serializer=registry.avro_serializer(schema, topic="orders"))
    consumer = semel.Consumer(value_deserializer=registry.avro_deserializer(), topics=["orders"])

For asyncio: `semel.aio.SchemaRegistry`.
"""

from semel.sdk.schemas.api import SchemaRegistry
from semel.sdk.schemas.arrow import ArrowDecoder, ArrowEncoder
from semel.sdk.schemas.errors import SchemaDataError, SchemaRegistryError
from semel.sdk.schemas.model import (
    RegisteredSchema,
    Schema,
    SchemaReference,
    SubjectStrategy,
    record_name,
    topic_name,
    topic_record_name,
)
from semel.sdk.schemas.serdes import SchemaDeserializer, SchemaSerializer

__all__ = [
    "ArrowDecoder",
    "ArrowEncoder",
    "RegisteredSchema",
    "Schema",
    "SchemaDataError",
    "SchemaDeserializer",
    "SchemaReference",
    "SchemaRegistry",
    "SchemaRegistryError",
    "SchemaSerializer",
    "SubjectStrategy",
    "record_name",
    "topic_name",
    "topic_record_name",
]
