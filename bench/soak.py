"""A soak: a node under a steady load for an hour. Does anything grow that should not, and does each record come once?

    python -P bench/soak.py                  an hour
    python -P bench/soak.py --minutes 10     shorter
    python -P bench/soak.py --quick          half a minute: does it still run?

A producer sends numbered records at a fixed rate, a pipeline takes them to another topic in transactions, with their
offsets, and a checker reads those with read_committed and counts each number. Beside them topics, groups, connections,
transactional ids and producer ids come and go all the while. Retention, expiry and segments are set to minutes, so that
what is to be forgotten is forgotten many times in a run. The node is as it comes: durability `disk`.

Each minute has a line. The last lines say what was lost or doubled (exit code 1 where anything was), and compare the
node's memory, files and disk in the second quarter of the run with the last.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

import apache_kafka
from harness import Figure, NodeProcess, machine, number, percentile, running_node, write_json

import semel

IN, OUT, WORKERS = "in", "out", "workers"
PARTITIONS: Final = 3
RECORDS_A_SECOND: Final = 500
PADDING: Final = bytes(180)
VALUE: Final = struct.Struct(">qd")
"""Which record it is, and when it was sent, by the monotonic clock."""
CHURN_EVERY_S: Final = 5.0
COMMIT_EVERY_S: Final = 0.1
INSTANCE_S: Final = 20.0
"""So long an instance of the pipeline runs, before another one takes its place."""
DRAIN_S: Final = 60.0
SETTINGS: Final[Mapping[str, object]] = {
    "log.segment.bytes": 2 << 20,
    "log.retention.bytes": 8 << 20,
    "log.retention.check.interval.ms": 5_000,
    "log.segment.delete.delay.ms": 1_000,
    "producer.id.expiration.ms": 60_000,
    "transactional.id.expiration.ms": 60_000,
    "offsets.retention.minutes": 1,
    "offsets.retention.check.interval.ms": 10_000,
}


@dataclass
class Load:
    """What the threads share."""

    bootstrap: str
    over: threading.Event = field(default_factory=threading.Event)
    """The producer and what comes and goes end."""
    drained: threading.Event = field(default_factory=threading.Event)
    """The pipeline and the checker end."""
    sent: int = 0
    seen: bytearray = field(default_factory=bytearray)
    """How often each record came."""
    latencies_s: list[float] = field(default_factory=list)
    churned: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def come(self) -> int:
        return len(self.seen) - self.seen.count(0)

    @property
    def doubled(self) -> int:
        return sum(1 for times in self.seen if times > 1)


def produce(load: Load) -> None:
    with semel.Producer(load.bootstrap) as producer:
        begin = time.monotonic()
        while not load.over.is_set():
            due = int((time.monotonic() - begin) * RECORDS_A_SECOND)
            while load.sent < due:
                value = VALUE.pack(load.sent, time.monotonic()) + PADDING
                producer.send(IN, value, partition=load.sent % PARTITIONS)
                load.sent += 1
            time.sleep(0.02)
        producer.flush()


def transform(load: Load) -> None:
    """Instances of one pipeline, one after the other, each with the same transactional id."""
    while not load.drained.is_set():
        end = time.monotonic() + INSTANCE_S
        with (
            semel.Consumer(load.bootstrap, group=WORKERS, topics=[IN]) as consumer,
            semel.Producer(load.bootstrap, transactional_id=WORKERS) as producer,
        ):
            while time.monotonic() < end and not load.drained.is_set():
                batch = consumer.poll(timeout_s=0.5)
                if batch is None:
                    continue
                with producer.transaction(commits=batch):
                    for record in batch:
                        producer.send(OUT, record.value, partition=record.partition)
                time.sleep(COMMIT_EVERY_S)


def check(load: Load) -> None:
    with semel.Consumer(load.bootstrap, group="checkers", topics=[OUT]) as consumer:
        while not load.drained.is_set():
            batch = consumer.poll(timeout_s=0.5)
            if batch is None:
                continue
            now = time.monotonic()
            for record in batch:
                place, sent_s = VALUE.unpack_from(record.value)
                if place >= len(load.seen):
                    load.seen.extend(bytes(place + 1 - len(load.seen)))
                load.seen[place] = min(load.seen[place] + 1, 255)
                load.latencies_s.append(now - sent_s)
            consumer.commit()


def churn(load: Load) -> None:
    """Topics, groups, connections and ids that come once."""
    with semel.Admin(load.bootstrap) as admin:
        while not load.over.wait(CHURN_EVERY_S):
            name = f"passing-{load.churned}"
            admin.create_topic(name, partitions=10)
            for n in range(3):
                with semel.Producer(load.bootstrap, transactional_id=f"{name}-{n}") as producer, producer.transaction():
                    for partition in range(10):
                        producer.send(name, b"x" * 100, partition=partition)
            with semel.Consumer(load.bootstrap, group=name, topics=[name]) as consumer:
                if consumer.poll(timeout_s=5.0) is not None:
                    consumer.commit()
            admin.delete_topic(name)
            load.churned += 1


def guarded(load: Load, work: Callable[[Load], None]) -> threading.Thread:
    """Start a thread whose failure ends the run."""

    def run() -> None:
        try:
            work(load)
        except Exception as error:
            load.failures.append(f"{work.__name__}: {error!r}")
            load.over.set()

    thread = threading.Thread(target=run, name=work.__name__, daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True)
class Minute:
    """The node at the end of one minute."""

    memory_mb: float
    files: int
    """That the process has open."""
    on_disk: int
    """Files in the data directory."""
    disk_mb: float
    cpu_share: float
    p50_ms: float
    p99_ms: float


def look(node: NodeProcess, load: Load, cpu_before_s: float, seconds: float) -> Minute:
    latencies, load.latencies_s = load.latencies_s, []
    sizes = []
    for path in Path(node.folder).rglob("*"):
        try:
            sizes.append(path.stat().st_size if path.is_file() else 0)
        except FileNotFoundError:
            continue
    return Minute(
        node.memory_mb(),
        len(list(Path(f"/proc/{node.pid}/fd").iterdir())),
        len(sizes),
        sum(sizes) / 1e6,
        (node.cpu_s() - cpu_before_s) / seconds,
        percentile(latencies, 0.5) * 1e3 if latencies else 0.0,
        percentile(latencies, 0.99) * 1e3 if latencies else 0.0,
    )


def run(node: NodeProcess, minutes: float) -> tuple[Load, list[Minute]]:
    load = Load(node.grpc)
    with semel.Admin(node.grpc) as admin:
        admin.create_topic(IN, partitions=PARTITIONS)
        admin.create_topic(OUT, partitions=PARTITIONS)
    threads = [guarded(load, work) for work in (check, transform, produce, churn)]
    every_s = min(60.0, minutes * 60 / 6)
    print("| minute | records | end to end p50 | p99 | CPU | memory | open files | files | on disk |", flush=True)
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    found: list[Minute] = []
    begin = time.monotonic()
    while time.monotonic() - begin < minutes * 60 and not load.over.is_set():
        cpu_s = node.cpu_s()
        load.over.wait(every_s)
        one = look(node, load, cpu_s, every_s)
        found.append(one)
        print(
            f"| {(time.monotonic() - begin) / 60:.1f} | {load.come:,} | {one.p50_ms:.1f} ms | {one.p99_ms:.1f} ms "
            f"| {one.cpu_share:.0%} | {one.memory_mb:.1f} MB | {one.files} | {one.on_disk} | {one.disk_mb:.1f} MB |",
            flush=True,
        )
    load.over.set()
    end = time.monotonic() + DRAIN_S
    while load.come < load.sent and time.monotonic() < end and not load.failures:
        time.sleep(0.2)
    load.drained.set()
    for thread in threads:
        thread.join(DRAIN_S)
    return load, found


def growth(found: Sequence[Minute], of: Callable[[Minute], float]) -> tuple[float, float]:
    """Return the median of the second quarter of a run, and of the last one."""
    quarter = max(1, len(found) // 4)
    return (
        statistics.median(map(of, found[quarter : 2 * quarter] or found)),
        statistics.median(map(of, found[-quarter:])),
    )


def main() -> int:
    apache_kafka.end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default 60)")
    parser.add_argument("--quick", action="store_true", help="half a minute: to see that it runs")
    arguments = parser.parse_args()
    if arguments.minutes <= 0:
        parser.error("--minutes must be more than 0")
    minutes = 0.5 if arguments.quick else arguments.minutes
    print(", ".join(f"{key} {value}" for key, value in machine().items()), flush=True)
    with running_node(SETTINGS) as node:
        load, found = run(node, minutes)
    lost = load.sent - load.come
    print(f"{load.sent:,} records sent, {lost:,} lost, {load.doubled:,} doubled; {load.churned} topics came and went")
    for failure in load.failures:
        print(f"failed: {failure}")
    figures = []
    kinds: dict[str, tuple[str, Callable[[Minute], float]]] = {
        "memory": ("MB", lambda one: one.memory_mb),
        "open files": ("", lambda one: one.files),
        "files in the data directory": ("", lambda one: one.on_disk),
        "data directory": ("MB", lambda one: one.disk_mb),
        "CPU of a second": ("s", lambda one: one.cpu_share),
        "end to end p50": ("ms", lambda one: one.p50_ms),
        "end to end p99": ("ms", lambda one: one.p99_ms),
    }
    for name, (unit, of) in kinds.items():
        before, after = growth(found, of)
        print(
            f"{name}: {number(before)} {unit} in the second quarter, {number(after)} {unit} in the last".replace(
                "  ", " "
            )
        )
        figures.append(Figure("soak", name, after, unit, [of(one) for one in found]))
    print(f"written to {write_json('soak', figures)}")
    return 1 if lost or load.doubled or load.failures else 0


if __name__ == "__main__":
    sys.exit(main())
