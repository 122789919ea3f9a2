"""Puts the gateway's app together from its parts: modules, each with the routes of one API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

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
    return NoForeignPages(Bounded(Callers(WholeParts(app), gateway), gateway.limits), is_loopback=is_loopback)


async def _health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _semel_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, SemelError)
    return problem_of(error).response()


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Problem(error.status_code, error.detail, headers=dict(error.headers or {})).response()


async def _failed(_: Request, __: Exception) -> Response:
    """The server logs the exception; what it says is no business of whoever asked."""
    return Problem(500, "something that should not happen: the log of the HTTP gateway has more").response()
