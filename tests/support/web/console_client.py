"""What a browser does with the console, without one: keeps its cookie, sends forms back, follows redirections."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Final
from urllib.parse import urlencode

TIMEOUT_S: Final = 60.0
FORM: Final = "application/x-www-form-urlencoded"
_HIDDEN: Final = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')


@dataclass(frozen=True)
class Page:
    """An answer. text: of its body; path: where redirections ended."""

    status: int
    text: str
    headers: dict[str, str]
    path: str

    @property
    def plain(self) -> str:
        """What a reader sees, with single spaces."""
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", self.text)).split())

    @property
    def hidden(self) -> dict[str, str]:
        """The hidden fields of its forms."""
        return {html.unescape(name): html.unescape(value) for name, value in _HIDDEN.findall(self.text)}


@dataclass
class ConsoleClient:
    """Asks one gateway for pages."""

    address: str
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, headers: dict[str, str] | None = None, **query: object) -> Page:
        return self._ask("GET", f"/console/{path}" + (f"?{urlencode(query)}" if query else ""), None, headers or {})

    def post(self, path: str, fields: dict[str, str], headers: dict[str, str] | None = None, **query: object) -> Page:
        """Send a form, with what it says and nothing more."""
        told = {"Content-Type": FORM, **(headers or {})}
        return self._ask("POST", f"/console/{path}?{urlencode(query)}", urlencode(fields).encode(), told)

    def send(self, page: Page, path: str, fields: dict[str, str], **query: object) -> Page:
        """Send a form of a page, with its hidden fields."""
        return self.post(path, {**page.hidden, **fields}, **query)

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Page:
        connection = HTTPConnection(self.address, timeout=TIMEOUT_S)
        if self.cookies:
            headers = {**headers, "Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            told = {name.lower(): value for name, value in answer.headers.items()}
        finally:
            connection.close()
        if "set-cookie" in told:
            name, _, value = told["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value
        if answer.status == 303:
            return self._ask("GET", told["location"], None, {})
        return Page(answer.status, text, told, path)
