"""A log's file of leader epochs (`leader-epoch-checkpoint`): written from any thread, never by an older state (R7)."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from semel.broker.log.checkpoints import write_epochs
from semel.runtime.storage import Storage


class EpochsFile:
    """The file, and how far what is in it has come. A flush and a new leader may write it at the same time."""

    __slots__ = ("_lock", "_path", "_storage", "version")

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._lock = threading.Lock()
        self.version = 0
        """The newest `LeaderEpochs.version` that is on the disk."""

    def write(self, entries: Sequence[tuple[int, int]], version: int) -> None:
        """Replace the file, durably, unless a newer state is in it. Raises `OSError`."""
        with self._lock:
            if version <= self.version:
                return
            write_epochs(self._storage, self._path, entries)
            self.version = version


class EpochsWrite:
    """The leader epochs as they were at one moment, to be written: `run` it anywhere."""

    __slots__ = ("_entries", "_file", "_version")

    def __init__(self, file: EpochsFile, entries: Sequence[tuple[int, int]], version: int) -> None:
        self._file = file
        self._entries = entries
        self._version = version

    @property
    def is_durable(self) -> bool:
        """Whether these epochs, or newer ones, are on the disk."""
        return self._file.version >= self._version

    def run(self) -> None:
        """Wait for the disk. Raises `OSError`."""
        self._file.write(self._entries, self._version)
