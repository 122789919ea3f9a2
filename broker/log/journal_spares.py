"""Files that the journal has finished with, kept to be written over.

A sync of a file that grows also brings the file system's own records to the disk, and its pages are new to the page
cache: writing over a file that is there takes half the time. So what the logs no longer need of the journal is not
removed but renamed to a spare, as far as there are not too many, and a new file of the journal is begun over one.

A spare keeps its old header and entries until it is written over, and some of them behind that. Nothing of it is ever
taken for an entry, or for a sign that one is missing (D1):

- Nothing is read from a spare. A start removes those of the run before, whose sequences may be higher than its own.
- A file has its name as a spare for good (`sync_folder`) before anything is written over it: after a power cut no file
  is found under its old name with new content. Under its new name it may have the old header: that has another position
  than the name, and the file holds nothing then.
- Only files that this run has begun become spares. So every entry in one has a lower sequence than the next one that is
  written, and the durable position in it lies before every file that is still in use.
- What clients put into payloads may look like an entry that comes next. It lacks the mark of the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress

from semel.broker.log.journal_recovery import SPARE_SUFFIX, SUFFIX, JournalFile, find_spares
from semel.runtime.storage import Storage


class SpareFiles:
    """The spares of one journal. `retire` and `remove` may run in another thread than the rest."""

    def __init__(self, storage: Storage, folder: str, count_max: int, file_bytes: int) -> None:
        """count_max:  so many are kept
        file_bytes: and none that is larger
        """
        self._storage = storage
        self._folder = folder
        self._count_max = count_max
        self._file_bytes = file_bytes
        self._paths: deque[str] = deque()

    def remove_former(self) -> None:
        """Remove what an earlier run has left. Raises `OSError`."""
        former = find_spares(self._storage, self._folder)
        for path in former:
            self._storage.remove(path)
        if former:
            self._storage.sync_folder(self._folder)

    def retire(self, files: Sequence[JournalFile], *, keep: bool) -> None:
        """Turn files of the journal into spares, where `keep` and as far as there is place; remove the others.

        Oldest first, each for good before the next: a power cut must not leave a gap. Raises `OSError`.
        """
        for file in files:
            if keep and file.is_own and file.size_bytes <= self._file_bytes and len(self._paths) < self._count_max:
                spare = file.path.removesuffix(SUFFIX) + SPARE_SUFFIX
                self._storage.rename(file.path, spare)
                self._storage.sync_folder(self._folder)
                self._paths.append(spare)
            else:
                self.remove([file])

    def remove(self, files: Iterable[JournalFile]) -> None:
        """Remove files of the journal, in the order of `retire`. Raises `OSError`."""
        for file in files:
            self._storage.remove(file.path)
            self._storage.sync_folder(self._folder)

    def take(self, path: str) -> bool:
        """Give a spare the name `path`, to be written over. Returns whether there was one. Raises `OSError`."""
        try:
            spare = self._paths.popleft()
        except IndexError:
            return False
        self._storage.rename(spare, path)
        return True

    def drop_one(self) -> bool:
        """Remove a spare, because its room is needed. Returns whether that made any.

        One that can't be removed is left to the next start.
        """
        while self._paths:
            with suppress(IndexError, OSError):
                self._storage.remove(self._paths.pop())
                return True
        return False

    def drop(self) -> None:
        """Remove all spares, for good: after a clean stop a start finds nothing to do."""
        if not self._paths:
            return
        while self.drop_one():
            pass
        with suppress(OSError):
            self._storage.sync_folder(self._folder)
