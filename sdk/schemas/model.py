"""Schemas as programs see them, and the names of subjects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from semel.protocol.errors import UsageError

SCHEMA_TYPES: Final = ("AVRO", "JSON", "PROTOBUF")


class SchemaReference(NamedTuple):
    """Another schema that a schema needs.

    name:    as the schema calls it: a full name in Avro, an address in JSON Schema, an import in Protobuf
    subject, version: where it is registered; version -1: the latest
    """

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema. schema_type: "AVRO", "JSON" or "PROTOBUF"; text: in its language."""

    text: str
    schema_type: str = "AVRO"
    references: tuple[SchemaReference, ...] = ()

    def body(self) -> dict[str, Any]:
        """Return it as requests have it. Raises `UsageError`."""
        if self.schema_type not in SCHEMA_TYPES:
            raise UsageError(f"schema_type can't be {self.schema_type!r}: use one of {', '.join(SCHEMA_TYPES)}")
        body: dict[str, Any] = {"schema": self.text, "schemaType": self.schema_type}
        if self.references:
            body["references"] = [reference._asdict() for reference in self.references]
        return body

    @classmethod
    def of_body(cls, body: dict[str, Any]) -> Schema:
        """Return the schema in an answer. Raises `KeyError`, `TypeError`."""
        references = tuple(
            SchemaReference(each["name"], each["subject"], each["version"]) for each in body.get("references") or ()
        )
        return cls(body["schema"], body.get("schemaType") or "AVRO", references)


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A version of a subject. id: what records name it by."""

    subject: str
    version: int
    id: int
    schema: Schema


SubjectStrategy: TypeAlias = Callable[[str, bool, str], str]
"""(topic, is_key, record_name) -> subject. record_name: the full name of the Avro record or Protobuf message, or the
title of the JSON Schema; empty where it has none."""


def topic_name(topic: str, is_key: bool, record_name: str) -> str:
    """The default: all records of a topic have one schema.

    >>> topic_name("orders", False, "shop.Order"), topic_name("orders", True, "")
    ('orders-value', 'orders-key')
    """
    return f"{topic}-{'key' if is_key else 'value'}"


def record_name(topic: str, is_key: bool, record_name: str) -> str:
    """Records of one name have one schema, in all topics. Raises `UsageError` for a schema without a name.

    >>> record_name("orders", False, "shop.Order")
    'shop.Order'
    """
    return _named(record_name)


def topic_record_name(topic: str, is_key: bool, record_name: str) -> str:
    """Records of one name have one schema, in each topic. Raises `UsageError` for a schema without a name.

    >>> topic_record_name("orders", False, "shop.Order")
    'orders-shop.Order'
    """
    return f"{topic}-{_named(record_name)}"


def _named(name: str) -> str:
    if not name:
        raise UsageError("the schema has no name (a record in Avro, a title in JSON Schema) that a subject could have")
    return name
