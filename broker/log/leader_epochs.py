"""Which leader epoch began at which offset (KIP-101, KIP-279): how replicas and readers find where logs part (R3, R7).

A leader notes its epoch when it begins to lead, at the end of its log; a follower with the first batch of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from semel.broker.log.batch_runs import first_beyond_epoch
from semel.broker.log.log_types import EpochEndOffset
from semel.protocol.batch_header import BatchHeader
from semel.protocol.ids import NO_LEADER_EPOCH


class LeaderEpochs:
    """Epochs and their start offsets, both growing. No IO: `changed` says that the checkpoint file is behind.

    `version` grows with each change, so that of two states the newer one is known.
    """

    __slots__ = ("_epochs", "changed", "latest", "version")

    def __init__(self, epochs: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[tuple[int, int]] = []
        self.latest = NO_LEADER_EPOCH
        self.version = 0
        for epoch, start_offset in epochs:
            self.assign(epoch, start_offset)
        self.changed = False

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`, or before. What contradicts it was never committed, and goes."""
        if epoch < 0 or (epoch == self.latest and start_offset >= self._epochs[-1][1]):
            return
        if epoch < self.latest and start_offset < self._epochs[-1][1] and self.epoch_for(start_offset) == epoch:
            return  # what is replayed comes before an epoch that begins behind it
        while self._epochs and (self._epochs[-1][0] > epoch or self._epochs[-1][1] >= start_offset):
            self._epochs.pop()
        if not self._epochs or self._epochs[-1][0] < epoch:
            self._epochs.append((epoch, start_offset))
        self._did_change()

    def assign_run(self, headers: list[BatchHeader]) -> None:
        """Note the epochs of batches that lie one behind the other, as `assign` does each of them."""
        number = 0
        while number < len(headers):
            self.assign(headers[number].leader_epoch, headers[number].base_offset)
            start_offset = self._epochs[-1][1] if self._epochs else 0
            number = first_beyond_epoch(headers, number + 1, self.latest, start_offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset | None:
        """Return where `epoch` ended: the largest epoch at or below it, with the start of the next; None if unknown.

        For an epoch older than all that are known, itself with the first start offset: what it held is deleted.
        """
        if epoch < 0 or not self._epochs or epoch > self.latest:
            return None
        if epoch == self.latest:
            return EpochEndOffset(epoch, log_end_offset)
        floor = epoch
        for known, start_offset in self._epochs:
            if known > epoch:
                return EpochEndOffset(floor, start_offset)
            floor = known
        raise AssertionError("the latest epoch is above the one asked for")

    def epoch_for(self, offset: int) -> int:
        """Return the epoch that `offset` was, or would be, written in, or -1."""
        found = NO_LEADER_EPOCH
        for epoch, start_offset in self._epochs:
            if start_offset > offset:
                break
            found = epoch
        return found

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that begin at `end_offset` or beyond."""
        while self._epochs and self._epochs[-1][1] >= end_offset:
            self._epochs.pop()
            self._did_change()

    def truncate_from_start(self, start_offset: int, log_end_offset: int) -> None:
        """Let the epoch that holds `start_offset` begin there, and forget earlier ones.

        Where no record is left, the epoch of the last one stays, and begins with that record. So the log can still say
        of which epoch all was that it had: to a new leader (R3), and where the one that had most is sought (R4).
        """
        begin = min(start_offset, log_end_offset - 1)
        keep = 0
        while keep + 1 < len(self._epochs) and self._epochs[keep + 1][1] <= begin:
            keep += 1
        if keep or (self._epochs and self._epochs[0][1] < begin):
            self._epochs[: keep + 1] = [(self._epochs[keep][0], begin)]
            self._did_change()

    def put_before(self, epochs: Iterable[tuple[int, int]], start_offset: int) -> None:
        """Note epochs of records that come before those that are known: the log starts at `start_offset`, further back.

        epochs: (epoch, start offset), both growing; what is known of an epoch already stays, but for where it begins
        """
        first = self._epochs[0] if self._epochs else None
        before = [one for one in epochs if first is None or (one[0] <= first[0] and one[1] < first[1])]
        if not before:
            return
        if first is not None and before[-1][0] == first[0]:
            del self._epochs[0]
        self._epochs[:0] = before
        self._did_change()
        self.truncate_from_start(start_offset, max(start_offset + 1, self._epochs[-1][1] + 1))

    def _did_change(self) -> None:
        self.latest = self._epochs[-1][0] if self._epochs else NO_LEADER_EPOCH
        self.changed = True
        self.version += 1

    def entries(self) -> list[tuple[int, int]]:
        """Return (epoch, start offset) of each epoch, oldest first."""
        return list(self._epochs)
