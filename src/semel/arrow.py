"""Topics as Arrow columns, for DuckDB, Polars, pandas, Parquet and whatever else takes Arrow.

    table = semel.arrow.read("orders", start="earliest", end="latest")
    orders = semel.arrow.scan("orders", start=kept)      # not read yet, and where it ends is settled: orders.end
    duckdb.sql("SELECT partition, count(*) FROM orders GROUP BY partition")

A batch of work reads a range of offsets once, and keeps where it ended beside its result: see `Scan`. A log that is
open in this process has `log.scan`. With asyncio, call these functions by `asyncio.to_thread`.
"""

from semel.protocol.arrow import ALL_COLUMNS, COLUMNS
from semel.sdk.arrow.range_reader import DataLossError
from semel.sdk.arrow.scan import Scan, read, scan

__all__ = ["ALL_COLUMNS", "COLUMNS", "DataLossError", "Scan", "read", "scan"]
