"""Serializers and deserializers that have a name: value_serializer="json", value_deserializer="json"."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from semel.protocol.errors import UsageError

Serializer: TypeAlias = Callable[[Any], "bytes | None"]
Deserializer: TypeAlias = Callable[[bytes], Any]
T = TypeVar("T")


def to_json(value: Any) -> bytes | None:
    """Return JSON as UTF-8, None for None: a record without a value deletes its key in a compacted topic."""
    if value is None:
        return None
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def to_json_key(key: Any) -> bytes | None:
    """The same with sorted names, so that equal keys are equal bytes: they choose the partition."""
    if key is None:
        return None
    return json.dumps(key, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True).encode()


def to_text(value: str | None) -> bytes | None:
    """Return text as UTF-8, None for None."""
    return None if value is None else value.encode()


def from_text(data: bytes) -> str:
    """Return UTF-8 as text."""
    return data.decode()


_SERIALIZERS: Final[dict[str, dict[str, Serializer]]] = {
    "key_serializer": {"json": to_json_key, "text": to_text},
    "value_serializer": {"json": to_json, "text": to_text},
}
_DESERIALIZERS: Final[dict[str, Deserializer]] = {"json": json.loads, "text": from_text}


def as_serializer(option: str, given: Any) -> Serializer | None:
    """Return what an option of a producer stands for: a function, "json" or "text". Raises `UsageError`."""
    return _named(option, given, _SERIALIZERS[option])


def as_deserializer(option: str, given: Any) -> Deserializer | None:
    """Return what an option of a consumer stands for: a function, "json" or "text". Raises `UsageError`."""
    return _named(option, given, _DESERIALIZERS)


def _named(option: str, given: Any, known: dict[str, T]) -> T | None:
    if given is None or callable(given):
        function: T | None = given
        return function
    if isinstance(given, str) and given in known:
        return known[given]
    names = " or ".join(f'"{name}"' for name in known)
    raise UsageError(f"option {option} must be a function, {names}, not {given!r}")
