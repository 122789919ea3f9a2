"""Topics as Arrow columns and as files: `semel.arrow`, DuckDB, `semel export` and `semel import`, beside consumers.

.venv/bin/python -P bench/scan.py [--records 1000000] [--bytes 100] [--rounds 5] [--quick]

Every row reads all records of one topic of four partitions, or writes them. The rows take turns; the figures are
medians.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import confluent_kafka
import duckdb
from harness import running_node

import semel
import semel.arrow

PARTITIONS = 4


def scanned(bootstrap: str, columns: list[str]) -> int:
    return sum(batch.num_rows for batch in semel.arrow.scan("t", bootstrap=bootstrap, columns=columns))


def queried(bootstrap: str) -> int:
    t = semel.arrow.scan("t", bootstrap=bootstrap)  # noqa: F841 (DuckDB finds it by its name)
    ((count, _),) = duckdb.sql("SELECT count(*), sum(octet_length(value)) FROM t").fetchall()
    return int(count)


def consumed(bootstrap: str) -> int:
    tps = [semel.TopicPartition("t", number) for number in range(PARTITIONS)]
    count = 0
    with semel.Consumer(bootstrap) as consumer:
        consumer.assign(tps)
        ends = consumer.end_offsets(tps)
        while any((consumer.position(tp) or 0) < ends[tp] for tp in tps):
            count += len(consumer.poll(1.0, 10_000) or ())
    return count


def consumed_by_confluent(bootstrap: str, records: int) -> int:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("t", number, 0) for number in range(PARTITIONS)])
    count = 0
    while count < records:
        count += len(consumer.consume(10_000, 1.0))
    consumer.close()
    return count


def command(bootstrap: str, records: int, *words: str) -> int:
    full = [sys.executable, "-P", "-m", "semel.cli", *words, "--bootstrap", bootstrap]
    subprocess.run(full, check=True, capture_output=True)
    return records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="100,000 records and one round")
    options = parser.parse_args()
    records, rounds = (100_000, 1) if options.quick else (options.records, options.rounds)
    with running_node() as node, tempfile.TemporaryDirectory() as folder:
        bootstrap = node.bootstrap
        with semel.Admin(bootstrap) as admin:
            admin.create_topic("t", partitions=PARTITIONS)
        with semel.Producer(bootstrap, transactional_id="t") as producer:
            for first in range(0, records, 50_000):
                with producer.transaction() as transaction:
                    for number in range(first, min(first + 50_000, records)):
                        transaction.send("t", bytes(options.bytes), key=b"%d" % number, partition=number % PARTITIONS)
        out = Path(folder)

        def export(format_: str) -> int:
            shutil.rmtree(out / format_, ignore_errors=True)
            return command(bootstrap, records, "export", "t", str(out / format_), "--format", format_)

        def imported(format_: str) -> int:
            return command(bootstrap, records, "import", str(out / format_), f"copy-{time.time_ns()}", "--create")

        rows: dict[str, Callable[[], int]] = {
            "semel.arrow.scan, all columns": lambda: scanned(bootstrap, list(semel.arrow.COLUMNS)),
            "semel.arrow.scan, key and value": lambda: scanned(bootstrap, ["key", "value"]),
            "DuckDB over a scan": lambda: queried(bootstrap),
            "semel.Consumer": lambda: consumed(bootstrap),
            "confluent-kafka, consume(10,000)": lambda: consumed_by_confluent(bootstrap, records),
            "semel export, Parquet": lambda: export("parquet"),
            "semel export, JSON": lambda: export("json"),
            "semel import, Parquet": lambda: imported("parquet"),
            "semel import, JSON": lambda: imported("json"),
        }
        times: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(rounds):
            for name, run in rows.items():
                begun = time.perf_counter()
                assert run() == records
                times[name].append(time.perf_counter() - begun)
    print(f"{records:,} records of {options.bytes} B in {PARTITIONS} partitions, median of {rounds}")
    print(f"{'':34} {'records/s':>12} {'MB/s':>8} {'spread':>8}")
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        spread = (max(seconds) - min(seconds)) / middle
        print(f"{name:34} {records / middle:12,.0f} {records * options.bytes / middle / 1e6:8.1f} {spread:7.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
