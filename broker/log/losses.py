"""What a start finds lost or broken of a log's synced records: how it is said, and what is reported of it."""

from __future__ import annotations

import logging
from typing import Final

from semel.broker.log.segment import LOG_SUFFIX, Segment
from semel.protocol.batch_header import BatchHeader
from semel.protocol.ids import TopicPartition

_log = logging.getLogger(__name__)

LOST_OFFSETS: Final = "lost_offsets"
"""What a log record says beside its text where records are lost: (first offset, end offset) of each stretch."""
UNSYNCED: Final = "unsynced"
"""What a log record says beside its text where a start cuts only what no sync had covered: a crash tore it."""
_DAMAGE_TOLD_MAX: Final = 5


class Losses:
    """The losses of one log."""

    def __init__(self, tp: TopicPartition, folder: str) -> None:
        self._tp = tp
        self._folder = folder
        self.lost: list[tuple[int, int]] = []
        self.first_lost = 0
        """Where the log begins now that its first segments are lost; 0 where they are not."""
        self._broken: dict[int, int] = {}
        """Batches that stay and can't be read: first offset to end offset."""

    def say_broken(self, segment: Segment, header: BatchHeader, position: int) -> None:
        """A batch with all its bytes and a wrong checksum stays: readers can tell, and nothing else is lost for it."""
        if header.base_offset in self._broken:
            return
        self._broken[header.base_offset] = header.next_offset
        _log.error(
            "%s: the records at %s can't be read: their checksum in %s at position %d is wrong. They are left as they "
            "are. Stop the node and restore the directory from a backup; or, to continue without them, let readers "
            "begin behind them",
            self._tp, _offsets(header.base_offset, header.next_offset), segment.path(LOG_SUFFIX), position,
        )  # fmt: skip

    def say_lost(self) -> None:
        """Name what is missing of synced records, once for the log: nobody passes over it silently (D6)."""
        if self.lost:
            lost = ", ".join(_offsets(first, end) for first, end in self.lost)
            begins = ""
            if self.first_lost:
                begins = (
                    f" The log begins at offset {self.first_lost} now, and a fetch of earlier offsets gets "
                    "OFFSET_OUT_OF_RANGE."
                )
            _log.error(
                "%s: the records at %s are lost. They had been acknowledged, and were gone from %s when the "
                "node started. The node runs on without them, and gives their offsets to no other record; producers of "
                "the lost records may be refused until they begin again.%s To have them back, stop the node and "
                "restore the directory from a backup.",
                self._tp, lost, self._folder, begins, extra={LOST_OFFSETS: self.lost},
            )  # fmt: skip

    @property
    def first_offset(self) -> int | None:
        """The first offset that is lost or can't be read; None: none is."""
        return min((*(first for first, _ in self.lost), *self._broken), default=None)

    def summary(self) -> str:
        """Return which records that had been synced are gone or can't be read; empty: none."""
        gone = [f"{_offsets(first, end)} lost" for first, end in self.lost[:_DAMAGE_TOLD_MAX]]
        gone += [f"{_offsets(*one)} unreadable" for one in list(self._broken.items())[:_DAMAGE_TOLD_MAX]]
        more = len(self.lost) + len(self._broken) - len(gone)
        return f"{self._tp}: {', '.join(gone)}{f' and {more} more places' if more else ''}" if gone else ""


def _offsets(first: int, end: int) -> str:
    return f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"
