"""How far a streaming query is behind: by topic and partition, after every batch."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk import metrics
from semel.spark.metrics import query_metrics
from semel.spark.options import offsets_from_json

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

_log = logging.getLogger("semel.spark")


def lag_of(end_offset: object, latest_offset: object) -> dict[TopicPartition, int]:
    """Return how many offsets lie between two of Kafka's shape, as text or parsed; empty for anything else."""
    try:
        end, latest = _parsed(end_offset), _parsed(latest_offset)
    except (ValueError, UsageError):
        return {}
    return {tp: max(0, offset - end.get(tp, 0)) for tp, offset in sorted(latest.items())}


class LagListener(StreamingQueryListener):
    """Reports the lag of every query of a session: `spark.streams.addListener(LagListener())`.

    report: called with the query's name (its id where it has none) and the lag of each partition; None: a log line.

    Where the application has set an OpenTelemetry SDK, it also records lag, rows, and how long each phase took.
    """

    def __init__(self, report: Callable[[str, Mapping[TopicPartition, int]], object] | None = None) -> None:
        self._report = report or _log_lag

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        lag: dict[TopicPartition, int] = {}
        for source in progress.sources:
            lag |= lag_of(source.endOffset, source.latestOffset)
        name = progress.name or str(progress.id)
        if metrics.active():
            _record(name, progress, lag)
        if lag:
            self._report(name, lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing new was read."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing left to report."""


def _parsed(offset: object) -> dict[TopicPartition, int]:
    value: Any = json.loads(offset) if isinstance(offset, str) else offset
    return offsets_from_json(value, "an offset") if isinstance(value, dict) else {}


def _record(name: str, progress: StreamingQueryProgress, lag: Mapping[TopicPartition, int]) -> None:
    found, query = query_metrics(), {"semel.spark.query": name}
    for tp, behind in lag.items():
        where = {"messaging.destination.name": tp.topic, "messaging.destination.partition.id": str(tp.partition)}
        found.lag.set(behind, {**query, **metrics.SYSTEM, **where})
    found.rows.add(progress.numInputRows, query)
    for phase, duration_ms in progress.durationMs.items():
        found.phase_duration.record(duration_ms / 1_000, {**query, "semel.spark.phase": phase})


def _log_lag(query: str, lag: Mapping[TopicPartition, int]) -> None:
    _log.info("query %s is behind by %s records: %s", query, sum(lag.values()), {str(tp): n for tp, n in lag.items()})
