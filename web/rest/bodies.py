"""Bodies of requests: JSON that is read with care, and its fields, each checked with a sentence that names it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request

from semel.web.problems import Problem
from semel.web.rest.errors import UNPROCESSABLE, bad_request

_REQUIRED: Final[Any] = object()
_AT_ONCE_BYTES: Final = 64 << 10
"""What is read on the event loop; more than that beside it."""


async def json_body(request: Request) -> dict[str, Any]:
    """Return the JSON object that a request brings. Raises `Problem` 400, 413 and 415."""
    check_is_json(request)
    data = await request.body()
    if len(data) <= _AT_ONCE_BYTES:
        return json_object(data)
    return await asyncio.to_thread(json_object, data)


def check_is_json(request: Request) -> None:
    """Raise `Problem` 415 for a body that says it is something else."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Problem(415, f"a body is application/json here, not {kind[:100]!r}", error_code=415)


def json_object(data: bytes | str) -> dict[str, Any]:
    """Return a JSON object. Raises `Problem` 400, also for numbers and texts that JSON does not have.

    >>> json_object(b'{"a": 1}')
    {'a': 1}
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        value = json.loads(text, parse_constant=_no_constant, parse_float=finite)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        reason = "half a surrogate pair in a text" if isinstance(error, UnicodeEncodeError) else str(error)[:200]
        raise bad_request(f"the body is not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise bad_request("a body is a JSON object here: {...}")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def finite(text: str) -> float:
    """Return a number of JSON. Raises `ValueError` for one that is larger than any number here."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large")
    return number


class Fields:
    """The fields of a JSON object. Each method raises `Problem` 422 with the name of a field that is wrong."""

    def __init__(self, values: object, where: str, allowed: tuple[str, ...]) -> None:
        """where: what the object is, such as "records[3]"; a field that is not `allowed` is refused"""
        if not isinstance(values, Mapping):
            raise wrong(f"{where or 'the body'} is a JSON object")
        self._values = values
        self._where = f"{where}." if where else ""
        unknown = sorted(str(name) for name in values if name not in allowed)
        if unknown:
            raise wrong(f"{self._where}{unknown[0][:100]} is not known: the fields are {', '.join(allowed)}")

    def name(self, field: str) -> str:
        return f"{self._where}{field}"

    def raw(self, field: str) -> Any:
        return self._values.get(field)

    def text(self, field: str, default: str | None = _REQUIRED) -> str:
        value = self._values.get(field)
        if value is None and default is not _REQUIRED and default is not None:
            return default
        if not isinstance(value, str) or not value:
            raise wrong(f"{self.name(field)} is a text that is not empty")
        return value

    def number(self, field: str, low: int, high: int, default: int | None = _REQUIRED) -> int | None:
        value = self._values.get(field)
        if value is None and default is not _REQUIRED:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise wrong(f"{self.name(field)} is a whole number from {low} to {high}")
        return value

    def flag(self, field: str) -> bool:
        value = self._values.get(field, False)
        if not isinstance(value, bool):
            raise wrong(f"{self.name(field)} is true or false")
        return value

    def items(self, field: str, at_most: int) -> list[Any]:
        value = self._values.get(field)
        if value is None:
            return []
        if not isinstance(value, list):
            raise wrong(f"{self.name(field)} is a list")
        if len(value) > at_most:
            raise Problem(413, f"{self.name(field)} has at most {at_most} items: send several requests", error_code=413)
        return value


def wrong(detail: str) -> Problem:
    """Return the refusal of a body that is JSON, and does not say what it should."""
    return Problem(422, detail, error_code=UNPROCESSABLE)
