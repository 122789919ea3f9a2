"""What a journal of an earlier run holds: its files, its entries, and where a crash tore it.

A bad entry is judged by the durable positions of later ones, as `journal.py` says.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from semel.broker.log.journal_format import (
    ENTRY_HEADER_BYTES,
    FILE_HEADER_BYTES,
    JournalEntry,
    find_entry_headers,
    read_entries,
    read_file_header,
)
from semel.broker.log.losses import UNSYNCED
from semel.protocol.errors import ErrorCode, FatalError
from semel.runtime.storage import Storage

_log = logging.getLogger("semel.journal")

SUFFIX: Final = ".journal"
READ_BYTES: Final = 1 << 20


@dataclass(slots=True)
class JournalFile:
    """A file of the journal: where its first entry begins, and which one that is."""

    path: str
    base: int
    first_sequence: int
    """-1 where the file header is unreadable: a power cut came while the file was being made."""


class JournalCut(NamedTuple):
    """Where a log was cut: what the journal has of it up to `position`, from `offset` on, is void."""

    position: int
    offset: int


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

    def parts(self, read_bytes: int = READ_BYTES) -> Iterator[list[JournalEntry]]:
        """Yield the entries of the run before, oldest first, as many as are read at a time, and then cut a torn tail.

        read_bytes: how many bytes are read at a time, or one larger entry
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
                wanted = ENTRY_HEADER_BYTES
                while wanted and wanted <= end - offset:
                    data = file.read_at(max(wanted, min(read_bytes, end - offset)), offset)
                    if len(data) < wanted:
                        break
                    entries, size, wanted = read_entries(data, self.sequence, self.position)
                    offset += size
                    if entries:
                        self.sequence += len(entries)
                        self.position = entries[-1].end_position
                        yield entries
            finally:
                file.close()
            if offset < end:
                self._cut_tail(index, offset)
                break

    def entries(self) -> Iterator[JournalEntry]:
        """Yield what `parts` yields, one by one."""
        for part in self.parts():
            yield from part

    def entries_to(self, end: int) -> Iterator[JournalEntry]:
        """Yield the entries up to the position `end`. Raises as `entries`."""
        if self.position < end:
            for entry in self.entries():
                yield entry
                if entry.end_position >= end:
                    return

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


class JournalLook(JournalRecovery):
    """Reads a journal to its end before it is recovered, and leaves a torn tail where it is."""

    def _cut_tail(self, index: int, offset: int) -> None:
        """The recovery does that."""


class JournalReading(JournalRecovery):
    """Reads a journal that is being written, up to a durable position, and changes nothing."""

    def _cut_tail(self, index: int, offset: int) -> None:
        raise FatalError(
            f"{self.files[index].path} can't be read at byte {offset}, though it was written and synced by this run",
            ErrorCode.KAFKA_STORAGE_ERROR,
        )
