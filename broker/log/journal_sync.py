"""Syncs of the journal: one of them, and how long they take."""

from __future__ import annotations

import bisect
from concurrent.futures import Future
from typing import Final

from semel.runtime.clock import Clock
from semel.runtime.storage import Storage, StorageFile

LATENCY_BOUNDS_SECONDS: Final = tuple(0.00005 * 2**n for n in range(16))
"""Upper bounds of the buckets in which sync times are counted, 50 us to 1.6 s; one bucket more for longer ones."""


class SyncJob:
    """One sync: of which files, up to which position. `run` may be called in another thread."""

    __slots__ = ("_clock", "_folder", "_storage", "done", "files", "seconds", "target")

    def __init__(
        self, storage: Storage, clock: Clock, files: list[StorageFile], folder: str | None, target: int
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._folder = folder
        self.files = files
        self.target = target
        self.seconds = 0.0
        self.done: Future[float] = Future()

    @property
    def syncs_folder(self) -> bool:
        """Whether names of files become durable with it."""
        return self._folder is not None

    def run(self) -> float:
        begin = self._clock.monotonic()
        for file in self.files:
            file.sync()
        if self._folder is not None:
            self._storage.sync_folder(self._folder)
        return self._clock.monotonic() - begin


class SyncTimes:
    """Counts syncs and their times. `seconds_recent` is a moving average over the small groups alone."""

    __slots__ = ("buckets", "count", "inline_count", "seconds_recent", "seconds_total")

    def __init__(self) -> None:
        self.count = 0
        self.inline_count = 0
        self.seconds_total = 0.0
        self.seconds_recent = 0.0
        self.buckets = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)

    def took(self, seconds: float, *, is_small: bool) -> None:
        self.count += 1
        self.seconds_total += seconds
        # Large groups take long for their size, not because the disk is slow: they say nothing about small ones.
        if is_small:
            self.seconds_recent += 0.125 * (seconds - self.seconds_recent)
        self.buckets[bisect.bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += 1
