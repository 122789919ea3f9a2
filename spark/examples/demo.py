"""`make demo-spark`: the ETL job on real flights, under crashes, written exactly once and at least once."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import semel
from semel.cli.demo.processes import NodeProcess
from semel.protocol.errors import FatalError
from semel.spark.examples.crashing_driver import AT_LEAST_ONCE, EXACTLY_ONCE
from semel.spark.examples.flights_etl import FLIGHTS, LATE, PARTITIONS, REPORT, load, report, session

DRIVER_TIMEOUT_S = 900
TOPICS = {EXACTLY_ONCE: LATE, AT_LEAST_ONCE: f"{LATE}-{AT_LEAST_ONCE}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=100_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="semel-demo-spark-") as name:
        folder = Path(name)
        node = NodeProcess(folder / "data")
        node.start()
        try:
            is_exact = run(node, folder, arguments.flights)
        finally:
            node.stop()
    sys.exit(0 if is_exact else 1)


def run(node: NodeProcess, folder: Path, count: int) -> bool:
    """Run both ways and say what came of them; return whether Semel's sink wrote each flight once."""
    spark = session("flights-report")  # before the first client: gRPC's fork handlers can end Java's start
    with semel.Admin(node.bootstrap) as admin:
        for topic in (FLIGHTS, REPORT, *TOPICS.values()):
            admin.create_topic(topic, partitions=PARTITIONS)
    late = load(node.bootstrap, count)
    print(f"{count} flights are in the topic {FLIGHTS!r}; {late} of them left more than 15 minutes late.")
    for way in TOPICS:
        started = time.monotonic()
        killed = drive(node, folder, way, kill_at_batch=1)
        ended = drive(node, folder, way)
        if killed != -signal.SIGKILL or ended != 0:
            raise FatalError(f"the drivers of {way} ended with {killed} and {ended}; see {folder / way}.log")
        print(
            f"{way}: in every batch a task died after writing; the driver was killed with SIGKILL in batch 1, and "
            f"another one finished ({time.monotonic() - started:.0f} s)."
        )
    print(f"\n{'':<16}{'late flights':>14}{'in the topic':>14}{'missing':>9}{'too many':>10}")
    faults = {}
    for way, topic in TOPICS.items():
        found = Counter(json.loads(value)["number"] for value in values(node.bootstrap, topic))
        missing, surplus = late - len(found), sum(found.values()) - len(found)
        faults[way] = missing + surplus
        print(f"{way:<16}{late:>14}{sum(found.values()):>14}{missing:>9}{surplus:>10}")
    with semel.Admin(node.bootstrap) as admin:
        lag = sum(place.lag for place in admin.group_lag("flights-etl").values())
    print(f"\nThe group 'flights-etl' was committed with the output: its lag is {lag}.")
    lines = report(spark, {"bootstrap": node.bootstrap}, str(folder / "late.parquet"))
    spark.stop()
    print(f"By carrier, through Parquet into {REPORT!r}:", ", ".join(f"{name} {number}" for name, number, _ in lines))
    return faults[EXACTLY_ONCE] == 0 and sum(number for _, number, _ in lines) == late


def drive(node: NodeProcess, folder: Path, way: str, kill_at_batch: int = -1) -> int:
    """Run a driver in a process of its own, and return how it ended."""
    command = [sys.executable, "-P", "-m", "semel.spark.examples.crashing_driver"]
    command += ["--grpc", node.bootstrap, "--checkpoint", str(folder / f"checkpoint-{way}"), "--way", way]
    command += ["--kill-at-batch", str(kill_at_batch)]
    with (folder / f"{way}.log").open("a") as log:
        driver = subprocess.run(  # noqa: S603
            command, stdout=log, stderr=log, timeout=DRIVER_TIMEOUT_S, check=False
        )
    if driver.returncode not in (0, -signal.SIGKILL):
        print((folder / f"{way}.log").read_text()[-3_000:], file=sys.stderr)
    return driver.returncode


def values(bootstrap: str, topic: str) -> list[bytes]:
    """All committed values of a topic, by Semel's own consumer."""
    found: list[bytes] = []
    with semel.Admin(bootstrap) as admin:
        tps = [semel.TopicPartition(topic, number) for number in range(PARTITIONS)]
        ends = {tp: place.offset for tp, place in admin.list_offsets(dict.fromkeys(tps, -1)).items()}
    with semel.Consumer(bootstrap, offset_reset="earliest") as consumer:
        consumer.assign(tps)
        while any((consumer.position(tp) or 0) < end for tp, end in ends.items()):
            found += [record.value or b"" for record in consumer.poll(timeout_s=1.0) or ()]
    return found


if __name__ == "__main__":
    main()
