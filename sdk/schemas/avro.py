"""Records in Avro, by fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException

from semel.protocol.errors import UsageError
from semel.sdk.schemas.core import RegistryCore
from semel.sdk.schemas.errors import SchemaDataError
from semel.sdk.schemas.model import Schema
from semel.sdk.schemas.serdes import SchemaDeserializer, SchemaSerializer, SubjectChoice, needed, registered_id

READ_ERRORS: Final = (ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError, MemoryError)
"""What fastavro raises for bytes that are no record of a schema."""
WRITE_ERRORS: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError)
"""What it raises for a value that does not fit a schema."""


def avro_serializer(
    registry: RegistryCore, schema: Schema, choice: SubjectChoice, *, registers: bool, normalize: bool
) -> SchemaSerializer:
    """Return what writes records of an Avro schema. Raises `UsageError` for a text that is none."""
    parsed = _parsed(registry, schema)
    name = parsed.get("name", "") if isinstance(parsed, dict) else ""
    subject = choice.name(name)

    def write(value: Any) -> bytes:
        output = io.BytesIO()
        try:
            fastavro.schemaless_writer(output, parsed, value)
        except WRITE_ERRORS as error:
            raise SchemaDataError(f"the value does not fit the schema of {subject}: {error!r}") from None
        return output.getvalue()

    schema_id = registered_id(registry, subject, schema, registers=registers, normalize=normalize)
    return SchemaSerializer(subject, schema_id, write)


class AvroDeserializer(SchemaDeserializer[Any]):
    """Reads records of Avro schemas, with a reader's schema of one's own where one is given (schema resolution)."""

    schema_type = "AVRO"

    def __init__(self, registry: RegistryCore, reader: Schema | None) -> None:
        super().__init__(registry)
        self._reader_schema = None if reader is None else _parsed(registry, reader)

    def _prepared(self, schema: Schema) -> Any:
        parsed, named = parsed_types(self._registry, schema)
        check_arrays(parsed, named)
        return parsed

    def _read(self, reader: Any, data: memoryview) -> Any:
        try:
            return fastavro.schemaless_reader(io.BytesIO(data), reader, self._reader_schema)
        except READ_ERRORS as error:
            raise SchemaDataError(f"the record can't be read by its schema: {error!r}") from None
        except fastavro.read.SchemaResolutionError as error:
            raise SchemaDataError(f"the record can't be read by the schema that was given: {error}") from None


def check_arrays(parsed: Any, named: dict[str, Any]) -> None:
    """Raise `SchemaDataError` for an array whose items take no bytes: a few bytes may claim any number of them (S2)."""
    for part in (parsed, *named.values()):
        for array in _arrays(part):
            if _takes_no_bytes(array["items"], named, frozenset()):
                raise SchemaDataError(
                    "the schema has an array of items that take no bytes, such as null. A few bytes can claim billions "
                    "of them, so records of this schema are not read"
                )


def _arrays(parsed: Any) -> Iterator[dict[str, Any]]:
    """Yield the arrays within a schema as fastavro has it, but for those within types that it only names."""
    if isinstance(parsed, list):
        for branch in parsed:
            yield from _arrays(branch)
    elif isinstance(parsed, dict):
        if parsed["type"] == "array":
            yield parsed
        for field in parsed.get("fields", ()):
            yield from _arrays(field["type"])
        for inner in ("type", "items", "values"):
            yield from _arrays(parsed.get(inner))


def _takes_no_bytes(parsed: Any, named: dict[str, Any], above: frozenset[str]) -> bool:
    """Whether values of a type are nothing in Avro's encoding. above: the records that it is in."""
    if isinstance(parsed, str):
        return parsed == "null" or (parsed in named and _takes_no_bytes(named[parsed], named, above))
    if not isinstance(parsed, dict):
        return False  # a union, which has the number of its branch
    if parsed["type"] == "record":
        name = parsed["name"]
        return name in above or all(_takes_no_bytes(field["type"], named, above | {name}) for field in parsed["fields"])
    if parsed["type"] == "fixed":
        return bool(parsed["size"] == 0)
    return isinstance(parsed["type"], (str, dict)) and _takes_no_bytes(parsed["type"], named, above)


def _parsed(registry: RegistryCore, schema: Schema) -> Any:
    return parsed_types(registry, schema)[0]


def parsed_types(
    registry: RegistryCore, schema: Schema, change: Callable[[Any], Any] = lambda data: data
) -> tuple[Any, dict[str, Any]]:
    """Return a schema as fastavro has it, and all types with a name in it and in what it references, by their names.

    change: what is made of each schema's JSON before. Raises `UsageError` for a text that is no schema.
    """
    named: dict[str, Any] = {}
    try:
        for other in needed(registry, schema.references).values():
            fastavro.parse_schema(change(json.loads(other.text)), named)
        text = schema.text.strip()
        data = text if text.isidentifier() else json.loads(text)
        return fastavro.parse_schema(change(data), named), named
    except (SchemaParseException, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"the text is no Avro schema: {error}") from None
