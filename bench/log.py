"""What a partition's log costs in CPU time: appends, reads, lookups; and in time: opening and recovery.

    python -P bench/log.py
    python -P bench/log.py --folder /var/tmp/semel-bench --megabytes 1024

Nothing is synced while appends are measured (the node's journal does that), so figures are of Python and the page
cache. "bare" is `os.pwrite` of the same bytes to one file, the floor under every append. Medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable

from semel.broker.log.config import LogConfig
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.partition_log import PartitionLog
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import set_producer
from semel.protocol.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition, new_topic_id
from semel.runtime.disk_storage import DiskStorage

NOW = 1_700_000_000_000
STORAGE = DiskStorage()
TOPIC_ID = new_topic_id()


def open_log(folder: str, *, clean: bool = False, files: OpenFiles | None = None, point: int = 0) -> PartitionLog:
    return PartitionLog.open(
        STORAGE, folder, TopicPartition("bench", 0), TOPIC_ID, LogConfig(), now_ms=NOW, clean=clean, files=files,
        recovery_point=point,
    )  # fmt: skip


def make_batch(records: int, value_bytes: int, *, idempotent: bool = False) -> bytearray:
    return bytearray(
        encode_batch(
            [(NOW, b"key-0123", bytes(value_bytes), ())] * records,
            producer_id=1 if idempotent else NO_PRODUCER_ID,
            producer_epoch=0 if idempotent else NO_PRODUCER_EPOCH,
            base_sequence=0 if idempotent else -1,
        )
    )


def timed(work: Callable[[], int], rounds: int) -> float:
    """Return the median CPU seconds (user and system) for one of the units that `work` says it did."""
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        count = work()
        found.append((time.process_time() - begin) / count)
    return statistics.median(found)


def idempotent_appends(log: PartitionLog, records: int, value_bytes: int, count: int, rounds: int) -> float:
    """Return the median CPU seconds of an append by an idempotent producer, whose batches are all different."""
    template = make_batch(records, value_bytes, idempotent=True)
    sequence = 0
    found = []
    for _ in range(rounds):
        batches = []
        for _ in range(count):
            batches.append(bytearray(template))
            set_producer(batches[-1], 0, producer_id=1, producer_epoch=0, base_sequence=sequence)
            sequence += records
        begin = time.process_time()
        for data in batches:
            log.append(data, leader_epoch=0, now_ms=NOW)
        found.append((time.process_time() - begin) / count)
    return statistics.median(found)


def bench_appends(folder: str, rounds: int) -> None:
    for name, records, value_bytes, count in (
        ("1 record of 100 B", 1, 100, 20_000),
        ("1 record of 1 KiB", 1, 1024, 20_000),
        ("16 KiB batch of 100 B records", 140, 100, 5_000),
        ("1 MiB batch of 1 KiB records", 1000, 1024, 200),
    ):
        data = make_batch(records, value_bytes)
        descriptor = os.open(f"{folder}/bare", os.O_RDWR | os.O_CREAT)
        position = 0

        def bare(data: bytearray = data, count: int = count, descriptor: int = descriptor) -> int:
            nonlocal position
            for _ in range(count):
                position += os.pwrite(descriptor, data, position)
            return count

        log = open_log(f"{folder}/append-{records}-{value_bytes}")

        def append(data: bytearray = data, count: int = count, log: PartitionLog = log) -> int:
            for _ in range(count):
                log.append(data, leader_epoch=0, now_ms=NOW)
            return count

        floor, cost = timed(bare, rounds), timed(append, rounds)
        few = 100 if records * value_bytes > 100_000 else 2000
        with_producer = idempotent_appends(log, records, value_bytes, few, rounds)
        print(
            f"append, {name:32} {cost * 1e6:8.2f} us  (bare write {floor * 1e6:.2f} us; of a producer id "
            f"{with_producer * 1e6:.2f} us)  {len(data) / cost / 1e6:8.0f} MB/s"
        )
        os.close(descriptor)
        os.remove(f"{folder}/bare")
        log.close()
        shutil.rmtree(f"{folder}/append-{records}-{value_bytes}")


def bench_reads(folder: str, rounds: int) -> None:
    log = open_log(f"{folder}/read")
    data = make_batch(1, 100)
    for _ in range(300_000):
        log.append(data, leader_epoch=0, now_ms=NOW)
    end = log.log_end_offset

    def sequential(max_bytes: int) -> Callable[[], int]:
        def run() -> int:
            offset = count = 0
            while offset < end:
                offset = log.read(offset, max_bytes, end).next_offset
                count += 1
            return count

        return run

    def random_offsets() -> int:
        offset = 1
        for _ in range(5000):
            offset = (offset * 48271) % end
            log.read(offset, 4096, end)
        return 5000

    def tail() -> int:
        for _ in range(5000):
            offset = log.append(data, leader_epoch=0, now_ms=NOW).base_offset
            log.read(offset, 1 << 20, log.log_end_offset)
        return 5000

    def timestamps() -> int:
        for n in range(200):
            log.offset_for_timestamp(NOW - n)
        return 200

    print(f"find the range of 1 MiB, in order             {timed(sequential(1 << 20), rounds) * 1e6:8.2f} us")
    print(f"find the range of 64 KiB, in order            {timed(sequential(1 << 16), rounds) * 1e6:8.2f} us")
    print(f"find the range of 4 KiB at a random offset    {timed(random_offsets, rounds) * 1e6:8.2f} us")
    print(f"append 100 B and read it at the tail          {timed(tail, rounds) * 1e6:8.2f} us")
    print(f"find an offset by timestamp                   {timed(timestamps, rounds) * 1e6:8.2f} us")
    log.close()


def bench_opening(folder: str, megabytes: int) -> None:
    for name, records, value_bytes in (("100 B batches", 1, 100), ("16 KiB batches", 140, 100)):
        path = f"{folder}/recover-{records}"
        log = open_log(path)
        data = make_batch(records, value_bytes)
        total = megabytes if records > 1 else max(1, megabytes // 4)
        while log.size_bytes < total << 20:
            for _ in range(500):
                log.append(data, leader_epoch=0, now_ms=NOW)
        end = log.log_end_offset
        log.close()
        begin = time.perf_counter()
        open_log(path, clean=True).release_files()
        clean = time.perf_counter() - begin
        begin = time.perf_counter()
        open_log(path, point=end).release_files()
        flushed = time.perf_counter() - begin
        for snapshot in os.listdir(path):
            if snapshot.endswith(".snapshot"):
                os.remove(f"{path}/{snapshot}")
        begin = time.perf_counter()
        log = open_log(path)
        spent = time.perf_counter() - begin
        assert log.log_end_offset == end
        log.release_files()
        print(
            f"open {total} MiB of {name}: clean {clean * 1e3:.2f} ms; all of it to recover {spent:.2f} s "
            f"({total / spent:.0f} MiB/s); all of it flushed before a crash {flushed * 1e3:.1f} ms"
        )
        shutil.rmtree(path)


def bench_idle(folder: str, count: int = 500) -> None:
    files = OpenFiles(64)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    begin = time.perf_counter()
    logs = [open_log(f"{folder}/idle-{n}", files=files) for n in range(count)]
    spent = time.perf_counter() - begin
    empty = (tracemalloc.get_traced_memory()[0] - before) / count
    for log in logs:
        log.append(make_batch(1, 100, idempotent=True), leader_epoch=0, now_ms=NOW)
        log.close()
    logs.clear()
    before = tracemalloc.get_traced_memory()[0]
    begin = time.perf_counter()
    logs = [open_log(f"{folder}/idle-{n}", files=files, clean=True) for n in range(count)]
    again = time.perf_counter() - begin
    used = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    print(
        f"a partition at rest: {empty:.0f} B of memory empty, {used:.0f} B with a producer (traced); created in "
        f"{spent / count * 1e3:.2f} ms, opened clean in {again / count * 1e3:.2f} ms (both while traced)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=None, help="where to write (default: a temporary folder)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=512, help="the size of the log to recover")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="semel-bench-", dir=options.folder)
    try:
        bench_appends(folder, options.rounds)
        bench_reads(folder, options.rounds)
        bench_opening(folder, options.megabytes)
        bench_idle(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
