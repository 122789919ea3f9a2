"""The schemas that records name by their ids, from the gateway's own registry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from semel.protocol.errors import SemelError
from semel.sdk.schemas.errors import SchemaDataError
from semel.web.console.protobuf_readers import ProtobufReaders
from semel.web.console.protobuf_values import ProtobufReader
from semel.web.console.visit import Console
from semel.web.problems import Problem
from semel.web.registry.formats.avro import AvroParsed
from semel.web.registry.formats.avro_tree import AvroSchema
from semel.web.registry.formats.base import InvalidSchemaError
from semel.web.registry.formats.protobuf import ProtobufParsed
from semel.web.registry.log import TOPIC
from semel.web.registry.registry import Registry
from semel.web.registry.subjects import DEFAULT_CONTEXT, parse_subject

_IDS_MAX: Final = 10
"""Schemas that one page asks for: an id that the registry does not know costs it a look at its topic."""
_PROBLEM_CHARACTERS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class FoundSchema:
    """A schema.

    avro:     its tree, where it is of Avro
    protobuf: what reads its messages, where it is of Protobuf
    problem:  why neither is there; empty for nothing
    """

    language: str
    subject: str
    version: int
    avro: AvroSchema | None = None
    protobuf: ProtobufReader | None = None
    problem: str = ""


async def schemas_of(console: Console, ids: Iterable[int]) -> dict[int, FoundSchema | None]:
    """Return the schemas of some ids; None where the registry has none. Nothing where there is no registry's topic."""
    wanted = sorted(set(ids))[:_IDS_MAX]
    if not wanted:
        return {}
    gateway = console.gateway
    try:
        await gateway.own.admin().topic(TOPIC)  # which a look at a record does not make
        registry = gateway.shared(Registry, lambda: Registry(gateway))
        await registry.ready()
        readers = gateway.shared(ProtobufReaders, ProtobufReaders)
        return {schema_id: await _found(registry, readers, schema_id) for schema_id in wanted}
    except SemelError:
        return {}


async def _found(registry: Registry, readers: ProtobufReaders, schema_id: int) -> FoundSchema | None:
    try:
        stored, _ = await registry.by_id(schema_id, None, DEFAULT_CONTEXT)
    except Problem:
        return None
    found = FoundSchema(stored.content.schema_type, stored.subject, stored.version)
    if found.language not in ("AVRO", "PROTOBUF"):
        return found
    try:
        parsed = await registry.schemas.parsed(stored.content, parse_subject(stored.subject).context)
        if isinstance(parsed, ProtobufParsed):
            return replace(found, protobuf=await readers.reader(schema_id, parsed))
    except (InvalidSchemaError, Problem, SchemaDataError) as error:
        return replace(found, problem=str(error)[:_PROBLEM_CHARACTERS_MAX])
    return replace(found, avro=parsed.tree if isinstance(parsed, AvroParsed) else None)
