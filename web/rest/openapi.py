"""The description of the REST API in OpenAPI 3.1, made from the table of operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from semel.web.rest.bounds import KEY_CHARACTERS_MAX
from semel.web.rest.operations import Operation

_EVERYWHERE: Final = (400, 401, 403, 404, 429, 503)
_WITH_BODY: Final = (413, 415, 422)
_PROBLEM: Final = {
    "type": "object",
    "description": "Problem details (RFC 9457), with the two fields of Confluent's API",
    "required": ["type", "title", "status", "detail", "error_code", "message"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "what is wrong, and the next step"},
        "error_code": {"type": "integer"},
        "message": {"type": "string"},
    },
}
_KEY_SAYS: Final = (
    "Another one for each request, and the same for its repetitions: the request takes effect once, and a repetition "
    "gets the first one's answer."
)


def description(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """Return the description of these operations."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Semel's REST API",
            "version": version,
            "description": "A subset of Confluent's API of version 3, with requests and transactions that take effect "
            "exactly once.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM},
            "responses": {
                "Problem": {
                    "description": "Refused, or not done",
                    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
            },
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
        },
        "security": [{}, {"basic": []}],
    }


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": _parameters(operation),
        "responses": _responses(operation),
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object"}, "example": operation.body}},
        }
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    text = {"type": "string"}
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": text}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    found += [{"name": name, "in": "query", "schema": text, "description": says} for name, says in operation.query]
    if operation.key:
        found.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": operation.key == "required",
                "schema": {"type": "string", "minLength": 1, "maxLength": KEY_CHARACTERS_MAX},
                "description": _KEY_SAYS,
            }
        )
    return found


def _responses(operation: Operation) -> dict[str, Any]:
    success: dict[str, Any] = {"description": HTTPStatus(operation.status).phrase}
    if operation.status != HTTPStatus.NO_CONTENT:
        success["content"] = {kind: {} for kind in operation.media_types}
    refusals = {*_EVERYWHERE, *operation.more, *(_WITH_BODY if operation.body is not None else ())}
    problems = {str(status): {"$ref": "#/components/responses/Problem"} for status in sorted(refusals)}
    return {str(operation.status): success, **problems}
