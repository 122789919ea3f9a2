"""Records in Protobuf: messages of classes that protoc has generated."""

from __future__ import annotations

import base64
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from semel.protocol.errors import UsageError
from semel.sdk.schemas.core import RegistryCore
from semel.sdk.schemas.errors import SchemaDataError
from semel.sdk.schemas.model import Schema, SchemaReference
from semel.sdk.schemas.serdes import SchemaDeserializer, SchemaSerializer, SubjectChoice, registered_id
from semel.sdk.schemas.wire import message_indexes, split_indexes

M = TypeVar("M", bound=Message)
_EVERYWHERE: Final = ("google/protobuf/", "google/type/")
"""Files that every schema may import without a reference."""


def protobuf_serializer(
    registry: RegistryCore, message: type[M], choice: SubjectChoice, *, registers: bool, normalize: bool
) -> SchemaSerializer:
    """Return what writes messages of a class. Files that its own imports are registered under their names."""
    descriptor = _descriptor(message)
    subject = choice.name(descriptor.full_name)
    schema = _schema(registry, descriptor.file, registers=registers, normalize=normalize)
    indexes = message_indexes(_indexes(descriptor))

    def write(value: Any) -> bytes:
        if not isinstance(value, message):
            raise SchemaDataError(f"the value must be a {descriptor.full_name}, not {type(value).__name__}")
        try:
            return indexes + value.SerializeToString()
        except EncodeError as error:
            raise SchemaDataError(f"the {descriptor.full_name} can't be written: {error}") from None

    schema_id = registered_id(registry, subject, schema, registers=registers, normalize=normalize)
    return SchemaSerializer(subject, schema_id, write)


class ProtobufDeserializer(SchemaDeserializer[bool]):
    """Reads messages of a class, whichever version of its schema they were written with."""

    schema_type = "PROTOBUF"

    def __init__(self, registry: RegistryCore, message: type[Message]) -> None:
        super().__init__(registry)
        self._message = message
        self._indexes = _indexes(_descriptor(message))

    def _prepared(self, schema: Schema) -> bool:
        return True  # a message says itself what is in it; that its schema is Protobuf was checked

    def _read(self, reader: bool, data: memoryview) -> Any:
        indexes, rest = split_indexes(data)
        if len(indexes) != len(self._indexes):
            name = _descriptor(self._message).full_name
            raise SchemaDataError(f"the record is another message than {name}: number {indexes} of its schema")
        found = self._message()
        try:
            found.ParseFromString(bytes(rest))
        except DecodeError as error:
            raise SchemaDataError(f"the record is no {_descriptor(self._message).full_name}: {error}") from None
        return found


def _descriptor(message: type[Message]) -> Descriptor:
    descriptor = getattr(message, "DESCRIPTOR", None)
    if not isinstance(descriptor, Descriptor):
        raise UsageError(f"message must be a class that protoc has generated, not {message!r}")
    return descriptor


def _schema(registry: RegistryCore, file: FileDescriptor, *, registers: bool, normalize: bool) -> Schema:
    references = []
    for other in file.dependencies:
        if not other.name.startswith(_EVERYWHERE):
            schema = _schema(registry, other, registers=registers, normalize=normalize)
            registered_id(registry, other.name, schema, registers=registers, normalize=normalize)
            version = registry.lookup(other.name, schema, normalize).version
            references.append(SchemaReference(other.name, other.name, version))
    return Schema(base64.b64encode(file.serialized_pb).decode(), "PROTOBUF", tuple(references))


def _indexes(descriptor: Descriptor) -> list[int]:
    """Return the place of a message among those of the message around it, from the outermost on."""
    found: list[int] = []
    while descriptor.containing_type is not None:
        around = descriptor.containing_type
        found.insert(0, [each.name for each in around.nested_types].index(descriptor.name))
        descriptor = around
    names = list(descriptor.file.message_types_by_name)
    return [names.index(descriptor.name), *found]
