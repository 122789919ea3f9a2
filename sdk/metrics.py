"""OpenTelemetry's instruments that the parts of the SDK share, named by its messaging conventions where they name one.

Only its API is used, and nothing of it where no SDK is set: then `active()` is one look into a dictionary.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider

T = TypeVar("T")

SYSTEM: Final = {"messaging.system": "kafka"}
OUTCOME: Final = "semel.transaction.outcome"


def active() -> bool:
    """Whether the program has set an OpenTelemetry SDK for metrics, so that they go anywhere."""
    if "opentelemetry.sdk.metrics" not in sys.modules:
        return False
    from opentelemetry.metrics import get_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider

    return isinstance(get_meter_provider(), MeterProvider)


@dataclass(frozen=True, slots=True)
class ClientMetrics:
    """What producers, consumers and transactions of any kind count."""

    sent_messages: Counter
    consumed_messages: Counter
    sent_io: Counter
    consumed_io: Counter
    operation_duration: Histogram
    transactions: Counter

    @classmethod
    def made_by(cls, meter: Meter) -> ClientMetrics:
        """Create the instruments."""
        return cls(
            meter.create_counter("messaging.client.sent.messages", "{message}", "Messages given to a node"),
            meter.create_counter("messaging.client.consumed.messages", "{message}", "Messages given to the program"),
            meter.create_counter("semel.client.sent.io", "By", "Bytes of record batches given to a node"),
            meter.create_counter("semel.client.consumed.io", "By", "Bytes of record batches read from a node"),
            meter.create_histogram("messaging.client.operation.duration", "s", "How long an operation took"),
            meter.create_counter("semel.client.transactions", "{transaction}", "Transactions, by what became of them"),
        )


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
