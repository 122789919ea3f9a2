"""Instruments for what Spark's processes do: batches, attempts at tasks, what was committed, and lag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.sdk.telemetry.metrics import instruments

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, Meter

Gauge = Any
"""OpenTelemetry's API makes these, and has no public name for their type."""


@dataclass(frozen=True, slots=True)
class SinkMetrics:
    """Of the sink: in tasks, and where a batch is decided."""

    attempts: Counter
    batches: Counter
    committed_rows: Counter
    committed_io: Counter
    batch_duration: Histogram

    @classmethod
    def made_by(cls, meter: Meter) -> SinkMetrics:
        """Create the instruments."""
        return cls(
            meter.create_counter("semel.spark.attempts", "{attempt}", "Attempts at tasks that write, by outcome"),
            meter.create_counter("semel.spark.batches", "{batch}", "Batches, by outcome"),
            meter.create_counter("semel.spark.committed.rows", "{row}", "Rows of batches that this job committed"),
            meter.create_counter("semel.spark.committed.io", "By", "Bytes of batches that this job committed"),
            meter.create_histogram("semel.spark.batch.duration", "s", "From a batch's plan to write to its decision"),
        )


@dataclass(frozen=True, slots=True)
class SourceMetrics:
    """Of the source, where batches are planned."""

    lag: Gauge

    @classmethod
    def made_by(cls, meter: Meter) -> SourceMetrics:
        """Create the instruments."""
        return cls(meter.create_gauge("semel.spark.source.lag", "{record}", "Offsets that no batch has covered yet"))


@dataclass(frozen=True, slots=True)
class QueryMetrics:
    """Of whole queries, in the application's own process. See `LagListener`."""

    lag: Gauge
    rows: Counter
    phase_duration: Histogram

    @classmethod
    def made_by(cls, meter: Meter) -> QueryMetrics:
        """Create the instruments."""
        return cls(
            meter.create_gauge("semel.spark.query.lag", "{record}", "Offsets left to read after a batch"),
            meter.create_counter("semel.spark.query.rows", "{row}", "Rows that the batches of a query read"),
            meter.create_histogram(
                "semel.spark.query.phase.duration", "s", "Phases of a batch, as Spark measures them"
            ),
        )


def sink_metrics() -> SinkMetrics:
    """Return the sink's instruments. Call only where metrics are active."""
    return instruments(SinkMetrics.made_by)


def source_metrics() -> SourceMetrics:
    """Return the source's instruments. Call only where metrics are active."""
    return instruments(SourceMetrics.made_by)


def query_metrics() -> QueryMetrics:
    """Return the listener's instruments. Call only where metrics are active."""
    return instruments(QueryMetrics.made_by)
