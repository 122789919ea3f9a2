"""The part of the gateway that serves the REST API."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from semel.web.rest.errors import answered
from semel.web.rest.openapi import description
from semel.web.rest.operations import operations
from semel.web.rest.service import Service

if TYPE_CHECKING:
    from semel.web.gateway import Gateway

OPENAPI_PATH: Final = "/v3/openapi.json"


def routes(gateway: Gateway) -> list[BaseRoute]:
    """Return the routes. What they open is closed when the gateway ends."""
    service = Service(gateway)
    gateway.at_end(service.close)
    served = operations(service)
    described = description(served, version("semel"))

    async def openapi(_: Request) -> Response:
        return JSONResponse(described)

    found: list[BaseRoute] = [Route(OPENAPI_PATH, openapi, methods=["GET"])]
    found += [Route(each.path, answered(each.endpoint), methods=[each.method]) for each in served]
    return found
