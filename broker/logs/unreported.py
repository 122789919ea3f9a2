"""What starts have found of the logs here, and no registration has told the others yet (R4, R5).

A start that ends before it has registered, because the metadata's database is away for instance, has recovered all the
same, and stops cleanly: the next one finds nothing. It would tell that its replicas have all records, and one of them
could be elected that lacks some.

A replica that has lost records stays in this file until it has fetched them again. Followers compare epochs and ends
with their leader, and that shows no hole in the middle. One that could not be read when the node registered stays in it
until it can be, and the others know (`controller/readable_again.py`).
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Mapping, Set
from typing import Final

from semel.broker.logs.known_partitions import PartitionKey
from semel.protocol.ids import format_topic_id, parse_topic_id
from semel.runtime.storage import Storage, read_whole, write_whole

_log = logging.getLogger("semel.logs")

UNREPORTED_FILE: Final = "recovery-to-report.json"
_BYTES_MAX: Final = 1 << 30


class NotNotedError(OSError):
    """A start can't note what it has found, and must not go on to hide it."""


class UnreportedRecovery:
    """The file, which is there while something is to be told or to be fetched again, and what is in it."""

    __slots__ = (
        "_cut",
        "_damaged",
        "_is_known",
        "_is_read",
        "_lock",
        "_not_read",
        "_path",
        "_storage",
        "is_clean",
        "is_written",
    )

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._damaged: Mapping[PartitionKey, int] = {}
        self._cut: set[PartitionKey] = set()
        """Damaged ones that were cut in this run, which has to be noted yet. What they have now is whole."""
        self._not_read: Set[PartitionKey] = frozenset()
        self._is_known = True
        self._is_read = False
        self.is_written = True
        """Whether the file says all that is known here. Writing it may have failed: `write_again`."""
        self._lock = threading.Lock()  # logs are recovered again beside the event loop
        self.is_clean = True
        """Whether the logs have all that they had when the node last ran as a part of the cluster."""

    def may_be_damaged(self, key: PartitionKey) -> bool:
        """Say whether records of a partition that had been synced are lost, as far as is known."""
        return key in self._damaged or not self._is_known

    def damaged_from(self, key: PartitionKey) -> int | None:
        """Return the first offset of a partition that is lost or can't be read; None where none is known to be."""
        return None if key in self._cut else self._damaged.get(key)

    def was_cut(self, key: PartitionKey) -> None:
        """A partition's log was cut there. `repaired` is to follow once that is durable, and never another cut."""
        self._cut.add(key)

    def found(
        self, *, clean: bool, damaged: Mapping[PartitionKey, int], short: Mapping[PartitionKey, int] | None = None
    ) -> None:
        """Note durably what a start has found, beside what earlier ones did. Raises `OSError`.

        To be called before the checkpoints are written, which hide it from the next start.
        damaged: the first offset of each partition that is lost or can't be read
        short:   where partitions end that end below what was noted as synced. Mostly a crash came before it was noted
            that a follower was cut. But it is not shown that they have all that they had, which `not_read` says
        """
        with self._lock:
            if not self._is_read:
                self._read()
                self._is_read = True
            damaged = {**{key: end for key, end in (short or {}).items() if key in self._not_read}, **damaged}
            before = self.is_clean, self._damaged, True
            self.is_clean = self.is_clean and clean
            first = {key: min(offset, self._damaged.get(key, offset)) for key, offset in damaged.items()}
            self._damaged = {**self._damaged, **first}
            self._not_read -= damaged.keys()
            if (self.is_clean, self._damaged, self._is_known) != before or not self.is_written:
                self._write()

    def lost(self, key: PartitionKey, first: int) -> None:
        """Note durably that a log has lost records from an offset on, before it is repaired. Raises `NotNotedError`."""
        try:
            self.found(clean=True, damaged={key: first})
        except OSError as error:
            raise NotNotedError(error.errno, error.strerror or str(error), self._path) from error

    @property
    def damaged(self) -> Mapping[PartitionKey, int]:
        """The first offset of each partition that is lost or can't be read, and is not fetched again yet."""
        return self._damaged

    @property
    def not_read(self) -> Set[PartitionKey]:
        """Partitions that a registration has told as incomplete for no other reason than that they can't be read."""
        return self._not_read

    def to_be_reported(self, not_read: Set[PartitionKey]) -> None:
        """Note what the registration that follows tells as incomplete because it can't be read. Raises `OSError`.

        Without the note, a start after one that ends right behind its registration would not know why they are.
        """
        with self._lock:
            if not not_read <= self._not_read:
                self._not_read |= not_read
                self._write()

    def reported(self, to_fetch_again: Collection[PartitionKey], *, not_read: Set[PartitionKey] = frozenset()) -> None:
        """A registration has told it. Raises `OSError`; then the next start tells it once more.

        to_fetch_again: partitions that others have, too. They stay damaged until `repaired`: a start that comes first
            has to tell of them again
        not_read: the new ones in place of those of the former start
        """
        with self._lock:
            self.is_clean = self._is_known = True
            self._damaged = {key: offset for key, offset in self._damaged.items() if key in to_fetch_again}
            self._not_read = not_read - self._damaged.keys()
            self._write()

    def was_read(self, keys: Set[PartitionKey]) -> None:
        """Partitions can be read, and it was told; or nobody needs to know any more. Raises `OSError`."""
        with self._lock:
            self._not_read -= keys
            self._write()

    def repaired(self, key: PartitionKey) -> None:
        """A partition's log has no more that is lost; or it leads, and what is lost there is lost. Raises `OSError`."""
        with self._lock:
            if key in self._damaged:
                self._cut.discard(key)
                self._damaged = {other: offset for other, offset in self._damaged.items() if other != key}
                self._write()

    def write_again(self) -> None:
        """Write what could not be written. Raises `OSError`."""
        with self._lock:
            if not self.is_written:
                self._write()

    def _write(self) -> None:
        self.is_written = False
        if self._damaged or self._not_read or not self.is_clean or not self._is_known:
            lost = {_told(key): self._damaged[key] for key in sorted(self._damaged)}
            not_read = [_told(key) for key in sorted(self._not_read)]
            told = {"clean": self.is_clean, "damaged": lost, "known": self._is_known, "not read": not_read}
            write_whole(self._storage, self._path, json.dumps(told).encode())
        elif self._storage.exists(self._path):
            self._storage.remove(self._path)
            self._storage.sync_folder(self._path.rpartition("/")[0])
        self.is_written = True

    def _read(self) -> None:
        try:
            found = json.loads(read_whole(self._storage, self._path, size_bytes_max=_BYTES_MAX))
            self.is_clean, self._is_known = bool(found["clean"]), bool(found["known"])
            self._damaged = {_key(told): int(offset) for told, offset in found["damaged"].items()}
            self._not_read = frozenset(map(_key, found.get("not read", ())))
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            _log.error(
                "%s can't be read, so each replica here counts as one that may lack records: %s", self._path, error
            )
            self.is_clean = self._is_known = False
            self._not_read = frozenset()


def _told(key: PartitionKey) -> str:
    return f"{format_topic_id(key[0])} {key[1]}"


def _key(told: str) -> PartitionKey:
    topic_id, partition = told.split(" ")
    return parse_topic_id(topic_id), int(partition)
