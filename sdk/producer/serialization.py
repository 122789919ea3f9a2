"""Turns what users give to `send` into bytes, and refuses what it can't, with a message that says what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from semel.protocol.errors import ErrorCode, UsageError
from semel.sdk.transport.serde import Serializer

HeadersArgument: TypeAlias = Mapping[str, "bytes | str | None"] | Iterable[tuple[str, "bytes | str | None"]]


def serialized(field: Any, serializer: Serializer | None, what: str, topic: str) -> bytes | None:
    """Return a key or value as bytes. Raises `UsageError` that names the type and what to do."""
    if serializer is not None:
        try:
            field = serializer(field)
        except Exception as error:
            raise UsageError(
                f"the {what}_serializer failed on a {what} for topic {topic!r}: {type(error).__name__}: {error}"
            ) from error
        if field is not None and not isinstance(field, (bytes, bytearray, memoryview)):
            raise UsageError(f"the {what}_serializer returned {type(field).__name__}; it must return bytes or None")
    if field is None or type(field) is bytes:
        return field
    if isinstance(field, str):
        return field.encode()
    if isinstance(field, (bytes, bytearray, memoryview)):
        return bytes(field)
    raise UsageError(
        f"a {what} of type {type(field).__name__} can't be sent to topic {topic!r} as it is: give bytes or str, "
        f'or make the Producer with {what}_serializer="json", or another function that returns bytes'
    )


def header_pairs(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Return headers as pairs of text and bytes. Raises `UsageError`."""
    pairs = []
    try:
        for name, value in headers.items() if isinstance(headers, Mapping) else headers:
            if not isinstance(name, str):
                raise UsageError(f"a header's name must be text (str), not {type(name).__name__} {name!r}")
            if isinstance(value, str):
                value = value.encode()
            elif value is not None and not isinstance(value, (bytes, bytearray, memoryview)):
                raise UsageError(
                    f"header {name!r} must be bytes, str or None, not {type(value).__name__}; serialise it first"
                )
            pairs.append((name, None if value is None else bytes(value)))
    except (TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f'headers must be a mapping or pairs, such as {{"source": b"web"}}, not {type(headers).__name__} '
            f"{headers!r}"
        ) from None
    return tuple(pairs)


def headers_size(headers: Any) -> int:
    return sum(10 + 4 * len(name) + (len(value) if value is not None else 0) for name, value in headers)


def too_large(topic: str, size_bytes: int, bytes_max: int) -> UsageError:
    return UsageError(
        f"a record of about {size_bytes} bytes for topic {topic!r} is above record_bytes_max, {bytes_max}: send less, "
        "or raise record_bytes_max together with the topic's max.message.bytes",
        ErrorCode.MESSAGE_TOO_LARGE,
    )
