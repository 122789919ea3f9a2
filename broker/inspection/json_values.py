"""Values of all kinds as JSON can hold them: bytes as text where they are UTF-8, else as base64 under another name."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any
from uuid import UUID

from semel.protocol.ids import TopicPartition


def bytes_field(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return a field of bytes under its name, or as `<name>_base64` where they are no text."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def plain(value: Any) -> Any:
    """Return a value of the coordinators' schemas as dicts, lists, text and numbers."""
    if isinstance(value, Enum):
        label = getattr(value, "label", None)
        return label if isinstance(label, str) else value.name
    if isinstance(value, TopicPartition | UUID):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields({each.name: getattr(value, each.name) for each in dataclasses.fields(value)})
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _fields(value._asdict())
    if isinstance(value, Mapping):
        return _fields({str(key): item for key, item in value.items()})
    if isinstance(value, frozenset | set):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes_field("bytes", bytes(value)).popitem()[1]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, bytes | bytearray | memoryview):
            found |= bytes_field(name, bytes(value))
        else:
            found[name] = plain(value)
    return found
