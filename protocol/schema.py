# cython: annotation_typing=False
"""Kafka's serialised structs: what the keys and values of the internal topics and the consumer protocol are made of.

`Writer` appends fields, `Reader` takes them off again. Every length and count is checked against the bytes that are
left before anything is allocated, so hostile bytes give `CorruptDataError` and cost no memory. Format: Kafka's protocol
guide, and KIP-482 for the compact forms and tagged fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from semel.protocol.corruption import CorruptDataError
from semel.protocol.errors import UsageError
from semel.protocol.int_bounds import INT16_MAX, INT32_MAX

Buffer: TypeAlias = bytes | bytearray | memoryview
Item = TypeVar("Item")

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_UINT16: Final = struct.Struct(">H")
_UINT32: Final = struct.Struct(">I")
_FLOAT64: Final = struct.Struct(">d")


class Reader:
    """Takes fields off the front of a buffer. Each method raises `CorruptDataError` where the bytes end or lie."""

    __slots__ = ("_buffer", "_end", "_position")

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        self._buffer = memoryview(buffer)
        self._position = position
        self._end = len(self._buffer)

    @property
    def position(self) -> int:
        return self._position

    @property
    def remaining(self) -> int:
        return self._end - self._position

    def expect_end(self) -> None:
        """Raise `CorruptDataError` if bytes are left over."""
        if self._position != self._end:
            raise CorruptDataError(f"{self.remaining} bytes are left over after the last field, at {self._position}")

    def _take(self, size: int) -> int:
        """Step over `size` bytes and return where they begin."""
        start = self._position
        if size < 0 or size > self._end - start:
            raise CorruptDataError(
                f"a field of {size} bytes at {start} does not fit: {self._end - start} bytes are left"
            )
        self._position = start + size
        return start

    def int8(self) -> int:
        byte = self._buffer[self._take(1)]
        return byte - 256 if byte > 127 else byte

    def uint8(self) -> int:
        return self._buffer[self._take(1)]

    def boolean(self) -> bool:
        return self._buffer[self._take(1)] != 0

    def int16(self) -> int:
        return int(_INT16.unpack_from(self._buffer, self._take(2))[0])

    def uint16(self) -> int:
        return int(_UINT16.unpack_from(self._buffer, self._take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack_from(self._buffer, self._take(4))[0])

    def uint32(self) -> int:
        return int(_UINT32.unpack_from(self._buffer, self._take(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack_from(self._buffer, self._take(8))[0])

    def float64(self) -> float:
        return float(_FLOAT64.unpack_from(self._buffer, self._take(8))[0])

    def uuid(self) -> UUID:
        start = self._take(16)
        return UUID(bytes=bytes(self._buffer[start : start + 16]))

    def unsigned_varint(self) -> int:
        """Read up to five bytes, seven bits each, lowest first; 32 bits in all."""
        return self._varint(5, 32)

    def varint(self) -> int:
        """Read a zigzag-coded 32-bit number."""
        value = self._varint(5, 32)
        return (value >> 1) ^ -(value & 1)

    def varlong(self) -> int:
        """Read a zigzag-coded 64-bit number."""
        value = self._varint(10, 64)
        return (value >> 1) ^ -(value & 1)

    def _varint(self, size_max: int, bits: int) -> int:
        start = self._position
        if start < self._end:
            first = int(self._buffer[start])
            if first < 0x80:  # nearly all of them
                self._position = start + 1
                return first
        value = 0
        for index in range(size_max):
            byte = self._buffer[self._take(1)]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value >> bits:
                    break
                return value
        raise CorruptDataError(f"the varint at {start} has more than {bits} bits")

    def _text(self, size: int) -> str:
        start = self._take(size)
        try:
            return str(self._buffer[start : start + size], "utf-8")
        except UnicodeDecodeError as error:
            raise CorruptDataError(f"the string at {start} is not UTF-8: {error.reason}") from None

    def _bytes(self, size: int) -> bytes:
        start = self._take(size)
        return bytes(self._buffer[start : start + size])

    def _present(self, size: int, kind: str) -> int:
        if size < 0:
            raise CorruptDataError(f"the {kind} at {self._position} is null or has the size {size}")
        return size

    def string(self) -> str:
        return self._text(self._present(self.int16(), "string"))

    def nullable_string(self) -> str | None:
        size = self.int16()
        return None if size == -1 else self._text(size)

    def compact_string(self) -> str:
        return self._text(self._present(self.unsigned_varint() - 1, "string"))

    def compact_nullable_string(self) -> str | None:
        size = self.unsigned_varint() - 1
        return None if size == -1 else self._text(size)

    def bytes_(self) -> bytes:
        return self._bytes(self._present(self.int32(), "bytes field"))

    def nullable_bytes(self) -> bytes | None:
        size = self.int32()
        return None if size == -1 else self._bytes(size)

    def compact_bytes(self) -> bytes:
        return self._bytes(self._present(self.unsigned_varint() - 1, "bytes field"))

    def compact_nullable_bytes(self) -> bytes | None:
        size = self.unsigned_varint() - 1
        return None if size == -1 else self._bytes(size)

    def raw(self, size: int) -> memoryview:
        """Return the next `size` bytes as they are, not copied."""
        start = self._take(size)
        return self._buffer[start : start + size]

    def array(self, item: Callable[[], Item]) -> list[Item]:
        """Read an array, calling `item` (a method of this reader, or a function over it) for each element."""
        return self._items(self._present(self.int32(), "array"), item)

    def nullable_array(self, item: Callable[[], Item]) -> list[Item] | None:
        count = self.int32()
        return None if count == -1 else self._items(count, item)

    def compact_array(self, item: Callable[[], Item]) -> list[Item]:
        return self._items(self._present(self.unsigned_varint() - 1, "array"), item)

    def compact_nullable_array(self, item: Callable[[], Item]) -> list[Item] | None:
        count = self.unsigned_varint() - 1
        return None if count == -1 else self._items(count, item)

    def _items(self, count: int, item: Callable[[], Item]) -> list[Item]:
        # An element has at least one byte, so a larger count is a lie.
        if count < 0 or count > self.remaining:
            raise CorruptDataError(f"an array of {count} elements at {self._position} has {self.remaining} bytes left")
        return [item() for _ in range(count)]

    def tagged_fields(self) -> dict[int, bytes]:
        """Read the tagged fields that end a flexible struct, by tag. Tags must ascend (KIP-482)."""
        fields: dict[int, bytes] = {}
        last = -1
        for _ in range(self._field_count()):
            tag = self.unsigned_varint()
            if tag <= last:
                raise CorruptDataError(f"the tagged field {tag} follows {last}: tags must ascend")
            last = tag
            fields[tag] = self._bytes(self.unsigned_varint())
        return fields

    def _field_count(self) -> int:
        count = self.unsigned_varint()
        if count > self.remaining:
            raise CorruptDataError(f"{count} tagged fields at {self._position} have {self.remaining} bytes left")
        return count


class Writer:
    """Appends fields. `bytes(writer)` or `to_bytes()` gives what was written.

    Numbers that do not fit their field raise `UsageError`.
    """

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def to_bytes(self) -> bytes:
        return bytes(self._buffer)

    def __bytes__(self) -> bytes:
        return bytes(self._buffer)

    def __len__(self) -> int:
        return len(self._buffer)

    def _pack(self, kind: struct.Struct, value: float) -> None:
        try:
            self._buffer += kind.pack(value)
        except struct.error as error:
            raise UsageError(f"{value!r} does not fit its field: {error}") from None

    def int8(self, value: int) -> None:
        if not -128 <= value <= 127:
            raise UsageError(f"{value} does not fit an int8")
        self._buffer.append(value & 0xFF)

    def uint8(self, value: int) -> None:
        if not 0 <= value <= 255:
            raise UsageError(f"{value} does not fit a uint8")
        self._buffer.append(value)

    def boolean(self, value: bool) -> None:
        self._buffer.append(1 if value else 0)

    def int16(self, value: int) -> None:
        self._pack(_INT16, value)

    def uint16(self, value: int) -> None:
        self._pack(_UINT16, value)

    def int32(self, value: int) -> None:
        self._pack(_INT32, value)

    def uint32(self, value: int) -> None:
        self._pack(_UINT32, value)

    def int64(self, value: int) -> None:
        self._pack(_INT64, value)

    def float64(self, value: float) -> None:
        self._pack(_FLOAT64, value)

    def uuid(self, value: UUID) -> None:
        self._buffer += value.bytes

    def unsigned_varint(self, value: int) -> None:
        if 0 <= value < 0x80:  # nearly all of them
            self._buffer.append(value)
            return
        if not 0 <= value < 2**32:
            raise UsageError(f"{value} does not fit an unsigned varint of 32 bits")
        self._varint(value)

    def varint(self, value: int) -> None:
        if not -(2**31) <= value < 2**31:
            raise UsageError(f"{value} does not fit a varint of 32 bits")
        self._varint(value << 1 if value >= 0 else ~(value << 1))

    def varlong(self, value: int) -> None:
        if not -(2**63) <= value < 2**63:
            raise UsageError(f"{value} does not fit a varlong of 64 bits")
        self._varint(value << 1 if value >= 0 else ~(value << 1))

    def _varint(self, value: int) -> None:
        while value > 0x7F:
            self._buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self._buffer.append(value)

    def string(self, value: str) -> None:
        data = value.encode("utf-8")
        if len(data) > INT16_MAX:
            raise UsageError(f"a string of {len(data)} bytes is longer than the {INT16_MAX} that its field can have")
        self._buffer += _INT16.pack(len(data))
        self._buffer += data

    def nullable_string(self, value: str | None) -> None:
        if value is None:
            self.int16(-1)
        else:
            self.string(value)

    def compact_string(self, value: str) -> None:
        data = value.encode("utf-8")
        self.unsigned_varint(len(data) + 1)
        self._buffer += data

    def compact_nullable_string(self, value: str | None) -> None:
        if value is None:
            self.unsigned_varint(0)
        else:
            self.compact_string(value)

    def bytes_(self, value: Buffer) -> None:
        if len(value) > INT32_MAX:
            raise UsageError(f"{len(value)} bytes are more than the {INT32_MAX} that their field can have")
        self._buffer += _INT32.pack(len(value))
        self._buffer += value

    def nullable_bytes(self, value: Buffer | None) -> None:
        if value is None:
            self.int32(-1)
        else:
            self.bytes_(value)

    def compact_bytes(self, value: Buffer) -> None:
        self.unsigned_varint(len(value) + 1)
        self._buffer += value

    def compact_nullable_bytes(self, value: Buffer | None) -> None:
        if value is None:
            self.unsigned_varint(0)
        else:
            self.compact_bytes(value)

    def raw(self, value: Buffer) -> None:
        """Append bytes as they are, without a length."""
        self._buffer += value

    def array(self, items: Iterable[Item], write: Callable[[Item], object]) -> None:
        """Write an array, calling `write` (a method of this writer, or a function over it) with each element."""
        items = list(items)
        self.int32(len(items))
        for item in items:
            write(item)

    def nullable_array(self, items: Iterable[Item] | None, write: Callable[[Item], object]) -> None:
        if items is None:
            self.int32(-1)
        else:
            self.array(items, write)

    def compact_array(self, items: Iterable[Item], write: Callable[[Item], object]) -> None:
        items = list(items)
        self.unsigned_varint(len(items) + 1)
        for item in items:
            write(item)

    def compact_nullable_array(self, items: Iterable[Item] | None, write: Callable[[Item], object]) -> None:
        if items is None:
            self.unsigned_varint(0)
        else:
            self.compact_array(items, write)

    def tagged_fields(self, fields: Mapping[int, Buffer] | None = None) -> None:
        """Write the tagged fields that end a flexible struct, in ascending order; without any, the one byte 0."""
        if not fields:
            self._buffer.append(0)
            return
        self.unsigned_varint(len(fields))
        for tag in sorted(fields):
            self.unsigned_varint(tag)
            self.unsigned_varint(len(fields[tag]))
            self._buffer += fields[tag]
