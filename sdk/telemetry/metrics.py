"""OpenTelemetry's instruments that the parts of the SDK share, named by its messaging conventions where they name one.

Only its API is used, and nothing of it where no SDK is set: then `active()` is one look into a dictionary.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from semel.protocol.ids import TopicPartition

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider

T = TypeVar("T")

PUBLISH_EVERY_S: Final = 0.2
SYSTEM: Final = {"messaging.system": "kafka"}
OUTCOME: Final = "semel.transaction.outcome"


def active() -> bool:
    """Whether the program has set an OpenTelemetry SDK for metrics, so that they go anywhere."""
    if "opentelemetry.sdk.metrics" not in sys.modules:
        return False
    from opentelemetry.metrics import get_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider

    return isinstance(get_meter_provider(), MeterProvider)


class Row(NamedTuple):
    """One metric of clients: of the table that the instruments and docs/metrics.md are made from."""

    name: str
    unit: str
    kind: str
    description: str


CLIENT_INSTRUMENTS: Final[Mapping[str, Row]] = MappingProxyType(
    {
        "sent_messages": Row(
            "messaging.client.sent.messages", "{message}", "counter", "Messages that a node acknowledged"
        ),
        "consumed_messages": Row(
            "messaging.client.consumed.messages", "{message}", "counter", "Messages given to the program"
        ),
        "sent_io": Row("semel.client.sent.io", "By", "counter", "Bytes of record batches that a node acknowledged"),
        "consumed_io": Row("semel.client.consumed.io", "By", "counter", "Bytes of record batches read from a node"),
        "sent_batches": Row(
            "semel.client.sent.batches",
            "{batch}",
            "counter",
            "Batches acknowledged: messages and bytes by it are sizes",
        ),
        "retries": Row("semel.client.retries", "{batch}", "counter", "Batches that were sent again"),
        "failed_messages": Row(
            "semel.client.failed.messages", "{message}", "counter", "Messages that were given up, by the error"
        ),
        "operation_duration": Row(
            "messaging.client.operation.duration", "s", "histogram", "How long an operation took: send, commit, abort"
        ),
        "transactions": Row(
            "semel.client.transactions", "{transaction}", "counter", "Transactions, by what became of them"
        ),
        "skipped_batches": Row(
            "semel.client.skipped.batches", "{batch}", "counter", "Batches that could not be read and were passed over"
        ),
        "rebalances": Row("semel.client.rebalances", "{rebalance}", "counter", "Assignments that a group gave"),
        "poll_interval": Row(
            "semel.client.poll.interval",
            "s",
            "histogram",
            "From the return of records to the next poll",
        ),
        "buffer_usage": Row("semel.client.buffer.usage", "By", "gauge", "Memory of producers that holds records"),
        "buffer_limit": Row("semel.client.buffer.limit", "By", "gauge", "The bound of that: buffer_memory_bytes"),
        "lag": Row("semel.client.lag", "{message}", "gauge", "How far a consumer is behind, by assigned partition"),
    }
)
"""What producers, consumers and transactions count: each field of `ClientMetrics`, and what is observed."""


class Buffered(Protocol):
    """A producer, as far as its buffer is observed."""

    def buffer_bytes(self) -> tuple[int, int]:
        """Return what is used, and the bound."""
        ...


class Lagging(Protocol):
    """A consumer, as far as its lag is observed."""

    def lags(self) -> Mapping[TopicPartition, int]: ...

    @property
    def group_name(self) -> str: ...


producers: Final[weakref.WeakSet[Buffered]] = weakref.WeakSet()
"""Those whose buffers are observed."""
consumers: Final[weakref.WeakSet[Lagging]] = weakref.WeakSet()
"""Those whose lags are observed."""


@dataclass(frozen=True, slots=True)
class ClientMetrics:
    """What producers, consumers and transactions of any kind count."""

    sent_messages: Counter
    consumed_messages: Counter
    sent_io: Counter
    consumed_io: Counter
    sent_batches: Counter
    retries: Counter
    failed_messages: Counter
    operation_duration: Histogram
    transactions: Counter
    skipped_batches: Counter
    rebalances: Counter
    poll_interval: Histogram

    @classmethod
    def made_by(cls, meter: Meter) -> ClientMetrics:
        """Create the instruments, those that are observed too."""
        from opentelemetry.metrics import Observation

        def used(_: object) -> Iterator[Observation]:
            yield Observation(sum(each.buffer_bytes()[0] for each in tuple(producers)), SYSTEM)

        def limit(_: object) -> Iterator[Observation]:
            yield Observation(sum(each.buffer_bytes()[1] for each in tuple(producers)), SYSTEM)

        def lag(_: object) -> Iterator[Observation]:
            for consumer in tuple(consumers):
                for tp, behind in consumer.lags().items():
                    yield Observation(behind, group_attributes(consumer.group_name, tp))

        for field, observe in (("buffer_usage", used), ("buffer_limit", limit), ("lag", lag)):
            row = CLIENT_INSTRUMENTS[field]
            meter.create_observable_gauge(row.name, [observe], row.unit, row.description)
        made = {}
        for field, row in CLIENT_INSTRUMENTS.items():
            if row.kind != "gauge":
                create = meter.create_counter if row.kind == "counter" else meter.create_histogram
                made[field] = create(row.name, row.unit, row.description)
        return cls(**made)  # type: ignore[arg-type]


def client_metrics() -> ClientMetrics:
    """Return the instruments. Call only where `active()`."""
    return instruments(ClientMetrics.made_by)


def instruments(make: Callable[[Meter], T]) -> T:
    """Return what `make` makes with the meter, made once for each provider. Call only where `active()`."""
    from opentelemetry.metrics import get_meter_provider

    made: T = _made(get_meter_provider(), make)
    return made


def partition_attributes(operation: str, topic: str, partition: int) -> dict[str, str]:
    """Return the attributes of messages to or from a partition."""
    return {
        **SYSTEM,
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(partition),
    }


def group_attributes(group: str, tp: TopicPartition) -> dict[str, str]:
    """Return the attributes of a partition that a consumer reads, in a group or in none."""
    attributes = {
        **SYSTEM,
        "messaging.destination.name": tp.topic,
        "messaging.destination.partition.id": str(tp.partition),
    }
    if group:
        attributes["messaging.consumer.group.name"] = group
    return attributes


def transaction_ended(outcome: str, duration_s: float) -> None:
    """Count a transaction: committed, already_committed, aborted, fenced or failed. Does nothing without an SDK."""
    if active():
        found = client_metrics()
        found.transactions.add(1, {**SYSTEM, OUTCOME: outcome})
        operation = "abort" if outcome == "aborted" else "commit"
        attributes = {**SYSTEM, "messaging.operation.name": operation, "messaging.operation.type": "settle"}
        if outcome in ("fenced", "failed"):
            attributes["error.type"] = outcome
        found.operation_duration.record(duration_s, attributes)


@cache
def _made(provider: MeterProvider, make: Callable[[Meter], Any]) -> Any:
    return make(provider.get_meter("semel"))
