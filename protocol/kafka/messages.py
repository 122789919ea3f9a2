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

import datetime
import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey, Buffer, WireFormatError
from semel.protocol.kafka.entities import EntityField, fields_of, load_entity, response_names
from semel.protocol.kafka.entity_reader import Read, entity_reader
from semel.protocol.kafka.wire import WireReader

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""A request becomes up to some 40 times its size in objects, so it has a bound of its own below the frame's."""

MAX_ENTRIES: Final = 41_000
"""Of all arrays of a request: enough to name each partition that a node has by default, in a topic of its own."""

Values = Mapping[str, Any]

_Convert = Callable[[Any], Any]


def parse_request(key: ApiKey, version: int, body: Buffer, entries_max: int | None = None) -> Any:
    """Return kio's request entity of `version`. Raises `WireFormatError` for bytes that are none.

    entries_max: of all its arrays and tagged fields together; `MAX_ENTRIES` by default.
    """
    size = memoryview(body).nbytes
    if size > MAX_MESSAGE_BYTES:
        raise WireFormatError(f"{key.name} of {size} bytes is larger than {MAX_MESSAGE_BYTES}")
    reader = WireReader(body, 0, MAX_ENTRIES if entries_max is None else entries_max)
    try:
        # What follows is passed over, as in Kafka: librdkafka leaves bytes behind some requests.
        return _request_reader(key, version)(reader)
    except WireFormatError as error:
        raise WireFormatError(f"{key.name} version {version}: {error.message}") from error


def build_response(key: ApiKey, version: int, **values: Any) -> bytes:
    """Return the body of the response of `version` from values for all versions.

    A field that this version has and `values` has not takes its default, zero or null. A name that no version has is
    a mistake of ours and raises `KeyError`.
    """
    entity, write = _response(key, version)
    sink = Sink()
    write(sink, build_entity(entity, values, lambda: response_names(key)))
    return b"".join(sink.parts)


_prepared: set[tuple[ApiKey, int]] = set()


def is_prepared(key: ApiKey, version: int) -> bool:
    """Return whether `prepare` has ended for this version of an API."""
    return (key, version) in _prepared


def prepare(key: ApiKey, version: int) -> None:
    """Import what reads and writes one version of an API. To be called in a thread, before the first message.

    That takes some 50 ms, and 200 ms for the first API of a process, which no event loop has to spare (S3).
    """
    with suppress(ModuleNotFoundError):  # an API that kio does not know has a codec of our own
        _request_reader(key, version)
        _response(key, version)
        response_names(key)
    _prepared.add((key, version))


def to_ms(duration: datetime.timedelta) -> int:
    """Return a duration of a request in milliseconds."""
    return round(duration.total_seconds() * 1000)


def to_topic_id(value: UUID | None) -> bytes:
    """Return the 16 bytes of a topic id of a request, zeros where there is none."""
    return bytes(16) if value is None else value.bytes


class Sink:
    """As much of a file as kio's writers use."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.parts.append(bytes(data))
        return len(data)


@functools.cache
def _request_reader(key: ApiKey, version: int) -> Read:
    return entity_reader(load_entity(key, version, "request"))


@functools.cache
def _response(key: ApiKey, version: int) -> tuple[type[Any], Callable[[Sink, Any], None]]:
    from kio.serial import entity_writer

    entity = load_entity(key, version, "response")
    write: Callable[[Any, Any], None] = entity_writer(entity)
    return entity, write


# --- From values to entities ------------------------------------------------------------------------------------------


def build_entity(entity: type[Any], values: Values, names: Callable[[], frozenset[str]]) -> Any:
    """Return kio's entity with those of `values` that it has; each of the others must be among `names`."""
    arguments: dict[str, Any] = {}
    used = 0
    for field in fields_of(entity):
        if field.name in values:
            used += 1
            value = values[field.name]
        elif field.has_default:
            continue
        else:
            value = _zero(field)
        arguments[field.name] = None if value is None else _convert(field, value, names)
    if used < len(values):
        strangers = set(values) - names()
        if strangers:
            raise KeyError(f"{entity.__name__} has no {', '.join(sorted(strangers))} in any version")
    return entity(**arguments)


def _convert(field: EntityField, value: Any, names: Callable[[], frozenset[str]]) -> Any:
    if field.nested is not None:
        nested = field.nested
        if field.is_array:
            return tuple(build_entity(nested, item, names) for item in value)
        return build_entity(nested, value, names)
    convert = _conversions().get(field.kind)
    if field.is_array:
        return tuple(value) if convert is None else tuple(convert(item) for item in value)
    return value if convert is None else convert(value)


@functools.cache
def _conversions() -> dict[str, _Convert]:
    from kio.schema.errors import ErrorCode as KioErrorCode

    known = {int(code): code for code in KioErrorCode}
    unknown = KioErrorCode.unknown_server_error

    def from_ms(value: int) -> datetime.timedelta:
        return datetime.timedelta(milliseconds=value)

    def at_ms(value: int) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)  # of -1, where there is none, too

    return {
        "error_code": lambda value: known.get(int(value), unknown),
        "timedelta_i32": from_ms,
        "timedelta_i64": from_ms,
        "datetime_i64": at_ms,
        "uuid": lambda value: UUID(bytes=bytes(value)) if any(value) else None,
    }


_ZEROS: Final[dict[str, Any]] = {"string": "", "bytes": b"", "records": b"", "bool": False, "float64": 0.0}


def _zero(field: EntityField) -> Any:
    if field.is_array:
        return None if field.nullable else ()
    if field.nullable or field.nested is not None:
        return None
    if field.kind == "error_code":
        return ErrorCode.NONE
    return _ZEROS.get(field.kind, 0)
