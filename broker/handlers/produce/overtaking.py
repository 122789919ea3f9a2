"""Batches that overtake one of their producer's that was refused a moment ago and is sent again (P2).

A producer has several batches under way. Where the first is refused, because its partition has no leader for a moment,
the second may come once there is one: it is out of order. It is refused with an error after which both are sent again,
and not as out of order: librdkafka takes a new producer epoch after that, for all its partitions, so that a batch of
another one that was appended, and whose answer was lost, is appended once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from semel.broker.log.producer_state import next_sequence
from semel.protocol.batch_header import BatchHeader
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import TopicId

if TYPE_CHECKING:
    from semel.broker.logs.partition import Partition
    from semel.protocol.kafka.produce import ProducePartition
    from semel.runtime.clock import Clock

WITHIN_S: Final = 10.0
"""What was under way when the first batch was refused is here by then."""
_MAX: Final = 10_000
"""So many producers' batches are remembered; beyond that the oldest are forgotten."""

_Key = tuple[str | TopicId, int, int]


class _Refused(NamedTuple):
    epoch: int
    sequence: int
    at_s: float


class Overtaking:
    """Of one node. Bounded; a restart forgets them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[_Key, _Refused] = {}

    def note(self, item: ProducePartition, header: BatchHeader, partition: Partition | None) -> None:
        """Remember a batch that was refused and is sent again; of several of a producer the first that is missing."""
        if header.producer_id < 0:
            return
        key = _keys(item, header)[0]
        known, sequence = self._refused.pop(key, None), header.base_sequence
        if known is not None and self._is_missing(known, header, partition):
            sequence = min(sequence, known.sequence)
        if len(self._refused) >= _MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[key] = _Refused(header.producer_epoch, sequence, self._clock.monotonic())

    def judged(
        self, item: ProducePartition, header: BatchHeader, partition: Partition, error: SemelError
    ) -> SemelError:
        """Return the error to refuse a batch with that is out of order, by `error`."""
        for key in _keys(item, header):
            known = self._refused.get(key)
            if known is None or not self._is_missing(known, header, partition):
                continue
            if header.base_sequence > known.sequence:
                return error_for(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    f"{error.message}: sequence {known.sequence} was refused a moment ago. Send that one first",
                )
        return error

    def _is_missing(self, known: _Refused, header: BatchHeader, partition: Partition | None) -> bool:
        """Say whether a batch of a producer was refused a moment ago, and did not come since."""
        if known.epoch != header.producer_epoch or self._clock.monotonic() - known.at_s >= WITHIN_S:
            return False
        entry = None if partition is None else partition.log.producer_state.entry(header.producer_id)
        if entry is None or entry.epoch != known.epoch or not entry.batches:
            return True
        return known.sequence >= next_sequence(entry.batches[-1][1])


def _keys(item: ProducePartition, header: BatchHeader) -> list[_Key]:
    """Return what a batch may be remembered by: the name of its topic, or its id where the name was not known."""
    found: list[_Key] = [(item.topic, item.partition, header.producer_id)] if item.topic else []
    return [*found, (item.topic_id, item.partition, header.producer_id)]
