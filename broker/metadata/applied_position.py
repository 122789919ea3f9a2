"""The last change of the metadata that a node has applied, remembered in its data directory across restarts (R10).

A small text file. It is written beside the changes, not before they are answered, and one write stands for all changes
that came during the last. Only new logs wait for it: else a database that has lost their topics, and a node that knows
nothing of that, would take them for logs of deleted topics. A file that is lost or damaged is no error: then there is
nothing to compare with.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from contextlib import suppress
from typing import Final, NamedTuple

from semel.broker.metadata.chain import Position
from semel.broker.metadata.image import MetadataImage
from semel.runtime.storage import Storage, read_whole, write_whole
from semel.runtime.threads import Threads

_log = logging.getLogger(__name__)

POSITION_FILE: Final = "metadata-position"
_HEADS: Final = ("semel metadata position 1", "semel metadata position 2", "semel metadata position 3")
"""Of files without producer ids, with them, and with leader epochs, too."""
_BYTES_MAX: Final = 4096
_AGAIN_S: Final = 1.0
"""How long after a write that failed it is tried again."""


class Applied(NamedTuple):
    """What is remembered.

    cluster_id: of which cluster
    position: how far its changes were applied
    next_producer_id: below it are all producer ids that may have been given up to there (P1)
    highest_leader_epoch: above it are no leader epochs that may have been given up to there (R3)
    """

    cluster_id: str
    position: Position
    next_producer_id: int
    highest_leader_epoch: int = 0


def read_applied(storage: Storage, path: str) -> Applied | None:
    """Return what was remembered, or None, with a warning where the file can't be read."""
    try:
        text = read_whole(storage, path, size_bytes_max=_BYTES_MAX).decode("ascii")
        head, cluster, sequence, digest, *more = text.splitlines()
        if head not in _HEADS or len(more) != _HEADS.index(head):
            raise ValueError("it does not begin as such a file does")
        next_producer_id, highest_leader_epoch = map(int, [*more, "0", "0"][:2])
        position = Position(int(sequence), bytes.fromhex(digest).hex())
        return Applied(cluster, position, next_producer_id, highest_leader_epoch)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("%s can't be read, and is written again: %s", path, error)
        return None


class AppliedPosition:
    """Writes the file. On the event loop."""

    def __init__(self, storage: Storage, path: str, executor: Executor | None = None) -> None:
        """`executor` writes; without one there is a thread for it."""
        self.pause_s = 0.0
        """How long to wait after a write before the next, for a disk that the changes themselves are written to."""
        self._storage = storage
        self._path = path
        self._own = None if executor is not None else Threads(1, "semel-position")
        self._executor = executor or self._own
        self._noted: MetadataImage | None = None
        self._written: MetadataImage | None = None
        self._error: OSError | None = None
        """Why the last write failed, if it did."""
        self._writing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def note(self, image: MetadataImage) -> None:
        """Remember how far an image goes: soon, not at once."""
        self._noted = image
        self._begin()

    async def remembered(self, image: MetadataImage) -> None:
        """Wait until the file says that this image was applied, or a later one. Raises `OSError`."""
        if self._has(image):
            return
        if self._noted is None or self._noted.sequence < image.sequence:
            self._noted = image
        self._error = None
        self._begin()
        await self.flush()
        if not self._has(image):
            raise self._error or OSError(f"{self._path} is not written any more")

    def _has(self, image: MetadataImage) -> bool:
        return self._written is not None and self._written.sequence >= image.sequence

    def _begin(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(
                self._write_all(), name="note the metadata's position"
            )

    async def write(self, applied: Applied) -> None:
        """Remember this now. Raises `OSError`."""
        given = (applied.next_producer_id, applied.highest_leader_epoch)
        lines = (_HEADS[-1], applied.cluster_id, *map(str, applied.position), *map(str, given), "")
        data = "\n".join(lines).encode("ascii")
        await asyncio.get_running_loop().run_in_executor(self._executor, write_whole, self._storage, self._path, data)

    async def flush(self) -> None:
        """Write what is left now, as far as the disk takes it."""
        self._hurry.set()
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        self._hurry.clear()

    async def close(self) -> None:
        """Write what is left, and let the thread go."""
        await self.flush()
        if self._own is not None:
            self._own.shutdown()

    def abandon(self) -> None:
        """Write no more, as a killed process does."""
        if self._writing is not None:
            self._writing.cancel()
        if self._own is not None:
            self._own.shutdown(cancel_futures=True)

    async def _write_all(self) -> None:
        while self._noted is not self._written:
            image, pause_s = self._noted, self.pause_s
            assert image is not None
            try:
                await self.write(
                    Applied(image.cluster_id, image.position, image.next_producer_id, image.highest_leader_epoch)
                )
            except OSError as error:
                if self._error is None:  # else that is known
                    _log.warning("%s could not be written, and is tried again: %s", self._path, error)
                self._error = error
                if self._hurry.is_set():
                    return  # who is in a hurry wants to know
                pause_s = max(pause_s, _AGAIN_S)
            else:
                self._written, self._error = image, None
            if pause_s:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), pause_s)
