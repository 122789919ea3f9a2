"""Avro's binary encoding, read with bounds: an array may say that it has 2^60 nulls, which take no byte each.

fastavro would read them all. This one is for pages, so it counts what it makes, and stops.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from semel.sdk.schemas.errors import SchemaDataError
from semel.web.registry.formats.avro_tree import AvroSchema

_VALUES_MAX: Final = 20_000
_DEPTH_MAX: Final = 100


def decoded(schema: AvroSchema, data: memoryview) -> Any:
    """Return a value as JSON has it; bytes are text, with \\xNN for what is no UTF-8. Raises `SchemaDataError`."""
    reader = _Reader(data)
    value = reader.value(schema, 0)
    if reader.left:
        raise SchemaDataError(f"{reader.left} bytes are left over")
    return value


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._place = 0
        self._values = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._place

    def value(self, schema: AvroSchema, depth: int) -> Any:
        self._values += 1
        if self._values > _VALUES_MAX or depth > _DEPTH_MAX:
            raise SchemaDataError(f"it has more than {_VALUES_MAX} values, or is nested deeper than {_DEPTH_MAX}")
        kind = schema.kind
        if kind == "record":
            return {field.name: self.value(field.schema, depth + 1) for field in schema.fields}
        if kind == "union":
            return self.value(_chosen(schema.branches, self._long(), "a union's branch"), depth + 1)
        if kind == "enum":
            return _chosen(schema.symbols, self._long(), "an enum's symbol")
        if kind == "array":
            items: list[Any] = []
            self._blocks(lambda: items.append(self.value(schema.branches[0], depth + 1)))
            return items
        if kind == "map":
            pairs: dict[str, Any] = {}

            def pair() -> None:
                name = self._text()
                pairs[name] = self.value(schema.branches[0], depth + 1)

            self._blocks(pair)
            return pairs
        if kind == "fixed":
            return _readable(self._take(schema.size))
        return self._primitive(kind)

    def _primitive(self, kind: str) -> Any:
        match kind:
            case "null":
                return None
            case "boolean":
                return self._take(1) != b"\0"
            case "int" | "long":
                return self._long()
            case "float":
                return struct.unpack("<f", self._take(4))[0]
            case "double":
                return struct.unpack("<d", self._take(8))[0]
            case _:
                return self._text()

    def _blocks(self, take: Callable[[], None]) -> None:
        while count := self._long():
            if count < 0:
                count = -count
                self._long()  # the block's size in bytes, for those who skip it
            for _ in range(count):
                take()

    def _text(self) -> str:
        return _readable(self._take(self._long()))

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise SchemaDataError(f"it ends within a value of {size} bytes")
        self._place += size
        return bytes(self._data[self._place - size : self._place])

    def _long(self) -> int:
        value = 0
        for place in range(10):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << (7 * place)
            if not byte & 0x80:
                return (value >> 1) ^ -(value & 1)
        raise SchemaDataError("it has a number of more than 10 bytes")


def _chosen(choices: tuple[Any, ...], place: int, what: str) -> Any:
    if not 0 <= place < len(choices):
        raise SchemaDataError(f"{what} is {place}, of {len(choices)}")
    return choices[place]


def _readable(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
