"""Who has asked the transaction coordinator about a producer's first batch, so that a late answer lets nothing in (T8).

Between the question and the append, a marker may end the very transaction that was confirmed (KIP-890, KAFKA-12671):
a guard is void once its producer had a marker here. It also remembers the lowest sequence that waits, so that a later
batch whose own verification was quicker does not overtake an earlier one.
"""

from __future__ import annotations

from typing import Final

from semel.protocol.errors import ErrorCode, error_for
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition

VERIFICATIONS_MAX: Final = 100_000
"""The most producers of one partition with a question open; beyond that the oldest is forgotten, and asks again."""


class VerificationGuard:
    """Given out before the coordinator is asked, and back with the append."""

    __slots__ = ("epoch", "lowest_sequence", "producer_id", "started_ms")

    def __init__(self, producer: ProducerIdAndEpoch, sequence: int, now_ms: int) -> None:
        self.producer_id = producer.producer_id
        self.epoch = producer.producer_epoch
        self.lowest_sequence = sequence
        self.started_ms = now_ms


class Verifications:
    """The guards of one partition. Bounded; not part of the log's state: a restart makes all producers ask again."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[int, VerificationGuard] = {}

    def start(self, producer: ProducerIdAndEpoch, sequence: int, now_ms: int) -> VerificationGuard:
        """Return the producer's guard, a new one if need be."""
        guard = self._guards.get(producer.producer_id)
        if guard is None:
            if len(self._guards) >= VERIFICATIONS_MAX:
                del self._guards[next(iter(self._guards))]
            guard = self._guards[producer.producer_id] = VerificationGuard(producer, sequence, now_ms)
        elif producer.producer_epoch > guard.epoch:
            guard.epoch = producer.producer_epoch
            guard.lowest_sequence = sequence
        elif producer.producer_epoch == guard.epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        return guard

    def holds(self, guard: VerificationGuard, producer_id: int) -> bool:
        """Say whether the guard still stands for this producer."""
        return self._guards.get(producer_id) is guard

    def check_sequence(self, tp: TopicPartition, producer_id: int, epoch: int, sequence: int) -> None:
        """Refuse a batch that would overtake one whose verification is under way.

        Raises `SemelError` (OUT_OF_ORDER_SEQUENCE_NUMBER).
        """
        guard = self._guards.get(producer_id)
        if guard is not None and epoch == guard.epoch and sequence > guard.lowest_sequence:
            raise error_for(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{tp}: producer {producer_id} sent sequence {sequence} while sequence {guard.lowest_sequence} of its "
                "transaction waits for the coordinator's word",
            )

    def finish(self, producer_id: int) -> None:
        """The producer's batch is in, or a marker came: the guard is void."""
        self._guards.pop(producer_id, None)

    def __len__(self) -> int:
        return len(self._guards)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget the guards that nobody came back with."""
        for producer_id in [key for key, guard in self._guards.items() if now_ms - guard.started_ms >= expiration_ms]:
            del self._guards[producer_id]
