"""The bytes of the journal: its file header, its entries, and reading them out of what a crash left.

    entry   := magic, checksum of the header, checksum of the payload, length of the payload, type,
               sequence, durable position, topic id, partition, base offset, payload
    file    := file header (position of its first entry, sequence of its first entry), entries

All numbers are big-endian, checksums CRC-32C. See `journal` for what they mean.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final
from uuid import UUID

from semel.protocol.crc32c import crc32c
from semel.protocol.ids import TopicId
from semel.runtime.storage import Buffer, StorageFile

_ENTRY_MAGIC: Final = b"\xabSJ\x01"
_FILE_MAGIC: Final = b"SEMELJN\x01"
_FILE_HEADER: Final = struct.Struct(">8sIqq")
_CHECKED: Final = struct.Struct(">IIB3xqq16siq")
"""The part of the entry header that its checksum covers: what follows the checksum."""
_FILE_CHECKED: Final = struct.Struct(">qq")
_CRC: Final = struct.Struct(">I")
_SCAN_CHUNK: Final = 1 << 20
_TOPIC_IDS_MAX: Final = 100_000

ENTRY_HEADER_BYTES: Final = len(_ENTRY_MAGIC) + _CRC.size + _CHECKED.size
FILE_HEADER_BYTES: Final = _FILE_HEADER.size
ENTRY_BYTES_MAX: Final = 1 << 30
"""No entry is longer: a length beyond it in a file is damage, and nothing is allocated for it."""


class EntryType(IntEnum):
    """What an entry says about its partition."""

    APPEND = 1
    """The log ended at `base_offset`, and got the batches. Older versions wrote where the first of these begins."""
    TRUNCATE = 2
    """The log was cut at `base_offset`; entries before this one do not count from there on."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One entry as read back. `payload` holds whole record batches, or nothing for a truncation."""

    type: EntryType
    sequence: int
    topic_id: TopicId
    partition: int
    base_offset: int
    payload: bytes
    end_position: int


def build_entry_header(
    kind: EntryType,
    sequence: int,
    durable_position: int,
    topic_id: TopicId,
    partition: int,
    base_offset: int,
    payload: Buffer,
) -> bytes:
    checked = _CHECKED.pack(
        crc32c(payload), len(payload), kind, sequence, durable_position, topic_id.bytes, partition, base_offset
    )
    return b"".join((_ENTRY_MAGIC, _CRC.pack(crc32c(checked)), checked))


def build_file_header(base: int, first_sequence: int) -> bytes:
    checked = _FILE_CHECKED.pack(base, first_sequence)
    return _FILE_MAGIC + _CRC.pack(crc32c(checked)) + checked


def read_file_header(head: bytes) -> tuple[int, int] | None:
    """Return (base position, first sequence), or None where the bytes are no whole and right header."""
    if len(head) != FILE_HEADER_BYTES:
        return None
    magic, checksum, base, sequence = _FILE_HEADER.unpack(head)
    if magic != _FILE_MAGIC or checksum != crc32c(head[12:]):
        return None
    return base, sequence


@dataclass(frozen=True, slots=True)
class EntryHeader:
    payload_checksum: int
    length: int
    type: EntryType
    sequence: int
    durable_position: int
    topic_id: TopicId
    partition: int
    base_offset: int


_TYPES: Final = {int(kind): kind for kind in EntryType}


def read_entry_header(data: bytes) -> EntryHeader | None:
    """Return an entry's header, or None where the bytes are no whole and right one."""
    if len(data) < ENTRY_HEADER_BYTES or data[:4] != _ENTRY_MAGIC:
        return None
    if crc32c(data[8:ENTRY_HEADER_BYTES]) != _CRC.unpack_from(data, 4)[0]:
        return None
    payload_checksum, length, kind, sequence, durable, topic_id, partition, base_offset = _CHECKED.unpack_from(data, 8)
    if kind not in _TYPES or length > ENTRY_BYTES_MAX:
        return None
    return EntryHeader(
        payload_checksum, length, _TYPES[kind], sequence, durable, _topic_id(topic_id), partition, base_offset
    )


@functools.lru_cache(_TOPIC_IDS_MAX)
def _topic_id(data: bytes) -> TopicId:
    """There are few topics and many entries."""
    return TopicId(UUID(bytes=data))


def find_entry_headers(file: StorageFile) -> Iterator[EntryHeader]:
    """Yield all readable entry headers of a file, wherever they are."""
    size = file.size()
    begin = 0
    while begin < size:
        chunk = file.read_at(_SCAN_CHUNK + ENTRY_HEADER_BYTES, begin)
        at = chunk.find(_ENTRY_MAGIC)
        while 0 <= at < _SCAN_CHUNK:
            head = read_entry_header(chunk[at : at + ENTRY_HEADER_BYTES])
            if head is not None:
                yield head
            at = chunk.find(_ENTRY_MAGIC, at + 1)
        begin += _SCAN_CHUNK


class ForwardReader:
    """Reads a file forward in large pieces."""

    __slots__ = ("_begin", "_chunk", "_file")

    def __init__(self, file: StorageFile) -> None:
        self._file = file
        self._begin = 0
        self._chunk = b""

    def read(self, size: int, position: int) -> bytes:
        skip = position - self._begin
        if skip < 0 or skip + size > len(self._chunk):
            self._chunk = self._file.read_at(max(size, _SCAN_CHUNK), position)
            self._begin = position
            skip = 0
        return self._chunk[skip : skip + size]
