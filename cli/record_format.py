"""How `semel consume` prints a record: its value, key and value, JSON, or as a template says."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from semel.cli.common import HEADER_BASE64
from semel.protocol.errors import UsageError
from semel.protocol.wording import moment

if TYPE_CHECKING:
    from semel.protocol.record_decoder import Record

Formatter: TypeAlias = "Callable[[Record], bytes]"
"""Makes what is printed of a record, its line end with it."""

FORMATS_METAVAR: Final = "[value|keyed|json|TEMPLATE]"


def formatter(text: str) -> Formatter:
    """Return what prints records in a format: a name, or a template. Raises `UsageError` for what is neither."""
    named = _NAMED.get(text)
    if named is not None:
        return named
    if "%" not in text:  # the empty one, too
        raise UsageError(
            f"--format takes {', '.join(_NAMED)}, or a template with % letters such as '%t %p %o %k %v\\n', not "
            f"{text!r}"
        )
    return _template(text)


def _template(text: str) -> Formatter:
    parts: list[bytes | Formatter] = []
    for found in _PIECE.finditer(text):
        piece = found[0]
        if piece.startswith("%"):
            parts.append(_letter(piece, text))
        elif piece.startswith("\\"):
            parts.append(_escape(piece, text))
        else:
            parts.append(piece.encode("utf-8", "surrogateescape"))

    def formatted(record: Record) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record) for part in parts)

    return formatted


def _letter(piece: str, template: str) -> bytes | Formatter:
    if piece == "%%":
        return b"%"
    found = _LETTERS.get(piece[1:])
    if found is None:
        known = ", ".join(f"%{letter} {what}" for letter, (what, _) in _LETTERS.items())
        told = f"{piece} is not known" if piece[1:] else "a % at its end"
        raise UsageError(f"--format '{template}': {told}. There are {known}, and %% for a percent sign")
    return found[1]


def _escape(piece: str, template: str) -> bytes:
    if piece.startswith("\\x") and len(piece) == 4:
        return bytes([int(piece[2:], 16)])
    if piece not in _ESCAPES:
        raise UsageError(f"--format '{template}': {piece} is not known. There are \\n, \\t, \\r, \\0, \\\\ and \\xHH")
    return _ESCAPES[piece]


def _value(record: Record) -> bytes:
    return (record.value or b"") + b"\n"


def _keyed(record: Record) -> bytes:
    return (record.key or b"") + b"\t" + (record.value or b"") + b"\n"


def _json(record: Record) -> bytes:
    found: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **_json_field("key", record.key),
        **_json_field("value", record.value),
    }
    if record.headers:
        found["headers"] = [[name, _json_header(value)] for name, value in record.headers]
    return json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"


def _json_field(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as text where they are UTF-8, else as base64 under another name; `semel produce` reads both."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _json_header(value: bytes | None) -> str | dict[str, str] | None:
    """Return a header's value as text where it is UTF-8, else as an object with its base64; `produce` reads both."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {HEADER_BASE64: base64.b64encode(value).decode()}


def _headers(record: Record) -> bytes:
    """Return the headers as kcat prints them: name=value, with commas between, and NULL for no value."""
    return b",".join(
        name.encode("utf-8", "surrogateescape") + b"=" + (b"NULL" if value is None else value)
        for name, value in record.headers
    )


def _size(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


_NAMED: Final[Mapping[str, Formatter]] = {"value": _value, "keyed": _keyed, "json": _json}
_LETTERS: Final[Mapping[str, tuple[str, Formatter]]] = {
    "t": ("topic", lambda record: record.topic.encode()),
    "p": ("partition", lambda record: b"%d" % record.partition),
    "o": ("offset", lambda record: b"%d" % record.offset),
    "T": ("time in ms since 1970", lambda record: b"%d" % record.timestamp_ms),
    "d": ("time in ISO 8601", lambda record: moment(record.timestamp_ms, timespec="milliseconds").encode()),
    "k": ("key", lambda record: record.key or b""),
    "K": ("the key's bytes (-1: none)", lambda record: _size(record.key)),
    "v": ("value", lambda record: record.value or b""),
    "s": ("value, as in kcat", lambda record: record.value or b""),
    "S": ("the value's bytes (-1: none)", lambda record: _size(record.value)),
    "h": ("headers as name=value,name=value", _headers),
}
"""kcat's letters, and %v and %d beside them."""
_ESCAPES: Final = {"\\n": b"\n", "\\t": b"\t", "\\r": b"\r", "\\0": b"\0", "\\\\": b"\\"}
_PIECE: Final = re.compile(r"%.?|\\x[0-9a-fA-F]{2}|\\.?|[^%\\]+", re.DOTALL)

TEMPLATE_HELP: Final = (
    "A template has %t topic, %p partition, %o offset, %T time in ms, %d time in ISO 8601, %k key, %v value (or %s), "
    r"%K and %S their bytes, %h headers, %%, \n, \t, \xHH; it adds no line end of its own."
)
