"""Durable appends: how many a second, by waiting appenders and partitions; what a sync takes; how long recovery takes.

    .venv/bin/python -P bench/journal.py [FOLDER]

Each appender appends one batch and waits until it is on the disk, as a client with acks=all and one request in flight
does. There is no network in it. The event loop is asyncio's own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from semel.broker.log.config import LogConfig
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.manager import LogManager
from semel.broker.logs.partition import Partition
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition, new_topic_id
from semel.runtime.clock import SystemClock
from semel.runtime.disk_storage import DiskStorage, raise_open_files_limit
from semel.runtime.storage import StorageFile

SECONDS = 3.0
RECORD = b"x" * 100


class TimedFile:
    """A file of the journal whose syncs are timed."""

    def __init__(self, file: StorageFile, times: list[float]) -> None:
        self._times = times
        self._sync = file.sync
        for name in ("append", "write_at", "write_many_at", "read_at", "map", "size", "truncate", "fileno", "close"):
            setattr(self, name, getattr(file, name))

    def sync(self) -> None:
        begin = time.perf_counter()
        self._sync()
        self._times.append(time.perf_counter() - begin)


class TimedStorage(DiskStorage):
    """The disk, with the syncs of the journal timed."""

    __slots__ = ("times",)

    def __init__(self) -> None:
        self.times: list[float] = []

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        file = super().open(path, create=create)
        return TimedFile(file, self.times) if path.endswith(".journal") else file  # type: ignore[return-value]


class Appender:
    """Appends the next batch as soon as the one before is durable."""

    def __init__(self, partition: Partition, batch: bytes, ends: float) -> None:
        self.partition = partition
        self.batch = batch
        self.ends = ends
        self.count = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def append(self, error: SemelError | None = None) -> None:
        if error is not None:
            self.done.set_exception(error)
        elif time.monotonic() >= self.ends:
            self.done.set_result(None)
        else:
            self.count += 1
            result = self.partition.append(bytearray(self.batch))
            self.partition.when_committed(result.last_offset, self._committed)

    def _committed(self, error: SemelError | None) -> None:
        # As a connection does: what the answer makes a client send comes with a later turn of the loop.
        asyncio.get_running_loop().call_soon(self.append, error)


async def measure(folder: str, appenders: int, partitions: int, records: int) -> None:
    storage = TimedStorage()
    logs = LogManager(
        storage, folder, SystemClock(), LogManagerConfig(log_max_open_files=raise_open_files_limit() // 2)
    )
    logs.open()
    topic_id = new_topic_id()
    config = LogConfig()
    found = [logs.create_partition(TopicPartition("bench", n), topic_id, config) for n in range(partitions)]
    background = asyncio.create_task(logs.maintenance.run())
    batch = encode_batch([(1, None, RECORD, ()) for _ in range(records)])
    storage.times.clear()
    begin = time.monotonic()
    cpu = time.process_time()
    clients = [Appender(found[n % partitions], batch, begin + SECONDS) for n in range(appenders)]
    for client in clients:
        client.append()
    await asyncio.gather(*(client.done for client in clients))
    seconds = time.monotonic() - begin
    cpu = time.process_time() - cpu
    count = sum(client.count for client in clients)
    times = sorted(storage.times)
    p50, p99 = statistics.median(times), times[int(len(times) * 0.99)]
    background.cancel()
    await asyncio.wait([background])
    await logs.close()
    rate = count / seconds
    print(
        f"| {appenders} | {partitions} | {len(batch)} B | {rate:,.0f} | {rate * len(batch) / 1e6:,.0f} "
        f"| {count / len(times):,.1f} | {p50 * 1e6:,.0f} us | {p99 * 1e6:,.0f} us | {cpu / count * 1e6:,.1f} us |",
        flush=True,
    )


async def measure_recovery(folder: str, megabytes: int, partitions: int, records: int, *, lost: bool) -> None:
    """Fill the journal, drop the node without a stop, and open it again: with the logs whole, or gone."""
    config = LogManagerConfig(journal_flush_bytes=4 << 30, journal_max_bytes=4 << 30)
    logs = LogManager(DiskStorage(), folder, SystemClock(), config)
    logs.open()
    topic_id = new_topic_id()
    found = [logs.create_partition(TopicPartition("bench", n), topic_id, LogConfig()) for n in range(partitions)]
    batch = encode_batch([(1, None, RECORD, ()) for _ in range(records)])
    count = (megabytes << 20) // len(batch)
    for n in range(count):
        result = found[n % partitions].append(bytearray(batch))
        if n % 1000 == 0:
            await found[n % partitions].wait_committed(result.last_offset)
    await found[(count - 1) % partitions].wait_committed(result.last_offset)
    logs.folder.release()
    if lost:
        for partition in found:
            path = f"{folder}/{partition.tp}/{0:020d}.log"
            os.truncate(path, 0)
    begin, cpu = time.monotonic(), time.process_time()
    logs = LogManager(DiskStorage(), folder, SystemClock(), config)
    report = logs.open()
    seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
    logs_are = "lost" if lost else "whole"
    print(
        f"| {megabytes} MiB | {partitions} | {len(batch)} B | {logs_are} | {report.journal_entries:,} "
        f"| {report.restored_batches:,} | {seconds:.2f} s | {cpu:.2f} s |",
        flush=True,
    )
    await logs.close()


async def measure_opening(folder: str, partitions: int) -> None:
    logs = LogManager(DiskStorage(), folder, SystemClock())
    logs.open()
    topic_id = new_topic_id()
    before = resident_bytes()
    begin = time.monotonic()
    for n in range(partitions):
        logs.create_partition(TopicPartition("bench", n), topic_id, LogConfig())
    created = time.monotonic() - begin
    each = (resident_bytes() - before) / partitions
    begin = time.monotonic()
    await logs.close()
    closed = time.monotonic() - begin
    begin = time.monotonic()
    logs = LogManager(DiskStorage(), folder, SystemClock())
    logs.open()
    opened = time.monotonic() - begin
    await logs.close()
    print(f"| {partitions:,} | {created:.2f} s | {closed:.2f} s | {opened:.2f} s | {each / 1024:.1f} KB |", flush=True)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def main() -> None:
    root = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="semel-bench-", dir=".")

    def fresh(run: Callable[[str], object]) -> None:
        shutil.rmtree(root, ignore_errors=True)
        run(f"{root}/data")

    # First, while the process is small: the memory of an idle partition is read off the resident size.
    print("| partitions | create | clean stop | clean start | memory each |")
    print("|---|---|---|---|---|")
    for partitions in (1000,):
        fresh(lambda path: asyncio.run(measure_opening(path, partitions)))  # noqa: B023
    print("\n| appenders | partitions | batch | appends/s | MB/s | appends a sync | sync p50 | p99 | CPU an append |")
    print("|---|---|---|---|---|---|---|---|---|")
    for appenders, partitions, records in (
        (1, 1, 1),
        (8, 1, 1),
        (32, 1, 1),
        (32, 32, 1),
        (128, 1, 1),
        (128, 128, 1),
        (1000, 1000, 1),
        (32, 32, 100),
        (8, 8, 1000),
    ):
        fresh(lambda path: asyncio.run(measure(path, appenders, partitions, records)))  # noqa: B023
    print("\n| journal | partitions | batch | logs | entries | put back | recovery | CPU |")
    print("|---|---|---|---|---|---|---|---|")
    for megabytes, partitions, records in ((64, 32, 1), (256, 32, 1), (64, 1000, 1), (64, 32, 100), (256, 32, 100)):
        for lost in (False, True):
            fresh(lambda path: asyncio.run(measure_recovery(path, megabytes, partitions, records, lost=lost)))  # noqa: B023
    shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
