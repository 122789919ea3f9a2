"""The directory of a partition's log as a start finds it: which files are there, leftovers, unfinished compactions."""

from __future__ import annotations

import logging
from typing import Final

from semel.broker.log.batch_scan import WALK_BYTES, scan_headers
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.segment import CLEANED_SUFFIX, DELETED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, Segment
from semel.protocol.ids import TopicPartition
from semel.runtime.storage import Storage

_log = logging.getLogger(__name__)

_OFFSET_DIGITS: Final = 20


def parse_name(name: str) -> tuple[int, str] | None:
    """Return (offset, suffixes) of a segment's file name, or None for any other file."""
    digits, suffix = name[:_OFFSET_DIGITS], name[_OFFSET_DIGITS:]
    if len(digits) == _OFFSET_DIGITS and digits.isascii() and digits.isdigit() and suffix.startswith("."):
        return int(digits), suffix
    return None


class LogDirectory:
    """The names of the files, which `tidy_up` reads and brings in order."""

    def __init__(self, storage: Storage, path: str, tp: TopicPartition, files: OpenFiles, *, now_ms: int) -> None:
        self.path = path
        self.names: set[str] = set()
        self.looking_at = path
        """What is being read: so an error can say where it is."""
        self._storage = storage
        self._tp = tp
        self._files = files
        self._now_ms = now_ms

    def tidy_up(self) -> bool:
        """Remove what an interruption left, and finish what it interrupted. Returns whether a name is new."""
        made = not self._storage.exists(self.path)
        if made:
            self._storage.make_folder(self.path)
        self.names = set(self._storage.list_folder(self.path))
        self._remove_leftovers([name for name in self.names if name.endswith((DELETED_SUFFIX, ".tmp"))])
        return self._finish_swaps() or made

    def offsets_with(self, suffix: str) -> list[int]:
        return [parsed[0] for parsed in map(parse_name, self.names) if parsed is not None and parsed[1] == suffix]

    def remove(self, names: list[str]) -> None:
        for name in names:
            self._storage.remove(f"{self.path}/{name}")
            self.names.discard(name)

    def _remove_leftovers(self, names: list[str]) -> None:
        """Remove what an interrupted write or deletion left. A directory by such a name is not ours, and stays."""
        for name in names:
            try:
                self.remove([name])
            except (IsADirectoryError, PermissionError) as error:
                _log.info("%s: %s/%s is left alone: %s", self._tp, self.path, name, error.strerror)
                self.names.discard(name)

    def _finish_swaps(self) -> bool:
        """Bring a compaction that a crash interrupted to its end, or undo it (see `cleaner`).

        It wrote all four files as `.cleaned`, renamed them to `.swap`, removed the old segments, and renamed to the
        final names. While one `.cleaned` file is left the old segments are whole, and stay.

        Returns whether a file got its final name.
        """
        ours = {name for name in self.names if parse_name(name) is not None}
        cleaned = [name for name in ours if name.endswith(CLEANED_SUFFIX)]
        undecided = {self._offset_of(name) for name in cleaned}
        undone = [name for name in ours if name.endswith(SWAP_SUFFIX) and self._offset_of(name) in undecided]
        if undone:
            self.remove(undone)
            self._storage.sync_folder(self.path)  # never to be taken for a swap that was decided
        self.remove(cleaned)
        for offset in sorted(self.offsets_with(LOG_SUFFIX + SWAP_SUFFIX)):
            end = self._swap_end(offset)
            _log.info("%s: finishing the compaction of offsets %d to %d", self._tp, offset, end)
            self.remove([name for name in self.names if self._is_replaced(name, offset, end)])
            self._storage.sync_folder(self.path)
        renamed = False
        # The log's own file last: while it waits, the others are known to be its.
        for name in sorted(ours & self.names, key=lambda one: one.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
            if name.endswith(SWAP_SUFFIX):
                final = name[: -len(SWAP_SUFFIX)]
                self._storage.rename(f"{self.path}/{name}", f"{self.path}/{final}")
                self.names.discard(name)
                self.names.add(final)
                renamed = True
        return renamed

    def _is_replaced(self, name: str, offset: int, end: int) -> bool:
        """Say whether the swap of [offset, end) replaces this file. One of its own that has its final name stays."""
        parsed = parse_name(name)
        if parsed is None or not offset <= parsed[0] < end or name.endswith(SWAP_SUFFIX):
            return False
        return parsed[0] > offset or name + SWAP_SUFFIX in self.names

    @staticmethod
    def _offset_of(name: str) -> int:
        parsed = parse_name(name)
        return -1 if parsed is None else parsed[0]

    def _swap_end(self, offset: int) -> int:
        segment = Segment(self._storage, self.path, offset, self._files, created_ms=self._now_ms, suffix=SWAP_SUFFIX)
        self.looking_at = segment.path(LOG_SUFFIX)
        end = offset
        for _, header in scan_headers(segment.file, 0, segment.size, chunk_bytes=WALK_BYTES):
            end = header.next_offset
        segment.release_files()
        return max(end, offset + 1)
