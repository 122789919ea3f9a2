"""Entries of a dump as lines for people."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

Entry = dict[str, Any]


def line_of(entry: Entry) -> str:
    """Return an entry in one line."""
    match entry["kind"]:
        case "file":
            return f"\n{entry['path']}"
        case "batch":
            return _batch(entry)
        case "record":
            return _record(entry)
        case "damage":
            place = "" if entry["position"] < 0 else f" at position {entry['position']}"
            return f"  DAMAGED{place}: {entry['what']}"
        case "note":
            return f"  {entry['what']}"
        case "line":
            return f"  {entry['text']}"
        case kind:
            fields = (f"{name} {_short(value)}" for name, value in entry.items() if name != "kind")
            return f"  {kind}: {', '.join(fields)}"


def _batch(entry: Entry) -> str:
    parts = [
        f"  {entry['base_offset']}-{entry['last_offset']}",
        f"{entry['count']} records" if entry["control"] is None else f"{entry['control']} marker",
        f"position {entry['position']}",
        f"{entry['size_bytes']} bytes",
        entry["compression"],
        f"{moment(entry['base_timestamp_ms'])} to {moment(entry['max_timestamp_ms'])} {entry['timestamp_type']}",
        f"leader epoch {entry['leader_epoch']}",
    ]
    if entry["producer_id"] >= 0:
        parts.append(f"producer {entry['producer_id']} epoch {entry['producer_epoch']}")
        if entry["base_sequence"] >= 0:
            parts.append(f"sequence {entry['base_sequence']}-{entry['last_sequence']}")
    if entry["transactional"]:
        parts.append("transactional")
    if "coordinator_epoch" in entry:
        parts.append(f"coordinator epoch {entry['coordinator_epoch']}")
    if entry["delete_horizon"]:
        parts.append("with delete horizon")
    parts.append(f"crc {entry['crc']} {'ok' if entry['crc_ok'] else 'WRONG'}")
    return ", ".join(parts)


def _record(entry: Entry) -> str:
    text = f"    {entry['offset']} {moment(entry['timestamp_ms'])}"
    if "decoded" in entry:
        decoded = entry["decoded"]
        text += f" {decoded['type']} {_short(decoded['key'])} = {_short(decoded['value'])}"
    else:
        text += f" {_field(entry, 'key')} = {_field(entry, 'value')}"
    for header in entry["headers"]:
        text += f" [{_quoted(header['name'])}: {_field(header, 'value')}]"
    if "damage" in entry:
        text += f" DAMAGED: {entry['damage']}"
    return text


def _field(entry: Entry, name: str) -> str:
    if name in entry:
        return "null" if entry[name] is None else _quoted(entry[name])
    return f"base64:{entry[f'{name}_base64']}"


def _quoted(text: str) -> str:
    """On one line, whatever is in it."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _short(value: object) -> str:
    if isinstance(value, str):
        return value if value.isprintable() else _quoted(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def moment(timestamp_ms: int) -> str:
    """Return a timestamp as UTC, or as the number it is where no calendar has it.

    >>> moment(1_700_000_000_123), moment(-1)
    ('2023-11-14T22:13:20.123Z', '-1')
    """
    try:
        if timestamp_ms < 0:
            return str(timestamp_ms)
        found = datetime.fromtimestamp(timestamp_ms // 1000, UTC).replace(microsecond=timestamp_ms % 1000 * 1000)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")
