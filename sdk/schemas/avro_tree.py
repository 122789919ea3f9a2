"""An Avro schema as a tree with its names resolved, and the Arrow type that holds its values.

| Avro | Arrow |
|---|---|
| null, boolean, int, long, float, double, bytes, string | null, bool, int32, int64, float, double, binary, string |
| fixed, enum | fixed_size_binary, string |
| array, map, record | list, map with string keys, struct |
| null and one other type | that type |
| other unions | a struct with a field for each type but null, named as the type; all but one of them are null |
| decimal | decimal128, and decimal256 from 39 digits on |
| date, time-millis, time-micros | date32, time32(ms), time64(us) |
| timestamp-millis, -micros, -nanos | timestamp with the time zone UTC |
| local-timestamp-millis, -micros, -nanos | timestamp without a time zone |

Other logical types (uuid, duration) count as what they are made of. All fields may be null: a tombstone's are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from semel.protocol.errors import UsageError

NO_DEFAULT: Final = object()

_DECIMAL128_DIGITS_MAX: Final = 38
_DECIMAL256_DIGITS_MAX: Final = 76
_DEPTH_MAX: Final = 100

_PRIMITIVES: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_TEMPORAL: Final = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    **{
        ("long", f"{local}timestamp-{name}"): pa.timestamp(unit, None if local else "UTC")
        for local in ("", "local-")
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record. default: as the schema has it, or `NO_DEFAULT`; names: its own and its aliases."""

    name: str
    node: AvroNode
    default: Any
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AvroNode:
    """A schema within a schema.

    kind:     a primitive's name, or fixed, enum, array, map, record, union
    name:     of a fixed, enum or record: its full name
    logical:  the logical type that counts here; empty where there is none
    size:     of a fixed, in bytes
    children: an array's items, a map's values, a union's branches
    """

    kind: str
    type: pa.DataType
    name: str = ""
    logical: str = ""
    scale: int = 0
    size: int = 0
    children: tuple[AvroNode, ...] = ()
    fields: tuple[AvroField, ...] = ()

    @property
    def branch_name(self) -> str:
        """The name by which a union tells this one from its other branches."""
        return self.name or self.kind

    @property
    def branches(self) -> tuple[AvroNode, ...]:
        """A union's branches, but for null."""
        return tuple(each for each in self.children if each.kind != "null")

    @property
    def is_nullable(self) -> bool:
        return self.kind == "null" or (self.kind == "union" and len(self.branches) < len(self.children))


def logical_type(schema: Mapping[str, Any]) -> str:
    """Return what a schema's logical type says of its values, where it changes how they are held; empty: nothing.

    As Avro asks for it, a logical type that does not fit its type is passed over. A decimal's digits are no part of it.
    """
    kind, logical = schema["type"], schema.get("logicalType", "")
    if (kind, logical) in _TEMPORAL:
        return str(logical)
    if logical != "decimal" or kind not in ("bytes", "fixed"):
        return ""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    fits = isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0
    return f"decimal of the scale {scale}" if fits else ""


def tree(schema: Any, named: Mapping[str, Any]) -> AvroNode:
    """Return the tree of a schema that fastavro has parsed; named: all types with a name, by it.

    Raises `UsageError` for what no Arrow type holds: a type that contains itself, a decimal with too many digits.
    """
    return _node(schema, named, (), "")


def spark_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that holds the same values and that Spark takes from Arrow, for all that a tree may have.

    >>> spark_type(pa.list_(pa.timestamp("ms", "UTC"))).value_type, spark_type(pa.time32("ms"))
    (TimestampType(timestamp[us, tz=UTC]), DataType(int32))
    """
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, spark_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, spark_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(spark_type(kind.value_type))
    if pa.types.is_timestamp(kind):
        return pa.int64() if kind.unit == "ns" else pa.timestamp("us", kind.tz)
    if pa.types.is_time(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.binary() if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind) else kind


def _node(schema: Any, named: Mapping[str, Any], around: tuple[str, ...], path: str) -> AvroNode:
    if len(around) > _DEPTH_MAX:
        raise UsageError(f"{_at(path)} is nested deeper than {_DEPTH_MAX}")
    if isinstance(schema, str):
        if schema in _PRIMITIVES and schema != "enum":
            return AvroNode(schema, _PRIMITIVES[schema])
        if schema in around:
            raise UsageError(
                f"{schema} contains itself, by {_at(path)}: no Arrow type holds that; give a reader's schema without "
                f"it, or read with avro_deserializer"
            )
        return _node(named[schema], named, around, path)
    if isinstance(schema, list):
        return _union([_node(each, named, (*around, ""), path) for each in schema])
    kind = schema["type"]
    if kind in ("record", "error"):
        return _record(schema, named, (*around, schema["name"]), path)
    if kind == "array":
        items = _node(schema["items"], named, (*around, ""), path)
        return AvroNode("array", pa.list_(items.type), children=(items,))
    if kind == "map":
        values = _node(schema["values"], named, (*around, ""), path)
        return AvroNode("map", pa.map_(pa.string(), values.type), children=(values,))
    if not isinstance(kind, str) or kind not in (*_PRIMITIVES, "fixed"):
        return _node(kind, named, around, path)
    return _leaf(schema, path)


def _leaf(schema: Mapping[str, Any], path: str) -> AvroNode:
    kind, name, logical = schema["type"], schema.get("name", ""), logical_type(schema)
    if logical.startswith("decimal"):
        precision, scale = schema["precision"], schema.get("scale", 0)
        if precision > _DECIMAL256_DIGITS_MAX:
            raise UsageError(
                f"{_at(path)} has {precision} digits; Arrow's decimals have up to {_DECIMAL256_DIGITS_MAX}"
            )
        make = pa.decimal128 if precision <= _DECIMAL128_DIGITS_MAX else pa.decimal256
        return AvroNode(kind, make(precision, scale), name, logical, scale, schema.get("size", 0))
    if logical:
        return AvroNode(kind, _TEMPORAL[kind, logical], name, logical)
    if kind == "fixed":
        return AvroNode(kind, pa.binary(schema["size"]), name, size=schema["size"])
    return AvroNode(kind, _PRIMITIVES[kind], name)


def _record(schema: Mapping[str, Any], named: Mapping[str, Any], around: tuple[str, ...], path: str) -> AvroNode:
    fields = tuple(
        AvroField(
            field["name"],
            _node(field["type"], named, around, f"{path}.{field['name']}" if path else field["name"]),
            field.get("default", NO_DEFAULT),
            (field["name"], *field.get("aliases", ())),
        )
        for field in schema["fields"]
    )
    return AvroNode(
        "record", pa.struct([(each.name, each.node.type) for each in fields]), schema["name"], fields=fields
    )


def _union(children: list[AvroNode]) -> AvroNode:
    branches = [each for each in children if each.kind != "null"]
    if len(branches) < 2:
        kind = branches[0].type if branches else pa.null()
    else:
        kind = pa.struct([(each.branch_name, each.type) for each in branches])
    return AvroNode("union", kind, children=tuple(children))


def _at(path: str) -> str:
    return f"the field {path}" if path else "the schema"
