"""Puts the gateway's app together from its parts: modules, each with the routes of one API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Route

from semel.protocol.errors import SemelError
from semel.web.callers import Callers
from semel.web.gateway import Gateway
from semel.web.limits import Bounded, NoForeignPages
from semel.web.paths import WholeParts
from semel.web.problems import Problem, problem_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp


class Part(Protocol):
    """A module with an API: `semel.web.registry.part` for one."""

    def routes(self, gateway: Gateway) -> list[BaseRoute]:
        """Return the routes. Nothing connects yet; what has to be closed goes to `gateway.at_end`."""


def make_app(gateway: Gateway, parts: Sequence[Part], *, is_loopback: bool = True) -> ASGIApp:
    """Return the ASGI app of a gateway with these parts. It closes the gateway when it ends.

    is_loopback: whether only this machine reaches it
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        gateway.start()
        yield
        await gateway.close()

    async def root(request: Request) -> Response:
        if gateway.front_page and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(gateway.front_page, 303, {"Vary": "Accept"})
        return JSONResponse({})

    routes: list[BaseRoute] = [Route("/", root), Route("/healthz", _health)]
    for part in parts:
        routes += part.routes(gateway)
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={
            Problem: _problem,
            SemelError: _semel_error,
            HTTPException: _http_error,
            Exception: _failed,
        },
    )
    app.router.redirect_slashes = False
    bounded = Bounded(Callers(WholeParts(app), gateway), gateway.limits)
    gateway.at_stop(bounded.stop)
    return NoForeignPages(bounded, is_loopback=is_loopback)


async def _health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _semel_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, SemelError)
    return problem_of(error).response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail, headers = error.detail, dict(error.headers or {})
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail = "there is nothing at this path: GET /v3/openapi.json lists the paths of the REST API"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_methods(request))
        detail = f"this path has no {request.method[:20]}: it has {headers['Allow']}"
    return Problem(error.status_code, detail, headers=headers).response()


def _methods(request: Request) -> list[str]:
    """Return all methods that the request's path has."""
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return sorted(found)


async def _failed(_: Request, __: Exception) -> Response:
    """The server logs the exception; a client is not shown what it says."""
    return Problem(500, "something that should not happen: the log of the HTTP gateway has more").response()
