"""Records as JSON: what a request brings becomes bytes, and bytes of a topic become JSON.

A key or a value is `{"type": "BINARY" | "JSON" | "STRING", "data": ...}`, as in Confluent's API; BINARY is base64.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.record_decoder import Record
from semel.web.rest.bodies import Fields, finite, wrong
from semel.web.rest.bounds import HEADERS_MAX

FORMATS: Final = ("BINARY", "JSON", "STRING")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP_MAX: Final = 253_402_300_799_999
"""The end of the year 9999."""
_FIELDS: Final = ("partition_id", "headers", "key", "value", "timestamp")


@dataclass(frozen=True, slots=True)
class Data:
    """A key or a value. type: None where none was given; data: None for null."""

    type: str | None
    data: bytes | None

    def report(self) -> dict[str, Any] | None:
        """Return what the report of a delivery says of it."""
        return None if self.type is None else {"type": self.type, "size": len(self.data or b"")}


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be written. partition: None: the partitioner chooses; timestamp_ms: None: now."""

    topic: str
    partition: int | None
    key: Data
    value: Data
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int | None


def new_record(values: object, where: str, topic: str | None) -> NewRecord:
    """Return the record that a JSON object says. topic: None: its field `topic_name` names it. Raises `Problem` 422."""
    fields = Fields(values, where, _FIELDS if topic is not None else ("topic_name", *_FIELDS))
    return NewRecord(
        fields.text("topic_name") if topic is None else topic,
        fields.number("partition_id", 0, INT32_MAX, None),
        _data(fields, "key"),
        _data(fields, "value"),
        tuple(
            _header(header, f"{fields.name('headers')}[{number}]")
            for number, header in enumerate(fields.items("headers", HEADERS_MAX))
        ),
        _timestamp(fields),
    )


def _data(fields: Fields, field: str) -> Data:
    given = fields.raw(field)
    if given is None:
        return Data(None, None)
    inner = Fields(given, fields.name(field), ("type", "data"))
    kind, data = inner.text("type"), inner.raw("data")
    if kind not in FORMATS:
        raise wrong(f"{inner.name('type')} is one of {', '.join(FORMATS)}, not {kind[:100]!r}; schemas are not served")
    if kind == "JSON":
        return Data(kind, json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())
    if data is None:
        return Data(kind, None)
    if not isinstance(data, str):
        raise wrong(f"{inner.name('data')} of the type {kind} is a text")
    return Data(kind, data.encode() if kind == "STRING" else _bytes(data, inner.name("data")))


def _bytes(text: str, where: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise wrong(f"{where} is base64") from None


def _header(values: object, where: str) -> tuple[str, bytes | None]:
    fields = Fields(values, where, ("name", "value"))
    value = fields.raw("value")
    if value is not None and not isinstance(value, str):
        raise wrong(f"{fields.name('value')} is base64, or null")
    return fields.text("name"), None if value is None else _bytes(value, fields.name("value"))


def _timestamp(fields: Fields) -> int | None:
    """Return milliseconds since 1970, of a number or of a time such as 2026-11-30T12:00:00Z."""
    given = fields.raw("timestamp")
    if not isinstance(given, str):
        return fields.number("timestamp", 0, _TIMESTAMP_MAX, None)
    try:
        moment = datetime.fromisoformat(given)
        if moment.tzinfo is None:
            raise ValueError("no time zone")
        timestamp_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        timestamp_ms = -1
    if timestamp_ms < 0:
        raise wrong(f"{fields.name('timestamp')} is milliseconds since 1970, or a time such as 2026-11-30T12:00:00Z")
    return timestamp_ms


def moment(timestamp_ms: int) -> str | None:
    """Return a time as the original writes it; None for one that there is not.

    >>> moment(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    if not 0 <= timestamp_ms <= _TIMESTAMP_MAX:
        return None
    return f"{(_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec='milliseconds')[:-6]}Z"


def record_json(record: Record, key_format: str, value_format: str) -> dict[str, Any]:
    """Return a record as JSON. What can't be shown in the format that is asked for is BINARY."""
    return {
        "partition_id": record.partition,
        "offset": record.offset,
        "timestamp": moment(record.timestamp_ms),
        "headers": [
            {"name": name.encode("utf-8", "replace").decode(), "value": None if value is None else _text(value)}
            for name, value in record.headers
        ],
        "key": _shown(record.key, key_format),
        "value": _shown(record.value, value_format),
    }


def _shown(data: bytes | None, kind: str) -> dict[str, Any] | None:
    if data is None:
        return None
    try:
        if kind == "STRING":
            return {"type": kind, "data": data.decode()}
        if kind == "JSON":
            value = json.loads(data.decode(), parse_constant=_no_constant, parse_float=finite)
            json.dumps(value, ensure_ascii=False).encode()
            return {"type": kind, "data": value}
    except (ValueError, RecursionError):
        pass
    return {"type": "BINARY", "data": _text(data)}


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _text(data: bytes) -> str:
    return b64encode(data).decode()
