"""A file system in memory that can lose power, tear writes, fill up and fail, all from one seed.

It keeps what a program sees apart from what a disk would still hold after a power cut. Bytes become durable by
`StorageFile.sync`, names by `sync_folder`; everything else may survive, vanish, or survive in parts (whole pages,
in any order, a file longer than the bytes that reached it). A process kill (`crash(power=False)`) keeps all writes.
It is stricter than common file systems: syncing a new file does not save its name.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from semel.runtime.simulated_disk import FileNode, FolderNode, SimulatedDisk, parts_of
from semel.runtime.storage import Buffer, StorageFile, StorageLock

_UNLIMITED: Final = 1 << 62


class SimulatedCrash(BaseException):
    """The simulated machine stopped here. Not an `Exception`: no error handling may survive it, as in a real crash."""


@dataclass(slots=True)
class _Fault:
    operation: str
    error: Exception
    path_part: str
    remaining: int


class SimulatedFile:
    """An open simulated file. After a crash it only raises."""

    __slots__ = ("_closed", "_generation", "_node", "_storage", "path")

    def __init__(self, storage: SimulatedStorage, path: str, node: FileNode, generation: int) -> None:
        self.path = path
        self._storage = storage
        self._node = node
        self._generation = generation
        self._closed = False

    def _usable(self) -> None:
        self._storage._check_alive()
        if self._generation != self._storage.generation:
            raise SimulatedCrash(f"{self.path} was opened before the crash")
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", self.path)

    def append(self, buffers: Sequence[Buffer]) -> int:
        with self._storage._operation("append", self.path, self._usable):
            begin = len(self._node.live)
            self._write(b"".join(buffers), begin, "append")
            return begin

    def write_at(self, data: Buffer, position: int) -> None:
        with self._storage._operation("write_at", self.path, self._usable):
            self._write(bytes(data), position, "write_at")

    def write_many_at(self, buffers: Sequence[Buffer], position: int) -> None:
        # To planned faults the same as `append`: a write of what somebody appends.
        with self._storage._operation("append", self.path, self._usable):
            self._write(b"".join(buffers), position, "append")

    def _write(self, data: bytes, position: int, operation: str) -> None:
        storage = self._storage
        fault = storage._take_fault(operation, self.path)
        crash = storage._reaches_crash_point()
        growth = max(0, position + len(data) - len(self._node.live))
        room = storage._available()
        full = growth > room
        if fault is not None or crash:
            data = data[: storage.random.randint(0, len(data))]
        elif full:
            data = data[: max(0, len(data) - (growth - room))]
        if data:
            self._node.write(data, position)
        if crash:
            storage._die(f"{operation} {self.path}")
        if fault is not None:
            raise fault
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def read_at(self, size: int, position: int) -> bytes:
        with self._storage._operation("read_at", self.path, self._usable, mutates=False):
            return bytes(self._node.live[position : position + size])

    def map(self, size: int) -> memoryview:
        """Return a copy of the first `size` bytes: unlike a real map it does not show later writes."""
        with self._storage._operation("map", self.path, self._usable, mutates=False):
            if size > len(self._node.live):
                raise ValueError(f"{self.path} has {len(self._node.live)} bytes, so {size} cannot be mapped")
            return memoryview(bytes(self._node.live[:size]))

    def size(self) -> int:
        self._usable()
        return len(self._node.live)

    def truncate(self, size: int) -> None:
        with self._storage._operation("truncate", self.path, self._usable):
            self._storage._mutation("truncate", self.path)
            self._node.truncate(size)

    def sync(self) -> None:
        with self._storage._operation("sync", self.path, self._usable):
            storage = self._storage
            fault = storage._take_fault("sync", self.path)
            if storage._reaches_crash_point():
                storage._die(f"sync {self.path}")
            if fault is not None:
                self._node.sync_failed()
                raise fault
            storage.sync_count += 1
            storage._disk.sync_file(self._node)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._closed = True


class SimulatedLock:
    __slots__ = ("_generation", "_path", "_storage")

    def __init__(self, storage: SimulatedStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._generation = storage.generation

    def release(self) -> None:
        if self._generation == self._storage.generation:
            self._storage._locks.discard(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class SimulatedStorage:
    """A whole simulated disk. Thread-safe as the real one is, so syncs may run in an executor.

    operations counts the mutating operations since the last crash; `crash_at` counts from the same point.
    """

    def __init__(self, seed: int = 0, disk: SimulatedDisk | None = None) -> None:
        """`disk` holds it all, in place of an empty one."""
        self.random = random.Random(seed)  # noqa: S311 (repeatable)
        self.generation = 0
        self.operations = 0
        self.sync_count = 0
        self.capacity_bytes = _UNLIMITED
        self._disk = disk or SimulatedDisk(self.random)
        self.on_crash: Callable[[], None] | None = None
        """Called when a crash point is reached, before `SimulatedCrash` is raised there."""
        self._faults: list[_Fault] = []
        self._crash_point: int | None = None
        self._crash_of: tuple[str, int] | None = None
        """The part of a path whose first operation is waited for, and how many from there on are left."""
        self._dead = False
        self._locks: set[str] = set()
        self._mutex = threading.RLock()

    # --- Faults -------------------------------------------------------------------------------------------------------

    def fail_next(self, operation: str, error: Exception, *, path_part: str = "", times: int = 1) -> None:
        """Let the next `times` calls of an operation (a method's name) on paths with `path_part` in them fail."""
        self._faults.append(_Fault(operation, error, path_part, times))

    def fail_no_more(self) -> None:
        """Take back what `fail_next` planned and has not happened."""
        self._faults.clear()

    def crash_at(self, operation: int | None, of: str = "") -> None:
        """Raise `SimulatedCrash` at the n-th mutating operation from now (1 is the next), having done it in part.

        None takes that back.

        of: count from the first one whose path has this part, instead of from now
        """
        if operation is not None and operation < 1:
            raise ValueError(f"operations are counted from 1: {operation}")
        self._crash_of = None if operation is None or not of else (of, operation)
        self._crash_point = None if operation is None or of else self.operations + operation

    @property
    def crashed(self) -> bool:
        """Whether a crash point was reached and `crash` has not been called since."""
        return self._dead

    def crash(self, *, power: bool, torn: bool = True) -> None:
        """Stop the machine's processes (`power=False`) or the machine, and start it again with what is left.

        Every open file and lock becomes void. With `torn` False a power cut takes all that was not synced, and no
        chance is in it.
        """
        with self._mutex:
            self.generation += 1
            self.operations = 0
            self._dead = False
            self._crash_point = self._crash_of = None
            self._faults.clear()
            self._locks.clear()
            if power:
                self._disk.lose_power(torn=torn)

    def set_free_bytes(self, free_bytes: int | None) -> None:
        """Leave room for so many more bytes; None lifts the limit."""
        with self._mutex:
            self.capacity_bytes = _UNLIMITED if free_bytes is None else self._disk.used_bytes() + free_bytes

    def unsynced_bytes(self) -> int:
        """Return how many written bytes a power cut could take."""
        return self._disk.unsynced_bytes()

    def durable_bytes(self, path: str) -> bytes | None:
        """Return what a file is sure to have after a power cut, None where its name may be gone."""
        return self._disk.durable_bytes(path)

    def corrupt(self, path: str, position: int, data: bytes) -> None:
        """Change bytes on the disk behind everybody's back, as a failing disk does."""
        node = self._disk.file(path)
        node.live[position : position + len(data)] = data
        node.durable[position : position + len(data)] = data

    # --- Storage ------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        with self._operation("open", path):
            folder, name = self._disk.parent(path)
            node = folder.live.get(name)
            if isinstance(node, FolderNode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if node is None:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                self._mutation("open", path)
                node = FileNode()
                self._disk.change_names([(folder, name, node)])
            else:
                fault = self._take_fault("open", path)
                if fault is not None:
                    raise fault
            return SimulatedFile(self, path, node, self.generation)

    def create(self, path: str) -> StorageFile:
        file = self.open(path, create=True)
        file.truncate(0)
        return file

    def exists(self, path: str) -> bool:
        with self._operation("exists", path, mutates=False):
            return self._disk.find(path) is not None

    def list_folder(self, path: str) -> list[str]:
        with self._operation("list_folder", path, mutates=False):
            return sorted(self._disk.folder(path).live)

    def make_folder(self, path: str) -> None:
        with self._operation("make_folder", path):
            folder = self._disk.root
            for name in parts_of(path):
                node = folder.live.get(name)
                if node is None:
                    self._mutation("make_folder", path)
                    node = FolderNode()
                    self._disk.change_names([(folder, name, node)])
                elif isinstance(node, FileNode):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
                folder = node

    def rename(self, source: str, target: str) -> None:
        with self._operation("rename", source):
            from_folder, from_name = self._disk.parent(source)
            node = from_folder.live.get(from_name)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
            to_folder, to_name = self._disk.parent(target)
            replaced = to_folder.live.get(to_name)
            if isinstance(replaced, FolderNode) and (isinstance(node, FileNode) or replaced.live):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
            self._mutation("rename", source)
            self._disk.change_names([(from_folder, from_name, None), (to_folder, to_name, node)])

    def remove(self, path: str) -> None:
        with self._operation("remove", path):
            folder, name = self._disk.parent(path)
            node = folder.live.get(name)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if isinstance(node, FolderNode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            self._mutation("remove", path)
            self._disk.change_names([(folder, name, None)])

    def remove_tree(self, path: str) -> None:
        """Remove a folder one entry at a time, as the real one does, so that a crash can leave a part of it."""
        with self._operation("remove_tree", path):
            folder, name = self._disk.parent(path)
            node = folder.live.get(name)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if isinstance(node, FileNode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            self._remove_entries(node, path)
            self._mutation("remove_tree", path)
            self._disk.change_names([(folder, name, None)])

    def sync_folder(self, path: str) -> None:
        with self._operation("sync_folder", path):
            folder = self._disk.folder(path)
            self._mutation("sync_folder", path)
            self.sync_count += 1
            self._disk.sync_names(folder)

    def free_bytes(self, path: str) -> int:
        with self._operation("free_bytes", path, mutates=False):
            return max(0, self._available())

    def total_bytes(self, path: str) -> int:
        with self._operation("total_bytes", path, mutates=False):
            return self.capacity_bytes

    def lock(self, path: str) -> StorageLock:
        with self._operation("lock", path):
            key = posixpath.normpath(path)
            if key in self._locks:
                raise BlockingIOError(errno.EAGAIN, "held by another process of the simulation", path)
            folder, name = self._disk.parent(path)
            if name not in folder.live:
                self._mutation("lock", path)
                self._disk.change_names([(folder, name, FileNode())])
            self._locks.add(key)
            return SimulatedLock(self, key)

    # --- Inside -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _operation(
        self, operation: str, path: str, usable: Callable[[], None] | None = None, *, mutates: bool = True
    ) -> Iterator[None]:
        with self._mutex:
            if usable is None:
                self._check_alive()
            else:
                usable()
            if mutates and self._crash_of is not None and self._crash_of[0] in path:
                self._crash_point = self.operations + self._crash_of[1]
                self._crash_of = None
            if not mutates:
                fault = self._take_fault(operation, path)
                if fault is not None:
                    raise fault
            yield

    def _check_alive(self) -> None:
        if self._dead:
            raise SimulatedCrash("the simulated machine is down")

    def _die(self, where: str) -> None:
        self._dead = True
        if self.on_crash is not None:
            self.on_crash()
        raise SimulatedCrash(where)

    def _mutation(self, operation: str, path: str) -> None:
        """Count a change of names or size that happens wholly or not at all, and fail or crash where told to."""
        fault = self._take_fault(operation, path)
        if fault is not None:
            raise fault
        if self._reaches_crash_point():
            self._die(f"{operation} {path}")

    def _reaches_crash_point(self) -> bool:
        self.operations += 1
        return self._crash_point is not None and self.operations >= self._crash_point

    def _take_fault(self, operation: str, path: str) -> Exception | None:
        for fault in self._faults:
            if fault.operation == operation and fault.path_part in path:
                fault.remaining -= 1
                if fault.remaining == 0:
                    self._faults.remove(fault)
                return fault.error
        return None

    def _remove_entries(self, folder: FolderNode, path: str) -> None:
        for name, node in list(folder.live.items()):
            if isinstance(node, FolderNode):
                self._remove_entries(node, f"{path}/{name}")
            self._mutation("remove_tree", path)
            self._disk.change_names([(folder, name, None)])

    def _available(self) -> int:
        if self.capacity_bytes == _UNLIMITED:
            return _UNLIMITED
        return self.capacity_bytes - self._disk.used_bytes()
