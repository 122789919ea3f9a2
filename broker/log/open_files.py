"""A bound on open files, and files that stay open exactly as long as somebody holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from semel.runtime.storage import Buffer, StorageFile

DEFAULT_OPEN_FILES_MAX: Final = 256


class FileOwner(Protocol):
    """Something that can do without its open file until it is needed again."""

    def release_file(self) -> None: ...


class OpenFiles:
    """Keeps at most `files_max` files of its owners open, by taking back those opened longest ago."""

    __slots__ = ("_owners", "files_max")

    def __init__(self, files_max: int = DEFAULT_OPEN_FILES_MAX) -> None:
        self.files_max = files_max
        self._owners: dict[int, FileOwner] = {}

    def opened(self, owner: FileOwner) -> None:
        """Note that `owner` has just opened a file."""
        self._owners[id(owner)] = owner
        while len(self._owners) > self.files_max:
            oldest = self._owners.pop(next(iter(self._owners)))
            if oldest is not owner:
                oldest.release_file()

    def closed(self, owner: FileOwner) -> None:
        """Note that `owner` has let its file go. Never having opened one is no error."""
        self._owners.pop(id(owner), None)

    def __len__(self) -> int:
        return len(self._owners)


class SharedFile:
    """A `StorageFile` that closes when the last reference to it goes.

    A fetch may still be sending from a segment that retention deletes or the bound above takes back; its descriptor
    must not be closed, and perhaps reused for another file, under it.
    """

    __slots__ = ("_file", "append", "read_at")

    def __init__(self, file: StorageFile) -> None:
        self._file = file
        # Bound here, because appends are the hottest call there is.
        self.append = file.append
        self.read_at = file.read_at

    def __del__(self) -> None:
        self._file.close()

    def write_at(self, data: Buffer, position: int) -> None:
        self._file.write_at(data, position)

    def write_many_at(self, buffers: Sequence[Buffer], position: int) -> None:
        self._file.write_many_at(buffers, position)

    def map(self, size: int) -> memoryview:
        return self._file.map(size)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        self._file.sync()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        """Close when nobody holds it any more: nothing to do now."""
