"""Records in JSON, checked by JSON Schema with the package jsonschema."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft7Validator, validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from semel.protocol.errors import UsageError
from semel.sdk.schemas.core import RegistryCore
from semel.sdk.schemas.errors import SchemaDataError
from semel.sdk.schemas.model import Schema
from semel.sdk.schemas.serdes import SchemaDeserializer, SchemaSerializer, SubjectChoice, needed, registered_id


def json_serializer(
    registry: RegistryCore, schema: Schema, choice: SubjectChoice, *, registers: bool, normalize: bool
) -> SchemaSerializer:
    """Return what writes records of a JSON Schema. Raises `UsageError` for a text that is none."""
    validator = _validator(registry, schema)
    root = validator.schema
    subject = choice.name(str(root.get("title", "")) if isinstance(root, dict) else "")

    def write(value: Any) -> bytes:
        _check(validator, value)
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise SchemaDataError(f"the value can't be JSON: {error}") from None

    schema_id = registered_id(registry, subject, schema, registers=registers, normalize=normalize)
    return SchemaSerializer(subject, schema_id, write)


class JsonDeserializer(SchemaDeserializer[Validator]):
    """Reads records of JSON Schemas, and checks each by the schema it was written with, or by one of one's own."""

    schema_type = "JSON"

    def __init__(self, registry: RegistryCore, reader: Schema | None) -> None:
        super().__init__(registry)
        self._own = None if reader is None else _validator(registry, reader)

    def _prepared(self, schema: Schema) -> Validator:
        return self._own or _validator(self._registry, schema)

    def _read(self, reader: Validator, data: memoryview) -> Any:
        try:
            value = json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise SchemaDataError(f"the record is not JSON: {error}") from None
        _check(reader, value)
        return value


def _check(validator: Validator, value: Any) -> None:
    try:
        validator.validate(value)
    except ValidationError as error:
        place = "/".join(map(str, error.absolute_path))
        raise SchemaDataError(f"the value does not fit the schema at {place!r}: {error.message[:500]}") from None
    except Unresolvable as error:
        raise SchemaDataError(f"the schema refers to one that is not among its references: {error}") from None
    except RecursionError:
        raise SchemaDataError("the value is nested too deeply") from None


def _validator(registry: RegistryCore, schema: Schema) -> Validator:
    try:
        root = json.loads(schema.text)
        kind = validator_for(root, default=Draft7Validator)
        kind.check_schema(root)
        known: Registry[Any] = Registry()  # nothing is fetched from the network
        for name, other in needed(registry, schema.references).items():
            resource = Resource.from_contents(json.loads(other.text), default_specification=DRAFT7)
            known = known.with_resource(name, resource)
            if resource.id():
                known = known.with_resource(str(resource.id()), resource)
        return kind(root, registry=known)
    except SchemaError as error:
        raise UsageError(f"the text is no JSON Schema: {error.message}") from None
    except ValueError as error:
        raise UsageError(f"the text is no JSON Schema: {error}") from None
