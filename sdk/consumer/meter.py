"""What one consumer counts, where an OpenTelemetry SDK is set when it is made; else it has no meter at all.

By batch, never by record, and gathered: a call of OpenTelemetry's costs as much as hundreds of records. What was
gathered is published a few times a second, and at the end.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from semel.protocol.ids import TopicPartition
from semel.runtime.clock import Clock
from semel.sdk.telemetry import metrics


class ConsumerMeter:
    """Counts what a consumer fetches and returns. From any thread."""

    def __init__(self, group: str, clock: Clock) -> None:
        self._now = clock.monotonic
        self._metrics = metrics.client_metrics()
        self._group = group
        self._lock = threading.Lock()
        self._messages: Counter[TopicPartition] = Counter()
        self._bytes: Counter[TopicPartition] = Counter()
        self._due = 0.0
        self._returned_at: float | None = None

    def asked(self) -> None:
        """The program asks for more."""
        now = self._now()
        if self._returned_at is not None:
            self._metrics.poll_interval.record(now - self._returned_at, metrics.SYSTEM)
            self._returned_at = None
        if now >= self._due:
            self.publish()

    def returned(self, taken: Iterable[tuple[TopicPartition, int]]) -> None:
        """Records of partitions were returned, so many."""
        with self._lock:
            for tp, messages in taken:
                self._messages[tp] += messages
        self._returned_at = self._now()

    def fetched(self, tp: TopicPartition, size_bytes: int) -> None:
        """Batches came from a partition."""
        with self._lock:
            self._bytes[tp] += size_bytes

    def skipped(self, tp: TopicPartition) -> None:
        """A batch that can't be read was passed over."""
        self._metrics.skipped_batches.add(1, metrics.group_attributes(self._group, tp))

    def assigned(self) -> None:
        """The group gave partitions."""
        attributes = {**metrics.SYSTEM, "messaging.consumer.group.name": self._group}
        self._metrics.rebalances.add(1, attributes)

    def publish(self) -> None:
        """Publish what was gathered."""
        self._due = self._now() + metrics.PUBLISH_EVERY_S
        with self._lock:
            messages, self._messages = self._messages, Counter()
            size_bytes, self._bytes = self._bytes, Counter()
        for counter, gathered in ((self._metrics.consumed_messages, messages), (self._metrics.consumed_io, size_bytes)):
            for tp, count in gathered.items():
                attributes = {**metrics.group_attributes(self._group, tp), "messaging.operation.name": "poll"}
                counter.add(count, attributes)


def consumer_meter(group: str, clock: Clock) -> ConsumerMeter | None:
    """Return a meter where anybody looks at metrics. `group`: empty for a consumer without one."""
    return ConsumerMeter(group, clock) if metrics.active() else None
