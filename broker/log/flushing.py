"""Bringing a log to the disk, in three steps, so that the waiting can be done off the event loop."""

from __future__ import annotations

from collections.abc import Sequence

from semel.broker.log.disk_errors import is_full
from semel.broker.log.epochs_file import EpochsWrite
from semel.broker.log.open_files import SharedFile
from semel.broker.log.producer_snapshot import SnapshotWork
from semel.broker.log.segment import Segment
from semel.runtime.storage import Storage


class FlushWork:
    """What `PartitionLog.begin_flush` found to be done. `run` touches nothing that the log changes meanwhile."""

    __slots__ = (
        "_epochs",
        "_files",
        "_folder",
        "_folder_changed",
        "_storage",
        "end_offset",
        "generation",
        "no_room",
        "segments",
        "snapshot",
    )

    def __init__(
        self,
        storage: Storage,
        folder: str,
        end_offset: int,
        generation: int,
        files: Sequence[SharedFile],
        segments: Sequence[Segment],
        folder_changed: bool,
        epochs: EpochsWrite | None,
        snapshot: SnapshotWork | None,
    ) -> None:
        self._storage = storage
        self._folder = folder
        self.end_offset = end_offset
        """All below it is on the disk after `run`."""
        self.generation = generation
        self._files = files
        self.segments = segments
        self._folder_changed = folder_changed
        self._epochs = epochs
        self.snapshot = snapshot
        self.no_room: OSError | None = None
        """Why the leader epochs could not be written on a full disk, though all else was synced."""

    @property
    def is_empty(self) -> bool:
        return not (self._files or self._folder_changed or self._epochs is not None or self.snapshot is not None)

    def run(self) -> None:
        """Wait for the disk. May run on another thread. Raises `OSError`."""
        for file in self._files:
            file.sync()
        if self._folder_changed:
            self._storage.sync_folder(self._folder)
        if self._epochs is not None:
            try:
                self._epochs.run()
            except OSError as error:
                if not is_full(error):
                    raise
                self.no_room = error
        if self.snapshot is not None:
            self.snapshot.run()
