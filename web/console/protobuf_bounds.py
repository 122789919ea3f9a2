"""What a Protobuf value would cost, counted before it is parsed.

Protobuf's own parser makes a whole message of all that it reads: 4 KiB can be 2,000 messages of 64 KiB each, where the
schema has many fields. So the encoding is walked first, without making anything of it, and what asks for too much is
refused. What is wrong with the encoding otherwise is for the parser to say.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from semel.sdk.schemas.errors import SchemaDataError

VALUES_MAX: Final = 20_000
DEPTH_MAX: Final = 100
"""Messages in messages. Protobuf's parser has the same bound."""
ROOM_BYTES_MAX: Final = 16 << 20
"""Of the messages that a value makes, by how many fields they can have."""
_FIELD_BYTES: Final = 16
"""What a field takes in a message, whether it is set or not: no more than a pointer and a size."""
_MESSAGE_BYTES: Final = 64
_VARINT_BYTES_MAX: Final = 10
_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
_FIXED64_TYPES: Final = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64)
_FIXED32_TYPES: Final = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32)
_UNPACKED: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


class Costs:
    """What is left for one record: it counts all messages of it, also those within a google.protobuf.Any."""

    def __init__(self) -> None:
        self._values = 0
        self._room_bytes = 0

    def take(self, descriptor: Descriptor, data: bytes, depth: int) -> None:
        """Count a message that is to be parsed. depth: of the messages around it.

        Raises `SchemaDataError` for more than the bounds, and for an encoding that can't be walked.
        """
        place = self._message(descriptor, data, 0, len(data), depth)
        if place != len(data):
            raise SchemaDataError("a group ends that did not begin")

    def _message(self, descriptor: Descriptor | None, data: bytes, place: int, end: int, depth: int) -> int:
        """Count the fields up to `end`, or to the end of a group, and return where that is. None: an unknown group."""
        if depth > DEPTH_MAX:
            raise SchemaDataError(f"it is nested deeper than {DEPTH_MAX}")
        self._room_bytes += _MESSAGE_BYTES + (0 if descriptor is None else _FIELD_BYTES * len(descriptor.fields))
        if self._room_bytes > ROOM_BYTES_MAX:
            raise SchemaDataError(f"its messages would take more than {ROOM_BYTES_MAX >> 20} MiB")
        self._count(1)
        while place < end:
            tag, place = _varint(data, place, end)
            number, kind = tag >> 3, tag & 7
            if kind == _GROUP_END:
                return place
            field = None if descriptor is None else _field(descriptor, number)
            if kind == _GROUP:
                within = None if field is None else field.message_type
                place = self._message(within, data, place, end, depth + 1)
            elif kind == _BYTES:
                size, place = _varint(data, place, end)
                if size > end - place:
                    raise SchemaDataError(f"it ends within a value of {size} bytes")
                self._bytes(field, data, place, place + size, depth)
                place += size
            elif kind == _VARINT:
                _, place = _varint(data, place, end)
                self._count(1)
            elif kind in (_FIXED64, _FIXED32):
                place += 8 if kind == _FIXED64 else 4
                self._count(1)
            else:
                raise SchemaDataError(f"it has a field of the wire type {kind}, which there is not")
        if place > end:
            raise SchemaDataError("it ends within a number")
        return place

    def _bytes(self, field: FieldDescriptor | None, data: bytes, place: int, end: int, depth: int) -> None:
        if field is None or field.type in _UNPACKED:
            self._count(1)
        elif field.message_type is not None:
            if self._message(field.message_type, data, place, end, depth + 1) != end:
                raise SchemaDataError("a group ends that did not begin")
        elif field.type in _FIXED64_TYPES:
            self._count((end - place) // 8)
        elif field.type in _FIXED32_TYPES:
            self._count((end - place) // 4)
        else:
            self._count(sum(byte < 0x80 for byte in memoryview(data)[place:end]))

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > VALUES_MAX:
            raise SchemaDataError(f"it has more than {VALUES_MAX} values")


def _field(descriptor: Descriptor, number: int) -> FieldDescriptor | None:
    found: FieldDescriptor | None = descriptor.fields_by_number.get(number)
    if found is None and descriptor.is_extendable:
        try:
            return descriptor.file.pool.FindExtensionByNumber(descriptor, number)
        except KeyError:
            return None
    return found


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(_VARINT_BYTES_MAX):
        if place >= end:
            raise SchemaDataError("it ends within a number")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, place
    raise SchemaDataError(f"it has a number of more than {_VARINT_BYTES_MAX} bytes")
