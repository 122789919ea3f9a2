"""How much memory a task's Python process takes at its peak, and whether that grows with what it reads or writes.

Workers are not used again here, so each task has a process of its own, forked from PySpark's daemon. The kernel keeps
the largest resident size of each (VmHWM); it is looked at until the process is gone. The pages that it shares with the
daemon count in it, as they do in `ps`.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from spark_targets import PARTITIONS, Target, null_rows, of_spark

INTERVAL_S = 0.02
KEY_BYTES = 8
SHARES = (4, 1)
"""A quarter of the size, and all of it."""


class PeakWatch:
    """Notes the peak of every process below PySpark's daemon while it is on."""

    def __init__(self, jvm_pid: int) -> None:
        self._jvm_pid = jvm_pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peaks_kb: dict[int, int] = {}

    def __enter__(self) -> PeakWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL_S):
            for daemon in children(self._jvm_pid):
                for worker in children(daemon) if _forks_tasks(daemon) else ():
                    with suppress(OSError, StopIteration):
                        self.peaks_kb[worker] = max(self.peaks_kb.get(worker, 0), _peak_kb(worker))


def children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def _forks_tasks(pid: int) -> bool:
    """Tell the daemon of tasks from those for what runs on the driver, which plans and commits."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").endswith(b"pyspark.worker")
    return False


def _peak_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


def task_memory(spark: SparkSession, target: Target, size: int, megabytes: int) -> dict[str, list[float]]:
    """Return each task's peak in MB by variant, printed with its median. `spark` must not use workers again."""
    assert spark.conf.get("spark.python.worker.reuse") == "false"
    assert spark.sparkContext._jvm is not None
    jvm_pid = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    found: dict[str, list[float]] = {}
    print(f"\nmemory of a task's Python process, {size} B values, {PARTITIONS} tasks")
    for share in SHARES:
        rows = (megabytes << 20) // share // (size + KEY_BYTES)
        per_task = f"{rows * (size + KEY_BYTES) / PARTITIONS / 1e6:.0f} MB a task"
        topic = target.new_topic(f"memory-{size}")
        made = of_spark(spark, rows, size)
        runs: dict[str, Callable[[], Any]] = {
            "write, do-nothing sink": lambda made=made: made.write.format("null").mode("append").save(),
            "write, Semel": lambda made=made, topic=topic: target.write(made, topic),
            "read, do-nothing source": lambda rows=rows: (
                null_rows(spark, rows, size).write.format("noop").mode("overwrite").save()
            ),
            "read, Semel": lambda topic=topic: target.read(spark, topic).write.format("noop").mode("overwrite").save(),
        }
        for name, run in runs.items():
            with PeakWatch(jvm_pid) as watch:
                run()
            peaks = [kb * 1024 / 1e6 for kb in watch.peaks_kb.values()]
            assert len(peaks) == PARTITIONS, f"{name}: {len(peaks)} tasks were seen of {PARTITIONS}"
            found[f"{name}, {per_task}"] = peaks
            print(
                f"    {name + ', ' + per_task:45} {statistics.median(peaks):6.0f} MB  "
                f"({' '.join(f'{peak:.0f}' for peak in peaks)})",
                flush=True,
            )
        target.drop(topic)
    return found
