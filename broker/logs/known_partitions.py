"""Which partitions this folder has had: what tells one whose directory vanished from one that was never made (D3).

A text file, a line for each partition: `+ <topic id> <partition>` once its directory is durable and before it takes a
record, `- <topic id> <partition>` before that is deleted, or `> <topic id> <partition>` where it is deleted because
other nodes have it now. A power cut may take the last lines: then nothing was in the partition that they name, or it is
deleted again.

The moved ones are noted because the metadata may lose that they were: then this node has to tell that it has nothing of
them, or it could be elected for what it once had (R10).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

from semel.protocol.ids import TopicId, format_topic_id, parse_topic_id
from semel.runtime.storage import Storage, read_whole, write_whole

_log = logging.getLogger("semel.logs")

KNOWN_FILE: Final = "known-partitions"
_HEAD: Final = "semel known partitions 1"
_BYTES_MAX: Final = 1 << 30
_LINES_SPARE: Final = 1_000
"""The file is written again at a start where it has more lines that are over than this, and than lines that count."""

PartitionKey: TypeAlias = tuple[TopicId, int]


class KnownPartitions:
    """The file, and what is in it. `add` and `remove` may be called in any thread."""

    __slots__ = ("_keys", "_lines", "_lock", "_moved", "_must_rewrite", "_path", "_storage", "was_there")

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._keys: set[PartitionKey] = set()
        self._moved: set[PartitionKey] = set()
        self._lines = 0
        self._must_rewrite = True
        self._lock = threading.Lock()
        self.was_there = False
        """Whether there was a file when it was read. Folders of earlier versions have none."""

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._keys

    def was_moved(self, key: PartitionKey) -> bool:
        """Whether this folder had the partition until it was moved to other nodes."""
        return key in self._moved

    def moved_of(self, topic_ids: Collection[TopicId]) -> list[PartitionKey]:
        """Return the partitions of topics that were moved away."""
        return [key for key in self._moved if key[0] in topic_ids]

    def read(self) -> None:
        """Read the file. Raises `OSError`."""
        self._keys.clear()
        self._moved.clear()
        self._lines = 0
        try:
            text = read_whole(self._storage, self._path, size_bytes_max=_BYTES_MAX).decode("utf-8", "replace")
        except FileNotFoundError:
            self.was_there, self._must_rewrite = False, True
            return
        head, *lines = text.split("\n")
        self.was_there = head == _HEAD
        if not self.was_there:
            _log.warning("%s is damaged: it is written again", self._path)
        # What follows the last line break was torn by a crash.
        for line in lines[:-1] if self.was_there else ():
            self._take(line)
        self._must_rewrite = not self.was_there or bool(lines[-1]) or self._has_spare_lines()

    def _take(self, line: str) -> None:
        self._lines += 1
        try:
            sign, topic_id, partition = line.split(" ")
            key = parse_topic_id(topic_id), int(partition)
        except ValueError:
            _log.warning("%s has a line that is none: %.100r", self._path, line)
            return
        self._keys.discard(key)
        self._moved.discard(key)
        if sign == "+":
            self._keys.add(key)
        elif sign == ">":
            self._moved.add(key)

    def _has_spare_lines(self) -> bool:
        count = len(self._keys) + len(self._moved)
        return self._lines - count > _LINES_SPARE + count

    def add(self, keys: Iterable[PartitionKey]) -> None:
        """Note partitions durably. Raises `OSError`; then they are not noted."""
        with self._lock:
            new = [key for key in keys if key not in self._keys]
            if not new and not self._must_rewrite:
                return
            if self._must_rewrite:
                self._rewrite({*self._keys, *new}, self._moved.difference(new))
            else:
                self._append("+", new, sync=True)
            self._keys.update(new)
            self._moved.difference_update(new)

    def remove(self, keys: Iterable[PartitionKey], *, durably: bool = False, were_moved: bool = False) -> None:
        """Forget partitions that were deleted.

        durably: wait for the disk. Else a crash may take that, and they are deleted again; or, where the metadata's
            database has lost the deletion by then, they count as vanished
        were_moved: other nodes have them, which is noted
        """
        gone = [key for key in keys if key in self._keys or (key in self._moved and not were_moved)]
        if not gone:
            return  # without the lock, behind which another thread may wait for the disk
        with self._lock:
            self._keys.difference_update(gone)
            if were_moved:
                self._moved.update(gone)
            else:
                self._moved.difference_update(gone)
            try:
                if not self._must_rewrite:
                    self._append(">" if were_moved else "-", gone, sync=durably)
                elif durably:
                    self._rewrite(self._keys, self._moved)
            except OSError as error:
                _log.warning("%s could not be written: %s; it is written again later", self._path, error)

    def remove_all_but(self, keys: Collection[PartitionKey]) -> None:
        """Forget all partitions but these: the others were deleted."""
        self.remove([key for key in (*self._keys, *self._moved) if key not in keys])

    def has_more_than(self, keys: Collection[PartitionKey]) -> bool:
        """Say whether there is any that is not among these."""
        return any(key not in keys for key in self._keys)

    def _append(self, sign: str, keys: Iterable[PartitionKey], *, sync: bool) -> None:
        lines = [f"{sign} {format_topic_id(topic_id)} {partition}\n" for topic_id, partition in keys]
        self._must_rewrite = True  # unless all of this succeeds: half of a line, or a failed sync, is not built upon
        file = self._storage.open(self._path)
        try:
            file.append(["".join(lines).encode("ascii")])
            if sync:
                file.sync()
        finally:
            file.close()
        self._must_rewrite = False
        self._lines += len(lines)

    def _rewrite(self, keys: set[PartitionKey], moved: set[PartitionKey]) -> None:
        lines = [
            f"{sign} {format_topic_id(topic_id)} {partition}\n"
            for sign, some in (("+", keys), (">", moved))
            for topic_id, partition in some
        ]
        write_whole(self._storage, self._path, f"{_HEAD}\n{''.join(lines)}".encode("ascii"))
        self._must_rewrite = False
        self._lines = len(lines)
