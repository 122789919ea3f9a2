"""Arrow columns to records in Avro, column by column as far as the bytes of each record."""

from __future__ import annotations

import io
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import fastavro
import pyarrow as pa

from semel.sdk.schemas.arrow import ArrowEncoder, check_language
from semel.sdk.schemas.avro import WRITE_ERRORS, parsed_types
from semel.sdk.schemas.avro_reading import EXACT, default_of, plain
from semel.sdk.schemas.avro_tree import NO_DEFAULT, AvroField, AvroNode, tree
from semel.sdk.schemas.core import RegistryCore
from semel.sdk.schemas.errors import SchemaDataError
from semel.sdk.schemas.model import Schema
from semel.sdk.schemas.serdes import SubjectChoice, registered_id
from semel.sdk.schemas.wire import header

_FAMILIES: Final[tuple[tuple[str, Callable[[pa.DataType], bool]], ...]] = (
    ("null", pa.types.is_null),
    ("boolean", pa.types.is_boolean),
    ("integer", pa.types.is_integer),
    ("float", pa.types.is_floating),
    ("decimal", pa.types.is_decimal),
    ("date", pa.types.is_date),
    ("time", pa.types.is_time),
    ("timestamp with a time zone", lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None),
    ("timestamp without a time zone", pa.types.is_timestamp),
    ("text", lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)),
    ("bytes", lambda kind: pa.types.is_fixed_size_binary(kind) or pa.types.is_binary(kind)),
    ("bytes", lambda kind: pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)),
)
_ALLOWED: Final = {("integer", "float"), ("integer", "decimal")}
"""Values that are the same in another family. Any other cast changes them: a text would be read as a number."""


def avro_arrow_encoder(
    registry: RegistryCore, schema: Schema, choice: SubjectChoice, *, registers: bool, normalize: bool
) -> ArrowEncoder:
    """Return what writes rows by an Avro schema. Raises `UsageError` for one that no Arrow type holds."""
    check_language(schema)
    parsed, named = parsed_types(registry, schema)
    node = tree(parsed, named)
    subject = choice.name(node.name if node.kind == "record" else "")
    written = parsed_types(registry, schema, plain)[0]
    schema_id = registered_id(registry, subject, schema, registers=registers, normalize=normalize)
    start = header(schema_id)

    def write(rows: pa.Array) -> list[bytes | None]:
        found: list[bytes | None] = []
        for value, is_there in zip(_values(node, rows, ""), rows.is_valid().to_pylist(), strict=True):
            if not is_there:
                found.append(None)
                continue
            output = io.BytesIO()
            output.write(start)
            try:
                fastavro.schemaless_writer(output, written, value)
            except WRITE_ERRORS as error:
                raise SchemaDataError(f"it does not fit the schema of {subject}: {error!r}") from None
            found.append(output.getvalue())
        return found

    return ArrowEncoder(subject, schema_id, node.type, write)


def _values(node: AvroNode, array: pa.Array, path: str) -> list[Any]:
    """Return what fastavro writes for each value of a column; None where it is null. Raises `SchemaDataError`."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if node.kind == "union":
        return _union_values(node, array, path)
    if pa.types.is_null(array.type):
        return [None] * len(array)
    if node.kind == "record":
        return _record_values(node, array, path)
    if node.kind in ("array", "map"):
        return _repeated_values(node, array, path)
    return _leaf_values(node, array, path)


def _record_values(node: AvroNode, array: pa.Array, path: str) -> list[Any]:
    if not pa.types.is_struct(array.type):
        raise _other_type(path, array.type, "a struct")
    names = [field.name for field in array.type]
    unknown = sorted(set(names) - {field.name for field in node.fields}) or sorted(
        {name for name in names if names.count(name) > 1}
    )
    if unknown:
        raise SchemaDataError(f"{_at(path)} has {', '.join(unknown)}, and {node.name} no such field, or one alone")
    columns = dict(zip(names, array.flatten(), strict=True))
    is_there = array.is_valid().to_pylist()
    found: list[Any] = [{} if each else None for each in is_there]
    for field in node.fields:
        inner = f"{path}.{field.name}" if path else field.name
        values = _values(field.node, _column(field, columns, len(array), inner), inner)
        for row, value in zip(found, values, strict=True):
            if row is not None:
                row[field.name] = _there(field.node, value, inner)
    return found


def _column(field: AvroField, columns: dict[str, pa.Array], rows: int, path: str) -> pa.Array:
    if field.name in columns:
        return columns[field.name]
    if field.default is NO_DEFAULT:
        raise SchemaDataError(f"there is no column for {_at(path)}, which has no default")
    return pa.array([default_of(field.node, field.default)] * rows, field.node.type)


def _repeated_values(node: AvroNode, array: pa.Array, path: str) -> list[Any]:
    kind = array.type
    if node.kind == "map":
        if not pa.types.is_map(kind):
            raise _other_type(path, kind, "a map")
        keys, items = array.keys.cast(pa.string()).to_pylist(), array.items
    else:
        if pa.types.is_fixed_size_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
            array = array.cast(pa.large_list(kind.value_type))
        elif not pa.types.is_list(kind) and not pa.types.is_large_list(kind):
            raise _other_type(path, kind, "a list")
        keys, items = [], array.values
    values = _values(node.children[0], items, path)
    places = array.offsets.to_pylist()
    found: list[Any] = []
    for row, is_there in enumerate(array.is_valid().to_pylist()):
        start, end = places[row], places[row + 1]
        if not is_there:
            found.append(None)
        elif node.kind == "map":
            if len(set(keys[start:end])) < end - start:
                raise SchemaDataError(f"{_at(path)} has a key of a map twice")
            found.append({keys[at]: _there(node.children[0], values[at], path) for at in range(start, end)})
        else:
            found.append([_there(node.children[0], value, path) for value in values[start:end]])
    return found


def _union_values(node: AvroNode, array: pa.Array, path: str) -> list[Any]:
    """fastavro is told the branch by its name: it would try which one fits, and take an int for a date."""
    branches = node.branches
    if len(branches) < 2 or pa.types.is_null(array.type):
        if not branches or pa.types.is_null(array.type):
            return [None] * len(array)
        name = branches[0].branch_name
        return [None if value is None else (name, value) for value in _values(branches[0], array, path)]
    if not pa.types.is_struct(array.type) or {field.name for field in array.type} - {b.branch_name for b in branches}:
        raise _other_type(path, array.type, f"a struct with the fields {', '.join(b.branch_name for b in branches)}")
    found: list[Any] = [None] * len(array)
    by_name = {field.name: column for field, column in zip(array.type, array.flatten(), strict=True)}
    for branch in branches:
        if branch.branch_name not in by_name:
            continue
        for row, value in enumerate(_values(branch, by_name[branch.branch_name], path)):
            if value is None:
                continue
            if found[row] is not None:
                raise SchemaDataError(f"{_at(path)} has values for several types of a union at once")
            found[row] = (branch.branch_name, value)
    return found


def _leaf_values(node: AvroNode, array: pa.Array, path: str) -> list[Any]:
    given, wanted = _family(array.type), _family(node.type)
    if given != wanted and (given, wanted) not in _ALLOWED:
        raise _other_type(path, array.type, str(node.type))
    try:
        cast = array.cast(node.type)
        if wanted in ("date", "time") or wanted.startswith("timestamp"):
            cast = cast.view(pa.int32() if node.type.bit_width == 32 else pa.int64())
    except pa.ArrowException as error:
        raise SchemaDataError(f"{_at(path)} does not fit {node.type}: {error}") from None
    values: list[Any] = cast.to_pylist()
    if wanted != "decimal":
        return values
    return [None if value is None else _decimal_bytes(node, value) for value in values]


def _decimal_bytes(node: AvroNode, value: Decimal) -> bytes:
    whole = int(EXACT.scaleb(value, node.scale))
    size = node.size or (whole + (whole < 0)).bit_length() // 8 + 1
    return whole.to_bytes(size, "big", signed=True)  # a fixed has room for all digits, or it were no schema


def _there(node: AvroNode, value: Any, path: str) -> Any:
    if value is None and not node.is_nullable:
        raise SchemaDataError(f"{_at(path)} is null or has a null in it, and the schema does not allow that")
    return value


def _family(kind: pa.DataType) -> str:
    return next((name for name, is_one in _FAMILIES if is_one(kind)), str(kind))


def _other_type(path: str, given: pa.DataType, wanted: str) -> SchemaDataError:
    return SchemaDataError(f"{_at(path)} is {given}, and by the schema it must be {wanted}: cast it before")


def _at(path: str) -> str:
    return f"the field {path}" if path else "the row"
