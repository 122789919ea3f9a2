"""What a client library must do to be measured: make and delete a topic, send, and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

Acknowledged = Callable[[BaseException | None], None]
"""Called for a record once it is acknowledged, or has failed, on any thread; must not block."""


class Acks(StrEnum):
    ALL = "all"
    ONE = "1"
    NONE = "0"


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """How records are sent."""

    compression: str
    acks: Acks
    transactional_id: str | None = None


class BenchProducer(Protocol):
    """Sends to one topic. All methods but `abandon` raise `SemelError` where the broker refuses."""

    def send(self, value: bytes, acknowledged: Acknowledged | None) -> None:
        """Buffer a record, waiting while the buffer is full."""

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def flush(self) -> None:
        """Wait until all that was sent is acknowledged."""

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Close without waiting for what is not acknowledged."""


class BenchConsumer(Protocol):
    """Reads all partitions of one topic, committed records only."""

    def poll(self, timeout_s: float) -> Sequence[bytes]:
        """Return the values of the next records; none where there are none in time."""

    def close(self) -> None: ...


class BenchClient(Protocol):
    """A client library at one address."""

    name: str

    def create_topic(self, name: str, partitions: int) -> None: ...

    def delete_topic(self, name: str) -> None: ...

    def partition_count(self, topic: str) -> int:
        """Raises `SemelError` where there is no such topic."""

    def producer(self, topic: str, plan: ProducerPlan) -> BenchProducer: ...

    def consumer(self, topic: str, *, from_end: bool) -> BenchConsumer:
        """Return a consumer that stands at the start of the topic, or at its end as it is now."""
