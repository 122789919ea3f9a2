"""Reads kio's entities from bytes of strangers.

kio has a reader of its own, but it is made for servers that one trusts: a length of 2^32 - 1 before an array ends the
process, a null array passes where none may be, and a tagged field that it does not know fails the message. This one
checks every length against what is left before it allocates, and steps over unknown tags, as KIP-482 has it.
"""

from __future__ import annotations

import datetime
import functools
import struct
from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import UUID

from semel.protocol.kafka.entities import EntityField, fields_of, is_flexible_entity
from semel.protocol.kafka.wire import WireFormatError, WireReader

Read: TypeAlias = Callable[[WireReader], Any]


def entity_reader(entity: type[Any]) -> Read:
    """Return what reads one entity of kio's class `entity`. It raises `WireFormatError` for bytes that are none."""
    flexible = is_flexible_entity(entity)
    fields = fields_of(entity)
    always = [(field.name, _field_reader(field, flexible)) for field in fields if field.tag is None]
    tagged = {field.tag: (field.name, _field_reader(field, flexible)) for field in fields if field.tag is not None}
    absent = {field.name: _absent(field) for field in fields if field.tag is not None}

    def read(reader: WireReader) -> Any:
        values = {name: read_field(reader) for name, read_field in always}
        if flexible:
            values.update(absent)
            _read_tags(reader, tagged, values)
        return entity(**values)

    return read


def _read_tags(reader: WireReader, tagged: dict[int, tuple[str, Read]], values: dict[str, Any]) -> None:
    for _ in range(reader.read_tag_count()):
        tag, size = reader.read_uvarint(), reader.read_uvarint()
        known = tagged.get(tag)
        begin = reader.position
        if known is None:
            reader.need(size)
            continue
        name, read_field = known
        values[name] = read_field(reader)
        if reader.position != begin + size:
            raise WireFormatError(f"tagged field {tag} ends at {reader.position}, not at {begin + size} as it says")


def _absent(field: EntityField) -> Any:
    """What a tagged field is where it is not sent."""
    if field.has_default:
        return field.default
    if field.nested is not None and not field.is_array:
        return field.nested(**{inner.name: _absent(inner) for inner in fields_of(field.nested)})
    if field.is_array:
        return ()
    if field.kind == "error_code":
        return _error_codes()[0]
    return _ABSENT[field.kind]


_ABSENT: dict[str, Any] = {
    "int8": 0,
    "int16": 0,
    "int32": 0,
    "int64": 0,
    "uint16": 0,
    "uint32": 0,
    "float64": 0.0,
    "bool": False,
    "string": "",
    "bytes": b"",
    "uuid": None,
    "timedelta_i32": datetime.timedelta(0),
    "timedelta_i64": datetime.timedelta(0),
}


def _field_reader(field: EntityField, flexible: bool) -> Read:
    if not field.is_array:
        if field.nested is not None:
            return _structure(field.nested, field.nullable)
        return _primitive(field.kind, flexible, field.nullable)
    if field.nested is not None:
        item, size = entity_reader(field.nested), smallest(field.nested)
    else:
        item, size = _primitive(field.kind, flexible, False), _smallest_primitive(field.kind, flexible)
    name, nullable = field.name, field.nullable

    def read(reader: WireReader) -> Any:
        count = reader.read_count(flexible, size)
        if count < 0:
            if nullable:
                return None
            raise WireFormatError(f"{name} must not be null")
        return tuple([item(reader) for _ in range(count)])

    return read


def _structure(entity: type[Any], nullable: bool) -> Read:
    read_entity = entity_reader(entity)
    if not nullable:
        return read_entity
    return lambda reader: None if reader.read_int8() < 0 else read_entity(reader)


def _primitive(kind: str, flexible: bool, nullable: bool) -> Read:
    match kind:
        case "string":
            if nullable:
                return lambda reader: reader.read_nullable_string(flexible)
            return lambda reader: reader.read_string(flexible)
        case "bytes" | "records":
            return lambda reader: _read_bytes(reader, flexible, nullable)
        case "error_code":
            return _read_error_code
        case _:
            return _PRIMITIVES[kind]


def _read_bytes(reader: WireReader, flexible: bool, nullable: bool) -> bytes | None:
    data = reader.read_records(flexible)
    if data is None and not nullable:
        raise WireFormatError(f"the bytes before {reader.position} must not be null")
    return None if data is None else bytes(data)


def _read_uuid(reader: WireReader) -> UUID | None:
    data = reader.read_fixed(16)
    return UUID(bytes=data) if any(data) else None


def _read_float64(reader: WireReader) -> float:
    (value,) = struct.unpack(">d", reader.read_fixed(8))
    return float(value)


def _duration(milliseconds: int) -> datetime.timedelta:
    """Return a duration; of more than Python knows, some 2.7 million years, the longest: it means "for ever"."""
    try:
        return datetime.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return datetime.timedelta.max if milliseconds > 0 else datetime.timedelta.min


@functools.cache
def _error_codes() -> dict[int, Any]:
    from kio.schema.errors import ErrorCode

    return {int(code): code for code in ErrorCode}


def _read_error_code(reader: WireReader) -> Any:
    known = _error_codes()
    return known.get(reader.read_int16(), known[-1])


_PRIMITIVES: dict[str, Read] = {
    "int8": WireReader.read_int8,
    "int16": WireReader.read_int16,
    "int32": WireReader.read_int32,
    "int64": WireReader.read_int64,
    "uint16": lambda reader: reader.read_int16() & 0xFFFF,
    "uint32": WireReader.read_uint32,
    "float64": _read_float64,
    "bool": WireReader.read_bool,
    "uuid": _read_uuid,
    "timedelta_i32": lambda reader: _duration(reader.read_int32()),
    "timedelta_i64": lambda reader: _duration(reader.read_int64()),
}

_SIZES = {
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint16": 2,
    "uint32": 4,
    "float64": 8,
    "bool": 1,
    "uuid": 16,
    "error_code": 2,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
}


def _smallest_primitive(kind: str, flexible: bool) -> int:
    if kind in _SIZES:
        return _SIZES[kind]
    return 1 if flexible else 2 if kind == "string" else 4


def smallest(entity: type[Any]) -> int:
    """Return the fewest bytes that one entity takes, so that no array is begun that can't be in the message."""
    flexible = is_flexible_entity(entity)
    size = 1 if flexible else 0
    for field in fields_of(entity):
        if field.tag is not None:
            continue
        if field.is_array:
            size += 1 if flexible else 4
        elif field.nested is not None:
            size += 1 if field.nullable else smallest(field.nested)
        else:
            size += _smallest_primitive(field.kind, flexible)
    return max(size, 1)
