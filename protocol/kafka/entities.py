"""The classes that `kio` generates from Kafka's schemas, and what their fields are."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import typing
from types import UnionType
from typing import Any, Final

from semel.protocol.kafka.api import ApiKey

VERSIONS_MAX: Final = 100


@dataclasses.dataclass(frozen=True, slots=True)
class EntityField:
    """One field of an entity.

    kind:     Kafka's type of the value, or of an array's items; empty where they are structures.
    nested:   the class of the structure, or of the structures in an array.
    nullable: whether the value, or the array as a whole, may be null.
    tag:      its tag, or None for a field that is always there.
    default:  `dataclasses.MISSING` where it has none.
    """

    name: str
    kind: str
    nested: type[Any] | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any

    @property
    def has_default(self) -> bool:
        return self.default is not dataclasses.MISSING


def load_entity(key: ApiKey, version: int, kind: str) -> type[Any]:
    """Return kio's class of a "request" or "response". Raises `ModuleNotFoundError` for a version that it lacks."""
    folder = key.name.lower()
    module = importlib.import_module(f"kio.schema.{folder}.v{version}.{kind}")
    name = f"{folder.replace('_', '')}{kind}"
    return next(item for item in vars(module).values() if isinstance(item, type) and item.__name__.lower() == name)


def known_versions(key: ApiKey) -> list[int]:
    """Return the versions of an API that kio has classes for."""
    package = f"kio.schema.{key.name.lower()}"
    if importlib.util.find_spec(package) is None:
        return []
    return [version for version in range(VERSIONS_MAX) if importlib.util.find_spec(f"{package}.v{version}") is not None]


_FIELDS: dict[type[Any], tuple[EntityField, ...]] = {}


def fields_of(entity: type[Any]) -> tuple[EntityField, ...]:
    """Return the fields of one of kio's classes, in the order in which they are on the wire."""
    fields = _FIELDS.get(entity)
    if fields is None:
        hints = typing.get_type_hints(entity)
        fields = tuple(_describe(field, hints[field.name]) for field in dataclasses.fields(entity))
        _FIELDS[entity] = fields
    return fields


def is_flexible_entity(entity: type[Any]) -> bool:
    """Return whether the version has compact lengths and tagged fields (KIP-482)."""
    return bool(entity.__flexible__)


@functools.cache
def response_names(key: ApiKey) -> frozenset[str]:
    """Return the names of all fields, nested ones too, in all versions of a response."""
    names: set[str] = set()

    def collect(entity: type[Any]) -> None:
        for field in fields_of(entity):
            names.add(field.name)
            if field.nested is not None:
                collect(field.nested)

    for version in known_versions(key):
        collect(load_entity(key, version, "response"))
    return frozenset(names)


def _describe(field: dataclasses.Field[Any], hint: Any) -> EntityField:
    alternatives = typing.get_args(hint) if _is_union(hint) else (hint,)
    (kept,) = (each for each in alternatives if each is not type(None))
    is_array = typing.get_origin(kept) is tuple
    item = typing.get_args(kept)[0] if is_array else kept
    return EntityField(
        name=field.name,
        kind=field.metadata.get("kafka_type", ""),
        nested=item if dataclasses.is_dataclass(item) and isinstance(item, type) else None,
        is_array=is_array,
        nullable=type(None) in alternatives,
        tag=field.metadata.get("tag"),
        default=field.default,
    )


def _is_union(hint: Any) -> bool:
    return isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union
