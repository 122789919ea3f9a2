"""OpenTelemetry's SDK in processes that no application has begun, such as Spark's: set up as the environment says.

What the SDK's own classes read, they read: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER,
OTEL_BSP_*, OTEL_METRIC_EXPORT_INTERVAL, OTEL_EXPORTER_OTLP_* and more. Only which exporters there are is looked at
here, by the names of OpenTelemetry's specification. Without any of them, this costs a look at the environment, once
per process.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Mapping
from typing import Final

from semel.runtime.telemetry.otel_environment import exporter_class, exporters_asked_for
from semel.sdk.telemetry import metrics, tracing

_log = logging.getLogger("semel.client")

FLUSH_TIMEOUT_S: Final = 3.0
"""How long the end of a piece of work may wait for a collector."""
_AFTER_TROUBLE_S: Final = 0.1


def start_from_environment() -> bool:
    """Set the SDK up in this process, once, where the environment asks for it and nobody has done so.

    Returns whether spans or metrics go anywhere. Never raises: without its telemetry, work continues.
    """
    global _looked_in
    if _looked_in != os.getpid():
        _looked_in = os.getpid()
        try:
            _start(os.environ)
        except Exception as error:  # whatever an exporter's constructor may raise
            _log.warning("no telemetry from this process: %s", error)
    return tracing.active() or metrics.active()


def flush(*, wait: bool = True) -> None:
    """Export what there is, for processes that may end at any time. Waits a moment if it is to, and never raises.

    The exporters retry beyond that, on a thread. Where a collector has been too slow once, nobody waits for it again
    until it has been quick.
    """
    global _flushing, _was_slow
    if not (tracing.active() or metrics.active()) or (_flushing is not None and _flushing.is_alive()):
        return
    _flushing = threading.Thread(target=_flush_all, name="semel-telemetry-flush", daemon=True)
    _flushing.start()
    if wait:
        _flushing.join(min(FLUSH_TIMEOUT_S, _AFTER_TROUBLE_S) if _was_slow else FLUSH_TIMEOUT_S)
        _was_slow = _flushing.is_alive()


_looked_in: int | None = None
_flushing: threading.Thread | None = None
_was_slow = False


def _start(environment: Mapping[str, str]) -> None:
    spans, points = exporters_asked_for("TRACES", environment), exporters_asked_for("METRICS", environment)
    if not spans and not points:
        return
    from opentelemetry.sdk.resources import Resource

    # Processes of one job count apart, and Spark runs many at a time: each is an instance of the service.
    resource = Resource.create({"service.instance.id": str(uuid.uuid4()), "process.pid": os.getpid()})
    if spans and not tracing.active():
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import set_tracer_provider

        tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        for name in spans:
            tracer_provider.add_span_processor(BatchSpanProcessor(exporter_class("TRACES", name)()))
        set_tracer_provider(tracer_provider)
    if points and not metrics.active():
        from opentelemetry.metrics import set_meter_provider
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

        readers: list[MetricReader] = []
        for name in points:
            exporter = exporter_class("METRICS", name)
            made = exporter()
            readers.append(made if isinstance(made, MetricReader) else PeriodicExportingMetricReader(made))
        set_meter_provider(MeterProvider(readers, resource, shutdown_on_exit=False))


def _flush_all() -> None:
    from opentelemetry.metrics import get_meter_provider
    from opentelemetry.trace import get_tracer_provider

    for provider in (get_tracer_provider(), get_meter_provider()):
        force_flush = getattr(provider, "force_flush", None)
        if force_flush is not None:
            try:
                force_flush()
            except Exception as error:  # a reader that ran out of time, or whatever an exporter raises
                _log.info("telemetry could not be exported: %s", error)
