"""What a journal of an earlier run holds: its files, its entries, and where a crash tore it.

A bad entry is judged by the durable positions of later ones, as `journal.py` says.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from semel.broker.log.journal_format import (
    ENTRY_HEADER_BYTES,
    FILE_HEADER_BYTES,
    ForwardReader,
    JournalEntry,
    find_entry_headers,
    read_entry_header,
    read_file_header,
)
from semel.broker.log.losses import UNSYNCED
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import ErrorCode, FatalError
from semel.runtime.storage import Storage

_log = logging.getLogger("semel.journal")

SUFFIX: Final = ".journal"


@dataclass(slots=True)
class JournalFile:
    """A file of the journal: where its first entry begins, and which one that is."""

    path: str
    base: int
    first_sequence: int
    """-1 where the file header is unreadable: a power cut came while the file was being made."""


def find_journal_files(storage: Storage, folder: str) -> list[JournalFile]:
    """Find the journal's files, oldest first. Raises `SemelError` for names that are no journal's, and `OSError`."""
    if not storage.exists(folder):
        return []
    return [_find_file(storage, folder, name) for name in storage.list_folder(folder)]


def _find_file(storage: Storage, folder: str, name: str) -> JournalFile:
    digits = name.removesuffix(SUFFIX)
    path = f"{folder}/{name}"
    if not name.endswith(SUFFIX) or not digits.isascii() or not digits.isdigit():
        raise FatalError(
            f"{path} is not a file of the journal. Move it out of the journal's directory and start again.",
            ErrorCode.KAFKA_STORAGE_ERROR,
        )
    file = storage.open(path)
    try:
        head = file.read_at(FILE_HEADER_BYTES, 0)
    finally:
        file.close()
    base = int(digits)
    found = read_file_header(head)
    return JournalFile(path, base, found[1] if found is not None and found[0] == base else -1)


class JournalRecovery:
    """Reads a journal to its end. `files`, `position` and `sequence` are how far it came, and where appends begin."""

    def __init__(self, storage: Storage, folder: str, files: list[JournalFile], position: int, sequence: int) -> None:
        self._storage = storage
        self._folder = folder
        self.files = files
        self.position = position
        self.sequence = sequence

    def entries(self) -> Iterator[JournalEntry]:
        """Yield the entries of the run before, oldest first, and then cut a torn tail.

        Raises `SemelError` where something that had been durable cannot be read.
        """
        for index, found in enumerate(self.files):
            if found.first_sequence != self.sequence or found.base != self.position:
                self._cut_tail(index, 0)
                break
            file = self._storage.open(found.path)
            try:
                end = file.size()
                offset = FILE_HEADER_BYTES
                reader = ForwardReader(file)
                while offset < end:
                    entry = self._read_entry(reader, offset, end)
                    if entry is None:
                        break
                    offset += ENTRY_HEADER_BYTES + len(entry.payload)
                    self.sequence += 1
                    self.position = entry.end_position
                    yield entry
            finally:
                file.close()
            if offset < end:
                self._cut_tail(index, offset)
                break

    def entries_to(self, end: int) -> Iterator[JournalEntry]:
        """Yield the entries up to the position `end`. Raises as `entries`."""
        if self.position < end:
            for entry in self.entries():
                yield entry
                if self.position >= end:
                    return

    def _read_entry(self, reader: ForwardReader, offset: int, end: int) -> JournalEntry | None:
        """Return the entry at `offset`, or None where there is no whole and right one."""
        head = read_entry_header(reader.read(ENTRY_HEADER_BYTES, offset))
        if head is None or head.sequence != self.sequence or head.length > end - offset - ENTRY_HEADER_BYTES:
            return None
        payload = reader.read(head.length, offset + ENTRY_HEADER_BYTES)
        if len(payload) != head.length or crc32c(payload) != head.payload_checksum:
            return None
        return JournalEntry(
            type=head.type,
            sequence=head.sequence,
            topic_id=head.topic_id,
            partition=head.partition,
            base_offset=head.base_offset,
            payload=payload,
            end_position=self.position + ENTRY_HEADER_BYTES + head.length,
        )

    def _cut_tail(self, index: int, offset: int) -> None:
        """Drop everything from `offset` of a file on, once it is sure that nobody was told it is durable."""
        for later in range(index, len(self.files)):
            self._check_unacknowledged(self.files[index], offset, self.files[later].path)
        bad = self.files[index]
        dropped = self.files[index:] if offset == 0 else self.files[index + 1 :]
        for file in reversed(dropped):
            # Newest first, each for good before the next: what is left never has a gap.
            self._storage.remove(file.path)
            self._storage.sync_folder(self._folder)
        del self.files[len(self.files) - len(dropped) :]
        if offset > 0:
            _log.warning(
                "the journal ends at byte %d of %s: a crash tore what followed",
                offset, bad.path, extra={UNSYNCED: True},
            )  # fmt: skip
            handle = self._storage.open(bad.path)
            try:
                handle.truncate(offset)
                handle.sync()
            finally:
                handle.close()

    def _check_unacknowledged(self, bad: JournalFile, bad_offset: int, path: str) -> None:
        file = self._storage.open(path)
        try:
            for head in find_entry_headers(file):
                if head.sequence >= self.sequence and head.durable_position > self.position:
                    raise FatalError(
                        f"{bad.path} is damaged at byte {bad_offset}: it held records that were acknowledged, and "
                        f"{path} has later ones. Restore the file from a backup. To continue without the records, move "
                        f"the directory {self._folder} away and start again: the logs keep all that had been flushed.",
                        ErrorCode.KAFKA_STORAGE_ERROR,
                    )
        finally:
            file.close()


class JournalReading(JournalRecovery):
    """Reads a journal that is being written, up to a durable position, and changes nothing."""

    def _cut_tail(self, index: int, offset: int) -> None:
        raise FatalError(
            f"{self.files[index].path} can't be read at byte {offset}, though it was written and synced by this run",
            ErrorCode.KAFKA_STORAGE_ERROR,
        )
