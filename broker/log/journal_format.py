# cython: annotation_typing=False, boundscheck=True, wraparound=True
"""The bytes of the journal: its file header, its entries, and reading them out of what a crash left.

    entry   := magic, checksum of the header, checksum of the payload, length of the payload, type, mark,
               sequence, durable position, topic id, partition, base offset, payload
    file    := file header (position of its first entry, sequence of its first entry), entries, leftovers

All numbers are big-endian, checksums CRC-32C. See `journal` for what they mean. Compiled with the C types of
journal_format.pxd, because a start after a crash may find a million entries, or interpreted.

Leftovers are what a former use of the file has left behind the end. Its entries have lower sequences. What a client put
into their payloads may look like an entry, with any sequence: but it lacks the mark, which is drawn for each run of a
node, and told to nobody. All entries of a file have one mark. Older versions wrote 0 there, and read no mark.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final
from uuid import UUID

from semel.protocol.crc32c import crc32c
from semel.protocol.ids import TopicId
from semel.runtime.storage import Buffer, StorageFile

_ENTRY_MAGIC: Final = b"\xabSJ\x01"
_FILE_MAGIC: Final = b"SEMELJN\x01"
_FILE_HEADER: Final = struct.Struct(">8sIqq")
_CHECKED: Final = struct.Struct(">IIIqq16siq")
"""The part of the entry header that its checksum covers: what follows the checksum. Type and mark are one number."""
_HEADER: Final = struct.Struct(">IIIIqq20sq")
"""The same with its checksum before it, to be read: topic id and partition are the entry's place."""
_SEQUENCE: Final = struct.Struct(">q")
_SEQUENCE_AT: Final = 20
_MARK_MASK: Final = (1 << 24) - 1
_FILE_CHECKED: Final = struct.Struct(">qq")
_CRC: Final = struct.Struct(">I")
_SCAN_CHUNK: Final = 1 << 20
_PLACES_MAX: Final = 100_000

ENTRY_HEADER_BYTES: Final = len(_ENTRY_MAGIC) + _CRC.size + _CHECKED.size
FILE_HEADER_BYTES: Final = _FILE_HEADER.size
ENTRY_BYTES_MAX: Final = 1 << 30
"""No entry is longer: a length beyond it in a file is damage, and nothing is allocated for it."""
_HEADER_BYTES: Final = ENTRY_HEADER_BYTES
MARK_BITS: Final = 24
ANY_MARK: Final = -1


class EntryType(IntEnum):
    """What an entry says about its partition."""

    APPEND = 1
    """The log ended at `base_offset`, and got the batches. Older versions wrote where the first of these begins."""
    TRUNCATE = 2
    """The log was cut at `base_offset`; entries before this one do not count from there on."""


class JournalEntry:
    """One entry as read back, and `data`, of which its payload is a part: whole record batches, or nothing for a
    truncation.
    """

    __slots__ = (
        "base_offset",
        "data",
        "durable_position",
        "end_position",
        "length",
        "mark",
        "payload_at",
        "payload_checksum",
        "place",
        "sequence",
        "type",
    )
    type: EntryType
    sequence: int
    durable_position: int
    place: bytes
    """Which partition it is of: see `parse_place`."""
    base_offset: int
    payload_checksum: int
    length: int
    """Of the payload."""
    mark: int
    """Of the run that wrote it."""
    data: bytes
    payload_at: int
    end_position: int
    """The position in the journal behind it. -1 where that was not asked for."""

    @property
    def topic_id(self) -> TopicId:
        return parse_place(self.place)[0]

    @property
    def partition(self) -> int:
        return parse_place(self.place)[1]

    @property
    def payload(self) -> bytes:
        return self.data[self.payload_at : self.payload_at + self.length]


@functools.lru_cache(_PLACES_MAX)
def parse_place(place: bytes) -> tuple[TopicId, int]:
    """Return topic id and partition. There are few of them, and many entries."""
    return TopicId(UUID(bytes=place[:16])), int.from_bytes(place[16:], "big", signed=True)


def build_entry_header(
    kind: EntryType,
    sequence: int,
    durable_position: int,
    topic_id: TopicId,
    partition: int,
    base_offset: int,
    payload: Buffer,
    mark: int = 0,
) -> bytes:
    checked = _CHECKED.pack(
        crc32c(payload),
        len(payload),
        kind << MARK_BITS | mark,
        sequence,
        durable_position,
        topic_id.bytes,
        partition,
        base_offset,
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


_TYPES: Final = {int(kind): kind for kind in EntryType}


def read_entry_header(data: bytes, position: int = 0) -> JournalEntry | None:
    """Return the entry at `position`, or None where no whole and right header is. The payload is not looked at, and
    need not be in `data`.
    """
    payload_at = position + _HEADER_BYTES
    if payload_at > len(data) or data[position : position + 4] != _ENTRY_MAGIC:
        return None
    checksum, payload_checksum, length, kind_and_mark, sequence, durable, place, base_offset = _HEADER.unpack_from(
        data, position + 4
    )
    kind = kind_and_mark >> MARK_BITS
    if crc32c(data, position + 8, payload_at) != checksum or kind not in _TYPES or length > ENTRY_BYTES_MAX:
        return None
    entry = JournalEntry.__new__(JournalEntry)
    entry.type = _TYPES[kind]
    entry.mark = kind_and_mark & _MARK_MASK
    entry.sequence = sequence
    entry.durable_position = durable
    entry.place = place
    entry.base_offset = base_offset
    entry.payload_checksum = payload_checksum
    entry.length = length
    entry.data = data
    entry.payload_at = payload_at
    entry.end_position = -1
    return entry


def read_entries(data: bytes, sequence: int, end_position: int, mark: int) -> tuple[list[JournalEntry], int, int]:
    """Read the entries that `data` begins with, the first of them number `sequence`, at the position `end_position`.

    mark: of the file, ANY_MARK before its first entry

    Returns them, where in `data` the next one begins, and how many bytes that one needs, where it is not whole: 0 where
    there is no right one.
    """
    found: list[JournalEntry] = []
    size = len(data)
    position = 0
    while size - position >= _HEADER_BYTES:
        entry = read_entry_header(data, position)
        if entry is None or entry.sequence != sequence or (mark >= 0 and entry.mark != mark):
            return found, position, 0
        end = entry.payload_at + entry.length
        if end > size:
            return found, position, end - position
        if crc32c(data, entry.payload_at, end) != entry.payload_checksum:
            return found, position, 0
        end_position += end - position
        entry.end_position = end_position
        found.append(entry)
        mark = entry.mark
        position = end
        sequence += 1
    return found, position, _HEADER_BYTES


def by_place(entries: list[JournalEntry]) -> dict[bytes, list[JournalEntry]]:
    """Return the entries of each partition by its `place`, in their order."""
    found: dict[bytes, list[JournalEntry]] = {}
    for entry in entries:
        one = found.get(entry.place)
        if one is None:
            one = found[entry.place] = []
        one.append(entry)
    return found


def read_mark(file: StorageFile) -> int:
    """Return the mark of a file's entries, or ANY_MARK where its first one can't be read."""
    head = read_entry_header(file.read_at(ENTRY_HEADER_BYTES, FILE_HEADER_BYTES))
    return ANY_MARK if head is None else head.mark


def find_entry_headers(file: StorageFile, begin: int, sequence: int) -> Iterator[JournalEntry]:
    """Yield the entry headers of a file that can be read, wherever they are from `begin` on: those of its last use, by
    its mark, with `sequence` or a higher one.
    """
    size = file.size()
    mark = read_mark(file)
    while begin < size:
        chunk = file.read_at(_SCAN_CHUNK + ENTRY_HEADER_BYTES, begin)
        at = chunk.find(_ENTRY_MAGIC)
        while 0 <= at < _SCAN_CHUNK:
            # First by the sequence: leftovers may be many, and are no more looked at.
            if at + ENTRY_HEADER_BYTES <= len(chunk) and _SEQUENCE.unpack_from(chunk, at + _SEQUENCE_AT)[0] >= sequence:
                head = read_entry_header(chunk, at)
                if head is not None and mark in (ANY_MARK, head.mark):
                    yield head
            at = chunk.find(_ENTRY_MAGIC, at + 1)
        begin += _SCAN_CHUNK
