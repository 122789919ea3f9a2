"""A storage that shows a folder as it is, and keeps what is written to it apart: the folder itself is never changed.

So a start can be tried on a copy that is not made. Names and sizes are those of one moment, so that a node which is
running meanwhile changes nothing under the reader's feet. Written pages go to a scratch file without a name.
"""

from __future__ import annotations

import errno
import os
import posixpath
import tempfile
from collections.abc import Iterator, Sequence
from typing import Final, Self

from semel.runtime.regular_files import NotARegularFileError, open_regular, special_kind
from semel.runtime.storage import Buffer, StorageFile, StorageLock

PAGE_BYTES: Final = 16 << 10
_DEPTH: Final = 3
"""A data folder has folders of logs, and these have files; what is kept of logs is one folder further down."""
_READ_FLAGS: Final = os.O_RDONLY
_NO_ACCESS_TIME: Final = getattr(os, "O_NOATIME", 0)


def open_to_read(path: str) -> int:
    """Return a descriptor that leaves the file's times alone, where that is allowed. Raises `OSError`."""
    try:
        return open_regular(path, _READ_FLAGS | _NO_ACCESS_TIME)[0]
    except PermissionError:
        return open_regular(path, _READ_FLAGS)[0]


class _File:
    """A file's content: `source`, of which `shown` bytes count, under the pages that were written."""

    __slots__ = ("pages", "shown", "size", "source", "source_size")

    def __init__(self, source: str | None, size: int) -> None:
        self.source = source
        self.source_size = size
        self.shown = size
        self.size = size
        self.pages: dict[int, int] = {}

    @property
    def is_changed(self) -> bool:
        return bool(self.pages) or self.size != self.source_size or self.shown != self.source_size


class _Special:
    """A pipe, a socket or a device: nothing that can be read as a file. `kind` says which."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind


class _Folder(dict[str, "_File | _Folder | _Special"]):
    """Names and what they stand for."""


class OverlayFile:
    """An open file of an `OverlayStorage`."""

    __slots__ = ("_closed", "_descriptor", "_file", "_storage", "path")

    def __init__(self, storage: OverlayStorage, path: str, file: _File) -> None:
        self.path = path
        self._storage = storage
        self._file = file
        self._descriptor = -1
        self._closed = False

    def append(self, buffers: Sequence[Buffer]) -> int:
        begin = self._file.size
        self.write_many_at(buffers, begin)
        return begin

    def write_many_at(self, buffers: Sequence[Buffer], position: int) -> None:
        for buffer in buffers:
            self.write_at(buffer, position)
            position += memoryview(buffer).nbytes

    def write_at(self, data: Buffer, position: int) -> None:
        view = memoryview(data).cast("B")
        file = self._file
        at = 0
        while at < len(view):
            number, skip = divmod(position + at, PAGE_BYTES)
            take = min(PAGE_BYTES - skip, len(view) - at)
            slot = file.pages.get(number)
            if slot is None:
                below = self.read_at(PAGE_BYTES, number * PAGE_BYTES)
                slot = file.pages[number] = self._storage.new_slot()
                self._storage.write_scratch(below.ljust(PAGE_BYTES, b"\0"), slot * PAGE_BYTES)
            self._storage.write_scratch(view[at : at + take], slot * PAGE_BYTES + skip)
            at += take
        file.size = max(file.size, position + len(view))

    def read_at(self, size: int, position: int) -> bytes:
        file = self._file
        size = max(0, min(size, file.size - position))
        if not file.pages and position + size <= file.shown:
            return self._read_source(size, position)
        parts = []
        end = position + size
        while position < end:
            number, skip = divmod(position, PAGE_BYTES)
            slot = file.pages.get(number)
            if slot is not None:
                take = min(PAGE_BYTES - skip, end - position)
                parts.append(self._storage.read_scratch(take, slot * PAGE_BYTES + skip))
            else:
                number += 1
                while number * PAGE_BYTES < end and number not in file.pages:
                    number += 1
                take = min(number * PAGE_BYTES, end) - position
                parts.append(self._read_source(min(take, max(0, file.shown - position)), position).ljust(take, b"\0"))
            position += take
        return b"".join(parts)

    def _read_source(self, size: int, position: int) -> bytes:
        if size <= 0 or self._file.source is None:
            return b""
        if self._descriptor < 0:
            if self._closed:
                raise OSError(errno.EBADF, "the file is closed", self.path)
            self._descriptor = open_to_read(self._file.source)
        data = os.pread(self._descriptor, size, position)
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), position + len(data))
            if not more:
                # Somebody has cut it since its size was taken.
                return data.ljust(size, b"\0")
            data += more
        return data

    def map(self, size: int) -> memoryview:
        """Return a copy: a real map of a file that a running node cuts would be a fault of memory."""
        if size > self._file.size:
            raise ValueError(f"{self.path} has {self._file.size} bytes, so {size} cannot be mapped")
        return memoryview(self.read_at(size, 0))

    def size(self) -> int:
        return self._file.size

    def truncate(self, size: int) -> None:
        file = self._file
        if size < file.size:
            last = size // PAGE_BYTES
            for number in [each for each in file.pages if each > last]:
                del file.pages[number]
            slot = file.pages.get(last)
            if slot is not None:
                skip = size - last * PAGE_BYTES
                self._storage.write_scratch(bytes(PAGE_BYTES - skip), slot * PAGE_BYTES + skip)
            file.shown = min(file.shown, size)
        file.size = size

    def sync(self) -> None:
        """Nothing here outlives the process."""

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._closed = True
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class _NoLock:
    """The folder is only looked at, so nobody need be kept away."""

    def release(self) -> None:
        """There is nothing to give back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class OverlayStorage:
    """The folder `root` as it is now. A `Storage` for paths in it."""

    def __init__(self, root: str, *, depth: int = _DEPTH) -> None:
        """Raises `OSError` where there is no such folder."""
        self.root = posixpath.normpath(root)
        self._tree = _read_folder(self.root, depth)
        self._scratch = tempfile.TemporaryFile(prefix="semel-dry-run-")  # noqa: SIM115
        self._slots = 0

    def close(self) -> None:
        """Give the scratch file back."""
        self._scratch.close()

    # --- What was written ---------------------------------------------------------------------------------------------

    def new_slot(self) -> int:
        self._slots += 1
        return self._slots - 1

    def write_scratch(self, data: Buffer, position: int) -> None:
        os.pwrite(self._scratch.fileno(), data, position)

    def read_scratch(self, size: int, position: int) -> bytes:
        return os.pread(self._scratch.fileno(), size, position)

    def is_changed(self, path: str) -> bool:
        """Say whether a file that is there is not what it is on the disk; one that was moved there is not."""
        node = self._find(path)
        return isinstance(node, _File) and (node.is_changed or node.source != self._real(path))

    def files(self) -> Iterator[str]:
        """Yield the paths of all files."""
        yield from _paths(self._tree, self.root)

    # --- Storage ------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        folder, name = self._parent(path)
        node = folder.get(name)
        if isinstance(node, _Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if isinstance(node, _Special):
            raise NotARegularFileError(node.kind, path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = folder[name] = _File(None, 0)
        return OverlayFile(self, path, node)

    def create(self, path: str) -> StorageFile:
        folder, name = self._parent(path)
        if isinstance(folder.get(name), _Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        folder.pop(name, None)
        return self.open(path, create=True)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_folder(self, path: str) -> bool:
        return isinstance(self._find(path), _Folder)

    def special_kind(self, path: str) -> str:
        """Say what is there if it is a pipe, a socket or a device; else nothing."""
        node = self._find(path)
        return node.kind if isinstance(node, _Special) else ""

    def list_folder(self, path: str) -> list[str]:
        return sorted(self._folder(path))

    def make_folder(self, path: str) -> None:
        node = self._tree
        for name in self._names(path):
            child = node.setdefault(name, _Folder())
            if not isinstance(child, _Folder):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            node = child

    def rename(self, source: str, target: str) -> None:
        folder, name = self._parent(source)
        if name not in folder:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        to_folder, to_name = self._parent(target)
        to_folder[to_name] = folder.pop(name)

    def remove(self, path: str) -> None:
        folder, name = self._parent(path)
        if name not in folder:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(folder[name], _Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        del folder[name]

    def remove_tree(self, path: str) -> None:
        folder, name = self._parent(path)
        self._folder(path)
        del folder[name]

    def sync_folder(self, path: str) -> None:
        """Nothing here outlives the process."""

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        status = os.statvfs(self.root)
        return status.f_blocks * status.f_frsize

    def lock(self, path: str) -> StorageLock:
        node = self._find(path)
        if isinstance(node, _Special):
            raise NotARegularFileError(node.kind, path)
        return _NoLock()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _real(self, path: str) -> str:
        return "/".join([self.root, *self._names(path)])

    def _names(self, path: str) -> list[str]:
        normal = posixpath.normpath(path)
        if normal == self.root:
            return []
        prefix = "" if self.root == "." else self.root.rstrip("/") + "/"
        if not normal.startswith(prefix) or normal[len(prefix) :].split("/", 1)[0] == "..":
            raise FileNotFoundError(errno.ENOENT, f"not in {self.root}", path)
        return normal[len(prefix) :].split("/")

    def _find(self, path: str) -> _File | _Folder | _Special | None:
        node: _File | _Folder | _Special | None = self._tree
        for name in self._names(path):
            if not isinstance(node, _Folder):
                return None
            node = node.get(name)
        return node

    def _folder(self, path: str) -> _Folder:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not isinstance(node, _Folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def _parent(self, path: str) -> tuple[_Folder, str]:
        names = self._names(path)
        if not names:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return self._folder("/".join([self.root, *names[:-1]])), names[-1]


def _read_folder(path: str, depth: int) -> _Folder:
    folder = _Folder()
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                if entry.is_dir():
                    folder[entry.name] = _read_folder(entry.path, depth - 1) if depth > 1 else _Folder()
                elif entry.is_file():
                    folder[entry.name] = _File("/".join([path, entry.name]), entry.stat().st_size)
                elif kind := special_kind(entry.path):
                    folder[entry.name] = _Special(kind)
            except FileNotFoundError:
                continue  # a running node has removed it
            except OSError:
                kind = special_kind(entry.path)
                if not kind:
                    raise
                folder[entry.name] = _Special(kind)  # a link to itself
    return folder


def _paths(folder: _Folder, path: str) -> Iterator[str]:
    for name, node in sorted(folder.items()):
        below = f"{path}/{name}"
        if isinstance(node, _Folder):
            yield from _paths(node, below)
        elif isinstance(node, _File):
            yield below
