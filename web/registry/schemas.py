"""Schemas, understood: parsed with what they reference, recognized, and compared. In threads: it may take a while."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from semel.web.problems import Problem
from semel.web.registry.formats.avro import Avro
from semel.web.registry.formats.base import (
    DIFFERENCES_MAX,
    REFERENCES_MAX,
    TEXT_BYTES_MAX,
    Difference,
    InvalidSchemaError,
    Language,
    Parsed,
    Referenced,
)
from semel.web.registry.formats.json_schema import JsonSchema
from semel.web.registry.formats.protobuf import Protobuf
from semel.web.registry.records import Content, Reference, SchemaStored
from semel.web.registry.state import RegistryState
from semel.web.registry.subjects import parse_subject

_log = logging.getLogger("semel.http.registry")

LANGUAGES: Final[Mapping[str, Language]] = MappingProxyType(
    {"JSON": JsonSchema(), "PROTOBUF": Protobuf(), "AVRO": Avro()}
)
LEVELS: Final = (
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
    "NONE",
)
_PARSED_MAX: Final = 1_000
_PARSED_BYTES_MAX: Final = 32 << 20
_AT_A_TIME: Final = 4


@dataclass(frozen=True, slots=True)
class Understood:
    """A schema as it is to be stored. identity: in hexadecimal, equal for texts that are the same schema."""

    content: Content
    parsed: Parsed
    identity: str


class Schemas:
    """Parses and compares, with what the registry's state says of references."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        self._parsed: OrderedDict[tuple[str, str, tuple[Referenced, ...]], Parsed] = OrderedDict()
        self._bytes = 0
        self._threads = asyncio.Semaphore(_AT_A_TIME)

    async def understand(self, content: Content, context: str, *, normalize: bool) -> Understood:
        """Return what a schema says. Raises `Problem` 42201."""
        try:
            parsed = await self.parsed(content, context)
            text = parsed.normalized if normalize else parsed.canonical
            identity = parsed.normalized_identity if normalize else parsed.identity
        except InvalidSchemaError as error:
            raise invalid(f"Invalid schema of type {content.schema_type}, details: {error}") from None
        stored = replace(content, text=text)
        return Understood(stored, parsed, _digest(stored, context, identity))

    async def parsed(self, content: Content, context: str) -> Parsed:
        """Return a schema, parsed. Raises `InvalidSchemaError`, and `Problem` for references that do not exist."""
        references = tuple(self.needed(content.references, context))
        key = (content.schema_type, content.text, references)
        found = self._parsed.get(key)
        if found is None:
            language = LANGUAGES.get(content.schema_type)
            if language is None:
                raise InvalidSchemaError(f"the registry does not know the type {content.schema_type!r}")
            async with self._threads:
                found = await asyncio.to_thread(language.parse, content.text, references)
            self._keep(key, found)
        else:
            self._parsed.move_to_end(key)
        return found

    async def identity(self, stored: SchemaStored) -> str:
        """Return what a stored schema is recognized by, also one that the original has written. "": nothing."""
        if stored.identity:
            return stored.identity
        context = parse_subject(stored.subject).context
        try:
            parsed = await self.parsed(stored.content, context)
        except (InvalidSchemaError, Problem):
            return ""
        return _digest(stored.content, context, parsed.identity)

    def needed(self, references: Sequence[Reference], context: str) -> list[Referenced]:
        """Return what references need, each once, after what it needs itself. Raises `Problem` 42201."""
        found: dict[str, Referenced] = {}
        self._collect(references, context, found, 0)
        return list(found.values())

    def _collect(self, references: Sequence[Reference], context: str, found: dict[str, Referenced], depth: int) -> None:
        for reference in references:
            if reference.name in found:
                continue
            subject = self._state.qualified(reference, context)
            stored = (
                self._newest(subject) if reference.version == -1 else self._state.version(subject, reference.version)
            )
            if stored is None:
                raise invalid(
                    f"Invalid schema: no schema reference found for subject {subject!r} and version {reference.version}"
                )
            if depth > REFERENCES_MAX or len(found) >= REFERENCES_MAX:
                raise invalid(f"Invalid schema: it needs more than {REFERENCES_MAX} others by its references")
            self._collect(stored.content.references, parse_subject(subject).context, found, depth + 1)
            found[reference.name] = Referenced(reference.name, stored.content.text)

    def _newest(self, subject: str) -> SchemaStored | None:
        versions = self._state.versions(subject)
        return versions[-1] if versions else None

    def _keep(self, key: tuple[str, str, tuple[Referenced, ...]], parsed: Parsed) -> None:
        self._parsed[key] = parsed
        self._bytes += _bytes_of(key)
        while len(self._parsed) > _PARSED_MAX or self._bytes > _PARSED_BYTES_MAX:
            oldest, _ = self._parsed.popitem(last=False)
            self._bytes -= _bytes_of(oldest)

    async def incompatible(
        self, new: Understood, context: str, stored: Sequence[SchemaStored], level: str
    ) -> list[str]:
        """Return why a schema is not compatible with versions at a level, each in a sentence; empty where it is."""
        if level == "NONE":
            return []
        found = []
        for old in reversed(stored if level.endswith("_TRANSITIVE") else stored[-1:]):
            differences = await self._between(new, old, context, level)
            found += [_message(each) for each in differences]
            if differences:
                found.append(f"{{oldSchemaVersion: {old.version}}}")
                found.append(f"{{compatibility: '{level}'}}")
                break
        return found

    async def _between(self, new: Understood, old: SchemaStored, context: str, level: str) -> list[Difference]:
        before_type, after_type = old.content.schema_type, new.content.schema_type
        if before_type != after_type:
            what = f"the schema is of the type {after_type}, and version {old.version} is of {before_type}"
            return [Difference("SCHEMA_TYPE_CHANGED", "/", what)]
        language = LANGUAGES[new.content.schema_type]
        try:
            before = await self.parsed(old.content, parse_subject(old.subject).context)
            found: list[Difference] = []
            async with self._threads:
                if level.startswith(("BACKWARD", "FULL")):
                    found += await asyncio.to_thread(language.differences, new.parsed, before)
                if level.startswith(("FORWARD", "FULL")):
                    found += await asyncio.to_thread(language.differences, before, new.parsed)
        except InvalidSchemaError as error:
            raise invalid(f"Invalid schema: it can't be compared with version {old.version}: {error}") from None
        except RecursionError:
            raise invalid(f"Invalid schema: it is nested too deeply to compare it with version {old.version}") from None
        except (AttributeError, KeyError, TypeError, ValueError):
            _log.warning("two schemas can't be compared", exc_info=True)
            raise invalid(
                f"Invalid schema: it can't be compared with version {old.version}, because a $ref of one of them leads "
                "to something that is no schema"
            ) from None
        return found[:DIFFERENCES_MAX]


def checked_content(content: Content) -> None:
    """Raise `Problem` 42201 for a schema that can't be stored, whatever it says."""
    if content.schema_type not in LANGUAGES:
        raise invalid(f"Invalid schema type {content.schema_type!r}: the registry has {', '.join(LANGUAGES)}")
    try:
        size = len(content.text.encode()) + len(content.metadata) + len(content.rule_set)
    except UnicodeEncodeError:
        raise invalid("Invalid schema: it has half a character in it") from None
    if not content.text.strip():
        raise invalid("Empty schema")
    if size > TEXT_BYTES_MAX:
        raise invalid(f"Invalid schema: it has {size} bytes, and {TEXT_BYTES_MAX} at most are stored")
    if len(content.references) > REFERENCES_MAX:
        raise invalid(f"Invalid schema: it has more than {REFERENCES_MAX} references")


def invalid(detail: str) -> Problem:
    """Return the error of a schema that is none."""
    return Problem(422, detail, error_code=42201)


def _message(found: Difference) -> str:
    return f"{{errorType:'{found.kind}', description:{json.dumps(found.what)}, additionalInfo:'{found.path}'}}"


def _digest(content: Content, context: str, identity: bytes) -> str:
    references = [
        (name, str(parse_subject(subject, context)), version) for name, subject, version in content.references
    ]
    parts = json.dumps([content.schema_type, references, content.metadata, content.rule_set]).encode()
    return hashlib.sha256(hashlib.sha256(parts).digest() + identity).hexdigest()


def _bytes_of(key: tuple[str, str, tuple[Referenced, ...]]) -> int:
    return len(key[1]) + sum(len(reference.text) for reference in key[2])
