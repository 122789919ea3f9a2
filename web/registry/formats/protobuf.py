"""Protobuf: compiled by protoc, compared by what Protobuf's encoding allows and Confluent documents."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from semel.web.registry.formats.base import DIFFERENCES_MAX, Difference, Parsed, Referenced, Steps
from semel.web.registry.formats.protoc import compiled

_Field = FieldDescriptorProto
_SAME_ENCODING: Final = (
    frozenset({_Field.TYPE_INT32, _Field.TYPE_INT64, _Field.TYPE_UINT32, _Field.TYPE_UINT64, _Field.TYPE_BOOL})
    | {_Field.TYPE_ENUM},
    frozenset({_Field.TYPE_SINT32, _Field.TYPE_SINT64}),
    frozenset({_Field.TYPE_STRING, _Field.TYPE_BYTES}),
    frozenset({_Field.TYPE_FIXED32, _Field.TYPE_SFIXED32}),
    frozenset({_Field.TYPE_FIXED64, _Field.TYPE_SFIXED64}),
)
"""Kinds of fields that can take each other's place (Protobuf's "Updating A Message Type")."""
_ANY_LABEL: Final = (_Field.TYPE_STRING, _Field.TYPE_BYTES, _Field.TYPE_MESSAGE, _Field.TYPE_GROUP)
"""Those that may become repeated, and single again: the last one counts."""


@dataclass(frozen=True)
class ProtobufParsed:
    """A Protobuf schema. The text stays as it is; files: its descriptor is the last one, before it what it imports."""

    canonical: str
    files: tuple[FileDescriptorProto, ...]

    @property
    def normalized(self) -> str:
        return self.canonical

    @property
    def identity(self) -> bytes:
        """The descriptor, without what a text may or may not say: so a text and its descriptor are the same."""
        return _plain(self.files[-1]).SerializeToString(deterministic=True)

    @property
    def normalized_identity(self) -> bytes:
        return self.identity

    @property
    def serialized(self) -> str:
        """The descriptor in base64, as clients ask for it with `format=serialized`."""
        file = FileDescriptorProto()
        file.CopyFrom(self.files[-1])
        file.name = "default"
        return base64.b64encode(file.SerializeToString()).decode()

    def types(self) -> dict[str, DescriptorProto]:
        """Return all messages, also those of imported files, by names such as ".shop.Order"."""
        return {name: message for file in self.files for name, message in _messages(file)}


class Protobuf:
    """The language of Protocol Buffers: .proto files, and descriptors in base64."""

    def parse(self, text: str, references: Sequence[Referenced]) -> ProtobufParsed:
        """Return the schema in `text`. Raises `InvalidSchemaError`."""
        return ProtobufParsed(text.strip(), tuple(compiled(text, references)))

    def differences(self, reader: Parsed, writer: Parsed) -> list[Difference]:
        """Return why data of `writer` can't be read with `reader`; empty where it can. Raises `TooComplexError`."""
        assert isinstance(reader, ProtobufParsed)
        assert isinstance(writer, ProtobufParsed)
        return _Comparison(writer, reader).found


class _Comparison:
    def __init__(self, old: ProtobufParsed, new: ProtobufParsed) -> None:
        self.found: list[Difference] = []
        self._steps = Steps()
        self._packages = (old.files[-1].package, new.files[-1].package)
        self._before, self._after = old.types(), new.types()
        self._compared: set[tuple[str, str]] = set()
        for name, message in _messages(old.files[-1]):
            if message.options.map_entry:
                continue
            other = self._in_new_package(name)
            if other in self._after:
                self._message(name, other)
            else:
                self._add("MESSAGE_REMOVED", name, f"the message {name[1:]} was removed")

    def _in_new_package(self, name: str) -> str:
        before, after = (f".{package}." if package else "." for package in self._packages)
        return after + name.removeprefix(before) if name.startswith(before) else name

    def _add(self, kind: str, path: str, what: str) -> None:
        if len(self.found) < DIFFERENCES_MAX:
            self.found.append(Difference(kind, f"#/{path.strip('.').replace('.', '/')}", what))

    def _message(self, name: str, other: str) -> None:
        if (name, other) in self._compared:
            return
        self._compared.add((name, other))
        old, new = self._before[name], self._after[other]
        before = {field.number: field for field in old.field}
        after = {field.number: field for field in new.field}
        oneofs = {oneof.name for oneof in new.oneof_decl}
        for number, field in before.items():
            self._steps.take()
            if number in after:
                self._field(f"{name}.{number}", field, after[number])
            elif field.label == _Field.LABEL_REQUIRED:
                self._add("REQUIRED_FIELD_REMOVED", f"{name}.{number}", f"the required field {field.name} was removed")
            elif _in_oneof(field) and field.oneof_index in range(len(old.oneof_decl)):
                oneof = old.oneof_decl[field.oneof_index].name
                if oneof in oneofs:
                    self._add("ONEOF_FIELD_REMOVED", f"{name}.{number}", f"{field.name} was removed from {oneof}")
        for number, field in after.items():
            self._steps.take()
            if number not in before and field.label == _Field.LABEL_REQUIRED:
                self._add("REQUIRED_FIELD_ADDED", f"{name}.{number}", f"the required field {field.name} was added")
        self._oneofs(name, old, new, before)

    def _oneofs(
        self, name: str, old: DescriptorProto, new: DescriptorProto, before: Mapping[int, FieldDescriptorProto]
    ) -> None:
        existing = {oneof.name for oneof in old.oneof_decl}
        moved_into: dict[int, list[str]] = {}
        for field in new.field:
            if _in_oneof(field) and _is_free(before.get(field.number)):
                moved_into.setdefault(field.oneof_index, []).append(field.name)
        for index, oneof in enumerate(new.oneof_decl):
            moved = moved_into.get(index, [])
            if oneof.name in existing and moved:
                what = f"{', '.join(moved)} moved into the oneof {oneof.name}, which was there before"
                self._add("FIELDS_MOVED_TO_EXISTING_ONEOF", f"{name}.{oneof.name}", what)
            elif len(moved) > 1:
                what = f"{', '.join(moved)} moved into one oneof, {oneof.name}: one of them alone is kept now"
                self._add("MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"{name}.{oneof.name}", what)

    def _field(self, path: str, old: FieldDescriptorProto, new: FieldDescriptorProto) -> None:
        if old.type != new.type and not any({old.type, new.type} <= group for group in _SAME_ENCODING):
            named = {_Field.TYPE_MESSAGE, _Field.TYPE_GROUP}
            kind = "FIELD_KIND_CHANGED" if {old.type, new.type} & named else "FIELD_SCALAR_KIND_CHANGED"
            self._add(kind, path, f"the type of {old.name} was {_shown(old)} and is {_shown(new)}")
            return
        if old.type == new.type == _Field.TYPE_MESSAGE:
            self._named_type(path, old, new)
        was, now = (field.label == _Field.LABEL_REPEATED for field in (old, new))
        if was != now and new.type not in _ANY_LABEL:
            self._add(
                "FIELD_NUMERIC_LABEL_CHANGED", path, f"{old.name} became {'repeated' if now else 'a single value'}"
            )
        required = [field.label == _Field.LABEL_REQUIRED for field in (old, new)]
        if required[0] != required[1]:
            kind = "REQUIRED_FIELD_ADDED" if required[1] else "REQUIRED_FIELD_REMOVED"
            self._add(kind, path, f"{old.name} {'became' if required[1] else 'is no longer'} required")

    def _named_type(self, path: str, old: FieldDescriptorProto, new: FieldDescriptorProto) -> None:
        before, after = self._before.get(old.type_name), self._after.get(new.type_name)
        are_maps = [bool(each and each.options.map_entry) for each in (before, after)]
        same = self._in_new_package(old.type_name) == new.type_name
        if before is None or after is None or (are_maps[0] != are_maps[1]) or not (same or all(are_maps)):
            self._add("FIELD_NAMED_TYPE_CHANGED", path, f"{old.name} was {_shown(old)} and is {_shown(new)}")
            return
        self._message(old.type_name, new.type_name)


def _messages(file: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    todo = [(f".{file.package}" if file.package else "", message) for message in file.message_type]
    while todo:
        outer, message = todo.pop()
        name = f"{outer}.{message.name}"
        yield name, message
        todo += [(name, nested) for nested in message.nested_type]


def _in_oneof(field: FieldDescriptorProto) -> bool:
    return field.HasField("oneof_index") and not field.proto3_optional


def _is_free(field: FieldDescriptorProto | None) -> bool:
    """Say whether a field was there, and in no oneof."""
    return field is not None and not _in_oneof(field)


def _shown(field: FieldDescriptorProto) -> str:
    return field.type_name[1:] or _Field.Type.Name(field.type).removeprefix("TYPE_").lower()


def _plain(file: FileDescriptorProto) -> FileDescriptorProto:
    """Return a copy without names of files, comments, and names for JSON that are as they would be anyway."""
    found = FileDescriptorProto()
    found.CopyFrom(file)
    found.name = ""
    found.ClearField("source_code_info")
    if found.syntax == "proto2":
        found.ClearField("syntax")
    for _, message in _messages(found):
        for field in (*message.field, *message.extension):
            if field.json_name == _json_name(field.name):
                field.ClearField("json_name")
    for extension in found.extension:
        extension.ClearField("json_name")
    return found


def _json_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)
