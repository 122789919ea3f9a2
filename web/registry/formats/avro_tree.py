"""An Avro schema as a tree: names resolved as the specification says, and written down in one canonical order."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from semel.web.registry.formats.base import InvalidSchemaError

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_ORDER: Final = ("type", "name", "namespace", "doc", "aliases", "fields", "symbols", "items", "values", "size")
_FIELD_ORDER: Final = ("name", "type", "doc", "default", "order", "aliases")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ATTRIBUTES: Final = frozenset({*_ORDER, *_FIELD_ORDER})


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record. has_default: whether a reader can do without it in what was written."""

    name: str
    schema: AvroSchema
    has_default: bool
    aliases: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class AvroSchema:
    """A schema, or a part of one.

    kind:     "record" (also for errors), "enum", "array", "map", "union", "fixed", or a primitive
    name:     with its namespace, of records, enums and fixed
    default:  of an enum: the symbol that a reader takes for those that it does not know
    branches: of a union; the items of an array and the values of a map are the only one
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    symbols: tuple[str, ...] = ()
    default: str | None = None
    size: int = 0
    branches: tuple[AvroSchema, ...] = field(default=())

    @property
    def short_name(self) -> str:
        """The name without its namespace: what the specification compares."""
        return self.name.rpartition(".")[2]


class TreeBuilder:
    """Builds trees of schemas that may name each other. They have been checked, by a parser of Avro."""

    def __init__(self) -> None:
        self._named: dict[str, AvroSchema] = {}

    def build(self, data: Any, namespace: str = "") -> AvroSchema:
        """Return the tree of parsed JSON. Raises `InvalidSchemaError` for a name that nothing has."""
        if isinstance(data, str):
            if data in PRIMITIVES:
                return AvroSchema(data)
            found = self._named.get(_full(data, namespace)) or self._named.get(data)
            if found is None:
                raise InvalidSchemaError(f"no type has the name {data!r}")
            return found
        if isinstance(data, list):
            return AvroSchema("union", branches=tuple(self.build(branch, namespace) for branch in data))
        kind = data["type"]
        if not isinstance(kind, str):
            return self.build(kind, namespace)
        if kind in ("array", "map"):
            inner = self.build(data["items" if kind == "array" else "values"], namespace)
            return AvroSchema(kind, branches=(inner,))
        if kind in ("record", "error", "enum", "fixed"):
            return self._build_named(kind, data, namespace)
        return self.build(kind, namespace)

    def _build_named(self, kind: str, data: Mapping[str, Any], namespace: str) -> AvroSchema:
        name, inside = _name_and_namespace(data, namespace)
        _check_names(f"the name of a {kind}", name.split("."))
        if name in self._named:
            raise InvalidSchemaError(f"the name {name!r} is defined twice")
        schema = self._named[name] = AvroSchema("record" if kind == "error" else kind, name)
        schema.aliases = tuple(_full(alias, inside) for alias in data.get("aliases", ()))
        if kind == "enum":
            _check_names(f"a symbol of {name}", data["symbols"])
            schema.symbols, schema.default = tuple(data["symbols"]), data.get("default")
        elif kind == "fixed":
            schema.size = data["size"]
        else:
            _check_names(f"a field of {name}", [each["name"] for each in data["fields"]], is_set=True)
            schema.fields = tuple(
                AvroField(
                    each["name"], self.build(each["type"], inside), "default" in each, tuple(each.get("aliases", ()))
                )
                for each in data["fields"]
            )
        return schema


def canonical(data: Any, *, sort: bool) -> str:
    """Return a schema as text without spaces, its attributes in one order, as Apache Avro for Java prints them.

    sort: whether attributes that Avro does not define are in the order of their names

    >>> canonical({"name": "R", "fields": [], "type": "record"}, sort=False)
    '{"type":"record","name":"R","fields":[]}'
    >>> canonical({"type": "string"}, sort=False)
    '"string"'
    """
    return json.dumps(_ordered(data, "", sort=sort), ensure_ascii=False, separators=(",", ":"))


def _ordered(data: Any, namespace: str, *, sort: bool) -> Any:
    if isinstance(data, str):
        return _relative(_full(data, namespace), namespace) if "." in data else data
    if isinstance(data, list):
        return [_ordered(branch, namespace, sort=sort) for branch in data]
    kind = data["type"]
    others = {name: value for name, value in data.items() if name not in _ATTRIBUTES}
    if not isinstance(kind, str) or (kind in PRIMITIVES and len(data) == 1):
        return _ordered(kind, namespace, sort=sort)
    found: dict[str, Any] = {"type": kind}
    inside = namespace
    if kind in ("record", "error", "enum", "fixed"):
        name, inside = _name_and_namespace(data, namespace)
        found["name"] = name.rpartition(".")[2]
        if inside != namespace:
            found["namespace"] = inside
        if data.get("doc") is not None:
            found["doc"] = data["doc"]
        if kind in ("record", "error"):
            found["fields"] = [_ordered_field(each, inside, sort=sort) for each in data["fields"]]
        elif kind == "enum":
            found["symbols"] = data["symbols"]
            if "default" in data:
                found["default"] = data["default"]
        else:
            found["size"] = data["size"]
        if data.get("aliases"):
            found["aliases"] = [_relative(_full(alias, inside), inside) for alias in data["aliases"]]
    elif kind in ("array", "map"):
        part = "items" if kind == "array" else "values"
        found[part] = _ordered(data[part], namespace, sort=sort)
    elif kind not in PRIMITIVES:
        return _ordered(kind, namespace, sort=sort)
    return {**found, **(dict(sorted(others.items())) if sort else others)}


def _ordered_field(data: Mapping[str, Any], namespace: str, *, sort: bool) -> dict[str, Any]:
    found = {"name": data["name"], "type": _ordered(data["type"], namespace, sort=sort)}
    if data.get("doc") is not None:
        found["doc"] = data["doc"]
    if "default" in data:
        found["default"] = data["default"]
    if data.get("order", "ascending") != "ascending":
        found["order"] = data["order"]
    if data.get("aliases"):
        found["aliases"] = list(data["aliases"])
    others = {name: value for name, value in data.items() if name not in _FIELD_ORDER}
    return {**found, **(dict(sorted(others.items())) if sort else others)}


def _name_and_namespace(data: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    """Return a named schema's full name, and the namespace of what is inside of it."""
    name = data["name"]
    if "." in name:
        return name, name.rpartition(".")[0]
    inside = data.get("namespace", namespace) or ""
    return (f"{inside}.{name}" if inside else name), inside


def _check_names(what: str, names: Sequence[str], *, is_set: bool = False) -> None:
    """Raise `InvalidSchemaError` for what Avro does not take as a name: its parsers differ in how much they check."""
    wrong = next((name for name in names if not _NAME.fullmatch(name)), None)
    if wrong is not None:
        raise InvalidSchemaError(f"{what} can't be {wrong!r}: letters, digits and _, and no digit first")
    if is_set and len(set(names)) < len(names):
        raise InvalidSchemaError(f"{what} is there twice")


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _relative(name: str, namespace: str) -> str:
    return name.rpartition(".")[2] if namespace and name.rpartition(".")[0] == namespace else name
