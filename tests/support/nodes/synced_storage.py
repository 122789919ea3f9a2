"""A `Storage` of which the real disk has what was synced, and nothing else: SIGKILL is a power cut to it.

What a program sees is in memory (`SimulatedStorage`). A file's bytes come to the real one when it is synced, names when
their directory is: creations, renames and removals. What has no name yet, or none any more, is in a directory aside.
"""

from __future__ import annotations

import os
import random
import shutil
from itertools import count

from semel.runtime.disk_storage import DiskStorage
from semel.runtime.simulated_disk import FileNode, FolderNode, NameChange, Node, SimulatedDisk, parts_of
from semel.runtime.simulated_storage import SimulatedStorage
from semel.runtime.storage import StorageLock

ASIDE = ".unnamed"


class SyncedDisk(SimulatedDisk):
    """Begins with what a directory has, and keeps what is durable there. Its parents have nothing else."""

    def __init__(self, folder: str) -> None:
        super().__init__(random.Random(0))
        self._aside = folder + ASIDE
        self._numbers = count()
        self._known: dict[int, Node] = {}
        """Keeps nodes alive: they are known by their `id`."""
        self._where: dict[int, tuple[FolderNode | None, str]] = {id(self.root): (None, "/")}
        """The directory of each node on the real disk and its name there; None: aside."""
        shutil.rmtree(self._aside, ignore_errors=True)
        os.makedirs(self._aside)
        above = self.root
        *parents, name = parts_of(folder)
        for parent in parents:
            above = self._found_folder(above, parent)
        if os.path.isdir(folder):
            self._load(self._found_folder(above, name))

    def _found_folder(self, above: FolderNode, name: str) -> FolderNode:
        node = FolderNode()
        self._found(above, name, node)
        return node

    def _found(self, above: FolderNode, name: str, node: Node) -> None:
        above.live[name] = above.durable[name] = node
        self._stands(node, above, name)

    def _load(self, folder: FolderNode) -> None:
        with os.scandir(self._path(folder)) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    self._load(self._found_folder(folder, entry.name))
                else:
                    with open(entry.path, "rb") as file:
                        content = file.read()
                    self._found(folder, entry.name, FileNode(bytearray(content), bytearray(content)))

    def sync_file(self, node: FileNode) -> None:
        changes = list(node.pending)
        is_new = id(node) not in self._where
        super().sync_file(node)
        if is_new:
            self._path(node)  # with all that is durable
            return
        descriptor = os.open(self._path(node), os.O_WRONLY)
        try:
            for change in changes:
                if change.data is None:
                    os.ftruncate(descriptor, change.position)
                else:
                    _write(descriptor, change.data, change.position)
        finally:
            os.close(descriptor)

    def save_names(self, change: NameChange) -> None:
        before = [folder.durable.get(name) for folder, name, _ in change.parts]
        super().save_names(change)
        for (folder, name, node), replaced in zip(change.parts, before, strict=True):
            if node is not None and node is not replaced:
                self._name(node, folder, name, replaced)
        for (folder, name, node), gone in zip(change.parts, before, strict=True):
            if node is None and gone is not None and self._is_at(gone, folder, name):
                self._set_aside(gone)

    def _name(self, node: Node, folder: FolderNode, name: str, replaced: Node | None) -> None:
        """Move a node to its name at once, as a rename does: whoever is killed meanwhile leaves either."""
        target, source = f"{self._path(folder)}/{name}", self._path(node)
        if replaced is not None:
            aside = self._next_aside()
            if isinstance(replaced, FileNode):
                os.link(target, f"{self._aside}/{aside}")
            else:
                os.mkdir(f"{self._aside}/{aside}")  # it is empty, or it could not be replaced
            self._stands(replaced, None, aside)
        os.replace(source, target)
        self._stands(node, folder, name)

    def _set_aside(self, node: Node) -> None:
        aside = self._next_aside()
        os.replace(self._path(node), f"{self._aside}/{aside}")
        self._stands(node, None, aside)

    def _path(self, node: Node) -> str:
        """Return where a node is on the real disk. It is made there, aside, if it was not yet."""
        where = self._where.get(id(node))
        if where is None:
            aside = self._next_aside()
            if isinstance(node, FileNode):
                with open(f"{self._aside}/{aside}", "xb") as file:
                    file.write(node.durable)
            else:
                os.mkdir(f"{self._aside}/{aside}")
            self._stands(node, None, aside)
            where = None, aside
        folder, name = where
        if folder is None:
            return name if name == "/" else f"{self._aside}/{name}"
        return f"{self._path(folder).rstrip('/')}/{name}"

    def _stands(self, node: Node, folder: FolderNode | None, name: str) -> None:
        self._known[id(node)] = node
        self._where[id(node)] = folder, name

    def _is_at(self, node: Node, folder: FolderNode, name: str) -> bool:
        there, called = self._where[id(node)]
        return there is folder and called == name

    def _next_aside(self) -> str:
        return str(next(self._numbers))


class SyncedStorage(SimulatedStorage):
    """The disk of one node, whose data directory is `folder`, an absolute path."""

    def __init__(self, folder: str) -> None:
        super().__init__(disk=SyncedDisk(folder))

    def lock(self, path: str) -> StorageLock:
        """Lock the real file: it is for other processes, and no power cut keeps it."""
        return DiskStorage().lock(path)


def _write(descriptor: int, data: bytes, position: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, position)
        rest, position = rest[written:], position + written
