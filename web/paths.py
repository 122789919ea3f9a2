"""Paths whose parts may have slashes in them: `%2F` is no border between two parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from semel.web.problems import Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_SLASH: Final = "\x00"
"""What stands for a slash inside of a part until the route is found: no path that is accepted has it."""


class WholeParts:
    """Gives the app paths in which each part is one, whatever characters it was encoded from."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _SLASH in scope["path"]:
            await Problem(400, "a path has no %00: leave it out").response()(scope, receive, send)
            return
        if scope["type"] == "http" and b"%2f" in scope.get("raw_path", b"").lower():
            scope["path"] = _decoded(scope["raw_path"].decode("ascii"))
        await self._app(scope, receive, send)


def part_of_path(text: str) -> str:
    """Return a part of a path as its client meant it."""
    return text.replace(_SLASH, "/")


def _decoded(raw: str) -> str:
    """
    >>> _decoded("/subjects/a%2Fb/versions") == f"/subjects/a{_SLASH}b/versions"
    True
    """
    return "/".join(unquote(part).replace("/", _SLASH) for part in raw.split("/"))
