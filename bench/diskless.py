"""Diskless topics: PostgreSQL for order, and an object store in memory that answers as slowly as S3 (by a model).

    python -P bench/diskless.py           about two minutes; PostgreSQL has to be installed
    python -P bench/diskless.py --quick   once and small: does it still run?
    python -P bench/diskless.py --growth 10000000   what many entries leave behind; about ten minutes

The store's PUT takes 80 ms, 300 ms at the 99th percentile, its GET 20 and 100. The client is librdkafka, in this
process, beside the node: both share the machine's cores with PostgreSQL.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

import sqlalchemy as sa
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from harness import Figure, data_folder, machine, number, percentile, print_table, write_json

import semel
from semel.broker.diskless.rows import DisklessRows, Entry, NewClaim, NewEntry
from semel.cli.demo.database import DemoDatabase
from semel.protocol.crc32c import crc32c

RECORD_BYTES: Final = 1_000
PARTITIONS: Final = 8
TOPIC: Final = "events"
ON_DISK: Final = "switched"
MANY_PARTITIONS = 2_000
MANY: Final = 500
"""So many partitions one commit has at most."""
TRIMMED_EVERY: Final = 100
GIB: Final = 1 << 30
MONTH_S: Final = 30 * 86_400
PUT_COSTS, GIB_MONTH_COSTS, ZONE_GIB_COSTS = 0.005 / 1_000, 0.023, 0.02
"""List prices of S3 Standard and of traffic between zones (both directions) in us-east-1, in dollars."""


class Running:
    """A node on a modelled store."""

    def __init__(self, folder: str, url: str, *settings: str) -> None:
        script = Path(__file__).with_name("modelled_node.py")
        with open(f"{folder}.log", "a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(script), folder, url, *settings],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        assert words[:1] == ["ready"], Path(f"{folder}.log").read_text()[-2_000:]
        self.kafka, self.grpc = words[1:]

    def counted(self) -> dict[str, int]:
        """Return what it has asked of the store, and committed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, int] = json.loads(self._process.stdout.readline())
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Latencies:
    """How long records took until they were acknowledged, and until they were read, in milliseconds."""

    def __init__(self) -> None:
        self.acknowledged: list[float] = []
        self.read: list[float] = []


def paced(node: Running, bytes_per_second: float, seconds: float, topic: str = TOPIC) -> Latencies:
    """Produce at a rate, and read at the same time."""
    found, done = Latencies(), threading.Event()
    reader = threading.Thread(target=read, args=(node, topic, found, done))
    reader.start()
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 5, "acks": "all"})
    begun, sent = time.monotonic(), 0
    body = os.urandom(RECORD_BYTES - 8)

    def acknowledged(error: object, message: Message) -> None:
        assert error is None, error
        sent_ns = int.from_bytes((message.value() or b"")[:8], "big")
        found.acknowledged.append((time.monotonic_ns() - sent_ns) / 1e6)

    while (elapsed := time.monotonic() - begun) < seconds:
        wanted = int(elapsed * bytes_per_second / RECORD_BYTES)
        while sent < wanted:
            value = time.monotonic_ns().to_bytes(8, "big") + body
            is_sample = sent % 20 == 0
            try:
                producer.produce(topic, value, on_delivery=acknowledged if is_sample else None)
            except BufferError:
                producer.poll(0.01)
                continue
            sent += 1
        producer.poll(0.001)
    assert producer.flush(60) == 0
    time.sleep(0.5)
    done.set()
    reader.join()
    return found


def read(node: Running, topic: str, found: Latencies, done: threading.Event) -> None:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "bench", "queued.min.messages": 10_000_000})
    consumer.assign([TopicPartition(topic, each, -1) for each in range(PARTITIONS)])
    count = 0
    while not done.is_set():
        for message in consumer.consume(1_000, 0.05):
            if message.error() is None:
                if count % 20 == 0:
                    sent_ns = int.from_bytes((message.value() or b"")[:8], "big")
                    found.read.append((time.monotonic_ns() - sent_ns) / 1e6)
                count += 1
    consumer.close()


def switched(node: Running, bytes_per_second: float, seconds: float) -> tuple[Latencies, float]:
    """Make a topic diskless while it is written to; return how long records took, and the seconds until it was."""
    took: list[float] = []

    def operator() -> None:
        time.sleep(seconds / 4)
        begun = time.monotonic()
        with semel.Admin(node.grpc) as admin:
            admin.alter_topic_configs(ON_DISK, changes={"diskless.enable": "true"})
            while any(one.is_switching for one in admin.topic(ON_DISK).partitions):
                time.sleep(0.05)
        took.append(time.monotonic() - begun)

    thread = threading.Thread(target=operator)
    thread.start()
    found = paced(node, bytes_per_second, seconds, ON_DISK)
    thread.join()
    return found, took[0]


def transactions(node: Running, seconds: float) -> list[float]:
    """Return how long transactions of one record took, in milliseconds."""
    took: list[float] = []
    with semel.Producer(node.grpc, transactional_id="bench") as producer:
        with producer.transaction():
            producer.send(TOPIC, b"the first of everything", partition=0)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            begun = time.monotonic()
            with producer.transaction():
                producer.send(TOPIC, b"x" * 100, partition=0)
            took.append((time.monotonic() - begun) * 1_000)
    return took


def statements(url: str, partitions: int, count: int) -> list[float]:
    """Return how long a commit of one small entry in each of so many partitions took, in milliseconds."""
    rows = DisklessRows(url)
    topic_id, data = uuid.uuid4(), b"x" * 200
    rows.claim_all([NewClaim((topic_id, each), "bench", 0, 1) for each in range(partitions)])
    took: list[float] = []
    for at in range(count):
        entry = Entry(at, at + 1, "", 0, len(data), crc32c(data), data)
        entries = [NewEntry((topic_id, each), "bench", entry) for each in range(partitions)]
        begun = time.monotonic()
        assert len(rows.commit(entries).led) == partitions
        took.append((time.monotonic() - begun) * 1_000)
    rows.forget_topic(str(topic_id))
    rows.close()
    return took


def growth(url: str, entries: int) -> list[Figure]:
    """Commit so many entries to 500 partitions, which are trimmed as segments take them, and compare the first tenth
    with the last: what is gone must cost nothing.
    """
    rows, engine = DisklessRows(url), sa.create_engine(url)
    topic_id, data = uuid.uuid4(), b"x" * 200
    keys = [(topic_id, each) for each in range(MANY)]
    rows.claim_all([NewClaim(key, "bench", 0, 1) for key in keys])
    commits = entries // MANY
    took: list[float] = []
    sizes: list[int] = []
    for at in range(commits):
        entry = Entry(at, at + 1, "", 0, len(data), crc32c(data), data)
        begun = time.monotonic()
        assert len(rows.commit([NewEntry(key, "bench", entry) for key in keys]).led) == MANY
        took.append((time.monotonic() - begun) * 1_000)
        if at % TRIMMED_EVERY == TRIMMED_EVERY - 1:
            for key in keys:
                rows.trim(key, at + 1)
        if (at + 1) % max(commits // 10, 1) == 0:
            with engine.connect() as connection:
                sizes.append(connection.scalar(sa.text("SELECT pg_database_size(current_database())")) or 0)
            print(f"{(at + 1) * MANY:,} entries: {sizes[-1] / (1 << 20):.0f} MiB in the database", file=sys.stderr)
    rows.close()
    engine.dispose()
    tenth = max(commits // 10, 1)
    found: list[Figure] = []
    for name, part, size in (("first", took[:tenth], sizes[0]), ("last", took[-tenth:], sizes[-1])):
        found += latency(f"{commits * MANY:,} entries, the {name} tenth: a commit of {MANY}", part)
        found.append(Figure("diskless", f"the database after the {name} tenth", size / (1 << 20), "MiB"))
    return found


def many_partitions(node: Running, count: int) -> float:
    """Return the seconds until a new topic of so many partitions has a record in each."""
    begun = time.monotonic()
    with semel.Admin(node.grpc) as admin, semel.Producer(node.grpc) as producer:
        admin.create_topic("many", partitions=count)
        for each in range(count):
            producer.send("many", b"the first", partition=each)
        producer.flush()
        taken_s = time.monotonic() - begun
        admin.delete_topic("many")
    return taken_s


def take_over(node: Running, folder: str, url: str) -> tuple[Running, float]:
    """Kill a node, and return another one on the same rows, with the seconds until it serves what it has read.

    What only the modelled store had is gone with the process, so this topic has small entries alone.
    """
    with semel.Producer(node.grpc) as producer:
        for at in range(400):
            producer.send("small", b"%d" % at, partition=0).result()
    node.kill()
    begun = time.monotonic()
    again = Running(folder, url)
    with semel.Producer(again.grpc) as producer:
        producer.send("small", b"after", partition=0).result()
    return again, time.monotonic() - begun


def latency(name: str, values: list[float]) -> list[Figure]:
    return [
        Figure("diskless", f"{name}, {which}", percentile(values, share), "ms")
        for which, share in (("p50", 0.5), ("p99", 0.99))
    ]


def costs(objects_a_second: float, segment_puts: float) -> list[Figure]:
    """A month at three rates, kept for seven days: beside topics with three replicas in three zones.

    objects_a_second: as measured; more where they would be larger than 8 MiB
    segment_puts: for each GiB
    """
    figures = []
    for mib in (1, 10, 100):
        gib_a_month, held_gib = mib * MONTH_S / 1_024, mib * 7 * 86_400 / 1_024
        puts = max(objects_a_second, mib / 8) * MONTH_S + gib_a_month * segment_puts
        diskless = puts * PUT_COSTS + held_gib * GIB_MONTH_COSTS
        classic = gib_a_month * 2 * ZONE_GIB_COSTS + 3 * held_gib * 0.08
        figures.append(
            Figure("diskless", f"a month at {mib} MiB/s", diskless, "$", bound=f"three replicas: {number(classic)} $")
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--growth", type=int, metavar="ENTRIES", help="commit so many entries alone, 10000000 say")
    parser.add_argument("--rate", type=float, default=20.0, metavar="MB/s")
    parser.add_argument(
        "--interval", type=int, default=100, metavar="MS", help="diskless.append.commit.interval.ms (default 100)"
    )
    arguments = parser.parse_args()
    interval = f"diskless.append.commit.interval.ms={arguments.interval}"
    seconds, rate = (3.0, 5.0) if arguments.quick else (20.0, arguments.rate)
    binaries = DemoDatabase.find()
    if binaries is None:
        raise SystemExit("PostgreSQL is not installed: apt-get install postgresql")
    database = DemoDatabase(binaries)
    database.make()
    figures: list[Figure] = []
    try:
        url, _ = database.link()
        if arguments.growth:
            rows = DisklessRows(url)
            rows.create()
            rows.close()
            print_table(growth(url, arguments.growth))
            return
        with data_folder() as folder:
            os.mkdir(folder)
            node = Running(folder, url, interval)
            with semel.Admin(node.grpc) as admin:
                admin.create_topic(TOPIC, partitions=PARTITIONS)
                admin.create_topic("small", partitions=1)
                admin.create_topic(ON_DISK, partitions=PARTITIONS, configs={"diskless.enable": "false"})
            paced(node, 1e6, 1.0)  # the first of everything
            for name, a_second in (("20 records a second", 20_000.0), (f"{rate:g} MB/s", rate * 1e6)):
                before = node.counted()
                found = paced(node, a_second, seconds)
                after = {what: count - before[what] for what, count in node.counted().items()}
                figures += latency(f"{name}: acknowledged", found.acknowledged)
                figures += latency(f"{name}: read", found.read)
                figures.append(_of(name, "commits a second", after["commits"] / seconds))
                figures.append(_of(name, "rows a second", after["entries"] / seconds))
                figures.append(_of(name, "objects a second", after["objects"] / seconds))
            objects_a_second = after["objects"] / seconds
            put_per_gib = after["put"] / (rate * 1e6 * seconds / GIB)
            figures.append(Figure("diskless", f"{rate:g} MB/s: PUT a GiB", put_per_gib, ""))
            for name, a_second in (("20 records a second", 20_000.0), (f"{rate:g} MB/s", rate * 1e6)):
                if a_second > 20_000.0:
                    with semel.Admin(node.grpc) as admin:
                        admin.delete_topic(ON_DISK)
                        admin.create_topic(ON_DISK, partitions=PARTITIONS, configs={"diskless.enable": "false"})
                found, switched_s = switched(node, a_second, seconds)
                figures += latency(f"{name}, becoming diskless: acknowledged", found.acknowledged)
                figures.append(
                    Figure("diskless", f"{name}, becoming diskless: the longest", max(found.acknowledged), "ms")
                )
                figures.append(Figure("diskless", f"{name}: until all partitions are diskless", switched_s, "s"))
            took = transactions(node, seconds / 4)
            figures += latency("a transaction of one record", took)
            figures.append(Figure("diskless", "transactions a second", 1_000 * len(took) / sum(took), ""))
            many_s = many_partitions(node, MANY_PARTITIONS)
            figures.append(
                Figure("diskless", f"a new topic of {MANY_PARTITIONS:,} partitions, a record in each", many_s, "s")
            )
            node, again_s = take_over(node, folder, url)
            figures.append(Figure("diskless", "killed, and serves again from 400 entries", again_s, "s"))
            node.kill()
        for partitions in (1, 100):
            took = statements(url, partitions, 20 if arguments.quick else 200)
            figures += latency(f"the commit of {partitions} partitions", took)
        figures += costs(objects_a_second, put_per_gib - objects_a_second * GIB / (rate * 1e6))
    finally:
        database.remove()
    print(machine())
    print_table(figures)
    more: dict[str, Any] = {"rate": rate, "seconds": seconds}
    print(write_json("diskless", figures, more))


def _of(name: str, what: str, value: float) -> Figure:
    return Figure("diskless", f"{name}: {what}", value, "")


if __name__ == "__main__":
    main()
