# cython: annotation_typing=False, boundscheck=True, wraparound=True
"""How far entries of the journal, all of one partition, can be taken together: has the log them, or do they follow it.

Compiled with the C types of journal_runs.pxd, because a start after a crash may find a million entries, or interpreted.
"""

from __future__ import annotations

from typing import Final

try:
    import cython
except ModuleNotFoundError:
    from semel.protocol import uncompiled as cython

from semel.broker.log.journal_format import EntryType, JournalEntry
from semel.protocol.batch_header import CONTROL, read_header
from semel.protocol.corruption import CorruptBatchError

_APPEND: Final = EntryType.APPEND

if not cython.compiled:

    def address_of(view: memoryview) -> memoryview:
        return view

    def are_same(one: memoryview, at: int, other: memoryview, position: int, size: int) -> bool:
        return one[at : at + size] == other[position : position + size]


def compare_entries(entries: list[JournalEntry], begin: int, floor: int, piece: bytes) -> tuple[int, int, int]:
    """Compare entries from number `begin` on with `piece` of the log, which begins with their first batch that ends
    behind offset `floor`: what ends before is not compared.

    Returns how many of them the log has, byte for byte, and, where the piece was too short for the next one, or has it
    otherwise: with which offset of it another piece is to begin, and how many bytes it takes. -1: it is to be looked at
    batch by batch.
    """
    view = memoryview(piece)
    log = address_of(view)
    log_size = len(piece)
    log_at = 0
    number = begin
    count = len(entries)
    data, journal = piece, log
    while number < count:
        entry = entries[number]
        if entry.type is not _APPEND:
            return number - begin, -1, 0
        if entry.data is not data:
            data = entry.data
            data_view = memoryview(data)
            journal = address_of(data_view)
        position = entry.payload_at
        end = position + entry.length
        here = log_at
        wanted = -1
        while position < end:
            try:
                header = read_header(data, position)
            except CorruptBatchError:
                return number - begin, -1, 0
            size = header.size_bytes
            if size > end - position:
                return number - begin, -1, 0
            if header.base_offset + header.last_offset_delta >= floor:
                if wanted < 0:
                    wanted = header.base_offset
                if here + size > log_size or not are_same(journal, position, log, here, size):
                    return number - begin, wanted, entry.length
                here += size
            position += size
        log_at = here
        number += 1
    return number - begin, -1, 0


def count_following(entries: list[JournalEntry], begin: int, end_offset: int) -> tuple[int, int]:
    """Return how many entries from number `begin` on can be appended to a log that ends at `end_offset`, one behind the
    other, and how many batches they have. Markers are not among them: whether one can be applied shows when it is.
    """
    number = begin
    count = len(entries)
    batches = 0
    while number < count:
        entry = entries[number]
        # The log ended at its base offset: where its batches begin behind that, a leader's compaction left the gap.
        if entry.type is not _APPEND or entry.base_offset > end_offset or entry.length == 0:
            break
        position = entry.payload_at
        end = position + entry.length
        found = 0
        while position < end:
            try:
                header = read_header(entry.data, position)
            except CorruptBatchError:
                return number - begin, batches
            if header.size_bytes > end - position or header.base_offset < end_offset or header.attributes & CONTROL:
                return number - begin, batches
            end_offset = header.base_offset + header.last_offset_delta + 1
            position += header.size_bytes
            found += 1
        batches += found
        number += 1
    return number - begin, batches
