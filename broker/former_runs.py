"""Which runs of a node have used its data directory: what tells an older copy from the directory itself (R4).

A copy that somebody puts back lacks what the node has had since, and looks as whole as the directory did then. The
metadata names the node's last run, by the incarnation that it registered with; a directory that does not know that run
is from before it.

A text file, a line for each run. A run is noted before it registers, so one that has registered is always there. What
was copied while the last run was on can't be told apart this way.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from semel.broker.metadata.changes import RUNS_NOTED_VERSION
from semel.runtime.storage import Storage, read_whole, write_whole

if TYPE_CHECKING:
    from semel.broker.metadata.image import BrokerImage

_log = logging.getLogger("semel.logs")

RUNS_FILE: Final = "runs"
_HEAD: Final = "semel runs 1"
_RUNS_MAX: Final = 1_000
"""The last ones are kept: metadata that went back, and was accepted, names an earlier run."""
_BYTES_MAX: Final = 1 << 20


class FormerRuns:
    """The file, and what is in it."""

    __slots__ = ("_is_damaged", "_path", "_runs", "_storage")

    def __init__(self, storage: Storage, path: str) -> None:
        """Read the file, where there is one. Raises `OSError`."""
        self._storage = storage
        self._path = path
        self._is_damaged = False
        self._runs: list[str] = []
        try:
            text = read_whole(storage, path, size_bytes_max=_BYTES_MAX).decode("ascii", "replace")
        except FileNotFoundError:
            return
        head, *lines = text.split("\n")
        self._is_damaged = head != _HEAD
        if self._is_damaged:
            _log.error("%s is damaged, so each replica here counts as one that may lack records", path)
        else:
            self._runs = [line for line in lines if line]

    def add(self, incarnation: str) -> None:
        """Note a run durably, before it registers. Raises `OSError`."""
        runs = [*self._runs, incarnation][-_RUNS_MAX:]
        write_whole(self._storage, self._path, "\n".join((_HEAD, *runs, "")).encode("ascii"))
        self._runs = runs

    def is_before(self, former: BrokerImage | None, directory_id: str) -> bool:
        """Say whether this directory is a copy from before the node's last run. One with another id is another one.

        former: how the node was registered until now
        """
        if former is None or former.directory_id != directory_id:
            return False
        if not self._runs and not self._is_damaged and former.metadata_version < RUNS_NOTED_VERSION:
            return False  # that run did not note itself
        return former.incarnation not in self._runs
