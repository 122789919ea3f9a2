"""Messages of all APIs but Produce, Fetch and ApiVersions, in the classes that `kio` generates from Kafka's schemas.

A handler reads the request of its version and gives one superset of values for the response; each version takes the
fields that it has:

    request = parse_request(ApiKey.HEARTBEAT, version, body)
    return build_response(ApiKey.HEARTBEAT, version, error_code=ErrorCode.NONE)

Nested structures are mappings, arrays of them sequences of mappings, with kio's names of the fields. Durations and
timestamps are whole milliseconds on our side, topic ids 16 bytes. kio is imported when the first such request comes:
clients that only produce and fetch, and the start of a node, don't pay for it.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib
import importlib.util
import typing
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Final
from uuid import UUID

from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey, Buffer, WireFormatError

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""A request becomes up to some 40 times its size in objects, so it has a bound of its own below the frame's."""

Values = Mapping[str, Any]

_Convert = Callable[[Any], Any]


def parse_request(key: ApiKey, version: int, body: Buffer) -> Any:
    """Return kio's request entity of `version`. Raises `WireFormatError` for bytes that are none."""
    size = memoryview(body).nbytes
    if size > MAX_MESSAGE_BYTES:
        raise WireFormatError(f"{key.name} of {size} bytes is larger than {MAX_MESSAGE_BYTES}")
    read = _reader(key, version)
    try:
        # A copy, because frames lie in blocks that may be written to, which kio refuses.
        return read(bytes(body), 0)[0]
    except Exception as error:
        # kio's own errors and what Python's types raise for values out of their range: all come from the bytes.
        raise WireFormatError(f"{key.name} version {version}: {error or type(error).__name__}") from error


def build_response(key: ApiKey, version: int, **values: Any) -> bytes:
    """Return the body of the response of `version` from values for all versions.

    A field that this version has and `values` has not takes its default, zero or null. A name that no version has is
    a mistake of ours and raises `KeyError`.
    """
    entity, write = _response(key, version)
    buffer = _Sink()
    write(buffer, _build(entity, values, lambda: _response_names(key)))
    return b"".join(buffer.parts)


def to_ms(duration: datetime.timedelta) -> int:
    """Return a duration of a request in milliseconds."""
    return round(duration.total_seconds() * 1000)


def to_topic_id(value: UUID | None) -> bytes:
    """Return the 16 bytes of a topic id of a request, zeros where there is none."""
    return bytes(16) if value is None else value.bytes


class _Sink:
    """As much of a file as kio's writers use."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.parts.append(bytes(data))
        return len(data)


# --- kio's classes ----------------------------------------------------------------------------------------------------


def _entity(key: ApiKey, version: int, kind: str) -> type[Any]:
    folder = key.name.lower()
    module = importlib.import_module(f"kio.schema.{folder}.v{version}.{kind}")
    name = f"{folder.replace('_', '')}{kind}"
    return next(item for item in vars(module).values() if isinstance(item, type) and item.__name__.lower() == name)


@functools.cache
def _reader(key: ApiKey, version: int) -> Callable[[Buffer, int], tuple[Any, int]]:
    from kio.serial import entity_reader

    reader: Callable[[Buffer, int], tuple[Any, int]] = entity_reader(_entity(key, version, "request"))
    return reader


@functools.cache
def _response(key: ApiKey, version: int) -> tuple[type[Any], Callable[[_Sink, Any], None]]:
    from kio.serial import entity_writer

    entity = _entity(key, version, "response")
    write: Callable[[Any, Any], None] = entity_writer(entity)
    return entity, write


@functools.cache
def _response_names(key: ApiKey) -> frozenset[str]:
    """The names of all fields, nested ones too, in all versions of a response."""
    names: set[str] = set()

    def collect(entity: type[Any]) -> None:
        for field in _fields_of(entity):
            names.add(field.name)
            if field.nested is not None:
                collect(field.nested)

    package = importlib.import_module(f"kio.schema.{key.name.lower()}")
    for version in range(100):
        if importlib.util.find_spec(f"{package.__name__}.v{version}") is not None:
            collect(_entity(key, version, "response"))
    return frozenset(names)


# --- From values to entities ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    nested: type[Any] | None
    is_array: bool
    convert: _Convert | None
    has_default: bool
    zero: Any


_FIELDS: dict[type[Any], tuple[_Field, ...]] = {}


def _fields_of(entity: type[Any]) -> tuple[_Field, ...]:
    fields = _FIELDS.get(entity)
    if fields is None:
        fields = _FIELDS[entity] = _read_fields(entity)
    return fields


def _read_fields(entity: type[Any]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(entity)
    found = []
    for field in dataclasses.fields(entity):
        alternatives = typing.get_args(hints[field.name]) if _is_union(hints[field.name]) else (hints[field.name],)
        nullable = type(None) in alternatives
        (hint,) = (each for each in alternatives if each is not type(None))
        is_array = typing.get_origin(hint) is tuple
        item = typing.get_args(hint)[0] if is_array else hint
        nested = item if dataclasses.is_dataclass(item) and isinstance(item, type) else None
        kind = field.metadata.get("kafka_type", "")
        found.append(
            _Field(
                name=field.name,
                nested=nested,
                is_array=is_array,
                convert=_conversions().get(kind),
                has_default=field.default is not dataclasses.MISSING,
                zero=_zero(kind, is_array, nullable, nested),
            )
        )
    return tuple(found)


def _is_union(hint: Any) -> bool:
    return isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union


@functools.cache
def _conversions() -> dict[str, _Convert]:
    from kio.schema.errors import ErrorCode as KioErrorCode

    known = {int(code): code for code in KioErrorCode}
    unknown = KioErrorCode.unknown_server_error

    def from_ms(value: int) -> datetime.timedelta:
        return datetime.timedelta(milliseconds=value)

    def at_ms(value: int) -> datetime.datetime | None:
        return None if value < 0 else datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)

    return {
        "error_code": lambda value: known.get(int(value), unknown),
        "timedelta_i32": from_ms,
        "timedelta_i64": from_ms,
        "datetime_i64": at_ms,
        "uuid": lambda value: UUID(bytes=bytes(value)) if any(value) else None,
    }


_ZEROS: Final[dict[str, Any]] = {"string": "", "bytes": b"", "records": b"", "bool": False, "float64": 0.0}


def _zero(kind: str, is_array: bool, nullable: bool, nested: type[Any] | None) -> Any:
    if is_array:
        return None if nullable else ()
    if nullable or nested is not None:
        return None
    if kind == "error_code":
        return ErrorCode.NONE
    return _ZEROS.get(kind, 0)


def _build(entity: type[Any], values: Values, names: Callable[[], frozenset[str]]) -> Any:
    arguments: dict[str, Any] = {}
    used = 0
    for field in _fields_of(entity):
        if field.name in values:
            used += 1
            value = values[field.name]
        elif field.has_default:
            continue
        else:
            value = field.zero
        arguments[field.name] = None if value is None else _convert(field, value, names)
    if used < len(values):
        strangers = set(values) - names()
        if strangers:
            raise KeyError(f"{entity.__name__} has no {', '.join(sorted(strangers))} in any version")
    return entity(**arguments)


def _convert(field: _Field, value: Any, names: Callable[[], frozenset[str]]) -> Any:
    if field.is_array:
        if field.nested is not None:
            nested = field.nested
            return tuple(_build(nested, item, names) for item in value)
        return tuple(value) if field.convert is None else tuple(field.convert(item) for item in value)
    if field.nested is not None:
        return _build(field.nested, value, names)
    return value if field.convert is None else field.convert(value)
