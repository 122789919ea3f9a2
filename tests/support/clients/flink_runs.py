"""A job of Apache Flink at work (`compat/flink/src/CountingJob.java`): its input, its process, and a judge."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from java_programs import JavaProcess

import semel

READINGS, NUMBERED = "readings", "numbered"
PARTITIONS = 3
KEYS = 30
TRANSACTIONS = "flink"
"""What the names of the job's transactions begin with."""
JVM = (
    "-Xmx400m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)


class Input:
    """Readings of some sensors; each sensor's are in one partition, in order."""

    def __init__(self, count: int) -> None:
        self.count = count

    def send(self, producer: semel.Producer, number: int) -> None:
        producer.send(READINGS, f"reading{number}", key=f"sensor{number % KEYS}")

    def outputs(self, count: int) -> int:
        return count

    def results(self) -> dict[str, list[str]]:
        """Return each sensor's readings with their numbers: a batch's result."""
        return {
            f"sensor{key}": [f"reading{number} {place}" for place, number in enumerate(range(key, self.count, KEYS), 1)]
            for key in range(min(KEYS, self.count))
        }


@dataclass
class Results:
    """What a reader of committed records has seen of the output, in each partition's order."""

    values: dict[str, list[str]] = field(default_factory=dict)
    seen: int = 0

    def add(self, topic: str, key: bytes, value: bytes) -> None:
        assert topic == NUMBERED
        self.values.setdefault(key.decode(), []).append(value.decode())
        self.seen += 1

    def wrong(self, source: Input) -> list[str]:
        """Compare with a batch over the input: each reading once, with its number, in order. Empty: right."""
        wanted = source.results()
        return [
            f"{key}: {next(_differences(self.values.get(key, []), wanted.get(key, [])))}"
            for key in sorted(wanted.keys() | self.values.keys())
            if self.values.get(key) != wanted.get(key)
        ]


def _differences(found: list[str], wanted: list[str]) -> Iterator[str]:
    for place, (one, due) in enumerate(itertools.zip_longest(found, wanted)):
        if one != due:
            yield f"{one!r} at place {place}, where {due!r} is due ({len(found)} of {len(wanted)})"


class Job:
    """The job in a JVM of its own. Another start begins with the latest checkpoint that is complete."""

    def __init__(self, folder: Path, jars: Path, classes: Path, kafka: str, naming: str, *, timeout_ms: int) -> None:
        self._folder = folder
        self._jars = jars
        self._classes = classes
        self._arguments = [kafka, naming, str(timeout_ms)]
        self._process: JavaProcess | None = None
        self.checkpoints = folder / "checkpoints"
        self.restored: list[int] = []
        """The checkpoints that it was started with."""

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, parallelism: int = 2) -> None:
        latest = self.latest_checkpoint()
        arguments = [*self._arguments, str(self.checkpoints), str(parallelism)]
        if latest is not None:
            arguments.append(str(latest))
            self.restored.append(_number(latest))
        log = self._folder / "job.log"
        self._process = JavaProcess(self._jars, self._classes, "CountingJob", *arguments, log=log, jvm=JVM)
        self._process.start()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def log(self) -> str:
        return "" if self._process is None else self._process.log()

    def latest_checkpoint(self) -> Path | None:
        """Return the folder of the latest checkpoint whose metadata was written: others were cut off by a kill."""
        complete = [path.parent for path in self.checkpoints.glob("*/chk-*/_metadata")]
        return max(complete, key=_number, default=None)

    def check(self) -> None:
        assert self._process is not None
        assert self._process.is_running, f"the job has ended:\n{self._process.log_tail()}"

    def has_open_transaction(self, admin: semel.Admin, instance: int | None) -> bool:
        return any(admin.transactions(states=["Ongoing"], pattern=f"{TRANSACTIONS}.*"))


def _number(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("chk-"))
