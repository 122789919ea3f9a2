"""The first batches of producers that were refused and will be sent again, so that no later one takes their place (P2).

A producer that a partition does not know may begin with any sequence (P3). So where its first batch is refused because
the disk is full, or too few replicas are in sync, the second one would be taken, and the first could not follow it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from semel.protocol.errors import ErrorCode, error_for
from semel.protocol.ids import TopicPartition

PRODUCERS_MAX: Final = 10_000
"""The most producers of one partition that are remembered; beyond that the oldest is forgotten."""
REMEMBERED_MS: Final = 600_000
"""A producer that has not come back by then has given its batch up: longer than clients try (delivery.timeout.ms)."""


class _Refused(NamedTuple):
    epoch: int
    sequence: int
    refused_ms: int


class RefusedBatches:
    """Of one partition. Bounded; not part of the log's state: a restart forgets it."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[int, _Refused] = {}

    def note(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> None:
        """Remember a batch of a producer that the partition does not know; of several of an epoch the first."""
        known = self._first.pop(producer_id, None)
        if known is not None and (known.epoch, -known.sequence) > (epoch, -sequence):
            epoch, sequence = known.epoch, known.sequence
        if len(self._first) >= PRODUCERS_MAX:
            del self._first[next(iter(self._first))]
        self._first[producer_id] = _Refused(epoch, sequence, now_ms)

    def check(self, tp: TopicPartition, producer_id: int, epoch: int, sequence: int, now_ms: int) -> None:
        """Refuse a batch that would overtake one. Raises `SemelError` (OUT_OF_ORDER_SEQUENCE_NUMBER)."""
        known = self._first.get(producer_id)
        if known is None:
            return
        if known.epoch == epoch and sequence > known.sequence and now_ms - known.refused_ms < REMEMBERED_MS:
            raise error_for(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{tp}: producer {producer_id} sent sequence {sequence}, but its sequence {known.sequence} was refused "
                "with a retriable error: send that one first",
            )
        del self._first[producer_id]
