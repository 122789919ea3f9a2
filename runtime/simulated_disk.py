"""What a simulated disk holds: the files and folders that programs see, and what a power cut would leave of them.

Bytes become durable by a file's sync, names by a folder's. Everything else may survive, vanish, or survive in parts
(whole pages, in any order, a file longer than the bytes that reached it).
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

_PAGE: Final = 4096


@dataclass(slots=True)
class _Change:
    """One write or truncation that no sync has made durable. `lost`: a sync failed over it, so none ever will."""

    position: int
    data: bytes | None
    """The bytes written, or None for a truncation to `position`."""
    lost: bool = False


@dataclass(slots=True)
class FileNode:
    """A file: what programs see, what is on the disk, and the changes between the two, in order."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Change] = field(default_factory=list)

    def write(self, data: bytes, position: int) -> None:
        self._change(_Change(position, data))

    def truncate(self, size: int) -> None:
        self._change(_Change(size, None))

    def _change(self, change: _Change) -> None:
        _apply(self.live, change)
        self.pending.append(change)

    def sync_failed(self) -> None:
        """The kernel marks pages clean after a failed write-back: no later sync will write them (fsyncgate)."""
        for change in self.pending:
            change.lost = True


@dataclass(slots=True)
class FolderNode:
    """A folder: the names that programs see, and those on the disk."""

    live: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)


Node: TypeAlias = FileNode | FolderNode


@dataclass(slots=True)
class NameChange:
    """A creation, removal or rename of names that no `sync_folder` has made durable: all its parts happen or none."""

    parts: list[tuple[FolderNode, str, Node | None]]


class SimulatedDisk:
    """A tree of files and folders. What a power cut takes of them is drawn from `chance`."""

    def __init__(self, chance: random.Random) -> None:
        self.root = FolderNode()
        self._random = chance
        self._names_pending: list[NameChange] = []

    def change_names(self, parts: list[tuple[FolderNode, str, Node | None]]) -> None:
        for folder, name, node in parts:
            if node is None:
                folder.live.pop(name, None)
            else:
                folder.live[name] = node
        self._names_pending.append(NameChange(parts))

    def sync_names(self, folder: FolderNode) -> None:
        """Make the names in a folder durable, and in other folders what changed together with them."""
        rest = []
        for change in self._names_pending:
            if any(part[0] is folder for part in change.parts):
                self.save_names(change)
            else:
                rest.append(change)
        self._names_pending = rest

    def save_names(self, change: NameChange) -> None:
        """Make one change of names durable."""
        for folder, name, node in change.parts:
            if node is None:
                folder.durable.pop(name, None)
            else:
                folder.durable[name] = node

    def sync_file(self, node: FileNode) -> None:
        for change in node.pending:
            if not change.lost:
                _apply(node.durable, change)
                continue
            for piece in _pages(change):
                if self._random.random() < 0.5:
                    _apply(node.durable, piece)
        node.pending = []

    def lose_power(self, *, torn: bool = True) -> None:
        """Keep what is durable, and, where `torn`, whatever chance leaves of the rest; otherwise nothing of it."""
        for change in self._names_pending:
            if torn and self._random.random() < 0.5:
                self.save_names(change)
        self._names_pending.clear()
        self._restore_names(self.root)
        for node in self._files(self.root):
            if node.pending and torn:
                node.durable = self._torn(node)
            node.pending = []
            node.live = bytearray(node.durable)

    def _torn(self, node: FileNode) -> bytearray:
        """Return what a power cut may leave of a file: nothing new, all, a prefix, or pages in any order with holes."""
        way = self._random.randrange(4)
        content = bytearray(node.durable)
        if way == 0:
            return content
        if way == 1:
            for change in node.pending:
                if not change.lost:
                    _apply(content, change)
            return content
        pieces = [piece for change in node.pending for piece in _pages(change)]
        if way == 2:
            kept = self._random.randint(0, len(pieces))
            for piece in pieces[:kept]:
                _apply(content, piece)
            if kept < len(pieces) and pieces[kept].data:
                piece = pieces[kept]
                assert piece.data is not None
                _apply(content, _Change(piece.position, piece.data[: self._random.randint(1, len(piece.data))]))
            return content
        longest = len(content)
        for piece in pieces:
            if piece.data is not None:
                longest = max(longest, piece.position + len(piece.data))
            if self._random.random() < 0.6:
                _apply(content, piece)
        if len(content) < longest and self._random.random() < 0.5:
            # The new size reached the disk, the bytes did not: zeros, or whatever the blocks held before.
            missing = longest - len(content)
            content.extend(self._random.randbytes(missing) if self._random.random() < 0.3 else bytes(missing))
        return content

    def _restore_names(self, folder: FolderNode) -> None:
        folder.live = dict(folder.durable)
        for node in folder.live.values():
            if isinstance(node, FolderNode):
                self._restore_names(node)

    def _files(self, folder: FolderNode) -> Iterator[FileNode]:
        for node in folder.live.values():
            if isinstance(node, FolderNode):
                yield from self._files(node)
            else:
                yield node

    def used_bytes(self) -> int:
        return sum(len(node.live) for node in self._files(self.root))

    def unsynced_bytes(self) -> int:
        return sum(
            len(change.data) for node in self._files(self.root) for change in node.pending if change.data is not None
        )

    def find(self, path: str) -> Node | None:
        node: Node = self.root
        for name in parts_of(path):
            if not isinstance(node, FolderNode):
                return None
            found = node.live.get(name)
            if found is None:
                return None
            node = found
        return node

    def folder(self, path: str) -> FolderNode:
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(node, FileNode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def file(self, path: str) -> FileNode:
        node = self.find(path)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def durable_bytes(self, path: str) -> bytes | None:
        node: Node | None = self.root
        for name in parts_of(path):
            node = node.durable.get(name) if isinstance(node, FolderNode) else None
        return bytes(node.durable) if isinstance(node, FileNode) else None

    def parent(self, path: str) -> tuple[FolderNode, str]:
        parts = parts_of(path)
        if not parts:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return self.folder("/".join(parts[:-1])), parts[-1]


def parts_of(path: str) -> list[str]:
    return [part for part in posixpath.normpath("/" + path).split("/") if part]


def _pages(change: _Change) -> Iterator[_Change]:
    """Split a write where pages end: a disk writes pages whole, in any order."""
    if change.data is None:
        yield change
        return
    begin = 0
    while begin < len(change.data):
        position = change.position + begin
        end = min(len(change.data), begin + _PAGE - position % _PAGE)
        yield _Change(position, change.data[begin:end], change.lost)
        begin = end


def _apply(content: bytearray, change: _Change) -> None:
    if change.data is None:
        if change.position < len(content):
            del content[change.position :]
        else:
            content.extend(bytes(change.position - len(content)))
        return
    end = change.position + len(change.data)
    if end > len(content):
        content.extend(bytes(end - len(content)))
    content[change.position : end] = change.data
