"""Streaming queries: `spark.readStream.format("semel")`.

One object plans all batches of a query, in a process of its own on the driver; `read` runs in tasks, on copies of
another object that has planned nothing. Offsets have Kafka's shape, so a query moves here with its checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from semel.protocol.ids import TopicPartition
from semel.spark.clients import client_for
from semel.spark.first_start import first_start, with_first_start
from semel.spark.options import offsets_from_json, offsets_to_json
from semel.spark.source.offset_ranges import OffsetRange, limited, split
from semel.spark.source.offsets import SourceOffsets
from semel.spark.source.options import SourceOptions
from semel.spark.source.reading import data_loss, read_rows
from semel.spark.source.schema import check_schema
from semel.spark.telemetry import planned

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

_log = logging.getLogger("semel.spark")

_CHECKPOINT = "the checkpoint's offsets"


class SemelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, and reads their parts in tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.parse(options, is_stream=True)
        check_schema(schema, with_headers=self._options.include_headers)
        self._offsets = SourceOffsets(self._options)
        self._initial: dict[str, Any] | None = None
        self._latest: dict[TopicPartition, int] | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._last_batch_at: float | None = None

    def __repr__(self) -> str:
        return f"SemelStreamReader({self._options.selection})"

    def initialOffset(self) -> dict[str, Any]:
        self._initial = offsets_to_json(self._offsets.resolve(self._options.start, self._partitions()))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._find_latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = offsets_from_json(start, _CHECKPOINT)
        latest = self._latest = self._target if self._target is not None else self._find_latest()
        added = latest.keys() - begin.keys()
        if added:
            # New partitions are read from their start, whatever startingOffsets says.
            begin |= {tp: min(first, latest[tp]) for tp, first in self._offsets.earliest(added).items()}
        planned(begin, latest)
        if not isinstance(limit, ReadAllAvailable) and self._is_too_little(begin, latest):
            return start
        end = limited(begin, latest, limit.max_rows) if isinstance(limit, ReadMaxRows) else dict(latest)
        if start == self._initial:
            self._last_batch_at = time.monotonic()
            return with_first_start(offsets_to_json(end), start)
        if end == offsets_from_json(start, _CHECKPOINT):
            return start  # Spark compares text: the same offsets in the same order, as another source wrote them
        self._last_batch_at = time.monotonic()
        return offsets_to_json(end)

    def _is_too_little(self, begin: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> bool:
        """Whether to wait for minOffsetsPerTrigger. Never longer than maxTriggerDelay, nor for the first batch."""
        minimum = self._options.min_offsets_per_trigger
        if minimum is None or self._target is not None or self._last_batch_at is None:
            return False
        if time.monotonic() - self._last_batch_at >= self._options.max_trigger_delay_ms / 1000:
            return False
        return sum(max(0, end - begin.get(tp, end)) for tp, end in latest.items()) < minimum

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else offsets_to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = offsets_from_json(start, _CHECKPOINT), offsets_from_json(end, _CHECKPOINT)
        kept = first_start(end, _CHECKPOINT)
        if kept is not None and first_start(start, _CHECKPOINT) is None:
            # The first batch: where it is repeated, Spark has asked for its start again, which may be elsewhere by now.
            # A later batch may have the same end, where there was nothing new, but then its start is that end, too.
            begin = kept
        for tp in sorted(begin.keys() - until.keys()):
            self._report_loss(f"{tp} is gone, from offset {begin[tp]} on")
        added = until.keys() - begin.keys()
        if added and not self._options.fail_on_data_loss:
            # Planned as new, and deleted before the batch was repeated. Nobody can say any more where they start.
            for tp in sorted(added.difference(self._partitions())):
                self._report_loss(f"the new {tp} is gone, up to offset {until.pop(tp)}")
            added &= until.keys()
        for tp, first in self._offsets.earliest(added).items():
            if first > 0:
                self._report_loss(f"the new {tp} starts at offset {first}, not at 0")
            begin[tp] = min(first, until[tp])
        ranges = []
        for tp in sorted(until):
            if until[tp] < begin[tp]:
                self._report_loss(f"{tp} ends at offset {until[tp]}, before the {begin[tp]} that was read up to")
            ranges.append(OffsetRange(tp.topic, tp.partition, begin[tp], until[tp]))
        return split(ranges, self._options.min_partitions, self._options.max_records_per_partition)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, OffsetRange)
        return read_rows(client_for(self._options.address), partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: it comes a batch late, and never for the last one. The sink commits offsets with its output."""

    def stop(self) -> None:
        """Nothing: the process ends with the query."""

    def _find_latest(self) -> dict[TopicPartition, int]:
        return self._offsets.latest(self._partitions())

    def _partitions(self) -> list[TopicPartition]:
        # A topic that is gone is reported, as lost data, where the batch is planned.
        return self._offsets.partitions(skip_missing=not self._options.fail_on_data_loss)

    def _report_loss(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise data_loss(what)
        _log.warning("%s; going on without what is lost (failOnDataLoss is false)", what)
