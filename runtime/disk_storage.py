"""`Storage` on the operating system's files."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import shutil
import sys
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from semel.runtime.regular_files import open_regular
from semel.runtime.storage import Buffer, StorageFile, StorageLock

_BUFFERS_A_CALL_MAX: Final = 1024
"""IOV_MAX on Linux and macOS: a vectored write takes no more buffers."""


def _sync_data(descriptor: int) -> None:
    """Bring a file's bytes, and the size needed to read them, to the disk itself."""
    if sys.platform == "darwin":
        # fsync on macOS stops at the drive's cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def raise_open_files_limit(wanted: int = 65536) -> int:
    """Let this process open up to `wanted` files, as far as its hard limit allows, and return how many it may.

    The soft limit is often 1,024, which is there for programs that use select(); a node wants its logs open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    limit = wanted if hard == unlimited else min(wanted, hard)
    if soft == unlimited or soft >= limit:
        return wanted if soft == unlimited else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


class DiskFile:
    """One open file. The end of the file is remembered, so at most one object may append to a path at a time."""

    __slots__ = ("_descriptor", "_end", "path")

    def __init__(self, path: str, descriptor: int, size: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._end = size

    def append(self, buffers: Sequence[Buffer]) -> int:
        begin = self._end
        self._write_parts(buffers, begin)
        return begin

    def write_many_at(self, buffers: Sequence[Buffer], position: int) -> None:
        self._write_parts(buffers, position)

    def _write_parts(self, buffers: Sequence[Buffer], position: int) -> None:
        try:
            if len(buffers) == 1:
                self._write_all(buffers[0], position)
            else:
                self._write_many(buffers, position)
        except OSError:
            self._end = os.fstat(self._descriptor).st_size
            raise

    def _write_all(self, data: Buffer, position: int) -> None:
        written = os.pwrite(self._descriptor, data, position)
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if written < size:
            rest = memoryview(data).cast("B")
            while written < size:
                written += os.pwrite(self._descriptor, rest[written:], position + written)
        self._end = max(self._end, position + size)

    def _write_many(self, buffers: Sequence[Buffer], position: int) -> None:
        for first in range(0, len(buffers), _BUFFERS_A_CALL_MAX):
            chunk = buffers[first : first + _BUFFERS_A_CALL_MAX]
            size = sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in chunk)
            written = os.pwritev(self._descriptor, chunk, position)
            if written < size:
                # A short write is how a full disk or a signal shows first; the next call names the error.
                skip = written
                for part in chunk:
                    view = memoryview(part).cast("B")
                    if skip < view.nbytes:
                        self._write_all(view[skip:], position + written)
                        written += view.nbytes - skip
                        skip = 0
                    else:
                        skip -= view.nbytes
            position += size
        self._end = max(self._end, position)

    def write_at(self, data: Buffer, position: int) -> None:
        try:
            self._write_all(data, position)
        except OSError:
            self._end = os.fstat(self._descriptor).st_size
            raise

    def read_at(self, size: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            data = os.pread(self._descriptor, size - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def map(self, size: int) -> memoryview:
        if size == 0:
            return memoryview(b"")
        if size > self._end:
            raise ValueError(f"{self.path} has {self._end} bytes, so {size} cannot be mapped")
        return memoryview(mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ))

    def size(self) -> int:
        return self._end

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._end = size

    def sync(self) -> None:
        try:
            _sync_data(self._descriptor)
        except OSError as error:
            error.filename = self.path  # which the system does not say of a descriptor
            raise

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class DiskLock:
    """A lock that the operating system drops when its process dies."""

    __slots__ = ("__weakref__", "_descriptor", "_names_holder", "_path")

    def __init__(self, path: str, descriptor: int, *, names_holder: bool) -> None:
        self._path = path
        self._descriptor = descriptor
        self._names_holder = names_holder
        _locks.add(self)

    def forget(self) -> None:
        """Close it in a forked child: the lock is the parent's, and would outlive it there."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            if self._names_holder:
                os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


_locks: weakref.WeakSet[DiskLock] = weakref.WeakSet()


def _forget_locks_in_child() -> None:
    for lock in list(_locks):
        lock.forget()


os.register_at_fork(after_in_child=_forget_locks_in_child)


class DiskStorage:
    """The machine's file system."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        descriptor, status = open_regular(path, os.O_RDWR | (os.O_CREAT if create else 0))
        return DiskFile(path, descriptor, status.st_size)

    def create(self, path: str) -> StorageFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o644)
        except FileExistsError:
            if os.path.isdir(path) and not os.path.islink(path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from None
            os.remove(path)
            descriptor = os.open(path, flags, 0o644)
        return DiskFile(path, descriptor, 0)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def list_folder(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_folder(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_folder(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def lock(self, path: str) -> StorageLock:
        """Lock `path` with flock. The error of a held lock of a file names the process that holds it."""
        if os.path.isdir(path):
            return _lock_folder(path)
        descriptor, _ = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            held_by = f"process {holder}" if holder else "another process"
            raise BlockingIOError(errno.EAGAIN, f"held by {held_by}", path) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        return DiskLock(path, descriptor, names_holder=True)


def _lock_folder(path: str) -> DiskLock:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BlockingIOError(errno.EAGAIN, "held by another process", path) from None
    except OSError:
        # Some network file systems lock no folders: then only the files in it are locked. Closing gives nothing up.
        pass
    return DiskLock(path, descriptor, names_holder=False)
