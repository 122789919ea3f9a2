"""The records of the topic `_schemas`, as Confluent's registry writes and reads them: keys and values in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from semel.web.registry.strict_json import is_deep, mended_loads

AVRO: Final = "AVRO"
IDENTITY_HEADER: Final = "semel.identity"
"""What a schema is recognized by, in hexadecimal: the original ignores headers."""


class Reference(NamedTuple):
    """Another schema that a schema needs. name: as the schema calls it."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Content:
    """What a schema says, without where it is registered.

    schema_type: "AVRO", "JSON" or "PROTOBUF"
    metadata, rule_set: JSON of Confluent's data contracts, which clients act on; empty where there is none
    """

    schema_type: str
    text: str
    references: tuple[Reference, ...] = ()
    metadata: str = ""
    rule_set: str = ""


@dataclass(frozen=True, slots=True)
class SchemaStored:
    """A version of a subject. identity: what the same schema is recognized by; empty where nobody has said."""

    subject: str
    version: int
    id: int
    content: Content
    is_deleted: bool = False
    identity: str = ""


@dataclass(frozen=True, slots=True)
class SchemaErased:
    """A version is deleted for good."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SubjectDeleted:
    """All versions of a subject up to this one are deleted, and can be asked for yet."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class ConfigSet:
    """Settings. subject: empty for all; values: None where they are taken back."""

    subject: str
    values: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ModeSet:
    """What may be done. subject: empty for all; mode: empty where it is taken back."""

    subject: str
    mode: str


@dataclass(frozen=True, slots=True)
class IdsGiven:
    """The highest id that was ever given, by context. It is in the value of NOOP, which the original does not read."""

    ids: Mapping[str, int] = field(default_factory=dict)


Event = SchemaStored | SchemaErased | SubjectDeleted | ConfigSet | ModeSet | IdsGiven


class Encoded(NamedTuple):
    """A record to write. value: None for a tombstone."""

    key: bytes
    value: bytes | None
    headers: dict[str, bytes]


def encode(event: Event) -> Encoded:
    """Return the record of an event."""
    match event:
        case SchemaStored():
            key: dict[str, Any] = _schema_key(event.subject, event.version)
            headers = {IDENTITY_HEADER: event.identity.encode()} if event.identity else {}
            return Encoded(_json(key), _json(_schema_value(event)), headers)
        case SchemaErased():
            return Encoded(_json(_schema_key(event.subject, event.version)), None, {})
        case SubjectDeleted():
            key = {"keytype": "DELETE_SUBJECT", "subject": event.subject, "magic": 0}
            return Encoded(_json(key), _json({"subject": event.subject, "version": event.version}), {})
        case ConfigSet():
            key = {"keytype": "CONFIG", "subject": event.subject or None, "magic": 0}
            return Encoded(_json(key), None if event.values is None else _json(dict(event.values)), {})
        case ModeSet():
            key = {"keytype": "MODE", "subject": event.subject or None, "magic": 0}
            return Encoded(_json(key), _json({"mode": event.mode}) if event.mode else None, {})
        case IdsGiven():
            return Encoded(_json({"keytype": "NOOP", "magic": 0}), _json({"ids": dict(event.ids)}), {})


def decode(key: bytes, value: bytes | None, headers: Mapping[str, bytes | None]) -> Event | None:
    """Return what a record says; None for what the registry has no use for. Raises `ValueError` for a damaged one.

    What no answer can show, such as numbers that are not finite, is taken out: other programs may have written it.
    """
    try:
        found = mended_loads(key)
        kind, subject = found["keytype"], found.get("subject") or ""
        body = None if value is None else mended_loads(value)
        if not isinstance(subject, str):
            raise ValueError("its subject is no text")
        match kind:
            case "SCHEMA" if body is None:
                return SchemaErased(subject, int(found["version"]))
            case "SCHEMA":
                assert body is not None
                identity = headers.get(IDENTITY_HEADER) or b""
                return _schema_of(body, identity.decode("ascii", "replace"))
            case "DELETE_SUBJECT":
                return None if body is None else SubjectDeleted(subject, int(body["version"]))
            case "CONFIG":
                if body is not None and not isinstance(body, dict):
                    raise ValueError("its settings are no object")
                if is_deep(body):
                    raise ValueError("its settings are nested too deeply")
                return ConfigSet(subject, body)
            case "MODE":
                return ModeSet(subject, "" if body is None else str(body["mode"]))
            case "NOOP" if isinstance(body, dict):
                return IdsGiven({str(name): int(number) for name, number in body.get("ids", {}).items()})
        return None
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _schema_key(subject: str, version: int) -> dict[str, Any]:
    return {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}


def _schema_value(event: SchemaStored) -> dict[str, Any]:
    content = event.content
    value: dict[str, Any] = {"subject": event.subject, "version": event.version, "id": event.id}
    if content.schema_type != AVRO:
        value["schemaType"] = content.schema_type
    if content.references:
        value["references"] = [reference._asdict() for reference in content.references]
    if content.metadata:
        value["metadata"] = json.loads(content.metadata)
    if content.rule_set:
        value["ruleSet"] = json.loads(content.rule_set)
    return {**value, "schema": content.text, "deleted": event.is_deleted}


def _schema_of(body: Mapping[str, Any], identity: str) -> SchemaStored:
    references = tuple(
        Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
        for each in body.get("references") or ()
    )
    content = Content(
        str(body.get("schemaType") or AVRO),
        str(body["schema"]),
        references,
        _shallow(body.get("metadata")),
        _shallow(body.get("ruleSet")),
    )
    is_deleted = bool(body.get("deleted", False))
    return SchemaStored(str(body["subject"]), int(body["version"]), int(body["id"]), content, is_deleted, identity)


def _shallow(value: object) -> str:
    return "" if is_deep(value) else contract(value)


def contract(value: object) -> str:
    """Return a part of a data contract as text; empty where there is none."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")) if value else ""


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
