"""One process has a data directory: the lock that a node takes before it writes anything there."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from semel.broker.log.disk_errors import remedy
from semel.broker.logs.data_folder import NODE_LOCK_FILE
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.runtime.storage import Storage, StorageLock, make_lasting_folder, read_whole

_PID_BYTES_MAX: Final = 64


class DirectoryLock:
    """Of one data directory, which is made where it is missing."""

    def __init__(self, storage: Storage, data_dir: str) -> None:
        self._storage = storage
        self._data_dir = data_dir
        self._locks: list[StorageLock] = []

    def take(self) -> None:
        """Make the directory, and lock it. Raises `NodeStartError` where somebody else has it, or it can't be used."""
        try:
            make_lasting_folder(self._storage, self._data_dir)
            # The folder itself, too: somebody may delete the file under a running node.
            for path in (self._data_dir, f"{self._data_dir}/{NODE_LOCK_FILE}"):
                self._locks.append(self._storage.lock(path))
        except BlockingIOError:
            raise NodeStartError(
                f"the data directory {self._data_dir} is in use by {self._holder()}, or use another "
                "directory (--data-dir of `semel serve`, the path of semel.open()).",
                StartFailure.DATA_FOLDER,
            ) from None
        except OSError as error:
            raise NodeStartError(
                f"the data directory {self._data_dir} can't be used: {error.strerror or error}. Next step: "
                f"{remedy(error)}, or choose another directory (--data-dir of `semel serve`, the path of semel.open())",
                StartFailure.DATA_FOLDER,
            ) from error

    def _holder(self) -> str:
        """Say who has the directory, and the next step. Only the lock of the file in it tells who."""
        with suppress(OSError, ValueError):
            path = f"{self._data_dir}/{NODE_LOCK_FILE}"
            holder = int(read_whole(self._storage, path, size_bytes_max=_PID_BYTES_MAX))
            if holder == os.getpid():
                return "this process: it has it open already. Use what has it open, or close that first"
            return f"process {holder}. Stop that one, or close the log there"
        return "another process. Stop that one, or close the log there"

    def release(self) -> None:
        """Let others have it."""
        locks, self._locks = self._locks, []
        for lock in locks:
            lock.release()
