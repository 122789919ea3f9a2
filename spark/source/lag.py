"""How far a streaming query is behind: by topic and partition, after every batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.telemetry import metrics
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


def lag_of(end_offset: object, latest_offset: object) -> dict[TopicPartition, int]:
    """Return how many offsets lie between two of Kafka's shape, as text or parsed; empty for anything else."""
    try:
        end, latest = _parsed(end_offset), _parsed(latest_offset)
    except (ValueError, UsageError):
        return {}
    return {tp: max(0, offset - end.get(tp, 0)) for tp, offset in sorted(latest.items())}


class LagListener(StreamingQueryListener):
    """Reports the lag of every query of a session: `spark.streams.addListener(LagListener())`.

    report: called with the query's name (its id where it has none) and the lag of each partition; None: a line on
            standard error. Where several sources read one partition, its lag is that of the one that is most behind.

    Where the application has set an OpenTelemetry SDK, it also records lag, rows, and how long each phase took.
    """

    def __init__(self, report: Callable[[str, Mapping[TopicPartition, int]], object] | None = None) -> None:
        self._report = report or _print_lag

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        lag: dict[TopicPartition, int] = {}
        for source in progress.sources:
            for tp, behind in lag_of(source.endOffset, source.latestOffset).items():
                lag[tp] = max(behind, lag.get(tp, 0))
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


def _print_lag(query: str, lag: Mapping[TopicPartition, int]) -> None:
    """Say it where it is seen: few applications have set up Python's logging, and those give `report`."""
    behind = ", ".join(f"{tp} by {records}" for tp, records in lag.items() if records)
    line = f"query {query} is behind by {sum(lag.values())} records" + (f": {behind}" if behind else "")
    print(line, file=sys.stderr, flush=True)
