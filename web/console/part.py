"""The console as a part of the gateway: its pages, who may see and change what, and what browsers have to refuse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from semel.protocol.errors import RetriableError, SemelError
from semel.web.console import (
    access,
    finishing,
    groups,
    jobs,
    metrics,
    overview,
    publishing,
    record_pages,
    storage,
    topic_settings,
    topics,
    transactions,
)
from semel.web.console.visit import ROOT, Console, Handler, Visit, fields_of
from semel.web.gateway import Gateway
from semel.web.problems import Problem, problem_of

_Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

_log = logging.getLogger("semel.http.console")

_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
}
_STATIC: Final = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}
_MODULES: Final = (
    overview,
    topics,
    topic_settings,
    record_pages,
    publishing,
    groups,
    transactions,
    finishing,
    jobs,
    storage,
    access,
    metrics,
)

CHANGING_PATHS: Final = tuple(path for module in _MODULES for path, _ in module.CHANGES)
"""What forms are sent to, below the console's root."""


def routes(gateway: Gateway) -> list[BaseRoute]:
    """Return the routes. The sampler looks at the cluster from the gateway's start on."""
    console = gateway.shared(Console, lambda: Console(gateway))
    gateway.front_page = ROOT
    gateway.at_start(lambda: console.sampler.start(gateway.own.admin()))
    gateway.at_end(console.sampler.close)
    found: list[BaseRoute] = [
        Route(ROOT.rstrip("/"), _to_root),
        *(Route(f"{ROOT}static/{name}", partial(_static, name)) for name in _STATIC),
    ]
    for module in _MODULES:
        found += [Route(ROOT + path, _reading(console, handler), methods=["GET"]) for path, handler in module.PAGES]
        found += [Route(ROOT + path, _changing(console, handler), methods=["POST"]) for path, handler in module.CHANGES]
    return [*found, Route(f"{ROOT}{{rest:path}}", _reading(console, _no_page), methods=["GET"])]


async def _no_page(visit: Visit) -> Response:
    raise Problem(404, "the console has no such page: begin at the overview")


async def _to_root(_: Request) -> Response:
    return RedirectResponse(ROOT, 308)


async def _static(name: str, _: Request) -> Response:
    path = Path(__file__).with_name("static") / name
    return FileResponse(path, headers={**_HEADERS, "Cache-Control": "no-cache"}, media_type=_STATIC[name])


def _reading(console: Console, handler: Handler) -> _Endpoint:
    async def answered(request: Request) -> Response:
        return await _answered(Visit(console, request), handler)

    return answered


def _changing(console: Console, handler: Handler) -> _Endpoint:
    async def checked(visit: Visit) -> Response:
        if not console.gateway.allows_changes:
            raise Problem(
                403, "this console only reads: start `semel http` with --console-writes to change things here"
            )
        visit.fields = await fields_of(visit.request)
        visit.check_form()
        return await handler(visit)

    async def answered(request: Request) -> Response:
        return await _answered(Visit(console, request), checked)

    return answered


async def _answered(visit: Visit, handler: Handler) -> Response:
    page_s = visit.console.gateway.limits.page_s
    try:
        async with asyncio.timeout(page_s):
            response = await handler(visit)
    except Problem as problem:
        response = _error_page(visit, problem)
    except RetriableError as error:
        response = _error_page(visit, Problem(503, error.message), title="The cluster does not answer")
    except SemelError as error:
        status = problem_of(error).status
        response = _error_page(visit, Problem(400 if status == 500 else status, error.message))
    except TimeoutError:
        response = _error_page(
            visit, Problem(503, f"no answer within {page_s:g} seconds"), title="The cluster does not answer"
        )
    except Exception:
        _log.exception("the page %s failed", visit.request.url.path)
        response = _error_page(
            visit, Problem(500, "something that should not happen: the log of the HTTP gateway has more")
        )
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def _error_page(visit: Visit, problem: Problem, title: str = "") -> Response:
    titles = {403: "This is not allowed", 404: "There is no such thing", 503: "The cluster does not answer"}
    shown = title or titles.get(problem.status, "This did not work")
    return visit.html("error.html", problem.status, title=shown, detail=problem.detail)
