"""A node's readings as OpenTelemetry's exporters take them: OTLP, the console, and whatever else is installed.

The readings are made into the SDK's own `MetricsData`, as the specification's metric producers do, and not passed
through its instruments: these cost 20 us a value at each collection, and 8 us for each measurement (bench/metrics.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from opentelemetry.sdk.metrics import Counter, Histogram
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from semel.broker.telemetry.instruments import Instrument, Kind
from semel.broker.telemetry.reading import Reading, Value
from semel.runtime.telemetry.buckets import Distribution
from semel.runtime.telemetry.otel_environment import exporter_class
from semel.runtime.threads import Threads

_log = logging.getLogger("semel.metrics")

SCOPE: Final = "semel.broker"
INTERVAL_MS: Final = 60_000.0
TIMEOUT_MS: Final = 30_000.0
_LAST_EXPORT_S: Final = 3.0
"""How long the end of a node waits for a collector."""

_CUMULATIVE: Final = sdk.AggregationTemporality.CUMULATIVE
_DELTA: Final = sdk.AggregationTemporality.DELTA

_Key: TypeAlias = tuple[str, tuple[str, ...]]


def make_exporters(names: Sequence[str]) -> list[sdk.MetricExporter]:
    """Return the exporters of these names, as the environment sets them up. Raises `ValueError`."""
    made = []
    for name in names:
        exporter = exporter_class("METRICS", name)()
        if not isinstance(exporter, sdk.MetricExporter):
            raise ValueError(
                f"OTEL_METRICS_EXPORTER={name} is nothing that a node exports to; for Prometheus, set metrics.listen"
            )
        made.append(exporter)
    return made


def milliseconds(environment: Mapping[str, str], name: str, default: float) -> float:
    """Return the value of a variable that is a number of milliseconds above 0. Raises `ValueError`."""
    text = environment.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={text} is not a number of milliseconds above 0")
    return value


class Export:
    """Sends readings to one exporter. Keeps what it sent, for those that want differences."""

    def __init__(self, exporter: sdk.MetricExporter, resource: Resource, start_ns: int) -> None:
        self._exporter = exporter
        self._resource = resource
        self._start_ns = start_ns
        self._previous_ns = start_ns
        self._sent: dict[_Key, Value] = {}
        preferred: Mapping[type, Any] = getattr(exporter, "_preferred_temporality", None) or {}
        self._temporality = {
            Kind.COUNTER: preferred.get(Counter, _CUMULATIVE),
            Kind.HISTOGRAM: preferred.get(Histogram, _CUMULATIVE),
        }
        self._thread = Threads(1, "semel-otlp")
        self._failing = False

    async def send(self, readings: Sequence[Reading], now_ns: int, timeout_ms: float) -> None:
        """Export, in a thread. Never raises for what an exporter does: without its telemetry, work continues."""
        data = self.metrics_data(readings, now_ns)
        loop = asyncio.get_running_loop()
        try:
            result = await loop.run_in_executor(self._thread, lambda: self._exporter.export(data, timeout_ms))
        except Exception as error:
            result, reason = sdk.MetricExportResult.FAILURE, str(error)
        else:
            reason = "see what the exporter logged"
        failed = result is not sdk.MetricExportResult.SUCCESS
        if failed and not self._failing:
            _log.warning("the metrics could not be exported, and are tried again: %s", reason)
        elif self._failing and not failed:
            _log.info("the metrics are exported again")
        self._failing = failed

    async def end(self, readings: Sequence[Reading], now_ns: int) -> None:
        """Export once more, and let go; a collector that does not answer is not waited for."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.send(readings, now_ns, _LAST_EXPORT_S * 1000), _LAST_EXPORT_S)
        try:
            self._exporter.shutdown()
        except Exception as error:
            _log.info("the exporter could not be shut down: %s", error)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def metrics_data(self, readings: Sequence[Reading], now_ns: int) -> sdk.MetricsData:
        """Return what the SDK's exporters take."""
        metrics = [self._metric(reading, now_ns) for reading in readings if reading.values]
        self._previous_ns = now_ns
        scope = sdk.ScopeMetrics(InstrumentationScope(SCOPE), metrics, "")
        return sdk.MetricsData([sdk.ResourceMetrics(self._resource, [scope], "")])

    def _metric(self, reading: Reading, now_ns: int) -> sdk.Metric:
        instrument = reading.instrument
        temporality = self._temporality.get(instrument.kind, _CUMULATIVE)
        is_delta = temporality is _DELTA
        start_ns = self._previous_ns if is_delta else self._start_ns
        points: list[Any] = []
        for labels, now in reading.values:
            value = self._since_last(instrument, labels, now) if is_delta else now
            # As in Prometheus, a label without a value is none: no error.
            attributes = {name: label for name, label in zip(instrument.labels, labels, strict=True) if label}
            if isinstance(value, Distribution):
                points.append(_histogram_point(value, attributes, start_ns, now_ns))
            else:
                points.append(sdk.NumberDataPoint(attributes, start_ns, now_ns, value))
        data: Any
        match instrument.kind:
            case Kind.COUNTER:
                data = sdk.Sum(points, temporality, is_monotonic=True)
            case Kind.GAUGE:
                data = sdk.Gauge(points)
            case Kind.HISTOGRAM:
                data = sdk.Histogram(points, temporality)
        return sdk.Metric(instrument.name, instrument.description, instrument.unit, data)

    def _since_last(self, instrument: Instrument, labels: tuple[str, ...], now: Value) -> Value:
        key = (instrument.name, labels)
        before, self._sent[key] = self._sent.get(key), now
        if before is None:
            return now
        if isinstance(now, Distribution) and isinstance(before, Distribution):
            counts = [new - old for new, old in zip(now.counts, before.counts, strict=True)]
            return Distribution(now.bounds, counts, now.total - before.total)
        assert not isinstance(now, Distribution)
        assert not isinstance(before, Distribution)
        # A group that was forgotten and is back counts from zero.
        return now - before if now >= before else now


def _histogram_point(
    value: Distribution, attributes: dict[str, str], start_ns: int, now_ns: int
) -> sdk.HistogramDataPoint:
    return sdk.HistogramDataPoint(
        attributes=attributes,
        start_time_unix_nano=start_ns,
        time_unix_nano=now_ns,
        count=sum(value.counts),
        sum=value.total,
        bucket_counts=list(value.counts),
        explicit_bounds=list(value.bounds),
        # Not known, and optional in the protocol.
        min=None,  # type: ignore[arg-type]
        max=None,  # type: ignore[arg-type]
    )
