"""The seam to the disk: everything that touches files goes through it, so that tests can lose power and tear writes."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from semel.protocol.randomness import new_token

Buffer: TypeAlias = bytes | bytearray | memoryview


class ReadableFile(Protocol):
    """What has bytes at positions."""

    def read_at(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end."""
        ...

    def size(self) -> int: ...


class StorageFile(Protocol):
    """An open file. Reads and writes are at explicit positions or at the end; there is no shared cursor."""

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all buffers at the end, as one vectored write where possible, and return the position they began at.

        Raises `OSError`. After an error the size may have grown by a part of the buffers; the caller truncates.
        """
        ...

    def write_at(self, data: Buffer, position: int) -> None: ...

    def write_many_at(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers one behind the other from `position` on, as one vectored write where possible.

        What is there is written over. Raises `OSError`, after which a part of the buffers may be written.
        """
        ...

    def read_at(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        ...

    def map(self, size: int) -> memoryview:
        """Return a read-only view of the first `size` bytes (memory-mapped where the storage can)."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make everything written so far survive a power cut (fdatasync)."""
        ...

    def fileno(self) -> int:
        """Return the descriptor for `sendfile`, or -1 where there is none."""
        ...

    def close(self) -> None: ...


class FileRange:
    """Bytes `position` to `position + size` of a file, which can be sent from the page cache."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: StorageFile, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"FileRange(position={self.position}, size={self.size})"

    def read(self) -> bytes:
        """Return the bytes. Raises `OSError` where the file has become shorter than the range."""
        data = self.file.read_at(self.size, self.position)
        if len(data) != self.size:
            raise OSError(f"a range of {self.size} bytes at {self.position} has only {len(data)} bytes left")
        return data


class StorageLock(Protocol):
    """Holds a folder against other processes until released."""

    def release(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Storage(Protocol):
    """A file system as far as Semel needs one. Paths are text, relative or absolute, with `/`."""

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        """Open for reading and writing. Raises `FileNotFoundError` without `create`."""
        ...

    def create(self, path: str) -> StorageFile:
        """Make an empty file. What is by that name is replaced, a link too: it is not followed.

        Raises `IsADirectoryError`.
        """
        ...

    def exists(self, path: str) -> bool:
        """Say whether anything is by that name, also a link that leads nowhere."""
        ...

    def list_folder(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        ...

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents where they are missing."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder, replacing a file atomically. Survives a power cut only after `sync_folder`."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_folder(self, path: str) -> None:
        """Make creations, renames and removals in a folder survive a power cut."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int:
        """Return the size of the file system that holds `path`."""
        ...

    def lock(self, path: str) -> StorageLock:
        """Lock `path` against every other process: a file, which is made where it is missing, or a folder.

        Raises `BlockingIOError` where it is held. A folder's lock outlives the removal of all files in it.
        """
        ...


def read_whole(storage: Storage, path: str, *, size_bytes_max: int) -> bytes:
    """Return a small file's bytes. Raises `ValueError` where it is larger than `size_bytes_max`."""
    file = storage.open(path)
    try:
        size = file.size()
        if size > size_bytes_max:
            raise ValueError(f"{path} has {size} bytes, more than the {size_bytes_max} that such a file may have")
        return file.read_at(size, 0)
    finally:
        file.close()


def write_whole(storage: Storage, path: str, data: Buffer) -> None:
    """Replace a small file atomically and durably: write a sibling, sync it, rename it over, sync the folder."""
    temporary = f"{path}.tmp"
    try:
        file = storage.create(temporary)
    except IsADirectoryError:  # not ours to remove
        temporary = f"{path}.{new_token(4)}.tmp"
        file = storage.create(temporary)
    try:
        file.append([data])
        file.sync()
    finally:
        file.close()
    storage.rename(temporary, path)
    storage.sync_folder(path.rpartition("/")[0] or ".")


def make_lasting_folder(storage: Storage, path: str) -> None:
    """Create a folder and its parents where they are missing, so that a power cut leaves them."""
    missing = []
    while path and not storage.exists(path):
        missing.append(path)
        path = path.rpartition("/")[0]
    if missing:
        storage.make_folder(missing[0])
        for made in reversed(missing):
            storage.sync_folder(made.rpartition("/")[0] or ("/" if made.startswith("/") else "."))
