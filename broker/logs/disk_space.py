"""Refuses appends while the disk is nearly full, before a write fails in the middle; and says when writes do fail."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from semel.protocol.errors import ErrorCode, RetriableError
from semel.runtime.storage import Storage

_log = logging.getLogger("semel.disk")

_LOOK_EVERY_BYTES: Final = 16 << 20
_REPEAT_SECONDS: Final = 60.0
_RESUME_SHARE: Final = 10
"""Refused producers are served again when the reserve and a tenth of it are free,"""
_RESUME_BYTES: Final = 1 << 20
"""or so much, where there is no reserve."""


class DiskSpace:
    """Counts down what may be written until the file system is asked again.

    Only clients are refused: coordinators' records and markers, which end transactions and so let data be removed,
    may use the reserve.
    """

    __slots__ = (
        "_free_bytes",
        "_is_refusing",
        "_left",
        "_path",
        "_storage",
        "make_room",
        "min_free_bytes",
        "resume_bytes",
    )

    def __init__(self, storage: Storage, path: str, min_free_bytes: int) -> None:
        self.min_free_bytes = min_free_bytes
        self.make_room: Callable[[], bool] | None = None
        """Gives up something that is of use only while there is room, and returns whether it did."""
        self._storage = storage
        self._path = path
        self._left = 0
        self._free_bytes = 0
        self._is_refusing = False
        self.resume_bytes = min_free_bytes + (min_free_bytes // _RESUME_SHARE if min_free_bytes else _RESUME_BYTES)
        """Producers that were refused are served again once so much is free: more than the reserve, or they would be
        refused and served by turns while others write to the disk.
        """

    @property
    def free_bytes(self) -> int:
        """What was free when the file system was last asked."""
        return self._free_bytes

    @property
    def is_refusing(self) -> bool:
        """Whether clients' appends are refused, by what was free when the file system was last asked."""
        return self._is_refusing

    @property
    def is_scarce(self) -> bool:
        """Whether there is hardly more room than the reserve, by what was free when the file system was last asked."""
        return self._free_bytes < self.resume_bytes

    def refresh(self) -> int:
        """Ask the file system, and return what is free."""
        return self._look(0)

    def _look(self, size: int) -> int:
        self._free_bytes = self._storage.free_bytes(self._path)
        while (self.is_scarce or size > self._room) and self.make_room is not None and self.make_room():
            self._free_bytes = self._storage.free_bytes(self._path)
        if self._free_bytes < self.min_free_bytes:
            self._say_whether_refusing(True)
        elif self._is_refusing and self._free_bytes >= self.resume_bytes:
            self._say_whether_refusing(False)
        self._left = min(self._room, _LOOK_EVERY_BYTES)
        return self._free_bytes

    @property
    def _room(self) -> int:
        return self._free_bytes - (self.resume_bytes if self._is_refusing else self.min_free_bytes)

    def write_failed(self) -> None:
        """Note that a write found the disk full, whatever was free when it was last asked. Raises `OSError`."""
        if self.refresh() < self.resume_bytes:
            self._say_whether_refusing(True)
            self._left = -1

    def take(self, size: int) -> None:
        """Count `size` bytes that a client is about to append. Raises `RetriableError` (KAFKA_STORAGE_ERROR)."""
        self._left -= size
        if self._left < 0:
            self._look(size)
            self._left -= size
            if size > self._room:
                if self._free_bytes < self.resume_bytes:  # else it is this batch alone that is too large
                    self._say_whether_refusing(True)
                raise RetriableError(
                    f"the disk of {self._path} is nearly full: {self._free_bytes} bytes are free, "
                    f"{self.min_free_bytes} are kept in reserve, and producers are served again from "
                    f"{self.resume_bytes} on. Make room, lower a topic's retention, or delete one.",
                    ErrorCode.KAFKA_STORAGE_ERROR,
                )

    def _say_whether_refusing(self, is_refusing: bool) -> None:
        """Once for each change: clients try again and again, and see the reason only when they give up."""
        if is_refusing == self._is_refusing:
            return
        self._is_refusing = is_refusing
        if is_refusing:
            _log.warning(
                "the disk is nearly full, so producers are refused: %d bytes are free in %s, and %d are kept in "
                "reserve (disk.min.free.bytes). Make room, lower a topic's retention, or delete one. They are served "
                "again once %d bytes are free.",
                self._free_bytes, self._path, self.min_free_bytes, self.resume_bytes,
            )  # fmt: skip
        else:
            _log.info("the disk has room again, and producers are served: %d bytes are free", self._free_bytes)


class WriteFailures:
    """Says in the node's own log that appends fail: clients try again and again, and see the reason only when they give
    up. At once, then not more often than every minute, and when it is over.
    """

    __slots__ = ("_count", "_next", "_said", "last")

    def __init__(self) -> None:
        self.last = ""
        """Why an append failed; empty once one succeeded."""
        self._count = 0
        self._next = 0.0
        self._said = False

    def failed(self, now: float, message: str) -> None:
        """Note an append that failed at `now`, by the monotonic clock in seconds."""
        self.last = message
        self._count += 1
        if now >= self._next:
            self._next = now + _REPEAT_SECONDS
            self._said = True
            _log.error("%s (appends that failed so far: %d)", message, self._count)

    def succeeded(self) -> None:
        """Note that an append succeeded after others had failed."""
        if self._said:
            _log.info("appends succeed again, after %d had failed", self._count)
        self.last = ""
        self._count = 0
        self._said = False
