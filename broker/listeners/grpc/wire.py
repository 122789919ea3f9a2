"""What a request costs once it is parsed is counted on its bytes, before it is parsed (S2).

Two bytes on the wire are an empty item of a list, and a message of its own in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from semel.runtime.turns import Turns

_TURN: Final = 512
"""Fields between two looks at the clock."""
_OTHER_FIELDS: Final = 4
"""So many fields that are no items may be there for each item allowed. No message of the API has more of them."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_CONTINUED: Final = bytes(range(128, 256))

Refuse = Callable[[str], None]


class WireCount:
    """Counts the items of each list in the bytes of one kind of message. Lists within a list count together."""

    def __init__(self, message: Descriptor, longest: int, refuse: Refuse) -> None:
        """`refuse` raises for the list of this name, which has more than `longest` items; "" are fields of no list."""
        self._longest = longest
        self._refuse = refuse
        self._root = _Shape(message, "")

    def can_skip(self, size: int) -> bool:
        """Return whether so few bytes can't have too many items: the shortest has two."""
        return size <= 2 * self._longest

    async def check(self, data: bytes) -> None:
        """Refuse data with too many items. Raises `DecodeError` for bytes that are no message."""
        if not self.can_skip(len(data)):
            await self._walk(data, self._root, dict.fromkeys(("", *self._root.names), 0), Turns())

    async def _walk(self, data: bytes, shape: _Shape, counts: dict[str, int], turns: Turns) -> None:
        position, end, until_turn = 0, len(data), _TURN
        while position < end:
            until_turn -= 1
            if not until_turn:
                until_turn = _TURN
                await turns.give_way()
            tag, position = _varint(data, position)
            kind, name = tag & 7, shape.lists.get(tag >> 3, "")
            found = 1
            if kind == _BYTES:
                size, begin = _varint(data, position)
                position = begin + size
                if position > end:
                    raise DecodeError("truncated")
                if name in shape.packed:
                    found = _packed(data[begin:position], shape.packed[name])
                elif name in shape.inner:
                    await self._walk(data[begin:position], shape.inner[name], counts, turns)
            elif kind == _VARINT:
                _, position = _varint(data, position)
            elif kind == _FIXED64:
                position += 8
            elif kind == _FIXED32:
                position += 4
            else:
                raise DecodeError(f"wire type {kind}")
            counts[name] += found
            if counts[name] > (self._longest if name else self._longest * _OTHER_FIELDS):
                self._refuse(name)


class _Shape:
    """Which fields of a message are lists, by number, and what is in them."""

    def __init__(self, message: Descriptor, prefix: str) -> None:
        self.lists: dict[int, str] = {}
        self.packed: dict[str, int] = {}
        """The size of an item of a list of numbers; 0 for those of variable size."""
        self.inner: dict[str, _Shape] = {}
        self.names: list[str] = []
        """All lists, with those within lists."""
        for field in message.fields:
            if not field.is_repeated:
                continue
            name = prefix + field.name
            self.lists[field.number] = name
            self.names.append(name)
            if field.message_type is None:
                if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
                    self.packed[name] = _FIXED_SIZES.get(field.type, 0)
            elif not prefix and not field.message_type.GetOptions().map_entry:
                inner = _Shape(field.message_type, f"{name}.")
                if inner.names:
                    self.inner[name] = inner
                    self.names += inner.names


_FIXED_SIZES: Final = {
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
}


def _packed(data: bytes, size: int) -> int:
    return len(data) // size if size else len(data.translate(None, _CONTINUED))


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number and the position behind it."""
    try:
        byte = data[position]
        if byte < 128:
            return byte, position + 1
        number = byte & 127
        for shift in range(7, 70, 7):
            position += 1
            byte = data[position]
            number |= (byte & 127) << shift
            if byte < 128:
                return number, position + 1
    except IndexError:
        raise DecodeError("truncated") from None
    raise DecodeError("a number of more than ten bytes")
