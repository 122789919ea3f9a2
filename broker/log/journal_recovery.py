"""What a journal of an earlier run holds: its files, its entries, and where a crash tore it.

A bad entry is judged by the durable positions of later ones, as `journal.py` says. A file ends where its next entry is
not: what follows may be left over from a former use of the file (`journal_spares.py`), and says nothing then. Where the
next file begins with that entry, nothing is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from semel.broker.log.journal_format import (
    ANY_MARK,
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
SPARE_SUFFIX: Final = ".spare"
READ_BYTES: Final = 1 << 20


@dataclass(slots=True)
class JournalFile:
    """A file of the journal: where its first entry begins, and which one that is."""

    path: str
    base: int
    first_sequence: int
    """-1 where the file header is unreadable, or of a former use: a power cut came while the file was being made."""
    is_own: bool = False
    """Whether this run has begun it, so that no entry in it has a sequence that is still to come."""
    size_bytes: int = 0
    """How much of it has been written in this use, once nothing more is."""


class JournalCut(NamedTuple):
    """Where a log was cut: what the journal has of it up to `position`, from `offset` on, is void."""

    position: int
    offset: int


def find_journal_files(storage: Storage, folder: str) -> list[JournalFile]:
    """Find the journal's files, oldest first. Raises `SemelError` for names that are no journal's, and `OSError`."""
    if not storage.exists(folder):
        return []
    names = storage.list_folder(folder)
    return [_find_file(storage, folder, name) for name in names if not _has_digits(name, SPARE_SUFFIX)]


def find_spares(storage: Storage, folder: str) -> list[str]:
    """Return the paths of the spares in a journal's folder. Raises `OSError`."""
    if not storage.exists(folder):
        return []
    return [f"{folder}/{name}" for name in storage.list_folder(folder) if _has_digits(name, SPARE_SUFFIX)]


def _has_digits(name: str, suffix: str) -> bool:
    digits = name.removesuffix(suffix)
    return name.endswith(suffix) and digits.isascii() and digits.isdigit()


def _find_file(storage: Storage, folder: str, name: str) -> JournalFile:
    path = f"{folder}/{name}"
    if not _has_digits(name, SUFFIX):
        raise FatalError(
            f"{path} is not a file of the journal. Move it out of the journal's directory and start again.",
            ErrorCode.KAFKA_STORAGE_ERROR,
        )
    file = storage.open(path)
    try:
        head = file.read_at(FILE_HEADER_BYTES, 0)
    finally:
        file.close()
    base = int(name.removesuffix(SUFFIX))
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
        offset = end = 0
        for count, found in enumerate(self.files):
            if found.first_sequence != self.sequence or found.base != self.position:
                self._cut_tail(count, offset, end)
                return
            file = self._storage.open(found.path)
            try:
                end = file.size()
                offset = FILE_HEADER_BYTES
                wanted = ENTRY_HEADER_BYTES
                mark = ANY_MARK
                while wanted and wanted <= end - offset:
                    data = file.read_at(max(wanted, min(read_bytes, end - offset)), offset)
                    if len(data) < wanted:
                        break
                    entries, size, wanted = read_entries(data, self.sequence, self.position, mark)
                    offset += size
                    if entries:
                        self.sequence += len(entries)
                        self.position = entries[-1].end_position
                        mark = entries[0].mark
                        yield entries
            finally:
                file.close()
        if offset < end:
            self._cut_tail(len(self.files), offset, end)

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

    def _cut_tail(self, count: int, offset: int, end: int) -> None:
        """Drop what follows the first `count` files, and `offset` in the last of them, which has `end` bytes.

        Once it is sure that nobody was told it is durable. Raises `SemelError`.
        """
        is_torn = False
        bad = self._bad_place(count, offset, end)
        if offset < end:
            is_torn = self._check_unacknowledged(bad, self.files[count - 1].path, offset)
            if not is_torn and count < len(self.files) and self.files[count].first_sequence < 0:
                bad = self._bad_place(count, end, end)  # the file before ends where it ought to, for all that is known
        for later in self.files[count:]:
            self._check_unacknowledged(bad, later.path, 0)
        for file in reversed(self.files[count:]):
            # Newest first, each for good before the next: what is left never has a gap.
            self._storage.remove(file.path)
            self._storage.sync_folder(self._folder)
        del self.files[count:]
        if offset < end:
            path = self.files[-1].path
            if is_torn:
                _log.warning(
                    "the journal ends at byte %d of %s: a crash tore what followed",
                    offset, path, extra={UNSYNCED: True},
                )  # fmt: skip
            handle = self._storage.open(path)
            try:
                handle.truncate(offset)
                handle.sync()
            finally:
                handle.close()

    def _end(self) -> int:
        """Return the highest position that the files have place for."""
        return max(found.base + self._size(found.path) - FILE_HEADER_BYTES for found in self.files)

    def _size(self, path: str) -> int:
        file = self._storage.open(path)
        try:
            return file.size()
        finally:
            file.close()

    def _bad_place(self, count: int, offset: int, end: int) -> str:
        """Name the place where the next entry ought to be."""
        if offset < end:
            return f"{self.files[count - 1].path} is damaged at byte {offset}"
        return f"{self.files[count].path} is damaged at byte 0"

    def _check_unacknowledged(self, bad: str, path: str, begin: int) -> bool:
        """Say whether a file has, from `begin` on, entries that follow the last one that was read. Raises `SemelError`
        where one says that what ought to be there had been durable.
        """
        is_torn = False
        end = self._end()
        last = self.sequence + (end - self.position) // ENTRY_HEADER_BYTES
        file = self._storage.open(path)
        try:
            for head in find_entry_headers(file, begin, self.sequence):
                if head.sequence > last or head.durable_position > end:
                    continue  # there is no place for it in the files: a client has written it, and guessed the mark
                if head.durable_position > self.position:
                    raise FatalError(
                        f"{bad}: it held records that were acknowledged, and {path} has later ones. Restore the file "
                        f"from a backup. To continue without the records, move the directory {self._folder} away and "
                        "start again: the logs keep all that had been flushed.",
                        ErrorCode.KAFKA_STORAGE_ERROR,
                    )
                is_torn = True
        finally:
            file.close()
        return is_torn


class JournalLook(JournalRecovery):
    """Reads a journal to its end before it is recovered, and leaves a torn tail where it is."""

    def _cut_tail(self, count: int, offset: int, end: int) -> None:
        """The recovery does that."""


class JournalReading(JournalRecovery):
    """Reads a journal that is being written, up to a durable position, and changes nothing."""

    def _cut_tail(self, count: int, offset: int, end: int) -> None:
        bad = self._bad_place(count, offset, end)
        raise FatalError(f"{bad}, though it was written and synced by this run", ErrorCode.KAFKA_STORAGE_ERROR)
