"""The registry's REST API, as Confluent's has it, as a part of the HTTP gateway.

Each path is there twice: as it is, and below /contexts/NAME, where subjects without a context are in that one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from semel.protocol.errors import SemelError
from semel.web.gateway import Gateway
from semel.web.paths import part_of_path
from semel.web.problems import Problem, problem_of
from semel.web.registry import errors
from semel.web.registry.bodies import (
    answer,
    content_body,
    flag,
    formatted,
    json_of,
    new_schema,
    number,
    problem_answer,
    stored_body,
)
from semel.web.registry.formats.base import InvalidSchemaError
from semel.web.registry.records import SchemaStored
from semel.web.registry.registry import Registry
from semel.web.registry.schemas import LANGUAGES, invalid
from semel.web.registry.subjects import DEFAULT_CONTEXT, EVERYTHING, Subject, parse_subject

_log = logging.getLogger("semel.http.registry")

_Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def routes(gateway: Gateway) -> list[BaseRoute]:
    """Return the routes. The topic `_schemas` is made, and read, at the first request."""
    api = _Api(gateway, gateway.shared(Registry, lambda: Registry(gateway)))
    table: list[tuple[str, str, _Endpoint]] = [
        ("GET", "/subjects", api.subjects),
        ("POST", "/subjects/{subject}", api.lookup),
        ("DELETE", "/subjects/{subject}", api.delete_subject),
        ("GET", "/subjects/{subject}/metadata", api.with_metadata),
        ("GET", "/subjects/{subject}/versions", api.versions),
        ("POST", "/subjects/{subject}/versions", api.register),
        ("GET", "/subjects/{subject}/versions/{version}", api.version),
        ("DELETE", "/subjects/{subject}/versions/{version}", api.delete_version),
        ("GET", "/subjects/{subject}/versions/{version}/schema", api.text_of_version),
        ("GET", "/subjects/{subject}/versions/{version}/referencedby", api.referenced_by),
        ("GET", "/schemas", api.schemas),
        ("GET", "/schemas/types", api.types),
        ("GET", "/schemas/ids/{id}", api.by_id),
        ("GET", "/schemas/ids/{id}/schema", api.text_of_id),
        ("GET", "/schemas/ids/{id}/subjects", api.subjects_of_id),
        ("GET", "/schemas/ids/{id}/versions", api.versions_of_id),
        ("POST", "/compatibility/subjects/{subject}/versions", api.compatible),
        ("POST", "/compatibility/subjects/{subject}/versions/{version}", api.compatible),
        ("GET", "/config", api.config),
        ("PUT", "/config", api.set_config),
        ("DELETE", "/config", api.delete_config),
        ("GET", "/config/{subject}", api.config),
        ("PUT", "/config/{subject}", api.set_config),
        ("DELETE", "/config/{subject}", api.delete_config),
        ("GET", "/mode", api.mode),
        ("PUT", "/mode", api.set_mode),
        ("DELETE", "/mode", api.delete_mode),
        ("GET", "/mode/{subject}", api.mode),
        ("PUT", "/mode/{subject}", api.set_mode),
        ("DELETE", "/mode/{subject}", api.delete_mode),
        ("GET", "/contexts", api.contexts),
    ]
    found: list[BaseRoute] = []
    for method, path, endpoint in table:
        answered = _in_its_form(endpoint, api.registry)
        found += [
            Route(path, answered, methods=[method]),
            Route(f"/contexts/{{context}}{path}", answered, methods=[method]),
        ]
    return found


def _in_its_form(endpoint: _Endpoint, registry: Registry) -> _Endpoint:
    async def answered(request: Request) -> Response:
        try:
            await registry.ready()
            return await endpoint(request)
        except Problem as problem:
            return problem_answer(problem)
        except SemelError as error:
            _log.warning("%s %s failed: %s", request.method, request.url.path, error)
            return problem_answer(errors.of_node(problem_of(error)))
        except InvalidSchemaError as error:
            return problem_answer(invalid(f"Invalid schema: {error}"))

    return answered


class _Api:
    def __init__(self, gateway: Gateway, registry: Registry) -> None:
        self._gateway = gateway
        self.registry = registry
        self._state = registry.state

    # --- Subjects -----------------------------------------------------------------------------------------------------

    async def subjects(self, request: Request) -> Response:
        names = self._state.subjects(with_deleted=flag(request, "deleted"), only_deleted=flag(request, "deletedOnly"))
        return answer(request, _page(request, [name for name in names if self._is_listed(request, name)]))

    def _is_listed(self, request: Request, name: str) -> bool:
        default = EVERYTHING if _context(request) == DEFAULT_CONTEXT else ""
        prefix = request.query_params.get("subjectPrefix", default)
        if prefix == EVERYTHING:
            return True
        wanted, found = parse_subject(prefix, _context(request)), parse_subject(name)
        return found.context == wanted.context and found.name.startswith(wanted.name)

    async def lookup(self, request: Request) -> Response:
        new = new_schema(await json_of(request))
        stored = await self.registry.lookup(
            _subject(request), new.content, normalize=flag(request, "normalize"), with_deleted=flag(request, "deleted")
        )
        return answer(request, stored_body(stored, await formatted(self.registry, request, stored)))

    async def delete_subject(self, request: Request) -> Response:
        caller, is_permanent = self._gateway.caller_of(request), flag(request, "permanent")
        return answer(request, await self.registry.delete_subject(_subject(request), caller, is_permanent=is_permanent))

    async def versions(self, request: Request) -> Response:
        found = await self.registry.versions(
            _subject(request), with_deleted=flag(request, "deleted"), only_deleted=flag(request, "deletedOnly")
        )
        return answer(request, _page(request, [stored.version for stored in found]))

    async def register(self, request: Request) -> Response:
        stored = await self.registry.register(
            _subject(request),
            new_schema(await json_of(request)),
            self._gateway.caller_of(request),
            normalize=flag(request, "normalize"),
        )
        return answer(
            request, {"id": stored.id, "version": stored.version, **content_body(stored.content, stored.content.text)}
        )

    async def version(self, request: Request) -> Response:
        stored = await self._version(request)
        return answer(request, stored_body(stored, await formatted(self.registry, request, stored)))

    async def delete_version(self, request: Request) -> Response:
        caller, is_permanent = self._gateway.caller_of(request), flag(request, "permanent")
        version = request.path_params["version"]
        deleted = await self.registry.delete_version(_subject(request), version, caller, is_permanent=is_permanent)
        return answer(request, deleted)

    async def text_of_version(self, request: Request) -> Response:
        stored = await self._version(request)
        return _text(request, stored, await formatted(self.registry, request, stored))

    async def referenced_by(self, request: Request) -> Response:
        stored = await self._version(request)
        users = self._state.referencing(stored.subject, stored.version)
        return answer(request, _page(request, sorted({user.id for user in users})))

    async def with_metadata(self, request: Request) -> Response:
        """The latest version whose metadata has all of these properties."""
        keys, values = request.query_params.getlist("key"), request.query_params.getlist("value")
        if not keys or len(keys) != len(values):
            raise Problem(422, "give as many parameters `value` as `key`, and at least one", error_code=422)
        wanted = dict(zip(keys, values, strict=True))
        for stored in reversed(await self.registry.versions(_subject(request), with_deleted=flag(request, "deleted"))):
            body = stored_body(stored, await formatted(self.registry, request, stored))
            metadata = body.get("metadata")
            properties = metadata.get("properties") if isinstance(metadata, dict) else None
            if isinstance(properties, dict) and wanted.items() <= properties.items():
                return answer(request, body)
        raise errors.schema_not_found()

    async def _version(self, request: Request) -> SchemaStored:
        with_deleted = flag(request, "deleted")
        return await self.registry.version(_subject(request), request.path_params["version"], with_deleted=with_deleted)

    # --- Schemas ------------------------------------------------------------------------------------------------------

    async def schemas(self, request: Request) -> Response:
        with_deleted, only_latest = flag(request, "deleted"), flag(request, "latestOnly")
        found: dict[tuple[str, int], SchemaStored] = {}
        for stored in self._state.all_versions():
            if self._is_listed(request, stored.subject) and (with_deleted or not stored.is_deleted):
                found[stored.subject, 0 if only_latest else stored.version] = stored
        return answer(request, [stored_body(each, each.content.text) for each in _page(request, list(found.values()))])

    async def types(self, request: Request) -> Response:
        return answer(request, list(LANGUAGES))

    async def by_id(self, request: Request) -> Response:
        stored, _ = await self._by_id(request)
        body = content_body(stored.content, await formatted(self.registry, request, stored))
        if flag(request, "fetchMaxId"):
            body["maxId"] = self._state.highest_id(parse_subject(stored.subject).context)
        return answer(request, body)

    async def text_of_id(self, request: Request) -> Response:
        stored, _ = await self._by_id(request)
        return _text(request, stored, await formatted(self.registry, request, stored))

    async def subjects_of_id(self, request: Request) -> Response:
        _, users = await self._by_id(request)
        with_deleted = flag(request, "deleted")
        names = sorted({each.subject for each in users if with_deleted or not each.is_deleted})
        return answer(request, _page(request, names))

    async def versions_of_id(self, request: Request) -> Response:
        _, users = await self._by_id(request)
        with_deleted = flag(request, "deleted")
        found = [
            {"subject": each.subject, "version": each.version} for each in users if with_deleted or not each.is_deleted
        ]
        return answer(request, _page(request, found))

    async def _by_id(self, request: Request) -> tuple[SchemaStored, list[SchemaStored]]:
        given = request.path_params["id"]
        if not given.isascii() or not given.isdecimal() or len(given) > 10:
            raise errors.schema_not_found(given[:100])
        named = request.query_params.get("subject")
        context = _context(request)
        return await self.registry.by_id(int(given), parse_subject(named, context) if named else None, context)

    async def compatible(self, request: Request) -> Response:
        why = await self.registry.compatible(
            _subject(request),
            new_schema(await json_of(request)).content,
            request.path_params.get("version"),
            normalize=flag(request, "normalize"),
        )
        return answer(request, {"is_compatible": not why, **({"messages": why} if flag(request, "verbose") else {})})

    # --- Settings -----------------------------------------------------------------------------------------------------

    async def config(self, request: Request) -> Response:
        name = _name(request)
        own = self._state.own_config(name)
        if own is None and name and not flag(request, "defaultToGlobal"):
            raise errors.no_own_compatibility(name)
        return answer(request, {**(own or {}), "compatibilityLevel": self._state.compatibility(name)})

    async def set_config(self, request: Request) -> Response:
        body = await json_of(request)
        unknown = sorted(name for name, value in body.items() if name not in ("compatibility", "normalize") and value)
        if unknown:
            detail = f"this registry has compatibility and normalize, and not {', '.join(unknown)[:200]}"
            raise Problem(422, detail, error_code=42203)
        values: dict[str, Any] = {}
        if body.get("compatibility") is not None:
            level = body["compatibility"]
            if not isinstance(level, str):
                raise errors.invalid_level(level)
            values["compatibilityLevel"] = level.upper()
        if body.get("normalize") is not None:
            if not isinstance(body["normalize"], bool):
                raise Problem(422, "normalize is true or false", error_code=422)
            values["normalize"] = body["normalize"]
        if not values:
            raise errors.invalid_level(None)
        stored = await self.registry.set_config(_name(request), values, self._gateway.caller_of(request))
        return answer(
            request, {("compatibility" if name == "compatibilityLevel" else name): stored[name] for name in stored}
        )

    async def delete_config(self, request: Request) -> Response:
        return answer(request, await self.registry.delete_config(_name(request), self._gateway.caller_of(request)))

    async def mode(self, request: Request) -> Response:
        name = _name(request)
        if name and self._state.own_mode(name) is None and not flag(request, "defaultToGlobal"):
            raise errors.no_own_mode(name)
        return answer(request, {"mode": self._state.mode(name)})

    async def set_mode(self, request: Request) -> Response:
        mode = (await json_of(request)).get("mode")
        if not isinstance(mode, str):
            raise errors.invalid_mode(mode)
        caller = self._gateway.caller_of(request)
        await self.registry.set_mode(_name(request), mode.upper(), caller, is_forced=flag(request, "force"))
        return answer(request, {"mode": mode.upper()})

    async def delete_mode(self, request: Request) -> Response:
        return answer(
            request, {"mode": await self.registry.delete_mode(_name(request), self._gateway.caller_of(request))}
        )

    async def contexts(self, request: Request) -> Response:
        return answer(request, _page(request, self._state.contexts()))


def _context(request: Request) -> str:
    given: str = request.path_params.get("context", DEFAULT_CONTEXT)
    name = given.strip(":")
    return name if name.startswith(".") else f".{name}"


def _subject(request: Request) -> Subject:
    return parse_subject(part_of_path(request.path_params["subject"]), _context(request))


def _name(request: Request) -> str:
    """Return whose settings a request is about: a subject, a context, or all, which has no name."""
    given: str | None = request.path_params.get("subject")
    if given is None:
        context = _context(request)
        return "" if context == DEFAULT_CONTEXT else f":{context}:"
    subject = parse_subject(part_of_path(given), _context(request))
    return "" if not subject.name and subject.context == DEFAULT_CONTEXT else str(subject)


def _text(request: Request, stored: SchemaStored, text: str) -> Response:
    """The schema alone. What is no JSON is a JSON text, so that the answer always is JSON."""
    if stored.content.schema_type == "PROTOBUF":
        return answer(request, text)
    response = answer(request, None)
    response.body = text.encode()
    response.headers["content-length"] = str(len(response.body))
    return response


def _page(request: Request, found: list[Any]) -> list[Any]:
    first, count = max(number(request, "offset", 0), 0), number(request, "limit", -1)
    return found[first:] if count < 0 else found[first : first + count]
