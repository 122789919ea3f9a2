"""Protobuf's encoding, read by a schema of the registry, with bounds: as JSON has it, and as the schema calls it.

Protobuf's own library parses what `protobuf_bounds` lets through. Its mapping to JSON is not used: it makes texts of
64-bit numbers, and parses what is in a google.protobuf.Any whatever that costs.
"""

from __future__ import annotations

from collections.abc import MutableMapping, MutableSequence
from dataclasses import dataclass
from typing import Any, Final, cast

from google.protobuf import (
    any_pb2,
    duration_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from semel.sdk.schemas.errors import SchemaDataError
from semel.sdk.schemas.wire import split_indexes
from semel.web.console.protobuf_bounds import Costs
from semel.web.registry.formats.protobuf import ProtobufParsed

_UNKNOWN_MAX: Final = 10
"""Unknown fields that are told of: a value can have as many as it has bytes."""
_NAME_CHARACTERS_MAX: Final = 100
_AS_TEXT: Final = frozenset({"google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.FieldMask"})
_MEMBERS: Final = {"google.protobuf.Struct": "fields", "google.protobuf.ListValue": "values"}
_ANY: Final = "google.protobuf.Any"
_VALUE: Final = "google.protobuf.Value"
_WELL_KNOWN: Final = {
    descriptor.full_name: descriptor
    for file in (any_pb2, duration_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
    for descriptor in file.DESCRIPTOR.message_types_by_name.values()
}


@dataclass(frozen=True, slots=True)
class ProtobufValue:
    """A message that was read. value: as JSON has it; message: which of its schema it is; note: "" for nothing."""

    value: Any
    message: str
    note: str


class ProtobufReader:
    """Reads the messages of one schema. It has a pool of its own: names in other schemas may be the same."""

    def __init__(self, schema: ProtobufParsed) -> None:
        """Raises `SchemaDataError` for a schema whose values can't be read here."""
        if any(message.options.message_set_wire_format for message in schema.types().values()):
            raise SchemaDataError("it has a message_set_wire_format, which is not decoded here")
        self._pool = DescriptorPool()
        try:
            for file in schema.files:
                self._pool.Add(file)
            self._file = self._pool.FindFileByName(schema.files[-1].name)
        except (TypeError, KeyError, ValueError) as error:
            raise SchemaDataError(f"Protobuf does not accept it: {error}") from None
        self._well_known = frozenset(name for name in _WELL_KNOWN if self._is_genuine(name))

    def _is_genuine(self, name: str) -> bool:
        """Say whether a well-known type is what its name says: a schema may bring another one under that name."""
        try:
            found = self._pool.FindMessageTypeByName(name)
        except KeyError:
            return False
        return _shape(found) == _shape(_WELL_KNOWN[name])

    def decoded(self, data: memoryview) -> ProtobufValue:
        """Return what a record says, from the numbers of its message on. Raises `SchemaDataError`.

        Numbers are whole, bytes are text with \\xNN for what is no UTF-8, enums are names where the schema has one for
        the number. Fields that the record does not have are left out, also where they have defaults.
        """
        indexes, rest = split_indexes(data)
        descriptor = self._descriptor(indexes)
        name = descriptor.full_name[:_NAME_CHARACTERS_MAX]
        if descriptor.GetOptions().map_entry:
            raise SchemaDataError(f"its message is {name}, which is a pair of a map")
        walk = _Walk(self._pool, self._well_known)
        try:
            message = walk.parsed(descriptor, bytes(rest), 0)
            return ProtobufValue(walk.message(message, 0), name, walk.note(is_whole=message.IsInitialized()))
        except RecursionError:  # the caller was deep already: DEPTH_MAX alone fits
            raise SchemaDataError("it is nested too deeply") from None

    def _descriptor(self, indexes: list[int]) -> Descriptor:
        found: Descriptor | None = None
        for index in indexes:
            messages = list(self._file.message_types_by_name.values()) if found is None else found.nested_types
            if not 0 <= index < len(messages):
                raise SchemaDataError(f"its message is number {indexes[:5]}, which the schema does not have")
            found = messages[index]
        assert found is not None, "there is at least one number"
        return found


class _Walk:
    """Makes JSON of one record."""

    def __init__(self, pool: DescriptorPool, well_known: frozenset[str]) -> None:
        self._pool = pool
        self._well_known = well_known
        self._costs = Costs()
        self._unknown: dict[tuple[str, int], None] = {}

    def parsed(self, descriptor: Descriptor, data: bytes, depth: int) -> Message:
        """Return a message. Raises `SchemaDataError`."""
        self._costs.take(descriptor, data, depth)
        try:
            return GetMessageClass(descriptor).FromString(data)
        except (DecodeError, UnicodeDecodeError):
            name = descriptor.full_name[:_NAME_CHARACTERS_MAX]
            raise SchemaDataError(f"the bytes are no message {name}") from None

    def note(self, *, is_whole: bool) -> str:
        """Return what is to be said about what is not shown."""
        notes = [] if is_whole else ["it lacks fields that the schema requires"]
        if self._unknown:
            some = [f"{number} of {name[:_NAME_CHARACTERS_MAX]}" for name, number in self._unknown]
            more = " and more" if len(some) > _UNKNOWN_MAX else ""
            fields = ", ".join(some[:_UNKNOWN_MAX]) + more
            notes.append(f"it has fields, or numbers of enums, that the schema does not know: {fields}")
        return "; ".join(notes)

    def message(self, message: Message, depth: int) -> Any:
        """Return a message as JSON has it. depth: of the messages around it."""
        name, given = message.DESCRIPTOR.full_name, cast("Any", message)
        if len(self._unknown) <= _UNKNOWN_MAX:
            for unknown in cast("Any", UnknownFieldSet(message)):
                self._unknown.setdefault((name, unknown.field_number))
        if name not in self._well_known:
            return self._plain(message, depth)
        if name in _AS_TEXT:
            try:
                return given.ToJsonString()
            except ValueError:  # a time after the year 9999
                return self._plain(message, depth)
        if name == _ANY:
            return self._any(given, depth)
        if name == _VALUE:
            kind = given.WhichOneof("kind")
            return None if kind in (None, "null_value") else self._field(message, kind, depth)
        return self._field(message, _MEMBERS.get(name, "value"), depth)

    def _plain(self, message: Message, depth: int) -> dict[str, Any]:
        return {
            f"[{field.full_name}]" if field.is_extension else field.name: self._shown(field, value, depth)
            for field, value in message.ListFields()
        }

    def _any(self, message: Any, depth: int) -> Any:
        url = str(message.type_url)
        try:
            descriptor = self._pool.FindMessageTypeByName(url.rpartition("/")[2])
        except (KeyError, UnicodeError):
            return {"@type": url, "value": _readable(message.value)}
        within = self.message(self.parsed(descriptor, message.value, depth + 1), depth + 1)
        is_plain = isinstance(within, dict) and descriptor.full_name not in self._well_known
        return {"@type": url, **(within if is_plain else {"value": within})}

    def _field(self, message: Message, name: str, depth: int) -> Any:
        return self._shown(message.DESCRIPTOR.fields_by_name[name], getattr(message, name), depth)

    def _shown(self, field: Any, value: Any, depth: int) -> Any:
        if isinstance(value, Message):  # a Struct calls itself a mapping, a ListValue a sequence
            return self.message(value, depth + 1)
        if isinstance(value, MutableMapping):
            of_values = field.message_type.fields_by_name["value"]
            return {_key(key): self._one(of_values, value[key], depth + 1) for key in sorted(value)}
        if isinstance(value, MutableSequence):
            return [self._one(field, each, depth) for each in value]
        return self._one(field, value, depth)

    def _one(self, field: Any, value: Any, depth: int) -> Any:
        if field.message_type is not None:
            return self.message(value, depth + 1)
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return value if known is None else known.name
        return _readable(value) if isinstance(value, bytes) else value


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return str(key).lower()
    return _readable(key) if isinstance(key, bytes) else str(key)


def _readable(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _shape(descriptor: Descriptor) -> tuple[Any, ...]:
    """Return what has to be the same for two messages to be used in the same way."""
    proto = DescriptorProto()
    descriptor.CopyToProto(proto)
    fields = [
        (each.number, each.name, each.type, each.type_name, each.label, each.HasField("oneof_index"))
        for each in proto.field
    ]
    return sorted(fields), [each.name for each in proto.oneof_decl]
