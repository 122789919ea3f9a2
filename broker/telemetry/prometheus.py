"""A node's readings as Prometheus wants them: its text format, or OpenMetrics, as the request's Accept header says."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from semel.broker.telemetry.instruments import Instrument, Kind, prometheus_label
from semel.broker.telemetry.reading import Reading
from semel.runtime.telemetry.buckets import Distribution


def page(
    readings: Sequence[Reading], resource: Mapping[str, str], accept: str, accept_encoding: str
) -> tuple[bytes, str, bool]:
    """Return the whole page, its content type, and whether it is compressed. `resource`: the labels of `target_info`.

    Takes milliseconds for thousands of series: not for the event loop's thread.
    """
    encode, content_type = choose_encoder(accept)
    text = encode(_Page(readings, resource))
    if gzip_accepted(accept_encoding):
        return gzip.compress(text, compresslevel=1), content_type, True
    return text, content_type, False


class _Page(Collector):
    def __init__(self, readings: Sequence[Reading], resource: Mapping[str, str]) -> None:
        self._readings = readings
        self._resource = resource

    def collect(self) -> Iterator[Metric]:
        target = InfoMetricFamily("target", "The node, as OpenTelemetry's resource names it.")
        target.add_metric((), {prometheus_label(name): value for name, value in self._resource.items()})
        yield target
        for reading in self._readings:
            yield _family(reading)


def _family(reading: Reading) -> Metric:
    instrument = reading.instrument
    if instrument.kind is Kind.HISTOGRAM:
        return _histogram(instrument, reading)
    kind = CounterMetricFamily if instrument.kind is Kind.COUNTER else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = kind(
        instrument.prometheus_name, instrument.description, labels=instrument.prometheus_labels
    )
    for labels, value in reading.values:
        assert not isinstance(value, Distribution), f"{instrument.name} is no histogram"
        family.add_metric(labels, value)
    return family


def _histogram(instrument: Instrument, reading: Reading) -> Metric:
    family = HistogramMetricFamily(
        instrument.prometheus_name, instrument.description, labels=instrument.prometheus_labels
    )
    for labels, value in reading.values:
        assert isinstance(value, Distribution), f"{instrument.name} is a histogram"
        bounds = [*(_bound(bound) for bound in value.bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(value.counts), strict=True)), value.total)
    return family


def _bound(bound: float) -> str:
    """OpenMetrics writes numbers as floats; so does this, so that both formats have the same labels."""
    return repr(float(f"{bound:.6g}"))
