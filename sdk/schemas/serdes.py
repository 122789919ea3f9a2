"""What serializers and deserializers share: a subject, an id, and the schemas that were asked for before."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from semel.protocol.errors import UsageError
from semel.sdk.schemas.core import RegistryCore
from semel.sdk.schemas.errors import SchemaDataError
from semel.sdk.schemas.model import Schema, SchemaReference, SubjectStrategy, topic_name
from semel.sdk.schemas.wire import header, split

_REFERENCES_MAX: Final = 200
_READERS_MAX: Final = 1_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SubjectChoice:
    """Under which subject a schema is: one that is named, or what a strategy makes of a topic."""

    subject: str | None = None
    topic: str | None = None
    is_key: bool = False
    strategy: SubjectStrategy = topic_name

    def name(self, record_name: str) -> str:
        """Return the subject. Raises `UsageError` where nothing says which."""
        if self.subject is not None:
            return self.subject
        if self.topic is None:
            raise UsageError("give a topic, or a subject: a schema is registered under a subject, such as orders-value")
        return self.strategy(self.topic, self.is_key, record_name)


class SchemaSerializer:
    """Turns values into bytes: the schema's id, and the value. For `value_serializer` and `key_serializer`."""

    def __init__(self, subject: str, schema_id: int, write: Callable[[Any], bytes]) -> None:
        self.subject = subject
        self.schema_id = schema_id
        self._header = header(schema_id)
        self._write = write

    def __call__(self, value: Any) -> bytes | None:
        """Return the bytes of a value; None for None. Raises `SchemaDataError` for one that does not fit the schema."""
        return None if value is None else self._header + self._write(value)


class SchemasById(ABC, Generic[T]):
    """What reads records of each schema, by its id. The first record of each waits for the registry."""

    schema_type: str

    def __init__(self, registry: RegistryCore) -> None:
        self._registry = registry
        self._readers: OrderedDict[int, T] = OrderedDict()

    def prepare(self, subject: str) -> None:
        """Get all schemas of a subject now, so that no record of them waits. A subject that is not there has none."""
        if subject in self._registry.subjects("", with_deleted=True):
            for version in self._registry.versions(subject, with_deleted=False):
                self._reader(self._registry.fixed_version(subject, version).id)

    def _reader(self, schema_id: int) -> T:
        found = self._readers.get(schema_id)
        if found is None:
            schema = self._registry.schema(schema_id)
            if schema.schema_type != self.schema_type:
                what = f"the schema {schema_id} is of the type {schema.schema_type}, and this reads {self.schema_type}"
                raise SchemaDataError(what)
            found = self._readers[schema_id] = self._prepared(schema)
            while len(self._readers) > _READERS_MAX:
                self._readers.popitem(last=False)
        return found

    @abstractmethod
    def _prepared(self, schema: Schema) -> T:
        """Return what reads records of a schema."""


class SchemaDeserializer(SchemasById[T]):
    """Turns bytes into values. The first record of each schema waits for the registry."""

    def __call__(self, data: bytes) -> Any:
        """Return the value of a record. Raises `SchemaDataError`, `SchemaRegistryError` and `RetriableError`."""
        schema_id, rest = split(data)
        return self._read(self._reader(schema_id), rest)

    @abstractmethod
    def _read(self, reader: T, data: memoryview) -> Any:
        """Return the value of a record. Raises `SchemaDataError`."""


def registered_id(registry: RegistryCore, subject: str, schema: Schema, *, registers: bool, normalize: bool) -> int:
    """Return a schema's id under a subject. registers: whether it is registered where it is not there."""
    if registers:
        return registry.register(subject, schema, normalize)
    return registry.lookup(subject, schema, normalize).id


def needed(registry: RegistryCore, references: tuple[SchemaReference, ...]) -> dict[str, Schema]:
    """Return all schemas that references need, by name, each after what it needs itself."""
    found: dict[str, Schema] = {}

    def collect(each: tuple[SchemaReference, ...], depth: int) -> None:
        for name, subject, version in each:
            if name in found:
                continue
            if depth > _REFERENCES_MAX or len(found) >= _REFERENCES_MAX:
                raise SchemaDataError(f"the schema needs more than {_REFERENCES_MAX} others by its references")
            schema = registry.fixed_version(subject, version).schema
            collect(schema.references, depth + 1)
            found[name] = schema

    collect(references, 0)
    return found
