"""Records in Avro to Arrow columns, by the schema that each was written with and one reader's schema."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple, TypeAlias

import fastavro
import pyarrow as pa

from semel.protocol.errors import UsageError
from semel.sdk.schemas.avro import READ_ERRORS, check_arrays, parsed_types
from semel.sdk.schemas.avro_tree import NO_DEFAULT, AvroNode, logical_type, spark_type, tree
from semel.sdk.schemas.core import RegistryCore
from semel.sdk.schemas.errors import SchemaDataError
from semel.sdk.schemas.model import Schema
from semel.sdk.schemas.serdes import SchemasById
from semel.sdk.schemas.wire import split

Turn: TypeAlias = Callable[[Any], Any]
"""What makes of a value of fastavro's what pyarrow takes for the column."""

EXACT: Final = Context(prec=100)
_PYTHON_TYPES: Final = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "fixed": bytes,
    "string": str,
    "enum": str,
    "array": list,
    "map": dict,
    "record": dict,
}
_WIDER: Final = {"int": "long", "float": "double"}


class _Ready(NamedTuple):
    """The default of a field, in the form that pyarrow takes."""

    value: Any


class AvroColumnReader(SchemasById[Any]):
    """Reads framed values into an Arrow array. type: what it has; with_spark_types: only such as Spark takes."""

    schema_type = "AVRO"

    def __init__(self, registry: RegistryCore, reader: Schema, *, with_spark_types: bool) -> None:
        """Raises `UsageError` for a schema that is none, or that no Arrow type holds."""
        super().__init__(registry)
        parsed, named = parsed_types(registry, reader)
        self._node = tree(parsed, named)
        self.type = spark_type(self._node.type) if with_spark_types else self._node.type
        self._turn = _turn(self._node)
        # Numbers go to Arrow as they are: what fastavro makes of logical types ends at the year 9999, and has no unit.
        self._plain, plain_named = parsed_types(registry, reader, plain)
        _set_defaults(self._node, plain_named)

    def _prepared(self, schema: Schema) -> Any:
        parsed, named = parsed_types(self._registry, schema)
        check_arrays(parsed, named)
        _check_units(parsed, named, self._node, "")
        return parsed_types(self._registry, schema, plain)[0]

    def value(self, data: bytes) -> Any:
        """Return a record's value, as pyarrow takes it. Raises `SchemaDataError`, and what a registry raises."""
        schema_id, rest = split(data)
        writer = self._reader(schema_id)
        try:
            value = fastavro.schemaless_reader(io.BytesIO(rest), writer, self._plain, return_named_type=True)
        except READ_ERRORS as error:
            raise SchemaDataError(f"it can't be read by the schema {schema_id}: {error!r}") from None
        except fastavro.read.SchemaResolutionError as error:
            why = f"what was written with the schema {schema_id} can't be read by the reader's: {error}"
            raise SchemaDataError(why) from None
        return self._turn(value) if self._turn is not None else value

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Return a column of such values. Raises `SchemaDataError` where one is out of its type's range."""
        try:
            array = pa.array(values, self._node.type)
            return array if self.type == self._node.type else array.cast(self.type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise SchemaDataError(f"it does not fit Arrow's type: {error}") from None


def plain(schema: Any) -> Any:
    """Return a schema in JSON without its logical types."""
    if isinstance(schema, list):
        return [plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: value for name, value in schema.items() if name != "logicalType"}
    for name in ("type", "items", "values"):
        if name in found:
            found[name] = plain(found[name])
    if isinstance(found.get("fields"), list):
        found["fields"] = [plain(field) for field in found["fields"]]
    return found


def default_of(node: AvroNode, value: Any) -> Any:
    """Return a field's default, which a schema has in JSON, as pyarrow takes it. Raises `UsageError`."""
    try:
        return _default(node, value)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UsageError(f"the default {value!r} is no {node.branch_name}: {error!r}") from None


def decimal_of(node: AvroNode, data: bytes) -> Decimal:
    return EXACT.scaleb(Decimal(int.from_bytes(data, "big", signed=True)), -node.scale)


# --- Values of fastavro -----------------------------------------------------------------------------------------------


def _turn(node: AvroNode) -> Turn | None:
    """Return what turns values of a schema; None: they are right as they are."""
    if node.logical.startswith("decimal"):
        return lambda data: decimal_of(node, data)
    if node.kind == "record":
        return _record_turn(node)
    if node.kind == "union":
        return _union_turn(node)
    if node.kind in ("array", "map"):
        inner = _turn(node.children[0])
        if node.kind == "map":
            return lambda value: [(key, each if inner is None else inner(each)) for key, each in value.items()]
        return None if inner is None else lambda value: [inner(each) for each in value]
    return None


def _record_turn(node: AvroNode) -> Turn | None:
    turns = [(field.name, turn) for field in node.fields if (turn := _turn(field.node)) is not None]
    if not turns:
        return None

    def turned(value: dict[str, Any]) -> dict[str, Any]:
        for name, turn in turns:
            each = value[name]
            value[name] = each.value if type(each) is _Ready else turn(each)
        return value

    return turned


def _union_turn(node: AvroNode) -> Turn:
    """fastavro gives a pair of name and value, where the writer's schema has a union here and the type has a name.

    Where the writer's has none, `_check_union` has refused what could be taken for another type.
    """
    turns = {each.branch_name: _turn(each) for each in node.branches}
    if len(turns) < 2:
        only = next(iter(turns.values()), None)

        def turned(value: Any) -> Any:
            if type(value) is tuple:
                value = value[1]
            return value if value is None or only is None else only(value)

        return turned
    by_type: dict[type, str] = {}
    for each in node.branches:
        if each.name:
            by_type.setdefault(_PYTHON_TYPES[each.kind], each.branch_name)
    for each in node.branches:
        if not each.name and _WIDER.get(each.kind) not in turns:  # a number says not whether it was an int or a long
            by_type[_PYTHON_TYPES[each.kind]] = each.branch_name

    def chosen(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is tuple:
            name, value = value
        else:
            name = by_type[type(value)]
        turn = turns[name]
        return {name: value if turn is None else turn(value)}

    return chosen


# --- Defaults ---------------------------------------------------------------------------------------------------------


def _set_defaults(node: AvroNode, named: Mapping[str, Any]) -> None:
    """Put into the records that fastavro reads with what their fields have where a writer has no such field."""
    for each in node.children:
        _set_defaults(each, named)
    for field, schema in zip(node.fields, named[node.name]["fields"] if node.fields else (), strict=True):
        _set_defaults(field.node, named)
        if field.default is not NO_DEFAULT:
            ready = default_of(field.node, field.default)
            schema["default"] = ready if _turn(field.node) is None else _Ready(ready)


def _default(node: AvroNode, value: Any) -> Any:
    if node.kind == "union":
        return _default_of_union(node, value)
    if node.kind == "record":
        return {
            field.name: _default(field.node, value[field.name] if field.name in value else _own_default(field))
            for field in node.fields
        }
    if node.kind == "array":
        return [_default(node.children[0], each) for each in value]
    if node.kind == "map":
        return [(key, _default(node.children[0], each)) for key, each in value.items()]
    if node.kind in ("bytes", "fixed"):
        data = value.encode("latin-1")
        return decimal_of(node, data) if node.logical else data
    if node.kind in ("float", "double"):
        return float(value)  # "NaN" and "Infinity" are texts in JSON
    return value


def _default_of_union(node: AvroNode, value: Any) -> Any:
    if value is None and node.is_nullable:
        return None
    for each in node.branches:  # Avro 1.12 lets a default be of any branch, earlier ones of the first alone
        if _may_be(each, value):
            found = _default(each, value)
            return found if len(node.branches) == 1 else {each.branch_name: found}
    raise ValueError("no type of the union has such values")


def _may_be(node: AvroNode, value: Any) -> bool:
    wanted = str if node.kind in ("bytes", "fixed") else _PYTHON_TYPES[node.kind]
    return type(value) is wanted or (wanted is float and type(value) is int)


def _own_default(field: Any) -> Any:
    if field.default is NO_DEFAULT:
        raise ValueError(f"no {field.name}")
    return field.default


# --- What a logical type says -----------------------------------------------------------------------------------------


def _check_units(writer: Any, named: Mapping[str, Any], reader: AvroNode, path: str) -> None:
    """Refuse a writer's schema whose numbers mean something else than the reader's: fastavro would mix up the units."""
    if reader.kind == "union":
        _check_union(writer, named, reader, path)
        for branch in _branches(writer, named):
            same = [each for each in reader.branches if _kind(branch) == each.kind]
            for each in same if len(same) == 1 else [each for each in same if each.name == branch.get("name", "")]:
                _check_units(branch, named, each, path)
        return
    for branch in _branches(writer, named):
        if reader.kind not in ("record", "array", "map"):
            written = logical_type(branch)
            if written and reader.logical and written != reader.logical:
                raise SchemaDataError(
                    f"{_at(path)} was written as {written}, and the reader's schema has {reader.logical}: read it by a "
                    f"schema that has {written}"
                )
        elif _kind(branch) != reader.kind:
            continue  # fastavro says it of a record that has this branch
        elif reader.kind == "record":
            for written_field in branch["fields"]:
                for field in reader.fields:
                    if written_field["name"] in field.names:
                        inner = f"{path}.{field.name}" if path else field.name
                        _check_units(written_field["type"], named, field.node, inner)
        else:
            _check_units(branch["items" if reader.kind == "array" else "values"], named, reader.children[0], path)


def _check_union(writer: Any, named: Mapping[str, Any], reader: AvroNode, path: str) -> None:
    """Refuse a value that was written without a union, where the reader's union has two types that it may be."""
    while isinstance(writer, dict) and isinstance(writer["type"], list | dict):
        writer = writer["type"]
    if isinstance(writer, list):
        return
    (written,) = _branches(writer, named)
    alike = [each for each in reader.branches if _PYTHON_TYPES[each.kind] is _PYTHON_TYPES.get(_kind(written))]
    if written.get("name") and len(alike) > 1:
        names = ", ".join(each.branch_name for each in alike)
        raise SchemaDataError(
            f"{_at(path)} was written without a union, as {written['name']}, and can't be told from the others of "
            f"{names} in the reader's: read it by the schema that it was written with"
        )


def _branches(schema: Any, named: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the types that a value of a schema may have, each as a dict."""
    if isinstance(schema, list):
        return [branch for each in schema for branch in _branches(each, named)]
    if isinstance(schema, str):
        return _branches(named[schema], named) if schema in named else [{"type": schema}]
    return _branches(schema["type"], named) if isinstance(schema["type"], list | dict) else [schema]


def _at(path: str) -> str:
    return f"the field {path}" if path else "the value"


def _kind(schema: Mapping[str, Any]) -> str:
    kind = str(schema["type"])
    return "record" if kind == "error" else kind
