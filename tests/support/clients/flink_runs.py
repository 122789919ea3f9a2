"""A job of Apache Flink at work (`compat/flink/src/CountingJob.java`): its input, its process, and a judge."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from java_programs import JavaProcess

import semel

READINGS, NUMBERED = "readings", "numbered"
PARTITIONS = 3
KEYS = 30
JVM = (
    "-Xmx400m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)


def create_topics(bootstrap: str) -> None:
    with semel.Admin(bootstrap) as admin:
        for name in (READINGS, NUMBERED):
            admin.create_topic(name, partitions=PARTITIONS)


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


class OnFlink(ABC):
    """A program in a JVM of its own, with Flink in it. Another start begins with the latest complete checkpoint."""

    transactions = ""
    """The pattern of the names of its transactions."""

    def __init__(self, folder: Path, jars: Path, classes: Path, main: str) -> None:
        self._folder = folder
        self._jars = jars
        self._classes = classes
        self._main = main
        self._process: JavaProcess | None = None
        self.checkpoints = folder / "checkpoints"
        self.restored: list[int] = []
        """The checkpoints that it was started with."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @abstractmethod
    def arguments(self, checkpoint: Path | None) -> list[str]:
        """Return what the program is started with. `checkpoint`: where it continues."""

    def start(self) -> None:
        latest = latest_checkpoint(self.checkpoints)
        if latest is not None:
            self.restored.append(checkpoint_number(latest))
        log = self._folder / "program.log"
        self._process = JavaProcess(self._jars, self._classes, self._main, *self.arguments(latest), log=log, jvm=JVM)
        self._process.start()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def log(self) -> str:
        return "" if self._process is None else self._process.log()

    def check(self) -> None:
        assert self._process is not None
        assert self._process.is_running, f"the program has ended:\n{self._process.log_tail()}"

    def has_open_transaction(self, admin: semel.Admin, instance: int | None) -> bool:
        return any(admin.transactions(states=["Ongoing"], pattern=self.transactions))


class Job(OnFlink):
    """The counting job. `parallelisms`: those of one start after the other."""

    transactions = "flink.*"

    def __init__(
        self,
        folder: Path,
        jars: Path,
        classes: Path,
        kafka: str,
        naming: str,
        *,
        timeout_ms: int,
        parallelisms: Sequence[int] = (2,),
    ) -> None:
        super().__init__(folder, jars, classes, "CountingJob")
        self._settings = [kafka, naming, str(timeout_ms), str(self.checkpoints)]
        self._parallelisms = itertools.cycle(parallelisms)

    def arguments(self, checkpoint: Path | None) -> list[str]:
        restored = [] if checkpoint is None else [str(checkpoint)]
        return [*self._settings, str(next(self._parallelisms)), *restored]


def latest_checkpoint(checkpoints: Path) -> Path | None:
    """Return the folder of the latest checkpoint whose metadata was written: others were cut off by a kill."""
    complete = [path.parent for path in checkpoints.glob("*/chk-*/_metadata")]
    return max(complete, key=checkpoint_number, default=None)


def checkpoint_number(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("chk-"))
