"""What starts have found of the logs here, and no registration has told the others yet (R4, R5).

A start that ends before it has registered, because the metadata's database is away for instance, has recovered all the
same, and stops cleanly: the next one finds nothing. It would tell that its replicas have all records, and one of them
could be elected that lacks some.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable
from typing import Final

from semel.broker.logs.known_partitions import PartitionKey
from semel.protocol.ids import format_topic_id, parse_topic_id
from semel.runtime.storage import Storage, read_whole, write_whole

_log = logging.getLogger("semel.logs")

UNREPORTED_FILE: Final = "recovery-to-report.json"
_BYTES_MAX: Final = 1 << 30


class UnreportedRecovery:
    """The file, which is there while something is to be told, and what is in it."""

    __slots__ = ("_damaged", "_is_known", "_path", "_storage", "is_clean")

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._damaged: frozenset[PartitionKey] = frozenset()
        self._is_known = True
        self.is_clean = True
        """Whether the logs have all that they had when the node last ran as a part of the cluster."""

    def may_be_damaged(self, key: PartitionKey) -> bool:
        """Say whether records of a partition that had been synced are lost, as far as is known."""
        return key in self._damaged or not self._is_known

    def found(self, *, clean: bool, damaged: Collection[PartitionKey]) -> None:
        """Note durably what a start has found, beside what earlier ones did. Raises `OSError`.

        To be called before the checkpoints are written, which hide it from the next start.
        """
        self._read()
        before = self.is_clean, self._damaged, True
        self.is_clean = self.is_clean and clean
        self._damaged = self._damaged.union(damaged)
        if (self.is_clean, self._damaged, self._is_known) != before:
            lost = sorted(_told(key) for key in self._damaged)
            told = {"clean": self.is_clean, "damaged": lost, "known": self._is_known}
            write_whole(self._storage, self._path, json.dumps(told).encode())

    def reported(self) -> None:
        """A registration has told it. Raises `OSError`; then the next start tells it once more."""
        if self._storage.exists(self._path):
            self._storage.remove(self._path)
            self._storage.sync_folder(self._path.rpartition("/")[0])

    def _read(self) -> None:
        try:
            found = json.loads(read_whole(self._storage, self._path, size_bytes_max=_BYTES_MAX))
            self.is_clean, self._damaged = bool(found["clean"]), frozenset(_keys(found["damaged"]))
            self._is_known = bool(found["known"])
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            _log.error(
                "%s can't be read, so each replica here counts as one that may lack records: %s", self._path, error
            )
            self.is_clean = self._is_known = False


def _told(key: PartitionKey) -> str:
    return f"{format_topic_id(key[0])} {key[1]}"


def _keys(told: Iterable[str]) -> Iterable[PartitionKey]:
    for one in told:
        topic_id, partition = one.split(" ")
        yield parse_topic_id(topic_id), int(partition)
