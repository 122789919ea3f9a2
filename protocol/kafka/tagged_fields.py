"""Tagged fields of our own in Kafka's messages, which others step over (KIP-482)."""

from __future__ import annotations

from collections.abc import Callable

from semel.protocol.kafka.wire import WireReader, WireWriter


def write_tag(writer: WireWriter, tag: int, value: bytes) -> None:
    """Write one tagged field. Their number comes before them, and they go by growing tags."""
    writer.write_uvarint(tag)
    writer.write_uvarint(len(value))
    writer.write_fixed(value)


def read_tags(reader: WireReader) -> dict[int, bytes]:
    """Return the values of all tagged fields that are next. Raises `WireFormatError`."""
    read: Callable[[], int] = reader.read_uvarint
    return {read(): reader.read_fixed(read()) for _ in range(reader.read_tag_count())}
