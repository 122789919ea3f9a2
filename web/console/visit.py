"""One request of a browser for a page: what it asks for, whose clients answer it, and how its page is made."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from semel import aio
from semel.protocol.wording import counted, duration, moment, size
from semel.sdk.diagnosis.remote_costs import Prices, money, storage_cost
from semel.web.console.charts import number, rate
from semel.web.console.safe_text import safe_text
from semel.web.console.sampler import Sampler
from semel.web.gateway import Clients, Gateway
from semel.web.problems import Problem

ROOT: Final = "/console/"
COOKIE: Final = "semel-console"
TOKEN_FIELD: Final = "form-token"  # noqa: S105 (a field's name)
_READS_MAX: Final = 8
_DOWNLOADS_MAX: Final = 8
_FIELDS_MAX: Final = 500
_INT64_MAX: Final = (1 << 63) - 1
_HERE: Final = Path(__file__).parent

Handler: TypeAlias = "Callable[[Visit], Awaitable[Response]]"


def link(path: str, **query: object) -> str:
    """Return the address of a page. What is None is left out.

    >>> link("group", id="a/b & c", page=None)
    '/console/group?id=a%2Fb+%26+c'
    """
    given = {name: value for name, value in query.items() if value is not None}
    return f"{ROOT}{path}" + (f"?{urlencode(given, errors='surrogateescape')}" if given else "")


def environment() -> Environment:
    """Return what makes pages of templates. Everything that is put into one is escaped."""
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=safe_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(link=link, counted=counted)
    made.filters.update(
        size=size,
        rate=rate,
        number=number,
        duration=duration,
        moment=lambda ms: moment(ms) if ms >= 0 else "-",
        storage_cost=lambda stored_bytes: money(storage_cost(stored_bytes, Prices())),
    )
    return made


class Console:
    """What the pages of one gateway share."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.sampler = Sampler()
        self.reads = asyncio.Semaphore(_READS_MAX)
        """Pages that read records at a time: each has a consumer."""
        self.downloads = asyncio.Semaphore(_DOWNLOADS_MAX)
        """Records that are sent as files at a time: each is in memory until it is sent."""
        self._pages = environment()

    def rendered(self, template: str, **values: Any) -> str:
        return self._pages.get_template(template).render(values)


class Visit:
    """One request. fields: of the form that was sent, in their order; none for a page that is only read."""

    def __init__(self, console: Console, request: Request, fields: Mapping[str, str] | None = None) -> None:
        self.console = console
        self.request = request
        self.fields: Mapping[str, str] = fields or {}
        self.clients: Clients = console.gateway.clients_of(request)
        self._cookie = request.cookies.get(COOKIE, "")
        self.token = self._cookie or secrets.token_urlsafe(24)

    @property
    def admin(self) -> aio.Admin:
        return self.clients.admin()

    def text(self, name: str, default: str = "") -> str:
        """Return what the address says under a name."""
        return self.request.query_params.get(name, default)

    def needed(self, name: str) -> str:
        """Return the same. Raises `Problem` 400."""
        if name not in self.request.query_params:
            raise Problem(400, f"the address of this page lacks {name!r}: begin at the overview")
        return self.text(name)

    def number(self, name: str, default: int = 0, *, most: int = _INT64_MAX) -> int:
        """Return a number from the address, 0 or more. Raises `Problem` 400."""
        text = self.text(name).strip()
        if not text:
            return default
        if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > most:
            raise Problem(400, f"{name} takes a number from 0 to {most}, not {text[:40]!r}")
        return int(text)

    @property
    def page(self) -> int:
        return self.number("page", 1, most=1_000_000)

    def html(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page made of a template."""
        made = self.console.rendered(
            template,
            visit=self,
            form_token=self.token,
            form_field=TOKEN_FIELD,
            user=self.console.gateway.caller_of(self.request).user,
            allows_changes=self.console.gateway.allows_changes,
            done=_DONE.get(self.text("done"), ""),
            **values,
        )
        response = HTMLResponse(made, status)
        if not self._cookie:
            secure = self.request.url.scheme == "https"
            response.set_cookie(COOKIE, self.token, path=ROOT, secure=secure, httponly=True, samesite="strict")
        return response

    def to(self, path: str, **query: object) -> Response:
        """Return what leads the browser to another page, after a change."""
        return RedirectResponse(link(path, **query), 303)

    def check_form(self) -> None:
        """Refuse a form that no page of this console has made for this browser. Raises `Problem` 403."""
        if not self._cookie or not hmac.compare_digest(
            self.fields.get(TOKEN_FIELD, "").encode(), self._cookie.encode()
        ):
            raise Problem(403, "this form was not made by a page of this console: open the page again, and repeat it")


async def fields_of(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises `Problem` 415, and 400 for too many."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Problem(415, f"a form is application/x-www-form-urlencoded, not {kind[:60]!r}")
    try:
        text = (await request.body()).decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS_MAX))
    except ValueError as error:
        raise Problem(400, f"the form can't be read: {error}") from None


_DONE: Final = {
    "settings": "The settings are changed.",
    "offsets": "The offsets of the group are set.",
    "aborted": "The transaction is aborted.",
    "finished": "The transaction is finished on this partition.",
    "published": "The record is published.",
}
"""What a page says after a change, by a word in its address: nothing that an address says is shown as it is."""
