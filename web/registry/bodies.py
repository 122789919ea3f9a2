"""Requests and answers of the registry's REST API: JSON with the original's names, bounded and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from semel.web.problems import Problem
from semel.web.registry.formats.protobuf import ProtobufParsed
from semel.web.registry.records import AVRO, Content, Reference, SchemaStored, contract
from semel.web.registry.registry import NewSchema, Registry
from semel.web.registry.schemas import invalid
from semel.web.registry.strict_json import LEVELS_MAX, UnfitJsonError, is_deep, strict_loads
from semel.web.registry.subjects import parse_subject

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_JSON: Final = "application/json"
_INT32_MAX: Final = (1 << 31) - 1
_RULES: Final = ("migrationRules", "domainRules", "encodingRules")
_TRUE: Final = frozenset({"true", "1", "yes"})
_FALSE: Final = frozenset({"", "false", "0", "no"})


def answer(request: Request, value: object, status: int = 200) -> Response:
    """Return a value as JSON: of the type that the client asks for."""
    accepted = request.headers.get("accept", "")
    kind = _JSON if _JSON in accepted and "vnd.schemaregistry" not in accepted else CONTENT_TYPE
    return JSONResponse(value, status, media_type=kind)


def problem_answer(problem: Problem) -> Response:
    """Return an error in the original's form: its code and a message."""
    body = {"error_code": problem.error_code, "message": problem.detail}
    return JSONResponse(body, problem.status, problem.headers, CONTENT_TYPE)


async def json_of(request: Request) -> dict[str, Any]:
    """Return the object in a request's body. Raises `Problem` 422 where there is none, and 400 for what is no JSON."""
    try:
        found = strict_loads(await request.body())
    except UnfitJsonError as error:
        raise invalid(f"the body can't be stored: {error}") from None
    except (ValueError, RecursionError):
        raise Problem(400, "the body is not JSON", error_code=400) from None
    if not isinstance(found, dict):
        raise Problem(422, "the body must be a JSON object", error_code=422)
    return found


def flag(request: Request, name: str) -> bool:
    """Return a parameter of the address that is true or false. Raises `Problem` 422 for anything else."""
    given = request.query_params.get(name, "").lower()
    if given not in _TRUE | _FALSE:
        raise Problem(422, f"the parameter {name} is true or false, not {given[:100]!r}", error_code=422)
    return given in _TRUE


def number(request: Request, name: str, default: int) -> int:
    """Return a parameter of the address that is a whole number. Raises `Problem` 422 for anything else."""
    given = request.query_params.get(name)
    if given is None:
        return default
    if len(given) > 11 or not given.removeprefix("-").isdecimal():
        raise Problem(422, f"the parameter {name} is a whole number, not {given[:100]!r}", error_code=422)
    return int(given)


def new_schema(body: Mapping[str, Any]) -> NewSchema:
    """Return the schema that a request gives. Raises `Problem` 42201."""
    text = body.get("schema")
    if not isinstance(text, str):
        raise invalid("the body must have a schema: text, in JSON with quotation marks escaped")
    schema_type = body.get("schemaType") or AVRO
    references = body.get("references") or []
    if not isinstance(schema_type, str) or not isinstance(references, list):
        raise invalid("schemaType is text, and references a list")
    content = Content(
        schema_type.upper(),
        text,
        tuple(map(_reference, references)),
        _contract(body, "metadata"),
        _contract(body, "ruleSet"),
    )
    return NewSchema(content, _positive(body, "id"), _positive(body, "version"))


def _contract(body: Mapping[str, Any], name: str) -> str:
    given = body.get(name)
    if is_deep(given):
        raise invalid(f"{name} is nested too deeply: it may have {LEVELS_MAX} levels")
    check = _check_metadata if name == "metadata" else _check_rules
    check(given)
    return contract(given)


def _check_metadata(given: Any) -> None:
    """Raise `Problem` 422 for what clients could not read: `tags`, `properties` and `sensitive` have one form."""
    if not given:
        return
    if not isinstance(given, dict):
        raise invalid("metadata is an object with tags, properties and sensitive")
    tags, properties, sensitive = (given.get(name) for name in ("tags", "properties", "sensitive"))
    if not (tags is None or (isinstance(tags, dict) and all(map(_is_texts, tags.values())))):
        raise invalid("the tags of metadata are lists of text by name")
    if not (properties is None or (isinstance(properties, dict) and _is_texts(list(properties.values())))):
        raise invalid("the properties of metadata are text by name")
    if not (sensitive is None or _is_texts(sensitive)):
        raise invalid("sensitive in metadata is a list of names")


def _check_rules(given: Any) -> None:
    """The same for rules: those of each kind are a list of objects with a name."""
    if not given:
        return
    if not isinstance(given, dict):
        raise invalid("a ruleSet is an object with migrationRules, domainRules and encodingRules")
    for kind, rules in given.items():
        if kind not in _RULES:
            raise invalid(f"a ruleSet has {', '.join(_RULES)}, and no {str(kind)[:60]!r}")
        for rule in rules if isinstance(rules, list) else () if rules is None else (None,):
            if not isinstance(rule, dict) or not isinstance(rule.get("name"), str):
                raise invalid(f"{kind} is a list of rules, which are objects with a name")


def _is_texts(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(each, str) for each in given)


def _positive(body: Mapping[str, Any], name: str) -> int:
    given = body.get(name) or 0
    if isinstance(given, bool) or not isinstance(given, int) or given > _INT32_MAX:
        raise invalid(f"{name} is a whole number up to {_INT32_MAX}")
    return max(given, 0)  # the original's clients send -1 for none


def _reference(given: Any) -> Reference:
    try:
        name, subject, version = given["name"], given["subject"], given["version"]
    except (KeyError, TypeError):
        raise invalid("a reference has a name, a subject and a version") from None
    if not isinstance(name, str) or not isinstance(subject, str) or isinstance(version, bool):
        raise invalid("a reference has a name and a subject, which are text, and a version")
    if not isinstance(version, int) or not -1 <= version <= _INT32_MAX or version == 0:
        raise invalid("the version of a reference is a whole number from 1, or -1 for the latest")
    return Reference(name, subject, version)


def content_body(content: Content, text: str) -> dict[str, Any]:
    """Return a schema as answers show it; without its type where that is Avro, as the original does."""
    body: dict[str, Any] = {}
    if content.schema_type != AVRO:
        body["schemaType"] = content.schema_type
    if content.references:
        body["references"] = [reference._asdict() for reference in content.references]
    if content.metadata:
        body["metadata"] = json.loads(content.metadata)
    if content.rule_set:
        body["ruleSet"] = json.loads(content.rule_set)
    return {**body, "schema": text}


def stored_body(stored: SchemaStored, text: str) -> dict[str, Any]:
    """Return a version of a subject as answers show it."""
    body: dict[str, Any] = {"subject": stored.subject, "version": stored.version, "id": stored.id}
    deleted = {"deleted": True} if stored.is_deleted else {}
    return {**body, **content_body(stored.content, text), **deleted}


async def formatted(registry: Registry, request: Request, stored: SchemaStored) -> str:
    """Return a schema's text; `format=serialized` gives a Protobuf descriptor in base64. Raises `Problem` 422."""
    wanted = request.query_params.get("format", "")
    if wanted in ("", "default"):
        return stored.content.text
    if wanted == "serialized" and stored.content.schema_type == "PROTOBUF":
        parsed = await registry.schemas.parsed(stored.content, parse_subject(stored.subject).context)
        assert isinstance(parsed, ProtobufParsed)
        return parsed.serialized
    if wanted == "serialized":
        return stored.content.text
    raise Problem(422, f"the format {wanted[:100]!r} is not known: default, or serialized for Protobuf", error_code=422)
