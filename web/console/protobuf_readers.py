"""The readers of Protobuf's schemas that pages of a gateway share: making one takes longer than reading with it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from semel.sdk.schemas.errors import SchemaDataError
from semel.web.console.protobuf_values import ProtobufReader
from semel.web.registry.formats.protobuf import ProtobufParsed

_READERS_MAX: Final = 100
_BYTES_MAX: Final = 16 << 20
"""Of the descriptors of all readers that are kept."""
_SCHEMA_BYTES_MAX: Final = 4 << 20
"""Of the descriptors of one schema, with all that it imports."""


class ProtobufReaders:
    """Keeps the readers that were used last. Belongs to one event loop; readers are made in a thread, one at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[ProtobufParsed, ProtobufReader, int]] = OrderedDict()
        self._bytes = 0
        self._making = asyncio.Lock()

    async def reader(self, schema_id: int, schema: ProtobufParsed) -> ProtobufReader:
        """Return the reader of a schema. Raises `SchemaDataError` for one whose values can't be read here."""
        async with self._making:
            kept = self._kept.get(schema_id)
            if kept is not None and kept[0] is schema:  # an id can be given to another schema, after it was deleted
                self._kept.move_to_end(schema_id)
                return kept[1]
            size_bytes = sum(file.ByteSize() for file in schema.files)
            if size_bytes > _SCHEMA_BYTES_MAX:
                raise SchemaDataError(f"it has {size_bytes} bytes, and {_SCHEMA_BYTES_MAX} at most are used here")
            made = await asyncio.to_thread(ProtobufReader, schema)
            self._drop(schema_id)
            self._kept[schema_id] = schema, made, size_bytes
            self._bytes += size_bytes
            while len(self._kept) > _READERS_MAX or self._bytes > _BYTES_MAX:
                self._drop(next(iter(self._kept)))
            return made

    def _drop(self, schema_id: int) -> None:
        dropped = self._kept.pop(schema_id, None)
        self._bytes -= 0 if dropped is None else dropped[2]
