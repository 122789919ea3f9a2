"""Confluent's wire format: a zero, the schema's id in four bytes, and the record; in Protobuf, which message it is."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from semel.sdk.schemas.errors import SchemaDataError

MAGIC: Final = 0
_HEADER: Final = struct.Struct(">BI")
_INDEXES_MAX: Final = 100
"""Messages in messages: more are no schema that anybody has."""


def header(schema_id: int) -> bytes:
    """Return what stands before a record of a schema.

    >>> header(7)
    b'\\x00\\x00\\x00\\x00\\x07'
    """
    return _HEADER.pack(MAGIC, schema_id)


def split(data: bytes) -> tuple[int, memoryview]:
    """Return a record's schema id, and what follows. Raises `SchemaDataError` for what has another format.

    >>> schema_id, rest = split(b"\\0\\0\\0\\0\\7abc")
    >>> schema_id, bytes(rest)
    (7, b'abc')
    """
    if len(data) < _HEADER.size:
        raise SchemaDataError(f"it has {len(data)} bytes, and no schema id: it was not written with a schema registry")
    magic, schema_id = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise SchemaDataError(
            f"it begins with the byte {magic}, not {MAGIC}: it was not written with a schema registry"
        )
    return schema_id, memoryview(data)[_HEADER.size :]


def message_indexes(indexes: Sequence[int]) -> bytes:
    """Return which message of a Protobuf schema a record is: the place of each message in the one around it.

    >>> message_indexes([0]), message_indexes([1, 0])
    (b'\\x00', b'\\x04\\x02\\x00')
    """
    if list(indexes) == [0]:
        return b"\0"  # the first one: by far the most frequent
    return b"".join(_zigzag(number) for number in (len(indexes), *indexes))


def split_indexes(data: memoryview) -> tuple[list[int], memoryview]:
    """Return which message a record is, and the message. Raises `SchemaDataError`."""
    count, rest = _take(data)
    if count == 0:
        return [0], rest
    if not 0 < count <= _INDEXES_MAX:
        raise SchemaDataError(f"it names its message by {count} numbers")
    indexes = []
    for _ in range(count):
        index, rest = _take(rest)
        indexes.append(index)
    return indexes, rest


def _zigzag(number: int) -> bytes:
    value = number << 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _take(data: memoryview) -> tuple[int, memoryview]:
    value = 0
    for place, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), data[place + 1 :]
    raise SchemaDataError("it ends within the numbers of its message")
