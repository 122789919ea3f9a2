"""What one producer counts, where an OpenTelemetry SDK is set when it is made; else it has no meter at all.

By batch, never by record, and gathered: a call of OpenTelemetry's costs as much as hundreds of records. What was
gathered is published a few times a second, and at the end.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.runtime.clock import Clock
from semel.sdk.producer.delivery import ProducerBatch
from semel.sdk.producer.sender import Attempt, Outcome
from semel.sdk.telemetry import metrics

_SEND: Final = {**metrics.SYSTEM, "messaging.operation.name": "send", "messaging.operation.type": "send"}
_ACCEPTED: Final = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})


class _Sent:
    __slots__ = ("batches", "messages", "retries", "size_bytes")

    def __init__(self) -> None:
        self.messages = self.size_bytes = self.batches = self.retries = 0


class ProducerMeter:
    """Counts what a producer sends. On the IO thread."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._metrics = metrics.client_metrics()
        self._sent: defaultdict[TopicPartition, _Sent] = defaultdict(_Sent)
        self._begun: dict[int, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def sending(self, attempt: Attempt) -> None:
        """A request goes out."""
        self._begun[id(attempt)] = self._now()
        for batch in attempt.batches:
            if batch.attempts > 1:
                self._sent[TopicPartition(batch.topic, batch.partition)].retries += 1
                self._arm()

    def answered(self, attempt: Attempt, outcomes: Mapping[TopicPartition, Outcome]) -> None:
        """An answer came. Call before the sender takes it, which lets go of the batches."""
        begun = self._begun.pop(id(attempt), None)
        if begun is not None:
            self._metrics.operation_duration.record(self._now() - begun, _SEND)
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
            self._metrics.operation_duration.record(self._now() - begun, {**_SEND, "error.type": "lost"})

    def failed(self, batch: ProducerBatch, code: ErrorCode) -> None:
        """A batch was given up."""
        attributes = metrics.partition_attributes("send", batch.topic, batch.partition)
        self._metrics.failed_messages.add(batch.record_count, {**attributes, "error.type": code.name})

    def publish(self) -> None:
        """Publish what was gathered."""
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
            self._timer = asyncio.get_running_loop().call_later(metrics.PUBLISH_EVERY_S, self.publish)


def producer_meter(clock: Clock) -> ProducerMeter | None:
    """Return a meter where anybody looks at metrics."""
    return ProducerMeter(clock) if metrics.active() else None
