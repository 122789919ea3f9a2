"""What one producer or consumer counts, where an OpenTelemetry SDK is set when it is made; else it has no meter at all.

By batch, never by record, and gathered: a call of OpenTelemetry's costs as much as hundreds of records. What was
gathered is given on a few times a second, and at the end.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.sdk.producer.delivery import ProducerBatch
from semel.sdk.producer.sender import Attempt, Outcome
from semel.sdk.telemetry import metrics

GIVEN_ON_EVERY_S: Final = 0.2

_SEND: Final = {**metrics.SYSTEM, "messaging.operation.name": "send", "messaging.operation.type": "send"}
_ACCEPTED: Final = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})


class _Sent:
    __slots__ = ("batches", "messages", "retries", "size_bytes")

    def __init__(self) -> None:
        self.messages = self.size_bytes = self.batches = self.retries = 0


class ProducerMeter:
    """Counts what a producer sends. On the IO thread."""

    def __init__(self) -> None:
        self._metrics = metrics.client_metrics()
        self._sent: defaultdict[TopicPartition, _Sent] = defaultdict(_Sent)
        self._begun: dict[int, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def sending(self, attempt: Attempt) -> None:
        """A request goes out."""
        self._begun[id(attempt)] = time.monotonic()
        for batch in attempt.batches:
            if batch.attempts > 1:
                self._sent[TopicPartition(batch.topic, batch.partition)].retries += 1
                self._arm()

    def answered(self, attempt: Attempt, outcomes: Mapping[TopicPartition, Outcome]) -> None:
        """An answer came. Call before the sender takes it, which lets go of the batches."""
        begun = self._begun.pop(id(attempt), None)
        if begun is not None:
            self._metrics.operation_duration.record(time.monotonic() - begun, _SEND)
        for batch in attempt.batches:
            tp = TopicPartition(batch.topic, batch.partition)
            outcome = outcomes.get(tp)
            if outcome is not None and outcome.error in _ACCEPTED and not batch.done and batch.data is not None:
                sent = self._sent[tp]
                sent.messages += batch.record_count
                sent.size_bytes += len(batch.data)
                sent.batches += 1
        self._arm()

    def lost(self, attempt: Attempt) -> None:
        """No answer will come."""
        begun = self._begun.pop(id(attempt), None)
        if begun is not None:
            self._metrics.operation_duration.record(time.monotonic() - begun, {**_SEND, "error.type": "lost"})

    def failed(self, batch: ProducerBatch, code: ErrorCode) -> None:
        """A batch was given up."""
        attributes = metrics.partition_attributes("send", batch.topic, batch.partition)
        self._metrics.failed_messages.add(batch.record_count, {**attributes, "error.type": code.name})

    def give_on(self) -> None:
        """Give on what was gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._sent = self._sent, defaultdict(_Sent)
        found = self._metrics
        for tp, sent in gathered.items():
            attributes = metrics.partition_attributes("send", *tp)
            if sent.messages:
                found.sent_messages.add(sent.messages, attributes)
                found.sent_io.add(sent.size_bytes, attributes)
                found.sent_batches.add(sent.batches, attributes)
            if sent.retries:
                found.retries.add(sent.retries, attributes)

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GIVEN_ON_EVERY_S, self.give_on)


class ConsumerMeter:
    """Counts what a consumer fetches and hands out. From any thread."""

    def __init__(self, group: str) -> None:
        self._metrics = metrics.client_metrics()
        self._group = group
        self._lock = threading.Lock()
        self._messages: Counter[TopicPartition] = Counter()
        self._bytes: Counter[TopicPartition] = Counter()
        self._due = 0.0
        self._handed_out_at: float | None = None

    def asked(self) -> None:
        """The program asks for more."""
        now = time.monotonic()
        if self._handed_out_at is not None:
            self._metrics.poll_interval.record(now - self._handed_out_at, metrics.SYSTEM)
            self._handed_out_at = None
        if now >= self._due:
            self.give_on()

    def handed_out(self, taken: Iterable[tuple[TopicPartition, int]]) -> None:
        """Records of partitions were handed out, so many."""
        with self._lock:
            for tp, messages in taken:
                self._messages[tp] += messages
        self._handed_out_at = time.monotonic()

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

    def give_on(self) -> None:
        """Give on what was gathered."""
        self._due = time.monotonic() + GIVEN_ON_EVERY_S
        with self._lock:
            messages, self._messages = self._messages, Counter()
            size_bytes, self._bytes = self._bytes, Counter()
        for counter, gathered in ((self._metrics.consumed_messages, messages), (self._metrics.consumed_io, size_bytes)):
            for tp, count in gathered.items():
                attributes = {**metrics.group_attributes(self._group, tp), "messaging.operation.name": "poll"}
                counter.add(count, attributes)


def producer_meter() -> ProducerMeter | None:
    """Return a meter where anybody looks at metrics."""
    return ProducerMeter() if metrics.active() else None


def consumer_meter(group: str) -> ConsumerMeter | None:
    """Return a meter where anybody looks at metrics. `group`: empty for a consumer without one."""
    return ConsumerMeter(group) if metrics.active() else None
