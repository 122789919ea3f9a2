"""How a record's key, value and headers are shown: as JSON, as text, in hexadecimal, or by their schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from semel.protocol.record_decoder import Record
from semel.sdk.schemas.errors import SchemaDataError
from semel.sdk.schemas.wire import split
from semel.web.console.avro_values import decoded
from semel.web.console.reading import HEADER_BYTES, Found
from semel.web.console.schema_lookup import FoundSchema

FORMATS: Final = ("auto", "json", "text", "hex", "schema")
SHOWN_BYTES: Final = 4 << 10
"""Of a value in a list of records."""
SHOWN_ALONE_BYTES: Final = 256 << 10
"""Of a value on its own page."""
_TRACE: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_JSON_PART: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_INDENT: Final = "  "
_JSON: Final = json.JSONEncoder(indent=2, ensure_ascii=False)
_CHARACTERS_PER_BYTE: Final = 8
"""Of a decoded value, for each byte that may be shown of others."""
_HEX_BYTES_MIN: Final = 256


@dataclass(frozen=True, slots=True)
class Shown:
    """Bytes as they are shown. text: None where there are none (null); form: what it was taken for

    size_bytes: of all, also of what is cut off
    note:       what is to be said about it; empty for nothing
    """

    text: str | None
    form: str
    size_bytes: int
    is_cut: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record as it is shown. state: empty, "aborted" or "open"; trace: the id of its trace; empty for none."""

    record: Record
    key: Shown
    value: Shown
    headers: list[tuple[str, Shown]]
    headers_left_off: int
    trace: str
    state: str = ""


def shown_record(
    found: Found, form: str, schemas: dict[int, FoundSchema | None], most: int = SHOWN_BYTES, state: str = ""
) -> ShownRecord:
    """Return how a record is shown. schemas: those of the ids that records name; None where there is none."""
    record = found.record
    headers = [
        (name, shown(value, "auto", {}, HEADER_BYTES, size))
        for (name, value), size in zip(record.headers, found.header_bytes, strict=True)
    ]
    key_form = "auto" if form == "schema" else form
    return ShownRecord(
        record,
        shown(record.key, key_form, schemas, min(most, SHOWN_BYTES), found.key_bytes),
        shown(record.value, form, schemas, most, found.value_bytes),
        headers,
        found.headers - len(headers),
        trace_of(record),
        state,
    )


def shown(data: bytes | None, form: str, schemas: dict[int, FoundSchema | None], most: int, size_bytes: int) -> Shown:
    """Return how bytes are shown.

    form:       one of FORMATS
    most:       how many bytes are shown at most
    size_bytes: of all; `data` may be the beginning
    """
    if data is None:
        return Shown(None, "null", 0)
    is_cut = size_bytes > most
    data, note = data[:most], ""
    if form in ("auto", "schema"):
        found = None if is_cut else by_schema(data, schemas, most)
        if found is not None and found.text is not None:
            return found
        note = found.note if found is not None else ""
        if form == "schema" and not note:
            note = "it is too large to be decoded here" if is_cut else "it names no schema of the registry"
    if form in ("auto", "json"):
        parts = None if is_cut else pretty_json(data)
        if parts is not None:
            laid_out, is_cut = _joined(parts, most)
            return Shown(laid_out, "json", size_bytes, is_cut, note)
        if form == "json":
            note = "it is too large to be laid out here" if is_cut else "it is no JSON object or array"
    if form != "hex":
        text = as_text(data, is_cut=is_cut)
        if text is not None:
            return Shown(text, "text", size_bytes, is_cut, note)
        if form == "text":
            lossy = data.decode("utf-8", "backslashreplace")
            return Shown(lossy, "text", size_bytes, is_cut, "bytes that are no UTF-8 are shown as \\xNN")
    rows = data[: max(most // 4, _HEX_BYTES_MIN)]
    return Shown(as_hex(rows), "hex", size_bytes, size_bytes > len(rows), note)


def by_schema(data: bytes, schemas: dict[int, FoundSchema | None], most: int) -> Shown | None:
    """Return what a schema of the registry makes of bytes; None where they name none.

    most: how many bytes are shown at most
    Where the schema can't say what they are, the text is None, and the note says why.
    """
    schema_id = schema_id_of(data)
    if schema_id is None or schema_id not in schemas:
        return None
    schema = schemas[schema_id]
    if schema is None:
        return Shown(None, "schema", len(data), note=f"the registry has no schema {schema_id}")
    form = f"{schema.language} schema {schema_id} ({schema.subject}, version {schema.version})"
    if schema.problem:
        return Shown(None, form, len(data), note=f"schema {schema_id} can't be used: {schema.problem}")
    _, rest = split(data)
    if schema.language == "JSON":
        parts = pretty_json(bytes(rest))
        if parts is None:
            return Shown(None, form, len(data), note="what follows the schema's id is no JSON")
        text, is_cut = _joined(parts, most)
        return Shown(text, form, len(data), is_cut)
    try:
        if schema.avro is not None:
            text, is_cut = _joined(_JSON.iterencode(decoded(schema.avro, rest)), most)
            return Shown(text, form, len(data), is_cut)
        if schema.protobuf is not None:
            found = schema.protobuf.decoded(rest)
            text, is_cut = _joined(_JSON.iterencode(found.value), most)
            return Shown(text, f"{found.message} of {form}", len(data), is_cut, found.note)
    except SchemaDataError as error:
        return Shown(None, form, len(data), note=f"it is not as schema {schema_id} says: {error.message}")
    return Shown(as_hex(data), form, len(data))


def _joined(pieces: Iterable[str], most: int) -> tuple[str, bool]:
    """Return a value with its line breaks, and whether it is cut off. most: how many bytes are shown at most.

    A byte of a record can be a name of the schema as long as the schema, or stand behind an indent of 1,800 spaces.
    """
    parts, left = [], most * _CHARACTERS_PER_BYTE
    for part in pieces:
        parts.append(part[:left])
        left -= len(part)
        if left < 0:
            return "".join(parts), True
    return "".join(parts), False


def schema_id_of(data: bytes | None) -> int | None:
    """Return the schema's id that bytes begin with; None where they begin otherwise."""
    if data is None or len(data) < 5 or data[0] != 0:
        return None
    return int.from_bytes(data[1:5], "big")


def pretty_json(data: bytes) -> Iterator[str] | None:
    """Return the parts of JSON with line breaks, and every name and number as it was written.

    None for what is no object or array.

    >>> print(*pretty_json(b'{"a":1.0,"a":[],"b":["x"]}'), sep="")
    {
      "a": 1.0,
      "a": [],
      "b": [
        "x"
      ]
    }
    """
    if data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        text = data.decode()
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    return _laid_out(text)


def _laid_out(text: str) -> Iterator[str]:
    depth = 0
    pieces = _JSON_PART.findall(text)
    for place, piece in enumerate(pieces):
        after = pieces[place + 1] if place + 1 < len(pieces) else ""
        if piece in "{[":
            yield piece
            depth += 1
            if after not in ("}", "]"):
                yield "\n" + _INDENT * depth
        elif piece in "}]":
            depth -= 1
            if place and pieces[place - 1] not in ("{", "["):
                yield "\n" + _INDENT * depth
            yield piece
        elif piece == ",":
            yield ",\n" + _INDENT * depth
        else:
            yield ": " if piece == ":" else piece


def as_text(data: bytes, *, is_cut: bool) -> str | None:
    """Return bytes as text; None where they are no UTF-8, or have control characters. is_cut: more follows."""
    for less in range(4 if is_cut else 1):
        try:
            text = data[: len(data) - less].decode()
        except UnicodeDecodeError:
            continue
        return None if any(character < " " and character not in "\t\n\r" for character in text) else text
    return None


def as_hex(data: bytes) -> str:
    """Return bytes in hexadecimal, 16 on a line, with the letters among them.

    >>> as_hex(b"ab\\xff")
    '00000000  61 62 ff                                         ab.'
    """
    lines = []
    for place in range(0, len(data), 16):
        part = data[place : place + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{place:08x}  {part.hex(' '):<48} {letters}")
    return "\n".join(lines)


def trace_of(record: Record) -> str:
    """Return the id of the trace that a record is part of, by its header `traceparent` (W3C); empty for none."""
    for name, value in record.headers:
        if name == "traceparent" and value is not None and len(value) < 100:
            found = _TRACE.fullmatch(value.decode("ascii", "replace"))
            if found is not None:
                return found[1]
    return ""
