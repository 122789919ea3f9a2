"""Reads a range of offsets as Arrow record batches, in the process of a task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from semel.protocol.arrow import ALL_COLUMNS, COLUMNS
from semel.sdk.arrow.range_reader import DataLossError, ReadOptions, read_range
from semel.sdk.transport.client import ClientCore
from semel.spark.source.offset_ranges import OffsetRange
from semel.spark.source.options import SourceOptions
from semel.spark.telemetry import rows_read

if TYPE_CHECKING:
    import pyarrow

ROWS_MAX: Final = 10_000
BYTES_MAX: Final = 2 << 20
"""The most in one Arrow batch for Spark: measured to be the best; smaller costs calls, larger memory and waiting."""


_LOSS_ADVICE: Final = "set option failOnDataLoss to 'false'"


def data_loss(what: str) -> DataLossError:
    """Return the error for records that are gone."""
    return ReadOptions(loss_advice=_LOSS_ADVICE).data_loss(what)


def read_options(options: SourceOptions) -> ReadOptions:
    """Return what the source's options say about reading ranges."""
    return ReadOptions(
        isolation=options.isolation,
        columns=ALL_COLUMNS if options.include_headers else COLUMNS,
        fetch_max_bytes=options.max_fetch_bytes,
        fetch_max_wait_ms=options.max_fetch_wait_ms,
        patience_ms=options.poll_timeout_ms,
        patience_option="kafkaConsumer.pollTimeoutMs",
        fail_on_data_loss=options.fail_on_data_loss,
        loss_advice=_LOSS_ADVICE,
        check_crc=options.check_crc,
        rack=options.rack,
    )


def read_rows(client: ClientCore, what: OffsetRange, options: SourceOptions) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records of a range in order, in batches of a size for Spark; see `read_range`."""
    rows = size_bytes = 0
    try:
        for piece in read_range(client, what.tp, what.start, what.end, read_options(options)):
            rows += piece.records.num_rows
            size_bytes += piece.size_bytes
            yield from _in_slices(piece.records)
    finally:
        rows_read(what.tp, rows, size_bytes)


def _in_slices(batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
    rows = batch.num_rows
    if not rows:
        return
    step = max(1, min(ROWS_MAX, BYTES_MAX * rows // max(1, batch.nbytes)))
    for first in range(0, rows, step):
        yield batch.slice(first, step)
