"""Records as JSON lines and as lines of text: what `semel produce` and `semel import` read."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from semel.cli.common import HEADER_BASE64
from semel.protocol.errors import UsageError

LINE_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent for one line of input. `topic`: where it was read from, if that is known."""

    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    timestamp_ms: int | None
    topic: str | None = None


def lines_of(path: Path, bytes_max: int = LINE_BYTES_MAX) -> Iterator[tuple[str, bytes]]:
    """Yield each line of a file without its end, and where it is from: "FILE:7". Raises `UsageError`."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}") from error
    with file:
        yield from lines_in(file, f"{path}:", bytes_max)


def lines_in(file: IO[bytes], name: str, bytes_max: int = LINE_BYTES_MAX) -> Iterator[tuple[str, bytes]]:
    """Yield each line of an open file; `name` is what its number follows in "FILE:7"."""
    number = 0
    while line := file.readline(bytes_max + 1):
        number += 1
        if len(line) > bytes_max:
            raise UsageError(f"{name}{number}: a line of more than {bytes_max} bytes is too large a record")
        yield f"{name}{number}", line.removesuffix(b"\n").removesuffix(b"\r")


_JSON_FIELDS = ("value", "value_base64", "key", "key_base64", "headers", "partition", "timestamp_ms")


def from_json(place: str, line: bytes, defaults: Message) -> tuple[int | None, Message]:
    """Return the record that a line has, as `semel consume --json` prints it, with its offset where it has one.

    place: where the line is, for the error. Raises `UsageError`.
    """
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{place}: not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, nested too deeply, a number of thousands of digits
        raise UsageError(f"{place}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{place}: a JSON object is needed, not {type(found).__name__}")
    unknown = sorted(set(found) - {*_JSON_FIELDS, "topic", "offset"})
    if unknown:
        raise UsageError(f"{place}: unknown field {unknown[0]!r}; the fields are {', '.join(_JSON_FIELDS)}")
    pairs = _header_pairs(place, found.get("headers"))
    headers = tuple((name, _header_bytes(place, name, value)) for name, value in pairs)
    offset = _number(place, found, "offset", None)
    return offset, Message(
        _field(place, found, "value"),
        _field(place, found, "key") if "key" in found or "key_base64" in found else defaults.key,
        headers or defaults.headers,
        _number(place, found, "partition", defaults.partition),
        _number(place, found, "timestamp_ms", None),
        found.get("topic"),
    )


def _header_pairs(place: str, headers: object) -> list[tuple[str, object]]:
    if headers is None:
        return []
    if isinstance(headers, dict):
        return list(headers.items())
    if isinstance(headers, list) and all(_is_header(one) for one in headers):
        return [(name, value) for name, value in headers]
    raise UsageError(f"{place}: headers is an object, or a list of [name, value] with text for a name")


def _is_header(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)


def _header_bytes(place: str, name: str, value: object) -> bytes | None:
    """Return a header's value; `semel consume` writes one that is no text as an object with its base64."""
    if isinstance(value, dict) and set(value) == {HEADER_BASE64}:
        return _from_base64(f"{place}: header {name!r}", value[HEADER_BASE64])
    return _bytes(place, name, value)


def _field(place: str, found: dict[str, Any], name: str) -> bytes | None:
    encoded = found.get(f"{name}_base64")
    if encoded is None:
        return _bytes(place, name, found.get(name))
    return _from_base64(f"{place}: {name}_base64", encoded)


def _from_base64(what: str, encoded: Any) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{what} is not base64: {error}") from None


def _bytes(place: str, name: str, value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value, separators=(",", ":")).encode()


def _number(place: str, found: dict[str, Any], name: str, default: int | None) -> int | None:
    value = found.get(name, default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(f"{place}: {name} is a number, not {value!r}")
    return value
